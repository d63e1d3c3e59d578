/* Embedding, RMS norm, SwiGLU, argmax: operations on rows, bound by latency in decode and by memory in prefill. */
#include "kernels/cuda/types.cuh"

#include <math.h>

enum { THREADS = 256, MOST_THREADS = 1024 };

static bool aligned(const void *memory, size_t bytes)
{
    return reinterpret_cast<uintptr_t>(memory) % bytes == 0;
}

/* Whole warps, four values to a thread until the block is full. */
static unsigned row_threads(size_t width)
{
    unsigned threads = 32 * cuda_blocks(width, 4 * 32);
    return threads < (unsigned)MOST_THREADS ? threads : (unsigned)MOST_THREADS;
}

/* ---- embedding. Bytes moved: rows * hidden * (size + 4). */

template <typename T> static __global__ void embed(float *out, const void *table, const int32_t *tokens, int hidden)
{
    size_t row = blockIdx.y, at = (size_t)tokens[row] * (size_t)hidden;
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < hidden; i += (int)(gridDim.x * blockDim.x))
        out[row * (size_t)hidden + (size_t)i] = load_any<T>(table, at + (size_t)i);
}

/* Rows go along the grid's y, which ends at 65,535. */
enum { MOST_ROWS = 65535 };

template <typename T>
static enum status embed_rows(struct cuda_device *cuda, float *out, const void *table, const int32_t *tokens, int rows,
                              int hidden, struct error *error)
{
    for (int first = 0; first < rows; first += MOST_ROWS) {
        int part = rows - first < MOST_ROWS ? rows - first : MOST_ROWS;
        dim3 grid(cuda_blocks((size_t)hidden, THREADS), (unsigned)part);
        if (KVLAB_LAUNCH(cuda, error, embed<T>, grid, THREADS, 0, out + (size_t)first * (size_t)hidden, table,
                         tokens + first, hidden) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

enum status cuda_embed(struct device *device, float *out, const void *table, enum dtype dtype, const int32_t *tokens,
                       int rows, int hidden, struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    if (dtype == DTYPE_F32)
        return embed_rows<float>(cuda, out, table, tokens, rows, hidden, error);
    if (dtype == DTYPE_F16)
        return embed_rows<__half>(cuda, out, table, tokens, rows, hidden, error);
    return embed_rows<__nv_bfloat16>(cuda, out, table, tokens, rows, hidden, error);
}

/* ---- RMS norm. Bytes moved: rows * hidden * (4 read + 4 read, 4 written with a delta + size written), weight * size
 */

struct norm_rows {
    float *residual;
    const float *delta;
    const int32_t *gather;
    const void *weight;
    void *out;
    float epsilon;
    int hidden;
};

/* Sum over the block, in every thread; `partial` has room for one value per warp. */
static __device__ float block_sum(float value, float *partial)
{
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0f;
    return warp_sum(value);
}

/* One block per row; each thread keeps up to KEPT float4 of its row in registers between the two passes.
   hidden % 4 == 0, everything aligned to 16 bytes (weight and out: to 4 values), hidden <= 4 * KEPT * threads. */
enum { KEPT = 4 };
template <typename T> static __global__ void __launch_bounds__(MOST_THREADS) rms_norm_vectors(struct norm_rows args)
{
    __shared__ float partial[32];
    const size_t hidden = (size_t)args.hidden, row = blockIdx.x, from = args.gather ? (size_t)args.gather[row] : row;
    float4 *residual = reinterpret_cast<float4 *>(args.residual + from * hidden);
    const float4 *delta = reinterpret_cast<const float4 *>(args.delta ? args.delta + from * hidden : NULL);
    const T *weight = static_cast<const T *>(args.weight);
    T *out = static_cast<T *>(args.out) + row * hidden;
    const int vectors = args.hidden / 4, threads = (int)blockDim.x, first = (int)threadIdx.x;
    float4 kept[KEPT];
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        int i = first + k * threads;
        if (i >= vectors)
            continue;
        float4 r = residual[i];
        if (delta) {
            float4 d = delta[i];
            r = make_float4(r.x + d.x, r.y + d.y, r.z + d.z, r.w + d.w);
            residual[i] = r;
        }
        squares += r.x * r.x + r.y * r.y + r.z * r.z + r.w * r.w;
        kept[k] = r;
    }
    float factor = 1.0f / sqrtf(block_sum(squares, partial) / (float)args.hidden + args.epsilon);
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        int i = first + k * threads;
        if (i >= vectors)
            continue;
        float4 w = load4(weight + 4 * i), r = kept[k];
        store4(out + 4 * i,
               make_float4(r.x * factor * w.x, r.y * factor * w.y, r.z * factor * w.z, r.w * factor * w.w));
    }
}

/* Any width, any alignment of the weight. */
template <typename T> static __global__ void __launch_bounds__(MOST_THREADS) rms_norm_any(struct norm_rows args)
{
    __shared__ float partial[32];
    const size_t hidden = (size_t)args.hidden, row = blockIdx.x, from = args.gather ? (size_t)args.gather[row] : row;
    float *residual = args.residual + from * hidden;
    T *out = static_cast<T *>(args.out) + row * hidden;
    float squares = 0.0f;
    for (size_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        float r = residual[i];
        if (args.delta) {
            r += args.delta[from * hidden + i];
            residual[i] = r;
        }
        squares += r * r;
    }
    float factor = 1.0f / sqrtf(block_sum(squares, partial) / (float)args.hidden + args.epsilon);
    for (size_t i = threadIdx.x; i < hidden; i += blockDim.x)
        out[i] = from_f32<T>(residual[i] * factor * load_any<T>(args.weight, i));
}

template <typename T>
static enum status norm(struct cuda_device *cuda, const struct rms_norm_args *args, struct error *error)
{
    const struct norm_rows rows = {args->residual, args->delta,   args->gather, args->weight,
                                   args->out,      args->epsilon, args->hidden};
    unsigned threads = row_threads((size_t)args->hidden);
    bool vectors = args->hidden % 4 == 0 && args->hidden <= 4 * KEPT * MOST_THREADS && aligned(args->residual, 16) &&
                   aligned(args->delta, 16) && aligned(args->weight, 4 * sizeof(T)) &&
                   aligned(args->out, 4 * sizeof(T));
    if (args->rows == 0)
        return STATUS_OK;
    if (vectors)
        return KVLAB_LAUNCH(cuda, error, rms_norm_vectors<T>, (unsigned)args->rows, threads, 0, rows);
    return KVLAB_LAUNCH(cuda, error, rms_norm_any<T>, (unsigned)args->rows, threads, 0, rows);
}

enum status cuda_rms_norm(struct device *device, const struct rms_norm_args *args, struct error *error)
{
    if (args->dtype == DTYPE_F32)
        return norm<float>(cuda_of(device), args, error);
    if (args->dtype == DTYPE_F16)
        return norm<__half>(cuda_of(device), args, error);
    return norm<__nv_bfloat16>(cuda_of(device), args, error);
}

/* ---- SwiGLU. Bytes moved: count * (4 + 4 + size). */

/* silu(g) up = g / (1 + e^-g) up; e^-g may be infinite: the quotient is then 0, as it should be. */
static __device__ inline float silu_times(float gate, float up)
{
    return gate / (1.0f + expf(-gate)) * up;
}

template <typename T>
static __global__ void swiglu(T *out, const float *gate, const float *up, size_t vectors, size_t count)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < vectors) {
        const float4 g = reinterpret_cast<const float4 *>(gate)[i], u = reinterpret_cast<const float4 *>(up)[i];
        store4(out + 4 * i,
               make_float4(silu_times(g.x, u.x), silu_times(g.y, u.y), silu_times(g.z, u.z), silu_times(g.w, u.w)));
        return;
    }
    i = 4 * vectors + (i - vectors);
    if (i < count)
        out[i] = from_f32<T>(silu_times(gate[i], up[i]));
}

