/* An exact KV cache with one prefilled sequence, and what each source says that it takes: the common ground of the
   experiments that count memory (kv, slope, logits). */
#ifndef KVLAB_BENCH_HARNESS_PREFILLED_H
#define KVLAB_BENCH_HARNESS_PREFILLED_H

#include "bench/harness/bench.h"

struct prefilled {
    struct kv_cache *cache;
    int sequence;
    struct logits logits; /* those asked for; no data if none were */
    /* Bytes that the prefill left behind, by source. */
    uint64_t tensor_bytes;        /* sum over the tensors that the cache holds */
    uint64_t ledger_kv_bytes;     /* growth of the ledger's live bytes tagged kv */
    uint64_t ledger_logits_bytes; /* likewise logits */
    uint64_t ledger_bytes;        /* likewise of all tags together */
    int64_t driver_bytes;         /* growth of what the process uses, seen from outside */
    const char *driver_missing;   /* why driver_bytes cannot be had, or NULL */
};

enum { PREFILL_ROWS = 512 }; /* tokens per forward pass of a prefill */

/* Passes that a prefill takes, for bench_open_model(). */
extern const struct model_limits prefill_limits;

/* Most that a prefill of `context` tokens holds at once: the cache, one tensor of it twice. */
uint64_t prefilled_kv_bytes(const struct bench *bench, int64_t context);

/* Runs every shape of pass that the contexts will need, so that what a matrix library sets up on first use is not taken
   for memory of the cache. */
enum status prefilled_warm_up(struct bench *bench, struct model *model, const struct int_list *contexts,
                              struct error *error);

/* Tensors and ledger must give the formula to the byte in every row (columns kv_formula_bytes, kv_tensor_bytes,
   kv_ledger_bytes); status 1 names the first row that does not, by its column `key`. */
enum status prefilled_check_rows(const struct results *results, const char *key, struct error *error);

/* Prefills `context` seeded tokens into a new exact cache. Free with prefilled_free(), also after an error. */
enum status prefilled_init(struct prefilled *prefilled, struct bench *bench, struct model *model, int context,
                           enum logits_positions positions, struct error *error);
void prefilled_free(struct prefilled *prefilled, struct model *model);

#endif
