/* Body of attention over one tile: the online softmax of Dao et al. 2022 (FlashAttention, algorithm 1), for prefill and
   decode alike. Keys come in tiles of HOT_KEYS: K is turned to [head_dim][keys] and V to [keys][head_dim], both f32 in
   scratch, once for all query vectors of the tile; then s = q k, p = 2^(s - maximum), o += p v are products of small
   register tiles. int8 codes become values where a tile is turned; where K and V are read straight from the cache, a
   key's scales multiply its score and its weight instead.
   Bytes moved: keys * 2 * (head_dim * size(kv_dtype) + scale), once per call; scratch stays in the caches. */
#ifndef KVLAB_KERNELS_CPU_HOT_ATTENTION_H
#define KVLAB_KERNELS_CPU_HOT_ATTENTION_H

#include "kernels/cpu/hot_elementwise.h"

/* a times b, or of bf16 pairs (32 bits each, see vec_dot_pairs) the sum of both products, + c. */
VEC_INLINE vec hot_multiply_add(int pairs, vec a, vec b, vec c)
{
#if defined(VEC_HAS_PAIRS)
    if (pairs)
        return vec_dot_pairs(a, b, c);
#endif
    (void)pairs;
    return vec_fma(a, b, c);
}

/* Rows of K and V that come next, to be asked for while a tile is multiplied, `each` of them a step, so that memory has
   work throughout. Of a row its first HOT_AHEAD_BYTES; the hardware's own prefetchers go on from there. */
enum { HOT_AHEAD_BYTES = 256 };
struct hot_ahead {
    const char *k, *v;
    const size_t *offset; /* [count / 2] of both tensors, K and V in turn */
    size_t next, count, each, row_bytes;
};

VEC_INLINE void hot_ask_row(const char *row, size_t row_bytes)
{
    __builtin_prefetch(row);
    __builtin_prefetch(row + 64);
    if (row_bytes > HOT_AHEAD_BYTES / 2) {
        __builtin_prefetch(row + 128);
        __builtin_prefetch(row + 192);
    }
}

struct hot_product {
    const float *a, *b;
    float *c;
    size_t a_stride, b_stride, c_stride, m, n_vectors, k;
    int accumulate;
    struct hot_ahead *ahead; /* or NULL */
};

/* c[m][n] (+)= sum_k a[m][k] b[k][n] for R rows from m on and N vectors from n on, R * N accumulators; strides in
   floats. */
VEC_INLINE void hot_tile(int pairs, int R, int N, const struct hot_product *p, size_t first_m, size_t first_n)
{
    const float *a = p->a + first_m * p->a_stride, *b = p->b + first_n * VL;
    float *c = p->c + first_m * p->c_stride + first_n * VL;
    vec sum[6][VEC_TILE_VECTORS];
    for (int m = 0; m < R; m++)
        for (int n = 0; n < N; n++)
            sum[m][n] = p->accumulate ? vec_load_f32(c + (size_t)m * p->c_stride + (size_t)(n * VL)) : vec_set1(0.0f);
    size_t ask = pairs ? p->ahead->next : 0, count = pairs ? p->ahead->count : 0;
    for (size_t k = 0; k < p->k; k++) {
        vec column[VEC_TILE_VECTORS];
        for (int n = 0; n < N; n++)
            column[n] = vec_load_f32(b + k * p->b_stride + (size_t)(n * VL));
        for (int m = 0; m < R; m++) {
            vec value = vec_set1(a[(size_t)m * p->a_stride + k]);
            for (int n = 0; n < N; n++)
                sum[m][n] = hot_multiply_add(pairs, value, column[n], sum[m][n]);
        }
        for (size_t i = 0; pairs && i < p->ahead->each && ask < count; i++, ask++)
            hot_ask_row((ask % 2 ? p->ahead->v : p->ahead->k) + p->ahead->offset[ask / 2], p->ahead->row_bytes);
    }
    if (pairs)
        p->ahead->next = ask;
    for (int m = 0; m < R; m++)
        for (int n = 0; n < N; n++)
            vec_store_f32(c + (size_t)m * p->c_stride + (size_t)(n * VL), sum[m][n]);
}

