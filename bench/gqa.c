/* gqa: what do shared KV heads save? The same model with 1 KV head (MQA; Shazeer 2019), with as many as query heads
   (MHA), and with every number between that divides them (GQA; Ainslie et al. 2023).

   Predicted: KV bytes per token = heads * 2 * layers * head_dim * bytes, and a decode step's time = bytes read / read
   bandwidth, both linear in the heads. Measured: the cache's tensors, and decode steps at a long context of all numbers
   of heads in turn. The weights are those of MHA; fewer heads use the first rows of the K and V matrices, so that all
   share one copy. The caches hold random K and V: what a step costs does not depend on them. */
#include "bench/harness/timed_batch.h"
#include "engine/work.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, WARM_STEPS = 1 };

static const struct column columns[] = {
    {"num_key_value_heads", COLUMN_INT, 0, true, "KV heads that the model was given."},
    {"kind", COLUMN_TEXT, 0, false, "MQA: one KV head for all query heads. MHA: one for each. GQA: between."},
    {"bytes_per_token", COLUMN_INT, 0, false,
     "Source tensors: bytes of the cache's K and V tensors / positions they hold."},
    {"tpot_ms_p50", COLUMN_REAL, 4, false, "Time of a decode step of one sequence at that context: median."},
    {"percent_of_read_ceiling", COLUMN_REAL, 1, false,
     "step_bytes / tpot_ms_p50 in percent of the read ceiling; over 100 means that the ceiling was measured too low."},
    {"context", COLUMN_INT, 0, true, "Tokens in the cache when the first timed step begins."},
    {"num_attention_heads", COLUMN_INT, 0, false, "Query heads, the same in all rows of a model."},
    {"bytes_per_token_formula", COLUMN_INT, 0, false, "Source formula: 2 * layers * KV heads * head_dim * bytes."},
    {"tpot_ms_p10", COLUMN_REAL, 4, false, "Tenth percentile of the same steps."},
    {"tpot_ms_p90", COLUMN_REAL, 4, false, "Ninetieth percentile of the same steps."},
    {"n", COLUMN_INT, 0, false, "Steps timed."},
    {"step_bytes", COLUMN_INT, 0, false,
     "Source formula: weights (K and V matrices of so many heads) and the cache read, one position written."},
    {"predicted_ms", COLUMN_REAL, 4, false, "step_bytes / read ceiling."},
    {"read_ceiling_gbps", COLUMN_REAL, 2, false,
     "Read bandwidth: median of samples before every repetition, each the best of three passes."},
    {"tokens_checksum", COLUMN_TEXT, 0, false, "FNV-1a of the tokens chosen, the same in every repetition."},
};
static const struct column fit_columns[] = {
    {"context", COLUMN_INT, 0, true, "Tokens in the cache."},
    {"quantity", COLUMN_TEXT, 0, true, "bytes_per_token (source tensors) or tpot_ms: what the line is fitted through."},
    {"slope_per_kv_head", COLUMN_REAL, 6, false, "Rise per KV head, in the quantity's unit."},
    {"ci95_low", COLUMN_REAL, 6, false, "Lower end of its 95 % interval."},
    {"ci95_high", COLUMN_REAL, 6, false, "Upper end of its 95 % interval."},
    {"predicted_slope", COLUMN_REAL, 6, false,
     "Source formula: 2 * layers * head_dim * bytes; for tpot_ms what a head adds to step_bytes / read ceiling."},
    {"resolved", COLUMN_TEXT, 0, false, "yes if the interval is clear of zero, else no: not resolved from noise."},
    {"intercept", COLUMN_REAL, 6, false, "What the line gives at no KV heads: for tpot_ms all that is not theirs."},
    {"residual_max", COLUMN_REAL, 6, false, "Largest distance of a point from the line."},
    {"interval_from", COLUMN_TEXT, 0, false,
     "repetitions: order statistics of the repetitions' slopes; rows: residuals of the rows (bytes, or rows kept by "
     "--resume)."},
};
enum { MAIN, FIT };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [FIT] = {"_fit", false, fit_columns, sizeof fit_columns / sizeof *fit_columns},
};

/* One number of KV heads. */
struct variant {
    struct config config;
    struct timed_batch sequence;
    double *ms; /* [reps * STEPS] */
    uint64_t checksum;
};

