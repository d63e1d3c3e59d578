/* paged: traces worked by hand through each kind of cache, what must hold for any trace, and the tables it writes. */
#include "tests/staged_run.h"

#include "bench/paged.h"
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static struct device *device;
static struct error error;

/* One layer, 1 KV head of 1,024 values of 4 bytes: 4,096 bytes a position in each of two tensors, 8,192 a token. A
   shared segment of the ledger, 1 MiB, is 256 positions of a tensor, or K and V of 128 tokens. */
static const struct config config = {
    .name = "paged",
    .vocab_size = 10,
    .hidden_size = 8,
    .intermediate_size = 8,
    .num_hidden_layers = 1,
    .num_attention_heads = 1,
    .num_key_value_heads = 1,
    .head_dim = 1024,
    .max_position_embeddings = 4096,
};
enum { TOKEN_BYTES = 8192, SEGMENT_TOKENS = 128 };

static int open_device(void **state)
{
    device = test_device_open(1);
    return place_make(state);
}

static int close_device(void **state)
{
    device->ops->close(device);
    return place_remove(state);
}

/* Runs a trace under a budget of so many tokens; nothing may be left in the ledger. */
static enum status run_trace(const struct paged_setting *setting, uint64_t budget_tokens,
                             const struct trace_request *trace, int count, struct paged_counts *counts)
{
    struct ledger *ledger;
    check_ok(ledger_open(&ledger, device, budget_tokens * TOKEN_BYTES, &error));
    enum status status = paged_run(ledger, &config, setting, trace, count, NULL, counts, &error);
    assert_int_equal(ledger_counts(ledger).live[LEDGER_KV], 0);
    assert_int_equal(ledger_counts(ledger).reserved, 0);
    ledger_close(ledger);
    return status;
}

static struct paged_counts run_ok(const struct paged_setting *setting, uint64_t budget_tokens,
                                  const struct trace_request *trace, int count)
{
    struct paged_counts counts;
    check_ok(run_trace(setting, budget_tokens, trace, count, &counts));
    return counts;
}

/* In tokens. */
static void assert_held(const struct paged_counts *counts, uint64_t used, uint64_t internal, uint64_t external)
{
    assert_int_equal(counts->used, used * TOKEN_BYTES);
    assert_int_equal(counts->internal, internal * TOKEN_BYTES);
    assert_int_equal(counts->external, external * TOKEN_BYTES);
    assert_int_equal(counts->allocated, (used + internal + external) * TOKEN_BYTES);
}

/* ---- by hand ---------------------------------------------------------------------------------------------------- */

/* Room for two reservations of 256. Step 0: 100 + 50 stored, the third waits. Step 1: 101 + 51, it waits; then the
   second leaves. Step 2: the third comes in and nobody waits. */
static void reserved_by_hand(void **state)
{
    (void)state;
    static const struct trace_request trace[] = {{0, 100, 3}, {0, 50, 2}, {0, 10, 1}};
    struct paged_setting setting = {.policy = KV_RESERVED, .dtype = DTYPE_F32, .max_tokens = 256};
    struct paged_counts counts = run_ok(&setting, 512, trace, 3);
    assert_held(&counts, 150 + 152, 362 + 360, 0);
    assert_int_equal(counts.steps, 3);
    assert_int_equal(counts.full_steps, 2);
    assert_int_equal(counts.running, 2 + 2);
    assert_int_equal(counts.max_concurrent, 2);
    assert_int_equal(counts.preemptions, 0);
    assert_int_equal(counts.allocations, 3 * 2);
    assert_int_equal(counts.device_bytes, 512 * TOKEN_BYTES);
}

/* Eight blocks of 16. Step 0: 60 in 4 blocks and 47 in 3; the third needs two and one is free. Step 1: 61 and 48. Step
   2: 62 and 49, the last block taken. Step 3: 63 and 50, then the second leaves, and the third comes in at once. */
