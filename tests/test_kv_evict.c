/* A cache that evicts, on the device: that rows are where the bookkeeping says, sinks as if rotated afresh, and that
   what the model then computes is what the policy says that it sees. Tolerance as in test_forward.c: f32 sums in
   another order. */
#include "tests/support.h"

#include "engine/kv_evict.h"
#include "engine/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 40, BUDGET = 13, SINKS = 3, POLICIES = 4 };
static const double TOLERANCE = 1e-5;
static const struct model_limits limits = {.max_rows = COUNT, .max_sequences = 3, .max_blocks = COUNT};
static struct error error;

static struct eviction_options policy(int i, int budget)
{
    return i == 0   ? eviction_recent(budget, 0)
           : i == 1 ? eviction_recent(budget, SINKS)
           : i == 2 ? eviction_heavy(budget)
                    : eviction_persistent(budget);
}

static struct config random_config(uint64_t *random)
{
    struct config config = test_random_config(random);
    config.sliding_window = config.max_window_layers = 0;
    return config;
}

static struct kv_options evicting(const struct eviction_options *eviction)
{
    return (struct kv_options){.policy = KV_RESERVED,
                               .dtype = DTYPE_F32,
                               .max_sequences = limits.max_sequences,
                               .max_tokens = eviction->budget,
                               .eviction = *eviction};
}

static const struct kv_options everything = {
    .policy = KV_RESERVED, .dtype = DTYPE_F32, .max_sequences = 3, .max_tokens = COUNT};

/* A cache and one sequence of it, fed token by token. */
struct stream {
    struct test_model *m;
    struct kv_cache *cache;
    int sequence;
    struct logits logits;
};

static struct stream stream_open(struct test_model *m, const struct kv_options *options)
{
    struct stream stream = {.m = m};
    check_ok(kv_open(&stream.cache, m->ledger, &m->config, options, &error));
    check_ok(kv_sequence_open(stream.cache, &stream.sequence, &error));
    check_ok(logits_init(&stream.logits, m->ledger, &m->config, DTYPE_F32, COUNT, &error));
    return stream;
}

static void stream_close(struct stream *stream)
{
    logits_free(&stream->logits, stream->m->ledger);
    kv_close(stream->cache);
}

static void feed(struct stream *stream, const int32_t *tokens, int count)
{
    check_ok(model_prefill(&stream->m->model, stream->cache, stream->sequence, tokens, count, LOGITS_ALL, 1,
                           &stream->logits, &error));
}

static float *stream_logits(const struct stream *stream)
{
    return test_download_logits(stream->m, &stream->logits, 0, stream->logits.rows);
}

/* K (or V) of one slot, [kv_heads][head_dim]. */
static void read_row(const struct stream *stream, int layer, bool value, int slot, int head, float *row)
{
    const struct config *config = &stream->m->config;
    const int32_t *table;
    int size = kv_block_size(stream->cache, stream->sequence);
    kv_block_table(stream->cache, stream->sequence, &table);
    const float *base = value ? kv_layer_values(stream->cache, stream->sequence, layer)
                              : kv_layer_keys(stream->cache, stream->sequence, layer);
    int64_t at = ((int64_t)table[slot / size] * config->num_key_value_heads + head) * size + slot % size;
    check_ok(stream->m->device->ops->download(stream->m->device, row, base + at * config->head_dim,
                                              (size_t)config->head_dim * sizeof *row, &error));
}

static const struct eviction *slots_of(const struct stream *stream)
{
    return kv_evict_slots(kv_get_evict(stream->cache), stream->sequence);
}

/* ---- */

/* Calls check(model, tokens, options, i-th policy) for every policy on random models. */
static void over_policies(void (*check)(struct test_model *, const int32_t *, const struct eviction_options *, int))
{
    uint64_t random = 606;
    for (int i = 0; i < POLICIES; i++) {
        struct test_model m;
        struct config config = random_config(&random);
        struct eviction_options options = policy(i, BUDGET);
        test_model_open(&m, &config, DTYPE_F32, 0, &limits);
        int32_t *tokens = test_tokens(&config, COUNT, random_next(&random));
        check(&m, tokens, &options, i);
        free(tokens);
        test_model_close(&m);
    }
}

