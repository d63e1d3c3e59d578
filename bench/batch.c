/* batch: how many requests may decode together before each of them slows down?

   Predicted: a step reads the weights once for the whole batch, so its time stays on the floor of weights / read
   bandwidth until arithmetic takes longer, which it does once the step's FLOPs per byte pass the balance point of the
   machine, matrix rate / read bandwidth. Measured: static batches of all sizes in turn, each prefilled together, then
   decoding; both ceilings beside them. */
#include "bench/harness/timed_batch.h"
#include "engine/work.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 8, PASS_ROWS = 512 };
static const double leaves_floor = 1.5; /* times the step time of the smallest batch */

static const struct column columns[] = {
    {"batch", COLUMN_INT, 0, true, "Requests that are prefilled together and then decode together."},
    {"ttft_ms", COLUMN_REAL, 3, false,
     "Time to first token: prefill of all prompts and the choice of every first token. Median of n."},
    {"tpot_ms", COLUMN_REAL, 4, false, "Time per output token: one decode step of the batch. Median of steps."},
    {"tokens_per_s", COLUMN_REAL, 1, false, "batch / tpot_ms: of all requests together."},
    {"tokens_per_s_per_request", COLUMN_REAL, 2, false, "1 / tpot_ms: what each request sees."},
    {"kv_bytes", COLUMN_INT, 0, false, "Source tensors: sum over the K and V tensors that the batch's cache holds."},
    {"peak_ledger_bytes", COLUMN_INT, 0, false, "Source ledger: peak of live bytes of all tags over the batch."},
    {"intensity_flop_per_byte", COLUMN_REAL, 3, false, "step_flops / step_bytes."},
    {"percent_of_matrix_ceiling", COLUMN_REAL, 2, false,
     "step_flops / tpot_ms in percent of the matrix ceiling measured in this run."},
    {"percent_of_read_ceiling", COLUMN_REAL, 1, false,
     "step_bytes / tpot_ms in percent of the read ceiling; over 100 means that the ceiling was measured too low."},
    {"context", COLUMN_INT, 0, true, "Tokens of each prompt."},
    {"n", COLUMN_INT, 0, false, "Times that the batch was prefilled, each followed by `steps` / n steps."},
    {"steps", COLUMN_INT, 0, false, "Decode steps timed."},
    {"step_flops", COLUMN_INT, 0, false,
     "Source formula: 2 * parameters touched * batch + attention's two products, of the first step."},
    {"step_bytes", COLUMN_INT, 0, false,
     "Source formula: weights once, K and V of every request read, those of one position each written."},
    {"kv_formula_bytes", COLUMN_INT, 0, false, "Source formula: batch * (context + steps of a visit) * KV bytes."},
    {"predicted_tpot_ms", COLUMN_REAL, 4, false,
     "The longer of step_bytes / read ceiling and step_flops / matrix ceiling."},
    {"bound", COLUMN_TEXT, 0, false, "Which of the two is longer: memory or compute."},
    {"read_ceiling_gbps", COLUMN_REAL, 2, false, "Read bandwidth measured in this run, before and after (the better)."},
    {"matrix_ceiling_tflops", COLUMN_REAL, 4, false, "Matrix rate in the working type, measured before."},
    {"tokens_checksum", COLUMN_TEXT, 0, false,
     "FNV-1a of the tokens that prefill and steps chose, every time the same."},
};
static const struct column summary_columns[] = {
    {"context", COLUMN_INT, 0, true, "Tokens of each prompt."},
    {"floor_tpot_ms", COLUMN_REAL, 4, false, "TPOT of the smallest batch measured."},
    {"balance_flop_per_byte", COLUMN_REAL, 2, false, "Matrix ceiling / read ceiling, of the latest rows."},
    {"balance_batch", COLUMN_INT, 0, false,
     "Source formula: the smallest batch whose step has that intensity; empty if none has (K and V outweigh)."},
    {"leaves_floor_batch", COLUMN_INT, 0, false,
     "The smallest batch measured whose TPOT is over 1.5 times the floor; empty if none was."},
};
enum { MAIN, SUMMARY };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [SUMMARY] = {"_summary", false, summary_columns, sizeof summary_columns / sizeof *summary_columns},
};

struct point {
    int batch, context;
    bool measured;        /* kept by --resume */
    double *ttft, *steps; /* ms, [n] and [n][STEPS] */
    uint64_t checksum, kv_bytes, peak_ledger;
};

struct points {
    struct point *list;
    size_t count;
    int n, largest, longest;
    double read_ceiling, matrix_ceiling; /* bytes per second, FLOP per second */
};

