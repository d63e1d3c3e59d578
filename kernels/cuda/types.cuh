/* The storage types inside kernels: float, __half, __nv_bfloat16, and their conversions from and to f32, one value or
   two (the halves of a 32-bit word, lower address first) at a time. Rounding is to nearest, ties to even. Caches may
   also hold __nv_fp8_e4m3, and int8_t codes, which a scale makes values. */
#ifndef KVLAB_KERNELS_CUDA_TYPES_CUH
#define KVLAB_KERNELS_CUDA_TYPES_CUH

#include "kernels/cuda/launch.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <stdint.h>

static __device__ inline float to_f32(float value)
{
    return value;
}
static __device__ inline float to_f32(__half value)
{
    return __half2float(value);
}
static __device__ inline float to_f32(__nv_bfloat16 value)
{
    return __bfloat162float(value);
}
static __device__ inline float to_f32(__nv_fp8_e4m3 value)
{
    return static_cast<float>(value);
}
static __device__ inline float to_f32(int8_t code)
{
    return (float)code;
}

template <typename T> static __device__ inline T from_f32(float value);
template <> __device__ inline float from_f32<float>(float value)
{
    return value;
}
template <> __device__ inline __half from_f32<__half>(float value)
{
    return __float2half_rn(value);
}
template <> __device__ inline __nv_bfloat16 from_f32<__nv_bfloat16>(float value)
{
    return __float2bfloat16_rn(value);
}
template <> __device__ inline __nv_fp8_e4m3 from_f32<__nv_fp8_e4m3>(float value)
{
    return __nv_fp8_e4m3(value);
}
template <> __device__ inline int8_t from_f32<int8_t>(float value) /* within +-127 */
{
    return (int8_t)rintf(value);
}

/* Two 16-bit values in a word. */
template <typename T> static __device__ inline float2 unpack(uint32_t word);
template <> __device__ inline float2 unpack<__half>(uint32_t word)
{
    return make_float2(__half2float(__ushort_as_half((unsigned short)(word & 0xffffu))),
                       __half2float(__ushort_as_half((unsigned short)(word >> 16))));
}
template <> __device__ inline float2 unpack<__nv_bfloat16>(uint32_t word)
{
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

template <typename T> static __device__ inline uint32_t pack(float low, float high);
template <> __device__ inline uint32_t pack<__half>(float low, float high)
{
    return (uint32_t)__half_as_ushort(__float2half_rn(low)) | (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16;
}
template <> __device__ inline uint32_t pack<__nv_bfloat16>(float low, float high)
{
    return (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(low)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
}

/* Four values at an address that is a multiple of their size. */
template <typename T> static __device__ inline float4 load4(const T *from)
{
    const uint2 words = *reinterpret_cast<const uint2 *>(from);
    const float2 low = unpack<T>(words.x), high = unpack<T>(words.y);
    return make_float4(low.x, low.y, high.x, high.y);
}
template <> __device__ inline float4 load4<float>(const float *from)
{
    return *reinterpret_cast<const float4 *>(from);
}
template <typename T> static __device__ inline void store4(T *to, float4 value)
{
    *reinterpret_cast<uint2 *>(to) = make_uint2(pack<T>(value.x, value.y), pack<T>(value.z, value.w));
}
template <> __device__ inline void store4<float>(float *to, float4 value)
{
    *reinterpret_cast<float4 *>(to) = value;
}

/* values[index] of an array that may start on any byte; for paths that need not be fast. */
template <typename T> static __device__ inline float load_any(const void *values, size_t index)
{
    const unsigned char *at = static_cast<const unsigned char *>(values) + index * sizeof(T);
    if (reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0)
        return to_f32(*reinterpret_cast<const T *>(at));
    uint32_t word = 0;
    for (unsigned i = 0; i < sizeof(T); i++)
        word |= (uint32_t)at[i] << (8 * i);
    T typed;
    memcpy(&typed, &word, sizeof typed);
    return to_f32(typed);
}

/* 16 bytes of memory that is read once: not worth a place in the first-level cache. */
static __device__ inline uint4 load_streaming(const void *from)
{
#ifdef __CUDACC__
    return __ldcs(static_cast<const uint4 *>(from));
#else
    return *static_cast<const uint4 *>(from);
#endif
}

static __device__ inline float warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

#endif
