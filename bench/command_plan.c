/* kvlab plan: will it fit, and if not, what would? From a config alone. */
#include "bench/command_plan.h"
#include "bench/commands.h"
#include "bench/harness/option_table.h"
#include "bench/harness/session.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plan_arguments {
    const char *model, *card, *dtype, *kv_dtype, *k_dtype, *v_dtype, *state_dtype, *pp, *memory_fraction;
    uint64_t budget_bytes, overhead_bytes;
    int context, users, tp, block_size, batch_tokens, slots;
    enum engine engine;
    enum { KEEP_LAST, KEEP_ALL } logits;
    bool has_overhead, prediction_layers, json, check, help;
};

static const char *const logits_choices[] = {"last", "all", NULL};

#define FIELD(field) .offset = offsetof(struct plan_arguments, field)
#define GIVEN(field) .has_given = true, .given_offset = offsetof(struct plan_arguments, field)

static const struct option_row rows[] = {
    {"model", "NAME", OPTION_TEXT, FIELD(model), .help = "a name of `kvlab list models`, a folder, or a config.json"},
    {"card", "NAME", OPTION_TEXT, FIELD(card), .help = "a name of data/cards: rtx3060, a100-80gb, ..."},
    {"budget", "BYTES", OPTION_BYTES, FIELD(budget_bytes), .help = "instead of a card: so much memory, as in 24GB"},
    {"context", "TOKENS", OPTION_INT, FIELD(context), .minimum = 1, .maximum = INT_MAX,
     .help = "of each user, prompt and answer; 4096 unless given"},
    {"users", "N", OPTION_INT, FIELD(users), .minimum = 1, .maximum = INT_MAX, .help = "at a time; 1 unless given"},
    {"engine", "NAME", OPTION_CHOICE, FIELD(engine), .choices = engine_choices,
     .help = "whose rules: exact (the default), vllm, llamacpp, llamacpp-unified,\n"
             "                           sglang, transformers-dynamic, transformers-static"},
    {"dtype", "TYPE", OPTION_TEXT, FIELD(dtype), .help = "of the weights: bf16, fp8, q8_0, q4_k, ...; as published"},
    {"kv-dtype", "K[,V]", OPTION_TEXT, FIELD(kv_dtype), .help = "of the cache: bf16, fp8, int8, q8_0, ..., or two"},
    {"k-dtype", "TYPE", OPTION_TEXT, FIELD(k_dtype), .help = "of K alone"},
    {"v-dtype", "TYPE", OPTION_TEXT, FIELD(v_dtype), .help = "of V alone"},
    {"state-dtype", "TYPE", OPTION_TEXT, FIELD(state_dtype), .help = "of the states of recurrent layers"},
    {"tp", "N", OPTION_INT, FIELD(tp), .minimum = 1, .maximum = 4096, .help = "devices that share each layer"},
    {"pp", "N", OPTION_TEXT, FIELD(pp), .help = "devices that share the layers, or layers of each: 20,22,22,16"},
    {"memory-fraction", "F", OPTION_TEXT, FIELD(memory_fraction),
     .help = "of the memory that the engine uses; vllm 0.9, sglang 0.88 unless given"},
    {"block-size", "TOKENS", OPTION_INT, FIELD(block_size), .minimum = 1, .maximum = 65536,
     .help = "of a block, page or padding; the engine's unless given"},
    {"batch-tokens", "N", OPTION_INT, FIELD(batch_tokens), .minimum = 1, .maximum = INT_MAX,
     .help = "most tokens of one step; the engine's unless given"},
    {"slots", "N", OPTION_INT, FIELD(slots), .minimum = 1, .maximum = INT_MAX,
     .help = "most sequences at a time; the engine's unless given"},
    {"logits", "last|all", OPTION_CHOICE, FIELD(logits), .choices = logits_choices,
     .help = "kept of each sequence's last position (the default), or of every one"},
    {"prediction-layers", NULL, OPTION_FLAG, FIELD(prediction_layers),
     .help = "load the model's extra prediction layers, with their cache"},
    {"overhead", "BYTES", OPTION_BYTES, FIELD(overhead_bytes), GIVEN(has_overhead),
     .help = "runtime and allocator, as you measured it"},
    {"json", NULL, OPTION_FLAG, FIELD(json), .help = "one JSON document instead of text"},
    {"check", NULL, OPTION_FLAG, FIELD(check), .help = "exit with status 1 where it does not fit"},
    {"help", NULL, OPTION_FLAG, FIELD(help), .help = "this text"},
    {0},
};

