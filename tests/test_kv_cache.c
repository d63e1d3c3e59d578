/* The block-table cache: its three policies, what its tensors really take, room, truncation, copies, and block
 * accounting. */
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

static struct device *device;
static struct ledger *ledger;
static struct error error;
static const struct config config = {
    .name = "kv",
    .vocab_size = 10,
    .hidden_size = 8,
    .intermediate_size = 8,
    .num_hidden_layers = 3,
    .num_attention_heads = 4,
    .num_key_value_heads = 2,
    .head_dim = 8,
    .max_position_embeddings = 100,
};
/* 2 * 3 layers * 2 heads * 8 values * 2 bytes */
enum { BYTES_PER_TOKEN = 192, TENSORS = 6 };

static int open_all(void **state)
{
    (void)state;
    device = test_device_open(1);
    return ledger_open(&ledger, device, 64 << 20, &error);
}

static int close_all(void **state)
{
    (void)state;
    ledger_close(ledger);
    device->ops->close(device);
    return 0;
}

static struct kv_cache *open_cache(enum kv_policy policy, int max_sequences, int block_size, int max_tokens, int blocks)
{
    struct kv_cache *cache;
    struct kv_options options = {.policy = policy,
                                 .dtype = DTYPE_BF16,
                                 .max_sequences = max_sequences,
                                 .block_size = block_size,
                                 .max_tokens = max_tokens,
                                 .pool_blocks = blocks};
    check_ok(kv_open(&cache, ledger, &config, &options, &error));
    return cache;
}

static uint64_t live_kv(void)
{
    return ledger_counts(ledger).live[LEDGER_KV];
}

static void exact_holds_exactly_its_tokens(void **state)
{
    (void)state;
    int sequence;
    struct kv_cache *cache = open_cache(KV_EXACT, 2, 0, 0, 0);
    check_ok(kv_sequence_open(cache, &sequence, &error));
    assert_int_equal(kv_tensor_count(cache), 0);
    check_ok(kv_make_room(cache, sequence, 37, &error));
    assert_int_equal(kv_tensor_count(cache), TENSORS);
    assert_int_equal(kv_tensor_bytes(cache), 37 * BYTES_PER_TOKEN);
    assert_int_equal(live_kv(), 37 * BYTES_PER_TOKEN);
    for (size_t i = 0; i < TENSORS; i++) {
        struct kv_tensor tensor = kv_tensor_at(cache, i);
        assert_int_equal(tensor.shape[0], 1);
        assert_int_equal(tensor.shape[1], 2);
        assert_int_equal(tensor.shape[2], 37);
        assert_int_equal(tensor.shape[3], 8);
        assert_int_equal(tensor.layer, i / 2);
        assert_int_equal(tensor.is_value, i % 2);
    }
    kv_advance(cache, sequence, 37);
    check_ok(kv_make_room(cache, sequence, 38, &error));
    assert_int_equal(live_kv(), 38 * BYTES_PER_TOKEN);
    check_ok(kv_truncate(cache, sequence, 5, &error));
    assert_int_equal(live_kv(), 5 * BYTES_PER_TOKEN);
    check_ok(kv_truncate(cache, sequence, 0, &error));
    assert_int_equal(live_kv(), 0);
    kv_close(cache);
}

static void reserved_takes_its_maximum_at_once(void **state)
{
    (void)state;
    int first, second, third;
    struct kv_cache *cache = open_cache(KV_RESERVED, 2, 0, 100, 0);
    assert_int_equal(live_kv(), 0);
    check_ok(kv_sequence_open(cache, &first, &error));
    check_ok(kv_sequence_open(cache, &second, &error));
    assert_int_equal(live_kv(), 2 * 100 * BYTES_PER_TOKEN);
    assert_int_equal(kv_tensor_bytes(cache), 2 * 100 * BYTES_PER_TOKEN);
    assert_int_equal(kv_sequence_open(cache, &third, &error), STATUS_DEVICE);
    assert_int_equal(kv_make_room(cache, first, 101, &error), STATUS_DEVICE);
    check_ok(kv_make_room(cache, first, 100, &error));
    kv_sequence_close(cache, first);
    assert_int_equal(live_kv(), 100 * BYTES_PER_TOKEN);
    kv_close(cache);
    assert_int_equal(live_kv(), 0);
}

