/* capacity: how many sequences does a budget hold, and what stops the next one?

   Predicted: (budget - weights - workspace - logits of one prefill) / bytes that a policy takes for a sequence, or the
   slots that there are. Measured: the model's real allocations under a ledger with that budget, then one sequence after
   another until one is refused. Nothing is computed: weights are allocated and not filled, positions are given room and
   not stored, so that a machine smaller than the card can count as the card would. */
#include "bench/harness/prefilled.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A "12 GB" RTX 3060 by the CUDA runtime (the lessons' card). 256 slots: vLLM's usual max_num_seqs. */
#define DEFAULT_BUDGET UINT64_C(12490457088)
#define DEFAULT_SLOTS  "256"
enum { BLOCK_TOKENS = 16 };

static const struct column columns[] = {
    {"budget_bytes", COLUMN_INT, 0, true, "What the ledger may hold: --budget, or the bytes of a 12 GB card."},
    {"context", COLUMN_INT, 0, true, "Tokens that each sequence holds once it is admitted."},
    {"policy", COLUMN_TEXT, 0, true,
     "How the cache takes memory: exact (context tokens), reserved (reserved_tokens for every sequence), paged (blocks "
     "of 16 tokens out of a pool that takes all that is left)."},
    {"predicted_sequences", COLUMN_INT, 0, false,
     "Source formula: slots, or (budget - weights - workspace - logits) / bytes of a sequence, whichever is less."},
    {"measured_sequences", COLUMN_INT, 0, false, "Source ledger: sequences admitted before one was refused."},
    {"limit", COLUMN_TEXT, 0, false,
     "What refused the next one: kv (its cache), logits (those of its prefill), slots (none free), or weights (not "
     "even "
     "the weights and workspace fit)."},
    {"utilization_percent", COLUMN_REAL, 1, false,
     "Positions held * KV bytes per token, in percent of what is left of the budget beside weights and workspace."},
    {"logits_positions", COLUMN_TEXT, 0, true,
     "Logits that a prefill holds until it is done: of all positions, or of the last."},
    {"slots", COLUMN_INT, 0, true, "Most sequences at a time (--batch)."},
    {"reserved_tokens", COLUMN_INT, 0, true,
     "Longest sequence allowed for, the longest of --contexts: what the policy reserved takes for each."},
    {"predicted_limit", COLUMN_TEXT, 0, false, "Source formula: which limit comes first."},
    {"weights_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged weights (allocated, not filled)."},
    {"workspace_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged workspace."},
    {"logits_bytes", COLUMN_INT, 0, false, "Source formula: logits of one prefill, given back when it is done."},
    {"kv_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged kv once all sequences are admitted."},
    {"reserved_bytes", COLUMN_INT, 0, false,
     "Source reserved: what the ledger holds from the device then; what a real card must have beyond the ledger."},
    {"message", COLUMN_TEXT, 0, false, "What the refusal said."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

/* One row's setting. */
struct setting {
    enum kv_policy policy;
    int context, slots, longest;
    enum logits_positions logits;
};

static const char *positions_name(enum logits_positions positions)
{
    return positions == LOGITS_ALL ? "all" : "last";
}

static int blocks_for(int tokens)
{
    return (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

/* ---- the plan's arithmetic ---- */

struct plan {
    uint64_t weights, workspace, logits, sequence; /* bytes; of one sequence */
    int pool_blocks;                               /* paged */
    int64_t sequences;
    const char *limit;
};

static struct model_limits pass_limits(const struct setting *setting)
{
    return (struct model_limits){.max_rows = setting->slots > PREFILL_ROWS ? setting->slots : PREFILL_ROWS,
                                 .max_sequences = setting->slots,
                                 .max_blocks = setting->policy == KV_PAGED ? blocks_for(setting->longest) : 1};
}

/* Sequences that fit into `left` bytes while a prefill's logits are held; which of the two runs out. */
static void fit_sequences(struct plan *plan, uint64_t left)
{
    uint64_t with_logits = left > plan->logits ? (left - plan->logits) / plan->sequence : 0;
    bool one_more_cache = (with_logits + 1) * plan->sequence <= left;
    plan->sequences = (int64_t)with_logits;
    plan->limit = one_more_cache ? "logits" : "kv";
}

/* A pool takes what is left beside the logits, rounded down to blocks. */
static void fit_pool(struct plan *plan, uint64_t left, uint64_t block, int blocks_each)
{
    uint64_t blocks = left > plan->logits ? (left - plan->logits) / block : 0;
    plan->pool_blocks = blocks < INT32_MAX ? (int)blocks : INT32_MAX;
    plan->sequences = plan->pool_blocks / blocks_each;
    plan->limit = plan->pool_blocks == 0 && left >= block ? "logits" : "kv";
}

static struct plan predict(const struct bench *bench, const struct setting *setting)
{
    const struct config *config = &bench->config;
    struct model_limits limits = pass_limits(setting);
    int64_t positions = setting->logits == LOGITS_ALL ? setting->context : 1;
    int tokens = setting->policy == KV_EXACT ? setting->context : setting->longest;
    struct plan plan = {
        .weights = formula_weight_bytes(config, bench->dtype),
        .workspace = model_workspace_bytes(config, bench->device, &limits, bench->dtype, bench->kv_dtype),
        .logits = formula_logits_bytes(config, bench->dtype, positions),
        .sequence = formula_kv_bytes(config, bench->kv_dtype, tokens),
        .limit = "weights",
    };
    uint64_t budget = ledger_budget(bench->ledger), model = plan.weights + plan.workspace;
    if (model > budget)
        return plan;
    if (setting->policy == KV_PAGED)
        fit_pool(&plan, budget - model, formula_kv_bytes(config, bench->kv_dtype, BLOCK_TOKENS),
                 blocks_for(setting->context));
    else
        fit_sequences(&plan, budget - model);
    if (plan.sequences >= setting->slots) {
        plan.sequences = setting->slots;
        plan.limit = "slots";
    }
    return plan;
}

static void set_prediction(const struct bench *bench, struct results *results, const struct setting *setting,
                           const struct plan *plan)
{
    results_set_int(results, "budget_bytes", (int64_t)ledger_budget(bench->ledger));
    results_set_int(results, "context", setting->context);
    results_set_text(results, "policy", kv_policy_name(setting->policy));
    results_set_text(results, "logits_positions", positions_name(setting->logits));
    results_set_int(results, "slots", setting->slots);
    results_set_int(results, "reserved_tokens", setting->longest);
    results_set_int(results, "predicted_sequences", plan->sequences);
    results_set_text(results, "predicted_limit", plan->limit);
    results_set_int(results, "logits_bytes", (int64_t)plan->logits);
}

/* ---- admitting ---- */

struct outcome {
    int64_t sequences;
    uint64_t positions;
    const char *limit;
    struct error refusal;
};

/* Gives one sequence its cache, then holds the logits of its prefill. Status 3: refused, and outcome->limit says by
   what. */
static enum status admit(struct bench *bench, struct kv_cache *cache, const struct setting *setting,
                         struct outcome *outcome, struct error *error)
{
    int sequence;
    struct logits logits = {0};
    int64_t positions = setting->logits == LOGITS_ALL ? setting->context : 1;
    outcome->limit = outcome->sequences == setting->slots ? "slots" : "kv";
    if (kv_sequence_open(cache, &sequence, error) != STATUS_OK)
        return error->status;
    enum status status = kv_make_room(cache, sequence, setting->context, error);
    if (status == STATUS_OK) {
        outcome->limit = "logits";
        status = logits_init(&logits, bench->ledger, &bench->config, bench->dtype, positions, error);
        logits_free(&logits, bench->ledger);
    }
    if (status != STATUS_OK) {
        kv_sequence_close(cache, sequence);
        return status;
    }
    kv_advance(cache, sequence, setting->context);
    outcome->sequences++;
    outcome->positions += (uint64_t)setting->context;
    return STATUS_OK;
}

static enum status admit_all(struct bench *bench, const struct setting *setting, const struct plan *plan,
                             struct kv_cache **cache, struct outcome *outcome, struct error *error)
{
    struct kv_options options = {.policy = setting->policy,
                                 .dtype = bench->kv_dtype,
                                 .max_sequences = setting->slots,
                                 .block_size = BLOCK_TOKENS,
                                 .max_tokens = setting->longest,
                                 .pool_blocks = plan->pool_blocks};
    outcome->limit = plan->limit;
    if (setting->policy == KV_PAGED && plan->pool_blocks == 0)
        return error_set(error, STATUS_DEVICE, "no block of %d tokens fits beside weights, workspace and logits",
                         BLOCK_TOKENS);
    if (kv_open(cache, bench->ledger, &bench->config, &options, error) != STATUS_OK)
        return error->status;
    while (admit(bench, *cache, setting, outcome, error) == STATUS_OK)
        if (bench_interrupted())
            return error_set(error, STATUS_INTERRUPTED, "interrupted");
    return error->status;
}

static enum status record(const struct bench *bench, struct results *results, const struct setting *setting,
                          const struct plan *plan, const struct outcome *outcome, struct error *error)
{
    struct ledger_counts counts = ledger_counts(bench->ledger);
    double used = (double)formula_kv_bytes_per_token(&bench->config, bench->kv_dtype) * (double)outcome->positions;
    double left = (double)ledger_budget(bench->ledger) - (double)counts.live[LEDGER_WEIGHTS] -
                  (double)counts.live[LEDGER_WORKSPACE];
    set_prediction(bench, results, setting, plan);
    results_set_int(results, "measured_sequences", outcome->sequences);
    results_set_text(results, "limit", outcome->limit);
    results_set_real(results, "utilization_percent", left > 0.0 ? 100.0 * used / left : 0.0);
    results_set_int(results, "weights_bytes", (int64_t)counts.live[LEDGER_WEIGHTS]);
    results_set_int(results, "workspace_bytes", (int64_t)counts.live[LEDGER_WORKSPACE]);
    results_set_int(results, "kv_bytes", (int64_t)counts.live[LEDGER_KV]);
    results_set_int(results, "reserved_bytes", (int64_t)counts.reserved);
    results_set_text(results, "message", outcome->refusal.message);
    return results_end_row(results, error);
}

/* Weights, workspace, then sequences until a refusal, which is the measurement; anything else is an error. */
static enum status measure(struct bench *bench, struct results *results, const struct setting *setting,
                           struct error *error)
{
    struct plan plan = predict(bench, setting);
    struct outcome outcome = {.limit = "weights"};
    struct weights weights = {0};
    struct model model = {0};
    struct kv_cache *cache = NULL;
    struct model_limits limits = pass_limits(setting);
    struct error *refusal = &outcome.refusal;
    ledger_plan(bench->ledger, LEDGER_WORKSPACE, plan.workspace);
    enum status status = weights_unfilled(&weights, bench->ledger, &bench->config, bench->dtype, refusal);
    if (status == STATUS_OK)
        status = model_init(&model, bench->ledger, &bench->config, &weights, &limits, bench->kv_dtype, refusal);
    if (status == STATUS_OK)
        status = admit_all(bench, setting, &plan, &cache, &outcome, refusal);
    struct ledger_refusal refused = ledger_refusal(bench->ledger);
    if (status == STATUS_DEVICE && refused.by_device)
        error_set(error, STATUS_DEVICE,
                  "capacity: %s at %d tokens: the device itself refused, below the budget: %s; take a smaller --budget",
                  kv_policy_name(setting->policy), setting->context, refusal->message);
    else if (status == STATUS_DEVICE)
        status = record(bench, results, setting, &plan, &outcome, error);
    else
        *error = *refusal;
    kv_close(cache);
    model_free(&model);
    return status;
}

/* ---- the experiment ---- */

static bool recorded(const struct bench *bench, const struct results *results, const struct setting *setting)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "budget_bytes") == (double)ledger_budget(bench->ledger) &&
            results_real(results, row, "context") == setting->context &&
            results_real(results, row, "slots") == setting->slots &&
            results_real(results, row, "reserved_tokens") == setting->longest &&
            strcmp(results_text(results, row, "policy"), kv_policy_name(setting->policy)) == 0 &&
            strcmp(results_text(results, row, "logits_positions"), positions_name(setting->logits)) == 0)
            return true;
    return false;
}

/* The row of one setting: predicted only in a dry run, else measured unless --resume has kept it. */
static enum status row(struct bench *bench, struct results *results, const struct setting *setting, struct error *error)
{
    if (bench->options.dry_run) {
        struct plan plan = predict(bench, setting);
        set_prediction(bench, results, setting, &plan);
        return results_end_row(results, error);
    }
    progress_step(bench, 1.0, "%d tokens, %s, logits of %s", setting->context, kv_policy_name(setting->policy),
                  positions_name(setting->logits));
    return recorded(bench, results, setting) ? STATUS_OK : measure(bench, results, setting, error);
}

/* Every count and every limit must be what the plan said. */
static enum status check(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "measured_sequences") != results_real(results, row, "predicted_sequences") ||
            strcmp(results_text(results, row, "limit"), results_text(results, row, "predicted_limit")) != 0)
            return error_set(error, STATUS_CHECK_FAILED,
                             "capacity: %s at %s tokens held %s sequences (limit %s), the plan said %s (limit %s): %s",
                             results_text(results, row, "policy"), results_text(results, row, "context"),
                             results_text(results, row, "measured_sequences"), results_text(results, row, "limit"),
                             results_text(results, row, "predicted_sequences"),
                             results_text(results, row, "predicted_limit"), results_text(results, row, "message"));
    return STATUS_OK;
}