static void paged_by_hand(void **state)
{
    (void)state;
    static const struct trace_request trace[] = {{0, 60, 6}, {0, 47, 4}, {0, 20, 1}};
    struct paged_setting setting = {.policy = KV_PAGED, .dtype = DTYPE_F32, .block_size = 16, .max_tokens = 100};
    struct paged_counts counts = run_ok(&setting, SEGMENT_TOKENS, trace, 3);
    assert_held(&counts, 107 + 109 + 111 + 113, 5 + 3 + 17 + 15, 16 + 16);
    assert_int_equal(counts.steps, 6);
    assert_int_equal(counts.full_steps, 4);
    assert_int_equal(counts.max_concurrent, 2);
    assert_int_equal(counts.allocations, 2);
    assert_int_equal(counts.ledger, 4 * SEGMENT_TOKENS * TOKEN_BYTES);
}

/* Both fill the pool; the first to grow takes the second's blocks. Step 1: 65 of 80 and three blocks free, where the
   second would need 5 for its 65. Step 2: 66; then the first leaves. Steps 3 and 4: the second has 65 and 66. */
static void preemption_by_hand(void **state)
{
    (void)state;
    static const struct trace_request trace[] = {{0, 64, 3}, {0, 64, 3}};
    struct paged_setting setting = {.policy = KV_PAGED, .dtype = DTYPE_F32, .block_size = 16, .max_tokens = 100};
    struct paged_counts counts = run_ok(&setting, SEGMENT_TOKENS, trace, 2);
    assert_held(&counts, 65 + 66, 15 + 14, 48 + 48);
    assert_int_equal(counts.steps, 5);
    assert_int_equal(counts.full_steps, 2);
    assert_int_equal(counts.preemptions, 1);
    assert_int_equal(counts.max_concurrent, 2);
}

/* A segment of 256 positions, K and V of each sequence one after the other:
     step 0  20, 100 and 8 tokens fill it (40 + 200 + 16 positions); 88 tokens wait; then the 100 leave
     step 1  21 tokens move to 40 .. 82, 9 to 0 .. 18; of 196 free positions 174 lie in one piece: K of 88 tokens fits
             behind, V does not, although 236 of 256 would be used; then the 21 leave
     step 2  10 tokens at 18 .. 38, the 88 at 38 .. 214
   Allocations: 2 and 2 (first), 2 (second), 2, 2 and 2 (third), 2 refused and 2 (fourth). */
static void exact_is_fragmented_by_hand(void **state)
{
    (void)state;
    static const struct trace_request trace[] = {{0, 20, 2}, {0, 100, 1}, {0, 8, 3}, {0, 88, 1}};
    struct paged_setting setting = {.policy = KV_EXACT, .dtype = DTYPE_F32};
    struct paged_counts counts = run_ok(&setting, SEGMENT_TOKENS, trace, 4);
    assert_held(&counts, 128 + 30, 0, 98);
    assert_int_equal(counts.steps, 3);
    assert_int_equal(counts.full_steps, 2);
    assert_int_equal(counts.max_concurrent, 3);
    assert_int_equal(counts.preemptions, 0);
    assert_int_equal(counts.allocations, 16);
    assert_int_equal(counts.device_bytes, 2 * SEGMENT_TOKENS * TOKEN_BYTES); /* while the fourth was tried */
}

/* One that arrives in step 3 finds the cache empty, and nobody ever waits. */
static void arrivals_by_hand(void **state)
{
    (void)state;
    static const struct trace_request trace[] = {{0, 64, 1}, {3, 64, 2}};
    struct paged_setting setting = {.policy = KV_PAGED, .dtype = DTYPE_F32, .block_size = 64, .max_tokens = 100};
    struct paged_counts counts = run_ok(&setting, SEGMENT_TOKENS, trace, 2);
    assert_int_equal(counts.steps, 5);
    assert_int_equal(counts.full_steps, 0);
    assert_int_equal(counts.max_concurrent, 1);
    place_assert_near(paged_mean_held(trace, 2), (64 + 64 + 65) / 3.0, 1e-9, "positions held");
}

