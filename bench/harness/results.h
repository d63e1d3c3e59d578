/* Result files: one CSV per table, flushed row by row, and <name>.meta.json beside it.

   - A file replaces an older one only once its first row is safely written; each later row is appended and flushed
   whole, or (disk full) taken back, so that what is on disk always parses.
   - One run at a time writes an experiment's files in a folder. Should something else take them away, the run fails.
   - A missing value is an empty cell, and one line on stderr says why.
   - With --dry-run nothing is written; rows go to the terminal only.
   - A table with a suffix ("_fit") is worked out from the main one, and an experiment without a device from the config
   alone: --resume makes them anew, and keeps no rows of them. */
#ifndef KVLAB_BENCH_HARNESS_RESULTS_H
#define KVLAB_BENCH_HARNESS_RESULTS_H

#include "bench/harness/options.h"

struct bench;
struct results;

enum column_kind { COLUMN_TEXT, COLUMN_INT, COLUMN_REAL };

struct column {
    const char *name; /* as in the CSV; carries its unit */
    enum column_kind kind;
    int decimals;        /* COLUMN_REAL: digits after the point, in CSV and in print */
    bool key;            /* part of what identifies a row (--resume) */
    const char *explain; /* what it means and how it was taken, one or two sentences (--explain) */
};

/* A table that an experiment writes: file <experiment><suffix>.csv. */
struct table {
    const char *suffix; /* "" or "_fit", "_summary" */
    bool common;        /* starts with model,device,dtype,weights */
    const struct column *columns;
    size_t column_count;
};

/* Opens a table of the running experiment. With --resume, rows of an existing file that was made with the same settings
   are kept, each checked cell by cell. Status 2 if the folder cannot be written, or an existing file does not match on
   --resume. */
enum status results_open(struct results **results, struct bench *bench, const struct table *table, struct error *error);
/* The rows are for a plot: they go to the file, and to stdout only as JSON. */
void results_file_only(struct results *results);
/* No more rows: brings the meta file up to date. Takes NULL. stdout gets the table, as --format says, once the files of
   all tables are written. `complete` false: the run was interrupted. Tables that a driver leaves open, because
   something failed, are closed as incomplete when its run() has returned. */
enum status results_close(struct results *results, bool complete, struct error *error);

/* One row: set every column, in any order, then end it. A column that is not set is an empty cell. Setting an unknown
   column is our mistake (assertion). */
void results_set_text(struct results *results, const char *column, const char *value);
void results_set_int(struct results *results, const char *column, int64_t value);
void results_set_real(struct results *results, const char *column, double value);
/* A share of a measured ceiling. Over 100 % the ceiling is wrong, not the share better: said on stderr and in the meta.
 */
void results_set_ceiling_percent(struct results *results, const char *column, double percent);
void results_set_missing(struct results *results, const char *column, const char *reason); /* said once per reason */
enum status results_end_row(struct results *results, struct error *error);

/* Rows so far, those kept by --resume included. */
size_t results_rows(const struct results *results);
double results_real(const struct results *results, size_t row, const char *column); /* NaN for an empty cell */
const char *results_text(const struct results *results, size_t row, const char *column);

/* Does a row with these key values exist already (--resume)? Keys not mentioned are not compared:
   results_has(r, (struct key[]){{"context", 512}}, 1). */
struct key {
    const char *column;
    int64_t value;
};
bool results_has(const struct results *results, const struct key *keys, size_t count);

/* ---- reading any CSV back */
struct csv_table {
    char **columns;
    size_t column_count, row_count;
    char ***cells; /* [row][column], "" for empty */
};
/* Status 2: unreadable, no header, or a row with another number of cells than the header. */
enum status csv_table_read(struct csv_table *table, const char *path, struct error *error);
void csv_table_free(struct csv_table *table);                          /* takes a zeroed struct */
int csv_table_column(const struct csv_table *table, const char *name); /* -1 if absent */

#endif
