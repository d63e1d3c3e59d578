/* The work of single operations, from their arguments: bytes that must move to and from memory, and floating-point
   operations. What their times are held against, on any device. Each input counts once and each output once; caches are
   taken as perfect for what is read again within one operation. Plain arithmetic, usable from C and CUDA.

   engine/work.h counts whole passes from a config; the two agree where they count the same (tests/test_profile.c). */
#ifndef KVLAB_KERNELS_WORK_H
#define KVLAB_KERNELS_WORK_H

#include "kernels/device.h"

/* Positions seen by rows [start, start + count) together: each sees itself and all before it, at most `window` (0: no
   window). Rows before position `window` see p + 1, the others `window`. */
static inline uint64_t positions_seen(int64_t start, int64_t count, int64_t window)
{
    int64_t end = start + count, full_end = window == 0 || end < window ? end : window;
    uint64_t seen = 0;
    if (full_end > start)
        seen += (uint64_t)(full_end - start) * (uint64_t)(start + full_end + 1) / 2;
    if (end > full_end)
        seen += (uint64_t)window * (uint64_t)(end - (full_end > start ? full_end : start));
    return seen;
}

/* Positions that those rows read K and V of, each once: from the first row's oldest one on. */
static inline uint64_t positions_read(int64_t start, int64_t count, int64_t window)
{
    int64_t held = start + count, reach = window > 0 ? window + count - 1 : held;
    return (uint64_t)(reach < held ? reach : held);
}

/* One side of one position and KV head in the cache, with its scale where the type has one. */
static inline uint64_t kv_row_bytes(const struct device_kv *kv, int head_dim)
{
    return (uint64_t)head_dim * dtype_size(kv->dtype) + (kv->k_scale != NULL ? sizeof(float) : 0);
}

static inline uint64_t embed_bytes(enum dtype dtype, int rows, int hidden)
{
    return (uint64_t)rows * ((uint64_t)hidden * (dtype_size(dtype) + sizeof(float)) + sizeof(int32_t));
}

/* Every weight once, x once, y written, the bias. */
static inline uint64_t linear_bytes(const struct linear_args *args)
{
    uint64_t rows = (uint64_t)args->rows, in = (uint64_t)args->in, out = (uint64_t)args->out;
    uint64_t size = dtype_size(args->dtype), out_size = dtype_size(args->out_dtype);
    return (out * in + rows * in + (args->bias ? out : 0)) * size + rows * out * out_size;
}

static inline uint64_t linear_flops(const struct linear_args *args)
{
    return 2 * (uint64_t)args->rows * (uint64_t)args->in * (uint64_t)args->out;
}

/* Residual and delta read, residual written where there is a delta, weight read, out written. */
static inline uint64_t rms_norm_bytes(const struct rms_norm_args *args)
{
    uint64_t values = (uint64_t)args->rows * (uint64_t)args->hidden, size = dtype_size(args->dtype);
    return values * ((args->delta ? 3 : 1) * sizeof(float) + size) + (uint64_t)args->hidden * size;
}

/* Positions and frequencies read, a cosine and a sine written for each pair. */
static inline uint64_t rope_table_bytes(int rows, int half)
{
    return (uint64_t)rows * ((uint64_t)half * 2 * sizeof(float) + sizeof(int32_t)) + (uint64_t)half * sizeof(float);
}

/* q read and written, k and v read, all in f32; their rotations; K and V written in the cache's type. */
static inline uint64_t rope_store_bytes(const struct rope_store_args *args)
{
    uint64_t rows = (uint64_t)args->batch->rows, head_dim = (uint64_t)args->head_dim;
    uint64_t q = (uint64_t)args->heads * head_dim, kv = (uint64_t)args->kv_heads * head_dim;
    return rows * ((2 * q + 2 * kv + head_dim) * sizeof(float) +
                   2 * (uint64_t)args->kv_heads * kv_row_bytes(&args->kv, args->head_dim));
}

/* K and V of the positions that a sequence's rows see, once for all its rows and query heads; q read, out written. */
static inline uint64_t attention_bytes(const struct attention_args *args)
{
    const struct device_batch *batch = args->batch;
    uint64_t q = (uint64_t)args->heads * (uint64_t)args->head_dim, positions = 0;
    for (int s = 0; s < batch->sequences; s++) {
        int count = batch->host_first_row[s + 1] - batch->host_first_row[s];
        positions += positions_read(batch->host_context[s] - count, count, args->window);
    }
    return 2 * positions * (uint64_t)args->kv_heads * kv_row_bytes(&args->kv, args->head_dim) +
           (uint64_t)batch->rows * q * (sizeof(float) + dtype_size(args->out_dtype));
}

/* The two products, Q K^T and P V, over the positions that each row sees. */
static inline uint64_t attention_flops(const struct attention_args *args)
{
    const struct device_batch *batch = args->batch;
    uint64_t seen = 0;
    for (int s = 0; s < batch->sequences; s++) {
        int count = batch->host_first_row[s + 1] - batch->host_first_row[s];
        seen += positions_seen(batch->host_context[s] - count, count, args->window);
    }
    return 4 * (uint64_t)args->heads * (uint64_t)args->head_dim * seen;
}

/* Gate and up read, out written. */
static inline uint64_t swiglu_bytes(int rows, int width, enum dtype dtype)
{
    return (uint64_t)rows * (uint64_t)width * (2 * sizeof(float) + dtype_size(dtype));
}

static inline uint64_t argmax_bytes(enum dtype dtype, int rows, int vocab)
{
    return (uint64_t)rows * ((uint64_t)vocab * dtype_size(dtype) + sizeof(int32_t));
}

/* ---- what one implementation moves beyond that */

/* cuda_attention_decode.cu, one row over `keys` visible keys: K and V once for all query heads of a group (per eight of
   them), q read, out written; with more than one split the parts (o, maximum, sum) are written and read again. */
static inline uint64_t attention_decode_bytes(const struct attention_args *args, uint64_t keys, uint64_t splits)
{
    uint64_t heads = (uint64_t)args->heads, kv_heads = (uint64_t)args->kv_heads, head_dim = (uint64_t)args->head_dim;
    uint64_t cache = 2 * keys * kv_heads * head_dim * dtype_size(args->kv.dtype);
    uint64_t parts = splits > 1 ? 2 * splits * heads * (head_dim + 2) * sizeof(float) : 0;
    return cache + parts + heads * head_dim * (sizeof(float) + dtype_size(args->out_dtype));
}

#endif
