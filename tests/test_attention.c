/* Attention over ragged batches and block tables, against a plain reference in double precision, written here. See
   tests/device_arrays.h for devices and tolerances. */
#include "tests/ragged.h"

static struct array run_attention(struct device *device, struct ragged *g, const struct array *q)
{
    const struct ragged_case *c = &g->shape;
    const struct workspace_shape shape = {
        c->out_dtype, c->kv_dtype, g->total_rows, c->sequences, c->heads, c->kv_heads, c->head_dim, 8, 8, 8};
    struct array workspace, out = array_make(device, c->out_dtype, q->count, 0);
    use_workspace(device, &shape, &workspace);
    const struct attention_args args = {.batch = &g->batch,
                                        .kv = g->kv,
                                        .q = array_memory(q),
                                        .out = array_memory(&out),
                                        .out_dtype = c->out_dtype,
                                        .heads = c->heads,
                                        .kv_heads = c->kv_heads,
                                        .head_dim = c->head_dim,
                                        .scale = (float)(1.0 / sqrt(c->head_dim)),
                                        .window = c->window};
    CHECK(device->ops->attention(device, &args, &error));
    array_pull(&out, "attention");
    drop_workspace(device, &workspace);
    return out;
}

/* Tensor cores take q and the weights in the cache's type. */
static int rounds_to_16_bits(const struct ragged_case *c)
{
    return !testing_cpu() && dtype_size(c->kv_dtype) == 2;
}

/* softmax(q k^T / sqrt(head_dim)) v of one row and head. The score is off by at most about 2^-24 (sqrt(head_dim) + 4)
   times its magnitude, so each weight, relatively, by that and the power's 3e-7, numerator and denominator alike.

   Rounded (the CPU's bf16 dot products): q is rounded to bf16 first, and each weight w, relatively, by up to 2^-8, at
   its place in the tile's scale. Both sums take the rounded weights, which moves the result by sum of delta_i w_i (v_i
   - result): at most 2^-8 sum w |v - result|, and within five standard deviations of independent roundings, uniform in
   +- 2^-8. With int8 w times the scale of v is rounded once more, in one of the sums: delta_i w_i v_i on top. */
struct expected_row {
    double value[256], slack[256];
};
static void expect_row(struct expected_row *expected, const struct ragged *g, const struct array *q, int row, int head,
                       int rounded)
{
    const struct ragged_case *c = &g->shape;
    int s = g->row_sequence[row], end = g->positions[row] + 1, kv_head = head / (c->heads / c->kv_heads);
    int first = c->window > 0 && end > c->window ? end - c->window : 0;
    size_t at_q = (size_t)((row * c->heads + head) * c->head_dim), head_dim = (size_t)c->head_dim;
    double scale = 1.0 / sqrt(c->head_dim), largest = -INFINITY, sum = 0.0, magnitude = 0.0, score[2048];
    double u = rounds_to_16_bits(c) ? unit_roundoff(c->kv_dtype) : 0.0, spread[2048];
    assert_true(end <= 2048 && c->head_dim <= 256);
    for (int p = first; p < end; p++) {
        size_t k = ragged_element(g, s, p, kv_head);
        double dot = 0.0, terms = 0.0, squares = 0.0;
        for (size_t d = 0; d < head_dim; d++) {
            double value = array_at(q, at_q + d);
            if (rounded) {
                uint16_t bits;
                dtype_store(DTYPE_BF16, &bits, 0, (float)value);
                value = (double)dtype_load(DTYPE_BF16, &bits, 0);
            }
            dot += value * ragged_k(g, s, k + d);
            terms += fabs(value * ragged_k(g, s, k + d));
            squares += pow(value * ragged_k(g, s, k + d), 2);
        }
        score[p] = dot * scale;
        spread[p] = squares * scale * scale;
        magnitude = fmax(magnitude, terms * scale);
        largest = fmax(largest, score[p]);
    }
    memset(expected, 0, sizeof *expected);
    for (int p = first; p < end; p++) {
        size_t v = ragged_element(g, s, p, kv_head);
        score[p] = exp(score[p] - largest);
        sum += score[p];
        for (size_t d = 0; d < head_dim; d++)
            expected->value[d] += score[p] * ragged_v(g, s, v + d);
    }
    double slack = 2 * (0x1p-24 * (sqrt(c->head_dim) + 4) * magnitude + 3e-7) + 0x1p-24 * sqrt(end - first + 16.0);
    for (size_t d = 0; d < head_dim; d++) {
        double most = 0.0, squares = 0.0;
        double variance = 0.0; /* a value x rounds by one of (u x)^2 / 3; scores move the result by w (v - o) */
        expected->value[d] /= sum;
        for (int p = first; p < end && u > 0.0; p++) {
            double w = score[p] / sum, v = ragged_v(g, s, ragged_element(g, s, p, kv_head) + d), o = expected->value[d];
            variance += u * u / 3 * w * w * (spread[p] * (v - o) * (v - o) + v * v);
        }
        for (int p = first; rounded && p < end; p++) {
            double v = ragged_v(g, s, ragged_element(g, s, p, kv_head) + d);
            double moved =
                score[p] / sum * (fabs(v - expected->value[d]) + (c->kv_dtype == DTYPE_INT8 ? fabs(v) : 0.0));
            most += moved;
            squares += moved * moved;
        }
        expected->slack[d] = slack + 7 * sqrt(variance) + 0x1p-8 * fmin(most, 5 * sqrt(squares / 3));
    }
}

