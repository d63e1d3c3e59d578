/* Inside kvquant: measuring one context with a cache of every type (bench/kvquant_measure.c), for the experiment that
   predicts and writes (bench/kvquant.c). */
#ifndef KVLAB_BENCH_KVQUANT_H
#define KVLAB_BENCH_KVQUANT_H

#include "bench/harness/option_table.h"
#include "bench/harness/quality.h"
#include "bench/harness/timed_batch.h"
#include "engine/work.h"

enum { KVQUANT_ROWS = 256 /* of a pass */, KVQUANT_WARM_STEPS = 2, KVQUANT_STEPS = 3 /* of a visit */ };

struct kvquant_type {
    bool measured;
    struct bench as; /* the bench as --kv-dtype would make it */
    /* Against the f32 cache, over all logits of the text. */
    struct quality quality;
    double largest_error, squares;
    int64_t same; /* positions with the same choice */
    /* Timed steps. */
    struct timed_batch steps;
    double *samples; /* [reps * KVQUANT_STEPS], ms */
    size_t n;
    uint64_t checksum;
};

struct kvquant {
    struct bench *bench;
    struct model *model;
    struct bench as_int8; /* what the model is made for: the type with most tensors per layer serves the others too */
    int reps;
    int64_t most_scored; /* tokens of the text */
    struct text text;    /* empty: nothing to predict */
    int64_t context;
    struct kvquant_type types[DTYPE_COUNT];
    int64_t rows_compared, logits_compared;
    struct bench_reader *reader; /* asked before each repetition */
    double read_ceiling_gbps;
};

/* How the text is cut for a context: a single piece with --quick. */
struct kvquant_pieces {
    int64_t count, length;
};
struct kvquant_pieces kvquant_pieces(const struct kvquant *k, int64_t context);

/* One model for all types of cache. */
enum status kvquant_open_model(struct kvquant *k, struct model *model, int64_t longest, struct error *error);
enum status kvquant_begin(struct kvquant *k, struct error *error); /* forgets what another context left */
/* Predicts the text with every type, a pass of each in turn. */
enum status kvquant_score(struct kvquant *k, struct error *error);
/* Decode steps at the context, the types in turn; their caches hold random K and V, the same values rounded. */
enum status kvquant_time(struct kvquant *k, struct error *error);
void kvquant_free(struct kvquant *k);

#endif
