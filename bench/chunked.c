/* chunked: a long prompt arrives while eight sequences decode. How long do they stand still, and how long does it wait?

   Predicted: beside eight decode rows a step takes chunk - 8 tokens of the prompt, so that the newcomer's first token
   comes after ceil(prompt / (chunk - 8)) steps, and the others wait for one step of `chunk` rows between two tokens.
   Large chunks make the others wait, small ones the newcomer; and the workspace of a pass grows with its rows.
   Measured: the same arrival through the scheduler at every chunk size, in turn. */
#include "bench/harness/option_table.h"
#include "bench/harness/serving.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DECODING = 8, BLOCK_SIZE = 16, STEPS_BEFORE = 8 };

static const struct column columns[] = {
    {"chunk_tokens", COLUMN_INT, 0, true,
     "Rows of a step at most: one for each of the eight that decode, the rest prompt."},
    {"prompt_tokens", COLUMN_INT, 0, true, "The newcomer's prompt."},
    {"ttft_ms", COLUMN_REAL, 2, false, "The newcomer's time to first token. Median of n."},
    {"itl_ms_p50", COLUMN_REAL, 3, false,
     "Inter-token latency of the others: median gap between two tokens of one sequence, from eight steps before the "
     "arrival until the newcomer's first token. Median of n."},
    {"itl_ms_max", COLUMN_REAL, 3, false, "The longest of these gaps. Median of n."},
    {"peak_workspace_bytes", COLUMN_INT, 0, false, "Source ledger: peak of live bytes tagged workspace."},
    {"workspace_formula_bytes", COLUMN_INT, 0, false, "Source formula: what passes of so many rows need."},
    {"predicted_steps", COLUMN_INT, 0, false, "Source formula: ceil(prompt_tokens / (chunk_tokens - 8))."},
    {"steps", COLUMN_INT, 0, false, "Steps from the arrival to the newcomer's first token, counted."},
    {"n", COLUMN_INT, 0, false, "Arrivals measured at this chunk size."},
    {"tokens_checksum", COLUMN_TEXT, 0, false,
     "FNV-1a of the newcomer's first token and eight of each of the others', every time the same."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

static struct own_options {
    struct int_list chunks;
    int prompt;
} own;
static const struct option_row option_rows[] = {
    {"chunk-tokens", "LIST", OPTION_LIST, offsetof(struct own_options, chunks), .minimum = DECODING + 1,
     .maximum = 1 << 20, .help = "rows of a step (default 64-2048*2; quick: 16-64*2)"},
    {"prompt-tokens", "N", OPTION_INT, offsetof(struct own_options, prompt), .minimum = 1, .maximum = 1 << 20,
     .help = "the long prompt (default 2040; quick: 56): with eight others it fills the largest chunk"},
    {0},
};
static const struct option_set own_set = {option_rows, &own};

struct point {
    int chunk;
    bool measured;                    /* kept by --resume */
    double *ttft, *typical, *longest; /* ms, [n] */
    uint64_t peak_workspace, checksum;
    int steps;
};

struct plan {
    int prompt, short_prompt, outputs; /* tokens: the newcomer's, the others' prompts, the most that those decode */
    int n;
    int32_t *tokens; /* [DECODING * short_prompt + prompt] */
    struct point *points;
    size_t count;
};

static int steps_of(int tokens, int chunk)
{
    return (tokens + chunk - DECODING - 1) / (chunk - DECODING);
}

static struct kv_options memory_of(const struct bench *bench, const struct plan *plan)
{
    int others = plan->short_prompt + plan->outputs, newcomer = plan->prompt + 1;
    return (struct kv_options){
        .policy = KV_PAGED,
        .dtype = bench->kv_dtype,
        .max_sequences = DECODING + 1,
        .max_tokens = others > newcomer ? others : newcomer,
        .block_size = BLOCK_SIZE,
        .pool_blocks = DECODING * (others / BLOCK_SIZE + 1) + newcomer / BLOCK_SIZE + 1, /* nobody has to give way */
    };
}

static struct model_limits limits_of(const struct bench *bench, const struct plan *plan, int chunk)
{
    int blocks = (memory_of(bench, plan).max_tokens + BLOCK_SIZE - 1) / BLOCK_SIZE;
    return (struct model_limits){.max_rows = chunk, .max_sequences = DECODING + 1, .max_blocks = blocks};
}

static void predict(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    const struct plan *plan = of;
    int chunk = plan->points[i].chunk;
    struct model_limits limits = limits_of(bench, plan, chunk);
    results_set_int(results, "chunk_tokens", chunk);
    results_set_int(results, "prompt_tokens", plan->prompt);
    results_set_int(results, "predicted_steps", steps_of(plan->prompt, chunk));
    results_set_int(
        results, "workspace_formula_bytes",
        (int64_t)model_workspace_bytes(&bench->config, bench->device, &limits, bench->dtype, bench->kv_dtype));
}

/* ---- measuring ---- */

/* Steps until all eight decode, and then some more, so that what is measured is settled. */
static enum status start_decoding(struct serving *serving, const struct plan *plan, struct error *error)
{
    struct step_record step = {0};
    for (int i = 0; i < DECODING; i++)
        if (serving_add(serving, plan->tokens + i * plan->short_prompt, plan->short_prompt, plan->outputs, 0.0,
                        error) != STATUS_OK)
            return error->status;
    while (serving->requests[DECODING - 1].produced < 2)
        if (serving_step(serving, &step, error) != STATUS_OK)
            return error->status;
    serving->gap_count = 0;
    for (int i = 0; i < STEPS_BEFORE; i++)
        if (serving_step(serving, &step, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* The newcomer arrives, and is served. */
static enum status arrive(struct serving *serving, const struct plan *plan, struct point *point, int at,
                          struct error *error)
{
    struct step_record step;
    if (start_decoding(serving, plan, error) != STATUS_OK ||
        serving_add(serving, plan->tokens + DECODING * plan->short_prompt, plan->prompt, 1, serving->clock.ms, error) !=
            STATUS_OK)
        return error->status;
    const struct request *newcomer = &serving->requests[DECODING];
    for (point->steps = 0; newcomer->produced == 0; point->steps++)
        if (serving_step(serving, &step, error) != STATUS_OK)
            return error->status;
    assert(serving->requests[0].produced < plan->outputs);
    point->ttft[at] = request_ttft_ms(newcomer);
    point->typical[at] = stats_median(serving->gaps_ms, serving->gap_count);
    point->longest[at] = stats_quantile(serving->gaps_ms, serving->gap_count, 1.0);
    return STATUS_OK;
}

static uint64_t tokens_checksum(const struct serving *serving)
{
    int32_t chosen[DECODING * STEPS_BEFORE + 1];
    for (int i = 0; i < DECODING; i++)
        memcpy(chosen + i * STEPS_BEFORE, serving->requests[i].tokens + serving->requests[i].prompt_tokens,
               STEPS_BEFORE * sizeof *chosen);
    chosen[DECODING * STEPS_BEFORE] = serving->requests[DECODING].tokens[serving->requests[DECODING].prompt_tokens];
    return bench_checksum(chosen, sizeof chosen);
}

/* One visit to a chunk size, with workspace of its own, so that its peak is its own. repetition < 0: to warm up. */
static enum status visit(struct bench *bench, const struct plan *plan, struct point *point, int repetition,
                         struct error *error)
{
    struct model model;
    struct serving serving = {0};
    const struct kv_options memory = memory_of(bench, plan);
    const struct model_limits limits = limits_of(bench, plan, point->chunk);
    const struct scheduler_options options = {
        .policy = SCHEDULE_CONTINUOUS, .slots = DECODING + 1, .tokens_per_step = point->chunk};
    const struct bench_need need = {.kv_bytes = serving_kv_bytes(bench, &memory),
                                    .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, DECODING + 1)};
    ledger_reset_peaks(bench->ledger);
    if (bench_open_model(bench, &limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = serving_init(&serving, bench, &model, &memory, &options, DECODING + 1, error);
    if (status == STATUS_OK)
        status = arrive(&serving, plan, point, repetition < 0 ? 0 : repetition, error);
    if (status == STATUS_OK) {
        uint64_t checksum = tokens_checksum(&serving);
        point->peak_workspace = ledger_counts(bench->ledger).peak[LEDGER_WORKSPACE];
        if (repetition > 0 && checksum != point->checksum)
            status = error_set(error, STATUS_CHECK_FAILED, "chunked: at chunks of %d repetition %d chose other tokens",
                               point->chunk, repetition);
        point->checksum = checksum;
    }
    serving_free(&serving);
    model_free(&model);
    return status;
}

/* Every repetition visits all chunk sizes, upwards and downwards in turn. */
static enum status visit_all(struct bench *bench, struct plan *plan, struct error *error)
{
    enum status status = STATUS_OK;
    double visits = 0.0;
    for (size_t i = 0; i < plan->count; i++)
        visits += plan->points[i].measured ? 0.0 : plan->n + 1;
    progress_start(bench, visits);
    for (int repetition = -1; repetition < plan->n; repetition++)
        for (size_t i = 0; i < plan->count && status == STATUS_OK; i++) {
            struct point *point = &plan->points[repetition % 2 ? plan->count - 1 - i : i];
            if (point->measured)
                continue;
            progress_step(bench, 1.0, "chunks of %d, %s", point->chunk, repetition < 0 ? "warming up" : "measuring");
            status = visit(bench, plan, point, repetition, error);
        }
    progress_end(bench);
    return status;
}

static enum status record(const struct bench *bench, struct results *results, const struct plan *plan, size_t i,
                          struct error *error)
{
    const struct point *point = &plan->points[i];
    size_t n = (size_t)plan->n;
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, point->checksum);
    predict(bench, results, plan, i);
    results_set_real(results, "ttft_ms", stats_median(point->ttft, n));
    results_set_real(results, "itl_ms_p50", stats_median(point->typical, n));
    results_set_real(results, "itl_ms_max", stats_median(point->longest, n));
    results_set_int(results, "peak_workspace_bytes", (int64_t)point->peak_workspace);
    results_set_int(results, "steps", point->steps);
    results_set_int(results, "n", plan->n);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

/* ---- the experiment ---- */

static void plan_free(struct plan *plan)
{
    for (size_t i = 0; plan->points != NULL && i < plan->count; i++) {
        free(plan->points[i].ttft);
        free(plan->points[i].typical);
        free(plan->points[i].longest);
    }
    free(plan->points);
    free(plan->tokens);
}

static enum status plan_init(struct plan *plan, const struct bench *bench, const struct results *results,
                             struct error *error)
{
    bool quick = bench->options.quick;
    plan->prompt = own.prompt ? own.prompt : quick ? 56 : 2040;
    plan->short_prompt = quick ? 8 : 64;
    plan->n = bench_reps(bench, 3, 2);
    plan->tokens = bench_tokens(bench, (int64_t)DECODING * plan->short_prompt + plan->prompt, 0);
    plan->count = own.chunks.count;
    plan->points = calloc(plan->count, sizeof *plan->points);
    bool complete = plan->tokens != NULL && plan->points != NULL;
    int smallest = INT32_MAX;
    for (size_t i = 0; complete && i < plan->count; i++) {
        struct point *point = &plan->points[i];
        point->chunk = (int)own.chunks.values[i];
        smallest = point->chunk < smallest ? point->chunk : smallest;
        point->measured =
            results_has(results, (struct key[]){{"chunk_tokens", point->chunk}, {"prompt_tokens", plan->prompt}}, 2);
        point->ttft = calloc((size_t)plan->n, sizeof(double));
        point->typical = calloc((size_t)plan->n, sizeof(double));
        point->longest = calloc((size_t)plan->n, sizeof(double));
        complete = point->ttft != NULL && point->typical != NULL && point->longest != NULL;
    }
    /* The first of the eight starts to decode while the smallest chunks still take the prompts of the others. */
    plan->outputs = steps_of(DECODING * plan->short_prompt + plan->prompt, smallest) + STEPS_BEFORE + DECODING + 2;
    return complete ? STATUS_OK : error_set(error, STATUS_DEVICE, "chunked: out of host memory");
}

static enum status measure(struct bench *bench, struct results *results, struct plan *plan, struct error *error)
{
    if (visit_all(bench, plan, error) != STATUS_OK)
        return error->status;
    for (size_t i = 0; i < plan->count; i++)
        if (!plan->points[i].measured && record(bench, results, plan, i, error) != STATUS_OK)
            return error->status;
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "steps") != results_real(results, row, "predicted_steps"))
            return error_set(error, STATUS_CHECK_FAILED, "chunked: chunks of %s: %s steps counted, %s predicted",
                             results_text(results, row, "chunk_tokens"), results_text(results, row, "steps"),
                             results_text(results, row, "predicted_steps"));
    return STATUS_OK;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    struct plan plan = {0};
    bench_own_list(bench, &own.chunks, "64-2048*2", "16-64*2");
    enum status status = results_open(&results, bench, &tables[0], error);
    if (status == STATUS_OK)
        status = plan_init(&plan, bench, results, error);
    if (status == STATUS_OK)
        status = bench->options.dry_run ? bench_predict_rows(bench, results, predict, &plan, plan.count, error)
                                        : measure(bench, results, &plan, error);
    plan_free(&plan);
    return status;
}

const struct experiment chunked_experiment = {
    .name = "chunked",
    .summary = "a long prompt among eight that decode: their longest gap and its first token, over chunk sizes",
    .needs_device = true,
    .default_model = "smollm2-135m",
    .uses = USES_REPS,
    .own = &own_set,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
