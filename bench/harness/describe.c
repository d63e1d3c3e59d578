/* --help and --explain of an experiment, from its own tables. */
#include "bench/harness/output.h"
#include "bench/harness/session.h"

#include <string.h>

void describe_experiment(const struct experiment *experiment)
{
    printf("kvlab run %s: %s\n\nusage: kvlab run %s [options]\n\noptions:\n", experiment->name, experiment->summary,
           experiment->name);
    options_print_help(experiment->uses, experiment->own);
    for (size_t t = 0; t < experiment->table_count; t++) {
        const struct table *table = &experiment->tables[t];
        printf("\nwrites %s%s.csv:\n  ", experiment->name, table->suffix);
        int used = 2;
        size_t common = table->common ? COMMON_COLUMNS : 0;
        for (size_t i = 0; i < common + table->column_count; i++) {
            const char *name = i < common ? common_columns[i].name : table->columns[i - common].name;
            if (used + (int)strlen(name) > 110)
                used = printf("\n  ") - 1;
            used += printf("%s%s", name, i + 1 < common + table->column_count ? ", " : "\n");
        }
    }
    if (experiment->default_model[0])
        printf("\nmodel: %s unless --model gives another\n", experiment->default_model);
}

static bool explain_in(const struct experiment *experiment, const struct table *table, const struct column *columns,
                       size_t count, const char *name)
{
    static const char *const kinds[] = {"text", "whole number", "number"};
    for (size_t i = 0; i < count; i++)
        if (strcmp(columns[i].name, name) == 0) {
            printf("%s (%s%s.csv, %s): %s\n", name, experiment->name, table->suffix, kinds[columns[i].kind],
                   columns[i].explain ? columns[i].explain : "");
            return true;
        }
    return false;
}

enum status describe_column(const struct experiment *experiment, const char *column, struct error *error)
{
    bool found = false;
    char known[900] = "";
    for (size_t t = 0; t < experiment->table_count; t++) {
        const struct table *table = &experiment->tables[t];
        if (table->common)
            found |= explain_in(experiment, table, common_columns, COMMON_COLUMNS, column);
        found |= explain_in(experiment, table, table->columns, table->column_count, column);
        for (size_t i = 0; i < table->column_count; i++) {
            size_t used = strlen(known);
            snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", table->columns[i].name);
        }
    }
    return found ? STATUS_OK
                 : error_set(error, STATUS_INPUT, "--explain: %s has no column \"%s\"; it has %s", experiment->name,
                             column, known);
}
