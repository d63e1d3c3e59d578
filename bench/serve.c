/* serve: what users of a server see at rising load: queueing, first token, tokens after it, and where it stops keeping
   up.

   Closed load: some users, each of whom sends the next request when the last one is answered; as many requests are in
   flight as there are users. Open load: requests arrive by a Poisson process at a share of the capacity that the closed
   loads showed; over 100 % the queue can only grow. Measured through the continuous scheduler, idle time skipped.

   Little's law (Little 1961), L = lambda * W, checks the measurement: L is integrated over time from a count that goes
   up when the load sends a request and down by what every step says it has finished; lambda and W come from the time
   stamps on the requests. */
#include "bench/harness/in_flight.h"
#include "bench/harness/option_table.h"
#include "bench/harness/serving.h"
#include "engine/random.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_SIZE = 16, LITTLE_LIMIT_PERCENT = 2 };
static const double stable_growth = 1.25; /* of the mean in flight, from the first half to the second */

static const struct column columns[] = {
    {"load", COLUMN_TEXT, 0, true, "closed: users who wait for their answers; open: Poisson arrivals who do not wait."},
    {"rate_or_users", COLUMN_REAL, 3, false, "Users; or arrivals per second, as drawn for."},
    {"requests", COLUMN_INT, 0, true, "Requests served, the same ones at every load."},
    {"ttft_ms_p50", COLUMN_REAL, 2, false, "Arrival to first token; the time in the queue is a part of it."},
    {"ttft_ms_p99", COLUMN_REAL, 2, false, "The same, 99th percentile."},
    {"tpot_ms_p50", COLUMN_REAL, 3, false, "Mean time between tokens of a request; median over requests."},
    {"e2e_ms_p50", COLUMN_REAL, 2, false, "Arrival to last token."},
    {"e2e_ms_p95", COLUMN_REAL, 2, false, "The same, 95th percentile."},
    {"e2e_ms_p99", COLUMN_REAL, 2, false, "The same, 99th percentile."},
    {"in_flight_first_half", COLUMN_REAL, 2, false,
     "Mean requests in flight, queued or running, in the first half of the time in which requests arrive: counted as "
     "they "
     "are sent and as steps finish them."},
    {"in_flight_second_half", COLUMN_REAL, 2, false,
     "The same in the second half: where it is much more, the server does not keep up."},
    {"littles_law_error_percent", COLUMN_REAL, 3, false,
     "How far the mean in flight, counted, is from arrival rate * mean E2E, from time stamps."},
    {"queue_ms_p50", COLUMN_REAL, 2, false, "Arrival to admission: a part of TTFT and E2E, added to neither."},
    {"kv_used_percent_max", COLUMN_REAL, 1, false, "Most blocks held at once, of those in the pool."},
    {"decode_tokens_per_s", COLUMN_REAL, 1, false,
     "Tokens chosen in steps without prompt tokens / time of those steps: what is printed on boxes."},
    {"effective_tokens_per_s", COLUMN_REAL, 1, false,
     "All tokens chosen / time from the first arrival to the last token."},
    {"level", COLUMN_INT, 0, true, "Users, or percent of the capacity."},
    {"requests_per_s", COLUMN_REAL, 3, false,
     "Requests / the same time. The most of all closed loads is the capacity."},
    {"in_flight", COLUMN_REAL, 3, false, "Mean requests in flight over the whole time, counted."},
    {"e2e_ms_mean", COLUMN_REAL, 3, false, "Mean time in the system: the W of Little's law."},
    {"stable", COLUMN_TEXT, 0, false,
     "yes: the second half has at most 1.25 times as many in flight as the first, and one."},
    {"prefill_ms_p50", COLUMN_REAL, 2, false, "Admission to first token: the rest of TTFT."},
    {"steps", COLUMN_INT, 0, false, "Forward passes."},
    {"preemptions", COLUMN_INT, 0, false, "Requests that lost their memory for a while."},
    {"tokens_checksum", COLUMN_TEXT, 0, false, "FNV-1a of all requests' tokens, in the order of arrival."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

enum { VIRTUAL, REAL };
static const char *const clock_names[] = {[VIRTUAL] = "virtual", [REAL] = "real", NULL};
static const char *const admission_names[] = {[ADMIT_KNOWN] = "known", [ADMIT_WHOLE] = "whole", NULL};

static struct own_options {
    int requests, slots, admission, clock;
    uint64_t kv_budget;
    struct int_list users, percents;
} own;
static const struct option_row option_rows[] = {
    {"requests", "N", OPTION_INT, offsetof(struct own_options, requests), .minimum = 2, .maximum = 1 << 20,
     .help = "requests of each load (default 64; quick: 24)"},
    {"slots", "N", OPTION_INT, offsetof(struct own_options, slots), .minimum = 1, .maximum = 1024,
     .help = "requests in the batch at once (default 8; quick: 4)"},
    {"admission", "WHEN", OPTION_CHOICE, offsetof(struct own_options, admission), .choices = admission_names,
     .help = "known (default): with room for the tokens so far, the latest gives way later; whole: for all to come"},
    {"kv-budget", "BYTES", OPTION_BYTES, offsetof(struct own_options, kv_budget),
     .help = "of the pool of blocks (default: the longest request in every slot)"},
    {"clock", "WHICH", OPTION_CHOICE, offsetof(struct own_options, clock), .choices = clock_names,
     .help = "virtual (default): time without work is skipped; real: it is waited through"},
    {"users", "LIST", OPTION_LIST, offsetof(struct own_options, users), .minimum = 1, .maximum = 1 << 16,
     .help = "closed loads (default 1,4,8,16; quick: 1,4,8)"},
    {"load-percents", "LIST", OPTION_LIST, offsetof(struct own_options, percents), .minimum = 1, .maximum = 1000,
     .help = "open loads, in percent of the capacity measured (default 50,80,120; quick: 50,150)"},
    {0},
};
static const struct option_set own_set = {option_rows, &own};

struct range {
    int low, high;
};

struct plan {
    int requests, slots, chunk;
    struct range prompts, outputs; /* tokens, uniform */
    int *prompt, *output;          /* [requests] */
    int32_t *tokens;               /* [prompts.high]: every prompt begins somewhere in it */
};

enum load { CLOSED, OPEN };
static const char *const load_names[] = {[CLOSED] = "closed", [OPEN] = "open"};

struct point {
    enum load load;
    int level;
    double rate; /* open: arrivals per second */
};

/* What the steps of one load say, beside what the serving counts. */
struct watch {
    struct in_flight flight;
    size_t arrived;
    double decode_ms;
    int64_t decode_tokens;
};

/* ---- serving one load ---- */

static enum status watch_step(struct watch *watch, const struct serving *serving, const struct step_record *step,
                              struct error *error)
{
    bool decodes_only = true;
    int chosen = 0;
    for (int slot = 0; slot < step->cells; slot++) {
        const struct slot_record *record = &step->slots[slot];
        chosen += record->chose;
        decodes_only = decodes_only && (record->rows == 0 || (record->rows == 1 && record->request->produced > 1));
    }
    watch->decode_tokens += decodes_only ? chosen : 0;
    watch->decode_ms += decodes_only ? step->end_ms - step->start_ms : 0.0;
    for (; watch->arrived < serving->count && serving->requests[watch->arrived].arrival_ms <= step->end_ms;
         watch->arrived++)
        if (in_flight_change(&watch->flight, serving->requests[watch->arrived].arrival_ms, 1, error) != STATUS_OK)
            return error->status;
    return in_flight_change(&watch->flight, step->end_ms, -step->finished, error);
}

static enum status send(struct serving *serving, const struct plan *plan, double arrival_ms, struct error *error)
{
    size_t next = serving->count;
    int prompt = plan->prompt[next];
    return serving_add(serving, plan->tokens + (int)next % (plan->prompts.high - prompt + 1), prompt,
                       plan->output[next], arrival_ms, error);
}

/* Open: all arrivals are known beforehand. Closed: the first of every user. */
static enum status send_first(struct serving *serving, const struct bench *bench, const struct plan *plan,
                              const struct point *point, struct error *error)
{
    uint64_t random = bench->options.seed;
    double arrival_ms = serving->clock.ms;
    int count = point->load == OPEN || point->level > plan->requests ? plan->requests : point->level;
    for (int i = 0; i < count; i++) {
        if (point->load == OPEN)
            arrival_ms -= log1p(-random_uniform(&random)) / point->rate * 1e3;
        if (send(serving, plan, arrival_ms, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

static enum status serve_load(struct serving *serving, struct watch *watch, const struct bench *bench,
                              const struct plan *plan, const struct point *point, struct error *error)
{
    struct step_record step;
    if (send_first(serving, bench, plan, point, error) != STATUS_OK)
        return error->status;
    while (scheduler_pending(serving->scheduler) > 0) {
        if (serving_step(serving, &step, error) != STATUS_OK || watch_step(watch, serving, &step, error) != STATUS_OK)
            return error->status;
        for (int i = 0; i < step.finished && serving->count < (size_t)plan->requests; i++)
            if (send(serving, plan, step.end_ms, error) != STATUS_OK)
                return error->status;
    }
    return STATUS_OK;
}

static int blocks_of(int tokens)
{
    return (tokens + BLOCK_SIZE - 1) / BLOCK_SIZE;
}

static struct kv_options memory_of(const struct bench *bench, const struct plan *plan)
{
    int most = plan->prompts.high + plan->outputs.high, pool = plan->slots * blocks_of(most);
    uint64_t block_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, BLOCK_SIZE);
    if (own.kv_budget > 0 && own.kv_budget / block_bytes < (uint64_t)pool)
        pool = (int)(own.kv_budget / block_bytes);
    return (struct kv_options){
        .policy = KV_PAGED,
        .dtype = bench->kv_dtype,
        .max_sequences = plan->slots,
        .max_tokens = most,
        .block_size = BLOCK_SIZE,
        .pool_blocks = pool,
    };
}

static uint64_t tokens_checksum(const struct serving *serving)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < serving->count; i++) {
        const struct request *request = &serving->requests[i];
        uint64_t both[2] = {sum, bench_checksum(request->tokens + request->prompt_tokens,
                                                (size_t)request->output_tokens * sizeof *request->tokens)};
        sum = bench_checksum(both, sizeof both);
    }
    return sum;
}

static void predict(const struct bench *bench, struct results *results, const struct plan *plan,
                    const struct point *point)
{
    (void)bench;
    results_set_text(results, "load", load_names[point->load]);
    results_set_int(results, "level", point->level);
    results_set_int(results, "requests", plan->requests);
    if (point->load == CLOSED)
        results_set_real(results, "rate_or_users", point->level);
}

static void record_quantiles(struct results *results, struct serving *serving)
{
    static const struct {
        const char *column;
        double (*property)(const struct request *);
        double q;
    } cells[] = {
        {"ttft_ms_p50", request_ttft_ms, 0.5},   {"ttft_ms_p99", request_ttft_ms, 0.99},
        {"tpot_ms_p50", request_tpot_ms, 0.5},   {"e2e_ms_p50", request_e2e_ms, 0.5},
        {"e2e_ms_p95", request_e2e_ms, 0.95},    {"e2e_ms_p99", request_e2e_ms, 0.99},
        {"queue_ms_p50", request_queue_ms, 0.5}, {"prefill_ms_p50", request_prefill_ms, 0.5},
    };
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        results_set_real(results, cells[i].column, serving_quantile(serving, cells[i].property, 0, cells[i].q));
}

static enum status record(const struct bench *bench, struct results *results, struct serving *serving,
                          const struct watch *watch, const struct plan *plan, const struct point *point,
                          struct error *error)
{
    const struct in_flight *flight = &watch->flight;
    assert(flight->at_ms != NULL); /* a request was served */
    double start = flight->at_ms[0], end = flight->at_ms[flight->n - 1], seconds = (end - start) / 1e3;
    double last = serving->requests[serving->count - 1].arrival_ms;
    last = last > start ? last : end; /* all came at once */
    double middle = (start + last) / 2.0;
    double first = in_flight_mean(flight, start, middle), second = in_flight_mean(flight, middle, last);
    double all = in_flight_mean(flight, start, end);
    double residence_s = 0.0, tokens = 0.0;
    char checksum[32];
    for (size_t i = 0; i < serving->count; i++) {
        residence_s += request_e2e_ms(&serving->requests[i]) / 1e3;
        tokens += serving->requests[i].output_tokens;
    }
    double rate = (double)serving->count / seconds, by_law = rate * residence_s / (double)serving->count;
    snprintf(checksum, sizeof checksum, "%016" PRIx64, tokens_checksum(serving));
    predict(bench, results, plan, point);
    record_quantiles(results, serving);
    results_set_real(results, "rate_or_users", point->load == OPEN ? point->rate : point->level);
    results_set_real(results, "in_flight_first_half", first);
    results_set_real(results, "in_flight_second_half", second);
    results_set_real(results, "littles_law_error_percent", 100.0 * (all - by_law) / by_law);
    results_set_real(results, "kv_used_percent_max",
                     100.0 * serving->kv_blocks_max / kv_get_options(serving->cache)->pool_blocks);
    if (watch->decode_tokens > 0)
        results_set_real(results, "decode_tokens_per_s", (double)watch->decode_tokens / watch->decode_ms * 1e3);
    results_set_real(results, "effective_tokens_per_s", tokens / seconds);
    results_set_real(results, "requests_per_s", rate);
    results_set_real(results, "in_flight", all);
    results_set_real(results, "e2e_ms_mean", 1e3 * residence_s / (double)serving->count);
    results_set_text(results, "stable", second <= stable_growth * first + 1.0 ? "yes" : "no");
    results_set_int(results, "steps", serving->steps);
    results_set_int(results, "preemptions", serving->preemptions);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

static enum status measure_load(struct bench *bench, struct model *model, struct results *results,
                                const struct plan *plan, const struct point *point, struct error *error)
{
    struct serving serving;
    struct watch watch = {0};
    const struct kv_options memory = memory_of(bench, plan);
    const struct scheduler_options options = {
        .policy = SCHEDULE_CONTINUOUS,
        .admission = (enum schedule_admission)own.admission,
        .slots = plan->slots,
        .tokens_per_step = plan->chunk,
    };
    enum status status = serving_init(&serving, bench, model, &memory, &options, (size_t)plan->requests, error);
    serving.clock.waits = own.clock == REAL;
    if (status == STATUS_OK)
        status = serve_load(&serving, &watch, bench, plan, point, error);
    if (status == STATUS_OK && results != NULL)
        status = record(bench, results, &serving, &watch, plan, point, error);
    serving_free(&serving);
    in_flight_free(&watch.flight);
    return status;
}

/* ---- all loads ---- */

static bool has_row(const struct results *results, const struct plan *plan, const struct point *point)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (strcmp(results_text(results, row, "load"), load_names[point->load]) == 0 &&
            results_real(results, row, "level") == point->level &&
            results_real(results, row, "requests") == plan->requests)
            return true;
    return false;
}

static double capacity(const struct results *results)
{
    double most = 0.0;
    for (size_t row = 0; row < results_rows(results); row++)
        if (strcmp(results_text(results, row, "load"), load_names[CLOSED]) == 0)
            most = fmax(most, results_real(results, row, "requests_per_s"));
    return most;
}

/* The i-th load: closed ones first, which show the capacity. */
static struct point point_at(size_t i)
{
    bool closed = i < own.users.count;
    return (struct point){.load = closed ? CLOSED : OPEN,
                          .level = (int)(closed ? own.users.values[i] : own.percents.values[i - own.users.count])};
}

static void predict_nth(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    struct point point = point_at(i);
    predict(bench, results, of, &point);
}

static enum status measure(struct bench *bench, struct results *results, const struct plan *plan, struct error *error)
{
    struct model model;
    const struct kv_options memory = memory_of(bench, plan);
    const struct model_limits limits = {
        .max_rows = plan->chunk, .max_sequences = plan->slots, .max_blocks = blocks_of(memory.max_tokens)};
    const struct bench_need need = {.kv_bytes = serving_kv_bytes(bench, &memory),
                                    .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, plan->slots)};
    size_t loads = own.users.count + own.percents.count;
    if (bench_open_model(bench, &limits, &need, &model, error) != STATUS_OK)
        return error->status;
    /* Twice the slots, with a few requests each: every number of rows has been through the model before times count. */
    struct plan short_plan = *plan;
    const struct point busy = {.load = CLOSED, .level = 2 * plan->slots};
    short_plan.requests = 2 * plan->slots < plan->requests ? 2 * plan->slots : plan->requests;
    enum status status = measure_load(bench, &model, NULL, &short_plan, &busy, error);
    progress_start(bench, (double)loads);
    for (size_t i = 0; i < loads && status == STATUS_OK; i++) {
        struct point point = point_at(i);
        if (has_row(results, plan, &point))
            continue;
        point.rate = capacity(results) * point.level / 100.0;
        progress_step(bench, 1.0, "%s load, %d %s", load_names[point.load], point.level,
                      point.load == CLOSED ? "users" : "% of capacity");
        status = measure_load(bench, &model, results, plan, &point, error);
    }
    progress_end(bench);
    model_free(&model);
    return status;
}

/* Little's law must hold where the load is stable, or times and counts are not of the same run. */
static enum status check_rows(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (strcmp(results_text(results, row, "stable"), "yes") == 0 &&
            fabs(results_real(results, row, "littles_law_error_percent")) > LITTLE_LIMIT_PERCENT)
            return error_set(
                error, STATUS_CHECK_FAILED,
                "serve: %s load %s: requests in flight, counted, are %s %% away from Little's law; at most "
                "%d %% are expected",
                results_text(results, row, "load"), results_text(results, row, "level"),
                results_text(results, row, "littles_law_error_percent"), LITTLE_LIMIT_PERCENT);
    return STATUS_OK;
}

/* ---- the experiment ---- */

static void plan_free(struct plan *plan)
{
    free(plan->prompt);
    free(plan->output);
    free(plan->tokens);
}

static int draw(uint64_t *random, struct range range)
{
    return range.low + (int)(random_uniform(random) * (range.high - range.low + 1));
}

static enum status plan_init(struct plan *plan, const struct bench *bench, struct error *error)
{
    bool quick = bench->options.quick;
    uint64_t random = bench->options.seed + 1;
    *plan = (struct plan){
        .requests = own.requests ? own.requests
                    : quick      ? 24
                                 : 64,
        .slots = own.slots ? own.slots
                 : quick   ? 4
                           : 8,
        .prompts = quick ? (struct range){4, 24} : (struct range){32, 256},
        .outputs = quick ? (struct range){4, 24} : (struct range){16, 128},
    };
    plan->chunk = plan->slots + plan->prompts.high;
    plan->prompt = calloc((size_t)plan->requests, sizeof *plan->prompt);
    plan->output = calloc((size_t)plan->requests, sizeof *plan->output);
    plan->tokens = bench_tokens(bench, plan->prompts.high, 0);
    if (plan->prompt == NULL || plan->output == NULL || plan->tokens == NULL)
        return error_set(error, STATUS_DEVICE, "serve: out of host memory");
    int longest = blocks_of(plan->prompts.high + plan->outputs.high);
    if (memory_of(bench, plan).pool_blocks < longest)
        return error_set(error, STATUS_INPUT,
                         "--kv-budget: the longest request takes %d blocks, %" PRIu64 " bytes; give at least these",
                         longest, formula_kv_bytes(&bench->config, bench->kv_dtype, (int64_t)longest * BLOCK_SIZE));
    for (int i = 0; i < plan->requests; i++) {
        plan->prompt[i] = draw(&random, plan->prompts);
        plan->output[i] = draw(&random, plan->outputs);
    }
    return STATUS_OK;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    struct plan plan = {0};
    bench_own_list(bench, &own.users, "1,4,8,16", "1,4,8");
    bench_own_list(bench, &own.percents, "50,80,120", "50,150");
    enum status status = plan_init(&plan, bench, error);
    if (status == STATUS_OK)
        status = results_open(&results, bench, &tables[0], error);
    if (status == STATUS_OK && bench->options.dry_run) {
        status = bench_predict_rows(bench, results, predict_nth, &plan, own.users.count + own.percents.count, error);
    } else if (status == STATUS_OK) {
        bool complete = true;
        for (size_t i = 0; i < own.users.count + own.percents.count; i++) {
            struct point point = point_at(i);
            complete = complete && has_row(results, &plan, &point);
        }
        status = complete ? STATUS_OK : measure(bench, results, &plan, error);
        if (status == STATUS_OK)
            status = check_rows(results, error);
    }
    plan_free(&plan);
    return status;
}

const struct experiment serve_experiment = {
    .name = "serve",
    .summary = "closed and open load through the continuous scheduler: percentiles, queueing, Little's law",
    .needs_device = true,
    .default_model = "smollm2-135m",
    .own = &own_set,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
