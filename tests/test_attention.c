/* Attention and rotary embedding over ragged batches and block tables, against a plain reference in double precision,
   written here. See tests/device_arrays.h for devices and tolerances. */
#include "tests/device_arrays.h"

/* ---- ragged batches over block tables */

struct ragged_case {
    enum dtype kv_dtype, out_dtype;
    int heads, kv_heads, head_dim, window;
    int sequences, block_size; /* block_size 0: one block that holds the context exactly */
    int rows[4], past[4];      /* new tokens, and positions before them */
};

struct ragged {
    struct ragged_case shape;
    int total_rows, contexts[4], blocks_per_sequence;
    int32_t first_row[5], block_size[4];
    int32_t *positions, *row_sequence, *table;
    struct array tokens_d, positions_d, row_sequence_d, first_row_d, table_d, block_size_d;
    struct array k[4], v[4]; /* one tensor per sequence */
    struct array k_pointers, v_pointers;
    struct device_batch batch;
    struct device_kv kv;
};

static struct array pointer_array(struct device *device, const struct array *arrays, int count)
{
    struct array a = array_make(device, DTYPE_F32, (size_t)count * sizeof(void *) / 4, 0);
    for (int i = 0; i < count; i++) {
        void *pointer = array_memory(&arrays[i]);
        memcpy(array_host(&a) + (size_t)i * sizeof pointer, &pointer, sizeof pointer);
    }
    array_push(&a);
    return a;
}

/* Block numbers of one sequence: a random order over twice as many blocks as it needs. */
static void fill_table(struct ragged *g, int s, int blocks)
{
    int pool = 2 * blocks, order[512];
    assert_true(pool <= 512);
    for (int i = 0; i < pool; i++)
        order[i] = i;
    for (int i = pool - 1; i > 0; i--) {
        int j = random_int(0, i), held = order[i];
        order[i] = order[j];
        order[j] = held;
    }
    for (int i = 0; i < g->blocks_per_sequence; i++)
        g->table[s * g->blocks_per_sequence + i] = i < blocks ? order[i] : -1;
}

static void lay_out(struct ragged *g)
{
    const struct ragged_case *c = &g->shape;
    for (int s = 0; s < c->sequences; s++) {
        g->first_row[s] = g->total_rows;
        g->total_rows += c->rows[s];
        g->contexts[s] = c->past[s] + c->rows[s];
        g->block_size[s] = c->block_size ? c->block_size : g->contexts[s];
        int blocks = (g->contexts[s] + g->block_size[s] - 1) / g->block_size[s];
        g->blocks_per_sequence = blocks > g->blocks_per_sequence ? blocks : g->blocks_per_sequence;
    }
    g->first_row[c->sequences] = g->total_rows;
    g->positions = calloc((size_t)g->total_rows, sizeof *g->positions);
    g->row_sequence = calloc((size_t)g->total_rows, sizeof *g->row_sequence);
    g->table = calloc((size_t)(c->sequences * g->blocks_per_sequence), sizeof *g->table);
    assert_true(g->positions && g->row_sequence && g->table);
    for (int s = 0; s < c->sequences; s++) {
        fill_table(g, s, (g->contexts[s] + g->block_size[s] - 1) / g->block_size[s]);
        for (int r = g->first_row[s]; r < g->first_row[s + 1]; r++) {
            g->positions[r] = c->past[s] + r - g->first_row[s];
            g->row_sequence[r] = s;
        }
    }
}

