/* What a plan's request leaves open, and how its layers lie on the devices. */
#include "engine/plan/plan_parts.h"

#include <string.h>

const struct plan_type *plan_cache_type(const char *name)
{
    const struct plan_type *type = NULL;
    struct error error;
    plan_type_find(&type, name, "kv-dtype", true, &error);
    return type;
}

const char *plan_working_type(const struct plan_request *request)
{
    const struct plan_type *type = request->weight_type;
    bool plain = type && type->block_values == 1 && type->block_bytes >= 2;
    return plain ? type->name : dtype_name(request->shape->torch_dtype);
}

bool plan_is_llamacpp(enum engine engine)
{
    return engine == ENGINE_LLAMACPP || engine == ENGINE_LLAMACPP_UNIFIED;
}

bool plan_is_torch(enum engine engine)
{
    return engine == ENGINE_TRANSFORMERS_DYNAMIC || engine == ENGINE_TRANSFORMERS_STATIC;
}

/* Of the recurrence: llama.cpp keeps f32 (src/llama-model.cpp, create_memory), a gated delta rule's is f32 in
   transformers (modeling_qwen3_next.py), else the model's own type. */
static const struct plan_type *engine_state_type(const struct plan_request *request)
{
    bool f32 = plan_is_llamacpp(request->engine) || (request->shape->f32_state && request->engine != ENGINE_VLLM);
    return plan_cache_type(f32 ? "f32" : plan_working_type(request));
}

/* By the card. vLLM, EngineArgs.get_batch_defaults (vllm/engine/arg_utils.py): 8,192 tokens and 1,024 sequences from 70
   GiB on, A100 excepted. SGLang 0.4 (server_args.py): chunked_prefill_size 2,048 below 25,000 MiB. */
static void resolve_batch(struct plan_request *request)
{
    const struct profile *profile = profile_of(request->engine);
    bool a100 = request->card_title && strcasestr(request->card_title, "A100");
    bool large = request->engine == ENGINE_VLLM && request->memory_bytes >= (uint64_t)70 << 30 && !a100;
    bool small = request->engine == ENGINE_SGLANG && request->memory_bytes < (uint64_t)25000 << 20;
    if (!request->batch_tokens)
        request->batch_tokens = large ? 8192 : small ? 2048 : profile->batch_tokens;
    if (!request->slots)
        request->slots = large ? 1024 : profile->slots;
}

void plan_resolve(struct plan_request *request)
{
    const struct profile *profile = profile_of(request->engine);
    /* Files in f32 are loaded in a type of two bytes (vllm/config/model.py, _resolve_auto_dtype; SGLang's
       model_config.py, _get_and_verify_dtype). */
    if (!request->weight_type && request->shape->torch_dtype == DTYPE_F32 &&
        (request->engine == ENGINE_VLLM || request->engine == ENGINE_SGLANG))
        request->weight_type = plan_cache_type("bf16");
    if (!request->k_type) /* llama.cpp: type_k, type_v are f16 whatever the model (common/common.h) */
        request->k_type = plan_cache_type(plan_is_llamacpp(request->engine) ? "f16" : plan_working_type(request));
    if (!request->v_type)
        request->v_type = request->k_type;
    if (!request->state_type)
        request->state_type = engine_state_type(request);
    if (!request->block_size)
        request->block_size = profile->block_size;
    resolve_batch(request);
    if (!request->memory_ppm)
        request->memory_ppm = profile_memory_ppm(request->engine, request->ranks);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* vLLM, get_pp_indices (vllm/distributed/utils.py): equal parts; what is left over goes one each to the stages before
   the last, from behind. */
static int64_t vllm_stage_layers(int64_t layers, int64_t stages, int64_t stage)
{
    int64_t rest = layers % stages, from_behind = stages - stage;
    return layers / stages + (from_behind >= 2 && from_behind < rest + 2 ? 1 : 0);
}

/* llama.cpp, load_tensors (src/llama-model.cpp, --split-mode layer, everything offloaded): layer i of n goes to the
   first device whose share ends beyond i / (n + 1), the output being layer n; shares are equal where free memory is. */
static int64_t llamacpp_stage_layers(int64_t layers, int64_t stages, int64_t stage)
{
    int64_t first = (stage * (layers + 1) + stages - 1) / stages,
            end = ((stage + 1) * (layers + 1) + stages - 1) / stages;
    return least(end, layers) - least(first, layers);
}

static int64_t stage_depth(const struct plan_request *request, int64_t stage)
{
    if (request->stage_layers)
        return request->stage_layers[stage];
    int64_t layers = request->shape->layer_count;
    return plan_is_llamacpp(request->engine) ? llamacpp_stage_layers(layers, request->stages, stage)
                                             : vllm_stage_layers(layers, request->stages, stage);
}

const char *plan_stage_rule(const struct plan_request *request)
{
    return request->stage_layers               ? "as given"
           : plan_is_llamacpp(request->engine) ? "as llama.cpp does on equal devices (--split-mode layer)"
           : plan_is_torch(request->engine)
               ? "equal parts; accelerate's device_map weighs bytes, so give --pp its own division"
               : "as vLLM does";
}

enum status plan_lay_out_stages(struct plan *plan, struct error *error)
{
    const struct plan_request *request = &plan->request;
    int64_t layers = request->shape->layer_count, first = 0;
    if (request->stages > layers)
        return error_set(error, STATUS_INPUT, "--pp: %lld stages for %lld layers", (long long)request->stages,
                         (long long)layers);
    for (int64_t s = 0; s < request->stages; s++) {
        plan->stages[s].first = first;
        first += stage_depth(request, s);
        plan->stages[s].end = first;
    }
    if (first != layers)
        return error_set(error, STATUS_INPUT, "--pp: the stages have %lld layers, the model has %lld", (long long)first,
                         (long long)layers);
    if (request->prediction_layers) /* they follow the last layer */
        plan->stages[request->stages - 1].end += request->shape->prediction_layers;
    return STATUS_OK;
}

/* llama.cpp's --split-mode layer and transformers' device_map give a device whole layers; their other ways of sharing
   (rows, tensors, tp_plan) are not planned. vLLM and SGLang assert that ranks divide the query heads, and that KV heads
   and ranks divide one another. */
enum status plan_check_ranks(const struct plan_request *request, struct error *error)
{
    const struct shape *shape = request->shape;
    if (request->ranks > 1 && (plan_is_llamacpp(request->engine) || plan_is_torch(request->engine)))
        return error_set(
            error, STATUS_INPUT,
            "--tp: %s is planned with whole layers on each device, not with ranks that share them; say --pp "
            "%lld",
            profile_of(request->engine)->name, (long long)request->ranks);
    for (int64_t i = 0; i < shape->layer_count; i++) {
        const struct layer_shape *layer = &shape->layers[i];
        if (layer->kind == LAYER_STATE)
            continue;
        if (layer->query_heads % request->ranks != 0)
            return error_set(error, STATUS_INPUT, "--tp: %lld ranks do not divide the %lld query heads of %s",
                             (long long)request->ranks, (long long)layer->query_heads, shape->name);
        if (layer->kind != LAYER_LATENT && layer->kv_heads % request->ranks != 0 &&
            request->ranks % layer->kv_heads != 0)
            return error_set(error, STATUS_INPUT,
                             "--tp: %lld ranks and the %lld KV heads of %s do not divide one another",
                             (long long)request->ranks, (long long)layer->kv_heads, shape->name);
    }
    return STATUS_OK;
}
