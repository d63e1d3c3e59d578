/* kvlab audit: published numbers, recomputed from their inputs. */
#include "bench/audit_page.h"
#include "bench/commands.h"
#include "bench/harness/session.h"
#include "bench/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct audit_arguments {
    struct options shared; /* format, out, help */
    bool strict;
};

static const char *const format_choices[] = {"table", "csv", "json", "md", NULL}; /* as enum output_format */

#define FIELD(field) .offset = offsetof(struct audit_arguments, field)

static const struct option_row rows[] = {
    {"format", "FORMAT", OPTION_CHOICE, FIELD(shared.format), .choices = format_choices,
     .help = "what stdout gets: table (the default), csv, json or md"},
    {"out", "FOLDER", OPTION_TEXT, FIELD(shared.out), .help = "where audit.csv and audit.md go; results unless given"},
    {"strict", NULL, OPTION_FLAG, FIELD(strict), .help = "exit status 1 if a number is wrong or a unit slipped"},
    {"help", NULL, OPTION_FLAG, FIELD(shared.help), .help = "this text"},
    {0},
};

static const struct column columns[] = {
    {"id", COLUMN_TEXT, 0, true, "The claim's name, as in the file."},
    {"lesson", COLUMN_TEXT, 0, false, "Where it was published, as in the file."},
    {"quantity", COLUMN_TEXT, 0, false, "What the number is of."},
    {"model", COLUMN_TEXT, 0, false, "The model whose published config it follows from, if any."},
    {"params", COLUMN_TEXT, 0, false, "Its other inputs, as key=value;..."},
    {"published", COLUMN_TEXT, 0, false, "The number as it was printed."},
    {"unit", COLUMN_TEXT, 0, false, "The unit printed beside it. MB is 10^6 bytes, MiB 2^20."},
    {"recomputed_value", COLUMN_TEXT, 0, false,
     "Source formula: the same number computed from the inputs; bytes whole."},
    {"recomputed_unit", COLUMN_TEXT, 0, false, "The quantity's own unit: B for every number of bytes."},
    {"difference_percent", COLUMN_REAL, 2, false, "100 * (published - recomputed) / recomputed, in the unit printed."},
    {"verdict", COLUMN_TEXT, 0, false,
     "exact, rounded (correct to the digits printed), unit slip (right number, wrong unit), wrong, or not computable."},
    {"reason", COLUMN_TEXT, 0, false,
     "The value in the unit printed; for a wrong one by what factor, and which changed input explains it."},
};
static const struct table tables[] = {{"", false, columns, sizeof columns / sizeof *columns}};
static const struct experiment audit = {.name = "audit", .tables = tables, .table_count = 1};

static const char *const shown[] = {
    "id",      "quantity", "published", "unit", "recomputed_value", "recomputed_unit", "difference_percent",
    "verdict", "reason",   NULL};

/* "" where the file has no such column. */
static const char *cell(const struct csv_table *table, size_t row, const char *column)
{
    int index = csv_table_column(table, column);
    return index < 0 ? "" : table->cells[row][index];
}

static struct audit_claim claim_of(const struct csv_table *table, size_t row)
{
    return (struct audit_claim){cell(table, row, "quantity"), cell(table, row, "model"), cell(table, row, "params"),
                                cell(table, row, "published"), cell(table, row, "unit")};
}

/* All rows are judged before any is written: a row that nobody can read leaves older results as they are. */
static enum status judge(struct audit_result **judged, const struct csv_table *table, const char *path,
                         struct error *error)
{
    static const char *const needed[] = {"quantity", "published", "unit"};
    char models_dir[4096];
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (csv_table_column(table, needed[i]) < 0)
            return error_set(error, STATUS_INPUT,
                             "%s: it has no column \"%s\"; claims have id,lesson,quantity,model,params,published,unit",
                             path, needed[i]);
    *judged = calloc(table->row_count + 1, sizeof **judged);
    if (!*judged)
        return error_set(error, STATUS_DEVICE, "audit: out of memory");
    for (size_t row = 0; row < table->row_count; row++) {
        struct audit_claim claim = claim_of(table, row);
        if (audit_check(&(*judged)[row], &claim, models_dir, error) != STATUS_OK)
            return error_prefix(error, "%s: row %zu%s%.40s", path, row + 2, cell(table, row, "id")[0] ? ", " : "",
                                cell(table, row, "id"));
    }
    return STATUS_OK;
}

