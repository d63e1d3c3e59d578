/* Body of the products for few rows. Bytes moved: out * in weights, once; x stays in the caches. */
#ifndef KVLAB_KERNELS_CPU_HOT_LINEAR_H
#define KVLAB_KERNELS_CPU_HOT_LINEAR_H

#include "kernels/cpu/hot_elementwise.h"

/* R rows of x against W rows of the weight: R * W accumulators of VL lanes. x is f32. */
VEC_INLINE void hot_dot_tile(enum dtype dtype, const struct hot_dot *dot, int first, int R, int W)
{
    const float *x = (const float *)dot->x + (size_t)first * (size_t)dot->in;
    const char *w = dot->weight;
    size_t in = (size_t)dot->in, whole = in / VL * VL, stride = dot->weight_stride_bytes, size = hot_size(dtype);
    vec sum[4][HOT_DOT_OUT];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < W; j++)
            sum[r][j] = vec_set1(0.0f);
    for (size_t i = 0; i < whole; i += VL) {
        vec row[HOT_DOT_OUT];
        for (int j = 0; j < W; j++)
            row[j] = hot_load(dtype, w + (size_t)j * stride + i * size);
        for (int r = 0; r < R; r++) {
            vec value = vec_load_f32(x + (size_t)r * in + i);
            for (int j = 0; j < W; j++)
                sum[r][j] = vec_fma(value, row[j], sum[r][j]);
        }
    }
    if (whole < in) {
        for (int r = 0; r < R; r++) {
            vec value = hot_load_part(DTYPE_F32, x + (size_t)r * in + whole, in - whole);
            for (int j = 0; j < W; j++) {
                vec row = hot_load_part(dtype, w + (size_t)j * stride + whole * size, in - whole);
                sum[r][j] = vec_fma(value, row, sum[r][j]);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < W; j++)
            dot->y[(size_t)(first + r) * dot->y_stride + (size_t)j] = vec_sum(sum[r][j]);
}

/* Constant R and W for the compiler, so that the accumulators are registers. TILE(first, R, W). */
#define HOT_DOT_DISPATCH(TILE)                                                                                         \
    for (int first = 0; first < dot->rows; first += 4) {                                                               \
        int left = dot->rows - first;                                                                                  \
        for (int j = 0; dot->out < HOT_DOT_OUT && j < dot->out; j++) {                                                 \
            struct hot_dot one = *dot;                                                                                 \
            one.weight = (const char *)dot->weight + (size_t)j * dot->weight_stride_bytes;                             \
            one.y += j;                                                                                                \
            for (int r = 0; r < 4 && r < left; r++)                                                                    \
                TILE(&one, first + r, 1, 1);                                                                           \
        }                                                                                                              \
        if (dot->out < HOT_DOT_OUT)                                                                                    \
            continue;                                                                                                  \
        if (left >= 4)                                                                                                 \
            TILE(dot, first, 4, 4);                                                                                    \
        else if (left == 3)                                                                                            \
            TILE(dot, first, 3, 4);                                                                                    \
        else if (left == 2)                                                                                            \
            TILE(dot, first, 2, 4);                                                                                    \
        else                                                                                                           \
            TILE(dot, first, 1, 4);                                                                                    \
    }

static void dot_f32(const struct hot_dot *dot)
{
#define TILE(d, first, R, W) hot_dot_tile(DTYPE_F32, d, first, R, W)
    HOT_DOT_DISPATCH(TILE)
#undef TILE
}
static void dot_f16(const struct hot_dot *dot)
{
#define TILE(d, first, R, W) hot_dot_tile(DTYPE_F16, d, first, R, W)
    HOT_DOT_DISPATCH(TILE)
#undef TILE
}
__attribute__((unused)) static void dot_bf16(const struct hot_dot *dot)
{
#define TILE(d, first, R, W) hot_dot_tile(DTYPE_BF16, d, first, R, W)
    HOT_DOT_DISPATCH(TILE)
#undef TILE
}

#endif
