/* The ladder's workload and steps, what arithmetic expects of each, and one run of each. */
#ifndef KVLAB_BENCH_LADDER_H
#define KVLAB_BENCH_LADDER_H

#include "bench/harness/bench.h"
#include "engine/scheduler.h"

enum { LADDER_CLASSES = 4, LADDER_BLOCK = 16 };

/* Requests that begin with the same `shared` tokens, go on with `own` ones, and have outputs of four lengths in turn,
   all there from the start. */
struct ladder_load {
    int requests; /* a multiple of LADDER_CLASSES, so that every length comes as often */
    int shared, own;
    int outputs[LADDER_CLASSES];
    int max_tokens;     /* longest sequence allowed: what a reservation takes */
    int rows;           /* most tokens of a forward pass */
    uint64_t kv_budget; /* bytes */
};

enum ladder_way { LADDER_NO_CACHE, LADDER_ONE_BY_ONE, LADDER_SCHEDULED };

/* One rung: everything that is switched. What is not named in a step is as in the one before. */
struct ladder_step {
    const char *name;
    enum ladder_way way;
    enum schedule_policy schedule; /* scheduled ones */
    enum kv_policy memory;
    bool prefix_cache, fp8;
};
enum { LADDER_STEPS = 7 };
extern const struct ladder_step ladder_steps[LADDER_STEPS];

/* ---- ladder_predict.c */

int ladder_prompt(const struct ladder_load *load);
int ladder_output(const struct ladder_load *load, int request);
/* Requests that a step runs: without a cache one of each length, which makes the same rate and takes a minute less. */
int ladder_requests(const struct ladder_load *load, const struct ladder_step *step);
int64_t ladder_output_tokens(const struct ladder_load *load, const struct ladder_step *step);
/* The step's cache under the budget. */
struct kv_options ladder_memory(const struct bench *bench, const struct ladder_load *load,
                                const struct ladder_step *step);
int ladder_slots(const struct bench *bench, const struct ladder_load *load, const struct ladder_step *step);

/* A forward pass takes as long as the slower of reading its bytes and computing its rows (roofline). */
struct ladder_machine {
    double bytes_per_s, flops_per_s;
};
struct ladder_estimate {
    double seconds;
    double positions; /* that go through the model */
    double batch;     /* sequences that decode together, on average */
};
struct ladder_estimate ladder_predict(const struct bench *bench, const struct ladder_load *load,
                                      const struct ladder_step *step, const struct ladder_machine *machine);

/* ---- ladder_run.c */

/* What a step's runs left; the caller owns the arrays. */
struct ladder_outcome {
    double *seconds; /* [reps] */
    int32_t *tokens; /* host [output tokens]: what was chosen, request by request */
    uint64_t checksum, peak_kv_bytes, positions_before;
    int64_t positions, choosing_passes, hit_tokens, preemptions;
};

struct ladder {
    struct bench *bench;
    struct ladder_load load;
    struct model model, fp8_model; /* the same weights; workspace for its own type of cache */
    int32_t *prompts;              /* host [requests][prompt] */
    int reps;
    struct ladder_machine machine;
    struct ladder_outcome outcomes[LADDER_STEPS];
};

/* Runs step number `at` and fills in its outcome; the time goes to seconds[repetition]. Status 1: it chose other tokens
   than in the repetition before; 130: interrupted. */
enum status ladder_run_step(struct ladder *ladder, size_t at, int repetition, struct error *error);

#endif