/* ---- any trace -------------------------------------------------------------------------------------------------- */

static void random_trace(struct trace_request *trace, int count, int max_tokens, uint64_t *random)
{
    int arrival = 0;
    for (int i = 0; i < count; i++) {
        int prompt = test_random(random, 1, max_tokens - 1);
        trace[i] = (struct trace_request){arrival, prompt, test_random(random, 1, max_tokens - prompt)};
        arrival += test_random(random, 0, 3);
    }
}

/* Whatever the cache: nothing is left, waste and use make up all that was taken, and a second run is the same. */
static void any_trace_adds_up(void **state)
{
    (void)state;
    uint64_t random = 7;
    int full = 0, preempted = 0;
    for (int round = 0; round < 45; round++) {
        struct trace_request trace[16];
        int count = test_random(&random, 1, 16), max_tokens = test_random(&random, 2, 120);
        struct paged_setting setting = {.policy = (enum kv_policy)(round % 3),
                                        .dtype = DTYPE_F32,
                                        .block_size = test_random(&random, 1, max_tokens),
                                        .max_tokens = max_tokens};
        uint64_t budget = (uint64_t)SEGMENT_TOKENS * (uint64_t)test_random(&random, 2, 6);
        random_trace(trace, count, max_tokens, &random);
        struct paged_counts counts = run_ok(&setting, budget, trace, count);
        struct paged_counts again = run_ok(&setting, budget, trace, count);
        assert_memory_equal(&counts, &again, sizeof counts);
        assert_int_equal(counts.used + counts.internal + counts.external, counts.allocated);
        assert_true(counts.allocated <= (uint64_t)counts.full_steps * budget * TOKEN_BYTES);
        assert_in_range(counts.max_concurrent, 1, count);
        assert_true(counts.running <= (uint64_t)counts.full_steps * (uint64_t)counts.max_concurrent);
        if (setting.policy == KV_EXACT)
            assert_int_equal(counts.internal, 0);
        if (setting.policy == KV_PAGED)
            assert_true(counts.internal <= counts.running * (uint64_t)(setting.block_size - 1) * TOKEN_BYTES);
        full += counts.full_steps > 0;
        preempted += counts.preemptions > 0;
    }
    assert_true(full >= 10 && preempted >= 3); /* or the rounds tried nothing */
}

static void traces_keep_to_their_distribution(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    struct trace_request *trace = calloc(MANY, sizeof *trace), *other = calloc(MANY, sizeof *other);
    assert_true(trace && other);
    double prompt = 0.0, output = 0.0;
    trace_chat(trace, MANY, 1 << 20, 4.0, 1);
    for (size_t i = 0; i < MANY; i++) {
        assert_true(trace[i].prompt_tokens > 0 && trace[i].output_tokens > 0);
        assert_true(i == 0 || trace[i].arrival_step >= trace[i - 1].arrival_step);
        prompt += trace[i].prompt_tokens;
        output += trace[i].output_tokens;
    }
    /* Standard deviation sqrt(e - 1) = 1.31 means, of the mean of 100,000 so 0.41 %: five of them. */
    place_assert_near(prompt / MANY, 161.31, 0.021 * 161.31, "prompt tokens");
    place_assert_near(output / MANY, 337.99, 0.021 * 337.99, "output tokens");
    place_assert_near(trace[MANY - 1].arrival_step / (double)MANY, 4.0, 5 * 4.0 / sqrt(MANY), "steps between arrivals");
    assert_int_equal(trace[0].arrival_step, 0);

    trace_chat(other, MANY, 1 << 20, 4.0, 1);
    assert_memory_equal(trace, other, MANY * sizeof *trace);
    trace_chat(other, MANY, 1 << 20, 4.0, 2);
    assert_memory_not_equal(trace, other, MANY * sizeof *trace);
    trace_chat(other, MANY, 40, 0.0, 1);
    for (size_t i = 0; i < MANY; i++) {
        assert_true(other[i].prompt_tokens + other[i].output_tokens <= 40);
        assert_int_equal(other[i].arrival_step, 0);
    }
    free(trace);
    free(other);
}

