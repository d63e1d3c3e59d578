/* Inside the KV cache; shared by kv_cache.c (sequences, their tensors, room) and kv_paged.c (blocks and who shares
   them). */
#ifndef KVLAB_ENGINE_KV_CACHE_PARTS_H
#define KVLAB_ENGINE_KV_CACHE_PARTS_H

#include "engine/block_pool.h"
#include "engine/kv_cache.h"
#include "engine/kv_evict.h"
#include "engine/prefix_cache.h"

enum { KEYS, VALUES, KEY_SCALES, VALUE_SCALES, SIDES }; /* scales: only where the type has them */

struct sequence {
    bool open;
    int length;            /* positions stored */
    int capacity;          /* positions there is room for */
    int block_size;        /* paged: the pool's; else the capacity: one block */
    int32_t *table;        /* [max_blocks] block numbers */
    int blocks;            /* entries in use */
    int published;         /* paged: the first so many of them are in the prefix cache */
    int passed;            /* paged: the first so many lie before the window: given back, -1 in the table */
    void **tensors[SIDES]; /* exact, reserved: [layers] */
};

struct kv_cache {
    struct ledger *ledger;
    const struct config *config;
    struct kv_options options;
    int layers, max_blocks;
    int sides;                 /* the first 2 of them, or all 4 */
    uint64_t row_bytes[SIDES]; /* of one KV head and position: head_dim * bytes, or a scale */
    struct sequence *sequences;
    void **pool[SIDES];         /* paged: [layers] */
    struct block_pool blocks;   /* paged: who holds them */
    struct prefix_cache prefix; /* paged, with options.prefix_cache: what they hold */
    struct kv_evict *evict;     /* with options.eviction; else NULL */
    bool out_of_room;           /* as kv_out_of_room() tells */
};

struct sequence *kv_sequence_at(const struct kv_cache *cache, int sequence); /* asserts that it is open */
/* Copies the first `tokens` slots of a block of the pool into another, in all layers. */
enum status kv_copy_block(struct kv_cache *cache, int from, int to, int tokens, struct error *error);

/* ---- kv_paged.c */
enum status kv_paged_init(struct kv_cache *cache, struct error *error);
void kv_paged_free(struct kv_cache *cache);
enum status kv_paged_make_room(struct kv_cache *cache, struct sequence *sequence, int tokens, struct error *error);
/* Lets go of the blocks that lie wholly before the window of the next position. */
void kv_paged_pass(struct kv_cache *cache, struct sequence *sequence);
/* Lets go of the blocks beyond those of the first `tokens` positions. */
void kv_paged_release(struct kv_cache *cache, struct sequence *sequence, int tokens);

#endif
