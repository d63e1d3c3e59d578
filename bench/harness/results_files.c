/* The files of a table: which older rows --resume keeps, when the new files take the place of the older ones. */
#include "bench/harness/output.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status write_line(struct results *results, const char *const *cells, struct error *error)
{
    bool *is_text = calloc(results->column_count, sizeof *is_text);
    size_t length;
    char *line = NULL;
    if (is_text) {
        for (size_t i = 0; i < results->column_count; i++)
            is_text[i] = results->columns[i]->kind == COLUMN_TEXT;
        line = csv_line(cells, is_text, results->column_count, &length);
    }
    enum status status =
        line ? row_file_append(&results->file, line, length, error) : results_no_memory(results, error);
    free(line);
    free(is_text);
    return status;
}

/* ---- --resume --------------------------------------------------------------------------------------------------- */

static bool is_number(const char *cell, enum column_kind kind)
{
    char *end;
    errno = 0;
    if (kind == COLUMN_INT) {
        strtoll(cell, &end, 10);
        return !errno && !*end && strspn(cell, "-0123456789") == strlen(cell);
    }
    double value = strtod(cell, &end);
    return isfinite(value) && !*end && strspn(cell, "-.0123456789") == strlen(cell);
}

/* Is `cell` what this run would write in a common column? Some experiments always take synthetic weights. */
static bool is_of_this_run(const struct results *results, size_t column, const char *cell)
{
    const char *ours = results->current[column];
    return strcmp(cell, ours ? ours : "") == 0 ||
           (strcmp(results->columns[column]->name, "weights") == 0 && strcmp(cell, "synthetic") == 0);
}

static bool same_keys(const struct results *results, char **a, char **b)
{
    size_t keys = 0;
    for (size_t i = 0; i < results->column_count; i++) {
        if (results->columns[i]->key && strcmp(a[i], b[i]) != 0)
            return false;
        keys += results->columns[i]->key;
    }
    return keys > 0;
}

/* One row of an older file; the rows before it are good. Lines are counted as the harness writes them, a row each. */
static enum status check_row(const struct results *results, const struct csv_table *older, size_t row,
                             const char *csv_path, struct error *error)
{
    static const char way_out[] = "mend the line, or leave --resume out to measure anew";
    size_t common = results->table->common ? COMMON_COLUMNS : 0;
    for (size_t i = 0; i < results->column_count; i++) {
        const struct column *column = results->columns[i];
        const char *cell = older->cells[row][i];
        if (i < common && !is_of_this_run(results, i, cell))
            return error_set(error, STATUS_INPUT, "%s: line %zu: %s is \"%s\", this run has \"%s\"; %s", csv_path,
                             row + 2, column->name, cell, results->current[i] ? results->current[i] : "", way_out);
        if (column->kind != COLUMN_TEXT && cell[0] && !is_number(cell, column->kind))
            return error_set(error, STATUS_INPUT, "%s: line %zu: %s is \"%s\", which is no %snumber; %s", csv_path,
                             row + 2, column->name, cell, column->kind == COLUMN_INT ? "whole " : "", way_out);
    }
    for (size_t before = 0; before < row; before++)
        if (same_keys(results, older->cells[before], older->cells[row]))
            return error_set(error, STATUS_INPUT, "%s: line %zu measures the same as line %zu; %s", csv_path, row + 2,
                             before + 2, way_out);
    return STATUS_OK;
}

static enum status check_older(struct results *results, const struct csv_table *older, const char *csv_path,
                               struct error *error)
{
    bool same = older->column_count == results->column_count;
    for (size_t i = 0; same && i < older->column_count; i++)
        same = strcmp(older->columns[i], results->columns[i]->name) == 0;
    if (!same)
        return error_set(error, STATUS_INPUT,
                         "%s: its columns are not those of this kvlab; leave --resume out to measure anew", csv_path);
    results_set_common(results); /* to compare with */
    enum status status = STATUS_OK;
    for (size_t row = 0; !status && row < older->row_count; row++)
        status = check_row(results, older, row, csv_path, error);
    for (size_t i = 0; i < results->column_count; i++) {
        free(results->current[i]);
        results->current[i] = NULL;
    }
    return status;
}

