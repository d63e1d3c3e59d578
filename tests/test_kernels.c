/* Every operation of the device against a plain reference in double precision, written here. On the CPU all variants of
   the hot loops that this processor can run take part; KVLAB_TEST_DEVICE=cuda runs the same against that device.

   Tolerances: u is the unit roundoff of the output's type (f32 2^-24, f16 2^-11, bf16 2^-8). A sum of n f32 products
   may be off by about 2^-24 sqrt(n) times the sum of their magnitudes (rounding errors add like a random walk; the
   kernels' many partial sums make it less). */
#include "kernels/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the devices under test */

static const char *const variants[] = {"portable", "avx2", "avx512", "avx512_bf16"};

/* Opens variant number i with that many threads, or NULL: not on this processor. */
static struct device *open_variant(size_t i, int threads)
{
    struct device *device;
    struct error error;
    const char *name = getenv("KVLAB_TEST_DEVICE");
    if (name && strcmp(name, "cpu") != 0) {
        if (i > 0)
            return NULL;
    } else {
        name = "cpu";
        setenv("KVLAB_CPU", variants[i], 1);
    }
    enum status status = device_open(name, threads, &device, &error);
    if (status == STATUS_OK)
        return device;
    if (i == 0)
        fail_msg("%s", error.message);
    assert_int_equal(status, STATUS_INPUT);
    return NULL;
}

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        struct error error;                                                                                            \
        if ((call) != STATUS_OK)                                                                                       \
            fail_msg("%s: %s", #call, error.message);                                                                  \
    } while (0)

/* ---- seeded random numbers */

static uint64_t random_state;
static uint32_t random_bits(void)
{
    random_state += 0x9e3779b97f4a7c15u; /* SplitMix64 (Steele et al. 2014) */
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}
static int random_int(int low, int high)
{
    return low + (int)(random_bits() % (uint32_t)(high - low + 1));
}
static float random_unit(void) /* [-1, 1) */
{
    return (float)((int32_t)random_bits() >> 8) * 0x1p-23f;
}

/* ---- arrays in device memory, with a host copy and guards of NaNs (all bits 1) around them */

enum { GUARD_BYTES = 256 };

struct array {
    struct device *device;
    enum dtype dtype;
    size_t count, bytes, total_bytes, skew;
    char *host;   /* guard, skew, values, guard */
    char *memory; /* the same in device memory */
};

static void *values_of(const struct array *a) /* device memory */
{
    return a->memory + GUARD_BYTES + a->skew;
}
static char *host_of(const struct array *a)
{
    return a->host + GUARD_BYTES + a->skew;
}
static double at(const struct array *a, size_t i)
{
    return (double)dtype_load(a->dtype, host_of(a), i);
}

static void push(struct array *a)
{
    CHECK(a->device->ops->upload(a->device, a->memory, a->host, a->total_bytes, &error));
}

static struct array make_array(struct device *device, enum dtype dtype, size_t count, size_t skew)
{
    struct array a = {device, dtype, count, count * dtype_size(dtype), 0, skew, NULL, NULL};
    void *memory;
    a.total_bytes = 2 * GUARD_BYTES + skew + a.bytes;
    a.host = malloc(a.total_bytes);
    assert_non_null(a.host);
    memset(a.host, 0xff, a.total_bytes);
    CHECK(device->ops->alloc(device, a.total_bytes, &memory, &error));
    a.memory = memory;
    push(&a);
    return a;
}

static struct array random_array(struct device *device, enum dtype dtype, size_t count, size_t skew, float scale)
{
    struct array a = make_array(device, dtype, count, skew);
    for (size_t i = 0; i < count; i++)
        dtype_store(dtype, host_of(&a), i, random_unit() * scale);
    push(&a);
    return a;
}

/* 32-bit integers live in an array of f32's size. */
static struct array integer_array(struct device *device, const int32_t *values, size_t count)
{
    struct array a = make_array(device, DTYPE_F32, count, 0);
    memcpy(host_of(&a), values, count * sizeof *values);
    push(&a);
    return a;
}

static void pull(struct array *a, const char *what)
{
    CHECK(a->device->ops->synchronize(a->device, &error));
    CHECK(a->device->ops->download(a->device, a->host, a->memory, a->total_bytes, &error));
    for (size_t i = 0; i < a->total_bytes; i++) {
        if (i >= GUARD_BYTES + a->skew && i < GUARD_BYTES + a->skew + a->bytes)
            continue;
        if ((unsigned char)a->host[i] != 0xff)
            fail_msg("%s: wrote byte %ld, outside its %zu bytes", what, (long)i - GUARD_BYTES - (long)a->skew,
                     a->bytes);
    }
}

static void drop(struct array *a)
{
    a->device->ops->release(a->device, a->memory, a->total_bytes);
    free(a->host);
}

