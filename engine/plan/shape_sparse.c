/* Families with mixtures of experts. Which layers have them, how many, and how wide, by transformers' files. */
#include "engine/plan/shape_read.h"

#include <string.h>

static enum status read_experts(struct reader *reader, const char *experts, const char *per_token, const char *width)
{
    struct block *block = &reader->block;
    if (shape_count(reader, experts, SHAPE_MAX_HEADS, &block->experts) != STATUS_OK ||
        shape_count(reader, per_token, SHAPE_MAX_HEADS, &block->experts_per_token) != STATUS_OK ||
        shape_count(reader, width, SHAPE_MAX_WIDTH, &block->expert_width) != STATUS_OK)
        return reader->keys.error->status;
    if (block->experts_per_token > block->experts)
        return config_refuse(&reader->keys, per_token, "%lld is more than %s %lld", (long long)block->experts_per_token,
                             experts, (long long)block->experts);
    reader->shape->experts = block->experts;
    reader->shape->experts_per_token = block->experts_per_token;
    return STATUS_OK;
}

static void all_sparse(struct reader *reader)
{
    for (int64_t i = 0; i < reader->shape->layer_count; i++)
        reader->sparse[i] = true;
}

/* configuration_mixtral.py */
enum status describe_mixtral(struct reader *reader)
{
    if (read_experts(reader, "num_local_experts", "num_experts_per_tok", "intermediate_size") != STATUS_OK ||
        windows_everywhere(reader, 0) != STATUS_OK)
        return reader->keys.error->status;
    all_sparse(reader);
    return shape_add_layers(reader);
}

/* configuration_phimoe.py: as Mixtral, with biases, LayerNorm, and a bias on the head where lm_head_bias says so. */
enum status describe_phimoe(struct reader *reader)
{
    if (shape_flag(reader, "lm_head_bias", false, &reader->head_bias) != STATUS_OK)
        return reader->keys.error->status;
    return describe_mixtral(reader);
}

/* A list of layers, by their numbers, that have experts or have none; absent: nothing changes. */
static enum status mark_layers(struct reader *reader, const char *key, bool sparse)
{
    const json_t *list = shape_key(reader, key), *layer;
    size_t index;
    if (list && !json_is_array(list))
        return config_refuse(&reader->keys, key, "must be a list of layers");
    json_array_foreach(list, index, layer)
    {
        int64_t at = json_integer_value(layer);
        if (!json_is_integer(layer) || at < 0 || at >= reader->shape->layer_count)
            return config_refuse(&reader->keys, key, "has an entry that is no layer");
        reader->sparse[at] = sparse;
    }
    return STATUS_OK;
}

/* configuration_qwen2_moe.py, configuration_qwen3_moe.py: experts on every decoder_sparse_step-th layer that is not in
   mlp_only_layers. */
static enum status read_sparse_step(struct reader *reader)
{
    int64_t step;
    if (shape_count_or(reader, "decoder_sparse_step", SHAPE_MAX_LAYERS, 1, &step) != STATUS_OK)
        return reader->keys.error->status;
    if (step == 0)
        return config_refuse(&reader->keys, "decoder_sparse_step", "is 0; it must be at least 1");
    for (int64_t i = 0; i < reader->shape->layer_count; i++)
        reader->sparse[i] = (i + 1) % step == 0;
    return mark_layers(reader, "mlp_only_layers", false);
}

static enum status read_shared_expert(struct reader *reader)
{
    reader->block.shared_gate = true;
    return shape_count(reader, "shared_expert_intermediate_size", SHAPE_MAX_WIDTH, &reader->block.shared_width);
}

enum status describe_qwen2_moe(struct reader *reader)
{
    if (shape_must(reader, "qkv_bias", true, true) != STATUS_OK ||
        read_experts(reader, "num_experts", "num_experts_per_tok", "moe_intermediate_size") != STATUS_OK ||
        read_shared_expert(reader) != STATUS_OK || read_sparse_step(reader) != STATUS_OK ||
        windows_qwen(reader) != STATUS_OK)
        return reader->keys.error->status;
    return shape_add_layers(reader);
}

enum status describe_qwen3_moe(struct reader *reader)
{
    if (read_experts(reader, "num_experts", "num_experts_per_tok", "moe_intermediate_size") != STATUS_OK ||
        read_sparse_step(reader) != STATUS_OK || windows_qwen(reader) != STATUS_OK)
        return reader->keys.error->status;
    return shape_add_layers(reader);
}

/* configuration_qwen3_next.py, modeling_qwen3_next.py: every full_attention_interval-th layer attends, with a gate from
   q_proj; the others keep a gated delta rule's state. Its prediction layer is not in transformers' files, nor here. */
