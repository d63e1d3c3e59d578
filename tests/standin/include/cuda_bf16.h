/* __nv_bfloat16 and __nv_bfloat162. */
#ifndef STANDIN_CUDA_BF16_H
#define STANDIN_CUDA_BF16_H

#include "standin_half.h"

typedef standin_float16<standin_bf16_format> __nv_bfloat16;
typedef standin_float16x2<standin_bf16_format> __nv_bfloat162;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
struct __nv_bfloat16_raw {
    unsigned short x;
};

STANDIN_HALF_FUNCTIONS(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162)
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return standin_pair_to_float2(v);
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v)
{
    return v.x;
}
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v)
{
    return v.y;
}
static inline float __low2float(__nv_bfloat162 v)
{
    return (float)v.x;
}
static inline float __high2float(__nv_bfloat162 v)
{
    return (float)v.y;
}

#endif
