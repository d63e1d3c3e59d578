/* Attention in plain f32 arithmetic, for any type, head_dim and card. A block takes up to PLAIN_VECTORS query vectors
   over tiles of KEYS keys: K, then V, as f32 in shared memory.
   Bytes moved: the keys' K and V once per tile of vectors; decode groups of more than PLAIN_VECTORS heads come again.
 */
#include "kernels/cuda/attention.cuh"

#include <math.h>

enum { THREADS = 128, KEYS = 16 };
static_assert(THREADS == PLAIN_VECTORS * KEYS, "a thread per score");

/* Floats of shared memory: rows of q, o and keys are one apart from whole banks. */
static size_t shared_floats(int head_dim)
{
    return (size_t)(2 * PLAIN_VECTORS + KEYS) * (size_t)(head_dim + 1);
}

struct tile {
    int sequence, kv_head;
    int first_vector, vectors; /* of the sequence's rows * group */
    struct key_range keys;
    float *q, *o, *kv; /* shared: [PLAIN_VECTORS][dim + 1], likewise, [KEYS][dim + 1] */
};

/* K or V of the keys [first, first + KEYS) as f32; past the end the last key stands in. scales: of int8, else NULL. */
template <typename T>
static __device__ void load_keys(const struct attend &args, const struct tile &tile, const void *tensor,
                                 const float *scales, int first)
{
    const struct kv_rows rows = kv_rows_of(args, tile.sequence, tile.kv_head);
    for (int i = (int)threadIdx.x; i < KEYS * args.head_dim; i += THREADS) {
        int key = i / args.head_dim, d = i % args.head_dim;
        size_t row = kv_row(rows, min(first + key, tile.keys.end - 1));
        float value = to_f32(static_cast<const T *>(tensor)[row * (size_t)args.head_dim + (size_t)d]);
        tile.kv[key * (args.head_dim + 1) + d] = scales ? value * scales[row] : value;
    }
}

/* Online softmax of one tile: leaves o unnormalised; maximum and sum in `state` [PLAIN_VECTORS] (maximum, sum). */
template <typename T>
static __device__ void attend_tile(const struct attend &args, const struct tile &tile, float2 *state)
{
    __shared__ float score[PLAIN_VECTORS][KEYS + 1];
    const int dim = args.head_dim, stride = dim + 1, first_row = args.first_row[tile.sequence];
    const int m = (int)threadIdx.x / KEYS, key = (int)threadIdx.x % KEYS;
    const int token = (tile.first_vector + min(m, tile.vectors - 1)) / args.group;
    const int position = args.positions[first_row + token], visible = first_visible(args, position);
    for (int i = (int)threadIdx.x; i < PLAIN_VECTORS * dim; i += THREADS) {
        int vector = i / dim, d = i % dim, of = tile.first_vector + vector;
        size_t row = (size_t)(first_row + of / args.group);
        size_t head = (size_t)(tile.kv_head * args.group + of % args.group);
        bool there = vector < tile.vectors;
        tile.q[vector * stride + d] =
            there ? args.q[(row * (size_t)args.heads + head) * (size_t)dim + (size_t)d] * args.scale : 0.0f;
        tile.o[vector * stride + d] = 0.0f;
    }
    const float *k_scale = args.k_scale ? args.k_scale[tile.sequence] : NULL;
    const float *v_scale = args.v_scale ? args.v_scale[tile.sequence] : NULL;
    float maximum = ATTEND_LOWEST, sum = 0.0f;
    for (int first = tile.keys.begin; first < tile.keys.end; first += KEYS) {
        load_keys<T>(args, tile, args.k[tile.sequence], k_scale, first);
        __syncthreads();
        float s = 0.0f;
        for (int d = 0; d < dim; d++)
            s += tile.q[m * stride + d] * tile.kv[key * stride + d];
        int at = first + key;
        if (at >= tile.keys.end || at > position || at < visible)
            s = -INFINITY;
        float largest = fmaxf(maximum, s); /* over the 16 lanes of a vector */
        for (int distance = KEYS / 2; distance > 0; distance /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
        float correction = exp2f(maximum - largest), p = exp2f(s - largest), total = p;
        for (int distance = KEYS / 2; distance > 0; distance /= 2)
            total += __shfl_xor_sync(0xffffffffu, total, distance);
        maximum = largest;
        sum = sum * correction + total;
        score[m][key] = p;
        if (key == 0)
            score[m][KEYS] = correction;
        __syncthreads();
        load_keys<T>(args, tile, args.v[tile.sequence], v_scale, first);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < PLAIN_VECTORS * dim; i += THREADS) {
            int vector = i / dim, d = i % dim;
            float o = tile.o[vector * stride + d] * score[vector][KEYS];
            for (int j = 0; j < KEYS; j++)
                o += score[vector][j] * tile.kv[j * stride + d];
            tile.o[vector * stride + d] = o;
        }
        __syncthreads();
    }
    if (key == 0)
        state[m] = make_float2(maximum, sum);
    __syncthreads();
}

