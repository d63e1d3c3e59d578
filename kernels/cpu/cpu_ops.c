/* The element-wise operations: threads over rows; the loops themselves are the variant's. */
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const void *row_of(enum dtype dtype, const void *values, size_t row, size_t width)
{
    return (const char *)values + row * width * dtype_size(dtype);
}

static void *row_to(enum dtype dtype, void *values, size_t row, size_t width)
{
    return (char *)values + row * width * dtype_size(dtype);
}

enum status cpu_embed(struct device *device, float *out, const void *table, enum dtype dtype, const int32_t *tokens,
                      int rows, int hidden, struct error *error)
{
    const struct cpu_device *cpu = cpu_of(device);
    (void)error;
    size_t width = (size_t)hidden;
#pragma omp parallel for schedule(static) num_threads(cpu->threads) if (rows > 4)
    for (int r = 0; r < rows; r++)
        cpu->hot->to_f32[dtype](out + (size_t)r * width, row_of(dtype, table, (size_t)tokens[r], width), width);
    return STATUS_OK;
}

enum status cpu_rms_norm(struct device *device, const struct rms_norm_args *args, struct error *error)
{
    const struct cpu_device *cpu = cpu_of(device);
    (void)error;
    size_t width = (size_t)args->hidden;
#pragma omp parallel for schedule(static) num_threads(cpu->threads) if (args->rows > 4)
    for (int r = 0; r < args->rows; r++) {
        size_t from = args->gather ? (size_t)args->gather[r] : (size_t)r;
        cpu->hot->rms_norm(args->residual + from * width, args->delta ? args->delta + from * width : NULL, args->weight,
                           row_to(args->dtype, args->out, (size_t)r, width), args->dtype, args->epsilon, width);
    }
    return STATUS_OK;
}

/* Angles and their cosines are taken in f32, as the published models' reference does: at large positions the rounding
   of position * frequency is part of the model. */
enum status cpu_rope_table(struct device *device, float *cos_sin, const int32_t *positions,
                           const float *inverse_frequency, int rows, int half, struct error *error)
{
    (void)error;
#pragma omp parallel for schedule(static) num_threads(cpu_of(device)->threads) if (rows > 4)
    for (int r = 0; r < rows; r++) {
        float *row = cos_sin + (size_t)r * (size_t)half * 2;
        for (int i = 0; i < half; i++) {
            float angle = (float)positions[r] * inverse_frequency[i];
            row[2 * i] = cosf(angle);
            row[2 * i + 1] = sinf(angle);
        }
    }
    return STATUS_OK;
}

enum { ROTATE_MAX = 1024 }; /* largest head_dim */

/* Row of a position in the tensors of its sequence: see struct device_kv. */
static size_t kv_row(const struct device_batch *batch, size_t sequence, int position, size_t kv_heads, size_t head)
{
    int block_size = batch->block_size[sequence];
    int32_t block = batch->block_table[sequence * (size_t)batch->blocks_per_sequence + (size_t)(position / block_size)];
    assert(block >= 0);
    return ((size_t)block * kv_heads + head) * (size_t)block_size + (size_t)(position % block_size);
}

/* One row of K or V; scales: of int8, else NULL. */
static void store_head(const struct cpu_hot *hot, enum dtype dtype, void *tensor, float *scales, size_t slot,
                       const float *values, size_t head_dim)
{
    void *to = row_to(dtype, tensor, slot, head_dim);
    if (scales)
        scales[slot] = hot->quantize(to, values, head_dim);
    else
        hot->from_f32[dtype](to, values, head_dim);
}

