/* Body of attention where working type and cache are both bf16 and the processor multiplies bf16 pairs: q and the
   weights p are rounded to bf16 before they meet K and V, as they are in the published models' reference; sums, maxima
   and the softmax stay f32, and the weights that are summed are the rounded ones, so that they still add up to one.

   A tile of K is turned once to pairs along head_dim, [head_dim/2][keys], and V to pairs along the keys,
   [keys/2][head_dim], for all query vectors; nothing is converted. While a tile is multiplied, the rows of the next one
   are asked for. Bytes moved: keys * head_dim * 4, once per call. */
#ifndef KVLAB_KERNELS_CPU_HOT_ATTENTION_PAIRS_H
#define KVLAB_KERNELS_CPU_HOT_ATTENTION_PAIRS_H

#include "kernels/cpu/hot_attention.h"

enum {
    PAIRS_KEYS = 64, /* most keys of a tile */
    PAIRS_MIN = 4,   /* query vectors; fewer are served faster straight from the cache */
};

/* Turned, and with the next one's rows, a tile should not leave much more than the L1 cache: 64 keys of 64, 32 of 128.
 */
VEC_INLINE int hot_pairs_tile_keys(const struct hot_attend *t)
{
    return t->head_dim > 64 ? PAIRS_KEYS / 2 : PAIRS_KEYS;
}

/* q as bf16, packed to [m][head_dim]. */
static void hot_pairs_pack_q(const struct hot_attend *t, float *q)
{
    size_t values = (size_t)t->group * (size_t)t->head_dim;
    for (size_t token = 0; token < (size_t)t->tokens; token++)
        hot_from_f32(DTYPE_BF16, (uint16_t *)(void *)q + token * values, t->q + token * t->q_stride, values);
}

/* VL keys: k[d / 2][0 .. VL) of the tile. Keys past `keys` are zeros. */
VEC_INLINE void hot_pairs_load_keys(const char *tensor, const size_t *offset, size_t keys, size_t pairs, float *k)
{
    size_t d = 0;
    for (; keys >= VL && d + VL <= pairs; d += VL) {
        vec block[VL];
        for (size_t i = 0; i < VL; i++)
            block[i] = vec_load_f32(tensor + offset[i] + d * 4);
        vec_transpose(block);
        for (size_t i = 0; i < VL; i++)
            vec_store_f32(k + (d + i) * PAIRS_KEYS, block[i]);
    }
    for (; d < pairs; d += VL) {
        vec block[VL];
        size_t left = pairs - d < VL ? pairs - d : VL;
        for (size_t i = 0; i < VL; i++)
            block[i] = i < keys ? hot_load_upto(DTYPE_F32, tensor + offset[i] + d * 4, left) : vec_set1(0.0f);
        vec_transpose(block);
        for (size_t i = 0; i < left; i++)
            vec_store_f32(k + (d + i) * PAIRS_KEYS, block[i]);
    }
}

/* Two keys, or one and zeros (second NULL): v[0 .. padded). */
VEC_INLINE void hot_pairs_load_values(const char *first, const char *second, size_t head_dim, size_t padded, float *v)
{
    size_t d = 0;
    for (; second && d + 2 * VL <= head_dim; d += 2 * VL) {
        vec a = vec_load_f32(first + d * 2), b = vec_load_f32(second + d * 2);
        vec_store_f32(v + d, vec_pair_rows_low(a, b));
        vec_store_f32(v + d + VL, vec_pair_rows_high(a, b));
    }
    for (; d < head_dim; d += 2 * VL) {
        size_t left = (head_dim - d) / 2;
        vec a = hot_load_upto(DTYPE_F32, first + d * 2, left);
        vec b = second ? hot_load_upto(DTYPE_F32, second + d * 2, left) : vec_set1(0.0f);
        vec_store_f32(v + d, vec_pair_rows_low(a, b));
        if (d + VL < padded)
            vec_store_f32(v + d + VL, vec_pair_rows_high(a, b));
    }
}

static void hot_pairs_load_tile(const struct hot_attend *t, const struct hot_scratch *s, const size_t *offset,
                                size_t keys)
{
    const size_t head_dim = (size_t)t->head_dim, padded = hot_padded(t->head_dim);
    const char *v = t->v;
    for (size_t i = 0; i < keys; i++) { /* what was asked for too late, or at the start not at all */
        hot_ask_row((const char *)t->k + offset[i], head_dim * 2);
        hot_ask_row(v + offset[i], head_dim * 2);
    }
    for (size_t i = 0; i < keys; i += VL)
        hot_pairs_load_keys(t->k, offset + i, keys - i < VL ? keys - i : VL, head_dim / 2, s->k + i);
    for (size_t i = 0; i < keys; i += 2)
        hot_pairs_load_values(v + offset[i], i + 1 < keys ? v + offset[i + 1] : NULL, head_dim, padded,
                              s->v + i / 2 * padded);
}

/* Scores of keys that row m may not see, and of the places up to `padded`, become -infinity: see hot_mask(). */
VEC_INLINE void hot_pairs_mask(const struct hot_attend *t, int position, int first, int keys, int padded, float *scores)
{
    int begin = t->window > 0 && position - t->window + 1 > first ? position - t->window + 1 - first : 0;
    int end = position + 1 - first < keys ? position + 1 - first : keys;
    if (begin == 0 && end == padded)
        return;
    for (int i = 0; i < padded; i++)
        if (i < begin || i >= end)
            scores[i] = -INFINITY;
}

