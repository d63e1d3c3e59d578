/* Body of attention for one row, STREAM_MIN to STREAM_HEADS query heads per KV head, working type bf16 and a cache of
   bf16, fp8 or int8, on a processor that multiplies bf16 pairs: decode, whose time should be that of reading K and V
   once. Rounding is that of hot_attention_pairs.h.

   Nothing of K is turned or staged. The lanes of a vector are STREAM_HEADS query heads times two bf16 pairs of
   head_dim: q is laid out so once, and of a row of K 8 bytes at a time are repeated over the lanes, which a load does
   by itself. V is paired by keys in registers. STREAM_KEYS keys are a step; while one is multiplied, the rows of the
   step after the next are asked for, a cache line at a time, so that memory has work throughout: with the burst that a
   tile asks for, reading and multiplying take turns. At the end of a part that is the beginning of the next,
   where the same thread goes on with it.

   The rows of a step in fp8 or int8 are turned into bf16 first, which holds every value of fp8 and every code of int8
   exactly; a key's scales multiply its scores, and its weights after they were summed up. Bytes moved: keys * 2 *
   (head_dim * size(kv_dtype) + scale), once per call. */
#ifndef KVLAB_KERNELS_CPU_HOT_ATTENTION_DECODE_H
#define KVLAB_KERNELS_CPU_HOT_ATTENTION_DECODE_H

#include "kernels/cpu/hot_attention.h"

enum {
    STREAM_MIN = 2,      /* query heads; one alone is served as fast straight from the cache, in f32 */
    STREAM_MIN_INT8 = 3, /* codes become f32 by two instructions: two heads as well */
    STREAM_HEADS = 8,    /* most query heads */
    STREAM_DIM = 256,    /* largest head_dim */
    STREAM_KEYS = 32,
    STREAM_TOGETHER = 8, /* keys whose sums are built side by side */
    STREAM_AHEAD = 2,    /* steps between asking for a row and using it */
    STREAM_LINE = 64,    /* bytes of a cache line */
    STREAM_PANEL = 32,   /* values of head_dim in a panel of V: one line */
};

/* A step of a cache of one byte per value, as bf16. */
struct hot_stream_step {
    uint16_t k[STREAM_KEYS * STREAM_DIM], v[STREAM_KEYS * STREAM_DIM];
    float k_scale[STREAM_KEYS], v_scale[STREAM_KEYS]; /* of int8 */
    size_t offset[STREAM_KEYS];                       /* of the rows in k and v, bytes */
};

/* What one call keeps between steps: lane 2 h + i of q[d] is pair 2 d + i of head h; lane 2 h + i of scores[j] is key
   2 j + i of head h; lane h of maximum's even places is head h's. */
struct hot_stream {
    float *q, *scores; /* [head_dim / 4][VL], [STREAM_KEYS / 2][VL] */
    float *p;          /* [STREAM_KEYS / 2][STREAM_HEADS]: weights of keys 2 j and 2 j + 1 as a bf16 pair */
    const struct hot_stream_step *scales; /* of int8, else NULL */
    vec maximum;                          /* lanes 2 h and 2 h + 1 */
    vec total;                            /* lanes h and h + STREAM_HEADS, to be added up */
};

/* Of a step past the end of what is read, or the places past its last key, the last row again: in bounds, and already
   there. */
static void hot_stream_find(const struct hot_attend *t, int first, size_t *offset)
{
    int left = t->ahead_key - first, keys = left < STREAM_KEYS ? left : STREAM_KEYS;
    if (keys <= 0) {
        keys = 1;
        first = t->ahead_key - 1;
    }
    hot_find_rows(t, first, keys, offset);
    for (int i = keys; i < STREAM_KEYS; i++)
        offset[i] = offset[keys - 1];
}

static void hot_stream_pack_q(const struct hot_attend *t, float *q)
{
    uint16_t row[STREAM_DIM];
    memset(q, 0, (size_t)t->head_dim / 4 * VL * sizeof *q);
    for (size_t m = 0; m < (size_t)t->group; m++) {
        hot_from_f32(DTYPE_BF16, row, t->q + m * (size_t)t->head_dim, (size_t)t->head_dim);
        for (size_t d = 0; d < (size_t)t->head_dim / 4; d++)
            memcpy(q + d * VL + 2 * m, row + d * 4, 4 * sizeof *row);
    }
}

/* One line of a step that is asked for ahead. Where a row is LINES lines, a power of two, n counts those of K and V, in
   turn, in the order in which they lie, which the memory serves best: the scores ask for the first half of them, the
   output for the second. Else (LINES 0) each asks for its own tensor's: `line` of row n. */
