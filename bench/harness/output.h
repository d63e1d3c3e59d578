/* Inside the harness: how results lie on disk and reach stdout. Drivers use bench.h and results.h only. */
#ifndef KVLAB_BENCH_HARNESS_OUTPUT_H
#define KVLAB_BENCH_HARNESS_OUTPUT_H

#include "bench/harness/bench.h"

#include <stdio.h>
#include <sys/types.h>

/* ---- row_file.c: a file that replaces an older one whole, and then grows by whole pieces ------------------------ */
struct row_file {
    int descriptor;  /* -1: closed */
    char *path;      /* where it will lie */
    char *temporary; /* where it lies until row_file_put_in_place() */
    bool in_place;
    off_t end; /* bytes that are surely whole */
};

enum status row_file_create(struct row_file *file, const char *path, struct error *error);
/* Writes all of it or, on failure, nothing: what was half written is cut off again. */
enum status row_file_append(struct row_file *file, const char *text, size_t length, struct error *error);
enum status row_file_put_in_place(struct row_file *file, struct error *error);
/* A file not yet in place is removed, and the older one stays. Takes a closed file. */
void row_file_close(struct row_file *file);

/* Makes the folder, its parents too, and proves that a file of some length can be written there; `name` is the file
   that it will be. */
enum status folder_make_ready(const char *folder, const char *name, struct error *error);

/* ---- csv.c: one line of CSV, newline included; text is quoted where it must be. NULL cells are empty. The caller
   frees; NULL: out of memory. */
char *csv_line(const char *const *cells, const bool *is_text, size_t count, size_t *length);

/* ---- results.c ------------------------------------------------------------------------------------------------- */
struct results {
    struct bench *bench;
    const struct table *table;
    char name[128];                /* "slope_fit" */
    const struct column **columns; /* the common ones first */
    size_t column_count;
    char ***rows; /* [row][column]; NULL for an empty cell */
    size_t row_count, kept;
    char **current; /* the row being set */
    struct row_file file;
    char *meta_path;
    bool closed, complete, on_disk; /* on_disk: the CSV at its path is ours */
    struct results *next;           /* in the order of opening */
};

struct output {
    struct results *tables;
    FILE *samples;
    bool samples_begun; /* the header is written */
    char *notes[32];    /* reasons already said on stderr */
    size_t note_count;
    bool printed; /* something is on stdout already */
};

extern const struct column common_columns[]; /* model, device, dtype, weights */
enum { COMMON_COLUMNS = 4 };

enum status output_open(struct bench *bench, struct error *error);
/* Closes tables that the driver left open, brings every meta file up to date, prints what comes at the end. */
enum status output_finish(struct bench *bench, bool complete, struct error *error);
void output_free(struct bench *bench);
/* One line on stderr, beginning "kvlab: "; the same line is said once in a run. */
void output_note(struct bench *bench, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- print.c */
void print_table(const struct results *results, enum output_format format); /* not json */
void print_json(const struct output *output);
void print_separated(char *text, size_t size, const char *digits); /* "1234567.5" -> "1,234,567.5" */

/* ---- meta.c: <name>.meta.json */
enum status meta_open(struct bench *bench, struct error *error);
void meta_free(struct bench *bench);
enum status meta_write(const struct results *results, struct row_file *file,
                       struct error *error); /* not in place yet */
/* Were these rows made with the settings of this run? Status 2 says what differs. */
enum status meta_same_settings(const struct bench *bench, const char *meta_path, const char *csv_path,
                               struct error *error);

/* ---- progress.c: takes the line of a terminal away, so that another can be written */
void progress_clear(struct bench *bench);
void progress_free(struct bench *bench);

#endif
