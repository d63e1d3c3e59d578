/* A table on stdout: aligned for people, or CSV, Markdown and JSON for programs. */
#include "bench/harness/output.h"
#include "engine/bytes.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PIPE_WIDTH = 120, MAX_CELL = 512, MAX_HEADER_LINES = 8 };

void print_separated(char *text, size_t size, const char *digits)
{
    const char *first = digits + (digits[0] == '-');
    size_t whole = strspn(first, "0123456789"), used = 0;
    for (const char *from = digits; *from && used + 2 < size; from++) {
        size_t place = (size_t)(from - first); /* wraps for the sign: never below `whole` */
        if (place > 0 && place < whole && (whole - place) % 3 == 0)
            text[used++] = ',';
        text[used++] = *from;
    }
    text[used] = 0;
}

/* ---- for people ------------------------------------------------------------------------------------------------- */

struct layout {
    size_t column; /* in results->columns */
    bool left;     /* text stands left, numbers right */
    int data_width, width;
    char header[MAX_HEADER_LINES][MAX_CELL];
    int header_lines;
};

static void cell_text(const struct results *results, size_t row, size_t column, char *text)
{
    const char *cell = results->rows[row][column];
    if (!cell)
        strcpy(text, "-");
    else if (results->columns[column]->kind == COLUMN_TEXT)
        snprintf(text, MAX_CELL, "%s", cell);
    else
        print_separated(text, MAX_CELL, cell);
}

static bool same_in_all_rows(const struct results *results, size_t column)
{
    for (size_t row = 0; row < results->row_count; row++) {
        const char *cell = results->rows[row][column];
        if (!cell || strcmp(cell, results->rows[0][column]) != 0)
            return false;
    }
    return true;
}

/* Breaks "percent_of_read_ceiling" after underscores into lines of at most `width`, or of one word. */
static void wrap_header(struct layout *layout, const char *name, size_t width)
{
    char *line = layout->header[0];
    layout->header_lines = 1;
    for (const char *word = name; *word;) {
        size_t length = strcspn(word, "_");
        length += word[length] == '_';
        if (line[0] && strlen(line) + length > width && layout->header_lines < MAX_HEADER_LINES)
            line = layout->header[layout->header_lines++];
        strncat(line, word, length < MAX_CELL - strlen(line) ? length : MAX_CELL - strlen(line) - 1);
        word += length;
    }
    layout->width = layout->data_width;
    for (int i = 0; i < layout->header_lines; i++)
        if ((int)strlen(layout->header[i]) > layout->width)
            layout->width = (int)strlen(layout->header[i]);
}

static int total_width(const struct layout *layouts, size_t count)
{
    int total = 0;
    for (size_t i = 0; i < count; i++)
        total += layouts[i].width + 2;
    return total;
}

static int terminal_width(void)
{
    struct winsize size;
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col
                                                                                                : PIPE_WIDTH;
}

static void print_cell(FILE *line, const struct layout *layout, const char *text)
{
    fprintf(line, layout->left ? "%-*s  " : "%*s  ", layout->width, text);
}

/* Without the spaces at its end. */
static void print_line(FILE *line, char **text)
{
    if (fclose(line) == 0) {
        size_t length = strlen(*text);
        while (length && (*text)[length - 1] == ' ')
            length--;
        printf("%.*s\n", (int)length, *text);
    }
    free(*text);
}

/* Names that are the same in every row stand once, above. */
static size_t lay_out(const struct results *results, struct layout *layouts)
{
    size_t count = 0;
    printf("%s: ", results->name);
    for (size_t i = 0; i < results->column_count; i++) {
        bool common = results->table->common && i < COMMON_COLUMNS;
        if (common && same_in_all_rows(results, i)) {
            printf("%s %s, ", results->columns[i]->name, results->rows[0][i]);
            continue;
        }
        struct layout *layout = &layouts[count++];
        layout->column = i;
        layout->left = results->columns[i]->kind == COLUMN_TEXT;
        for (size_t row = 0; row < results->row_count; row++) {
            char text[MAX_CELL];
            cell_text(results, row, i, text);
            if ((int)strlen(text) > layout->data_width)
                layout->data_width = (int)strlen(text);
        }
        wrap_header(layout, results->columns[i]->name, MAX_CELL);
    }
    printf("%zu row%s%s\n", results->row_count, results->row_count == 1 ? "" : "s",
           results->bench->options.dry_run ? ", predictions only (dry run)" : "");
    return count;
}

static bool is_bytes(const struct column *column)
{
    size_t length = strlen(column->name), suffix = strlen("_bytes");
    return column->kind == COLUMN_INT && length > suffix && strcmp(column->name + length - suffix, "_bytes") == 0;
}