static double unit_roundoff(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 0x1p-24 : dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

/* `slack`: what the arithmetic before the last rounding may be off by. */
static void check_value(const struct array *a, size_t index, double expected, double slack, const char *what)
{
    double got = at(a, index), floor = a->dtype == DTYPE_F16 ? 0x1p-25 : 0x1p-126;
    double tolerance = slack + unit_roundoff(a->dtype) * (fabs(expected) + slack) + floor;
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("%s %s [%zu]: %.9g instead of %.9g, off by %.3g, allowed %.3g (%s)", what, dtype_name(a->dtype), index,
                 got, expected, fabs(got - expected), tolerance, a->device->info.features);
}

static void check_same(const struct array *a, const struct array *b, const char *what)
{
    for (size_t i = 0; i < a->count; i++) {
        size_t size = dtype_size(a->dtype);
        if (memcmp(host_of(a) + i * size, host_of(b) + i * size, size) != 0)
            fail_msg("%s %s [%zu]: %.9g with one thread, %.9g with two (%s)", what, dtype_name(a->dtype), i, at(a, i),
                     at(b, i), a->device->info.features);
    }
}

static void use_workspace(struct device *device, const struct workspace_shape *shape, struct array *workspace)
{
    size_t bytes = device->ops->workspace_bytes(device, shape);
    *workspace = make_array(device, DTYPE_F16, (bytes + 1) / 2, 0);
    device->ops->set_workspace(device, values_of(workspace), bytes);
}

static void drop_workspace(struct device *device, struct array *workspace)
{
    pull(workspace, "workspace");
    drop(workspace);
    device->ops->set_workspace(device, NULL, 0);
}

/* Runs a check on every variant with one and two threads, from the same seed. */
static void on_every_variant(void (*check)(struct device *device))
{
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        for (int threads = 1; threads <= 2; threads++) {
            struct device *device = open_variant(i, threads);
            if (!device)
                continue;
            random_state = 7;
            check(device);
            device->ops->close(device);
        }
    }
}

static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

/* ---- linear */

struct linear_case {
    enum dtype dtype, out_dtype;
    int rows, in, out, bias;
    size_t skew;
};

static struct array run_linear(struct device *device, const struct linear_case *c, struct array *x, struct array *w,
                               struct array *bias)
{
    const struct workspace_shape shape = {c->dtype, c->dtype, c->rows, 1, 1, 1, 2, c->in, c->out, c->out};
    struct array workspace, y = make_array(device, c->out_dtype, (size_t)c->rows * (size_t)c->out, 0);
    *x = random_array(device, c->dtype, (size_t)c->rows * (size_t)c->in, 0, 1.0f);
    *w = random_array(device, c->dtype, (size_t)c->out * (size_t)c->in, c->skew, 1.0f);
    *bias = random_array(device, c->dtype, (size_t)c->out, c->skew, 1.0f);
    use_workspace(device, &shape, &workspace);
    const struct linear_args args = {.x = values_of(x),
                                     .weight = values_of(w),
                                     .bias = c->bias ? values_of(bias) : NULL,
                                     .y = values_of(&y),
                                     .dtype = c->dtype,
                                     .out_dtype = c->out_dtype,
                                     .rows = c->rows,
                                     .in = c->in,
                                     .out = c->out};
    CHECK(device->ops->linear(device, &args, &error));
    pull(&y, "linear");
    drop_workspace(device, &workspace);
    return y;
}

static void check_linear_case(struct device *device, const struct linear_case *c)
{
    struct array x, w, bias, y = run_linear(device, c, &x, &w, &bias);
    char what[96];
    snprintf(what, sizeof what, "linear %d x %d -> %d%s skew %zu weights %s", c->rows, c->in, c->out,
             c->bias ? " +bias" : "", c->skew, dtype_name(c->dtype));
    for (int r = 0; r < c->rows; r++) {
        for (int o = 0; o < c->out; o++) {
            double sum = c->bias ? at(&bias, (size_t)o) : 0.0, magnitude = fabs(sum);
            for (int i = 0; i < c->in; i++) {
                double term = at(&x, (size_t)(r * c->in + i)) * at(&w, (size_t)(o * c->in + i));
                sum += term;
                magnitude += fabs(term);
            }
            check_value(&y, (size_t)(r * c->out + o), sum, 0x1p-24 * sqrt(c->in + 16.0) * magnitude, what);
        }
    }
    drop(&x);
    drop(&w);
    drop(&bias);
    drop(&y);
}

static void check_linear(struct device *device)
{
    static const int rows[] = {1, 2, 3, 4, 5, 7, 16, 17, 33};
    for (size_t t = 0; t < 3; t++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            for (int i = 0; i < 4; i++) {
                struct linear_case c = {.dtype = types[t], .out_dtype = i % 2 ? DTYPE_F32 : types[t], .rows = rows[r]};
                c.in = i == 0 ? random_int(1, 40) : random_int(1, 300);
                c.out = i == 0 ? random_int(1, 9) : random_int(1, 300);
                c.bias = random_int(0, 1);
                c.skew = i == 3 ? (size_t)random_int(1, 63) : 0;
                check_linear_case(device, &c);
            }
        }
    }
}

