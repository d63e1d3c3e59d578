/* kvquant: what does a smaller type of the KV cache save, and what does it cost?

   Predicted: 2 * layers * KV heads * (head_dim * bytes + scale) per token, a step's time from the bytes that it reads,
   and the order of the errors from what a type rounds a value by: 2^-(fraction bits + 1) of it, of int8 1/254 of its
   row's largest. Measured, with the same weights and every type in turn: the tensors of a cache and the ledger's bytes,
   how well held-out text is predicted, the largest error of a logit against the f32 cache on the same tokens, and the
   time of decode steps. Weights stay as they are: kvquant_types holds the memory of each type of weights beside each
   type of cache. */
#include "bench/kvquant.h"

#include "bench/harness/prefilled.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *text;
} own;
static const struct option_row own_rows[] = {
    {"text", "FILE", OPTION_TEXT, offsetof(__typeof__(own), text),
     .help = "what is predicted; data/tiny/heldout.txt unless given"},
    {0},
};
static const struct option_set own_set = {own_rows, &own};

static const struct column columns[] = {
    {"kv_dtype", COLUMN_TEXT, 0, true, "Type of the KV cache."},
    {"context", COLUMN_INT, 0, true, "Tokens in the cache when bytes are counted and steps timed."},
    {"kv_bytes_per_token", COLUMN_REAL, 1, false, "kv_tensor_bytes / context, scales included."},
    {"bytes_saved_percent", COLUMN_REAL, 2, false,
     "How far kv_tensor_bytes is below the same cache in the type that the model was published in."},
    {"perplexity", COLUMN_REAL, 4, false,
     "exp of the mean negative log-likelihood of the text's tokens, in double from the logits; pieces of up to "
     "`context` tokens, 8,192 in all, passes of 256. Empty where weights are synthetic or the context is past the "
     "model's."},
    {"perplexity_delta_percent", COLUMN_REAL, 3, false, "How far it is above the f32 cache's on the same text."},
    {"max_logit_error", COLUMN_REAL, 4, false,
     "Largest difference of any logit of any position from the run with the f32 cache, same weights, same tokens."},
    {"tpot_ms_p50", COLUMN_REAL, 4, false,
     "Median time of a decode step at this context, pass and greedy choice; the types in turn, over and over."},
    {"tpot_ms_p10", COLUMN_REAL, 4, false, "10 % of the steps took less."},
    {"tpot_ms_p90", COLUMN_REAL, 4, false, "90 % of the steps took less."},
    {"n", COLUMN_INT, 0, false, "Steps timed."},
    {"predicted_ms", COLUMN_REAL, 4, false,
     "Source formula: weights and cache, read once, over the read bandwidth measured in this run."},
    {"rounding_percent", COLUMN_REAL, 5, false,
     "Source formula: most that a value can be rounded by, of the value itself; of int8, of the largest of its row."},
    {"rms_logit_error", COLUMN_REAL, 5, false, "Root mean square of the same differences."},
    {"same_choice_percent", COLUMN_REAL, 2, false,
     "Positions at which the largest logit is the same token as with the f32 cache."},
    {"tokens", COLUMN_INT, 0, false, "Tokens of the text that were predicted."},
    {"kv_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: 2 * layers * KV heads * (head_dim * bytes + 4 for int8's scale) * context."},
    {"kv_tensor_bytes", COLUMN_INT, 0, false, "Source tensors: sum over the tensors of an exact cache of the context."},
    {"kv_ledger_bytes", COLUMN_INT, 0, false, "Source ledger: growth of the live bytes tagged kv as it was made."},
    {"tokens_checksum", COLUMN_TEXT, 0, false, "FNV-1a over the tokens that the timed steps chose."},
};

