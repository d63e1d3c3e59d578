/* The hot loops, once per instruction set: one table of functions per variant, chosen when the device opens. Each
   function does one thread's share; threads are the callers' business. The bodies are written once (hot_*.h) over a
   small set of vector primitives (vec_*.h). */
#ifndef KVLAB_KERNELS_CPU_CPU_HOT_H
#define KVLAB_KERNELS_CPU_CPU_HOT_H

#include "kernels/dtype.h"

enum {
    HOT_DOT_OUT = 4,      /* runs of weight rows that dot() streams side by side */
    HOT_DOT_ROWS = 16,    /* most rows of x it serves from one read */
    HOT_KEYS = 128,       /* keys per attention tile */
    HOT_QUERIES = 128,    /* query vectors (token x head of one group) per tile, or one token's group if that is more */
    HOT_PAD = 16,         /* attention scratch rows are padded to a multiple of this many floats */
    HOT_ALIGN_BYTES = 64, /* scratch starts on a cache line */
};

/* y[r][o][j] = sum_i x[r][i] weight[j][o][i], f32 sums in an order that depends on `in` alone. Each weight[j] is the
   first of `out` rows that lie one after the other; the runs may overlap, and nothing need be aligned. */
struct hot_dot {
    const void *x, *weight[HOT_DOT_OUT];
    float *y; /* rows of [out][HOT_DOT_OUT], y_stride floats apart */
    size_t y_stride;
    int rows, in, out; /* rows <= HOT_DOT_ROWS */
};

/* One tile of attention: `tokens` rows of one sequence with the `group` query heads of one KV head, over the keys
   [first_key, end_key) that each row may see. Query vector m = token * group + head. */
struct hot_attend {
    const float *q;           /* [tokens][group][head_dim], tokens q_stride floats apart */
    const int32_t *positions; /* [tokens], ascending */
    const void *k, *v;        /* the sequence's tensors, see struct device_kv */
    const float *k_scale, *v_scale;
    const int32_t *block_table;
    size_t q_stride;
    enum dtype kv_dtype;
    enum dtype working; /* the working type: what enters a product may be rounded to it */
    int tokens, group, head_dim;
    int block_size, kv_heads, kv_head;
    int first_key, end_key, window;
    int ahead_key; /* >= end_key: keys up to here are probably read next, and asked for ahead of time */
    float scale;
    /* Result, in scratch: o [m] is the sum over keys of 2^(s - maximum[m]) v, `sum` that of 2^(s - maximum[m]), with
       s = q.k scale log2(e). o rows are hot_padded(head_dim) floats apart. */
    float *o, *maximum, *sum;
    float *scratch; /* the rest of hot_attend_floats() */
};

static inline size_t hot_padded(int head_dim)
{
    return ((size_t)head_dim + HOT_PAD - 1) / HOT_PAD * HOT_PAD;
}

struct cpu_hot {
    const char *name;
    /* Indexed by enum dtype. */
    void (*to_f32[DTYPE_WORKING_COUNT])(float *to, const void *from, size_t count);
    void (*from_f32[DTYPE_INT8])(void *to, const float *from, size_t count); /* all types without scales */
    float (*quantize)(void *to, const float *from, size_t count);            /* to int8; returns the scale */
    void (*dot[DTYPE_WORKING_COUNT])(const struct hot_dot *dot);
    enum dtype dot_x[DTYPE_WORKING_COUNT]; /* the type of x that dot takes */
    void (*attend)(const struct hot_attend *attend);
    /* Of one token: adds its weights, group by group, to mass[key] for the keys [first_key, end_key). v is not read, o
       not used. */
    void (*mass)(const struct hot_attend *attend, float *mass);
    /* residual += delta (may be NULL); out = residual / sqrt(mean(residual^2) + epsilon) * weight */
    void (*rms_norm)(float *residual, const float *delta, const void *weight, void *out, enum dtype dtype,
                     float epsilon, size_t hidden);
    /* out[i] = silu(gate[i]) up[i] */
    void (*swiglu)(void *out, const float *gate, const float *up, enum dtype dtype, size_t count);
    /* to = x rotated by cos_sin [half][2] */
    void (*rotate)(float *to, const float *x, const float *cos_sin, size_t half);
    size_t (*argmax)(const void *values, enum dtype dtype, size_t count);
    /* values[i] = scale * uniform(seed, first + i), all i with the same (first + i) >> 32 */
    void (*random)(void *values, enum dtype dtype, uint64_t first, size_t count, uint64_t seed, float scale);
    /* Sum of the 64-bit words of 4 streams of `bytes` each, read side by side; bytes is a multiple of 512. */
    uint64_t (*read4)(const void *memory, size_t stride_bytes, size_t bytes);
};

/* NULL where the compiler's target has no such instructions. */
extern const struct cpu_hot *const hot_portable, *const hot_avx2, *const hot_avx512, *const hot_avx512bf16;

#endif
