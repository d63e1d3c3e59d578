#include "bench/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 10000 }; /* rows are matched each against each */

/* What experiments call the columns that say what a row is (SCHEMA), for files of no experiment that this kvlab has. */
static const char *const key_names[] = {
    "id",
    "model",
    "context",
    "batch",
    "prompt_tokens",
    "new_tokens",
    "tokens",
    "phase",
    "moment",
    "policy",
    "block_size",
    "slots",
    "load",
    "source",
    "budget_bytes",
    "num_key_value_heads",
    "logits_positions",
    "kv_dtype",
    "window",
    "budget_tokens",
    "chunk_tokens",
    "prefix_cache",
    "request",
    "draft",
    "target",
    "draft_tokens",
    "rate_or_users",
    "step",
    "line",
    "engine",
    "quantity",
    "card",
    "kind",
};
/* Text that is measured or said of a row, not part of what it is. */
static const char *const never_keys[] = {"reason",       "message",      "verdict",  "tensor_shape",
                                         "logits_shape", "output_equal", "resolved", "bound",
                                         "limit",        "checksum",     "lesson"};
/* The same on two machines may differ in these, and is still the same row. */
static const char *const last_keys[] = {"dtype", "device", "weights"};

#define IN(list, name) in_list(list, sizeof(list) / sizeof(list)[0], name)

static bool in_list(const char *const *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], name) == 0)
            return true;
    return false;
}

bool compare_number(double *number, const char *cell)
{
    char *end;
    if (!cell[0] || strspn(cell, "0123456789+-.eE") != strlen(cell))
        return false;
    *number = strtod(cell, &end);
    return *end == 0 && isfinite(*number);
}

static bool same_value(const char *x, const char *y)
{
    double a, b;
    return strcmp(x, y) == 0 || (compare_number(&a, x) && compare_number(&b, y) && a == b);
}

/* What a column holds beside empty cells. */
enum { HAS_NUMBERS = 1, HAS_TEXT = 2 };

static int contents(const struct csv_table *table, int column)
{
    int found = 0;
    double number;
    for (size_t row = 0; row < table->row_count; row++)
        if (table->cells[row][column][0])
            found |= compare_number(&number, table->cells[row][column]) ? HAS_NUMBERS : HAS_TEXT;
    return found;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static bool has_columns(const struct csv_table *file, const struct table *table)
{
    for (size_t i = 0; i < table->column_count; i++)
        if (csv_table_column(file, table->columns[i].name) < 0)
            return false;
    return true;
}

/* The table of an experiment whose columns the file has; the one with most of them. */
static const struct table *table_of(const struct csv_table *file)
{
    const struct table *best = NULL;
    for (const struct experiment *const *experiment = experiments; *experiment; experiment++)
        for (size_t i = 0; i < (*experiment)->table_count; i++) {
            const struct table *table = &(*experiment)->tables[i];
            if (has_columns(file, table) && (!best || table->column_count > best->column_count))
                best = table;
        }
    return best;
}

static bool is_key_of(const struct table *table, const char *name)
{
    for (size_t i = 0; table && i < table->column_count; i++)
        if (table->columns[i].key && strcmp(table->columns[i].name, name) == 0)
            return true;
    return table && table->common && strcmp(name, "model") == 0;
}

static bool values_meet(const struct csv_table *a, const struct csv_table *b, const struct compare_column *column)
{
    for (size_t i = 0; i < a->row_count; i++)
        for (size_t k = 0; k < b->row_count; k++)
            if (same_value(a->cells[i][column->a], b->cells[k][column->b]))
                return true;
    return false;
}

static bool has_key(const struct comparison *c, const char *name)
{
    for (size_t i = 0; i < c->key_count; i++)
        if (strcmp(c->keys[i].name, name) == 0)
            return true;
    return false;
}

static void add_key(struct comparison *c, const char *name)
{
    struct compare_column column = {name, csv_table_column(c->a, name), csv_table_column(c->b, name), 1};
    if (column.a < 0 || column.b < 0 || has_key(c, name))
        return;
    if (values_meet(c->a, c->b, &column)) {
        c->keys[c->key_count++] = column;
        return;
    }
    size_t used = strlen(c->dropped);
    snprintf(c->dropped + used, sizeof c->dropped - used, "%s%s", used ? ", " : "", name);
}

static bool same_row(const struct comparison *c, const struct csv_table *x, size_t row_x, const struct csv_table *y,
                     size_t row_y)
{
    for (size_t i = 0; i < c->key_count; i++) {
        int column_x = x == c->a ? c->keys[i].a : c->keys[i].b, column_y = y == c->a ? c->keys[i].a : c->keys[i].b;
        if (!same_value(x->cells[row_x][column_x], y->cells[row_y][column_y]))
            return false;
    }
    return true;
}

static bool tells_apart(const struct comparison *c, const struct csv_table *table)
{
    for (size_t i = 0; i < table->row_count; i++)
        for (size_t k = i + 1; k < table->row_count; k++)
            if (same_row(c, table, i, table, k))
                return false;
    return true;
}

static void choose_keys(struct comparison *c)
{
    const struct table *table_a = table_of(c->a), *table_b = table_of(c->b);
    for (size_t i = 0; i < c->a->column_count; i++)
        if (is_key_of(table_a, c->a->columns[i]) || is_key_of(table_b, c->a->columns[i]))
            add_key(c, c->a->columns[i]);
    for (size_t i = 0; c->key_count == 0 && i < c->a->column_count; i++) /* no experiment: by name */
        for (size_t k = 0; k < c->a->column_count; k++)
            if (IN(key_names, c->a->columns[k]))
                add_key(c, c->a->columns[k]);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < c->a->column_count && !(tells_apart(c, c->a) && tells_apart(c, c->b)); i++) {
            const char *name = c->a->columns[i];
            int b = csv_table_column(c->b, name);
            bool last = IN(last_keys, name), text = b >= 0 && (contents(c->a, (int)i) | contents(c->b, b)) & HAS_TEXT;
            if (text && !IN(never_keys, name) && last == (round == 1))
                add_key(c, name);
        }
}