/* To the bit what full attention gives while everything fits; something else afterwards. */
static void check_within_budget(struct test_model *m, const int32_t *tokens, const struct eviction_options *options,
                                int i)
{
    (void)i;
    struct kv_options some = evicting(options);
    struct stream full = stream_open(m, &everything), kept = stream_open(m, &some);
    feed(&full, tokens, COUNT);
    feed(&kept, tokens, COUNT);
    float *a = stream_logits(&full), *b = stream_logits(&kept);
    size_t row = (size_t)m->config.vocab_size;
    assert_memory_equal(a, b, BUDGET * row * sizeof(float));
    for (int t = BUDGET; t < COUNT; t++)
        assert_memory_not_equal(a + (size_t)t * row, b + (size_t)t * row, row * sizeof(float));
    free(b);
    free(a);
    stream_close(&kept);
    stream_close(&full);
}

static void full_attention_within_the_budget(void **state)
{
    (void)state;
    over_policies(check_within_budget);
}

/* Layer 0 sees no attention: its K and V at a token's position are the same whatever was evicted. A sink's K stands
   `evicted` positions further on. */
static void check_rows(struct test_model *m, const int32_t *tokens, const struct eviction_options *options, int i)
{
    (void)i;
    enum { MOST_DIM = 64 };
    const struct config *config = &m->config;
    float frequency[MOST_DIM / 2], kept_row[MOST_DIM], full_row[MOST_DIM];
    int half = (int)config->head_dim / 2;
    struct kv_options some = evicting(options);
    struct stream full = stream_open(m, &everything), kept = stream_open(m, &some);
    config_inverse_frequency(config, frequency);
    feed(&full, tokens, COUNT);
    for (int t = 0; t < COUNT; t++) {
        feed(&kept, tokens + t, 1);
        const struct eviction *slots = slots_of(&kept);
        assert_int_equal(kv_length(kept.cache, kept.sequence), slots->held);
        assert_int_equal(kv_length(kept.cache, kept.sequence) + kv_evicted(kept.cache, kept.sequence), t + 1);
        for (int head = 0; t % 7 == 4 && head < config->num_key_value_heads; head++)
            for (int slot = 0; slot < slots->held; slot++) {
                int token = slots->token[head * options->budget + slot];
                read_row(&kept, 0, true, slot, head, kept_row);
                read_row(&full, 0, true, token, head, full_row);
                assert_memory_equal(kept_row, full_row, (size_t)config->head_dim * sizeof(float));
                read_row(&kept, 0, false, slot, head, kept_row);
                read_row(&full, 0, false, token, head, full_row);
                double turn = token < options->sinks ? slots->evicted : 0.0;
                for (int d = 0; d < half; d++) {
                    double c = cos(turn * (double)frequency[d]), s = sin(turn * (double)frequency[d]);
                    double low = (double)full_row[d], high = (double)full_row[d + half];
                    double size = sqrt(low * low + high * high);
                    assert_true(fabs((double)kept_row[d] - (low * c - high * s)) <= TOLERANCE * size);
                    assert_true(fabs((double)kept_row[d + half] - (high * c + low * s)) <= TOLERANCE * size);
                }
            }
    }
    stream_close(&kept);
    stream_close(&full);
}

static void rows_are_where_the_bookkeeping_says(void **state)
{
    (void)state;
    over_policies(check_rows);
}