static const struct column type_columns[] = {
    {"weights_dtype", COLUMN_TEXT, 0, true, "Type of the weights."},
    {"kv_dtype", COLUMN_TEXT, 0, true, "Type of the KV cache."},
    {"context", COLUMN_INT, 0, true, "Tokens in the cache."},
    {"weights_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged weights, taken for the whole model."},
    {"kv_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged kv, of an exact cache of the context."},
    {"total_bytes", COLUMN_INT, 0, false, "weights_bytes + kv_bytes."},
    {"kv_share_percent", COLUMN_REAL, 2, false, "kv_bytes of total_bytes."},
    {"formula_bytes", COLUMN_INT, 0, false, "Source formula: parameters * bytes + bytes per token * context."},
};
enum { MAIN, TYPES };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [TYPES] = {"_types", true, type_columns, sizeof type_columns / sizeof *type_columns},
};

/* ---- prediction ---- */

static double rounding(enum dtype type)
{
    static const double parts[DTYPE_COUNT] = {[DTYPE_F32] = 0x1p-24,
                                              [DTYPE_F16] = 0x1p-11,
                                              [DTYPE_BF16] = 0x1p-8,
                                              [DTYPE_FP8_E4M3] = 0x1p-4,
                                              [DTYPE_INT8] = 1.0 / 254};
    return parts[type];
}

/* All types; of a user's --kv-dtype only that one, beside the f32 cache that it is held against. */
static bool wanted(const struct bench *bench, enum dtype type)
{
    return !bench->options.has_kv_dtype || type == DTYPE_F32 || type == bench->options.kv_dtype;
}

static uint64_t step_bytes(const struct bench *bench, enum dtype type, int64_t context)
{
    struct pass_shape step = {.sequences = 1, .start = context, .count = 1, .logits = 1};
    return work_bytes(&bench->config, bench->dtype, type, &step);
}

static void predict(const struct bench *bench, struct results *results, enum dtype type, int64_t context)
{
    results_set_text(results, "kv_dtype", dtype_name(type));
    results_set_int(results, "context", context);
    results_set_int(results, "kv_formula_bytes", (int64_t)formula_kv_bytes(&bench->config, type, context));
    results_set_real(results, "rounding_percent", 100.0 * rounding(type));
}

static bool has_row(const struct results *results, enum dtype type, int64_t context)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "context") == (double)context &&
            strcmp(results_text(results, row, "kv_dtype"), dtype_name(type)) == 0)
            return true;
    return false;
}

/* ---- bytes ---- */

/* An exact cache of the context, made and given back. */
static enum status count_bytes(struct bench *bench, enum dtype type, int64_t context, uint64_t *tensors,
                               uint64_t *ledger, struct error *error)
{
    const struct kv_options options = {.policy = KV_EXACT, .dtype = type, .max_sequences = 1};
    uint64_t before = ledger_counts(bench->ledger).live[LEDGER_KV];
    struct kv_cache *cache;
    int sequence;
    *tensors = *ledger = 0;
    if (kv_open(&cache, bench->ledger, &bench->config, &options, error) != STATUS_OK)
        return error->status;
    enum status status = kv_sequence_open(cache, &sequence, error);
    if (status == STATUS_OK)
        status = kv_make_room(cache, sequence, (int)context, error);
    *tensors = kv_tensor_bytes(cache);
    *ledger = ledger_counts(bench->ledger).live[LEDGER_KV] - before;
    kv_close(cache);
    return status;
}

/* held: the weights lie in memory; else the budget does not hold them beside the largest cache. */
static enum status write_pair(struct bench *bench, struct results *results, enum dtype weights_type, enum dtype type,
                              int64_t context, bool held, struct error *error)
{
    uint64_t tensors, kv = 0, weights = ledger_counts(bench->ledger).live[LEDGER_WEIGHTS];
    uint64_t formula =
        formula_weight_bytes(&bench->config, weights_type) + formula_kv_bytes(&bench->config, type, context);
    if (held && count_bytes(bench, type, context, &tensors, &kv, error) != STATUS_OK)
        return error->status;
    results_set_text(results, "weights_dtype", dtype_name(weights_type));
    results_set_text(results, "kv_dtype", dtype_name(type));
    results_set_int(results, "context", context);
    results_set_int(results, "formula_bytes", (int64_t)formula);
    if (held) {
        results_set_int(results, "weights_bytes", (int64_t)weights);
        results_set_int(results, "kv_bytes", (int64_t)kv);
        results_set_int(results, "total_bytes", (int64_t)(weights + kv));
        results_set_real(results, "kv_share_percent", 100.0 * (double)kv / (double)(weights + kv));
    } else {
        results_set_missing(results, "total_bytes", "the budget does not hold these weights beside an f32 cache");
    }
    if (results_end_row(results, error) == STATUS_OK && held && weights + kv != formula)
        return error_set(error, STATUS_CHECK_FAILED, "kvquant: %s weights and %s cache take other bytes than predicted",
                         dtype_name(weights_type), dtype_name(type));
    return error->status;
}