static void make_ragged(struct ragged *g, struct device *device, const struct ragged_case *c)
{
    memset(g, 0, sizeof *g);
    g->shape = *c;
    lay_out(g);
    size_t rows = (size_t)g->total_rows, sequences = (size_t)c->sequences;
    g->positions_d = array_integers(device, g->positions, rows);
    g->row_sequence_d = array_integers(device, g->row_sequence, rows);
    g->tokens_d = array_integers(device, g->positions, rows);
    g->first_row_d = array_integers(device, g->first_row, sequences + 1);
    g->table_d = array_integers(device, g->table, sequences * (size_t)g->blocks_per_sequence);
    g->block_size_d = array_integers(device, g->block_size, sequences);
    for (int s = 0; s < c->sequences; s++) {
        int blocks = 2 * ((g->contexts[s] + g->block_size[s] - 1) / g->block_size[s]);
        size_t count = (size_t)(blocks * c->kv_heads * g->block_size[s] * c->head_dim);
        g->k[s] = array_random(device, c->kv_dtype, count, 0, 1.0f);
        g->v[s] = array_random(device, c->kv_dtype, count, 0, 1.0f);
    }
    g->k_pointers = pointer_array(device, g->k, c->sequences);
    g->v_pointers = pointer_array(device, g->v, c->sequences);
    g->batch = (struct device_batch){.rows = g->total_rows,
                                     .sequences = c->sequences,
                                     .tokens = array_memory(&g->tokens_d),
                                     .positions = array_memory(&g->positions_d),
                                     .row_sequence = array_memory(&g->row_sequence_d),
                                     .first_row = array_memory(&g->first_row_d),
                                     .block_table = array_memory(&g->table_d),
                                     .block_size = array_memory(&g->block_size_d),
                                     .blocks_per_sequence = g->blocks_per_sequence,
                                     .host_first_row = g->first_row,
                                     .host_context = g->contexts};
    g->kv = (struct device_kv){c->kv_dtype, array_memory(&g->k_pointers), array_memory(&g->v_pointers)};
}

static void drop_ragged(struct ragged *g)
{
    struct array *arrays[] = {&g->tokens_d, &g->positions_d,  &g->row_sequence_d, &g->first_row_d,
                              &g->table_d,  &g->block_size_d, &g->k_pointers,     &g->v_pointers};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        array_drop(arrays[i]);
    for (int s = 0; s < g->shape.sequences; s++) {
        array_drop(&g->k[s]);
        array_drop(&g->v[s]);
    }
    free(g->positions);
    free(g->row_sequence);
    free(g->table);
}

/* Element of K or V: the formula of struct device_kv. */
static size_t kv_index(const struct ragged *g, int s, int position, int head)
{
    int block = g->table[s * g->blocks_per_sequence + position / g->block_size[s]];
    size_t row = (size_t)((block * g->shape.kv_heads + head) * g->block_size[s] + position % g->block_size[s]);
    return row * (size_t)g->shape.head_dim;
}

/* Positions that no row of the sequence may see become NaN: reading one shows. */
static void poison_unseen(struct ragged *g)
{
    for (int s = 0; s < g->shape.sequences; s++) {
        int first = g->shape.window > 0 ? g->shape.past[s] - g->shape.window + 1 : 0;
        struct array *tensors[] = {&g->k[s], &g->v[s]};
        for (size_t t = 0; t < 2; t++) {
            struct array copy = *tensors[t];
            copy.host = malloc(copy.total_bytes);
            assert_non_null(copy.host);
            memset(copy.host, 0xff, copy.total_bytes);
            for (int p = first < 0 ? 0 : first; p < g->contexts[s]; p++) {
                for (int h = 0; h < g->shape.kv_heads; h++) {
                    size_t size = dtype_size(copy.dtype), from = kv_index(g, s, p, h) * size;
                    memcpy(array_host(&copy) + from, array_host(tensors[t]) + from, (size_t)g->shape.head_dim * size);
                }
            }
            free(tensors[t]->host);
            *tensors[t] = copy;
            array_push(tensors[t]);
        }
    }
}

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
    return !testing_cpu() && c->kv_dtype != DTYPE_F32;
}