static enum status run(struct bench *bench, struct error *error)
{
    static const enum logits_positions both[] = {LOGITS_LAST, LOGITS_ALL};
    struct results *results;
    const struct int_list *contexts = bench_contexts(bench, "500,2000,8000", "500,2000");
    const struct int_list *slots = bench_batches(bench, DEFAULT_SLOTS, "64");
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    meta_text(bench, "not_touched", "weights are allocated and not filled, positions given room and not stored");
    progress_start(bench, 6.0 * (double)(slots->count * contexts->count));
    for (size_t s = 0; s < slots->count; s++)
        for (size_t c = 0; c < contexts->count; c++)
            for (int policy = KV_EXACT; policy <= KV_PAGED; policy++)
                for (int logits = 0; logits < 2; logits++) {
                    struct setting setting = {(enum kv_policy)policy, (int)contexts->values[c], (int)slots->values[s],
                                              (int)int_list_max(contexts), both[logits]};
                    if (row(bench, results, &setting, error) != STATUS_OK)
                        return error->status;
                }
    progress_end(bench);
    return bench->options.dry_run ? STATUS_OK : check(results, error);
}

const struct experiment capacity_experiment = {
    .name = "capacity",
    .summary = "sequences admitted under a budget until one is refused, against the plan's arithmetic",
    .needs_device = true,
    .default_model = "qwen2.5-1.5b",
    .default_budget = DEFAULT_BUDGET,
    .uses = USES_CONTEXTS | USES_BATCH,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
