/* What the parts of a layer weigh, in parameters. Names of matrices are those of transformers' modeling files. */
#include "engine/plan/plan_count.h"
#include "engine/plan/shape_read.h"

#include <stdlib.h>

/* A layer being weighed: its tensor-parallel split and its parts. */
struct scale {
    bool *overflow;
    struct layer_parameters weights;
    struct shape_parts parts;
    uint64_t hidden;
};

static void put(struct scale *scale, uint64_t *place, uint64_t *part, uint64_t count)
{
    *place = count_add(scale->overflow, *place, count);
    *part = count_add(scale->overflow, *part, count);
}

static uint64_t times(const struct scale *scale, int64_t a, int64_t b)
{
    return count_mul(scale->overflow, (uint64_t)a, (uint64_t)b);
}

/* rows x columns of a matrix of the model's width */
static uint64_t wide(const struct scale *scale, uint64_t columns)
{
    return count_mul(scale->overflow, scale->hidden, columns);
}

static void kept(struct scale *scale, uint64_t *part, uint64_t count)
{
    put(scale, &scale->weights.kept, part, count);
}

/* q_proj, k_proj, v_proj, o_proj, their biases, norms of q and k, sinks (one learned logit per head, gpt-oss). A gated
   attention's q_proj gives the gate too (Qwen3-Next). */
static void weigh_heads(struct scale *scale, const struct block *block)
{
    struct shape_parts *parts = &scale->parts;
    uint64_t q = times(scale, block->query_heads, block->k_dim), out = times(scale, block->query_heads, block->v_dim);
    uint64_t k = times(scale, block->kv_heads, block->k_dim), v = times(scale, block->kv_heads, block->v_dim);
    uint64_t from_q = block->q_gate ? count_mul(scale->overflow, q, 2) : q;
    put(scale, &scale->weights.split, &parts->attention, wide(scale, from_q));
    put(scale, &scale->weights.split, &parts->attention, wide(scale, out));
    put(scale, &scale->weights.kv, &parts->attention, wide(scale, count_add(scale->overflow, k, v)));
    kept(scale, &parts->biases, block->q_bias ? from_q : 0);
    kept(scale, &parts->biases, block->kv_bias ? k + v : 0);
    kept(scale, &parts->biases, block->o_bias ? scale->hidden : 0);
    kept(scale, &parts->biases, block->sinks ? (uint64_t)block->query_heads : 0);
    uint64_t norms = block->qk_norm == QK_NORM_HEAD    ? 2 * (uint64_t)block->k_dim
                     : block->qk_norm == QK_NORM_WIDTH ? count_add(scale->overflow, q, k)
                                                       : 0;
    kept(scale, &parts->norms, block->qk_norm_bias ? 2 * norms : norms);
}

/* q_a_proj (hidden to q_rank), its norm, q_b_proj; or one q_proj. kv_a_proj_with_mqa (hidden to latent + rope), the
   latent's norm, kv_b_proj (latent to every head's K without rope, and V), o_proj. DeepSeek-AI 2024, section 2.1;
   modeling_deepseek_v3.py, DeepseekV3Attention. k_dim holds the rope part. */
static void weigh_latent(struct scale *scale, const struct block *block)
{
    struct shape_parts *parts = &scale->parts;
    uint64_t q = times(scale, block->query_heads, block->k_dim), v = times(scale, block->query_heads, block->v_dim);
    uint64_t nope = times(scale, block->query_heads, block->k_dim - block->rope);
    uint64_t latent = (uint64_t)block->latent, rank = (uint64_t)block->q_rank;
    if (rank) {
        put(scale, &scale->weights.whole, &parts->attention, wide(scale, rank));
        put(scale, &scale->weights.split, &parts->attention, count_mul(scale->overflow, rank, q));
        kept(scale, &parts->norms, rank);
    } else {
        put(scale, &scale->weights.split, &parts->attention, wide(scale, q));
    }
    put(scale, &scale->weights.whole, &parts->attention, wide(scale, latent + (uint64_t)block->rope));
    put(scale, &scale->weights.split, &parts->attention,
        count_mul(scale->overflow, latent, count_add(scale->overflow, nope, v)));
    put(scale, &scale->weights.split, &parts->attention, wide(scale, v));
    kept(scale, &parts->norms, latent);
}

