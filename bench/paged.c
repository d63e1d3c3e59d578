/* paged: how much of a KV budget holds tokens, by the way memory is taken, and what blocks cost in time?

   Predicted from the trace: a sequence holds `held` positions on average, a reservation max_tokens, a paged sequence
   (block_size - 1) / 2 more than it needs. Measured: the trace through a real cache of each policy under the same
   budget, all bytes counted by tables and ledger at every moment when a request waits for memory; then decode steps
   over caches in blocks of each size, against one block. */
#include "bench/paged.h"

#include "bench/harness/option_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what it writes ---- */

static const struct column columns[] = {
    {"policy", COLUMN_TEXT, 0, true,
     "How the cache takes memory: exact (a sequence's tokens, grown by copying), reserved (max_tokens for every "
     "sequence), paged (blocks out of one pool that takes the whole budget)."},
    {"block_size", COLUMN_INT, 0, true, "Tokens per block; of reserved, its one block; exact has none."},
    {"requests", COLUMN_INT, 0, false, "Requests of the trace, all of which ran to their end (--requests)."},
    {"used_bytes", COLUMN_INT, 0, false,
     "Positions stored * KV bytes per token: mean over the full steps, those that end with a request waiting that does "
     "not fit."},
    {"allocated_bytes", COLUMN_INT, 0, false,
     "Source reserved: what the ledger had taken from the device for the cache, mean over the same steps; for paged "
     "the "
     "pool. Used, internal and external waste add up to it."},
    {"utilization_percent", COLUMN_REAL, 2, false, "used_bytes in percent of allocated_bytes."},
    {"internal_waste_percent", COLUMN_REAL, 2, false,
     "Room that sequences hold by their block tables and store nothing in, in percent of allocated_bytes."},
    {"external_waste_percent", COLUMN_REAL, 2, false,
     "Taken from the device and held by no sequence, while the next request does not fit: free blocks of the pool, and "
     "reserved - live bytes of the ledger (free pieces of its segments, rounding); in percent of allocated_bytes."},
    {"max_concurrent", COLUMN_INT, 0, false, "Most sequences held at once, over all steps."},
    {"budget_bytes", COLUMN_INT, 0, false,
     "Most that could be taken from the device for the cache, rounding and fragmentation included (--kv-budget)."},
    {"used_of_budget_percent", COLUMN_REAL, 2, false, "used_bytes in percent of budget_bytes."},
    {"predicted_utilization_percent", COLUMN_REAL, 2, false,
     "From the trace: held / max_tokens for reserved, held / (held + (block_size - 1) / 2) for paged, 100 for exact."},
    {"waste_tokens_per_request", COLUMN_REAL, 2, false,
     "Internal waste of a sequence in tokens: all of it over the sequences held, in the same steps."},
    {"predicted_waste_tokens", COLUMN_REAL, 2, false,
     "(block_size - 1) / 2 for paged, the mean of 0 .. block_size - 1; max_tokens - held for reserved; 0 for exact."},
    {"mean_concurrent", COLUMN_REAL, 2, false, "Sequences held, mean over the full steps."},
    {"predicted_concurrent", COLUMN_REAL, 2, false,
     "Budget / bytes of a sequence of `held` tokens with its predicted waste; whole for reserved."},
    {"kv_ledger_bytes", COLUMN_INT, 0, false, "Source ledger: live bytes tagged kv, mean over the full steps."},
    {"peak_reserved_bytes", COLUMN_INT, 0, false,
     "Source reserved: the most ever taken from the device, the second copy of a tensor that grows included."},
    {"allocations", COLUMN_INT, 0, false, "Source ledger: allocations made over the whole trace."},
    {"preemptions", COLUMN_INT, 0, false,
     "Times that a sequence could not grow and the youngest one lost its memory, to begin again later."},
    {"steps", COLUMN_INT, 0, false, "Steps of the engine: every running sequence stores one token in each."},
    {"full_steps", COLUMN_INT, 0, false, "Those that ended with a request waiting that did not fit."},
};
static const struct column block_columns[] = {
    {"context", COLUMN_INT, 0, true, "Tokens in each sequence's cache when the first timed step begins."},
    {"block_size", COLUMN_INT, 0, true, "Tokens per block; of the one-block cache, all that a sequence has room for."},
    {"cache", COLUMN_TEXT, 0, true, "paged, or one block: a reserved cache, what the ratios are to."},
    {"internal_waste_percent", COLUMN_REAL, 2, false,
     "What the trace wasted with this block size, from paged.csv; of the one block, by reservation."},
    {"tpot_ms_p10", COLUMN_REAL, 4, false, "Time per output token (a decode step of the batch): tenth percentile."},
    {"tpot_ms_p50", COLUMN_REAL, 4, false, "Median of the same steps."},
    {"tpot_ms_p90", COLUMN_REAL, 4, false, "Ninetieth percentile of the same steps."},
    {"n", COLUMN_INT, 0, false, "Steps timed; all block sizes are visited in turn, over and over."},
    {"ratio_to_one_block", COLUMN_REAL, 4, false,
     "Median over the repetitions of this cache's time over that of the one block in the same repetition."},
    {"ratio_low", COLUMN_REAL, 4, false, "Lower end of its 95 % interval (order statistics; from 6 repetitions)."},
    {"ratio_high", COLUMN_REAL, 4, false, "Upper end of its 95 % interval."},
    {"predicted_ratio", COLUMN_REAL, 4, false,
     "Bytes that a step reads and writes, with the block tables, 4 bytes a block in every layer, over those without."},
    {"slots", COLUMN_INT, 0, false, "Sequences that decode together (--slots)."},
    {"tokens_checksum", COLUMN_TEXT, 0, false,
     "FNV-1a of the tokens that the timed steps chose: the same work in every repetition."},
    {"tokens_equal", COLUMN_TEXT, 0, false, "yes if they are those of the one-block cache, else no."},
};
enum { MAIN, BLOCKS };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [BLOCKS] = {"_blocks", true, block_columns, sizeof block_columns / sizeof *block_columns},
};