static enum status optional_type(const struct plan_type **type, const char *name, const char *option, bool for_cache,
                                 struct error *error)
{
    return name ? plan_type_find(type, name, option, for_cache, error) : STATUS_OK;
}

/* --kv-dtype is one type, or K's and V's. */
static enum status read_kv_types(struct plan_request *request, const struct plan_arguments *arguments,
                                 struct error *error)
{
    char k[32];
    const char *both = arguments->kv_dtype, *comma = both ? strchr(both, ',') : NULL;
    if (both) {
        snprintf(k, sizeof k, "%.*s", (int)(comma && comma - both < 31 ? comma - both : 31), both);
        if (optional_type(&request->k_type, k, "kv-dtype", true, error) != STATUS_OK ||
            optional_type(&request->v_type, comma ? comma + 1 : k, "kv-dtype", true, error) != STATUS_OK)
            return error->status;
    }
    if (optional_type(&request->k_type, arguments->k_dtype, "k-dtype", true, error) != STATUS_OK ||
        optional_type(&request->v_type, arguments->v_dtype, "v-dtype", true, error) != STATUS_OK)
        return error->status;
    if (arguments->v_dtype && !request->k_type)
        return error_set(error, STATUS_INPUT, "--v-dtype: give K's type too, with --k-dtype or --kv-dtype");
    return STATUS_OK;
}

/* --pp 4, or --pp 20,22,22,16. A list of settings this is not: equal depths count. */
static enum status read_stages(struct plan_request *request, const char *text, int64_t layers[PLAN_MAX_STAGES],
                               struct error *error)
{
    request->stages = 1;
    if (!text)
        return STATUS_OK;
    if (!strchr(text, ','))
        return int_parse(&request->stages, text, "pp", 1, PLAN_MAX_STAGES, error);
    request->stages = 0;
    request->stage_layers = layers;
    for (const char *at = text;; at++) {
        char piece[24];
        size_t length = strcspn(at, ",");
        if (request->stages == PLAN_MAX_STAGES)
            return error_set(error, STATUS_INPUT, "--pp: more than %d stages", PLAN_MAX_STAGES);
        snprintf(piece, sizeof piece, "%.*s", (int)(length < 23 ? length : 23), at);
        if (int_parse(&layers[request->stages++], piece, "pp", 1, 1 << 20, error) != STATUS_OK)
            return error->status;
        at += length;
        if (!*at)
            return STATUS_OK;
    }
}

/* --memory-fraction 0.855 is 855,000 parts per million, read digit by digit: nothing is rounded. 0 where not given. */
static enum status read_fraction(int64_t *ppm, const char *text, struct error *error)
{
    *ppm = 0;
    if (!text)
        return STATUS_OK;
    const char *at = text;
    int64_t value = 0, unit = PROFILE_WHOLE;
    for (; *at >= '0' && *at <= '9' && value <= PROFILE_WHOLE; at++)
        value = 10 * value + (*at - '0') * (int64_t)PROFILE_WHOLE;
    bool any = at > text;
    if (*at == '.')
        for (at++; *at >= '0' && *at <= '9' && (unit > 1 || *at == '0'); at++, any = true) {
            unit /= 10;
            value += unit * (*at - '0');
        }
    if (!any || *at || value < 1 || value > PROFILE_WHOLE)
        return error_set(error, STATUS_INPUT,
                         "--memory-fraction: '%.32s' must be more than 0 and at most 1, with at most six digits after "
                         "the point, as in 0.855",
                         text);
    *ppm = value;
    return STATUS_OK;
}

