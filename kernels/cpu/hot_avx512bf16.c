/* The variant for AVX-512 with bf16 dot products (vdpbf16ps): as the AVX-512 one, but bf16 products take x in bf16 and
   multiply pairs. The instruction adds in f32 and treats subnormal inputs as zero. */
#include "kernels/cpu/cpu_hot.h"

#if defined(__x86_64__)
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/hot_linear.h"

enum { PAIRS = 32 }; /* bf16 values per vector */

VEC_INLINE __m512bh load_pairs(const char *from)
{
    return (__m512bh)_mm512_loadu_si512(from);
}
VEC_INLINE __m512bh load_pairs_part(const char *from, __mmask32 mask)
{
    return (__m512bh)_mm512_maskz_loadu_epi16(mask, from);
}

/* As hot_dot_tile(), 32 values a step. x and weight bf16. */
VEC_INLINE void dot_pairs_tile(const struct hot_dot *dot, int first, int R, int W)
{
    size_t in = (size_t)dot->in, whole = in / PAIRS * PAIRS, row_bytes = in * 2;
    const char *x = (const char *)dot->x + (size_t)first * row_bytes, *w = dot->weight;
    size_t stride = dot->weight_stride_bytes;
    __m512 sum[4][HOT_DOT_OUT];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < W; j++)
            sum[r][j] = _mm512_setzero_ps();
    for (size_t i = 0; i < whole; i += PAIRS) {
        __m512bh row[HOT_DOT_OUT];
        for (int j = 0; j < W; j++)
            row[j] = load_pairs(w + (size_t)j * stride + i * 2);
        for (int r = 0; r < R; r++) {
            __m512bh value = load_pairs(x + (size_t)r * row_bytes + i * 2);
            for (int j = 0; j < W; j++)
                sum[r][j] = _mm512_dpbf16_ps(sum[r][j], value, row[j]);
        }
    }
    if (whole < in) {
        __mmask32 mask = (__mmask32)((1u << (in - whole)) - 1);
        for (int r = 0; r < R; r++) {
            __m512bh value = load_pairs_part(x + (size_t)r * row_bytes + whole * 2, mask);
            for (int j = 0; j < W; j++)
                sum[r][j] =
                    _mm512_dpbf16_ps(sum[r][j], value, load_pairs_part(w + (size_t)j * stride + whole * 2, mask));
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < W; j++)
            dot->y[(size_t)(first + r) * dot->y_stride + (size_t)j] = _mm512_reduce_add_ps(sum[r][j]);
}

static void dot_pairs(const struct hot_dot *dot)
{
    HOT_DOT_DISPATCH(dot_pairs_tile)
}

#define HOT_NAME       "avx512_bf16"
#define HOT_DOT_BF16   dot_pairs
#define HOT_DOT_BF16_X DTYPE_BF16
#include "kernels/cpu/hot_table.h"

const struct cpu_hot *const hot_avx512bf16 = &table;
#else
const struct cpu_hot *const hot_avx512bf16 = NULL;
#endif
