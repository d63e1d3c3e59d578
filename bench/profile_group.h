/* One context and batch size of the experiment profile: its passes run, with every operation timed and with nothing
   timed inside, in turn. Between bench/profile.c, which predicts and writes, and the harness. */
#ifndef KVLAB_BENCH_PROFILE_GROUP_H
#define KVLAB_BENCH_PROFILE_GROUP_H

#include "bench/harness/repeats.h"
#include "bench/harness/timed_batch.h"
#include "engine/work.h"
#include "kernels/profile.h"

enum profile_phase { PROFILE_PREFILL, PROFILE_DECODE };

/* One phase, with or without replaying. */
struct profile_series {
    enum profile_phase phase;
    bool graphs;
    struct profile_pass *passes; /* [n] */
    double *plain_ms;            /* [n] of the passes with nothing timed inside, from outside */
    double *watched_ms;          /* [n] of the others, likewise */
    double *hooks_percent;       /* [pairs] how much longer the same work took with its operations timed */
    size_t pairs;                /* prefill: the n repetitions; decode: as many as pairs.rule needs */
    bool counted;
    struct device_counters counters;
};
enum { PROFILE_PREFILL_OFF, PROFILE_DECODE_OFF, PROFILE_DECODE_ON, PROFILE_SERIES };

/* What looking may cost. */
#define PROFILE_HOOKS_LIMIT_PERCENT 0.5

struct profile_group {
    struct bench *bench;
    struct timed_batch sequences;
    int context, batch, n;
    struct repeats pairs; /* of visits to decode steps, looked into and not; their time is by the clock */
    struct profile_series series[PROFILE_SERIES];
    int series_count;
    uint64_t checksums[2]; /* of each phase's tokens; known once `visited` */
    bool visited;
    const char *uncounted; /* why there are no counters, or NULL */
    struct error why;
    struct bench_reader *reader;         /* asked before each repetition */
    double read_ceiling, matrix_ceiling; /* bytes and FLOP per second */
};

/* Measures the matrix ceiling, opens a model, runs all passes, the read ceiling in turn with them, and frees the model.
   Announces a weight of profile_group_weight() to progress. Free with profile_group_free(), also after an error; that
   takes a zeroed struct.
 */
enum status profile_group_measure(struct profile_group *group, struct bench *bench, int context, int batch,
                                  struct error *error);
void profile_group_free(struct profile_group *group);
double profile_group_weight(const struct bench *bench, int64_t context, int64_t batch);

/* Series that a group of this bench has. Replays are looked into only where kernels are traced: else nothing inside
   them can be seen. */
int profile_series_count(const struct bench *bench);

struct pass_shape profile_shape(enum profile_phase phase, int64_t context, int64_t batch);
extern const char *const profile_phase_names[]; /* of profile_phase */

#endif
