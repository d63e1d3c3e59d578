#include "engine/config.h"

#include "engine/config_keys.h"
#include "engine/formula.h"

#include <stdlib.h>
#include <string.h>

/* Bounds of the counts. None of formula.h's products passes 2^63 with them:
     KV      2 * layers * heads * head_dim * 4 bytes * FORMULA_MAX_TOKENS      = 2 * 2^28 * 2^2 * 2^31 = 2^62
     logits  vocab * 4 bytes * FORMULA_MAX_TOKENS                              = 2^24 * 2^2 * 2^31     = 2^57
     weights 4 bytes * (layers * (4 * hidden * heads * head_dim + 3 * hidden * intermediate) + 2 * vocab * hidden)
             < 2^2 * (2^50 + 2^58 + 2^45) < 2^61
   They are also far above every published model, and rows * width stays within a device's int. */
enum {
    MAX_LAYERS = 1 << 12,
    MAX_HIDDEN = 1 << 20,
    MAX_WIDTH = 1 << 24, /* intermediate_size, vocab_size */
    MAX_HEADS = 1 << 16,
    MAX_HEAD_DIM = 1 << 10,               /* what the kernels rotate and attend */
    MAX_LAYERS_HEADS_HEAD_DIM = 1 << 28,  /* num_hidden_layers * num_attention_heads * head_dim */
    MAX_CONFIG_BYTES = 1 << 20,           /* of the file */
    QWEN2_DEFAULT_WINDOW = 4096,          /* transformers' Qwen2Config */
    QWEN2_DEFAULT_MAX_WINDOW_LAYERS = 28, /* transformers' Qwen2Config */
    MISTRAL_DEFAULT_WINDOW = 4096,        /* transformers' MistralConfig */
};
static const int64_t MAX_POSITIONS = FORMULA_MAX_TOKENS - 1;

static const struct {
    const char *model_type, *architecture;
    enum config_family family;
} FAMILIES[] = {
    {"llama", "LlamaForCausalLM", FAMILY_LLAMA},
    {"qwen2", "Qwen2ForCausalLM", FAMILY_QWEN2},
    {"mistral", "MistralForCausalLM", FAMILY_MISTRAL},
};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof FAMILIES[0] };

/* Keys of attentions, mixtures and weight formats that this engine has no formula for. Absent, null, false, 0 and empty
   lists are how files say "not used". */
static const char *const NOT_UNDERSTOOD[] = {
    "kv_lora_rank",
    "q_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim", /* latent attention */
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_intermediate_size",
    "num_experts_per_tok",
    "state_size",
    "ssm_cfg",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "attn_layer_indices", /* linear, hybrid */
    "attention_chunk_size",
    "no_rope_layers",
    "cross_attention_layers",
    "use_mrope",
    "rope_interleaved",
    "qk_norm",
    "use_qk_norm",
    "qk_layer_norms",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "logit_scale",
    "text_config",
    "vision_config",
    "quantization_config",
    "is_encoder_decoder",
    "alibi",
    "parallel_attn",
};

static enum status read_family(const struct config_keys *keys, enum config_family *family)
{
    const json_t *type = config_key(keys, "model_type"), *architectures = config_key(keys, "architectures");
    const json_t *architecture = json_array_get(architectures, 0);
    char shown[64];
    if (architectures && !json_is_array(architectures))
        return config_refuse(keys, "architectures", "%s must be a list, as in [\"LlamaForCausalLM\"]",
                             json_input_show(architectures, shown, sizeof shown));
    if (!type && !architecture)
        return config_refuse(keys, "model_type", "is missing; it must be \"llama\", \"qwen2\" or \"mistral\"");
    int by_type = -1, by_architecture = -1;
    for (int i = 0; i < FAMILY_COUNT; i++) {
        if (json_is_string(type) && strcmp(json_string_value(type), FAMILIES[i].model_type) == 0)
            by_type = i;
        if (json_is_string(architecture) && strcmp(json_string_value(architecture), FAMILIES[i].architecture) == 0)
            by_architecture = i;
    }
    static const char *const understood = "is not understood: Llama, Qwen2 and Mistral models run; `kvlab plan` "
                                          "knows more";
    if (type && by_type < 0)
        return config_refuse(keys, "model_type", "%s %s", json_input_show(type, shown, sizeof shown), understood);
    if (architecture && by_architecture < 0)
        return config_refuse(keys, "architectures", "%s %s", json_input_show(architecture, shown, sizeof shown),
                             understood);
    if (type && architecture && by_type != by_architecture)
        return config_refuse(keys, "architectures", "%s contradicts model_type \"%s\"",
                             json_input_show(architecture, shown, sizeof shown), FAMILIES[by_type].model_type);
    *family = FAMILIES[type ? by_type : by_architecture].family;
    return STATUS_OK;
}

