/* Equalities that a forward pass must keep, over random models, lengths and batches.

   Tolerances. Where the same sums are taken in the same order (rows one by one, other thread counts) results are equal
   bit for bit. Where rows go through another kernel (a matrix library for many rows, our own for few) or a context is
   cut elsewhere (block sizes), f32 sums of up to ~100 terms are taken in another order: each differs by a few units of
   2^-24 = 6e-8, a handful of layers adds them up, and 1e-5 of a row's norm covers it (it is also what the golden files
   ask for). */
#include "tests/support.h"

#include "engine/generate.h"
#include "engine/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MODELS = 12, MAX_TOKENS = 96 };
static const double TOLERANCE = 1e-5;
static const struct model_limits limits = {.max_rows = MAX_TOKENS, .max_sequences = 8, .max_blocks = MAX_TOKENS};
static struct error error;

static struct kv_cache *open_cache(struct test_model *m, enum kv_policy policy, int block_size)
{
    struct kv_cache *cache;
    struct kv_options options = {.policy = policy,
                                 .dtype = m->model.weights.dtype,
                                 .max_sequences = limits.max_sequences,
                                 .block_size = block_size,
                                 .max_tokens = MAX_TOKENS,
                                 .pool_blocks = limits.max_sequences * ((MAX_TOKENS + block_size - 1) / block_size)};
    check_ok(kv_open(&cache, m->ledger, &m->config, &options, &error));
    return cache;
}

static int open_sequence(struct kv_cache *cache)
{
    int sequence;
    check_ok(kv_sequence_open(cache, &sequence, &error));
    return sequence;
}

/* Logits of all positions of `tokens`, the sequence passed in chunks of the given size; the caller frees. */
static float *prefill_logits(struct test_model *m, enum kv_policy policy, int block_size, const int32_t *tokens,
                             int count, int chunk)
{
    struct logits logits;
    struct kv_cache *cache = open_cache(m, policy, block_size);
    check_ok(logits_init(&logits, m->ledger, &m->config, m->model.weights.dtype, count, &error));
    check_ok(model_prefill(&m->model, cache, open_sequence(cache), tokens, count, LOGITS_ALL, chunk, &logits, &error));
    assert_int_equal(logits.rows, count);
    float *values = test_download_logits(m, &logits, 0, count);
    logits_free(&logits, m->ledger);
    kv_close(cache);
    return values;
}

/* Calls check(model, tokens, count, random) over random models in f32. */
static void over_random_models(void (*check)(struct test_model *, const int32_t *, int, uint64_t *))
{
    uint64_t random = 2026;
    for (int i = 0; i < MODELS; i++) {
        struct test_model m;
        struct config config = test_random_config(&random);
        int count = test_random(&random, 2, MAX_TOKENS);
        test_model_open(&m, &config, DTYPE_F32, 0, &limits);
        int32_t *tokens = test_tokens(&config, count, random_next(&random));
        check(&m, tokens, count, &random);
        free(tokens);
        test_model_close(&m);
    }
}

static void check_chunks(struct test_model *m, const int32_t *tokens, int count, uint64_t *random)
{
    float *whole = prefill_logits(m, KV_EXACT, 1, tokens, count, 0);
    const int chunks[] = {1, 2, test_random(random, 1, count), 17};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        float *parts = prefill_logits(m, KV_EXACT, 1, tokens, count, chunks[i]);
        test_assert_close(parts, whole, count, m->config.vocab_size, TOLERANCE, "chunks against one pass");
        free(parts);
    }
    free(whole);
}

static void one_pass_equals_chunks(void **state)
{
    (void)state;
    over_random_models(check_chunks);
}

