/* tpot: how does the time per output token rise with context, and is the rise what reading the cache must cost?

   Predicted: a decode step reads all weights once and every sequence's K and V once, so its time is those bytes over
   the read bandwidth of the machine, measured beside it; per context token it rises by batch * KV bytes per token /
   bandwidth. Measured: decode steps at every context in turn, over and over, so that drift hits all contexts alike,
   and until the interval of the rise is narrow (or it has taken too long). */
#include "bench/harness/option_table.h"
#include "bench/tpot_group.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PREFILL_ROWS_TPOT = 512 };

static struct tpot_options {
    bool compare_graphs;
} options;
static const struct option_row option_rows[] = {
    {.name = "compare-graphs",
     .kind = OPTION_FLAG,
     .offset = offsetof(struct tpot_options, compare_graphs),
     .help = "on a GPU: time the same steps launched one by one too, in turn with the replayed ones"},
    {0},
};
static const struct option_set own_options = {option_rows, &options};

static const struct column columns[] = {
    {"context", COLUMN_INT, 0, true, "Tokens in each sequence's cache when the first timed step begins."},
    {"batch", COLUMN_INT, 0, true, "Sequences that decode together, each with a cache of its own."},
    {"tpot_ms_p10", COLUMN_REAL, 4, false, "Time per output token (one decode step of the batch): tenth percentile."},
    {"tpot_ms_p50", COLUMN_REAL, 4, false, "Median of the same steps."},
    {"tpot_ms_p90", COLUMN_REAL, 4, false, "Ninetieth percentile of the same steps."},
    {"n", COLUMN_INT, 0, false,
     "Steps timed: three in each repetition, of which there are as many as tpot_fit.csv says."},
    {"weight_bytes", COLUMN_INT, 0, false,
     "Source formula: bytes of weights that a step must read, once for the whole batch."},
    {"kv_bytes", COLUMN_INT, 0, false,
     "Source formula: bytes of K and V that a step must read: batch * context * per token, of a windowed layer its "
     "window "
     "only."},
    {"predicted_ms", COLUMN_REAL, 4, false,
     "(weight_bytes + kv_bytes) / read ceiling measured in turn with this batch size."},
    {"effective_gbps", COLUMN_REAL, 2, false, "(weight_bytes + kv_bytes) / tpot_ms_p50, in 10^9 bytes per second."},
    {"percent_of_read_ceiling", COLUMN_REAL, 1, false,
     "effective_gbps in percent of the read ceiling; over 100 means that the ceiling was measured too low."},
    {"tokens_checksum", COLUMN_TEXT, 0, false,
     "FNV-1a of the tokens that the timed steps chose: the same work in every repetition."},
    {"tpot_ms_p95", COLUMN_REAL, 4, false, "Ninety-fifth percentile of the same steps as tpot_ms_p50."},
    {"launched_ms_p50", COLUMN_REAL, 4, false,
     "With --compare-graphs: median of as many steps whose operations were launched one by one, as with --graphs off, "
     "in "
     "turn with the replayed ones of the other columns. Empty without."},
    {"launched_ms_p95", COLUMN_REAL, 4, false, "Ninety-fifth percentile of those."},
};
static const struct column fit_columns[] = {
    {"batch", COLUMN_INT, 0, true, "Sequences that decode together."},
    {"slope_ns_per_token", COLUMN_REAL, 3, false,
     "Rise of a step's time per token of context: median over repetitions of each repetition's Theil-Sen slope through "
     "the fastest step of each visit, pairs weighed by their distance."},
    {"ci95_low", COLUMN_REAL, 3, false, "Lower end of its 95 % interval, ns per token."},
    {"ci95_high", COLUMN_REAL, 3, false, "Upper end of its 95 % interval, ns per token."},
    {"predicted_ns_per_token", COLUMN_REAL, 3, false,
     "Slope of kv_bytes over context / read ceiling: batch * KV bytes per token / ceiling where no layer is windowed."},
    {"resolved", COLUMN_TEXT, 0, false, "yes if the interval is clear of zero, else no: not resolved from noise."},
    {"intercept_ms", COLUMN_REAL, 4, false, "What the line gives at context 0: the weights and all that is fixed."},
    {"residual_max_ms", COLUMN_REAL, 4, false,
     "Largest distance from the line of a context's median over the visits' fastest steps."},
    {"read_ceiling_gbps", COLUMN_REAL, 2, false,
     "Read bandwidth: median of samples before the visits that are not timed and before every repetition, each the "
     "best of three passes."},
    {"interval_from", COLUMN_TEXT, 0, false,
     "repetitions: order statistics of the repetitions' slopes; rows: residuals of the medians (rows kept by "
     "--resume)."},
    {"repetitions", COLUMN_INT, 0, false, "Visits to every context that the slope is the median of."},
    {"stopped_by", COLUMN_TEXT, 0, false,
     "width: half of the interval was within a tenth of the prediction (by the ceiling measured before the steps); "
     "most: "
     "it was not after 90 repetitions; time: it was not after a minute of steps; given: --reps or --quick said how "
     "many."},
};
enum { MAIN, FIT };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [FIT] = {"_fit", false, fit_columns, sizeof fit_columns / sizeof *fit_columns},
};

