/* kvlab compare: two machines, two settings, or a run against what was published. */
#include "bench/commands.h"
#include "bench/compare.h"
#include "bench/harness/session.h"
#include "bench/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const format_choices[] = {"table", "csv", "json", "md", NULL}; /* as enum output_format */

#define FIELD(field) .offset = offsetof(struct options, field)

static const struct option_row rows[] = {
    {"format", "FORMAT", OPTION_CHOICE, FIELD(format), .choices = format_choices,
     .help = "what stdout gets: table (the default), csv, json or md"},
    {"help", NULL, OPTION_FLAG, FIELD(help), .help = "this text"},
    {0},
};

static const struct column columns[] = {
    {"row", COLUMN_TEXT, 0, true, "What the row is: its key columns and their values."},
    {"column", COLUMN_TEXT, 0, true, "A column of numbers that both files have."},
    {"a", COLUMN_TEXT, 0, false, "The number in the first file, as it stands there."},
    {"b", COLUMN_TEXT, 0, false, "The number in the second file, in the first one's unit."},
    {"ratio", COLUMN_REAL, 4, false, "b / a; empty where a is 0 or one of them is empty."},
    {"note", COLUMN_TEXT, 0, false,
     "only in A, only in B: the other file has no such row. Else the second file's number as it stands there, where "
     "its "
     "unit is another."},
};
static const struct table tables[] = {{"", false, columns, sizeof columns / sizeof *columns}};
static const struct experiment compare = {.name = "compare", .tables = tables, .table_count = 1};
static const char *const shown[] = {"row", "column", "a", "b", "ratio", "note", NULL};

static enum status write_number(struct results *results, const struct comparison *c, const struct compare_pair *pair,
                                const struct compare_column *column, struct error *error)
{
    char name[512], converted[40], note[512];
    const char *a = c->a->cells[pair->a][column->a], *b = c->b->cells[pair->b][column->b];
    double x, y;
    if (!a[0] && !b[0])
        return STATUS_OK;
    if (column->scale != 1 && compare_number(&y, b)) {
        snprintf(note, sizeof note, "%s %s", c->b->columns[column->b], b);
        results_set_text(results, "note", note);
        snprintf(converted, sizeof converted, "%.12g", y * column->scale);
        b = converted;
    }
    results_set_text(results, "row", compare_row_name(name, sizeof name, c, pair));
    results_set_text(results, "column", column->name);
    results_set_text(results, "a", a);
    results_set_text(results, "b", b);
    if (compare_number(&x, a) && compare_number(&y, b) && x != 0 && isfinite(y / x))
        results_set_real(results, "ratio", y / x);
    return results_end_row(results, error);
}

static enum status write_rows(struct results *results, const struct comparison *c, struct error *error)
{
    enum status status = STATUS_OK;
    char name[512];
    for (size_t i = 0; !status && i < c->pair_count; i++) {
        const struct compare_pair *pair = &c->pairs[i];
        bool both = pair->a != COMPARE_NONE && pair->b != COMPARE_NONE;
        for (size_t k = 0; both && !status && k < c->number_count; k++)
            status = write_number(results, c, pair, &c->numbers[k], error);
        if (both)
            continue;
        results_set_text(results, "row", compare_row_name(name, sizeof name, c, pair));
        results_set_text(results, "note", pair->a != COMPARE_NONE ? "only in A" : "only in B");
        status = results_end_row(results, error);
    }
    return status;
}

static enum status run(struct bench *bench, const char *const *paths, struct error *error)
{
    struct csv_table a = {0}, b = {0};
    struct comparison comparison = {0};
    struct results *results;
    enum status status = csv_table_read(&a, paths[0], error);
    if (!status)
        status = csv_table_read(&b, paths[1], error);
    if (!status)
        status = compare_names(&a, paths[0], error);
    if (!status)
        status = compare_names(&b, paths[1], error);
    if (!status)
        status = compare_tables(&comparison, &a, &b, error);
    bench->options.dry_run = true; /* a comparison writes no file */
    if (!status)
        status = report_open(bench, &compare, &results, error);
    if (!status)
        status = write_rows(results, &comparison, error);
    if (!status)
        status = report_close(bench, results, shown, error);
    if (!status)
        fprintf(stderr, "kvlab: A is %s, B is %s: %zu rows in both, %zu only in A, %zu only in B%s%s\n", paths[0],
                paths[1], comparison.common, a.row_count - comparison.common, b.row_count - comparison.common,
                comparison.dropped[0] ? "; matched without " : "", comparison.dropped);
    compare_free(&comparison);
    csv_table_free(&a);
    csv_table_free(&b);
    return status;
}

int command_compare(int argc, char **argv)
{
    struct bench bench = {.options = {.out = "results"}, .argc = argc, .argv = argv};
    struct error error = {0};
    const char *paths[2] = {NULL, NULL};
    enum status status = report_words(paths, 2, "compare: A.csv B.csv", rows, &argc, argv, &error);
    if (!status)
        status = option_table_parse(rows, &bench.options, argc, argv, &error);
    if (!status && bench.options.help) {
        puts("usage: kvlab compare A.csv B.csv [options]\n\n"
             "Matches the rows of two result files by what says what a row is (context, batch, model ...), and prints "
             "each\n"
             "number that both have with its ratio, B / A; columns that differ in their unit alone (x_mb, x_bytes) are "
             "one.\n"
             "Either may be a table of data/lessons.\n\noptions:");
        option_table_help(rows);
        return 0;
    }
    if (!status)
        status = run(&bench, paths, &error);
    report_free(&bench);
    return status ? session_fail(&error) : 0;
}
