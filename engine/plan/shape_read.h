/* Inside the shape reader: a config.json being read, and the block of layers that it describes. */
#ifndef KVLAB_ENGINE_PLAN_SHAPE_READ_H
#define KVLAB_ENGINE_PLAN_SHAPE_READ_H

#include "engine/config_keys.h"
#include "engine/plan/shape.h"

enum {
    SHAPE_MAX_LAYERS = 1 << 12,
    SHAPE_MAX_HIDDEN = 1 << 20,
    SHAPE_MAX_WIDTH = 1 << 24, /* intermediate_size, vocab_size */
    SHAPE_MAX_HEADS = 1 << 16, /* also head_dim, experts, ranks of a projection */
    SHAPE_MAX_POSITIONS = INT32_MAX,
    SHAPE_MAX_KEYS = 160,
};

/* What a layer that mixes tokens by a state is made of. */
enum mixer { MIXER_NONE, MIXER_MAMBA, MIXER_MAMBA2, MIXER_GATED_DELTA };
struct mixer_dims {
    int64_t inner;               /* d_inner, or heads * value dim */
    int64_t state, conv, groups; /* state size, kernel of the convolution, groups of B and C */
    int64_t heads, dt_rank;
    int64_t k_heads, k_dim, v_dim; /* gated delta */
    bool conv_bias, proj_bias, dt_norms;
};

enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_WIDTH }; /* of a head's values, or of all heads side by side */

/* The layers of a model: what most of them have in common. Counts are values, not bytes. */
struct block {
    int64_t query_heads, kv_heads, k_dim, v_dim;
    bool q_bias, kv_bias, o_bias, q_gate, sinks;
    enum qk_norm qk_norm;
    bool qk_norm_bias;
    int64_t q_rank, latent, rope; /* latent attention; q_rank 0: q has one matrix */
    int64_t intermediate;         /* of the dense MLP; 0: the layers have none */
    int mlp_matrices;             /* 3: gate, up, down; 2: up, down */
    bool mlp_bias;
    int64_t experts, experts_per_token, expert_width, shared_width; /* 0 experts: dense */
    bool expert_bias, router_bias, shared_gate;
    int norms;           /* of hidden_size values */
    int values_per_norm; /* 1: weight; 2: weight and bias; 0: none */
    enum mixer mixer;
    struct mixer_dims dims;
    uint64_t other_whole, other_kept; /* per layer, beside all that: matrices, vectors */
};

struct family;

struct reader {
    struct config_keys keys; /* of the object that describes the text model */
    json_t *root;
    const struct family *family;
    struct shape *shape;
    struct block block;
    const char *read_keys[SHAPE_MAX_KEYS];
    int read_count;
    bool overflow;
    uint64_t unused; /* parameters of experts that a token does not visit */
    /* Per layer, filled in by the family: */
    enum layer_kind kinds[SHAPE_MAX_LAYERS];
    bool sparse[SHAPE_MAX_LAYERS]; /* has experts instead of the dense MLP */
    int64_t shares_with[SHAPE_MAX_LAYERS];
    int64_t window;
    bool head_bias;
};

/* ---- shape_keys.c: reading keys, and remembering which were read */
const json_t *shape_key(struct reader *reader, const char *key); /* NULL where absent or null */
enum status shape_count(struct reader *reader, const char *key, int64_t maximum, int64_t *value);
/* 0 is allowed, and `otherwise` stands for a key that is absent or null. */
enum status shape_count_or(struct reader *reader, const char *key, int64_t maximum, int64_t otherwise, int64_t *value);
enum status shape_flag(struct reader *reader, const char *key, bool otherwise, bool *value);
/* A flag that must be false (or must be true): anything else is refused. */
enum status shape_must(struct reader *reader, const char *key, bool otherwise, bool must);
/* Keys that say nothing about bytes: they count as read. */
void shape_ignore(struct reader *reader, const char *key);
/* Any key left over that looks as if it changed a cache or a weight is refused by name. */
enum status shape_refuse_rest(struct reader *reader);

/* ---- shape_weights.c */
enum status shape_reserve(struct reader *reader);
/* Appends a layer of the block; `index` is its place in kinds[], sparse[] and shares_with[]. Refuses a window without a
   width and a state without a mixer: they would cost nothing. */
enum status shape_add_layer(struct reader *reader, const struct block *block, int64_t index);
/* Room for them, and a layer of the reader's block in every place. */
enum status shape_add_layers(struct reader *reader);
/* Embedding, positions, head, last norm; then the sums. */
void shape_add_edges(struct reader *reader, int64_t positions, bool embedding_norm, bool last_norm);
void shape_sum(struct reader *reader);

/* ---- shape_windows.c: which layers have windows */
/* What layer_types may name: each family has some of them, and refuses the others. */
enum layer_type {
    TYPE_FULL = 1 << 0,
    TYPE_SLIDING = 1 << 1,
    TYPE_CHUNKED = 1 << 2,
    TYPE_LINEAR = 1 << 3,
    TYPE_ATTENTION = 1 << 4,
    TYPE_MAMBA = 1 << 5,
};
enum status windows_from_layer_types(struct reader *reader, unsigned allowed, bool *found);
/* The window's width, which must be there if a layer has one; `otherwise`, if not 0, where it is absent. */
enum status windows_width(struct reader *reader, int64_t otherwise);
enum status windows_everywhere(struct reader *reader, int64_t otherwise); /* sliding_window, `otherwise` if absent */
enum status windows_alternate(struct reader *reader);                     /* even layers */
enum status windows_pattern(struct reader *reader, int64_t otherwise);    /* all but each pattern-th layer */
enum status windows_qwen(struct reader *reader);                          /* use_sliding_window, max_window_layers */

/* ---- shape_families.c, shape_sparse.c, shape_hybrid.c: one function per family */
typedef enum status describe(struct reader *reader);
describe describe_plain, describe_qwen, describe_mistral, describe_windowed, describe_alternating, describe_gemma3,
    describe_cohere, describe_cohere2, describe_falcon, describe_gpt_bigcode, describe_stablelm, describe_opt,
    describe_starcoder2, describe_smollm3, describe_olmo3, describe_mpt, describe_exaone4, describe_gpt_neox;
describe describe_mixtral, describe_phimoe, describe_qwen2_moe, describe_qwen3_moe, describe_olmoe, describe_gpt_oss,
    describe_deepseek, describe_glm4_moe, describe_llama4, describe_mimo_v2;
describe describe_qwen3_next, describe_jamba, describe_granite_hybrid, describe_mamba, describe_gemma3n;

/* ---- shape_vision.c: towers that the config describes */
enum status vision_siglip(struct reader *reader);
enum status vision_llama4(struct reader *reader);

#endif
