/* prefix: many questions after one long system prompt. What does it save not to compute the shared part again?

   Predicted: the first request finds nothing. Every later one finds the full blocks of what it shares with it,
   floor(shared / block size) blocks, and computes the rest; it takes blocks for that rest only. Measured: the same
   requests one after the other, each by a cache that forgets and by one that finds blocks by their content, in turn;
   the tokens that both choose are compared. */
#include "bench/harness/option_table.h"
#include "bench/harness/serving.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_SIZE = 16, OUTPUT_TOKENS = 4, OFF = 0, ON = 1, SIDES = 2, PASS_ROWS = 512 };
static const char *const side_names[SIDES] = {"off", "on"};

static const struct column columns[] = {
    {"prefix_cache", COLUMN_TEXT, 0, true,
     "off: every prompt is computed whole; on: full blocks are found by content."},
    {"request", COLUMN_INT, 0, true, "Number of the request; 1 is the first after start, with nothing to find."},
    {"prompt_tokens", COLUMN_INT, 0, true, "Shared system prompt and a question of its own."},
    {"hit_tokens", COLUMN_INT, 0, false, "Tokens of the prompt whose K and V were found, not computed."},
    {"prefill_ms", COLUMN_REAL, 3, false, "From admission to the first token."},
    {"kv_allocated_bytes", COLUMN_INT, 0, false,
     "Source ledger: blocks that the request took from the pool, counted as they were taken, of the bytes that the "
     "pool "
     "holds in the ledger for each."},
    {"output_equal", COLUMN_TEXT, 0, false, "yes: the tokens chosen are the same with the cache on and off."},
    {"predicted_hit_tokens", COLUMN_INT, 0, false,
     "Source formula: 0 for the first and with the cache off, else the whole blocks of 16 that the prompt begins with "
     "as "
     "an earlier one does, its last token left out: floor(shared / 16) * 16 unless two questions begin alike."},
    {"kv_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: blocks of 16 tokens for what is stored and not found, in bytes."},
    {"computed_tokens", COLUMN_INT, 0, false, "Tokens of the prompt that went through the model, counted."},
    {"tokens_checksum", COLUMN_TEXT, 0, false, "FNV-1a of the tokens chosen."},
};
static const struct column summary_columns[] = {
    {"requests", COLUMN_INT, 0, true, "Requests after the first: those that can find something."},
    {"hit_percent", COLUMN_REAL, 2, false, "Of their prompt tokens, those that were found."},
    {"prefill_ms_p50_off", COLUMN_REAL, 3, false, "Median of their prefill_ms with the cache off."},
    {"prefill_ms_p50_on", COLUMN_REAL, 3, false, "Median of their prefill_ms with the cache on."},
    {"prefill_ratio", COLUMN_REAL, 2, false, "prefill_ms_p50_off / prefill_ms_p50_on."},
    {"computed_ratio", COLUMN_REAL, 2, false,
     "Tokens computed, off / on: what the ratio would be if only they took time."},
    {"kv_bytes_off", COLUMN_INT, 0, false, "Bytes of blocks taken by all requests, cache off."},
    {"kv_bytes_on", COLUMN_INT, 0, false, "Bytes of blocks taken by all requests, cache on."},
};
enum { MAIN, SUMMARY };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [SUMMARY] = {"_summary", false, summary_columns, sizeof summary_columns / sizeof *summary_columns},
};

static struct own_options {
    int requests, shared, question;
} own;
static const struct option_row option_rows[] = {
    {"requests", "N", OPTION_INT, offsetof(struct own_options, requests), .minimum = 2, .maximum = 4096,
     .help = "requests, one after the other (default 24; quick: 4)"},
    {"shared-tokens", "N", OPTION_INT, offsetof(struct own_options, shared), .minimum = 1, .maximum = 1 << 20,
     .help = "tokens of the system prompt (default 2811; quick: 100)"},
    {"question-tokens", "N", OPTION_INT, offsetof(struct own_options, question), .minimum = 1, .maximum = 1 << 20,
     .help = "tokens of each question (default 32; quick: 10)"},
    {0},
};
static const struct option_set own_set = {option_rows, &own};

struct plan {
    int requests, shared, question;
    int32_t *prompt;    /* [shared + question]: the questions take turns in it */
    int32_t *questions; /* [requests][question] */
};

