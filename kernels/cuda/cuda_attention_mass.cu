/* The softmax weights of attention, summed over queries: which positions the queries look at. In plain arithmetic, for
   any type, head_dim and card; scores are taken twice, for the sums and for the weights, so that nothing grows with the
   context. A block has one KV head of one sequence, so that its row of mass is nobody else's and sums come in one
   order. Bytes moved: rows * group * context * 2 * (head_dim * size + scale), from the second-level cache but for the
   first. */
#include "kernels/cuda/attention.cuh"

#include <math.h>

enum { THREADS = 256, WARPS = THREADS / 32 };

/* q . k of one position, the same in all lanes; q is scaled and in shared memory, scales those of int8 or NULL. */
template <typename T>
static __device__ inline float score_of(const struct kv_rows &rows, const float *scales, const float *q, int head_dim,
                                        int position)
{
    const size_t row = kv_row(rows, position);
    const T *k = static_cast<const T *>(rows.k) + row * (size_t)head_dim;
    float sum = 0.0f;
    for (int d = (int)threadIdx.x % 32; d < head_dim; d += 32)
        sum += q[d] * to_f32(k[d]);
    sum = warp_sum(sum);
    return scales ? sum * scales[row] : sum;
}

/* Maximum and sum of 2^(score - maximum) over the keys, the same in all threads. */
template <typename T>
static __device__ float2 softmax_of(const struct kv_rows &rows, const float *scales, const float *q, int head_dim,
                                    const struct key_range &keys)
{
    __shared__ float2 of_warp[WARPS];
    const int warp = (int)threadIdx.x / 32;
    float maximum = ATTEND_LOWEST, sum = 0.0f, largest = ATTEND_LOWEST, total = 0.0f;
    for (int key = keys.begin + warp; key < keys.end; key += WARPS) {
        const float s = score_of<T>(rows, scales, q, head_dim, key), larger = fmaxf(maximum, s);
        sum = sum * exp2f(maximum - larger) + exp2f(s - larger);
        maximum = larger;
    }
    if (threadIdx.x % 32 == 0)
        of_warp[warp] = make_float2(maximum, sum);
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        largest = fmaxf(largest, of_warp[w].x);
    for (int w = 0; w < WARPS; w++)
        total += of_warp[w].y * exp2f(of_warp[w].x - largest);
    __syncthreads();
    return make_float2(largest, total);
}

/* grid [kv_heads][sequences] */
template <typename T>
static __global__ void __launch_bounds__(THREADS) attention_mass(struct attend args, float *mass, int slots)
{
    KVLAB_DYNAMIC_SHARED(float, q); /* [head_dim] */
    const int kv_head = (int)blockIdx.x, sequence = (int)blockIdx.y, warp = (int)threadIdx.x / 32, dim = args.head_dim;
    const struct kv_rows rows = kv_rows_of(args, sequence, kv_head);
    const float *scales = args.k_scale ? args.k_scale[sequence] : NULL;
    float *to = mass + ((size_t)sequence * (size_t)args.kv_heads + (size_t)kv_head) * (size_t)slots;
    for (int row = args.first_row[sequence]; row < args.first_row[sequence + 1]; row++) {
        const int position = args.positions[row];
        const struct key_range keys = {first_visible(args, position), position + 1};
        for (int head = kv_head * args.group; head < (kv_head + 1) * args.group; head++) {
            for (int d = (int)threadIdx.x; d < dim; d += THREADS)
                q[d] = args.q[((size_t)row * (size_t)args.heads + (size_t)head) * (size_t)dim + (size_t)d] * args.scale;
            __syncthreads();
            const float2 max_sum = softmax_of<T>(rows, scales, q, dim, keys);
            for (int key = keys.begin + warp; key < keys.end; key += WARPS) {
                const float s = score_of<T>(rows, scales, q, dim, key);
                if (threadIdx.x % 32 == 0)
                    to[key] += exp2f(s - max_sum.x) / max_sum.y;
            }
            __syncthreads();
        }
    }
}

template <typename T>
static enum status launch(struct cuda_device *cuda, const struct attention_mass_args *args, const struct attend *attend,
                          struct error *error)
{
    const dim3 grid((unsigned)args->kv_heads, (unsigned)args->batch->sequences);
    return KVLAB_LAUNCH(cuda, error, attention_mass<T>, grid, THREADS, (size_t)args->head_dim * sizeof(float), *attend,
                        args->mass, args->slots);
}

enum status cuda_attention_mass(struct device *device, const struct attention_mass_args *args, struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    struct attention_args attention = {};
    attention.batch = args->batch;
    attention.kv = args->kv;
    attention.q = args->q;
    attention.heads = args->heads;
    attention.kv_heads = args->kv_heads;
    attention.head_dim = args->head_dim;
    attention.scale = args->scale;
    attention.window = args->window;
    const struct attend attend = cuda_make_attend(&attention);
    switch (args->kv.dtype) {
    case DTYPE_F32:
        return launch<float>(cuda, args, &attend, error);
    case DTYPE_F16:
        return launch<__half>(cuda, args, &attend, error);
    case DTYPE_FP8_E4M3:
        return launch<__nv_fp8_e4m3>(cuda, args, &attend, error);
    case DTYPE_INT8:
        return launch<int8_t>(cuda, args, &attend, error);
    default:
        return launch<__nv_bfloat16>(cuda, args, &attend, error);
    }
}
