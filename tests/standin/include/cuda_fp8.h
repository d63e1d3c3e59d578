/* __nv_fp8_e4m3 (OCP E4M3: no infinity, 0x7f is NaN, largest 448) and its conversions, saturating as CUDA's do. */
#ifndef STANDIN_CUDA_FP8_H
#define STANDIN_CUDA_FP8_H

#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 }; /* the second is refused */

__nv_fp8_storage_t standin_e4m3_from_double(double value, __nv_saturation_t saturate);
float standin_e4m3_to_float(__nv_fp8_storage_t bits);

struct __nv_fp8_e4m3 {
    __nv_fp8_storage_t __x;

    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float value) : __x(standin_e4m3_from_double(value, __NV_SATFINITE))
    {
    }
    explicit __nv_fp8_e4m3(double value) : __x(standin_e4m3_from_double(value, __NV_SATFINITE))
    {
    }
    explicit __nv_fp8_e4m3(__half value) : __x(standin_e4m3_from_double((float)value, __NV_SATFINITE))
    {
    }
    explicit __nv_fp8_e4m3(__nv_bfloat16 value) : __x(standin_e4m3_from_double((float)value, __NV_SATFINITE))
    {
    }
    explicit operator float() const
    {
        return standin_e4m3_to_float(__x);
    }
};

static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t saturate,
                                                       __nv_fp8_interpretation_t kind)
{
    if (kind != __NV_E4M3)
        abort();
    return standin_e4m3_from_double(value, saturate);
}
static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind)
{
    if (kind != __NV_E4M3)
        abort();
    return {__half(standin_e4m3_to_float(bits)).standin_x};
}

#endif
