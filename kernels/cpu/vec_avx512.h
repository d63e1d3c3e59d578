/* Vector primitives: 16 floats, AVX-512 F, BW, VL, DQ. */
#ifndef KVLAB_KERNELS_CPU_VEC_AVX512_H
#define KVLAB_KERNELS_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VEC_INLINE static inline __attribute__((always_inline, unused))

enum { VL = 16, VEC_TILE_VECTORS = 4 }; /* lanes; vectors of columns in a register tile */

typedef __m512 vec;

VEC_INLINE vec vec_set1(float value)
{
    return _mm512_set1_ps(value);
}
VEC_INLINE vec vec_load_f32(const void *from)
{
    return _mm512_loadu_ps(from);
}
VEC_INLINE vec vec_load_bf16(const void *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from)), 16));
}
VEC_INLINE vec vec_load_f16(const void *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(from));
}
VEC_INLINE vec vec_load_int8(const void *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
}
/* As f16, whose exponents count 8 more: exact, and subnormals come at no extra cost. All ones become an f16 NaN. */
VEC_INLINE vec vec_load_fp8(const void *from)
{
    const __m256i magnitude = _mm256_set1_epi16(0x3f80);
    __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(from)), 7);
    __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(half, magnitude), magnitude);
    half = _mm256_and_si256(half, _mm256_set1_epi16((short)0xbf80));
    half = _mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7fff));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}
/* The first and the second bf16 of each lane's pair (the first lies in the low half: little-endian). */
VEC_INLINE vec vec_pair_first(vec pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
VEC_INLINE vec vec_pair_second(vec pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32((int)0xffff0000u)));
}
VEC_INLINE void vec_store_f32(void *to, vec a)
{
    _mm512_storeu_ps(to, a);
}
/* Rounds to nearest even in integers (vcvtneps2bf16 would flush subnormals); a NaN stays a quiet one. */
VEC_INLINE void vec_store_bf16(void *to, vec a)
{
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(to, _mm512_cvtepi32_epi16(rounded));
}
VEC_INLINE void vec_store_f16(void *to, vec a)
{
    _mm256_storeu_si256(to, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
VEC_INLINE vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
VEC_INLINE vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
VEC_INLINE vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
VEC_INLINE vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
/* a b + c */
VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
#if defined(VEC_HAS_PAIRS)
VEC_INLINE __m512i vec_low_pairs(void) /* 16-bit words 2 i and 2 i + 1 are i */
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_or_si512(lane, _mm512_slli_epi32(lane, 16));
}
/* Lane i: a[2i] b[2i] + a[2i + 1] b[2i + 1] + c[i], a and b 32 bf16 each. The instruction adds in f32 and takes
   subnormal inputs for zeros. */
VEC_INLINE vec vec_dot_pairs(vec a, vec b, vec c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
/* Two rows of 32 bf16 to pairs (a[i], b[i]): those of i < 16, and those of i >= 16. */
VEC_INLINE vec vec_pair_rows_low(vec a, vec b)
{
    const __m512i index = _mm512_add_epi32(_mm512_set1_epi32(0x00200000), vec_low_pairs());
    return _mm512_castsi512_ps(_mm512_permutex2var_epi16(_mm512_castps_si512(a), index, _mm512_castps_si512(b)));
}
VEC_INLINE vec vec_pair_rows_high(vec a, vec b)
{
    const __m512i index = _mm512_add_epi32(_mm512_set1_epi32(0x00300010), vec_low_pairs());
    return _mm512_castsi512_ps(_mm512_permutex2var_epi16(_mm512_castps_si512(a), index, _mm512_castps_si512(b)));
}
/* 32 bf16: those of a, then those of b, rounded to nearest even (subnormal results become zeros). */
VEC_INLINE vec vec_round_pairs(vec a, vec b)
{
    return _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(b, a));
}
/* The 8 bytes at `from`, again and again; a load does that without an instruction of its own for it. */
VEC_INLINE vec vec_repeat_two(const void *from)
{
    long long two;
    memcpy(&two, from, sizeof two);
    return _mm512_castsi512_ps(_mm512_set1_epi64(two));
}
/* Lanes 2 i and 2 i + 1: a[2i] + a[2i + 1] and b[2i] + b[2i + 1]. */
VEC_INLINE vec vec_join_two(vec a, vec b)
{
    vec sums = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
    return _mm512_permute_ps(sums, 0xd8);
}
VEC_INLINE vec vec_swap_neighbours(vec a) /* lanes 2 i and 2 i + 1 */
{
    return _mm512_permute_ps(a, 0xb1);
}
VEC_INLINE int vec_any_greater(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}
/* 32 int8 codes, or 32 fp8, as bf16: exact. A normal fp8 is moved into place and its exponent rebased from 7 to 127;
   the eight below 2^-6 are looked up. */
VEC_INLINE vec vec_pairs_of_int8(const void *from)
{
    const char *at = from;
    return vec_round_pairs(vec_load_int8(at), vec_load_int8(at + 16));
}
VEC_INLINE vec vec_pairs_of_fp8(const void *from)
{
    const __m512i small =
        _mm512_castsi128_si512(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
    __m512i bits = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from));
    __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7f));
    __m512i value = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    value = _mm512_mask_permutexvar_epi16(value, _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(8)), magnitude,
                                          small);
    value = _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f)),
                                  _mm512_set1_epi16(0x7fc0));
    __m512i sign = _mm512_and_si512(_mm512_slli_epi16(bits, 8), _mm512_set1_epi16((short)0x8000));
    return _mm512_castsi512_ps(_mm512_or_si512(value, sign));
}
VEC_INLINE vec vec_set1_pair(uint32_t pair)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((int)pair));
}
/* 2^x, 0 at -infinity; relative error under 3e-6, for what is rounded to bf16 next. 2^x = 2^n 2^f, n the whole number
   below: the polynomial is the minimax one of degree 4 for 2^f on [0, 1). */
VEC_INLINE vec vec_exp2_short(vec x)
{
    vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec p = _mm512_set1_ps(0.0135341706f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0520114633f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.241442749f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693003838f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.00000259f));
    return _mm512_scalef_ps(p, x);
}
#endif
/* The larger; b where either is a NaN. */
VEC_INLINE vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
VEC_INLINE vec vec_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}
VEC_INLINE vec vec_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a 2^n for whole n in [-127, 127]; -127 gives 0 */
VEC_INLINE vec vec_scale_exponent(vec a, vec n)
{
    __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_mul_ps(a, _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)));
}
VEC_INLINE float vec_sum(vec a)
{
    return _mm512_reduce_add_ps(a);
}
/* to[0] = the sum of a's lanes, to[1] of b's, and so on */
VEC_INLINE void vec_store_four_sums(float *to, vec a, vec b, vec c, vec d)
{
    vec ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    vec cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d low = _mm512_castps_pd(ab), high = _mm512_castps_pd(cd);
    vec sums =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
VEC_INLINE float vec_largest(vec a)
{
    return _mm512_reduce_max_ps(a);
}

/* rows[i] lane j <-> rows[j] lane i */
VEC_INLINE void vec_transpose(vec rows[16])
{
    vec a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; j++) {
            __m512d low = _mm512_castps_pd(a[i + j]), high = _mm512_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    /* Now b[4 g + c] holds in 128-bit lane l column 4 l + c of rows 4 g .. 4 g + 3. */
    for (int c = 0; c < 4; c++) {
        vec low01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88), low23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        vec odd01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd), odd23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
        rows[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
        rows[8 + c] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
        rows[4 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
        rows[12 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
    }
}

#endif