/* Every type of weights beside every type of cache: taken from the allocator, not filled. */
static enum status pair_types(struct bench *bench, int64_t context, struct error *error)
{
    struct results *results;
    enum status status = results_open(&results, bench, &tables[TYPES], error);
    for (enum dtype w = DTYPE_F32; w <= DTYPE_BF16 && status == STATUS_OK; w++) {
        struct weights weights = {0};
        uint64_t largest =
            formula_weight_bytes(&bench->config, w) + formula_kv_bytes(&bench->config, DTYPE_F32, context);
        bool held = largest <= ledger_budget(bench->ledger);
        if (held)
            status = weights_unfilled(&weights, bench->ledger, &bench->config, w, error);
        for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT && status == STATUS_OK; type++)
            if (wanted(bench, type))
                status = write_pair(bench, results, w, type, context, held, error);
        weights_free(&weights, bench->ledger);
    }
    return status;
}

/* ---- one context ---- */

static enum status write_row(const struct kvquant *k, struct results *results, enum dtype type, struct error *error)
{
    const struct kvquant_type *t = &k->types[type], *f32 = &k->types[DTYPE_F32];
    const struct config *config = &k->bench->config;
    uint64_t tensors, ledger;
    if (count_bytes(k->bench, type, k->context, &tensors, &ledger, error) != STATUS_OK)
        return error->status;
    double published = (double)formula_kv_bytes(config, config->torch_dtype, k->context);
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, t->checksum);
    predict(k->bench, results, type, k->context);
    results_set_int(results, "kv_tensor_bytes", (int64_t)tensors);
    results_set_int(results, "kv_ledger_bytes", (int64_t)ledger);
    results_set_real(results, "kv_bytes_per_token", (double)tensors / (double)k->context);
    results_set_real(results, "bytes_saved_percent", 100.0 * (1.0 - (double)tensors / published));
    if (t->quality.tokens > 0) {
        double perplexity = quality_perplexity(&t->quality), reference = quality_perplexity(&f32->quality);
        quality_set(k->bench, results, "perplexity", perplexity);
        quality_set(k->bench, results, "perplexity_delta_percent", 100.0 * (perplexity / reference - 1.0));
        results_set_real(results, "max_logit_error", t->largest_error);
        results_set_real(results, "rms_logit_error", sqrt(t->squares / (double)k->logits_compared));
        results_set_real(results, "same_choice_percent", 100.0 * (double)t->same / (double)k->rows_compared);
        results_set_int(results, "tokens", t->quality.tokens);
    }
    if (t->n >= STATS_MIN_SPREAD_SAMPLES) {
        results_set_real(results, "tpot_ms_p10", stats_quantile(t->samples, t->n, 0.1));
        results_set_real(results, "tpot_ms_p90", stats_quantile(t->samples, t->n, 0.9));
    }
    results_set_real(results, "tpot_ms_p50", stats_median(t->samples, t->n));
    results_set_int(results, "n", (int64_t)t->n);
    results_set_real(results, "predicted_ms",
                     (double)step_bytes(k->bench, type, k->context) / k->read_ceiling_gbps / 1e6);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

