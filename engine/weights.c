#include "engine/weights.h"

#include "engine/formula.h"
#include "engine/random.h"
#include "engine/weights_tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a tensor's list needs to grow by. */
struct builder {
    struct weight_list *list;
    int layer; /* -1: not of a layer */
};

static void add(struct builder *builder, enum weight_kind kind, const void **slot, int64_t rows, int64_t columns,
                const char *name)
{
    struct weight_tensor *tensor = &builder->list->tensors[builder->list->count++];
    *tensor = (struct weight_tensor){.kind = kind, .layer = builder->layer, .slot = slot, .rows = rows};
    tensor->columns = columns;
    if (builder->layer < 0)
        snprintf(tensor->name, sizeof tensor->name, "%s", name);
    else
        snprintf(tensor->name, sizeof tensor->name, "model.layers.%d.%s", builder->layer, name);
}

static void add_layer(struct builder *builder, struct layer_weights *layer, const struct config *config)
{
    int64_t hidden = config->hidden_size, intermediate = config->intermediate_size;
    int64_t q = config->num_attention_heads * config->head_dim, kv = config->num_key_value_heads * config->head_dim;
    add(builder, WEIGHT_NORM, &layer->input_norm, hidden, 0, "input_layernorm.weight");
    add(builder, WEIGHT_MATRIX, &layer->q, q, hidden, "self_attn.q_proj.weight");
    add(builder, WEIGHT_MATRIX, &layer->k, kv, hidden, "self_attn.k_proj.weight");
    add(builder, WEIGHT_MATRIX, &layer->v, kv, hidden, "self_attn.v_proj.weight");
    if (config->qkv_bias) {
        add(builder, WEIGHT_BIAS, &layer->q_bias, q, 0, "self_attn.q_proj.bias");
        add(builder, WEIGHT_BIAS, &layer->k_bias, kv, 0, "self_attn.k_proj.bias");
        add(builder, WEIGHT_BIAS, &layer->v_bias, kv, 0, "self_attn.v_proj.bias");
    }
    add(builder, WEIGHT_MATRIX, &layer->o, hidden, q, "self_attn.o_proj.weight");
    if (config->o_bias)
        add(builder, WEIGHT_BIAS, &layer->o_bias, hidden, 0, "self_attn.o_proj.bias");
    add(builder, WEIGHT_NORM, &layer->post_norm, hidden, 0, "post_attention_layernorm.weight");
    add(builder, WEIGHT_MATRIX, &layer->gate, intermediate, hidden, "mlp.gate_proj.weight");
    add(builder, WEIGHT_MATRIX, &layer->up, intermediate, hidden, "mlp.up_proj.weight");
    add(builder, WEIGHT_MATRIX, &layer->down, hidden, intermediate, "mlp.down_proj.weight");
    if (config->mlp_bias) {
        add(builder, WEIGHT_BIAS, &layer->gate_bias, intermediate, 0, "mlp.gate_proj.bias");
        add(builder, WEIGHT_BIAS, &layer->up_bias, intermediate, 0, "mlp.up_proj.bias");
        add(builder, WEIGHT_BIAS, &layer->down_bias, hidden, 0, "mlp.down_proj.bias");
    }
}

enum status weight_list_init(struct weight_list *list, struct weights *weights, const struct config *config,
                             struct error *error)
{
    enum { PER_LAYER = 16, OUTSIDE_LAYERS = 3 };
    size_t layers = (size_t)config->num_hidden_layers;
    *list = (struct weight_list){0};
    if (weights->dtype > DTYPE_BF16)
        return error_set(error, STATUS_INPUT, "weights: %s is a type of KV caches only; weights are f32, f16 or bf16",
                         dtype_name(weights->dtype));
    list->tensors = calloc(layers * PER_LAYER + OUTSIDE_LAYERS, sizeof *list->tensors);
    weights->layers = calloc(layers, sizeof *weights->layers);
    weights->storage = calloc(1, sizeof *weights->storage);
    if (weights->storage)
        weights->storage->memory = calloc(layers * PER_LAYER + OUTSIDE_LAYERS, sizeof *weights->storage->memory);
    if (!list->tensors || !weights->layers || !weights->storage || !weights->storage->memory)
        return error_set(error, STATUS_DEVICE, "weights: out of host memory for the list of tensors");
    struct builder builder = {.list = list, .layer = -1};
    int64_t vocab = config->vocab_size, hidden = config->hidden_size;
    add(&builder, WEIGHT_MATRIX, &weights->embed, vocab, hidden, "model.embed_tokens.weight");
    for (builder.layer = 0; builder.layer < (int)layers; builder.layer++)
        add_layer(&builder, &weights->layers[builder.layer], config);
    builder.layer = -1;
    add(&builder, WEIGHT_NORM, &weights->final_norm, hidden, 0, "model.norm.weight");
    if (!config->tie_word_embeddings)
        add(&builder, WEIGHT_MATRIX, &weights->head, vocab, hidden, "lm_head.weight");
    return STATUS_OK;
}

void weight_list_free(struct weight_list *list)
{
    free(list->tensors);
    *list = (struct weight_list){0};
}

size_t weight_count(const struct weight_tensor *tensor)
{
    return (size_t)tensor->rows * (size_t)(tensor->columns ? tensor->columns : 1);
}

/* ---- memory: one allocation per layer, so that a card's allocation granularity (2 MiB) is lost once a layer and not
   once a tensor; and a budget that is too small fails at the layer that does not fit. */

enum { PACKED_ALIGNMENT = 64 }; /* a cache line, and more than any vector load needs */

static size_t tensor_bytes(const struct weights *weights, const struct weight_tensor *tensor)
{
    return weight_count(tensor) * dtype_size(weights->dtype);
}

