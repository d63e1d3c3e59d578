/* kvlab read-log: what another engine printed about its cache, held against the formula. */
#include "bench/commands.h"
#include "bench/harness/session.h"
#include "bench/report.h"
#include "engine/claims/readlog.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

struct readlog_arguments {
    struct options shared; /* model, format, out, help */
    const char *kv_type;
    int engine; /* index into engine_choices */
    bool has_engine;
    int context, slots, ranks;
};

static const char *const format_choices[] = {"table", "csv", "json", "md", NULL}; /* as enum output_format */

#define FIELD(field) .offset = offsetof(struct readlog_arguments, field)

static const struct option_row rows[] = {
    {"model", "NAME", OPTION_TEXT, FIELD(shared.model),
     .help = "the model that the engine ran: a name, a folder with config.json, or a config file"},
    {"kv-dtype", "TYPE", OPTION_TEXT, FIELD(kv_type),
     .help = "the cache's type as you asked for it; as the log says unless given"},
    {"engine", "NAME", OPTION_CHOICE, FIELD(engine), .has_given = true,
     .given_offset = offsetof(struct readlog_arguments, has_engine), .choices = readlog_engines,
     .help = "only lines of llama.cpp, vllm, sglang or pytorch; all unless given"},
    {"context", "N", OPTION_INT, FIELD(context), .minimum = 1, .maximum = INT32_MAX,
     .help = "tokens that you asked for, where the log does not say or did more"},
    {"slots", "N", OPTION_INT, FIELD(slots), .minimum = 1, .maximum = 65536, .help = "sequences that you asked for"},
    {"tp", "N", OPTION_INT, FIELD(ranks), .minimum = 1, .maximum = 65536,
     .help = "ranks of tensor parallelism; as the log says unless given"},
    {"format", "FORMAT", OPTION_CHOICE, FIELD(shared.format), .choices = format_choices,
     .help = "what stdout gets: table (the default), csv, json or md"},
    {"out", "FOLDER", OPTION_TEXT, FIELD(shared.out), .help = "where readlog.csv goes; results unless given"},
    {"help", NULL, OPTION_FLAG, FIELD(shared.help), .help = "this text"},
    {0},
};

static const struct column columns[] = {
    {"line", COLUMN_INT, 0, true, "Line of the log, from 1."},
    {"engine", COLUMN_TEXT, 0, true, "Whose line it is: llama.cpp, vllm, sglang or pytorch."},
    {"quantity", COLUMN_TEXT, 0, true, "What the number is of; capacity is room reserved, not use."},
    {"reported", COLUMN_TEXT, 0, false, "Source reported: the number as the engine printed it."},
    {"unit", COLUMN_TEXT, 0, false, "The unit that the engine printed beside it."},
    {"formula", COLUMN_TEXT, 0, false,
     "Source formula: the same number from the model's config, under that engine's rules, in that unit."},
    {"ratio", COLUMN_REAL, 4, false, "reported / formula, as if the unit printed were right."},
    {"verdict", COLUMN_TEXT, 0, false,
     "exact, within rounding, unit slip, off; capacity or use where there is nothing to hold it against; unchecked "
     "where "
     "the log does not give what the formula needs."},
    {"reason", COLUMN_TEXT, 0, false,
     "What the number follows from; where it is off, in which other way it comes out."},
    {"implied_bytes_per_token", COLUMN_INT, 0, false, "Bytes of a token that the line implies, on one rank."},
    {"formula_bytes_per_token", COLUMN_INT, 0, false, "What the formula says for it."},
};
static const struct table tables[] = {{"", false, columns, sizeof columns / sizeof *columns}};
static const struct experiment readlog = {.name = "readlog", .tables = tables, .table_count = 1};

static const char *const shown[] = {"line",    "engine", "quantity", "reported", "unit",
                                    "formula", "ratio",  "verdict",  "reason",   NULL};

