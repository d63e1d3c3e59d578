/* Published tables under the names that kvlab's results have: the folder of a table may hold names.csv, as data/lessons
   does, with rows of file, column, cell and `as`. No cell: the column is called `as`. A cell: where it stands in the
   column, it reads `as`. "*": every cell of the column does, which is added where the table has none. */
#include "bench/compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status replace(char **text, const char *with, struct error *error)
{
    char *copy = strdup(with);
    if (!copy)
        return error_set(error, STATUS_DEVICE, "compare: out of memory");
    free(*text);
    *text = copy;
    return STATUS_OK;
}

/* An empty column at the end. */
static enum status add_column(struct csv_table *table, const char *name, struct error *error)
{
    size_t count = table->column_count;
    char **columns = realloc(table->columns, (count + 1) * sizeof *columns);
    bool there = columns != NULL;
    table->columns = columns ? columns : table->columns;
    for (size_t row = 0; there && row < table->row_count; row++) {
        char **cells = realloc(table->cells[row], (count + 1) * sizeof *cells);
        table->cells[row] = cells ? cells : table->cells[row];
        there = cells != NULL;
    }
    char *copy = there ? strdup(name) : NULL;
    if (!copy)
        return error_set(error, STATUS_DEVICE, "compare: out of memory");
    table->columns[count] = copy;
    for (size_t row = 0; row < table->row_count; row++)
        table->cells[row][count] = NULL;
    table->column_count++; /* from here on csv_table_free() has it; it takes NULL cells */
    for (size_t row = 0; row < table->row_count; row++)
        if (replace(&table->cells[row][count], "", error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

static enum status apply(struct csv_table *table, const char *name, const char *cell, const char *as,
                         struct error *error)
{
    int column = csv_table_column(table, name);
    bool all = strcmp(cell, "*") == 0;
    if (column < 0 && !all)
        return STATUS_OK;
    if (!cell[0])
        return replace(&table->columns[column], as, error);
    if (column < 0) {
        if (add_column(table, name, error) != STATUS_OK)
            return error->status;
        column = (int)table->column_count - 1;
    }
    for (size_t row = 0; row < table->row_count; row++)
        if ((all || strcmp(table->cells[row][column], cell) == 0) &&
            replace(&table->cells[row][column], as, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

enum status compare_names(struct csv_table *table, const char *path, struct error *error)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    char names_path[4096];
    struct csv_table names = {0};
    int folder = slash ? (int)(slash - path + 1) : 0;
    if (snprintf(names_path, sizeof names_path, "%.*snames.csv", folder, path) >= (int)sizeof names_path ||
        access(names_path, F_OK) != 0)
        return STATUS_OK;
    if (csv_table_read(&names, names_path, error) != STATUS_OK)
        return error->status;
    int of = csv_table_column(&names, "file"), column = csv_table_column(&names, "column"),
        cell = csv_table_column(&names, "cell"), as = csv_table_column(&names, "as");
    enum status status = STATUS_OK;
    if (of < 0 || column < 0 || cell < 0 || as < 0)
        status = error_set(error, STATUS_INPUT, "%s: must have the columns file, column, cell and as", names_path);
    for (size_t row = 0; !status && row < names.row_count; row++) {
        char **cells = names.cells[row];
        if (strcmp(cells[of], file) == 0)
            status = apply(table, cells[column], cells[cell], cells[as], error);
    }
    csv_table_free(&names);
    return status;
}