/* ---- what does not work ----------------------------------------------------------------------------------------- */

static void what_does_not_fit_alone(void **state)
{
    (void)state;
    static const struct trace_request prompt[] = {{0, 10, 2}, {0, 120, 40}}, growth[] = {{0, 100, 60}};
    static const struct paged_setting settings[] = {
        {.policy = KV_EXACT, .dtype = DTYPE_F32},
        {.policy = KV_PAGED, .dtype = DTYPE_F32, .block_size = 16, .max_tokens = 200},
    };
    struct paged_counts counts;
    for (size_t i = 0; i < COUNT(settings); i++) {
        assert_int_equal(run_trace(&settings[i], SEGMENT_TOKENS, growth, 1, &counts), STATUS_DEVICE);
        assert_non_null(strstr(error.message, "100 + 60 tokens"));
        assert_int_equal(run_trace(&settings[i], SEGMENT_TOKENS, prompt, 2, &counts), STATUS_DEVICE);
        assert_non_null(strstr(error.message, "120 + 40 tokens"));
        assert_non_null(strstr(error.message, "--kv-budget"));
    }
    struct paged_setting large = {.policy = KV_PAGED, .dtype = DTYPE_F32, .block_size = 160, .max_tokens = 200};
    assert_int_equal(run_trace(&large, SEGMENT_TOKENS, growth, 1, &counts), STATUS_DEVICE);
    assert_non_null(strstr(error.message, "no block of 160 tokens"));
    struct paged_setting reserved = {.policy = KV_RESERVED, .dtype = DTYPE_F32, .max_tokens = 200};
    assert_int_equal(run_trace(&reserved, SEGMENT_TOKENS, growth, 1, &counts), STATUS_DEVICE);
}

static void stops_when_told(void **state)
{
    (void)state;
    static const volatile sig_atomic_t stop = 1;
    static const struct trace_request trace[] = {{0, 10, 2}};
    struct paged_setting setting = {.policy = KV_EXACT, .dtype = DTYPE_F32};
    struct paged_counts counts;
    struct ledger *ledger;
    check_ok(ledger_open(&ledger, device, 1 << 20, &error));
    assert_int_equal(paged_run(ledger, &config, &setting, trace, 1, &stop, &counts, &error), STATUS_INTERRUPTED);
    ledger_close(ledger);
}