static void test_linear(void **state)
{
    (void)state;
    on_every_variant(check_linear);
}

/* More outputs than one block of converted weights, and several blocks per thread. */
static void check_linear_wide(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        for (int rows = 1; rows <= 18; rows += 17) {
            struct linear_case c = {types[t], DTYPE_F32, rows, 130, 777, 1, 2};
            check_linear_case(device, &c);
        }
    }
}

static void test_linear_wide(void **state)
{
    (void)state;
    on_every_variant(check_linear_wide);
}

/* A row's result is the same alone and among others, bit for bit, up to the rows that the own kernels serve. */
static void check_linear_rows(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        struct array x, w, bias, y[2];
        for (int i = 0; i < 2; i++) {
            struct linear_case c = {types[t], DTYPE_F32, i ? 13 : 1, 203, 61, 1, 0};
            random_state = 11;
            y[i] = run_linear(device, &c, &x, &w, &bias);
            const struct linear_args args = {.x = values_of(&x),
                                             .weight = values_of(&w),
                                             .y = values_of(&y[i]),
                                             .dtype = c.dtype,
                                             .out_dtype = c.out_dtype,
                                             .rows = c.rows,
                                             .in = c.in,
                                             .out = c.out};
            const struct workspace_shape shape = {c.dtype, c.dtype, c.rows, 1, 1, 1, 2, c.in, c.out, c.out};
            struct array workspace;
            for (int k = 0; k < c.rows * c.in; k++)
                dtype_store(c.dtype, host_of(&x), (size_t)k, (float)(k % c.in % 17 - 8) / 7.0f);
            for (int k = 0; k < c.out * c.in; k++)
                dtype_store(c.dtype, host_of(&w), (size_t)k, (float)(k % 23 - 11) / 9.0f);
            push(&x);
            push(&w);
            use_workspace(device, &shape, &workspace);
            CHECK(device->ops->linear(device, &args, &error));
            pull(&y[i], "linear");
            drop_workspace(device, &workspace);
            drop(&x);
            drop(&w);
            drop(&bias);
        }
        for (size_t k = 0; k < y[1].count; k++) {
            if (at(&y[1], k) != at(&y[0], k % 61))
                fail_msg("linear %s: row %zu, output %zu: %.9g among 13 rows, %.9g alone (%s)", dtype_name(types[t]),
                         k / 61, k % 61, at(&y[1], k), at(&y[0], k % 61), device->info.features);
        }
        drop(&y[0]);
        drop(&y[1]);
    }
}

static void test_linear_rows(void **state)
{
    (void)state;
    const char *name = getenv("KVLAB_TEST_DEVICE");
    if (name && strcmp(name, "cpu") != 0)
        skip();
    on_every_variant(check_linear_rows);
}

/* ---- embedding, norm, rope, swiglu, argmax */

static void check_embed(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        int32_t ids[9];
        int vocab = 50, hidden = random_int(1, 200);
        for (size_t i = 0; i < 9; i++)
            ids[i] = random_int(0, vocab - 1);
        struct array table = random_array(device, types[t], (size_t)(vocab * hidden), t * 3, 1.0f);
        struct array tokens = integer_array(device, ids, 9), out = make_array(device, DTYPE_F32, 9 * (size_t)hidden, 0);
        CHECK(device->ops->embed(device, values_of(&out), values_of(&table), types[t], values_of(&tokens), 9, hidden,
                                 &error));
        pull(&out, "embed");
        for (size_t i = 0; i < out.count; i++) {
            size_t h = (size_t)hidden;
            double expected = at(&table, (size_t)ids[i / h] * h + i % h);
            if (at(&out, i) != expected)
                fail_msg("embed %s [%zu]: %.9g instead of %.9g", dtype_name(types[t]), i, at(&out, i), expected);
        }
        drop(&table);
        drop(&tokens);
        drop(&out);
    }
}

static void test_embed(void **state)
{
    (void)state;
    on_every_variant(check_embed);
}