static bool says_unused(const json_t *value)
{
    return !value || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static enum status refuse_what_is_not_understood(const struct config_keys *keys)
{
    char shown[64];
    for (size_t i = 0; i < sizeof NOT_UNDERSTOOD / sizeof NOT_UNDERSTOOD[0]; i++) {
        const json_t *value = config_key(keys, NOT_UNDERSTOOD[i]);
        if (!says_unused(value))
            return config_refuse(keys, NOT_UNDERSTOOD[i], "%s is not understood, and its numbers would be wrong",
                                 json_input_show(value, shown, sizeof shown));
    }
    const json_t *activation = config_key(keys, "hidden_act");
    const char *name = json_string_value(activation);
    if (activation && !(name && (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0)))
        return config_refuse(keys, "hidden_act", "%s is not understood; only \"silu\" is",
                             json_input_show(activation, shown, sizeof shown));
    const json_t *rotated = config_key(keys, "partial_rotary_factor");
    if (rotated && !(json_is_number(rotated) && json_number_value(rotated) == 1))
        return config_refuse(keys, "partial_rotary_factor", "%s is not understood; only 1 is",
                             json_input_show(rotated, shown, sizeof shown));
    return STATUS_OK;
}

static enum status read_dtype(const struct config_keys *keys, enum dtype *dtype)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"float32", DTYPE_F32}, {"float16", DTYPE_F16}, {"bfloat16", DTYPE_BF16}};
    const char *key = config_key(keys, "dtype") ? "dtype" : "torch_dtype"; /* newer files say dtype */
    const json_t *value = config_key(keys, key);
    *dtype = DTYPE_BF16;
    if (!value)
        return STATUS_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (json_is_string(value) && strcmp(json_string_value(value), names[i].name) == 0) {
            *dtype = names[i].dtype;
            return STATUS_OK;
        }
    char shown[64];
    return config_refuse(keys, key, "%s is not understood; it must be \"float32\", \"float16\" or \"bfloat16\"",
                         json_input_show(value, shown, sizeof shown));
}

/* head_dim is read where the file has it, and derived only where it has not. */
static enum status read_head_dim(const struct config_keys *keys, struct config *config)
{
    if (config_key(keys, "head_dim")) {
        if (config_count(keys, "head_dim", MAX_HEAD_DIM, &config->head_dim) != STATUS_OK)
            return keys->error->status;
    } else {
        if (config->hidden_size % config->num_attention_heads != 0)
            return config_refuse(keys, "hidden_size",
                                 "%lld is not divisible by num_attention_heads %lld, and head_dim is not given",
                                 (long long)config->hidden_size, (long long)config->num_attention_heads);
        config->head_dim = config->hidden_size / config->num_attention_heads;
    }
    if (config->head_dim > MAX_HEAD_DIM)
        return config_refuse(keys, "head_dim",
                             "= hidden_size / num_attention_heads = %lld is over %d, the largest that runs",
                             (long long)config->head_dim, MAX_HEAD_DIM);
    if (config->head_dim % 2 != 0)
        return config_refuse(keys, "head_dim", "%lld is odd; rotary embeddings turn pairs of values",
                             (long long)config->head_dim);
    return STATUS_OK;
}

