/* roofline: is a phase bound by arithmetic or by reading? (Williams, Waterman & Patterson 2009)

   Predicted: FLOPs and bytes of a pass counted from the config give its intensity; above the machine's balance point,
   matrix rate / read bandwidth, it is bound by arithmetic, below by reading. Measured: both ceilings, then prefills of
   several lengths and decode steps of several batches in turn, each one pass. */
#include "bench/harness/timed_batch.h"
#include "engine/work.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, DECODE_CONTEXT = 256, QUICK_DECODE_CONTEXT = 16 };
enum phase { PREFILL, DECODE };
static const char *const phase_names[] = {"prefill", "decode"};

static const struct column columns[] = {
    {"phase", COLUMN_TEXT, 0, true,
     "prefill: one prompt in one pass. decode: one step of a batch, one token of each sequence."},
    {"tokens", COLUMN_INT, 0, true, "Tokens that go through the pass: the prompt's length, or the batch."},
    {"flops", COLUMN_INT, 0, false,
     "Source formula: 2 * parameters touched * tokens (the output head for the last position of each sequence only) + "
     "attention's two products over the positions that each token sees."},
    {"bytes", COLUMN_INT, 0, false,
     "Source formula: weights once, K and V of every position read once, those of new positions written."},
    {"intensity_flop_per_byte", COLUMN_REAL, 3, false, "flops / bytes."},
    {"tflops", COLUMN_REAL, 4, false, "flops / median time, in 10^12 per second."},
    {"percent_of_matrix_ceiling", COLUMN_REAL, 2, false,
     "tflops in percent of the matrix ceiling; over 100 means that the ceiling was measured too low."},
    {"gbps", COLUMN_REAL, 2, false, "bytes / median time, in 10^9 per second."},
    {"percent_of_read_ceiling", COLUMN_REAL, 1, false, "gbps in percent of the read ceiling; over 100: likewise."},
    {"bound", COLUMN_TEXT, 0, false, "compute where the intensity is over the balance point, else memory."},
    {"context", COLUMN_INT, 0, false, "Positions that each sequence holds before the pass; 0 for a prefill."},
    {"n", COLUMN_INT, 0, false, "Passes timed."},
    {"ms_p50", COLUMN_REAL, 4, false, "Median time of a pass, the choice of the next tokens included."},
    {"matrix_ceiling_tflops", COLUMN_REAL, 4, false, "Matrix rate in the working type, measured in this run."},
    {"read_ceiling_gbps", COLUMN_REAL, 2, false, "Read bandwidth, measured before and after (the better)."},
    {"balance_flop_per_byte", COLUMN_REAL, 2, false, "Matrix ceiling / read ceiling: where the two roofs meet."},
    {"tokens_checksum", COLUMN_TEXT, 0, false, "FNV-1a of the tokens chosen, the same in every repetition."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

struct point {
    enum phase phase;
    int tokens;
    bool measured; /* kept by --resume */
    double *ms;    /* [n] for a prefill, [n][STEPS] for decode */
    uint64_t checksum;
};

struct roofline {
    struct bench *bench;
    struct point *points;
    size_t count;
    int n, longest, largest, decode_context;
    struct model model;
    struct timed_batch prompt, batch;    /* one sequence for prefills; all sequences for decode */
    double matrix_ceiling, read_ceiling; /* FLOP and bytes per second */
};

static struct pass_shape shape(const struct roofline *roofline, const struct point *point)
{
    if (point->phase == PREFILL)
        return (struct pass_shape){.sequences = 1, .start = 0, .count = point->tokens, .logits = 1};
    return (struct pass_shape){.sequences = point->tokens, .start = roofline->decode_context, .count = 1, .logits = 1};
}

struct work {
    double flops, bytes;
};

static struct work count_work(const struct roofline *roofline, const struct point *point)
{
    const struct bench *bench = roofline->bench;
    struct pass_shape pass = shape(roofline, point);
    return (struct work){(double)work_flops(&bench->config, &pass),
                         (double)work_bytes(&bench->config, bench->dtype, bench->kv_dtype, &pass)};
}

static void predict(const struct roofline *roofline, struct results *results, const struct point *point)
{
    struct work work = count_work(roofline, point);
    results_set_text(results, "phase", phase_names[point->phase]);
    results_set_int(results, "tokens", point->tokens);
    results_set_int(results, "context", point->phase == PREFILL ? 0 : roofline->decode_context);
    results_set_int(results, "flops", (int64_t)work.flops);
    results_set_int(results, "bytes", (int64_t)work.bytes);
    results_set_real(results, "intensity_flop_per_byte", work.flops / work.bytes);
}

/* ---- measuring ---- */

/* The passes of one visit; *checksum of all tokens that they chose. */
static enum status visit_prefill(struct roofline *roofline, const struct point *point, double *ms, uint64_t *checksum,
                                 struct error *error)
{
    struct timed_batch *prompt = &roofline->prompt;
    if (timed_batch_rewind(prompt, 0, error) != STATUS_OK ||
        timed_batch_pass(prompt, 1, point->tokens, ms, error) != STATUS_OK)
        return error->status;
    *checksum = bench_checksum(prompt->chosen, sizeof *prompt->chosen);
    return STATUS_OK;
}

static enum status visit_decode(struct roofline *roofline, const struct point *point, double *ms, uint64_t *checksum,
                                struct error *error)
{
    struct timed_batch *batch = &roofline->batch;
    uint64_t sums[STEPS];
    double warm;
    if (timed_batch_rewind(batch, roofline->decode_context - 1, error) != STATUS_OK ||
        timed_batch_pass(batch, point->tokens, 1, &warm, error) != STATUS_OK)
        return error->status;
    for (int i = 0; i < STEPS; i++) {
        if (timed_batch_pass(batch, point->tokens, 1, &ms[i], error) != STATUS_OK)
            return error->status;
        sums[i] = bench_checksum(batch->chosen, (size_t)point->tokens * sizeof *batch->chosen);
    }
    *checksum = bench_checksum(sums, sizeof sums);
    return STATUS_OK;
}

static size_t samples_each(const struct point *point)
{
    return point->phase == PREFILL ? 1 : STEPS;
}

/* repetition < 0: to warm up, not kept. */
static enum status visit(struct roofline *roofline, struct point *point, int repetition, struct error *error)
{
    size_t each = samples_each(point);
    double *ms = point->ms + (repetition < 0 ? 0 : (size_t)repetition) * each;
    uint64_t checksum = 0;
    enum status status = point->phase == PREFILL ? visit_prefill(roofline, point, ms, &checksum, error)
                                                 : visit_decode(roofline, point, ms, &checksum, error);
    if (status != STATUS_OK)
        return status;
    if (repetition > 0 && checksum != point->checksum)
        return error_set(error, STATUS_CHECK_FAILED,
                         "roofline: %s of %d tokens, repetition %d chose other tokens than the one before: what is "
                         "timed is not the same work",
                         phase_names[point->phase], point->tokens, repetition);
    point->checksum = checksum;
    char setting[64];
    snprintf(setting, sizeof setting, "phase=%s;tokens=%d", phase_names[point->phase], point->tokens);
    for (size_t i = 0; i < each && repetition >= 0 && status == STATUS_OK; i++)
        status = samples_add(roofline->bench, setting, repetition, ms[i], "ms", error);
    return status;
}

/* What a visit takes, roughly: arithmetic of a prefill, reading of a decode step (at some ten FLOP per byte). */
static double visit_cost(const struct roofline *roofline, const struct point *point)
{
    struct work work = count_work(roofline, point);
    return point->phase == PREFILL ? work.flops : (STEPS + 1) * fmax(work.flops, 10.0 * work.bytes);
}

/* All points once to warm up, then `n` times in turn, forwards and backwards. */
static enum status visit_all(struct roofline *roofline, struct error *error)
{
    enum status status = STATUS_OK;
    double cost = 0.0;
    for (size_t i = 0; i < roofline->count; i++)
        cost += roofline->points[i].measured ? 0.0 : visit_cost(roofline, &roofline->points[i]);
    progress_start(roofline->bench, cost * (roofline->n + 1));
    for (int repetition = -1; repetition < roofline->n; repetition++)
        for (size_t i = 0; i < roofline->count && status == STATUS_OK; i++) {
            struct point *point = &roofline->points[repetition % 2 == 1 ? roofline->count - 1 - i : i];
            if (point->measured)
                continue;
            progress_step(roofline->bench, visit_cost(roofline, point), "%s of %d tokens, repetition %d of %d",
                          phase_names[point->phase], point->tokens, repetition + 1, roofline->n);
            status = visit(roofline, point, repetition, error);
        }
    progress_end(roofline->bench);
    return status;
}

static enum status record(const struct roofline *roofline, struct results *results, const struct point *point,
                          struct error *error)
{
    struct work work = count_work(roofline, point);
    size_t n = (size_t)roofline->n * samples_each(point);
    double ms = stats_median(point->ms, n), balance = roofline->matrix_ceiling / roofline->read_ceiling;
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, point->checksum);
    predict(roofline, results, point);
    results_set_real(results, "tflops", work.flops / ms / 1e9);
    results_set_ceiling_percent(results, "percent_of_matrix_ceiling", 1e5 * work.flops / ms / roofline->matrix_ceiling);
    results_set_real(results, "gbps", work.bytes / ms / 1e6);
    results_set_ceiling_percent(results, "percent_of_read_ceiling", 1e5 * work.bytes / ms / roofline->read_ceiling);
    results_set_text(results, "bound", work.flops / work.bytes > balance ? "compute" : "memory");
    results_set_int(results, "n", (int64_t)n);
    results_set_real(results, "ms_p50", ms);
    results_set_real(results, "matrix_ceiling_tflops", roofline->matrix_ceiling / 1e12);
    results_set_real(results, "read_ceiling_gbps", roofline->read_ceiling / 1e9);
    results_set_real(results, "balance_flop_per_byte", balance);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

/* ---- the experiment ---- */

/* The cache of the decode steps holds random K and V: what they cost does not depend on the values. */
static enum status open_batches(struct roofline *roofline, struct error *error)
{
    struct bench *bench = roofline->bench;
    int room = roofline->decode_context + STEPS;
    if (timed_batch_init(&roofline->prompt, bench, &roofline->model, 1, roofline->longest, error) != STATUS_OK ||
        timed_batch_init(&roofline->batch, bench, &roofline->model, roofline->largest, room, error) != STATUS_OK)
        return error->status;
    return timed_batch_fill_random(&roofline->batch, roofline->decode_context, error);
}

static enum status open_model(struct roofline *roofline, struct error *error)
{
    struct bench *bench = roofline->bench;
    int rows = roofline->longest > roofline->largest ? roofline->longest : roofline->largest;
    int64_t room = roofline->decode_context + STEPS;
    struct model_limits limits = {.max_rows = rows, .max_sequences = roofline->largest, .max_blocks = 1};
    struct bench_need need = {
        .kv_bytes = timed_batch_kv_bytes(&bench->config, bench->kv_dtype, 1, roofline->longest) +
                    timed_batch_kv_bytes(&bench->config, bench->kv_dtype, roofline->largest, room),
        .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, roofline->largest + 1)};
    return bench_open_model(bench, &limits, &need, &roofline->model, error);
}

static enum status measure(struct roofline *roofline, struct results *results, struct error *error)
{
    struct bench *bench = roofline->bench;
    double matrix, before, after;
    if (bench_matrix_ceiling(bench, bench->dtype, &matrix, error) != STATUS_OK ||
        bench_read_ceiling(bench, &before, error) != STATUS_OK || open_model(roofline, error) != STATUS_OK)
        return error->status;
    enum status status = open_batches(roofline, error);
    if (status == STATUS_OK)
        status = visit_all(roofline, error);
    timed_batch_free(&roofline->prompt);
    timed_batch_free(&roofline->batch);
    model_free(&roofline->model);
    if (status != STATUS_OK || bench_read_ceiling(bench, &after, error) != STATUS_OK)
        return error->status;
    roofline->matrix_ceiling = matrix * 1e12;
    roofline->read_ceiling = fmax(before, after) * 1e9;
    meta_real(bench, "balance_flop_per_byte", roofline->matrix_ceiling / roofline->read_ceiling);
    for (size_t i = 0; i < roofline->count && status == STATUS_OK; i++)
        if (!roofline->points[i].measured)
            status = record(roofline, results, &roofline->points[i], error);
    return status;
}

static bool recorded(const struct results *results, const struct point *point)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "tokens") == point->tokens &&
            strcmp(results_text(results, row, "phase"), phase_names[point->phase]) == 0)
            return true;
    return false;
}