static void check_norm_case(struct device *device, enum dtype dtype, int rows, int hidden, int with_delta, int gather)
{
    int32_t which[40];
    size_t all = (size_t)rows + 3, h = (size_t)hidden;
    for (int i = 0; i < rows; i++)
        which[i] = gather ? (int32_t)(all - 1) - i : i;
    struct array residual = random_array(device, DTYPE_F32, all * h, 0, 3.0f), before = residual;
    struct array delta = random_array(device, DTYPE_F32, all * h, 0, 1.0f);
    struct array weight = random_array(device, dtype, h, 1, 1.0f), index = integer_array(device, which, (size_t)rows);
    struct array out = make_array(device, dtype, (size_t)rows * h, 0);
    before.host = malloc(residual.total_bytes);
    assert_non_null(before.host);
    memcpy(before.host, residual.host, residual.total_bytes);
    const struct rms_norm_args args = {.residual = values_of(&residual),
                                       .delta = with_delta ? values_of(&delta) : NULL,
                                       .gather = gather ? values_of(&index) : NULL,
                                       .weight = values_of(&weight),
                                       .out = values_of(&out),
                                       .dtype = dtype,
                                       .epsilon = 1e-6f,
                                       .rows = rows,
                                       .hidden = hidden};
    CHECK(device->ops->rms_norm(device, &args, &error));
    pull(&out, "rms_norm");
    pull(&residual, "rms_norm residual");
    for (size_t r = 0; r < (size_t)rows; r++) {
        double squares = 0.0;
        size_t from = (size_t)which[r] * h;
        for (size_t i = 0; i < h; i++) {
            double sum = at(&before, from + i) + (with_delta ? at(&delta, from + i) : 0.0);
            check_value(&residual, from + i, sum, 0.0, "rms_norm residual");
            squares += sum * sum;
        }
        for (size_t i = 0; i < h; i++) {
            double sum = at(&before, from + i) + (with_delta ? at(&delta, from + i) : 0.0);
            double expected = sum / sqrt(squares / hidden + 1e-6) * at(&weight, i);
            check_value(&out, r * h + i, expected, 0x1p-24 * (sqrt(hidden) + 8) * (fabs(expected) + 1e-3), "rms_norm");
        }
    }
    free(before.host);
    drop(&residual);
    drop(&delta);
    drop(&weight);
    drop(&index);
    drop(&out);
}

static void check_norm(struct device *device)
{
    static const int rows[] = {1, 16, 33};
    for (size_t t = 0; t < 3; t++)
        for (size_t r = 0; r < 3; r++)
            for (int i = 0; i < 4; i++)
                check_norm_case(device, types[t], rows[r], random_int(1, 400), i % 2, i / 2);
}

static void test_norm(void **state)
{
    (void)state;
    on_every_variant(check_norm);
}

static void check_swiglu(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        for (int rows = 1; rows <= 33; rows += 16) {
            int width = random_int(1, 500);
            size_t count = (size_t)(rows * width);
            struct array gate = random_array(device, DTYPE_F32, count, 0, 20.0f);
            struct array up = random_array(device, DTYPE_F32, count, 0, 2.0f),
                         out = make_array(device, types[t], count, 0);
            dtype_store(DTYPE_F32, host_of(&gate), 0, -500.0f);
            dtype_store(DTYPE_F32, host_of(&gate), count - 1, 500.0f);
            push(&gate);
            CHECK(device->ops->swiglu(device, values_of(&out), values_of(&gate), values_of(&up), types[t], rows, width,
                                      &error));
            pull(&out, "swiglu");
            for (size_t i = 0; i < count; i++) {
                double g = at(&gate, i), expected = g / (1.0 + exp(-g)) * at(&up, i);
                /* g log2(e) is rounded before the power is taken: 2^-24 of it, relative */
                check_value(&out, i, expected, 0x1p-24 * (8 + 2 * fabs(g)) * fabs(expected) + 1e-30, "swiglu");
            }
            drop(&gate);
            drop(&up);
            drop(&out);
        }
    }
}

static void test_swiglu(void **state)
{
    (void)state;
    on_every_variant(check_swiglu);
}

static void check_argmax(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        for (int i = 0; i < 12; i++) {
            int rows = i % 4 + 1, vocab = i == 0 ? 1 : random_int(1, 3000);
            size_t v = (size_t)vocab;
            struct array logits = random_array(device, types[t], (size_t)rows * v, 0, 8.0f);
            struct array index = make_array(device, DTYPE_F32, (size_t)rows, 0);
            size_t first = (size_t)random_int(0, vocab - 1), second = (size_t)random_int(0, vocab - 1);
            dtype_store(types[t], host_of(&logits), first, 9.0f); /* a tie in row 0: the first one counts */
            dtype_store(types[t], host_of(&logits), second, 9.0f);
            push(&logits);
            CHECK(device->ops->argmax(device, values_of(&index), values_of(&logits), types[t], rows, vocab, &error));
            pull(&index, "argmax");
            for (size_t r = 0; r < (size_t)rows; r++) {
                size_t best = 0;
                for (size_t k = 1; k < v; k++)
                    best = at(&logits, r * v + k) > at(&logits, r * v + best) ? k : best;
                int32_t got;
                memcpy(&got, host_of(&index) + r * 4, 4);
                if (got != (int32_t)best)
                    fail_msg("argmax %s row %zu of %d x %d: %d instead of %zu (%s)", dtype_name(types[t]), r, rows,
                             vocab, got, best, device->info.features);
            }
            drop(&logits);
            drop(&index);
        }
    }
}