static enum status write_row(struct results *results, const struct readlog_row *row, struct error *error)
{
    results_set_int(results, "line", (int64_t)row->line);
    results_set_text(results, "engine", row->engine);
    results_set_text(results, "quantity", row->quantity);
    results_set_text(results, "reported", row->reported);
    results_set_text(results, "unit", row->unit);
    results_set_text(results, "formula", row->formula);
    if (isfinite(row->ratio))
        results_set_real(results, "ratio", row->ratio);
    results_set_text(results, "verdict", readlog_verdict_name(row->verdict));
    results_set_text(results, "reason", row->reason);
    if (row->implied_bytes_per_token && row->implied_bytes_per_token <= INT64_MAX)
        results_set_int(results, "implied_bytes_per_token", (int64_t)row->implied_bytes_per_token);
    if (row->formula_bytes_per_token && row->formula_bytes_per_token <= INT64_MAX)
        results_set_int(results, "formula_bytes_per_token", (int64_t)row->formula_bytes_per_token);
    return results_end_row(results, error);
}

static enum status report(struct bench *bench, const struct readlog *log, const char *path, struct error *error)
{
    struct results *results;
    enum status status = report_open(bench, &readlog, &results, error);
    for (size_t i = 0; !status && i < log->count; i++)
        status = write_row(results, &log->rows[i], error);
    if (!status)
        status = report_close(bench, results, shown, error);
    if (!status)
        fprintf(stderr, "kvlab: %s: %zu numbers in %zu lines%s; %s/readlog.csv\n", path, log->count, log->lines,
                log->truncated ? ", the rest of them left out" : "", bench->options.out);
    return status;
}

static enum status run(struct bench *bench, const struct readlog_arguments *arguments, const char *path,
                       struct error *error)
{
    char models_dir[4096];
    struct shape shape = {0};
    struct readlog log = {0};
    struct readlog_options options = {.shape = &shape,
                                      .engine = arguments->has_engine ? readlog_engines[arguments->engine] : NULL,
                                      .context = arguments->context,
                                      .slots = arguments->slots,
                                      .ranks = arguments->ranks};
    if (!arguments->shared.model)
        return error_set(error, STATUS_INPUT, "read-log: --model is missing; `kvlab list models` has names");
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    enum status status = STATUS_OK;
    if (arguments->kv_type)
        status = plan_type_find(&options.kv_type, arguments->kv_type, "kv-dtype", true, error);
    if (!status)
        status = shape_find(&shape, models_dir, arguments->shared.model, error);
    if (!status)
        status = readlog_file(&log, path, &options, error);
    if (!status && log.count == 0)
        status =
            error_set(error, STATUS_INPUT,
                      "%s: none of its %zu lines reports a cache%s%s; llama.cpp, vLLM, SGLang, PyTorch's out-of-memory "
                      "message and vLLM's Prometheus page are understood",
                      path, log.lines, options.engine ? " of " : "", options.engine ? options.engine : "");
    if (!status)
        status = report(bench, &log, path, error);
    readlog_free(&log);
    shape_free(&shape);
    return status;
}

int command_readlog(int argc, char **argv)
{
    struct readlog_arguments arguments = {.shared = {.out = "results"}};
    struct bench bench = {.argc = argc, .argv = argv};
    struct error error = {0};
    const char *path = NULL;
    enum status status = report_words(&path, 1, "read-log: FILE", rows, &argc, argv, &error);
    if (!status)
        status = option_table_parse(rows, &arguments, argc, argv, &error);
    if (!status && arguments.shared.help) {
        puts("usage: kvlab read-log FILE --model NAME [options]\n\n"
             "Finds in a log what llama.cpp, vLLM, SGLang or PyTorch said about the KV cache (or in a saved Prometheus "
             "page\n"
             "of vLLM), and holds each number against the formula under that engine's rules.\n\noptions:");
        option_table_help(rows);
        return 0;
    }
    bench.options = arguments.shared;
    if (!status)
        status = run(&bench, &arguments, path, &error);
    report_free(&bench);
    return status ? session_fail(&error) : 0;
}
