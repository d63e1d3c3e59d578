/* The bytes of a plan's items on one device, and where each number comes from. */
#include "engine/plan/plan_count.h"
#include "engine/plan/plan_parts.h"

/* What a process holds on a card before it allocates anything: driver_mib of the moment "initialised" in
   data/lessons/anatomy.csv (one framework on one RTX 3060). */
static const uint64_t CONTEXT_BYTES = 102 * (uint64_t)1048576;
/* What a caching allocator holds beyond what is allocated: 3,134.0 of 2,945.3 MiB there, a sixteenth more. */
enum { ALLOCATOR_SHARE = 16 };

const char *plan_item_name(enum plan_item item)
{
    static const char *const names[PLAN_ITEMS] = {"weights", "kv", "logits", "activations", "runtime"};
    return names[item];
}

struct kv_demand plan_demand(const struct plan_request *request, const struct plan_stage *stage)
{
    return (struct kv_demand){
        .shape = request->shape,
        .first = stage->first,
        .end = stage->end,
        .ranks = request->ranks,
        .k_type = request->k_type,
        .v_type = request->v_type,
        .conv_type = plan_cache_type(plan_is_llamacpp(request->engine) ? "f32" : plan_working_type(request)),
        .state_type = request->state_type,
        .engine = request->engine,
        .block_size = request->block_size,
        .batch_tokens = request->batch_tokens};
}

static uint64_t working_bytes(const struct plan_request *request)
{
    return plan_cache_type(plan_working_type(request))->block_bytes;
}

/* Rows that one step passes through the layers: a whole prompt (of every user, where they are padded into one batch),
   or as many tokens as the engine takes at a time. */
static uint64_t rows_of(const struct plan_request *request, int64_t context, int64_t users, bool *overflow)
{
    uint64_t all = count_mul(overflow, (uint64_t)context, (uint64_t)users), most = (uint64_t)request->batch_tokens;
    if (plan_is_torch(request->engine))
        return all;
    if (!most)
        most = (uint64_t)(context > users ? context : users);
    return all < most ? all : most;
}

/* positions x vocabulary x bytes. exact: kvlab's own forward pass, in the working type. transformers: the last position
   of each sequence, and its f32 copy (generation/utils.py, .to(dtype=torch.float32)). vLLM: as many sequences as may
   run, sampled in f32 (v1/sample/sampler.py). llama.cpp: the graph is reserved for logits of a whole micro-batch in f32
   (llama-context.cpp, graph_reserve). SGLang: the sequences of a step, and f32 copies. */
static uint64_t logits_bytes(const struct plan_request *request, int64_t context, int64_t users, bool *overflow)
{
    uint64_t rows = rows_of(request, context, users, overflow), value = working_bytes(request);
    uint64_t positions = request->all_logits ? rows : (uint64_t)users;
    if (request->engine == ENGINE_VLLM && !request->all_logits)
        positions = (uint64_t)request->slots < (uint64_t)request->batch_tokens ? (uint64_t)request->slots
                                                                               : (uint64_t)request->batch_tokens;
    if (plan_is_llamacpp(request->engine)) {
        positions = (uint64_t)request->batch_tokens;
        value = 4;
    } else if (request->engine != ENGINE_EXACT) {
        value += 4;
    }
    return count_mul(overflow, count_mul(overflow, positions, (uint64_t)request->shape->vocab_size), value);
}

/* What a layer holds at its widest, per row: the residual and its norm, q, k, v and the attention's output, the MLP's
   two inner vectors. Engines fuse some and keep others longer: an estimate. */
static uint64_t activation_bytes(const struct plan_request *request, int64_t context, int64_t users, bool *overflow)
{
    const struct shape *shape = request->shape;
    uint64_t ranks = (uint64_t)request->ranks, q = 0, kv = 0;
    for (int64_t i = 0; i < shape->layer_count; i++) {
        const struct layer_shape *layer = &shape->layers[i];
        uint64_t width = (uint64_t)layer->query_heads * (uint64_t)(layer->k_dim + layer->v_dim);
        q = width > q ? width : q;
        width = (uint64_t)layer->kv_heads * (uint64_t)(layer->k_dim + layer->v_dim);
        kv = width > kv ? width : kv;
    }
    uint64_t inner = count_add(overflow, count_add(overflow, q, kv), 2 * (uint64_t)shape->widest_mlp);
    uint64_t row = count_add(overflow, 2 * (uint64_t)shape->hidden_size, count_units(inner, ranks));
    return count_mul(overflow, count_mul(overflow, rows_of(request, context, users, overflow), row),
                     working_bytes(request));
}

