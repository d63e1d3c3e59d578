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
    DOT_AHEAD_BYTES = 256, /* software prefetch, per row of x; for one row the hardware's own is enough */
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
VEC_INLINE vec kind_multiply_add(enum hot_kind kind, vec weight, vec x, vec sum)
{
#if defined(VEC_HAS_PAIRS)
    if (kind == KIND_PAIRS)
        return vec_dot_pairs(weight, x, sum);
#endif
    (void)kind;
    return vec_fma(weight, x, sum);
}

/* sum[r][j] += x[r][i] weight[j][i] for i in [from, to), whole vectors. R rows of x, a constant wherever this is
   inlined: so the sums are registers. P runs from `asked` on are asked for ahead. */
VEC_INLINE void hot_dot_span(enum hot_kind kind, const struct hot_dot *dot, const char *x, const char *const *weight,
                             int R, size_t from, size_t to, int P, size_t asked, vec (*sum)[HOT_DOT_OUT])
{
    const size_t in = (size_t)dot->in, x_size = kind_x_size(kind), w_size = kind_weight_size(kind);
    const size_t ahead = (size_t)(dot->rows > DOT_GROUP ? dot->rows : DOT_GROUP) * DOT_AHEAD_BYTES;
    for (size_t i = from; i < to; i += kind_step(kind)) {
        vec w[HOT_DOT_OUT];
        for (int j = 0; j < HOT_DOT_OUT; j++)
            w[j] = kind_load_weight(kind, weight[j] + i * w_size);
        for (int j = 0; j < P; j++)
            __builtin_prefetch(weight[asked + (size_t)j] + i * w_size + ahead);
        for (int r = 0; r < R; r++) {
            vec value = vec_load_f32(x + ((size_t)r * in + i) * x_size);
            for (int j = 0; j < HOT_DOT_OUT; j++)
                sum[r][j] = kind_multiply_add(kind, w[j], value, sum[r][j]);
        }
    }
}

/* What the sums begin with where the rows' last values are less than a vector: these, copied to where zeros follow. */
VEC_INLINE void hot_dot_tails(enum hot_kind kind, const struct hot_dot *dot, const char *const *weight,
                              vec (*sum)[HOT_DOT_OUT])
{
    const size_t in = (size_t)dot->in, left = in % kind_step(kind), whole = in - left;
    const size_t x_size = kind_x_size(kind), w_size = kind_weight_size(kind);
    float weights[HOT_DOT_OUT][VL] = {0}, values[VL] = {0};
    for (int j = 0; j < HOT_DOT_OUT; j++)
        memcpy(weights[j], weight[j] + whole * w_size, left * w_size);
    for (size_t r = 0; r < (size_t)dot->rows; r++) {
        memcpy(values, (const char *)dot->x + (r * in + whole) * x_size, left * x_size);
        for (int j = 0; j < HOT_DOT_OUT; j++)
            sum[r][j] =
                kind_multiply_add(kind, kind_load_weight(kind, weights[j]), vec_load_f32(values), vec_set1(0.0f));
    }
}

VEC_INLINE void hot_dot_finish(const struct hot_dot *dot, size_t r, size_t o, const vec *sum)
{
    vec_store_four_sums(dot->y + r * dot->y_stride + o * HOT_DOT_OUT, sum[0], sum[1], sum[2], sum[3]);
}

/* Up to DOT_GROUP rows of x, R. What surrounds the inner loop counts: the fewer instructions in all, the more loads are
   under way at a time. */
VEC_INLINE void hot_dot_few(enum hot_kind kind, const struct hot_dot *dot, int R, int P)
{
    const size_t in = (size_t)dot->in, left = in % kind_step(kind);
    vec tails[DOT_GROUP][HOT_DOT_OUT];
    for (size_t o = 0; o < (size_t)dot->out; o++) {
        const char *weight[HOT_DOT_OUT];
        vec sum[DOT_GROUP][HOT_DOT_OUT];
        for (int j = 0; j < HOT_DOT_OUT; j++)
            weight[j] = (const char *)dot->weight[j] + o * in * kind_weight_size(kind);
        if (left > 0)
            hot_dot_tails(kind, dot, weight, tails);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < HOT_DOT_OUT; j++)
                sum[r][j] = left > 0 ? tails[r][j] : vec_set1(0.0f);
        hot_dot_span(kind, dot, dot->x, weight, R, 0, in - left, P, 0, sum);
        for (int r = 0; r < R; r++)
            hot_dot_finish(dot, (size_t)r, o, sum[r]);
    }
}

