/* The rows of a table: set cell by cell, kept in memory as they stand in the CSV, and written as they end. */
#include "bench/harness/output.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct column common_columns[] = {
    {"model", COLUMN_TEXT, .explain = "The model: a name of data/models, or the folder that --model named."},
    {"device", COLUMN_TEXT, .explain = "Where it ran, cpu or cuda; the meta file has the device's full name."},
    {"dtype", COLUMN_TEXT, .explain = "Type of the weights, the working type: f32, f16 or bf16."},
    {"weights", COLUMN_TEXT,
     .explain = "synthetic (seeded random values: memory and time do not depend on them), or the folder's name."},
};

static size_t column_index(const struct results *results, const char *name)
{
    for (size_t i = 0; i < results->column_count; i++)
        if (strcmp(results->columns[i]->name, name) == 0)
            return i;
    assert(!"the table has no such column");
    abort();
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static enum status no_memory(const struct results *results, struct error *error)
{
    return error_set(error, STATUS_DEVICE, "%s: out of memory", results->name);
}

static enum status make_columns(struct results *results, struct error *error)
{
    const struct table *table = results->table;
    size_t common = table->common ? COMMON_COLUMNS : 0;
    results->column_count = common + table->column_count;
    results->columns = calloc(results->column_count, sizeof *results->columns);
    results->current = calloc(results->column_count, sizeof *results->current);
    if (!results->columns || !results->current)
        return no_memory(results, error);
    for (size_t i = 0; i < results->column_count; i++)
        results->columns[i] = i < common ? &common_columns[i] : &table->columns[i - common];
    return STATUS_OK;
}

static enum status write_line(struct results *results, const char *const *cells, struct error *error)
{
    assert(results->column_count > 0);
    bool *is_text = calloc(results->column_count, sizeof *is_text);
    size_t length;
    char *line = NULL;
    if (is_text) {
        for (size_t i = 0; i < results->column_count; i++)
            is_text[i] = results->columns[i]->kind == COLUMN_TEXT;
        line = csv_line(cells, is_text, results->column_count, &length);
    }
    enum status status = line ? row_file_append(&results->file, line, length, error) : no_memory(results, error);
    free(line);
    free(is_text);
    return status;
}

/* Takes over results->current as the next row. */
static enum status keep_row(struct results *results, struct error *error)
{
    assert(results->column_count > 0);
    char **fresh = calloc(results->column_count, sizeof *fresh);
    char ***rows = realloc(results->rows, (results->row_count + 1) * sizeof *rows);
    if (rows)
        results->rows = rows;
    if (!fresh || !rows) {
        free(fresh);
        return no_memory(results, error);
    }
    results->rows[results->row_count++] = results->current;
    results->current = fresh;
    return STATUS_OK;
}

/* --resume: the rows of the older file, if it was made with the settings of this run. */
static enum status keep_older_rows(struct results *results, const char *csv_path, struct error *error)
{
    struct csv_table older = {0};
    enum status status = meta_same_settings(results->bench, results->meta_path, csv_path, error);
    if (!status)
        status = csv_table_read(&older, csv_path, error);
    if (status)
        return status;
    bool same = older.column_count == results->column_count;
    for (size_t i = 0; same && i < older.column_count; i++)
        same = strcmp(older.columns[i], results->columns[i]->name) == 0;
    if (!same)
        status = error_set(error, STATUS_INPUT,
                           "%s: its columns are not those of this kvlab; leave --resume out to measure anew", csv_path);
    for (size_t row = 0; !status && row < older.row_count; row++) {
        for (size_t i = 0; i < results->column_count; i++) {
            char *cell = older.cells[row][i];
            older.cells[row][i] = NULL;
            results->current[i] = cell[0] ? cell : NULL;
            if (!cell[0])
                free(cell);
        }
        status = keep_row(results, error);
    }
    results->kept = results->row_count;
    results->on_disk = !status;
    csv_table_free(&older);
    return status;
}

static enum status open_files(struct results *results, struct error *error)
{
    const char *folder = results->bench->options.out;
    const char **names = calloc(results->column_count, sizeof *names);
    char *csv_path = NULL;
    if (!names || asprintf(&csv_path, "%s/%s.csv", folder, results->name) < 0 ||
        asprintf(&results->meta_path, "%s/%s.meta.json", folder, results->name) < 0) {
        free(names);
        return no_memory(results, error);
    }
    /* Worked out from other rows, or from nothing but the config: made anew in no time. */
    bool derived = results->table->suffix[0] != 0 || !results->bench->experiment->needs_device;
    enum status status = STATUS_OK;
    if (results->bench->options.resume && !derived && access(csv_path, F_OK) == 0)
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

static void results_free(struct results *results)
{
    row_file_close(&results->file);
    for (size_t row = 0; row < results->row_count; row++) {
        for (size_t i = 0; i < results->column_count; i++)
            free(results->rows[row][i]);
        free(results->rows[row]);
    }
    for (size_t i = 0; results->current && i < results->column_count; i++)
        free(results->current[i]);
    free(results->current);
    free(results->rows);
    free(results->columns);
    free(results->meta_path);
    free(results);
}

enum status results_open(struct results **opened, struct bench *bench, const struct table *table, struct error *error)
{
    *opened = NULL;
    struct results *results = calloc(1, sizeof *results);
    if (!results)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", bench->experiment->name);
    *results = (struct results){.bench = bench, .table = table, .file.descriptor = -1};
    snprintf(results->name, sizeof results->name, "%s%s", bench->experiment->name, table->suffix);
    enum status status = make_columns(results, error);
    if (!status && !bench->options.dry_run)
        status = open_files(results, error);
    if (status) {
        results_free(results);
        return status;
    }
    struct results **end = &bench->output->tables;
    while (*end)
        end = &(*end)->next;
    *end = results;
    *opened = results;
    return STATUS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

/* A cell that cannot be stored is our own out-of-memory; the row ends without it, as an empty cell. */
static void set_cell(struct results *results, size_t index, char *text)
{
    free(results->current[index]);
    results->current[index] = text;
}

void results_set_text(struct results *results, const char *column, const char *value)
{
    size_t index = column_index(results, column);
    assert(results->columns[index]->kind == COLUMN_TEXT);
    set_cell(results, index, value[0] ? strdup(value) : NULL);
}

void results_set_int(struct results *results, const char *column, int64_t value)
{
    size_t index = column_index(results, column);
    assert(results->columns[index]->kind == COLUMN_INT);
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    set_cell(results, index, strdup(text));
}

void results_set_real(struct results *results, const char *column, double value)
{
    size_t index = column_index(results, column);
    assert(results->columns[index]->kind == COLUMN_REAL);
    if (!isfinite(value)) {
        results_set_missing(results, column, "it has no finite value");
        return;
    }
    char *text = NULL;
    if (asprintf(&text, "%.*f", results->columns[index]->decimals, value) < 0)
        text = NULL;
    if (text && text[0] == '-' && strspn(text, "-0.") == strlen(text)) /* -0.000 is 0.000 */
        memmove(text, text + 1, strlen(text));
    set_cell(results, index, text);
}

void results_set_ceiling_percent(struct results *results, const char *column, double percent)
{
    results_set_real(results, column, percent);
    if (percent <= 100.0)
        return;
    output_note(results->bench,
                "%s: %s is over 100: the ceiling was measured too low, as on a busy machine; measure again",
                results->name, column);
    meta_text(results->bench, "wrong_ceiling", column);
}

void results_set_missing(struct results *results, const char *column, const char *reason)
{
    set_cell(results, column_index(results, column), NULL);
    output_note(results->bench, "%s: %s is empty: %s", results->name, column, reason);
}

static void set_common(struct results *results, bool over_what_is_set)
{
    const struct bench *bench = results->bench;
    const char *const values[COMMON_COLUMNS] = {bench->config.name, bench->device ? bench->device->info.kind : "",
                                                dtype_name(bench->dtype), bench_weights_name(bench)};
    for (size_t i = 0; results->table->common && i < COMMON_COLUMNS; i++)
        if (over_what_is_set || !results->current[i])
            results_set_text(results, common_columns[i].name, values[i]);
}

void bench_set_common(const struct bench *bench, struct results *results)
{
    assert(results->bench == bench);
    set_common(results, true);
}

/* A fit of rows that are gone would stand beside rows that it does not fit. */
static void remove_derived(const struct results *results)
{
    const struct experiment *experiment = results->bench->experiment;
    for (size_t t = 0; results->table->suffix[0] == 0 && t < experiment->table_count; t++) {
        static const char *const endings[] = {".csv", ".meta.json"};
        const char *suffix = experiment->tables[t].suffix;
        for (size_t i = 0; suffix[0] && i < sizeof endings / sizeof endings[0]; i++) {
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
 */
static enum status put_in_place(struct results *results, struct error *error)
{
    struct row_file meta = {.descriptor = -1};
    enum status status = meta_write(results, &meta, error);
    if (!status) {
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

enum status results_end_row(struct results *results, struct error *error)
{
    set_common(results, false);
    enum status status = STATUS_OK;
    if (!results->bench->options.dry_run) {
        status = write_line(results, (const char *const *)results->current, error);
        if (!status && !results->file.in_place)
            status = put_in_place(results, error);
    }
    return status ? status : keep_row(results, error);
}

size_t results_rows(const struct results *results)
{
    return results->row_count;
}

double results_real(const struct results *results, size_t row, const char *column)
{
    assert(row < results->row_count);
    const char *cell = results->rows[row][column_index(results, column)];
    return cell ? strtod(cell, NULL) : NAN;
}

const char *results_text(const struct results *results, size_t row, const char *column)
{
    assert(row < results->row_count);
    const char *cell = results->rows[row][column_index(results, column)];
    return cell ? cell : "";
}

bool results_has(const struct results *results, const struct key *keys, size_t count)
{
    for (size_t row = 0; row < results->row_count; row++) {
        size_t equal = 0;
        for (; equal < count; equal++) {
            const char *cell = results_text(results, row, keys[equal].column);
            if (!cell[0] || strtoll(cell, NULL, 10) != keys[equal].value)
                break;
        }
        if (equal == count)
            return true;
    }
    return false;
}

/* ---- closing ---------------------------------------------------------------------------------------------------- */

static enum status rewrite_meta(struct results *results, struct error *error)
{
    if (!results->on_disk)
        return STATUS_OK;
    struct row_file meta = {.descriptor = -1};
    enum status status = meta_write(results, &meta, error);
    if (!status)
        status = row_file_put_in_place(&meta, error);
    row_file_close(&meta);
    return status;
}

enum status results_close(struct results *results, bool complete, struct error *error)
{
    if (!results || results->closed)
        return STATUS_OK;
    struct bench *bench = results->bench;
    results->closed = true;
    results->complete = complete;
    row_file_close(&results->file);
    enum status status = rewrite_meta(results, error);
    if (results->row_count && bench->options.format != FORMAT_JSON) {
        progress_clear(bench);
        if (bench->output->printed)
            putchar('\n');
        print_table(results, bench->options.format);
        bench->output->printed = true;
    }
    return status;
}

enum status output_finish(struct bench *bench, bool complete, struct error *error)
{
    enum status status = STATUS_OK;
    for (struct results *results = bench->output->tables; results; results = results->next) {
        enum status closed = results->closed ? rewrite_meta(results, error) /* notes that came after it was closed */
                                             : results_close(results, complete, error);
        status = status ? status : closed;
    }
    if (bench->options.format == FORMAT_JSON && bench->output->tables)
        print_json(bench->output);
    return status;
}

void output_free(struct bench *bench)
{
    struct output *output = bench->output;
    if (!output)
        return;
    while (output->tables) {
        struct results *results = output->tables;
        output->tables = results->next;
        results_free(results);
    }
    for (size_t i = 0; i < output->note_count; i++)
        free(output->notes[i]);
    if (output->samples)
        fclose(output->samples);
    free(output);
    bench->output = NULL;
}
