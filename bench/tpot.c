/* tpot: how does the time per output token rise with context, and is the rise what reading the cache must cost?

   Predicted: a decode step reads all weights once and every sequence's K and V once, so its time is those bytes over
   the read bandwidth of the machine, measured beside it; per context token it rises by batch * KV bytes per token /
   bandwidth. Measured: decode steps at every context in turn, over and over, so that drift hits all contexts alike. */
#include "bench/harness/option_table.h"
#include "bench/harness/timed_batch.h"
#include "engine/work.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_PER_VISIT = 3, WARM_STEPS = 1, PREFILL_ROWS_TPOT = 512 };

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
    {"n", COLUMN_INT, 0, false, "Steps timed."},
    {"weight_bytes", COLUMN_INT, 0, false,
     "Source formula: bytes of weights that a step must read, once for the whole batch."},
    {"kv_bytes", COLUMN_INT, 0, false,
     "Source formula: bytes of K and V that a step must read: batch * context * per token, of a windowed layer its "
     "window "
     "only."},
    {"predicted_ms", COLUMN_REAL, 4, false,
     "(weight_bytes + kv_bytes) / read ceiling measured beside this batch size."},
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
     "Rise of a step's time per token of context: median over repetitions of each repetition's Theil-Sen slope."},
    {"ci95_low", COLUMN_REAL, 3, false, "Lower end of its 95 % interval, ns per token."},
    {"ci95_high", COLUMN_REAL, 3, false, "Upper end of its 95 % interval, ns per token."},
    {"predicted_ns_per_token", COLUMN_REAL, 3, false,
     "Slope of kv_bytes over context / read ceiling: batch * KV bytes per token / ceiling where no layer is windowed."},
    {"resolved", COLUMN_TEXT, 0, false, "yes if the interval is clear of zero, else no: not resolved from noise."},
    {"intercept_ms", COLUMN_REAL, 4, false, "What the line gives at context 0: the weights and all that is fixed."},
    {"residual_max_ms", COLUMN_REAL, 4, false, "Largest distance of a context's median from the line."},
    {"read_ceiling_gbps", COLUMN_REAL, 2, false, "Read bandwidth measured around this batch size's steps (best)."},
    {"interval_from", COLUMN_TEXT, 0, false,
     "repetitions: order statistics of the repetitions' slopes; rows: residuals of the medians (rows kept by "
     "--resume)."},
};
enum { MAIN, FIT };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [FIT] = {"_fit", false, fit_columns, sizeof fit_columns / sizeof *fit_columns},
};

/* One batch size: its sequences, prefilled, and the samples of every context. */
struct group {
    struct bench *bench;
    struct model *model;
    struct timed_batch sequences; /* decoding feeds what was prefilled again, so that a visit restores the state */
    const struct int_list *contexts;
    int batch, reps;
    int32_t *chosen;     /* host [STEPS_PER_VISIT][batch] */
    double *samples;     /* ms, [contexts][reps * STEPS_PER_VISIT] */
    double *launched;    /* likewise, with --compare-graphs; else NULL */
    double *visits;      /* ms, [reps][contexts]: median of a visit's steps */
    uint64_t *checksums; /* [contexts] of the last visit */
    double read_ceiling; /* bytes per second */
};

/* The last of `context` positions, in each of `batch` sequences, sees all of them, or its layer's window. */
static uint64_t kv_read_bytes(const struct bench *bench, int64_t context, int64_t batch)
{
    struct pass_shape step = {.sequences = batch, .start = context - 1, .count = 1, .logits = 1};
    return work_kv_read_bytes(&bench->config, bench->kv_dtype, &step);
}

static uint64_t read_bytes(const struct bench *bench, int64_t context, int64_t batch)
{
    return formula_weight_read_bytes(&bench->config, bench->dtype, batch) + kv_read_bytes(bench, context, batch);
}

static void predict(const struct bench *bench, struct results *results, int64_t context, int64_t batch)
{
    results_set_int(results, "context", context);
    results_set_int(results, "batch", batch);
    results_set_int(results, "weight_bytes", (int64_t)formula_weight_read_bytes(&bench->config, bench->dtype, batch));
    results_set_int(results, "kv_bytes", (int64_t)kv_read_bytes(bench, context, batch));
}

/* ---- a batch size's memory ---- */

/* Tokens that a sequence must have room for: the longest context and the steps after it. */
static int64_t room(const struct int_list *contexts)
{
    return int_list_max(contexts) + STEPS_PER_VISIT;
}

