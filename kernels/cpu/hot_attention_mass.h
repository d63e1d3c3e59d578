/* Body of attention's weights: which keys the queries of one token look at. Scores are taken twice, for the sums and
   for the weights, so that no scratch grows with the context. Bytes moved: keys * (head_dim * size(kv_dtype) + scale),
   twice, from the caches the second time where they fit. */
#ifndef KVLAB_KERNELS_CPU_HOT_ATTENTION_MASS_H
#define KVLAB_KERNELS_CPU_HOT_ATTENTION_MASS_H

#include "kernels/cpu/hot_attention.h"

/* scores [group][HOT_KEYS] of the tile, -infinity past its keys; returns their vectors per row. */
static size_t hot_mass_scores(const struct hot_attend *t, const struct hot_scratch *s, int first, int keys)
{
    size_t offset[HOT_KEYS];
    hot_find_rows(t, first, keys, offset);
    hot_scores(t, s, offset, first, keys);
    for (int m = 0; m < t->group; m++)
        hot_mask(t, t->positions[0], first, keys, s->scores + (size_t)m * HOT_KEYS);
    return ((size_t)keys + VL - 1) / VL;
}

static void hot_mass(const struct hot_attend *t, float *mass)
{
    struct hot_scratch s = hot_lay_out(t);
    const size_t group = (size_t)t->group;
    hot_pack_q(t, s.q);
    for (size_t m = 0; m < group; m++) {
        t->maximum[m] = HOT_LOWEST;
        t->sum[m] = 0.0f;
    }
    for (int first = t->first_key; first < t->end_key; first += HOT_KEYS) {
        int keys = t->end_key - first < HOT_KEYS ? t->end_key - first : HOT_KEYS;
        size_t vectors = hot_mass_scores(t, &s, first, keys);
        for (size_t m = 0; m < group; m++)
            hot_softmax_row(s.scores + m * HOT_KEYS, vectors, &t->maximum[m], &t->sum[m], NULL, 0);
    }
    for (int first = t->first_key; first < t->end_key; first += HOT_KEYS) {
        int keys = t->end_key - first < HOT_KEYS ? t->end_key - first : HOT_KEYS;
        size_t vectors = hot_mass_scores(t, &s, first, keys);
        for (size_t i = 0; i < vectors * VL; i += VL) {
            vec total = vec_set1(0.0f);
            for (size_t m = 0; m < group; m++) {
                vec p = vec_exp2(vec_sub(vec_load_f32(s.scores + m * HOT_KEYS + i), vec_set1(t->maximum[m])));
                total = vec_fma(p, vec_set1(1.0f / t->sum[m]), total);
            }
            size_t left = (size_t)keys - i;
            float *to = mass + (size_t)first + i;
            hot_store_upto(DTYPE_F32, to, vec_add(hot_load_upto(DTYPE_F32, to, left), total), left);
        }
    }
}

#endif
