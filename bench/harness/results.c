/* The rows of a table: set cell by cell, kept in memory as they stand in the CSV, and written as they end. */
#include "bench/harness/output.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

enum status results_no_memory(const struct results *results, struct error *error)
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
        return results_no_memory(results, error);
    for (size_t i = 0; i < results->column_count; i++)
        results->columns[i] = i < common ? &common_columns[i] : &table->columns[i - common];
    return STATUS_OK;
}

enum status results_keep_row(struct results *results, struct error *error)
{
    assert(results->column_count > 0);
    char **fresh = calloc(results->column_count, sizeof *fresh);
    char ***rows = realloc(results->rows, (results->row_count + 1) * sizeof *rows);
    if (rows)
        results->rows = rows;
    if (!fresh || !rows) {
        free(fresh);
        return results_no_memory(results, error);
    }
    results->rows[results->row_count++] = results->current;
    results->current = fresh;
    return STATUS_OK;
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
        status = results_open_files(results, error);
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

void results_set_common(struct results *results)
{
    const struct bench *bench = results->bench;
    const char *const values[COMMON_COLUMNS] = {bench->config.name, bench->device ? bench->device->info.kind : "",
                                                dtype_name(bench->dtype), bench_weights_name(bench)};
    for (size_t i = 0; results->table->common && i < COMMON_COLUMNS; i++)
        if (!results->current[i])
            results_set_text(results, common_columns[i].name, values[i]);
}

enum status results_end_row(struct results *results, struct error *error)
{
    results_set_common(results);
    if (!results->bench->options.dry_run && results->table->suffix[0] == 0)
        meta_huge_pages(results->bench);
    enum status status = results->bench->options.dry_run ? STATUS_OK : results_write_row(results, error);
    return status ? status : results_keep_row(results, error);
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

void results_file_only(struct results *results)
{
    results->printed = true;
}

/* A file that is in place stays open until output_free(): whether it still is there is asked once more at the end. */
enum status results_close(struct results *results, bool complete, struct error *error)
{
    if (!results || results->closed)
        return STATUS_OK;
    results->closed = true;
    results->complete = complete;
    if (!results->file.in_place)
        row_file_close(&results->file);
    return results_rewrite_meta(results, error);
}

void output_print(struct bench *bench)
{
    struct output *output = bench->output;
    progress_clear(bench);
    if (bench->options.format == FORMAT_JSON) {
        if (output->tables && !output->printed)
            print_json(output);
        output->printed = true;
        return;
    }
    for (struct results *results = output->tables; results; results = results->next) {
        if (!results->row_count || !results->closed || results->printed)
            continue;
        if (output->printed)
            putchar('\n');
        print_table(results, bench->options.format);
        output->printed = results->printed = true;
    }
}

/* First all files, then stdout: its reader may be gone. */
enum status output_finish(struct bench *bench, bool complete, struct error *error)
{
    enum status status = STATUS_OK;
    for (struct results *results = bench->output->tables; results; results = results->next) {
        struct error ignored;
        struct error *to = status ? &ignored : error;
        enum status closed = results->closed ? results_rewrite_meta(results, to) /* notes that came after */
                                             : results_close(results, complete, to);
        status = status ? status : closed;
    }
    output_print(bench);
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
    samples_close(&output->samples);
    folder_release(output);
    free(output);
    bench->output = NULL;
}
