/* Layers that differ, as a claim has them: what its params say in the place of the model's own words. A word for all
   layers (kv_heads=8) can stand for what they have only where they all have the same. */
#include "engine/claims/audit.h"

static bool holds_heads(const struct layer_shape *layer)
{
    return layer->kind == LAYER_FULL || layer->kind == LAYER_WINDOW || layer->kind == LAYER_CHUNK;
}

static bool windowed(const struct layer_shape *layer)
{
    return layer->kind == LAYER_WINDOW || layer->kind == LAYER_CHUNK;
}

/* What matters to a cache. */
static bool same_cache(const struct layer_shape *a, const struct layer_shape *b)
{
    return a->kind == b->kind && a->query_heads == b->query_heads && a->kv_heads == b->kv_heads &&
           a->k_dim == b->k_dim && a->v_dim == b->v_dim && a->window == b->window && a->latent == b->latent &&
           a->rope == b->rope;
}

struct audit_alike audit_layers_alike(const struct shape *shape)
{
    struct audit_alike alike = {.layers = true, .query_heads = true, .kv_heads = true, .head_dim = true};
    for (int64_t i = 0; i < shape->layer_count; i++) {
        const struct layer_shape *layer = &shape->layers[i];
        alike.layers &= same_cache(layer, &shape->layers[0]) && layer->kind != LAYER_SHARED;
        if (layer->kind == LAYER_LATENT) /* one vector for all heads: their number and width change nothing */
            alike.kv_heads = alike.head_dim = false;
        if (holds_heads(layer)) {
            alike.query_heads &= layer->query_heads == shape->query_heads;
            alike.kv_heads &= layer->kv_heads == shape->kv_heads;
            alike.head_dim &= layer->k_dim == shape->head_dim && layer->v_dim == shape->head_dim;
        }
        if (windowed(layer)) {
            alike.windows = alike.window == 0 || (alike.windows && alike.window == layer->window);
            alike.window = alike.window ? alike.window : layer->window;
        }
    }
    return alike;
}

const char *audit_layers_refuse(const struct audit_inputs *in)
{
    const struct config *is = &in->config, *was = &in->published;
    const struct audit_alike alike = audit_layers_alike(&in->shape);
    if (!in->has_shape)
        return NULL;
    if (is->num_hidden_layers != was->num_hidden_layers && !alike.layers)
        return "the model's layers differ: layers= does not say how many of each kind";
    if (is->num_attention_heads != was->num_attention_heads && !alike.query_heads)
        return "the model's layers differ, or keep no heads: heads= does not say whose";
    if (is->num_key_value_heads != was->num_key_value_heads && !alike.kv_heads)
        return "the model's layers differ, or keep no heads: kv_heads= does not say whose";
    if (is->head_dim != was->head_dim && !alike.head_dim)
        return "the model's layers differ, or keep no heads: head_dim= does not say whose";
    if ((is->sliding_window != was->sliding_window || in->window_everywhere) && !alike.windows)
        return "the model's layers have no window, or different ones: window= does not say whose";
    return NULL;
}

struct layer_shape audit_layer(const struct audit_inputs *in, int64_t index)
{
    const struct config *is = &in->config, *was = &in->published;
    /* More layers than the model has: as its first, for they are all alike. */
    struct layer_shape layer = in->shape.layers[index < in->shape.layer_count ? index : 0];
    if (in->all_keep && layer.kind == LAYER_SHARED)
        layer = in->shape.layers[layer.shares_with];
    if (in->all_keep && layer.kind == LAYER_STATE) {
        layer.kind = LAYER_FULL;
        layer.query_heads = in->shape.query_heads;
        layer.kv_heads = in->shape.kv_heads;
        layer.k_dim = layer.v_dim = in->shape.head_dim;
    }
    if (in->window_everywhere && layer.kind == LAYER_FULL) {
        layer.kind = LAYER_WINDOW;
        layer.window = is->sliding_window;
    }
    if (windowed(&layer) && is->sliding_window != was->sliding_window) {
        layer.window = is->sliding_window;
        layer.kind = is->sliding_window ? layer.kind : LAYER_FULL;
    }
    if (is->num_attention_heads != was->num_attention_heads)
        layer.query_heads = is->num_attention_heads;
    if (holds_heads(&layer) && is->num_key_value_heads != was->num_key_value_heads)
        layer.kv_heads = is->num_key_value_heads;
    if (holds_heads(&layer) && is->head_dim != was->head_dim)
        layer.k_dim = layer.v_dim = is->head_dim;
    if (in->tensors_per_layer == 1)
        layer.v_dim = 0;
    return layer;
}
