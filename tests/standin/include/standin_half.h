/* One template for __half and __nv_bfloat16: 16-bit floats whose arithmetic is done in f32 and rounded to nearest, ties
   to even. An f32 holds the exact product, and sum and quotient round to 11 or 8 bits the same with f32's 24 bits
   in between (24 >= 2 * 11 + 2), so single operations are rounded correctly; fma goes through double. */
#ifndef STANDIN_HALF_H
#define STANDIN_HALF_H

#include "cuda_runtime.h"

/* Rounds a finite or infinite double or a NaN to a float format of the given bits; the bits, without sign. */
uint32_t standin_round(double magnitude, int mantissa_bits, int exponent_bits);
/* The value of such bits. */
static inline double standin_expand(uint32_t bits, int mantissa_bits, int exponent_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
    double fraction = bits & ((1u << mantissa_bits) - 1), sign = bits >> (mantissa_bits + exponent_bits) & 1 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * ldexp(exponent ? fraction + ldexp(1, mantissa_bits) : fraction,
                        (exponent ? exponent : 1) - bias - mantissa_bits);
}

struct standin_bf16_format {
    static float load(uint16_t bits)
    {
        return standin_bits<float>((uint32_t)bits << 16);
    }
    static uint16_t store(float value)
    {
        uint32_t bits = standin_bits<uint32_t>(value);
        if (value != value)
            return 0x7fff; /* the canonical NaN that the GPU's conversion gives */
        return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    static uint16_t store_double(double value)
    {
        if (value != value)
            return 0x7fff;
        return (uint16_t)(standin_round(fabs(value), 7, 8) | (signbit(value) ? 0x8000u : 0u));
    }
};

struct standin_f16_format {
    static float load(uint16_t bits)
    {
        return (float)standin_expand(bits, 10, 5);
    }
    static uint16_t store(float value)
    {
        return store_double(value);
    }
    static uint16_t store_double(double value)
    {
        if (value != value)
            return 0x7fff;
        return (uint16_t)(standin_round(fabs(value), 10, 5) | (signbit(value) ? 0x8000u : 0u));
    }
};

template <typename Format> struct __align__(2) standin_float16
{
    uint16_t standin_x;

    standin_float16() = default;
    standin_float16(float value) : standin_x(Format::store(value))
    {
    }
    standin_float16(double value) : standin_x(Format::store_double(value))
    {
    }
    explicit standin_float16(int value) : standin_x(Format::store_double(value))
    {
    }
    operator float() const
    {
        return Format::load(standin_x);
    }
    static standin_float16 from_bits(uint16_t bits)
    {
        standin_float16 result;
        result.standin_x = bits;
        return result;
    }
    standin_float16 operator-() const
    {
        return from_bits((uint16_t)(standin_x ^ 0x8000u));
    }
};

#define STANDIN_HALF_OPERATOR(op)                                                                                      \
    template <typename F> standin_float16<F> operator op(standin_float16<F> a, standin_float16<F> b)                   \
    {                                                                                                                  \
        return standin_float16<F>((float)a op(float) b);                                                               \
    }                                                                                                                  \
    template <typename F> standin_float16<F> &operator op##=(standin_float16<F> &a, standin_float16<F> b)              \
    {                                                                                                                  \
        return a = a op b;                                                                                             \
    }
STANDIN_HALF_OPERATOR(+)
STANDIN_HALF_OPERATOR(-)
STANDIN_HALF_OPERATOR(*)
STANDIN_HALF_OPERATOR(/)
#undef STANDIN_HALF_OPERATOR
#define STANDIN_HALF_COMPARE(op)                                                                                       \
    template <typename F> bool operator op(standin_float16<F> a, standin_float16<F> b)                                 \
    {                                                                                                                  \
        return (float)a op(float) b;                                                                                   \
    }
STANDIN_HALF_COMPARE(<)
STANDIN_HALF_COMPARE(>)
STANDIN_HALF_COMPARE(<=)
STANDIN_HALF_COMPARE(>=)
STANDIN_HALF_COMPARE(==)
STANDIN_HALF_COMPARE(!=)
#undef STANDIN_HALF_COMPARE

template <typename F> struct __align__(4) standin_float16x2
{
    standin_float16<F> x, y;

    standin_float16x2() = default;
    standin_float16x2(standin_float16<F> a, standin_float16<F> b) : x(a), y(b)
    {
    }
};

/* Functions that both types have; pair: "half2" or "bfloat162" (as in __float22bfloat162_rn), type: "half", "bfloat16"
 */
#define STANDIN_HALF_FUNCTIONS(T, T2, name, pair)                                                                      \
    static inline T __float2##name(float v)                                                                            \
    {                                                                                                                  \
        return T(v);                                                                                                   \
    }                                                                                                                  \
    static inline T __float2##name##_rn(float v)                                                                       \
    {                                                                                                                  \
        return T(v);                                                                                                   \
    }                                                                                                                  \
    static inline T __double2##name(double v)                                                                          \
    {                                                                                                                  \
        return T(v);                                                                                                   \
    }                                                                                                                  \
    static inline float __##name##2float(T v)                                                                          \
    {                                                                                                                  \
        return (float)v;                                                                                               \
    }                                                                                                                  \
    static inline T2 __float2##pair##_rn(float v)                                                                      \
    {                                                                                                                  \
        return T2(T(v), T(v));                                                                                         \
    }                                                                                                                  \
    static inline T2 __floats2##pair##_rn(float a, float b)                                                            \
    {                                                                                                                  \
        return T2(T(a), T(b));                                                                                         \
    }                                                                                                                  \
    static inline T2 __float22##pair##_rn(float2 v)                                                                    \
    {                                                                                                                  \
        return T2(T(v.x), T(v.y));                                                                                     \
    }                                                                                                                  \
    static inline T2 __##name##2##pair(T v)                                                                            \
    {                                                                                                                  \
        return T2(v, v);                                                                                               \
    }                                                                                                                  \
    static inline unsigned short __##name##_as_ushort(T v)                                                             \
    {                                                                                                                  \
        return v.standin_x;                                                                                            \
    }                                                                                                                  \
    static inline T __ushort_as_##name(unsigned short v)                                                               \
    {                                                                                                                  \
        return T::from_bits(v);                                                                                        \
    }

template <typename F> float2 standin_pair_to_float2(standin_float16x2<F> v)
{
    return make_float2((float)v.x, (float)v.y);
}
#define STANDIN_HALF_ONE(name, expression)                                                                             \
    template <typename F> standin_float16<F> name(standin_float16<F> a, standin_float16<F> b)                          \
    {                                                                                                                  \
        return standin_float16<F>(expression);                                                                         \
    }                                                                                                                  \
    template <typename F> standin_float16x2<F> name##2(standin_float16x2<F> a, standin_float16x2<F> b)                 \
    {                                                                                                                  \
        return standin_float16x2<F>(name(a.x, b.x), name(a.y, b.y));                                                   \
    }
STANDIN_HALF_ONE(__hadd, (float)a + (float)b)
STANDIN_HALF_ONE(__hsub, (float)a - (float)b)
STANDIN_HALF_ONE(__hmul, (float)a *(float)b)
STANDIN_HALF_ONE(__hmax, fmaxf((float)a, (float)b))
STANDIN_HALF_ONE(__hmin, fminf((float)a, (float)b))
#undef STANDIN_HALF_ONE
template <typename F> standin_float16<F> __hfma(standin_float16<F> a, standin_float16<F> b, standin_float16<F> c)
{
    return standin_float16<F>((double)(float)a * (double)(float)b + (double)(float)c);
}
template <typename F>
standin_float16x2<F> __hfma2(standin_float16x2<F> a, standin_float16x2<F> b, standin_float16x2<F> c)
{
    return standin_float16x2<F>(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
template <typename F> bool __hisnan(standin_float16<F> a)
{
    return (float)a != (float)a;
}
template <typename F> standin_float16<F> __low2half_of(standin_float16x2<F> v)
{
    return v.x;
}

#endif
