/* One batch size of the experiment tpot: its sequences, and the times of their decode steps at every context, repeated
   until the rise with context is known closely. Between bench/tpot.c, which predicts and writes, and the harness. */
#ifndef KVLAB_BENCH_TPOT_GROUP_H
#define KVLAB_BENCH_TPOT_GROUP_H

#include "bench/harness/repeats.h"
#include "bench/harness/timed_batch.h"

enum { TPOT_STEPS_PER_VISIT = 3 };

struct tpot_group {
    struct bench *bench;
    struct model *model;
    const struct int_list *contexts;
    int batch;
    bool compare_graphs;
    struct timed_batch sequences; /* decoding feeds what was prefilled again, so that a visit restores the state */
    int32_t *chosen;              /* host [TPOT_STEPS_PER_VISIT][batch] */

    struct repeats repeats; /* time by their steps, the warm ones included */
    enum stats_verdict stopped_by;

    double *samples;             /* ms, [contexts][repeats.rule.most * TPOT_STEPS_PER_VISIT] */
    double *launched;            /* likewise, with compare_graphs; else NULL */
    double *visits;              /* ms, [repeats.count][contexts]: the fastest of a visit's steps */
    double *x, *kv;              /* [contexts] tokens, and bytes of K and V that a step must read */
    uint64_t *checksums;         /* [contexts] of the last visit */
    struct bench_reader *reader; /* asked before each repetition */
    double read_ceiling;         /* bytes per second */
};

/* Takes all memory, fills the caches, and repeats as often as --reps says or the rule needs. To progress it announces a
   weight of tpot_group_weight in all. Free with tpot_group_free(), also after an error; that takes a zeroed struct. */
enum status tpot_group_measure(struct tpot_group *group, struct bench *bench, struct model *model,
                               const struct int_list *contexts, int batch, bool compare_graphs, struct error *error);
void tpot_group_free(struct tpot_group *group);
extern const double tpot_group_weight;

/* The line through what was measured so far; without an interval for less than two contexts, which have no slope. */
struct stats_line tpot_group_fit(const struct tpot_group *group);
/* Rise of the bytes of K and V, by least squares: at least two contexts. */
double tpot_group_kv_bytes_per_token(const struct tpot_group *group);
/* "width", "most", "time" or "given", as the column stopped_by says. */
const char *tpot_group_stopped_by(const struct tpot_group *group);

/* Bytes of K and V that a step must read whose sequences then hold `context` tokens each. */
uint64_t tpot_kv_read_bytes(const struct bench *bench, int64_t context, int64_t batch);
/* Tokens that a sequence must have room for: the longest context and the steps after it. */
int64_t tpot_room(const struct int_list *contexts);

#endif