static enum status group_init(struct group *group, struct error *error)
{
    size_t contexts = group->contexts->count, batch = (size_t)group->batch, reps = (size_t)group->reps;
    group->chosen = calloc(batch * STEPS_PER_VISIT, sizeof *group->chosen);
    group->samples = calloc(contexts * reps * STEPS_PER_VISIT, sizeof *group->samples);
    group->visits = calloc(reps * contexts, sizeof *group->visits);
    group->checksums = calloc(contexts, sizeof *group->checksums);
    if (options.compare_graphs)
        group->launched = calloc(contexts * reps * STEPS_PER_VISIT, sizeof *group->launched);
    if ((options.compare_graphs && !group->launched) || !group->chosen || !group->samples || !group->visits ||
        !group->checksums)
        return error_set(error, STATUS_DEVICE, "tpot: out of host memory");
    int tokens = (int)room(group->contexts);
    if (timed_batch_init(&group->sequences, group->bench, group->model, group->batch, tokens, error) != STATUS_OK)
        return error->status;
    return timed_batch_prefill(&group->sequences, tokens, error);
}

static void group_free(struct group *group)
{
    timed_batch_free(&group->sequences);
    free(group->chosen);
    free(group->samples);
    free(group->launched);
    free(group->visits);
    free(group->checksums);
}

/* ---- measuring ---- */

/* Takes the steps of one visit to a context; ms [STEPS_PER_VISIT]. */
static enum status visit(struct group *group, size_t at, double *ms, struct error *error)
{
    double warm_ms;
    struct timed_batch *sequences = &group->sequences;
    int context = (int)group->contexts->values[at], before = context > WARM_STEPS ? context - WARM_STEPS : 0;
    if (timed_batch_rewind(sequences, before, error) != STATUS_OK)
        return error->status;
    for (int i = before; i < context; i++)
        if (timed_batch_pass(sequences, group->batch, 1, &warm_ms, error) != STATUS_OK)
            return error->status;
    for (int i = 0; i < STEPS_PER_VISIT; i++) {
        if (timed_batch_pass(sequences, group->batch, 1, &ms[i], error) != STATUS_OK)
            return error->status;
        memcpy(group->chosen + i * group->batch, sequences->chosen, (size_t)group->batch * sizeof *group->chosen);
    }
    return STATUS_OK;
}

/* It must choose the tokens that the visit before it chose. */
static enum status check_tokens(struct group *group, size_t at, int repetition, bool first, struct error *error)
{
    int64_t context = group->contexts->values[at];
    uint64_t checksum = bench_checksum(group->chosen, (size_t)group->batch * STEPS_PER_VISIT * sizeof *group->chosen);
    if (!first && checksum != group->checksums[at])
        return error_set(error, STATUS_CHECK_FAILED,
                         "tpot: at context %" PRId64 " repetition %d chose other tokens than the one before: "
                         "what is timed is not the same work",
                         context, repetition);
    group->checksums[at] = checksum;
    return STATUS_OK;
}

/* The same visit with every operation launched: what replaying saves. */
static enum status launched_visit(struct group *group, size_t at, int repetition, struct error *error)
{
    struct device *device = group->bench->device;
    double *ms = group->launched + (at * (size_t)group->reps + (size_t)repetition) * STEPS_PER_VISIT;
    device->graphs = 0;
    enum status status = visit(group, at, ms, error);
    device->graphs = 1;
    return status == STATUS_OK ? check_tokens(group, at, repetition, false, error) : status;
}

