/* Who holds the blocks of a paged cache: a reference count per block, and one queue of the blocks that nobody holds.
   Blocks whose content can be found again (engine/prefix_cache.h) wait at the queue's end, least recently used first,
   the others at its front; a new block is taken from the front, so that content is given up last (Kwon et al. 2023,
   section 4.5; the queue as in the prefix caching of engines since).
   Blocks are numbers, 0 .. blocks - 1; no device memory is touched here. Not thread-safe. */
#ifndef KVLAB_ENGINE_BLOCK_POOL_H
#define KVLAB_ENGINE_BLOCK_POOL_H

#include "kernels/errors.h"

#include <stdbool.h>
#include <stdint.h>

struct block_pool {
    int blocks;
    int unreferenced; /* blocks in the queue: those that can be taken */
    int cached;       /* of these, the ones with content that can be found again */
    int64_t taken;    /* calls of block_pool_take() so far that gave a block */
    int32_t *references;
    bool *findable;
    int32_t *next, *previous; /* the queue, a ring through the entry [blocks] */
};

enum status block_pool_init(struct block_pool *pool, int blocks, struct error *error);
void block_pool_free(struct block_pool *pool); /* takes a zeroed struct */

/* A block nobody holds, now with one reference; its old content is no longer findable. -1 if there is none. */
int block_pool_take(struct block_pool *pool);
/* One more reference, also to a block that nobody holds. */
void block_pool_share(struct block_pool *pool, int block);
void block_pool_release(struct block_pool *pool, int block);
/* Says whether the block's content can be found again, and so is worth keeping. */
void block_pool_set_findable(struct block_pool *pool, int block, bool findable);

#endif
