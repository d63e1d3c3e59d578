/* Body of attention for few query vectors (decode with small groups): K and V straight from the cache, in order,
   nothing staged. */
#ifndef KVLAB_KERNELS_CPU_HOT_ATTENTION_DIRECT_H
#define KVLAB_KERNELS_CPU_HOT_ATTENTION_DIRECT_H

#include "kernels/cpu/hot_attention.h"

enum {
    DIRECT_ROWS = 4, /* query vectors that go over K and V together; the tile stays in the L1 cache for the next ones */
    DIRECT_MAX = 8,  /* query vectors; from about there on turning K once is cheaper than adding up lanes for each */
};

/* scores[m][i] = q[m] . k[i] for m < R: VL keys' lane sums at a time, turned and added up. */
VEC_INLINE void hot_direct_scores(enum dtype dtype, const struct hot_attend *t, const size_t *offset, size_t keys,
                                  int R, const float *q, float *scores)
{
    const size_t head_dim = (size_t)t->head_dim, whole = head_dim / VL * VL;
    for (size_t i = 0; i < keys; i += VL) {
        vec lanes[DIRECT_ROWS][VL];
        for (size_t j = 0; j < VL; j++) {
            const char *row = (const char *)t->k + offset[i + j < keys ? i + j : keys - 1];
            vec sum[DIRECT_ROWS];
            for (int m = 0; m < R; m++)
                sum[m] = vec_set1(0.0f);
            for (size_t d = 0; d < whole; d += VL) {
                vec k = hot_load(dtype, hot_at(dtype, row, d));
                for (int m = 0; m < R; m++)
                    sum[m] = vec_fma(vec_load_f32(q + (size_t)m * head_dim + d), k, sum[m]);
            }
            for (int m = 0; m < R; m++) {
                if (whole < head_dim)
                    sum[m] = vec_fma(hot_load_part(DTYPE_F32, q + (size_t)m * head_dim + whole, head_dim - whole),
                                     hot_load_part(dtype, hot_at(dtype, row, whole), head_dim - whole), sum[m]);
                lanes[m][j] = sum[m];
            }
        }
        for (int m = 0; m < R; m++) {
            vec_transpose(lanes[m]);
            for (size_t width = VL / 2; width > 0; width /= 2)
                for (size_t j = 0; j < width; j++)
                    lanes[m][j] = vec_add(lanes[m][j], lanes[m][j + width]);
            vec_store_f32(scores + (size_t)m * HOT_KEYS + i, lanes[m][0]);
        }
    }
}

/* o[m][d] += sum_i p[m][i] v[i][d] for m < R and N vectors of d from `first` on. */
VEC_INLINE void hot_direct_panel(enum dtype dtype, const struct hot_attend *t, const size_t *offset, size_t keys, int R,
                                 int N, size_t first, const float *p, float *o)
{
    const size_t padded = hot_padded(t->head_dim), left = (size_t)t->head_dim - first;
    vec sum[DIRECT_ROWS][VEC_TILE_VECTORS];
    for (int m = 0; m < R; m++)
        for (int n = 0; n < N; n++)
            sum[m][n] = vec_load_f32(o + (size_t)m * padded + first + (size_t)(n * VL));
    for (size_t i = 0; i < keys; i++) {
        const char *row = (const char *)t->v + offset[i];
        vec v[VEC_TILE_VECTORS];
        for (int n = 0; n < N; n++) {
            const void *from = hot_at(dtype, row, first + (size_t)(n * VL));
            v[n] = N > 1 ? hot_load(dtype, from) : hot_load_upto(dtype, from, left);
        }
        for (int m = 0; m < R; m++)
            for (int n = 0; n < N; n++)
                sum[m][n] = vec_fma(vec_set1(p[(size_t)m * HOT_KEYS + i]), v[n], sum[m][n]);
    }
    for (int m = 0; m < R; m++)
        for (int n = 0; n < N; n++)
            vec_store_f32(o + (size_t)m * padded + first + (size_t)(n * VL), sum[m][n]);
}

VEC_INLINE void hot_direct_output(enum dtype dtype, const struct hot_attend *t, const size_t *offset, size_t keys,
                                  int R, const float *p, float *o)
{
    size_t d = 0, head_dim = (size_t)t->head_dim;
    for (; d + VEC_TILE_VECTORS * VL <= head_dim; d += VEC_TILE_VECTORS * VL)
        hot_direct_panel(dtype, t, offset, keys, R, VEC_TILE_VECTORS, d, p, o);
    for (; d < head_dim; d += VL)
        hot_direct_panel(dtype, t, offset, keys, R, 1, d, p, o);
}

