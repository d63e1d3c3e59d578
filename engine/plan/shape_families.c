/* Families whose layers attend to all tokens or to windows, with one dense MLP each. Each function says which of
   transformers' configuration and modeling files it follows. */
#include "engine/plan/shape_read.h"

#include <string.h>

/* llama, gemma, gpt2, gpt_neox, ...: every layer sees everything, and the family's row says the rest. */
enum status describe_plain(struct reader *reader)
{
    return shape_add_layers(reader);
}

/* configuration_gpt_neox.py */
enum status describe_gpt_neox(struct reader *reader)
{
    enum status status = shape_must(reader, "attention_bias", true, true);
    return status ? status : shape_add_layers(reader);
}

/* configuration_qwen2.py, configuration_qwen3.py. Qwen2's q, k and v always have biases. */
enum status describe_qwen(struct reader *reader)
{
    shape_ignore(reader, "attention_bias");
    enum status status = windows_qwen(reader);
    return status ? status : shape_add_layers(reader);
}

/* configuration_mistral.py: sliding_window 4096 where absent, none where null. */
enum status describe_mistral(struct reader *reader)
{
    enum status status = windows_everywhere(reader, 4096);
    return status ? status : shape_add_layers(reader);
}

/* configuration_phi3.py: a sliding_window is used on every layer; none where absent. */
enum status describe_windowed(struct reader *reader)
{
    enum status status = windows_everywhere(reader, 0);
    return status ? status : shape_add_layers(reader);
}

/* configuration_gemma2.py: layers 0, 2, 4, ... are windowed. */
enum status describe_alternating(struct reader *reader)
{
    enum status status = windows_alternate(reader);
    return status ? status : shape_add_layers(reader);
}

/* configuration_gemma3.py: five local layers to one global. The tower and its projector are in the same file. */
enum status describe_gemma3(struct reader *reader)
{
    enum status status = windows_pattern(reader, 6);
    if (!status)
        status = shape_add_layers(reader);
    if (!status && reader->root != reader->keys.object)
        status = vision_siglip(reader);
    return status;
}

/* configuration_cohere.py: use_qk_norm gives every head of q and k a norm of its own (modeling_cohere.py,
   CohereLayerNorm without bias). */
enum status describe_cohere(struct reader *reader)
{
    bool norms;
    if (shape_flag(reader, "use_qk_norm", false, &norms) != STATUS_OK)
        return reader->keys.error->status;
    reader->block.qk_norm = norms ? QK_NORM_WIDTH : QK_NORM_NONE;
    return shape_add_layers(reader);
}

/* configuration_cohere2.py: three windowed layers to one global. layer_switch is what the files first called it. */
enum status describe_cohere2(struct reader *reader)
{
    int64_t layer_switch;
    if (shape_count_or(reader, "layer_switch", SHAPE_MAX_LAYERS, 4, &layer_switch) != STATUS_OK ||
        shape_must(reader, "use_qk_norm", false, false) != STATUS_OK ||
        windows_pattern(reader, layer_switch) != STATUS_OK)
        return reader->keys.error->status;
    return shape_add_layers(reader);
}

/* configuration_falcon.py, modeling_falcon.py. Three generations: new_decoder_architecture has num_kv_heads and, with
   parallel_attn, two norms; before it, multi_query is one KV head; before that, every head has its own. */
enum status describe_falcon(struct reader *reader)
{
    struct block *block = &reader->block;
    bool new_decoder, multi_query, parallel, bias;
    if (shape_flag(reader, "new_decoder_architecture", false, &new_decoder) != STATUS_OK ||
        shape_flag(reader, "multi_query", true, &multi_query) != STATUS_OK ||
        shape_flag(reader, "parallel_attn", true, &parallel) != STATUS_OK ||
        shape_flag(reader, "bias", false, &bias) != STATUS_OK)
        return reader->keys.error->status;
    const json_t *norms = shape_key(reader, "num_ln_in_parallel_attn");
    if (norms)
        return config_refuse(&reader->keys, "num_ln_in_parallel_attn", "is not understood (Falcon 2)");
    shape_ignore(reader, "num_kv_heads"); /* read by the new decoder only */
    block->kv_heads = multi_query ? 1 : block->query_heads;
    if (new_decoder && shape_count(reader, "num_kv_heads", SHAPE_MAX_HEADS, &block->kv_heads) != STATUS_OK)
        return reader->keys.error->status;
    if (block->query_heads % block->kv_heads != 0)
        return config_refuse(&reader->keys, "num_kv_heads", "%lld does not divide num_attention_heads %lld",
                             (long long)block->kv_heads, (long long)block->query_heads);
    block->norms = new_decoder || !parallel ? 2 : 1;
    block->q_bias = block->kv_bias = block->o_bias = block->mlp_bias = bias;
    return shape_add_layers(reader);
}

/* configuration_gpt_bigcode.py: multi_query is one KV head (SantaCoder, StarCoder). */
enum status describe_gpt_bigcode(struct reader *reader)
{
    bool multi_query;
    if (shape_flag(reader, "multi_query", true, &multi_query) != STATUS_OK)
        return reader->keys.error->status;
    if (multi_query)
        reader->block.kv_heads = 1;
    return shape_add_layers(reader);
}

