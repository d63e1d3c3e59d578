/* Body of the products for few rows. Bytes moved: out * in weights, once; x stays in the caches.

   Four weight rows are read side by side. Each is the next row of its own long run of rows, so that the processor's
   prefetchers see four endless streams: rows adjacent to each other would be four streams that end after one row each
   (measured: 10 to 15 % less at one row of x, half at eight). */
#ifndef KVLAB_KERNELS_CPU_HOT_LINEAR_H
#define KVLAB_KERNELS_CPU_HOT_LINEAR_H

#include "kernels/cpu/hot_elementwise.h"

enum {
    DOT_GROUP = 4,          /* rows of x per register tile: 4 * HOT_DOT_OUT accumulators */
    DOT_CHUNK = 1024,       /* values of `in` that all groups go over before the next ones: they stay in the L1 cache */
    DOT_AHEAD_BYTES = 2048, /* software prefetch, worth it from 3 rows on: below, the hardware's own is enough */
};

/* How weights and x meet: converted to f32, or bf16 pairs as they are where the processor multiplies those. */
enum hot_kind { KIND_F32, KIND_F16, KIND_BF16, KIND_PAIRS };

VEC_INLINE size_t kind_x_size(enum hot_kind kind)
{
    return kind == KIND_PAIRS ? 2 : 4;
}
VEC_INLINE size_t kind_weight_size(enum hot_kind kind)
{
    return kind == KIND_F32 ? 4 : 2;
}
VEC_INLINE size_t kind_step(enum hot_kind kind) /* values per vector */
{
    return kind == KIND_PAIRS ? 2 * VL : VL;
}
VEC_INLINE vec kind_load_weight(enum hot_kind kind, const void *from)
{
    return kind == KIND_F16 ? vec_load_f16(from) : kind == KIND_BF16 ? vec_load_bf16(from) : vec_load_f32(from);
}
VEC_INLINE vec kind_multiply_add(enum hot_kind kind, vec x, vec weight, vec sum)
{
#if defined(VEC_HAS_PAIRS)
    if (kind == KIND_PAIRS)
        return vec_dot_pairs(x, weight, sum);
#endif
    (void)kind;
    return vec_fma(x, weight, sum);
}

/* sum[r][j] += x[r][i] weight[j][i] for i in [from, to), R rows of x from row `first` on; to - from whole vectors. */
VEC_INLINE void hot_dot_span(enum hot_kind kind, const struct hot_dot *dot, size_t first, int R, size_t from, size_t to,
                             unsigned prefetch, vec (*sums)[HOT_DOT_OUT])
{
    const size_t in = (size_t)dot->in, x_size = kind_x_size(kind), w_size = kind_weight_size(kind);
    const char *x = (const char *)dot->x + first * in * x_size;
    const char *w[HOT_DOT_OUT];
    vec sum[DOT_GROUP][HOT_DOT_OUT];
    for (int j = 0; j < HOT_DOT_OUT; j++)
        w[j] = dot->weight[j];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < HOT_DOT_OUT; j++)
            sum[r][j] = sums[first + (size_t)r][j];
    for (size_t i = from; i < to; i += kind_step(kind)) {
        vec row[HOT_DOT_OUT];
        for (int j = 0; j < HOT_DOT_OUT; j++) {
            row[j] = kind_load_weight(kind, w[j] + i * w_size);
            if (prefetch & 1u << j)
                __builtin_prefetch(w[j] + i * w_size + DOT_AHEAD_BYTES);
        }
        for (int r = 0; r < R; r++) {
            vec value = vec_load_f32(x + ((size_t)r * in + i) * x_size);
            for (int j = 0; j < HOT_DOT_OUT; j++)
                sum[r][j] = kind_multiply_add(kind, value, row[j], sum[r][j]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < HOT_DOT_OUT; j++)
            sums[first + (size_t)r][j] = sum[r][j];
}

/* Constant R for the compiler, so that the accumulators are registers. */
VEC_INLINE void hot_dot_group(enum hot_kind kind, const struct hot_dot *dot, size_t first, size_t from, size_t to,
                              unsigned prefetch, vec (*sums)[HOT_DOT_OUT])
{
    switch ((size_t)dot->rows - first) {
    case 1:
        hot_dot_span(kind, dot, first, 1, from, to, prefetch, sums);
        break;
    case 2:
        hot_dot_span(kind, dot, first, 2, from, to, prefetch, sums);
        break;
    case 3:
        hot_dot_span(kind, dot, first, 3, from, to, prefetch, sums);
        break;
    default:
        hot_dot_span(kind, dot, first, 4, from, to, prefetch, sums);
        break;
    }
}

/* The last values of a row, less than a vector: copied to where zeros follow them. */
VEC_INLINE void hot_dot_tail(enum hot_kind kind, const struct hot_dot *dot, size_t whole, vec (*sums)[HOT_DOT_OUT])
{
    const size_t in = (size_t)dot->in, x_size = kind_x_size(kind), w_size = kind_weight_size(kind);
    for (size_t j = 0; j < HOT_DOT_OUT; j++) {
        float weights[VL] = {0}, values[VL] = {0};
        memcpy(weights, (const char *)dot->weight[j] + whole * w_size, (in - whole) * w_size);
        for (size_t r = 0; r < (size_t)dot->rows; r++) {
            memcpy(values, (const char *)dot->x + (r * in + whole) * x_size, (in - whole) * x_size);
            sums[r][j] = kind_multiply_add(kind, vec_load_f32(values), kind_load_weight(kind, weights), sums[r][j]);
        }
    }
}

/* Each pass over a chunk asks for its part of the next one, so that memory has work throughout. */
VEC_INLINE unsigned hot_dot_prefetch(size_t rows, size_t first)
{
    size_t groups = (rows + DOT_GROUP - 1) / DOT_GROUP, group = first / DOT_GROUP;
    if (rows <= 2)
        return 0;
    unsigned streams = 0;
    for (size_t j = 0; j < HOT_DOT_OUT; j++)
        streams |= (unsigned)(j % groups == group) << j;
    return streams;
}

VEC_INLINE void hot_dot_any(enum hot_kind kind, const struct hot_dot *dot)
{
    vec sums[HOT_DOT_ROWS][HOT_DOT_OUT];
    size_t rows = (size_t)dot->rows, in = (size_t)dot->in, whole = in / kind_step(kind) * kind_step(kind);
    size_t chunk = rows > DOT_GROUP ? DOT_CHUNK : whole;
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < HOT_DOT_OUT; j++)
            sums[r][j] = vec_set1(0.0f);
    for (size_t from = 0; from < whole; from += chunk) {
        size_t to = whole - from < chunk ? whole : from + chunk;
        for (size_t first = 0; first < rows; first += DOT_GROUP)
            hot_dot_group(kind, dot, first, from, to, hot_dot_prefetch(rows, first), sums);
    }
    if (whole < in)
        hot_dot_tail(kind, dot, whole, sums);
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < HOT_DOT_OUT; j++)
            dot->y[j * dot->stream_stride + r * dot->row_stride] = vec_sum(sums[r][j]);
}

static void dot_f32(const struct hot_dot *dot)
{
    hot_dot_any(KIND_F32, dot);
}
static void dot_f16(const struct hot_dot *dot)
{
    hot_dot_any(KIND_F16, dot);
}
static void dot_bf16(const struct hot_dot *dot)
{
#if defined(VEC_HAS_PAIRS)
    hot_dot_any(KIND_PAIRS, dot);
#else
    hot_dot_any(KIND_BF16, dot);
#endif
}

#endif