static void paged_takes_and_gives_back_blocks(void **state)
{
    (void)state;
    int a, b;
    const int32_t *table;
    struct kv_cache *cache = open_cache(KV_PAGED, 4, 16, 100, 5);
    assert_int_equal(live_kv(), 5 * 16 * BYTES_PER_TOKEN);
    assert_int_equal(kv_tensor_count(cache), TENSORS);
    assert_int_equal(kv_tensor_at(cache, 0).shape[0], 5);
    check_ok(kv_sequence_open(cache, &a, &error));
    check_ok(kv_sequence_open(cache, &b, &error));
    check_ok(kv_make_room(cache, a, 17, &error));
    check_ok(kv_make_room(cache, b, 33, &error));
    assert_int_equal(kv_blocks_free(cache), 0);
    assert_int_equal(kv_make_room(cache, a, 33, &error), STATUS_DEVICE);
    assert_non_null(strstr(error.message, "out of blocks"));
    assert_int_equal(kv_block_table(cache, a, &table), 2); /* unchanged */
    check_ok(kv_make_room(cache, a, 32, &error));          /* still inside its second block */
    kv_advance(cache, b, 33);
    check_ok(kv_truncate(cache, b, 16, &error));
    assert_int_equal(kv_blocks_free(cache), 2);
    kv_sequence_close(cache, a);
    kv_sequence_close(cache, b);
    assert_int_equal(kv_blocks_free(cache), 5);
    kv_close(cache);
}

/* Address of one value, by the layout that kernels/device.h states. */
static uint16_t *value_at(const struct kv_cache *cache, int sequence, int layer, bool value, int head, int position)
{
    const int32_t *table;
    int size = kv_block_size(cache, sequence);
    kv_block_table(cache, sequence, &table);
    uint16_t *base = value ? kv_layer_values(cache, sequence, layer) : kv_layer_keys(cache, sequence, layer);
    return base + (((int64_t)table[position / size] * 2 + head) * size + position % size) * 8;
}

static uint16_t pattern(int layer, bool value, int head, int position, int seed)
{
    return (uint16_t)(((layer * 2 + value) * 2 + head) * 1000 + position * 7 + seed);
}

static void write_positions(const struct kv_cache *cache, int sequence, int count, int seed)
{
    for (int layer = 0; layer < 3; layer++)
        for (int value = 0; value < 2; value++)
            for (int head = 0; head < 2; head++)
                for (int p = 0; p < count; p++) {
                    uint16_t bits = pattern(layer, value, head, p, seed);
                    check_ok(device->ops->upload(device, value_at(cache, sequence, layer, value, head, p), &bits,
                                                 sizeof bits, &error));
                }
}

static void check_positions(const struct kv_cache *cache, int sequence, int count, int seed)
{
    for (int layer = 0; layer < 3; layer++)
        for (int value = 0; value < 2; value++)
            for (int head = 0; head < 2; head++)
                for (int p = 0; p < count; p++) {
                    uint16_t bits;
                    check_ok(device->ops->download(device, &bits, value_at(cache, sequence, layer, value, head, p),
                                                   sizeof bits, &error));
                    assert_int_equal(bits, pattern(layer, value, head, p, seed));
                }
}

