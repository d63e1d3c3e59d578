/* Families in which only some layers keep K and V: hybrids of attention and a recurrent state, pure state models, and
   layers that read another layer's cache. */
#include "engine/plan/shape_read.h"

#include <string.h>

static enum status read_period(struct reader *reader, const char *period_key, const char *offset_key, int64_t *period,
                               int64_t *offset)
{
    if (shape_count(reader, period_key, SHAPE_MAX_LAYERS, period) != STATUS_OK ||
        shape_count_or(reader, offset_key, SHAPE_MAX_LAYERS, 0, offset) != STATUS_OK)
        return reader->keys.error->status;
    if (*offset >= *period)
        return config_refuse(&reader->keys, offset_key, "%lld must be less than %s %lld", (long long)*offset,
                             period_key, (long long)*period);
    return STATUS_OK;
}

/* configuration_jamba.py, modeling_jamba.py: attention and experts each on every period-th layer; Mamba elsewhere. */
enum status describe_jamba(struct reader *reader)
{
    struct block *block = &reader->block;
    struct shape *shape = reader->shape;
    int64_t attention, attention_offset = 0, experts, experts_offset = 0, expand;
    if (read_period(reader, "attn_layer_period", "attn_layer_offset", &attention, &attention_offset) != STATUS_OK ||
        read_period(reader, "expert_layer_period", "expert_layer_offset", &experts, &experts_offset) != STATUS_OK ||
        shape_count(reader, "num_experts", SHAPE_MAX_HEADS, &block->experts) != STATUS_OK ||
        shape_count(reader, "num_experts_per_tok", SHAPE_MAX_HEADS, &block->experts_per_token) != STATUS_OK ||
        shape_count(reader, "mamba_d_state", SHAPE_MAX_HEADS, &block->dims.state) != STATUS_OK ||
        shape_count(reader, "mamba_d_conv", 64, &block->dims.conv) != STATUS_OK ||
        shape_count(reader, "mamba_expand", 64, &expand) != STATUS_OK ||
        shape_count(reader, "mamba_dt_rank", SHAPE_MAX_HEADS, &block->dims.dt_rank) != STATUS_OK ||
        shape_flag(reader, "mamba_conv_bias", true, &block->dims.conv_bias) != STATUS_OK ||
        shape_flag(reader, "mamba_proj_bias", false, &block->dims.proj_bias) != STATUS_OK)
        return reader->keys.error->status;
    if (block->experts_per_token > block->experts)
        return config_refuse(&reader->keys, "num_experts_per_tok", "%lld is more than num_experts %lld",
                             (long long)block->experts_per_token, (long long)block->experts);
    shape_ignore(reader, "use_mamba_kernels");
    shape_ignore(reader, "mamba_inner_layernorms"); /* of the first release: always there */
    block->mixer = MIXER_MAMBA;
    block->dims.inner = expand * shape->hidden_size;
    block->dims.dt_norms = true;
    block->expert_width = block->intermediate;
    shape->experts = block->experts;
    shape->experts_per_token = block->experts_per_token;
    for (int64_t i = 0; i < shape->layer_count; i++) {
        reader->kinds[i] = i % attention == attention_offset ? LAYER_FULL : LAYER_STATE;
        reader->sparse[i] = block->experts > 1 && i % experts == experts_offset;
    }
    return shape_add_layers(reader);
}

/* configuration_granitemoehybrid.py, modeling_granitemoehybrid.py: Mamba-2 or attention by layer_types, then a dense
   MLP (shared_mlp) and, with num_local_experts, experts beside it. */
