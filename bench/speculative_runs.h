/* Runs of speculative decoding, for the experiment of that name: two models and their caches, the prompts, and ways of
   decoding that take turns on them. */
#ifndef KVLAB_BENCH_SPECULATIVE_RUNS_H
#define KVLAB_BENCH_SPECULATIVE_RUNS_H

#include "bench/harness/bench.h"
#include "engine/speculative.h"

enum { DRAFT_TOKENS_PLAIN = -1 }; /* in place of a draft length: plain decoding, generate() */

/* One way of decoding; over all prompts, in each of n runs. */
struct cell {
    int draft_tokens;
    bool is_row;                       /* else measured for what other rows need */
    double *ms, *draft_ms, *target_ms; /* [n], all without the prefill */
    struct speculative_counts counts;  /* of a run: the same in each */
    int32_t *tokens;                   /* host [prompts][new_tokens] */
    uint64_t checksum;
};

/* What every run works with. A driver sets the first group and finds the draft's bench. */
struct subject {
    struct bench *bench; /* the target's */
    const char *text;    /* prompts are taken from this file; NULL: the held-out text */
    int prompt_count, prompt_tokens, new_tokens, n;
    int most_draft_tokens;
    struct bench draft_bench;

    struct model target, draft;
    struct kv_cache *caches[2];
    struct speculative_side sides[2]; /* target, draft */
    int32_t *prompts;                 /* host [prompts][prompt_tokens] */
};

/* Opens both models and reads the prompts. Free with subject_free(), also after an error. */
enum status subject_init(struct subject *subject, struct error *error);
void subject_free(struct subject *subject);

enum status cell_init(struct cell *cell, const struct subject *subject, int draft_tokens, bool is_row,
                      struct error *error);
void cell_free(struct cell *cell); /* takes a zeroed struct */

/* Run number `run` < n: every prompt in the way of each cell, the ways in turn at each prompt. Status 1 where a cell's
   tokens are not those of its run before. */
enum status subject_run(struct subject *subject, struct cell *cells, int cell_count, int temperature, int run,
                        struct error *error);

#endif
