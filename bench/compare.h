/* Two result files side by side: which columns say what a row is, which rows are the same, which numbers both have. */
#ifndef KVLAB_BENCH_COMPARE_H
#define KVLAB_BENCH_COMPARE_H

#include "bench/harness/bench.h"

struct compare_column {
    const char *name;
    int a, b;     /* its index in each file */
    double scale; /* b's numbers times this are in a's unit; 1 where both have the same */
};

struct compare_pair {
    size_t a, b; /* rows; COMPARE_NONE where a file has none */
};
#define COMPARE_NONE SIZE_MAX

struct comparison {
    const struct csv_table *a, *b;
    struct compare_column *keys, *numbers;
    size_t key_count, number_count;
    char dropped[256];          /* keys with no value in common ("model"), left out of the match; "" */
    struct compare_pair *pairs; /* in the order of a, then what only b has */
    size_t pair_count, common;  /* common: pairs with both rows */
};

/* Status 2: no column of both that says what a row is, no row of one in the other, or no number that both have. Keys
   are those of the experiment whose columns one of the files has, else columns named as experiments name theirs; where
   they do not tell rows apart, other columns of text are added. `a` and `b` must outlive the comparison. */
enum status compare_tables(struct comparison *comparison, const struct csv_table *a, const struct csv_table *b,
                           struct error *error);
void compare_free(struct comparison *comparison);

/* The row as "context=512 batch=1", of the pair's a where it has one. */
const char *compare_row_name(char *text, size_t size, const struct comparison *comparison,
                             const struct compare_pair *pair);

/* ---- compare_units.c: what a number of column `b` is in the unit of column `a`: 1e6 for x_bytes and x_mb, 1 for the
   same name, 0 where they are not the same but for the unit. */
double compare_unit_ratio(const char *a, const char *b);

/* ---- compare_names.c: gives a table that was read from `path` the names and cells that results have, as names.csv in
   its folder says, if there is one. */
enum status compare_names(struct csv_table *table, const char *path, struct error *error);

/* A cell as a number; false where it is empty or none. */
bool compare_number(double *number, const char *cell);

#endif
