/* Vector primitives: 4 floats, in the compilers' vector extension (SSE2 on any x86-64, NEON on aarch64). */
#ifndef KVLAB_KERNELS_CPU_VEC_PORTABLE_H
#define KVLAB_KERNELS_CPU_VEC_PORTABLE_H

#include "kernels/dtype.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define VEC_INLINE static inline __attribute__((always_inline, unused))

enum { VL = 4, VEC_TILE_VECTORS = 2 }; /* lanes; vectors of columns in a register tile */

typedef float vec __attribute__((vector_size(16)));
typedef int32_t vec_int __attribute__((vector_size(16)));
typedef uint32_t vec_bits __attribute__((vector_size(16)));
typedef uint16_t vec_half __attribute__((vector_size(8)));
typedef int8_t vec_codes __attribute__((vector_size(4)));

VEC_INLINE vec vec_set1(float value)
{
    return (vec){value, value, value, value};
}
VEC_INLINE vec vec_select(vec_int mask, vec a, vec b)
{
    return (vec)(((vec_int)a & mask) | ((vec_int)b & ~mask));
}
VEC_INLINE vec vec_load_f32(const void *from)
{
    vec a;
    memcpy(&a, from, sizeof a);
    return a;
}
VEC_INLINE vec_bits vec_load_half(const void *from)
{
    vec_half half;
    memcpy(&half, from, sizeof half);
    return __builtin_convertvector(half, vec_bits);
}
VEC_INLINE vec vec_load_bf16(const void *from)
{
    return (vec)(vec_load_half(from) << 16);
}
/* Exponent and fraction moved into place and rebased by a product with 2^112, which is exact, also for subnormals;
   infinities and NaNs get all exponent bits. */
VEC_INLINE vec vec_load_f16(const void *from)
{
    vec_bits half = vec_load_half(from), magnitude = (half & 0x7fff) << 13;
    vec_bits special = (vec_bits)(magnitude >= (vec_bits){0x0f800000u, 0x0f800000u, 0x0f800000u, 0x0f800000u});
    vec_bits value = (vec_bits)((vec)magnitude * 0x1p112f);
    return (vec)(value | (special & 0x7f800000u) | (half & 0x8000) << 16);
}
VEC_INLINE vec_int vec_load_codes(const void *from)
{
    vec_codes codes;
    memcpy(&codes, from, sizeof codes);
    return __builtin_convertvector(codes, vec_int);
}
VEC_INLINE vec vec_load_int8(const void *from)
{
    return __builtin_convertvector(vec_load_codes(from), vec);
}
/* As f16 above, with 2^120. */
VEC_INLINE vec vec_load_fp8(const void *from)
{
    vec_bits bits = (vec_bits)vec_load_codes(from), magnitude = bits & 0x7f;
    vec_bits nan = (vec_bits)(magnitude == 0x7f), value = (vec_bits)((vec)(magnitude << 20) * 0x1p120f);
    return (vec)(value | (nan & 0x7fc00000u) | (bits & 0x80000000u));
}
/* The first and the second bf16 of each lane's pair (the first lies in the low half: little-endian). */
VEC_INLINE vec vec_pair_first(vec pairs)
{
    return (vec)((vec_bits)pairs << 16);
}
VEC_INLINE vec vec_pair_second(vec pairs)
{
    return (vec)((vec_bits)pairs & 0xffff0000u);
}
VEC_INLINE void vec_store_f32(void *to, vec a)
{
    memcpy(to, &a, sizeof a);
}
/* Rounds to nearest even; a NaN stays a quiet one. */
VEC_INLINE void vec_store_bf16(void *to, vec a)
{
    vec_bits bits = (vec_bits)a, nan = (vec_bits)(a != a);
    vec_bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vec_half half = __builtin_convertvector((rounded & ~nan) | (((bits >> 16) | 0x40) & nan), vec_half);
    memcpy(to, &half, sizeof half);
}
VEC_INLINE void vec_store_f16(void *to, vec a)
{
    for (size_t i = 0; i < 4; i++)
        dtype_store(DTYPE_F16, to, i, a[i]);
}
VEC_INLINE vec vec_add(vec a, vec b)
{
    return a + b;
}
VEC_INLINE vec vec_sub(vec a, vec b)
{
    return a - b;
}
VEC_INLINE vec vec_mul(vec a, vec b)
{
    return a * b;
}
VEC_INLINE vec vec_div(vec a, vec b)
{
    return a / b;
}
/* a b + c, with one rounding where the processor can */
VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
#if defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
/* The larger; b where either is a NaN. */
VEC_INLINE vec vec_max(vec a, vec b)
{
    return vec_select(a > b, a, b);
}
VEC_INLINE vec vec_min(vec a, vec b)
{
    return vec_select(a < b, a, b);
}
/* To the nearest whole number, for |a| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction. */
VEC_INLINE vec vec_round(vec a)
{
    return (a + 0x1.8p23f) - 0x1.8p23f;
}
/* a 2^n for whole n in [-127, 127]; -127 gives 0 */
VEC_INLINE vec vec_scale_exponent(vec a, vec n)
{
    vec_bits exponent = (vec_bits)(n + (0x1.8p23f + 127.0f)) << 23; /* n + 127 in the low bits */
    return a * (vec)exponent;
}
VEC_INLINE float vec_sum(vec a)
{
    return (a[0] + a[2]) + (a[1] + a[3]);
}
/* to[0] = the sum of a's lanes, to[1] of b's, and so on */
VEC_INLINE void vec_store_four_sums(float *to, vec a, vec b, vec c, vec d)
{
    const vec sums = {vec_sum(a), vec_sum(b), vec_sum(c), vec_sum(d)};
    vec_store_f32(to, sums);
}
VEC_INLINE float vec_largest(vec a)
{
    float low = a[0] > a[1] ? a[0] : a[1], high = a[2] > a[3] ? a[2] : a[3];
    return low > high ? low : high;
}

/* rows[i] lane j <-> rows[j] lane i */
VEC_INLINE void vec_transpose(vec rows[4])
{
    vec a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    vec b = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    vec c = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    vec d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

#endif