enum status describe_granite_hybrid(struct reader *reader)
{
    struct block *block = &reader->block;
    struct shape *shape = reader->shape;
    int64_t head_dim, expand, width = block->intermediate;
    bool listed;
    if (windows_from_layer_types(reader, TYPE_ATTENTION | TYPE_MAMBA, &listed) != STATUS_OK ||
        shape_count_or(reader, "num_local_experts", SHAPE_MAX_HEADS, 0, &block->experts) != STATUS_OK ||
        shape_count_or(reader, "num_experts_per_tok", SHAPE_MAX_HEADS, 0, &block->experts_per_token) != STATUS_OK ||
        shape_count(reader, "shared_intermediate_size", SHAPE_MAX_WIDTH, &block->intermediate) != STATUS_OK ||
        shape_count(reader, "mamba_n_heads", SHAPE_MAX_HEADS, &block->dims.heads) != STATUS_OK ||
        shape_count(reader, "mamba_d_head", SHAPE_MAX_HEADS, &head_dim) != STATUS_OK ||
        shape_count(reader, "mamba_d_state", SHAPE_MAX_HEADS, &block->dims.state) != STATUS_OK ||
        shape_count(reader, "mamba_n_groups", SHAPE_MAX_HEADS, &block->dims.groups) != STATUS_OK ||
        shape_count(reader, "mamba_d_conv", 64, &block->dims.conv) != STATUS_OK ||
        shape_count(reader, "mamba_expand", 64, &expand) != STATUS_OK ||
        shape_flag(reader, "mamba_conv_bias", true, &block->dims.conv_bias) != STATUS_OK ||
        shape_flag(reader, "mamba_proj_bias", false, &block->dims.proj_bias) != STATUS_OK)
        return reader->keys.error->status;
    if (!listed)
        return config_refuse(&reader->keys, "layer_types", "is missing; it says which layers attend");
    block->dims.inner = block->dims.heads * head_dim;
    if (block->dims.inner != expand * shape->hidden_size)
        return config_refuse(&reader->keys, "mamba_expand", "%lld contradicts mamba_n_heads x mamba_d_head",
                             (long long)expand);
    if (block->experts_per_token > block->experts && block->experts > 0)
        return config_refuse(&reader->keys, "num_experts_per_tok", "%lld is more than num_local_experts %lld",
                             (long long)block->experts_per_token, (long long)block->experts);
    block->mixer = MIXER_MAMBA2;
    if (block->experts > 0) {
        block->shared_width = block->intermediate;
        block->expert_width = width;
        shape->experts = block->experts;
        shape->experts_per_token = block->experts_per_token;
    }
    for (int64_t i = 0; i < shape->layer_count; i++)
        reader->sparse[i] = block->experts > 0;
    return shape_add_layers(reader);
}

/* configuration_mamba.py: one norm and one mixer per layer, no attention at all. time_step_rank "auto" is
   ceil(hidden_size / 16). */
enum status describe_mamba(struct reader *reader)
{
    struct mixer_dims *dims = &reader->block.dims;
    struct shape *shape = reader->shape;
    int64_t expand;
    bool last_norm_is_wide;
    const json_t *rank = shape_key(reader, "time_step_rank");
    dims->dt_rank = (shape->hidden_size + 15) / 16;
    if ((json_is_integer(rank) &&
         shape_count(reader, "time_step_rank", SHAPE_MAX_HEADS, &dims->dt_rank) != STATUS_OK) ||
        shape_count(reader, "state_size", SHAPE_MAX_HEADS, &dims->state) != STATUS_OK ||
        shape_count(reader, "conv_kernel", 64, &dims->conv) != STATUS_OK ||
        shape_count_or(reader, "expand", 64, 2, &expand) != STATUS_OK ||
        shape_count_or(reader, "intermediate_size", SHAPE_MAX_WIDTH, expand * shape->hidden_size, &dims->inner) !=
            STATUS_OK ||
        shape_flag(reader, "use_conv_bias", true, &dims->conv_bias) != STATUS_OK ||
        shape_flag(reader, "use_bias", false, &dims->proj_bias) != STATUS_OK ||
        shape_flag(reader, "fused_add_norm", false, &last_norm_is_wide) != STATUS_OK)
        return reader->keys.error->status;
    shape_ignore(reader, "use_mambapy");
    reader->block.mixer = MIXER_MAMBA;
    reader->block.norms = 1;
    for (int64_t i = 0; i < shape->layer_count; i++)
        reader->kinds[i] = LAYER_STATE;
    return shape_add_layers(reader);
}