/* All rows of one panel of N vectors: the panel of b stays in the first-level cache meanwhile. */
VEC_INLINE void hot_panel(int pairs, const struct hot_product *p, size_t n, int N)
{
    for (size_t m = 0; m < p->m;) {
        size_t left = p->m - m;
        if (left >= 6 && left != 7 && left != 8) {
            hot_tile(pairs, 6, N, p, m, n);
            m += 6;
        } else if (left >= 4) {
            hot_tile(pairs, 4, N, p, m, n);
            m += 4;
        } else if (left == 3) {
            hot_tile(pairs, 3, N, p, m, n);
            m += 3;
        } else {
            hot_tile(pairs, 1, N, p, m, n);
            m += 1;
        }
    }
}

VEC_INLINE void hot_multiply_any(int pairs, const struct hot_product *p)
{
    size_t n = 0;
    for (; n + VEC_TILE_VECTORS <= p->n_vectors; n += VEC_TILE_VECTORS)
        hot_panel(pairs, p, n, VEC_TILE_VECTORS);
    for (; n + 2 <= p->n_vectors; n += 2)
        hot_panel(pairs, p, n, 2);
    for (; n < p->n_vectors; n++)
        hot_panel(pairs, p, n, 1);
}

static void hot_multiply(const struct hot_product *p)
{
    hot_multiply_any(0, p);
}

struct hot_scratch {
    float *q, *scores, *k, *v;
};

/* Where the values of the tile's keys lie in the sequence's K and V tensors, in bytes: block by block, slot by slot. */
static void hot_find_rows(const struct hot_attend *t, int first, int keys, size_t *offset)
{
    size_t row_bytes = (size_t)t->head_dim * hot_size(t->kv_dtype), head = (size_t)t->kv_head, i = 0;
    int block = first / t->block_size, slot = first % t->block_size;
    for (; i < (size_t)keys; block++, slot = 0) {
        size_t row = ((size_t)t->block_table[block] * (size_t)t->kv_heads + head) * (size_t)t->block_size;
        for (; slot < t->block_size && i < (size_t)keys; slot++, i++)
            offset[i] = (row + (size_t)slot) * row_bytes;
    }
}

/* The scales of the tile's keys: within a block they lie side by side. */
static void hot_find_scales(const struct hot_attend *t, const float *scales, int first, int keys, float *to)
{
    int block = first / t->block_size, slot = first % t->block_size;
    for (int i = 0, run; i < keys; i += run, block++, slot = 0) {
        size_t row = ((size_t)t->block_table[block] * (size_t)t->kv_heads + (size_t)t->kv_head) * (size_t)t->block_size;
        run = t->block_size - slot < keys - i ? t->block_size - slot : keys - i;
        memcpy(to + i, scales + row + slot, (size_t)run * sizeof *to);
    }
}

/* VL keys, transposed: k[d][0 .. VL) of the tile. Keys past `keys` are zeros. bf16 is turned in pairs, which halves the
   shuffles; int8 takes its scales. */
VEC_INLINE void hot_load_keys(enum dtype dtype, const char *tensor, const size_t *offset, const float *scale,
                              size_t keys, size_t head_dim, float *k)
{
    const size_t step = dtype == DTYPE_BF16 ? 2 * VL : VL, size = hot_size(dtype);
    for (size_t d = 0; d < head_dim; d += step) {
        vec block[VL];
        size_t left = head_dim - d < step ? head_dim - d : step;
        for (size_t i = 0; i < VL; i++) {
            const char *from = tensor + offset[i < keys ? i : 0] + d * size;
            if (i >= keys)
                block[i] = vec_set1(0.0f);
            else if (dtype != DTYPE_BF16)
                block[i] = hot_load_upto(dtype, from, left);
            else /* pairs as they are: as many bytes as half as many f32 */
                block[i] = hot_load_upto(DTYPE_F32, from, left / 2);
            if (dtype == DTYPE_INT8 && i < keys)
                block[i] = vec_mul(block[i], vec_set1(scale[i]));
        }
        vec_transpose(block);
        for (size_t i = 0; i < VL && i * step / VL < left; i++) {
            float *to = k + (d + i * step / VL) * HOT_KEYS;
            vec_store_f32(to, dtype == DTYPE_BF16 ? vec_pair_first(block[i]) : block[i]);
            if (dtype == DTYPE_BF16)
                vec_store_f32(to + HOT_KEYS, vec_pair_second(block[i]));
        }
    }
}