static void contents_survive_growth_truncation_and_copy(void **state)
{
    (void)state;
    for (int policy = KV_EXACT; policy <= KV_PAGED; policy++) {
        int a, b;
        struct kv_cache *cache = open_cache((enum kv_policy)policy, 2, 7, 60, 18);
        check_ok(kv_sequence_open(cache, &a, &error));
        check_ok(kv_sequence_open(cache, &b, &error));
        check_ok(kv_make_room(cache, a, 23, &error));
        write_positions(cache, a, 23, 3);
        kv_advance(cache, a, 23);
        check_ok(kv_make_room(cache, a, 50, &error));
        check_positions(cache, a, 23, 3);
        check_ok(kv_truncate(cache, a, 20, &error));
        check_positions(cache, a, 20, 3);
        check_ok(kv_copy_sequence(cache, a, b, &error));
        assert_int_equal(kv_length(cache, b), 20);
        check_positions(cache, b, 20, 3);
        write_positions(cache, b, 20, 4);
        check_positions(cache, a, 20, 3); /* a real copy: nothing shared */
        kv_close(cache);
        assert_int_equal(live_kv(), 0);
    }
}

static void growth_past_the_budget_changes_nothing(void **state)
{
    (void)state;
    int sequence;
    struct ledger *small;
    struct kv_cache *cache;
    struct kv_options options = {.policy = KV_EXACT, .dtype = DTYPE_BF16, .max_sequences = 1};
    check_ok(ledger_open(&small, device, 50 * BYTES_PER_TOKEN, &error));
    check_ok(kv_open(&cache, small, &config, &options, &error));
    check_ok(kv_sequence_open(cache, &sequence, &error));
    check_ok(kv_make_room(cache, sequence, 40, &error));
    write_positions(cache, sequence, 40, 1);
    kv_advance(cache, sequence, 40);
    assert_int_equal(kv_make_room(cache, sequence, 51, &error), STATUS_DEVICE);
    assert_int_equal(kv_length(cache, sequence), 40);
    assert_int_equal(ledger_counts(small).live[LEDGER_KV], 40 * BYTES_PER_TOKEN);
    check_positions(cache, sequence, 40, 1);
    kv_close(cache);
    ledger_close(small);
}

/* Random opening, growing, truncating and closing over a small pool: no block is ever in two tables, none is lost. */
static void random_operations_never_leak_blocks(void **state)
{
    (void)state;
    enum { SEQUENCES = 6, BLOCKS = 24, OPERATIONS = 20000 };
    bool open[SEQUENCES] = {0};
    uint64_t random = 11;
    struct kv_cache *cache = open_cache(KV_PAGED, SEQUENCES, 4, 60, BLOCKS);
    for (int i = 0; i < OPERATIONS; i++) {
        int s = test_random(&random, 0, SEQUENCES - 1), number;
        if (!open[s]) {
            check_ok(kv_sequence_open(cache, &number, &error));
            open[number] = true;
        } else if (test_random(&random, 0, 9) == 0) {
            kv_sequence_close(cache, s);
            open[s] = false;
        } else if (test_random(&random, 0, 2) == 0) {
            check_ok(kv_truncate(cache, s, test_random(&random, 0, kv_length(cache, s)), &error));
        } else {
            int grown = kv_length(cache, s) + test_random(&random, 1, 20);
            if (kv_make_room(cache, s, grown, &error) == STATUS_OK)
                kv_advance(cache, s, grown - kv_length(cache, s));
        }
        int used = 0, owner[BLOCKS] = {0};
        for (int t = 0; t < SEQUENCES; t++) {
            const int32_t *table;
            for (int b = 0, n = open[t] ? kv_block_table(cache, t, &table) : 0; b < n; b++, used++) {
                assert_in_range(table[b], 0, BLOCKS - 1);
                assert_int_equal(owner[table[b]]++, 0);
            }
        }
        assert_int_equal(used + kv_blocks_free(cache), BLOCKS);
    }
    kv_close(cache);
    assert_int_equal(live_kv(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_holds_exactly_its_tokens),
        cmocka_unit_test(reserved_takes_its_maximum_at_once),
        cmocka_unit_test(paged_takes_and_gives_back_blocks),
        cmocka_unit_test(contents_survive_growth_truncation_and_copy),
        cmocka_unit_test(growth_past_the_budget_changes_nothing),
        cmocka_unit_test(random_operations_never_leak_blocks),
    };
    return cmocka_run_group_tests_name("kv_cache", tests, open_all, close_all);
}
