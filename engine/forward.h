/* The forward pass: prefill, decode, chunked prefill, batching, and recomputing without a cache are all this one call
   over a ragged batch. */
#ifndef KVLAB_ENGINE_FORWARD_H
#define KVLAB_ENGINE_FORWARD_H

#include "engine/kv_cache.h"
#include "engine/sampler.h"
#include "engine/weights.h"

#include <signal.h>

/* Logits that forward passes appended: [rows][vocab] in the working type, tagged `logits` in the ledger. */
struct logits {
    void *data; /* device memory */
    enum dtype dtype;
    int64_t rows, capacity, vocab;
};

enum status logits_init(struct logits *logits, struct ledger *ledger, const struct config *config, enum dtype dtype,
                        int64_t capacity, struct error *error);
void logits_free(struct logits *logits, struct ledger *ledger);

enum logits_positions { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL };

/* The next tokens of one sequence; they start at kv_length(cache, sequence). */
struct sequence_tokens {
    int sequence;          /* in the cache; at most once per batch */
    const int32_t *tokens; /* host [count] */
    int count;             /* > 0 */
    enum logits_positions logits;
};

struct model_limits {
    int max_rows;      /* tokens per forward pass; longer prompts go in chunks */
    int max_sequences; /* sequences per forward pass */
    int max_blocks;    /* block-table entries per sequence */
};

/* A model ready to run: weights, and all the memory a forward pass of up to `limits` needs, so that none is allocated
   in a pass. */
struct model {
    const struct config *config;
    struct ledger *ledger;
    struct weights weights;
    struct model_limits limits;
    uint64_t positions_processed;      /* rows that really went through the layers, counted as they do */
    const volatile sig_atomic_t *stop; /* looked at between passes of a long prefill; NULL, or set after model_init */
    struct model_buffers *buffers;
};

/* Bytes of workspace that model_init() will take for such passes, the device's own scratch included (source: formula).
 */
uint64_t model_workspace_bytes(const struct config *config, struct device *device, const struct model_limits *limits,
                               enum dtype dtype, enum dtype kv_dtype);

/* Takes over `weights` (freed by model_free, also when this fails). */
enum status model_init(struct model *model, struct ledger *ledger, const struct config *config, struct weights *weights,
                       const struct model_limits *limits, enum dtype kv_dtype, struct error *error);
void model_free(struct model *model);

/* One pass over the batch: stores K and V of every new position, advances the sequences, and appends the logits asked
   for to `logits` (may be NULL if none are), sequence by sequence, position by position. Status 2: a token id out of
   range or more rows than the limits; 3: no room in the cache. In both cases nothing has changed but the cache's room
   (and see kv_make_room). */
enum status model_forward(struct model *model, struct kv_cache *cache, const struct sequence_tokens *batch,
                          int sequences, struct logits *logits, struct error *error);

/* One sequence's tokens in chunks of at most `chunk` rows (0: limits.max_rows), with the logits of none, the last, or
   all positions appended. Status 130 if *model->stop was set between chunks. */
enum status model_prefill(struct model *model, struct kv_cache *cache, int sequence, const int32_t *tokens, int count,
                          enum logits_positions positions, int chunk, struct logits *logits, struct error *error);

/* Greedy choice for the logits' rows [first, first + count): host int32_t tokens[count]. */
enum status model_argmax(struct model *model, const struct logits *logits, int64_t first, int count, int32_t *tokens,
                         struct error *error);

/* Seeded choice for the same rows (struct sample_args): points, host [count], uniform random numbers. A row whose
   logits are not all finite gets -1. */
enum status model_sample(struct model *model, const struct logits *logits, int64_t first, int count,
                         const struct sampler *sampler, const uint32_t *points, int32_t *tokens, struct error *error);

#endif
