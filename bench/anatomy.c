/* anatomy: where does the memory of a run go, and what does the outside see beyond it?

   Predicted: weights, KV cache and logits from the config, workspace from the shapes of a pass. Measured at six
   moments by three ways of counting: the ledger's live bytes by tag, what the ledger holds from the device for them,
   and what the machine sees of the process. Each holds the one before it, so that the differences have names: rounding
   and fragmentation (reserved - ledger), and what runtime, libraries and program take (driver - reserved). */
#include "bench/harness/prefilled.h"
#include "kernels/probes.h"

#include <inttypes.h>
#include <string.h>

enum moment { START, LOADED, ALL_LOGITS, LAST_LOGITS, RESULTS_RELEASED, RELEASED, MOMENTS };
static const char *const moment_names[MOMENTS] = {
    "start", "weights loaded", "prefill with all logits", "prefill with last logits", "results released", "released"};

static const struct column columns[] = {
    {"moment", COLUMN_TEXT, 0, true,
     "start: device open, nothing allocated. weights loaded: weights, and the workspace that passes will use. prefill "
     "with all / last logits: right after a prefill, its cache and logits still held; the former is given back before "
     "the latter. results released: those given back, weights and workspace held, which the lessons call after "
     "release. "
     "released: all given back."},
    {"weights_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged weights."},
    {"kv_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged kv."},
    {"logits_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged logits."},
    {"workspace_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged workspace (activations, scratch)."},
    {"other_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged other."},
    {"ledger_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes of all tags, kept as a total of its own."},
    {"reserved_bytes", COLUMN_INT, 0, false,
     "Source reserved: what the ledger holds from the device for them; beyond ledger_bytes lies rounding and "
     "fragmentation. Weights mapped from a file are in the ledger, but not reserved."},
    {"driver_bytes", COLUMN_INT, 0, false,
     "Source driver: the process as seen from outside (resident pages on a CPU, memory in use on a GPU), all of it. "
     "Where a GPU's driver knows the process by no number of ours (a container), the card's free memory less than "
     "before "
     "the context."},
    {"overhead_bytes", COLUMN_INT, 0, false,
     "driver_bytes less reserved_bytes: runtime, libraries and the program itself. Negative where reserved pages were "
     "never touched."},
    {"context", COLUMN_INT, 0, true, "Tokens of the two prefills, each into an exact cache."},
    {"weights_formula_bytes", COLUMN_INT, 0, false, "Source formula: parameters * bytes per value; 0 when not loaded."},
    {"kv_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: 2 * layers * KV heads * head_dim * bytes per value * context; 0 without a cache."},
    {"logits_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: positions * vocabulary * bytes per value; 0 without logits."},
    {"since_start_bytes", COLUMN_INT, 0, false,
     "driver_bytes less those at the start of this process's measurement: at results released (less weights and "
     "workspace) and at released, what did not come back."},
    {"before_device_bytes", COLUMN_INT, 0, false,
     "Source driver, at start: the process before the device was opened; driver_bytes less this is what opening it "
     "took, on a GPU its context and the kernels."},
    {"recorded_bytes", COLUMN_INT, 0, false,
     "Allocations of the device's memory by the driver's own records (CUPTI), less those freed: must be "
     "reserved_bytes. Empty where there are no such records, as on a CPU."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

/* What the formulas give for a moment, in bytes. */
struct prediction {
    uint64_t weights, kv, logits;
};

static struct prediction predict(const struct bench *bench, enum moment moment, int64_t context)
{
    struct prediction bytes = {0};
    bool prefilled = moment == ALL_LOGITS || moment == LAST_LOGITS;
    if (moment != START && moment != RELEASED)
        bytes.weights = formula_weight_bytes(&bench->config, bench->dtype);
    if (prefilled) {
        bytes.kv = formula_kv_bytes(&bench->config, bench->kv_dtype, context);
        bytes.logits = formula_logits_bytes(&bench->config, bench->dtype, moment == ALL_LOGITS ? context : 1);
    }
    return bytes;
}

static void set_prediction(const struct bench *bench, struct results *results, enum moment moment, int64_t context)
{
    struct prediction bytes = predict(bench, moment, context);
    results_set_text(results, "moment", moment_names[moment]);
    results_set_int(results, "context", context);
    results_set_int(results, "weights_formula_bytes", (int64_t)bytes.weights);
    results_set_int(results, "kv_formula_bytes", (int64_t)bytes.kv);
    results_set_int(results, "logits_formula_bytes", (int64_t)bytes.logits);
}

static bool recorded(const struct results *results, enum moment moment, int64_t context)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "context") == (double)context &&
            strcmp(results_text(results, row, "moment"), moment_names[moment]) == 0)
            return true;
    return false;
}

