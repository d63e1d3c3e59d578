/* slope: does memory rise with context by exactly the formula's bytes per token?

   Predicted: KV bytes = context * 2 * layers * KV heads * head_dim * bytes. Measured at each context on a fresh exact
   cache, by three sources: the cache's tensors, the allocator's ledger, and what the machine sees from outside. A line
   fitted through each gives bytes per token. */
#include "bench/harness/prefilled.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static const struct column columns[] = {
    {"context", COLUMN_INT, 0, true, "Tokens in the cache: the prompt that was prefilled."},
    {"kv_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: 2 * layers * KV heads * head_dim * bytes per value * context, from the config alone."},
    {"kv_tensor_bytes", COLUMN_INT, 0, false, "Source tensors: sum over the K and V tensors that the cache holds."},
    {"kv_ledger_bytes", COLUMN_INT, 0, false,
     "Source ledger: growth of the allocator's live bytes tagged kv from before the prefill to after it."},
    {"driver_bytes", COLUMN_INT, 0, false,
     "Source driver: growth of the process as seen from outside (resident pages on a CPU, memory in use on a GPU) from "
     "before the cache exists to after the prefill. Whole pages, and whatever else changed in between."},
};
static const struct column fit_columns[] = {
    {"source", COLUMN_TEXT, 0, true, "Where the bytes were counted: tensors, ledger or driver."},
    {"slope_bytes_per_token", COLUMN_REAL, 3, false, "Slope of the least-squares line through bytes over context."},
    {"formula_bytes_per_token", COLUMN_INT, 0, false, "Source formula: 2 * layers * KV heads * head_dim * bytes."},
    {"deviation_percent", COLUMN_REAL, 3, false, "How far the slope is from the formula, in percent of the formula."},
    {"limit_percent", COLUMN_REAL, 3, false,
     "Largest deviation that passes: 0 for tensors and ledger; for driver 5 % and what rounding to pages can make."},
    {"intercept_bytes", COLUMN_REAL, 0, false, "What the line gives at context 0."},
    {"residual_max_bytes", COLUMN_REAL, 0, false, "Largest distance of a point from the line."},
};
enum { MAIN, FIT };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [FIT] = {"_fit", false, fit_columns, sizeof fit_columns / sizeof *fit_columns},
};

static void predict(const struct bench *bench, struct results *results, int64_t context)
{
    results_set_int(results, "context", context);
    results_set_int(results, "kv_formula_bytes", (int64_t)formula_kv_bytes(&bench->config, bench->kv_dtype, context));
}

static enum status measure(struct bench *bench, struct results *results, struct model *model, int64_t context,
                           struct error *error)
{
    struct prefilled prefilled;
    enum status status = prefilled_init(&prefilled, bench, model, (int)context, LOGITS_NONE, error);
    if (status == STATUS_OK) {
        predict(bench, results, context);
        results_set_int(results, "kv_tensor_bytes", (int64_t)prefilled.tensor_bytes);
        results_set_int(results, "kv_ledger_bytes", (int64_t)prefilled.ledger_kv_bytes);
        if (prefilled.driver_missing == NULL)
            results_set_int(results, "driver_bytes", prefilled.driver_bytes);
        else
            results_set_missing(results, "driver_bytes", prefilled.driver_missing);
        status = results_end_row(results, error);
    }
    prefilled_free(&prefilled, model);
    return status;
}

/* Work of a prefill for the estimate of time left: products grow with the tokens, attention with their square. */
static double prefill_work(const struct bench *bench, int64_t context)
{
    const struct config *config = &bench->config;
    double attention = 2.0 * (double)(config->num_hidden_layers * config->num_attention_heads * config->head_dim);
    return (double)context * (2.0 * (double)formula_parameters(config) + attention * (double)context);
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               struct error *error)
{
    struct model model;
    struct bench_need need = {.kv_bytes = prefilled_kv_bytes(bench, int_list_max(contexts))};
    if (bench_open_model(bench, &prefill_limits, &need, &model, error) != STATUS_OK)
        return error->status;
    double work = 0.0;
    for (size_t i = 0; i < contexts->count; i++)
        work += prefill_work(bench, contexts->values[i]);
    enum status status = prefilled_warm_up(bench, &model, contexts, error);
    progress_start(bench, work);
    for (size_t i = 0; i < contexts->count && status == STATUS_OK; i++) {
        int64_t context = contexts->values[i];
        progress_step(bench, prefill_work(bench, context), "prefill of %" PRId64 " tokens", context);
        if (!results_has(results, (struct key[]){{"context", context}}, 1))
            status = measure(bench, results, &model, context, error);
    }
    progress_end(bench);
    model_free(&model);
    return status;
}