/* R rows of x from `first` on over the chunk [from, to) of output o's weights; kept: their sums between chunks, and
   what they begin with where there is a tail. */
VEC_INLINE void hot_dot_group(enum hot_kind kind, const struct hot_dot *dot, const char *const *weight, size_t first,
                              int R, size_t from, size_t to, int P, size_t asked, size_t o, vec (*kept)[HOT_DOT_OUT])
{
    const size_t in = (size_t)dot->in, left = in % kind_step(kind);
    vec sum[DOT_GROUP][HOT_DOT_OUT];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < HOT_DOT_OUT; j++)
            sum[r][j] = from > 0 || left > 0 ? kept[first + (size_t)r][j] : vec_set1(0.0f);
    hot_dot_span(kind, dot, (const char *)dot->x + first * in * kind_x_size(kind), weight, R, from, to, P, asked, sum);
    for (int r = 0; r < R; r++) {
        if (to == in - left)
            hot_dot_finish(dot, first + (size_t)r, o, sum[r]);
        else
            for (int j = 0; j < HOT_DOT_OUT; j++)
                kept[first + (size_t)r][j] = sum[r][j];
    }
}

/* More rows of x than registers hold sums for, in groups over one chunk after the other. Each whole group asks for P
   runs ahead, all four together, so that memory has work throughout. */
VEC_INLINE void hot_dot_many(enum hot_kind kind, const struct hot_dot *dot, int P)
{
    const size_t in = (size_t)dot->in, rows = (size_t)dot->rows, left = in % kind_step(kind), whole = in - left;
    vec kept[HOT_DOT_ROWS][HOT_DOT_OUT];
    for (size_t o = 0; o < (size_t)dot->out; o++) {
        const char *weight[HOT_DOT_OUT];
        for (int j = 0; j < HOT_DOT_OUT; j++)
            weight[j] = (const char *)dot->weight[j] + o * in * kind_weight_size(kind);
        if (left > 0)
            hot_dot_tails(kind, dot, weight, kept);
        size_t from = 0;
        do {
            size_t to = whole - from < DOT_CHUNK ? whole : from + DOT_CHUNK, first = 0;
            for (; first + DOT_GROUP <= rows; first += DOT_GROUP)
                hot_dot_group(kind, dot, weight, first, DOT_GROUP, from, to, P,
                              first / DOT_GROUP * (size_t)P % HOT_DOT_OUT, o, kept);
            if (rows - first == 1)
                hot_dot_group(kind, dot, weight, first, 1, from, to, 0, 0, o, kept);
            else if (rows - first == 2)
                hot_dot_group(kind, dot, weight, first, 2, from, to, 0, 0, o, kept);
            else if (rows - first == 3)
                hot_dot_group(kind, dot, weight, first, 3, from, to, 0, 0, o, kept);
            from = to;
        } while (from < whole);
    }
}

VEC_INLINE void hot_dot_any(enum hot_kind kind, const struct hot_dot *dot)
{
    if (dot->rows == 1)
        hot_dot_few(kind, dot, 1, 0);
    else if (dot->rows == 2)
        hot_dot_few(kind, dot, 2, HOT_DOT_OUT);
    else if (dot->rows == 3)
        hot_dot_few(kind, dot, 3, HOT_DOT_OUT);
    else if (dot->rows == 4)
        hot_dot_few(kind, dot, 4, HOT_DOT_OUT);
    else if (dot->rows < 2 * DOT_GROUP)
        hot_dot_many(kind, dot, HOT_DOT_OUT);
    else if (dot->rows < HOT_DOT_ROWS)
        hot_dot_many(kind, dot, HOT_DOT_OUT / 2);
    else
        hot_dot_many(kind, dot, 1);
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
