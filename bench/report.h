/* Commands that read files and report in one table, without being an experiment: audit, read-log, compare. */
#ifndef KVLAB_BENCH_REPORT_H
#define KVLAB_BENCH_REPORT_H

#include "bench/harness/option_table.h"
#include "bench/harness/output.h"

/* Takes the words that are neither options nor values of options out of argv: FILE may stand before or after them. Up
   to `count` go into `words`; *found says how many there were, *help that --help was among the options. Status 2: an
   option that `rows` do not have. */
enum status report_take_words(const char **words, int count, int *found, const struct option_row *rows, int *argc,
                              char **argv, bool *help, struct error *error);
/* The same; status 2 where there are not exactly `count`, unless --help is asked for. `names` says what they are
   ("FILE.csv"). */
enum status report_words(const char **words, int count, const char *names, const struct option_row *rows, int *argc,
                         char **argv, struct error *error);

/* A bench with an open table, as experiments have it: results/<name>.csv and its meta file. Zeroed first; takes `out`
   and `format` of bench->options. With dry_run set it writes no file. */
enum status report_open(struct bench *bench, const struct experiment *what, struct results **results,
                        struct error *error);

/* Closes it and prints: as --format says, and for people the named columns alone (a NULL-terminated list), the last of
   them without padding. Takes a bench that was never opened. */
enum status report_close(struct bench *bench, struct results *results, const char *const *columns, struct error *error);
void report_free(struct bench *bench);

#endif
