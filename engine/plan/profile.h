/* How serving engines lay out their caches: what a plan calls an engine profile. Each rule stands in profile.c beside
   the file that it is taken from; engines change, so a profile is the rule of the versions named there. */
#ifndef KVLAB_ENGINE_PLAN_PROFILE_H
#define KVLAB_ENGINE_PLAN_PROFILE_H

#include "engine/plan/shape.h"

enum engine {
    ENGINE_EXACT, /* arithmetic alone: each sequence takes its tokens, to the byte, in any cache type. kvlab's own cache
                     follows it in the types that it has (engine/kv_cache.h) */
    ENGINE_VLLM,
    ENGINE_LLAMACPP,         /* a stream of its own for each slot (-np N) */
    ENGINE_LLAMACPP_UNIFIED, /* one buffer for all slots (--kv-unified) */
    ENGINE_SGLANG,
    ENGINE_TRANSFORMERS_DYNAMIC,
    ENGINE_TRANSFORMERS_STATIC,
    ENGINES
};

struct profile {
    const char *name;
    int64_t block_size;      /* tokens; 1: none */
    int64_t batch_tokens;    /* most tokens of one step; 0: a whole prompt at once */
    int64_t slots;           /* most sequences at a time; 0: as many as asked for */
    const char *kv_rule;     /* one line for the reader of a plan */
    const char *cache_types; /* names of the cache types that it can store, blank-separated; the first is no default */
};
const struct profile *profile_of(enum engine engine);
extern const char *const engine_choices[]; /* names, in the order of enum engine; NULL-terminated */

enum { PROFILE_WHOLE = 1000000 };
/* Parts per million of the memory that the engine plans with; `ranks` matter to SGLang. PROFILE_WHOLE where it takes
   what it needs. */
int64_t profile_memory_ppm(enum engine engine, int64_t ranks);

/* One device's part of a model under an engine: layers [first, end) of shape->layers, one rank of `ranks`. */
struct kv_demand {
    const struct shape *shape;
    int64_t first, end;
    int64_t ranks;
    const struct plan_type *k_type, *v_type;
    const struct plan_type *conv_type, *state_type; /* of layers with a state */
    enum engine engine;
    int64_t block_size, batch_tokens;
};

/* What an engine makes of one sequence, for the reader. */
struct kv_layout {
    uint64_t cells_per_sequence;  /* tokens, padded; of full layers */
    uint64_t window_cells;        /* tokens; of windowed layers: per sequence, or of all (unified) */
    uint64_t blocks_per_sequence; /* vLLM: over all groups */
    uint64_t block_bytes;         /* vLLM: one block of a group, all its layers */
    uint64_t block_tokens;        /* vLLM: may be more than asked for beside states or unlike windows */
    int64_t groups;               /* vLLM */
};

/* Does the engine keep no more than the windows of a model that has windowed layers? Else it caches all their tokens.
 */
bool profile_has_windows(enum engine engine, const struct shape *shape);

/* Status 2 where the engine cannot store these types, or (block formats) a head's width does not divide. */
enum status profile_check(const struct kv_demand *demand, struct error *error);

/* Bytes of KV, windows and states that `users` sequences of `context` tokens take on this device. Grows with both. */
uint64_t profile_kv_bytes(const struct kv_demand *demand, int64_t context, int64_t users, struct kv_layout *layout,
                          bool *overflow);

/* profile_vllm.c */
uint64_t profile_vllm_bytes(const struct kv_demand *demand, int64_t context, int64_t users, struct kv_layout *layout,
                            bool *overflow);
enum status profile_vllm_check(const struct kv_demand *demand, struct error *error);

#endif
