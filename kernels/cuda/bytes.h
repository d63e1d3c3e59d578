/* How many bytes the hot kernels move to and from device memory: what their times are held against. Plain arithmetic on
   the arguments, usable from C. Caches are taken as perfect for what is read again within one launch. */
#ifndef KVLAB_KERNELS_CUDA_BYTES_H
#define KVLAB_KERNELS_CUDA_BYTES_H

#include "kernels/device.h"

/* cuda_few_rows*.cu: every weight once, x once, y written, the bias. */
static inline uint64_t few_rows_bytes(const struct linear_args *args)
{
    uint64_t rows = (uint64_t)args->rows, in = (uint64_t)args->in, out = (uint64_t)args->out;
    uint64_t size = dtype_size(args->dtype), out_size = dtype_size(args->out_dtype);
    return (out * in + rows * in + (args->bias ? out : 0)) * size + rows * out * out_size;
}

/* cuda_attention_decode.cu, one row over `keys` visible keys: K and V once for all query heads of a group (per eight of
   them), q read, out written; with more than one split the parts (o, maximum, sum) are written and read again. */
static inline uint64_t attention_decode_bytes(const struct attention_args *args, uint64_t keys, uint64_t splits)
{
    uint64_t heads = (uint64_t)args->heads, kv_heads = (uint64_t)args->kv_heads, head_dim = (uint64_t)args->head_dim;
    uint64_t cache = 2 * keys * kv_heads * head_dim * dtype_size(args->kv.dtype);
    uint64_t parts = splits > 1 ? 2 * splits * heads * (head_dim + 2) * sizeof(float) : 0;
    return cache + parts + heads * head_dim * (sizeof(float) + dtype_size(args->out_dtype));
}

/* cuda_ops.cu: residual and delta read, residual written where there is a delta, weight read, out written. */
static inline uint64_t rms_norm_bytes(const struct rms_norm_args *args)
{
    uint64_t values = (uint64_t)args->rows * (uint64_t)args->hidden, size = dtype_size(args->dtype);
    return values * ((args->delta ? 3 : 1) * sizeof(float) + size) + (uint64_t)args->hidden * size;
}

/* cuda_ops.cu: gate and up read, out written. */
static inline uint64_t swiglu_bytes(int rows, int width, enum dtype dtype)
{
    return (uint64_t)rows * (uint64_t)width * (2 * sizeof(float) + dtype_size(dtype));
}

#endif
