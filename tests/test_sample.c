/* Sampling on the device against the definition taken literally: sort, cut, add up. $KVLAB_TEST_DEVICE says which
   device; all give the same token for equal logits and the same point, since this reference has one answer. */
#include "engine/random.h"
#include "kernels/sample.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct error error;

/* ---- the definition */

struct ranked {
    float logit;
    int id;
};

static int in_order(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int reference(const float *logits, int vocab, float temperature, int top_k, float top_p, uint32_t point)
{
    struct ranked *ranked = calloc((size_t)vocab, sizeof *ranked);
    uint64_t sum = 0, nucleus = 0, running = 0;
    int kept = top_k > 0 && top_k < vocab ? top_k : vocab, count = 0, chosen = 0;
    assert_non_null(ranked);
    for (int i = 0; i < vocab; i++)
        ranked[i] = (struct ranked){logits[i], i};
    qsort(ranked, (size_t)vocab, sizeof *ranked, in_order);
    for (int i = 0; i < kept; i++)
        sum += sample_weight(ranked[i].logit, ranked[0].logit, temperature);
    for (uint64_t wanted = sample_nucleus(sum, top_p); nucleus < wanted; count++)
        nucleus += sample_weight(ranked[count].logit, ranked[0].logit, temperature);
    uint64_t amount = sample_amount(nucleus, point);
    for (int i = 0; i < count; i++) {
        running += sample_weight(ranked[i].logit, ranked[0].logit, temperature);
        if (running >= amount) {
            chosen = ranked[i].id;
            break;
        }
    }
    free(ranked);
    return chosen;
}

/* ---- on the device */

/* rows draws from the same logits (of type dtype), one for each point; the caller frees. */
static int32_t *draw(struct device *device, const float *logits, enum dtype dtype, int vocab, int rows,
                     const struct sample_args *how, const uint32_t *points)
{
    size_t row_bytes = (size_t)vocab * dtype_size(dtype), index_bytes = (size_t)rows * sizeof(int32_t);
    char *host = malloc((size_t)rows * row_bytes);
    int32_t *index = malloc(index_bytes);
    void *on_device, *chosen;
    assert_true(host != NULL && index != NULL);
    for (int i = 0; i < vocab; i++)
        dtype_store(dtype, host, (size_t)i, logits[i]);
    for (int r = 1; r < rows; r++)
        memcpy(host + (size_t)r * row_bytes, host, row_bytes);
    check_ok(device->ops->alloc(device, (size_t)rows * row_bytes, &on_device, &error));
    check_ok(device->ops->alloc(device, index_bytes, &chosen, &error));
    check_ok(device->ops->upload(device, on_device, host, (size_t)rows * row_bytes, &error));
    check_ok(device->ops->upload(device, chosen, points, index_bytes, &error));
    struct sample_args args = *how;
    args.index = chosen;
    args.points = chosen; /* as the interface allows */
    args.logits = on_device;
    args.dtype = dtype;
    args.rows = rows;
    args.vocab = vocab;
    check_ok(device->ops->sample(device, &args, &error));
    check_ok(device->ops->download(device, index, chosen, index_bytes, &error));
    device->ops->release(device, on_device, (size_t)rows * row_bytes);
    device->ops->release(device, chosen, index_bytes);
    free(host);
    return index;
}

/* ---- the distribution, by points that divide it evenly */

enum { EVEN = 1024 };

/* Of probabilities 0.4, 0.3, 0.2, 0.07, 0.03, out of order: how many of EVEN evenly spread points each token gets. */
static void count_even(float temperature, int top_k, float top_p, int counts[5])
{
    static const double probability[5] = {0.07, 0.4, 0.03, 0.3, 0.2};
    const struct sample_args how = {.temperature = temperature, .top_k = top_k, .top_p = top_p};
    struct device *device = test_device_open(0);
    float logits[5];
    uint32_t points[EVEN];
    for (int i = 0; i < 5; i++)
        logits[i] = (float)log(probability[i]) + 3.0f;
    for (uint32_t i = 0; i < EVEN; i++)
        points[i] = i * (UINT32_MAX / EVEN + 1u) + UINT32_MAX / EVEN / 2u;
    int32_t *index = draw(device, logits, DTYPE_F32, 5, EVEN, &how, points);
    memset(counts, 0, 5 * sizeof *counts);
    for (int i = 0; i < EVEN; i++) {
        assert_in_range(index[i], 0, 4);
        counts[index[i]]++;
    }
    free(index);
    device->ops->close(device);
}

/* Each interval of the running sum holds its share of the points, but for one at either end. */
static void assert_counts(const int counts[5], const double expected[5])
{
    for (int i = 0; i < 5; i++)
        if (fabs(counts[i] - expected[i] * EVEN) > 1.0)
            fail_msg("token %d has %d of %d points, expected %.2f", i, counts[i], EVEN, expected[i] * EVEN);
}

static void the_distribution(void **state)
{
    (void)state;
    int counts[5];
    count_even(1.0f, 0, 1.0f, counts);
    assert_counts(counts, (double[5]){0.07, 0.4, 0.03, 0.3, 0.2});
    count_even(0.5f, 0, 1.0f, counts); /* squares over their sum, 0.2958 */
    assert_counts(counts, (double[5]){0.0049 / 0.2958, 0.16 / 0.2958, 0.0009 / 0.2958, 0.09 / 0.2958, 0.04 / 0.2958});
    count_even(1.0f, 2, 1.0f, counts);
    assert_counts(counts, (double[5]){0, 0.4 / 0.7, 0, 0.3 / 0.7, 0});
    count_even(1.0f, 0, 0.75f, counts); /* 0.4 + 0.3 < 0.75 <= 0.4 + 0.3 + 0.2 */
    assert_counts(counts, (double[5]){0, 0.4 / 0.9, 0, 0.3 / 0.9, 0.2 / 0.9});
    count_even(1.0f, 2, 0.5f, counts); /* of the two kept 0.4 / 0.7 is enough */
    assert_counts(counts, (double[5]){0, 1, 0, 0, 0});
    count_even(1.0f, 0, 0.0f, counts); /* never fewer than one */
    assert_counts(counts, (double[5]){0, 1, 0, 0, 0});
}

/* ---- against the definition, over random rows: few levels, so that many logits are equal; and all distinct */

static void equals_the_definition(void **state)
{
    (void)state;
    static const int vocabularies[] = {1, 2, 31, 257, 1500};
    struct device *device = test_device_open(0);
    uint64_t random = 17;
    for (size_t v = 0; v < sizeof vocabularies / sizeof *vocabularies; v++)
        for (int round = 0; round < 12; round++) {
            int vocab = vocabularies[v];
            enum dtype dtype = (enum dtype)(round % 3);
            float *logits = calloc((size_t)vocab, sizeof *logits);
            uint32_t points[6] = {0, UINT32_MAX};
            assert_non_null(logits);
            for (int i = 0; i < vocab; i++) {
                float value = round % 2 ? (float)test_random(&random, -6, 6) : (float)random_uniform(&random) * 9 - 5;
                unsigned char stored[4];
                dtype_store(dtype, stored, 0, value);
                logits[i] = dtype_load(dtype, stored, 0);
            }
            for (int i = 2; i < 6; i++)
                points[i] = (uint32_t)(random_next(&random) >> 32);
            const struct sample_args how = {.temperature = 0.3f + 0.2f * (float)(round % 5),
                                            .top_k = test_random(&random, 0, vocab + 1),
                                            .top_p = (float)test_random(&random, 1, 20) / 20.0f};
            int32_t *index = draw(device, logits, dtype, vocab, 6, &how, points);
            for (int i = 0; i < 6; i++) {
                int wanted = reference(logits, vocab, how.temperature, how.top_k, how.top_p, points[i]);
                if (index[i] != wanted)
                    fail_msg("%s, %d tokens, temperature %g, top_k %d, top_p %g, point %u: %d, not %d",
                             dtype_name(dtype), vocab, (double)how.temperature, how.top_k, (double)how.top_p,
                             (unsigned)points[i], (int)index[i], wanted);
            }
            free(index);
            free(logits);
        }
    device->ops->close(device);
}

/* A logit that is no finite number makes the row no choice. */
static void not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const struct sample_args how = {.temperature = 1.0f, .top_p = 1.0f};
    struct device *device = test_device_open(0);
    for (int i = 0; i < 3; i++) {
        float logits[70] = {0};
        uint32_t point = 12345;
        logits[i * 30] = bad[i];
        int32_t *index = draw(device, logits, DTYPE_F32, 70, 1, &how, &point);
        assert_int_equal(index[0], -1);
        free(index);
    }
    device->ops->close(device);
}

/* Keys keep the order of logits, zeros alike. */
static void keys(void **state)
{
    (void)state;
    static const float ascending[] = {-3e38f, -2.0f, -1e-40f, 0.0f, 1e-40f, 1.0f, 3e38f};
    for (size_t i = 0; i + 1 < sizeof ascending / sizeof *ascending; i++)
        assert_true(sample_key(ascending[i]) < sample_key(ascending[i + 1]));
    assert_int_equal(sample_key(-0.0f), sample_key(0.0f));
    for (size_t i = 0; i < sizeof ascending / sizeof *ascending; i++)
        assert_true(sample_logit(sample_key(ascending[i])) == ascending[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys),
        cmocka_unit_test(the_distribution),
        cmocka_unit_test(equals_the_definition),
        cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