static void check_policies(struct test_model *m, const int32_t *tokens, int count, uint64_t *random)
{
    float *exact = prefill_logits(m, KV_EXACT, 1, tokens, count, 0);
    float *reserved = prefill_logits(m, KV_RESERVED, 1, tokens, count, 0);
    test_assert_close(reserved, exact, count, m->config.vocab_size, TOLERANCE, "reserved against exact");
    const int block_sizes[] = {1, 16, test_random(random, 2, MAX_TOKENS)};
    for (size_t i = 0; i < sizeof block_sizes / sizeof *block_sizes; i++) {
        float *paged = prefill_logits(m, KV_PAGED, block_sizes[i], tokens, count, test_random(random, 1, count));
        test_assert_close(paged, exact, count, m->config.vocab_size, TOLERANCE, "paged against exact");
        free(paged);
    }
    free(reserved);
    free(exact);
}

static void exact_equals_reserved_equals_paged(void **state)
{
    (void)state;
    over_random_models(check_policies);
}

/* Several sequences of random lengths, each part prefilled and part decoding, in ragged passes with their rows mixed.
 */
static void check_ragged(struct test_model *m, const int32_t *tokens, int count, uint64_t *random)
{
    enum { SEQUENCES = 5 };
    int lengths[SEQUENCES], done[SEQUENCES] = {0}, numbers[SEQUENCES];
    float *alone[SEQUENCES];
    struct kv_cache *cache = open_cache(m, KV_PAGED, test_random(random, 1, 20));
    for (int s = 0; s < SEQUENCES; s++) {
        lengths[s] = test_random(random, 1, count);
        alone[s] = prefill_logits(m, KV_EXACT, 1, tokens, lengths[s], 0);
        numbers[s] = open_sequence(cache);
    }
    for (bool left = true; left;) {
        struct sequence_tokens batch[SEQUENCES];
        int who[SEQUENCES], items = 0, rows = 0;
        left = false;
        for (int s = 0; s < SEQUENCES; s++) {
            int room = (MAX_TOKENS - rows) / SEQUENCES, rest = lengths[s] - done[s];
            left = left || rest > 0;
            if (rest == 0 || test_random(random, 0, 3) == 0)
                continue;
            int next = test_random(random, 1, rest < room ? rest : room);
            batch[items] = (struct sequence_tokens){numbers[s], tokens + done[s], next, LOGITS_ALL};
            who[items++] = s;
            rows += next;
        }
        if (items == 0)
            continue;
        struct logits logits;
        check_ok(logits_init(&logits, m->ledger, &m->config, DTYPE_F32, rows, &error));
        check_ok(model_forward(&m->model, cache, batch, items, &logits, &error));
        float *values = test_download_logits(m, &logits, 0, rows);
        for (int i = 0, row = 0; i < items; row += batch[i++].count) {
            test_assert_close(values + row * m->config.vocab_size, alone[who[i]] + done[who[i]] * m->config.vocab_size,
                              batch[i].count, m->config.vocab_size, TOLERANCE,
                              "ragged batch against each sequence alone");
            done[who[i]] += batch[i].count;
        }
        free(values);
        logits_free(&logits, m->ledger);
    }
    for (int s = 0; s < SEQUENCES; s++)
        free(alone[s]);
    kv_close(cache);
}

static void ragged_batch_equals_each_sequence_alone(void **state)
{
    (void)state;
    over_random_models(check_ragged);
}

/* Generation with the cache on gives what generation without gives, and counts the positions of each. */
static void check_cache_on_and_off(struct test_model *m, const int32_t *tokens, int count, uint64_t *random)
{
    enum { NEW = 12 };
    int prompt = test_random(random, 1, count < MAX_TOKENS - NEW ? count : MAX_TOKENS - NEW);
    struct generate_options options = {.new_tokens = NEW, .stop_token = -1};
    struct generate_result results[2];
    int32_t chosen[2][NEW];
    for (int on = 0; on < 2; on++) {
        struct kv_cache *cache = open_cache(m, on ? KV_PAGED : KV_EXACT, 16);
        options.use_cache = on;
        check_ok(generate(&m->model, cache, open_sequence(cache), tokens, prompt, &options, chosen[on], &results[on],
                          &error));
        assert_int_equal(results[on].count, NEW);
        kv_close(cache);
    }
    assert_memory_equal(chosen[0], chosen[1], sizeof chosen[0]);
    assert_int_equal(results[1].positions, prompt + NEW - 1);
    assert_int_equal(results[0].positions, NEW * prompt + NEW * (NEW - 1) / 2);
}

