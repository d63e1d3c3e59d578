/* Caches of every type: what their tensors take, that scales go wherever their values go, and what rounding K and V
   does to the logits. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, HEADS = 2, HEAD_DIM = 8 };
static struct error error;
static const struct config config = {
    .name = "kv",
    .vocab_size = 10,
    .hidden_size = 8,
    .intermediate_size = 8,
    .num_hidden_layers = LAYERS,
    .num_attention_heads = 4,
    .num_key_value_heads = HEADS,
    .head_dim = HEAD_DIM,
    .max_position_embeddings = 100,
};

/* ---- tensors of an int8 cache */

struct place {
    struct device *device;
    struct ledger *ledger;
    struct kv_cache *cache;
};

static void place_open(struct place *place, enum kv_policy policy, uint64_t budget)
{
    const struct kv_options options = {.policy = policy,
                                       .dtype = DTYPE_INT8,
                                       .max_sequences = 3,
                                       .block_size = 7,
                                       .max_tokens = 60,
                                       .pool_blocks = 27};
    place->device = test_device_open(1);
    check_ok(ledger_open(&place->ledger, place->device, budget, &error));
    check_ok(kv_open(&place->cache, place->ledger, &config, &options, &error));
}

static void place_close(struct place *place)
{
    kv_close(place->cache);
    assert_int_equal(ledger_counts(place->ledger).live_total, 0);
    ledger_close(place->ledger);
    place->device->ops->close(place->device);
}

/* 2 * 3 layers * 2 heads * (8 + 4) bytes a token, in 4 tensors per layer. */
static void scales_are_tensors(void **state)
{
    (void)state;
    enum { BYTES_PER_TOKEN = 144, TENSORS = 12, TOKENS = 37 };
    struct place place;
    int sequence;
    place_open(&place, KV_EXACT, 0);
    check_ok(kv_sequence_open(place.cache, &sequence, &error));
    check_ok(kv_make_room(place.cache, sequence, TOKENS, &error));
    assert_int_equal(kv_tensor_count(place.cache), TENSORS);
    assert_int_equal(kv_tensor_bytes(place.cache), TOKENS * BYTES_PER_TOKEN);
    assert_int_equal(ledger_counts(place.ledger).live[LEDGER_KV], TOKENS * BYTES_PER_TOKEN);
    for (size_t i = 0; i < TENSORS; i++) {
        const struct kv_tensor tensor = kv_tensor_at(place.cache, i);
        assert_int_equal(tensor.layer, i / 4);
        assert_int_equal(tensor.is_value, i % 2);
        assert_int_equal(tensor.is_scale, i % 4 / 2);
        assert_int_equal(tensor.dtype, tensor.is_scale ? DTYPE_F32 : DTYPE_INT8);
        assert_int_equal(tensor.shape[0], 1);
        assert_int_equal(tensor.shape[1], HEADS);
        assert_int_equal(tensor.shape[2], TOKENS);
        assert_int_equal(tensor.shape[3], tensor.is_scale ? 1 : HEAD_DIM);
        assert_int_equal(tensor.bytes, TOKENS * (tensor.is_scale ? 8 : 16));
    }
    place_close(&place);
}

/* A budget holds an exact cache to the byte: it is the sum over all tensors that counts, scales as well. */
static void the_budget_counts_scales(void **state)
{
    (void)state;
    struct place place;
    int sequence;
    place_open(&place, KV_EXACT, 40 * 144);
    check_ok(kv_sequence_open(place.cache, &sequence, &error));
    assert_int_equal(kv_make_room(place.cache, sequence, 41, &error), STATUS_DEVICE);
    assert_non_null(strstr(error.message, "5904")); /* 41 * 144 */
    check_ok(kv_make_room(place.cache, sequence, 40, &error));
    assert_int_equal(ledger_counts(place.ledger).live[LEDGER_KV], 40 * 144);
    place_close(&place);
}

/* One row of K or V and its scale, by the layout that kernels/device.h states. */
static void exchange_row(const struct place *place, int sequence, int layer, int side, int head, int position,
                         bool write, int seed)
{
    const struct device_ops *ops = place->device->ops;
    const int32_t *table;
    int8_t codes[HEAD_DIM], read[HEAD_DIM];
    float scale = (float)(seed + layer * 1000 + side * 500 + head * 250 + position), got;
    kv_block_table(place->cache, sequence, &table);
    size_t size = (size_t)kv_block_size(place->cache, sequence), p = (size_t)position;
    size_t row = ((size_t)table[p / size] * HEADS + (size_t)head) * size + p % size;
    char *values = side ? kv_layer_values(place->cache, sequence, layer) : kv_layer_keys(place->cache, sequence, layer);
    float *scales = side ? kv_layer_value_scales(place->cache, sequence, layer)
                         : kv_layer_key_scales(place->cache, sequence, layer);
    for (int d = 0; d < HEAD_DIM; d++)
        codes[d] = (int8_t)((seed + layer * 31 + side * 17 + head * 7 + position * 3 + d) % 255 - 127);
    if (write) {
        check_ok(ops->upload(place->device, values + row * HEAD_DIM, codes, sizeof codes, &error));
        check_ok(ops->upload(place->device, scales + row, &scale, sizeof scale, &error));
        return;
    }
    check_ok(ops->download(place->device, read, values + row * HEAD_DIM, sizeof read, &error));
    check_ok(ops->download(place->device, &got, scales + row, sizeof got, &error));
    assert_memory_equal(read, codes, sizeof codes);
    assert_true(got == scale);
}

