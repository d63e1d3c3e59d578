/* What drivers ask of a bench: the settings to measure, the model, tokens to feed it, its memory from outside. */
#include "bench/harness/session.h"
#include "engine/random.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

const struct int_list *bench_own_list(const struct bench *bench, struct int_list *list, const char *defaults,
                                      const char *quick)
{
    if (!list->count) {
        struct error error;
        enum status status = int_list_parse(list, bench->options.quick ? quick : defaults, bench->experiment->name, 0,
                                            INT32_MAX, &error);
        assert(status == STATUS_OK && "an experiment's own list does not parse");
        (void)status;
    }
    qsort(list->values, list->count, sizeof *list->values, ascending);
    return list;
}

static const struct int_list *list_or(struct bench *bench, unsigned use, struct int_list *list, const char *defaults,
                                      const char *quick)
{
    assert((bench->experiment->uses & use) && "the experiment's uses lack this option");
    (void)use;
    return bench_own_list(bench, list, defaults, quick);
}

const struct int_list *bench_contexts(struct bench *bench, const char *defaults, const char *quick)
{
    return list_or(bench, USES_CONTEXTS, &bench->options.contexts, defaults, quick);
}

enum status bench_check_contexts(const struct int_list *contexts, int64_t least, const char *for_what,
                                 struct error *error)
{
    for (size_t i = 0; i < contexts->count; i++)
        if (contexts->values[i] < least)
            return error_set(error, STATUS_INPUT, "--contexts: %" PRId64 " is too short %s, the least is %" PRId64,
                             contexts->values[i], for_what, least);
    return STATUS_OK;
}

const struct int_list *bench_batches(struct bench *bench, const char *defaults, const char *quick)
{
    return list_or(bench, USES_BATCH, &bench->options.batch, defaults, quick);
}

const struct int_list *bench_new_tokens(struct bench *bench, const char *defaults, const char *quick)
{
    return list_or(bench, USES_NEW_TOKENS, &bench->options.new_tokens, defaults, quick);
}

int bench_reps(const struct bench *bench, int defaults, int quick)
{
    assert((bench->experiment->uses & USES_REPS) && "the experiment's uses lack --reps");
    if (bench->options.reps)
        return bench->options.reps;
    return bench->options.quick ? quick : defaults;
}

const char *bench_weights_name(const struct bench *bench)
{
    return bench->weights_dir[0] ? bench->config.name : "synthetic";
}

enum status bench_open_model(struct bench *bench, const struct model_limits *limits, const struct bench_need *need,
                             struct model *model, struct error *error)
{
    const struct config *config = &bench->config;
    *model = (struct model){0};
    ledger_plan(bench->ledger, LEDGER_WEIGHTS, formula_weight_bytes(config, bench->dtype) + need->other_weight_bytes);
    ledger_plan(bench->ledger, LEDGER_WORKSPACE,
                model_workspace_bytes(config, bench->device, limits, bench->dtype, bench->kv_dtype) +
                    need->other_workspace_bytes);
    ledger_plan(bench->ledger, LEDGER_KV, need->kv_bytes);
    ledger_plan(bench->ledger, LEDGER_LOGITS, need->logits_bytes);
    enum status status = ledger_check_plan(bench->ledger, config->name, error);
    if (status)
        return status;

    struct weights weights = {0};
    if (bench->weights_dir[0])
        status = weights_load(&weights, bench->ledger, config, bench->dtype, bench->weights_dir, error);
    else
        status = weights_synthetic(&weights, bench->ledger, config, bench->dtype, bench->options.seed, error);
    if (!status)
        status = model_init(model, bench->ledger, config, &weights, limits, bench->kv_dtype, error);
    if (!status)
        model->stop = bench_stop_flag();
    return status;
}

enum status bench_second_model(const struct bench *bench, const char *model, struct bench *second, struct error *error)
{
    *second = *bench;
    return session_find_model(second, model, error);
}

int32_t *bench_tokens(const struct bench *bench, int64_t count, uint64_t stream)
{
    int32_t *tokens = malloc((size_t)count * sizeof *tokens);
    /* Streams of one seed start at unrelated places: the state is itself drawn from (seed, stream). */
    uint64_t state = bench->options.seed;
    state = random_next(&state) ^ (stream * UINT64_C(0x9e3779b97f4a7c15));
    for (int64_t i = 0; tokens && i < count; i++)
        tokens[i] = (int32_t)(random_uniform(&state) * (double)bench->config.vocab_size);
    return tokens;
}

bool bench_driver_bytes(const struct bench *bench, uint64_t *bytes, const char **reason)
{
    struct device_memory memory;
    struct error error;
    *reason = NULL;
    if (bench->device->ops->memory(bench->device, &memory, &error) != STATUS_OK)
        *reason = "the device did not answer when asked for its memory";
    else if (!memory.process_known && bench->device->info.multiprocessors > 0 &&
             bench->device->info.before.free_bytes > memory.free_bytes)
        *bytes = bench->device->info.before.free_bytes - memory.free_bytes; /* since before the context */
    else if (!memory.process_known)
        *reason = "this machine does not tell the memory of a single process";
    else
        *bytes = memory.process_bytes;
    return !*reason;
}

/* FNV-1a, 64 bits (Fowler, Noll, Vo; RFC 9923) */
uint64_t bench_checksum(const void *data, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

enum status bench_predict_rows(const struct bench *bench, struct results *results, predict_row *predict, const void *of,
                               size_t count, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && !status; i++) {
        predict(bench, results, of, i);
        status = results_end_row(results, error);
    }
    return status;
}
