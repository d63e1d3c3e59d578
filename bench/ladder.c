/* ladder: what does each serving technique add, when nothing else changes?

   Predicted: the passes, rows and bytes that a step needs, each pass as slow as the slower of reading and computing.
   Measured: one workload, requests that share a system prompt and differ in length, through seven steps, each with one
   technique more than the one before: same model, same kernels, same budget for the cache. All steps are run in turn,
   over and over, so that drift hits all of them alike. */
#include "bench/ladder.h"

#include "bench/harness/option_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct column columns[] = {
    {"step", COLUMN_TEXT, 0, true,
     "What is switched on: no cache and cache, one request after the other; static and continuous batches over one "
     "reservation of max_tokens for each slot; the same over blocks of 16; blocks shared by content; an fp8 cache."},
    {"requests", COLUMN_INT, 0, false,
     "Requests run. Without a cache one of each length: prompts are equally long, and lengths come equally often in "
     "all "
     "steps, so that the rates compare."},
    {"output_tokens", COLUMN_INT, 0, false, "Tokens chosen for them."},
    {"tokens_per_s", COLUMN_REAL, 1, false, "output_tokens / time_s."},
    {"gain_over_previous", COLUMN_REAL, 2, false, "tokens_per_s over that of the step before."},
    {"gain_over_first", COLUMN_REAL, 2, false, "tokens_per_s over that without a cache."},
    {"peak_kv_bytes", COLUMN_INT, 0, false,
     "Most that requests held of the cache at once: reservations, source ledger; paged: blocks in use * the bytes of "
     "one in the tensors."},
    {"output_equal", COLUMN_TEXT, 0, false,
     "yes if every request got the tokens that plain greedy decoding, alone, gives it: those of the step `cache`. "
     "Batches add up in another order, which in 16-bit types may tip a near tie; fp8 rounds K and V."},
    {"predicted_gain", COLUMN_REAL, 2, false,
     "Over the step before, by arithmetic: every pass takes its bytes / read ceiling or its FLOPs / matrix ceiling, "
     "whichever is longer. The ceilings are measured in this run; --dry-run has the lessons' card, 86.8 FLOP per "
     "byte."},
    {"mean_batch", COLUMN_REAL, 2, false,
     "Sequences that decode together: tokens after the first over the passes that chose any."},
    {"predicted_batch", COLUMN_REAL, 2, false,
     "The same by arithmetic: slots; or budget / (positions held on average + half a block), shared blocks counted "
     "once."},
    {"positions", COLUMN_INT, 0, false, "Rows that really went through the model, counted as they did."},
    {"predicted_positions", COLUMN_INT, 0, false, "The same by arithmetic."},
    {"hit_tokens", COLUMN_INT, 0, false, "Tokens of prompts that the prefix cache had."},
    {"preemptions", COLUMN_INT, 0, false, "Requests that lost their memory to others and were computed again."},
    {"equal_requests", COLUMN_INT, 0, false, "Requests with exactly the tokens of the step `cache`."},
    {"equal_tokens_percent", COLUMN_REAL, 2, false, "Tokens up to each request's first difference, in percent of all."},
    {"time_s", COLUMN_REAL, 3, false, "From the first request's begin to the last token; median of n runs."},
    {"n", COLUMN_INT, 0, false, "Times that the whole ladder was run."},
    {"kv_budget_bytes", COLUMN_INT, 0, false, "What the cache may take, in every step."},
    {"slots", COLUMN_INT, 0, false, "Most requests in a batch: reservations in the budget; paged: all."},
    {"tokens_checksum", COLUMN_TEXT, 0, false, "FNV-1a of all requests' tokens, in the order of the requests."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

/* 0: not given. */
static struct own {
    int requests, max_tokens;
    uint64_t kv_budget;
} own;
static const struct option_row own_rows[] = {
    {"requests", "N", OPTION_INT, offsetof(struct own, requests), .minimum = LADDER_CLASSES, .maximum = 4096,
     .help = "requests, a multiple of 4 (default 32; quick: 8)"},
    {"max-tokens", "N", OPTION_INT, offsetof(struct own, max_tokens), .minimum = 1, .maximum = 1 << 20,
     .help = "longest sequence allowed: what a reservation takes (default 512; quick: 64)"},
    {"kv-budget", "BYTES", OPTION_BYTES, offsetof(struct own, kv_budget),
     .help = "memory for the cache; two reservations of max-tokens unless given"},
    {0},
};
static const struct option_set own_options = {own_rows, &own};

/* ---- the workload ---- */

static enum status load_init(const struct bench *bench, struct ladder_load *load, struct error *error)
{
    static const struct ladder_load full = {32, 192, 32, {12, 24, 48, 96}, 512, 512, 0};
    static const struct ladder_load quick = {8, 32, 8, {2, 4, 8, 16}, 64, 64, 0};
    *load = bench->options.quick ? quick : full;
    load->requests = own.requests ? own.requests : load->requests;
    load->max_tokens = own.max_tokens ? own.max_tokens : load->max_tokens;
    uint64_t reservation = formula_kv_bytes(&bench->config, bench->kv_dtype, load->max_tokens);
    load->kv_budget = own.kv_budget ? own.kv_budget : 2 * reservation;
    load->rows = load->rows > load->requests ? load->rows : load->requests;
    int longest = ladder_prompt(load) + load->outputs[LADDER_CLASSES - 1];
    if (load->requests % LADDER_CLASSES != 0)
        return error_set(error, STATUS_INPUT, "--requests: %d is no multiple of %d: each output length comes as often",
                         load->requests, LADDER_CLASSES);
    if (load->max_tokens < longest)
        return error_set(error, STATUS_INPUT, "--max-tokens: the longest request has %d tokens, more than %d", longest,
                         load->max_tokens);
    if (load->kv_budget < reservation)
        return error_set(error, STATUS_INPUT,
                         "--kv-budget: one reservation takes %" PRIu64 " bytes, more than %" PRIu64, reservation,
                         load->kv_budget);
    return STATUS_OK;
}

/* prompts: host [requests][prompt]; all begin alike. */
static enum status make_prompts(const struct bench *bench, const struct ladder_load *load, int32_t **prompts,
                                struct error *error)
{
    size_t width = (size_t)ladder_prompt(load), shared = (size_t)load->shared;
    *prompts = bench_tokens(bench, (int64_t)width * load->requests, 0);
    if (*prompts == NULL)
        return error_set(error, STATUS_DEVICE, "ladder: out of host memory");
    for (int r = 1; r < load->requests; r++)
        memcpy(*prompts + (size_t)r * width, *prompts, shared * sizeof **prompts);
    return STATUS_OK;
}

/* ---- rows ---- */

static void predict(const struct ladder *ladder, struct results *results, size_t at)
{
    const struct ladder_step *step = &ladder_steps[at];
    const struct ladder_load *load = &ladder->load;
    struct ladder_estimate estimate = ladder_predict(ladder->bench, load, step, &ladder->machine);
    results_set_text(results, "step", step->name);
    results_set_int(results, "requests", ladder_requests(load, step));
    results_set_int(results, "output_tokens", ladder_output_tokens(load, step));
    results_set_real(results, "predicted_batch", estimate.batch);
    results_set_int(results, "predicted_positions", (int64_t)estimate.positions);
    results_set_int(results, "kv_budget_bytes", (int64_t)load->kv_budget);
    results_set_int(results, "slots", ladder_slots(ladder->bench, load, step));
    if (at > 0) {
        struct ladder_estimate previous = ladder_predict(ladder->bench, load, step - 1, &ladder->machine);
        double rate = (double)ladder_output_tokens(load, step) / estimate.seconds;
        results_set_real(results, "predicted_gain",
                         rate * previous.seconds / (double)ladder_output_tokens(load, step - 1));
    }
}

static double rate_of(const struct ladder *ladder, size_t at)
{
    return (double)ladder_output_tokens(&ladder->load, &ladder_steps[at]) /
           stats_median(ladder->outcomes[at].seconds, (size_t)ladder->reps);
}

/* Against plain greedy decoding of each request alone. */
static void set_equality(const struct ladder *ladder, struct results *results, size_t at)
{
    const struct ladder_step *step = &ladder_steps[at];
    const int32_t *tokens = ladder->outcomes[at].tokens, *plain = NULL;
    for (size_t i = 0; i < LADDER_STEPS; i++)
        plain = ladder_steps[i].way == LADDER_ONE_BY_ONE ? ladder->outcomes[i].tokens : plain;
    int requests = ladder_requests(&ladder->load, step), equal = 0;
    int64_t same = 0;
    for (int r = 0; r < requests; r++) {
        int count = ladder_output(&ladder->load, r), agreed = 0;
        while (agreed < count && tokens[agreed] == plain[agreed])
            agreed++;
        equal += agreed == count;
        same += agreed;
        tokens += count;
        plain += count;
    }
    results_set_text(results, "output_equal", equal == requests ? "yes" : "no");
    results_set_int(results, "equal_requests", equal);
    results_set_real(results, "equal_tokens_percent",
                     100.0 * (double)same / (double)ladder_output_tokens(&ladder->load, step));
}

static enum status record(const struct ladder *ladder, struct results *results, size_t at, struct error *error)
{
    const struct ladder_step *step = &ladder_steps[at];
    const struct ladder_outcome *outcome = &ladder->outcomes[at];
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, outcome->checksum);
    predict(ladder, results, at);
    results_set_real(results, "tokens_per_s", rate_of(ladder, at));
    results_set_real(results, "gain_over_first", rate_of(ladder, at) / rate_of(ladder, 0));
    if (at > 0)
        results_set_real(results, "gain_over_previous", rate_of(ladder, at) / rate_of(ladder, at - 1));
    results_set_int(results, "peak_kv_bytes", (int64_t)outcome->peak_kv_bytes);
    set_equality(ladder, results, at);
    int64_t decoded = ladder_output_tokens(&ladder->load, step) - ladder_requests(&ladder->load, step);
    if (step->way != LADDER_SCHEDULED)
        results_set_real(results, "mean_batch", 1.0);
    else if (outcome->choosing_passes > 0)
        results_set_real(results, "mean_batch", (double)decoded / (double)outcome->choosing_passes);
    results_set_int(results, "positions", outcome->positions);
    results_set_int(results, "hit_tokens", outcome->hit_tokens);
    results_set_int(results, "preemptions", outcome->preemptions);
    results_set_real(results, "time_s", stats_median(outcome->seconds, (size_t)ladder->reps));
    results_set_int(results, "n", ladder->reps);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

/* ---- the experiment ---- */

static bool recorded(const struct results *results, const struct ladder_step *step)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (strcmp(results_text(results, row, "step"), step->name) == 0)
            return true;
    return false;
}