/* ---- rows and numbers -------------------------------------------------------------------------------------------- */

/* The n-th row of a key is the n-th of the same key in the other file. */
static void match_rows(struct comparison *c)
{
    bool *taken = calloc(c->b->row_count + 1, sizeof *taken);
    for (size_t a = 0; taken && a < c->a->row_count; a++) {
        size_t b = 0;
        while (b < c->b->row_count && (taken[b] || !same_row(c, c->a, a, c->b, b)))
            b++;
        bool found = b < c->b->row_count;
        taken[b] |= found;
        c->common += found;
        c->pairs[c->pair_count++] = (struct compare_pair){a, found ? b : COMPARE_NONE};
    }
    for (size_t b = 0; taken && b < c->b->row_count; b++)
        if (!taken[b])
            c->pairs[c->pair_count++] = (struct compare_pair){COMPARE_NONE, b};
    free(taken);
}

/* The column of b that is this one of a: of the same name, else of the same but for the unit, unless a has that too. */
static struct compare_column same_column(const struct comparison *c, size_t index)
{
    const char *name = c->a->columns[index];
    struct compare_column column = {name, (int)index, csv_table_column(c->b, name), 1};
    for (size_t i = 0; column.b < 0 && i < c->b->column_count; i++) {
        double ratio = compare_unit_ratio(name, c->b->columns[i]);
        if (ratio > 0 && csv_table_column(c->a, c->b->columns[i]) < 0) {
            column.b = (int)i;
            column.scale = ratio;
        }
    }
    return column;
}

static void choose_numbers(struct comparison *c)
{
    const struct csv_table *a = c->a, *b = c->b;
    for (size_t i = 0; i < c->a->column_count; i++) {
        struct compare_column column = same_column(c, i);
        if (column.b >= 0 && !has_key(c, column.name) &&
            (contents(a, column.a) | contents(b, column.b)) == HAS_NUMBERS) /* empty in one of them: shown as such */
            c->numbers[c->number_count++] = column;
    }
}

enum status compare_tables(struct comparison *c, const struct csv_table *a, const struct csv_table *b,
                           struct error *error)
{
    *c = (struct comparison){.a = a, .b = b};
    if (a->row_count > MAX_ROWS || b->row_count > MAX_ROWS)
        return error_set(error, STATUS_INPUT, "compare: more than %d rows; result files have fewer", MAX_ROWS);
    c->keys = calloc(a->column_count + 1, sizeof *c->keys);
    c->numbers = calloc(a->column_count + 1, sizeof *c->numbers);
    c->pairs = calloc(a->row_count + b->row_count + 1, sizeof *c->pairs);
    if (!c->keys || !c->numbers || !c->pairs) {
        compare_free(c);
        return error_set(error, STATUS_DEVICE, "compare: out of memory");
    }
    choose_keys(c);
    if (c->key_count)
        match_rows(c);
    choose_numbers(c);
    enum status status = STATUS_OK;
    if (c->key_count == 0)
        status = error_set(error, STATUS_INPUT,
                           "compare: %s%s; the files need a column of the same name that says what a "
                           "row is, as context, batch or model",
                           c->dropped[0] ? "no value in common in " : "no key column in common", c->dropped);
    else if (c->common == 0)
        status = error_set(error, STATUS_INPUT, "compare: no row of one file is in the other by %s%s", c->keys[0].name,
                           c->key_count > 1 ? " and the other keys" : "");
    else if (c->number_count == 0)
        status = error_set(error, STATUS_INPUT, "compare: the files have no column of numbers in common besides %s%s",
                           c->keys[0].name, c->key_count > 1 ? " and other keys" : "");
    if (status)
        compare_free(c);
    return status;
}

void compare_free(struct comparison *comparison)
{
    free(comparison->keys);
    free(comparison->numbers);
    free(comparison->pairs);
    *comparison = (struct comparison){0};
}

const char *compare_row_name(char *text, size_t size, const struct comparison *c, const struct compare_pair *pair)
{
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < c->key_count && used < size; i++) {
        const char *value =
            pair->a != COMPARE_NONE ? c->a->cells[pair->a][c->keys[i].a] : c->b->cells[pair->b][c->keys[i].b];
        used += (size_t)snprintf(text + used, size - used, "%s%s=%s", i ? " " : "", c->keys[i].name, value);
    }
    return text;
}