enum status describe_qwen3_next(struct reader *reader)
{
    struct block *block = &reader->block;
    int64_t interval;
    bool listed;
    if (read_experts(reader, "num_experts", "num_experts_per_tok", "moe_intermediate_size") != STATUS_OK ||
        read_shared_expert(reader) != STATUS_OK || read_sparse_step(reader) != STATUS_OK ||
        shape_count_or(reader, "full_attention_interval", SHAPE_MAX_LAYERS, 4, &interval) != STATUS_OK ||
        shape_count(reader, "linear_num_key_heads", SHAPE_MAX_HEADS, &block->dims.k_heads) != STATUS_OK ||
        shape_count(reader, "linear_num_value_heads", SHAPE_MAX_HEADS, &block->dims.heads) != STATUS_OK ||
        shape_count(reader, "linear_key_head_dim", SHAPE_MAX_HEADS, &block->dims.k_dim) != STATUS_OK ||
        shape_count(reader, "linear_value_head_dim", SHAPE_MAX_HEADS, &block->dims.v_dim) != STATUS_OK ||
        shape_count(reader, "linear_conv_kernel_dim", 64, &block->dims.conv) != STATUS_OK ||
        windows_from_layer_types(reader, TYPE_FULL | TYPE_LINEAR, &listed) != STATUS_OK)
        return reader->keys.error->status;
    if (interval == 0)
        return config_refuse(&reader->keys, "full_attention_interval", "is 0; it must be at least 1");
    for (int64_t i = 0; !listed && i < reader->shape->layer_count; i++)
        reader->kinds[i] = (i + 1) % interval == 0 ? LAYER_FULL : LAYER_STATE;
    if (shape_must(reader, "attn_output_gate", true, true) != STATUS_OK)
        return reader->keys.error->status;
    block->q_gate = true;
    block->mixer = MIXER_GATED_DELTA;
    reader->shape->f32_state = true;
    return shape_add_layers(reader);
}

/* configuration_olmoe.py */
enum status describe_olmoe(struct reader *reader)
{
    if (read_experts(reader, "num_experts", "num_experts_per_tok", "intermediate_size") != STATUS_OK)
        return reader->keys.error->status;
    all_sparse(reader);
    return shape_add_layers(reader);
}

/* configuration_gpt_oss.py, modeling_gpt_oss.py: even layers windowed, a sink per head, biases on experts and router.
 */