static int blocks_of(int tokens)
{
    return (tokens + BLOCK_SIZE - 1) / BLOCK_SIZE;
}

/* Positions that a request stores: the last token is chosen and never stored. */
static int stored_tokens(const struct plan *plan)
{
    return plan->shared + plan->question + OUTPUT_TOKENS - 1;
}

static int32_t *question_of(const struct plan *plan, int request)
{
    return plan->questions + (size_t)(request - 1) * (size_t)plan->question;
}

/* A random question may begin as an earlier one does: where vocabularies are small, that can complete a block. */
static int predicted_hit(const struct plan *plan, int side, int request)
{
    int alike = 0;
    for (int earlier = 1; side == ON && earlier < request; earlier++) {
        int same = 0;
        while (same < plan->question - 1 && question_of(plan, earlier)[same] == question_of(plan, request)[same])
            same++;
        alike = plan->shared + same > alike ? plan->shared + same : alike;
    }
    return alike / BLOCK_SIZE * BLOCK_SIZE;
}

/* Rows in pairs: request 1 off, request 1 on, request 2 off ... */
static void predict(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    const struct plan *plan = of;
    int side = (int)(i % SIDES), request = (int)(i / SIDES) + 1, hit = predicted_hit(plan, side, request);
    int64_t stored = (int64_t)(blocks_of(stored_tokens(plan)) - hit / BLOCK_SIZE) * BLOCK_SIZE;
    results_set_text(results, "prefix_cache", side_names[side]);
    results_set_int(results, "request", request);
    results_set_int(results, "prompt_tokens", plan->shared + plan->question);
    results_set_int(results, "predicted_hit_tokens", hit);
    results_set_int(results, "kv_formula_bytes", (int64_t)formula_kv_bytes(&bench->config, bench->kv_dtype, stored));
}

/* ---- measuring ---- */

struct outcome {
    const struct request *request;
    int64_t blocks, rows;
};

/* One request, alone, from its arrival to its last token. */
static enum status ask(struct serving *serving, const struct plan *plan, struct outcome *outcome, struct error *error)
{
    struct step_record step;
    int64_t taken = kv_blocks_taken(serving->cache);
    *outcome = (struct outcome){.request = &serving->requests[serving->count]};
    if (serving_add(serving, plan->prompt, plan->shared + plan->question, OUTPUT_TOKENS, serving->clock.ms, error) !=
        STATUS_OK)
        return error->status;
    while (scheduler_pending(serving->scheduler) > 0) {
        bool prompt = outcome->request->produced == 0;
        if (serving_step(serving, &step, error) != STATUS_OK)
            return error->status;
        outcome->rows += prompt ? step.rows : 0;
    }
    outcome->blocks = kv_blocks_taken(serving->cache) - taken;
    return STATUS_OK;
}

static const int32_t *chosen(const struct outcome *outcome)
{
    return outcome->request->tokens + outcome->request->prompt_tokens;
}

static bool has_row(const struct results *results, int side, int request, int prompt_tokens)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (strcmp(results_text(results, row, "prefix_cache"), side_names[side]) == 0 &&
            results_real(results, row, "request") == request &&
            results_real(results, row, "prompt_tokens") == prompt_tokens)
            return true;
    return false;
}

