/* cache: what does generating without a KV cache cost?

   Predicted: with a cache P + N - 1 positions go through the model, without one the sum of P .. P + N - 1; so many
   times the work, and less than that in time, because a step that recomputes many positions uses the machine better.
   Measured: both ways of generating, alternating, with the positions counted as they pass through. */
#include "bench/harness/bench.h"
#include "engine/generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT_TOKENS = 128, QUICK_PROMPT_TOKENS = 16 };

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
    {"n", COLUMN_INT, 0, false, "Runs of each kind, in turn."},
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

static enum status generate_once(struct bench *bench, struct model *model, struct kv_cache *cache, struct way *way,
                                 bool use_cache, int new_tokens, int repetition, struct error *error)
{
    struct generate_options options = {.new_tokens = new_tokens, .use_cache = use_cache, .stop_token = -1};
    struct generate_result result;
    int sequence;
    int32_t *prompt = bench_tokens(bench, prompt_tokens(bench), 0);
    if (prompt == NULL)
        return error_set(error, STATUS_DEVICE, "cache: out of host memory");
    enum status status = kv_sequence_open(cache, &sequence, error);
    if (status == STATUS_OK) {
        status = generate(model, cache, sequence, prompt, prompt_tokens(bench), &options, way->tokens, &result, error);
        kv_sequence_close(cache, sequence);
    }
    free(prompt);
    if (status != STATUS_OK)
        return status;
    way->seconds[repetition] = (result.prefill_ms + result.decode_ms) / 1e3;
    way->positions = result.positions;
    way->checksum = bench_checksum(way->tokens, (size_t)new_tokens * sizeof *way->tokens);
    char setting[64];
    snprintf(setting, sizeof setting, "new_tokens=%d;cache=%s", new_tokens, use_cache ? "on" : "off");
    return samples_add(bench, setting, repetition, way->seconds[repetition], "s", error);
}

static void record(struct results *results, const struct way ways[WAYS], int new_tokens, int reps)
{
    double cached = stats_median(ways[CACHED].seconds, (size_t)reps);
    double uncached = stats_median(ways[UNCACHED].seconds, (size_t)reps);
    char checksum[32];
    int equal = 0;
    while (equal < new_tokens && ways[CACHED].tokens[equal] == ways[UNCACHED].tokens[equal])
        equal++;
    results_set_real(results, "cached_s", cached);
    results_set_real(results, "uncached_s", uncached);
    results_set_real(results, "time_ratio", uncached / cached);
    results_set_int(results, "cached_positions", (int64_t)ways[CACHED].positions);
    results_set_int(results, "uncached_positions", (int64_t)ways[UNCACHED].positions);
    results_set_real(results, "work_ratio", (double)ways[UNCACHED].positions / (double)ways[CACHED].positions);
    results_set_int(results, "n", reps);
    results_set_int(results, "equal_tokens", equal);
    snprintf(checksum, sizeof checksum, "%016" PRIx64, ways[CACHED].checksum);
    results_set_text(results, "cached_checksum", checksum);
    snprintf(checksum, sizeof checksum, "%016" PRIx64, ways[UNCACHED].checksum);
    results_set_text(results, "uncached_checksum", checksum);
}

static void ways_free(struct way ways[WAYS])
{
    for (int way = 0; way < WAYS; way++) {
        free(ways[way].seconds);
        free(ways[way].tokens);
    }
}

/* One row: both ways in turn, `reps` times. */
static enum status measure(struct bench *bench, struct results *results, struct model *model, struct kv_cache *cache,
                           int new_tokens, int reps, struct error *error)
{
    struct way ways[WAYS] = {{0}, {0}};
    enum status status = STATUS_OK;
    for (int way = 0; way < WAYS; way++) {
        ways[way].seconds = calloc((size_t)reps, sizeof(double));
        ways[way].tokens = calloc((size_t)new_tokens, sizeof(int32_t));
        if (ways[way].seconds == NULL || ways[way].tokens == NULL)
            status = error_set(error, STATUS_DEVICE, "cache: out of host memory");
    }
    for (int turn = 0; turn < reps * WAYS && status == STATUS_OK; turn++) {
        int way = turn % WAYS;
        uint64_t positions = way == CACHED ? formula_positions_cached(prompt_tokens(bench), new_tokens)
                                           : formula_positions_uncached(prompt_tokens(bench), new_tokens);
        progress_step(bench, (double)positions, "%d new tokens, cache %s, run %d of %d", new_tokens,
                      way == CACHED ? "on" : "off", turn / WAYS + 1, reps);
        status = generate_once(bench, model, cache, &ways[way], way == CACHED, new_tokens, turn / WAYS, error);
    }
    if (status == STATUS_OK) {
        predict(bench, results, new_tokens);
        record(results, ways, new_tokens, reps);
        status = results_end_row(results, error);
    }
    ways_free(ways);
    return status;
}

static double total_work(const struct bench *bench, const struct int_list *new_tokens, int reps)
{
    double work = 0.0;
    for (size_t i = 0; i < new_tokens->count; i++)
        work += (double)(formula_positions_cached(prompt_tokens(bench), new_tokens->values[i]) +
                         formula_positions_uncached(prompt_tokens(bench), new_tokens->values[i]));
    return work * reps;
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *new_tokens,
                               struct error *error)
{
    int reps = bench_reps(bench, 1, 1), longest = prompt_tokens(bench) + (int)int_list_max(new_tokens);
    struct kv_options options = {
        .policy = KV_RESERVED, .dtype = bench->kv_dtype, .max_sequences = 1, .max_tokens = longest};
    struct model_limits limits = {.max_rows = longest, .max_sequences = 1, .max_blocks = 1};
    struct bench_need need = {.kv_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, longest),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, 1)};
    struct kv_cache *cache;
    struct model model;
    if (bench_open_model(bench, &limits, &need, &model, error) != STATUS_OK)
        return error->status;
    enum status status = kv_open(&cache, bench->ledger, &bench->config, &options, error);
    progress_start(bench, total_work(bench, new_tokens, reps));
    for (size_t i = 0; i < new_tokens->count && status == STATUS_OK; i++) {
        int64_t count = new_tokens->values[i];
        if (!results_has(results, (struct key[]){{"new_tokens", count}, {"prompt_tokens", prompt_tokens(bench)}}, 2))
            status = measure(bench, results, &model, cache, (int)count, reps, error);
    }
    progress_end(bench);
    kv_close(cache);
    model_free(&model);
    return status;
}

/* What was counted must be what the formula says. */
static enum status check(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "cached_positions") != results_real(results, row, "cached_formula_positions") ||
            results_real(results, row, "uncached_positions") !=
                results_real(results, row, "uncached_formula_positions"))
            return error_set(error, STATUS_CHECK_FAILED, "cache: the positions counted differ from the formula");
    return STATUS_OK;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    const struct int_list *new_tokens = bench_new_tokens(bench, "64-512*2", "8,16");
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run) {
        for (size_t i = 0; i < new_tokens->count; i++) {
            predict(bench, results, new_tokens->values[i]);
            if (results_end_row(results, error) != STATUS_OK)
                return error->status;
        }
        return STATUS_OK;
    }
    if (measure_all(bench, results, new_tokens, error) != STATUS_OK)
        return error->status;
    return check(results, error);
}

const struct experiment cache_experiment = {
    .name = "cache",
    .summary = "generating with the cache against without: work by counting, and time",
    .needs_device = true,
    .default_model = "qwen2.5-0.5b",
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