/* In deeper layers too a sink is what it was, turned: sinks see nothing but sinks. */
static void sinks_are_rotated_as_if_afresh(void **state)
{
    (void)state;
    enum { MOST_DIM = 64 };
    uint64_t random = 17;
    struct test_model m;
    struct config config = random_config(&random);
    config.num_hidden_layers = 3;
    struct eviction_options options = eviction_recent(BUDGET, SINKS);
    struct kv_options some = evicting(&options);
    test_model_open(&m, &config, DTYPE_F32, 0, &limits);
    int32_t *tokens = test_tokens(&config, COUNT, 3);
    struct stream full = stream_open(&m, &everything), kept = stream_open(&m, &some);
    float frequency[MOST_DIM / 2], kept_row[MOST_DIM], full_row[MOST_DIM];
    int half = (int)config.head_dim / 2;
    config_inverse_frequency(&config, frequency);
    feed(&full, tokens, COUNT);
    feed(&kept, tokens, COUNT);
    assert_int_equal(slots_of(&kept)->evicted, COUNT - BUDGET);
    for (int layer = 0; layer < 3; layer++)
        for (int head = 0; head < config.num_key_value_heads; head++)
            for (int sink = 0; sink < SINKS; sink++) {
                read_row(&kept, layer, false, sink, head, kept_row);
                read_row(&full, layer, false, sink, head, full_row);
                for (int d = 0; d < half; d++) {
                    double angle = (COUNT - BUDGET) * (double)frequency[d];
                    double low = (double)full_row[d] * cos(angle) - (double)full_row[d + half] * sin(angle);
                    double high = (double)full_row[d + half] * cos(angle) + (double)full_row[d] * sin(angle);
                    double size = sqrt(low * low + high * high);
                    assert_true(fabs((double)kept_row[d] - low) <= TOLERANCE * size);
                    assert_true(fabs((double)kept_row[d + half] - high) <= TOLERANCE * size);
                }
            }
    stream_close(&kept);
    stream_close(&full);
    free(tokens);
    test_model_close(&m);
}

/* Without sinks the newest tokens alone are a sliding window, wherever their rows lie. */
static void the_newest_alone_are_a_window(void **state)
{
    (void)state;
    uint64_t random = 23;
    for (int i = 0; i < 3; i++) {
        struct test_model m;
        struct config config = random_config(&random);
        struct eviction_options options = eviction_recent(BUDGET, 0);
        struct kv_options some = evicting(&options), window = everything;
        window.window = BUDGET;
        test_model_open(&m, &config, DTYPE_F32, 0, &limits);
        int32_t *tokens = test_tokens(&config, COUNT, random_next(&random));
        struct stream masked = stream_open(&m, &window), kept = stream_open(&m, &some);
        feed(&masked, tokens, COUNT);
        feed(&kept, tokens, COUNT);
        float *a = stream_logits(&kept), *b = stream_logits(&masked);
        test_assert_close(a, b, COUNT, config.vocab_size, TOLERANCE, "newest tokens against a window");
        free(b);
        free(a);
        stream_close(&kept);
        stream_close(&masked);
        free(tokens);
        test_model_close(&m);
    }
}

/* In a model of one layer what is cached does not depend on what was seen: the last logits are those of a fresh text of
   sinks and newest tokens, at positions inside the cache (StreamingLLM, section 3.2). */
static void sinks_stand_right_before_the_window(void **state)
{
    (void)state;
    uint64_t random = 29;
    for (int i = 0; i < 3; i++) {
        struct test_model m;
        struct config config = random_config(&random);
        config.num_hidden_layers = 1;
        struct eviction_options options = eviction_recent(BUDGET, SINKS);
        struct kv_options some = evicting(&options);
        test_model_open(&m, &config, DTYPE_F32, 0, &limits);
        int32_t *tokens = test_tokens(&config, COUNT, random_next(&random)), fresh_tokens[BUDGET];
        memcpy(fresh_tokens, tokens, SINKS * sizeof *tokens);
        memcpy(fresh_tokens + SINKS, tokens + COUNT - (BUDGET - SINKS), (BUDGET - SINKS) * sizeof *tokens);
        struct stream fresh = stream_open(&m, &everything), kept = stream_open(&m, &some);
        feed(&fresh, fresh_tokens, BUDGET);
        feed(&kept, tokens, COUNT);
        float *a = stream_logits(&kept), *b = stream_logits(&fresh);
        size_t row = (size_t)config.vocab_size;
        test_assert_close(a + (COUNT - 1) * row, b + (BUDGET - 1) * row, 1, config.vocab_size, TOLERANCE,
                          "sinks and window against a fresh text");
        free(b);
        free(a);
        stream_close(&kept);
        stream_close(&fresh);
        free(tokens);
        test_model_close(&m);
    }
}