/* ---- options ---- */

/* 0, or an empty list: not given. */
static struct own {
    int requests, max_tokens, slots;
    uint64_t kv_budget;
    bool has_arrival_steps;
    float arrival_steps;
    struct int_list block_sizes;
} own;

static const struct option_row own_rows[] = {
    {"requests", "N", OPTION_INT, offsetof(struct own, requests), .minimum = 1, .maximum = 1 << 20,
     .help = "requests of the trace; 256 unless given"},
    {"arrival-steps", "N", OPTION_REAL, offsetof(struct own, arrival_steps), .has_given = true,
     .given_offset = offsetof(struct own, has_arrival_steps), .minimum = 0, .maximum = 1 << 10,
     .help = "steps of the engine between two arrivals on average, 4 unless given; 0: all at once"},
    {"max-tokens", "N", OPTION_INT, offsetof(struct own, max_tokens), .minimum = 2, .maximum = 1 << 20,
     .help = "longest request, prompt and output; 2048 unless given"},
    {"block-sizes", "LIST", OPTION_LIST, offsetof(struct own, block_sizes), .minimum = 1, .maximum = 1 << 20,
     .help = "tokens per block of the paged cache; 1-256*2 unless given"},
    {"kv-budget", "BYTES", OPTION_BYTES, offsetof(struct own, kv_budget),
     .help = "memory for the cache; eight reservations of max-tokens unless given"},
    {"slots", "N", OPTION_INT, offsetof(struct own, slots), .minimum = 1, .maximum = 4096,
     .help = "sequences that decode together in the timed steps; 8 unless given"},
    {0},
};
static const struct option_set own_options = {own_rows, &own};

/* What a run does, once defaults stand in for what is not given. */
struct plan {
    struct trace_request *trace; /* [requests] */
    int requests, max_tokens;
    uint64_t budget;
    double held;                    /* paged_mean_held() */
    struct paged_setting *settings; /* a row each: exact, reserved, then every block size */
    size_t count;
    struct paged_sweep sweep; /* but for its context */
    const struct int_list *contexts;
};

static enum status plan_trace(const struct bench *bench, struct plan *plan, struct error *error)
{
    bool quick = bench->options.quick;
    plan->requests = own.requests ? own.requests : quick ? 32 : 256;
    plan->max_tokens = own.max_tokens ? own.max_tokens : 2048;
    int64_t tokens = (quick ? 2 : 8) * (int64_t)plan->max_tokens;
    plan->budget = own.kv_budget ? own.kv_budget : formula_kv_bytes(&bench->config, bench->kv_dtype, tokens);
    plan->trace = calloc((size_t)plan->requests, sizeof *plan->trace);
    if (plan->trace == NULL)
        return error_set(error, STATUS_DEVICE, "paged: out of host memory");
    trace_chat(plan->trace, (size_t)plan->requests, plan->max_tokens, own.has_arrival_steps ? own.arrival_steps : 4.0,
               bench->options.seed);
    plan->held = paged_mean_held(plan->trace, plan->requests);
    return STATUS_OK;
}

