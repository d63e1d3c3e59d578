/* The two halves of the experiment: a trace of requests through one KV cache under a budget, and decode steps over
   caches in blocks of several sizes. */
#ifndef KVLAB_BENCH_PAGED_H
#define KVLAB_BENCH_PAGED_H

#include "bench/harness/bench.h"
#include "bench/harness/trace.h"

/* ---- paged_run.c: memory. Sequences really open, grow and close in the cache, and every byte is allocated by a
   ledger. No model runs: positions are given room and counted as stored, which is all that memory depends on. */

struct paged_setting {
    enum kv_policy policy;
    enum dtype dtype;
    int block_size; /* paged */
    int max_tokens; /* longest sequence: what `reserved` takes for each */
};

/* Sums over the full steps: those that end with a request waiting that does not fit. Only then is memory that holds no
   token wasted, and not merely idle. */
struct paged_counts {
    int64_t steps, full_steps;
    uint64_t used;      /* bytes: positions stored * KV bytes per token */
    uint64_t internal;  /* bytes that sequences hold and have nothing in: tails of last blocks, unused reservations */
    uint64_t external;  /* bytes taken from the device that no sequence holds, too few or too scattered for the request
                           that waits: free blocks of a pool, free pieces of the ledger's segments, rounding */
    uint64_t ledger;    /* bytes live in the ledger */
    uint64_t allocated; /* bytes taken from the device: used + internal + external */
    uint64_t running;   /* sequences */

    int max_concurrent;    /* most sequences held at once, over all steps */
    int preemptions;       /* a running sequence lost its memory to an older one, and began again later */
    uint64_t allocations;  /* calls of ledger_alloc() */
    uint64_t device_bytes; /* most ever taken from the device, the copying of exact sequences included */
};

/* Runs the requests to their end under the ledger's budget, which here bounds what is taken from the device, rounding
   and fragmentation included; the ledger must hold nothing, and holds nothing afterwards.

   First come, first served. In a step every running sequence stores one more token; then requests are admitted, each
   with its prompt, while the next fits; then those that have all their tokens leave. A sequence that cannot grow takes
   the memory of the youngest, which begins again with all its tokens so far (recomputation, Kwon et al. 2023, section
   4.5); no request is admitted in such a step.

   Status 3: a request does not fit even alone; 1: the cache's tables and the ledger disagree; 130: *stop was set (NULL:
   never). */
enum status paged_run(struct ledger *ledger, const struct config *config, const struct paged_setting *setting,
                      const struct trace_request *requests, int count, const volatile sig_atomic_t *stop,
                      struct paged_counts *counts, struct error *error);

/* Positions that a running request holds on average: p, p + 1, .. p + n - 1 in its n steps, over all requests. */
double paged_mean_held(const struct trace_request *requests, int count);

/* ---- paged_blocks.c: time. The same sequences in one block each, and in blocks of each size. */

struct paged_sweep {
    const struct int_list *block_sizes;
    int context; /* tokens in each sequence when the first timed step begins */
    int slots;   /* sequences that decode together */
    int reps;
};

struct paged_times {
    int block_size; /* 0: one block */
    size_t n;       /* steps */
    double p10_ms, p50_ms, p90_ms;
    double ratio; /* to one block: median over repetitions, each with the one beside it */
    bool interval_known;
    double ratio_low, ratio_high; /* 95 % interval of the ratio */
    uint64_t checksum;            /* of the tokens chosen */
};

/* Decode steps over all caches in turn, over and over; times [1 + block_sizes->count], one block first. Interrupted:
   status 130. */
enum status paged_blocks_measure(struct bench *bench, struct model *model, const struct paged_sweep *sweep,
                                 struct paged_times *times, struct error *error);
/* What the model must be ready for, and the caches take. */
struct model_limits paged_blocks_limits(const struct paged_sweep *sweep);
int paged_blocks_room(const struct paged_sweep *sweep); /* tokens that each sequence has room for */
uint64_t paged_blocks_kv_bytes(const struct bench *bench, const struct paged_sweep *sweep);
/* Bytes that a step reads, block tables included, over those that it would read without tables. */
double paged_blocks_predicted_ratio(const struct bench *bench, const struct paged_sweep *sweep, int64_t block_size);

#endif
