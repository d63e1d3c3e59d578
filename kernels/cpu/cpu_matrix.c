/* Matrix products by oneDNN (oneapi-src.github.io/oneDNN, C API 2.x). Weights stay as they are, row-major [out][in]:
   the library sees them as an [in][out] matrix with strides (1, in). Primitives are made the first time a shape is
   seen, which allocates (about 0.3 ms), and kept; nothing else here allocates.

   Measured 2026-11-30 at 512 rows on the shapes of Qwen2.5-0.5B and 1.5B, one core with AVX-512: f32 oneDNN 2.6.3 /
   OpenBLAS 0.3.21 1.00 to 1.07 (228 and 225 GFLOP/s); bf16 oneDNN / f32 oneDNN 1.9 to 2.0, and OpenBLAS has none: one
   library. */
#include "kernels/cpu/cpu.h"

#include <oneapi/dnnl/dnnl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PRIMITIVES = 256, ARGUMENTS = 5 };

struct primitive {
    struct cpu_product product;
    uint64_t last_use;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[ARGUMENTS]; /* x, weight, y, scratch, bias */
    size_t scratch_bytes;
};

struct cpu_matrix {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    uint64_t uses;
    struct primitive primitives[MAX_PRIMITIVES];
    size_t count;
};

void cpu_matrix_name(char *name, size_t size)
{
    const dnnl_version_t *version = dnnl_version();
    snprintf(name, size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}

/* bf16 products need AVX-512; below, the library would fall back to a slow reference. */
bool cpu_matrix_supports(const struct cpu_hot *hot, enum dtype dtype)
{
    return dtype == DTYPE_F32 || (dtype == DTYPE_BF16 && (hot == hot_avx512 || hot == hot_avx512bf16));
}

struct cpu_matrix *cpu_matrix_new(void)
{
    struct cpu_matrix *matrix = calloc(1, sizeof *matrix);
    if (!matrix)
        return NULL;
    if (dnnl_engine_create(&matrix->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&matrix->stream, matrix->engine, dnnl_stream_default_flags) != dnnl_success) {
        cpu_matrix_free(matrix);
        return NULL;
    }
    return matrix;
}

static void primitive_free(struct primitive *p)
{
    for (size_t i = 0; i < ARGUMENTS; i++) {
        if (p->memory[i])
            dnnl_memory_destroy(p->memory[i]);
    }
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

void cpu_matrix_free(struct cpu_matrix *matrix)
{
    if (!matrix)
        return;
    for (size_t i = 0; i < matrix->count; i++)
        primitive_free(&matrix->primitives[i]);
    if (matrix->stream)
        dnnl_stream_destroy(matrix->stream);
    if (matrix->engine)
        dnnl_engine_destroy(matrix->engine);
    free(matrix);
}

static bool same_product(const struct cpu_product *a, const struct cpu_product *b)
{
    return a->dtype == b->dtype && a->out_dtype == b->out_dtype && a->rows == b->rows && a->in == b->in &&
           a->out == b->out && a->y_stride == b->y_stride && a->has_bias == b->has_bias;
}

static dnnl_status_t describe(dnnl_memory_desc_t *description, int64_t rows, int64_t columns, int64_t row_stride,
                              int64_t column_stride, enum dtype dtype)
{
    const dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
    return dnnl_memory_desc_init_by_strides(description, 2, dims, dtype == DTYPE_F32 ? dnnl_f32 : dnnl_bf16, strides);
}

struct descriptions {
    dnnl_memory_desc_t x, weight, y, bias;
};

static dnnl_status_t make_description(const struct cpu_matrix *matrix, const struct cpu_product *product,
                                      struct descriptions *d, dnnl_primitive_desc_t *result)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_matmul_desc_t matmul;
    memset(d, 0, sizeof *d);
    dnnl_status_t status = describe(&d->x, product->rows, product->in, product->in, 1, product->dtype);
    if (status == dnnl_success)
        status = describe(&d->weight, product->in, product->out, 1, product->in, product->dtype);
    if (status == dnnl_success)
        status = describe(&d->y, product->rows, product->out, product->y_stride, 1, product->out_dtype);
    if (status == dnnl_success && product->has_bias)
        status = describe(&d->bias, 1, product->out, product->out, 1, product->dtype);
    if (status == dnnl_success)
        status = dnnl_matmul_desc_init(&matmul, &d->x, &d->weight, product->has_bias ? &d->bias : NULL, &d->y);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_create(&attributes);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(result, &matmul, attributes, matrix->engine, NULL);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    return status;
}

size_t cpu_matrix_scratch(struct cpu_matrix *matrix, const struct cpu_product *product)
{
    struct descriptions d;
    dnnl_primitive_desc_t description;
    if (make_description(matrix, product, &d, &description) != dnnl_success)
        return 0;
    size_t bytes = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0));
    dnnl_primitive_desc_destroy(description);
    return bytes + HOT_ALIGN_BYTES;
}