static void test_argmax(void **state)
{
    (void)state;
    on_every_variant(check_argmax);
}

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
    struct array a = make_array(device, DTYPE_F32, (size_t)count * sizeof(void *) / 4, 0);
    for (int i = 0; i < count; i++) {
        void *pointer = values_of(&arrays[i]);
        memcpy(host_of(&a) + (size_t)i * sizeof pointer, &pointer, sizeof pointer);
    }
    push(&a);
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
    g->positions_d = integer_array(device, g->positions, rows);
    g->row_sequence_d = integer_array(device, g->row_sequence, rows);
    g->tokens_d = integer_array(device, g->positions, rows);
    g->first_row_d = integer_array(device, g->first_row, sequences + 1);
    g->table_d = integer_array(device, g->table, sequences * (size_t)g->blocks_per_sequence);
    g->block_size_d = integer_array(device, g->block_size, sequences);
    for (int s = 0; s < c->sequences; s++) {
        int blocks = 2 * ((g->contexts[s] + g->block_size[s] - 1) / g->block_size[s]);
        size_t count = (size_t)(blocks * c->kv_heads * g->block_size[s] * c->head_dim);
        g->k[s] = random_array(device, c->kv_dtype, count, 0, 1.0f);
        g->v[s] = random_array(device, c->kv_dtype, count, 0, 1.0f);
    }
    g->k_pointers = pointer_array(device, g->k, c->sequences);
    g->v_pointers = pointer_array(device, g->v, c->sequences);
    g->batch = (struct device_batch){.rows = g->total_rows,
                                     .sequences = c->sequences,
                                     .tokens = values_of(&g->tokens_d),
                                     .positions = values_of(&g->positions_d),
                                     .row_sequence = values_of(&g->row_sequence_d),
                                     .first_row = values_of(&g->first_row_d),
                                     .block_table = values_of(&g->table_d),
                                     .block_size = values_of(&g->block_size_d),
                                     .blocks_per_sequence = g->blocks_per_sequence,
                                     .host_first_row = g->first_row,
                                     .host_context = g->contexts};
    g->kv = (struct device_kv){c->kv_dtype, values_of(&g->k_pointers), values_of(&g->v_pointers)};
}

static void drop_ragged(struct ragged *g)
{
    struct array *arrays[] = {&g->tokens_d, &g->positions_d,  &g->row_sequence_d, &g->first_row_d,
                              &g->table_d,  &g->block_size_d, &g->k_pointers,     &g->v_pointers};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        drop(arrays[i]);
    for (int s = 0; s < g->shape.sequences; s++) {
        drop(&g->k[s]);
        drop(&g->v[s]);
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
                    memcpy(host_of(&copy) + from, host_of(tensors[t]) + from, (size_t)g->shape.head_dim * size);
                }
            }
            free(tensors[t]->host);
            *tensors[t] = copy;
            push(tensors[t]);
        }
    }
}

static struct array run_attention(struct device *device, struct ragged *g, const struct array *q)
{
    const struct ragged_case *c = &g->shape;
    const struct workspace_shape shape = {
        c->out_dtype, c->kv_dtype, g->total_rows, c->sequences, c->heads, c->kv_heads, c->head_dim, 8, 8, 8};
    struct array workspace, out = make_array(device, c->out_dtype, q->count, 0);
    use_workspace(device, &shape, &workspace);
    const struct attention_args args = {.batch = &g->batch,
                                        .kv = g->kv,
                                        .q = values_of(q),
                                        .out = values_of(&out),
                                        .out_dtype = c->out_dtype,
                                        .heads = c->heads,
                                        .kv_heads = c->kv_heads,
                                        .head_dim = c->head_dim,
                                        .scale = (float)(1.0 / sqrt(c->head_dim)),
                                        .window = c->window};
    CHECK(device->ops->attention(device, &args, &error));
    pull(&out, "attention");
    drop_workspace(device, &workspace);
    return out;
}

/* softmax(q k^T / sqrt(head_dim)) v of one row and head. The score is off by at most about 2^-24 (sqrt(head_dim) + 4)
   times its magnitude, so each weight, relatively, by that and the power's 3e-7, numerator and denominator alike. */
static void check_attention_row(const struct ragged *g, const struct array *q, const struct array *out, int row,
                                int head, const char *what)
{
    const struct ragged_case *c = &g->shape;
    int s = g->row_sequence[row], end = g->positions[row] + 1, kv_head = head / (c->heads / c->kv_heads);
    int first = c->window > 0 && end > c->window ? end - c->window : 0;
    size_t at_q = (size_t)((row * c->heads + head) * c->head_dim);
    double scale = 1.0 / sqrt(c->head_dim), largest = -INFINITY, sum = 0.0, magnitude = 0.0, score[2048], o[256] = {0};
    assert_true(end <= 2048 && c->head_dim <= 256);
    for (int p = first; p < end; p++) {
        size_t k = kv_index(g, s, p, kv_head);
        double dot = 0.0, terms = 0.0;
        for (size_t d = 0; d < (size_t)c->head_dim; d++) {
            dot += at(q, at_q + d) * at(&g->k[s], k + d);
            terms += fabs(at(q, at_q + d) * at(&g->k[s], k + d));
        }
        score[p] = dot * scale;
        magnitude = fmax(magnitude, terms * scale);
        largest = fmax(largest, score[p]);
    }
    for (int p = first; p < end; p++) {
        double weight = exp(score[p] - largest);
        size_t v = kv_index(g, s, p, kv_head);
        sum += weight;
        for (size_t d = 0; d < (size_t)c->head_dim; d++)
            o[d] += weight * at(&g->v[s], v + d);
    }
    double slack = 2 * (0x1p-24 * (sqrt(c->head_dim) + 4) * magnitude + 3e-7) + 0x1p-24 * sqrt(end - first + 16.0);
    for (size_t d = 0; d < (size_t)c->head_dim; d++)
        check_value(out, at_q + d, o[d] / sum, slack, what);
}

