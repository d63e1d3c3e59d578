/* profile: which operation takes the time of a prefill and of a decode step, and what is lost between them?

   Predicted: bytes and floating-point operations of every operation from its shapes, of the whole pass from the config.
   Measured: the pass with every operation timed (kernels/profile.h), and beside it, in turn, the same pass with nothing
   timed inside, which says what the looking costs; both ceilings in the same run. Where the device counts the traffic
   of its memory, one more pass is counted. */
#include "bench/harness/timed_batch.h"
#include "bench/profile_rows.h"
#include "engine/work.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFILL_ROWS_PROFILE = 4096, WARM_REPLAYS = 2 };

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
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

enum phase { PREFILL, DECODE };
static const char *const phase_names[] = {"prefill", "decode"};

/* One phase, with or without replaying, of a group. */
struct series {
    enum phase phase;
    bool graphs;
    struct profile_pass *passes; /* [n] */
    double *plain_ms;            /* [n] */
    bool counted;
    struct device_counters counters;
};
enum { PREFILL_OFF, DECODE_OFF, DECODE_ON, SERIES };

/* One context and batch size. */
struct group {
    struct bench *bench;
    struct timed_batch sequences;
    int context, batch, n;
    struct series series[SERIES];
    int series_count;
    uint64_t checksums[2]; /* of each phase's tokens; known once `visited` */
    bool visited;
    const char *uncounted; /* why there are no counters, or NULL */
    struct error why;
};

struct ceilings {
    double read, matrix; /* bytes and FLOP per second */
};

static struct pass_shape shape_of(enum phase phase, int64_t context, int64_t batch)
{
    return (struct pass_shape){.sequences = batch,
                               .start = phase == PREFILL ? 0 : context,
                               .count = phase == PREFILL ? context : 1,
                               .logits = 1};
}

/* ---- running ---- */

/* One pass of the series' phase, on caches put back to where it starts. */
static enum status pass(struct group *group, const struct series *series, double *ms, struct error *error)
{
    struct timed_batch *sequences = &group->sequences;
    bool prefill = series->phase == PREFILL;
    if (timed_batch_rewind(sequences, prefill ? 0 : group->context, error) != STATUS_OK ||
        timed_batch_pass(sequences, group->batch, prefill ? group->context : 1, ms, error) != STATUS_OK)
        return error->status;
    uint64_t checksum = bench_checksum(sequences->chosen, (size_t)group->batch * sizeof *sequences->chosen);
    if (group->visited && checksum != group->checksums[series->phase])
        return error_set(error, STATUS_CHECK_FAILED,
                         "profile: a %s of %d tokens chose other tokens than the one before: what is timed is not the "
                         "same work",
                         phase_names[series->phase], group->context);
    group->checksums[series->phase] = checksum;
    return STATUS_OK;
}

/* All phases once. With a profile, each pass is read into `repetition`; without, its time from outside is kept. The
   decode step with replays needs the one before it, launched, to tell its kernels apart, and two passes to be recorded.
 */
static enum status visit(struct group *group, struct profile *profile, int repetition, struct error *error)
{
    struct device *device = group->bench->device;
    for (int i = 0; i < group->series_count; i++) {
        struct series *series = &group->series[i];
        double ms;
        device->graphs = series->graphs;
        for (int warm = 0; series->graphs && warm < WARM_REPLAYS; warm++)
            if (pass(group, series, &ms, error) != STATUS_OK)
                return error->status;
        if (profile != NULL && profile_start(profile, error) != STATUS_OK)
            return error->status;
        if (pass(group, series, &ms, error) != STATUS_OK)
            return error->status;
        if (repetition < 0)
            continue;
        if (profile == NULL)
            series->plain_ms[repetition] = ms;
        else if (profile_read(profile, &series->passes[repetition], error) != STATUS_OK)
            return error->status;
    }
    group->visited = true;
    return STATUS_OK;
}

static enum status visit_watched(struct group *group, int repetition, struct error *error)
{
    struct profile *profile;
    if (profile_open(&profile, group->bench->device, NULL, 0, error) != STATUS_OK)
        return error->status;
    enum status status = visit(group, profile, repetition, error);
    profile_close(profile);
    return status;
}

/* One more pass of each series for the hardware counters, where there are any. */
static enum status count_traffic(struct group *group, struct error *error)
{
    struct device *device = group->bench->device;
    if (device->probes == NULL) {
        group->uncounted = "this device has no counters of its memory's traffic";
        return STATUS_OK;
    }
    for (int i = 0; i < group->series_count; i++) {
        struct series *series = &group->series[i];
        double ms;
        device->graphs = series->graphs;
        for (int warm = 0; series->graphs && warm < WARM_REPLAYS; warm++)
            if (pass(group, series, &ms, error) != STATUS_OK)
                return error->status;
        enum status begun = device->probes->counters_begin(device, &group->why);
        if (begun == STATUS_OK && pass(group, series, &ms, error) != STATUS_OK) {
            device->probes->counters_end(device, &series->counters, &group->why);
            return error->status;
        }
        series->counted =
            begun == STATUS_OK && device->probes->counters_end(device, &series->counters, &group->why) == STATUS_OK;
        if (!series->counted) {
            group->uncounted = group->why.message;
            return STATUS_OK;
        }
    }
    return STATUS_OK;
}