/* A row of V as f32, padded with zeros to whole vectors. */
VEC_INLINE void hot_load_value(enum dtype dtype, const char *row, float scale, size_t head_dim, size_t padded, float *v)
{
    size_t d = 0;
    for (; d < head_dim; d += VL) {
        vec value = hot_load_upto(dtype, hot_at(dtype, row, d), head_dim - d);
        vec_store_f32(v + d, dtype == DTYPE_INT8 ? vec_mul(value, vec_set1(scale)) : value);
    }
    for (; d < padded; d += VL)
        vec_store_f32(v + d, vec_set1(0.0f));
}

VEC_INLINE void hot_load_tile_of(enum dtype dtype, const struct hot_attend *t, int first, int keys, float *k, float *v)
{
    size_t offset[HOT_KEYS], head_dim = (size_t)t->head_dim, padded = hot_padded(t->head_dim), count = (size_t)keys;
    float k_scale[HOT_KEYS], v_scale[HOT_KEYS];
    hot_find_rows(t, first, keys, offset);
    if (dtype == DTYPE_INT8) {
        hot_find_scales(t, t->k_scale, first, keys, k_scale);
        hot_find_scales(t, t->v_scale, first, keys, v_scale);
    }
    for (size_t i = 0; i < count; i += VL)
        hot_load_keys(dtype, t->k, offset + i, k_scale + i, count - i < VL ? count - i : VL, head_dim, k + i);
    for (size_t i = 0; i < count; i++)
        hot_load_value(dtype, (const char *)t->v + offset[i], dtype == DTYPE_INT8 ? v_scale[i] : 1.0f, head_dim, padded,
                       v + i * padded);
}

static void hot_load_tile(const struct hot_attend *t, int first, int keys, float *k, float *v)
{
    switch (t->kv_dtype) {
    case DTYPE_F32:
        hot_load_tile_of(DTYPE_F32, t, first, keys, k, v);
        break;
    case DTYPE_F16:
        hot_load_tile_of(DTYPE_F16, t, first, keys, k, v);
        break;
    case DTYPE_FP8_E4M3:
        hot_load_tile_of(DTYPE_FP8_E4M3, t, first, keys, k, v);
        break;
    case DTYPE_INT8:
        hot_load_tile_of(DTYPE_INT8, t, first, keys, k, v);
        break;
    default:
        hot_load_tile_of(DTYPE_BF16, t, first, keys, k, v);
        break;
    }
}

/* Scores of keys that row m may not see become -infinity. The tile's keys are [first, first + keys). */
VEC_INLINE void hot_mask(const struct hot_attend *t, int position, int first, int keys, float *scores)
{
    int padded = (keys + VL - 1) / VL * VL;
    int begin = t->window > 0 && position - t->window + 1 > first ? position - t->window + 1 - first : 0;
    int end = position + 1 - first < keys ? position + 1 - first : keys;
    for (int i = 0; i < begin && i < padded; i++)
        scores[i] = -INFINITY;
    for (int i = end < 0 ? 0 : end; i < padded; i++)
        scores[i] = -INFINITY;
}

/* A larger maximum: what was summed so far counts for less. */
VEC_INLINE void hot_raise_maximum(float largest, float *maximum, float *sum, float *o, size_t o_vectors)
{
    if (!(largest > *maximum))
        return;
    float lane[VL];
    vec_store_f32(lane, vec_exp2(vec_set1(*maximum - largest)));
    *maximum = largest;
    *sum *= lane[0];
    vec correction = vec_set1(lane[0]);
    for (size_t i = 0; i < o_vectors; i++)
        vec_store_f32(o + i * VL, vec_mul(vec_load_f32(o + i * VL), correction));
}

VEC_INLINE float hot_row_largest(const float *scores, size_t vectors)
{
    vec most = vec_load_f32(scores);
    for (size_t i = 1; i < vectors; i++)
        most = vec_max(vec_load_f32(scores + i * VL), most);
    return vec_largest(most);
}

/* One row of scores to weights p, in place; brings maximum, sum and o up to date. */
VEC_INLINE void hot_softmax_row(float *scores, size_t vectors, float *maximum, float *sum, float *o, size_t o_vectors)
{
    hot_raise_maximum(hot_row_largest(scores, vectors), maximum, sum, o, o_vectors);
    vec total = vec_set1(0.0f), base = vec_set1(*maximum);
    for (size_t i = 0; i < vectors; i++) {
        vec p = vec_exp2(vec_sub(vec_load_f32(scores + i * VL), base));
        vec_store_f32(scores + i * VL, p);
        total = vec_add(total, p);
    }
    *sum += vec_sum(total);
}

/* Below any score, yet (-infinity) - HOT_LOWEST is no NaN. */
#define HOT_LOWEST (-0x1p120f)

