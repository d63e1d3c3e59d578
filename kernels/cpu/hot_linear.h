/* Body of the products for few rows. Bytes moved: out * in weights, once; x stays in the caches.

   Four weight rows are read side by side. Each is the next row of its own long run of rows, so that the processor's
   prefetchers see four endless streams: rows adjacent to each other would be four streams that end after one row each
   (measured: 10 to 15 % less at one row of x, half at eight). */
#ifndef KVLAB_KERNELS_CPU_HOT_LINEAR_H
#define KVLAB_KERNELS_CPU_HOT_LINEAR_H

#include "kernels/cpu/hot_elementwise.h"

enum {
    DOT_GROUP = 4,         /* rows of x per register tile: 4 * HOT_DOT_OUT accumulators */
    DOT_CHUNK = 1024,      /* values of `in` that all groups go over before the next ones: they stay in the L1 cache */
    DOT_AHEAD_BYTES = 256, /* software prefetch, per row of x; up to 2 rows the hardware's own is enough */
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

/* An output of each run, for every row of x: where in each the row of weights begins, and sums whose lanes are still to
   be added up. */
struct hot_dot_row {
    const char *weight[HOT_DOT_OUT];
    float *y; /* of row 0 of x */
    vec sum[HOT_DOT_ROWS][HOT_DOT_OUT];
};

/* A group of R rows of x, from `first` on, over the values [from, to) of a row, whole vectors. P streams from `asked`
   on are asked for ahead. The sums begin at 0, and are finished at the row's end. */
VEC_INLINE void hot_dot_span(enum hot_kind kind, const struct hot_dot *dot, struct hot_dot_row *row, size_t first,
                             int R, size_t from, size_t to, int P, size_t asked)
{
    const size_t in = (size_t)dot->in, x_size = kind_x_size(kind), w_size = kind_weight_size(kind);
    const size_t ahead = (size_t)dot->rows * DOT_AHEAD_BYTES;
    const char *x = (const char *)dot->x + first * in * x_size;
    vec sum[DOT_GROUP][HOT_DOT_OUT];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < HOT_DOT_OUT; j++)
            sum[r][j] = from > 0 ? row->sum[first + (size_t)r][j] : vec_set1(0.0f);
    for (size_t i = from; i < to; i += kind_step(kind)) {
        vec weight[HOT_DOT_OUT];
        for (int j = 0; j < HOT_DOT_OUT; j++)
            weight[j] = kind_load_weight(kind, row->weight[j] + i * w_size);
        for (int j = 0; j < P; j++)
            __builtin_prefetch(row->weight[asked + (size_t)j] + i * w_size + ahead);
        for (int r = 0; r < R; r++) {
            vec value = vec_load_f32(x + ((size_t)r * in + i) * x_size);
            for (int j = 0; j < HOT_DOT_OUT; j++)
                sum[r][j] = kind_multiply_add(kind, value, weight[j], sum[r][j]);
        }
    }
    for (int r = 0; r < R; r++) {
        if (to == in)
            vec_store_four_sums(row->y + (first + (size_t)r) * dot->y_stride, sum[r]);
        else
            for (int j = 0; j < HOT_DOT_OUT; j++)
                row->sum[first + (size_t)r][j] = sum[r][j];
    }
}

/* Constant R for the compiler, so that the accumulators are registers. */
VEC_INLINE void hot_dot_group(enum hot_kind kind, const struct hot_dot *dot, struct hot_dot_row *row, size_t first,
                              size_t from, size_t to, int P, size_t asked)
{
    switch ((size_t)dot->rows - first) {
    case 1:
        hot_dot_span(kind, dot, row, first, 1, from, to, P, asked);
        break;
    case 2:
        hot_dot_span(kind, dot, row, first, 2, from, to, P, asked);
        break;
    case 3:
        hot_dot_span(kind, dot, row, first, 3, from, to, P, asked);
        break;
    default:
        hot_dot_span(kind, dot, row, first, 4, from, to, P, asked);
        break;
    }
}

/* All rows of x over one chunk. Each group of them asks for its part of the next chunk, so that memory has work
   throughout. */
VEC_INLINE void hot_dot_chunk(enum hot_kind kind, const struct hot_dot *dot, struct hot_dot_row *row, size_t from,
                              size_t to)
{
    const size_t rows = (size_t)dot->rows;
    if (rows <= 2)
        hot_dot_group(kind, dot, row, 0, from, to, 0, 0);
    else if (rows <= DOT_GROUP)
        hot_dot_group(kind, dot, row, 0, from, to, HOT_DOT_OUT, 0);
    else if (rows <= 2 * DOT_GROUP)
        for (size_t group = 0; group < 2; group++)
            hot_dot_group(kind, dot, row, group * DOT_GROUP, from, to, HOT_DOT_OUT / 2, group * (HOT_DOT_OUT / 2));
    else
        for (size_t group = 0; group * DOT_GROUP < rows; group++)
            hot_dot_group(kind, dot, row, group * DOT_GROUP, from, to, 1, group);
}

/* The last values of a row, less than a vector: copied to where zeros follow them. */
VEC_INLINE void hot_dot_tail(enum hot_kind kind, const struct hot_dot *dot, struct hot_dot_row *row, size_t whole)
{
    const size_t in = (size_t)dot->in, x_size = kind_x_size(kind), w_size = kind_weight_size(kind);
    float weights[HOT_DOT_OUT][VL] = {0}, values[VL] = {0};
    for (size_t j = 0; j < HOT_DOT_OUT; j++)
        memcpy(weights[j], row->weight[j] + whole * w_size, (in - whole) * w_size);
    for (size_t r = 0; r < (size_t)dot->rows; r++) {
        memcpy(values, (const char *)dot->x + (r * in + whole) * x_size, (in - whole) * x_size);
        vec sum[HOT_DOT_OUT];
        for (size_t j = 0; j < HOT_DOT_OUT; j++)
            sum[j] = kind_multiply_add(kind, vec_load_f32(values), kind_load_weight(kind, weights[j]),
                                       whole > 0 ? row->sum[r][j] : vec_set1(0.0f));
        vec_store_four_sums(row->y + r * dot->y_stride, sum);
    }
}

VEC_INLINE void hot_dot_any(enum hot_kind kind, const struct hot_dot *dot)
{
    const size_t in = (size_t)dot->in, whole = in / kind_step(kind) * kind_step(kind);
    const size_t chunk = dot->rows > DOT_GROUP ? DOT_CHUNK : whole;
    struct hot_dot_row row = {.y = dot->y};
    for (size_t o = 0; o < (size_t)dot->out; o++, row.y += HOT_DOT_OUT) {
        for (int j = 0; j < HOT_DOT_OUT; j++)
            row.weight[j] = (const char *)dot->weight[j] + o * in * kind_weight_size(kind);
        for (size_t from = 0; from < whole; from += chunk)
            hot_dot_chunk(kind, dot, &row, from, whole - from < chunk ? whole : from + chunk);
        if (whole < in)
            hot_dot_tail(kind, dot, &row, whole);
    }
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
