/* profile: which operation takes the time of a prefill and of a decode step, and what is lost between them?

   Predicted: bytes and floating-point operations of every operation from its shapes, of the whole pass from the config.
   Measured: the pass with every operation timed (kernels/profile.h), and beside it, in turn, the same pass with nothing
   timed inside, which says what the looking costs; both ceilings in the same run. Where the device counts the traffic
   of its memory, one more pass is counted. */
#include "bench/profile_group.h"
#include "bench/profile_rows.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static const struct column columns[] = {
    {"phase", COLUMN_TEXT, 0, true,
     "prefill: context tokens of each sequence. decode: one step of the batch, after context tokens."},
    {"context", COLUMN_INT, 0, true, "Tokens of each sequence: passed in the prefill, held before the decode step."},
    {"batch", COLUMN_INT, 0, true, "Sequences in the pass."},
    {"graphs", COLUMN_TEXT, 0, true,
     "on: the pass was recorded before and replayed at once; off: launched one by one."},
    {"operation", COLUMN_TEXT, 0, true,
     "What was called, products with their widths, in -> out. gaps: when nothing ran between two operations (on a GPU "
     "that is traced: two kernels). pass: from the first start to the last end."},
    {"calls", COLUMN_INT, 0, false, "Calls in the pass; of gaps their number."},
    {"time_ms", COLUMN_REAL, 4, false,
     "Sum over the calls, median of the repetitions; of the operation's kernels where those are traced."},
    {"share_percent", COLUMN_REAL, 1, false, "time_ms in percent of the pass."},
    {"bytes", COLUMN_INT, 0, false,
     "Source formula: what the calls must move, each input and output once; of a pass weights, and K and V read and "
     "written."},
    {"gbps", COLUMN_REAL, 2, false, "bytes / time_ms, in 10^9 bytes per second."},
    {"percent_of_read_ceiling", COLUMN_REAL, 1, false,
     "gbps in percent of the read ceiling. Of an operation it may be over 100: activations lie in a cache."},
    {"flops", COLUMN_INT, 0, false, "Source formula: of products and attention; empty for what has hardly any."},
    {"tflops", COLUMN_REAL, 4, false, "flops / time_ms, in 10^12 per second."},
    {"percent_of_matrix_ceiling", COLUMN_REAL, 1, false, "tflops in percent of the matrix ceiling."},
    {"launches", COLUMN_INT, 0, false, "Kernels that the calls launched; empty where kernels are not traced."},
    {"kernels", COLUMN_TEXT, 0, false, "Their names."},
    {"timed_by", COLUMN_TEXT, 0, false,
     "clock: around each call, which is done when it returns. cupti: records of the kernels. events: on the device, "
     "around each call, where kernels cannot be traced; they take time between kernels themselves."},
    {"n", COLUMN_INT, 0, false, "Repetitions."},
    {"plain_ms", COLUMN_REAL, 4, false,
     "The same pass with nothing timed inside, from outside and with its upload and download: median of n."},
    {"dram_read_bytes", COLUMN_INT, 0, false,
     "Source counter: bytes that the device's memory gave in one such pass, the choice of tokens included."},
    {"dram_write_bytes", COLUMN_INT, 0, false, "Source counter: bytes that it took."},
    {"tokens_checksum", COLUMN_TEXT, 0, false,
     "FNV-1a of the tokens chosen: the same in every pass, timed inside or not."},
    {"hooks_percent", COLUMN_REAL, 3, false,
     "What looking costs: how much longer the same work takes, from outside, with its operations timed, in percent. "
     "Median of pairs in turn, A B B A: of a prefill the n passes, of decode the fastest of three steps."},
    {"hooks_ci95_low", COLUMN_REAL, 3, false, "Lower end of its 95 % interval, from order statistics of the pairs."},
    {"hooks_ci95_high", COLUMN_REAL, 3, false, "Upper end of its 95 % interval."},
    {"hooks_pairs", COLUMN_INT, 0, false,
     "Pairs: of a prefill n; of decode until half of the interval is a third of the limit of 0.5 %, or for 20 s."},
    {"hooks_verdict", COLUMN_TEXT, 0, false,
     "below: the whole interval is below 0.5 %; above: all of it is above; not resolved: it holds 0.5 %, or is not "
     "known (fewer than 6 pairs)."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

/* ---- rows ---- */

static bool recorded(const struct results *results, const struct profile_group *group,
                     const struct profile_series *series, const char *operation)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "context") == group->context &&
            results_real(results, row, "batch") == group->batch &&
            strcmp(results_text(results, row, "phase"), profile_phase_names[series->phase]) == 0 &&
            strcmp(results_text(results, row, "graphs"), series->graphs ? "on" : "off") == 0 &&
            strcmp(results_text(results, row, "operation"), operation) == 0)
            return true;
    return false;
}