static enum status read_request(struct plan_request *request, const struct plan_arguments *arguments,
                                int64_t stage_layers[PLAN_MAX_STAGES], struct error *error)
{
    *request = (struct plan_request){.context = arguments->context,
                                     .users = arguments->users,
                                     .engine = arguments->engine,
                                     .ranks = arguments->tp,
                                     .block_size = arguments->block_size,
                                     .batch_tokens = arguments->batch_tokens,
                                     .slots = arguments->slots,
                                     .all_logits = arguments->logits == KEEP_ALL,
                                     .prediction_layers = arguments->prediction_layers,
                                     .has_overhead = arguments->has_overhead,
                                     .overhead_bytes = arguments->overhead_bytes};
    if (!arguments->model)
        return error_set(error, STATUS_INPUT, "plan: --model is missing; `kvlab list models` has names");
    if (!arguments->card == !arguments->budget_bytes)
        return error_set(error, STATUS_INPUT,
                         "plan: give either --card, as in --card rtx3060, or --budget, as in 24GB");
    if (read_fraction(&request->memory_ppm, arguments->memory_fraction, error) != STATUS_OK ||
        optional_type(&request->weight_type, arguments->dtype, "dtype", false, error) != STATUS_OK ||
        optional_type(&request->state_type, arguments->state_dtype, "state-dtype", true, error) != STATUS_OK ||
        read_kv_types(request, arguments, error) != STATUS_OK)
        return error->status;
    return read_stages(request, arguments->pp, stage_layers, error);
}

static enum status find_memory(struct plan_request *request, const struct plan_arguments *arguments, struct card *card,
                               struct error *error)
{
    char cards_dir[4096];
    request->memory_bytes = arguments->budget_bytes;
    if (!arguments->card)
        return STATUS_OK;
    snprintf(cards_dir, sizeof cards_dir, "%s/cards", config_data_dir());
    if (card_find(card, cards_dir, arguments->card, error) != STATUS_OK)
        return error->status;
    request->is_card = true;
    request->card_title = card->title;
    request->memory_bytes = card->memory_bytes;
    return STATUS_OK;
}

/* Cache types of less than the present bytes per token that the engine can store, largest first as listed. */
static void add_cache_ways(struct plan_view *view, struct plan *scratch)
{
    static const char *const smaller[] = {"bf16", "fp8", "int8", "q8_0", "q5_1", "q4_0"};
    const struct plan *plan = view->plan;
    for (size_t i = 0; i < sizeof smaller / sizeof smaller[0]; i++) {
        const struct plan_type *type;
        struct error error;
        if (plan_type_find(&type, smaller[i], "kv-dtype", true, &error) != STATUS_OK ||
            !plan_with_cache(scratch, plan, type) || scratch->token_bytes >= plan->token_bytes)
            continue;
        view->ways.caches[view->ways.cache_count++] =
            (struct way){type, scratch->stages[scratch->worst].bytes[PLAN_KV], scratch->fits, scratch->most_users,
                         scratch->longest_context};
    }
}

static void add_weight_ways(struct plan_view *view, struct plan *scratch)
{
    static const char *const smaller[] = {"bf16", "fp8", "q8_0", "q6_k", "q4_k"};
    const struct plan *plan = view->plan;
    uint64_t now = plan->stages[plan->worst].bytes[PLAN_WEIGHTS];
    for (size_t i = 0; i < sizeof smaller / sizeof smaller[0]; i++) {
        struct plan_request request = plan->request;
        struct error error;
        if (plan_type_find(&request.weight_type, smaller[i], "dtype", false, &error) != STATUS_OK ||
            plan_make(scratch, &request, &error) != STATUS_OK)
            continue;
        uint64_t bytes = scratch->stages[scratch->worst].bytes[PLAN_WEIGHTS];
        if (bytes < now)
            view->ways.weights[view->ways.weight_count++] =
                (struct way){request.weight_type, bytes, scratch->fits, scratch->most_users, scratch->longest_context};
    }
}

