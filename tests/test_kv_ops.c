/* The operations that write, weigh and move rows of the cache (rope_store, attention_mass, kv_move), over every type of
   cache, against plain references in double precision. See tests/device_arrays.h for devices and tolerances. */
#include "tests/ragged.h"

/* ---- rope_store */

/* A value of the cache: of int8 the nearest code, so at most half a scale off. The scale is checked by itself. */
static void check_stored(const struct array *tensor, const struct array *scales, size_t element, size_t head_dim,
                         double expected, double slack, const char *what)
{
    if (tensor->dtype != DTYPE_INT8) {
        check_value(tensor, element, expected, slack, what);
        return;
    }
    double scale = array_at(scales, element / head_dim), got = array_at(tensor, element) * scale;
    if (!(fabs(got - expected) <= scale * (0.5 + 0x1p-16) + slack))
        fail_msg("%s int8 [%zu]: %.9g instead of %.9g, off by %.3g of a scale", what, element, got, expected,
                 fabs(got - expected) / scale);
}

/* int8: scales are no larger than they must be, so the largest code of each row that was stored is 127 or -127. */
static void check_scales(const struct ragged *g)
{
    const struct ragged_case *c = &g->shape;
    for (int r = 0; c->kv_dtype == DTYPE_INT8 && r < g->total_rows; r++) {
        int s = g->row_sequence[r];
        const struct array *tensors[] = {&g->k[s], &g->v[s]};
        for (int i = 0; i < 2 * c->kv_heads; i++) {
            size_t at = ragged_element(g, s, g->positions[r], i / 2);
            double largest = 0.0;
            for (size_t d = 0; d < (size_t)c->head_dim; d++)
                largest = fmax(largest, fabs(array_at(tensors[i % 2], at + d)));
            if (largest != 127.0)
                fail_msg("rope_store int8: the largest code of row %d, head %d is %g", r, i / 2, largest);
        }
    }
}

static void check_rope_case(struct device *device, const struct ragged_case *c)
{
    struct ragged g;
    ragged_make(&g, device, c);
    size_t rows = (size_t)g.total_rows, dim = (size_t)c->head_dim, half = dim / 2, heads = (size_t)c->heads;
    size_t kv_heads = (size_t)c->kv_heads;
    struct array frequency = array_make(device, DTYPE_F32, half, 0),
                 table = array_make(device, DTYPE_F32, rows * dim, 0);
    for (size_t i = 0; i < half; i++)
        dtype_store(DTYPE_F32, array_host(&frequency), i, powf(10000.0f, -(float)i / (float)half));
    array_push(&frequency);
    struct array q = array_random(device, DTYPE_F32, rows * heads * dim, 0, 1.0f), before = q;
    struct array k = array_random(device, DTYPE_F32, rows * kv_heads * dim, 0, 1.0f);
    struct array v = array_random(device, DTYPE_F32, rows * kv_heads * dim, 0, 1.0f);
    before.host = malloc(q.total_bytes);
    assert_non_null(before.host);
    memcpy(before.host, q.host, q.total_bytes);
    CHECK(device->ops->rope_table(device, array_memory(&table), array_memory(&g.positions_d), array_memory(&frequency),
                                  (int)rows, (int)half, &error));
    const struct rope_store_args args = {.batch = &g.batch,
                                         .kv = g.kv,
                                         .q = array_memory(&q),
                                         .k = array_memory(&k),
                                         .v = array_memory(&v),
                                         .cos_sin = array_memory(&table),
                                         .heads = c->heads,
                                         .kv_heads = c->kv_heads,
                                         .head_dim = c->head_dim};
    CHECK(device->ops->rope_store(device, &args, &error));
    array_pull(&table, "rope_table");
    array_pull(&q, "rope_store q");
    for (int s = 0; s < c->sequences; s++) {
        array_pull(&g.k[s], "rope_store k");
        array_pull(&g.v[s], "rope_store v");
        array_pull(&g.k_scale[s], "rope_store scales of k");
        array_pull(&g.v_scale[s], "rope_store scales of v");
    }
    for (size_t r = 0; r < rows; r++) {
        int s = g.row_sequence[r], position = g.positions[r];
        for (size_t i = 0; i < dim; i++) {
            /* The angle itself is f32, as in the published reference. */
            float angle = (float)position * (float)array_at(&frequency, i % half);
            double cosine = cos((double)angle), sine = sin((double)angle) * (i < half ? -1.0 : 1.0);
            size_t pair = i < half ? i + half : i - half;
            check_value(&table, (r * half + i % half) * 2, cosine, 0x1p-23, "rope_table cos");
            check_value(&table, (r * half + i % half) * 2 + 1, sin((double)angle), 0x1p-23, "rope_table sin");
            for (size_t h = 0; h < heads; h++) {
                size_t base = (r * heads + h) * dim;
                check_value(&q, base + i, array_at(&before, base + i) * cosine + array_at(&before, base + pair) * sine,
                            0x1p-21, "rope q");
            }
            for (size_t h = 0; h < kv_heads; h++) {
                size_t base = (r * kv_heads + h) * dim, slot = ragged_element(&g, s, position, (int)h);
                check_stored(&g.k[s], &g.k_scale[s], slot + i, dim,
                             array_at(&k, base + i) * cosine + array_at(&k, base + pair) * sine, 0x1p-21, "rope k");
                check_stored(&g.v[s], &g.v_scale[s], slot + i, dim, array_at(&v, base + i), 0.0, "rope v");
            }
        }
    }
    check_scales(&g);
    free(before.host);
    struct array *arrays[] = {&frequency, &table, &q, &k, &v};
    for (size_t i = 0; i < 5; i++)
        array_drop(arrays[i]);
    ragged_drop(&g);
}