static dnnl_status_t fill_primitive(struct cpu_matrix *matrix, struct primitive *p)
{
    struct descriptions d;
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t status = make_description(matrix, &p->product, &d, &description);
    if (status != dnnl_success)
        return status;
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    const dnnl_memory_desc_t *each[ARGUMENTS] = {&d.x, &d.weight, &d.y, scratch, p->product.has_bias ? &d.bias : NULL};
    p->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    for (size_t i = 0; i < ARGUMENTS && status == dnnl_success; i++) {
        if (each[i])
            status = dnnl_memory_create(&p->memory[i], each[i], matrix->engine, DNNL_MEMORY_NONE);
    }
    if (status == dnnl_success)
        status = dnnl_primitive_create(&p->primitive, description);
    dnnl_primitive_desc_destroy(description);
    return status;
}

/* A free place, or that of the primitive whose last use lies longest back. */
static struct primitive *take_place(struct cpu_matrix *matrix)
{
    if (matrix->count < MAX_PRIMITIVES)
        return &matrix->primitives[matrix->count++];
    struct primitive *oldest = &matrix->primitives[0];
    for (size_t i = 1; i < MAX_PRIMITIVES; i++) {
        if (matrix->primitives[i].last_use < oldest->last_use)
            oldest = &matrix->primitives[i];
    }
    primitive_free(oldest);
    return oldest;
}

static dnnl_status_t find_primitive(struct cpu_matrix *matrix, const struct cpu_product *product,
                                    struct primitive **found)
{
    for (size_t i = 0; i < matrix->count; i++) {
        if (matrix->primitives[i].primitive && same_product(&matrix->primitives[i].product, product)) {
            *found = &matrix->primitives[i];
            return dnnl_success;
        }
    }
    struct primitive *p = take_place(matrix);
    p->product = *product;
    dnnl_status_t status = fill_primitive(matrix, p);
    if (status != dnnl_success)
        primitive_free(p);
    *found = p;
    return status;
}

static enum status failed(const struct cpu_product *product, dnnl_status_t status, struct error *error)
{
    return error_set(error, STATUS_DEVICE, "linear: %d x %d x %d %s: oneDNN status %d%s", product->rows, product->in,
                     product->out, dtype_name(product->dtype), (int)status,
                     status == dnnl_out_of_memory ? " (out of memory)" : "");
}

enum status cpu_matrix_multiply(struct cpu_matrix *matrix, const struct cpu_product *product, const void *x,
                                const void *weight, const void *bias, void *y, void *scratch, size_t scratch_bytes,
                                struct error *error)
{
    static const int numbers[ARGUMENTS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD,
                                           DNNL_ARG_BIAS};
    struct primitive *p;
    dnnl_status_t status = find_primitive(matrix, product, &p);
    if (status != dnnl_success)
        return failed(product, status, error);
    size_t skip = cpu_round_up((size_t)scratch, HOT_ALIGN_BYTES) - (size_t)scratch;
    if (!scratch || skip + p->scratch_bytes > scratch_bytes)
        return error_set(error, STATUS_DEVICE,
                         "linear: %d x %d x %d %s: oneDNN wants %zu bytes of scratch, the workspace leaves %zu: "
                         "workspace_bytes() was asked for smaller shapes",
                         product->rows, product->in, product->out, dtype_name(product->dtype), skip + p->scratch_bytes,
                         scratch ? scratch_bytes : 0);
    void *usable = (char *)scratch + skip;
    p->last_use = ++matrix->uses;
    /* The library takes all handles as void *, and only reads x, weight and bias. */
    void *handles[ARGUMENTS] = {(void *)(uintptr_t)x, (void *)(uintptr_t)weight, y, usable, (void *)(uintptr_t)bias};
    dnnl_exec_arg_t arguments[ARGUMENTS];
    int count = product->has_bias ? ARGUMENTS : ARGUMENTS - 1;
    for (int i = 0; i < count && status == dnnl_success; i++) {
        arguments[i] = (dnnl_exec_arg_t){numbers[i], p->memory[i]};
        status = dnnl_memory_set_data_handle(p->memory[i], handles[i]);
    }
    if (status == dnnl_success)
        status = dnnl_primitive_execute(p->primitive, matrix->stream, count, arguments);
    if (status == dnnl_success)
        status = dnnl_stream_wait(matrix->stream);
    return status == dnnl_success ? STATUS_OK : failed(product, status, error);
}
