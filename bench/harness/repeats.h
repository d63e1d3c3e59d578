/* Repetitions under a rule (stats_judge()): how many there were, what they took, and what progress hears of them. */
#ifndef KVLAB_BENCH_HARNESS_REPEATS_H
#define KVLAB_BENCH_HARNESS_REPEATS_H

#include "bench/harness/bench.h"

struct repeats {
    struct stats_rule rule; /* least = most: as many as the user said */
    size_t count;           /* so far, rule.most at most */
    double spent_ms;        /* by them, set by the driver */
    double announced;       /* of the rule, 0 to 1, as stats_rule_done() */
};

/* Announces the next repetition, "<what>, repetition 3 of at most 90", of a weight of `weight` for all that the rule
   may take: it is expected to take as long as those before it. */
void repeats_announce(struct bench *bench, struct repeats *repeats, double weight, const char *what);
/* The repetitions that are not needed take no time. */
void repeats_announce_end(struct bench *bench, struct repeats *repeats, double weight, const char *what);

#endif