/* The last row's bytes once more, as MiB and MB. */
static void print_byte_units(const struct results *results)
{
    const char *before = "in the last row: ";
    for (size_t i = 0; i < results->column_count; i++) {
        const char *cell = results->rows[results->row_count - 1][i];
        char text[64];
        if (!is_bytes(results->columns[i]) || !cell || cell[0] == '-' || strcmp(cell, "0") == 0)
            continue;
        printf("%s%s %s", before, results->columns[i]->name, bytes_text(text, sizeof text, strtoull(cell, NULL, 10)));
        before = ", ";
    }
    if (before[0] == ',')
        putchar('\n');
}

static void print_aligned(const struct results *results)
{
    struct layout *layouts = calloc(results->column_count, sizeof *layouts);
    if (!layouts)
        return;
    size_t count = lay_out(results, layouts);
    if (total_width(layouts, count) > terminal_width())
        for (size_t i = 0; i < count; i++) {
            struct layout *layout = &layouts[i];
            memset(layout->header, 0, sizeof layout->header);
            wrap_header(layout, results->columns[layout->column]->name, (size_t)layout->data_width);
        }
    int lines = 1;
    for (size_t i = 0; i < count; i++)
        lines = layouts[i].header_lines > lines ? layouts[i].header_lines : lines;
    size_t total = (size_t)lines + results->row_count, size;
    for (size_t at = 0; at < total; at++) { /* headers end on the same line, next to their data */
        char *text = NULL, cell[MAX_CELL];
        FILE *line = open_memstream(&text, &size);
        if (!line)
            break;
        for (size_t i = 0; i < count; i++) {
            int own = (int)at - (lines - layouts[i].header_lines);
            if (at >= (size_t)lines)
                cell_text(results, at - (size_t)lines, layouts[i].column, cell);
            print_cell(line, &layouts[i], at >= (size_t)lines ? cell : own >= 0 ? layouts[i].header[own] : "");
        }
        print_line(line, &text);
    }
    free(layouts);
    print_byte_units(results);
}

/* ---- for programs ----------------------------------------------------------------------------------------------- */

static void print_csv_line(const struct results *results, const char *const *cells)
{
    bool *is_text = calloc(results->column_count, sizeof *is_text);
    size_t length;
    for (size_t i = 0; is_text && i < results->column_count; i++)
        is_text[i] = results->columns[i]->kind == COLUMN_TEXT;
    char *line = is_text ? csv_line(cells, is_text, results->column_count, &length) : NULL;
    if (line)
        fputs(line, stdout);
    free(line);
    free(is_text);
}

static void print_csv(const struct results *results)
{
    const char **names = calloc(results->column_count, sizeof *names);
    if (!names)
        return;
    for (size_t i = 0; i < results->column_count; i++)
        names[i] = results->columns[i]->name;
    print_csv_line(results, names);
    free(names);
    for (size_t row = 0; row < results->row_count; row++)
        print_csv_line(results, (const char *const *)results->rows[row]);
}

static void print_markdown(const struct results *results)
{
    for (size_t i = 0; i < results->column_count; i++)
        printf("| %s ", results->columns[i]->name);
    printf("|\n");
    for (size_t i = 0; i < results->column_count; i++)
        printf("%s", results->columns[i]->kind == COLUMN_TEXT ? "|---" : "|---:");
    printf("|\n");
    for (size_t row = 0; row < results->row_count; row++) {
        for (size_t i = 0; i < results->column_count; i++) {
            const char *cell = results->rows[row][i];
            printf("| ");
            for (const char *c = cell ? cell : ""; *c; c++)
                printf(*c == '|' ? "\\%c" : "%c", *c);
            printf(" ");
        }
        printf("|\n");
    }
}

void print_table(const struct results *results, enum output_format format)
{
    if (format == FORMAT_CSV)
        print_csv(results);
    else if (format == FORMAT_MD)
        print_markdown(results);
    else
        print_aligned(results);
    fflush(stdout);
}

static json_t *json_cell(const struct column *column, const char *cell)
{
    if (!cell)
        return json_null();
    if (column->kind == COLUMN_INT)
        return json_integer(strtoll(cell, NULL, 10));
    if (column->kind == COLUMN_REAL)
        return json_real(strtod(cell, NULL));
    return json_string(cell);
}

/* One document for all tables of the run: {"slope": [{"context": 512, ...}, ...], "slope_fit": [...]} */
void print_json(const struct output *output)
{
    json_t *document = json_object();
    for (const struct results *results = output->tables; results; results = results->next) {
        json_t *rows = json_array();
        for (size_t row = 0; row < results->row_count; row++) {
            json_t *object = json_object();
            for (size_t i = 0; i < results->column_count; i++)
                json_object_set_new(object, results->columns[i]->name,
                                    json_cell(results->columns[i], results->rows[row][i]));
            json_array_append_new(rows, object);
        }
        json_object_set_new(document, results->name, rows);
    }
    /* 15 digits bring every decimal of the CSV back as it stands there. */
    json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    putchar('\n');
    json_decref(document);
    fflush(stdout);
}
