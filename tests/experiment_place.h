/* A folder of its own to run experiments in, with a small model, and what they write there read back: the real binary,
   as a user runs it. */
#ifndef KVLAB_TESTS_EXPERIMENT_PLACE_H
#define KVLAB_TESTS_EXPERIMENT_PLACE_H

#include "bench/harness/bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The model that place_make() writes: 2 layers, 4 query heads and 2 KV heads of 8, hidden 32, intermediate 64,
   vocabulary 64, tied head, q, k and v with biases, f32.
     a layer     32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 64 + 2 * 32 + (32 + 2 * 16) = 9,344 parameters
     parameters  2 * 9,344 + 64 * 32 + 32 = 20,768, so 83,072 bytes of weights
     KV          2 * 2 * 2 * 8 * 4 = 256 bytes a token
     logits      64 * 4 = 256 bytes a position */
enum { PLACE_WEIGHT_BYTES = 83072, PLACE_LAYER_BYTES = 4 * 9344, PLACE_KV_BYTES = 256, PLACE_LOGITS_BYTES = 256 };

/* cmocka group setup and teardown. */
int place_make(void **state);
int place_remove(void **state);

/* The folder: models and results lie in it. A file of it, whole; the caller frees. */
const char *place_folder(void);
char *place_file(const char *name);
/* Makes <folder>/<name>/config.json, another model for `--model <folder>/<name>`. */
void place_model(const char *name, const char *config);

/* Runs `kvlab run <line> --model <the small one> --device cpu --out <folder>` (another model if the line names one) and
   fails unless it ends with `status`. Returns what it wrote to stderr, until the next call. */
const char *place_run(const char *line, int status);

/* results/<name>.csv as the last run left it; fails if it does not parse. Free with csv_table_free(). */
struct csv_table place_csv(const char *name);
/* The whole of <name>.meta.json; the caller frees. */
char *place_meta(const char *name);

/* A cell; fails on an unknown column. place_int() and place_real() fail on an empty one too. */
const char *place_text(const struct csv_table *table, size_t row, const char *column);
int64_t place_int(const struct csv_table *table, size_t row, const char *column);
double place_real(const struct csv_table *table, size_t row, const char *column);

/* Changes a cell of <name>.csv, in a file that stays whole: what --resume will then take for measured. */
void place_set(const char *name, size_t row, const char *column, const char *value);

/* Fails unless |a - b| <= tolerance. */
void place_assert_near(double a, double b, double tolerance, const char *what);

/* The header begins with model, device, dtype, weights, and then `columns` ("a,b,c"), as the schema of results says. */
void place_assert_columns(const struct csv_table *table, const char *columns);

#endif