/* Where the working type is bf16 and bf16 holds every value of the cache (of int8 every code), the CPU may round what
   enters a product, all of a row or nothing. */
static void check_attention_row(const struct ragged *g, const struct array *q, const struct array *out, int row,
                                int head, const char *what)
{
    const struct ragged_case *c = &g->shape;
    size_t at = (size_t)((row * c->heads + head) * c->head_dim), head_dim = (size_t)c->head_dim;
    struct expected_row expected;
    expect_row(&expected, g, q, row, head, 0);
    if (testing_cpu() && c->kv_dtype >= DTYPE_BF16 && c->out_dtype == DTYPE_BF16) {
        int exact = 1;
        for (size_t d = 0; d < head_dim; d++)
            exact = exact && value_matches(out, at + d, expected.value[d], expected.slack[d]);
        if (!exact)
            expect_row(&expected, g, q, row, head, 1);
    }
    for (size_t d = 0; d < head_dim; d++)
        check_value(out, at + d, expected.value[d], expected.slack[d], what);
}

static void check_attention_case(struct device *device, const struct ragged_case *c)
{
    struct ragged g;
    char what[160];
    ragged_make(&g, device, c);
    ragged_poison(&g);
    struct array q =
        array_random(device, DTYPE_F32, (size_t)(g.total_rows * c->heads * c->head_dim), 0, sqrtf((float)c->head_dim));
    struct array out = run_attention(device, &g, &q);
    snprintf(what, sizeof what, "attention heads %d/%d dim %d window %d block %d kv %s rows %d,%d past %d,%d", c->heads,
             c->kv_heads, c->head_dim, c->window, c->block_size, dtype_name(c->kv_dtype), c->rows[0], c->rows[1],
             c->past[0], c->past[1]);
    for (int r = 0; r < g.total_rows; r++)
        for (int h = 0; h < c->heads; h++)
            check_attention_row(&g, &q, &out, r, h, what);
    array_drop(&q);
    array_drop(&out);
    ragged_drop(&g);
}

static void check_attention(struct device *device)
{
    for (int i = 0; i < 70; i++) {
        struct ragged_case c = ragged_random_case(i);
        check_attention_case(device, &c);
    }
}

static void test_attention(void **state)
{
    (void)state;
    on_every_variant(check_attention);
}

