/* A memory plan: what a model, a context and a number of users take on a device, before anything runs. Four items, each
   with where its number comes from and how sure it is; whether they fit; what is the most that does. */
#ifndef KVLAB_ENGINE_PLAN_PLAN_H
#define KVLAB_ENGINE_PLAN_PLAN_H

#include "engine/plan/card.h"
#include "engine/plan/profile.h"

enum { PLAN_MAX_STAGES = 256 };
#define PLAN_MAX_COUNT (((int64_t)1 << 31) - 1) /* of tokens and of users */

/* What is asked for. */
struct plan_request {
    const struct shape *shape;
    uint64_t memory_bytes;  /* of one device */
    const char *card_title; /* "NVIDIA A100 80GB SXM"; NULL for a budget */
    bool is_card;           /* a card also holds the runtime's own memory; a budget bounds what is allocated */
    int64_t context, users;
    enum engine engine;
    const struct plan_type *weight_type;     /* NULL: as published */
    const struct plan_type *k_type, *v_type; /* NULL: the type that the model was published in */
    const struct plan_type *state_type;      /* NULL: the engine's */
    int64_t ranks;                           /* tensor parallel: devices that share each layer */
    int64_t stages;                          /* pipeline parallel: devices that share the layers */
    const int64_t *stage_layers;             /* layers of each stage; NULL: divided as the engine does */
    int64_t block_size, batch_tokens, slots; /* 0: the engine's */
    int64_t memory_ppm;                      /* of the memory, in parts per million; 0: the engine's */
    bool all_logits;                         /* logits of every position of a step, not of the last of each sequence */
    bool prediction_layers;                  /* load them, with a cache of their own */
    bool has_overhead;                       /* overhead_bytes is known, say measured */
    uint64_t overhead_bytes;
};

enum plan_item { PLAN_WEIGHTS, PLAN_KV, PLAN_LOGITS, PLAN_ACTIVATIONS, PLAN_RUNTIME, PLAN_ITEMS };
const char *plan_item_name(enum plan_item item);

enum plan_limit { LIMIT_NONE, LIMIT_WEIGHTS, LIMIT_KV, LIMIT_LOGITS, LIMIT_SLOTS, LIMIT_RUNTIME };
const char *plan_limit_name(enum plan_limit limit);

struct plan_stage {
    int64_t first, end; /* layers */
    uint64_t bytes[PLAN_ITEMS], total;
    uint64_t usable; /* of the device's memory, under the engine's fraction */
    bool fits;
    uint64_t left, lacking;   /* of usable: one of the two is 0 */
    uint64_t weights_lacking; /* weights alone against the whole memory */
    enum plan_limit limit;    /* what does not fit; or, where it fits, what more users would hit first */
    struct kv_layout layout;  /* of one sequence */
    uint64_t pool_blocks;     /* vLLM: blocks that fit beside the rest */
    uint64_t kv_room;         /* bytes beside everything but KV */
};

struct plan {
    struct plan_request request;                             /* with every default resolved */
    uint64_t token_bytes, token_bytes_long, token_bytes_mha; /* whole model, one rank's view of no sharding */
    uint64_t state_bytes;                                    /* per sequence, all layers */
    struct plan_stage stages[PLAN_MAX_STAGES];
    int64_t worst; /* the stage that has least left */
    bool fits;
    enum plan_limit limit;
    int64_t most_users, longest_context; /* of the one at the other's request; 0: not even one. Slots bound the users */
    bool beyond_model;                   /* context is more than max_position_embeddings */
    const char *source[PLAN_ITEMS], *sure[PLAN_ITEMS];
    const char *stage_rule; /* who divides the layers */
};

/* Status 2: an engine that cannot do it (types, ranks in an engine that divides whole layers, ranks that do not divide
   the heads, stages that are not the layers), a quantized model whose weights' type is not given, or more bytes than 64
   bits hold. A plan that does not fit is no failure. */
enum status plan_make(struct plan *plan, const struct plan_request *request, struct error *error);

/* The same plan with other cache types; false where the engine cannot store them. */
bool plan_with_cache(struct plan *plan, const struct plan *base, const struct plan_type *type);

/* ---- plan_weights.c: bytes of one rank of one stage. Status 2 where the published type is not understood. */
enum status plan_weights_check(const struct plan_request *request, struct error *error);
uint64_t plan_weight_bytes(const struct plan_request *request, int64_t first, int64_t end, bool is_first, bool is_last,
                           bool *overflow);
#endif