/* Results to their neutral values. */
static void hot_attend_begin(const struct hot_attend *t)
{
    size_t m_count = (size_t)t->tokens * (size_t)t->group;
    memset(t->o, 0, m_count * hot_padded(t->head_dim) * sizeof *t->o);
    for (size_t m = 0; m < m_count; m++) {
        t->maximum[m] = HOT_LOWEST;
        t->sum[m] = 0.0f;
    }
}

/* q scaled by scale log2(e), packed to [m][head_dim]. */
static void hot_pack_q(const struct hot_attend *t, float *q)
{
    size_t values = (size_t)t->group * (size_t)t->head_dim;
    float factor = t->scale * 0x1.715476p0f;
    for (size_t token = 0; token < (size_t)t->tokens; token++)
        for (size_t i = 0; i < values; i++)
            q[token * values + i] = t->q[token * t->q_stride + i] * factor;
}

/* Scores to weights, row by row. */
static void hot_softmax(const struct hot_attend *t, int first, int keys, float *scores)
{
    size_t m_count = (size_t)t->tokens * (size_t)t->group, padded = hot_padded(t->head_dim);
    size_t vectors = ((size_t)keys + VL - 1) / VL;
    for (size_t m = 0; m < m_count; m++) {
        float *row = scores + m * HOT_KEYS;
        hot_mask(t, t->positions[m / (size_t)t->group], first, keys, row);
        hot_softmax_row(row, vectors, &t->maximum[m], &t->sum[m], t->o + m * padded, padded / VL);
    }
}

#include "kernels/cpu/hot_attention_direct.h"

/* ---- many query vectors */

static void hot_attend_tile(const struct hot_attend *t, const struct hot_scratch *s, int first, int keys)
{
    size_t m_count = (size_t)t->tokens * (size_t)t->group, padded = hot_padded(t->head_dim);
    struct hot_product scores = {.a = s->q,
                                 .a_stride = (size_t)t->head_dim,
                                 .b = s->k,
                                 .b_stride = HOT_KEYS,
                                 .c = s->scores,
                                 .c_stride = HOT_KEYS,
                                 .m = m_count,
                                 .n_vectors = ((size_t)keys + VL - 1) / VL,
                                 .k = (size_t)t->head_dim};
    struct hot_product output = {.a = s->scores,
                                 .a_stride = HOT_KEYS,
                                 .b = s->v,
                                 .b_stride = padded,
                                 .c = t->o,
                                 .c_stride = padded,
                                 .m = m_count,
                                 .n_vectors = padded / VL,
                                 .k = (size_t)keys,
                                 .accumulate = 1};
    hot_load_tile(t, first, keys, s->k, s->v);
    hot_multiply(&scores);
    hot_softmax(t, first, keys, s->scores);
    hot_multiply(&output);
}

static struct hot_scratch hot_lay_out(const struct hot_attend *t)
{
    const size_t padded = hot_padded(t->head_dim);
    struct hot_scratch s = {.q = t->scratch};
    s.k = s.q + (size_t)t->tokens * (size_t)t->group * padded;
    s.v = s.k + HOT_KEYS * padded;
    s.scores = s.v + HOT_KEYS * padded;
    return s;
}

#if defined(VEC_HAS_PAIRS)
#include "kernels/cpu/hot_attention_decode.h"
#include "kernels/cpu/hot_attention_pairs.h"
#endif

#include "kernels/cpu/hot_attention_mass.h"

static void hot_attend(const struct hot_attend *t)
{
    size_t m_count = (size_t)t->tokens * (size_t)t->group;
    struct hot_scratch s = hot_lay_out(t);
    hot_attend_begin(t);
#if defined(VEC_HAS_PAIRS)
    if (hot_stream_serves(t)) {
        hot_attend_stream(t);
        return;
    }
    if (t->working == DTYPE_BF16 && t->kv_dtype == DTYPE_BF16 && m_count >= PAIRS_MIN) {
        hot_attend_pairs(t, &s);
        return;
    }
#endif
    hot_pack_q(t, s.q);
    for (int first = t->first_key; first < t->end_key; first += HOT_KEYS) {
        int keys = t->end_key - first < HOT_KEYS ? t->end_key - first : HOT_KEYS;
        if (m_count > DIRECT_MAX)
            hot_attend_tile(t, &s, first, keys);
        else
            hot_direct(t, &s, first, keys);
    }
}

#endif