static uint64_t kv_bytes_at(struct plan *scratch, const struct plan *plan, int64_t context, int64_t users)
{
    struct plan_request request = plan->request;
    struct error error;
    request.context = context;
    request.users = users;
    if (context < 1 || users < 1 || plan_make(scratch, &request, &error) != STATUS_OK)
        return 0;
    return scratch->stages[scratch->worst].bytes[PLAN_KV];
}

enum status plan_find_ways(struct plan_view *view, struct error *error)
{
    const struct plan *plan = view->plan;
    struct plan *scratch = malloc(sizeof *scratch);
    if (!scratch)
        return error_set(error, STATUS_DEVICE, "plan: out of memory");
    view->ways.shorter_kv_bytes = kv_bytes_at(scratch, plan, plan->longest_context, plan->request.users);
    view->ways.fewer_kv_bytes = kv_bytes_at(scratch, plan, plan->request.context, plan->most_users);
    if (plan->limit != LIMIT_SLOTS)
        add_cache_ways(view, scratch);
    if (plan->limit == LIMIT_WEIGHTS)
        add_weight_ways(view, scratch);
    free(scratch);
    return STATUS_OK;
}

static enum status run(const struct plan_arguments *arguments, bool *fits, struct error *error)
{
    struct plan_request request;
    struct card card;
    struct shape shape = {0};
    int64_t stage_layers[PLAN_MAX_STAGES];
    char models_dir[4096];
    if (read_request(&request, arguments, stage_layers, error) != STATUS_OK ||
        find_memory(&request, arguments, &card, error) != STATUS_OK)
        return error->status;
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    struct plan *plan = malloc(sizeof *plan);
    enum status status = plan ? STATUS_OK : error_set(error, STATUS_DEVICE, "plan: out of memory");
    if (!status)
        status = shape_find(&shape, models_dir, arguments->model, error);
    request.shape = &shape;
    if (!status && request.prediction_layers && shape.prediction_layers == 0)
        status = error_set(error, STATUS_INPUT,
                           "--prediction-layers: the config of %s names none (num_nextn_predict_layers); what only the "
                           "weights hold is not planned",
                           shape.name);
    if (!status)
        status = plan_make(plan, &request, error);
    struct plan_view view = {.plan = plan, .shape = &shape, .card = arguments->card ? &card : NULL};
    if (!status)
        status = plan_find_ways(&view, error);
    if (!status) {
        *fits = plan->fits;
        if (arguments->json)
            plan_print_json(&view);
        else
            plan_print(&view);
    }
    shape_free(&shape);
    free(plan);
    return status;
}

int command_plan(int argc, char **argv)
{
    struct plan_arguments arguments = {.context = 4096, .users = 1, .tp = 1};
    struct error error = {0};
    bool fits = true;
    enum status status = option_table_parse(rows, &arguments, argc, argv, &error);
    if (!status && arguments.help) {
        puts("usage: kvlab plan --model NAME --card NAME|--budget BYTES [options]\n\n"
             "What a model takes at a context and a number of users, whether it fits, and what would: from its config\n"
             "alone. Exit status 0 whether it fits or not (the plan was made); with --check 1 where it does not.\n\n"
             "options:");
        option_table_help(rows);
        return 0;
    }
    if (!status)
        status = run(&arguments, &fits, &error);
    if (status)
        return session_fail(&error);
    return arguments.check && !fits ? STATUS_CHECK_FAILED : STATUS_OK;
}