static enum status write_row(struct results *results, const struct csv_table *table, size_t row,
                             const struct audit_result *result, struct error *error)
{
    static const char *const copied[] = {"id", "lesson", "quantity", "model", "params", "published", "unit"};
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++)
        results_set_text(results, copied[i], cell(table, row, copied[i]));
    results_set_text(results, "recomputed_value", result->value_text);
    results_set_text(results, "recomputed_unit", result->unit);
    if (isfinite(result->difference_percent))
        results_set_real(results, "difference_percent", result->difference_percent);
    results_set_text(results, "verdict", audit_verdict_name(result->verdict));
    results_set_text(results, "reason", result->reason);
    return results_end_row(results, error);
}

static enum status run(struct bench *bench, bool strict, const char *path, struct error *error)
{
    struct csv_table table = {0};
    struct audit_result *judged = NULL;
    struct results *results = NULL;
    size_t counts[AUDIT_VERDICTS] = {0};
    enum status status = csv_table_read(&table, path, error);
    if (!status && table.row_count == 0)
        status = error_set(error, STATUS_INPUT, "%s: it has a header and no claims", path);
    if (!status)
        status = judge(&judged, &table, path, error);
    if (!status)
        status = report_open(bench, &audit, &results, error);
    for (size_t row = 0; !status && row < table.row_count; row++)
        status = write_row(results, &table, row, &judged[row], error);
    if (!status)
        status = audit_page_write(results, bench->options.out, path, error);
    if (!status) {
        audit_counts(results, counts);
        status = report_close(bench, results, shown, error);
    }
    if (!status)
        fprintf(
            stderr,
            "kvlab: %zu numbers: %zu exact, %zu rounded, %zu unit slip, %zu wrong, %zu not computable; %s/audit.md\n",
            table.row_count, counts[AUDIT_EXACT], counts[AUDIT_ROUNDED], counts[AUDIT_UNIT_SLIP], counts[AUDIT_WRONG],
            counts[AUDIT_NOT_COMPUTABLE], bench->options.out);
    free(judged);
    csv_table_free(&table);
    if (!status && strict && counts[AUDIT_WRONG] + counts[AUDIT_UNIT_SLIP])
        status = error_set(error, STATUS_CHECK_FAILED, "%s: %zu wrong and %zu with the wrong unit", path,
                           counts[AUDIT_WRONG], counts[AUDIT_UNIT_SLIP]);
    return status;
}

int command_audit(int argc, char **argv)
{
    struct audit_arguments arguments = {.shared = {.out = "results"}};
    struct bench bench = {.argc = argc, .argv = argv};
    struct error error = {0};
    const char *path = NULL;
    enum status status = report_words(&path, 1, "audit: FILE.csv", rows, &argc, argv, &error);
    if (!status)
        status = option_table_parse(rows, &arguments, argc, argv, &error);
    if (!status && arguments.shared.help) {
        puts("usage: kvlab audit FILE.csv [options]\n\n"
             "Recomputes each published number of FILE (columns id,lesson,quantity,model,params,published,unit, as\n"
             "data/lessons/claims.csv) and says whether it is exact, rounded, right in another unit, or "
             "wrong.\n\noptions:");
        option_table_help(rows);
        puts("\nquantities, their units, and (the inputs they need, from the model or from params):");
        audit_print_quantities(stdout);
        return 0;
    }
    bench.options = arguments.shared;
    if (!status)
        status = run(&bench, arguments.strict, path, &error);
    report_free(&bench);
    return status ? session_fail(&error) : 0;
}