/* MambaMixer (Gu and Dao 2023; modeling_mamba.py): in_proj to x and z, conv1d, x_proj to dt, B and C, dt_proj, A_log,
   D, out_proj. Jamba adds norms of dt, B and C. */
static void weigh_mamba(struct scale *scale, const struct mixer_dims *dims)
{
    uint64_t inner = (uint64_t)dims->inner, state = (uint64_t)dims->state, rank = (uint64_t)dims->dt_rank;
    uint64_t *mixers = &scale->parts.mixers, *split = &scale->weights.split;
    put(scale, split, mixers, wide(scale, 2 * inner));
    put(scale, split, mixers, count_mul(scale->overflow, inner, (uint64_t)dims->conv));
    put(scale, split, mixers, count_mul(scale->overflow, inner, rank + 2 * state)); /* x_proj */
    put(scale, split, mixers, count_mul(scale->overflow, inner, rank));             /* dt_proj */
    put(scale, split, mixers, count_mul(scale->overflow, inner, state));            /* A_log */
    put(scale, split, mixers, wide(scale, inner));
    kept(scale, mixers, inner); /* D */
    kept(scale, &scale->parts.biases, inner + (dims->conv_bias ? inner : 0));
    kept(scale, &scale->parts.biases, dims->proj_bias ? 2 * inner + scale->hidden : 0);
    kept(scale, &scale->parts.norms, dims->dt_norms ? rank + 2 * state : 0);
}

/* Mamba2Mixer (Dao and Gu 2024; modeling_granitemoehybrid.py): in_proj to z, x, B, C and dt; conv1d over x, B and C;
   dt_bias, A_log, D per head; gated norm; out_proj. */
static void weigh_mamba2(struct scale *scale, const struct mixer_dims *dims)
{
    uint64_t inner = (uint64_t)dims->inner, heads = (uint64_t)dims->heads;
    uint64_t conv = inner + count_mul(scale->overflow, 2 * (uint64_t)dims->groups, (uint64_t)dims->state);
    uint64_t *mixers = &scale->parts.mixers, *split = &scale->weights.split, in = inner + conv + heads;
    put(scale, split, mixers, wide(scale, in));
    put(scale, split, mixers, count_mul(scale->overflow, conv, (uint64_t)dims->conv));
    put(scale, split, mixers, wide(scale, inner));
    kept(scale, mixers, 3 * heads);
    kept(scale, &scale->parts.norms, inner);
    kept(scale, &scale->parts.biases, dims->conv_bias ? conv : 0);
    kept(scale, &scale->parts.biases, dims->proj_bias ? in + scale->hidden : 0);
}

/* Qwen3NextGatedDeltaNet (Yang et al. 2024; modeling_qwen3_next.py): in_proj_qkvz, in_proj_ba, conv1d over q, k and v
   without bias, dt_bias and A_log per value head, norm of a value head, out_proj. */
static void weigh_gated_delta(struct scale *scale, const struct mixer_dims *dims)
{
    uint64_t key = times(scale, dims->k_heads, dims->k_dim), value = times(scale, dims->heads, dims->v_dim);
    uint64_t *mixers = &scale->parts.mixers, *split = &scale->weights.split;
    put(scale, split, mixers, wide(scale, 2 * key + 2 * value));
    put(scale, split, mixers, wide(scale, 2 * (uint64_t)dims->heads));
    put(scale, split, mixers, count_mul(scale->overflow, 2 * key + value, (uint64_t)dims->conv));
    put(scale, split, mixers, wide(scale, value));
    kept(scale, mixers, 2 * (uint64_t)dims->heads);
    kept(scale, &scale->parts.norms, (uint64_t)dims->v_dim);
}

static void weigh_mlp(struct scale *scale, const struct block *block)
{
    uint64_t matrices = (uint64_t)block->mlp_matrices, inner = (uint64_t)block->intermediate;
    put(scale, &scale->weights.split, &scale->parts.mlp, count_mul(scale->overflow, matrices, wide(scale, inner)));
    kept(scale, &scale->parts.biases, block->mlp_bias ? (matrices - 1) * inner + scale->hidden : 0);
}