static struct pass_shape step_shape(int64_t batch, int64_t context)
{
    return (struct pass_shape){.sequences = batch, .start = context, .count = 1, .logits = 1};
}

static double intensity(const struct bench *bench, int64_t batch, int64_t context)
{
    struct pass_shape step = step_shape(batch, context);
    return (double)work_flops(&bench->config, &step) /
           (double)work_bytes(&bench->config, bench->dtype, bench->kv_dtype, &step);
}

static void predict(const struct bench *bench, struct results *results, const struct point *point)
{
    struct pass_shape step = step_shape(point->batch, point->context);
    int64_t bytes = (int64_t)work_bytes(&bench->config, bench->dtype, bench->kv_dtype, &step);
    int64_t positions = (int64_t)point->batch * (point->context + STEPS);
    results_set_int(results, "batch", point->batch);
    results_set_int(results, "context", point->context);
    results_set_int(results, "step_flops", (int64_t)work_flops(&bench->config, &step));
    results_set_int(results, "step_bytes", bytes);
    results_set_int(results, "kv_formula_bytes", (int64_t)formula_kv_bytes(&bench->config, bench->kv_dtype, positions));
    results_set_real(results, "intensity_flop_per_byte", intensity(bench, point->batch, point->context));
}

/* ---- measuring ---- */

/* Prefill of the batch, then its steps; every token chosen goes into the checksum. */
static enum status run_batch(struct timed_batch *batch, const struct point *point, double *ttft, double *steps,
                             uint64_t *checksum, struct error *error)
{
    size_t bytes = (size_t)point->batch * sizeof *batch->chosen;
    uint64_t sums[1 + STEPS];
    if (timed_batch_pass(batch, point->batch, point->context, ttft, error) != STATUS_OK)
        return error->status;
    sums[0] = bench_checksum(batch->chosen, bytes);
    for (int i = 0; i < STEPS; i++) {
        if (timed_batch_pass(batch, point->batch, 1, &steps[i], error) != STATUS_OK)
            return error->status;
        sums[1 + i] = bench_checksum(batch->chosen, bytes);
    }
    *checksum = bench_checksum(sums, sizeof sums);
    return STATUS_OK;
}

static enum status keep_samples(struct bench *bench, const struct point *point, int repetition, struct error *error)
{
    char setting[80];
    snprintf(setting, sizeof setting, "batch=%d;context=%d;phase=ttft", point->batch, point->context);
    enum status status = samples_add(bench, setting, repetition, point->ttft[repetition], "ms", error);
    snprintf(setting, sizeof setting, "batch=%d;context=%d;phase=tpot", point->batch, point->context);
    for (int i = 0; i < STEPS && status == STATUS_OK; i++)
        status = samples_add(bench, setting, repetition, point->steps[repetition * STEPS + i], "ms", error);
    return status;
}

/* One visit to a batch size, with memory of its own, so that its peak is its own. repetition < 0: to warm up. */
static enum status visit(struct bench *bench, struct model *model, struct point *point, int repetition,
                         struct error *error)
{
    struct timed_batch batch;
    uint64_t checksum = 0;
    int at = repetition < 0 ? 0 : repetition;
    ledger_reset_peaks(bench->ledger);
    enum status status = timed_batch_init(&batch, bench, model, point->batch, point->context + STEPS, error);
    if (status == STATUS_OK) {
        point->kv_bytes = kv_tensor_bytes(batch.cache);
        status = run_batch(&batch, point, &point->ttft[at], &point->steps[at * STEPS], &checksum, error);
        point->peak_ledger = ledger_counts(bench->ledger).peak_total;
    }
    timed_batch_free(&batch);
    if (status == STATUS_OK && repetition > 0 && checksum != point->checksum)
        status = error_set(error, STATUS_CHECK_FAILED,
                           "batch: at batch %d repetition %d chose other tokens than the one before: what is timed is "
                           "not the same work",
                           point->batch, repetition);
    point->checksum = checksum;
    return status == STATUS_OK && repetition >= 0 ? keep_samples(bench, point, repetition, error) : status;
}

static double visit_work(const struct point *point)
{
    return (double)point->batch * point->context + 20.0 * STEPS;
}

