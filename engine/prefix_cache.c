#include "engine/prefix_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* FNV-1a by words, and SplitMix64's last steps, so that the low bits, which name the bucket, depend on all. */
static uint64_t hash_tokens(uint64_t hash, const int32_t *tokens, int count)
{
    for (int i = 0; i < count; i++)
        hash = (hash ^ (uint32_t)tokens[i]) * UINT64_C(0x100000001b3);
    hash = (hash ^ (hash >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    hash = (hash ^ (hash >> 27)) * UINT64_C(0x94d049bb133111eb);
    return hash ^ (hash >> 31);
}

static int32_t *tokens_of(const struct prefix_cache *cache, int block)
{
    return cache->tokens + (size_t)block * (size_t)cache->block_size;
}

enum status prefix_cache_init(struct prefix_cache *cache, int blocks, int block_size, struct error *error)
{
    assert(blocks > 0 && block_size > 0);
    *cache = (struct prefix_cache){.blocks = blocks, .block_size = block_size, .bucket_count = 1};
    while (cache->bucket_count < (size_t)blocks)
        cache->bucket_count *= 2;
    cache->entries = calloc((size_t)blocks, sizeof *cache->entries);
    cache->tokens = calloc((size_t)blocks * (size_t)block_size, sizeof *cache->tokens);
    cache->buckets = malloc(cache->bucket_count * sizeof *cache->buckets);
    if (cache->entries == NULL || cache->tokens == NULL || cache->buckets == NULL)
        return error_set(error, STATUS_DEVICE, "prefix cache: out of host memory");
    for (size_t i = 0; i < cache->bucket_count; i++)
        cache->buckets[i] = -1;
    return STATUS_OK;
}

void prefix_cache_free(struct prefix_cache *cache)
{
    free(cache->entries);
    free(cache->tokens);
    free(cache->buckets);
    *cache = (struct prefix_cache){0};
}

/* The block before, as entries name it; its block was found or added, so its serial is not 0. */
static struct prefix_entry parent_entry(const struct prefix_cache *cache, int parent)
{
    if (parent == PREFIX_START)
        return (struct prefix_entry){.hash = UINT64_C(0xcbf29ce484222325)};
    assert(parent >= 0 && parent < cache->blocks && cache->entries[parent].serial != 0);
    return cache->entries[parent];
}

int prefix_cache_find(const struct prefix_cache *cache, int parent, const int32_t *tokens)
{
    struct prefix_entry before = parent_entry(cache, parent);
    uint64_t hash = hash_tokens(before.hash, tokens, cache->block_size);
    int block = cache->buckets[hash & (cache->bucket_count - 1)];
    for (; block >= 0; block = cache->entries[block].next) {
        const struct prefix_entry *entry = &cache->entries[block];
        if (entry->hash == hash && entry->parent == before.serial &&
            memcmp(tokens_of(cache, block), tokens, (size_t)cache->block_size * sizeof *tokens) == 0)
            break;
    }
    return block;
}

void prefix_cache_add(struct prefix_cache *cache, int parent, const int32_t *tokens, int block)
{
    assert(block >= 0 && block < cache->blocks && cache->entries[block].serial == 0);
    struct prefix_entry before = parent_entry(cache, parent);
    uint64_t hash = hash_tokens(before.hash, tokens, cache->block_size);
    int32_t *bucket = &cache->buckets[hash & (cache->bucket_count - 1)];
    cache->entries[block] =
        (struct prefix_entry){.serial = ++cache->last_serial, .parent = before.serial, .hash = hash, .next = *bucket};
    memcpy(tokens_of(cache, block), tokens, (size_t)cache->block_size * sizeof *tokens);
    *bucket = block;
}

void prefix_cache_forget(struct prefix_cache *cache, int block)
{
    struct prefix_entry *entry = &cache->entries[block];
    if (entry->serial == 0)
        return;
    int32_t *link = &cache->buckets[entry->hash & (cache->bucket_count - 1)];
    while (*link != block)
        link = &cache->entries[*link].next;
    *link = entry->next;
    entry->serial = 0;
}