/* One context: all variants, with caches of their own. The model is made anew for each visit, around shared weights. */
struct group {
    struct bench *bench;
    const struct weights *weights; /* of MHA */
    struct variant *variants;
    size_t count;
    int context, reps;
    struct model model;
    double *visits;              /* ms, [reps][count]: median of a visit's steps */
    struct bench_reader *reader; /* asked before each repetition */
    double read_ceiling;         /* bytes per second */
};

static const struct model_limits limits = {.max_rows = 1, .max_sequences = 1, .max_blocks = 1};

static struct config with_kv_heads(const struct config *config, int64_t heads)
{
    struct config changed = *config;
    changed.num_key_value_heads = heads;
    return changed;
}

static const char *kind_name(const struct config *config)
{
    if (config->num_key_value_heads == config->num_attention_heads)
        return "MHA";
    return config->num_key_value_heads == 1 ? "MQA" : "GQA";
}

static uint64_t step_bytes(const struct bench *bench, const struct config *config, int64_t context)
{
    struct pass_shape step = {.sequences = 1, .start = context, .count = 1, .logits = 1};
    return work_bytes(config, bench->dtype, bench->kv_dtype, &step);
}

static void predict(const struct bench *bench, struct results *results, const struct config *config, int64_t context)
{
    results_set_text(results, "weights",
                     "synthetic"); /* also where the user's folder has some: their heads are fixed */
    results_set_int(results, "num_key_value_heads", config->num_key_value_heads);
    results_set_text(results, "kind", kind_name(config));
    results_set_int(results, "context", context);
    results_set_int(results, "num_attention_heads", config->num_attention_heads);
    results_set_int(results, "bytes_per_token_formula", (int64_t)formula_kv_bytes_per_token(config, bench->kv_dtype));
    results_set_int(results, "step_bytes", (int64_t)step_bytes(bench, config, context));
}

/* ---- a variant's model and cache ---- */

/* Makes group->model this variant: the same tensors, of which the first rows are used. Free with model_free(). */
static enum status become(struct group *group, const struct variant *variant, struct error *error)
{
    struct weights view = *group->weights;
    size_t bytes = (size_t)variant->config.num_hidden_layers * sizeof *view.layers;
    view.storage = NULL; /* nothing to give back */
    view.layers = malloc(bytes);
    if (view.layers == NULL)
        return error_set(error, STATUS_DEVICE, "gqa: out of host memory");
    memcpy(view.layers, group->weights->layers, bytes);
    return model_init(&group->model, group->bench->ledger, &variant->config, &view, &limits, group->bench->kv_dtype,
                      error);
}

static enum status variant_init(struct group *group, struct variant *variant, int64_t heads, struct error *error)
{
    variant->config = with_kv_heads(&group->bench->config, heads);
    variant->ms = calloc((size_t)group->reps * STEPS, sizeof *variant->ms);
    if (variant->ms == NULL)
        return error_set(error, STATUS_DEVICE, "gqa: out of host memory");
    enum status status = become(group, variant, error);
    if (status == STATUS_OK)
        status = timed_batch_init(&variant->sequence, group->bench, &group->model, 1,
                                  group->context + WARM_STEPS + STEPS, error);
    if (status == STATUS_OK)
        status = timed_batch_fill_random(&variant->sequence, group->context + WARM_STEPS, error);
    model_free(&group->model);
    return status;
}