static void rope_store_row(const struct cpu_hot *hot, const struct rope_store_args *args, int row)
{
    const struct device_batch *batch = args->batch;
    size_t head_dim = (size_t)args->head_dim, half = head_dim / 2, r = (size_t)row;
    const float *cos_sin = args->cos_sin + r * head_dim;
    float rotated[ROTATE_MAX];
    float *q = args->q + r * (size_t)args->heads * head_dim;
    for (size_t h = 0; h < (size_t)args->heads; h++) {
        hot->rotate(rotated, q + h * head_dim, cos_sin, half);
        memcpy(q + h * head_dim, rotated, head_dim * sizeof *rotated);
    }
    size_t s = (size_t)batch->row_sequence[row], kv_heads = (size_t)args->kv_heads;
    for (size_t h = 0; h < kv_heads; h++) {
        size_t from = (r * kv_heads + h) * head_dim;
        size_t slot = kv_row(batch, s, batch->positions[row], kv_heads, h);
        hot->rotate(rotated, args->k + from, cos_sin, half);
        store_head(hot, args->kv.dtype, args->kv.k[s], args->kv.k_scale ? args->kv.k_scale[s] : NULL, slot, rotated,
                   head_dim);
        store_head(hot, args->kv.dtype, args->kv.v[s], args->kv.v_scale ? args->kv.v_scale[s] : NULL, slot,
                   args->v + from, head_dim);
    }
}

enum status cpu_rope_store(struct device *device, const struct rope_store_args *args, struct error *error)
{
    const struct cpu_device *cpu = cpu_of(device);
    if (args->head_dim > ROTATE_MAX || args->head_dim % 2 != 0)
        return error_set(error, STATUS_DEVICE, "rope: head_dim %d is odd or above %d", args->head_dim, ROTATE_MAX);
#pragma omp parallel for schedule(static) num_threads(cpu->threads) if (args->batch->rows > 4)
    for (int r = 0; r < args->batch->rows; r++)
        rope_store_row(cpu->hot, args, r);
    return STATUS_OK;
}

enum status cpu_kv_move(struct device *device, const struct kv_move_args *args, struct error *error)
{
    (void)device;
    (void)error;
    size_t kv_heads = (size_t)args->kv_heads, items = (size_t)args->batch->sequences * kv_heads;
    size_t row_bytes = (size_t)args->head_dim * dtype_size(args->kv.dtype);
    for (size_t item = 0; item < items; item++) {
        size_t s = item / kv_heads, h = item % kv_heads;
        if (args->from[item] < 0 || args->to[item] < 0 || args->from[item] == args->to[item])
            continue;
        size_t from = kv_row(args->batch, s, args->from[item], kv_heads, h);
        size_t to = kv_row(args->batch, s, args->to[item], kv_heads, h);
        memcpy((char *)args->kv.k[s] + to * row_bytes, (char *)args->kv.k[s] + from * row_bytes, row_bytes);
        memcpy((char *)args->kv.v[s] + to * row_bytes, (char *)args->kv.v[s] + from * row_bytes, row_bytes);
        if (args->kv.dtype == DTYPE_INT8) {
            args->kv.k_scale[s][to] = args->kv.k_scale[s][from];
            args->kv.v_scale[s][to] = args->kv.v_scale[s][from];
        }
    }
    return STATUS_OK;
}

/* Cut into pieces of whole cache lines, so that one row is shared among the threads too. */
enum status cpu_swiglu(struct device *device, void *out, const float *gate, const float *up, enum dtype dtype, int rows,
                       int width, struct error *error)
{
    const struct cpu_device *cpu = cpu_of(device);
    (void)error;
    const size_t piece = 2048;
    size_t count = (size_t)rows * (size_t)width;
    long pieces = (long)((count + piece - 1) / piece);
#pragma omp parallel for schedule(static) num_threads(cpu->threads) if (pieces > 2)
    for (long i = 0; i < pieces; i++) {
        size_t first = (size_t)i * piece, left = count - first;
        cpu->hot->swiglu((char *)out + first * dtype_size(dtype), gate + first, up + first, dtype,
                         left < piece ? left : piece);
    }
    return STATUS_OK;
}

enum status cpu_argmax(struct device *device, int32_t *index, const void *logits, enum dtype dtype, int rows, int vocab,
                       struct error *error)
{
    const struct cpu_device *cpu = cpu_of(device);
    (void)error;
#pragma omp parallel for schedule(static) num_threads(cpu->threads) if (rows > 1)
    for (int r = 0; r < rows; r++)
        index[r] = (int32_t)cpu->hot->argmax(row_of(dtype, logits, (size_t)r, (size_t)vocab), dtype, (size_t)vocab);
    return STATUS_OK;
}
