#include "bench/harness/session.h"
#include "bench/harness/output.h"

#include <errno.h>
#include <string.h>

enum status session_find_model(struct bench *bench, const char *model, struct error *error)
{
    char models_dir[4096];
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    enum status status =
        config_find(&bench->config, models_dir, model, bench->weights_dir, sizeof bench->weights_dir, error);
    if (status)
        return status;
    bench->dtype = bench->config.torch_dtype;
    if (bench->options.has_dtype)
        bench->dtype = bench->options.dtype;
    else if (bench->weights_dir[0])
        status = weights_stored_dtype(bench->weights_dir, &bench->dtype, error);
    bench->kv_dtype = bench->options.has_kv_dtype ? bench->options.kv_dtype : bench->dtype;
    return status;
}

enum status session_open_device(struct bench *bench, struct error *error)
{
    enum status status = device_open(bench->options.device, bench->options.threads, &bench->device, error);
    if (status)
        return status;
    bench->device->graphs = !bench->options.graphs_off;
    return ledger_open(&bench->ledger, bench->device, bench->options.budget_bytes, error);
}

void session_close_device(struct bench *bench)
{
    ledger_close(bench->ledger);
    bench->ledger = NULL;
    if (bench->device)
        bench->device->ops->close(bench->device);
    bench->device = NULL;
}

int session_fail(const struct error *error)
{
    fputs("kvlab: ", stderr);
    for (const char *c = error->message; *c; c++) /* one line, whatever a path or a library's text holds */
        fputc(*c == '\n' || *c == '\r' ? ' ' : *c, stderr);
    fputc('\n', stderr);
    return (int)error->status;
}

int session_flush_stdout(int exit_status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_status;
    struct error error;
    error_set(&error, STATUS_INPUT, "stdout: cannot write: %s", strerror(errno));
    return exit_status ? exit_status : session_fail(&error);
}