/* Runtime and allocator. A budget bounds what is allocated, so it holds nothing else. */
static uint64_t runtime_bytes(const struct plan_request *request, uint64_t allocated)
{
    if (request->has_overhead)
        return request->overhead_bytes;
    if (!request->is_card)
        return 0;
    return CONTEXT_BYTES + (plan_is_torch(request->engine) ? allocated / ALLOCATOR_SHARE : 0);
}

/* SGLang's fraction holds weights and KV; activations live in the rest of the card (server_args.py,
   mem_fraction_static). The others count everything. */
bool plan_outside_fraction(const struct plan_request *request, enum plan_item item)
{
    return request->engine == ENGINE_SGLANG && (item == PLAN_LOGITS || item == PLAN_ACTIVATIONS);
}

void plan_weigh_stage(const struct plan *plan, struct plan_stage *stage, int64_t s, int64_t context, int64_t users,
                      bool *overflow)
{
    const struct plan_request *request = &plan->request;
    bool is_last = s == request->stages - 1;
    struct kv_demand demand = plan_demand(request, stage);
    uint64_t *bytes = stage->bytes;
    bytes[PLAN_WEIGHTS] = plan_weight_bytes(request, stage->first, stage->end, s == 0, is_last, overflow);
    bytes[PLAN_KV] = profile_kv_bytes(&demand, context, users, &stage->layout, overflow);
    bytes[PLAN_LOGITS] = is_last ? logits_bytes(request, context, users, overflow) : 0;
    bytes[PLAN_ACTIVATIONS] = activation_bytes(request, context, users, overflow);
    uint64_t allocated = 0;
    for (int item = 0; item < PLAN_RUNTIME; item++)
        allocated = count_add(overflow, allocated, bytes[item]);
    bytes[PLAN_RUNTIME] = runtime_bytes(request, allocated);
    stage->total = count_add(overflow, allocated, bytes[PLAN_RUNTIME]);
}

void plan_say_sources(struct plan *plan)
{
    const struct plan_request *request = &plan->request;
    const struct shape *shape = request->shape;
    plan->stage_rule = plan_stage_rule(request);
    bool exact =
        !request->weight_type ? shape->published != PUBLISHED_FP8_BLOCKS : request->weight_type->block_bytes > 1;
    plan->source[PLAN_WEIGHTS] =
        plan_is_llamacpp(request->engine)
            ? "parameters of the config, but for the input embedding, which stays in the host's memory"
        : request->weight_type ? "parameters of the config, in the type asked for or loaded"
        : shape->dtype_given   ? "parameters of the config, in the type that was published"
                               : "parameters of the config; it names no type, bf16 is assumed";
    plan->sure[PLAN_WEIGHTS] = shape->not_counted   ? "too low: the config does not describe all of the model"
                               : request->ranks > 1 ? "a rank's share; uneven divisions and padding not counted"
                               : exact && (!request->weight_type || request->weight_type->block_values == 1)
                                   ? "exact"
                                   : "within some percent: files mix types, scales are counted roughly";
    plan->source[PLAN_KV] = profile_of(request->engine)->kv_rule;
    plan->sure[PLAN_KV] = plan->state_bytes && request->engine != ENGINE_EXACT
                              ? "exact for K and V; the type of states differs between versions"
                              : "exact";
    plan->source[PLAN_LOGITS] = request->all_logits ? "all positions of a step x vocabulary x bytes"
                                                    : "positions that the engine keeps x vocabulary x bytes";
    plan->sure[PLAN_LOGITS] = request->engine == ENGINE_EXACT ? "exact" : "an upper estimate";
    plan->source[PLAN_ACTIVATIONS] = "rows of a step x the widest layer's vectors";
    plan->sure[PLAN_ACTIVATIONS] = "an estimate: engines fuse some and keep others longer";
    plan->source[PLAN_RUNTIME] =
        request->has_overhead ? "--overhead"
        : !request->is_card   ? "a budget bounds what is allocated"
        : plan_is_torch(request->engine)
            ? "driver context, and a sixteenth for the caching allocator (data/lessons/anatomy.csv)"
            : "driver context (data/lessons/anatomy.csv)";
    plan->sure[PLAN_RUNTIME] = request->has_overhead ? "as given"
                               : !request->is_card   ? "exact"
                                                     : "measured once, on one RTX 3060; other cards hold more";
}