/* A model around the same weights, whose workspace suits an fp8 cache: in the plan as well. */
static enum status open_fp8_model(struct ladder *ladder, const struct model_limits *limits, struct error *error)
{
    struct bench *bench = ladder->bench;
    struct weights view = ladder->model.weights;
    size_t bytes = (size_t)bench->config.num_hidden_layers * sizeof *view.layers;
    uint64_t more = model_workspace_bytes(&bench->config, bench->device, limits, bench->dtype, DTYPE_FP8_E4M3);
    ledger_plan(bench->ledger, LEDGER_WORKSPACE, ledger_counts(bench->ledger).live[LEDGER_WORKSPACE] + more);
    if (ledger_check_plan(bench->ledger, bench->config.name, error) != STATUS_OK)
        return error->status;
    view.storage = NULL; /* nothing to give back */
    view.layers = malloc(bytes);
    if (view.layers == NULL)
        return error_set(error, STATUS_DEVICE, "ladder: out of host memory");
    memcpy(view.layers, ladder->model.weights.layers, bytes);
    if (model_init(&ladder->fp8_model, bench->ledger, &bench->config, &view, limits, DTYPE_FP8_E4M3, error) !=
        STATUS_OK)
        return error->status;
    ladder->fp8_model.stop = bench_stop_flag();
    return STATUS_OK;
}