static void set_keys(struct results *results, enum profile_phase phase, int64_t context, int64_t batch, bool graphs,
                     const char *operation)
{
    results_set_text(results, "phase", profile_phase_names[phase]);
    results_set_int(results, "context", context);
    results_set_int(results, "batch", batch);
    results_set_text(results, "graphs", graphs ? "on" : "off");
    results_set_text(results, "operation", operation);
}

/* Work and rates; a clock that did not move gives none. */
static void set_work(struct results *results, double ms, uint64_t bytes, uint64_t flops,
                     const struct profile_group *group)
{
    results_set_int(results, "bytes", (int64_t)bytes);
    if (flops)
        results_set_int(results, "flops", (int64_t)flops);
    if (ms <= 0)
        return;
    double per_s = 1e3 / ms;
    results_set_real(results, "gbps", (double)bytes * per_s / 1e9);
    results_set_real(results, "percent_of_read_ceiling", 100.0 * (double)bytes * per_s / group->read_ceiling);
    if (!flops)
        return;
    results_set_real(results, "tflops", (double)flops * per_s / 1e12);
    results_set_real(results, "percent_of_matrix_ceiling", 100.0 * (double)flops * per_s / group->matrix_ceiling);
}

static enum status write_operation(struct results *results, const struct profile_group *group,
                                   const struct profile_series *series, const struct profile_row *row,
                                   const struct profile_medians *medians, struct error *error)
{
    const struct profile_operation *operation = row->operation;
    if (recorded(results, group, series, operation->name))
        return STATUS_OK;
    set_keys(results, series->phase, group->context, group->batch, series->graphs, operation->name);
    results_set_int(results, "calls", operation->calls);
    results_set_real(results, "time_ms", row->ms);
    if (medians->pass_ms > 0)
        results_set_real(results, "share_percent", 100.0 * row->ms / medians->pass_ms);
    if (operation->bytes)
        set_work(results, row->ms, operation->bytes, operation->flops, group);
    if (operation->launches) {
        results_set_int(results, "launches", operation->launches);
        results_set_text(results, "kernels", operation->kernels);
    }
    results_set_text(results, "timed_by", series->passes[0].timed_by);
    results_set_int(results, "n", group->n);
    return results_end_row(results, error);
}

static enum status write_gaps(struct results *results, const struct profile_group *group,
                              const struct profile_series *series, const struct profile_medians *medians,
                              struct error *error)
{
    if (recorded(results, group, series, "gaps"))
        return STATUS_OK;
    set_keys(results, series->phase, group->context, group->batch, series->graphs, "gaps");
    results_set_int(results, "calls", medians->gaps);
    results_set_real(results, "time_ms", medians->gap_ms);
    if (medians->pass_ms > 0)
        results_set_real(results, "share_percent", 100.0 * medians->gap_ms / medians->pass_ms);
    results_set_text(results, "timed_by", series->passes[0].timed_by);
    results_set_int(results, "n", group->n);
    return results_end_row(results, error);
}

/* Noise is no reason to fail, so what looking costs is said and no check. */
static void set_hooks(struct results *results, const struct profile_group *group, const struct profile_series *series)
{
    struct stats_interval cost = stats_median_interval(series->hooks_percent, series->pairs);
    const char *verdict = profile_hooks_verdict(&cost, PROFILE_HOOKS_LIMIT_PERCENT);
    char interval[64] = "no interval from so few";
    results_set_real(results, "hooks_percent", cost.middle);
    if (cost.known) {
        results_set_real(results, "hooks_ci95_low", cost.low);
        results_set_real(results, "hooks_ci95_high", cost.high);
        snprintf(interval, sizeof interval, "95 %% interval %.2f to %.2f", cost.low, cost.high);
    }
    results_set_int(results, "hooks_pairs", (int64_t)series->pairs);
    results_set_text(results, "hooks_verdict", verdict);
    output_note(
        group->bench, "profile: %s, context %d, batch %d%s: looking costs %.2f %% (%s; %zu pairs): %s%s %.1f %%",
        profile_phase_names[series->phase], group->context, group->batch, series->graphs ? ", replayed" : "",
        cost.middle, interval, series->pairs, verdict, verdict[0] == 'n' ? " from" : "", PROFILE_HOOKS_LIMIT_PERCENT);
}

/* The last row of a series: once it is there, all of it is. */
static enum status write_pass(struct results *results, const struct profile_group *group,
                              const struct profile_series *series, const struct profile_medians *medians,
                              struct error *error)
{
    const struct bench *bench = group->bench;
    struct pass_shape shape = profile_shape(series->phase, group->context, group->batch);
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, group->checksums[series->phase]);
    set_keys(results, series->phase, group->context, group->batch, series->graphs, "pass");
    results_set_int(results, "calls", 1);
    results_set_real(results, "time_ms", medians->pass_ms);
    results_set_real(results, "share_percent", 100.0);
    set_work(results, medians->pass_ms, work_bytes(&bench->config, bench->dtype, bench->kv_dtype, &shape),
             work_flops(&bench->config, &shape), group);
    results_set_text(results, "timed_by", series->passes[0].timed_by);
    results_set_int(results, "n", group->n);
    results_set_real(results, "plain_ms", stats_median(series->plain_ms, (size_t)group->n));
    if (series->counted) {
        results_set_int(results, "dram_read_bytes", (int64_t)series->counters.read_bytes);
        results_set_int(results, "dram_write_bytes", (int64_t)series->counters.written_bytes);
    } else {
        results_set_missing(results, "dram_read_bytes", group->uncounted);
    }
    results_set_text(results, "tokens_checksum", checksum);
    set_hooks(results, group, series);
    return results_end_row(results, error);
}