/* While nothing is dropped, a head's scores add up to the queries of its group, one per token. */
static void attention_adds_up(void **state)
{
    (void)state;
    uint64_t random = 37;
    struct test_model m;
    struct config config = random_config(&random);
    config.num_hidden_layers = 2;
    struct eviction_options options = eviction_heavy(COUNT);
    struct kv_options some = evicting(&options);
    test_model_open(&m, &config, DTYPE_F32, 0, &limits);
    int32_t *tokens = test_tokens(&config, COUNT, 4);
    struct stream kept = stream_open(&m, &some);
    feed(&kept, tokens, COUNT);
    const struct eviction *slots = slots_of(&kept);
    const int64_t queries = config.num_attention_heads / config.num_key_value_heads; /* of a KV head */
    double group = (double)queries;
    for (int head = 0; head < slots->heads; head++) {
        double sum = 0.0;
        const double *score = slots->score + (size_t)head * COUNT;
        for (int slot = 0; slot < COUNT; slot++)
            sum += score[slot];
        assert_true(fabs(sum - COUNT * group) <= 1e-4 * COUNT * group);
        if (head > 0)
            assert_memory_not_equal(score, slots->score, COUNT * sizeof *score);
    }
    stream_close(&kept);
    free(tokens);
    test_model_close(&m);
}

/* Three sequences, each begun when the one before has got 9 tokens, in passes together: each is as it is alone. */
static void check_together(struct test_model *m, const int32_t *tokens, const struct eviction_options *options, int i)
{
    enum { SEQUENCES = 3, LATER = 9 };
    struct kv_options some = evicting(options);
    int number[SEQUENCES];
    size_t row = (size_t)m->config.vocab_size;
    struct stream alone = stream_open(m, &some), together = stream_open(m, &some);
    feed(&alone, tokens, COUNT);
    float *expected = stream_logits(&alone);
    number[0] = together.sequence;
    for (int s = 1; s < SEQUENCES; s++)
        check_ok(kv_sequence_open(together.cache, &number[s], &error));
    for (int t = 0; t < COUNT; t++) {
        struct sequence_tokens batch[SEQUENCES];
        int items = 0, at[SEQUENCES];
        for (int s = SEQUENCES - 1; s >= 0; s--) /* entries are not in the order of the numbers */
            if (t >= s * LATER) {
                at[items] = t - s * LATER;
                batch[items++] = (struct sequence_tokens){number[s], tokens + t - s * LATER, 1, LOGITS_LAST};
            }
        together.logits.rows = 0;
        check_ok(model_forward(&m->model, together.cache, batch, items, &together.logits, &error));
        float *values = stream_logits(&together);
        for (int n = 0; n < items; n++) {
            /* by attention: near-equal scores may fall the other way where sums were taken in another order */
            test_assert_close(values + (size_t)n * row, expected + (size_t)at[n] * row, 1, m->config.vocab_size,
                              i < 2 ? TOLERANCE : 1e-4, "in a batch against alone");
        }
        free(values);
    }
    free(expected);
    stream_close(&together);
    stream_close(&alone);
}

static void sequences_evict_apart(void **state)
{
    (void)state;
    over_policies(check_together);
}

/* Where the rows lie, exact, reserved or in blocks, is all the same; and nothing is allocated but by an exact cache's
   growth. */
static void check_storage(struct test_model *m, const int32_t *tokens, const struct eviction_options *options, int i)
{
    (void)i;
    struct kv_options of[] = {evicting(options), evicting(options), evicting(options)};
    float *expected = NULL;
    of[1].policy = KV_EXACT;
    of[2].policy = KV_PAGED;
    of[2].block_size = 5;
    of[2].pool_blocks = (BUDGET + 4) / 5;
    for (int n = 0; n < 3; n++) {
        struct stream kept = stream_open(m, &of[n]);
        feed(&kept, tokens, BUDGET);
        struct ledger_counts before = ledger_counts(m->ledger);
        feed(&kept, tokens + BUDGET, COUNT - BUDGET);
        assert_int_equal(ledger_counts(m->ledger).allocations, before.allocations);
        assert_int_equal(ledger_counts(m->ledger).live[LEDGER_KV], before.live[LEDGER_KV]);
        float *values = stream_logits(&kept);
        if (n > 0)
            test_assert_close(values, expected, COUNT, m->config.vocab_size, TOLERANCE, kv_policy_name(of[n].policy));
        free(n > 0 ? values : NULL);
        expected = n > 0 ? expected : values;
        check_ok(kv_truncate(kept.cache, kept.sequence, 0, &error));
        assert_int_equal(kv_length(kept.cache, kept.sequence) + kv_evicted(kept.cache, kept.sequence), 0);
        stream_close(&kept);
        assert_int_equal(ledger_counts(m->ledger).live[LEDGER_KV], 0);
    }
    free(expected);
}