static void cache_on_equals_cache_off(void **state)
{
    (void)state;
    over_random_models(check_cache_on_and_off);
}

/* Weights that hold NaN or infinity give no token: greedy or drawn. */
static void logits_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY};
    uint64_t random = 5;
    struct config config = test_random_config(&random);
    struct model_limits room = {.max_rows = 4, .max_sequences = 1, .max_blocks = 4};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct test_model m;
        test_model_open(&m, &config, DTYPE_F32, 1, &room);
        struct device *device = ledger_device(m.ledger);
        check_ok(device->ops->fill_value(device, (void *)(uintptr_t)m.model.weights.head, DTYPE_F32,
                                         (size_t)(config.vocab_size * config.hidden_size), values[i], &error));
        for (int drawn = 0; drawn < 2; drawn++) {
            struct generate_options options = {.new_tokens = 2,
                                               .use_cache = true,
                                               .stop_token = -1,
                                               .sampler = {.temperature = drawn ? 1 : 0, .top_p = 1}};
            struct generate_result result;
            int32_t prompt[] = {0, 1}, chosen[2];
            struct kv_cache *cache = open_cache(&m, KV_EXACT, 1);
            assert_int_equal(
                generate(&m.model, cache, open_sequence(cache), prompt, 2, &options, chosen, &result, &error),
                STATUS_INPUT);
            assert_non_null(strstr(error.message, "not finite"));
            kv_close(cache);
        }
        test_model_close(&m);
    }
}

/* The last position's logits are the last row of all positions' logits: a row for itself, bit for bit the same
 * products. */
static void check_last(struct test_model *m, const int32_t *tokens, int count, uint64_t *random)
{
    (void)random;
    struct logits logits;
    struct kv_cache *cache = open_cache(m, KV_EXACT, 1);
    float *all = prefill_logits(m, KV_EXACT, 1, tokens, count, 0);
    check_ok(logits_init(&logits, m->ledger, &m->config, DTYPE_F32, 1, &error));
    check_ok(model_prefill(&m->model, cache, open_sequence(cache), tokens, count, LOGITS_LAST, 7, &logits, &error));
    assert_int_equal(logits.rows, 1);
    float *last = test_download_logits(m, &logits, 0, 1);
    test_assert_close(last, all + (count - 1) * m->config.vocab_size, 1, m->config.vocab_size, TOLERANCE,
                      "last position against all");
    free(last);
    free(all);
    logits_free(&logits, m->ledger);
    kv_close(cache);
}

static void last_logits_equal_the_last_row_of_all(void **state)
{
    (void)state;
    over_random_models(check_last);
}

/* Decode steps are equal bit for bit on one thread and on several; a prefill, which may go through a matrix library
   that cuts its work by threads, within the tolerance. */
static void one_thread_equals_many(void **state)
{
    (void)state;
    uint64_t random = 77;
    for (int i = 0; i < 4; i++) {
        struct config config = test_random_config(&random);
        int32_t *tokens = test_tokens(&config, MAX_TOKENS, 5);
        float *steps[2], *pass[2];
        for (int many = 0; many < 2; many++) {
            struct test_model m;
            test_model_open(&m, &config, DTYPE_F32, many ? 2 : 1, &limits);
            steps[many] = prefill_logits(&m, KV_PAGED, 16, tokens, 40, 1);
            pass[many] = prefill_logits(&m, KV_PAGED, 16, tokens, MAX_TOKENS, 0);
            test_model_close(&m);
        }
        assert_memory_equal(steps[0], steps[1], 40 * (size_t)config.vocab_size * sizeof(float));
        test_assert_close(pass[1], pass[0], MAX_TOKENS, config.vocab_size, TOLERANCE, "two threads against one");
        for (int many = 0; many < 2; many++) {
            free(steps[many]);
            free(pass[many]);
        }
        free(tokens);
    }
}

