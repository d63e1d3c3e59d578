#include "bench/report.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 16 };

static const struct option_row *row_of(const struct option_row *rows, const char *word)
{
    size_t length = strcspn(word, "=");
    for (; rows->name; rows++)
        if (strlen(rows->name) == length && memcmp(rows->name, word, length) == 0)
            return rows;
    return NULL;
}

enum status report_take_words(const char **words, int count, int *found, const struct option_row *rows, int *argc,
                              char **argv, bool *help, struct error *error)
{
    int kept = 0;
    *found = 0;
    *help = false;
    for (int i = 0; i < *argc; i++) {
        bool is_option = argv[i][0] == '-' && argv[i][1];
        const struct option_row *row = is_option && argv[i][1] == '-' ? row_of(rows, argv[i] + 2) : NULL;
        if (!is_option) {
            if (*found < count)
                words[*found] = argv[i];
            ++*found;
            continue;
        }
        if (is_option && argv[i][1] == '-' && !row)
            return error_set(error, STATUS_INPUT, "unknown option %s; --help lists the options", argv[i]);
        *help |= row && strcmp(row->name, "help") == 0;
        argv[kept++] = argv[i];
        if (row && row->kind != OPTION_FLAG && !strchr(argv[i], '=') && i + 1 < *argc)
            argv[kept++] = argv[++i];
    }
    *argc = kept;
    for (int i = 0; i < *found && i < count; i++) /* behind the options: the meta file shows the whole line */
        argv[kept + i] = (char *)words[i];
    return STATUS_OK;
}

enum status report_words(const char **words, int count, const char *names, const struct option_row *rows, int *argc,
                         char **argv, struct error *error)
{
    int found;
    bool help;
    if (report_take_words(words, count, &found, rows, argc, argv, &help, error) != STATUS_OK)
        return error->status;
    if (found == count || help)
        return STATUS_OK;
    return error_set(error, STATUS_INPUT, "%s %s; --help shows how", names,
                     found < count ? "is missing" : "is all that can be given besides options");
}

enum status report_open(struct bench *bench, const struct experiment *what, struct results **results,
                        struct error *error)
{
    bench->experiment = what;
    enum status status = output_open(bench, error);
    if (!status)
        status = meta_open(bench, error);
    return status ? status : results_open(results, bench, &what->tables[0], error);
}

static const char *cell_text(char *text, size_t size, const struct results *results, size_t row, size_t column)
{
    const char *cell = results->rows[row][column];
    if (!cell)
        return "-";
    if (results->columns[column]->kind == COLUMN_TEXT)
        return cell;
    print_separated(text, size, cell);
    return text;
}

static size_t find_columns(const struct results *results, const char *const *names, size_t *columns)
{
    size_t count = 0;
    for (; names[count] && count < MAX_COLUMNS; count++)
        for (size_t i = 0; i < results->column_count; i++)
            if (strcmp(results->columns[i]->name, names[count]) == 0)
                columns[count] = i;
    return count;
}

static void print_people(const struct results *results, const char *const *names)
{
    size_t columns[MAX_COLUMNS] = {0}, count = find_columns(results, names, columns);
    int widths[MAX_COLUMNS];
    char text[64];
    for (size_t i = 0; i < count; i++) {
        widths[i] = (int)strlen(names[i]);
        for (size_t row = 0; row < results->row_count; row++) {
            int width = (int)strlen(cell_text(text, sizeof text, results, row, columns[i]));
            widths[i] = width > widths[i] ? width : widths[i];
        }
    }
    for (size_t row = 0; row <= results->row_count; row++)
        for (size_t i = 0; i < count; i++) {
            const char *shown = row ? cell_text(text, sizeof text, results, row - 1, columns[i]) : names[i];
            bool left = results->columns[columns[i]]->kind == COLUMN_TEXT;
            if (i + 1 == count)
                printf("%s\n", shown);
            else
                printf(left ? "%-*s  " : "%*s  ", widths[i], shown);
        }
}

enum status report_close(struct bench *bench, struct results *results, const char *const *columns, struct error *error)
{
    enum status status = results_close(results, true, error); /* the files first: stdout's reader may be gone */
    if (bench->options.format == FORMAT_TABLE)
        print_people(results, columns);
    else
        output_print(bench);
    fflush(stdout); /* before what the command says on stderr */
    return status;
}

void report_free(struct bench *bench)
{
    output_free(bench);
    meta_free(bench);
}
