/* What fits, what is the most that does, and what is in the way. */
#include "engine/plan/plan_count.h"
#include "engine/plan/plan_parts.h"

const char *plan_limit_name(enum plan_limit limit)
{
    static const char *const names[] = {"none", "weights", "kv", "logits", "slots", "runtime"};
    return names[limit];
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rounded down; ppm <= PROFILE_WHOLE, so it cannot overflow. */
static uint64_t part_of(uint64_t bytes, int64_t ppm)
{
    return bytes / PROFILE_WHOLE * (uint64_t)ppm + bytes % PROFILE_WHOLE * (uint64_t)ppm / PROFILE_WHOLE;
}

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
        bool apart = plan_outside_fraction(request, order[i].item);
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
        if (!plan_outside_fraction(request, (enum plan_item)item))
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
        plan_weigh_stage(plan, &stage, s, context, users, &overflow);
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
        plan_weigh_stage(plan, &stage, s, request->context, plan->most_users + 1, &overflow);
        enum plan_limit limit = overflow ? LIMIT_KV : first_limit(request, &stage);
        if (limit == LIMIT_NONE)
            continue;
        /* The order of first_limit() names the last straw; the larger of what grows is the reason. */
        return stage.bytes[PLAN_LOGITS] + stage.bytes[PLAN_ACTIVATIONS] > stage.bytes[PLAN_KV] ? LIMIT_LOGITS
                                                                                               : LIMIT_KV;
    }
    return LIMIT_NONE;
}

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
    struct kv_demand demand = plan_demand(request, &plan->stages[0]);
    for (int64_t i = 0; i < request->shape->layer_count; i++)
        plan->state_bytes = count_add(&overflow, plan->state_bytes,
                                      layer_state_bytes(&request->shape->layers[i], demand.conv_type, demand.state_type,
                                                        1, plan_is_torch(request->engine), &overflow));
    for (int64_t s = 0; s < request->stages; s++) {
        struct plan_stage *stage = &plan->stages[s];
        stage->usable = part_of(request->memory_bytes, request->memory_ppm);
        demand = plan_demand(request, stage);
        if (profile_check(&demand, error) != STATUS_OK)
            return error->status;
        plan_weigh_stage(plan, stage, s, request->context, request->users, &overflow);
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
    plan_resolve(&plan->request);
    request = &plan->request;
    if (plan_weights_check(request, error) != STATUS_OK || plan_check_ranks(request, error) != STATUS_OK ||
        plan_lay_out_stages(plan, error) != STATUS_OK || weigh_all(plan, error) != STATUS_OK)
        return error->status;
    decide(plan);
    plan->beyond_model = request->shape->max_context > 0 && request->context > request->shape->max_context;
    plan_say_sources(plan);
    return STATUS_OK;
}

bool plan_with_cache(struct plan *plan, const struct plan *base, const struct plan_type *type)
{
    struct plan_request request = base->request;
    struct error error;
    request.k_type = request.v_type = type;
    return plan_make(plan, &request, &error) == STATUS_OK;
}