/* Deviation in percent that rounding every tensor up to a page could make between the first and the last context. */
static double page_limit_percent(const struct bench *bench, double range, double formula)
{
    double tensors = 2.0 * (double)bench->config.num_hidden_layers;
    return 100.0 * tensors * (double)bench->device->info.page_bytes / (range * formula);
}

/* One source's points through a line, into one row of the fit; *deviates if over its limit. */
static enum status fit_source(const struct bench *bench, const struct results *results, struct results *fit,
                              const char *source, const char *column, bool *deviates, struct error *error)
{
    size_t rows = results_rows(results), n = 0;
    double *x = calloc(rows, sizeof *x), *y = calloc(rows, sizeof *y);
    if (x == NULL || y == NULL) {
        free(x);
        free(y);
        return error_set(error, STATUS_DEVICE, "slope: out of host memory");
    }
    double least = INFINITY, most = 0.0;
    for (size_t row = 0; row < rows; row++) {
        double bytes = results_real(results, row, column);
        if (isnan(bytes))
            continue;
        x[n] = results_real(results, row, "context");
        least = fmin(least, x[n]);
        most = fmax(most, x[n]);
        y[n++] = bytes;
    }
    enum status status = STATUS_OK;
    if (n >= 2) {
        struct stats_line line = stats_fit_line(x, y, n);
        double formula = (double)formula_kv_bytes_per_token(&bench->config, bench->kv_dtype);
        double deviation = 100.0 * (line.slope - formula) / formula;
        bool outside = column[0] == 'd';
        double limit = outside ? 5.0 + page_limit_percent(bench, most - least, formula) : 0.0;
        results_set_text(fit, "source", source);
        results_set_real(fit, "slope_bytes_per_token", line.slope);
        results_set_int(fit, "formula_bytes_per_token", (int64_t)formula);
        results_set_real(fit, "deviation_percent", deviation);
        results_set_real(fit, "limit_percent", limit);
        results_set_real(fit, "intercept_bytes", line.intercept);
        results_set_real(fit, "residual_max_bytes", line.residual_max);
        /* 1e-9: the fit's own rounding, far below a byte. */
        *deviates = *deviates || fabs(deviation) > limit + 1e-9;
        status = results_end_row(fit, error);
    }
    free(x);
    free(y);
    return status;
}

static enum status fit_all(struct bench *bench, const struct results *results, struct error *error)
{
    struct results *fit;
    bool deviates = false;
    if (prefilled_check_rows(results, "context", error) != STATUS_OK)
        return error->status;
    if (results_rows(results) < 2)
        return STATUS_OK; /* one context has no slope */
    if (results_open(&fit, bench, &tables[FIT], error) != STATUS_OK ||
        fit_source(bench, results, fit, "tensors", "kv_tensor_bytes", &deviates, error) != STATUS_OK ||
        fit_source(bench, results, fit, "ledger", "kv_ledger_bytes", &deviates, error) != STATUS_OK ||
        fit_source(bench, results, fit, "driver", "driver_bytes", &deviates, error) != STATUS_OK)
        return error->status;
    return deviates ? error_set(error, STATUS_CHECK_FAILED,
                                "slope: a source deviates from the formula by more than its "
                                "limit (see deviation_percent in slope_fit)")
                    : STATUS_OK;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *contexts, size_t i)
{
    predict(bench, results, ((const struct int_list *)contexts)->values[i]);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    const struct int_list *contexts = bench_contexts(bench, "512-8192*2", "64-512*2");
    if (results_open(&results, bench, &tables[MAIN], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, contexts, contexts->count, error);
    if (measure_all(bench, results, contexts, error) != STATUS_OK)
        return error->status;
    return fit_all(bench, results, error);
}

const struct experiment slope_experiment = {
    .name = "slope",
    .summary = "memory over context, by tensors, ledger and driver, and its slope against the formula",
    .needs_device = true,
    .default_model = "qwen2.5-0.5b",
    .uses = USES_CONTEXTS,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
