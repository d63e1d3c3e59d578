/* A plan as text. Bytes are whole numbers; beside them GiB (2^30) and GB (10^9), never one for the other. */
#include "bench/command_plan.h"
#include "bench/harness/output.h"

#include <inttypes.h>
#include <stdio.h>

struct text {
    char at[64];
};

/* 12,490,457,088 */
static struct text grouped(uint64_t number)
{
    struct text digits, text;
    snprintf(digits.at, sizeof digits.at, "%" PRIu64, number);
    print_separated(text.at, sizeof text.at, digits.at);
    return text;
}

/* "112.0 MiB, 117.4 MB", in the units that fit */
static struct text both(uint64_t bytes)
{
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB"};
    double b = (double)bytes / 1024, d = (double)bytes / 1000;
    int unit = 0;
    while (unit < 4 && b >= 1024) {
        unit++;
        b /= 1024;
        d /= 1000;
    }
    struct text text;
    snprintf(text.at, sizeof text.at, "%.2f %s, %.2f %s", b, binary[unit], d, decimal[unit]);
    return text;
}

#define GROUPED(number) grouped((uint64_t)(number)).at
#define BOTH(bytes)     both(bytes).at

static void print_memory(const struct plan_view *view)
{
    const struct plan_request *request = &view->plan->request;
    printf("memory       %16s bytes = %s", GROUPED(request->memory_bytes), BOTH(request->memory_bytes));
    if (view->card)
        printf(", %s: %s\n", view->card->memory_reported ? "reported" : "nominal", view->card->memory_source);
    else
        printf(", as given\n");
    if (request->memory_ppm != PROFILE_WHOLE)
        printf("  usable     %16s bytes = %s, %.10g%% for the engine\n", GROUPED(view->plan->stages[0].usable),
               BOTH(view->plan->stages[0].usable), (double)request->memory_ppm / 10000);
    if (view->card)
        printf("  rates      %.1f GB/s, %.1f TFLOP/s in bf16, published: %s\n", (double)view->card->bandwidth / 1e9,
               (double)view->card->flops / 1e12, view->card->rates_source);
}

static void print_model(const struct plan_view *view)
{
    const struct shape *shape = view->shape;
    char layers[96];
    printf("parameters   %16s", GROUPED(shape->total));
    if (shape->experts)
        printf(", of which a token uses %s (%" PRId64 " of %" PRId64 " experts)", GROUPED(shape->active),
               shape->experts_per_token, shape->experts);
    if (shape->parts.prediction)
        printf(", and %s in prediction layers%s", GROUPED(shape->parts.prediction),
               view->plan->request.prediction_layers ? "" : " that are not loaded");
    printf("\nlayers       %s\n", shape_layers_text(shape, layers, sizeof layers));
    if (shape->not_counted)
        printf("  not counted: %s, which the config does not describe\n", shape->not_counted);
}

static void print_token(const struct plan_view *view)
{
    const struct plan *plan = view->plan;
    const struct plan_request *request = &plan->request;
    printf("per token    %16s bytes = %s (K %s, V %s)\n", GROUPED(plan->token_bytes), BOTH(plan->token_bytes),
           request->k_type->name, request->v_type->name);
    if (plan->token_bytes_long != plan->token_bytes)
        printf("  later      %16s bytes, once every window is full\n", GROUPED(plan->token_bytes_long));
    if (plan->token_bytes)
        printf("  unshared   %16s bytes if every query head had its own K and V: %.2f times as much\n",
               GROUPED(plan->token_bytes_mha), (double)plan->token_bytes_mha / (double)plan->token_bytes);
    if (plan->state_bytes)
        printf("per sequence %16s bytes = %s of states, whatever the context (%s)\n", GROUPED(plan->state_bytes),
               BOTH(plan->state_bytes), request->state_type->name);
}

static void print_items(const struct plan *plan)
{
    const struct plan_stage *stage = &plan->stages[plan->worst];
    static const char *const names[PLAN_ITEMS] = {"weights", "KV", "logits", "activations", "runtime"};
    printf("\n%-12s %16s\n", plan->request.ranks * plan->request.stages > 1 ? "fullest" : "item", "bytes");
    for (int item = 0; item < PLAN_ITEMS; item++)
        printf("%-12s %16s  %s; %s\n%30s from: %s\n", names[item], GROUPED(stage->bytes[item]),
               BOTH(stage->bytes[item]), plan->sure[item], "", plan->source[item]);
    printf("%-12s %16s  %s\n", "sum", GROUPED(stage->total), BOTH(stage->total));
}