/* Contexts of several tiles of keys and several parts; prompts of several tiles of rows; one head for many. */
static void check_attention_long(struct device *device)
{
    const struct ragged_case cases[] = {
        {.heads = 7, .kv_heads = 1, .head_dim = 64, .sequences = 2, .rows = {1, 1}, .past = {1500, 255}},
        {.heads = 4, .kv_heads = 2, .head_dim = 80, .sequences = 1, .rows = {1}, .past = {1299}, .window = 700},
        {.heads = 2, .kv_heads = 2, .head_dim = 64, .sequences = 1, .rows = {290}, .past = {3}, .block_size = 16},
        {.heads = 2, .kv_heads = 1, .head_dim = 64, .sequences = 1, .rows = {200}, .past = {200}, .window = 150},
        {.heads = 131, .kv_heads = 1, .head_dim = 2, .sequences = 2, .rows = {1, 3}, .past = {300, 5}},
    };
    for (int t = 0; t < DTYPE_COUNT; t++) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct ragged_case c = cases[i];
            c.kv_dtype = (enum dtype)t;
            check_attention_case(device, &c);
            c.out_dtype = t < TYPES ? (enum dtype)t : DTYPE_BF16;
            check_attention_case(device, &c);
        }
    }
}

static void test_attention_long(void **state)
{
    (void)state;
    on_every_variant(check_attention_long);
}

/* A value of V that stands out must come back where its key is the only one that matches (one-hot attention). */
static void check_attention_one_hot(struct device *device)
{
    const struct ragged_case c = {.heads = 4, .kv_heads = 2, .head_dim = 64, .sequences = 1, .rows = {1}, .past = {99}};
    struct ragged g;
    ragged_make(&g, device, &c);
    struct array q = array_make(device, DTYPE_F32, 4 * 64, 0);
    memset(array_host(&q), 0, q.bytes);
    memset(array_host(&g.k[0]), 0, g.k[0].bytes);
    for (size_t h = 0; h < 4; h++) {
        int chosen = 13 + 20 * (int)(h / 2);
        dtype_store(DTYPE_F32, array_host(&q), h * 64 + 5, 1000.0f);
        dtype_store(c.kv_dtype, array_host(&g.k[0]), ragged_element(&g, 0, chosen, (int)(h / 2)) + 5, 1.0f);
    }
    array_push(&q);
    array_push(&g.k[0]);
    struct array out = run_attention(device, &g, &q);
    for (size_t h = 0; h < 4; h++)
        for (size_t d = 0; d < 64; d++)
            check_value(&out, h * 64 + d,
                        array_at(&g.v[0], ragged_element(&g, 0, 13 + 20 * (int)(h / 2), (int)(h / 2)) + d), 1e-6,
                        "one-hot attention");
    array_drop(&q);
    array_drop(&out);
    ragged_drop(&g);
}

static void test_attention_one_hot(void **state)
{
    (void)state;
    on_every_variant(check_attention_one_hot);
}

/* ---- one thread against two, bit for bit */

static void test_threads(void **state)
{
    (void)state;
    const struct ragged_case cases[] = {
        {.heads = 7, .kv_heads = 1, .head_dim = 64, .sequences = 3, .rows = {1, 40, 1}, .past = {1400, 100, 3}},
        {.heads = 4, .kv_heads = 4, .head_dim = 128, .sequences = 2, .rows = {1, 33}, .past = {600, 0}, .window = 200},
        {.heads = 14, .kv_heads = 2, .head_dim = 64, .sequences = 3, .rows = {1, 1, 1}, .past = {5000, 40, 1400}},
    };
    for (size_t i = 0; i < VARIANTS; i++) {
        struct device *device[2] = {open_variant(i, 1), open_variant(i, 2)};
        if (!device[0])
            continue;
        for (int k = 0; k < 3 * DTYPE_COUNT; k++) {
            struct ragged_case c = cases[k / DTYPE_COUNT];
            struct array out[2];
            c.kv_dtype = (enum dtype)(k % DTYPE_COUNT);
            for (int d = 0; d < 2; d++) {
                struct ragged g;
                random_seed(3);
                ragged_make(&g, device[d], &c);
                size_t count = (size_t)(g.total_rows * c.heads * c.head_dim);
                struct array q = array_random(device[d], DTYPE_F32, count, 0, 1.0f);
                out[d] = run_attention(device[d], &g, &q);
                array_drop(&q);
                ragged_drop(&g);
            }
            check_same(&out[0], &out[1], "attention");
            array_drop(&out[0]);
            array_drop(&out[1]);
        }
        device[0]->ops->close(device[0]);
        device[1]->ops->close(device[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_long),
        cmocka_unit_test(test_attention_one_hot),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
