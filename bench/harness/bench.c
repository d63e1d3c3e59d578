/* An experiment from its options to the exit status. */
#include "bench/harness/option_table.h"
#include "bench/harness/output.h"
#include "bench/harness/session.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

const struct experiment *experiment_find(const char *name)
{
    for (const struct experiment *const *experiment = experiments; *experiment; experiment++)
        if (strcmp((*experiment)->name, name) == 0)
            return *experiment;
    return NULL;
}

/* A context whose cache alone is past the memory can be refused before anything is loaded, also where it is past what
   a count of tokens can hold. */
static enum status check_contexts(const struct bench *bench, struct error *error)
{
    const struct int_list *contexts = &bench->options.contexts;
    if (!contexts->count || !bench->ledger)
        return STATUS_OK;
    int64_t largest = int_list_max(contexts);
    uint64_t per_token = formula_kv_bytes_per_token(&bench->config, bench->kv_dtype),
             budget = ledger_budget(bench->ledger);
    bool fits = (uint64_t)largest <= budget / per_token || bench->options.dry_run;
    if (fits && largest <= INT_MAX)
        return STATUS_OK;
    /* Long double: the product may pass 64 bits, and then its leading digits are what matters. */
    return error_set(error, STATUS_DEVICE,
                     "--contexts: %" PRId64 " tokens need %.0Lf bytes of KV cache (%" PRIu64
                     " a token), there are %" PRIu64 " bytes; take shorter contexts or a larger --budget",
                     largest, (long double)largest * (long double)per_token, per_token, budget);
}

static enum status prepare(struct bench *bench, struct error *error)
{
    const struct experiment *experiment = bench->experiment;
    const char *model = bench->options.model ? bench->options.model : experiment->default_model;
    enum status status = STATUS_OK;
    bench->dtype = bench->options.has_dtype ? bench->options.dtype : DTYPE_BF16;
    bench->kv_dtype = bench->options.has_kv_dtype ? bench->options.kv_dtype : bench->dtype;
    if (!bench->options.budget_bytes)
        bench->options.budget_bytes = experiment->default_budget;
    if (model[0])
        status = session_find_model(bench, model, error);
    if (!status && experiment->needs_device)
        status = session_open_device(bench, error);
    if (!status)
        status = check_contexts(bench, error);
    if (!status)
        status = output_open(bench, error);
    return status ? status : meta_open(bench, error);
}

static enum status run(struct bench *bench, struct error *error)
{
    signals_install();
    enum status status = prepare(bench, error);
    if (status)
        return status;
    status = bench->experiment->run(bench, error);
    progress_clear(bench);
    struct error closing = {0};
    bool complete = status == STATUS_OK || status == STATUS_CHECK_FAILED; /* measured in full, whatever it showed */
    enum status closed = output_finish(bench, complete, &closing);
    if (closed && complete) { /* also where a check failed: without its rows there is nothing to show for it */
        *error = closing;
        status = closed;
    }
    return status;
}

static void explain_interruption(const struct bench *bench, struct error *error)
{
    const struct results *first = bench->output ? bench->output->tables : NULL;
    if (first && first->on_disk)
        error_set(error, STATUS_INTERRUPTED, "%s: interrupted; %s/%s.csv has the %zu rows so far, --resume goes on",
                  bench->experiment->name, bench->options.out, first->name, first->row_count);
    else
        error_set(error, STATUS_INTERRUPTED, "%s: interrupted before the first row; no file was changed",
                  bench->experiment->name);
}

int bench_main(const struct experiment *experiment, int argc, char **argv)
{
    struct bench bench = {.experiment = experiment, .argc = argc, .argv = argv};
    struct error error = {0};
    enum status status = options_parse(&bench.options, experiment->own, argc, argv, &error);
    if (!status && bench.options.help)
        describe_experiment(experiment);
    else if (!status && bench.options.explain)
        status = describe_column(experiment, bench.options.explain, &error);
    else if (!status)
        status = options_check_used(&bench.options, experiment->uses, experiment->name, &error);
    if (!status && !bench.options.help && !bench.options.explain)
        status = run(&bench, &error);

    if (status == STATUS_INTERRUPTED)
        explain_interruption(&bench, &error);
    progress_free(&bench);
    output_free(&bench);
    meta_free(&bench);
    session_close_device(&bench);
    options_free(&bench.options);
    if (experiment->own)
        option_set_free(experiment->own);
    if (status)
        session_fail(&error);
    if (status == STATUS_INTERRUPTED) {
        fflush(stdout);
        signals_raise_again();
    }
    return (int)status;
}
