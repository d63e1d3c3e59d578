/* Bytes of the weights on one device. */
#include "engine/plan/plan_count.h"
#include "engine/plan/plan_parts.h"

#include <string.h>

/* Values in the type's blocks; scales per row are below what a plan resolves (int8: one f32 per matrix row). */
static uint64_t values_bytes(const struct plan_type *type, uint64_t values, bool *overflow)
{
    return count_mul(overflow, count_units(values, type->block_values), type->block_bytes);
}

static const struct plan_type *named(const char *name)
{
    const struct plan_type *type = NULL;
    struct error error;
    plan_type_find(&type, name, "dtype", false, &error);
    return type;
}

/* Which type each part is stored in. */
struct storage {
    const struct plan_type *matrices, *experts, *tables, *kept;
    bool block_scales; /* a f32 per block of 128 x 128 */
};

/* llama.cpp keeps vectors in f32 whatever the matrices' type (src/llama-quant.cpp: tensors of one dimension are not
   quantized). vLLM's fp8 and int8 leave embedding and head as they are. */
static struct storage storage_of(const struct plan_request *request)
{
    const struct plan_type *plain = named(dtype_name(request->shape->torch_dtype)), *type = request->weight_type;
    struct storage storage = {plain, plain, plain, plain, false};
    if (!type && request->shape->published == PUBLISHED_MXFP4_EXPERTS)
        storage.experts = named("mxfp4");
    if (!type && request->shape->published == PUBLISHED_FP8_BLOCKS) {
        storage.matrices = storage.experts = named("fp8");
        storage.block_scales = true;
    }
    if (!type)
        return storage;
    storage.matrices = storage.experts = storage.tables = type;
    if (type->block_values == 1 && type->block_bytes >= 2) {
        storage.kept = type;
    } else if (type->block_values == 1) {
        storage.tables = storage.kept = named("bf16");
    } else {
        storage.kept = named("f32");
    }
    return storage;
}

enum status plan_weights_check(const struct plan_request *request, struct error *error)
{
    if (request->weight_type || request->shape->published != PUBLISHED_OTHER)
        return STATUS_OK;
    return error_set(
        error, STATUS_INPUT,
        "%s: quantization_config \"%s\" is not understood: how many bytes its weights take is not known; say "
        "--dtype",
        request->shape->name, request->shape->quantization);
}

/* A rank's share of the matrices that are divided; K and V projections go on being divided only down to one head each.
   llama.cpp keeps its input layer, the tables that are looked up and their norm, in the host's memory whatever is
   offloaded (src/llama-model.cpp, load_tensors: dev_input); a tied head is a copy of its own, which follows the output
   layer (src/llama-model-loader.cpp, TENSOR_DUPLICATED). */
uint64_t plan_weight_bytes(const struct plan_request *request, int64_t first, int64_t end, bool is_first, bool is_last,
                           bool *overflow)
{
    const struct shape *shape = request->shape;
    struct storage storage = storage_of(request);
    uint64_t matrices = 0, experts = 0, kept = 0, ranks = (uint64_t)request->ranks;
    for (int64_t i = first; i < end; i++) {
        const struct layer_shape *layer = &shape->layers[i];
        uint64_t kv_ranks =
            layer->kv_heads > 0 && (uint64_t)layer->kv_heads < ranks ? (uint64_t)layer->kv_heads : ranks;
        matrices = count_add(overflow, matrices, count_units(layer->weights.split, ranks));
        matrices = count_add(overflow, matrices, count_units(layer->weights.kv, kv_ranks));
        matrices = count_add(overflow, matrices, layer->weights.whole);
        experts = count_add(overflow, experts, count_units(layer->weights.experts, ranks));
        kept = count_add(overflow, kept, layer->weights.kept);
    }
    uint64_t table = count_mul(overflow, (uint64_t)shape->vocab_size, (uint64_t)shape->hidden_size), tables = 0;
    bool holds_input = is_first && !plan_is_llamacpp(request->engine);
    if (holds_input)
        tables = count_add(overflow, table, shape->edges.tables);
    if (is_last && (!holds_input || !shape->tied)) /* a tied head needs the table where the input's is not */
        tables = count_add(overflow, tables, table);
    if (is_first) {
        matrices = count_add(overflow, matrices, shape->edges.matrices);
        kept = count_add(overflow, kept, shape->edges.first - (holds_input ? 0 : shape->edges.input));
    }
    kept = count_add(overflow, kept, is_last ? shape->edges.last : 0);
    uint64_t bytes = values_bytes(storage.matrices, matrices, overflow);
    bytes = count_add(overflow, bytes, values_bytes(storage.experts, experts, overflow));
    bytes = count_add(overflow, bytes, values_bytes(storage.tables, count_units(tables, ranks), overflow));
    bytes = count_add(overflow, bytes, values_bytes(storage.kept, kept, overflow));
    if (storage.block_scales)
        bytes = count_add(overflow, bytes,
                          count_mul(overflow, 4, count_units(count_add(overflow, matrices, experts), 128 * 128)));
    return bytes;
}
