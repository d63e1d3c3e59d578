/* Products with few rows, y = x weight^T + bias, by plain multiply-adds. Bound by reading the weights: every weight is
   read once, 16 bytes at a time with several loads in flight, and serves all rows.
   Bytes moved: linear_bytes() in kernels/work.h. */
#include "kernels/cuda/types.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, IN_FLIGHT = 4 };

struct product {
    const void *x, *weight, *bias;
    void *y;
    int rows, in, out, y_is_f32;
    int split; /* warps that share one output: 1, 2, 4 or 8 */
};

/* A 16-byte load as f32 values: 8 of a 16-bit type, 4 of f32. */
template <typename T> struct vector_of {
    enum { VALUES = 8 };
    static __device__ inline void expand(float *to, uint4 from)
    {
        const uint32_t word[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 pair = unpack<T>(word[i]);
            to[2 * i] = pair.x;
            to[2 * i + 1] = pair.y;
        }
    }
};
template <> struct vector_of<float> {
    enum { VALUES = 4 };
    static __device__ inline void expand(float *to, uint4 from)
    {
        to[0] = __uint_as_float(from.x);
        to[1] = __uint_as_float(from.y);
        to[2] = __uint_as_float(from.z);
        to[3] = __uint_as_float(from.w);
    }
};

/* The warp's share of x[r] . weight[out] for all rows r, in lane order: warp `part` of `split` takes every split-th
   group of 32 vectors. in % VALUES == 0, x and weight aligned to 16 bytes. */
template <typename T, int ROWS>
static __device__ inline void dot_vectors(const struct product &args, int output, int part, float *sum)
{
    enum { VALUES = vector_of<T>::VALUES };
    const size_t in = (size_t)args.in;
    const T *x = static_cast<const T *>(args.x), *weight = static_cast<const T *>(args.weight) + (size_t)output * in;
    const int vectors = args.in / VALUES, step = 32 * args.split;
    for (int first = 32 * part + (int)threadIdx.x % 32; first < vectors; first += IN_FLIGHT * step) {
        uint4 loaded[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++)
            if (first + k * step < vectors)
                loaded[k] = load_streaming(weight + (size_t)(first + k * step) * VALUES);
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) {
            if (first + k * step >= vectors)
                continue;
            float w[VALUES];
            vector_of<T>::expand(w, loaded[k]);
            const T *column = x + (size_t)(first + k * step) * VALUES;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (ROWS > 1 && r >= args.rows)
                    continue;
                float value[VALUES];
                vector_of<T>::expand(value, *reinterpret_cast<const uint4 *>(column + (size_t)r * in));
#pragma unroll
                for (int i = 0; i < VALUES; i++)
                    sum[r] += value[i] * w[i];
            }
        }
    }
}

/* The same for any width and alignment, value by value. */
template <typename T, int ROWS>
static __device__ inline void dot_values(const struct product &args, int output, int part, float *sum)
{
    const size_t in = (size_t)args.in, start = (size_t)output * in;
    for (size_t i = 32 * (size_t)part + threadIdx.x % 32; i < in; i += 32 * (size_t)args.split) {
        float w = load_any<T>(args.weight, start + i);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (r < args.rows)
                sum[r] += load_any<T>(args.x, (size_t)r * in + i) * w;
    }
}

template <typename T>
static __device__ inline void store_output(const struct product &args, int row, int output, float sum)
{
    size_t at = (size_t)row * (size_t)args.out + (size_t)output;
    if (args.bias)
        sum += load_any<T>(args.bias, (size_t)output);
    if (args.y_is_f32)
        static_cast<float *>(args.y)[at] = sum;
    else
        static_cast<T *>(args.y)[at] = from_f32<T>(sum);
}

/* A warp, or `split` of them, per output. The sum's order depends on `in` and split alone. */
template <typename T, int ROWS, bool VECTORS>
static __global__ void __launch_bounds__(THREADS, ROWS > 4 ? 2 : 4) few_rows(struct product args)
{
    __shared__ float partial[WARPS][ROWS];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, part = warp % args.split;
    const int output = (int)blockIdx.x * (WARPS / args.split) + warp / args.split;
    float sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        sum[r] = 0.0f;
    if (output < args.out) {
        if (VECTORS)
            dot_vectors<T, ROWS>(args, output, part, sum);
        else
            dot_values<T, ROWS>(args, output, part, sum);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (ROWS > 1 && r >= args.rows)
            continue;
        float total = warp_sum(sum[r]);
        if (lane == 0)
            partial[warp][r] = total;
    }
    __syncthreads();
    if (part != 0 || output >= args.out)
        return;
    for (int r = lane; r < ROWS && r < args.rows; r += 32) {
        float total = 0.0f;
        for (int i = 0; i < args.split; i++)
            total += partial[warp + i][r];
        store_output<T>(args, r, output, total);
    }
}

/* Enough warps to keep the memory busy: an output is shared among up to 8, as long as each has a round of vectors. */
static int choose_split(const struct cuda_device *cuda, const struct linear_args *args)
{
    const int wanted = cuda->base.info.multiprocessors * 32;
    int split = 1, vectors = (int)((size_t)args->in * dtype_size(args->dtype) / 16);
    while (split < WARPS && args->out * split < wanted && vectors >= 2 * 32 * split)
        split *= 2;
    return split;
}

template <typename T>
static enum status launch(struct cuda_device *cuda, const struct linear_args *args, struct error *error)
{
    struct product rows = {args->x,
                           args->weight,
                           args->bias,
                           args->y,
                           args->rows,
                           args->in,
                           args->out,
                           args->out_dtype == DTYPE_F32,
                           choose_split(cuda, args)};
    unsigned blocks = cuda_blocks((size_t)args->out, (size_t)(WARPS / rows.split));
    bool vectors = args->in % vector_of<T>::VALUES == 0 && reinterpret_cast<uintptr_t>(args->x) % 16 == 0 &&
                   reinterpret_cast<uintptr_t>(args->weight) % 16 == 0;
    if (!vectors)
        return KVLAB_LAUNCH(cuda, error, (few_rows<T, CUDA_FEW_ROWS, false>), blocks, THREADS, 0, rows);
    if (args->rows == 1)
        return KVLAB_LAUNCH(cuda, error, (few_rows<T, 1, true>), blocks, THREADS, 0, rows);
    if (args->rows <= 4)
        return KVLAB_LAUNCH(cuda, error, (few_rows<T, 4, true>), blocks, THREADS, 0, rows);
    return KVLAB_LAUNCH(cuda, error, (few_rows<T, CUDA_FEW_ROWS, true>), blocks, THREADS, 0, rows);
}

enum status cuda_few_rows(struct cuda_device *cuda, const struct linear_args *args, struct error *error)
{
    if (args->dtype == DTYPE_F32)
        return launch<float>(cuda, args, error);
    if (args->dtype == DTYPE_F16)
        return launch<__half>(cuda, args, error);
    return launch<__nv_bfloat16>(cuda, args, error);
}
