/* kernels/profile.h: the arithmetic on records that are made up, a watched device against the counts of engine/work.h,
   traced and replayed passes on a device that plays both; and kernels/work.h by hand. */
#include "bench/profile_rows.h"
#include "engine/work.h"
#include "kernels/work.h"
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error error;

static const struct profile_operation *operation(const struct profile_pass *pass, const char *name)
{
    for (size_t i = 0; i < pass->count; i++)
        if (strcmp(pass->operations[i].name, name) == 0)
            return &pass->operations[i];
    fail_msg("no operation %s", name);
    return NULL;
}

static void assert_ms(double got, double wanted)
{
    if (fabs(got - wanted) > 1e-9)
        fail_msg("%.9f ms, not %.9f", got, wanted);
}

/* ---- the arithmetic */

/* a runs 0..2, b 3..4, a 4..7 ms: 6 ms of work, one gap of 1. */
static void calls_with_their_own_times(void **state)
{
    (void)state;
    const struct profile_call calls[] = {{"a", 10, 100, 0, 2, 1}, {"b", 5, 0, 3, 4, 1}, {"a", 20, 200, 4, 7, 1}};
    struct profile_pass pass;
    check_ok(profile_sum(&pass, calls, 3, NULL, 0, &error));
    assert_int_equal(pass.count, 2);
    assert_int_equal(operation(&pass, "a")->calls, 2);
    assert_int_equal(operation(&pass, "a")->bytes, 30);
    assert_int_equal(operation(&pass, "a")->flops, 300);
    assert_int_equal(operation(&pass, "a")->launches, 0);
    assert_ms(operation(&pass, "a")->ms, 5);
    assert_ms(operation(&pass, "b")->ms, 1);
    assert_ms(pass.pass_ms, 7);
    assert_ms(pass.gap_ms, 1);
    assert_int_equal(pass.gaps, 1);
    profile_pass_free(&pass);
}

/* Three kernels of two calls and one of none; the second overlaps the first, so that only 1.0 ms before the last is a
   gap. The clock's zero is far away. */
static void kernels_are_summed_by_operation(void **state)
{
    (void)state;
    const uint64_t zero = UINT64_C(1764500000000000000);
    const struct profile_call calls[] = {{"product", 8, 16, 0, 0, 1}, {"attention", 2, 4, 0, 0, 1}};
    const struct device_launch launches[] = {{zero, zero + 1000000, 0, "few_rows<2>"},
                                             {zero + 500000, zero + 2000000, 1, "split<64>"},
                                             {zero + 2000000, zero + 2500000, 1, "combine"},
                                             {zero + 3500000, zero + 3600000, -1, "stray"}};
    struct profile_pass pass;
    check_ok(profile_sum(&pass, calls, 2, launches, 4, &error));
    assert_string_equal(pass.timed_by, "cupti");
    assert_int_equal(pass.count, 3);
    assert_ms(operation(&pass, "product")->ms, 1.0);
    assert_ms(operation(&pass, "attention")->ms, 2.0);
    assert_int_equal(operation(&pass, "attention")->launches, 2);
    assert_int_equal(operation(&pass, "attention")->calls, 1);
    assert_string_equal(operation(&pass, "attention")->kernels, "split<64> + combine");
    assert_ms(operation(&pass, "other kernels")->ms, 0.1);
    assert_int_equal(operation(&pass, "other kernels")->calls, 0);
    assert_ms(pass.pass_ms, 3.6);
    assert_ms(pass.gap_ms, 1.0);
    assert_int_equal(pass.gaps, 1);
    profile_pass_free(&pass);
}

/* A name that is the beginning of another is still another; a list that is full ends with a whole name. */
static void kernel_names_are_listed_once(void **state)
{
    (void)state;
    const struct profile_call call = {"product", 1, 1, 0, 0, 1};
    struct device_launch launches[40] = {{0, 1, 0, "split2"}, {1, 2, 0, "split"}, {2, 3, 0, "split2"}};
    struct profile_pass pass;
    check_ok(profile_sum(&pass, &call, 1, launches, 3, &error));
    assert_string_equal(pass.operations[0].kernels, "split2 + split");
    profile_pass_free(&pass);
    for (int i = 0; i < 40; i++) {
        launches[i] = (struct device_launch){(uint64_t)i, (uint64_t)i + 1, 0, ""};
        snprintf(launches[i].name, sizeof launches[i].name, "kernel_%02d", i);
    }
    check_ok(profile_sum(&pass, &call, 1, launches, 40, &error));
    assert_int_equal(pass.operations[0].launches, 40);
    const char *names = pass.operations[0].kernels;
    assert_in_range(strlen(names), sizeof pass.operations[0].kernels / 2, sizeof pass.operations[0].kernels - 1);
    assert_int_equal((strlen(names) + 3) % strlen("kernel_00 + "), 0);
    profile_pass_free(&pass);
}

