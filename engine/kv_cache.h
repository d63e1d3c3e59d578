/* The KV cache: per sequence a block table over blocks of block_size tokens, per layer one K and one V tensor.
   Three policies, one structure:
     exact     one block of exactly as many tokens as the sequence has; grown by reallocating and copying
     reserved  one block of max_tokens per sequence, taken when the sequence opens
     paged     blocks of block_size tokens from one pool of pool_blocks, shared by all sequences (Kwon et al. 2023);
               two sequences may hold the same block: forks, and prompts that begin alike
   A K or V tensor has shape [blocks][kv_heads][block_size][head_dim]: for one exact sequence (1, kv_heads, T,
   head_dim). Where the type has scales (int8), each is accompanied by a tensor of f32 scales [blocks][kv_heads]
   [block_size]. Exact and reserved caches hold one such pair of tensors per layer and sequence, a paged cache one per
   layer. */
#ifndef KVLAB_ENGINE_KV_CACHE_H
#define KVLAB_ENGINE_KV_CACHE_H

#include "engine/config.h"
#include "engine/eviction.h"
#include "engine/ledger.h"

enum kv_policy { KV_EXACT, KV_RESERVED, KV_PAGED };

struct kv_options {
    enum kv_policy policy;
    enum dtype dtype;
    int max_sequences;
    int block_size;    /* paged: tokens per block, 16 unless said */
    int max_tokens;    /* reserved and paged: longest sequence */
    int pool_blocks;   /* paged: blocks in the pool */
    bool prefix_cache; /* paged: blocks can be found again by their tokens */
    int window;        /* a query sees the last so many tokens, its own among them; 0: all. Paged: what no later query
                          can see goes back to the pool, block by block; not together with prefix_cache */
    struct eviction_options
        eviction; /* a budget of slots per sequence; zeroed: none. Without window, prefixes, forks */
};

/* Blocks that a sequence of a windowed paged cache holds at most while passes add `rows` tokens each: those that
   window + rows - 1 adjacent positions can touch, which is about (window + rows) / block_size, however long it gets. */
int kv_window_blocks(int window, int block_size, int rows);

/* One tensor that the cache really holds. */
struct kv_tensor {
    int layer;
    bool is_value;    /* false: K, true: V */
    bool is_scale;    /* the scales of it; head_dim is then 1 */
    int sequence;     /* -1 for a paged pool, which all sequences share */
    int64_t shape[4]; /* blocks, kv_heads, block_size, head_dim */
    enum dtype dtype;
    uint64_t bytes;
};

struct kv_cache;

const char *kv_policy_name(enum kv_policy policy); /* "exact", "reserved", "paged" */

/* A paged pool is allocated here; the others as sequences open and grow. The cache borrows ledger and config. */
enum status kv_open(struct kv_cache **cache, struct ledger *ledger, const struct config *config,
                    const struct kv_options *options, struct error *error);
void kv_close(struct kv_cache *cache); /* closes every sequence; takes NULL */

/* A new empty sequence, numbered 0 .. max_sequences - 1. Status 3 when all slots are taken or a reservation does not
 * fit. */
enum status kv_sequence_open(struct kv_cache *cache, int *sequence, struct error *error);
void kv_sequence_close(struct kv_cache *cache, int sequence);

/* Makes room so that the sequence can hold `tokens` positions, and may write those that it does not hold yet; its
   contents stay. A partly filled block that others hold too is copied first (copy on write). Status 3 when out of
   blocks or memory: the sequence is then unchanged; only where the device itself refuses memory that the budget would
   allow, midway through an exact sequence's tensors, is it emptied. */
enum status kv_make_room(struct kv_cache *cache, int sequence, int tokens, struct error *error);
/* The same for a sequence that will grow to `tokens` in several passes, so that running out shows at once, and an exact
   cache grows once. Where a window gives blocks back on the way none are taken yet: what is needed depends on the
   passes. */