/* softmax(q k^T / sqrt(head_dim)) v of one row and head. The score is off by at most about 2^-24 (sqrt(head_dim) + 4)
   times its magnitude, so each weight, relatively, by that and the power's 3e-7, numerator and denominator alike.

   Rounded (the CPU's bf16 dot products): q is rounded to bf16 first, and each weight w, relatively, by up to 2^-8, at
   its place in the tile's scale. Both sums take the rounded weights, which moves the result by sum of delta_i w_i (v_i
   - result): at most 2^-8 sum w |v - result|, and within five standard deviations of independent roundings, uniform in
   +- 2^-8. */
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
        size_t k = kv_index(g, s, p, kv_head);
        double dot = 0.0, terms = 0.0, squares = 0.0;
        for (size_t d = 0; d < head_dim; d++) {
            double value = array_at(q, at_q + d);
            if (rounded) {
                uint16_t bits;
                dtype_store(DTYPE_BF16, &bits, 0, (float)value);
                value = (double)dtype_load(DTYPE_BF16, &bits, 0);
            }
            dot += value * array_at(&g->k[s], k + d);
            terms += fabs(value * array_at(&g->k[s], k + d));
            squares += pow(value * array_at(&g->k[s], k + d), 2);
        }
        score[p] = dot * scale;
        spread[p] = squares * scale * scale;
        magnitude = fmax(magnitude, terms * scale);
        largest = fmax(largest, score[p]);
    }
    memset(expected, 0, sizeof *expected);
    for (int p = first; p < end; p++) {
        size_t v = kv_index(g, s, p, kv_head);
        score[p] = exp(score[p] - largest);
        sum += score[p];
        for (size_t d = 0; d < head_dim; d++)
            expected->value[d] += score[p] * array_at(&g->v[s], v + d);
    }
    double slack = 2 * (0x1p-24 * (sqrt(c->head_dim) + 4) * magnitude + 3e-7) + 0x1p-24 * sqrt(end - first + 16.0);
    for (size_t d = 0; d < head_dim; d++) {
        double most = 0.0, squares = 0.0;
        double variance = 0.0; /* a value x rounds by one of (u x)^2 / 3; scores move the result by w (v - o) */
        expected->value[d] /= sum;
        for (int p = first; p < end && u > 0.0; p++) {
            double w = score[p] / sum, v = array_at(&g->v[s], kv_index(g, s, p, kv_head) + d), o = expected->value[d];
            variance += u * u / 3 * w * w * (spread[p] * (v - o) * (v - o) + v * v);
        }
        for (int p = first; rounded && p < end; p++) {
            double moved = score[p] / sum * (array_at(&g->v[s], kv_index(g, s, p, kv_head) + d) - expected->value[d]);
            most += fabs(moved);
            squares += moved * moved;
        }
        expected->slack[d] = slack + 7 * sqrt(variance) + 0x1p-8 * fmin(most, 5 * sqrt(squares / 3));
    }
}

