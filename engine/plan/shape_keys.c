/* Reading keys for a shape. Every key that is read is remembered, so that at the end any other key that looks as if it
   changed a cache or a weight can be refused: a config of tomorrow must not give a number of today. */
#include "engine/plan/shape_read.h"

#include <string.h>

static void mark(struct reader *reader, const char *key)
{
    for (int i = 0; i < reader->read_count; i++)
        if (strcmp(reader->read_keys[i], key) == 0)
            return;
    if (reader->read_count < SHAPE_MAX_KEYS)
        reader->read_keys[reader->read_count++] = key;
}

void shape_ignore(struct reader *reader, const char *key)
{
    mark(reader, key);
}

const json_t *shape_key(struct reader *reader, const char *key)
{
    mark(reader, key);
    return config_key(&reader->keys, key);
}

enum status shape_count(struct reader *reader, const char *key, int64_t maximum, int64_t *value)
{
    mark(reader, key);
    return config_count(&reader->keys, key, maximum, value);
}

enum status shape_count_or(struct reader *reader, const char *key, int64_t maximum, int64_t otherwise, int64_t *value)
{
    const json_t *found = shape_key(reader, key);
    *value = otherwise;
    if (!found)
        return STATUS_OK;
    if (json_is_integer(found) && json_integer_value(found) == 0) {
        *value = 0;
        return STATUS_OK;
    }
    return config_count(&reader->keys, key, maximum, value);
}

enum status shape_flag(struct reader *reader, const char *key, bool otherwise, bool *value)
{
    mark(reader, key);
    return config_flag(&reader->keys, key, otherwise, value);
}

enum status shape_must(struct reader *reader, const char *key, bool otherwise, bool must)
{
    bool value;
    if (shape_flag(reader, key, otherwise, &value) != STATUS_OK)
        return reader->keys.error->status;
    if (value != must)
        return config_refuse(&reader->keys, key, "is %s, which is not understood in this family; only %s is",
                             value ? "true" : "false", must ? "true" : "false");
    return STATUS_OK;
}

/* Pieces of key names that speak of caches or weights. */
static const char *const TELLING[] = {
    "expert",        "moe",          "mamba",
    "ssm",           "linear_",      "lora_rank",
    "window",        "sliding",      "chunk",
    "share",         "kv_",          "_kv",
    "key_value",     "cross_att",    "layer_types",
    "block_type",    "pattern",      "nextn",
    "mtp",           "quantiz",      "vision",
    "audio",         "head_dim",     "index_",
    "compress",      "conv_",        "recurrent",
    "lru",           "attn_layer",   "full_attention",
    "multi_query",   "state_size",   "is_encoder_decoder",
    "hybrid",        "qk_norm",      "qk_layer",
    "key_length",    "value_length", "low_rank",
    "loop",          "num_heads_",   "heads_per",
    "per_layer",     "ple_",         "sparse_",
    "parallel_attn", "text_config",  "bias",
    "k_eq_v",        "output_gate",  "mla",
    "block_config",  "weight_tying", "attention_type",
    "attn_type",
};

/* Such keys that change neither. */
static const char *const HARMLESS[] = {
    "router_aux_loss_coef",
    "moe_aux_loss_coef",
    "aux_loss_coef",
    "chunk_size_feed_forward",
    "is_causal",
    "is_decoder",
    "cross_attention_hidden_size",
    "cross_attention_freq",
    "norm_topk_prob",
    "kv_cache_scheme",
    "moe_router_dtype",
    "mamba_chunk_size",
    "summary_type",
    "vision_feature_layer",
    "torchscript",
    "use_kv_cache",
    "pre_allocate_kv_cache",
    "pad_key_length",
    "bias_dropout_fusion",
    "skip_bias_add",
    "skip_bias_add_qkv",
};

/* Absent, null, false, 0, empty lists and objects are how files say "not used". */
static bool says_unused(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* "audio_token_id", "vision_soft_tokens_per_image": ids and lengths of a prompt's parts. */
static bool is_of_prompt(const char *key)
{
    return strstr(key, "_token_i") || strstr(key, "_tokens_per_");
}

static bool is_telling(const char *key)
{
    if (is_of_prompt(key))
        return false;
    for (size_t i = 0; i < sizeof HARMLESS / sizeof HARMLESS[0]; i++)
        if (strcmp(key, HARMLESS[i]) == 0)
            return false;
    for (size_t i = 0; i < sizeof TELLING / sizeof TELLING[0]; i++)
        if (strstr(key, TELLING[i]))
            return true;
    return false;
}

static enum status refuse_unread(struct reader *reader, json_t *object, const char *within)
{
    struct config_keys at = {
        .object = object, .path = reader->keys.path, .within = within, .error = reader->keys.error};
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        char shown[64], name[64];
        bool read = key[0] == '_' || says_unused(value) || !is_telling(key);
        for (int i = 0; i < reader->read_count && !read; i++)
            read = strcmp(reader->read_keys[i], key) == 0;
        if (!read)
            return config_refuse(&at, json_input_printable(key, name, sizeof name),
                                 "%s is not understood in a %s model, and numbers without it could be wrong",
                                 json_input_show(value, shown, sizeof shown), reader->shape->family);
    }
    return STATUS_OK;
}

enum status shape_refuse_rest(struct reader *reader)
{
    enum status status = refuse_unread(reader, (json_t *)reader->keys.object, reader->keys.within);
    if (!status && reader->root != reader->keys.object)
        status = refuse_unread(reader, reader->root, NULL);
    return status;
}