/* Returns how many of the points are still to be measured, or -1 when out of memory. */
static int points_init(struct roofline *roofline, const struct results *results, const struct int_list *prompts,
                       const struct int_list *batches)
{
    int missing = 0;
    roofline->points = calloc(prompts->count + batches->count, sizeof *roofline->points);
    for (size_t i = 0; roofline->points && i < prompts->count + batches->count; i++) {
        struct point *point = &roofline->points[roofline->count++];
        bool prefill = i < prompts->count;
        point->phase = prefill ? PREFILL : DECODE;
        point->tokens = (int)(prefill ? prompts->values[i] : batches->values[i - prompts->count]);
        point->measured = recorded(results, point);
        point->ms = calloc((size_t)roofline->n * STEPS, sizeof *point->ms);
        if (!point->ms)
            return -1;
        missing += !point->measured;
    }
    roofline->longest = (int)int_list_max(prompts);
    roofline->largest = (int)int_list_max(batches);
    return roofline->points ? missing : -1;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    const struct roofline *roofline = of;
    (void)bench;
    predict(roofline, results, &roofline->points[i]);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    bool gpu = bench->device->info.multiprocessors > 0, quick = bench->options.quick;
    const struct int_list *prompts = bench_contexts(bench, gpu ? "64-4096*4" : "64-1024*4", "16,64");
    const struct int_list *batches = bench_batches(bench, gpu ? "1-128*2" : "1-64*4", "1,4");
    struct roofline roofline = {
        .bench = bench, .n = bench_reps(bench, 5, 2), .decode_context = quick ? QUICK_DECODE_CONTEXT : DECODE_CONTEXT};
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    int missing = points_init(&roofline, results, prompts, batches);
    enum status status = missing < 0 ? error_set(error, STATUS_DEVICE, "roofline: out of host memory") : STATUS_OK;
    if (status == STATUS_OK && bench->options.dry_run)
        status = bench_predict_rows(bench, results, predict_nth, &roofline, roofline.count, error);
    else if (status == STATUS_OK && missing > 0)
        status = measure(&roofline, results, error);
    for (size_t i = 0; i < roofline.count; i++)
        free(roofline.points[i].ms);
    free(roofline.points);
    return status;
}

const struct experiment roofline_experiment = {
    .name = "roofline",
    .summary = "prefill and decode by counted FLOPs and bytes, on the machine's own two ceilings",
    .needs_device = true,
    .default_model = "qwen2.5-0.5b",
    .uses = USES_CONTEXTS | USES_BATCH | USES_REPS | USES_SAMPLES,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
