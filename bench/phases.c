/* phases: one request, from its prompt to its last token. What does each phase cost, and what does a user feel?

   Predicted: E2E = TTFT + (N - 1) * TPOT, for N tokens of which the prefill gives the first. Measured: the whole
   request by one clock, and inside it the prefill and every decode step by themselves; prompts of all lengths in turn.
 */
#include "bench/harness/timed_batch.h"
#include "engine/work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_ROWS = 512 }; /* tokens per forward pass of a prefill */

static const struct column columns[] = {
    {"prompt_tokens", COLUMN_INT, 0, true, "Tokens of the prompt."},
    {"ttft_ms", COLUMN_REAL, 3, false,
     "Time to first token: prefill of the prompt and the choice of the first token. Median of n requests."},
    {"tpot_ms_p50", COLUMN_REAL, 4, false, "Time per output token: median of all decode steps of all n requests."},
    {"tpot_ms_p95", COLUMN_REAL, 4, false, "95th percentile of the same steps."},
    {"prefill_tokens_per_s", COLUMN_REAL, 1, false, "prompt_tokens / ttft_ms."},
    {"decode_tokens_per_s", COLUMN_REAL, 2, false, "1 / tpot_ms_p50: what a brochure prints."},
    {"e2e_ms", COLUMN_REAL, 3, false, "The whole request by a clock of its own, to the last token. Median of n."},
    {"effective_tokens_per_s", COLUMN_REAL, 2, false, "new_tokens / e2e_ms: what the user feels."},
    {"peak_ledger_bytes", COLUMN_INT, 0, false, "Source ledger: peak of live bytes of all tags over the request."},
    {"new_tokens", COLUMN_INT, 0, true, "Tokens generated, greedily; the first comes from the prefill."},
    {"n", COLUMN_INT, 0, false, "Requests; each length in turn, over and over."},
    {"e2e_predicted_ms", COLUMN_REAL, 3, false, "ttft_ms + (new_tokens - 1) * tpot_ms_p50."},
    {"e2e_deviation_percent", COLUMN_REAL, 2, false,
     "How far e2e_ms is from that, in percent: slow steps that a median does not show."},
    {"peak_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: weights, workspace, KV of prompt and new tokens, logits of one position."},
    {"tokens_checksum", COLUMN_TEXT, 0, false, "FNV-1a of the tokens generated, the same in every request."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

/* One length, and what its requests gave. */
struct length {
    int prompt, tokens;   /* tokens: to generate */
    bool measured;        /* kept by --resume */
    double *ttft, *e2e;   /* ms, [n] */
    double *steps;        /* ms, [n][tokens - 1] */
    int32_t *chosen;      /* [tokens] of the latest request */
    uint64_t peak_ledger; /* bytes */
    uint64_t checksum;
};

static const struct model_limits limits = {.max_rows = PASS_ROWS, .max_sequences = 1, .max_blocks = 1};

static uint64_t peak_formula(const struct bench *bench, int64_t positions)
{
    const struct config *config = &bench->config;
    return formula_weight_bytes(config, bench->dtype) +
           model_workspace_bytes(config, bench->device, &limits, bench->dtype, bench->kv_dtype) +
           formula_kv_bytes(config, bench->kv_dtype, positions) + formula_logits_bytes(config, bench->dtype, 1);
}

static void predict(const struct bench *bench, struct results *results, const struct length *length)
{
    results_set_int(results, "prompt_tokens", length->prompt);
    results_set_int(results, "new_tokens", length->tokens);
    results_set_int(results, "peak_formula_bytes", (int64_t)peak_formula(bench, length->prompt + length->tokens));
}

/* ---- one request ---- */

struct request {
    struct bench *bench;
    struct timed_batch sequence;
    struct device_event *start, *end; /* of the whole */
};

static enum status request_init(struct request *request, struct bench *bench, struct model *model,
                                const struct length *length, struct error *error)
{
    const struct device_ops *ops = bench->device->ops;
    *request = (struct request){.bench = bench};
    if (ops->event_create(bench->device, &request->start, error) != STATUS_OK ||
        ops->event_create(bench->device, &request->end, error) != STATUS_OK)
        return error->status;
    return timed_batch_init(&request->sequence, bench, model, 1, length->prompt + length->tokens, error);
}

static void request_free(struct request *request)
{
    const struct device_ops *ops = request->bench->device->ops;
    if (request->start != NULL)
        ops->event_destroy(request->bench->device, request->start);
    if (request->end != NULL)
        ops->event_destroy(request->bench->device, request->end);
    timed_batch_free(&request->sequence);
}

/* Prefill and decode; each chosen token is fed to the next step. ttft, e2e: ms; steps: ms [tokens - 1]. */
static enum status request_run(struct request *request, const struct length *length, double *ttft, double *steps,
                               double *e2e, struct error *error)
{
    struct device *device = request->bench->device;
    struct timed_batch *sequence = &request->sequence;
    if (device->ops->synchronize(device, error) != STATUS_OK ||
        device->ops->event_record(device, request->start, error) != STATUS_OK ||
        timed_batch_pass(sequence, 1, length->prompt, ttft, error) != STATUS_OK)
        return error->status;
    length->chosen[0] = sequence->chosen[0];
    for (int i = 1; i < length->tokens; i++) {
        sequence->tokens[length->prompt + i - 1] = length->chosen[i - 1];
        if (timed_batch_pass(sequence, 1, 1, &steps[i - 1], error) != STATUS_OK)
            return error->status;
        length->chosen[i] = sequence->chosen[0];
    }
    if (device->ops->event_record(device, request->end, error) != STATUS_OK)
        return error->status;
    return device->ops->event_elapsed_ms(device, request->start, request->end, e2e, error);
}

static enum status keep_samples(struct bench *bench, const struct length *length, int repetition, struct error *error)
{
    char setting[80];
    const double *steps = length->steps + (size_t)repetition * (size_t)(length->tokens - 1);
    snprintf(setting, sizeof setting, "prompt_tokens=%d;phase=ttft", length->prompt);
    enum status status = samples_add(bench, setting, repetition, length->ttft[repetition], "ms", error);
    snprintf(setting, sizeof setting, "prompt_tokens=%d;phase=e2e", length->prompt);
    if (status == STATUS_OK)
        status = samples_add(bench, setting, repetition, length->e2e[repetition], "ms", error);
    snprintf(setting, sizeof setting, "prompt_tokens=%d;phase=tpot", length->prompt);
    for (int i = 0; i < length->tokens - 1 && status == STATUS_OK; i++)
        status = samples_add(bench, setting, repetition, steps[i], "ms", error);
    return status;
}

/* A request whose memory is its own, taken before the clock starts; repetition < 0: to warm up, not kept. */
static enum status serve(struct bench *bench, struct model *model, struct length *length, int repetition,
                         struct error *error)
{
    struct request request;
    size_t at = repetition < 0 ? 0 : (size_t)repetition;
    double *steps = length->steps + at * (size_t)(length->tokens - 1);
    ledger_reset_peaks(bench->ledger);
    enum status status = request_init(&request, bench, model, length, error);
    if (status == STATUS_OK)
        status = request_run(&request, length, &length->ttft[at], steps, &length->e2e[at], error);
    request_free(&request);
    if (status != STATUS_OK)
        return status;
    uint64_t checksum = bench_checksum(length->chosen, (size_t)length->tokens * sizeof *length->chosen);
    if (repetition > 0 && checksum != length->checksum)
        return error_set(error, STATUS_CHECK_FAILED,
                         "phases: with a prompt of %d tokens request %d chose other tokens than the one before: what "
                         "is timed is not the same work",
                         length->prompt, repetition);
    length->checksum = checksum;
    length->peak_ledger = ledger_counts(bench->ledger).peak_total;
    return repetition < 0 ? STATUS_OK : keep_samples(bench, length, repetition, error);
}

static enum status record(const struct bench *bench, struct results *results, const struct length *length, size_t n,
                          struct error *error)
{
    size_t steps = n * (size_t)(length->tokens - 1);
    double ttft = stats_median(length->ttft, n), e2e = stats_median(length->e2e, n), expected = ttft;
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, length->checksum);
    predict(bench, results, length);
    results_set_real(results, "ttft_ms", ttft);
    if (steps > 0) {
        double tpot = stats_median(length->steps, steps);
        expected += (length->tokens - 1) * tpot;
        results_set_real(results, "tpot_ms_p50", tpot);
        results_set_real(results, "decode_tokens_per_s", 1e3 / tpot);
        if (steps >= STATS_MIN_SPREAD_SAMPLES)
            results_set_real(results, "tpot_ms_p95", stats_quantile(length->steps, steps, 0.95));
    }
    results_set_real(results, "prefill_tokens_per_s", length->prompt / ttft * 1e3);
    results_set_real(results, "e2e_ms", e2e);
    results_set_real(results, "e2e_predicted_ms", expected);
    results_set_real(results, "e2e_deviation_percent", 100.0 * (e2e - expected) / expected);
    results_set_real(results, "effective_tokens_per_s", length->tokens / e2e * 1e3);
    results_set_int(results, "peak_ledger_bytes", (int64_t)length->peak_ledger);
    results_set_int(results, "n", (int64_t)n);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

/* ---- the experiment ---- */

struct lengths {
    struct length *list;
    size_t count;
    double work; /* of one request each, for the estimate of time left */
};

static double request_work(const struct bench *bench, const struct length *length)
{
    struct pass_shape prefill = {.sequences = 1, .count = length->prompt, .logits = 1};
    /* A decode step reads what a prefill of some dozens of tokens computes in the same time. */
    return (double)work_flops(&bench->config, &prefill) +
           50.0 * length->tokens * 2.0 * (double)formula_parameters(&bench->config);
}

static void lengths_free(struct lengths *lengths)
{
    for (size_t i = 0; i < lengths->count; i++) {
        free(lengths->list[i].ttft);
        free(lengths->list[i].e2e);
        free(lengths->list[i].steps);
        free(lengths->list[i].chosen);
    }
    free(lengths->list);
}

/* Every prompt with every number of new tokens. */
static enum status lengths_init(struct lengths *lengths, const struct bench *bench, const struct results *results,
                                const struct int_list *prompts, const struct int_list *tokens, size_t n,
                                struct error *error)
{
    lengths->list = calloc(prompts->count * tokens->count, sizeof *lengths->list);
    bool complete = lengths->list != NULL;
    for (size_t i = 0; complete && i < prompts->count * tokens->count; i++) {
        struct length *length = &lengths->list[lengths->count++];
        length->prompt = (int)prompts->values[i % prompts->count];
        length->tokens = (int)tokens->values[i / prompts->count];
        length->measured =
            results_has(results, (struct key[]){{"prompt_tokens", length->prompt}, {"new_tokens", length->tokens}}, 2);
        length->ttft = calloc(n, sizeof(double));
        length->e2e = calloc(n, sizeof(double));
        length->steps = calloc(n * (size_t)length->tokens, sizeof(double));
        length->chosen = calloc((size_t)length->tokens, sizeof(int32_t));
        complete = length->ttft && length->e2e && length->steps && length->chosen;
        lengths->work += length->measured ? 0.0 : request_work(bench, length);
    }
    return complete ? STATUS_OK : error_set(error, STATUS_DEVICE, "phases: out of host memory");
}

/* Every repetition serves all lengths in turn; the first, not kept, warms up with the shortest. */
static enum status serve_all(struct bench *bench, struct model *model, struct lengths *lengths, int n,
                             struct error *error)
{
    enum status status = STATUS_OK;
    bool warm = false;
    progress_start(bench, lengths->work * n);
    for (int repetition = 0; repetition < n; repetition++)
        for (size_t i = 0; i < lengths->count && status == STATUS_OK; i++) {
            struct length *length = &lengths->list[repetition % 2 ? lengths->count - 1 - i : i];
            if (length->measured)
                continue;
            progress_step(bench, request_work(bench, length), "prompt of %d tokens, request %d of %d", length->prompt,
                          repetition + 1, n);
            if (!warm)
                status = serve(bench, model, length, -1, error);
            warm = true;
            if (status == STATUS_OK)
                status = serve(bench, model, length, repetition, error);
        }
    progress_end(bench);
    return status;
}

static enum status measure_all(struct bench *bench, struct results *results, struct lengths *lengths, int n,
                               struct error *error)
{
    struct model model;
    int64_t longest = 0;
    for (size_t i = 0; i < lengths->count; i++) {
        int64_t positions = (int64_t)lengths->list[i].prompt + lengths->list[i].tokens;
        longest = positions > longest ? positions : longest;
    }
    if (longest > INT32_MAX)
        return error_set(error, STATUS_INPUT, "phases: a prompt and its new tokens are more than %d", INT32_MAX);
    struct bench_need need = {.kv_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, longest),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, 1)};
    if (bench_open_model(bench, &limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = serve_all(bench, &model, lengths, n, error);
    for (size_t i = 0; i < lengths->count && status == STATUS_OK; i++)
        if (!lengths->list[i].measured)
            status = record(bench, results, &lengths->list[i], (size_t)n, error);
    model_free(&model);
    return status;
}

static enum status check(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "peak_ledger_bytes") != results_real(results, row, "peak_formula_bytes"))
            return error_set(error, STATUS_CHECK_FAILED,
                             "phases: with a prompt of %s tokens the ledger's peak is %s bytes, the formula says %s",
                             results_text(results, row, "prompt_tokens"),
                             results_text(results, row, "peak_ledger_bytes"),
                             results_text(results, row, "peak_formula_bytes"));
    return STATUS_OK;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *lengths, size_t i)
{
    predict(bench, results, &((const struct lengths *)lengths)->list[i]);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    struct lengths lengths = {0};
    bool gpu = bench->device->info.multiprocessors > 0;
    const struct int_list *prompts = bench_contexts(bench, "64-4096*4", "16,64");
    const struct int_list *tokens = bench_new_tokens(bench, gpu ? "128" : "32", "8");
    int n = bench_reps(bench, gpu ? 5 : 3, 2);
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    enum status status = lengths_init(&lengths, bench, results, prompts, tokens, (size_t)n, error);
    if (status == STATUS_OK && bench->options.dry_run)
        status = bench_predict_rows(bench, results, predict_nth, &lengths, lengths.count, error);
    else if (status == STATUS_OK)
        status = measure_all(bench, results, &lengths, n, error);
    lengths_free(&lengths);
    return status == STATUS_OK && !bench->options.dry_run ? check(results, error) : status;
}

const struct experiment phases_experiment = {
    .name = "phases",
    .summary = "one request over prompt length: first token, tokens after it, the whole, and what a user feels",
    .needs_device = true,
    .default_model = "qwen2.5-0.5b",
    .uses = USES_CONTEXTS | USES_NEW_TOKENS | USES_REPS | USES_SAMPLES,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
