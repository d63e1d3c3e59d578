/* CSV by libcsv, both ways. */
#include "bench/harness/output.h"
#include "engine/input_file.h"

#include <csv.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* RFC 4180: a comma, a quote or a line end must be quoted; libcsv also trims spaces around a bare cell. */
static bool needs_quotes(const char *cell)
{
    size_t length = strlen(cell);
    return strpbrk(cell, ",\"\r\n") || (length && (strchr(" \t", cell[0]) || strchr(" \t", cell[length - 1])));
}

char *csv_line(const char *const *cells, const bool *is_text, size_t count, size_t *length)
{
    char *line = NULL;
    FILE *stream = open_memstream(&line, length);
    if (!stream)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        const char *cell = cells[i] ? cells[i] : "";
        if (i)
            fputc(',', stream);
        if (is_text[i] && needs_quotes(cell))
            csv_fwrite(stream, cell, strlen(cell));
        else
            fputs(cell, stream);
    }
    fputc('\n', stream);
    bool failed = ferror(stream);
    if (fclose(stream) != 0 || failed) {
        free(line);
        return NULL;
    }
    return line;
}

enum { MAX_COLUMNS = 1000 };

/* What libcsv's callbacks fill. */
struct reader {
    struct csv_table *table;
    const char *path;
    char **cells; /* of the row being read */
    size_t count, room, line;
    enum status status;
    struct error *error;
};

static void fail(struct reader *reader, enum status status, const char *why)
{
    if (!reader->status)
        reader->status = error_set(reader->error, status, "%s: row %zu: %s", reader->path, reader->line + 1, why);
}

static void on_cell(void *text, size_t length, void *data)
{
    struct reader *reader = data;
    if (reader->status)
        return;
    if (reader->count == reader->room) {
        size_t room = reader->room ? reader->room * 2 : 16;
        char **cells = realloc(reader->cells, room * sizeof *cells);
        if (!cells) {
            fail(reader, STATUS_DEVICE, "out of memory");
            return;
        }
        reader->cells = cells;
        reader->room = room;
    }
    char *copy = length ? strndup(text, length) : strdup("");
    if (copy)
        reader->cells[reader->count++] = copy;
    else
        fail(reader, STATUS_DEVICE, "out of memory");
}

/* A name that stands twice would be read as its first column, whatever the other holds. */
static void check_header(struct reader *reader)
{
    const struct csv_table *table = reader->table;
    if (table->column_count > MAX_COLUMNS)
        fail(reader, STATUS_INPUT, "it has more than 1000 columns");
    for (size_t i = 0; !reader->status && i < table->column_count; i++)
        if (csv_table_column(table, table->columns[i]) != (int)i)
            reader->status = error_set(reader->error, STATUS_INPUT, "%s: two columns have the name \"%.64s\"",
                                       reader->path, table->columns[i]);
}

static void on_row(int character, void *data)
{
    (void)character;
    struct reader *reader = data;
    struct csv_table *table = reader->table;
    if (reader->status)
        return;
    if (!table->columns) {
        table->columns = reader->cells;
        table->column_count = reader->count;
        check_header(reader);
    } else if (reader->count != table->column_count) {
        fail(reader, STATUS_INPUT, "it has another number of cells than the header");
        return;
    } else {
        char ***rows = realloc(table->cells, (table->row_count + 1) * sizeof *rows);
        if (!rows) {
            fail(reader, STATUS_DEVICE, "out of memory");
            return;
        }
        table->cells = rows;
        table->cells[table->row_count++] = reader->cells;
    }
    reader->cells = NULL;
    reader->count = reader->room = 0;
    reader->line++;
}

enum status csv_table_read(struct csv_table *table, const char *path, struct error *error)
{
    *table = (struct csv_table){0};
    FILE *file;
    if (input_file_open(path, "give a CSV file", &file, NULL, error) != STATUS_OK)
        return error->status;
    struct reader reader = {.table = table, .path = path, .error = error};
    struct csv_parser parser;
    if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI) != 0) {
        fclose(file);
        return error_set(error, STATUS_DEVICE, "%s: the CSV reader did not start", path);
    }
    char buffer[16384];
    size_t got;
    while (!reader.status && (got = fread(buffer, 1, sizeof buffer, file)) > 0)
        if (csv_parse(&parser, buffer, got, on_cell, on_row, &reader) != got)
            fail(&reader, STATUS_INPUT, csv_strerror(csv_error(&parser)));
    if (!reader.status && ferror(file))
        fail(&reader, STATUS_INPUT, strerror(errno));
    if (!reader.status && csv_fini(&parser, on_cell, on_row, &reader) != 0)
        fail(&reader, STATUS_INPUT, "a quoted cell does not end");
    if (!reader.status && !table->columns)
        reader.status = error_set(error, STATUS_INPUT, "%s: the file is empty, there is no header", path);
    csv_free(&parser);
    fclose(file);
    for (size_t i = 0; i < reader.count; i++)
        free(reader.cells[i]);
    free(reader.cells);
    if (reader.status)
        csv_table_free(table);
    return reader.status;
}

void csv_table_free(struct csv_table *table)
{
    for (size_t row = 0; row < table->row_count; row++) {
        for (size_t i = 0; i < table->column_count; i++)
            free(table->cells[row][i]);
        free(table->cells[row]);
    }
    for (size_t i = 0; i < table->column_count; i++)
        free(table->columns[i]);
    free(table->cells);
    free(table->columns);
    *table = (struct csv_table){0};
}

int csv_table_column(const struct csv_table *table, const char *name)
{
    for (size_t i = 0; i < table->column_count; i++)
        if (strcmp(table->columns[i], name) == 0)
            return (int)i;
    return -1;
}
