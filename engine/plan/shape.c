#include "engine/plan/shape.h"

#include "engine/plan/plan_count.h"

#include <stdio.h>
#include <stdlib.h>

const char *layer_kind_name(enum layer_kind kind)
{
    static const char *const names[LAYER_KINDS] = {"full", "window", "chunk", "latent", "state", "shared"};
    return names[kind];
}

void shape_free(struct shape *shape)
{
    free(shape->layers);
    *shape = (struct shape){0};
}

int64_t shape_layers_of_kind(const struct shape *shape, enum layer_kind kind)
{
    int64_t count = 0;
    for (int64_t i = 0; i < shape->layer_count; i++)
        count += shape->layers[i].kind == kind;
    return count;
}

const char *shape_layers_text(const struct shape *shape, char *to, size_t size)
{
    size_t used = 0;
    to[0] = '\0';
    for (int kind = 0; kind < LAYER_KINDS && used < size; kind++) {
        int64_t count = shape_layers_of_kind(shape, (enum layer_kind)kind);
        if (count > 0)
            used += (size_t)snprintf(to + used, size - used, "%s%lld %s", used ? " + " : "", (long long)count,
                                     layer_kind_name((enum layer_kind)kind));
    }
    return to;
}

static uint64_t heads_bytes(int64_t heads, const struct layer_shape *layer, const struct plan_type *k_type,
                            const struct plan_type *v_type, bool *overflow)
{
    return count_add(overflow, plan_type_bytes(k_type, (uint64_t)heads, (uint64_t)layer->k_dim, overflow),
                     plan_type_bytes(v_type, (uint64_t)heads, (uint64_t)layer->v_dim, overflow));
}

static bool has_heads(const struct layer_shape *layer)
{
    return layer->kind == LAYER_FULL || layer->kind == LAYER_WINDOW || layer->kind == LAYER_CHUNK;
}

/* Heads divide over the ranks; with more ranks than heads each rank holds one, so that heads are held more than once
   (vLLM, ModelConfig.get_num_kv_heads: max(1, total_num_kv_heads // tensor_parallel_size)). A latent vector has no
   heads to divide: every rank holds it whole. */
uint64_t layer_token_bytes(const struct layer_shape *layer, const struct plan_type *k_type,
                           const struct plan_type *v_type, int64_t ranks, bool expand_latent, bool *overflow)
{
    if (layer->kind == LAYER_LATENT && !expand_latent)
        return plan_type_bytes(k_type, 1, (uint64_t)(layer->latent + layer->rope), overflow);
    if (!has_heads(layer) && layer->kind != LAYER_LATENT)
        return 0;
    int64_t heads = layer->kind == LAYER_LATENT ? layer->query_heads : layer->kv_heads;
    return heads_bytes(heads > ranks ? heads / ranks : 1, layer, k_type, v_type, overflow);
}

uint64_t layer_token_bytes_mha(const struct layer_shape *layer, const struct plan_type *k_type,
                               const struct plan_type *v_type, bool *overflow)
{
    if (!has_heads(layer) && layer->kind != LAYER_LATENT && layer->kind != LAYER_SHARED)
        return 0;
    return heads_bytes(layer->query_heads, layer, k_type, v_type, overflow);
}

uint64_t layer_state_bytes(const struct layer_shape *layer, const struct plan_type *conv_type,
                           const struct plan_type *state_type, int64_t ranks, bool whole_kernel, bool *overflow)
{
    if (layer->kind != LAYER_STATE)
        return 0;
    uint64_t taps = (uint64_t)(layer->conv_kernel - (whole_kernel ? 0 : 1));
    uint64_t channels = count_units((uint64_t)layer->conv_channels, (uint64_t)ranks);
    uint64_t state = count_units((uint64_t)layer->state_values, (uint64_t)ranks);
    return count_add(overflow, plan_type_bytes(conv_type, channels, taps, overflow),
                     plan_type_bytes(state_type, 1, state, overflow));
}

uint64_t shape_token_bytes(const struct shape *shape, const struct plan_type *k_type, const struct plan_type *v_type,
                           bool *overflow)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < shape->layer_count; i++)
        sum = count_add(overflow, sum, layer_token_bytes(&shape->layers[i], k_type, v_type, 1, false, overflow));
    return sum;
}

uint64_t shape_token_bytes_mha(const struct shape *shape, const struct plan_type *k_type,
                               const struct plan_type *v_type, bool *overflow)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < shape->layer_count; i++)
        sum = count_add(overflow, sum, layer_token_bytes_mha(&shape->layers[i], k_type, v_type, overflow));
    return sum;
}

uint64_t shape_token_bytes_long(const struct shape *shape, const struct plan_type *k_type,
                                const struct plan_type *v_type, bool *overflow)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < shape->layer_count; i++) {
        enum layer_kind kind = shape->layers[i].kind;
        if (kind == LAYER_FULL || kind == LAYER_LATENT)
            sum = count_add(overflow, sum, layer_token_bytes(&shape->layers[i], k_type, v_type, 1, false, overflow));
    }
    return sum;
}