/* intermediate_size as a list: understood where all layers are as wide (both published models). */
static enum status same_width(struct reader *reader)
{
    const json_t *list = shape_key(reader, "intermediate_size"), *value;
    size_t index;
    if (!json_is_array(list))
        return STATUS_OK;
    if (json_array_size(list) != (size_t)reader->shape->layer_count)
        return config_refuse(&reader->keys, "intermediate_size", "must have an entry for each layer");
    json_array_foreach(list, index, value)
    {
        reader->block.intermediate = json_integer_value(value);
        if (!json_equal(value, json_array_get(list, 0)) || reader->block.intermediate < 1 ||
            reader->block.intermediate > SHAPE_MAX_WIDTH)
            return config_refuse(&reader->keys, "intermediate_size", "differs between layers, which is not understood");
    }
    return STATUS_OK;
}

/* Gemma3nTextDecoderLayer: what a layer has beside attention, MLP and four norms (modeling_gemma3n.py). AltUp: scale of
   the correction, coefficients inputs x inputs and inputs^2 x inputs, router and its norm; LAuReL: hidden to rank and
   back, a norm; per-layer input: a gate to its width and back, a norm. */
static void gemma3n_layer(struct reader *reader, int64_t inputs, int64_t rank, int64_t width)
{
    uint64_t hidden = (uint64_t)reader->shape->hidden_size, n = (uint64_t)inputs;
    reader->block.other_whole = 2 * hidden * (uint64_t)rank + 2 * hidden * (uint64_t)width + n * n + n * n * n;
    reader->block.other_kept = hidden + hidden * n + hidden /* AltUp */ + hidden /* LAuReL */ + hidden /* per-layer */;
}

/* The last num_kv_shared_layers read the cache of the last earlier layer of their kind. */
static enum status gemma3n_sharing(struct reader *reader)
{
    int64_t shared, layers = reader->shape->layer_count;
    if (shape_count_or(reader, "num_kv_shared_layers", SHAPE_MAX_LAYERS, 0, &shared) != STATUS_OK)
        return reader->keys.error->status;
    if (shared >= layers)
        return config_refuse(&reader->keys, "num_kv_shared_layers", "%lld leaves no layer with a cache of its own",
                             (long long)shared);
    for (int64_t i = layers - shared; i < layers; i++) {
        int64_t from = layers - shared - 1;
        while (from >= 0 && reader->kinds[from] != reader->kinds[i])
            from--;
        if (from < 0)
            return config_refuse(&reader->keys, "num_kv_shared_layers", "shares a kind of layer that no layer keeps");
        reader->shares_with[i] = from;
    }
    for (int64_t i = layers - shared; i < layers; i++)
        reader->kinds[i] = LAYER_SHARED;
    return STATUS_OK;
}

/* configuration_gemma3n.py: by default every fifth layer is global. */
enum status describe_gemma3n(struct reader *reader)
{
    struct shape *shape = reader->shape;
    int64_t inputs, rank, width, vocabulary;
    if (same_width(reader) != STATUS_OK || windows_pattern(reader, 5) != STATUS_OK ||
        gemma3n_sharing(reader) != STATUS_OK || shape_count(reader, "altup_num_inputs", 64, &inputs) != STATUS_OK ||
        shape_count(reader, "laurel_rank", SHAPE_MAX_HEADS, &rank) != STATUS_OK ||
        shape_count(reader, "hidden_size_per_layer_input", SHAPE_MAX_HEADS, &width) != STATUS_OK ||
        shape_count(reader, "vocab_size_per_layer_input", SHAPE_MAX_WIDTH, &vocabulary) != STATUS_OK)
        return reader->keys.error->status;
    shape_ignore(reader, "vision_config");
    shape_ignore(reader, "audio_config");
    shape_ignore(reader, "activation_sparsity_pattern"); /* of values, not of weights */
    shape->not_counted = "the vision and audio towers";
    gemma3n_layer(reader, inputs, rank, width);
    uint64_t hidden = (uint64_t)shape->hidden_size, per_layer = (uint64_t)(shape->layer_count * width);
    /* embed_tokens_per_layer; per_layer_model_projection, AltUp's projections in and out; the former's norm */
    shape->edges.tables = (uint64_t)vocabulary * per_layer;
    shape->edges.matrices = hidden * per_layer + 2 * (uint64_t)(inputs - 1) * hidden * hidden;
    shape->edges.first = (uint64_t)width;
    shape->parts.other = shape->edges.tables + shape->edges.matrices + shape->edges.first;
    return shape_add_layers(reader);
}