/* Where working type and cache are both bf16 the CPU may round what enters a product, all of a row or nothing. */
static void check_attention_row(const struct ragged *g, const struct array *q, const struct array *out, int row,
                                int head, const char *what)
{
    const struct ragged_case *c = &g->shape;
    size_t at = (size_t)((row * c->heads + head) * c->head_dim), head_dim = (size_t)c->head_dim;
    struct expected_row expected;
    expect_row(&expected, g, q, row, head, 0);
    if (testing_cpu() && c->kv_dtype == DTYPE_BF16 && c->out_dtype == DTYPE_BF16) {
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
    make_ragged(&g, device, c);
    poison_unseen(&g);
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
    drop_ragged(&g);
}

static struct ragged_case random_case(int i)
{
    static const int dims[] = {64, 80, 96, 128, 256, 2, 50}, blocks[] = {1, 16, 7, 0};
    struct ragged_case c = {.kv_dtype = all_types[i % 3], .out_dtype = all_types[random_int(0, 2)]};
    c.head_dim = dims[i % 7];
    c.block_size = blocks[i % 4];
    c.kv_heads = random_int(1, 3);
    c.heads = c.kv_heads * random_int(1, 8);
    c.window = random_int(0, 1) ? random_int(1, 40) : 0;
    c.sequences = random_int(1, 4);
    for (int s = 0; s < c.sequences; s++) {
        static const int rows[] = {1, 1, 2, 16, 17, 33};
        c.rows[s] = rows[random_int(0, 5)];
        c.past[s] = random_int(0, 1) ? random_int(0, 180) : 0;
    }
    return c;
}

static void check_attention(struct device *device)
{
    for (int i = 0; i < 42; i++) {
        struct ragged_case c = random_case(i);
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
    for (size_t t = 0; t < 3; t++) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct ragged_case c = cases[i];
            c.kv_dtype = all_types[t];
            check_attention_case(device, &c);
            c.out_dtype = all_types[t];
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
    make_ragged(&g, device, &c);
    struct array q = array_make(device, DTYPE_F32, 4 * 64, 0);
    memset(array_host(&q), 0, q.bytes);
    memset(array_host(&g.k[0]), 0, g.k[0].bytes);
    for (size_t h = 0; h < 4; h++) {
        int chosen = 13 + 20 * (int)(h / 2);
        dtype_store(DTYPE_F32, array_host(&q), h * 64 + 5, 1000.0f);
        dtype_store(c.kv_dtype, array_host(&g.k[0]), kv_index(&g, 0, chosen, (int)(h / 2)) + 5, 1.0f);
    }
    array_push(&q);
    array_push(&g.k[0]);
    struct array out = run_attention(device, &g, &q);
    for (size_t h = 0; h < 4; h++)
        for (size_t d = 0; d < 64; d++)
            check_value(&out, h * 64 + d, array_at(&g.v[0], kv_index(&g, 0, 13 + 20 * (int)(h / 2), (int)(h / 2)) + d),
                        1e-6, "one-hot attention");
    array_drop(&q);
    array_drop(&out);
    drop_ragged(&g);
}

static void test_attention_one_hot(void **state)
{
    (void)state;
    on_every_variant(check_attention_one_hot);
}

static void check_rope_case(struct device *device, const struct ragged_case *c)
{
    struct ragged g;
    make_ragged(&g, device, c);
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
                size_t base = (r * kv_heads + h) * dim, slot = kv_index(&g, s, position, (int)h);
                check_value(&g.k[s], slot + i, array_at(&k, base + i) * cosine + array_at(&k, base + pair) * sine,
                            0x1p-21, "rope k");
                check_value(&g.v[s], slot + i, array_at(&v, base + i), 0.0, "rope v");
            }
        }
    }
    free(before.host);
    struct array *arrays[] = {&frequency, &table, &q, &k, &v};
    for (size_t i = 0; i < 5; i++)
        array_drop(arrays[i]);
    drop_ragged(&g);
}

static void check_rope(struct device *device)
{
    for (int i = 0; i < 21; i++) {
        struct ragged_case c = random_case(i);
        check_rope_case(device, &c);
    }
}

static void test_rope(void **state)
{
    (void)state;
    on_every_variant(check_rope);
}

/* ---- one thread against two, bit for bit */

static void test_threads(void **state)
{
    (void)state;
    const struct ragged_case cases[] = {
        {.heads = 7, .kv_heads = 1, .head_dim = 64, .sequences = 3, .rows = {1, 40, 1}, .past = {1400, 100, 3}},
        {.heads = 4, .kv_heads = 4, .head_dim = 128, .sequences = 2, .rows = {1, 33}, .past = {600, 0}, .window = 200},
    };
    for (size_t i = 0; i < VARIANTS; i++) {
        struct device *device[2] = {open_variant(i, 1), open_variant(i, 2)};
        if (!device[0])
            continue;
        for (size_t k = 0; k < 2 * TYPES; k++) {
            struct ragged_case c = cases[k / TYPES];
            struct array out[2];
            c.kv_dtype = all_types[k % TYPES];
            for (int d = 0; d < 2; d++) {
                struct ragged g;
                random_seed(3);
                make_ragged(&g, device[d], &c);
                size_t count = (size_t)(g.total_rows * c.heads * c.head_dim);
                struct array q = array_random(device[d], DTYPE_F32, count, 0, 1.0f);
                out[d] = run_attention(device[d], &g, &q);
                array_drop(&q);
                drop_ragged(&g);
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
        cmocka_unit_test(test_rope),           cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_long), cmocka_unit_test(test_attention_one_hot),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