static enum status plan_init(struct bench *bench, struct plan *plan, struct error *error)
{
    bool quick = bench->options.quick;
    *plan = (struct plan){.sweep = {.block_sizes = &own.block_sizes,
                                    .slots = own.slots ? own.slots
                                             : quick   ? 2
                                                       : 8,
                                    .reps = bench_reps(bench, 30, 2)},
                          .contexts = bench_contexts(bench, "1024", "64")};
    if (plan_trace(bench, plan, error) != STATUS_OK)
        return error->status;
    bench_own_list(bench, &own.block_sizes, "1-256*2", "1-256*16");
    if (int_list_max(&own.block_sizes) > plan->max_tokens)
        return error_set(error, STATUS_INPUT,
                         "--block-sizes: %" PRId64 " is more than a sequence of at most %d tokens (--max-tokens) holds",
                         int_list_max(&own.block_sizes), plan->max_tokens);
    plan->settings = calloc(2 + own.block_sizes.count, sizeof *plan->settings);
    if (plan->settings == NULL)
        return error_set(error, STATUS_DEVICE, "paged: out of host memory");
    plan->count = 2 + own.block_sizes.count;
    for (size_t i = 0; i < plan->count; i++)
        plan->settings[i] = (struct paged_setting){.policy = i == 0   ? KV_EXACT
                                                             : i == 1 ? KV_RESERVED
                                                                      : KV_PAGED,
                                                   .dtype = bench->kv_dtype,
                                                   .block_size = i < 2 ? 0 : (int)own.block_sizes.values[i - 2],
                                                   .max_tokens = plan->max_tokens};
    return STATUS_OK;
}

static void plan_free(struct plan *plan)
{
    free(plan->trace);
    free(plan->settings);
}

/* ---- memory ---- */

/* Tokens that a sequence holds beside those that it stores, on average. */
static double predicted_waste(const struct plan *plan, const struct paged_setting *setting)
{
    switch (setting->policy) {
    case KV_RESERVED:
        return plan->max_tokens - plan->held;
    case KV_PAGED:
        return (setting->block_size - 1) / 2.0;
    case KV_EXACT:
        break;
    }
    return 0.0;
}

static void predict(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    const struct plan *plan = of;
    const struct paged_setting *setting = &plan->settings[i];
    double waste = predicted_waste(plan, setting),
           token = (double)formula_kv_bytes_per_token(&bench->config, bench->kv_dtype);
    double concurrent = fmin(plan->requests, (double)plan->budget / token / (plan->held + waste));
    results_set_text(results, "policy", kv_policy_name(setting->policy));
    if (setting->policy != KV_EXACT)
        results_set_int(results, "block_size", setting->policy == KV_PAGED ? setting->block_size : plan->max_tokens);
    results_set_int(results, "requests", plan->requests);
    results_set_int(results, "budget_bytes", (int64_t)plan->budget);
    results_set_real(results, "predicted_utilization_percent", 100.0 * plan->held / (plan->held + waste));
    results_set_real(results, "predicted_waste_tokens", waste);
    results_set_real(results, "predicted_concurrent", setting->policy == KV_RESERVED ? floor(concurrent) : concurrent);
}

static void set_means(const struct bench *bench, struct results *results, const struct plan *plan,
                      const struct paged_counts *counts)
{
    if (counts->full_steps == 0) {
        results_set_missing(results, "used_bytes",
                            "no request ever waited for memory, so that none was wasted: a smaller --kv-budget or more "
                            "--requests would fill it");
        return;
    }
    double steps = (double)counts->full_steps, allocated = (double)counts->allocated, used = (double)counts->used;
    double token = (double)formula_kv_bytes_per_token(&bench->config, bench->kv_dtype);
    results_set_int(results, "used_bytes", llround(used / steps));
    results_set_int(results, "allocated_bytes", llround(allocated / steps));
    results_set_int(results, "kv_ledger_bytes", llround((double)counts->ledger / steps));
    results_set_real(results, "utilization_percent", 100.0 * used / allocated);
    results_set_real(results, "internal_waste_percent", 100.0 * (double)counts->internal / allocated);
    results_set_real(results, "external_waste_percent", 100.0 * (double)counts->external / allocated);
    results_set_real(results, "used_of_budget_percent", 100.0 * used / steps / (double)plan->budget);
    results_set_real(results, "waste_tokens_per_request", (double)counts->internal / token / (double)counts->running);
    results_set_real(results, "mean_concurrent", (double)counts->running / steps);
}

