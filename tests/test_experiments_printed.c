/* What an experiment prints is what it writes: the table for people with its separators and units, JSON, Markdown and
   CSV, each against the CSV in the results folder. */
#include "tests/staged_run.h"

#include "engine/bytes.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

enum { COMMON = 4 }; /* model, device, dtype, weights */

/* "1234567.5" as people read it, worked out from the right. */
static void separated(char *text, const char *digits)
{
    size_t whole = strcspn(digits, "."), used = 0;
    for (size_t i = 0; digits[i]; i++) {
        if (i > 0 && i < whole && digits[i - 1] != '-' && (whole - i) % 3 == 0)
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = 0;
}

static bool is_number(const struct table *table, size_t column)
{
    return column >= COMMON && table->columns[column - COMMON].kind != COLUMN_TEXT;
}

/* Each row's cells, with separators, one after the other in one line. */
static void assert_printed_table(const char *name, const struct table *table, const char *printed)
{
    struct csv_table csv = place_csv(name);
    for (size_t row = 0; row < csv.row_count; row++) {
        bool found = false;
        char *copy = strdup(printed), *rest = copy;
        for (char *line = strtok_r(copy, "\n", &rest); line && !found; line = strtok_r(NULL, "\n", &rest)) {
            const char *from = line;
            found = true;
            for (size_t i = COMMON; i < csv.column_count && found; i++) { /* the common ones are above */
                char cell[256];
                snprintf(cell, sizeof cell, "%s", csv.cells[row][i]);
                if (is_number(table, i))
                    separated(cell, csv.cells[row][i]);
                from += strspn(from, " ");
                found = strncmp(from, cell, strlen(cell)) == 0;
                from += found ? strlen(cell) : 0;
                found = found && (from[0] == 0 || from[0] == ' ');
            }
        }
        free(copy);
        if (!found)
            fail_msg("%s: row %zu is not printed as it is in the CSV:\n%s", name, row, printed);
    }
    csv_table_free(&csv);
}

static void assert_printed_json(const char *name, const struct table *table, const char *printed)
{
    struct csv_table csv = place_csv(name);
    json_t *document = json_loads(printed, JSON_REJECT_DUPLICATES, NULL), *rows = json_object_get(document, name);
    assert_int_equal(json_array_size(rows), csv.row_count);
    for (size_t row = 0; row < csv.row_count; row++)
        for (size_t i = 0; i < csv.column_count; i++) {
            const json_t *value = json_object_get(json_array_get(rows, row), csv.columns[i]);
            const char *cell = csv.cells[row][i];
            if (!cell[0])
                assert_true(json_is_null(value));
            else if (is_number(table, i))
                assert_true(json_is_number(value) && json_number_value(value) == strtod(cell, NULL));
            else
                assert_string_equal(json_string_value(value), cell);
        }
    json_decref(document);
    csv_table_free(&csv);
}

/* "| a | b |", with or without separators in numbers. */
static void assert_printed_markdown(const char *name, const struct table *table, const char *printed)
{
    struct csv_table csv = place_csv(name);
    char *copy = strdup(printed), *rest = copy, *line = strtok_r(copy, "\n", &rest);
    assert_non_null(line);
    line = strtok_r(NULL, "\n", &rest);
    assert_int_equal(strspn(line, "|-: "), strlen(line));
    for (size_t row = 0; row < csv.row_count; row++) {
        const char *from = strtok_r(NULL, "\n", &rest);
        assert_non_null(from);
        for (size_t i = 0; i < csv.column_count; i++) {
            char cell[256];
            size_t length = strcspn(from + 2, "|"), used = 0;
            assert_memory_equal(from, "| ", 2);
            for (size_t c = 0; c + 1 < length; c++) /* a space before the next bar */
                if (!is_number(table, i) || from[2 + c] != ',')
                    cell[used++] = from[2 + c];
            cell[used] = 0;
            assert_string_equal(cell, csv.cells[row][i]);
            from += 2 + length;
        }
        assert_string_equal(from, "|");
    }
    free(copy);
    csv_table_free(&csv);
}

static void what_is_printed_is_what_is_written(void **state)
{
    (void)state;
    static const char *const lines[] = {"kv --contexts 16,5000", "logits --contexts 16,5000"};
    for (size_t i = 0; i < COUNT(lines); i++) {
        char line[96], name[16], path[64];
        assert_int_equal(sscanf(lines[i], "%15s", name), 1);
        const struct table *table = &experiment_find(name)->tables[0];
        static const char *const formats[] = {"table", "json", "md", "csv"};
        for (size_t f = 0; f < COUNT(formats); f++) {
            snprintf(line, sizeof line, "%s --format %s", lines[i], formats[f]);
            assert_int_equal(staged_run(line, &(struct stage){0}), 0);
            char *printed = staged_stdout();
            if (f == 0)
                assert_printed_table(name, table, printed);
            else if (f == 1)
                assert_printed_json(name, table, printed);
            else if (f == 2)
                assert_printed_markdown(name, table, printed);
            else {
                snprintf(path, sizeof path, "out/%s.csv", name);
                char *written = place_file(path);
                assert_string_equal(printed, written);
                free(written);
            }
            free(printed);
        }
    }
}

/* 5,000 * 256 = 1,280,000 bytes are 1.2207 MiB and 1.28 MB; MiB never stands for MB. */
static void bytes_in_both_units(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        double binary, decimal;
        const char *binary_unit, *decimal_unit;
    } cases[] = {{1280000, 1.2207, 1.28, "MiB", "MB"},
                 {28672, 28.0, 28.672, "KiB", "kB"},
                 {14680064, 14.0, 14.680, "MiB", "MB"},
                 {UINT64_C(12490457088), 11.6326, 12.4905, "GiB", "GB"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[64], binary_unit[8], decimal_unit[8];
        double binary, decimal;
        bytes_text(text, sizeof text, cases[i].bytes);
        assert_int_equal(sscanf(text, "%lf %7s (%lf %7[^)])", &binary, binary_unit, &decimal, decimal_unit), 4);
        place_assert_near(binary, cases[i].binary, 0.05, text);
        place_assert_near(decimal, cases[i].decimal, 0.05, text);
        assert_string_equal(binary_unit, cases[i].binary_unit);
        assert_string_equal(decimal_unit, cases[i].decimal_unit);
    }
    assert_int_equal(staged_run("kv --contexts 5000", &(struct stage){0}), 0);
    char *printed = staged_stdout(), *at = strstr(printed, "kv_tensor_bytes 1.2");
    assert_non_null(at);
    assert_non_null(strstr(at, " MiB (1.28 MB)"));
    free(printed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_printed_is_what_is_written),
        cmocka_unit_test(bytes_in_both_units),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