static void check_attention_case(struct device *device, const struct ragged_case *c)
{
    struct ragged g;
    char what[160];
    make_ragged(&g, device, c);
    poison_unseen(&g);
    struct array q =
        random_array(device, DTYPE_F32, (size_t)(g.total_rows * c->heads * c->head_dim), 0, sqrtf((float)c->head_dim));
    struct array out = run_attention(device, &g, &q);
    snprintf(what, sizeof what, "attention heads %d/%d dim %d window %d block %d kv %s rows %d,%d past %d,%d", c->heads,
             c->kv_heads, c->head_dim, c->window, c->block_size, dtype_name(c->kv_dtype), c->rows[0], c->rows[1],
             c->past[0], c->past[1]);
    for (int r = 0; r < g.total_rows; r++)
        for (int h = 0; h < c->heads; h++)
            check_attention_row(&g, &q, &out, r, h, what);
    drop(&q);
    drop(&out);
    drop_ragged(&g);
}

static struct ragged_case random_case(int i)
{
    static const int dims[] = {64, 80, 96, 128, 256, 2, 50}, blocks[] = {1, 16, 7, 0};
    struct ragged_case c = {.kv_dtype = types[i % 3], .out_dtype = types[random_int(0, 2)]};
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
            c.kv_dtype = types[t];
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
    struct array q = make_array(device, DTYPE_F32, 4 * 64, 0);
    memset(host_of(&q), 0, q.bytes);
    memset(host_of(&g.k[0]), 0, g.k[0].bytes);
    for (size_t h = 0; h < 4; h++) {
        int chosen = 13 + 20 * (int)(h / 2);
        dtype_store(DTYPE_F32, host_of(&q), h * 64 + 5, 1000.0f);
        dtype_store(c.kv_dtype, host_of(&g.k[0]), kv_index(&g, 0, chosen, (int)(h / 2)) + 5, 1.0f);
    }
    push(&q);
    push(&g.k[0]);
    struct array out = run_attention(device, &g, &q);
    for (size_t h = 0; h < 4; h++)
        for (size_t d = 0; d < 64; d++)
            check_value(&out, h * 64 + d, at(&g.v[0], kv_index(&g, 0, 13 + 20 * (int)(h / 2), (int)(h / 2)) + d), 1e-6,
                        "one-hot attention");
    drop(&q);
    drop(&out);
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
    struct array frequency = make_array(device, DTYPE_F32, half, 0),
                 table = make_array(device, DTYPE_F32, rows * dim, 0);
    for (size_t i = 0; i < half; i++)
        dtype_store(DTYPE_F32, host_of(&frequency), i, powf(10000.0f, -(float)i / (float)half));
    push(&frequency);
    struct array q = random_array(device, DTYPE_F32, rows * heads * dim, 0, 1.0f), before = q;
    struct array k = random_array(device, DTYPE_F32, rows * kv_heads * dim, 0, 1.0f);
    struct array v = random_array(device, DTYPE_F32, rows * kv_heads * dim, 0, 1.0f);
    before.host = malloc(q.total_bytes);
    assert_non_null(before.host);
    memcpy(before.host, q.host, q.total_bytes);
    CHECK(device->ops->rope_table(device, values_of(&table), values_of(&g.positions_d), values_of(&frequency),
                                  (int)rows, (int)half, &error));
    const struct rope_store_args args = {.batch = &g.batch,
                                         .kv = g.kv,
                                         .q = values_of(&q),
                                         .k = values_of(&k),
                                         .v = values_of(&v),
                                         .cos_sin = values_of(&table),
                                         .heads = c->heads,
                                         .kv_heads = c->kv_heads,
                                         .head_dim = c->head_dim};
    CHECK(device->ops->rope_store(device, &args, &error));
    pull(&table, "rope_table");
    pull(&q, "rope_store q");
    for (int s = 0; s < c->sequences; s++) {
        pull(&g.k[s], "rope_store k");
        pull(&g.v[s], "rope_store v");
    }
    for (size_t r = 0; r < rows; r++) {
        int s = g.row_sequence[r], position = g.positions[r];
        for (size_t i = 0; i < dim; i++) {
            /* The angle itself is f32, as in the published reference. */
            float angle = (float)position * (float)at(&frequency, i % half);
            double cosine = cos((double)angle), sine = sin((double)angle) * (i < half ? -1.0 : 1.0);
            size_t pair = i < half ? i + half : i - half;
            check_value(&table, (r * half + i % half) * 2, cosine, 0x1p-23, "rope_table cos");
            check_value(&table, (r * half + i % half) * 2 + 1, sin((double)angle), 0x1p-23, "rope_table sin");
            for (size_t h = 0; h < heads; h++) {
                size_t base = (r * heads + h) * dim;
                check_value(&q, base + i, at(&before, base + i) * cosine + at(&before, base + pair) * sine, 0x1p-21,
                            "rope q");
            }
            for (size_t h = 0; h < kv_heads; h++) {
                size_t base = (r * kv_heads + h) * dim, slot = kv_index(&g, s, position, (int)h);
                check_value(&g.k[s], slot + i, at(&k, base + i) * cosine + at(&k, base + pair) * sine, 0x1p-21,
                            "rope k");
                check_value(&g.v[s], slot + i, at(&v, base + i), 0.0, "rope v");
            }
        }
    }
    free(before.host);
    struct array *arrays[] = {&frequency, &table, &q, &k, &v};
    for (size_t i = 0; i < 5; i++)
        drop(arrays[i]);
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

/* ---- one thread against two, bit for bit (up to the rows where the matrix library takes over) */

static void test_threads(void **state)
{
    (void)state;
    const struct ragged_case attention[] = {
        {.heads = 7, .kv_heads = 1, .head_dim = 64, .sequences = 3, .rows = {1, 40, 1}, .past = {1400, 100, 3}},
        {.heads = 4, .kv_heads = 4, .head_dim = 128, .sequences = 2, .rows = {1, 33}, .past = {600, 0}, .window = 200},
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        struct device *device[2] = {open_variant(i, 1), open_variant(i, 2)};
        if (!device[0])
            continue;
        for (size_t t = 0; t < 3; t++) {
            for (size_t k = 0; k < 2; k++) {
                struct array x, w, bias, y[2], out[2];
                for (int d = 0; d < 2; d++) {
                    struct linear_case linear = {types[t], types[t], k ? 16 : 1, 517, 391, 1, 3};
                    random_state = 3;
                    y[d] = run_linear(device[d], &linear, &x, &w, &bias);
                    struct ragged_case c = attention[k];
                    struct ragged g;
                    c.kv_dtype = types[t];
                    make_ragged(&g, device[d], &c);
                    struct array q =
                        random_array(device[d], DTYPE_F32, (size_t)(g.total_rows * c.heads * c.head_dim), 0, 1.0f);
                    out[d] = run_attention(device[d], &g, &q);
                    drop(&q);
                    drop_ragged(&g);
                    drop(&x);
                    drop(&w);
                    drop(&bias);
                }
                check_same(&y[0], &y[1], "linear");
                check_same(&out[0], &out[1], "attention");
                for (int d = 0; d < 2; d++) {
                    drop(&y[d]);
                    drop(&out[d]);
                }
            }
        }
        device[0]->ops->close(device[0]);
        device[1]->ops->close(device[1]);
    }
}

/* ---- filling, reading, copying, memory */

static void test_fill_random(void **state)
{
    (void)state;
    enum { COUNT = 600001 };
    for (size_t t = 0; t < 3; t++) {
        struct array reference = {0};
        for (size_t i = 0; i < 2 * sizeof variants / sizeof variants[0]; i++) {
            struct device *device = open_variant(i / 2, (int)(i % 2) + 1);
            if (!device)
                continue;
            struct array a = make_array(device, types[t], COUNT, 0), b = make_array(device, types[t], COUNT, 0);
            CHECK(device->ops->fill_random(device, values_of(&a), types[t], COUNT, 42, 0.25f, &error));
            CHECK(device->ops->fill_random(device, values_of(&b), types[t], COUNT, 43, 0.25f, &error));
            pull(&a, "fill_random");
            pull(&b, "fill_random");
            double sum = 0.0, squares = 0.0, crossed = 0.0, lagged = 0.0, most = 0.0;
            for (size_t k = 0; k < COUNT; k++) {
                double value = at(&a, k);
                sum += value;
                squares += value * value;
                crossed += value * at(&b, k);
                lagged += k ? value * at(&a, k - 1) : 0.0;
                most = fmax(most, fabs(value));
            }
            /* Uniform on [-s, s]: variance s^2 / 3; means of n independent ones within 5 standard deviations. */
            double variance = 0.25 * 0.25 / 3, bound = 5 / sqrt(COUNT);
            if (fabs(sum / COUNT) > bound * sqrt(variance) || fabs(squares / COUNT / variance - 1) > bound ||
                fabs(crossed / COUNT) > bound * variance || fabs(lagged / COUNT) > bound * variance || most > 0.25 ||
                most < 0.249)
                fail_msg(
                    "fill_random %s: mean %g, variance %g, with another seed %g, with its neighbour %g, largest %g",
                    dtype_name(types[t]), sum / COUNT, squares / COUNT, crossed / COUNT, lagged / COUNT, most);
            if (!reference.host) {
                reference = a;
                reference.host = malloc(a.total_bytes);
                assert_non_null(reference.host);
                memcpy(reference.host, a.host, a.total_bytes);
            } else if (memcmp(reference.host, a.host, a.total_bytes) != 0) {
                fail_msg("fill_random %s differs with variant or threads: %s", dtype_name(types[t]),
                         device->info.features);
            }
            drop(&a);
            drop(&b);
            device->ops->close(device);
        }
        free(reference.host);
    }
}

static void test_fill_random_refuses_zeros(void **state)
{
    (void)state;
    struct device *device = open_variant(0, 1);
    struct error error;
    float values[4];
    assert_int_equal(device->ops->fill_random(device, values, DTYPE_F32, 4, 1, 0.0f, &error), STATUS_INPUT);
    device->ops->close(device);
}

static void check_fill_and_read(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        struct array a = make_array(device, types[t], 70001, 0);
        CHECK(device->ops->fill_value(device, values_of(&a), types[t], a.count, -1.5f, &error));
        pull(&a, "fill_value");
        for (size_t i = 0; i < a.count; i++)
            assert_true(at(&a, i) == -1.5);
        drop(&a);
    }
    static const size_t sizes[] = {4096, 12288, 1 << 20, 36864};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t expected = 0, got = 0;
        struct array a = random_array(device, DTYPE_F32, sizes[i] / 4, 0, 1.0f);
        for (size_t k = 0; k < sizes[i]; k += 8) {
            uint64_t word;
            memcpy(&word, host_of(&a) + k, sizeof word);
            expected += word;
        }
        CHECK(device->ops->read_bytes(device, values_of(&a), sizes[i], &got, &error));
        const char *name = getenv("KVLAB_TEST_DEVICE"); /* another device may sum otherwise */
        if (!name || strcmp(name, "cpu") == 0)
            assert_int_equal(got, expected);
        drop(&a);
    }
}