enum status describe_gpt_oss(struct reader *reader)
{
    const char *per_token =
        config_key(&reader->keys, "num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
    shape_ignore(reader, "experts_per_token"); /* the same under its older name */
    if (read_experts(reader, "num_local_experts", per_token, "intermediate_size") != STATUS_OK ||
        windows_alternate(reader) != STATUS_OK)
        return reader->keys.error->status;
    reader->block.sinks = reader->block.expert_bias = reader->block.router_bias = true;
    all_sparse(reader);
    return shape_add_layers(reader);
}

/* The first first_k_dense_replace layers are dense, prediction layers never. */
static void sparse_after(struct reader *reader, int64_t dense)
{
    const struct shape *shape = reader->shape;
    for (int64_t i = 0; i < shape->layer_count + shape->prediction_layers; i++)
        reader->sparse[i] = i >= dense;
}

static enum status read_routed(struct reader *reader)
{
    struct block *block = &reader->block;
    struct shape *shape = reader->shape;
    int64_t shared, dense, frequency;
    if (read_experts(reader, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size") != STATUS_OK ||
        shape_count_or(reader, "n_shared_experts", 1 << 10, 0, &shared) != STATUS_OK ||
        shape_count_or(reader, "first_k_dense_replace", SHAPE_MAX_LAYERS, 0, &dense) != STATUS_OK ||
        shape_count_or(reader, "moe_layer_freq", SHAPE_MAX_LAYERS, 1, &frequency) != STATUS_OK ||
        shape_count_or(reader, "num_nextn_predict_layers", 16, 0, &shape->prediction_layers) != STATUS_OK)
        return reader->keys.error->status;
    if (frequency != 1)
        return config_refuse(&reader->keys, "moe_layer_freq", "%lld is not understood; only 1 is",
                             (long long)frequency);
    block->shared_width = shared * block->expert_width;
    sparse_after(reader, dense);
    return STATUS_OK;
}

/* A prediction layer (DeepSeek-AI 2024b, section 2.2): a whole layer, norms of the hidden state and of the next token's
   embedding, their joining projection from twice the width, and a norm before the head. Embedding and head are shared
   with the model. */
static enum status add_with_prediction(struct reader *reader)
{
    struct shape *shape = reader->shape;
    if (shape_reserve(reader) != STATUS_OK)
        return reader->keys.error->status;
    struct block extra = reader->block;
    uint64_t hidden = (uint64_t)shape->hidden_size;
    extra.other_whole = 2 * hidden * hidden;
    extra.other_kept = 3 * hidden;
    for (int64_t i = 0; i < shape->layer_count + shape->prediction_layers; i++)
        if (shape_add_layer(reader, i < shape->layer_count ? &reader->block : &extra, i) != STATUS_OK)
            return reader->keys.error->status;
    return STATUS_OK;
}

/* configuration_deepseek_v2.py, configuration_deepseek_v3.py; Kimi K2 is of the same make. */
enum status describe_deepseek(struct reader *reader)
{
    struct block *block = &reader->block;
    int64_t nope;
    shape_ignore(reader, "num_key_value_heads"); /* as many as query heads after expansion: says nothing */
    if (block->q_bias)
        return config_refuse(&reader->keys, "attention_bias", "true is not understood in latent attention");
    if (shape_count(reader, "kv_lora_rank", SHAPE_MAX_HEADS, &block->latent) != STATUS_OK ||
        shape_count_or(reader, "q_lora_rank", SHAPE_MAX_HEADS, 0, &block->q_rank) != STATUS_OK ||
        shape_count(reader, "qk_rope_head_dim", SHAPE_MAX_HEADS, &block->rope) != STATUS_OK ||
        shape_count(reader, "qk_nope_head_dim", SHAPE_MAX_HEADS, &nope) != STATUS_OK ||
        shape_count(reader, "v_head_dim", SHAPE_MAX_HEADS, &block->v_dim) != STATUS_OK ||
        read_routed(reader) != STATUS_OK)
        return reader->keys.error->status;
    block->k_dim = nope + block->rope;
    /* noaux_tc routing corrects each expert's score by a learned bias (DeepSeek-V3, section 2.1.2). */
    const char *method = json_string_value(shape_key(reader, "topk_method"));
    block->router_bias = method && strcmp(method, "noaux_tc") == 0;
    for (int64_t i = 0; i < reader->shape->layer_count + reader->shape->prediction_layers; i++)
        reader->kinds[i] = LAYER_LATENT;
    return add_with_prediction(reader);
}

/* configuration_glm4_moe.py: DeepSeek-V3's routing over attention with heads. */
enum status describe_glm4_moe(struct reader *reader)
{
    bool norms;
    if (shape_flag(reader, "use_qk_norm", false, &norms) != STATUS_OK || read_routed(reader) != STATUS_OK)
        return reader->keys.error->status;
    reader->block.qk_norm = norms ? QK_NORM_HEAD : QK_NORM_NONE;
    reader->block.router_bias = true;
    return add_with_prediction(reader);
}

/* A list of 0 and 1, one for each layer. */
static enum status read_marks(struct reader *reader, const char *key, const json_t **list)
{
    *list = shape_key(reader, key);
    size_t layers = (size_t)reader->shape->layer_count;
    if (!json_is_array(*list) || json_array_size(*list) != layers)
        return config_refuse(&reader->keys, key, "must be a list with a 0 or 1 for each of the %zu layers", layers);
    for (size_t i = 0; i < layers; i++) {
        const json_t *mark = json_array_get(*list, i);
        if (!json_is_integer(mark) || json_integer_value(mark) < 0 || json_integer_value(mark) > 1)
            return config_refuse(&reader->keys, key, "has an entry at layer %zu that is neither 0 nor 1", i);
    }
    return STATUS_OK;
}

/* configuration_llama4.py: no_rope_layers has 0 for layers that see everything and 1 for those that see their chunk
   (by default each fourth sees everything); experts on the moe_layers, without which on each
   interleave_moe_layer_step-th layer, with one shared. */
static enum status llama4_kinds(struct reader *reader)
{
    bool listed;
    const json_t *rope = shape_key(reader, "no_rope_layers");
    int64_t layers = reader->shape->layer_count;
    bool has_list = rope && !(json_is_array(rope) && json_array_size(rope) == 0);
    if (windows_from_layer_types(reader, TYPE_FULL | TYPE_CHUNKED, &listed) != STATUS_OK ||
        (has_list && read_marks(reader, "no_rope_layers", &rope) != STATUS_OK))
        return reader->keys.error->status;
    for (int64_t i = 0; !listed && i < layers; i++) {
        bool local = has_list ? json_integer_value(json_array_get(rope, (size_t)i)) != 0 : (i + 1) % 4 != 0;
        reader->kinds[i] = local ? LAYER_CHUNK : LAYER_FULL;
    }
    return shape_count(reader, "attention_chunk_size", SHAPE_MAX_POSITIONS, &reader->window);
}

enum status describe_llama4(struct reader *reader)
{
    struct block *block = &reader->block;
    int64_t step;
    bool norms; /* of q and k: without parameters (Llama4TextL2Norm) */
    if (llama4_kinds(reader) != STATUS_OK ||
        read_experts(reader, "num_local_experts", "num_experts_per_tok", "intermediate_size") != STATUS_OK ||
        shape_count(reader, "intermediate_size_mlp", SHAPE_MAX_WIDTH, &block->intermediate) != STATUS_OK ||
        shape_count_or(reader, "interleave_moe_layer_step", SHAPE_MAX_LAYERS, 1, &step) != STATUS_OK ||
        shape_flag(reader, "use_qk_norm", true, &norms) != STATUS_OK)
        return reader->keys.error->status;
    if (step == 0)
        return config_refuse(&reader->keys, "interleave_moe_layer_step", "is 0; it must be at least 1");
    bool listed = shape_key(reader, "moe_layers") != NULL; /* then the step says nothing */
    for (int64_t i = 0; i < reader->shape->layer_count; i++)
        reader->sparse[i] = !listed && (i + 1) % step == 0;
    if (mark_layers(reader, "moe_layers", true) != STATUS_OK)
        return reader->keys.error->status;
    block->shared_width = block->expert_width;
    enum status status = shape_add_layers(reader);
    return status ? status : vision_llama4(reader);
}

static enum status read_mimo_window(struct reader *reader)
{
    int64_t chunk;
    const char *key = config_key(&reader->keys, "sliding_window_size") ? "sliding_window_size" : "sliding_window";
    shape_ignore(reader, "sliding_window");
    if (shape_count(reader, key, SHAPE_MAX_POSITIONS, &reader->window) != STATUS_OK ||
        shape_count_or(reader, "attention_chunk_size", SHAPE_MAX_POSITIONS, reader->window, &chunk) != STATUS_OK)
        return reader->keys.error->status;
    if (chunk != reader->window)
        return config_refuse(&reader->keys, "attention_chunk_size", "%lld is not the window, and is not understood",
                             (long long)chunk);
    return STATUS_OK;
}

/* MiMo-V2-Flash (XiaomiMiMo/MiMo-V2-Flash, modeling_mimo_v2_flash.py; SGLang's models/mimo_v2_flash.py): windowed
   layers where hybrid_layer_pattern has 1, with KV heads and widths of their own (swa_*) and a sink per head; V is
   narrower than K. Its prediction layers are not in the config. */
enum status describe_mimo_v2(struct reader *reader)
{
    struct block *global = &reader->block, local;
    const json_t *pattern, *sparse;
    if (read_marks(reader, "hybrid_layer_pattern", &pattern) != STATUS_OK ||
        read_marks(reader, "moe_layer_freq", &sparse) != STATUS_OK ||
        read_experts(reader, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size") != STATUS_OK ||
        shape_count(reader, "v_head_dim", SHAPE_MAX_HEADS, &global->v_dim) != STATUS_OK)
        return reader->keys.error->status;
    const char *method = json_string_value(shape_key(reader, "topk_method"));
    global->router_bias = method && strcmp(method, "noaux_tc") == 0;
    local = *global;
    if (shape_count(reader, "swa_num_attention_heads", SHAPE_MAX_HEADS, &local.query_heads) != STATUS_OK ||
        shape_count(reader, "swa_num_key_value_heads", SHAPE_MAX_HEADS, &local.kv_heads) != STATUS_OK ||
        shape_count(reader, "swa_head_dim", SHAPE_MAX_HEADS, &local.k_dim) != STATUS_OK ||
        shape_count(reader, "swa_v_head_dim", SHAPE_MAX_HEADS, &local.v_dim) != STATUS_OK ||
        shape_flag(reader, "add_swa_attention_sink_bias", false, &local.sinks) != STATUS_OK ||
        shape_flag(reader, "add_full_attention_sink_bias", false, &global->sinks) != STATUS_OK ||
        read_mimo_window(reader) != STATUS_OK || shape_reserve(reader) != STATUS_OK)
        return reader->keys.error->status;
    for (int64_t i = 0; i < reader->shape->layer_count; i++) {
        bool is_local = json_integer_value(json_array_get(pattern, (size_t)i)) == 1;
        reader->kinds[i] = is_local ? LAYER_WINDOW : LAYER_FULL;
        reader->sparse[i] = json_integer_value(json_array_get(sparse, (size_t)i)) == 1;
        if (shape_add_layer(reader, is_local ? &local : global, i) != STATUS_OK)
            return reader->keys.error->status;
    }
    return STATUS_OK;
}
