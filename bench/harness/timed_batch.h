/* Timed passes over a batch of sequences that share one length: what the experiments on time have in common (tpot,
   phases, batch, roofline, gqa). Prefill is a pass with many tokens per sequence, decode one with a single token.

   The cache is reserved, so that a pass allocates nothing and a sequence can be put back to any length it has had; or
   paged, from a pool with room for all. What is timed is the forward pass and the greedy choice of every sequence. */
#ifndef KVLAB_BENCH_HARNESS_TIMED_BATCH_H
#define KVLAB_BENCH_HARNESS_TIMED_BATCH_H

#include "bench/harness/bench.h"

struct timed_batch {
    struct bench *bench;
    struct model *model;
    struct kv_cache *cache;
    int sequences, room;           /* room: tokens that each sequence can hold */
    int32_t *tokens;               /* host [room]: position p of every sequence is fed tokens[p]; seeded, may be set */
    int32_t *chosen;               /* host [sequences]: what the latest pass chose */
    int *numbers;                  /* [sequences] in the cache */
    struct sequence_tokens *items; /* [sequences] of a pass */
    struct logits logits;          /* [sequences] */
    struct device_event *start, *end;
};

/* Takes all memory of `sequences` empty sequences; the model's limits must allow them. The model outlives it. Free with
   timed_batch_free(), also after an error; that takes a zeroed struct. */
enum status timed_batch_init(struct timed_batch *batch, struct bench *bench, struct model *model, int sequences,
                             int room, struct error *error);
/* The same in blocks of block_size tokens, those of all sequences interleaved in the pool, as where sequences grow side
   by side. */
enum status timed_batch_init_paged(struct timed_batch *batch, struct bench *bench, struct model *model, int sequences,
                                   int room, int block_size, struct error *error);
void timed_batch_free(struct timed_batch *batch);

/* Bytes of its cache and logits, for the plan (source: formula). */
uint64_t timed_batch_kv_bytes(const struct config *config, enum dtype kv_dtype, int64_t sequences, int64_t room);

/* Fills empty sequences with `count` positions: by a prefill of the first, which the others get copies of; or with
   seeded random K and V where only bytes and time matter. */
enum status timed_batch_prefill(struct timed_batch *batch, int count, struct error *error);
enum status timed_batch_fill_random(struct timed_batch *batch, int count, struct error *error);

/* Puts every sequence to `length` tokens, at most as many as it has held before; paged: as it holds now. */
enum status timed_batch_rewind(struct timed_batch *batch, int length, struct error *error);

/* The next `count` tokens of the first `sequences` sequences, in as few forward passes as the model's limits allow, and
   the choice of the token after them. Status 130 between passes if interrupted. */
enum status timed_batch_pass(struct timed_batch *batch, int sequences, int count, double *ms, struct error *error);

#endif