static void check_rope(struct device *device)
{
    for (int i = 0; i < 35; i++) {
        struct ragged_case c = ragged_random_case(i);
        check_rope_case(device, &c);
    }
}

static void test_rope(void **state)
{
    (void)state;
    on_every_variant(check_rope);
}

/* ---- rounding and scales on the way in: V is not rotated, so its bits are known exactly */

/* Everything that matters to a type of few bits: ties, the largest, what saturates, subnormals, nothing, no number. */
static const float extremes[] = {
    448.0f,      -448.0f,   447.9f,    455.9f,    464.0f,  464.1f,  1e9f,     -3e38f,
    INFINITY,    -INFINITY, NAN,       0.0f,      -0.0f,   0x1p-9f, 0x1p-10f, 0x1.8p-10f,
    -0x1.1p-10f, 0x1.8p-9f, 0x1.cp-7f, 0x1.ep-7f, 1.0625f, 1.1875f, 1e-40f,   -17.0f,
};
enum { EXTREMES = sizeof extremes / sizeof extremes[0] };

/* One token of one sequence with head_dim EXTREMES and several KV heads; returns the cache after it was stored. */
static void store_token(struct ragged *g, struct device *device, enum dtype dtype, int kv_heads, const float *values)
{
    const struct ragged_case c = {.kv_dtype = dtype,
                                  .heads = kv_heads,
                                  .kv_heads = kv_heads,
                                  .head_dim = EXTREMES,
                                  .sequences = 1,
                                  .rows = {1},
                                  .past = {2}};
    size_t count = (size_t)kv_heads * EXTREMES;
    ragged_make(g, device, &c);
    struct array q = array_random(device, DTYPE_F32, count, 0, 1.0f),
                 k = array_random(device, DTYPE_F32, count, 0, 1.0f);
    struct array v = array_make(device, DTYPE_F32, count, 0),
                 table = array_random(device, DTYPE_F32, EXTREMES, 0, 1.0f);
    memcpy(array_host(&v), values, count * sizeof *values);
    array_push(&v);
    const struct rope_store_args args = {.batch = &g->batch,
                                         .kv = g->kv,
                                         .q = array_memory(&q),
                                         .k = array_memory(&k),
                                         .v = array_memory(&v),
                                         .cos_sin = array_memory(&table),
                                         .heads = kv_heads,
                                         .kv_heads = kv_heads,
                                         .head_dim = EXTREMES};
    CHECK(device->ops->rope_store(device, &args, &error));
    array_pull(&g->v[0], "rope_store v");
    array_pull(&g->v_scale[0], "rope_store scales of v");
    struct array *arrays[] = {&q, &k, &v, &table};
    for (size_t i = 0; i < 4; i++)
        array_drop(arrays[i]);
}

static void check_extremes_fp8(struct device *device)
{
    struct ragged g;
    store_token(&g, device, DTYPE_FP8_E4M3, 1, extremes);
    for (size_t i = 0; i < EXTREMES; i++) {
        uint8_t got = (uint8_t)array_host(&g.v[0])[ragged_element(&g, 0, 2, 0) + i],
                expected = fp8_from_f32(extremes[i]);
        if (got != expected)
            fail_msg("rope_store fp8: %g became 0x%02x instead of 0x%02x (%s)", (double)extremes[i], got, expected,
                     device->info.features);
    }
    ragged_drop(&g);
}

