/* The paged cache's blocks: taken, shared, copied before a write, given back, found again by their content. */
#include "engine/kv_cache_parts.h"

#include <assert.h>

enum status kv_paged_init(struct kv_cache *cache, struct error *error)
{
    const struct kv_options *options = &cache->options;
    if (block_pool_init(&cache->blocks, options->pool_blocks, error) != STATUS_OK)
        return error->status;
    return options->prefix_cache ? prefix_cache_init(&cache->prefix, options->pool_blocks, options->block_size, error)
                                 : STATUS_OK;
}

void kv_paged_free(struct kv_cache *cache)
{
    block_pool_free(&cache->blocks);
    prefix_cache_free(&cache->prefix);
}

int kv_blocks_free(const struct kv_cache *cache)
{
    return cache->blocks.unreferenced;
}

int kv_blocks_cached(const struct kv_cache *cache)
{
    return cache->blocks.cached;
}

int64_t kv_blocks_taken(const struct kv_cache *cache)
{
    return cache->blocks.taken;
}

/* ---- room ---- */

static int blocks_of(const struct kv_cache *cache, int tokens)
{
    return (tokens + cache->options.block_size - 1) / cache->options.block_size;
}

/* Blocks that nobody holds suffice; the caller has looked. */
static int take_block(struct kv_cache *cache)
{
    int block = block_pool_take(&cache->blocks);
    assert(block >= 0);
    if (cache->options.prefix_cache)
        prefix_cache_forget(&cache->prefix, block);
    return block;
}

static void append_block(struct kv_cache *cache, struct sequence *sequence, int block)
{
    sequence->table[sequence->blocks++] = block;
    sequence->capacity = sequence->blocks * cache->options.block_size;
}

/* The sequence's own copy of a block that others hold too. */
static enum status copy_on_write(struct kv_cache *cache, int32_t *block, int tokens, struct error *error)
{
    int copy = take_block(cache);
    enum status status = kv_copy_block(cache, *block, copy, tokens, error);
    block_pool_release(&cache->blocks, status == STATUS_OK ? *block : copy);
    if (status == STATUS_OK)
        *block = copy;
    return status;
}

enum status kv_paged_make_room(struct kv_cache *cache, struct sequence *sequence, int tokens, struct error *error)
{
    int filled = sequence->length % cache->options.block_size; /* slots of the block that is written next */
    int32_t *block = &sequence->table[sequence->length / cache->options.block_size];
    bool writes = tokens > sequence->length && filled > 0;
    bool copies = writes && cache->blocks.references[*block] > 1;
    int needed = blocks_of(cache, tokens) - sequence->blocks;
    needed = (needed > 0 ? needed : 0) + copies;
    cache->out_of_room = needed > cache->blocks.unreferenced;
    if (cache->out_of_room)
        return error_set(error, STATUS_DEVICE, "KV cache: out of blocks: %d more are needed, %d of %d are free", needed,
                         cache->blocks.unreferenced, cache->options.pool_blocks);
    if (copies && copy_on_write(cache, block, filled, error) != STATUS_OK)
        return error->status;
    if (writes && !copies && cache->options.prefix_cache) { /* after a truncation it may be in there as a full one */
        prefix_cache_forget(&cache->prefix, *block);
        block_pool_set_findable(&cache->blocks, *block, false);
    }
    for (needed -= copies; needed > 0; needed--)
        append_block(cache, sequence, take_block(cache));
    return STATUS_OK;
}

int kv_window_blocks(int window, int block_size, int rows)
{
    return (int)(((int64_t)window + rows - 1 + block_size - 2) / block_size + 1);
}

/* A query at position p sees (p - window, p]; the next one is at `length`. */
void kv_paged_pass(struct kv_cache *cache, struct sequence *sequence)
{
    int before = sequence->length - cache->options.window + 1;
    for (; (sequence->passed + 1) * cache->options.block_size <= before; sequence->passed++) {
        block_pool_release(&cache->blocks, sequence->table[sequence->passed]);
        sequence->table[sequence->passed] = -1;
    }
}

/* The last goes first: of blocks that can be found again, a chain's end is evicted before its beginning. */
void kv_paged_release(struct kv_cache *cache, struct sequence *sequence, int tokens)
{
    int keep = blocks_of(cache, tokens), full = tokens / cache->options.block_size;
    while (sequence->blocks > keep)
        if (--sequence->blocks >= sequence->passed)
            block_pool_release(&cache->blocks, sequence->table[sequence->blocks]);
    sequence->passed = sequence->passed < keep ? sequence->passed : keep;
    sequence->capacity = sequence->blocks * cache->options.block_size;
    sequence->published = sequence->published < full ? sequence->published : full;
}

/* ---- sharing ---- */

enum status kv_fork(struct kv_cache *cache, int from, int *to, struct error *error)
{
    assert(cache->options.policy == KV_PAGED && cache->evict == NULL);
    const struct sequence *source = kv_sequence_at(cache, from);
    if (kv_sequence_open(cache, to, error) != STATUS_OK)
        return error->status;
    struct sequence *target = kv_sequence_at(cache, *to);
    for (int b = 0; b < blocks_of(cache, source->length); b++) {
        if (b >= source->passed)
            block_pool_share(&cache->blocks, source->table[b]);
        append_block(cache, target, source->table[b]);
    }
    target->passed = source->passed;
    target->length = source->length;
    target->published = source->published;
    return STATUS_OK;
}

static int last_published(const struct sequence *sequence)
{
    return sequence->published > 0 ? sequence->table[sequence->published - 1] : PREFIX_START;
}

enum status kv_sequence_open_with_prefix(struct kv_cache *cache, const int32_t *tokens, int count, int *number,
                                         int *hit_tokens, struct error *error)
{
    int size = cache->options.block_size;
    *hit_tokens = 0;
    if (kv_sequence_open(cache, number, error) != STATUS_OK)
        return error->status;
    struct sequence *sequence = kv_sequence_at(cache, *number);
    while (cache->options.prefix_cache && *hit_tokens + size < count &&
           *hit_tokens + size <= cache->options.max_tokens) {
        int block = prefix_cache_find(&cache->prefix, last_published(sequence), tokens + *hit_tokens);
        if (block < 0)
            break;
        block_pool_share(&cache->blocks, block);
        append_block(cache, sequence, block);
        sequence->published++;
        sequence->length = *hit_tokens += size;
    }
    return STATUS_OK;
}

void kv_publish(struct kv_cache *cache, int number, const int32_t *tokens)
{
    struct sequence *sequence = kv_sequence_at(cache, number);
    int size = cache->options.block_size;
    while (cache->options.prefix_cache && (sequence->published + 1) * size <= sequence->length) {
        int32_t *block = &sequence->table[sequence->published];
        const int32_t *content = tokens + sequence->published * size;
        int known = prefix_cache_find(&cache->prefix, last_published(sequence), content);
        if (known < 0) {
            /* A fork may have published it behind a block that was rewritten since, where nobody finds it. */
            prefix_cache_forget(&cache->prefix, *block);
            prefix_cache_add(&cache->prefix, last_published(sequence), content, *block);
            block_pool_set_findable(&cache->blocks, *block, true);
        } else if (known != *block) {
            block_pool_share(&cache->blocks, known);
            block_pool_release(&cache->blocks, *block);
            *block = known;
        }
        sequence->published++;
    }
}