static void test_fill_and_read(void **state)
{
    (void)state;
    on_every_variant(check_fill_and_read);
}

static void test_memory(void **state)
{
    (void)state;
    struct device *device = open_variant(0, 2);
    struct device_memory before, after;
    struct error refusal;
    void *memory;
    const size_t bytes = (size_t)24 << 20;
    CHECK(device->ops->memory(device, &before, &error));
    assert_true(before.free_bytes > 0 && before.free_bytes <= device->info.total_bytes);
    CHECK(device->ops->alloc(device, bytes, &memory, &error));
    assert_int_equal((uintptr_t)memory % device->info.page_bytes, 0);
    CHECK(device->ops->fill_value(device, memory, DTYPE_F32, bytes / 4, 1.0f, &error));
    CHECK(device->ops->memory(device, &after, &error));
    if (strcmp(device->info.kind, "cpu") == 0) {
        assert_true(after.process_known);
        int64_t growth = (int64_t)(after.process_bytes - before.process_bytes) - (int64_t)bytes;
        if (growth < 0 || growth > 4 << 20) /* a thread's stack and heap on top */
            fail_msg("touching %zu bytes made the process grow by %lld more", bytes, (long long)growth);
    }
    device->ops->release(device, memory, bytes);
    assert_int_equal(device->ops->alloc(device, (size_t)1 << 50, &memory, &refusal), STATUS_DEVICE);
    assert_non_null(strstr(refusal.message, "1125899906842624"));
    assert_int_equal(device->ops->alloc(device, SIZE_MAX - 5, &memory, &refusal), STATUS_DEVICE);
    assert_null(memory);
    device->ops->close(device);
}

