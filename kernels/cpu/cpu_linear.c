/* y = x weight^T + bias. Up to CPU_FEW_ROWS rows the time is that of reading the weights: own kernels read each weight
   once, in f32 sums whose order depends on `in` alone, so a row's result is the same alone, in a batch, and with any
   number of threads. More rows go to the matrix library, which orders its sums as it likes.
   Measured 2026-11-30, with kernels slower than today's, own time / oneDNN's: 0.5 to 0.6 at one row, 0.5 to 0.9 at 8,
   0.6 to 1.0 at 16, f32 and bf16. */
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <omp.h>

enum {
    BLOCK_OUT = 16,    /* few rows: outputs of one run that are finished together: a cache line of f32 */
    CONVERT_OUT = 256, /* many rows, type unknown to the matrix library: weight rows converted to f32 at a time */
};

/* Bias, conversion and store of y[rows][count], f32 with rows `stride` apart, to columns [first, first + count). */
static void finish(const struct cpu_hot *hot, const struct linear_args *args, float *values, size_t stride,
                   size_t row_begin, size_t row_end, size_t first, size_t count)
{
    float bias[CONVERT_OUT];
    size_t out = (size_t)args->out;
    if (args->bias)
        hot->to_f32[args->dtype](bias, (const char *)args->bias + first * dtype_size(args->dtype), count);
    for (size_t r = row_begin; r < row_end; r++) {
        float *row = values + r * stride;
        for (size_t i = 0; args->bias && i < count; i++)
            row[i] += bias[i];
        hot->from_f32[args->out_dtype]((char *)args->y + (r * out + first) * dtype_size(args->out_dtype), row, count);
    }
}

/* What dot() gives for `count` outputs of each run, in order, with bias, to y. */
static void finish_runs(const struct cpu_hot *hot, const struct linear_args *args, const float *products,
                        const size_t *first, size_t count)
{
    float values[CPU_FEW_ROWS][BLOCK_OUT];
    for (size_t j = 0; j < HOT_DOT_OUT; j++) {
        for (size_t r = 0; r < (size_t)args->rows; r++)
            for (size_t o = 0; o < count; o++)
                values[r][o] = products[(r * BLOCK_OUT + o) * HOT_DOT_OUT + j];
        finish(hot, args, values[0], BLOCK_OUT, 0, (size_t)args->rows, first[j], count);
    }
}

/* Rows [begin, end) of the weight, one thread's share, as HOT_DOT_OUT runs that are read side by side. Where the share
   does not divide evenly, the last runs are moved up to end with it and compute some rows twice. */
static void few_rows_share(const struct cpu_hot *hot, const struct linear_args *args, const void *x, size_t begin,
                           size_t end)
{
    float products[CPU_FEW_ROWS * BLOCK_OUT * HOT_DOT_OUT];
    const size_t row_bytes = (size_t)args->in * dtype_size(args->dtype);
    const size_t run = (end - begin + HOT_DOT_OUT - 1) / HOT_DOT_OUT;
    struct hot_dot dot = {
        .x = x, .y = products, .y_stride = (size_t)BLOCK_OUT * HOT_DOT_OUT, .rows = args->rows, .in = args->in};
    for (size_t block = 0; block < run; block += BLOCK_OUT) {
        size_t count = run - block < BLOCK_OUT ? run - block : BLOCK_OUT, first[HOT_DOT_OUT];
        for (size_t j = 0; j < HOT_DOT_OUT; j++) {
            first[j] = begin + j * run + block;
            first[j] = first[j] + count <= end ? first[j] : end - count;
            dot.weight[j] = (const char *)args->weight + first[j] * row_bytes;
        }
        dot.out = (int)count;
        hot->dot[args->dtype](&dot);
        finish_runs(hot, args, products, first, count);
    }
}

/* x as the kernel wants it: f32 for all but the bf16 dot products. x is small and stays in the caches. */
static const void *few_rows_x(struct cpu_device *cpu, const struct linear_args *args)
{
    if (cpu->hot->dot_x[args->dtype] == args->dtype)
        return args->x;
    size_t count = (size_t)args->rows * (size_t)args->in;
    float *x = (float *)(void *)cpu->workspace;
    assert(count * sizeof *x <= cpu->workspace_bytes);
    cpu->hot->to_f32[args->dtype](x, args->x, count);
    return x;
}