static void print_layout(const struct plan *plan)
{
    const struct plan_request *request = &plan->request;
    const struct plan_stage *stage = &plan->stages[plan->worst];
    const struct kv_layout *layout = &stage->layout;
    if (request->engine == ENGINE_VLLM && layout->blocks_per_sequence && !layout->block_tokens) {
        printf("blocks       %16s of a sequence's states, %s bytes each, fit; one is never handed out\n",
               GROUPED(stage->pool_blocks), GROUPED(layout->block_bytes));
    } else if (request->engine == ENGINE_VLLM && layout->blocks_per_sequence) {
        uint64_t tokens = layout->groups > 0 ? stage->pool_blocks / (uint64_t)layout->groups * layout->block_tokens : 0;
        printf("blocks       %16s of %s tokens and %s bytes fit: capacity %s tokens; a sequence takes %s, so "
               "concurrency %.2f\n",
               GROUPED(stage->pool_blocks), GROUPED(layout->block_tokens), GROUPED(layout->block_bytes),
               GROUPED(tokens), GROUPED(layout->blocks_per_sequence),
               (double)stage->pool_blocks / (double)layout->blocks_per_sequence);
        if (layout->groups > 1)
            printf("  groups     %16" PRId64 " of layers, a block table each\n", layout->groups);
    } else if (layout->window_cells || layout->cells_per_sequence != (uint64_t)request->context) {
        printf("cells        %16s", GROUPED(layout->cells_per_sequence));
        if (layout->window_cells)
            printf(", windowed layers %s", GROUPED(layout->window_cells));
        printf(request->engine == ENGINE_LLAMACPP_UNIFIED ? " for all sequences\n" : " per sequence\n");
    }
}

static void print_stages(const struct plan *plan)
{
    const struct plan_request *request = &plan->request;
    if (request->ranks * request->stages == 1)
        return;
    printf("\n%" PRId64 " devices, as %" PRId64 " x %" PRId64 " (stages x ranks); one rank of each stage\n",
           request->ranks * request->stages, request->stages, request->ranks);
    if (request->stages > 1)
        printf("layers divided: %s\n", plan->stage_rule);
    printf("%-6s %-9s %16s %16s %16s %16s\n", "stage", "layers", "weights", "KV", "sum", "left");
    for (int64_t s = 0; s < request->stages; s++) {
        const struct plan_stage *stage = &plan->stages[s];
        char layers[48], left[80];
        if (stage->end > stage->first)
            snprintf(layers, sizeof layers, "%" PRId64 "-%" PRId64, stage->first, stage->end - 1);
        else
            snprintf(layers, sizeof layers, "none");
        snprintf(left, sizeof left, "%s%s", stage->fits ? "" : "-",
                 GROUPED(stage->fits ? stage->left : stage->lacking));
        printf("%-6" PRId64 " %-9s %16s %16s %16s %16s\n", s, layers, GROUPED(stage->bytes[PLAN_WEIGHTS]),
               GROUPED(stage->bytes[PLAN_KV]), GROUPED(stage->total), left);
    }
}

static const char *limit_text(enum plan_limit limit)
{
    static const char *const texts[] = {"nothing", "weights", "KV", "logits-sized temporaries", "slots", "the runtime"};
    return texts[limit];
}

