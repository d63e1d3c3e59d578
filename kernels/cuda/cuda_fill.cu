/* Filling memory with values, and reading it as fast as the card can. */
#include "kernels/cuda/types.cuh"

#include <math.h>

enum { THREADS = 256, FILL_BLOCKS_PER_SM = 8 };

static unsigned fill_blocks(const struct cuda_device *cuda, size_t count)
{
    size_t blocks = (count + THREADS - 1) / THREADS,
           most = (size_t)cuda->base.info.multiprocessors * FILL_BLOCKS_PER_SM;
    return (unsigned)(blocks < most ? blocks : most);
}

/* The value of index i is the CPU device's, bit for bit: two rounds of multiply and xor-shift over the index's lower
   half, keyed by the seed and the upper half; the top 24 bits, signed, make the value. */
static __device__ uint64_t mix_key(uint64_t seed, uint64_t upper)
{
    uint64_t key = (seed + 0x9e3779b97f4a7c15ull) ^ (upper * 0xd1342543de82ef95ull);
    key = (key ^ (key >> 32)) * 0xd6e8feb86659fd93ull;
    return (key ^ (key >> 32)) * 0xd6e8feb86659fd93ull;
}

static __device__ float random_value(uint64_t key, uint32_t index, float unit)
{
    uint32_t x = index ^ (uint32_t)(key >> 32);
    x ^= x >> 16;
    x *= 0x7feb352du;
    x = (x ^ x >> 15) + (uint32_t)key;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    x *= 0x9e3779b1u;
    return (float)((int32_t)x >> 8) * unit;
}

template <typename T> static __global__ void fill_random(T *values, size_t count, uint64_t seed, float unit)
{
    uint64_t upper = 0, key = mix_key(seed, 0);
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        if (i >> 32 != upper) {
            upper = i >> 32;
            key = mix_key(seed, upper);
        }
        values[i] = from_f32<T>(random_value(key, (uint32_t)i, unit));
    }
}

template <typename T> static __global__ void fill_value(T *values, size_t count, float value)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        values[i] = from_f32<T>(value);
}

template <typename T>
static enum status launch_random(struct cuda_device *cuda, void *values, size_t count, uint64_t seed, float scale,
                                 struct error *error)
{
    return KVLAB_LAUNCH(cuda, error, fill_random<T>, fill_blocks(cuda, count), THREADS, 0, static_cast<T *>(values),
                        count, seed, scale * 0x1p-23f);
}

enum status cuda_fill_random(struct device *device, void *values, enum dtype dtype, size_t count, uint64_t seed,
                             float scale, struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    if (!(fabsf(scale) > 0.0f) || isinf(scale))
        return error_set(error, STATUS_INPUT, "fill_random: scale %g would not give random values", (double)scale);
    if (count == 0)
        return STATUS_OK;
    switch (dtype) {
    case DTYPE_F32:
        return launch_random<float>(cuda, values, count, seed, scale, error);
    case DTYPE_F16:
        return launch_random<__half>(cuda, values, count, seed, scale, error);
    case DTYPE_FP8_E4M3:
        return launch_random<__nv_fp8_e4m3>(cuda, values, count, seed, scale, error);
    case DTYPE_INT8:
        return launch_random<int8_t>(cuda, values, count, seed, scale, error);
    default:
        return launch_random<__nv_bfloat16>(cuda, values, count, seed, scale, error);
    }
}

template <typename T>
static enum status launch_value(struct cuda_device *cuda, void *values, size_t count, float value, struct error *error)
{
    return KVLAB_LAUNCH(cuda, error, fill_value<T>, fill_blocks(cuda, count), THREADS, 0, static_cast<T *>(values),
                        count, value);
}

enum status cuda_fill_value(struct device *device, void *values, enum dtype dtype, size_t count, float value,
                            struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    if (count == 0)
        return STATUS_OK;
    switch (dtype) {
    case DTYPE_F32:
        return launch_value<float>(cuda, values, count, value, error);
    case DTYPE_F16:
        return launch_value<__half>(cuda, values, count, value, error);
    case DTYPE_FP8_E4M3:
        return launch_value<__nv_fp8_e4m3>(cuda, values, count, value, error);
    case DTYPE_INT8:
        return launch_value<int8_t>(cuda, values, count, value, error);
    default:
        return launch_value<__nv_bfloat16>(cuda, values, count, value, error);
    }
}

/* ---- the read ceiling ---- */

enum { READ_IN_FLIGHT = 8 }; /* 16-byte loads of a thread before their first use */

/* One variable of the module rather than an allocation: every byte that was allocated is in the ledger. */
static __device__ unsigned long long read_sum;

static __global__ void clear_sum(void)
{
    read_sum = 0;
}

/* After the stream has been waited for. */
enum status cuda_read_checksum(uint64_t *checksum, struct error *error)
{
    unsigned long long sum = 0;
    CUDA_TRY(error, cudaMemcpyFromSymbol(&sum, read_sum, sizeof sum));
    *checksum = sum;
    return STATUS_OK;
}

/* Sum of the 64-bit words: integers, so the order does not matter. vectors: of 16 bytes.
   Bytes moved: 16 * vectors, once. */
static __global__ void __launch_bounds__(THREADS) read_words(const uint4 *from, size_t vectors)
{
    const size_t step = (size_t)gridDim.x * THREADS;
    unsigned long long total = 0;
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    for (; i + (READ_IN_FLIGHT - 1) * step < vectors; i += READ_IN_FLIGHT * step) {
        uint4 part[READ_IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < READ_IN_FLIGHT; k++)
            part[k] = load_streaming(from + i + k * step);
#pragma unroll
        for (int k = 0; k < READ_IN_FLIGHT; k++)
            total +=
                ((unsigned long long)part[k].y << 32 | part[k].x) + ((unsigned long long)part[k].w << 32 | part[k].z);
    }
    for (; i < vectors; i += step) {
        uint4 part = load_streaming(from + i);
        total += ((unsigned long long)part.y << 32 | part.x) + ((unsigned long long)part.w << 32 | part.z);
    }
    for (int distance = 16; distance > 0; distance /= 2)
        total += __shfl_xor_sync(0xffffffffu, total, distance);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&read_sum, total);
}

enum status cuda_read_bytes(struct device *device, const void *memory, size_t bytes, uint64_t *checksum,
                            struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    size_t vectors = bytes / sizeof(uint4);
    unsigned most = (unsigned)cuda->base.info.multiprocessors * (2048 / THREADS);
    unsigned blocks = cuda_blocks(vectors, THREADS);
    if (KVLAB_LAUNCH(cuda, error, clear_sum, 1, 1, 0) != STATUS_OK)
        return error->status;
    cuda->checksum_wanted = checksum;
    return KVLAB_LAUNCH(cuda, error, read_words, blocks < most ? blocks : most, THREADS, 0,
                        static_cast<const uint4 *>(memory), vectors);
}