/* The ceilings first, then everything that the runs need. */
static enum status ladder_init(struct ladder *ladder, struct error *error)
{
    struct bench *bench = ladder->bench;
    const struct ladder_load *load = &ladder->load;
    double read_gbps, matrix_tflops;
    const struct model_limits limits = {.max_rows = load->rows,
                                        .max_sequences = load->requests,
                                        .max_blocks = (load->max_tokens + LADDER_BLOCK - 1) / LADDER_BLOCK};
    const struct bench_need need = {.kv_bytes = load->kv_budget,
                                    .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, load->requests)};
    if (make_prompts(bench, load, &ladder->prompts, error) != STATUS_OK ||
        bench_read_ceiling(bench, &read_gbps, error) != STATUS_OK ||
        bench_matrix_ceiling(bench, bench->dtype, &matrix_tflops, error) != STATUS_OK)
        return error->status;
    ladder->machine = (struct ladder_machine){read_gbps * 1e9, matrix_tflops * 1e12};
    for (size_t i = 0; i < LADDER_STEPS; i++) {
        struct ladder_outcome *outcome = &ladder->outcomes[i];
        outcome->seconds = calloc((size_t)ladder->reps, sizeof *outcome->seconds);
        outcome->tokens = calloc((size_t)ladder_output_tokens(load, &ladder_steps[i]), sizeof *outcome->tokens);
        if (outcome->seconds == NULL || outcome->tokens == NULL)
            return error_set(error, STATUS_DEVICE, "ladder: out of host memory");
    }
    if (bench_open_model(bench, &limits, &need, &ladder->model, error) != STATUS_OK)
        return error->status;
    return open_fp8_model(ladder, &limits, error);
}

