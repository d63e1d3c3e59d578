/* The ledger: counts per tag, peaks, segments going back to the device, the budget and its message. */
#include "engine/ledger.h"
#include "engine/random.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

static struct device *device;
static struct error error;

static int open_device(void **state)
{
    (void)state;
    device = test_device_open(1);
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    device->ops->close(device);
    return 0;
}

static void counts_live_and_peak_per_tag(void **state)
{
    (void)state;
    struct ledger *ledger;
    void *a, *b;
    check_ok(ledger_open(&ledger, device, 1 << 30, &error));
    check_ok(ledger_alloc(ledger, LEDGER_KV, 1000, "a", &a, &error));
    check_ok(ledger_alloc(ledger, LEDGER_LOGITS, 5 << 20, "b", &b, &error));
    struct ledger_counts counts = ledger_counts(ledger);
    assert_int_equal(counts.live[LEDGER_KV], 1000);
    assert_int_equal(counts.live[LEDGER_LOGITS], 5 << 20);
    assert_int_equal(counts.live_total, 1000 + (5 << 20));
    assert_int_equal(counts.allocations, 2);
    /* The small one opens a shared segment, the large one has its own. */
    assert_int_equal(counts.reserved, LEDGER_OWN_SEGMENT_BYTES + (5 << 20));
    ledger_release(ledger, b);
    counts = ledger_counts(ledger);
    assert_int_equal(counts.live_total, 1000);
    assert_int_equal(counts.peak_total, 1000 + (5 << 20));
    assert_int_equal(counts.peak[LEDGER_LOGITS], 5 << 20);
    assert_int_equal(counts.reserved, LEDGER_OWN_SEGMENT_BYTES);
    ledger_reset_peaks(ledger);
    assert_int_equal(ledger_counts(ledger).peak_total, 1000);
    ledger_release(ledger, a);
    assert_int_equal(ledger_counts(ledger).reserved, 0);
    ledger_close(ledger);
}

static void budget_message_names_request_shares_and_shortfall(void **state)
{
    (void)state;
    struct ledger *ledger;
    void *weights, *more;
    check_ok(ledger_open(&ledger, device, 1000000, &error));
    ledger_plan(ledger, LEDGER_WEIGHTS, 1500000);
    check_ok(ledger_alloc(ledger, LEDGER_WEIGHTS, 900000, "layer 0", &weights, &error));
    assert_int_equal(ledger_alloc(ledger, LEDGER_WEIGHTS, 200000, "layer 1", &more, &error), STATUS_DEVICE);
    assert_null(more);
    assert_non_null(strstr(error.message, "layer 1 asked for 200000 bytes"));
    assert_non_null(strstr(error.message, "weights 900000"));
    assert_non_null(strstr(error.message, "needs 1500000 bytes")); /* the plan, not 1100000 */
    assert_non_null(strstr(error.message, "500000 bytes"));        /* lacking as a whole, not 100000 */
    assert_int_equal(ledger_counts(ledger).live_total, 900000);
    assert_int_equal(ledger_check_plan(ledger, "model", &error), STATUS_DEVICE);
    assert_non_null(strstr(error.message, "500000 bytes"));
    ledger_release(ledger, weights);
    ledger_close(ledger);
}

static void budget_is_exact_to_the_byte(void **state)
{
    (void)state;
    struct ledger *ledger;
    void *memory;
    check_ok(ledger_open(&ledger, device, 4096, &error));
    assert_int_equal(ledger_alloc(ledger, LEDGER_KV, 4097, "x", &memory, &error), STATUS_DEVICE);
    check_ok(ledger_alloc(ledger, LEDGER_KV, 4096, "x", &memory, &error));
    ledger_release(ledger, memory);
    assert_int_equal(ledger_alloc(ledger, LEDGER_KV, UINT64_MAX, "x", &memory, &error), STATUS_DEVICE);
    ledger_close(ledger);
}

/* What one tag freed is not handed to another: from outside, each tag's growth would be blurred by the other's
 * leavings. */