static enum status run_passes(struct group *group, struct error *error)
{
    struct device *device = group->bench->device;
    int graphs = device->graphs;
    enum status status = STATUS_OK;
    for (int repetition = -1; repetition < group->n && status == STATUS_OK; repetition++) {
        progress_step(group->bench, (double)group->context * group->batch, "context %d, batch %d, repetition %d of %d",
                      group->context, group->batch, repetition + 1, group->n);
        status = visit(group, NULL, repetition, error);
        if (status == STATUS_OK)
            status = visit_watched(group, repetition, error);
    }
    if (status == STATUS_OK)
        status = count_traffic(group, error);
    device->graphs = graphs;
    return status;
}

/* ---- rows ---- */

static bool recorded(const struct results *results, const struct group *group, const struct series *series,
                     const char *operation)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "context") == group->context &&
            results_real(results, row, "batch") == group->batch &&
            strcmp(results_text(results, row, "phase"), phase_names[series->phase]) == 0 &&
            strcmp(results_text(results, row, "graphs"), series->graphs ? "on" : "off") == 0 &&
            strcmp(results_text(results, row, "operation"), operation) == 0)
            return true;
    return false;
}

static void set_keys(struct results *results, enum phase phase, int64_t context, int64_t batch, bool graphs,
                     const char *operation)
{
    results_set_text(results, "phase", phase_names[phase]);
    results_set_int(results, "context", context);
    results_set_int(results, "batch", batch);
    results_set_text(results, "graphs", graphs ? "on" : "off");
    results_set_text(results, "operation", operation);
}

/* Work and rates; a clock that did not move gives none. */
static void set_work(struct results *results, double ms, uint64_t bytes, uint64_t flops,
                     const struct ceilings *ceilings)
{
    results_set_int(results, "bytes", (int64_t)bytes);
    if (flops)
        results_set_int(results, "flops", (int64_t)flops);
    if (ms <= 0)
        return;
    double per_s = 1e3 / ms;
    results_set_real(results, "gbps", (double)bytes * per_s / 1e9);
    results_set_real(results, "percent_of_read_ceiling", 100.0 * (double)bytes * per_s / ceilings->read);
    if (!flops)
        return;
    results_set_real(results, "tflops", (double)flops * per_s / 1e12);
    results_set_real(results, "percent_of_matrix_ceiling", 100.0 * (double)flops * per_s / ceilings->matrix);
}

static enum status write_operation(struct results *results, const struct group *group, const struct series *series,
                                   const struct profile_row *row, const struct profile_medians *medians,
                                   const struct ceilings *ceilings, struct error *error)
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
        set_work(results, row->ms, operation->bytes, operation->flops, ceilings);
    if (operation->launches) {
        results_set_int(results, "launches", operation->launches);
        results_set_text(results, "kernels", operation->kernels);
    }
    results_set_text(results, "timed_by", series->passes[0].timed_by);
    results_set_int(results, "n", group->n);
    return results_end_row(results, error);
}

static enum status write_gaps(struct results *results, const struct group *group, const struct series *series,
                              const struct profile_medians *medians, struct error *error)
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

/* The last row of a series: once it is there, all of it is. */
static enum status write_pass(struct results *results, const struct group *group, const struct series *series,
                              const struct profile_medians *medians, const struct ceilings *ceilings,
                              struct error *error)
{
    const struct bench *bench = group->bench;
    struct pass_shape shape = shape_of(series->phase, group->context, group->batch);
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, group->checksums[series->phase]);
    set_keys(results, series->phase, group->context, group->batch, series->graphs, "pass");
    results_set_int(results, "calls", 1);
    results_set_real(results, "time_ms", medians->pass_ms);
    results_set_real(results, "share_percent", 100.0);
    set_work(results, medians->pass_ms, work_bytes(&bench->config, bench->dtype, bench->kv_dtype, &shape),
             work_flops(&bench->config, &shape), ceilings);
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
    return results_end_row(results, error);
}

static enum status write_series(struct results *results, const struct group *group, const struct series *series,
                                const struct ceilings *ceilings, struct error *error)
{
    struct profile_medians medians = {0};
    enum status status = STATUS_OK;
    if (recorded(results, group, series, "pass"))
        return STATUS_OK;
    status = profile_medians_of(&medians, series->passes, (size_t)group->n, error);
    for (size_t i = 0; i < medians.count && status == STATUS_OK; i++)
        status = write_operation(results, group, series, &medians.rows[i], &medians, ceilings, error);
    if (status == STATUS_OK)
        status = write_gaps(results, group, series, &medians, error);
    if (status == STATUS_OK)
        status = write_pass(results, group, series, &medians, ceilings, error);
    profile_medians_free(&medians);
    return status;
}