/* Bytes moved: out * in * size(dtype), the weights, once. */
static void few_rows(struct cpu_device *cpu, const struct linear_args *args)
{
    const void *x = few_rows_x(cpu, args);
    const size_t unit = HOT_DOT_OUT * BLOCK_OUT, out = (size_t)args->out, units = (out + unit - 1) / unit;
    const size_t threads = (size_t)cpu->threads;
#pragma omp parallel for schedule(static) num_threads(cpu->threads) if (units > 1)
    for (size_t t = 0; t < threads; t++) {
        size_t begin = units * t / threads * unit, end = units * (t + 1) / threads * unit;
        end = end < out ? end : out;
        if (begin < end)
            few_rows_share(cpu->hot, args, x, begin, end);
    }
}

/* rows * in * 4 for x, CONVERT_OUT * in * 4 for weights, rows * CONVERT_OUT * 4 for products, each on a cache line. */
struct convert_scratch {
    float *x, *weight, *y;
    char *rest; /* for the matrix library */
};
static struct convert_scratch convert_layout(char *memory, size_t rows, size_t in)
{
    char *x = (char *)cpu_round_up((size_t)memory, HOT_ALIGN_BYTES);
    char *weight = x + cpu_round_up(rows * in * sizeof(float), HOT_ALIGN_BYTES);
    char *y = weight + cpu_round_up(CONVERT_OUT * in * sizeof(float), HOT_ALIGN_BYTES);
    char *rest = y + cpu_round_up(rows * CONVERT_OUT * sizeof(float), HOT_ALIGN_BYTES);
    return (struct convert_scratch){(float *)(void *)x, (float *)(void *)weight, (float *)(void *)y, rest};
}

static void convert_rows(struct cpu_device *cpu, enum dtype dtype, float *to, const void *from, size_t rows, size_t in)
{
#pragma omp parallel for schedule(static) num_threads(cpu->threads)
    for (long r = 0; r < (long)rows; r++)
        cpu->hot->to_f32[dtype](to + (size_t)r * in, (const char *)from + (size_t)r * in * dtype_size(dtype), in);
}

/* Many rows of a type that the library does not multiply: tiles of weights become f32 (bf16 would lose f16's last
   bits), the library multiplies in f32. */
static enum status many_rows_converted(struct cpu_device *cpu, const struct linear_args *args, struct error *error)
{
    size_t rows = (size_t)args->rows, in = (size_t)args->in, out = (size_t)args->out;
    struct convert_scratch scratch = convert_layout(cpu->workspace, rows, in);
    char *end = cpu->workspace + cpu->workspace_bytes;
    assert(cpu->workspace && scratch.rest <= end);
    convert_rows(cpu, args->dtype, scratch.x, args->x, rows, in);
    for (size_t first = 0; first < out; first += CONVERT_OUT) {
        size_t count = out - first < CONVERT_OUT ? out - first : CONVERT_OUT;
        convert_rows(cpu, args->dtype, scratch.weight,
                     (const char *)args->weight + first * in * dtype_size(args->dtype), count, in);
        struct cpu_product product = {.dtype = DTYPE_F32,
                                      .out_dtype = DTYPE_F32,
                                      .rows = args->rows,
                                      .in = args->in,
                                      .out = (int)count,
                                      .y_stride = CONVERT_OUT};
        enum status status = cpu_matrix_multiply(cpu->matrix, &product, scratch.x, scratch.weight, NULL, scratch.y,
                                                 scratch.rest, (size_t)(end - scratch.rest), error);
        if (status != STATUS_OK)
            return status;
#pragma omp parallel for schedule(static) num_threads(cpu->threads)
        for (long r = 0; r < (long)rows; r++)
            finish(cpu->hot, args, scratch.y, CONVERT_OUT, (size_t)r, (size_t)r + 1, first, count);
    }
    return STATUS_OK;
}