/* Gate, up and down of every expert, the router, and what all tokens share (one dense MLP, sometimes with a gate of one
   value per token). */
static void weigh_experts(struct scale *scale, const struct block *block)
{
    uint64_t experts = (uint64_t)block->experts, width = (uint64_t)block->expert_width;
    uint64_t one = count_mul(scale->overflow, 3, wide(scale, width));
    put(scale, &scale->weights.experts, &scale->parts.experts, count_mul(scale->overflow, experts, one));
    kept(scale, &scale->parts.biases,
         block->expert_bias ? count_mul(scale->overflow, experts, 2 * width + scale->hidden) : 0);
    kept(scale, &scale->parts.routers, wide(scale, experts) + (block->router_bias ? experts : 0));
    put(scale, &scale->weights.split, &scale->parts.shared_experts,
        count_mul(scale->overflow, 3, wide(scale, (uint64_t)block->shared_width)));
    kept(scale, &scale->parts.routers, block->shared_gate ? scale->hidden : 0);
}

static uint64_t parts_sum(const struct shape_parts *parts, bool *overflow)
{
    const uint64_t all[] = {parts->embedding, parts->head,    parts->attention, parts->mixers,
                            parts->mlp,       parts->experts, parts->routers,   parts->shared_experts,
                            parts->norms,     parts->biases,  parts->vision,    parts->other};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        sum = count_add(overflow, sum, all[i]);
    return sum;
}

static void add_parts(struct shape_parts *to, const struct shape_parts *parts, bool *overflow)
{
    to->attention = count_add(overflow, to->attention, parts->attention);
    to->mixers = count_add(overflow, to->mixers, parts->mixers);
    to->mlp = count_add(overflow, to->mlp, parts->mlp);
    to->experts = count_add(overflow, to->experts, parts->experts);
    to->shared_experts = count_add(overflow, to->shared_experts, parts->shared_experts);
    to->routers = count_add(overflow, to->routers, parts->routers);
    to->norms = count_add(overflow, to->norms, parts->norms);
    to->biases = count_add(overflow, to->biases, parts->biases);
    to->other = count_add(overflow, to->other, parts->other);
}

enum status shape_reserve(struct reader *reader)
{
    struct shape *shape = reader->shape;
    shape->layers = calloc((size_t)(shape->layer_count + shape->prediction_layers), sizeof *shape->layers);
    return shape->layers ? STATUS_OK
                         : error_set(reader->keys.error, STATUS_DEVICE, "%s: out of memory", reader->keys.path);
}

static struct layer_shape geometry(const struct reader *reader, const struct block *block, int64_t index)
{
    const struct mixer_dims *dims = &block->dims;
    struct layer_shape layer = {.kind = reader->kinds[index],
                                .query_heads = block->query_heads,
                                .kv_heads = block->kv_heads,
                                .k_dim = block->k_dim,
                                .v_dim = block->v_dim};
    if (layer.kind == LAYER_WINDOW || layer.kind == LAYER_CHUNK)
        layer.window = reader->window;
    if (layer.kind == LAYER_SHARED)
        layer.shares_with = reader->shares_with[index];
    if (layer.kind == LAYER_LATENT) {
        layer.latent = block->latent;
        layer.rope = block->rope;
        layer.kv_heads = 1;
    }
    if (layer.kind == LAYER_STATE) {
        layer = (struct layer_shape){.kind = LAYER_STATE, .conv_kernel = dims->conv};
        bool delta = block->mixer == MIXER_GATED_DELTA;
        layer.conv_channels = block->mixer == MIXER_MAMBA ? dims->inner
                              : delta                     ? 2 * dims->k_heads * dims->k_dim + dims->heads * dims->v_dim
                                                          : dims->inner + 2 * dims->groups * dims->state;
        layer.state_values = delta ? dims->heads * dims->k_dim * dims->v_dim : dims->inner * dims->state;
    }
    return layer;
}