static enum status measure_context(struct kvquant *k, struct results *results, int64_t context, struct error *error)
{
    enum status status = STATUS_OK;
    bool missing = false;
    k->context = context;
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++)
        missing = missing || (wanted(k->bench, type) && !has_row(results, type, context));
    if (!missing)
        return STATUS_OK;
    if (kvquant_begin(k, error) != STATUS_OK ||
        (context <= k->bench->config.max_position_embeddings && kvquant_score(k, error) != STATUS_OK) ||
        kvquant_time(k, error) != STATUS_OK)
        return error->status;
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT && status == STATUS_OK; type++)
        if (k->types[type].measured && !has_row(results, type, context))
            status = write_row(k, results, type, error);
    return status;
}

/* ---- the experiment ---- */

/* Tokens that are predicted, at most: what has learned nothing is not worth many. */
static int64_t most_scored(const struct bench *bench)
{
    return bench->options.quick ? 256 : bench->weights_dir[0] ? 8192 : 512;
}

/* Text for the context that takes most of it; none where all lie past what the model was made for. */
static enum status read_text(struct kvquant *k, const struct int_list *contexts, struct error *error)
{
    int64_t most = 0;
    for (size_t i = 0; i < contexts->count; i++)
        if (contexts->values[i] <= k->bench->config.max_position_embeddings) {
            struct kvquant_pieces pieces = kvquant_pieces(k, contexts->values[i]);
            most = pieces.count * pieces.length > most ? pieces.count * pieces.length : most;
        }
    return most > 0 ? text_for(&k->text, k->bench, own.text, most, error) : STATUS_OK;
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               struct error *error)
{
    struct kvquant k = {.bench = bench, .reps = bench_reps(bench, 30, 3), .most_scored = most_scored(bench)};
    struct model model = {0};
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++)
        k.types[type].measured = wanted(bench, type);
    enum status status = read_text(&k, contexts, error);
    if (status == STATUS_OK)
        status = pair_types(bench, int_list_max(contexts), error);
    if (status == STATUS_OK)
        status = kvquant_open_model(&k, &model, int_list_max(contexts), error);
    progress_start(bench, (double)contexts->count);
    for (size_t i = 0; i < contexts->count && status == STATUS_OK; i++) {
        progress_step(bench, 1.0, "context %" PRId64, contexts->values[i]);
        status = measure_context(&k, results, contexts->values[i], error);
    }
    progress_end(bench);
    kvquant_free(&k);
    model_free(&model);
    return status;
}

struct grid {
    const struct int_list *contexts;
    enum dtype types[DTYPE_COUNT];
    size_t count;
};
static void predict_nth(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    const struct grid *grid = of;
    enum dtype type = grid->types[i % grid->count];
    int64_t context = grid->contexts->values[i / grid->count];
    const struct config *config = &bench->config;
    predict(bench, results, type, context);
    results_set_real(results, "bytes_saved_percent",
                     100.0 * (1.0 - (double)formula_kv_bytes_per_token(config, type) /
                                        (double)formula_kv_bytes_per_token(config, config->torch_dtype)));
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    struct grid grid = {.contexts = bench_contexts(bench, "2048,32768", "64,256")};
    if (int_list_max(grid.contexts) > INT_MAX - KVQUANT_STEPS)
        return error_set(error, STATUS_DEVICE, "kvquant: %" PRId64 " tokens are more than %d",
                         int_list_max(grid.contexts), INT_MAX - KVQUANT_STEPS);
    if (results_open(&results, bench, &tables[MAIN], error) != STATUS_OK)
        return error->status;
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++)
        if (wanted(bench, type))
            grid.types[grid.count++] = type;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, &grid, grid.count * grid.contexts->count, error);
    if (measure_all(bench, results, grid.contexts, error) != STATUS_OK)
        return error->status;
    return prefilled_check_rows(results, "context", error);
}

const struct experiment kvquant_experiment = {
    .name = "kvquant",
    .summary = "bytes, perplexity, logit error and time per token of f32, f16, bf16, fp8 and int8 caches",
    .needs_device = true,
    .default_model = "tiny",
    .uses = USES_CONTEXTS | USES_REPS | USES_SAMPLES,
    .own = &own_set,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