/* Rows with known codes: a whole scale, nothing, too little for a scale, a NaN, an infinity. */
static void check_extremes_int8(struct device *device)
{
    enum { ROWS = 5 };
    float values[ROWS][EXTREMES] = {{0}};
    for (int i = 0; i < EXTREMES; i++) {
        values[0][i] = (float)(i - 12) + (i % 2 ? 0.5f : 0.25f); /* scale 1: the largest is 127 */
        values[2][i] = 1e-44f;
        values[3][i] = values[4][i] = 1.0f;
    }
    values[0][3] = -127.0f;
    values[3][20] = NAN;
    values[4][7] = -INFINITY;
    struct ragged g;
    store_token(&g, device, DTYPE_INT8, ROWS, values[0]);
    for (int h = 0; h < ROWS; h++) {
        size_t at = ragged_element(&g, 0, 2, h);
        double scale = array_at(&g.v_scale[0], at / EXTREMES);
        if (h < 3 ? scale != (h == 0 ? 1.0 : 0.0) : !isnan(scale))
            fail_msg("rope_store int8: scale %g of row %d (%s)", scale, h, device->info.features);
        for (size_t i = 0; i < EXTREMES; i++) {
            double expected = h == 0 ? nearbyint((double)values[0][i]) : 0.0;
            if (array_at(&g.v[0], at + i) != expected)
                fail_msg("rope_store int8: row %d, %g became %g (%s)", h, (double)values[h][i],
                         array_at(&g.v[0], at + i), device->info.features);
        }
    }
    ragged_drop(&g);
}

static void test_extremes(void **state)
{
    (void)state;
    on_every_variant(check_extremes_fp8);
    on_every_variant(check_extremes_int8);
}

/* ---- attention_mass */

/* Adds what one row's query heads of one KV head give to each position; returns how far it may be off, relatively. */
static double expect_mass(const struct ragged *g, const struct array *q, int row, int kv_head, double *mass)
{
    const struct ragged_case *c = &g->shape;
    int group = c->heads / c->kv_heads, s = g->row_sequence[row], end = g->positions[row] + 1;
    int first = c->window > 0 && end > c->window ? end - c->window : 0;
    double scale = 1.0 / sqrt(c->head_dim), magnitude = 0.0, score[2048];
    assert_true(end <= 2048);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        size_t at_q = (size_t)((row * c->heads + head) * c->head_dim);
        double largest = -INFINITY, sum = 0.0;
        for (int p = first; p < end; p++) {
            double terms = 0.0;
            score[p] = 0.0;
            for (size_t d = 0; d < (size_t)c->head_dim; d++) {
                double term = array_at(q, at_q + d) * ragged_k(g, s, ragged_element(g, s, p, kv_head) + d) * scale;
                score[p] += term;
                terms += fabs(term);
            }
            magnitude = fmax(magnitude, terms);
            largest = fmax(largest, score[p]);
        }
        for (int p = first; p < end; p++)
            sum += exp(score[p] - largest);
        for (int p = first; p < end; p++)
            mass[p] += exp(score[p] - largest) / sum;
    }
    return 2 * (0x1p-24 * (sqrt(c->head_dim) + 4) * magnitude + 3e-7) + 0x1p-24 * sqrt(end - first + 16.0);
}

/* What was there before is added to, slots that no row sees are left alone, and a row gives away its group in all. */
static void check_mass_case(struct device *device, const struct ragged_case *c)
{
    struct ragged g;
    ragged_make(&g, device, c);
    ragged_poison(&g);
    int slots = 0;
    for (int s = 0; s < c->sequences; s++)
        slots = g.contexts[s] > slots ? g.contexts[s] : slots;
    slots += 5;
    const struct workspace_shape shape = {
        DTYPE_F32, c->kv_dtype, g.total_rows, c->sequences, c->heads, c->kv_heads, c->head_dim, 8, 8, 8};
    struct array workspace,
        mass = array_random(device, DTYPE_F32, (size_t)(c->sequences * c->kv_heads * slots), 0, 1.0f);
    struct array q = array_random(device, DTYPE_F32, (size_t)(g.total_rows * c->heads * c->head_dim), 0, 8.0f);
    double *expected = calloc((size_t)slots, sizeof *expected), *before = calloc(mass.count, sizeof *before);
    assert_true(expected && before);
    for (size_t i = 0; i < mass.count; i++)
        before[i] = array_at(&mass, i);
    use_workspace(device, &shape, &workspace);
    const struct attention_mass_args args = {.batch = &g.batch,
                                             .kv = g.kv,
                                             .q = array_memory(&q),
                                             .mass = array_memory(&mass),
                                             .slots = slots,
                                             .heads = c->heads,
                                             .kv_heads = c->kv_heads,
                                             .head_dim = c->head_dim,
                                             .scale = (float)(1.0 / sqrt(c->head_dim)),
                                             .window = c->window};
    CHECK(device->ops->attention_mass(device, &args, &error));
    array_pull(&mass, "attention_mass");
    drop_workspace(device, &workspace);
    for (int s = 0; s < c->sequences; s++)
        for (int h = 0; h < c->kv_heads; h++) {
            double relative = 0.0;
            size_t at = (size_t)((s * c->kv_heads + h) * slots);
            memset(expected, 0, (size_t)slots * sizeof *expected);
            for (int r = g.first_row[s]; r < g.first_row[s + 1]; r++)
                relative = fmax(relative, expect_mass(&g, &q, r, h, expected));
            for (int p = 0; p < slots; p++) {
                int additions = c->rows[s] * (c->heads / c->kv_heads);
                double rounding = expected[p] > 0.0 ? 0x1p-24 * sqrt(additions) * (expected[p] + 1.0) : 0.0;
                check_value(&mass, at + (size_t)p, before[at + (size_t)p] + expected[p],
                            relative * expected[p] + rounding, "attention_mass");
            }
        }
    free(expected);
    free(before);
    array_drop(&mass);
    array_drop(&q);
    ragged_drop(&g);
}