/* Every repetition visits all batch sizes, upwards and downwards in turn. */
static enum status visit_all(struct bench *bench, struct model *model, struct points *points, struct error *error)
{
    enum status status = STATUS_OK;
    double work = 0.0;
    bool warm = false;
    for (size_t i = 0; i < points->count; i++)
        work += points->list[i].measured ? 0.0 : visit_work(&points->list[i]);
    progress_start(bench, work * points->n);
    for (int repetition = 0; repetition < points->n; repetition++)
        for (size_t i = 0; i < points->count && status == STATUS_OK; i++) {
            struct point *point = &points->list[repetition % 2 ? points->count - 1 - i : i];
            if (point->measured)
                continue;
            progress_step(bench, visit_work(point), "batch %d, repetition %d of %d", point->batch, repetition + 1,
                          points->n);
            if (!warm)
                status = visit(bench, model, point, -1, error);
            warm = true;
            if (status == STATUS_OK)
                status = visit(bench, model, point, repetition, error);
        }
    progress_end(bench);
    return status;
}

static enum status record(const struct bench *bench, struct results *results, const struct points *points,
                          const struct point *point, struct error *error)
{
    size_t n = (size_t)points->n, steps = n * STEPS;
    struct pass_shape step = step_shape(point->batch, point->context);
    double flops = (double)work_flops(&bench->config, &step);
    double bytes = (double)work_bytes(&bench->config, bench->dtype, bench->kv_dtype, &step);
    double tpot = stats_median(point->steps, steps);
    double reading = bytes / points->read_ceiling, computing = flops / points->matrix_ceiling;
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, point->checksum);
    predict(bench, results, point);
    results_set_real(results, "ttft_ms", stats_median(point->ttft, n));
    results_set_real(results, "tpot_ms", tpot);
    results_set_real(results, "tokens_per_s", point->batch / tpot * 1e3);
    results_set_real(results, "tokens_per_s_per_request", 1e3 / tpot);
    results_set_int(results, "kv_bytes", (int64_t)point->kv_bytes);
    results_set_int(results, "peak_ledger_bytes", (int64_t)point->peak_ledger);
    results_set_ceiling_percent(results, "percent_of_matrix_ceiling", 100.0 * computing / (tpot / 1e3));
    results_set_ceiling_percent(results, "percent_of_read_ceiling", 100.0 * reading / (tpot / 1e3));
    results_set_int(results, "n", (int64_t)n);
    results_set_int(results, "steps", (int64_t)steps);
    results_set_real(results, "predicted_tpot_ms", 1e3 * fmax(reading, computing));
    results_set_text(results, "bound", computing > reading ? "compute" : "memory");
    results_set_real(results, "read_ceiling_gbps", points->read_ceiling / 1e9);
    results_set_real(results, "matrix_ceiling_tflops", points->matrix_ceiling / 1e12);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

/* ---- what the rows say together ---- */

/* The smallest batch whose step has at least `balance` FLOPs per byte, or 0. Intensity rises with the batch. */
static int64_t batch_of_intensity(const struct bench *bench, double balance, int64_t context)
{
    int64_t low = 0, high = 1 << 20; /* low has less, high enough */
    if (intensity(bench, high, context) < balance)
        return 0;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (intensity(bench, middle, context) < balance)
            low = middle;
        else
            high = middle;
    }
    return high;
}

static enum status summarise(struct bench *bench, const struct results *results, const struct int_list *contexts,
                             struct error *error)
{
    struct results *summary;
    if (results_open(&summary, bench, &tables[SUMMARY], error) != STATUS_OK)
        return error->status;
    for (size_t c = 0; c < contexts->count; c++) {
        double smallest = INFINITY, floor_ms = NAN, balance = NAN, leaves = INFINITY;
        for (int pass = 0; pass < 2; pass++) /* the floor first */
            for (size_t row = 0; row < results_rows(results); row++) {
                double batch = results_real(results, row, "batch"), tpot = results_real(results, row, "tpot_ms");
                if (results_real(results, row, "context") != (double)contexts->values[c])
                    continue;
                balance = results_real(results, row, "matrix_ceiling_tflops") * 1e3 /
                          results_real(results, row, "read_ceiling_gbps");
                if (pass == 0 && batch < smallest) {
                    smallest = batch;
                    floor_ms = tpot;
                }
                if (pass == 1 && tpot > leaves_floor * floor_ms)
                    leaves = fmin(leaves, batch);
            }
        int64_t balance_batch = batch_of_intensity(bench, balance, contexts->values[c]);
        results_set_int(summary, "context", contexts->values[c]);
        results_set_real(summary, "floor_tpot_ms", floor_ms);
        results_set_real(summary, "balance_flop_per_byte", balance);
        if (balance_batch > 0)
            results_set_int(summary, "balance_batch", balance_batch);
        if (isfinite(leaves))
            results_set_int(summary, "leaves_floor_batch", (int64_t)leaves);
        if (results_end_row(summary, error) != STATUS_OK)
            return error->status;
        meta_real(bench, "balance_flop_per_byte", balance);
    }
    return STATUS_OK;
}

