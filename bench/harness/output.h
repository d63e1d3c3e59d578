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
enum status row_file_check_target(const char *path, struct error *error);    /* status 2: no file could be put there */
enum status row_file_make_ready(struct row_file *file, struct error *error); /* all but the renaming of: */
enum status row_file_put_in_place(struct row_file *file, struct error *error);
/* Status 2 where another file, or none, is now at the path of a file that was put in place. */
enum status row_file_check(const struct row_file *file, struct error *error);
/* An existing or new file, in place from the start, that nothing is written to yet; `end` is after its last whole line.
   row_file_cut() takes away what comes after `end`. */
enum status row_file_open(struct row_file *file, const char *path, bool *made, struct error *error);
enum status row_file_cut(struct row_file *file, off_t end, struct error *error);
/* A file not yet in place is removed, and the older one stays. Takes a closed file. */
void row_file_close(struct row_file *file);

/* ---- folder.c: makes the folder, its parents too; takes its lock for this experiment (status 2 where another run has
   it); removes temporaries that a killed run left; and proves that a file of some length can be written there. */
struct output;
enum status folder_make_ready(struct output *output, const struct experiment *experiment, const char *folder,
                              struct error *error);
void folder_release(struct output *output);

/* ---- csv.c: one line of CSV, newline included; text is quoted where it must be. NULL cells are empty. The caller
   frees; NULL: out of memory. */
char *csv_line(const char *const *cells, const bool *is_text, size_t count, size_t *length);

/* ---- results.c, results_files.c --------------------------------------------------------------------------------- */
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
    bool closed, complete, printed;
    bool on_disk;         /* the CSV at its path is ours */
    struct results *next; /* in the order of opening */
};

/* ---- samples.c: the file of --samples */
struct samples {
    struct row_file file;
    bool open, made, begun; /* made: it was not there before; begun: the header is written */
};
enum status samples_open(struct bench *bench, struct error *error);
void samples_close(struct samples *samples);

struct output {
    struct results *tables;
    int lock; /* the folder's, of this experiment; -1: not held */
    char *lock_path;
    struct samples samples;
    char *notes[32]; /* reasons already said on stderr */
    size_t note_count;
    bool printed; /* something is on stdout already */
};

extern const struct column common_columns[]; /* model, device, dtype, weights */
enum { COMMON_COLUMNS = 4 };

enum status results_no_memory(const struct results *results, struct error *error);
/* Takes over results->current as the next row. */
enum status results_keep_row(struct results *results, struct error *error);
void results_set_common(struct results *results);
/* The file of a new table: with the rows that --resume keeps, under a name of its own until the first new row. */
enum status results_open_files(struct results *results, struct error *error);
/* Appends results->current; the first row of a run puts the CSV and its meta file in place of the older ones. */
enum status results_write_row(struct results *results, struct error *error);
/* Brings the meta file up to date. Status 2 if the CSV is no longer there. */
enum status results_rewrite_meta(struct results *results, struct error *error);

enum status output_open(struct bench *bench, struct error *error);
/* Closes tables that the driver left open, brings every meta file up to date, prints what comes at the end. */
enum status output_finish(struct bench *bench, bool complete, struct error *error);
/* What stdout gets of all tables, in the order of their opening; what was printed before is not repeated. */
void output_print(struct bench *bench);
void output_free(struct bench *bench);

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

/* ---- model_hash.c: by the fields of the config, and by name, length and time of each file of weights in the folder */
uint64_t model_config_hash(const struct config *config);
uint64_t model_weights_hash(const char *folder);

/* ---- progress.c: takes the line of a terminal away, so that another can be written */
void progress_clear(struct bench *bench);
void progress_free(struct bench *bench);

#endif