static __device__ struct tile shared_tile(const struct attend &args, float *shared)
{
    struct tile tile = {};
    tile.sequence = (int)blockIdx.z;
    tile.kv_head = (int)blockIdx.y;
    tile.q = shared;
    tile.o = tile.q + PLAIN_VECTORS * (args.head_dim + 1);
    tile.kv = tile.o + PLAIN_VECTORS * (args.head_dim + 1);
    return tile;
}

/* grid [splits][kv_heads][sequences] */
template <typename T> static __global__ void __launch_bounds__(THREADS, 4) plain_decode(struct attend args)
{
    KVLAB_DYNAMIC_SHARED(float, shared);
    __shared__ float2 state[PLAIN_VECTORS];
    struct tile tile = shared_tile(args, shared);
    const int row = args.first_row[tile.sequence];
    if (args.first_row[tile.sequence + 1] - row != 1)
        return;
    tile.keys = split_keys(args, args.positions[row], (int)blockIdx.x);
    for (int first = 0; first < args.group; first += PLAIN_VECTORS) {
        tile.first_vector = first;
        tile.vectors = min(args.group - first, (int)PLAIN_VECTORS);
        attend_tile<T>(args, tile, state);
        for (int i = (int)threadIdx.x; i < tile.vectors * args.head_dim; i += THREADS) {
            int vector = i / args.head_dim, d = i % args.head_dim;
            store_decode(args, tile.sequence, row, tile.kv_head * args.group + first + vector, (int)blockIdx.x, d,
                         tile.o[vector * (args.head_dim + 1) + d], state[vector].x, state[vector].y);
        }
        __syncthreads();
    }
}

/* grid [tiles of the sequence with most][kv_heads][sequences], the longest tiles first */
template <typename T> static __global__ void __launch_bounds__(THREADS, 4) plain_prefill(struct attend args)
{
    KVLAB_DYNAMIC_SHARED(float, shared);
    __shared__ float2 state[PLAIN_VECTORS];
    struct tile tile = shared_tile(args, shared);
    const int first_row = args.first_row[tile.sequence], rows = args.first_row[tile.sequence + 1] - first_row;
    tile.first_vector = (int)(gridDim.x - 1 - blockIdx.x) * PLAIN_VECTORS;
    if (rows <= 1 || tile.first_vector >= rows * args.group)
        return;
    tile.vectors = min(rows * args.group - tile.first_vector, (int)PLAIN_VECTORS);
    int last = first_row + (tile.first_vector + tile.vectors - 1) / args.group;
    tile.keys.begin = first_visible(args, args.positions[first_row + tile.first_vector / args.group]);
    tile.keys.end = args.positions[last] + 1;
    attend_tile<T>(args, tile, state);
    for (int i = (int)threadIdx.x; i < tile.vectors * args.head_dim; i += THREADS) {
        int vector = i / args.head_dim, d = i % args.head_dim, of = tile.first_vector + vector;
        size_t row = (size_t)(first_row + of / args.group);
        size_t head = (size_t)(tile.kv_head * args.group + of % args.group);
        store_out(args, (row * (size_t)args.heads + head) * (size_t)args.head_dim + (size_t)d,
                  tile.o[vector * (args.head_dim + 1) + d] / state[vector].y);
    }
}

template <typename T>
static enum status launch(struct cuda_device *cuda, const struct attend *args, int decode, dim3 grid,
                          struct error *error)
{
    size_t bytes = shared_floats(args->head_dim) * sizeof(float);
    void (*kernel)(struct attend) = decode ? plain_decode<T> : plain_prefill<T>;
    if (bytes > (size_t)cuda->shared_max_bytes)
        return error_set(error, STATUS_DEVICE,
                         "attention: head_dim %d needs %zu bytes of shared memory, a block has %d", args->head_dim,
                         bytes, cuda->shared_max_bytes);
    if (bytes > 48 << 10)
        CUDA_TRY(error, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return KVLAB_LAUNCH(cuda, error, kernel, grid, THREADS, bytes, *args);
}

enum status cuda_attention_plain(struct cuda_device *cuda, const struct attend *args, enum dtype kv_dtype, int decode,
                                 int pieces, int sequences, struct error *error)
{
    dim3 grid((unsigned)pieces, (unsigned)args->kv_heads, (unsigned)sequences);
    if (kv_dtype == DTYPE_F32)
        return launch<float>(cuda, args, decode, grid, error);
    if (kv_dtype == DTYPE_F16)
        return launch<__half>(cuda, args, decode, grid, error);
    if (kv_dtype == DTYPE_FP8_E4M3)
        return launch<__nv_fp8_e4m3>(cuda, args, decode, grid, error);
    if (kv_dtype == DTYPE_INT8)
        return launch<int8_t>(cuda, args, decode, grid, error);
    return launch<__nv_bfloat16>(cuda, args, decode, grid, error);
}