/* transformers' LlamaConfig takes num_attention_heads where the file has no num_key_value_heads. Its Qwen2Config and
   MistralConfig take 32 and 8 whatever the model, so there a missing key is a guess and is refused. Null means one KV
   head per query head in all three. */
static enum status read_kv_heads(const struct config_keys *keys, struct config *config)
{
    const char *key = "num_key_value_heads";
    bool is_null = json_is_null(json_object_get(keys->object, key));
    config->num_key_value_heads = config->num_attention_heads;
    if (!is_null && (config_key(keys, key) || config->family != FAMILY_LLAMA) &&
        config_count(keys, key, MAX_HEADS, &config->num_key_value_heads) != STATUS_OK)
        return keys->error->status;
    if (config->num_attention_heads % config->num_key_value_heads != 0)
        return config_refuse(keys, "num_attention_heads", "%lld is not divisible by num_key_value_heads %lld",
                             (long long)config->num_attention_heads, (long long)config->num_key_value_heads);
    return STATUS_OK;
}

static enum status read_shape(const struct config_keys *keys, struct config *config)
{
    if (config_count(keys, "vocab_size", MAX_WIDTH, &config->vocab_size) != STATUS_OK ||
        config_count(keys, "hidden_size", MAX_HIDDEN, &config->hidden_size) != STATUS_OK ||
        config_count(keys, "intermediate_size", MAX_WIDTH, &config->intermediate_size) != STATUS_OK ||
        config_count(keys, "num_hidden_layers", MAX_LAYERS, &config->num_hidden_layers) != STATUS_OK ||
        config_count(keys, "num_attention_heads", MAX_HEADS, &config->num_attention_heads) != STATUS_OK ||
        config_count(keys, "max_position_embeddings", MAX_POSITIONS, &config->max_position_embeddings) != STATUS_OK ||
        read_head_dim(keys, config) != STATUS_OK || read_kv_heads(keys, config) != STATUS_OK)
        return keys->error->status;
    int64_t product = config->num_hidden_layers * config->num_attention_heads * config->head_dim;
    if (product > MAX_LAYERS_HEADS_HEAD_DIM)
        return config_refuse(keys, "head_dim",
                             "%lld makes num_hidden_layers x num_attention_heads x head_dim = %lld, over the bound %d "
                             "that keeps byte counts within 64 bits",
                             (long long)config->head_dim, (long long)product, MAX_LAYERS_HEADS_HEAD_DIM);
    return STATUS_OK;
}

static enum status read_flags(const struct config_keys *keys, struct config *config)
{
    bool attention_bias, mlp_bias;
    if (config_real(keys, "rms_norm_eps", 1e-6, 0, 1, &config->rms_norm_eps) != STATUS_OK ||
        config_flag(keys, "tie_word_embeddings", false, &config->tie_word_embeddings) != STATUS_OK ||
        config_flag(keys, "attention_bias", false, &attention_bias) != STATUS_OK ||
        config_flag(keys, "mlp_bias", false, &mlp_bias) != STATUS_OK)
        return keys->error->status;
    /* transformers reads attention_bias and mlp_bias for Llama only; Qwen2's q, k and v always have a bias. */
    bool llama = config->family == FAMILY_LLAMA;
    config->qkv_bias = config->family == FAMILY_QWEN2 || (llama && attention_bias);
    config->o_bias = llama && attention_bias;
    config->mlp_bias = llama && mlp_bias;
    return read_dtype(keys, &config->torch_dtype);
}

/* Newer files spell out each layer's attention. Understood is what the fields can say: full attention up to some layer,
   windows from there on. */
