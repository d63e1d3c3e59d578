/* What all experiment drivers share: the experiment's description, and the bench it runs on.

   A driver is one file that exports a `const struct experiment`; its run() reads as the experiment: predict, measure,
   write. Adding one touches its driver, its lab sheet bench/<name>.md, its plot plots/<name>.gp and one line of
   bench/registry.c. */
#ifndef KVLAB_BENCH_HARNESS_BENCH_H
#define KVLAB_BENCH_HARNESS_BENCH_H

#include "bench/harness/options.h"
#include "bench/harness/results.h"
#include "bench/harness/stats.h"
#include "engine/formula.h"
#include "engine/forward.h"

struct bench;

struct experiment {
    const char *name;          /* everywhere: bench/slope.c, results/slope.csv, kvlab run slope */
    const char *summary;       /* one line for `kvlab list` */
    bool needs_device;         /* false: arithmetic only, no device is opened */
    const char *default_model; /* on the CPU; "" if the experiment is about all models */
    uint64_t default_budget;   /* unless --budget gives one; 0: what the device has free */
    unsigned uses;             /* USES_*: options that not every experiment has; others are refused */
    /* Options of this experiment alone, with the driver's struct that they fill in, zeroed before (NULL: none). Values
       that are no lists must be the same for --resume; a list's values are expected to be keys of the rows. */
    const struct option_set *own;
    const struct table *tables; /* what it writes, for --explain and SCHEMA tests */
    size_t table_count;
    enum status (*run)(struct bench *bench, struct error *error);
};

extern const struct experiment *const experiments[];        /* bench/registry.c; NULL-terminated */
const struct experiment *experiment_find(const char *name); /* NULL if unknown */

/* A running experiment. Drivers read the fields and never write them. */
struct bench {
    const struct experiment *experiment;
    struct options options;
    struct config config;       /* of options.model or the experiment's default */
    char weights_dir[4096];     /* "" for synthetic weights */
    enum dtype dtype, kv_dtype; /* resolved */
    struct device *device;      /* NULL where the experiment needs none */
    struct ledger *ledger;
    int argc; /* the options as given, for the meta file */
    char **argv;
    struct meta *meta; /* what the driver adds to the meta file */
    struct progress *progress;
    struct output *output; /* open tables, what goes to stdout, the file of samples */
};

/* Runs an experiment from start to exit status: parse, open device and config, run, close, report. Prints errors.
   argc and argv are the options alone. Returns the process's exit status. */
int bench_main(const struct experiment *experiment, int argc, char **argv);

/* An experiment that asks for these has the option in its `uses`. */
/* The contexts to measure, ascending: the user's, or the given defaults (quick ones with --quick). */
const struct int_list *bench_contexts(struct bench *bench, const char *defaults, const char *quick);
const struct int_list *bench_batches(struct bench *bench, const char *defaults, const char *quick);
const struct int_list *bench_new_tokens(struct bench *bench, const char *defaults, const char *quick);
/* Status 2 where a context is under `least`: "--contexts: N is too short <for what>". */
enum status bench_check_contexts(const struct int_list *contexts, int64_t least, const char *for_what,
                                 struct error *error);
int bench_reps(const struct bench *bench, int defaults, int quick);
/* The same for a list among the experiment's own options. */
const struct int_list *bench_own_list(const struct bench *bench, struct int_list *list, const char *defaults,
                                      const char *quick);

/* What --dry-run prints: `count` rows, the columns known beforehand set by `predict` from the i-th setting of `of`. */
typedef void predict_row(const struct bench *bench, struct results *results, const void *of, size_t i);
enum status bench_predict_rows(const struct bench *bench, struct results *results, predict_row *predict, const void *of,
                               size_t count, struct error *error);

/* What a run will hold at its largest, beside weights and workspace. */
struct bench_need {
    uint64_t kv_bytes, logits_bytes;
    uint64_t other_weight_bytes, other_workspace_bytes; /* of another model, where two are open at once */
};

