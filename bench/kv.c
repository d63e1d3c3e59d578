/* kv: how many bytes does the KV cache take, counted from the tensors that it really holds?

   Predicted: 2 * layers * KV heads * (head_dim * bytes + scale) per token. Measured: a prefill into an exact cache,
   then the sum over its tensors, and the growth of the ledger. */
#include "bench/harness/prefilled.h"

#include <inttypes.h>
#include <stdio.h>

static const struct column columns[] = {
    {"prompt_tokens", COLUMN_INT, 0, true, "Tokens of the prompt that was prefilled into an exact cache."},
    {"n_tensors", COLUMN_INT, 0, false,
     "Tensors that the cache holds after the prefill: one K and one V per layer, with --kv-dtype int8 the scales of "
     "each."},
    {"tensor_shape", COLUMN_TEXT, 0, false,
     "Shape of each K and V: (blocks, KV heads, tokens, head_dim); an exact cache is one block. Scales have all of it "
     "but head_dim."},
    {"kv_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: 2 * layers * KV heads * (head_dim * bytes per value + 4 for int8's scale) * prompt_tokens, from "
     "the config alone."},
    {"kv_tensor_bytes", COLUMN_INT, 0, false, "Source tensors: sum of shape * bytes per value over those tensors."},
    {"kv_ledger_bytes", COLUMN_INT, 0, false,
     "Source ledger: growth of the allocator's live bytes tagged kv from before the prefill to after it."},
    {"bytes_per_token", COLUMN_REAL, 1, false, "kv_tensor_bytes / prompt_tokens."},
    {"deviation_percent", COLUMN_REAL, 3, false,
     "How far kv_tensor_bytes is from kv_formula_bytes, in percent of the formula."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

static void predict(const struct bench *bench, struct results *results, int64_t tokens)
{
    results_set_int(results, "prompt_tokens", tokens);
    results_set_int(results, "kv_formula_bytes", (int64_t)formula_kv_bytes(&bench->config, bench->kv_dtype, tokens));
}

/* The shape that all K and V share, or "mixed". */
static const char *common_shape(const struct kv_cache *cache, char *text, size_t size)
{
    struct kv_tensor first = kv_tensor_at(cache, 0);
    for (size_t i = 1; i < kv_tensor_count(cache); i++) {
        struct kv_tensor other = kv_tensor_at(cache, i);
        for (int d = 0; d < 4 && !other.is_scale; d++)
            if (other.shape[d] != first.shape[d])
                return "mixed";
    }
    snprintf(text, size, "(%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ")", first.shape[0], first.shape[1],
             first.shape[2], first.shape[3]);
    return text;
}

static void record(struct results *results, const struct prefilled *prefilled, int64_t tokens, uint64_t formula)
{
    char shape[64];
    double tensors = (double)prefilled->tensor_bytes;
    results_set_int(results, "n_tensors", (int64_t)kv_tensor_count(prefilled->cache));
    results_set_text(results, "tensor_shape", common_shape(prefilled->cache, shape, sizeof shape));
    results_set_int(results, "kv_tensor_bytes", (int64_t)prefilled->tensor_bytes);
    results_set_int(results, "kv_ledger_bytes", (int64_t)prefilled->ledger_kv_bytes);
    results_set_real(results, "bytes_per_token", tensors / (double)tokens);
    results_set_real(results, "deviation_percent", 100.0 * (tensors - (double)formula) / (double)formula);
}

static enum status measure(struct bench *bench, struct results *results, struct model *model, int64_t tokens,
                           struct error *error)
{
    struct prefilled prefilled;
    enum status status = prefilled_init(&prefilled, bench, model, (int)tokens, LOGITS_NONE, error);
    if (status == STATUS_OK) {
        predict(bench, results, tokens);
        record(results, &prefilled, tokens, formula_kv_bytes(&bench->config, bench->kv_dtype, tokens));
        status = results_end_row(results, error);
    }
    prefilled_free(&prefilled, model);
    return status;
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               struct error *error)
{
    struct model model;
    struct bench_need need = {.kv_bytes = prefilled_kv_bytes(bench, int_list_max(contexts))};
    if (bench_open_model(bench, &prefill_limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = STATUS_OK;
    progress_start(bench, (double)int_list_sum(contexts));
    for (size_t i = 0; i < contexts->count && status == STATUS_OK; i++) {
        int64_t tokens = contexts->values[i];
        progress_step(bench, (double)tokens, "prefill of %" PRId64 " tokens", tokens);
        if (!results_has(results, (struct key[]){{"prompt_tokens", tokens}}, 1))
            status = measure(bench, results, &model, tokens, error);
    }
    progress_end(bench);
    model_free(&model);
    return status;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *contexts, size_t i)
{
    predict(bench, results, ((const struct int_list *)contexts)->values[i]);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    const struct int_list *contexts = bench_contexts(bench, "512,2048", "16,64");
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, contexts, contexts->count, error);
    if (measure_all(bench, results, contexts, error) != STATUS_OK)
        return error->status;
    return prefilled_check_rows(results, "prompt_tokens", error);
}

const struct experiment kv_experiment = {
    .name = "kv",
    .summary = "bytes of the KV cache, counted from its tensors, against the formula",
    .needs_device = true,
    .default_model = "qwen2.5-1.5b",
    .uses = USES_CONTEXTS,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
