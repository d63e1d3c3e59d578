/* oom: a model that is too large for its budget. Where does loading stop, how much is lacking, and which advice helps?

   Predicted: weights are loaded piece by piece (embedding, one layer after another, last norm, head) while the sum
   stays within the budget; all that lacks is weights - budget. Measured: loading is really tried under a ledger with
   that budget, and its refusal taken apart. The failure is the expected result: as predicted, it ends with status 0. */
#include "bench/harness/bench.h"

#include <inttypes.h>

#define DEFAULT_BUDGET UINT64_C(12490457088) /* a "12 GB" RTX 3060, by the CUDA runtime */

static const struct column columns[] = {
    {"budget_bytes", COLUMN_INT, 0, true, "What the ledger may hold: --budget, or the bytes of a 12 GB card."},
    {"requested_bytes", COLUMN_INT, 0, false, "Source ledger: the request that was refused; 0 if the model fits."},
    {"ledger_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes of all tags when it was refused."},
    {"weights_loaded_percent", COLUMN_REAL, 2, false,
     "Source ledger: live bytes tagged weights when it was refused, in percent of all weights."},
    {"missing_bytes", COLUMN_INT, 0, false,
     "Source ledger: what all weights lack under the budget, not what the last request lacks."},
    {"message", COLUMN_TEXT, 0, false, "The refusal, word by word."},
    {"weights_formula_bytes", COLUMN_INT, 0, false, "Source formula: parameters * bytes per value."},
    {"predicted_loaded_percent", COLUMN_REAL, 2, false,
     "Source formula: the pieces that fit whole, in percent of all weights. Weights read from a file are counted "
     "tensor "
     "by tensor, and may come further by less than a piece."},
    {"predicted_missing_bytes", COLUMN_INT, 0, false, "Source formula: weights_formula_bytes - budget_bytes."},
    {"filled", COLUMN_TEXT, 0, false,
     "no: synthetic weights were allocated and not written (on a CPU their pages take no memory, so that shapes larger "
     "than the machine can be tried); yes: read from a folder."},
};
static const struct column summary_columns[] = {
    {"advice", COLUMN_TEXT, 0, true, "What people are told to do about an out-of-memory error."},
    {"saves_bytes", COLUMN_INT, 0, false, "What it would give back at the moment of the refusal."},
    {"still_missing_bytes", COLUMN_INT, 0, false, "missing_bytes less that; 0 if it is enough."},
    {"helps", COLUMN_TEXT, 0, false, "yes if it is enough, else no."},
    {"reason", COLUMN_TEXT, 0, false, "Where the saved bytes come from."},
};
enum { MAIN, SUMMARY };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [SUMMARY] = {"_summary", false, summary_columns, sizeof summary_columns / sizeof *summary_columns},
};

/* ---- the arithmetic ---- */

struct prediction {
    uint64_t weights, loaded, missing; /* bytes; loaded: of the pieces that fit whole */
    uint64_t stopped_at;               /* bytes of the piece that does not; 0 if all fit */
    bool whole_pieces; /* a piece is one allocation, so that `loaded` is exact; else up to stopped_at bytes come on top
                        */
};

/* A layer is one allocation if its tensors can lie back to back on 64-byte boundaries. Matrices can if vectors can. */
static bool layers_are_whole(const struct bench *bench)
{
    const struct config *config = &bench->config;
    int64_t value = (int64_t)dtype_size(bench->dtype);
    int64_t widths[] = {config->hidden_size, config->num_attention_heads * config->head_dim,
                        config->num_key_value_heads * config->head_dim,
                        config->mlp_bias ? config->intermediate_size : config->hidden_size};
    bool aligned = bench->weights_dir[0] == 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        aligned = aligned && widths[i] * value % 64 == 0;
    return aligned;
}

