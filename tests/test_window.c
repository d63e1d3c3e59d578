/* A sliding window as a property of the cache: it hides what a model's own window would hide, gives back the blocks
   that nobody can see any more, and needs no more of them however long the sequence gets. Tolerance as in
   test_forward.c: f32 sums in another order. */
#include "tests/support.h"

#include "engine/generate.h"
#include "engine/random.h"

#include <stdlib.h>
#include <string.h>

enum { MODELS = 4, MAX_TOKENS = 96 };
static const double TOLERANCE = 1e-5;
static const struct model_limits limits = {.max_rows = MAX_TOKENS, .max_sequences = 4, .max_blocks = MAX_TOKENS};
static struct error error;

static struct config random_config(uint64_t *random)
{
    struct config config = test_random_config(random);
    config.sliding_window = config.max_window_layers = 0;
    return config;
}

static struct kv_options paged(int window, int block_size, int blocks)
{
    return (struct kv_options){.policy = KV_PAGED,
                               .dtype = DTYPE_F32,
                               .max_sequences = limits.max_sequences,
                               .block_size = block_size,
                               .max_tokens = MAX_TOKENS,
                               .pool_blocks = blocks,
                               .window = window};
}

static struct kv_options reserved(int window)
{
    return (struct kv_options){.policy = KV_RESERVED,
                               .dtype = DTYPE_F32,
                               .max_sequences = limits.max_sequences,
                               .max_tokens = MAX_TOKENS,
                               .window = window};
}

/* Logits of all positions, passed in chunks; the caller frees. */
static float *all_logits(struct test_model *m, const struct kv_options *options, const int32_t *tokens, int count,
                         int chunk)
{
    int sequence;
    struct logits logits;
    struct kv_cache *cache;
    check_ok(kv_open(&cache, m->ledger, &m->config, options, &error));
    check_ok(kv_sequence_open(cache, &sequence, &error));
    check_ok(logits_init(&logits, m->ledger, &m->config, DTYPE_F32, count, &error));
    check_ok(model_prefill(&m->model, cache, sequence, tokens, count, LOGITS_ALL, chunk, &logits, &error));
    float *values = test_download_logits(m, &logits, 0, count);
    logits_free(&logits, m->ledger);
    kv_close(cache);
    return values;
}

/* ---- blocks ---- */

static int blocks_in_use(const struct kv_cache *cache)
{
    return kv_get_options(cache)->pool_blocks - kv_blocks_free(cache);
}

/* Positions that a query at `length` or a later one sees, and those before them in the same block; nothing else. */
static void check_held(const struct kv_cache *cache, int sequence, int length, int window, int size)
{
    const int32_t *table;
    int entries = kv_block_table(cache, sequence, &table), held = 0;
    assert_int_equal(entries, (length + size - 1) / size);
    for (int b = 0; b < entries; b++) {
        bool seen = false;
        for (int p = b * size; p < (b + 1) * size; p++)
            seen = seen || p > length - window;
        assert_int_equal(table[b] >= 0, seen);
        held += seen;
    }
    assert_int_equal(blocks_in_use(cache), held);
}

/* A pool of kv_window_blocks() lasts for ever, and one block fewer does not. */
static void the_pool_that_a_window_needs(void **state)
{
    (void)state;
    uint64_t random = 1;
    struct test_model m;
    struct config config = random_config(&random);
    test_model_open(&m, &config, DTYPE_F32, 1, &limits);
    for (int window = 1; window <= 17; window += window < 4 ? 1 : 6)
        for (int size = 1; size <= 6; size++)
            for (int rows = 1; rows <= 5; rows++) {
                int sequence, most = 0, blocks = kv_window_blocks(window, size, rows);
                struct kv_cache *cache;
                struct kv_options options = paged(window, size, blocks);
                check_ok(kv_open(&cache, m.ledger, &config, &options, &error));
                check_ok(kv_sequence_open(cache, &sequence, &error));
                /* Single tokens and passes of `rows` in turn, at every phase of a block. */
                for (int length = 0, next; length + rows <= MAX_TOKENS; length += next) {
                    next = test_random(&random, 0, 1) ? rows : 1;
                    check_ok(kv_make_room(cache, sequence, length + next, &error));
                    most = blocks_in_use(cache) > most ? blocks_in_use(cache) : most;
                    kv_advance(cache, sequence, next);
                    check_held(cache, sequence, length + next, window, size);
                }
                assert_int_equal(most, blocks);
                kv_sequence_close(cache, sequence);
                assert_int_equal(kv_blocks_free(cache), blocks);
                kv_close(cache);
            }
    test_model_close(&m);
}

