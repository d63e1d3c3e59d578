/* The experiments that there are: one line each here, and one in the list, in the order of `kvlab list`. */
#include "bench/harness/bench.h"

extern const struct experiment formula_experiment;
extern const struct experiment kv_experiment;
extern const struct experiment slope_experiment;
extern const struct experiment logits_experiment;
extern const struct experiment cache_experiment;
extern const struct experiment tpot_experiment;
extern const struct experiment anatomy_experiment;
extern const struct experiment capacity_experiment;
extern const struct experiment oom_experiment;
extern const struct experiment phases_experiment;
extern const struct experiment batch_experiment;
extern const struct experiment roofline_experiment;
extern const struct experiment gqa_experiment;

const struct experiment *const experiments[] = {
    &formula_experiment, &kv_experiment,
    &slope_experiment,   &logits_experiment,
    &cache_experiment,   &tpot_experiment,
    &anatomy_experiment, &capacity_experiment,
    &oom_experiment,     &phases_experiment,
    &batch_experiment,   &roofline_experiment,
    &gqa_experiment,     NULL,
};