static void nothing_gives_an_empty_pass(void **state)
{
    (void)state;
    struct profile_pass pass;
    check_ok(profile_sum(&pass, NULL, 0, NULL, 0, &error));
    assert_int_equal(pass.count, 0);
    assert_ms(pass.pass_ms, 0);
    profile_pass_free(&pass);
    struct profile_pass none = {0};
    profile_pass_free(&none);
}

/* Three repetitions: medians of each operation, the longest first. */
static void medians_over_repetitions(void **state)
{
    (void)state;
    struct profile_operation first[] = {{.name = "a", .calls = 1, .ms = 1, .bytes = 7},
                                        {.name = "b", .calls = 2, .ms = 5}};
    struct profile_operation second[] = {{.name = "a", .calls = 1, .ms = 9}, {.name = "b", .calls = 2, .ms = 4}};
    struct profile_operation third[] = {{.name = "a", .calls = 1, .ms = 2}, {.name = "b", .calls = 2, .ms = 3}};
    struct profile_pass passes[] = {{.operations = first, .count = 2, .pass_ms = 7, .gap_ms = 1, .gaps = 1},
                                    {.operations = second, .count = 2, .pass_ms = 13, .gap_ms = 0},
                                    {.operations = third, .count = 2, .pass_ms = 8, .gap_ms = 3, .gaps = 2}};
    struct profile_medians medians;
    check_ok(profile_medians_of(&medians, passes, 3, &error));
    assert_int_equal(medians.count, 2);
    assert_string_equal(medians.rows[0].operation->name, "b");
    assert_ms(medians.rows[0].ms, 4);
    assert_string_equal(medians.rows[1].operation->name, "a");
    assert_ms(medians.rows[1].ms, 2);
    assert_int_equal(medians.rows[1].operation->bytes, 7);
    assert_ms(medians.pass_ms, 8);
    assert_ms(medians.gap_ms, 1);
    profile_medians_free(&medians);
    third[1].calls = 3;
    assert_int_equal(profile_medians_of(&medians, passes, 3, &error), STATUS_CHECK_FAILED);
    assert_non_null(strstr(error.message, "repetition 3 has other calls of b"));
    profile_medians_free(&medians);
}