enum status kv_make_room_ahead(struct kv_cache *cache, int sequence, int tokens, struct error *error);
/* Why the latest opening or making of room failed: true for want of slots, blocks or budget, which others may give
   back; false for anything else, which is an error to report. */
bool kv_out_of_room(const struct kv_cache *cache);
/* Positions stored so far, slots in use where the cache evicts; kv_advance() is called by the forward pass once it has
 * stored them. */
int kv_length(const struct kv_cache *cache, int sequence);
void kv_advance(struct kv_cache *cache, int sequence, int tokens);
/* Tokens of the sequence that were evicted before: the next one is token kv_length() + kv_evicted(), and RoPE's
   position is that. */
int kv_evicted(const struct kv_cache *cache, int sequence);
/* Forgets all but the first `tokens` positions; an exact cache shrinks to them, a paged one gives blocks back. A
   reserved one keeps the memory as it is: kv_advance() over positions that were stored before brings them back. What a
   window gave back does not come again: to 0, or to a length whose window is still there; where the cache evicts, to 0.
 */
enum status kv_truncate(struct kv_cache *cache, int sequence, int tokens, struct error *error);
/* Copies the positions of one sequence into another, empty one (real memory, nothing shared). */
enum status kv_copy_sequence(struct kv_cache *cache, int from, int to, struct error *error);

/* ---- paged: sharing blocks */

/* A new sequence that holds the same positions as `from` in the same blocks; no bytes are copied until one of the two
   writes into a block that the other holds. */
enum status kv_fork(struct kv_cache *cache, int from, int *to, struct error *error);
/* A new sequence that holds as many of the prompt's full blocks as can be found: *hit_tokens positions, a multiple of
   the block size and less than `count`, so that the last token is always left to compute. Without options.prefix_cache
   none are found. */
enum status kv_sequence_open_with_prefix(struct kv_cache *cache, const int32_t *tokens, int count, int *sequence,
                                         int *hit_tokens, struct error *error);
/* The positions stored are those of tokens[kv_length]: full blocks can be found from now on, until they are evicted.
   Where another sequence has published the same content, that block takes the place of this one's. Without
   options.prefix_cache nothing happens. */
void kv_publish(struct kv_cache *cache, int sequence, const int32_t *tokens);

const struct kv_options *kv_get_options(const struct kv_cache *cache);
int kv_blocks_free(const struct kv_cache *cache);   /* paged: blocks that no sequence holds; else 0 */
int kv_blocks_cached(const struct kv_cache *cache); /* of these, the ones that can be found, and are evicted last */
int64_t
kv_blocks_taken(const struct kv_cache *cache); /* paged: so far, from those that nobody held; sharing takes none */

/* The `tensors` source: walks the tensors that exist now. */
size_t kv_tensor_count(const struct kv_cache *cache);
struct kv_tensor kv_tensor_at(const struct kv_cache *cache, size_t index);
uint64_t kv_tensor_bytes(const struct kv_cache *cache);

/* What the device needs to address sequence `sequence` (host arrays; used by the forward pass). */
int kv_block_size(const struct kv_cache *cache, int sequence);
/* Returns entries in use; -1 stands for blocks before the window. */
int kv_block_table(const struct kv_cache *cache, int sequence, const int32_t **table);
void *kv_layer_keys(const struct kv_cache *cache, int sequence, int layer); /* device memory */
void *kv_layer_values(const struct kv_cache *cache, int sequence, int layer);
float *kv_layer_key_scales(const struct kv_cache *cache, int sequence, int layer); /* NULL: the type has none */
float *kv_layer_value_scales(const struct kv_cache *cache, int sequence, int layer);

/* ---- caches that evict; the forward pass is around these (engine/kv_evict.h) */
struct kv_evict *kv_get_evict(const struct kv_cache *cache); /* NULL: this one does not */
/* Entry s of a pass is this sequence, which gives up what must go for the next token. */
void kv_enter_pass(struct kv_cache *cache, int s, int sequence);

#endif