/* ---- the experiment ---- */

static void points_free(struct points *points)
{
    for (size_t i = 0; i < points->count; i++) {
        free(points->list[i].ttft);
        free(points->list[i].steps);
    }
    free(points->list);
}

static enum status points_init(struct points *points, const struct results *results, const struct int_list *batches,
                               const struct int_list *contexts, struct error *error)
{
    size_t n = (size_t)points->n, total = batches->count * contexts->count;
    points->list = calloc(total, sizeof *points->list);
    bool complete = points->list != NULL;
    points->largest = (int)int_list_max(batches);
    points->longest = (int)int_list_max(contexts);
    for (size_t i = 0; complete && i < total; i++) {
        struct point *point = &points->list[points->count++];
        point->batch = (int)batches->values[i % batches->count];
        point->context = (int)contexts->values[i / batches->count];
        point->measured = results_has(results, (struct key[]){{"batch", point->batch}, {"context", point->context}}, 2);
        point->ttft = calloc(n, sizeof(double));
        point->steps = calloc(n * STEPS, sizeof(double));
        complete = point->ttft && point->steps;
    }
    return complete ? STATUS_OK : error_set(error, STATUS_DEVICE, "batch: out of host memory");
}

static bool all_measured(const struct points *points)
{
    for (size_t i = 0; i < points->count; i++)
        if (!points->list[i].measured)
            return false;
    return true;
}

static enum status measure(struct bench *bench, struct results *results, struct points *points, struct error *error)
{
    struct model model;
    double matrix, before, after;
    struct model_limits limits = {.max_rows = points->largest > PASS_ROWS ? points->largest : PASS_ROWS,
                                  .max_sequences = points->largest,
                                  .max_blocks = 1};
    int64_t room = points->longest + STEPS;
    if (points->largest > FORMULA_MAX_TOKENS / room)
        return error_set(error, STATUS_DEVICE,
                         "batch: %d sequences of %" PRId64 " tokens are more than %" PRId64 " tokens in all",
                         points->largest, room, FORMULA_MAX_TOKENS);
    struct bench_need need = {.kv_bytes = timed_batch_kv_bytes(&bench->config, bench->kv_dtype, points->largest, room),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, points->largest)};
    if (bench_matrix_ceiling(bench, bench->dtype, &matrix, error) != STATUS_OK ||
        bench_read_ceiling(bench, &before, error) != STATUS_OK ||
        bench_open_model(bench, &limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = visit_all(bench, &model, points, error);
    model_free(&model);
    if (status == STATUS_OK)
        status = bench_read_ceiling(bench, &after, error);
    if (status != STATUS_OK)
        return status;
    points->matrix_ceiling = matrix * 1e12;
    points->read_ceiling = fmax(before, after) * 1e9;
    for (size_t i = 0; i < points->count && status == STATUS_OK; i++)
        if (!points->list[i].measured)
            status = record(bench, results, points, &points->list[i], error);
    return status;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *points, size_t i)
{
    predict(bench, results, &((const struct points *)points)->list[i]);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    bool gpu = bench->device->info.multiprocessors > 0;
    const struct int_list *batches = bench_batches(bench, "1-128*2", "1,2,4");
    const struct int_list *contexts = bench_contexts(bench, gpu ? "128" : "32", "16");
    struct points points = {.n = bench_reps(bench, 3, 2)};
    if (results_open(&results, bench, &tables[MAIN], error) != STATUS_OK)
        return error->status;
    enum status status = points_init(&points, results, batches, contexts, error);
    if (status == STATUS_OK && bench->options.dry_run) {
        status = bench_predict_rows(bench, results, predict_nth, &points, points.count, error);
    } else if (status == STATUS_OK) {
        if (!all_measured(&points))
            status = measure(bench, results, &points, error);
        if (status == STATUS_OK)
            status = summarise(bench, results, contexts, error);
    }
    points_free(&points);
    return status;
}

const struct experiment batch_experiment = {
    .name = "batch",
    .summary = "static batches: where time per token leaves its floor, against the machine's balance point",
    .needs_device = true,
    .default_model = "qwen2.5-0.5b",
    .uses = USES_CONTEXTS | USES_BATCH | USES_REPS | USES_SAMPLES,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