/* Only an interval that is wholly on one side says where the cost is. */
static void verdict_on_what_looking_costs(void **state)
{
    (void)state;
    static const struct {
        struct stats_interval cost;
        const char *verdict;
    } cases[] = {{{0.3, 0.1, 0.499, true}, "below"},      {{0.7, 0.501, 0.9, true}, "above"},
                 {{0.3, 0.1, 0.5, true}, "not resolved"}, {{0.7, 0.5, 0.9, true}, "not resolved"},
                 {{0.4, -9, 9, true}, "not resolved"},    {{0.1, 0.1, 0.1, false}, "not resolved"},
                 {{-0.2, -0.3, -0.1, true}, "below"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(profile_hooks_verdict(&cases[i].cost, 0.5), cases[i].verdict);
}

/* ---- work by hand */

static void work_of_operations(void **state)
{
    (void)state;
    const int32_t first_row[] = {0, 1, 4}, context[] = {10, 3};
    const struct device_batch batch = {.rows = 4, .sequences = 2, .host_first_row = first_row, .host_context = context};
    assert_int_equal(embed_bytes(DTYPE_BF16, 3, 8), 3 * (8 * 2 + 8 * 4 + 4));
    assert_int_equal(rope_table_bytes(3, 4), 3 * (4 * 8 + 4) + 16);
    assert_int_equal(argmax_bytes(DTYPE_F16, 2, 100), 2 * (200 + 4));
    /* 2 heads, 1 KV head of 8: q 16, k and v 8 values a row; q read and written, k, v and 4 pairs read, in f32 */
    struct rope_store_args rope = {
        .batch = &batch, .heads = 2, .kv_heads = 1, .head_dim = 8, .kv = {.dtype = DTYPE_BF16}};
    assert_int_equal(rope_store_bytes(&rope), 4 * ((32 + 16 + 8) * 4 + 16 * 2));
    /* the one row of 10 positions reads 10, the three rows of 3 read 3 and see 1 + 2 + 3 */
    struct attention_args attention = {.batch = &batch,
                                       .heads = 2,
                                       .kv_heads = 1,
                                       .head_dim = 8,
                                       .kv = {.dtype = DTYPE_BF16},
                                       .out_dtype = DTYPE_BF16};
    assert_int_equal(attention_bytes(&attention), 2 * 13 * 8 * 2 + 4 * 16 * 6);
    assert_int_equal(attention_flops(&attention), 4 * 16 * (10 + 6));
    attention.window = 2; /* 2 of the first; of the others 3 are read, 1 + 2 + 2 seen */
    assert_int_equal(attention_bytes(&attention), 2 * 5 * 8 * 2 + 4 * 16 * 6);
    assert_int_equal(attention_flops(&attention), 4 * 16 * (2 + 5));
    float *some = NULL; /* int8 has a scale of 4 bytes beside each row of 8 */
    attention.kv = (struct device_kv){.dtype = DTYPE_INT8, .k_scale = &some, .v_scale = &some};
    assert_int_equal(attention_bytes(&attention), 2 * 5 * (8 + 4) + 4 * 16 * 6);
    struct linear_args product = {.rows = 3, .in = 8, .out = 5};
    assert_int_equal(linear_flops(&product), 240);
}

/* ---- a watched device */

enum { PROMPT = 12, MOST = 20 };
static const struct model_limits limits = {.max_rows = PROMPT, .max_sequences = 1, .max_blocks = 1};

struct setup {
    struct test_model m;
    struct kv_cache *cache;
    int sequence;
    int32_t *tokens;
    struct logits logits;
};

static void open_setup(struct setup *setup)
{
    uint64_t random = 5;
    struct config config = test_random_config(&random);
    *setup = (struct setup){0};
    test_model_open(&setup->m, &config, DTYPE_F32, 0, &limits);
    struct kv_options options = {.policy = KV_RESERVED, .dtype = DTYPE_F32, .max_sequences = 1, .max_tokens = MOST};
    check_ok(kv_open(&setup->cache, setup->m.ledger, &setup->m.config, &options, &error));
    check_ok(kv_sequence_open(setup->cache, &setup->sequence, &error));
    check_ok(logits_init(&setup->logits, setup->m.ledger, &setup->m.config, DTYPE_F32, 1, &error));
    setup->tokens = test_tokens(&setup->m.config, MOST, 3);
}

static void close_setup(struct setup *setup)
{
    free(setup->tokens);
    logits_free(&setup->logits, setup->m.ledger);
    kv_close(setup->cache);
    test_model_close(&setup->m);
}

static int32_t step(struct setup *setup, int start, int count)
{
    int32_t chosen = -1;
    setup->logits.rows = 0;
    check_ok(kv_truncate(setup->cache, setup->sequence, start, &error));
    check_ok(model_prefill(&setup->m.model, setup->cache, setup->sequence, setup->tokens + start, count, LOGITS_LAST, 0,
                           &setup->logits, &error));
    check_ok(model_argmax(&setup->m.model, &setup->logits, 0, 1, &chosen, &error));
    return chosen;
}

static void assert_counts(const struct setup *setup, const struct profile_pass *pass, int start, int count)
{
    const struct config *config = &setup->m.config;
    struct pass_shape shape = {.sequences = 1, .start = start, .count = count, .logits = 1};
    uint64_t flops = 0;
    for (size_t i = 0; i < pass->count; i++)
        flops += pass->operations[i].flops;
    assert_int_equal(flops, work_flops(config, &shape));
    assert_int_equal(operation(pass, "attention")->calls, config->num_hidden_layers);
    assert_int_equal(operation(pass, "rms_norm")->calls, 2 * config->num_hidden_layers + 1);
    uint64_t q = (uint64_t)(config->num_attention_heads * config->head_dim);
    assert_int_equal(operation(pass, "attention")->bytes,
                     work_kv_read_bytes(config, DTYPE_F32, &shape) +
                         (uint64_t)config->num_hidden_layers * (uint64_t)count * q * 2 * sizeof(float));
    assert_int_equal(operation(pass, "argmax")->calls, 1);
    assert_false(pass->replayed);
}

/* The operations' counts add up to those of the pass; tokens and operations are the plain device's again afterwards. */
static void a_watched_pass(void **state)
{
    (void)state;
    struct setup setup;
    open_setup(&setup);
    struct device *device = setup.m.device;
    const struct device_ops *plain = device->ops;
    struct profile *profile;
    struct profile_pass pass;
    int graphs = device->graphs;
    int32_t prefilled = step(&setup, 0, PROMPT), decoded = step(&setup, PROMPT, 1);
    check_ok(profile_open(&profile, device, NULL, 0, &error));
    assert_ptr_not_equal(device->ops, plain);
    for (int repetition = 0; repetition < 2; repetition++) {
        check_ok(profile_start(profile, &error));
        assert_int_equal(step(&setup, 0, PROMPT), prefilled);
        check_ok(profile_read(profile, &pass, &error));
        assert_counts(&setup, &pass, 0, PROMPT);
        assert_true(pass.pass_ms >= pass.gap_ms);
        profile_pass_free(&pass);
        check_ok(profile_start(profile, &error));
        assert_int_equal(step(&setup, PROMPT, 1), decoded);
        check_ok(profile_read(profile, &pass, &error));
        assert_counts(&setup, &pass, PROMPT, 1);
        profile_pass_free(&pass);
    }
    profile_close(profile);
    assert_ptr_equal(device->ops, plain);
    assert_int_equal(device->graphs, graphs);
    profile_close(NULL);
    close_setup(&setup);
}

/* ---- tracing and replaying, played: every operation runs one kernel of 10 ns, products two; a replay runs those of
   the last pass again, in its order, and says nothing of operations */

static struct {
    struct device_launch launches[4096];
    size_t count;
    int current, recorded, replaying, recorded_kernels;
    uint64_t clock;
    int kernels_missing; /* of a replay */
    int refuse;          /* tracing */
    const struct device_ops *plain;
    struct device_ops ops;
} played;

static void run_kernel(const char *name)
{
    struct device_launch *launch = &played.launches[played.count++];
    *launch = (struct device_launch){played.clock, played.clock + 10, played.current, ""};
    snprintf(launch->name, sizeof launch->name, "%s", name);
    played.clock += 15;
}

static enum status trace_begin(struct device *device, struct error *why)
{
    (void)device;
    return played.refuse ? error_set(why, STATUS_DEVICE, "not here") : STATUS_OK;
}

static enum status trace_operation(struct device *device, int number, struct error *why)
{
    (void)device;
    (void)why;
    played.current = number;
    return STATUS_OK;
}

static enum status trace_take(struct device *device, struct device_trace *trace, struct error *why)
{
    (void)device;
    (void)why;
    *trace = (struct device_trace){.launches = malloc(sizeof played.launches), .count = played.count};
    memcpy(trace->launches, played.launches, sizeof played.launches);
    played.count = 0;
    return STATUS_OK;
}

static void trace_end(struct device *device)
{
    (void)device;
}

static enum status play_linear(struct device *device, const struct linear_args *args, struct error *why)
{
    run_kernel("bias");
    run_kernel("product");
    played.recorded_kernels += 2;
    return played.plain->linear(device, args, why);
}

static enum status play_attention(struct device *device, const struct attention_args *args, struct error *why)
{
    run_kernel("attention");
    played.recorded_kernels++;
    return played.plain->attention(device, args, why);
}

static enum status play_argmax(struct device *device, int32_t *index, const void *logits, enum dtype dtype, int rows,
                               int vocab, struct error *why)
{
    run_kernel("argmax");
    return played.plain->argmax(device, index, logits, dtype, rows, vocab, why);
}

static enum status play_pass_begin(struct device *device, const struct device_pass *shape, int *replayed,
                                   struct error *why)
{
    (void)device;
    (void)shape;
    (void)why;
    *replayed = played.replaying;
    for (int i = 0; *replayed && i < played.recorded_kernels - played.kernels_missing; i++)
        run_kernel("from the graph");
    if (!*replayed)
        played.recorded_kernels = 0;
    return STATUS_OK;
}

static const struct device_probes played_probes = {
    .trace_begin = trace_begin, .trace_operation = trace_operation, .trace_take = trace_take, .trace_end = trace_end};

static void play(struct device *device)
{
    memset(&played, 0, sizeof played);
    played.plain = device->ops;
    played.ops = *device->ops;
    played.ops.linear = play_linear;
    played.ops.attention = play_attention;
    played.ops.argmax = play_argmax;
    played.ops.pass_begin = play_pass_begin;
    device->ops = &played.ops;
    device->probes = &played_probes;
}

static void a_replayed_pass_is_taken_apart(void **state)
{
    (void)state;
    struct setup setup;
    open_setup(&setup);
    struct device *device = setup.m.device;
    const struct device_ops *plain = device->ops;
    struct profile *profile;
    struct profile_pass launched, replayed;
    char reason[64];
    play(device);
    step(&setup, 0, PROMPT);
    check_ok(profile_open(&profile, device, reason, sizeof reason, &error));
    assert_string_equal(reason, "");
    check_ok(profile_start(profile, &error));
    step(&setup, PROMPT, 1);
    check_ok(profile_read(profile, &launched, &error));
    assert_string_equal(launched.timed_by, "cupti");
    assert_int_equal(operation(&launched, "attention")->launches, setup.m.config.num_hidden_layers);
    assert_int_equal(operation(&launched, "argmax")->launches, 1);
    assert_int_equal(operation(&launched, "rms_norm")->launches, 0);
    played.replaying = 1;
    for (int repetition = 0; repetition < 2; repetition++) {
        check_ok(profile_start(profile, &error));
        step(&setup, PROMPT, 1); /* nothing is computed that would be looked at */
        check_ok(profile_read(profile, &replayed, &error));
        assert_true(replayed.replayed);
        assert_int_equal(replayed.count, launched.count);
        for (size_t i = 0; i < launched.count; i++) {
            const struct profile_operation *was = &launched.operations[i],
                                           *is = operation(&replayed, launched.operations[i].name);
            assert_int_equal(is->launches, was->launches);
            assert_int_equal(is->calls, was->calls);
            assert_int_equal(is->bytes, was->bytes);
            assert_int_equal(is->flops, was->flops);
            assert_ms(is->ms, was->ms);
        }
        assert_string_equal(operation(&replayed, "attention")->kernels, "from the graph");
        profile_pass_free(&replayed);
    }
    played.kernels_missing = 1; /* a graph of other kernels is not guessed at */
    check_ok(profile_start(profile, &error));
    step(&setup, PROMPT, 1);
    assert_int_equal(profile_read(profile, &replayed, &error), STATUS_DEVICE);
    assert_non_null(strstr(error.message, "--graphs off"));
    profile_pass_free(&replayed);
    profile_pass_free(&launched);
    profile_close(profile);
    device->ops = plain;
    device->probes = NULL;
    close_setup(&setup);
}

/* Where tracing is refused, events serve, replays are off, and the reason is there to be told. */
static void tracing_refused_falls_back(void **state)
{
    (void)state;
    struct setup setup;
    open_setup(&setup);
    struct device *device = setup.m.device;
    const struct device_ops *plain = device->ops;
    struct profile *profile;
    struct profile_pass pass;
    char reason[64];
    play(device);
    played.refuse = 1;
    device->graphs = 1;
    check_ok(profile_open(&profile, device, reason, sizeof reason, &error));
    assert_string_equal(reason, "not here");
    assert_int_equal(device->graphs, 0);
    check_ok(profile_start(profile, &error));
    step(&setup, 0, PROMPT);
    check_ok(profile_read(profile, &pass, &error));
    assert_string_not_equal(pass.timed_by, "cupti");
    assert_counts(&setup, &pass, 0, PROMPT);
    profile_pass_free(&pass);
    profile_close(profile);
    assert_int_equal(device->graphs, 1);
    device->ops = plain;
    device->probes = NULL;
    close_setup(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_with_their_own_times),
        cmocka_unit_test(kernels_are_summed_by_operation),
        cmocka_unit_test(kernel_names_are_listed_once),
        cmocka_unit_test(nothing_gives_an_empty_pass),
        cmocka_unit_test(medians_over_repetitions),
        cmocka_unit_test(verdict_on_what_looking_costs),
        cmocka_unit_test(work_of_operations),
        cmocka_unit_test(a_watched_pass),
        cmocka_unit_test(a_replayed_pass_is_taken_apart),
        cmocka_unit_test(tracing_refused_falls_back),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