static enum status check_layer_types(const struct config_keys *keys, struct config *config)
{
    const json_t *types = config_key(keys, "layer_types");
    if (!types)
        return STATUS_OK;
    size_t layers = (size_t)config->num_hidden_layers, full = 0;
    char shown[64];
    if (!json_is_array(types) || json_array_size(types) != layers)
        return config_refuse(keys, "layer_types", "must be a list with an entry for each of the %zu layers", layers);
    for (size_t i = 0; i < layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *name = json_is_string(type) ? json_string_value(type) : "";
        bool is_full = strcmp(name, "full_attention") == 0, is_sliding = strcmp(name, "sliding_attention") == 0;
        if (is_full && full == i)
            full++;
        else if (!is_sliding)
            return config_refuse(keys, "layer_types",
                                 "%s at layer %zu is not understood: only full_attention, then "
                                 "sliding_attention to the last layer",
                                 json_input_show(type, shown, sizeof shown), i);
    }
    if (full < layers && (config->sliding_window == 0 || (config->family != FAMILY_QWEN2 && full > 0)))
        return config_refuse(keys, "layer_types", "has sliding_attention that contradicts sliding_window");
    if (full == layers && config->sliding_window != 0 && config->family != FAMILY_QWEN2)
        return config_refuse(keys, "layer_types", "has full_attention that contradicts sliding_window");
    config->max_window_layers = (int64_t)full; /* transformers lets the list govern */
    return STATUS_OK;
}

static enum status read_window(const struct config_keys *keys, struct config *config)
{
    bool use = config->family == FAMILY_MISTRAL;
    if (config->family == FAMILY_QWEN2 && config_flag(keys, "use_sliding_window", false, &use) != STATUS_OK)
        return keys->error->status;
    const json_t *window = json_object_get(keys->object, "sliding_window");
    if (config->family == FAMILY_LLAMA && !says_unused(config_key(keys, "sliding_window")))
        return config_refuse(keys, "sliding_window", "is not understood in a Llama model, which has no windows");
    if (use && !json_is_null(window)) {
        config->sliding_window = config->family == FAMILY_QWEN2 ? QWEN2_DEFAULT_WINDOW : MISTRAL_DEFAULT_WINDOW;
        if (window && config_count(keys, "sliding_window", MAX_POSITIONS, &config->sliding_window) != STATUS_OK)
            return keys->error->status;
    }
    if (config->family == FAMILY_QWEN2 && config->sliding_window) {
        config->max_window_layers = QWEN2_DEFAULT_MAX_WINDOW_LAYERS;
        const json_t *first = config_key(keys, "max_window_layers");
        bool zero = json_is_integer(first) && json_integer_value(first) == 0; /* every layer is windowed */
        if (zero)
            config->max_window_layers = 0;
        else if (first &&
                 config_count(keys, "max_window_layers", MAX_POSITIONS, &config->max_window_layers) != STATUS_OK)
            return keys->error->status;
    }
    if (check_layer_types(keys, config) != STATUS_OK)
        return keys->error->status;
    if (config->max_window_layers >= config->num_hidden_layers)
        config->sliding_window = 0;
    if (config->sliding_window == 0)
        config->max_window_layers = 0;
    return STATUS_OK;
}

enum status config_read(struct config *config, const char *path, struct error *error)
{
    json_t *root = NULL;
    *config = (struct config){0};
    config_name_from_path(path, config->name, sizeof config->name);
    if (json_input_file(path, MAX_CONFIG_BYTES, &root, error) != STATUS_OK)
        return error->status;
    struct config_keys keys = {.object = root, .path = path, .error = error};
    enum status status = read_family(&keys, &config->family);
    if (status == STATUS_OK)
        status = refuse_what_is_not_understood(&keys);
    if (status == STATUS_OK)
        status = read_shape(&keys, config);
    if (status == STATUS_OK)
        status = read_flags(&keys, config);
    if (status == STATUS_OK)
        status = config_read_rope(&keys, config);
    if (status == STATUS_OK)
        status = read_window(&keys, config);
    json_decref(root);
    return status;
}

int64_t config_window(const struct config *config, int64_t layer)
{
    return layer >= config->max_window_layers ? config->sliding_window : 0;
}
