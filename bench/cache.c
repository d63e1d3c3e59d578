/* cache: what does generating without a KV cache cost?

   Predicted: with a cache P + N - 1 positions go through the model, without one the sum of P .. P + N - 1; so many
   times the work, and less than that in time, because a step that recomputes many positions uses the machine better.
   Measured: both ways of generating, alternating, with the positions counted as they pass through. */
#include "bench/harness/bench.h"
#include "engine/generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_TOKENS = 128, QUICK_PROMPT_TOKENS = 16 };
static const double enough_s = 60; /* a row is not repeated beyond this: a long run averages over its own steps */

static const struct column columns[] = {
    {"prompt_tokens", COLUMN_INT, 0, true, "Tokens of the prompt."},
    {"new_tokens", COLUMN_INT, 0, true, "Tokens generated, greedily."},
    {"cached_s", COLUMN_REAL, 3, false, "Seconds from the prompt to the last token with the cache; median of n runs."},
    {"uncached_s", COLUMN_REAL, 3, false,
     "The same without: every step passes the whole sequence through the model again; median of n runs."},
    {"time_ratio", COLUMN_REAL, 2, false, "uncached_s / cached_s."},
    {"cached_positions", COLUMN_INT, 0, false, "Positions that really went through the model with the cache, counted."},
    {"uncached_positions", COLUMN_INT, 0, false, "The same without the cache, counted."},
    {"work_ratio", COLUMN_REAL, 2, false, "uncached_positions / cached_positions."},
    {"cached_formula_positions", COLUMN_INT, 0, false, "Source formula: P + N - 1."},
    {"uncached_formula_positions", COLUMN_INT, 0, false, "Source formula: N * P + N * (N - 1) / 2."},
    {"n", COLUMN_INT, 0, false,
     "Runs of each kind, in turn, after an untimed one: --reps, else 3, or fewer once a row has taken a minute."},
    {"cached_min_s", COLUMN_REAL, 3, false, "Fastest of the n runs with the cache."},
    {"cached_max_s", COLUMN_REAL, 3, false, "Slowest of them."},
    {"uncached_min_s", COLUMN_REAL, 3, false, "Fastest of the n runs without."},
    {"uncached_max_s", COLUMN_REAL, 3, false, "Slowest of them."},
    {"equal_tokens", COLUMN_INT, 0, false,
     "Leading tokens on which both agree. All of them in f32; in 16-bit types sums in another order may tip a near "
     "tie."},
    {"cached_checksum", COLUMN_TEXT, 0, false, "FNV-1a of the tokens that the cached runs produced."},
    {"uncached_checksum", COLUMN_TEXT, 0, false, "FNV-1a of the tokens that the uncached runs produced."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

/* The two ways, with what their runs gave. */
enum { CACHED, UNCACHED, WAYS };
struct way {
    double *seconds; /* [n] */
    int32_t *tokens; /* [new_tokens] of the last run */
    uint64_t positions, checksum;
};

static int prompt_tokens(const struct bench *bench)
{
    return bench->options.quick ? QUICK_PROMPT_TOKENS : PROMPT_TOKENS;
}

static void predict(const struct bench *bench, struct results *results, int64_t new_tokens)
{
    int64_t prompt = prompt_tokens(bench);
    results_set_int(results, "prompt_tokens", prompt);
    results_set_int(results, "new_tokens", new_tokens);
    results_set_int(results, "cached_formula_positions", (int64_t)formula_positions_cached(prompt, new_tokens));
    results_set_int(results, "uncached_formula_positions", (int64_t)formula_positions_uncached(prompt, new_tokens));
}

/* Positions that a run passes through the model: its relative work. */
static double run_work(const struct bench *bench, int way, int64_t new_tokens)
{
    return (double)(way == CACHED ? formula_positions_cached(prompt_tokens(bench), new_tokens)
                                  : formula_positions_uncached(prompt_tokens(bench), new_tokens));
}

/* What every run works with: one sequence, opened once, so that its memory is resident before the first timed run. */
struct subject {
    struct bench *bench;
    struct model model;
    struct kv_cache *cache;
    int sequence;
    int32_t *prompt; /* host [prompt_tokens] */
};

static enum status generate_once(struct subject *subject, bool use_cache, int new_tokens, int32_t *tokens,
                                 struct generate_result *result, struct error *error)
{
    struct generate_options options = {.new_tokens = new_tokens, .use_cache = use_cache, .stop_token = -1};
    if (kv_truncate(subject->cache, subject->sequence, 0, error) != STATUS_OK)
        return error->status;
    return generate(&subject->model, subject->cache, subject->sequence, subject->prompt, prompt_tokens(subject->bench),
                    &options, tokens, result, error);
}

/* A timed run; it must produce the tokens of the run before it in the same way. */
static enum status timed_run(struct subject *subject, struct way *way, bool use_cache, int new_tokens, int repetition,
                             struct error *error)
{
    struct generate_result result = {0};
    if (generate_once(subject, use_cache, new_tokens, way->tokens, &result, error) != STATUS_OK)
        return error->status;
    uint64_t checksum = bench_checksum(way->tokens, (size_t)new_tokens * sizeof *way->tokens);
    if (repetition > 0 && checksum != way->checksum)
        return error_set(error, STATUS_CHECK_FAILED,
                         "cache: run %d of %d new tokens with the cache %s gave other tokens than the run before it",
                         repetition + 1, new_tokens, use_cache ? "on" : "off");
    way->checksum = checksum;
    way->seconds[repetition] = (result.prefill_ms + result.decode_ms) / 1e3;
    way->positions = result.positions;
    char setting[64];
    snprintf(setting, sizeof setting, "new_tokens=%d;cache=%s", new_tokens, use_cache ? "on" : "off");
    return samples_add(subject->bench, setting, repetition, way->seconds[repetition], "s", error);
}

static void record_way(struct results *results, const char *name, const struct way *way, int reps)
{
    char column[64], checksum[32];
    snprintf(column, sizeof column, "%s_s", name);
    results_set_real(results, column, stats_median(way->seconds, (size_t)reps));
    snprintf(column, sizeof column, "%s_min_s", name);
    results_set_real(results, column, stats_quantile(way->seconds, (size_t)reps, 0.0));
    snprintf(column, sizeof column, "%s_max_s", name);
    results_set_real(results, column, stats_quantile(way->seconds, (size_t)reps, 1.0));
    snprintf(column, sizeof column, "%s_positions", name);
    results_set_int(results, column, (int64_t)way->positions);
    snprintf(column, sizeof column, "%s_checksum", name);
    snprintf(checksum, sizeof checksum, "%016" PRIx64, way->checksum);
    results_set_text(results, column, checksum);
}

/* Seconds that the first `turns` turns of a row took together. */
static double spent_s(const struct way ways[WAYS], int turns)
{
    double sum = 0.0;
    for (int turn = 0; turn < turns; turn++)
        sum += ways[turn % WAYS].seconds[turn / WAYS];
    return sum;
}

static void record(struct results *results, const struct way ways[WAYS], int new_tokens, int reps)
{
    const struct way *cached = &ways[CACHED], *uncached = &ways[UNCACHED];
    int equal = 0;
    while (equal < new_tokens && cached->tokens[equal] == uncached->tokens[equal])
        equal++;
    record_way(results, "cached", cached, reps);
    record_way(results, "uncached", uncached, reps);
    results_set_real(results, "time_ratio",
                     stats_median(uncached->seconds, (size_t)reps) / stats_median(cached->seconds, (size_t)reps));
    results_set_real(results, "work_ratio", (double)uncached->positions / (double)cached->positions);
    results_set_int(results, "n", reps);
    results_set_int(results, "equal_tokens", equal);
}

static void ways_free(struct way ways[WAYS])
{
    for (int way = 0; way < WAYS; way++) {
        free(ways[way].seconds);
        free(ways[way].tokens);
    }
}

/* One row: both ways in turn, at most `reps` times. */
static enum status measure(struct subject *subject, struct results *results, int new_tokens, int reps,
                           struct error *error)
{
    struct bench *bench = subject->bench;
    struct way ways[WAYS] = {{0}, {0}};
    enum status status = STATUS_OK;
    for (int way = 0; way < WAYS; way++) {
        ways[way].seconds = calloc((size_t)reps, sizeof(double));
        ways[way].tokens = calloc((size_t)new_tokens, sizeof(int32_t));
        if (ways[way].seconds == NULL || ways[way].tokens == NULL)
            status = error_set(error, STATUS_DEVICE, "cache: out of host memory");
    }
    int turn = 0;
    for (; turn < reps * WAYS && status == STATUS_OK; turn++) {
        int way = turn % WAYS;
        if (way == CACHED && bench->options.reps == 0 && spent_s(ways, turn) > enough_s)
            break;
        progress_step(bench, run_work(bench, way, new_tokens), "%d new tokens, cache %s, run %d of %d", new_tokens,
                      way == CACHED ? "on" : "off", turn / WAYS + 1, reps);
        status = timed_run(subject, &ways[way], way == CACHED, new_tokens, turn / WAYS, error);
    }
    if (status == STATUS_OK) {
        predict(bench, results, new_tokens);
        record(results, ways, new_tokens, turn / WAYS);
        status = results_end_row(results, error);
    }
    ways_free(ways);
    return status;
}

static bool measured(const struct bench *bench, const struct results *results, int64_t new_tokens)
{
    return results_has(results, (struct key[]){{"new_tokens", new_tokens}, {"prompt_tokens", prompt_tokens(bench)}}, 2);
}

/* Brings all memory of a run in, and what a matrix library sets up on first use: the longest run with the cache, the
   shortest without. */
static enum status warm_up(struct subject *subject, const struct int_list *new_tokens, struct error *error)
{
    int longest = (int)int_list_max(new_tokens), shortest = (int)new_tokens->values[0];
    struct generate_result result;
    int32_t *tokens = calloc((size_t)longest, sizeof *tokens);
    if (tokens == NULL)
        return error_set(error, STATUS_DEVICE, "cache: out of host memory");
    enum status status = generate_once(subject, true, longest, tokens, &result, error);
    if (status == STATUS_OK)
        status = generate_once(subject, false, shortest, tokens, &result, error);
    free(tokens);
    return status;
}

static enum status subject_init(struct subject *subject, int longest, struct error *error)
{
    struct bench *bench = subject->bench;
    struct kv_options options = {
        .policy = KV_RESERVED, .dtype = bench->kv_dtype, .max_sequences = 1, .max_tokens = longest};
    struct model_limits limits = {.max_rows = longest, .max_sequences = 1, .max_blocks = 1};
    struct bench_need need = {.kv_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, longest),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, 1)};
    subject->prompt = bench_tokens(bench, prompt_tokens(bench), 0);
    if (subject->prompt == NULL)
        return error_set(error, STATUS_DEVICE, "cache: out of host memory");
    if (bench_open_model(bench, &limits, &need, &subject->model, error) != STATUS_OK ||
        kv_open(&subject->cache, bench->ledger, &bench->config, &options, error) != STATUS_OK)
        return error->status;
    return kv_sequence_open(subject->cache, &subject->sequence, error);
}

