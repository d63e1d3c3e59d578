#include "engine/plan/plan.h"

#include "engine/plan/plan_count.h"

#include <string.h>

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

const char *plan_limit_name(enum plan_limit limit)
{
    static const char *const names[] = {"none", "weights", "kv", "logits", "slots", "runtime"};
    return names[limit];
}

static const struct plan_type *cache_type(const char *name)
{
    const struct plan_type *type = NULL;
    struct error error;
    plan_type_find(&type, name, "kv-dtype", true, &error);
    return type;
}

/* What the model computes in: the type asked for, where that is a plain one, else the published. */
static const char *working_type(const struct plan_request *request)
{
    const struct plan_type *type = request->weight_type;
    bool plain = type && type->block_values == 1 && type->block_bytes >= 2;
    return plain ? type->name : dtype_name(request->shape->torch_dtype);
}

static bool is_llamacpp(enum engine engine)
{
    return engine == ENGINE_LLAMACPP || engine == ENGINE_LLAMACPP_UNIFIED;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool is_torch(enum engine engine)
{
    return engine == ENGINE_TRANSFORMERS_DYNAMIC || engine == ENGINE_TRANSFORMERS_STATIC;
}

/* ---- defaults ---------------------------------------------------------------------------------------------------- */

/* Of the recurrence: llama.cpp keeps f32 (src/llama-model.cpp, create_memory), a gated delta rule's is f32 in
   transformers (modeling_qwen3_next.py), else the model's own type. */
static const struct plan_type *engine_state_type(const struct plan_request *request)
{
    bool f32 = is_llamacpp(request->engine) || (request->shape->f32_state && request->engine != ENGINE_VLLM);
    return cache_type(f32 ? "f32" : working_type(request));
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

static void resolve(struct plan_request *request)
{
    const struct profile *profile = profile_of(request->engine);
    /* Files in f32 are loaded in a type of two bytes (vllm/config/model.py, _resolve_auto_dtype; SGLang's
       model_config.py, _get_and_verify_dtype). */
    if (!request->weight_type && request->shape->torch_dtype == DTYPE_F32 &&
        (request->engine == ENGINE_VLLM || request->engine == ENGINE_SGLANG))
        request->weight_type = cache_type("bf16");
    if (!request->k_type) /* llama.cpp: type_k, type_v are f16 whatever the model (common/common.h) */
        request->k_type = cache_type(is_llamacpp(request->engine) ? "f16" : working_type(request));
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

/* ---- stages ------------------------------------------------------------------------------------------------------ */

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
    return is_llamacpp(request->engine) ? llamacpp_stage_layers(layers, request->stages, stage)
                                        : vllm_stage_layers(layers, request->stages, stage);
}

static const char *stage_rule(const struct plan_request *request)
{
    return request->stage_layers          ? "as given"
           : is_llamacpp(request->engine) ? "as llama.cpp does on equal devices (--split-mode layer)"
           : is_torch(request->engine)
               ? "equal parts; accelerate's device_map weighs bytes, so give --pp its own division"
               : "as vLLM does";
}

static enum status lay_out_stages(struct plan *plan, struct error *error)
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
static enum status check_ranks(const struct plan_request *request, struct error *error)
{
    const struct shape *shape = request->shape;
    if (request->ranks > 1 && (is_llamacpp(request->engine) || is_torch(request->engine)))
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

static struct kv_demand demand_of(const struct plan_request *request, const struct plan_stage *stage)
{
    return (struct kv_demand){.shape = request->shape,
                              .first = stage->first,
                              .end = stage->end,
                              .ranks = request->ranks,
                              .k_type = request->k_type,
                              .v_type = request->v_type,
                              .conv_type = cache_type(is_llamacpp(request->engine) ? "f32" : working_type(request)),
                              .state_type = request->state_type,
                              .engine = request->engine,
                              .block_size = request->block_size,
                              .batch_tokens = request->batch_tokens};
}

/* ---- the items --------------------------------------------------------------------------------------------------- */

static uint64_t working_bytes(const struct plan_request *request)
{
    return cache_type(working_type(request))->block_bytes;
}

/* Rows that one step passes through the layers: a whole prompt (of every user, where they are padded into one batch),
   or as many tokens as the engine takes at a time. */
static uint64_t rows_of(const struct plan_request *request, int64_t context, int64_t users, bool *overflow)
{
    uint64_t all = count_mul(overflow, (uint64_t)context, (uint64_t)users), most = (uint64_t)request->batch_tokens;
    if (is_torch(request->engine))
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
    if (is_llamacpp(request->engine)) {
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
    return CONTEXT_BYTES + (is_torch(request->engine) ? allocated / ALLOCATOR_SHARE : 0);
}

/* Rounded down; ppm <= PROFILE_WHOLE, so it cannot overflow. */
static uint64_t part_of(uint64_t bytes, int64_t ppm)
{
    return bytes / PROFILE_WHOLE * (uint64_t)ppm + bytes % PROFILE_WHOLE * (uint64_t)ppm / PROFILE_WHOLE;
}

/* SGLang's fraction holds weights and KV; activations live in the rest of the card (server_args.py,
   mem_fraction_static). The others count everything. */
static bool outside_fraction(const struct plan_request *request, enum plan_item item)
{
    return request->engine == ENGINE_SGLANG && (item == PLAN_LOGITS || item == PLAN_ACTIVATIONS);
}

static void weigh_stage(const struct plan *plan, struct plan_stage *stage, int64_t s, int64_t context, int64_t users,
                        bool *overflow)
{
    const struct plan_request *request = &plan->request;
    bool is_last = s == request->stages - 1;
    struct kv_demand demand = demand_of(request, stage);
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

/* ---- fits
 * ------------------------------------------------------------------------------------------------------------ */

/* The first item, in the order in which an engine takes them, with which the sum passes the memory. */
static enum plan_limit first_limit(const struct plan_request *request, const struct plan_stage *stage)
{
    static const struct {
        enum plan_item item;
        enum plan_limit limit;
    } order[] = {{PLAN_WEIGHTS, LIMIT_WEIGHTS},
                 {PLAN_RUNTIME, LIMIT_RUNTIME},
                 {PLAN_KV, LIMIT_KV},
                 {PLAN_LOGITS, LIMIT_LOGITS},
                 {PLAN_ACTIVATIONS, LIMIT_LOGITS}};
    uint64_t inside = 0, outside = 0;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        bool apart = outside_fraction(request, order[i].item);
        uint64_t *sum = apart ? &outside : &inside,
                 room = apart ? request->memory_bytes - stage->usable : stage->usable;
        if (__builtin_add_overflow(*sum, stage->bytes[order[i].item], sum) || *sum > room)
            return order[i].limit;
    }
    return LIMIT_NONE;
}

static void judge_stage(const struct plan_request *request, struct plan_stage *stage)
{
    uint64_t inside = 0;
    for (int item = 0; item < PLAN_ITEMS; item++)
        if (!outside_fraction(request, (enum plan_item)item))
            inside += stage->bytes[item]; /* their sum is at most stage->total, which did not overflow */
    stage->limit = first_limit(request, stage);
    stage->fits = stage->limit == LIMIT_NONE;
    stage->left = stage->fits ? stage->usable - inside : 0;
    if (!stage->fits && inside > stage->usable)
        stage->lacking = inside - stage->usable;
    else if (!stage->fits)
        stage->lacking = stage->total - inside - (request->memory_bytes - stage->usable);
    if (stage->bytes[PLAN_WEIGHTS] > request->memory_bytes)
        stage->weights_lacking = stage->bytes[PLAN_WEIGHTS] - request->memory_bytes;
    uint64_t others = inside - stage->bytes[PLAN_KV];
    stage->kv_room = others < stage->usable ? stage->usable - others : 0;
    if (stage->layout.block_bytes)
        stage->pool_blocks = stage->kv_room / stage->layout.block_bytes;
}

/* Does everything fit, on every stage? Nothing is written. */
static bool would_fit(const struct plan *plan, int64_t context, int64_t users)
{
    for (int64_t s = 0; s < plan->request.stages; s++) {
        struct plan_stage stage = plan->stages[s];
        bool overflow = false;
        weigh_stage(plan, &stage, s, context, users, &overflow);
        if (overflow || first_limit(&plan->request, &stage) != LIMIT_NONE)
            return false;
    }
    return true;
}

/* The largest value for which it fits, 0 where not even 1 does: needs grow with users and with the context. */
static int64_t largest(const struct plan *plan, bool of_users)
{
    int64_t low = 0, high = PLAN_MAX_COUNT, context = plan->request.context, users = plan->request.users;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (would_fit(plan, of_users ? context : middle, of_users ? middle : users))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* More users than may run at a time: no memory and no context helps. */
static bool lacks_slots(const struct plan_request *request)
{
    return request->slots > 0 && request->users > request->slots;
}

/* Where it fits: what the next users would run into. */
static enum plan_limit next_limit(const struct plan *plan)
{
    const struct plan_request *request = &plan->request;
    if (request->slots > 0 && plan->most_users >= request->slots)
        return LIMIT_SLOTS;
    for (int64_t s = 0; s < request->stages; s++) {
        struct plan_stage stage = plan->stages[s];
        bool overflow = false;
        weigh_stage(plan, &stage, s, request->context, plan->most_users + 1, &overflow);
        enum plan_limit limit = overflow ? LIMIT_KV : first_limit(request, &stage);
        if (limit == LIMIT_NONE)
            continue;
        /* The order of first_limit() names the last straw; the larger of what grows is the reason. */
        return stage.bytes[PLAN_LOGITS] + stage.bytes[PLAN_ACTIVATIONS] > stage.bytes[PLAN_KV] ? LIMIT_LOGITS
                                                                                               : LIMIT_KV;
    }
    return LIMIT_NONE;
}

/* ---- where the numbers come from
 * ------------------------------------------------------------------------------------- */

static void say_sources(struct plan *plan)
{
    const struct plan_request *request = &plan->request;
    plan->stage_rule = stage_rule(request);
    const struct shape *shape = request->shape;
    bool exact =
        !request->weight_type ? shape->published != PUBLISHED_FP8_BLOCKS : request->weight_type->block_bytes > 1;
    plan->source[PLAN_WEIGHTS] = request->weight_type ? "parameters of the config, in the type asked for or loaded"
                                 : shape->dtype_given ? "parameters of the config, in the type that was published"
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
        : is_torch(request->engine)
            ? "driver context, and a sixteenth for the caching allocator (data/lessons/anatomy.csv)"
            : "driver context (data/lessons/anatomy.csv)";
    plan->sure[PLAN_RUNTIME] = request->has_overhead ? "as given"
                               : !request->is_card   ? "exact"
                                                     : "measured once, on one RTX 3060; other cards hold more";
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static enum status too_many_bytes(const struct plan_request *request, struct error *error)
{
    return error_set(error, STATUS_INPUT,
                     "plan: %s with --context %lld and --users %lld takes more bytes than 64 bits count; ask for less",
                     request->shape->name, (long long)request->context, (long long)request->users);
}

static enum status weigh_all(struct plan *plan, struct error *error)
{
    const struct plan_request *request = &plan->request;
    bool overflow = false;
    plan->token_bytes = shape_token_bytes(request->shape, request->k_type, request->v_type, &overflow);
    plan->token_bytes_long = profile_has_windows(request->engine, request->shape)
                                 ? shape_token_bytes_long(request->shape, request->k_type, request->v_type, &overflow)
                                 : plan->token_bytes;
    plan->token_bytes_mha = shape_token_bytes_mha(request->shape, request->k_type, request->v_type, &overflow);
    struct kv_demand demand = demand_of(request, &plan->stages[0]);
    for (int64_t i = 0; i < request->shape->layer_count; i++)
        plan->state_bytes = count_add(&overflow, plan->state_bytes,
                                      layer_state_bytes(&request->shape->layers[i], demand.conv_type, demand.state_type,
                                                        1, is_torch(request->engine), &overflow));
    for (int64_t s = 0; s < request->stages; s++) {
        struct plan_stage *stage = &plan->stages[s];
        stage->usable = part_of(request->memory_bytes, request->memory_ppm);
        demand = demand_of(request, stage);
        if (profile_check(&demand, error) != STATUS_OK)
            return error->status;
        weigh_stage(plan, stage, s, request->context, request->users, &overflow);
        if (overflow || stage->total > INT64_MAX) /* JSON's integers are signed */
            return too_many_bytes(request, error);
        judge_stage(request, stage);
        const struct plan_stage *worst = &plan->stages[plan->worst];
        if (stage->lacking > worst->lacking || (stage->lacking == worst->lacking && stage->left < worst->left))
            plan->worst = s;
    }
    return STATUS_OK;
}

/* Memory comes first, then slots; where both do, the limit is what more users would hit. */
static void decide(struct plan *plan)
{
    const struct plan_request *request = &plan->request;
    bool memory_fits = true;
    for (int64_t s = 0; s < request->stages; s++)
        memory_fits = memory_fits && plan->stages[s].fits;
    int64_t most = largest(plan, true);
    plan->most_users = request->slots > 0 ? least(most, request->slots) : most;
    plan->longest_context = lacks_slots(request) ? 0 : largest(plan, false);
    plan->fits = memory_fits && !lacks_slots(request);
    plan->limit = !memory_fits ? plan->stages[plan->worst].limit : !plan->fits ? LIMIT_SLOTS : next_limit(plan);
}

enum status plan_make(struct plan *plan, const struct plan_request *request, struct error *error)
{
    *plan = (struct plan){.request = *request};
    resolve(&plan->request);
    request = &plan->request;
    if (plan_weights_check(request, error) != STATUS_OK || check_ranks(request, error) != STATUS_OK ||
        lay_out_stages(plan, error) != STATUS_OK || weigh_all(plan, error) != STATUS_OK)
        return error->status;
    decide(plan);
    plan->beyond_model = request->shape->max_context > 0 && request->context > request->shape->max_context;
    say_sources(plan);
    return STATUS_OK;
}

bool plan_with_cache(struct plan *plan, const struct plan *base, const struct plan_type *type)
{
    struct plan_request request = base->request;
    struct error error;
    request.k_type = request.v_type = type;
    return plan_make(plan, &request, &error) == STATUS_OK;
}
