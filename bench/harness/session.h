/* Inside the harness and the commands: opening what a command works with, signals, help. */
#ifndef KVLAB_BENCH_HARNESS_SESSION_H
#define KVLAB_BENCH_HARNESS_SESSION_H

#include "bench/harness/bench.h"

/* ---- session.c: commands that are no experiment use a bench without one. A bench is zeroed first. */

/* Finds the config of `model`, and resolves the types: as --dtype and --kv-dtype say, else as the weights are stored.
 */
enum status session_find_model(struct bench *bench, const char *model, struct error *error);
enum status session_open_device(struct bench *bench, struct error *error); /* and its ledger */
void session_close_device(struct bench *bench);

/* The only place where a failure is printed: one line on stderr. Returns the exit status. */
int session_fail(const struct error *error);
/* Status 2 where stdout did not take all that was printed (a full disk, say). */
int session_flush_stdout(int exit_status);

/* ---- signals.c */
void signals_install(void);
/* After a clean end of an interrupted run: dies of the signal that came, so that a shell or make sees it. Returns
   where none came. */
void signals_raise_again(void);

/* ---- describe.c */
void describe_experiment(const struct experiment *experiment); /* its --help, on stdout */
enum status describe_column(const struct experiment *experiment, const char *column, struct error *error);

#endif
