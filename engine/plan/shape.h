/* A model's shape for planning: what each layer keeps per token or per sequence, and what each part weighs. Read from
   the config.json of many more families than the forward pass can run (engine/config.h); nothing is guessed: a key that
   would change a number and is not understood is refused by name. */
#ifndef KVLAB_ENGINE_PLAN_SHAPE_H
#define KVLAB_ENGINE_PLAN_SHAPE_H

#include "engine/config.h"
#include "engine/plan/plan_type.h"

enum layer_kind {
    LAYER_FULL,   /* K and V of every token */
    LAYER_WINDOW, /* K and V of the last `window` tokens (Beltagy et al. 2020) */
    LAYER_CHUNK,  /* K and V of the current chunk of `window` tokens (Llama 4) */
    LAYER_LATENT, /* one vector of latent + rope values per token, for all heads (DeepSeek-AI 2024, MLA) */
    LAYER_STATE,  /* a constant state per sequence (Mamba, gated delta rule) */
    LAYER_SHARED, /* reads the cache of layer `shares_with` (Gemma 3n) */
};
enum { LAYER_KINDS = LAYER_SHARED + 1 };
const char *layer_kind_name(enum layer_kind kind); /* "full", "window", ... */

/* Parameters by what tensor parallelism and quantization do with them. */
struct layer_parameters {
    uint64_t split;   /* matrices that are divided over ranks */
    uint64_t experts; /* routed experts' matrices, divided over ranks too */
    uint64_t kv;      /* K and V projections: divided over ranks while each rank gets a KV head, then replicated */
    uint64_t whole;   /* matrices that every rank holds whole (latent down-projections) */
    uint64_t kept;    /* norms, biases, routers: whole on every rank, and never quantized */
};

struct layer_shape {
    enum layer_kind kind;
    int64_t query_heads, kv_heads, k_dim, v_dim; /* latent: what the heads get after expansion */
    int64_t window;                              /* tokens: window and chunk */
    int64_t latent, rope;                        /* values per token: latent */
    int64_t shares_with;                         /* shared */
    int64_t conv_channels, conv_kernel;          /* state: inputs that a causal convolution looks back on */
    int64_t state_values;                        /* state: of the recurrence, per sequence */
    struct layer_parameters weights;
};

/* Parameters by part; their sum without `prediction` is `total`. */
struct shape_parts {
    uint64_t embedding, head, attention, mixers, mlp, experts, shared_experts, routers, norms, biases, vision, other;
    uint64_t prediction; /* extra layers that predict further tokens (DeepSeek-V3's MTP): loaded only if used */
};

/* Parameters before the first layer and after the last, beside embedding and head of vocab_size x hidden_size each. */
struct shape_edges {
    uint64_t tables;   /* looked up by token, as the embedding is (Gemma 3n's embeddings of each layer) */
    uint64_t matrices; /* before the first layer: whole on every rank */
    uint64_t first;    /* there too: positions, norms, vision towers: whole on every rank, and never quantized */
    uint64_t input;    /* of `first`: positions and the embedding's norm */
    uint64_t last;     /* the last norm, the head's bias: likewise */
};

/* How the published files store the weights. */
enum published { PUBLISHED_PLAIN, PUBLISHED_MXFP4_EXPERTS, PUBLISHED_FP8_BLOCKS, PUBLISHED_OTHER };

struct shape {
    char name[64];
    const char *family; /* model_type */
    int64_t vocab_size, hidden_size;
    int64_t query_heads, kv_heads, head_dim; /* of the first attention layer; 0 where there is none */
    int64_t max_context;                     /* max_position_embeddings; 0: the config gives none */
    int64_t layer_count, prediction_layers;  /* layers[] holds the sum of both, prediction layers last */
    struct layer_shape *layers;
    struct shape_parts parts;
    struct shape_edges edges;
    uint64_t total, active; /* parameters; active: used for one token, the routed experts' share only */
    int64_t experts, experts_per_token;
    int64_t widest_mlp; /* values between an MLP's matrices per token, all chosen experts together */
    bool tied;
    bool f32_state;        /* transformers keeps the recurrence in f32 whatever the model's type (gated delta rule) */
    bool llamacpp_windows; /* llama.cpp keeps windows for this model; else it caches all tokens of every layer */
    bool sglang_pools;     /* SGLang gives its windowed layers a pool of their own; else all layers share one */
    enum dtype torch_dtype;
    bool dtype_given; /* false: the config names no type, and bf16 is assumed */
    enum published published;
    char quantization[32];   /* quant_method of the config, or "" */
    const char *not_counted; /* parts that the config does not describe ("vision and audio towers"), or NULL */
};

/* Reads one config.json. Status 2 names path, key and value. Free with shape_free(), which takes a zeroed shape. */
enum status shape_read(struct shape *shape, const char *path, struct error *error);
/* Finds a model as config_find() does: a name of data/models, a folder, or a .json file. */
enum status shape_find(struct shape *shape, const char *models_dir, const char *model, struct error *error);
void shape_free(struct shape *shape);
/* "llama, qwen2, ...": the model_types that are understood. Returns `to`. */
const char *shape_families(char *to, size_t size);

/* Layers of a kind, prediction layers not counted. */
int64_t shape_layers_of_kind(const struct shape *shape, enum layer_kind kind);

/* "5 full + 21 window". Returns `to`. */
const char *shape_layers_text(const struct shape *shape, char *to, size_t size);

/* What a layer keeps of one token on one of `ranks` ranks, in bytes; state and shared layers: 0. `expand_latent`:
   heads' full K and V instead of the latent vector, as transformers caches them. */
uint64_t layer_token_bytes(const struct layer_shape *layer, const struct plan_type *k_type,
                           const struct plan_type *v_type, int64_t ranks, bool expand_latent, bool *overflow);
/* The same if every query head had K and V of its own. */
uint64_t layer_token_bytes_mha(const struct layer_shape *layer, const struct plan_type *k_type,
                               const struct plan_type *v_type, bool *overflow);
/* A state layer's bytes per sequence on one rank. The convolution needs kernel - 1 past inputs; `whole_kernel`: an
   engine that keeps as many as the kernel is long. */
uint64_t layer_state_bytes(const struct layer_shape *layer, const struct plan_type *conv_type,
                           const struct plan_type *state_type, int64_t ranks, bool whole_kernel, bool *overflow);

/* Sum over the layers, prediction layers not counted, one rank: bytes that a token adds while no window is full. */
uint64_t shape_token_bytes(const struct shape *shape, const struct plan_type *k_type, const struct plan_type *v_type,
                           bool *overflow);
uint64_t shape_token_bytes_mha(const struct shape *shape, const struct plan_type *k_type,
                               const struct plan_type *v_type, bool *overflow);
/* The same once every window is full: what only full and latent layers add. */
uint64_t shape_token_bytes_long(const struct shape *shape, const struct plan_type *k_type,
                                const struct plan_type *v_type, bool *overflow);

#endif