VEC_INLINE void hot_stream_ask(int LINES, const struct hot_attend *t, const void *own, const size_t *ahead, size_t n,
                               size_t line)
{
    const size_t lines = (size_t)(LINES > 0 ? LINES : 1), nth = n / 2;
    if (LINES > 0)
        __builtin_prefetch((const char *)(n % 2 ? t->v : t->k) + ahead[nth / lines] + nth % lines * STREAM_LINE);
    else
        __builtin_prefetch((const char *)own + ahead[n] + line);
}

/* A row is head_dim / STREAM_PANEL lines, and a line STREAM_TOGETHER pieces of 8 bytes: as many lines are asked for as
   pieces multiplied. */
VEC_INLINE void hot_stream_scores(int LINES, const struct hot_attend *t, const struct hot_stream *s,
                                  const size_t *offset, const size_t *ahead)
{
    const size_t line_ends = (size_t)t->head_dim * 2;
    for (size_t i = 0; i < STREAM_KEYS; i += STREAM_TOGETHER) {
        const float *q = s->q;
        vec sum[STREAM_TOGETHER];
        for (int j = 0; j < STREAM_TOGETHER; j++)
            sum[j] = vec_set1(0.0f);
        for (size_t line = 0; line < line_ends; line += STREAM_LINE) {
            const char *k = (const char *)t->k + line;
            const size_t n = LINES > 0 ? i * (size_t)LINES + line / STREAM_LINE * STREAM_TOGETHER : i;
            for (size_t piece = 0; piece < STREAM_TOGETHER; piece++, q += VL) {
                hot_stream_ask(LINES, t, t->k, ahead, n + piece, line);
                for (size_t j = 0; j < STREAM_TOGETHER; j++)
                    sum[j] = vec_dot_pairs(vec_load_f32(q), vec_repeat_two(k + offset[i + j] + piece * 8), sum[j]);
            }
        }
        for (size_t j = 0; j < STREAM_TOGETHER; j += 2)
            vec_store_f32(s->scores + (i + j) / 2 * VL, vec_join_two(sum[j], sum[j + 1]));
    }
}

/* A larger maximum of some head: what was summed so far counts for less. `largest` as maximum. */
static void hot_stream_raise(const struct hot_attend *t, struct hot_stream *s, vec largest)
{
    const size_t padded = hot_padded(t->head_dim);
    float lanes[VL], factor[VL];
    vec_store_f32(lanes, vec_exp2(vec_sub(s->maximum, largest)));
    s->maximum = largest;
    for (int m = 0; m < STREAM_HEADS; m++)
        factor[m] = factor[m + STREAM_HEADS] = lanes[2 * m];
    s->total = vec_mul(s->total, vec_load_f32(factor));
    for (size_t m = 0; m < (size_t)t->group; m++)
        for (size_t d = 0; d < padded; d += VL) {
            float *o = t->o + m * padded + d;
            vec_store_f32(o, vec_mul(vec_load_f32(o), vec_set1(factor[m])));
        }
}

/* Scores q k of the step's first `keys` keys to weights 2^(q k factor - maximum). */
static void hot_stream_softmax(const struct hot_attend *t, struct hot_stream *s, int keys)
{
    for (int j = 0; s->scales && j < STREAM_KEYS / 2; j++)
        vec_store_f32(s->scores + j * VL,
                      vec_mul(vec_load_f32(s->scores + j * VL), vec_repeat_two(s->scales->k_scale + 2 * j)));
    for (int i = keys; i < STREAM_KEYS; i++)
        for (int m = 0; m < STREAM_HEADS; m++)
            s->scores[i / 2 * VL + 2 * m + i % 2] = -INFINITY;
    vec most = vec_load_f32(s->scores);
    for (int j = 1; j < STREAM_KEYS / 2; j++)
        most = vec_max(vec_load_f32(s->scores + j * VL), most);
    const vec factor = vec_set1(t->scale * 0x1.715476p0f), ones = vec_set1_pair(0x3f803f80u);
    most = vec_max(vec_mul(vec_max(most, vec_swap_neighbours(most)), factor), s->maximum);
    if (vec_any_greater(most, s->maximum))
        hot_stream_raise(t, s, most);
    const vec base = vec_sub(vec_set1(0.0f), s->maximum);
    for (int j = 0; j < STREAM_KEYS / 2; j += 2) {
        vec p = vec_exp2_short(vec_fma(vec_load_f32(s->scores + j * VL), factor, base));
        vec next = vec_exp2_short(vec_fma(vec_load_f32(s->scores + (j + 1) * VL), factor, base));
        vec both = vec_round_pairs(p, next);
        s->total = vec_dot_pairs(both, ones, s->total);
        if (s->scales)
            both = vec_round_pairs(vec_mul(p, vec_repeat_two(s->scales->v_scale + 2 * j)),
                                   vec_mul(next, vec_repeat_two(s->scales->v_scale + 2 * j + 2)));
        vec_store_f32(s->p + j * STREAM_HEADS, both);
    }
}