/* configuration_stablelm.py, modeling_stablelm.py: with use_parallel_residual attention and MLP share a norm. */
enum status describe_stablelm(struct reader *reader)
{
    bool parallel, bias;
    if (shape_flag(reader, "use_qkv_bias", false, &bias) != STATUS_OK ||
        shape_flag(reader, "use_parallel_residual", false, &parallel) != STATUS_OK ||
        shape_must(reader, "qk_layernorm", false, false) != STATUS_OK)
        return reader->keys.error->status;
    reader->block.q_bias = reader->block.kv_bias = bias;
    reader->block.norms = parallel ? 1 : 2;
    return shape_add_layers(reader);
}

/* configuration_opt.py. OPT-350m embeds 512 wide and norms after each layer: neither is counted here. */
enum status describe_opt(struct reader *reader)
{
    int64_t embedded;
    if (shape_count_or(reader, "word_embed_proj_dim", SHAPE_MAX_HIDDEN, reader->shape->hidden_size, &embedded) !=
            STATUS_OK ||
        shape_must(reader, "do_layer_norm_before", true, true) != STATUS_OK ||
        shape_must(reader, "enable_bias", true, true) != STATUS_OK ||
        shape_must(reader, "layer_norm_elementwise_affine", true, true) != STATUS_OK ||
        shape_must(reader, "_remove_final_layer_norm", false, false) != STATUS_OK)
        return reader->keys.error->status;
    if (embedded != reader->shape->hidden_size)
        return config_refuse(&reader->keys, "word_embed_proj_dim", "%lld is not hidden_size, and is not understood",
                             (long long)embedded);
    return shape_add_layers(reader);
}

/* configuration_starcoder2.py: use_bias is for every matrix. */
enum status describe_starcoder2(struct reader *reader)
{
    bool bias;
    if (shape_flag(reader, "use_bias", true, &bias) != STATUS_OK || windows_everywhere(reader, 0) != STATUS_OK)
        return reader->keys.error->status;
    struct block *block = &reader->block;
    block->q_bias = block->kv_bias = block->o_bias = block->mlp_bias = bias;
    return shape_add_layers(reader);
}

/* configuration_smollm3.py: windows only with use_sliding_window. Layers without rotation cost the same. */
enum status describe_smollm3(struct reader *reader)
{
    bool use, listed;
    shape_ignore(reader, "sliding_window");
    shape_ignore(reader, "max_window_layers"); /* left over from Qwen2's class */
    if (shape_flag(reader, "use_sliding_window", false, &use) != STATUS_OK ||
        windows_from_layer_types(reader, TYPE_FULL | TYPE_SLIDING, &listed) != STATUS_OK)
        return reader->keys.error->status;
    for (int64_t i = 0; i < reader->shape->layer_count; i++)
        if (reader->kinds[i] == LAYER_WINDOW && !use)
            return config_refuse(&reader->keys, "layer_types", "has sliding_attention, but use_sliding_window is off");
    if (use && shape_count(reader, "sliding_window", SHAPE_MAX_POSITIONS, &reader->window) != STATUS_OK)
        return reader->keys.error->status;
    return shape_add_layers(reader);
}

/* configuration_olmo3.py: three windowed layers to one global. */
enum status describe_olmo3(struct reader *reader)
{
    enum status status = windows_pattern(reader, 4);
    return status ? status : shape_add_layers(reader);
}

/* configuration_exaone4.py: windows only where sliding_window is given; then three to one. llama.cpp
   (src/models/exaone4.cpp) knows the windows of the 32B by its 64 layers. */
enum status describe_exaone4(struct reader *reader)
{
    const json_t *pattern = shape_key(reader, "sliding_window_pattern");
    if (json_is_string(pattern) && !config_key(&reader->keys, "layer_types"))
        return config_refuse(&reader->keys, "sliding_window_pattern", "is a word, and layer_types is missing");
    bool listed;
    enum status status = config_key(&reader->keys, "sliding_window") && !json_is_string(pattern)
                             ? windows_pattern(reader, 4)
                             : windows_from_layer_types(reader, TYPE_FULL | TYPE_SLIDING, &listed);
    if (!status)
        status = windows_width(reader, 0);
    reader->shape->llamacpp_windows = reader->shape->layer_count == 64;
    return status ? status : shape_add_layers(reader);
}

/* MPT (mosaicml/mpt-7b, modeling_mpt.py): no biases anywhere, norms included; ALiBi. */
enum status describe_mpt(struct reader *reader)
{
    int64_t ratio;
    if (shape_must(reader, "no_bias", true, true) != STATUS_OK ||
        shape_count_or(reader, "expansion_ratio", 64, 4, &ratio) != STATUS_OK)
        return reader->keys.error->status;
    reader->block.intermediate = ratio * reader->shape->hidden_size;
    const json_t *attention = shape_key(reader, "attn_config");
    const json_t *type = json_object_get(attention, "attn_type"), *norm = json_object_get(attention, "qk_ln");
    if (!json_is_true(json_object_get(attention, "alibi")))
        return config_refuse(&reader->keys, "attn_config", "has no alibi: learned positions are not understood here");
    if ((type && !(json_is_string(type) && strcmp(json_string_value(type), "multihead_attention") == 0)) ||
        json_is_true(norm))
        return config_refuse(&reader->keys, "attn_config", "asks for something other than multi-head attention");
    return shape_add_layers(reader);
}
