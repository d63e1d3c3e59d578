/* From the repetitions of a profiled pass to rows: median times by operation. Between bench/profile.c, which runs the
   passes, and the table that it writes; pure arithmetic, tested with passes that are made up. */
#ifndef KVLAB_BENCH_PROFILE_ROWS_H
#define KVLAB_BENCH_PROFILE_ROWS_H

#include "bench/harness/stats.h"
#include "kernels/profile.h"

/* One operation over all repetitions. */
struct profile_row {
    const struct profile_operation *operation; /* of the first repetition, which holds it: counts, bytes, kernels */
    double ms;                                 /* median over the repetitions */
};

struct profile_medians {
    struct profile_row *rows; /* the longest first */
    size_t count;
    double pass_ms, gap_ms; /* medians */
    int gaps;               /* of the first repetition */
};

/* passes [n], n > 0, all of the same work: status 1 where one has other operations, or another number of calls of one,
   than the first. Borrows the passes. */
enum status profile_medians_of(struct profile_medians *medians, const struct profile_pass *passes, size_t n,
                               struct error *error);
void profile_medians_free(struct profile_medians *medians); /* takes a zeroed struct */

/* "below" or "above" where the whole interval is, "not resolved" where it holds the limit or there is none. */
const char *profile_hooks_verdict(const struct stats_interval *cost, double limit);

#endif
