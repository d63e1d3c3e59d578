#include "engine/block_pool.h"

#include <assert.h>
#include <stdlib.h>

/* ---- the queue ---- */

static void insert_after(struct block_pool *pool, int block, int before)
{
    int after = pool->next[before];
    pool->previous[block] = before;
    pool->next[block] = after;
    pool->next[before] = block;
    pool->previous[after] = block;
}

static void enqueue(struct block_pool *pool, int block)
{
    int ring = pool->blocks;
    insert_after(pool, block, pool->findable[block] ? pool->previous[ring] : ring);
    pool->unreferenced++;
    pool->cached += pool->findable[block];
}

static void dequeue(struct block_pool *pool, int block)
{
    pool->next[pool->previous[block]] = pool->next[block];
    pool->previous[pool->next[block]] = pool->previous[block];
    pool->unreferenced--;
    pool->cached -= pool->findable[block];
}

/* ---- the pool ---- */

enum status block_pool_init(struct block_pool *pool, int blocks, struct error *error)
{
    assert(blocks > 0);
    size_t count = (size_t)blocks;
    *pool = (struct block_pool){
        .blocks = blocks,
        .references = calloc(count, sizeof *pool->references),
        .findable = calloc(count, sizeof *pool->findable),
        .next = calloc(count + 1, sizeof *pool->next),
        .previous = calloc(count + 1, sizeof *pool->previous),
    };
    if (pool->references == NULL || pool->findable == NULL || pool->next == NULL || pool->previous == NULL)
        return error_set(error, STATUS_DEVICE, "block pool: out of host memory");
    pool->next[blocks] = pool->previous[blocks] = blocks;
    for (int block = blocks; block-- > 0;) /* block 0 is taken first */
        enqueue(pool, block);
    return STATUS_OK;
}

void block_pool_free(struct block_pool *pool)
{
    free(pool->references);
    free(pool->findable);
    free(pool->next);
    free(pool->previous);
    *pool = (struct block_pool){0};
}

int block_pool_take(struct block_pool *pool)
{
    int block = pool->next[pool->blocks];
    if (block == pool->blocks)
        return -1;
    dequeue(pool, block);
    pool->findable[block] = false;
    pool->references[block] = 1;
    pool->taken++;
    return block;
}

void block_pool_share(struct block_pool *pool, int block)
{
    assert(block >= 0 && block < pool->blocks);
    if (pool->references[block] == 0)
        dequeue(pool, block);
    pool->references[block]++;
}

void block_pool_release(struct block_pool *pool, int block)
{
    assert(block >= 0 && block < pool->blocks && pool->references[block] > 0);
    if (--pool->references[block] == 0)
        enqueue(pool, block);
}

void block_pool_set_findable(struct block_pool *pool, int block, bool findable)
{
    assert(block >= 0 && block < pool->blocks);
    bool queued = pool->references[block] == 0;
    if (queued)
        dequeue(pool, block);
    pool->findable[block] = findable;
    if (queued)
        enqueue(pool, block);
}