static enum status write_series(struct results *results, const struct profile_group *group,
                                const struct profile_series *series, struct error *error)
{
    struct profile_medians medians = {0};
    enum status status = STATUS_OK;
    if (recorded(results, group, series, "pass"))
        return STATUS_OK;
    status = profile_medians_of(&medians, series->passes, (size_t)group->n, error);
    for (size_t i = 0; i < medians.count && status == STATUS_OK; i++)
        status = write_operation(results, group, series, &medians.rows[i], &medians, error);
    if (status == STATUS_OK)
        status = write_gaps(results, group, series, &medians, error);
    if (status == STATUS_OK)
        status = write_pass(results, group, series, &medians, error);
    profile_medians_free(&medians);
    return status;
}

/* Is there a series that --resume has not kept? */
static bool is_missing(struct bench *bench, const struct results *results, int context, int batch)
{
    struct profile_group group = {.context = context, .batch = batch};
    for (int i = 0; i < profile_series_count(bench); i++) {
        struct profile_series series = {.phase = i == PROFILE_PREFILL_OFF ? PROFILE_PREFILL : PROFILE_DECODE,
                                        .graphs = i == PROFILE_DECODE_ON};
        if (!recorded(results, &group, &series, "pass"))
            return true;
    }
    return false;
}

static enum status measure_group(struct bench *bench, struct results *results, int context, int batch,
                                 struct error *error)
{
    struct profile_group group = {0};
    if (!is_missing(bench, results, context, batch)) {
        progress_step(bench, profile_group_weight(bench, context, batch), "context %d, batch %d is there already",
                      context, batch);
        return STATUS_OK;
    }
    enum status status = profile_group_measure(&group, bench, context, batch, error);
    for (int i = 0; i < group.series_count && status == STATUS_OK; i++)
        status = write_series(results, &group, &group.series[i], error);
    profile_group_free(&group);
    return status;
}

/* ---- the experiment ---- */

struct settings {
    const struct int_list *contexts, *batches;
};

static void predict(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    const struct settings *settings = of;
    enum profile_phase phase = i % 2 ? PROFILE_DECODE : PROFILE_PREFILL;
    int64_t context = settings->contexts->values[i / 2 % settings->contexts->count];
    int64_t batch = settings->batches->values[i / 2 / settings->contexts->count];
    struct pass_shape shape = profile_shape(phase, context, batch);
    set_keys(results, phase, context, batch, false, "pass");
    results_set_int(results, "bytes", (int64_t)work_bytes(&bench->config, bench->dtype, bench->kv_dtype, &shape));
    results_set_int(results, "flops", (int64_t)work_flops(&bench->config, &shape));
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    bool gpu = bench->device->info.multiprocessors > 0;
    const struct settings settings = {bench_contexts(bench, gpu ? "1024,4096" : "512", "32"),
                                      bench_batches(bench, "1", "1")};
    const struct int_list *contexts = settings.contexts, *batches = settings.batches;
    if (int_list_max(contexts) >= INT_MAX || int_list_max(batches) > FORMULA_MAX_TOKENS / int_list_max(contexts))
        return error_set(error, STATUS_DEVICE,
                         "profile: %" PRId64 " sequences of %" PRId64 " tokens are more than %" PRId64 " tokens in all",
                         int_list_max(batches), int_list_max(contexts), FORMULA_MAX_TOKENS);
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict, &settings, 2 * contexts->count * batches->count, error);
    enum status status = STATUS_OK;
    double weight = 0;
    for (size_t i = 0; i < batches->count * contexts->count; i++)
        weight +=
            profile_group_weight(bench, contexts->values[i % contexts->count], batches->values[i / contexts->count]);
    progress_start(bench, weight);
    for (size_t b = 0; b < batches->count && status == STATUS_OK; b++)
        for (size_t c = 0; c < contexts->count && status == STATUS_OK; c++)
            status = measure_group(bench, results, (int)contexts->values[c], (int)batches->values[b], error);
    progress_end(bench);
    return status;
}

const struct experiment profile_experiment = {
    .name = "profile",
    .summary = "which operation takes the time of a prefill and of a decode step, and what is lost between",
    .needs_device = true,
    .default_model = "qwen2.5-0.5b",
    .uses = USES_CONTEXTS | USES_BATCH | USES_REPS,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