/* o += p v for G heads. */
VEC_INLINE void hot_stream_output(int LINES, int G, const struct hot_attend *t, const float *p, const size_t *offset,
                                  const size_t *ahead)
{
    const size_t padded = hot_padded(t->head_dim);
    for (size_t d = 0; d < (size_t)t->head_dim; d += STREAM_PANEL) {
        const char *v = (const char *)t->v + d * 2;
        vec sum[STREAM_HEADS][2];
        for (int m = 0; m < G; m++)
            for (int n = 0; n < 2; n++)
                sum[m][n] = vec_load_f32(t->o + (size_t)m * padded + d + (size_t)(n * VL));
        for (size_t i = 0; i < STREAM_KEYS; i += 2) {
            const size_t n = LINES > 0 ? ((size_t)LINES + d / STREAM_PANEL) * STREAM_KEYS + i : i;
            hot_stream_ask(LINES, t, t->v, ahead, n, d * 2);
            hot_stream_ask(LINES, t, t->v, ahead, n + 1, d * 2);
            vec first = vec_load_f32(v + offset[i]), second = vec_load_f32(v + offset[i + 1]);
            vec low = vec_pair_rows_low(first, second), high = vec_pair_rows_high(first, second);
            for (int m = 0; m < G; m++) {
                vec weight = vec_set1(p[i / 2 * STREAM_HEADS + m]);
                sum[m][0] = vec_dot_pairs(weight, low, sum[m][0]);
                sum[m][1] = vec_dot_pairs(weight, high, sum[m][1]);
            }
        }
        for (int m = 0; m < G; m++)
            for (int n = 0; n < 2; n++)
                vec_store_f32(t->o + (size_t)m * padded + d + (size_t)(n * VL), sum[m][n]);
    }
}

/* A constant number of heads, so that the sums stay in registers. */
VEC_INLINE void hot_stream_output_any(int LINES, const struct hot_attend *t, const float *p, const size_t *offset,
                                      const size_t *ahead)
{
    switch (t->group) {
    case 2:
        hot_stream_output(LINES, 2, t, p, offset, ahead);
        break;
    case 3:
        hot_stream_output(LINES, 3, t, p, offset, ahead);
        break;
    case 4:
        hot_stream_output(LINES, 4, t, p, offset, ahead);
        break;
    case 5:
        hot_stream_output(LINES, 5, t, p, offset, ahead);
        break;
    case 6:
        hot_stream_output(LINES, 6, t, p, offset, ahead);
        break;
    case 7:
        hot_stream_output(LINES, 7, t, p, offset, ahead);
        break;
    default:
        hot_stream_output(LINES, 8, t, p, offset, ahead);
        break;
    }
}

static int hot_stream_serves(const struct hot_attend *t)
{
    const int fewest = t->kv_dtype == DTYPE_INT8 ? STREAM_MIN_INT8 : STREAM_MIN;
    return t->working == DTYPE_BF16 && t->kv_dtype >= DTYPE_BF16 && t->tokens == 1 && t->group >= fewest &&
           t->group <= STREAM_HEADS && t->head_dim % STREAM_PANEL == 0 && t->head_dim <= STREAM_DIM;
}

/* Rows to bf16, one after the other; those of the step after the next are asked for meanwhile. */
VEC_INLINE void hot_stream_turn_rows(enum dtype dtype, const char *tensor, size_t head_dim, const size_t *offset,
                                     const size_t *ahead, uint16_t *to)
{
    for (size_t i = 0; i < STREAM_KEYS; i++)
        for (size_t d = 0; d < head_dim; d += STREAM_PANEL, to += STREAM_PANEL) {
            const char *from = tensor + offset[i] + d;
            if (d % STREAM_LINE == 0)
                __builtin_prefetch(tensor + ahead[i] + d);
            vec_store_f32(to, dtype == DTYPE_INT8 ? vec_pairs_of_int8(from) : vec_pairs_of_fp8(from));
        }
}