static void ladder_free(struct ladder *ladder)
{
    for (size_t i = 0; i < LADDER_STEPS; i++) {
        free(ladder->outcomes[i].seconds);
        free(ladder->outcomes[i].tokens);
    }
    free(ladder->prompts);
    model_free(&ladder->fp8_model);
    model_free(&ladder->model);
}

static enum status measure(struct ladder *ladder, struct results *results, struct error *error)
{
    double work = 0.0, weights[LADDER_STEPS];
    enum status status = ladder_init(ladder, error);
    for (size_t i = 0; i < LADDER_STEPS; i++)
        work += weights[i] = ladder_predict(ladder->bench, &ladder->load, &ladder_steps[i], &ladder->machine).seconds;
    progress_start(ladder->bench, work * ladder->reps);
    for (int repetition = 0; repetition < ladder->reps; repetition++)
        for (size_t i = 0; i < LADDER_STEPS && status == STATUS_OK; i++) {
            progress_step(ladder->bench, weights[i], "%s, repetition %d of %d", ladder_steps[i].name, repetition + 1,
                          ladder->reps);
            status = ladder_run_step(ladder, i, repetition, error);
        }
    progress_end(ladder->bench);
    for (size_t i = 0; i < LADDER_STEPS && status == STATUS_OK; i++)
        if (!recorded(results, &ladder_steps[i]))
            status = record(ladder, results, i, error);
    ladder_free(ladder);
    return status;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *ladder, size_t i)
{
    (void)bench;
    predict(ladder, results, i);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    /* Balance of the lessons' card, where nothing is measured: 27.63 TFLOP/s over 318.3 GB/s. */
    struct ladder ladder = {.bench = bench, .reps = bench_reps(bench, 3, 1), .machine = {318.3e9, 27.63e12}};
    if (load_init(bench, &ladder.load, error) != STATUS_OK ||
        results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, &ladder, LADDER_STEPS, error);
    for (size_t i = 0; i < LADDER_STEPS; i++)
        if (!recorded(results, &ladder_steps[i]))
            return measure(&ladder, results, error);
    return STATUS_OK;
}

const struct experiment ladder_experiment = {
    .name = "ladder",
    .summary = "one workload, techniques added one at a time: cache, batching, paging, prefix cache, fp8",
    .needs_device = true,
    .default_model = "smollm2-135m",
    .uses = USES_REPS | USES_SAMPLES,
    .own = &own_options,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