static enum status record(const struct bench *bench, struct results *results, const struct plan *plan,
                          const struct serving *serving, const struct outcome *outcomes, int side, int request,
                          struct error *error)
{
    const struct outcome *outcome = &outcomes[side];
    size_t bytes = OUTPUT_TOKENS * sizeof *chosen(outcome);
    uint64_t block_bytes = kv_tensor_bytes(serving->cache) / (uint64_t)kv_get_options(serving->cache)->pool_blocks;
    char checksum[32];
    if (has_row(results, side, request, plan->shared + plan->question))
        return STATUS_OK;
    snprintf(checksum, sizeof checksum, "%016" PRIx64, bench_checksum(chosen(outcome), bytes));
    predict(bench, results, plan, (size_t)(request - 1) * SIDES + (size_t)side);
    results_set_int(results, "hit_tokens", outcome->request->hit_tokens);
    results_set_real(results, "prefill_ms", outcome->request->first_token_ms - outcome->request->admitted_ms);
    results_set_int(results, "kv_allocated_bytes", outcome->blocks * (int64_t)block_bytes);
    results_set_text(results, "output_equal",
                     memcmp(chosen(&outcomes[OFF]), chosen(&outcomes[ON]), bytes) == 0 ? "yes" : "no");
    results_set_int(results, "computed_tokens", outcome->rows);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

/* Both caches live side by side, and take turns request by request, so that drift hits both alike. */
static enum status ask_all(struct bench *bench, struct results *results, struct plan *plan, struct serving *servings,
                           struct error *error)
{
    enum status status = STATUS_OK;
    progress_start(bench, plan->requests);
    for (int request = 1; request <= plan->requests && status == STATUS_OK; request++) {
        struct outcome outcomes[SIDES];
        progress_step(bench, 1.0, "request %d of %d", request, plan->requests);
        memcpy(plan->prompt + plan->shared, question_of(plan, request),
               (size_t)plan->question * sizeof *plan->questions);
        for (int side = OFF; side <= ON && status == STATUS_OK; side++)
            status = ask(&servings[side], plan, &outcomes[side], error);
        for (int side = OFF; side <= ON && status == STATUS_OK; side++)
            status = record(bench, results, plan, &servings[side], outcomes, side, request, error);
    }
    progress_end(bench);
    return status;
}

static enum status warm_up(struct model *model, const struct serving *serving, const struct plan *plan,
                           struct error *error)
{
    int sequence;
    if (kv_sequence_open(serving->cache, &sequence, error) != STATUS_OK)
        return error->status;
    enum status status =
        model_prefill(model, serving->cache, sequence, plan->prompt, plan->shared, LOGITS_NONE, 0, NULL, error);
    kv_sequence_close(serving->cache, sequence);
    return status;
}

static enum status measure(struct bench *bench, struct results *results, struct plan *plan, struct error *error)
{
    struct model model;
    struct serving servings[SIDES] = {0};
    int blocks = blocks_of(stored_tokens(plan)), rest = blocks_of(plan->question + OUTPUT_TOKENS + BLOCK_SIZE);
    struct kv_options memory = {
        .policy = KV_PAGED,
        .dtype = bench->kv_dtype,
        .max_sequences = 1,
        .max_tokens = stored_tokens(plan) + 1,
        .block_size = BLOCK_SIZE,
        .pool_blocks = blocks + plan->requests * rest, /* nothing has to be evicted */
    };
    const struct model_limits limits = {
        .max_rows = PASS_ROWS, .max_sequences = 1, .max_blocks = blocks_of(memory.max_tokens)};
    const struct scheduler_options options = {.policy = SCHEDULE_CONTINUOUS, .slots = 1, .tokens_per_step = PASS_ROWS};
    const struct bench_need need = {.kv_bytes = SIDES * serving_kv_bytes(bench, &memory),
                                    .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, SIDES)};
    if (bench_open_model(bench, &limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = STATUS_OK;
    for (int side = OFF; side <= ON && status == STATUS_OK; side++) {
        memory.prefix_cache = side == ON;
        status = serving_init(&servings[side], bench, &model, &memory, &options, (size_t)plan->requests, error);
    }
    if (status == STATUS_OK)
        status = warm_up(&model, &servings[OFF], plan, error);
    if (status == STATUS_OK)
        status = ask_all(bench, results, plan, servings, error);
    serving_free(&servings[OFF]);
    serving_free(&servings[ON]);
    model_free(&model);
    return status;
}

/* ---- what the rows say together ---- */

static enum status check_rows(const struct results *results, struct error *error)
{
    static const char *const pairs[][2] = {{"hit_tokens", "predicted_hit_tokens"},
                                           {"kv_allocated_bytes", "kv_formula_bytes"}};
    for (size_t row = 0; row < results_rows(results); row++)
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (results_real(results, row, pairs[i][0]) != results_real(results, row, pairs[i][1]))
                return error_set(error, STATUS_CHECK_FAILED, "prefix: request %s, cache %s: %s is %s, %s is %s",
                                 results_text(results, row, "request"), results_text(results, row, "prefix_cache"),
                                 pairs[i][0], results_text(results, row, pairs[i][0]), pairs[i][1],
                                 results_text(results, row, pairs[i][1]));
    return STATUS_OK;
}

static enum status summarise(struct bench *bench, const struct results *results, struct error *error)
{
    struct results *summary;
    size_t rows = results_rows(results), counts[SIDES] = {0};
    double *prefill[SIDES] = {calloc(rows, sizeof(double)), calloc(rows, sizeof(double))};
    double computed[SIDES] = {0}, bytes[SIDES] = {0}, hits = 0.0, prompts = 0.0;
    enum status status = prefill[OFF] != NULL && prefill[ON] != NULL
                             ? results_open(&summary, bench, &tables[SUMMARY], error)
                             : error_set(error, STATUS_DEVICE, "prefix: out of host memory");
    for (size_t row = 0; status == STATUS_OK && row < rows; row++) {
        int side = strcmp(results_text(results, row, "prefix_cache"), side_names[ON]) == 0;
        bytes[side] += results_real(results, row, "kv_allocated_bytes");
        if (results_real(results, row, "request") == 1)
            continue;
        prefill[side][counts[side]++] = results_real(results, row, "prefill_ms");
        computed[side] += results_real(results, row, "computed_tokens");
        hits += results_real(results, row, "hit_tokens");
        prompts += side == ON ? results_real(results, row, "prompt_tokens") : 0.0;
    }
    if (status == STATUS_OK) {
        double off = stats_median(prefill[OFF], counts[OFF]), on = stats_median(prefill[ON], counts[ON]);
        results_set_int(summary, "requests", (int64_t)counts[ON]);
        results_set_real(summary, "hit_percent", 100.0 * hits / prompts);
        results_set_real(summary, "prefill_ms_p50_off", off);
        results_set_real(summary, "prefill_ms_p50_on", on);
        results_set_real(summary, "prefill_ratio", off / on);
        results_set_real(summary, "computed_ratio", computed[OFF] / computed[ON]);
        results_set_int(summary, "kv_bytes_off", (int64_t)bytes[OFF]);
        results_set_int(summary, "kv_bytes_on", (int64_t)bytes[ON]);
        status = results_end_row(summary, error);
    }
    free(prefill[OFF]);
    free(prefill[ON]);
    return status;
}

/* ---- the experiment ---- */

static enum status plan_init(struct plan *plan, const struct bench *bench, struct error *error)
{
    bool quick = bench->options.quick;
    *plan = (struct plan){
        .requests = own.requests ? own.requests
                    : quick      ? 4
                                 : 24,
        .shared = own.shared ? own.shared
                  : quick    ? 100
                             : 2811,
        .question = own.question ? own.question
                    : quick      ? 10
                                 : 32,
    };
    plan->prompt = bench_tokens(bench, (int64_t)plan->shared + plan->question, 0);
    plan->questions = calloc((size_t)plan->requests, (size_t)plan->question * sizeof *plan->questions);
    bool whole = plan->prompt != NULL && plan->questions != NULL;
    for (int request = 1; request <= plan->requests && whole; request++) {
        int32_t *question = bench_tokens(bench, plan->question, (uint64_t)request);
        whole = question != NULL;
        if (whole)
            memcpy(question_of(plan, request), question, (size_t)plan->question * sizeof *question);
        free(question);
    }
    return whole ? STATUS_OK : error_set(error, STATUS_DEVICE, "prefix: out of host memory");
}

static void plan_free(struct plan *plan)
{
    free(plan->prompt);
    free(plan->questions);
}

static bool all_measured(const struct results *results, const struct plan *plan)
{
    for (int request = 1; request <= plan->requests; request++)
        if (!has_row(results, OFF, request, plan->shared + plan->question) ||
            !has_row(results, ON, request, plan->shared + plan->question))
            return false;
    return true;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    struct plan plan;
    enum status status = plan_init(&plan, bench, error);
    if (status == STATUS_OK)
        status = results_open(&results, bench, &tables[MAIN], error);
    if (status == STATUS_OK && bench->options.dry_run) {
        status = bench_predict_rows(bench, results, predict, &plan, SIDES * (size_t)plan.requests, error);
    } else if (status == STATUS_OK) {
        if (!all_measured(results, &plan)) /* what was found depends on all requests before: from the first one again */
            status = measure(bench, results, &plan, error);
        if (status == STATUS_OK)
            status = summarise(bench, results, error);
        if (status == STATUS_OK)
            status = check_rows(results, error);
    }
    plan_free(&plan);
    return status;
}

const struct experiment prefix_experiment = {
    .name = "prefix",
    .summary = "questions after one system prompt, prefix cache off and on: hits, prefill time, bytes, equal outputs",
    .needs_device = true,
    .default_model = "smollm2-135m",
    .own = &own_set,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