/* One context, from start to release; `driver_at_start` is that of its first moment. */
struct run_state {
    struct bench *bench;
    struct results *results;
    int64_t context;
    uint64_t driver_at_start;
    bool recording; /* the driver's records of allocations; else why not: */
    struct error unrecorded;
};

static void set_outside(struct run_state *state, enum moment moment)
{
    struct results *results = state->results;
    const struct device_memory *before = &state->bench->device->info.before;
    uint64_t reserved = ledger_counts(state->bench->ledger).reserved, driver;
    const char *missing;
    if (bench_driver_bytes(state->bench, &driver, &missing)) {
        results_set_int(results, "driver_bytes", (int64_t)driver);
        results_set_int(results, "overhead_bytes", (int64_t)(driver - reserved));
        results_set_int(results, "since_start_bytes", (int64_t)(driver - state->driver_at_start));
    } else {
        results_set_missing(results, "driver_bytes", missing);
    }
    if (moment == START && before->process_known)
        results_set_int(results, "before_device_bytes", (int64_t)before->process_bytes);
}

static enum status set_records(struct run_state *state, struct error *error)
{
    struct device *device = state->bench->device;
    uint64_t held;
    if (!state->recording) {
        results_set_missing(state->results, "recorded_bytes", state->unrecorded.message);
        return STATUS_OK;
    }
    if (device->probes->account_bytes(device, &held, error) != STATUS_OK)
        return error->status;
    results_set_int(state->results, "recorded_bytes", (int64_t)held);
    return STATUS_OK;
}

/* The row of this moment, unless --resume has kept it. */
static enum status record(struct run_state *state, enum moment moment, struct error *error)
{
    static const char *const tag_columns[LEDGER_TAGS] = {"weights_bytes", "kv_bytes", "logits_bytes", "workspace_bytes",
                                                         "other_bytes"};
    struct results *results = state->results;
    struct ledger_counts counts = ledger_counts(state->bench->ledger);
    uint64_t driver;
    const char *missing;
    if (moment == START && bench_driver_bytes(state->bench, &driver, &missing))
        state->driver_at_start = driver;
    if (recorded(results, moment, state->context))
        return STATUS_OK;
    set_prediction(state->bench, results, moment, state->context);
    for (int tag = 0; tag < LEDGER_TAGS; tag++)
        results_set_int(results, tag_columns[tag], (int64_t)counts.live[tag]);
    results_set_int(results, "ledger_bytes", (int64_t)counts.live_total);
    results_set_int(results, "reserved_bytes", (int64_t)counts.reserved);
    set_outside(state, moment);
    if (set_records(state, error) != STATUS_OK)
        return error->status;
    return results_end_row(results, error);
}

static enum status prefill(struct run_state *state, struct model *model, enum moment moment, struct error *error)
{
    struct prefilled prefilled;
    enum logits_positions positions = moment == ALL_LOGITS ? LOGITS_ALL : LOGITS_LAST;
    progress_step(state->bench, 1.0, "%s, %" PRId64 " tokens", moment_names[moment], state->context);
    enum status status = prefilled_init(&prefilled, state->bench, model, (int)state->context, positions, error);
    if (status == STATUS_OK)
        status = record(state, moment, error);
    prefilled_free(&prefilled, model);
    return status;
}