static void sequences_share_what_is_given_back(void **state)
{
    (void)state;
    enum { WINDOW = 10, SIZE = 4, OPERATIONS = 4000 };
    uint64_t random = 7;
    bool open[4] = {0};
    struct test_model m;
    struct kv_cache *cache;
    struct config config = random_config(&random);
    struct kv_options options = paged(WINDOW, SIZE, 11);
    test_model_open(&m, &config, DTYPE_F32, 1, &limits);
    check_ok(kv_open(&cache, m.ledger, &config, &options, &error));
    for (int i = 0; i < OPERATIONS; i++) {
        int s = test_random(&random, 0, 3), number, action = test_random(&random, 0, 11);
        if (!open[s]) {
            check_ok(kv_sequence_open(cache, &number, &error));
            open[number] = true;
        } else if (action == 0) {
            kv_sequence_close(cache, s);
            open[s] = false;
        } else if (action == 1) {
            check_ok(kv_truncate(cache, s, 0, &error));
        } else if (action == 2 && kv_fork(cache, s, &number, &error) == STATUS_OK) {
            assert_int_equal(kv_length(cache, number), kv_length(cache, s));
            open[number] = true;
        } else if (action > 2) {
            int next = test_random(&random, 1, 5), length = kv_length(cache, s) + next;
            if (length <= MAX_TOKENS && kv_make_room(cache, s, length, &error) == STATUS_OK)
                kv_advance(cache, s, next);
        }
        bool held[11] = {0};
        int distinct = 0;
        for (int t = 0; t < 4; t++) {
            const int32_t *table;
            for (int b = 0, n = open[t] ? kv_block_table(cache, t, &table) : 0; b < n; b++) {
                assert_true(table[b] >= -1 && table[b] < 11);
                distinct += table[b] >= 0 && !held[table[b]];
                if (table[b] >= 0)
                    held[table[b]] = true;
            }
        }
        assert_int_equal(blocks_in_use(cache), distinct);
    }
    for (int s = 0; s < 4; s++)
        if (open[s])
            kv_sequence_close(cache, s);
    assert_int_equal(kv_blocks_free(cache), 11);
    kv_close(cache);
    test_model_close(&m);
}

/* ---- what is seen ---- */

/* The cache's window over a model without one is the same model with that window in its config. */
static void the_cache_hides_what_a_model_would(void **state)
{
    (void)state;
    uint64_t random = 2026;
    for (int i = 0; i < MODELS; i++) {
        struct test_model m;
        struct config config = random_config(&random);
        int count = test_random(&random, 20, MAX_TOKENS), window = test_random(&random, 1, 30);
        int size = test_random(&random, 1, 9), chunk = test_random(&random, 1, 12);
        test_model_open(&m, &config, DTYPE_F32, 0, &limits);
        int32_t *tokens = test_tokens(&config, count, random_next(&random));
        struct kv_options small = paged(window, size, kv_window_blocks(window, size, chunk));
        struct kv_options whole = reserved(window), plain = reserved(0);
        float *in_blocks = all_logits(&m, &small, tokens, count, chunk);
        float *in_one = all_logits(&m, &whole, tokens, count, 0);
        m.config.family = FAMILY_QWEN2;
        m.config.sliding_window = window;
        float *of_model = all_logits(&m, &plain, tokens, count, 0);
        test_assert_close(in_blocks, of_model, count, config.vocab_size, TOLERANCE, "paged window");
        test_assert_close(in_one, of_model, count, config.vocab_size, TOLERANCE, "reserved window");
        m.config.sliding_window = window + 5; /* the narrower of the two */
        float *of_both = all_logits(&m, &small, tokens, count, chunk);
        test_assert_close(of_both, of_model, count, config.vocab_size, TOLERANCE, "a wider window in the model");
        free(of_both);
        m.config.sliding_window = window;
        struct kv_options wide = paged(window + 5, size, kv_window_blocks(window + 5, size, chunk));
        of_both = all_logits(&m, &wide, tokens, count, chunk);
        test_assert_close(of_both, of_model, count, config.vocab_size, TOLERANCE, "a wider window in the cache");
        free(of_both);
        free(of_model);
        free(in_one);
        free(in_blocks);
        free(tokens);
        test_model_close(&m);
    }
}

