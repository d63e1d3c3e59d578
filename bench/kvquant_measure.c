#include "bench/kvquant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of all types' caches at a time. */
static uint64_t caches_bytes(const struct kvquant *k, int64_t tokens)
{
    uint64_t bytes = 0;
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++)
        if (k->types[type].measured)
            bytes += formula_kv_bytes(&k->bench->config, type, tokens);
    return bytes;
}

enum status kvquant_open_model(struct kvquant *k, struct model *model, int64_t longest, struct error *error)
{
    const struct model_limits limits = {.max_rows = KVQUANT_ROWS, .max_sequences = 1, .max_blocks = 1};
    const struct config *config = &k->bench->config;
    const struct bench_need need = {.kv_bytes = caches_bytes(k, longest + KVQUANT_STEPS),
                                    .logits_bytes =
                                        formula_logits_bytes(config, k->bench->dtype, KVQUANT_ROWS + DTYPE_COUNT)};
    k->as_int8 = *k->bench;
    k->as_int8.kv_dtype = DTYPE_INT8;
    k->model = model;
    return bench_open_model(&k->as_int8, &limits, &need, model, error);
}

static void forget(struct kvquant_type *t)
{
    timed_batch_free(&t->steps);
    free(t->samples);
    *t = (struct kvquant_type){.measured = t->measured};
}

void kvquant_free(struct kvquant *k)
{
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++)
        forget(&k->types[type]);
    text_free(&k->text);
}

enum status kvquant_begin(struct kvquant *k, struct error *error)
{
    k->rows_compared = k->logits_compared = 0;
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++) {
        struct kvquant_type *t = &k->types[type];
        forget(t);
        t->as = *k->bench;
        t->as.kv_dtype = type;
        t->samples = calloc((size_t)k->reps * KVQUANT_STEPS, sizeof *t->samples);
        if (t->samples == NULL)
            return error_set(error, STATUS_DEVICE, "kvquant: out of host memory");
    }
    return STATUS_OK;
}

/* ---- quality ---- */

struct kvquant_pieces kvquant_pieces(const struct kvquant *k, int64_t context)
{
    int64_t length = context < k->most_scored ? context : k->most_scored;
    return (struct kvquant_pieces){k->bench->options.quick ? 1 : k->most_scored / length, length};
}

static int64_t choice(enum dtype dtype, const char *row, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (dtype_load(dtype, row, (size_t)i) > dtype_load(dtype, row, (size_t)best))
            best = i;
    return best;
}

static void compare(struct kvquant_type *t, const struct logits *logits, const char *ours, const char *reference)
{
    size_t row_bytes = (size_t)logits->vocab * dtype_size(logits->dtype);
    for (int64_t r = 0; r < logits->rows; r++) {
        const char *a = ours + (size_t)r * row_bytes, *b = reference + (size_t)r * row_bytes;
        for (int64_t i = 0; i < logits->vocab; i++) {
            double off =
                fabs((double)dtype_load(logits->dtype, a, (size_t)i) - (double)dtype_load(logits->dtype, b, (size_t)i));
            t->largest_error = fmax(t->largest_error, off);
            t->squares += off * off;
        }
        t->same += choice(logits->dtype, a, logits->vocab) == choice(logits->dtype, b, logits->vocab);
    }
}

/* What scoring holds: a cache per type, and the f32 cache's logits of the latest pass. */
struct scoring {
    struct scorer scorer;
    struct kv_cache *caches[DTYPE_COUNT];
    int sequences[DTYPE_COUNT];
    char *reference;
};

static void scoring_free(struct scoring *s)
{
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++)
        kv_close(s->caches[type]);
    scorer_free(&s->scorer);
    free(s->reference);
}

static enum status scoring_init(struct scoring *s, struct kvquant *k, struct error *error)
{
    size_t logits = (size_t)k->bench->config.vocab_size * KVQUANT_ROWS;
    *s = (struct scoring){.reference = malloc(logits * dtype_size(k->bench->dtype))};
    if (s->reference == NULL)
        return error_set(error, STATUS_DEVICE, "kvquant: out of host memory");
    if (scorer_init(&s->scorer, k->model, KVQUANT_ROWS, error) != STATUS_OK)
        return error->status;
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++) {
        const struct kv_options options = {.policy = KV_RESERVED,
                                           .dtype = type,
                                           .max_sequences = 1,
                                           .max_tokens = (int)kvquant_pieces(k, k->context).length};
        if (k->types[type].measured &&
            (kv_open(&s->caches[type], k->bench->ledger, &k->bench->config, &options, error) != STATUS_OK ||
             kv_sequence_open(s->caches[type], &s->sequences[type], error) != STATUS_OK))
            return error->status;
    }
    return STATUS_OK;
}

/* The tokens [first, first + count), one pass, with every type; the f32 cache comes first and is what the others are
   held against. */