/* ---- groups ---- */

/* Replays are looked into only where kernels are traced: else nothing inside them can be seen. */
static bool replays(const struct bench *bench)
{
    struct error ignored;
    struct device *device = bench->device;
    if (!device->graphs || device->probes == NULL || device->probes->trace_begin(device, &ignored) != STATUS_OK)
        return false;
    device->probes->trace_end(device);
    return true;
}

static enum status group_init(struct group *group, struct model *model, struct error *error)
{
    static const struct series all[SERIES] = {[PREFILL_OFF] = {.phase = PREFILL, .graphs = false},
                                              [DECODE_OFF] = {.phase = DECODE, .graphs = false},
                                              [DECODE_ON] = {.phase = DECODE, .graphs = true}};
    group->series_count = replays(group->bench) ? SERIES : DECODE_ON;
    for (int i = 0; i < group->series_count; i++) {
        group->series[i] = all[i];
        group->series[i].passes = calloc((size_t)group->n, sizeof *group->series[i].passes);
        group->series[i].plain_ms = calloc((size_t)group->n, sizeof *group->series[i].plain_ms);
        if (group->series[i].passes == NULL || group->series[i].plain_ms == NULL)
            return error_set(error, STATUS_DEVICE, "profile: out of host memory");
    }
    return timed_batch_init(&group->sequences, group->bench, model, group->batch, group->context + 1, error);
}

static void group_free(struct group *group)
{
    timed_batch_free(&group->sequences);
    for (int i = 0; i < group->series_count; i++) {
        for (int pass = 0; group->series[i].passes != NULL && pass < group->n; pass++)
            profile_pass_free(&group->series[i].passes[pass]);
        free(group->series[i].passes);
        free(group->series[i].plain_ms);
    }
}

static enum status open_model(struct bench *bench, int64_t context, int64_t batch, struct model *model,
                              struct error *error)
{
    int64_t rows = context * batch < PREFILL_ROWS_PROFILE ? context * batch : PREFILL_ROWS_PROFILE;
    struct model_limits limits = {
        .max_rows = (int)(rows > batch ? rows : batch), .max_sequences = (int)batch, .max_blocks = 1};
    struct bench_need need = {.kv_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, batch * (context + 1)),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, batch)};
    return bench_open_model(bench, &limits, &need, model, error);
}

/* Ceilings before and after; the better read ceiling counts. */
static enum status measure(struct group *group, struct ceilings *ceilings, struct error *error)
{
    struct bench *bench = group->bench;
    struct model model;
    double matrix, before, after;
    if (bench_matrix_ceiling(bench, bench->dtype, &matrix, error) != STATUS_OK ||
        bench_read_ceiling(bench, &before, error) != STATUS_OK ||
        open_model(bench, group->context, group->batch, &model, error) != STATUS_OK)
        return error->status;
    enum status status = group_init(group, &model, error);
    if (status == STATUS_OK)
        status = run_passes(group, error);
    timed_batch_free(&group->sequences);
    model_free(&model);
    if (status != STATUS_OK || bench_read_ceiling(bench, &after, error) != STATUS_OK)
        return error->status;
    *ceilings = (struct ceilings){.read = fmax(before, after) * 1e9, .matrix = matrix * 1e12};
    return STATUS_OK;
}

static enum status measure_group(struct bench *bench, struct results *results, int64_t context, int64_t batch,
                                 struct error *error)
{
    struct ceilings ceilings = {0};
    struct group group = {.bench = bench, .context = (int)context, .batch = (int)batch, .n = bench_reps(bench, 7, 2)};
    bool missing = false;
    for (int i = 0; i < (replays(bench) ? SERIES : DECODE_ON); i++) {
        struct series series = {.phase = i == PREFILL_OFF ? PREFILL : DECODE, .graphs = i == DECODE_ON};
        missing = missing || !recorded(results, &group, &series, "pass");
    }
    if (!missing)
        return STATUS_OK;
    enum status status = measure(&group, &ceilings, error);
    for (int i = 0; i < group.series_count && status == STATUS_OK; i++)
        status = write_series(results, &group, &group.series[i], &ceilings, error);
    group_free(&group);
    return status;
}

/* ---- the experiment ---- */

struct settings {
    const struct int_list *contexts, *batches;
};

static void predict(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    const struct settings *settings = of;
    enum phase phase = i % 2 ? DECODE : PREFILL;
    int64_t context = settings->contexts->values[i / 2 % settings->contexts->count];
    int64_t batch = settings->batches->values[i / 2 / settings->contexts->count];
    struct pass_shape shape = shape_of(phase, context, batch);
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
    progress_start(bench, (bench_reps(bench, 7, 2) + 1.0) * (double)(int_list_sum(contexts) * int_list_sum(batches)));
    for (size_t b = 0; b < batches->count && status == STATUS_OK; b++)
        for (size_t c = 0; c < contexts->count && status == STATUS_OK; c++)
            status = measure_group(bench, results, contexts->values[c], batches->values[b], error);
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