static enum status group_init(struct group *group, struct error *error)
{
    int64_t heads = group->bench->config.num_attention_heads;
    group->variants = calloc((size_t)heads, sizeof *group->variants);
    group->visits = calloc((size_t)(heads * group->reps), sizeof *group->visits);
    if (group->variants == NULL || group->visits == NULL)
        return error_set(error, STATUS_DEVICE, "gqa: out of host memory");
    for (int64_t h = 1; h <= heads; h++)
        if (heads % h == 0 && variant_init(group, &group->variants[group->count++], h, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* While a model is there, so that the buffer leaves room for one. */
static enum status open_reader(struct group *group, struct error *error)
{
    if (become(group, &group->variants[group->count - 1], error) != STATUS_OK)
        return error->status;
    enum status status = bench_reader_open(group->bench, &group->reader, error);
    model_free(&group->model);
    return status;
}

static void group_free(struct group *group)
{
    bench_reader_close(group->reader);
    for (size_t i = 0; i < group->count; i++) {
        timed_batch_free(&group->variants[i].sequence);
        free(group->variants[i].ms);
    }
    free(group->variants);
    free(group->visits);
}

/* ---- measuring ---- */

static enum status steps(struct group *group, struct variant *variant, double *ms, uint64_t *checksum,
                         struct error *error)
{
    int32_t chosen[STEPS];
    double warm;
    if (timed_batch_rewind(&variant->sequence, group->context - WARM_STEPS, error) != STATUS_OK)
        return error->status;
    for (int i = 0; i < WARM_STEPS; i++)
        if (timed_batch_pass(&variant->sequence, 1, 1, &warm, error) != STATUS_OK)
            return error->status;
    for (int i = 0; i < STEPS; i++) {
        if (timed_batch_pass(&variant->sequence, 1, 1, &ms[i], error) != STATUS_OK)
            return error->status;
        chosen[i] = variant->sequence.chosen[0];
    }
    *checksum = bench_checksum(chosen, sizeof chosen);
    return STATUS_OK;
}

static enum status visit(struct group *group, size_t at, int repetition, struct error *error)
{
    struct variant *variant = &group->variants[at];
    double *ms = variant->ms + (size_t)repetition * STEPS;
    uint64_t checksum = 0;
    enum status status = become(group, variant, error);
    if (status == STATUS_OK)
        status = steps(group, variant, ms, &checksum, error);
    model_free(&group->model);
    if (status != STATUS_OK)
        return status;
    if (repetition > 0 && checksum != variant->checksum)
        return error_set(error, STATUS_CHECK_FAILED,
                         "gqa: with %" PRId64 " KV heads repetition %d chose other tokens than the one before: what is "
                         "timed is not the same work",
                         variant->config.num_key_value_heads, repetition);
    variant->checksum = checksum;
    group->visits[(size_t)repetition * group->count + at] = stats_median(ms, STEPS);
    char setting[80];
    snprintf(setting, sizeof setting, "num_key_value_heads=%" PRId64 ";context=%d", variant->config.num_key_value_heads,
             group->context);
    for (int i = 0; i < STEPS && status == STATUS_OK; i++)
        status = samples_add(group->bench, setting, repetition, ms[i], "ms", error);
    return status;
}

/* Every repetition visits all variants, upwards and downwards in turn. */
static enum status visit_all(struct group *group, struct error *error)
{
    for (int repetition = 0; repetition < group->reps; repetition++) {
        progress_step(group->bench, 1.0, "%d tokens, repetition %d of %d", group->context, repetition + 1, group->reps);
        if (bench_reader_sample(group->reader, error) != STATUS_OK)
            return error->status;
        for (size_t i = 0; i < group->count; i++)
            if (visit(group, repetition % 2 ? group->count - 1 - i : i, repetition, error) != STATUS_OK)
                return error->status;
    }
    return STATUS_OK;
}

static enum status record(const struct group *group, struct results *results, const struct variant *variant,
                          struct error *error)
{
    size_t n = (size_t)group->reps * STEPS;
    double bytes = (double)step_bytes(group->bench, &variant->config, group->context);
    double p50 = stats_median(variant->ms, n);
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, variant->checksum);
    predict(group->bench, results, &variant->config, group->context);
    results_set_int(results, "bytes_per_token",
                    (int64_t)(kv_tensor_bytes(variant->sequence.cache) / (uint64_t)variant->sequence.room));
    results_set_real(results, "tpot_ms_p50", p50);
    if (n >= STATS_MIN_SPREAD_SAMPLES) {
        results_set_real(results, "tpot_ms_p10", stats_quantile(variant->ms, n, 0.1));
        results_set_real(results, "tpot_ms_p90", stats_quantile(variant->ms, n, 0.9));
    }
    results_set_ceiling_percent(results, "percent_of_read_ceiling", 1e5 * bytes / p50 / group->read_ceiling);
    results_set_int(results, "n", (int64_t)n);
    results_set_real(results, "predicted_ms", bytes / group->read_ceiling * 1e3);
    results_set_real(results, "read_ceiling_gbps", group->read_ceiling / 1e9);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

static enum status measure(struct group *group, struct results *results, struct error *error)
{
    if (group_init(group, error) != STATUS_OK || open_reader(group, error) != STATUS_OK ||
        visit_all(group, error) != STATUS_OK)
        return error->status;
    group->read_ceiling = bench_reader_gbps(group->reader) * 1e9;
    for (size_t i = 0; i < group->count; i++) {
        struct key row[] = {{"num_key_value_heads", group->variants[i].config.num_key_value_heads},
                            {"context", group->context}};
        if (!results_has(results, row, 2) && record(group, results, &group->variants[i], error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* ---- the lines ---- */

static enum status write_fit(struct results *fit, int64_t context, const char *quantity, const struct stats_line *line,
                             double predicted, const char *interval_from, struct error *error)
{
    bool resolved = line->interval_known && (line->slope_low > 0.0 || line->slope_high < 0.0);
    results_set_int(fit, "context", context);
    results_set_text(fit, "quantity", quantity);
    results_set_real(fit, "slope_per_kv_head", line->slope);
    if (line->interval_known) {
        results_set_real(fit, "ci95_low", line->slope_low);
        results_set_real(fit, "ci95_high", line->slope_high);
    }
    results_set_real(fit, "predicted_slope", predicted);
    results_set_text(fit, "resolved", resolved ? "yes" : "no");
    results_set_real(fit, "intercept", line->intercept);
    results_set_real(fit, "residual_max", line->residual_max);
    results_set_text(fit, "interval_from", interval_from);
    return results_end_row(fit, error);
}

/* Bytes per token through the rows; time through the repetitions where they were measured now, else through the rows.
 */
static enum status fit_context(const struct bench *bench, const struct results *results, struct results *fit,
                               int64_t context, const struct group *group, struct error *error)
{
    size_t rows = results_rows(results), n = 0;
    double *x = calloc(3 * rows, sizeof *x), *bytes = x + rows, *ms = bytes + rows, ceiling = NAN;
    if (x == NULL)
        return error_set(error, STATUS_DEVICE, "gqa: out of host memory");
    for (size_t row = 0; row < rows; row++)
        if (results_real(results, row, "context") == (double)context) {
            x[n] = results_real(results, row, "num_key_value_heads");
            bytes[n] = results_real(results, row, "bytes_per_token");
            ms[n++] = results_real(results, row, "tpot_ms_p50");
            ceiling = results_real(results, row, "read_ceiling_gbps") * 1e9;
        }
    enum status status = STATUS_OK;
    if (n >= 2) {
        struct config one = with_kv_heads(&bench->config, 1), two = with_kv_heads(&bench->config, 2);
        double head = (double)formula_kv_bytes_per_token(&one, bench->kv_dtype);
        double added = (double)(step_bytes(bench, &two, context) - step_bytes(bench, &one, context));
        bool fresh = group != NULL && group->count == n;
        struct stats_line line = stats_fit_line(x, bytes, n);
        struct stats_line time =
            fresh ? stats_fit_repeated(x, group->visits, n, (size_t)group->reps) : stats_fit_line(x, ms, n);
        status = write_fit(fit, context, "bytes_per_token", &line, head, "rows", error);
        if (status == STATUS_OK)
            status =
                write_fit(fit, context, "tpot_ms", &time, added / ceiling * 1e3, fresh ? "repetitions" : "rows", error);
    }
    free(x);
    return status;
}

/* ---- the experiment ---- */

/* Are the rows of this context there already (--resume)? */
static bool measured(const struct bench *bench, const struct results *results, int64_t context)
{
    int64_t heads = bench->config.num_attention_heads;
    for (int64_t h = 1; h <= heads; h++)
        if (heads % h == 0 &&
            !results_has(results, (struct key[]){{"num_key_value_heads", h}, {"context", context}}, 2))
            return false;
    return true;
}

static enum status measure_context(struct bench *bench, const struct weights *weights, struct results *results,
                                   struct results *fit, int64_t context, int reps, struct error *error)
{
    struct group group = {.bench = bench, .weights = weights, .context = (int)context, .reps = reps};
    enum status status = measure(&group, results, error);
    if (status == STATUS_OK)
        status = fit_context(bench, results, fit, context, &group, error);
    group_free(&group);
    return status;
}

/* Contexts that --resume kept get their fit last: a fit of rows that the first new row replaces would be removed. */
static enum status measure_contexts(struct bench *bench, const struct weights *weights, struct results *results,
                                    struct results *fit, const struct int_list *contexts, int reps, struct error *error)
{
    enum status status = STATUS_OK;
    bool *kept = calloc(contexts->count, sizeof *kept);
    if (kept == NULL)
        return error_set(error, STATUS_DEVICE, "gqa: out of host memory");
    for (size_t i = 0; i < contexts->count && status == STATUS_OK; i++) {
        kept[i] = measured(bench, results, contexts->values[i]);
        if (!kept[i])
            status = measure_context(bench, weights, results, fit, contexts->values[i], reps, error);
    }
    for (size_t i = 0; i < contexts->count && status == STATUS_OK; i++)
        if (kept[i])
            status = fit_context(bench, results, fit, contexts->values[i], NULL, error);
    free(kept);
    return status;
}

/* All that lives at once at the longest context: MHA's weights, a pass's workspace, and every variant's cache. */
static enum status check_plan(struct bench *bench, const struct config *mha, int64_t longest, struct error *error)
{
    uint64_t kv = 0, count = 0;
    for (int64_t h = 1; h <= mha->num_attention_heads; h++)
        if (mha->num_attention_heads % h == 0) {
            struct config config = with_kv_heads(mha, h);
            kv += timed_batch_kv_bytes(&config, bench->kv_dtype, 1, longest + WARM_STEPS + STEPS);
            count++;
        }
    ledger_plan(bench->ledger, LEDGER_WEIGHTS, formula_weight_bytes(mha, bench->dtype));
    ledger_plan(bench->ledger, LEDGER_WORKSPACE,
                model_workspace_bytes(mha, bench->device, &limits, bench->dtype, bench->kv_dtype));
    ledger_plan(bench->ledger, LEDGER_KV, kv);
    ledger_plan(bench->ledger, LEDGER_LOGITS, count * formula_logits_bytes(mha, bench->dtype, 1));
    return ledger_check_plan(bench->ledger, mha->name, error);
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               struct error *error)
{
    struct results *fit;
    struct weights weights = {0};
    struct config mha = with_kv_heads(&bench->config, bench->config.num_attention_heads);
    int reps = bench_reps(bench, 15, 3);
    if (results_open(&fit, bench, &tables[FIT], error) != STATUS_OK ||
        check_plan(bench, &mha, int_list_max(contexts), error) != STATUS_OK ||
        weights_synthetic(&weights, bench->ledger, &mha, bench->dtype, bench->options.seed, error) != STATUS_OK)
        return error->status;
    progress_start(bench, (double)contexts->count * reps);
    enum status status = measure_contexts(bench, &weights, results, fit, contexts, reps, error);
    progress_end(bench);
    weights_free(&weights, bench->ledger);
    return status;
}

static enum status check(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "bytes_per_token") != results_real(results, row, "bytes_per_token_formula"))
            return error_set(error, STATUS_CHECK_FAILED,
                             "gqa: with %s KV heads the cache's tensors hold %s bytes per token, the formula says %s",
                             results_text(results, row, "num_key_value_heads"),
                             results_text(results, row, "bytes_per_token"),
                             results_text(results, row, "bytes_per_token_formula"));
    return STATUS_OK;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    const struct int_list *contexts = bench_contexts(bench, "8192", "64");
    int64_t heads = bench->config.num_attention_heads;
    if (results_open(&results, bench, &tables[MAIN], error) != STATUS_OK)
        return error->status;
    if (!bench->options.dry_run) {
        enum status status = measure_all(bench, results, contexts, error);
        return status == STATUS_OK ? check(results, error) : status;
    }
    for (size_t i = 0; i < contexts->count; i++)
        for (int64_t h = 1; h <= heads; h++) {
            struct config config = with_kv_heads(&bench->config, h);
            if (heads % h != 0)
                continue;
            predict(bench, results, &config, contexts->values[i]);
            if (results_end_row(results, error) != STATUS_OK)
                return error->status;
        }
    return STATUS_OK;
}

const struct experiment gqa_experiment = {
    .name = "gqa",
    .summary = "one model with 1 KV head to all: bytes per token and time per token, linear in the heads",
    .needs_device = true,
    .default_model = "qwen2.5-0.5b",
    .uses = USES_CONTEXTS | USES_REPS | USES_SAMPLES,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