static enum status take(struct weights *weights, struct ledger *ledger, uint64_t bytes, const char *what, char **memory,
                        struct error *error)
{
    void *taken;
    if (ledger_alloc(ledger, LEDGER_WEIGHTS, bytes, what, &taken, error) != STATUS_OK)
        return error->status;
    weights->storage->memory[weights->storage->count++] = taken;
    *memory = taken;
    return STATUS_OK;
}

/* Places tensors[0 .. count) that have no memory yet in one allocation, back to back; in one each where that would
   leave gaps or break alignment, so that the ledger's bytes are always the tensors' bytes. */
static enum status place_group(struct weights *weights, struct ledger *ledger, struct weight_tensor *tensors,
                               size_t count, struct error *error)
{
    uint64_t total = 0;
    bool packed = true;
    for (size_t i = 0; i < count; i++)
        if (!*tensors[i].slot) {
            packed = packed && tensor_bytes(weights, &tensors[i]) % PACKED_ALIGNMENT == 0;
            total += tensor_bytes(weights, &tensors[i]);
        }
    char what[128], *memory = NULL;
    if (tensors->layer < 0)
        snprintf(what, sizeof what, "weights %s", tensors->name);
    else
        snprintf(what, sizeof what, "weights of layer %d", tensors->layer);
    if (packed && total > 0 && take(weights, ledger, total, what, &memory, error) != STATUS_OK)
        return error->status;
    for (size_t i = 0; i < count; i++) {
        if (*tensors[i].slot)
            continue;
        size_t bytes = tensor_bytes(weights, &tensors[i]);
        if (!packed && take(weights, ledger, bytes, tensors[i].name, &memory, error) != STATUS_OK)
            return error->status;
        *tensors[i].slot = memory;
        memory += bytes;
    }
    return STATUS_OK;
}

enum status weight_list_place(struct weights *weights, struct ledger *ledger, struct weight_list *list,
                              struct error *error)
{
    for (size_t i = 0, end; i < list->count; i = end) {
        for (end = i + 1; end < list->count && list->tensors[i].layer >= 0; end++)
            if (list->tensors[end].layer != list->tensors[i].layer)
                break;
        if (place_group(weights, ledger, &list->tensors[i], end - i, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

void weight_list_finish(struct weights *weights, const struct weight_list *list, const struct config *config)
{
    weights->bytes = 0;
    for (size_t i = 0; i < list->count; i++)
        weights->bytes += tensor_bytes(weights, &list->tensors[i]);
    if (config->tie_word_embeddings)
        weights->head = weights->embed;
}

/* ---- synthetic weights */

/* A seed of its own for every tensor: number `index` of the seed's stream, whose state grows by a constant. */
static uint64_t tensor_seed(uint64_t seed, size_t index)
{
    uint64_t state = seed + index * UINT64_C(0x9e3779b97f4a7c15);
    return random_next(&state);
}

/* Uniform in [-s, s) has variance s^2 / 3. With s = sqrt(3 / in) a product keeps the variance of its input; each layer
   then adds at most about 1 to the variance of the residual, which the next norm takes out again. */
static enum status fill(struct device *device, const struct weight_tensor *tensor, enum dtype dtype, uint64_t seed,
                        struct error *error)
{
    static const float bias_scale = 0.1f;
    void *values = (void *)*tensor->slot;
    size_t count = weight_count(tensor);
    if (tensor->kind == WEIGHT_NORM)
        return device->ops->fill_value(device, values, dtype, count, 1.0f, error);
    float scale = tensor->kind == WEIGHT_BIAS ? bias_scale : (float)sqrt(3.0 / (double)tensor->columns);
    return device->ops->fill_random(device, values, dtype, count, seed, scale, error);
}

/* Places all tensors and, if asked, fills them. */
static enum status make(struct weights *weights, struct ledger *ledger, const struct config *config, enum dtype dtype,
                        bool filled, uint64_t seed, struct error *error)
{
    struct weight_list list;
    struct device *device = ledger_device(ledger);
    *weights = (struct weights){.dtype = dtype, .source = "synthetic"};
    ledger_plan(ledger, LEDGER_WEIGHTS, formula_weight_bytes(config, dtype));
    enum status status = weight_list_init(&list, weights, config, error);
    if (status == STATUS_OK)
        status = weight_list_place(weights, ledger, &list, error);
    for (size_t i = 0; filled && status == STATUS_OK && i < list.count; i++)
        status = fill(device, &list.tensors[i], dtype, tensor_seed(seed, i), error);
    if (status == STATUS_OK)
        status = device->ops->synchronize(device, error);
    if (status == STATUS_OK)
        weight_list_finish(weights, &list, config);
    weight_list_free(&list);
    if (status != STATUS_OK)
        weights_free(weights, ledger);
    return status;
}

enum status weights_synthetic(struct weights *weights, struct ledger *ledger, const struct config *config,
                              enum dtype dtype, uint64_t seed, struct error *error)
{
    return make(weights, ledger, config, dtype, true, seed, error);
}

enum status weights_unfilled(struct weights *weights, struct ledger *ledger, const struct config *config,
                             enum dtype dtype, struct error *error)
{
    return make(weights, ledger, config, dtype, false, 0, error);
}

void weights_free(struct weights *weights, struct ledger *ledger)
{
    struct weights_storage *storage = weights->storage;
    for (size_t i = 0; storage && i < storage->count; i++)
        ledger_release(ledger, storage->memory[i]);
    if (storage) {
        free(storage->memory);
        safetensors_close(storage->files);
    }
    free(storage);
    free(weights->layers);
    *weights = (struct weights){0};
}