static void test_events(void **state)
{
    (void)state;
    struct device *device = open_variant(0, 1);
    struct device_event *start, *end;
    double ms = -1.0;
    CHECK(device->ops->event_create(device, &start, &error));
    CHECK(device->ops->event_create(device, &end, &error));
    CHECK(device->ops->event_record(device, start, &error));
    CHECK(device->ops->event_record(device, end, &error));
    CHECK(device->ops->event_elapsed_ms(device, start, end, &ms, &error));
    assert_true(ms >= 0.0);
    device->ops->event_destroy(device, start);
    device->ops->event_destroy(device, end);
    device->ops->close(device);
}

static void test_open(void **state)
{
    (void)state;
    static const char *const unknown[] = {
        "", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cuda:99999999999"};
    struct device *device;
    struct error error;
    unsetenv("KVLAB_CPU");
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_int_equal(device_open(unknown[i], 0, &device, &error), STATUS_INPUT);
        assert_null(device);
    }
    assert_int_equal(device_open(NULL, 0, &device, &error), STATUS_OK);
    assert_non_null(strstr("cpu cuda", device->info.kind));
    device->ops->close(device);
    setenv("KVLAB_CPU", "sse9", 1);
    assert_int_equal(device_open("cpu", 0, &device, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "sse9"));
    unsetenv("KVLAB_CPU");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_fill_random),
        cmocka_unit_test(test_fill_random_refuses_zeros),
        cmocka_unit_test(test_fill_and_read),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_wide),
        cmocka_unit_test(test_linear_rows),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_long),
        cmocka_unit_test(test_attention_one_hot),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