static void hot_stream_turn(const struct hot_attend *t, int first, int keys, const size_t *offset, const size_t *ahead,
                            struct hot_stream_step *step)
{
    const size_t head_dim = (size_t)t->head_dim;
    if (t->kv_dtype == DTYPE_INT8) {
        hot_stream_turn_rows(DTYPE_INT8, t->k, head_dim, offset, ahead, step->k);
        hot_stream_turn_rows(DTYPE_INT8, t->v, head_dim, offset, ahead, step->v);
        hot_find_scales(t, t->k_scale, first, keys, step->k_scale);
        hot_find_scales(t, t->v_scale, first, keys, step->v_scale);
    } else {
        hot_stream_turn_rows(DTYPE_FP8_E4M3, t->k, head_dim, offset, ahead, step->k);
        hot_stream_turn_rows(DTYPE_FP8_E4M3, t->v, head_dim, offset, ahead, step->v);
    }
    for (int i = keys; i < STREAM_KEYS; i++) /* past the end: weights of 0 */
        step->k_scale[i] = step->v_scale[i] = 0.0f;
}

/* Asks for a whole step: one before which nothing is multiplied. */
static void hot_stream_ask_all(const struct hot_attend *t, const size_t *offset)
{
    const size_t row_bytes = (size_t)t->head_dim * hot_size(t->kv_dtype);
    for (size_t i = 0; i < STREAM_KEYS; i++)
        for (size_t line = 0; line < row_bytes; line += STREAM_LINE) {
            hot_stream_ask(0, t, t->k, offset, i, line);
            hot_stream_ask(0, t, t->v, offset, i, line);
        }
}

/* A step of keys, of which the first `keys` count: scores, weights, output. */
VEC_INLINE void hot_stream_multiply(int LINES, const struct hot_attend *t, struct hot_stream *s, int keys,
                                    const size_t *offset, const size_t *ahead)
{
    hot_stream_scores(LINES, t, s, offset, ahead);
    hot_stream_softmax(t, s, keys);
    hot_stream_output_any(LINES, t, s->p, offset, ahead);
}

/* A row of decode sees all keys from first_key on: nothing is masked but the places past the last. */
static void hot_attend_stream(const struct hot_attend *t)
{
    _Alignas(HOT_ALIGN_BYTES) float q[STREAM_DIM / 4 * VL], scores[STREAM_KEYS / 2 * VL],
        p[STREAM_KEYS / 2 * STREAM_HEADS];
    _Alignas(HOT_ALIGN_BYTES) struct hot_stream_step turned;
    const int turns = t->kv_dtype != DTYPE_BF16;
    struct hot_attend in_bf16 = *t;
    struct hot_stream s = {
        q, scores, p, t->kv_dtype == DTYPE_INT8 ? &turned : NULL, vec_set1(t->maximum[0]), vec_set1(0.0f)};
    size_t rows[STREAM_AHEAD + 1][STREAM_KEYS]; /* where those of a step lie: at step % (STREAM_AHEAD + 1) */
    if (turns) {
        in_bf16.k = turned.k;
        in_bf16.v = turned.v;
        for (size_t i = 0; i < STREAM_KEYS; i++)
            turned.offset[i] = i * (size_t)t->head_dim * sizeof *turned.k;
    }
    hot_stream_pack_q(t, q);
    for (int step = 0; step < STREAM_AHEAD; step++) {
        hot_stream_find(t, t->first_key + step * STREAM_KEYS, rows[step]);
        hot_stream_ask_all(t, rows[step]);
    }
    for (int step = 0, first; (first = t->first_key + step * STREAM_KEYS) < t->end_key; step++) {
        const size_t *offset = rows[step % (STREAM_AHEAD + 1)];
        size_t *ahead = rows[(step + STREAM_AHEAD) % (STREAM_AHEAD + 1)];
        int keys = t->end_key - first < STREAM_KEYS ? t->end_key - first : STREAM_KEYS;
        hot_stream_find(t, first + STREAM_AHEAD * STREAM_KEYS, ahead);
        if (turns) {
            hot_stream_turn(t, first, keys, offset, ahead, &turned);
            offset = ahead = turned.offset;
        }
        if (t->head_dim == 64)
            hot_stream_multiply(2, &in_bf16, &s, keys, offset, ahead);
        else if (t->head_dim == 128)
            hot_stream_multiply(4, &in_bf16, &s, keys, offset, ahead);
        else
            hot_stream_multiply(0, &in_bf16, &s, keys, offset, ahead);
    }
    float maximum[VL], total[VL];
    vec_store_f32(maximum, s.maximum);
    vec_store_f32(total, s.total);
    for (int m = 0; m < t->group; m++) {
        t->maximum[m] = maximum[2 * m];
        t->sum[m] = total[m] + total[m + STREAM_HEADS];
    }
}

#endif