static enum status score_pass(struct scoring *s, struct kvquant *k, int64_t first, int64_t count, struct error *error)
{
    const struct logits *logits = &s->scorer.logits;
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++) {
        struct kvquant_type *t = &k->types[type];
        if (!t->measured)
            continue;
        if (scorer_feed(&s->scorer, s->caches[type], s->sequences[type], &k->text, first, count, &t->quality, error) !=
            STATUS_OK)
            return error->status;
        if (type == DTYPE_F32)
            memcpy(s->reference, s->scorer.host, (size_t)(logits->rows * logits->vocab) * dtype_size(logits->dtype));
        compare(t, logits, s->scorer.host, s->reference);
    }
    k->rows_compared += logits->rows;
    k->logits_compared += logits->rows * logits->vocab;
    return STATUS_OK;
}

static enum status score_pieces(struct scoring *s, struct kvquant *k, struct error *error)
{
    const struct kvquant_pieces pieces = kvquant_pieces(k, k->context);
    for (int64_t piece = 0; piece < pieces.count; piece++) {
        for (int64_t done = 0; done < pieces.length; done += KVQUANT_ROWS) {
            int64_t count = pieces.length - done < KVQUANT_ROWS ? pieces.length - done : KVQUANT_ROWS;
            if (score_pass(s, k, piece * pieces.length + done, count, error) != STATUS_OK)
                return error->status;
        }
        for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++)
            if (s->caches[type] != NULL && kv_truncate(s->caches[type], s->sequences[type], 0, error) != STATUS_OK)
                return error->status;
    }
    return STATUS_OK;
}

enum status kvquant_score(struct kvquant *k, struct error *error)
{
    struct scoring scoring;
    enum status status = scoring_init(&scoring, k, error);
    if (status == STATUS_OK)
        status = score_pieces(&scoring, k, error);
    scoring_free(&scoring);
    return status;
}

/* ---- time ---- */

/* The steps at the context, after some that put the processor into the same state; they store the same K and V again.
 */
static enum status visit(struct kvquant *k, struct kvquant_type *t, double *ms, uint64_t *checksum, struct error *error)
{
    int32_t chosen[KVQUANT_STEPS];
    int context = (int)k->context, before = context > KVQUANT_WARM_STEPS ? context - KVQUANT_WARM_STEPS : 0;
    if (timed_batch_rewind(&t->steps, before, error) != STATUS_OK)
        return error->status;
    for (int i = before - context; i < KVQUANT_STEPS; i++) {
        double step_ms;
        if (timed_batch_pass(&t->steps, 1, 1, &step_ms, error) != STATUS_OK)
            return error->status;
        if (i >= 0) {
            ms[i] = step_ms;
            chosen[i] = t->steps.chosen[0];
        }
    }
    *checksum = bench_checksum(chosen, sizeof chosen);
    return STATUS_OK;
}

/* A repetition visits all types, in one order and the other in turn. The first, which is not timed, replaces what the
   steps find in the cache by what they store there themselves. */
static enum status repeat(struct kvquant *k, struct error *error)
{
    for (int repetition = -1; repetition < k->reps; repetition++) {
        if (bench_reader_sample(k->reader, error) != STATUS_OK)
            return error->status;
        for (int i = 0; i < DTYPE_COUNT; i++) {
            enum dtype type = (enum dtype)(repetition % 2 ? DTYPE_COUNT - 1 - i : i);
            struct kvquant_type *t = &k->types[type];
            double ms[KVQUANT_STEPS];
            uint64_t checksum = 0;
            char setting[64];
            if (!t->measured)
                continue;
            if (visit(k, t, ms, &checksum, error) != STATUS_OK)
                return error->status;
            if (repetition >= 0 && checksum != t->checksum)
                return error_set(error, STATUS_CHECK_FAILED,
                                 "kvquant: %s cache, context %" PRId64
                                 ": repetition %d chose other tokens than the one "
                                 "before: what is timed is not the same work",
                                 dtype_name(type), k->context, repetition);
            t->checksum = checksum;
            snprintf(setting, sizeof setting, "kv_dtype=%s;context=%" PRId64, dtype_name(type), k->context);
            for (int step = 0; repetition >= 0 && step < KVQUANT_STEPS; step++) {
                t->samples[t->n++] = ms[step];
                if (samples_add(k->bench, setting, repetition, ms[step], "ms", error) != STATUS_OK)
                    return error->status;
            }
        }
    }
    return STATUS_OK;
}

enum status kvquant_time(struct kvquant *k, struct error *error)
{
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++) {
        struct kvquant_type *t = &k->types[type];
        int room = (int)k->context + KVQUANT_STEPS;
        if (t->measured && (timed_batch_init(&t->steps, &t->as, k->model, 1, room, error) != STATUS_OK ||
                            timed_batch_fill_random(&t->steps, room, error) != STATUS_OK))
            return error->status;
    }
    enum status status = bench_reader_open(k->bench, &k->reader, error);
    if (status == STATUS_OK)
        status = repeat(k, error);
    if (status == STATUS_OK)
        k->read_ceiling_gbps = bench_reader_gbps(k->reader);
    bench_reader_close(k->reader);
    k->reader = NULL;
    if (status != STATUS_OK)
        return status;
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++)
        timed_batch_free(&k->types[type].steps);
    return STATUS_OK;
}
