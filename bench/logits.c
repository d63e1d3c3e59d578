/* logits: what does a forward pass leave allocated, with logits for all positions and with the last only?

   Predicted: logits = positions * vocab * bytes, beside the KV cache. Measured: the growth of the ledger over one
   prefill into an exact cache, and what of it neither logits nor KV explain. */
#include "bench/harness/prefilled.h"

#include <inttypes.h>
#include <stdio.h>

static const struct column columns[] = {
    {"context", COLUMN_INT, 0, true, "Tokens of the prompt that was prefilled into an exact cache."},
    {"logits_positions", COLUMN_TEXT, 0, true,
     "Positions that logits were kept for: all, or the last only (all that generation needs)."},
    {"logits_shape", COLUMN_TEXT, 0, false, "Shape of the logits: (positions, vocabulary)."},
    {"logits_bytes", COLUMN_INT, 0, false, "Source ledger: growth of live bytes tagged logits."},
    {"kv_bytes", COLUMN_INT, 0, false, "Source tensors: sum over the K and V tensors that the cache holds."},
    {"extra_ledger_bytes", COLUMN_INT, 0, false,
     "Source ledger: all that the forward pass left allocated, of every tag together."},
    {"unexplained_bytes", COLUMN_INT, 0, false,
     "extra_ledger_bytes less logits_formula_bytes less kv_formula_bytes: zero if the two formulas explain "
     "everything."},
    {"logits_share_percent", COLUMN_REAL, 1, false, "Logits in percent of extra_ledger_bytes."},
    {"extra_over_kv", COLUMN_REAL, 1, false, "extra_ledger_bytes / kv_bytes."},
    {"logits_formula_bytes", COLUMN_INT, 0, false, "Source formula: positions * vocabulary * bytes per value."},
    {"kv_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: 2 * layers * KV heads * head_dim * bytes per value * context."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

static const enum logits_positions both[] = {LOGITS_ALL, LOGITS_LAST};

static const char *positions_name(enum logits_positions positions)
{
    return positions == LOGITS_ALL ? "all" : "last";
}

static void predict(const struct bench *bench, struct results *results, int64_t context,
                    enum logits_positions positions)
{
    int64_t kept = positions == LOGITS_ALL ? context : 1;
    results_set_int(results, "context", context);
    results_set_text(results, "logits_positions", positions_name(positions));
    results_set_int(results, "logits_formula_bytes", (int64_t)formula_logits_bytes(&bench->config, bench->dtype, kept));
    results_set_int(results, "kv_formula_bytes", (int64_t)formula_kv_bytes(&bench->config, bench->kv_dtype, context));
}

static void record(const struct bench *bench, struct results *results, const struct prefilled *prefilled,
                   int64_t context)
{
    char shape[64];
    uint64_t explained = formula_logits_bytes(&bench->config, bench->dtype, prefilled->logits.rows) +
                         formula_kv_bytes(&bench->config, bench->kv_dtype, context);
    double extra = (double)prefilled->ledger_bytes;
    snprintf(shape, sizeof shape, "(%" PRId64 ", %" PRId64 ")", prefilled->logits.rows, prefilled->logits.vocab);
    results_set_text(results, "logits_shape", shape);
    results_set_int(results, "logits_bytes", (int64_t)prefilled->ledger_logits_bytes);
    results_set_int(results, "kv_bytes", (int64_t)prefilled->tensor_bytes);
    results_set_int(results, "extra_ledger_bytes", (int64_t)prefilled->ledger_bytes);
    results_set_int(results, "unexplained_bytes", (int64_t)(prefilled->ledger_bytes - explained));
    results_set_real(results, "logits_share_percent", 100.0 * (double)prefilled->ledger_logits_bytes / extra);
    results_set_real(results, "extra_over_kv", extra / (double)prefilled->tensor_bytes);
}

static enum status measure(struct bench *bench, struct results *results, struct model *model, int64_t context,
                           enum logits_positions positions, struct error *error)
{
    struct prefilled prefilled;
    enum status status = prefilled_init(&prefilled, bench, model, (int)context, positions, error);
    if (status == STATUS_OK) {
        predict(bench, results, context, positions);
        record(bench, results, &prefilled, context);
        status = results_end_row(results, error);
    }
    prefilled_free(&prefilled, model);
    return status;
}

static bool measured(const struct results *results, int64_t context, enum logits_positions positions)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "context") == (double)context &&
            results_text(results, row, "logits_positions")[0] == positions_name(positions)[0])
            return true;
    return false;
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               struct error *error)
{
    struct model model;
    int64_t longest = int_list_max(contexts);
    struct bench_need need = {.kv_bytes = prefilled_kv_bytes(bench, longest),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, longest)};
    if (bench_open_model(bench, &prefill_limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = STATUS_OK;
    progress_start(bench, 2.0 * (double)int_list_sum(contexts));
    for (size_t i = 0; i < contexts->count; i++)
        for (int p = 0; p < 2 && status == STATUS_OK; p++) {
            int64_t context = contexts->values[i];
            progress_step(bench, (double)context, "prefill of %" PRId64 " tokens, logits of %s", context,
                          both[p] == LOGITS_ALL ? "all positions" : "the last position");
            if (!measured(results, context, both[p]))
                status = measure(bench, results, &model, context, both[p], error);
        }
    progress_end(bench);
    model_free(&model);
    return status;
}

static enum status check(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "unexplained_bytes") != 0.0)
            return error_set(error, STATUS_CHECK_FAILED,
                             "logits: at context %s the forward pass left %s bytes that neither logits nor KV explain",
                             results_text(results, row, "context"), results_text(results, row, "unexplained_bytes"));
    return STATUS_OK;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *contexts, size_t i)
{
    predict(bench, results, ((const struct int_list *)contexts)->values[i / 2], both[i % 2]);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    const struct int_list *contexts = bench_contexts(bench, "2048,8192", "16,64");
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, contexts, 2 * contexts->count, error);
    if (measure_all(bench, results, contexts, error) != STATUS_OK)
        return error->status;
    return check(results, error);
}

const struct experiment logits_experiment = {
    .name = "logits",
    .summary = "what a forward pass leaves allocated: logits of all positions or of the last, beside the cache",
    .needs_device = true,
    .default_model = "qwen2.5-1.5b",
    .uses = USES_CONTEXTS,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