static void load_piece(struct prediction *prediction, uint64_t budget, uint64_t bytes)
{
    if (prediction->stopped_at > 0)
        return;
    if (prediction->loaded + bytes > budget)
        prediction->stopped_at = bytes;
    else
        prediction->loaded += bytes;
}

static struct prediction predict(const struct bench *bench)
{
    const struct config *config = &bench->config;
    uint64_t budget = ledger_budget(bench->ledger), value = dtype_size(bench->dtype);
    uint64_t norm = (uint64_t)config->hidden_size * value, table = (uint64_t)config->vocab_size * norm;
    struct prediction prediction = {.weights = formula_weight_bytes(config, bench->dtype),
                                    .whole_pieces = layers_are_whole(bench)};
    uint64_t tables_bytes = table * (config->tie_word_embeddings ? 1 : 2);
    uint64_t layer = (prediction.weights - tables_bytes - norm) / (uint64_t)config->num_hidden_layers;
    load_piece(&prediction, budget, table);
    for (int64_t i = 0; i < config->num_hidden_layers; i++)
        load_piece(&prediction, budget, layer);
    load_piece(&prediction, budget, norm);
    if (!config->tie_word_embeddings)
        load_piece(&prediction, budget, table);
    prediction.missing = prediction.weights > budget ? prediction.weights - budget : 0;
    return prediction;
}

static void set_prediction(const struct bench *bench, struct results *results, const struct prediction *prediction)
{
    results_set_int(results, "budget_bytes", (int64_t)ledger_budget(bench->ledger));
    results_set_int(results, "weights_formula_bytes", (int64_t)prediction->weights);
    results_set_real(results, "predicted_loaded_percent",
                     100.0 * (double)prediction->loaded / (double)prediction->weights);
    results_set_int(results, "predicted_missing_bytes", (int64_t)prediction->missing);
    results_set_text(results, "filled", bench->weights_dir[0] ? "yes" : "no");
}

/* ---- loading ---- */

/* Tries to load; a refusal is a result, told by *refusal and its message, and anything else an error. */
static enum status load(struct bench *bench, struct ledger_refusal *refusal, struct error *message, struct error *error)
{
    struct weights weights = {0};
    enum status status =
        bench->weights_dir[0]
            ? weights_load(&weights, bench->ledger, &bench->config, bench->dtype, bench->weights_dir, message)
            : weights_unfilled(&weights, bench->ledger, &bench->config, bench->dtype, message);
    weights_free(&weights, bench->ledger);
    *refusal = ledger_refusal(bench->ledger);
    if (status == STATUS_OK || (status == STATUS_DEVICE && refusal->missing > 0)) /* else the device's own refusal */
        return STATUS_OK;
    *error = *message;
    return status;
}

static enum status record(const struct bench *bench, struct results *results, const struct prediction *prediction,
                          const struct ledger_refusal *refusal, const char *message, struct error *error)
{
    bool fits = refusal->asked == 0;
    uint64_t loaded = fits ? prediction->weights : refusal->live[LEDGER_WEIGHTS];
    set_prediction(bench, results, prediction);
    results_set_int(results, "requested_bytes", (int64_t)refusal->asked);
    results_set_int(results, "ledger_bytes", (int64_t)(fits ? loaded : refusal->live_total));
    results_set_real(results, "weights_loaded_percent", 100.0 * (double)loaded / (double)prediction->weights);
    results_set_int(results, "missing_bytes", (int64_t)refusal->missing);
    results_set_text(results, "message", fits ? "all weights fit" : message);
    return results_end_row(results, error);
}