static void exchange(const struct place *place, int sequence, int count, bool write, int seed)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int side = 0; side < 2; side++)
            for (int head = 0; head < HEADS; head++)
                for (int p = 0; p < count; p++)
                    exchange_row(place, sequence, layer, side, head, p, write, seed);
}

static void scales_go_with_their_values(void **state)
{
    (void)state;
    for (int policy = KV_EXACT; policy <= KV_PAGED; policy++) {
        struct place place;
        int a, b, fork;
        place_open(&place, (enum kv_policy)policy, 0);
        check_ok(kv_sequence_open(place.cache, &a, &error));
        check_ok(kv_sequence_open(place.cache, &b, &error));
        check_ok(kv_make_room(place.cache, a, 23, &error));
        exchange(&place, a, 23, true, 3);
        kv_advance(place.cache, a, 23);
        check_ok(kv_make_room(place.cache, a, 50, &error));
        exchange(&place, a, 23, false, 3);
        check_ok(kv_truncate(place.cache, a, 20, &error));
        check_ok(kv_copy_sequence(place.cache, a, b, &error));
        exchange(&place, b, 20, false, 3);
        exchange(&place, b, 20, true, 4);
        exchange(&place, a, 20, false, 3); /* a real copy: nothing shared */
        if (policy == KV_PAGED) {          /* the shared block is copied before the fork writes into it */
            check_ok(kv_fork(place.cache, a, &fork, &error));
            check_ok(kv_make_room(place.cache, fork, 21, &error));
            exchange(&place, fork, 20, false, 3);
            exchange_row(&place, fork, 1, 0, 1, 19, true, 9);
            exchange(&place, a, 20, false, 3);
        }
        place_close(&place);
    }
}

/* ---- what rounding does to the logits */

/* Logits of all positions with f32 weights and a cache of the given type, in chunks and with blocks of 16. */
static float *logits_with(enum dtype kv_dtype, const struct config *shape, const int32_t *tokens, int count, int chunk)
{
    const struct model_limits limits = {.max_rows = 64, .max_sequences = 1, .max_blocks = 8};
    const struct kv_options options = {.policy = KV_PAGED,
                                       .dtype = kv_dtype,
                                       .max_sequences = 1,
                                       .block_size = 16,
                                       .max_tokens = 64,
                                       .pool_blocks = 8};
    struct test_model m = {.device = test_device_open(0), .config = *shape};
    struct weights weights = {0};
    struct kv_cache *cache;
    struct logits logits;
    int sequence;
    check_ok(ledger_open(&m.ledger, m.device, 0, &error));
    check_ok(weights_synthetic(&weights, m.ledger, &m.config, DTYPE_F32, 1, &error));
    check_ok(model_init(&m.model, m.ledger, &m.config, &weights, &limits, kv_dtype, &error));
    check_ok(kv_open(&cache, m.ledger, &m.config, &options, &error));
    check_ok(kv_sequence_open(cache, &sequence, &error));
    check_ok(logits_init(&logits, m.ledger, &m.config, DTYPE_F32, count, &error));
    check_ok(model_prefill(&m.model, cache, sequence, tokens, count, LOGITS_ALL, chunk, &logits, &error));
    float *values = test_download_logits(&m, &logits, 0, count);
    logits_free(&logits, m.ledger);
    kv_close(cache);
    test_model_close(&m);
    return values;
}

static double relative_error(const float *a, const float *b, size_t count)
{
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(difference / norm);
}

/* The error of a rounded value, relative to it and as a root mean square, is u / sqrt(3) at most: uniform up to
   u = 2^-(fraction bits + 1). int8's step is the same for a whole row, max / 127, its error step / sqrt(12); of random
   values the largest is about 2.5 times their root mean square. K and V of each of up to 4 layers bring in errors of
   that size, which add up like a random walk: to sqrt(2 * 4), so three times the rounding is let pass. A cache that is
   rounded at all is off by at least a tenth of it. */
static void logits_are_off_by_the_rounding_of_the_type(void **state)
{
    (void)state;
    enum { COUNT = 48, MODELS = 6 };
    const double rounding[DTYPE_COUNT] = {[DTYPE_F16] = 0x1p-11 / sqrt(3),
                                          [DTYPE_BF16] = 0x1p-8 / sqrt(3),
                                          [DTYPE_FP8_E4M3] = 0x1p-4 / sqrt(3),
                                          [DTYPE_INT8] = 2.5 / 127 / sqrt(12)};
    uint64_t random = 17;
    for (int i = 0; i < MODELS; i++) {
        struct config shape = test_random_config(&random);
        int32_t *tokens = test_tokens(&shape, COUNT, 3);
        size_t values = (size_t)(COUNT * shape.vocab_size);
        for (int chunk = 1; chunk <= COUNT; chunk += COUNT - 1) { /* decode, and one pass of many rows */
            float *exact = logits_with(DTYPE_F32, &shape, tokens, COUNT, chunk);
            for (enum dtype type = DTYPE_F16; type < DTYPE_COUNT; type++) {
                float *rounded = logits_with(type, &shape, tokens, COUNT, chunk);
                double off = relative_error(rounded, exact, values);
                if (!(off <= 3 * rounding[type] && off >= rounding[type] / 10))
                    fail_msg("model %d, %s: logits are off by %.3g, the rounding of the type is %.3g", i,
                             dtype_name(type), off, rounding[type]);
                free(rounded);
            }
            free(exact);
        }
        free(tokens);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_are_tensors),
        cmocka_unit_test(the_budget_counts_scales),
        cmocka_unit_test(scales_go_with_their_values),
        cmocka_unit_test(logits_are_off_by_the_rounding_of_the_type),
    };
    return cmocka_run_group_tests_name("kv_types", tests, NULL, NULL);
}