static bool recorded(const struct results *results, const struct paged_setting *setting)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (strcmp(results_text(results, row, "policy"), kv_policy_name(setting->policy)) == 0 &&
            (setting->policy != KV_PAGED || results_real(results, row, "block_size") == setting->block_size))
            return true;
    return false;
}

/* The trace through one cache, on a ledger of its own. */
static enum status measure(struct bench *bench, struct results *results, const struct plan *plan, size_t i,
                           struct error *error)
{
    struct ledger *ledger;
    struct paged_counts counts;
    if (ledger_open(&ledger, bench->device, plan->budget, error) != STATUS_OK)
        return error->status;
    enum status status = paged_run(ledger, &bench->config, &plan->settings[i], plan->trace, plan->requests,
                                   bench_stop_flag(), &counts, error);
    ledger_close(ledger);
    if (status != STATUS_OK)
        return status;
    predict(bench, results, plan, i);
    set_means(bench, results, plan, &counts);
    results_set_int(results, "max_concurrent", counts.max_concurrent);
    results_set_int(results, "peak_reserved_bytes", (int64_t)counts.device_bytes);
    results_set_int(results, "allocations", (int64_t)counts.allocations);
    results_set_int(results, "preemptions", counts.preemptions);
    results_set_int(results, "steps", counts.steps);
    results_set_int(results, "full_steps", counts.full_steps);
    return results_end_row(results, error);
}

/* ---- time ---- */

static size_t times_of(const struct plan *plan)
{
    return 1 + plan->sweep.block_sizes->count;
}

/* times [contexts][times_of(plan)]; progress counts a repetition as 1. */
static enum status measure_times(struct bench *bench, const struct plan *plan, struct paged_times *times,
                                 struct error *error)
{
    struct model model;
    struct paged_sweep sweep = plan->sweep;
    sweep.context = (int)int_list_max(plan->contexts);
    struct model_limits limits = paged_blocks_limits(&sweep);
    struct bench_need need = {.kv_bytes = paged_blocks_kv_bytes(bench, &sweep),
                              .logits_bytes =
                                  times_of(plan) * formula_logits_bytes(&bench->config, bench->dtype, sweep.slots)};
    enum status status = bench_open_model(bench, &limits, &need, &model, error);
    for (size_t i = 0; i < plan->contexts->count && status == STATUS_OK; i++) {
        sweep.context = (int)plan->contexts->values[i];
        status = paged_blocks_measure(bench, &model, &sweep, times + i * times_of(plan), error);
    }
    model_free(&model);
    return status;
}

/* The i-th row of the table of block sizes: the settings, and what is known beforehand. */
static void predict_blocks(const struct bench *bench, struct results *blocks, const void *of, size_t i)
{
    const struct plan *plan = of;
    struct paged_sweep sweep = plan->sweep;
    sweep.context = (int)plan->contexts->values[i / times_of(plan)];
    size_t at = i % times_of(plan);
    int64_t size = at == 0 ? paged_blocks_room(&sweep) : sweep.block_sizes->values[at - 1];
    results_set_int(blocks, "context", sweep.context);
    results_set_int(blocks, "block_size", size);
    results_set_text(blocks, "cache", at == 0 ? "one block" : "paged");
    results_set_int(blocks, "slots", sweep.slots);
    results_set_real(blocks, "predicted_ratio", at == 0 ? 1.0 : paged_blocks_predicted_ratio(bench, &sweep, size));
}

/* What the trace wasted inside, by the row of the main table. */
static void set_waste(const struct results *results, struct results *blocks, int block_size)
{
    const char *policy = kv_policy_name(block_size == 0 ? KV_RESERVED : KV_PAGED);
    for (size_t row = 0; row < results_rows(results); row++)
        if (strcmp(results_text(results, row, "policy"), policy) == 0 &&
            (block_size == 0 || results_real(results, row, "block_size") == block_size)) {
            double percent = results_real(results, row, "internal_waste_percent");
            if (!isnan(percent))
                results_set_real(blocks, "internal_waste_percent", percent);
        }
}