static void subject_free(struct subject *subject)
{
    kv_close(subject->cache);
    model_free(&subject->model);
    free(subject->prompt);
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *new_tokens,
                               struct error *error)
{
    int reps = bench_reps(bench, 3, 3);
    struct subject subject = {.bench = bench};
    double work = 0.0;
    for (size_t i = 0; i < new_tokens->count; i++)
        for (int way = 0; way < WAYS && !measured(bench, results, new_tokens->values[i]); way++)
            work += reps * run_work(bench, way, new_tokens->values[i]);
    enum status status = STATUS_OK;
    if (work > 0.0)
        status = subject_init(&subject, prompt_tokens(bench) + (int)int_list_max(new_tokens), error);
    if (work > 0.0 && status == STATUS_OK)
        status = warm_up(&subject, new_tokens, error);
    progress_start(bench, work);
    for (size_t i = 0; i < new_tokens->count && status == STATUS_OK; i++)
        if (!measured(bench, results, new_tokens->values[i]))
            status = measure(&subject, results, (int)new_tokens->values[i], reps, error);
    progress_end(bench);
    subject_free(&subject);
    return status;
}

/* What was counted must be what the formula says, and in f32 both ways must produce the same tokens. */
static enum status check(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++) {
        if (results_real(results, row, "cached_positions") != results_real(results, row, "cached_formula_positions") ||
            results_real(results, row, "uncached_positions") !=
                results_real(results, row, "uncached_formula_positions"))
            return error_set(error, STATUS_CHECK_FAILED, "cache: the positions counted differ from the formula");
        if (strcmp(results_text(results, row, "dtype"), "f32") == 0 &&
            results_real(results, row, "equal_tokens") != results_real(results, row, "new_tokens"))
            return error_set(error, STATUS_CHECK_FAILED,
                             "cache: at %s new tokens in f32 the cache changes the tokens from number %s on",
                             results_text(results, row, "new_tokens"), results_text(results, row, "equal_tokens"));
    }
    return STATUS_OK;
}

static void predict_nth(const struct bench *bench, struct results *results, const void *new_tokens, size_t i)
{
    predict(bench, results, ((const struct int_list *)new_tokens)->values[i]);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    const struct int_list *new_tokens = bench_new_tokens(bench, "64-512*2", "8,16");
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, new_tokens, new_tokens->count, error);
    if (measure_all(bench, results, new_tokens, error) != STATUS_OK)
        return error->status;
    return check(results, error);
}

const struct experiment cache_experiment = {
    .name = "cache",
    .summary = "generating with the cache against without: work by counting, and time",
    .needs_device = true,
    .default_model = "smollm2-135m",
    .uses = USES_NEW_TOKENS | USES_REPS | USES_SAMPLES,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
