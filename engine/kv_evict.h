/* Eviction in the device's memory: the rows of a KV cache that move when tokens are given up, the attention that the
   choice goes by, and attention sinks that are rotated again. Which tokens go is engine/eviction.h's.

   All memory is taken when the cache opens, tagged kv, since it is part of what a policy costs. Owned by the cache; the
   forward pass calls it around a pass, in which every sequence gets one token. */
#ifndef KVLAB_ENGINE_KV_EVICT_H
#define KVLAB_ENGINE_KV_EVICT_H

#include "engine/config.h"
#include "engine/eviction.h"
#include "engine/ledger.h"

struct kv_evict;

/* Status 2 where layers have windows of their own, which go by positions in the text, not by slots. */
enum status kv_evict_open(struct kv_evict **evict, struct ledger *ledger, const struct config *config,
                          const struct eviction_options *options, int max_sequences, struct error *error);
void kv_evict_close(struct kv_evict *evict); /* takes NULL */

/* A sequence's slots and what they hold; the cache empties them and adds the tokens that a pass has stored. */
struct eviction *kv_evict_slots(const struct kv_evict *evict, int number);

/* ---- around a pass, in this order */

/* Entry s of the pass, entry 0 first, is sequence `number`; it gives up what it must where its slots are all in use. */
void kv_evict_choose(struct kv_evict *evict, int s, int number);
/* What apply() needs on the device; clears the attention. */
enum status kv_evict_send(struct kv_evict *evict, struct error *error);
/* Moves rows of a layer and rotates its sinks; of the batch only the block tables are read. */
enum status kv_evict_apply(struct kv_evict *evict, int layer, const struct device_batch *batch,
                           const struct device_kv *kv, struct error *error);

/* In a pass that stores sinks, each layer hands over the new rows' K and V, [sequences][kv_heads][head_dim] f32, not
   rotated. */
bool kv_evict_stores_sinks(const struct kv_evict *evict);
enum status kv_evict_keep_sinks(struct kv_evict *evict, int layer, const float *k, const float *v, struct error *error);
/* Where attention_mass() of a layer adds to, [sequences][kv_heads][budget]; NULL where the policy needs none. */
float *kv_evict_mass(const struct kv_evict *evict, int layer);

/* After the pass, when its tokens have their slots: takes in their attention. */
enum status kv_evict_observe(struct kv_evict *evict, struct error *error);

#endif