static struct cpu_product product_of(const struct linear_args *args)
{
    return (struct cpu_product){.dtype = args->dtype,
                                .out_dtype = args->out_dtype,
                                .rows = args->rows,
                                .in = args->in,
                                .out = args->out,
                                .y_stride = args->out,
                                .has_bias = args->bias != NULL};
}

enum status cpu_linear(struct device *device, const struct linear_args *args, struct error *error)
{
    struct cpu_device *cpu = cpu_of(device);
    assert(args->out_dtype == DTYPE_F32 || args->out_dtype == args->dtype);
    if (args->rows <= CPU_FEW_ROWS) {
        few_rows(cpu, args);
        return STATUS_OK;
    }
    omp_set_num_threads(cpu->threads); /* the library asks OpenMP how many to use */
    if (!cpu_matrix_supports(cpu->hot, args->dtype))
        return many_rows_converted(cpu, args, error);
    struct cpu_product product = product_of(args);
    return cpu_matrix_multiply(cpu->matrix, &product, args->x, args->weight, args->bias, args->y, cpu->workspace,
                               cpu->workspace_bytes, error);
}

/* What the library wants for one product at `rows` rows, as cpu_linear() or many_rows_converted() will ask for it. */
static size_t product_scratch(struct cpu_device *cpu, enum dtype dtype, int rows, int in, int out, bool converted)
{
    size_t most = 0;
    for (int same = 0; same < (converted ? 1 : 2); same++) {
        struct cpu_product product = {.dtype = dtype,
                                      .out_dtype = same ? dtype : DTYPE_F32,
                                      .rows = rows,
                                      .in = in,
                                      .out = converted && out > CONVERT_OUT ? CONVERT_OUT : out,
                                      .y_stride = converted ? CONVERT_OUT : out};
        size_t scratch = cpu_matrix_scratch(cpu->matrix, &product);
        most = scratch > most ? scratch : most;
    }
    return most;
}

/* The same for all products of a model of this shape, at any number of rows up to shape->rows. The scratch depends on
   the rows through the library's blocking, most at powers of two (asked for every number of rows from 17 to 600, on the
   shapes of Qwen2.5 and odd ones: 132 KB to 264 KB for 896 x 4864 in bf16, most at 256), so those and the largest are
   asked for here: about 10 us a query. */
static size_t library_scratch(struct cpu_device *cpu, const struct workspace_shape *shape, enum dtype dtype,
                              bool converted)
{
    const int hidden = shape->hidden, q = shape->heads * shape->head_dim, kv = shape->kv_heads * shape->head_dim;
    const int products[][2] = {{hidden, q},
                               {hidden, kv},
                               {q, hidden},
                               {hidden, shape->intermediate},
                               {hidden, shape->vocab},
                               {shape->intermediate, hidden}};
    size_t most = 0;
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
        for (int rows = 2 * CPU_FEW_ROWS;; rows *= 2) {
            int asked = rows < shape->rows ? rows : shape->rows;
            size_t scratch = product_scratch(cpu, dtype, asked, products[i][0], products[i][1], converted);
            most = scratch > most ? scratch : most;
            if (asked == shape->rows)
                break;
        }
    return most;
}

size_t cpu_linear_workspace(struct cpu_device *cpu, const struct workspace_shape *shape)
{
    size_t in = (size_t)shape->hidden, q = (size_t)shape->heads * (size_t)shape->head_dim;
    size_t rows = (size_t)shape->rows;
    in = (size_t)shape->intermediate > in ? (size_t)shape->intermediate : in;
    in = q > in ? q : in;
    size_t few = CPU_FEW_ROWS * in * sizeof(float);
    if (shape->rows <= CPU_FEW_ROWS)
        return few;
    omp_set_num_threads(cpu->threads);
    size_t many;
    if (cpu_matrix_supports(cpu->hot, shape->dtype)) {
        many = library_scratch(cpu, shape, shape->dtype, false);
    } else {
        struct convert_scratch scratch = convert_layout(NULL, rows, in);
        many = (size_t)scratch.rest + HOT_ALIGN_BYTES + library_scratch(cpu, shape, DTYPE_F32, true);
    }
    return many > few ? many : few;
}