static void print_verdict(const struct plan *plan)
{
    const struct plan_request *request = &plan->request;
    const struct plan_stage *stage = &plan->stages[plan->worst];
    if (plan->fits)
        printf("\nFITS, with %s bytes left (%s). More users would first run into: %s.\n", GROUPED(stage->left),
               BOTH(stage->left), limit_text(plan->limit));
    else if (plan->limit == LIMIT_SLOTS)
        printf("\nDOES NOT FIT: %s users, %s slots; the others wait. The memory would do.\n", GROUPED(request->users),
               GROUPED(request->slots));
    else
        printf("\nDOES NOT FIT: lacks %s bytes (%s). First limit: %s.\n", GROUPED(stage->lacking), BOTH(stage->lacking),
               limit_text(plan->limit));
    if (stage->weights_lacking)
        printf("The weights alone lack %s bytes (%s).\n", GROUPED(stage->weights_lacking),
               BOTH(stage->weights_lacking));
    printf("Most users at %s tokens: %s. Longest context for %s user%s: ", GROUPED(request->context),
           GROUPED(plan->most_users), GROUPED(request->users), request->users == 1 ? "" : "s");
    if (plan->longest_context == PLAN_MAX_COUNT)
        puts("any; memory sets no limit.");
    else
        printf("%s tokens.\n", GROUPED(plan->longest_context));
    if (request->shape->max_context && plan->longest_context > request->shape->max_context)
        printf("The model was made for %s tokens (max_position_embeddings).\n", GROUPED(request->shape->max_context));
    if (plan->beyond_model)
        printf("Note: %s tokens are more than the model was made for.\n", GROUPED(request->context));
}

static void print_way(const struct way *way, const char *item)
{
    printf("      %-6s %16s bytes of %s: %s; most users %s, longest context %s\n", way->type->name, GROUPED(way->bytes),
           item, way->fits ? "fits" : "does not fit", GROUPED(way->most_users),
           way->longest_context == PLAN_MAX_COUNT ? "without limit" : GROUPED(way->longest_context));
}

static void print_ways(const struct plan_view *view)
{
    const struct plan *plan = view->plan;
    const struct ways_out *ways = &view->ways;
    if (plan->fits)
        return;
    printf("\nWays out\n");
    if (plan->limit == LIMIT_SLOTS) {
        printf(
            "  Only more slots (--slots %s) or fewer users (%s) help: a shorter context or a smaller cache type frees\n"
            "  memory, which is not what lacks.\n",
            GROUPED(plan->request.users), GROUPED(plan->most_users));
        return;
    }
    if (plan->request.slots > 0 && plan->request.users > plan->request.slots)
        printf("  Beside memory, slots lack: whatever else changes, %s users need --slots %s, or %s of them wait.\n",
               GROUPED(plan->request.users), GROUPED(plan->request.users),
               GROUPED(plan->request.users - plan->request.slots));
    if (plan->limit == LIMIT_WEIGHTS)
        printf("  A shorter context, fewer users or a smaller cache type do not help: they shrink the cache only.\n");
    if (plan->longest_context > 0)
        printf("  1. shorter context: %s tokens, %s bytes of KV\n", GROUPED(plan->longest_context),
               GROUPED(ways->shorter_kv_bytes));
    else if (plan->limit != LIMIT_WEIGHTS)
        printf("  1. shorter context: none is short enough for %s users\n", GROUPED(plan->request.users));
    if (plan->most_users > 0)
        printf("  2. fewer users: %s, %s bytes of KV\n", GROUPED(plan->most_users), GROUPED(ways->fewer_kv_bytes));
    else if (plan->limit != LIMIT_WEIGHTS)
        printf("  2. fewer users: not even one fits at %s tokens\n", GROUPED(plan->request.context));
    if (plan->limit != LIMIT_WEIGHTS)
        printf("  3. smaller cache type:%s\n", ways->cache_count ? "" : " the engine has none");
    for (int i = 0; i < ways->cache_count && plan->limit != LIMIT_WEIGHTS; i++)
        print_way(&ways->caches[i], "KV");
    if (ways->weight_count)
        printf("  Smaller weights, or more devices (--tp, --pp), would:\n");
    for (int i = 0; i < ways->weight_count; i++)
        print_way(&ways->weights[i], "weights");
}

void plan_print(const struct plan_view *view)
{
    const struct plan_request *request = &view->plan->request;
    printf("%s on %s: %s tokens x %s user%s, engine %s\n\n", view->shape->name,
           view->card ? view->card->title : "a budget", GROUPED(request->context), GROUPED(request->users),
           request->users == 1 ? "" : "s", profile_of(request->engine)->name);
    print_memory(view);
    print_model(view);
    print_token(view);
    print_items(view->plan);
    print_layout(view->plan);
    print_stages(view->plan);
    print_verdict(view->plan);
    print_ways(view);
}