template <typename T>
static enum status swiglu_values(struct cuda_device *cuda, void *out, const float *gate, const float *up, size_t count,
                                 struct error *error)
{
    size_t vectors = aligned(gate, 16) && aligned(up, 16) && aligned(out, 4 * sizeof(T)) ? count / 4 : 0,
           items = vectors + (count - 4 * vectors);
    if (count == 0)
        return STATUS_OK;
    return KVLAB_LAUNCH(cuda, error, swiglu<T>, cuda_blocks(items, THREADS), THREADS, 0, static_cast<T *>(out), gate,
                        up, vectors, count);
}

enum status cuda_swiglu(struct device *device, void *out, const float *gate, const float *up, enum dtype dtype,
                        int rows, int width, struct error *error)
{
    size_t count = (size_t)rows * (size_t)width;
    if (dtype == DTYPE_F32)
        return swiglu_values<float>(cuda_of(device), out, gate, up, count, error);
    if (dtype == DTYPE_F16)
        return swiglu_values<__half>(cuda_of(device), out, gate, up, count, error);
    return swiglu_values<__nv_bfloat16>(cuda_of(device), out, gate, up, count, error);
}

/* ---- argmax: one block per row. Bytes moved: rows * vocab * size. */

struct best {
    float value;
    int index;
};

/* The larger value; of equals the smaller index. A NaN is never larger. */
static __device__ inline struct best better(struct best a, struct best b)
{
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

static __device__ struct best warp_best(struct best mine)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        struct best other = {__shfl_xor_sync(0xffffffffu, mine.value, distance),
                             __shfl_xor_sync(0xffffffffu, mine.index, distance)};
        mine = better(mine, other);
    }
    return mine;
}

enum { NONE = 0x7fffffff };

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS) argmax(int32_t *index, const T *logits, int vocab)
{
    __shared__ struct best of_warp[32];
    const T *row = logits + (size_t)blockIdx.x * (size_t)vocab;
    struct best mine = {-INFINITY, NONE};
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < vocab; i += (int)blockDim.x) {
        struct best next = {to_f32(row[i]), i};
        mine = better(mine, next);
    }
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    const struct best none = {-INFINITY, NONE};
    mine = warp_best(threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : none);
    if (threadIdx.x == 0)
        index[blockIdx.x] = mine.index == NONE ? 0 : mine.index; /* nothing but NaNs */
}

template <typename T>
static enum status argmax_rows(struct cuda_device *cuda, int32_t *index, const void *logits, int rows, int vocab,
                               struct error *error)
{
    unsigned threads = row_threads((size_t)vocab);
    if (rows == 0)
        return STATUS_OK;
    return KVLAB_LAUNCH(cuda, error, argmax<T>, (unsigned)rows, threads, 0, index, static_cast<const T *>(logits),
                        vocab);
}

enum status cuda_argmax(struct device *device, int32_t *index, const void *logits, enum dtype dtype, int rows,
                        int vocab, struct error *error)
{
    if (dtype == DTYPE_F32)
        return argmax_rows<float>(cuda_of(device), index, logits, rows, vocab, error);
    if (dtype == DTYPE_F16)
        return argmax_rows<__half>(cuda_of(device), index, logits, rows, vocab, error);
    return argmax_rows<__nv_bfloat16>(cuda_of(device), index, logits, rows, vocab, error);
}