static enum status write_blocks(const struct bench *bench, const struct results *results, struct results *blocks,
                                const struct plan *plan, const struct paged_times *all, struct error *error)
{
    for (size_t i = 0; i < plan->contexts->count * times_of(plan); i++) {
        const struct paged_times *times = &all[i], *one = &all[i - i % times_of(plan)];
        char checksum[32];
        snprintf(checksum, sizeof checksum, "%016" PRIx64, times->checksum);
        predict_blocks(bench, blocks, plan, i);
        set_waste(results, blocks, times->block_size);
        if (times->n >= STATS_MIN_SPREAD_SAMPLES) {
            results_set_real(blocks, "tpot_ms_p10", times->p10_ms);
            results_set_real(blocks, "tpot_ms_p90", times->p90_ms);
        }
        results_set_real(blocks, "tpot_ms_p50", times->p50_ms);
        results_set_int(blocks, "n", (int64_t)times->n);
        results_set_real(blocks, "ratio_to_one_block", times->ratio);
        if (times->interval_known) {
            results_set_real(blocks, "ratio_low", times->ratio_low);
            results_set_real(blocks, "ratio_high", times->ratio_high);
        }
        results_set_text(blocks, "tokens_checksum", checksum);
        results_set_text(blocks, "tokens_equal", times->checksum == one->checksum ? "yes" : "no");
        if (results_end_row(blocks, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* ---- the experiment ---- */

/* Relative work of a trace: an exact cache copies all that a sequence holds for every token. */
static double trace_weight(const struct paged_setting *setting)
{
    return setting->policy == KV_EXACT ? 20.0 : 1.0;
}

static enum status measure_all(struct bench *bench, struct results *results, const struct plan *plan,
                               struct error *error)
{
    struct results *blocks;
    struct paged_times *times = calloc(plan->contexts->count * times_of(plan), sizeof *times);
    double work = (double)plan->contexts->count * plan->sweep.reps;
    for (size_t i = 0; i < plan->count; i++)
        work += trace_weight(&plan->settings[i]);
    progress_start(bench, work);
    enum status status = times == NULL ? error_set(error, STATUS_DEVICE, "paged: out of host memory")
                                       : measure_times(bench, plan, times, error);
    for (size_t i = 0; i < plan->count && status == STATUS_OK; i++) {
        const struct paged_setting *setting = &plan->settings[i];
        progress_step(bench, trace_weight(setting), "%d requests, %s, blocks of %d", plan->requests,
                      kv_policy_name(setting->policy), setting->block_size);
        if (!recorded(results, setting))
            status = measure(bench, results, plan, i, error);
    }
    progress_end(bench);
    if (status == STATUS_OK)
        status = results_open(&blocks, bench, &tables[BLOCKS], error);
    if (status == STATUS_OK)
        status = write_blocks(bench, results, blocks, plan, times, error);
    free(times);
    return status;
}

static enum status dry_run(struct bench *bench, struct results *results, const struct plan *plan, struct error *error)
{
    struct results *blocks;
    if (bench_predict_rows(bench, results, predict, plan, plan->count, error) != STATUS_OK ||
        results_open(&blocks, bench, &tables[BLOCKS], error) != STATUS_OK)
        return error->status;
    return bench_predict_rows(bench, blocks, predict_blocks, plan, plan->contexts->count * times_of(plan), error);
}

static enum status run(struct bench *bench, struct error *error)
{
    struct plan plan;
    struct results *results;
    enum status status = plan_init(bench, &plan, error);
    if (status == STATUS_OK)
        status = results_open(&results, bench, &tables[MAIN], error);
    if (status == STATUS_OK) {
        meta_text(bench, "trace",
                  "log-normal lengths, sigma 1, means as ShareGPT in Kwon et al. 2023; Poisson arrivals");
        meta_real(bench, "held_tokens_mean", plan.held);
        status =
            bench->options.dry_run ? dry_run(bench, results, &plan, error) : measure_all(bench, results, &plan, error);
    }
    plan_free(&plan);
    return status;
}

const struct experiment paged_experiment = {
    .name = "paged",
    .summary = "a trace of requests through exact, reserved and paged caches: waste, and what blocks cost in time",
    .needs_device = true,
    .default_model = "tiny",
    .uses = USES_CONTEXTS | USES_REPS | USES_SAMPLES,
    .own = &own_options,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
