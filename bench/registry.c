/* Every experiment, in the order of `kvlab list`: one line each. */
#include "bench/harness/bench.h"

/* clang-format off */
#define EXPERIMENTS(EXPERIMENT) \
    EXPERIMENT(formula) \
    EXPERIMENT(kv) \
    EXPERIMENT(slope) \
    EXPERIMENT(logits) \
    EXPERIMENT(cache) \
    EXPERIMENT(tpot) \
    EXPERIMENT(anatomy) \
    EXPERIMENT(capacity) \
    EXPERIMENT(oom) \
    EXPERIMENT(phases) \
    EXPERIMENT(batch) \
    EXPERIMENT(roofline) \
    EXPERIMENT(gqa) \
    EXPERIMENT(batching) \
    EXPERIMENT(prefix) \
    EXPERIMENT(chunked) \
    EXPERIMENT(serve) \
    EXPERIMENT(window) \
    EXPERIMENT(evict) \
    EXPERIMENT(profile) \
    EXPERIMENT(paged) \
    EXPERIMENT(speculative) \
    EXPERIMENT(kvquant) \
    EXPERIMENT(ladder) \

#define DECLARED(name) extern const struct experiment name##_experiment;
#define LISTED(name) &name##_experiment,
/* clang-format on */

EXPERIMENTS(DECLARED)

const struct experiment *const experiments[] = {EXPERIMENTS(LISTED) NULL};