/* 16-bit types: one pass against token by token; both round every product's input to the type, 2^-9 for bf16 and 2^-12
   for f16, and differ where a sum falls on the other side of a rounding. */
static void sixteen_bit_types_keep_the_equalities(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype;
        double tolerance;
    } types[] = {{DTYPE_BF16, 2e-2}, {DTYPE_F16, 2.5e-3}};
    uint64_t random = 99;
    for (int i = 0; i < 6; i++) {
        struct test_model m;
        struct config config = test_random_config(&random);
        int32_t *tokens = test_tokens(&config, 48, 3);
        test_model_open(&m, &config, types[i % 2].dtype, 0, &limits);
        float *whole = prefill_logits(&m, KV_EXACT, 1, tokens, 48, 0);
        float *steps = prefill_logits(&m, KV_PAGED, 16, tokens, 48, 1);
        test_assert_close(steps, whole, 48, config.vocab_size, types[i % 2].tolerance, dtype_name(types[i % 2].dtype));
        free(whole);
        free(steps);
        free(tokens);
        test_model_close(&m);
    }
}

/* Overwriting the stored K (or V) of one earlier position must change the next logits: a cache that is not read cannot
 * pass. */
static void a_poisoned_cache_matters(void **state)
{
    (void)state;
    uint64_t random = 5;
    for (int i = 0; i < 6; i++) {
        struct test_model m;
        struct config config = test_random_config(&random);
        config.sliding_window = 0;
        test_model_open(&m, &config, DTYPE_F32, 0, &limits);
        int32_t *tokens = test_tokens(&config, 20, 9);
        struct logits logits;
        check_ok(logits_init(&logits, m.ledger, &config, DTYPE_F32, 2, &error));
        struct kv_cache *cache = open_cache(&m, KV_RESERVED, 1);
        int sequence = open_sequence(cache), layer = test_random(&random, 0, (int)config.num_hidden_layers - 1);
        check_ok(model_prefill(&m.model, cache, sequence, tokens, 19, LOGITS_NONE, 0, NULL, &error));
        struct sequence_tokens next = {sequence, tokens + 19, 1, LOGITS_LAST};
        check_ok(model_forward(&m.model, cache, &next, 1, &logits, &error));
        check_ok(kv_truncate(cache, sequence, 19, &error));
        float poison[64];
        for (int d = 0; d < config.head_dim; d++)
            poison[d] = (float)test_random(&random, -40, 40);
        char *base = i % 2 ? kv_layer_values(cache, sequence, layer) : kv_layer_keys(cache, sequence, layer);
        size_t position = (size_t)test_random(&random, 0, 18), bytes = (size_t)config.head_dim * sizeof(float);
        check_ok(m.device->ops->upload(m.device, base + position * bytes, poison, bytes, &error));
        check_ok(model_forward(&m.model, cache, &next, 1, &logits, &error));
        float *values = test_download_logits(&m, &logits, 0, 2);
        double changed = 0.0, norm = 0.0;
        for (int64_t v = 0; v < config.vocab_size; v++) {
            double difference = (double)values[v] - values[config.vocab_size + v];
            changed += difference * difference;
            norm += (double)values[v] * values[v];
        }
        if (!(changed > 1e-6 * norm)) /* a hundred times the tolerance of a row */
            fail_msg("layer %d, %s of position %zu poisoned, yet the logits stay", layer, i % 2 ? "V" : "K", position);
        free(values);
        free(tokens);
        logits_free(&logits, m.ledger);
        kv_close(cache);
        test_model_close(&m);
    }
}

