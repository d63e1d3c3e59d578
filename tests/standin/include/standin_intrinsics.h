/* Atomics, loads and stores with cache hints, and arithmetic intrinsics. Threads never run at the same time, so an
   atomic is a plain read and write. Arithmetic is the host's: a fast intrinsic is here as exact as libm. */
#ifndef STANDIN_INTRINSICS_H
#define STANDIN_INTRINSICS_H

#include <cmath>
#include <math.h>

/* ---- atomics: each returns the old value */

#define STANDIN_ATOMIC(name, type, expression)                                                                         \
    static inline type name(type *address, type value)                                                                 \
    {                                                                                                                  \
        type old = *address;                                                                                           \
        *address = expression;                                                                                         \
        return old;                                                                                                    \
    }
#define STANDIN_ATOMIC_INTEGER(type)                                                                                   \
    STANDIN_ATOMIC(atomicAdd, type, (type)(old + value))                                                               \
    STANDIN_ATOMIC(atomicMax, type, old > value ? old : value)                                                         \
    STANDIN_ATOMIC(atomicMin, type, old < value ? old : value)                                                         \
    STANDIN_ATOMIC(atomicExch, type, value)                                                                            \
    STANDIN_ATOMIC(atomicAnd, type, old &value)                                                                        \
    STANDIN_ATOMIC(atomicOr, type, old | value)                                                                        \
    STANDIN_ATOMIC(atomicXor, type, old ^ value)                                                                       \
    static inline type atomicCAS(type *address, type compare, type value)                                              \
    {                                                                                                                  \
        type old = *address;                                                                                           \
        *address = old == compare ? value : old;                                                                       \
        return old;                                                                                                    \
    }
STANDIN_ATOMIC_INTEGER(int)
STANDIN_ATOMIC_INTEGER(unsigned)
STANDIN_ATOMIC_INTEGER(unsigned long long)
STANDIN_ATOMIC(atomicSub, int, old - value)
STANDIN_ATOMIC(atomicSub, unsigned, old - value)
STANDIN_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
STANDIN_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
STANDIN_ATOMIC(atomicAdd, float, old + value)
STANDIN_ATOMIC(atomicAdd, double, old + value)
STANDIN_ATOMIC(atomicExch, float, value)
#undef STANDIN_ATOMIC_INTEGER
#undef STANDIN_ATOMIC

/* ---- cache hints */

#define STANDIN_LOAD(name)                                                                                             \
    template <typename T> T name(const T *address)                                                                     \
    {                                                                                                                  \
        return *address;                                                                                               \
    }
#define STANDIN_STORE(name)                                                                                            \
    template <typename T> void name(T *address, T value)                                                               \
    {                                                                                                                  \
        *address = value;                                                                                              \
    }
STANDIN_LOAD(__ldg)
STANDIN_LOAD(__ldca)
STANDIN_LOAD(__ldcg)
STANDIN_LOAD(__ldcs)
STANDIN_LOAD(__ldlu)
STANDIN_LOAD(__ldcv)
STANDIN_STORE(__stwb)
STANDIN_STORE(__stcg)
STANDIN_STORE(__stcs)
STANDIN_STORE(__stwt)
#undef STANDIN_LOAD
#undef STANDIN_STORE

/* ---- bits */

template <typename To, typename From> To standin_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy((void *)&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float value)
{
    return standin_bits<unsigned>(value);
}
static inline int __float_as_int(float value)
{
    return standin_bits<int>(value);
}
static inline float __uint_as_float(unsigned value)
{
    return standin_bits<float>(value);
}
static inline float __int_as_float(int value)
{
    return standin_bits<float>(value);
}
static inline int __popc(unsigned value)
{
    return __builtin_popcount(value);
}
static inline int __popcll(unsigned long long value)
{
    return __builtin_popcountll(value);
}
static inline int __clz(int value)
{
    return value ? __builtin_clz((unsigned)value) : 32;
}
static inline int __clzll(long long value)
{
    return value ? __builtin_clzll((unsigned long long)value) : 64;
}
static inline int __ffs(int value)
{
    return __builtin_ffs(value);
}
static inline unsigned __brev(unsigned value)
{
    unsigned result = 0;
    for (int i = 0; i < 32; i++)
        result |= (value >> i & 1) << (31 - i);
    return result;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}

/* ---- arithmetic */

/* Macros, because glibc's headers declare some of these names. */
#define __expf(x)                  expf(x)
#define __exp10f(x)                powf(10.0f, x)
#define __logf(x)                  logf(x)
#define __log2f(x)                 log2f(x)
#define __log10f(x)                log10f(x)
#define __sinf(x)                  sinf(x)
#define __cosf(x)                  cosf(x)
#define __tanf(x)                  tanf(x)
#define __tanhf(x)                 tanhf(x)
#define __powf(x, y)               powf(x, y)
#define __sincosf(x, sine, cosine) (*(sine) = sinf(x), *(cosine) = cosf(x))

static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __saturatef(float x)
{
    return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;
}
static inline float rsqrtf(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
static inline int __float2int_rn(float x)
{
    return (int)lrintf(x);
}
static inline int __float2int_rd(float x)
{
    return (int)floorf(x);
}
static inline int __float2int_rz(float x)
{
    return (int)x;
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}

#define STANDIN_MIN_MAX(type)                                                                                          \
    static inline type min(type a, type b)                                                                             \
    {                                                                                                                  \
        return b < a ? b : a;                                                                                          \
    }                                                                                                                  \
    static inline type max(type a, type b)                                                                             \
    {                                                                                                                  \
        return a < b ? b : a;                                                                                          \
    }
STANDIN_MIN_MAX(int)
STANDIN_MIN_MAX(unsigned)
STANDIN_MIN_MAX(long)
STANDIN_MIN_MAX(unsigned long)
STANDIN_MIN_MAX(long long)
STANDIN_MIN_MAX(unsigned long long)
#undef STANDIN_MIN_MAX
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}

static inline size_t __cvta_generic_to_shared(const void *pointer)
{
    return (size_t)pointer;
}
[[noreturn]] static inline void __trap()
{
    abort();
}

#endif