/* Loads the weights (synthetic, or from the folder) and makes the model ready for passes of up to `limits`; its stop
   flag is the bench's. First the whole plan (weights, workspace, need) is declared to the ledger and checked, so that
   what cannot fit fails at once (status 3) and says how much is needed and how much there is. Free with model_free().
 */
enum status bench_open_model(struct bench *bench, const struct model_limits *limits, const struct bench_need *need,
                             struct model *model, struct error *error);

/* A second model on the same bench, found as --model is: for the functions that take a bench for its model. All but the
   model and its types is shared, and nothing needs freeing. */
enum status bench_second_model(const struct bench *bench, const char *model, struct bench *second, struct error *error);

/* Synthetic token ids, seeded, uniform over the vocabulary; host [count], the caller frees. */
int32_t *bench_tokens(const struct bench *bench, int64_t count, uint64_t stream);

/* What the CSV's `weights` column says: "synthetic", or the name of the folder with the weights. */
const char *bench_weights_name(const struct bench *bench);

/* Set by Ctrl-C and SIGTERM. Drivers look at it between measurements; model_prefill() between chunks. */
bool bench_interrupted(void);
const volatile sig_atomic_t *bench_stop_flag(void);

/* Memory of this process as seen from outside (the `driver` source), or false with a reason where the machine gives
 * none. */
bool bench_driver_bytes(const struct bench *bench, uint64_t *bytes, const char **reason);

/* A checksum of tokens for timing rows: proves that what was timed is the same work (FNV-1a, 64 bits). */
uint64_t bench_checksum(const void *data, size_t bytes);

/* Ceilings measured in this run, close in time to what is held against them. Each goes into the meta file too. */
enum status bench_read_ceiling(struct bench *bench, double *gb_per_s, struct error *error); /* best of some passes */
enum status bench_copy_ceiling(struct bench *bench, double *gb_per_s, struct error *error); /* payload bytes */
/* The read ceiling in turn with repetitions of what is held against it, since what a machine reads may change from one
   minute to the next: a buffer that stays, opened when all other memory is taken. A sample is the best of a few passes,
   now; the ceiling is the median of the samples, as times are medians. The last one asked for goes into the meta file.
 */
struct bench_reader;
enum status bench_reader_open(struct bench *bench, struct bench_reader **reader, struct error *error);
enum status bench_reader_sample(struct bench_reader *reader, struct error *error);
double bench_reader_gbps(const struct bench_reader *reader); /* at least one sample */
void bench_reader_close(struct bench_reader *reader);        /* NULL: nothing */
/* Takes the workspace of the device for itself: before bench_open_model(), or after model_free(). */
enum status bench_matrix_ceiling(struct bench *bench, enum dtype dtype, double *tflop_per_s, struct error *error);

/* One line on stderr, beginning "kvlab: ", kept in the meta files; the same line is said once in a run. */
void output_note(struct bench *bench, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- notes for <name>.meta.json */
void meta_text(struct bench *bench, const char *key, const char *value);
void meta_real(struct bench *bench, const char *key, double value);
void meta_int(struct bench *bench, const char *key, int64_t value);
/* What this process has in huge pages, the most of all calls; nothing where the system does not say, nor of a GPU's
   run, whose memory that matters is not the process's. Called by results_end_row() and timed_batch_free(), when models
   and caches are still there. */
void meta_huge_pages(struct bench *bench);

/* ---- progress on stderr: a line with an estimate of the time left on a terminal, plain lines when piped.
   A step is announced as it begins; `weight` is its relative work, and total the sum over the steps. */
void progress_start(struct bench *bench, double total_weight);
void progress_step(struct bench *bench, double weight, const char *format, ...) __attribute__((format(printf, 3, 4)));
void progress_end(struct bench *bench);

/* ---- raw samples (--samples FILE): experiment, setting ("context=512;batch=1"), repetition, value, unit. */
enum status samples_add(struct bench *bench, const char *setting, int repetition, double value, const char *unit,
                        struct error *error);

#endif
