/* Command-line options as a table: one list of rows drives both the parsing and --help. */
#ifndef KVLAB_BENCH_HARNESS_OPTION_TABLE_H
#define KVLAB_BENCH_HARNESS_OPTION_TABLE_H

#include "bench/harness/options.h"

enum option_kind {
    OPTION_FLAG,   /* bool; takes no argument */
    OPTION_TEXT,   /* const char *, pointing into argv */
    OPTION_INT,    /* int in [minimum, maximum] */
    OPTION_SEED,   /* uint64_t */
    OPTION_REAL,   /* float in [minimum, maximum] */
    OPTION_LIST,   /* struct int_list with values in [minimum, maximum] */
    OPTION_BYTES,  /* uint64_t, with or without a unit */
    OPTION_CHOICE, /* enum: the index into choices */
};

struct option_row {
    const char *name;     /* without the dashes; NULL ends a table */
    const char *argument; /* its name in --help, or NULL */
    enum option_kind kind;
    size_t offset;              /* of the field in the struct that is filled in */
    bool has_given;             /* another field, a bool, says that the option was given */
    size_t given_offset;        /* of that bool */
    int64_t minimum, maximum;   /* OPTION_INT, OPTION_REAL, OPTION_LIST */
    const char *const *choices; /* OPTION_CHOICE; NULL-terminated */
    const char *help;
    unsigned use; /* options.c: USES_*, or 0 where every experiment has it */
};

/* A table and the struct that its rows fill in. */
struct option_set {
    const struct option_row *rows;
    void *target;
};

/* Fills in the targets from options only (no command word, no other words); of rows with one name the first set's
   counts. Status 2 names the option and the value. */
enum status option_sets_parse(const struct option_set *sets, size_t count, int argc, char **argv, struct error *error);
enum status option_table_parse(const struct option_row *rows, void *target, int argc, char **argv, struct error *error);
/* Frees the lists among the fields, and sets all of them back to zero: for the next run. */
void option_set_free(const struct option_set *set);
/* The fields as text, "slots=8 timeline=true", lists left out: two runs with the same text have the same settings. */
void option_set_text(const struct option_set *set, char *text, size_t size);
void option_table_help(const struct option_row *rows); /* on stdout */

/* Whole numbers in plain decimal, nothing before or after them. */
enum status int_parse(int64_t *value, const char *text, const char *option, int64_t minimum, int64_t maximum,
                      struct error *error);

extern const char *const dtype_choices[], *const kv_dtype_choices[]; /* in the order of enum dtype */

#endif