static void check_mass(struct device *device)
{
    for (int i = 0; i < 35; i++) {
        struct ragged_case c = ragged_random_case(i);
        check_mass_case(device, &c);
    }
}

static void test_mass(void **state)
{
    (void)state;
    on_every_variant(check_mass);
}

/* ---- kv_move */

/* The host's copy of the cache after the moves, by hand. */
static void move_on_host(struct ragged *g, const int32_t *from, const int32_t *to)
{
    size_t dim = (size_t)g->shape.head_dim;
    for (int item = 0; item < g->shape.sequences * g->shape.kv_heads; item++) {
        int s = item / g->shape.kv_heads, h = item % g->shape.kv_heads;
        if (from[item] < 0 || to[item] < 0)
            continue;
        size_t source = ragged_element(g, s, from[item], h) / dim, target = ragged_element(g, s, to[item], h) / dim;
        struct array *tensors[] = {&g->k[s], &g->v[s], &g->k_scale[s], &g->v_scale[s]};
        for (size_t t = 0; t < (g->shape.kv_dtype == DTYPE_INT8 ? 4 : 2); t++) {
            size_t row = t < 2 ? dim * dtype_size(g->shape.kv_dtype) : sizeof(float);
            memmove(array_host(tensors[t]) + target * row, array_host(tensors[t]) + source * row, row);
        }
    }
}

static void check_move_case(struct device *device, const struct ragged_case *c)
{
    struct ragged g;
    int32_t from[16], to[16];
    size_t items = (size_t)(c->sequences * c->kv_heads);
    ragged_make(&g, device, c);
    for (size_t i = 0; i < items; i++) {
        int context = g.contexts[i / (size_t)c->kv_heads];
        from[i] = random_int(-1, context - 1);
        to[i] = i % 5 == 4 ? -1 : random_int(0, context - 1);
    }
    struct array from_d = array_integers(device, from, items), to_d = array_integers(device, to, items);
    const struct kv_move_args args = {.batch = &g.batch,
                                      .kv = g.kv,
                                      .from = array_memory(&from_d),
                                      .to = array_memory(&to_d),
                                      .kv_heads = c->kv_heads,
                                      .head_dim = c->head_dim};
    CHECK(device->ops->kv_move(device, &args, &error));
    move_on_host(&g, from, to);
    for (int s = 0; s < c->sequences; s++) {
        struct array *tensors[] = {&g.k[s], &g.v[s], &g.k_scale[s], &g.v_scale[s]};
        for (size_t t = 0; t < 4; t++) {
            char *expected = tensors[t]->host;
            tensors[t]->host = malloc(tensors[t]->total_bytes);
            assert_non_null(tensors[t]->host);
            array_pull(tensors[t], "kv_move");
            if (memcmp(expected, tensors[t]->host, tensors[t]->total_bytes) != 0)
                fail_msg("kv_move %s: tensor %zu of sequence %d differs (%s)", dtype_name(c->kv_dtype), t, s,
                         device->info.features);
            free(expected);
        }
    }
    array_drop(&from_d);
    array_drop(&to_d);
    ragged_drop(&g);
}

static void check_move(struct device *device)
{
    for (int i = 0; i < 35; i++) {
        struct ragged_case c = ragged_random_case(i);
        check_move_case(device, &c);
    }
}

static void test_move(void **state)
{
    (void)state;
    on_every_variant(check_move);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_mass),
        cmocka_unit_test(test_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
