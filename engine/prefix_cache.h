/* Finds blocks of a paged cache by what they hold: a full block is known by its tokens and the block before it, so a
   chain of finds from the first block on proves that every token up to there is the same, and with it K and V.
     hash(block) = hash(hash(block before), tokens of the block)
   The hash only says where to look. A find compares the tokens, and that the block before is the very one that was
   added as such: a hash alone proves nothing. Host bookkeeping only; the pool says who holds a block. */
#ifndef KVLAB_ENGINE_PREFIX_CACHE_H
#define KVLAB_ENGINE_PREFIX_CACHE_H

#include "kernels/errors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PREFIX_START = -1 }; /* stands for the block before a sequence's first */

struct prefix_entry {
    uint64_t serial; /* of this addition, never used twice; 0: the block is not in here */
    uint64_t parent; /* serial of the block before; 0: none */
    uint64_t hash;
    int32_t next; /* in its bucket; -1 ends */
};

struct prefix_cache {
    int blocks, block_size;
    uint64_t last_serial;
    struct prefix_entry *entries; /* [blocks] */
    int32_t *tokens;              /* [blocks][block_size] */
    int32_t *buckets;             /* [bucket_count], a power of two */
    size_t bucket_count;
};

enum status prefix_cache_init(struct prefix_cache *cache, int blocks, int block_size, struct error *error);
void prefix_cache_free(struct prefix_cache *cache); /* takes a zeroed struct */

/* The block that holds `tokens` [block_size] after the block `parent`, which was found or added before; -1: none. */
int prefix_cache_find(const struct prefix_cache *cache, int parent, const int32_t *tokens);
/* What prefix_cache_find() did not find, and the block is not in here yet. */
void prefix_cache_add(struct prefix_cache *cache, int parent, const int32_t *tokens, int block);
/* The block's content is about to change. Blocks after it can no longer be found. No effect if it is not in here. */
void prefix_cache_forget(struct prefix_cache *cache, int block);

#endif
