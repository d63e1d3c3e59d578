#include "tests/ragged.h"

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

/* As of int8 rows whose largest value lies between 0.1 and 1. */
static struct array random_scales(struct device *device, size_t rows)
{
    struct array a = array_make(device, DTYPE_F32, rows, 0);
    for (size_t i = 0; i < rows; i++)
        dtype_store(DTYPE_F32, array_host(&a), i, (0.55f + 0.45f * random_unit()) / 127.0f);
    array_push(&a);
    return a;
}

void ragged_make(struct ragged *g, struct device *device, const struct ragged_case *c)
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
        g->k[s] = array_random(device, c->kv_dtype, count, 0, c->kv_dtype == DTYPE_INT8 ? 127.0f : 1.0f);
        g->v[s] = array_random(device, c->kv_dtype, count, 0, c->kv_dtype == DTYPE_INT8 ? 127.0f : 1.0f);
        g->k_scale[s] = random_scales(device, count / (size_t)c->head_dim);
        g->v_scale[s] = random_scales(device, count / (size_t)c->head_dim);
    }
    g->k_pointers = pointer_array(device, g->k, c->sequences);
    g->v_pointers = pointer_array(device, g->v, c->sequences);
    g->k_scale_pointers = pointer_array(device, g->k_scale, c->sequences);
    g->v_scale_pointers = pointer_array(device, g->v_scale, c->sequences);
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
    g->kv =
        (struct device_kv){.dtype = c->kv_dtype, .k = array_memory(&g->k_pointers), .v = array_memory(&g->v_pointers)};
    if (c->kv_dtype == DTYPE_INT8) {
        g->kv.k_scale = array_memory(&g->k_scale_pointers);
        g->kv.v_scale = array_memory(&g->v_scale_pointers);
    }
}

void ragged_drop(struct ragged *g)
{
    struct array *arrays[] = {&g->tokens_d,         &g->positions_d,     &g->row_sequence_d, &g->first_row_d,
                              &g->table_d,          &g->block_size_d,    &g->k_pointers,     &g->v_pointers,
                              &g->k_scale_pointers, &g->v_scale_pointers};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        array_drop(arrays[i]);
    for (int s = 0; s < g->shape.sequences; s++) {
        array_drop(&g->k[s]);
        array_drop(&g->v[s]);
        array_drop(&g->k_scale[s]);
        array_drop(&g->v_scale[s]);
    }
    free(g->positions);
    free(g->row_sequence);
    free(g->table);
}

size_t ragged_element(const struct ragged *g, int s, int position, int head)
{
    int block = g->table[s * g->blocks_per_sequence + position / g->block_size[s]];
    size_t row = (size_t)((block * g->shape.kv_heads + head) * g->block_size[s] + position % g->block_size[s]);
    return row * (size_t)g->shape.head_dim;
}

double ragged_k(const struct ragged *g, int s, size_t element)
{
    double scale = g->shape.kv_dtype == DTYPE_INT8 ? array_at(&g->k_scale[s], element / (size_t)g->shape.head_dim) : 1;
    return array_at(&g->k[s], element) * scale;
}
double ragged_v(const struct ragged *g, int s, size_t element)
{
    double scale = g->shape.kv_dtype == DTYPE_INT8 ? array_at(&g->v_scale[s], element / (size_t)g->shape.head_dim) : 1;
    return array_at(&g->v[s], element) * scale;
}

void ragged_poison(struct ragged *g)
{
    for (int s = 0; s < g->shape.sequences; s++) {
        int first = g->shape.window > 0 ? g->shape.past[s] - g->shape.window + 1 : 0;
        struct array *tensors[] = {&g->k[s], &g->v[s], &g->k_scale[s], &g->v_scale[s]};
        for (size_t t = 0; t < 4; t++) {
            struct array copy = *tensors[t];
            size_t row_bytes = t < 2 ? (size_t)g->shape.head_dim * dtype_size(copy.dtype) : sizeof(float);
            copy.host = malloc(copy.total_bytes);
            assert_non_null(copy.host);
            memset(copy.host, 0xff, copy.total_bytes);
            for (int p = first < 0 ? 0 : first; p < g->contexts[s]; p++) {
                for (int h = 0; h < g->shape.kv_heads; h++) {
                    size_t from = ragged_element(g, s, p, h) / (size_t)g->shape.head_dim * row_bytes;
                    memcpy(array_host(&copy) + from, array_host(tensors[t]) + from, row_bytes);
                }
            }
            free(tensors[t]->host);
            *tensors[t] = copy;
            array_push(tensors[t]);
        }
    }
}

struct ragged_case ragged_random_case(int i)
{
    static const int dims[] = {64, 80, 96, 128, 256, 2, 50}, blocks[] = {1, 16, 7, 0};
    struct ragged_case c = {.kv_dtype = (enum dtype)(i % DTYPE_COUNT), .out_dtype = all_types[random_int(0, 2)]};
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