static void tags_do_not_share_segments(void **state)
{
    (void)state;
    struct ledger *ledger;
    void *kept, *freed, *kv;
    check_ok(ledger_open(&ledger, device, 1 << 30, &error));
    check_ok(ledger_alloc(ledger, LEDGER_WORKSPACE, 1000, "kept", &kept, &error));
    check_ok(ledger_alloc(ledger, LEDGER_WORKSPACE, 500000, "freed", &freed, &error));
    ledger_release(ledger, freed);
    check_ok(ledger_alloc(ledger, LEDGER_KV, 400000, "kv", &kv, &error));
    assert_int_equal(ledger_counts(ledger).reserved, 2 * LEDGER_OWN_SEGMENT_BYTES);
    ledger_release(ledger, kv);
    assert_int_equal(ledger_counts(ledger).reserved, LEDGER_OWN_SEGMENT_BYTES);
    ledger_release(ledger, kept);
    ledger_close(ledger);
}

static void adopted_memory_counts_but_is_not_reserved(void **state)
{
    (void)state;
    static const char mapped[10000];
    struct ledger *ledger;
    check_ok(ledger_open(&ledger, device, 1 << 20, &error));
    check_ok(ledger_adopt(ledger, LEDGER_WEIGHTS, sizeof mapped, "mapped", mapped, &error));
    assert_int_equal(ledger_counts(ledger).live[LEDGER_WEIGHTS], sizeof mapped);
    assert_int_equal(ledger_counts(ledger).reserved, 0);
    ledger_release(ledger, mapped);
    ledger_close(ledger);
}

/* Thousands of random allocations and releases, every byte of each written with its own pattern: none overlaps another,
   all are aligned, counts are right throughout, and in the end nothing is reserved. */
static void random_operations_keep_count(void **state)
{
    (void)state;
    enum { SLOTS = 64, OPERATIONS = 5000 };
    struct {
        unsigned char *memory;
        size_t bytes;
        enum ledger_tag tag;
        unsigned char pattern;
    } slots[SLOTS] = {0};
    uint64_t random = 7, live = 0;
    unsigned char *host = malloc(3 << 20);
    struct ledger *ledger;
    assert_non_null(host);
    check_ok(ledger_open(&ledger, device, 1 << 30, &error));
    for (int i = 0; i < OPERATIONS; i++) {
        int s = test_random(&random, 0, SLOTS - 1);
        if (slots[s].memory != NULL) {
            check_ok(device->ops->download(device, host, slots[s].memory, slots[s].bytes, &error));
            for (size_t b = 0; b < slots[s].bytes; b++)
                assert_int_equal(host[b], slots[s].pattern);
            live -= slots[s].bytes;
            ledger_release(ledger, slots[s].memory);
            slots[s].memory = NULL;
        } else {
            void *memory;
            slots[s].bytes = (size_t)test_random(&random, 1, i % 50 == 0 ? 3 << 20 : 20000);
            slots[s].tag = (enum ledger_tag)test_random(&random, 0, LEDGER_TAGS - 1);
            slots[s].pattern = (unsigned char)random_next(&random);
            check_ok(ledger_alloc(ledger, slots[s].tag, slots[s].bytes, "x", &memory, &error));
            assert_int_equal((uintptr_t)memory % 256, 0);
            slots[s].memory = memory;
            memset(host, slots[s].pattern, slots[s].bytes);
            check_ok(device->ops->upload(device, memory, host, slots[s].bytes, &error));
            live += slots[s].bytes;
        }
        struct ledger_counts counts = ledger_counts(ledger);
        uint64_t sum = 0;
        for (int t = 0; t < LEDGER_TAGS; t++)
            sum += counts.live[t];
        assert_int_equal(counts.live_total, live);
        assert_int_equal(sum, live);
        assert_true(counts.reserved >= live);
    }
    for (int s = 0; s < SLOTS; s++)
        ledger_release(ledger, slots[s].memory);
    assert_int_equal(ledger_counts(ledger).live_total, 0);
    assert_int_equal(ledger_counts(ledger).reserved, 0);
    ledger_close(ledger);
    free(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_live_and_peak_per_tag),
        cmocka_unit_test(budget_message_names_request_shares_and_shortfall),
        cmocka_unit_test(budget_is_exact_to_the_byte),
        cmocka_unit_test(tags_do_not_share_segments),
        cmocka_unit_test(adopted_memory_counts_but_is_not_reserved),
        cmocka_unit_test(random_operations_keep_count),
    };
    return cmocka_run_group_tests_name("ledger", tests, open_device, close_device);
}
