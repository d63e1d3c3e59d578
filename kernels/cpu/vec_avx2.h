/* Vector primitives: 8 floats, AVX2, FMA and F16C. */
#ifndef KVLAB_KERNELS_CPU_VEC_AVX2_H
#define KVLAB_KERNELS_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define VEC_INLINE static inline __attribute__((always_inline, unused))

enum { VL = 8, VEC_TILE_VECTORS = 2 }; /* lanes; vectors of columns in a register tile */

typedef __m256 vec;

VEC_INLINE vec vec_set1(float value)
{
    return _mm256_set1_ps(value);
}
VEC_INLINE vec vec_load_f32(const void *from)
{
    return _mm256_loadu_ps(from);
}
VEC_INLINE vec vec_load_bf16(const void *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from)), 16));
}
VEC_INLINE vec vec_load_f16(const void *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(from));
}
VEC_INLINE vec vec_load_int8(const void *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from)));
}
/* As f16, whose exponents count 8 more: exact, and subnormals come at no extra cost. All ones become an f16 NaN. */
VEC_INLINE vec vec_load_fp8(const void *from)
{
    const __m128i magnitude = _mm_set1_epi16(0x3f80);
    __m128i half = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(from)), 7);
    __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, magnitude), magnitude);
    half = _mm_or_si128(_mm_and_si128(half, _mm_set1_epi16((short)0xbf80)), _mm_srli_epi16(nan, 1));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
}
/* The first and the second bf16 of each lane's pair (the first lies in the low half: little-endian). */
VEC_INLINE vec vec_pair_first(vec pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}
VEC_INLINE vec vec_pair_second(vec pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32((int)0xffff0000u)));
}
VEC_INLINE void vec_store_f32(void *to, vec a)
{
    _mm256_storeu_ps(to, a);
}
/* Rounds to nearest even in integers; a NaN stays a quiet one. */
VEC_INLINE void vec_store_bf16(void *to, vec a)
{
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    _mm_storeu_si128(to, _mm256_castsi256_si128(packed));
}
VEC_INLINE void vec_store_f16(void *to, vec a)
{
    _mm_storeu_si128(to, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
VEC_INLINE vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
VEC_INLINE vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
VEC_INLINE vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
VEC_INLINE vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
/* a b + c */
VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
/* The larger; b where either is a NaN. */
VEC_INLINE vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
VEC_INLINE vec vec_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}
VEC_INLINE vec vec_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a 2^n for whole n in [-127, 127]; -127 gives 0 */
VEC_INLINE vec vec_scale_exponent(vec a, vec n)
{
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
VEC_INLINE float vec_sum(vec a)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
/* to[0] = the sum of a's lanes, to[1] of b's, and so on */
VEC_INLINE void vec_store_four_sums(float *to, vec a, vec b, vec c, vec d)
{
    vec sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}
VEC_INLINE float vec_largest(vec a)
{
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

/* rows[i] lane j <-> rows[j] lane i */
VEC_INLINE void vec_transpose(vec rows[8])
{
    vec a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
            b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
        }
    }
    for (int c = 0; c < 4; c++) {
        rows[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
        rows[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
}

#endif
