/* The options that every experiment shares, parsed from one table that also prints --help. */
#ifndef KVLAB_BENCH_HARNESS_OPTIONS_H
#define KVLAB_BENCH_HARNESS_OPTIONS_H

#include "engine/kv_cache.h"

enum output_format { FORMAT_TABLE, FORMAT_CSV, FORMAT_JSON, FORMAT_MD };

/* A list as users give it: "512,1024", "512-8192*2" (geometric), "128-1024+128" (arithmetic), and mixtures. */
struct int_list {
    int64_t *values;
    size_t count;
};
/* Values must lie in [minimum, maximum]; status 2 names `option` and the offending piece. Free with int_list_free(). */
enum status int_list_parse(struct int_list *list, const char *text, const char *option, int64_t minimum,
                           int64_t maximum, struct error *error);
void int_list_free(struct int_list *list);
int64_t int_list_max(const struct int_list *list); /* of at least one value */
int64_t int_list_sum(const struct int_list *list);

/* Bytes: a plain number, or with a unit: 12GB (10^9), 12GiB (2^30), also kB/KiB, MB/MiB, TB/TiB; a fraction is allowed
   before a unit ("1.5GiB"). */
enum status bytes_parse(uint64_t *bytes, const char *text, const char *option, struct error *error);

/* What the user gave. `has_*`/NULL/0 mean "not given": the experiment's own default applies. */
struct options {
    const char *model;  /* --model    name in data/models, folder, or config file */
    const char *device; /* --device   cpu, cuda, cuda:N, auto */
    bool has_dtype, has_kv_dtype;
    enum dtype dtype;           /* --dtype    f32, f16, bf16 */
    enum dtype kv_dtype;        /* --kv-dtype the cache's type; the working type unless given */
    struct int_list contexts;   /* --contexts */
    struct int_list batch;      /* --batch */
    struct int_list new_tokens; /* --new-tokens (cache) */
    int reps;                   /* --reps     0: the experiment's default */
    int threads;                /* --threads  0: all */
    int graphs_off;             /* --graphs   0 on, 1 off */
    uint64_t seed;              /* --seed     1 unless given */
    uint64_t budget_bytes;      /* --budget 0: what the device has free */
    const char *out;            /* --out      results folder, "results" unless given */
    bool quick, resume, dry_run;
    const char *samples;       /* --samples  file for raw samples, or NULL */
    enum output_format format; /* --format table (default), csv, json, md */
    const char *explain;       /* --explain  a column's name */
    bool help;
};

/* Options that only some experiments have. */
enum { USES_CONTEXTS = 1, USES_BATCH = 2, USES_NEW_TOKENS = 4, USES_REPS = 8, USES_SAMPLES = 16, USES_ALL = 31 };

struct option_set; /* bench/harness/option_table.h: the options of one experiment alone; NULL for none */

/* Parses argv[0 .. argc) (options only, no command word). Status 2 for an unknown option, a missing or bad value. */
enum status options_parse(struct options *options, const struct option_set *own, int argc, char **argv,
                          struct error *error);
void options_free(struct options *options);
/* The table, on stdout, without options that are not used. */
void options_print_help(unsigned uses, const struct option_set *own);
/* Status 2 if an option was given that is not in `uses`: it would have no effect. */
enum status options_check_used(const struct options *options, unsigned uses, const char *experiment,
                               struct error *error);

#endif