/* A visit whose times are kept. */
static enum status timed_visit(struct group *group, size_t at, int repetition, struct error *error)
{
    int64_t context = group->contexts->values[at];
    size_t n = (size_t)group->reps * STEPS_PER_VISIT;
    double *samples = group->samples + at * n + (size_t)repetition * STEPS_PER_VISIT;
    if (visit(group, at, samples, error) != STATUS_OK ||
        check_tokens(group, at, repetition, repetition == 0, error) != STATUS_OK)
        return error->status;
    if (group->launched && launched_visit(group, at, repetition, error) != STATUS_OK)
        return error->status;
    group->visits[(size_t)repetition * group->contexts->count + at] = stats_median(samples, STEPS_PER_VISIT);
    char setting[64];
    snprintf(setting, sizeof setting, "context=%" PRId64 ";batch=%d", context, group->batch);
    for (int i = 0; i < STEPS_PER_VISIT; i++)
        if (samples_add(group->bench, setting, repetition, samples[i], "ms", error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* Every repetition visits all contexts, upwards and downwards in turn. A visit stores its tokens' K and V again, by
   decode steps where the prefill had computed them in large products; the pass that is not timed does that once for
   every context, upwards, so that all timed visits find the same values. */
static enum status repeat(struct group *group, struct error *error)
{
    size_t contexts = group->contexts->count;
    for (int repetition = -1; repetition < group->reps; repetition++) {
        if (repetition >= 0)
            progress_step(group->bench, 1.0, "batch %d, repetition %d of %d", group->batch, repetition + 1,
                          group->reps);
        for (size_t i = 0; i < contexts; i++) {
            double warm[STEPS_PER_VISIT];
            enum status status = repetition < 0
                                     ? visit(group, i, warm, error)
                                     : timed_visit(group, repetition % 2 ? contexts - 1 - i : i, repetition, error);
            if (status != STATUS_OK)
                return status;
        }
    }
    return STATUS_OK;
}

static enum status write_rows(const struct group *group, struct results *results, struct error *error)
{
    size_t n = (size_t)group->reps * STEPS_PER_VISIT;
    for (size_t at = 0; at < group->contexts->count; at++) {
        int64_t context = group->contexts->values[at];
        const double *samples = group->samples + at * n;
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
            results_set_real(results, "launched_ms_p50", stats_median(group->launched + at * n, n));
        if (group->launched && n >= STATS_MIN_SPREAD_SAMPLES)
            results_set_real(results, "launched_ms_p95", stats_quantile(group->launched + at * n, n, 0.95));
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

static enum status fit_group(const struct group *group, struct results *fit, struct error *error)
{
    size_t contexts = group->contexts->count;
    if (contexts < 2)
        return STATUS_OK; /* one context has no slope */
    double *x = calloc(contexts, sizeof *x), *kv = calloc(contexts, sizeof *kv);
    enum status status = STATUS_OK;
    if (x == NULL || kv == NULL)
        status = error_set(error, STATUS_DEVICE, "tpot: out of host memory");
    for (size_t i = 0; status == STATUS_OK && i < contexts; i++) {
        x[i] = (double)group->contexts->values[i];
        kv[i] = (double)kv_read_bytes(group->bench, group->contexts->values[i], group->batch);
    }
    if (status == STATUS_OK) {
        struct stats_line line = stats_fit_repeated(x, group->visits, contexts, (size_t)group->reps);
        status = write_fit(fit, group->batch, &line, stats_fit_line(x, kv, contexts).slope, group->read_ceiling,
                           "repetitions", error);
    }
    free(x);
    free(kv);
    return status;
}

/* Relative work of filling the caches, for the time left; a repetition counts 1. */
static double fill_weight(int reps)
{
    return 0.25 * reps;
}

/* The ceiling is measured right before and right after what is held against it; the better one counts. */
static enum status measure(struct group *group, struct results *results, struct error *error)
{
    double before, after;
    progress_step(group->bench, fill_weight(group->reps), "batch %d, filling the caches", group->batch);
    if (bench_read_ceiling(group->bench, &before, error) != STATUS_OK || group_init(group, error) != STATUS_OK ||
        repeat(group, error) != STATUS_OK || bench_read_ceiling(group->bench, &after, error) != STATUS_OK)
        return error->status;
    group->read_ceiling = fmax(before, after) * 1e9;
    return write_rows(group, results, error);
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
                                 const struct int_list *contexts, int64_t batch, int reps, struct error *error)
{
    int64_t *values = calloc(contexts->count, sizeof *values);
    if (values == NULL)
        return error_set(error, STATUS_DEVICE, "tpot: out of host memory");
    struct int_list left = missing(results, contexts, batch, values);
    struct group group = {.bench = bench, .model = model, .contexts = &left, .batch = (int)batch, .reps = reps};
    enum status status = STATUS_OK;
    if (left.count > 0)
        status = measure(&group, results, error);
    else
        progress_step(bench, reps + fill_weight(reps), "batch %d is there already", (int)batch);
    if (status == STATUS_OK)
        status = left.count == contexts->count ? fit_group(&group, fit, error) : fit_rows(results, fit, batch, error);
    group_free(&group);
    free(values);
    return status;
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               const struct int_list *batches, struct error *error)
{
    struct results *fit;
    struct model model;
    int64_t most = int_list_max(batches);
    int reps = bench_reps(bench, 30, 3);
    struct model_limits limits = {.max_rows = most > PREFILL_ROWS_TPOT ? (int)most : PREFILL_ROWS_TPOT,
                                  .max_sequences = (int)most,
                                  .max_blocks = 1};
    struct bench_need need = {.kv_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, most * room(contexts)),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, most)};
    if (results_open(&fit, bench, &tables[FIT], error) != STATUS_OK ||
        bench_open_model(bench, &limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = STATUS_OK;
    progress_start(bench, (double)batches->count * (reps + fill_weight(reps)));
    for (size_t i = 0; i < batches->count && status == STATUS_OK; i++)
        status = measure_batch(bench, &model, results, fit, contexts, batches->values[i], reps, error);
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
    if (room(contexts) > INT_MAX || int_list_max(batches) > FORMULA_MAX_TOKENS / room(contexts))
        return error_set(error, STATUS_DEVICE,
                         "tpot: %" PRId64 " sequences of %" PRId64 " tokens are more than %" PRId64 " tokens in all",
                         int_list_max(batches), room(contexts), FORMULA_MAX_TOKENS);
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