/* The rows of the older file, if it was made with the settings of this run. */
static enum status keep_older_rows(struct results *results, const char *csv_path, struct error *error)
{
    struct csv_table older = {0};
    enum status status = meta_same_settings(results->bench, results->meta_path, csv_path, error);
    if (!status)
        status = csv_table_read(&older, csv_path, error);
    if (!status)
        status = check_older(results, &older, csv_path, error);
    for (size_t row = 0; !status && row < older.row_count; row++) {
        for (size_t i = 0; i < results->column_count; i++) {
            char *cell = older.cells[row][i];
            older.cells[row][i] = NULL;
            results->current[i] = cell[0] ? cell : NULL;
            if (!cell[0])
                free(cell);
        }
        status = results_keep_row(results, error);
    }
    results->kept = results->row_count;
    results->on_disk = !status;
    csv_table_free(&older);
    return status;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

enum status results_open_files(struct results *results, struct error *error)
{
    const char *folder = results->bench->options.out;
    const char **names = calloc(results->column_count, sizeof *names);
    char *csv_path = NULL;
    if (!names || asprintf(&csv_path, "%s/%s.csv", folder, results->name) < 0 ||
        asprintf(&results->meta_path, "%s/%s.meta.json", folder, results->name) < 0) {
        free(names);
        free(csv_path);
        return results_no_memory(results, error);
    }
    /* Worked out from other rows, or from nothing but the config: made anew in no time. */
    bool derived = results->table->suffix[0] != 0 || !results->bench->experiment->needs_device;
    enum status status = row_file_check_target(results->meta_path, error);
    if (!status && results->bench->options.resume && !derived && access(csv_path, F_OK) == 0)
        status = keep_older_rows(results, csv_path, error);
    if (!status)
        status = row_file_create(&results->file, csv_path, error);
    for (size_t i = 0; i < results->column_count; i++)
        names[i] = results->columns[i]->name;
    if (!status)
        status = write_line(results, names, error);
    for (size_t row = 0; !status && row < results->row_count; row++)
        status = write_line(results, (const char *const *)results->rows[row], error);
    free(names);
    free(csv_path);
    return status;
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

/* The fit that this run wrote already. */
static bool is_in_place(const struct output *output, const char *suffix)
{
    for (const struct results *results = output->tables; results; results = results->next)
        if (strcmp(results->table->suffix, suffix) == 0)
            return results->file.in_place;
    return false;
}

/* A fit of rows that are gone would stand beside rows that it does not fit. */
static void remove_derived(const struct results *results)
{
    const struct experiment *experiment = results->bench->experiment;
    for (size_t t = 0; results->table->suffix[0] == 0 && t < experiment->table_count; t++) {
        static const char *const endings[] = {".csv", ".meta.json"};
        const char *suffix = experiment->tables[t].suffix;
        bool stale = suffix[0] && !is_in_place(results->bench->output, suffix);
        for (size_t i = 0; stale && i < sizeof endings / sizeof endings[0]; i++) {
            char *path;
            if (asprintf(&path, "%s/%s%s%s", results->bench->options.out, experiment->name, suffix, endings[i]) < 0)
                continue;
            unlink(path);
            free(path);
        }
    }
}

/* The first row is safely written: the new CSV and its meta file take the place of the older ones. Should the machine
   stop in between, a CSV without a meta file is left, which --resume refuses; never one with another run's meta file.
   After --resume the older meta file says the settings of both, and stays until the new one is there. */
static enum status put_in_place(struct results *results, struct error *error)
{
    struct row_file meta = {.descriptor = -1};
    bool resumed = results->on_disk;
    enum status status = meta_write(results, &meta, error);
    if (!status)
        status = row_file_make_ready(&meta, error);
    if (!status)
        status = row_file_make_ready(&results->file, error);
    if (!status) {
        if (!resumed)
            unlink(results->meta_path);
        status = row_file_put_in_place(&results->file, error);
    }
    if (!status) {
        results->on_disk = true;
        remove_derived(results);
        status = row_file_put_in_place(&meta, error);
    }
    row_file_close(&meta);
    return status;
}

enum status results_write_row(struct results *results, struct error *error)
{
    off_t before = results->file.end;
    enum status status = row_file_check(&results->file, error);
    if (!status)
        status = write_line(results, (const char *const *)results->current, error);
    if (!status && !results->file.in_place) {
        status = put_in_place(results, error);
        struct error ignored;
        if (status && !results->file.in_place)
            (void)row_file_cut(&results->file, before, &ignored);
    }
    return status;
}

enum status results_rewrite_meta(struct results *results, struct error *error)
{
    if (!results->on_disk)
        return STATUS_OK;
    struct row_file meta = {.descriptor = -1};
    enum status status = row_file_check(&results->file, error);
    if (!status)
        status = meta_write(results, &meta, error);
    if (!status)
        status = row_file_put_in_place(&meta, error);
    row_file_close(&meta);
    return status;
}