static void a_decode_step_allocates_nothing(void **state)
{
    (void)state;
    uint64_t random = 3;
    struct test_model m;
    struct config config = test_random_config(&random);
    test_model_open(&m, &config, DTYPE_BF16, 0, &limits);
    int32_t *tokens = test_tokens(&config, 60, 1), chosen;
    struct kv_cache *cache = open_cache(&m, KV_PAGED, 16);
    int sequence = open_sequence(cache);
    struct logits logits;
    check_ok(logits_init(&logits, m.ledger, &config, DTYPE_BF16, 1, &error));
    check_ok(model_prefill(&m.model, cache, sequence, tokens, 30, LOGITS_NONE, 0, NULL, &error));
    struct ledger_counts before = ledger_counts(m.ledger);
    for (int i = 30; i < 60; i++) {
        struct sequence_tokens next = {sequence, tokens + i, 1, LOGITS_LAST};
        logits.rows = 0;
        check_ok(model_forward(&m.model, cache, &next, 1, &logits, &error));
        check_ok(model_argmax(&m.model, &logits, 0, 1, &chosen, &error));
    }
    struct ledger_counts after = ledger_counts(m.ledger);
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.live_total, before.live_total);
    assert_int_equal(m.model.positions_processed, 60);
    free(tokens);
    logits_free(&logits, m.ledger);
    kv_close(cache);
    test_model_close(&m);
}

static void bad_tokens_and_too_many_rows_change_nothing(void **state)
{
    (void)state;
    uint64_t random = 3;
    struct test_model m;
    struct config config = test_random_config(&random);
    test_model_open(&m, &config, DTYPE_F32, 0, &limits);
    struct kv_cache *cache = open_cache(&m, KV_EXACT, 1);
    int32_t tokens[MAX_TOKENS + 1] = {0};
    struct sequence_tokens batch = {open_sequence(cache), tokens, 3, LOGITS_NONE};
    tokens[1] = (int32_t)config.vocab_size;
    assert_int_equal(model_forward(&m.model, cache, &batch, 1, NULL, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "vocabulary"));
    tokens[1] = -1;
    assert_int_equal(model_forward(&m.model, cache, &batch, 1, NULL, &error), STATUS_INPUT);
    tokens[1] = 0;
    batch.count = MAX_TOKENS + 1;
    assert_int_equal(model_forward(&m.model, cache, &batch, 1, NULL, &error), STATUS_INPUT);
    assert_int_equal(kv_length(cache, batch.sequence), 0);
    assert_int_equal(m.model.positions_processed, 0);
    kv_close(cache);
    test_model_close(&m);
}

/* What model_init() takes is what model_workspace_bytes() predicts. */
static void workspace_is_as_predicted(void **state)
{
    (void)state;
    uint64_t random = 8;
    for (int i = 0; i < 3; i++) {
        struct test_model m;
        struct config config = test_random_config(&random);
        test_model_open(&m, &config, (enum dtype)i, 0, &limits);
        assert_int_equal(ledger_counts(m.ledger).live[LEDGER_WORKSPACE],
                         model_workspace_bytes(&config, m.device, &limits, (enum dtype)i, (enum dtype)i));
        test_model_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_pass_equals_chunks),
        cmocka_unit_test(exact_equals_reserved_equals_paged),
        cmocka_unit_test(ragged_batch_equals_each_sequence_alone),
        cmocka_unit_test(cache_on_equals_cache_off),
        cmocka_unit_test(logits_that_are_not_finite_are_refused),
        cmocka_unit_test(last_logits_equal_the_last_row_of_all),
        cmocka_unit_test(one_thread_equals_many),
        cmocka_unit_test(sixteen_bit_types_keep_the_equalities),
        cmocka_unit_test(a_poisoned_cache_matters),
        cmocka_unit_test(a_decode_step_allocates_nothing),
        cmocka_unit_test(bad_tokens_and_too_many_rows_change_nothing),
        cmocka_unit_test(workspace_is_as_predicted),
    };
    return cmocka_run_group_tests_name("forward", tests, NULL, NULL);
}