static void bad_options(void **state)
{
    (void)state;
    static const struct {
        const char *line, *word;
        int status;
    } cases[] = {
        {"paged --quick --block-sizes 65 --max-tokens 64", "--block-sizes: 65", 2},
        {"paged --quick --block-sizes 0", "--block-sizes", 2},
        {"paged --quick --max-tokens 1", "--max-tokens", 2},
        {"paged --quick --requests 0", "--requests", 2},
        {"paged --quick --arrival-steps -1", "--arrival-steps", 2},
        {"paged --quick --kv-budget 1000", "--kv-budget", 3},
        {"paged --quick --batch 2", "--batch", 2},
        {"slope --quick --block-sizes 16", "--block-sizes", 2},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        if (!strstr(place_run(cases[i].line, cases[i].status), cases[i].word))
            fail_msg("%s: no %s in the message", cases[i].line, cases[i].word);
}

/* ---- the tables ------------------------------------------------------------------------------------------------- */

/* 256 bytes a token: eight reservations of 2,048 tokens are 4 MiB, of 1 MiB each tensor of a pool. */
static void rows_add_up(void **state)
{
    (void)state;
    place_run("paged --quick --kv-budget 4194304 --requests 128 --arrival-steps 0 --block-sizes 1,16,256", 0);
    struct csv_table table = place_csv("paged");
    assert_int_equal(table.row_count, 5);
    for (size_t row = 0; row < 5; row++) {
        double utilization = place_real(&table, row, "utilization_percent");
        double internal = place_real(&table, row, "internal_waste_percent");
        double external = place_real(&table, row, "external_waste_percent");
        place_assert_near(utilization + internal + external, 100.0, 0.016, "use and waste");
        place_assert_near(100.0 * place_real(&table, row, "used_bytes") / place_real(&table, row, "allocated_bytes"),
                          utilization, 0.01, "utilization");
        assert_true(place_int(&table, row, "allocated_bytes") <= 4194304);
        assert_true(place_int(&table, row, "full_steps") > 0);
        assert_int_equal(place_int(&table, row, "requests"), 128);
    }
    assert_string_equal(place_text(&table, 0, "policy"), "exact");
    assert_string_equal(place_text(&table, 0, "block_size"), "");
    assert_int_equal(place_int(&table, 1, "block_size"), 2048);
    assert_int_equal(place_int(&table, 1, "max_concurrent"), 8);
    assert_int_equal(place_int(&table, 1, "allocations"), 128 * 4);
    assert_string_equal(place_text(&table, 3, "predicted_waste_tokens"), "7.50");
    assert_string_equal(place_text(&table, 2, "internal_waste_percent"), "0.00"); /* blocks of one token */
    csv_table_free(&table);
}

/* A pass takes 1/64 ms of the staged clock, whatever the blocks: every ratio is 1, and the waste is the trace's. */
static void times_of_blocks(void **state)
{
    (void)state;
    struct stage stage = {.driver_share = 1.0};
    int status = staged_run("paged --quick --reps 6 --contexts 20,40 --slots 3 --block-sizes 4,16", &stage);
    if (status != 0)
        fail_msg("status %d: %s", status, staged_stderr());
    struct csv_table memory = place_csv("paged"), table = place_csv("paged_blocks");
    assert_int_equal(table.row_count, 6);
    for (size_t row = 0; row < 6; row++) {
        assert_int_equal(place_int(&table, row, "context"), row < 3 ? 20 : 40);
        assert_string_equal(place_text(&table, row, "cache"), row % 3 ? "paged" : "one block");
        assert_int_equal(place_int(&table, row, "block_size"), row % 3 ? (row % 3 == 1 ? 4 : 16) : row < 3 ? 23 : 43);
        assert_int_equal(place_int(&table, row, "n"), 6 * 3);
        assert_int_equal(place_int(&table, row, "slots"), 3);
        assert_string_equal(place_text(&table, row, "tpot_ms_p50"), "0.0156"); /* 1/64 */
        assert_string_equal(place_text(&table, row, "ratio_to_one_block"), "1.0000");
        assert_string_equal(place_text(&table, row, "ratio_low"), "1.0000");
        assert_string_equal(place_text(&table, row, "tokens_equal"), "yes");
        assert_string_equal(place_text(&table, row, "internal_waste_percent"),
                            place_text(&memory, row % 3 ? 1 + row % 3 : 1, "internal_waste_percent"));
    }
    /* A step of 3 after 20 tokens: 83,072 + 3 * 22 * 256 = 99,968 bytes; tables of 6 blocks: 3 * 6 * 4 * 2 = 144. */
    place_assert_near(place_real(&table, 1, "predicted_ratio"), 1.0 + 144.0 / 99968.0, 0.00005, "block tables");
    csv_table_free(&memory);
    csv_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserved_by_hand),
        cmocka_unit_test(paged_by_hand),
        cmocka_unit_test(preemption_by_hand),
        cmocka_unit_test(exact_is_fragmented_by_hand),
        cmocka_unit_test(arrivals_by_hand),
        cmocka_unit_test(any_trace_adds_up),
        cmocka_unit_test(traces_keep_to_their_distribution),
        cmocka_unit_test(what_does_not_fit_alone),
        cmocka_unit_test(stops_when_told),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(rows_add_up),
        cmocka_unit_test(times_of_blocks),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