/* Did it happen as predicted? */
static enum status check(const struct bench *bench, const struct prediction *prediction,
                         const struct ledger_refusal *refusal, const char *message, struct error *error)
{
    uint64_t budget = ledger_budget(bench->ledger), loaded = refusal->live[LEDGER_WEIGHTS];
    if (refusal->asked > 0 && refusal->live_total + refusal->asked <= budget)
        return error_set(error, STATUS_DEVICE, "oom: the device itself refused before the budget did: %s", message);
    if (refusal->missing != prediction->missing)
        return error_set(error, STATUS_CHECK_FAILED, "oom: %" PRIu64 " bytes are missing, the formula says %" PRIu64,
                         refusal->missing, prediction->missing);
    uint64_t slack = prediction->whole_pieces ? 1 : prediction->stopped_at;
    if (refusal->asked > 0 && (loaded < prediction->loaded || loaded >= prediction->loaded + slack))
        return error_set(error, STATUS_CHECK_FAILED,
                         "oom: loading stopped at %" PRIu64 " bytes of weights, predicted were %" PRIu64, loaded,
                         prediction->loaded);
    return STATUS_OK;
}

/* ---- advice ---- */

struct advice {
    const char *text;
    uint64_t saves;
    const char *reason;
};

static enum status write_advice(struct bench *bench, const struct prediction *prediction,
                                const struct ledger_refusal *refusal, struct error *error)
{
    uint64_t parameters = formula_parameters(&bench->config), kv = refusal->live[LEDGER_KV];
    uint64_t eight_bits = prediction->weights > parameters ? prediction->weights - parameters : 0;
    /* Adopted (mapped) weights are live and not reserved. */
    uint64_t unused = refusal->reserved > refusal->live_total ? refusal->reserved - refusal->live_total : 0;
    const struct advice list[] = {
        {"shorter context", kv, "of kv held: no cache exists while weights load"},
        {"fewer sequences", kv, "of kv held: no cache exists while weights load"},
        {"smaller KV type", kv, "of kv held: no cache exists while weights load"},
        {"logits of the last only", refusal->live[LEDGER_LOGITS], "of logits held: no pass has run"},
        {"empty the allocator's cache", unused, "reserved and not live"},
        {"free the last request", refusal->asked, "what the refused request asked for; others come after it"},
        {"weights in 8 bits", eight_bits, "one byte per parameter; scales of the format come on top"},
        {"weights in 4 bits", prediction->weights - parameters / 2, "half a byte per parameter; scales come on top"},
        {"two such cards", prediction->weights / 2, "half of the weights on each"},
    };
    struct results *summary;
    if (results_open(&summary, bench, &tables[SUMMARY], error) != STATUS_OK)
        return error->status;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        bool helps = list[i].saves >= refusal->missing;
        results_set_text(summary, "advice", list[i].text);
        results_set_int(summary, "saves_bytes", (int64_t)list[i].saves);
        results_set_int(summary, "still_missing_bytes", helps ? 0 : (int64_t)(refusal->missing - list[i].saves));
        results_set_text(summary, "helps", helps ? "yes" : "no");
        results_set_text(summary, "reason", list[i].reason);
        if (results_end_row(summary, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* ---- the experiment ---- */

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    struct prediction prediction = predict(bench);
    struct ledger_refusal refusal;
    struct error message = {0};
    if (results_open(&results, bench, &tables[MAIN], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run) {
        set_prediction(bench, results, &prediction);
        return results_end_row(results, error);
    }
    if (load(bench, &refusal, &message, error) != STATUS_OK)
        return error->status;
    bool kept = results_has(results, (struct key[]){{"budget_bytes", (int64_t)ledger_budget(bench->ledger)}}, 1);
    if (!kept && record(bench, results, &prediction, &refusal, message.message, error) != STATUS_OK)
        return error->status;
    if (refusal.missing > 0 && write_advice(bench, &prediction, &refusal, error) != STATUS_OK)
        return error->status;
    return check(bench, &prediction, &refusal, message.message, error);
}

const struct experiment oom_experiment = {
    .name = "oom",
    .summary = "loading a model that does not fit: where it stops, how much is lacking, which advice helps",
    .needs_device = true,
    .default_model = "qwen2.5-7b",
    .default_budget = DEFAULT_BUDGET,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