/* scores[m][i] *= scale of the tile's key i: of int8 codes K's times the score, V's times the weight. */
static void hot_scale_rows(const struct hot_attend *t, const float *scales, int first, int keys, float *scores)
{
    float factor[HOT_KEYS] = {0};
    size_t m_count = (size_t)t->tokens * (size_t)t->group;
    hot_find_scales(t, scales, first, keys, factor);
    for (size_t m = 0; m < m_count; m++)
        for (size_t i = m * HOT_KEYS; i < m * HOT_KEYS + (size_t)keys; i += VL)
            vec_store_f32(scores + i, vec_mul(vec_load_f32(scores + i), vec_load_f32(factor + i % HOT_KEYS)));
}

/* All query vectors in turn, DIRECT_ROWS at a time; constant type and number of rows for the compiler. */
#define HOT_DIRECT(CALL, DTYPE)                                                                                        \
    for (int m = 0; m < m_count; m += DIRECT_ROWS) {                                                                   \
        switch (m_count - m) {                                                                                         \
        case 1:                                                                                                        \
            CALL(DTYPE, 1);                                                                                            \
            break;                                                                                                     \
        case 2:                                                                                                        \
            CALL(DTYPE, 2);                                                                                            \
            break;                                                                                                     \
        case 3:                                                                                                        \
            CALL(DTYPE, 3);                                                                                            \
            break;                                                                                                     \
        default:                                                                                                       \
            CALL(DTYPE, 4);                                                                                            \
            break;                                                                                                     \
        }                                                                                                              \
    }
#define HOT_SCORES(DTYPE, R)                                                                                           \
    hot_direct_scores(DTYPE, t, offset, (size_t)keys, R, s->q + (size_t)m * (size_t)t->head_dim,                       \
                      s->scores + (size_t)m * HOT_KEYS)
#define HOT_OUTPUT(DTYPE, R)                                                                                           \
    hot_direct_output(DTYPE, t, offset, (size_t)keys, R, s->scores + (size_t)m * HOT_KEYS,                             \
                      t->o + (size_t)m * hot_padded(t->head_dim))
#define HOT_DIRECT_OF(TYPE, DTYPE)                                                                                     \
    static void hot_scores_##TYPE(const struct hot_attend *t, const struct hot_scratch *s, const size_t *offset,       \
                                  int keys)                                                                            \
    {                                                                                                                  \
        const int m_count = t->tokens * t->group;                                                                      \
        HOT_DIRECT(HOT_SCORES, DTYPE)                                                                                  \
    }                                                                                                                  \
    static void hot_output_##TYPE(const struct hot_attend *t, const struct hot_scratch *s, const size_t *offset,       \
                                  int keys)                                                                            \
    {                                                                                                                  \
        const int m_count = t->tokens * t->group;                                                                      \
        HOT_DIRECT(HOT_OUTPUT, DTYPE)                                                                                  \
    }
HOT_DIRECT_OF(f32, DTYPE_F32)
HOT_DIRECT_OF(f16, DTYPE_F16)
HOT_DIRECT_OF(bf16, DTYPE_BF16)
HOT_DIRECT_OF(fp8, DTYPE_FP8_E4M3)
HOT_DIRECT_OF(int8, DTYPE_INT8)

typedef void hot_direct_step(const struct hot_attend *t, const struct hot_scratch *s, const size_t *offset, int keys);
static hot_direct_step *const hot_scores_of[DTYPE_COUNT] = {hot_scores_f32, hot_scores_f16, hot_scores_bf16,
                                                            hot_scores_fp8, hot_scores_int8};
static hot_direct_step *const hot_output_of[DTYPE_COUNT] = {hot_output_f32, hot_output_f16, hot_output_bf16,
                                                            hot_output_fp8, hot_output_int8};

/* s.scores [m][keys] = q k of the tile's keys, at `offset` of the tensor. */
static void hot_scores(const struct hot_attend *t, const struct hot_scratch *s, const size_t *offset, int first,
                       int keys)
{
    hot_scores_of[t->kv_dtype](t, s, offset, keys);
    if (t->kv_dtype == DTYPE_INT8)
        hot_scale_rows(t, t->k_scale, first, keys, s->scores);
}

static void hot_direct(const struct hot_attend *t, const struct hot_scratch *s, int first, int keys)
{
    size_t offset[HOT_KEYS];
    hot_find_rows(t, first, keys, offset);
    hot_scores(t, s, offset, first, keys);
    hot_softmax(t, first, keys, s->scores);
    if (t->kv_dtype == DTYPE_INT8)
        hot_scale_rows(t, t->v_scale, first, keys, s->scores);
    hot_output_of[t->kv_dtype](t, s, offset, keys);
}

#endif
