#include "bench/harness/prefilled.h"

#include <stdlib.h>

const struct model_limits prefill_limits = {.max_rows = PREFILL_ROWS, .max_sequences = 1, .max_blocks = 1};

uint64_t prefilled_kv_bytes(const struct bench *bench, int64_t context)
{
    uint64_t all = formula_kv_bytes(&bench->config, bench->kv_dtype, context);
    return all + all / (2 * (uint64_t)bench->config.num_hidden_layers);
}

static enum status open_cache(struct prefilled *prefilled, struct bench *bench, struct error *error)
{
    struct kv_options options = {.policy = KV_EXACT, .dtype = bench->kv_dtype, .max_sequences = 1};
    if (kv_open(&prefilled->cache, bench->ledger, &bench->config, &options, error) != STATUS_OK)
        return error->status;
    return kv_sequence_open(prefilled->cache, &prefilled->sequence, error);
}

static enum status prefill(struct prefilled *prefilled, struct bench *bench, struct model *model, int context,
                           enum logits_positions positions, struct error *error)
{
    int32_t *tokens = bench_tokens(bench, context, 0);
    if (tokens == NULL)
        return error_set(error, STATUS_DEVICE, "prefill: out of host memory for %d token ids", context);
    int64_t rows = positions == LOGITS_ALL ? context : 1;
    enum status status = STATUS_OK;
    if (positions != LOGITS_NONE)
        status = logits_init(&prefilled->logits, bench->ledger, &bench->config, bench->dtype, rows, error);
    if (status == STATUS_OK)
        status = model_prefill(model, prefilled->cache, prefilled->sequence, tokens, context, positions, 0,
                               &prefilled->logits, error);
    free(tokens);
    if (status == STATUS_OK)
        status = bench->device->ops->synchronize(bench->device, error);
    return status;
}

enum status prefilled_warm_up(struct bench *bench, struct model *model, const struct int_list *contexts,
                              struct error *error)
{
    for (size_t i = 0; i <= contexts->count; i++) {
        /* The last pass of each context, and once a full one. */
        int64_t rows = i < contexts->count ? contexts->values[i] % PREFILL_ROWS : PREFILL_ROWS;
        if (rows == 0)
            continue;
        struct prefilled warm = {0};
        enum status status = open_cache(&warm, bench, error);
        if (status == STATUS_OK)
            status = prefill(&warm, bench, model, (int)rows, LOGITS_NONE, error);
        prefilled_free(&warm, model);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

enum status prefilled_init(struct prefilled *prefilled, struct bench *bench, struct model *model, int context,
                           enum logits_positions positions, struct error *error)
{
    *prefilled = (struct prefilled){0};
    uint64_t driver_before = 0, driver_after = 0;
    struct ledger_counts before = ledger_counts(bench->ledger);
    bool known = bench_driver_bytes(bench, &driver_before, &prefilled->driver_missing);

    if (open_cache(prefilled, bench, error) != STATUS_OK ||
        prefill(prefilled, bench, model, context, positions, error) != STATUS_OK)
        return error->status;

    if (known && bench_driver_bytes(bench, &driver_after, &prefilled->driver_missing))
        prefilled->driver_bytes = (int64_t)(driver_after - driver_before);
    struct ledger_counts after = ledger_counts(bench->ledger);
    prefilled->tensor_bytes = kv_tensor_bytes(prefilled->cache);
    prefilled->ledger_kv_bytes = after.live[LEDGER_KV] - before.live[LEDGER_KV];
    prefilled->ledger_logits_bytes = after.live[LEDGER_LOGITS] - before.live[LEDGER_LOGITS];
    prefilled->ledger_bytes = after.live_total - before.live_total;
    return STATUS_OK;
}

void prefilled_free(struct prefilled *prefilled, struct model *model)
{
    logits_free(&prefilled->logits, model->ledger);
    kv_close(prefilled->cache);
    *prefilled = (struct prefilled){0};
}

enum status prefilled_check_rows(const struct results *results, const char *key, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++) {
        double formula = results_real(results, row, "kv_formula_bytes");
        if (results_real(results, row, "kv_tensor_bytes") != formula ||
            results_real(results, row, "kv_ledger_bytes") != formula)
            return error_set(error, STATUS_CHECK_FAILED,
                             "at %s %s the cache's tensors or the ledger differ from the formula", key,
                             results_text(results, row, key));
    }
    return STATUS_OK;
}