static void any_storage_will_do(void **state)
{
    (void)state;
    over_policies(check_storage);
}

/* Passes that were recorded and replayed give what passes launched one by one give: sinks are stored in passes that are
   like later ones in every other way. */
static void check_replay(struct test_model *m, const int32_t *tokens, const struct eviction_options *options, int i)
{
    (void)i;
    float *values[2];
    struct kv_options some = evicting(options);
    for (int graphs = 0; graphs < 2; graphs++) {
        m->device->graphs = graphs;
        struct stream kept = stream_open(m, &some);
        feed(&kept, tokens, 30);
        check_ok(kv_truncate(kept.cache, kept.sequence, 0, &error));
        kept.logits.rows = 0;
        feed(&kept, tokens, COUNT);
        values[graphs] = stream_logits(&kept);
        stream_close(&kept);
    }
    test_assert_close(values[1], values[0], COUNT, m->config.vocab_size, TOLERANCE, "replayed against launched");
    free(values[0]);
    free(values[1]);
}

static void replayed_passes_evict_alike(void **state)
{
    (void)state;
    over_policies(check_replay);
}

/* The price of a policy beside K and V, tagged kv: moves; attention for those that go by it; sinks in f32. */
static void check_price(struct test_model *m, const int32_t *tokens, const struct eviction_options *options, int i)
{
    (void)tokens;
    (void)i;
    const struct config *config = &m->config;
    uint64_t heads = (uint64_t)(config->num_hidden_layers * config->num_key_value_heads), sequences = 3;
    uint64_t price = 2 * (uint64_t)options->drop * heads * sequences * 4;
    if (eviction_observes(options))
        price += heads * sequences * BUDGET * 4;
    if (options->sinks > 0) /* K and V; angles; slot, entry and position; frequencies */
        price +=
            sequences * SINKS * (heads * 2 * (uint64_t)config->head_dim * 4 + (uint64_t)config->head_dim * 4 + 12) +
            (uint64_t)config->head_dim / 2 * 4;
    struct kv_options some = evicting(options);
    struct stream kept = stream_open(m, &some);
    assert_int_equal(ledger_counts(m->ledger).live[LEDGER_KV] - kv_tensor_bytes(kept.cache), price);
    assert_int_equal(kv_tensor_bytes(kept.cache), BUDGET * heads * 2 * (uint64_t)config->head_dim * 4);
    stream_close(&kept);
}

static void what_a_policy_costs_is_counted(void **state)
{
    (void)state;
    over_policies(check_price);
}

static void models_with_windows_are_refused(void **state)
{
    (void)state;
    uint64_t random = 43;
    struct test_model m;
    struct kv_cache *cache;
    struct config config = random_config(&random);
    struct eviction_options options = eviction_heavy(BUDGET);
    struct kv_options some = evicting(&options);
    config.sliding_window = 10;
    test_model_open(&m, &config, DTYPE_F32, 0, &limits);
    assert_int_equal(kv_open(&cache, m.ledger, &config, &some, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "window of its own"));
    assert_null(cache);
    test_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_attention_within_the_budget),
        cmocka_unit_test(rows_are_where_the_bookkeeping_says),
        cmocka_unit_test(sinks_are_rotated_as_if_afresh),
        cmocka_unit_test(the_newest_alone_are_a_window),
        cmocka_unit_test(sinks_stand_right_before_the_window),
        cmocka_unit_test(attention_adds_up),
        cmocka_unit_test(sequences_evict_apart),
        cmocka_unit_test(any_storage_will_do),
        cmocka_unit_test(replayed_passes_evict_alike),
        cmocka_unit_test(what_a_policy_costs_is_counted),
        cmocka_unit_test(models_with_windows_are_refused),
    };
    return cmocka_run_group_tests_name("kv_evict", tests, NULL, NULL);
}