static uint64_t read_bytes(const struct bench *bench, int64_t context, int64_t batch)
{
    return formula_weight_read_bytes(&bench->config, bench->dtype, batch) + tpot_kv_read_bytes(bench, context, batch);
}

static void predict(const struct bench *bench, struct results *results, int64_t context, int64_t batch)
{
    results_set_int(results, "context", context);
    results_set_int(results, "batch", batch);
    results_set_int(results, "weight_bytes", (int64_t)formula_weight_read_bytes(&bench->config, bench->dtype, batch));
    results_set_int(results, "kv_bytes", (int64_t)tpot_kv_read_bytes(bench, context, batch));
}

static enum status write_rows(const struct tpot_group *group, struct results *results, struct error *error)
{
    size_t n = group->repeats.count * TPOT_STEPS_PER_VISIT, stride = group->repeats.rule.most * TPOT_STEPS_PER_VISIT;
    for (size_t at = 0; at < group->contexts->count; at++) {
        int64_t context = group->contexts->values[at];
        const double *samples = group->samples + at * stride;
        double bytes = (double)read_bytes(group->bench, context, group->batch), p50 = stats_median(samples, n);
        char checksum[32];
        snprintf(checksum, sizeof checksum, "%016" PRIx64, group->checksums[at]);
        predict(group->bench, results, context, group->batch);
        if (n >= STATS_MIN_SPREAD_SAMPLES) {
            results_set_real(results, "tpot_ms_p10", stats_quantile(samples, n, 0.1));
            results_set_real(results, "tpot_ms_p90", stats_quantile(samples, n, 0.9));
            results_set_real(results, "tpot_ms_p95", stats_quantile(samples, n, 0.95));
        }
        if (group->launched)
            results_set_real(results, "launched_ms_p50", stats_median(group->launched + at * stride, n));
        if (group->launched && n >= STATS_MIN_SPREAD_SAMPLES)
            results_set_real(results, "launched_ms_p95", stats_quantile(group->launched + at * stride, n, 0.95));
        results_set_real(results, "tpot_ms_p50", p50);
        results_set_int(results, "n", (int64_t)n);
        results_set_real(results, "predicted_ms", bytes / group->read_ceiling * 1e3);
        results_set_real(results, "effective_gbps", bytes / p50 / 1e6);
        results_set_ceiling_percent(results, "percent_of_read_ceiling",
                                    100.0 * bytes / (p50 / 1e3) / group->read_ceiling);
        results_set_text(results, "tokens_checksum", checksum);
        if (results_end_row(results, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

static enum status write_fit(struct results *fit, int batch, const struct stats_line *line, double kv_bytes_per_token,
                             double read_ceiling, const char *interval_from, struct error *error)
{
    bool resolved = line->interval_known && (line->slope_low > 0.0 || line->slope_high < 0.0);
    results_set_int(fit, "batch", batch);
    results_set_real(fit, "slope_ns_per_token", line->slope * 1e6);
    if (line->interval_known) {
        results_set_real(fit, "ci95_low", line->slope_low * 1e6);
        results_set_real(fit, "ci95_high", line->slope_high * 1e6);
    }
    results_set_real(fit, "predicted_ns_per_token", kv_bytes_per_token / read_ceiling * 1e9);
    results_set_text(fit, "resolved", resolved ? "yes" : "no");
    results_set_real(fit, "intercept_ms", line->intercept);
    results_set_real(fit, "residual_max_ms", line->residual_max);
    results_set_real(fit, "read_ceiling_gbps", read_ceiling / 1e9);
    results_set_text(fit, "interval_from", interval_from);
    return results_end_row(fit, error);
}

static enum status fit_group(const struct tpot_group *group, struct results *results, struct error *error)
{
    if (group->contexts->count < 2)
        return STATUS_OK;
    struct stats_line line = tpot_group_fit(group);
    results_set_int(results, "repetitions", (int64_t)group->repeats.count);
    results_set_text(results, "stopped_by", tpot_group_stopped_by(group));
    return write_fit(results, group->batch, &line, tpot_group_kv_bytes_per_token(group), group->read_ceiling,
                     "repetitions", error);
}

/* ---- the experiment ---- */

/* The contexts of this batch size that have no row yet (--resume keeps rows). values: room for all of them. */
static struct int_list missing(const struct results *results, const struct int_list *contexts, int64_t batch,
                               int64_t *values)
{
    struct int_list list = {.values = values};
    for (size_t i = 0; i < contexts->count; i++)
        if (!results_has(results, (struct key[]){{"context", contexts->values[i]}, {"batch", batch}}, 2))
            values[list.count++] = contexts->values[i];
    return list;
}

/* The fit of a batch size some of whose rows --resume kept: through the medians, since the samples are gone. */
static enum status fit_rows(const struct results *results, struct results *fit, int64_t batch, struct error *error)
{
    size_t rows = results_rows(results), n = 0;
    double *x = calloc(rows, sizeof *x), *y = calloc(rows, sizeof *y), *kv = calloc(rows, sizeof *kv), ceiling = NAN;
    enum status status = STATUS_OK;
    if (x == NULL || y == NULL || kv == NULL)
        status = error_set(error, STATUS_DEVICE, "tpot: out of host memory");
    for (size_t row = 0; status == STATUS_OK && row < rows; row++)
        if (results_real(results, row, "batch") == (double)batch) {
            x[n] = results_real(results, row, "context");
            kv[n] = results_real(results, row, "kv_bytes");
            y[n] = results_real(results, row, "tpot_ms_p50");
            ceiling =
                (results_real(results, row, "weight_bytes") + kv[n]) / results_real(results, row, "predicted_ms") * 1e3;
            n++;
        }
    if (status == STATUS_OK && n >= 2) {
        struct stats_line line = stats_fit_line(x, y, n);
        status = write_fit(fit, (int)batch, &line, stats_fit_line(x, kv, n).slope, ceiling, "rows", error);
    }
    free(x);
    free(y);
    free(kv);
    return status;
}

static enum status measure_batch(struct bench *bench, struct model *model, struct results *results, struct results *fit,
                                 const struct int_list *contexts, int64_t batch, struct error *error)
{
    int64_t *values = calloc(contexts->count, sizeof *values);
    if (values == NULL)
        return error_set(error, STATUS_DEVICE, "tpot: out of host memory");
    struct int_list left = missing(results, contexts, batch, values);
    struct tpot_group group = {0};
    enum status status = STATUS_OK;
    if (left.count > 0)
        status = tpot_group_measure(&group, bench, model, &left, (int)batch, options.compare_graphs, error);
    else
        progress_step(bench, tpot_group_weight, "batch %d is there already", (int)batch);
    if (status == STATUS_OK && left.count > 0)
        status = write_rows(&group, results, error);
    if (status == STATUS_OK)
        status = left.count == contexts->count ? fit_group(&group, fit, error) : fit_rows(results, fit, batch, error);
    tpot_group_free(&group);
    free(values);
    return status;
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               const struct int_list *batches, struct error *error)
{
    struct results *fit;
    struct model model;
    int64_t most = int_list_max(batches);
    struct model_limits limits = {.max_rows = most > PREFILL_ROWS_TPOT ? (int)most : PREFILL_ROWS_TPOT,
                                  .max_sequences = (int)most,
                                  .max_blocks = 1};
    struct bench_need need = {.kv_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, most * tpot_room(contexts)),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, most)};
    if (results_open(&fit, bench, &tables[FIT], error) != STATUS_OK ||
        bench_open_model(bench, &limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = STATUS_OK;
    progress_start(bench, (double)batches->count * tpot_group_weight);
    for (size_t i = 0; i < batches->count && status == STATUS_OK; i++)
        status = measure_batch(bench, &model, results, fit, contexts, batches->values[i], error);
    progress_end(bench);
    model_free(&model);
    return status;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    const struct int_list *const *grid = of; /* contexts, batches */
    predict(bench, results, grid[0]->values[i % grid[0]->count], grid[1]->values[i / grid[0]->count]);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    const struct int_list *contexts = bench_contexts(bench, "128-8192*2", "16-64*2");
    const struct int_list *batches = bench_batches(bench, "1,8", "1,8");
    bool replays = bench->device->info.multiprocessors > 0 && bench->device->graphs;
    if (options.compare_graphs && !replays)
        return error_set(error, STATUS_INPUT, "--compare-graphs: %s; leave it out",
                         bench->options.graphs_off ? "--graphs off replays nothing to compare with"
                                                   : "a CPU calls its operations one by one, it has no graphs");
    if (tpot_room(contexts) > INT_MAX || int_list_max(batches) > FORMULA_MAX_TOKENS / tpot_room(contexts))
        return error_set(error, STATUS_DEVICE,
                         "tpot: %" PRId64 " sequences of %" PRId64 " tokens are more than %" PRId64 " tokens in all",
                         int_list_max(batches), tpot_room(contexts), FORMULA_MAX_TOKENS);
    if (results_open(&results, bench, &tables[MAIN], error) != STATUS_OK)
        return error->status;
    const struct int_list *const grid[] = {contexts, batches};
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, grid, batches->count * contexts->count, error);
    return measure_all(bench, results, contexts, batches, error);
}

const struct experiment tpot_experiment = {
    .name = "tpot",
    .summary = "time per output token over context and batch, against bytes to read over read bandwidth",
    .needs_device = true,
    .default_model = "qwen2.5-0.5b",
    .uses = USES_CONTEXTS | USES_BATCH | USES_REPS | USES_SAMPLES,
    .own = &own_options,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