/* One row of scores q k to weights 2^(q k factor - maximum) in bf16, at the row's start; `lanes` are its lane sums. */
VEC_INLINE void hot_pairs_softmax_row(float *row, size_t vectors, float factor, float *maximum, float *lanes, float *o,
                                      size_t o_vectors)
{
    float largest = hot_row_largest(row, vectors) * factor, before = *maximum;
    vec total = vec_load_f32(lanes);
    if (largest > before) {
        vec correction = vec_exp2(vec_set1(before - largest));
        *maximum = largest;
        total = vec_mul(total, correction);
        for (size_t i = 0; i < o_vectors; i++)
            vec_store_f32(o + i * VL, vec_mul(vec_load_f32(o + i * VL), correction));
    }
    const vec base = vec_set1(-*maximum), scale = vec_set1(factor), ones = vec_set1_pair(0x3f803f80u);
    for (size_t i = 0; i < vectors; i += 2) {
        vec p = vec_exp2_short(vec_fma(vec_load_f32(row + i * VL), scale, base));
        vec next = vec_exp2_short(vec_fma(vec_load_f32(row + (i + 1) * VL), scale, base));
        vec both = vec_round_pairs(p, next);
        vec_store_f32(row + i / 2 * VL, both);
        total = vec_dot_pairs(both, ones, total);
    }
    vec_store_f32(lanes, total);
}

/* `lanes` [m][VL]. */
static void hot_pairs_softmax(const struct hot_attend *t, int first, int keys, float *scores, float *lanes)
{
    const size_t m_count = (size_t)t->tokens * (size_t)t->group, padded = hot_padded(t->head_dim);
    const size_t vectors = ((size_t)keys + 2 * VL - 1) / (2 * VL) * 2;
    for (size_t m = 0; m < m_count; m++) {
        float *row = scores + m * PAIRS_KEYS;
        hot_pairs_mask(t, t->positions[m / (size_t)t->group], first, keys, (int)vectors * VL, row);
        hot_pairs_softmax_row(row, vectors, t->scale * 0x1.715476p0f, &t->maximum[m], lanes + m * VL, t->o + m * padded,
                              padded / VL);
    }
}

static void hot_pairs_multiply(const struct hot_product *p)
{
    hot_multiply_any(1, p);
}

VEC_INLINE size_t hot_pairs_steps(const struct hot_product *p)
{
    size_t panels = (p->n_vectors + VEC_TILE_VECTORS - 1) / VEC_TILE_VECTORS;
    return panels * ((p->m + 5) / 6) * p->k;
}

/* The tile's keys are staged in s; `next` rows lie at `offset` of both tensors. */
static void hot_pairs_tile(const struct hot_attend *t, const struct hot_scratch *s, int first, int keys,
                           const size_t *offset, size_t next)
{
    const size_t m_count = (size_t)t->tokens * (size_t)t->group, padded = hot_padded(t->head_dim);
    struct hot_ahead ahead = {
        .k = t->k, .v = t->v, .offset = offset, .count = 2 * next, .row_bytes = (size_t)t->head_dim * 2};
    struct hot_product scores = {.a = s->q,
                                 .a_stride = (size_t)t->head_dim / 2,
                                 .b = s->k,
                                 .b_stride = PAIRS_KEYS,
                                 .c = s->scores,
                                 .c_stride = PAIRS_KEYS,
                                 .m = m_count,
                                 .n_vectors = ((size_t)keys + VL - 1) / VL,
                                 .k = (size_t)t->head_dim / 2,
                                 .ahead = &ahead};
    struct hot_product output = {.a = s->scores,
                                 .a_stride = PAIRS_KEYS,
                                 .b = s->v,
                                 .b_stride = padded,
                                 .c = t->o,
                                 .c_stride = padded,
                                 .m = m_count,
                                 .n_vectors = padded / VL,
                                 .k = ((size_t)keys + 1) / 2,
                                 .accumulate = 1,
                                 .ahead = &ahead};
    size_t steps = hot_pairs_steps(&scores) + hot_pairs_steps(&output);
    ahead.each = (ahead.count + steps - 1) / steps;
    hot_pairs_multiply(&scores);
    hot_pairs_softmax(t, first, keys, s->scores, s->scores + m_count * PAIRS_KEYS);
    hot_pairs_multiply(&output);
}

VEC_INLINE int hot_pairs_keys(const struct hot_attend *t, int first)
{
    int left = t->end_key - first, most = hot_pairs_tile_keys(t);
    return left < 0 ? 0 : left < most ? left : most;
}

static void hot_attend_pairs(const struct hot_attend *t, const struct hot_scratch *s)
{
    const size_t m_count = (size_t)t->tokens * (size_t)t->group;
    float *lanes = s->scores + m_count * PAIRS_KEYS; /* [m][VL] */
    size_t offset[PAIRS_KEYS];
    memset(lanes, 0, m_count * VL * sizeof *lanes);
    hot_pairs_pack_q(t, s->q);
    hot_find_rows(t, t->first_key, hot_pairs_keys(t, t->first_key), offset);
    for (int first = t->first_key, keys; first < t->end_key; first += keys) {
        keys = hot_pairs_keys(t, first);
        int next = hot_pairs_keys(t, first + keys);
        hot_pairs_load_tile(t, s, offset, (size_t)keys);
        hot_find_rows(t, first + keys, next, offset);
        hot_pairs_tile(t, s, first, keys, offset, (size_t)next);
    }
    for (size_t m = 0; m < m_count; m++)
        t->sum[m] = vec_sum(vec_load_f32(lanes + m * VL));
}

#endif