/* A window past the whole length changes nothing, to the bit; one token less does. */
static void a_window_of_everything_is_none(void **state)
{
    (void)state;
    enum { COUNT = 40 };
    uint64_t random = 31;
    for (int i = 0; i < MODELS; i++) {
        struct test_model m;
        struct config config = random_config(&random);
        size_t bytes = COUNT * (size_t)config.vocab_size * sizeof(float);
        test_model_open(&m, &config, DTYPE_F32, 0, &limits);
        int32_t *tokens = test_tokens(&config, COUNT, random_next(&random));
        struct kv_options none = paged(0, 4, 10), all = paged(COUNT, 4, 10), most = paged(COUNT - 1, 4, 10);
        float *without = all_logits(&m, &none, tokens, COUNT, 5), *with = all_logits(&m, &all, tokens, COUNT, 5);
        float *narrower = all_logits(&m, &most, tokens, COUNT, 5);
        assert_memory_equal(without, with, bytes);
        assert_memory_not_equal(without, narrower, bytes);
        free(narrower);
        free(with);
        free(without);
        free(tokens);
        test_model_close(&m);
    }
}

/* Decode passes of caches with different windows through one model: what a device recorded of the one must not be
   replayed for the other. */
static void passes_of_different_windows_are_kept_apart(void **state)
{
    (void)state;
    enum { COUNT = 30, CACHES = 3 };
    static const int windows[CACHES] = {0, 7, 3};
    uint64_t random = 41;
    struct test_model m;
    struct config config = random_config(&random);
    size_t row = (size_t)config.vocab_size;
    test_model_open(&m, &config, DTYPE_F32, 0, &limits);
    int32_t *tokens = test_tokens(&config, COUNT, 5);
    float *alone[CACHES];
    struct kv_cache *cache[CACHES];
    struct logits logits;
    int number[CACHES];
    check_ok(logits_init(&logits, m.ledger, &config, DTYPE_F32, 1, &error));
    for (int i = 0; i < CACHES; i++) {
        struct kv_options options = paged(windows[i], 4, 10);
        alone[i] = all_logits(&m, &options, tokens, COUNT, 0);
        check_ok(kv_open(&cache[i], m.ledger, &config, &options, &error));
        check_ok(kv_sequence_open(cache[i], &number[i], &error));
    }
    for (int t = 0; t < COUNT; t++)
        for (int i = 0; i < CACHES; i++) {
            struct sequence_tokens next = {number[i], tokens + t, 1, LOGITS_LAST};
            logits.rows = 0;
            check_ok(model_forward(&m.model, cache[i], &next, 1, &logits, &error));
            float *values = test_download_logits(&m, &logits, 0, 1);
            test_assert_close(values, alone[i] + (size_t)t * row, 1, config.vocab_size, TOLERANCE, "in turn");
            free(values);
        }
    for (int i = 0; i < CACHES; i++) {
        kv_close(cache[i]);
        free(alone[i]);
    }
    logits_free(&logits, m.ledger);
    free(tokens);
    test_model_close(&m);
}

/* A prompt and an answer many times the pool go through it; past max_tokens is refused at once. */
static void generation_longer_than_the_pool(void **state)
{
    (void)state;
    enum { WINDOW = 9, SIZE = 4, PROMPT = 40, NEW = 30 };
    uint64_t random = 51;
    struct test_model m;
    struct config config = random_config(&random);
    struct model_limits few = {.max_rows = 8, .max_sequences = 1, .max_blocks = MAX_TOKENS};
    test_model_open(&m, &config, DTYPE_F32, 0, &few);
    int32_t *tokens = test_tokens(&config, PROMPT, 6), chosen[2][NEW];
    struct generate_options how = {.new_tokens = NEW, .use_cache = true, .stop_token = -1};
    for (int i = 0; i < 2; i++) {
        int sequence;
        struct kv_cache *cache;
        struct generate_result result;
        struct kv_options options = i ? paged(WINDOW, SIZE, kv_window_blocks(WINDOW, SIZE, 8)) : reserved(WINDOW);
        check_ok(kv_open(&cache, m.ledger, &config, &options, &error));
        check_ok(kv_sequence_open(cache, &sequence, &error));
        check_ok(generate(&m.model, cache, sequence, tokens, PROMPT, &how, chosen[i], &result, &error));
        check_ok(kv_truncate(cache, sequence, 0, &error));
        how.new_tokens = MAX_TOKENS;
        assert_int_equal(generate(&m.model, cache, sequence, tokens, PROMPT, &how, chosen[i], &result, &error),
                         STATUS_DEVICE);
        assert_non_null(strstr(error.message, "at most 96"));
        how.new_tokens = NEW;
        kv_close(cache);
    }
    assert_memory_equal(chosen[0], chosen[1], sizeof chosen[0]);
    free(tokens);
    test_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pool_that_a_window_needs),
        cmocka_unit_test(sequences_share_what_is_given_back),
        cmocka_unit_test(the_cache_hides_what_a_model_would),
        cmocka_unit_test(a_window_of_everything_is_none),
        cmocka_unit_test(passes_of_different_windows_are_kept_apart),
        cmocka_unit_test(generation_longer_than_the_pool),
    };
    return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
