/* Requests served through the scheduler, and what the steps say together: the common ground of the experiments on
   serving (batching, prefix, chunked, serve). Cache, scheduler and a clock by the device's events; time without work is
   skipped. */
#ifndef KVLAB_BENCH_HARNESS_SERVING_H
#define KVLAB_BENCH_HARNESS_SERVING_H

#include "bench/harness/bench.h"
#include "engine/device_clock.h"
#include "engine/scheduler.h"

struct serving {
    struct bench *bench;
    struct kv_cache *cache;
    struct scheduler *scheduler;
    struct device_clock clock;
    struct request *requests; /* [most], in the order in which they were added; their tokens are owned */
    size_t count, most;
    double *last_token_ms; /* [most] */
    double *values;        /* [most], scratch of serving_quantile() */
    double *gaps_ms;       /* [gap_count] between two tokens of one request, in the order in which they ended */
    size_t gap_count, gap_capacity;
    /* Counted step by step. */
    int64_t steps, rows, cells, idle_cells, preemptions;
    int kv_blocks_max; /* paged: most blocks held in a step */
};

/* Bytes of the cache that these options can come to hold, for the plan (source: formula). */
uint64_t serving_kv_bytes(const struct bench *bench, const struct kv_options *memory);

/* For up to `most` requests; the model outlives it. Free with serving_free(), also after an error; that takes a zeroed
   struct. */
enum status serving_init(struct serving *serving, struct bench *bench, struct model *model,
                         const struct kv_options *memory, const struct scheduler_options *options, size_t most,
                         struct error *error);
void serving_free(struct serving *serving);

/* Queues a request with a copy of prompt [prompt_tokens]. */
enum status serving_add(struct serving *serving, const int32_t *prompt, int prompt_tokens, int output_tokens,
                        double arrival_ms, struct error *error);

/* One step of the scheduler, counted. Status 130 if interrupted. */
enum status serving_step(struct serving *serving, struct step_record *step, struct error *error);
/* Steps until all is done. */
enum status serving_run(struct serving *serving, struct error *error);

/* Of finished requests. */
double request_queue_ms(const struct request *request);   /* arrival to admission; a part of the time to first token */
double request_ttft_ms(const struct request *request);    /* arrival to first token */
double request_prefill_ms(const struct request *request); /* admission to first token: the rest of it */
double request_e2e_ms(const struct request *request);     /* arrival to last token */
double request_tpot_ms(const struct request *request);    /* between tokens, on average; NaN of a single one */

/* The q-quantile of a property over the finished requests of `output_tokens` tokens (0: of any number); NaN where there
   is none. */
double serving_quantile(struct serving *serving, double (*property)(const struct request *), int output_tokens,
                        double q);

/* Number of the request that a record points to. */
size_t serving_number(const struct serving *serving, const struct request *request);

#endif