static enum status measure_moments(struct run_state *state, struct error *error)
{
    struct bench *bench = state->bench;
    struct bench_need need = {.kv_bytes = prefilled_kv_bytes(bench, state->context),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, state->context)};
    struct model model;
    progress_step(bench, 1.0, "weights");
    if (record(state, START, error) != STATUS_OK ||
        bench_open_model(bench, &prefill_limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = record(state, LOADED, error);
    if (status == STATUS_OK)
        status = prefill(state, &model, ALL_LOGITS, error);
    if (status == STATUS_OK)
        status = prefill(state, &model, LAST_LOGITS, error);
    if (status == STATUS_OK)
        status = record(state, RESULTS_RELEASED, error);
    model_free(&model);
    return status == STATUS_OK ? record(state, RELEASED, error) : status;
}

/* With the driver's records of allocations, where there are any, from before the first one on. */
static enum status measure(struct run_state *state, struct error *error)
{
    struct device *device = state->bench->device;
    if (device->probes == NULL) {
        error_set(&state->unrecorded, STATUS_DEVICE, "this device keeps no records of allocations");
        return measure_moments(state, error);
    }
    state->recording = device->probes->account_begin(device, &state->unrecorded) == STATUS_OK;
    enum status status = measure_moments(state, error);
    if (state->recording)
        device->probes->account_end(device);
    return status;
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               struct error *error)
{
    enum status status = STATUS_OK;
    progress_start(bench, 3.0 * (double)contexts->count);
    for (size_t i = 0; i < contexts->count && status == STATUS_OK; i++) {
        struct run_state state = {.bench = bench, .results = results, .context = contexts->values[i]};
        int missing = 0;
        for (int moment = START; moment < MOMENTS; moment++)
            missing += !recorded(results, (enum moment)moment, state.context);
        if (missing > 0)
            status = measure(&state, error);
    }
    progress_end(bench);
    return status;
}

/* In every row the tags must sum to the total, and be what the formulas say; nothing may live after the release. */
static enum status check(const struct results *results, struct error *error)
{
    static const char *const pairs[][2] = {{"weights_bytes", "weights_formula_bytes"},
                                           {"kv_bytes", "kv_formula_bytes"},
                                           {"logits_bytes", "logits_formula_bytes"}};
    for (size_t row = 0; row < results_rows(results); row++) {
        const char *moment = results_text(results, row, "moment");
        double sum = results_real(results, row, "workspace_bytes") + results_real(results, row, "other_bytes");
        double total = results_real(results, row, "ledger_bytes");
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            sum += results_real(results, row, pairs[i][0]);
            if (results_real(results, row, pairs[i][0]) != results_real(results, row, pairs[i][1]))
                return error_set(error, STATUS_CHECK_FAILED, "anatomy: at \"%s\" %s is %s, the formula says %s", moment,
                                 pairs[i][0], results_text(results, row, pairs[i][0]),
                                 results_text(results, row, pairs[i][1]));
        }
        const char *reserved = results_text(results, row, "reserved_bytes"),
                   *allocated = results_text(results, row, "recorded_bytes");
        if (allocated[0] != '\0' && strcmp(allocated, reserved) != 0)
            return error_set(error, STATUS_CHECK_FAILED,
                             "anatomy: at \"%s\" the driver's records hold %s bytes, the ledger reserved %s", moment,
                             allocated, reserved);
        if (sum != total)
            return error_set(error, STATUS_CHECK_FAILED, "anatomy: at \"%s\" the tags sum to %.0f, the ledger says %s",
                             moment, sum, results_text(results, row, "ledger_bytes"));
        if (strcmp(moment, moment_names[RELEASED]) == 0 && total != 0.0)
            return error_set(error, STATUS_CHECK_FAILED, "anatomy: after the release %s bytes are still live",
                             results_text(results, row, "ledger_bytes"));
    }
    return STATUS_OK;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *contexts, size_t i)
{
    int64_t context = ((const struct int_list *)contexts)->values[i / MOMENTS];
    set_prediction(bench, results, (enum moment)(i % MOMENTS), context);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    const struct int_list *contexts = bench_contexts(bench, "4096", "64");
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, contexts, MOMENTS * contexts->count, error);
    enum status status = measure_all(bench, results, contexts, error);
    return status == STATUS_OK ? check(results, error) : status;
}

const struct experiment anatomy_experiment = {
    .name = "anatomy",
    .summary = "where memory goes at six moments: by tag, reserved, and what the outside sees beyond",
    .needs_device = true,
    .default_model = "qwen2.5-1.5b",
    .uses = USES_CONTEXTS,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