enum status shape_add_layer(struct reader *reader, const struct block *block, int64_t index)
{
    struct shape *shape = reader->shape;
    struct scale scale = {.overflow = &reader->overflow, .hidden = (uint64_t)shape->hidden_size};
    struct layer_shape layer = geometry(reader, block, index);
    bool sparse = reader->sparse[index] && block->experts > 0;
    if ((layer.kind == LAYER_WINDOW || layer.kind == LAYER_CHUNK) && layer.window == 0)
        return config_refuse(&reader->keys, "layer_types", "layer %lld has a window, and the file gives it no width",
                             (long long)index);
    if (layer.kind == LAYER_STATE && block->mixer == MIXER_NONE)
        return config_refuse(&reader->keys, "layer_types", "layer %lld keeps a state that the file does not describe",
                             (long long)index);
    if (layer.kind == LAYER_LATENT)
        weigh_latent(&scale, block);
    else if (layer.kind != LAYER_STATE)
        weigh_heads(&scale, block);
    else if (block->mixer == MIXER_MAMBA)
        weigh_mamba(&scale, &block->dims);
    else if (block->mixer == MIXER_MAMBA2)
        weigh_mamba2(&scale, &block->dims);
    else
        weigh_gated_delta(&scale, &block->dims);
    if (sparse)
        weigh_experts(&scale, block);
    else if (block->intermediate > 0)
        weigh_mlp(&scale, block);
    kept(&scale, &scale.parts.norms,
         count_mul(scale.overflow, (uint64_t)block->norms * (uint64_t)block->values_per_norm, scale.hidden));
    put(&scale, &scale.weights.whole, &scale.parts.other, block->other_whole);
    kept(&scale, &scale.parts.other, block->other_kept);

    layer.weights = scale.weights;
    shape->layers[index] = layer;
    int64_t width = sparse ? block->experts_per_token * block->expert_width + block->shared_width : block->intermediate;
    if (width > shape->widest_mlp)
        shape->widest_mlp = width;
    if (index >= shape->layer_count) {
        shape->parts.prediction =
            count_add(scale.overflow, shape->parts.prediction, parts_sum(&scale.parts, scale.overflow));
        return STATUS_OK;
    }
    add_parts(&shape->parts, &scale.parts, scale.overflow);
    if (sparse) { /* of the routed experts, a token uses experts_per_token */
        uint64_t one = scale.parts.experts / (uint64_t)block->experts;
        uint64_t bias = block->expert_bias ? 2 * (uint64_t)block->expert_width + scale.hidden : 0;
        reader->unused =
            count_add(scale.overflow, reader->unused,
                      count_mul(scale.overflow, one + bias, (uint64_t)(block->experts - block->experts_per_token)));
    }
    return STATUS_OK;
}

enum status shape_add_layers(struct reader *reader)
{
    if (shape_reserve(reader) != STATUS_OK)
        return reader->keys.error->status;
    for (int64_t i = 0; i < reader->shape->layer_count; i++)
        if (shape_add_layer(reader, &reader->block, i) != STATUS_OK)
            return reader->keys.error->status;
    return STATUS_OK;
}

void shape_add_edges(struct reader *reader, int64_t positions, bool embedding_norm, bool last_norm)
{
    struct shape *shape = reader->shape;
    struct scale scale = {.overflow = &reader->overflow, .hidden = (uint64_t)shape->hidden_size};
    uint64_t table = wide(&scale, (uint64_t)shape->vocab_size);
    uint64_t norm = (uint64_t)reader->block.values_per_norm * scale.hidden;
    struct shape_parts *parts = &shape->parts;
    parts->embedding = count_add(scale.overflow, parts->embedding, table);
    parts->head = count_add(scale.overflow, parts->head, shape->tied ? 0 : table);
    put(&scale, &shape->edges.input, &parts->embedding, wide(&scale, (uint64_t)positions));
    put(&scale, &shape->edges.input, &parts->norms, embedding_norm ? norm : 0);
    put(&scale, &shape->edges.last, &parts->biases, reader->head_bias ? (uint64_t)shape->vocab_size : 0);
    put(&scale, &shape->edges.last, &parts->norms, last_norm ? norm : 0);
    shape->edges.first = count_add(scale.overflow, shape->edges.first, shape->edges.input);
}

void shape_sum(struct reader *reader)
{
    struct shape *shape = reader->shape;
    shape->total = parts_sum(&shape->parts, &reader->overflow);
    shape->active = shape->total - reader->unused;
}
