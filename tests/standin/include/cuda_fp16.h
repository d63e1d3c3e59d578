/* __half and __half2. */
#ifndef STANDIN_CUDA_FP16_H
#define STANDIN_CUDA_FP16_H

#include "standin_half.h"

typedef standin_float16<standin_f16_format> __half;
typedef standin_float16x2<standin_f16_format> __half2;
typedef __half half;
typedef __half2 half2;
struct __half_raw {
    unsigned short x;
};

STANDIN_HALF_FUNCTIONS(__half, __half2, half, half2)
static inline float2 __half22float2(__half2 v)
{
    return standin_pair_to_float2(v);
}
static inline __half2 __halves2half2(__half a, __half b)
{
    return __half2(a, b);
}
static inline __half2 make_half2(__half a, __half b)
{
    return __half2(a, b);
}
static inline __half __low2half(__half2 v)
{
    return v.x;
}
static inline __half __high2half(__half2 v)
{
    return v.y;
}
static inline float __low2float(__half2 v)
{
    return (float)v.x;
}
static inline float __high2float(__half2 v)
{
    return (float)v.y;
}

#endif
