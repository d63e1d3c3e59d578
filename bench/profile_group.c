#include "bench/profile_group.h"

#include <stdio.h>
#include <stdlib.h>

enum { PREFILL_ROWS_PROFILE = 4096, WARM_REPLAYS = 2, STEPS_PER_VISIT = 3 };

/* Without --reps. What looking costs is small beside the noise of a decode step, and a step is short: many of them. */
enum { REPS = 7, QUICK_REPS = 2, LEAST_PAIRS = 8, MOST_PAIRS = 300 };
static const double pairs_limit_ms = 20e3, narrow_percent = PROFILE_HOOKS_LIMIT_PERCENT / 3;

/* Relative work, for the time left: of a repetition its tokens, of a pair of visits to decode steps so many. */
static const double pair_tokens = 30;

const char *const profile_phase_names[] = {"prefill", "decode"};

struct pass_shape profile_shape(enum profile_phase phase, int64_t context, int64_t batch)
{
    return (struct pass_shape){.sequences = batch,
                               .start = phase == PROFILE_PREFILL ? 0 : context,
                               .count = phase == PROFILE_PREFILL ? context : 1,
                               .logits = 1};
}

/* ---- passes ---- */

/* One pass of the series' phase, on caches put back to where it starts. */
static enum status pass(struct profile_group *group, const struct profile_series *series, double *ms,
                        struct error *error)
{
    struct timed_batch *sequences = &group->sequences;
    bool prefill = series->phase == PROFILE_PREFILL;
    if (timed_batch_rewind(sequences, prefill ? 0 : group->context, error) != STATUS_OK ||
        timed_batch_pass(sequences, group->batch, prefill ? group->context : 1, ms, error) != STATUS_OK)
        return error->status;
    uint64_t checksum = bench_checksum(sequences->chosen, (size_t)group->batch * sizeof *sequences->chosen);
    if (group->visited && checksum != group->checksums[series->phase])
        return error_set(error, STATUS_CHECK_FAILED,
                         "profile: a %s of %d tokens chose other tokens than the one before: what is timed is not the "
                         "same work",
                         profile_phase_names[series->phase], group->context);
    group->checksums[series->phase] = checksum;
    return STATUS_OK;
}

/* From here on passes are launched or replayed, as the series says; two passes to be recorded. */
static enum status begin_series(struct profile_group *group, const struct profile_series *series, struct error *error)
{
    double ms;
    group->bench->device->graphs = series->graphs;
    for (int warm = 0; series->graphs && warm < WARM_REPLAYS; warm++)
        if (pass(group, series, &ms, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* A pass with its operations timed, or, without a profile, with nothing timed inside; `ms` is from outside. */
static enum status look(struct profile_group *group, const struct profile_series *series, struct profile *profile,
                        struct profile_pass *inside, double *ms, struct error *error)
{
    if (profile == NULL)
        return pass(group, series, ms, error);
    if (profile_start(profile, error) != STATUS_OK || pass(group, series, ms, error) != STATUS_OK)
        return error->status;
    return profile_read(profile, inside, error);
}

/* All phases once, kept as `repetition` unless that is negative. The decode step with replays needs the one before it,
   launched, to tell its kernels apart. */
static enum status visit(struct profile_group *group, struct profile *profile, int repetition, struct error *error)
{
    for (int i = 0; i < group->series_count; i++) {
        struct profile_series *series = &group->series[i];
        struct profile_pass inside = {0};
        double ms = 0;
        enum status status = begin_series(group, series, error);
        if (status == STATUS_OK)
            status = look(group, series, profile, &inside, &ms, error);
        if (status != STATUS_OK || repetition < 0)
            profile_pass_free(&inside);
        if (status != STATUS_OK)
            return status;
        if (repetition < 0)
            continue;
        if (profile != NULL)
            series->passes[repetition] = inside;
        (profile != NULL ? series->watched_ms : series->plain_ms)[repetition] = ms;
    }
    group->visited = true;
    return STATUS_OK;
}

/* Decode steps alone, of each series the fastest: what disturbs a step only lengthens it. ms [PROFILE_SERIES] */
static enum status visit_decode(struct profile_group *group, struct profile *profile, double *ms, struct error *error)
{
    for (int i = PROFILE_DECODE_OFF; i < group->series_count; i++) {
        double step_ms[STEPS_PER_VISIT];
        if (begin_series(group, &group->series[i], error) != STATUS_OK)
            return error->status;
        for (int step = 0; step < STEPS_PER_VISIT; step++) {
            struct profile_pass inside = {0};
            enum status status = look(group, &group->series[i], profile, &inside, &step_ms[step], error);
            profile_pass_free(&inside);
            if (status != STATUS_OK)
                return status;
            group->pairs.spent_ms += step_ms[step];
        }
        ms[i] = stats_quantile(step_ms, STEPS_PER_VISIT, 0);
    }
    return STATUS_OK;
}

/* ---- the same work twice, looked into and not: which comes first alternates ---- */

static enum status repetition(struct profile_group *group, int number, struct error *error)
{
    for (int half = 0; half < 2; half++) {
        struct profile *profile = NULL;
        bool watched = half != (number > 0 && number % 2);
        if (watched && profile_open(&profile, group->bench->device, NULL, 0, error) != STATUS_OK)
            return error->status;
        enum status status = visit(group, profile, number, error);
        profile_close(profile);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static double hooks_percent(double plain_ms, double watched_ms)
{
    return plain_ms > 0 ? 100 * (watched_ms - plain_ms) / plain_ms : 0;
}

static enum status pair(struct profile_group *group, struct error *error)
{
    double ms[2][PROFILE_SERIES] = {{0}}; /* [watched] */
    size_t number = group->pairs.count;
    for (size_t half = 0; half < 2; half++) {
        struct profile *profile = NULL;
        bool watched = half != number % 2;
        if (watched && profile_open(&profile, group->bench->device, NULL, 0, error) != STATUS_OK)
            return error->status;
        enum status status = visit_decode(group, profile, ms[watched], error);
        profile_close(profile);
        if (status != STATUS_OK)
            return status;
    }
    for (int i = PROFILE_DECODE_OFF; i < group->series_count; i++) {
        group->series[i].hooks_percent[number] = hooks_percent(ms[0][i], ms[1][i]);
        group->series[i].pairs = number + 1;
    }
    group->pairs.count++;
    return STATUS_OK;
}

static bool enough_pairs(const struct profile_group *group)
{
    const struct repeats *pairs = &group->pairs;
    if (pairs->count < pairs->rule.least)
        return false;
    for (int i = PROFILE_DECODE_OFF; i < group->series_count; i++) {
        struct stats_interval cost = stats_median_interval(group->series[i].hooks_percent, pairs->count);
        if (stats_judge(&pairs->rule, &cost, pairs->count, pairs->spent_ms) == STATS_GO_ON)
            return false;
    }
    return true;
}

/* What looking costs: of a prefill by the repetitions, of decode steps by pairs of visits. */
static enum status run_pairs(struct profile_group *group, struct error *error)
{
    struct profile_series *prefill = &group->series[PROFILE_PREFILL_OFF];
    double weight = pair_tokens * (double)group->pairs.rule.most;
    char what[64];
    snprintf(what, sizeof what, "context %d, batch %d, with and without looking", group->context, group->batch);
    for (int i = 0; i < group->n; i++)
        prefill->hooks_percent[i] = hooks_percent(prefill->plain_ms[i], prefill->watched_ms[i]);
    prefill->pairs = (size_t)group->n;
    while (!enough_pairs(group)) {
        repeats_announce(group->bench, &group->pairs, weight, what);
        if (pair(group, error) != STATUS_OK)
            return error->status;
    }
    repeats_announce_end(group->bench, &group->pairs, weight, what);
    return STATUS_OK;
}

/* ---- running ---- */

/* One more pass of each series for the hardware counters, where there are any. */
static enum status count_traffic(struct profile_group *group, struct error *error)
{
    struct device *device = group->bench->device;
    if (device->probes == NULL) {
        group->uncounted = "this device has no counters of its memory's traffic";
        return STATUS_OK;
    }
    for (int i = 0; i < group->series_count; i++) {
        struct profile_series *series = &group->series[i];
        double ms;
        if (begin_series(group, series, error) != STATUS_OK)
            return error->status;
        enum status begun = device->probes->counters_begin(device, &group->why);
        if (begun == STATUS_OK && pass(group, series, &ms, error) != STATUS_OK) {
            device->probes->counters_end(device, &series->counters, &group->why);
            return error->status;
        }
        series->counted =
            begun == STATUS_OK && device->probes->counters_end(device, &series->counters, &group->why) == STATUS_OK;
        if (!series->counted) {
            group->uncounted = group->why.message;
            return STATUS_OK;
        }
    }
    return STATUS_OK;
}

static enum status run_passes(struct profile_group *group, struct error *error)
{
    struct device *device = group->bench->device;
    int graphs = device->graphs;
    enum status status = STATUS_OK;
    for (int number = -1; number < group->n && status == STATUS_OK; number++) {
        progress_step(group->bench, (double)group->context * group->batch, "context %d, batch %d, repetition %d of %d",
                      group->context, group->batch, number + 1, group->n);
        status = bench_reader_sample(group->reader, error);
        if (status == STATUS_OK)
            status = repetition(group, number, error);
    }
    if (status == STATUS_OK)
        status = run_pairs(group, error);
    if (status == STATUS_OK)
        status = count_traffic(group, error);
    device->graphs = graphs;
    return status;
}

/* ---- memory ---- */

int profile_series_count(const struct bench *bench)
{
    struct error ignored;
    struct device *device = bench->device;
    if (!device->graphs || device->probes == NULL || device->probes->trace_begin(device, &ignored) != STATUS_OK)
        return PROFILE_DECODE_ON;
    device->probes->trace_end(device);
    return PROFILE_SERIES;
}

static int reps_of(const struct bench *bench)
{
    return bench_reps(bench, REPS, QUICK_REPS);
}

static struct stats_rule rule_of(const struct bench *bench)
{
    size_t given = (size_t)reps_of(bench);
    if (bench->options.reps || bench->options.quick)
        return (struct stats_rule){.least = given, .most = given};
    return (struct stats_rule){
        .least = LEAST_PAIRS, .most = MOST_PAIRS, .half_width = narrow_percent, .limit_ms = pairs_limit_ms};
}

double profile_group_weight(const struct bench *bench, int64_t context, int64_t batch)
{
    return (reps_of(bench) + 1.0) * (double)(context * batch) + pair_tokens * (double)rule_of(bench).most;
}

static enum status series_init(struct profile_series *series, size_t n, size_t pairs, struct error *error)
{
    series->passes = calloc(n, sizeof *series->passes);
    series->plain_ms = calloc(n, sizeof *series->plain_ms);
    series->watched_ms = calloc(n, sizeof *series->watched_ms);
    series->hooks_percent = calloc(pairs > n ? pairs : n, sizeof *series->hooks_percent);
    if (series->passes == NULL || series->plain_ms == NULL || series->watched_ms == NULL ||
        series->hooks_percent == NULL)
        return error_set(error, STATUS_DEVICE, "profile: out of host memory");
    return STATUS_OK;
}

static enum status group_init(struct profile_group *group, struct model *model, struct error *error)
{
    static const struct profile_series all[PROFILE_SERIES] = {
        [PROFILE_PREFILL_OFF] = {.phase = PROFILE_PREFILL, .graphs = false},
        [PROFILE_DECODE_OFF] = {.phase = PROFILE_DECODE, .graphs = false},
        [PROFILE_DECODE_ON] = {.phase = PROFILE_DECODE, .graphs = true}};
    group->series_count = profile_series_count(group->bench);
    for (int i = 0; i < group->series_count; i++) {
        group->series[i] = all[i];
        if (series_init(&group->series[i], (size_t)group->n, group->pairs.rule.most, error) != STATUS_OK)
            return error->status;
    }
    if (timed_batch_init(&group->sequences, group->bench, model, group->batch, group->context + 1, error) != STATUS_OK)
        return error->status;
    return bench_reader_open(group->bench, &group->reader, error);
}

void profile_group_free(struct profile_group *group)
{
    bench_reader_close(group->reader);
    timed_batch_free(&group->sequences);
    for (int i = 0; i < group->series_count; i++) {
        struct profile_series *series = &group->series[i];
        for (int number = 0; series->passes != NULL && number < group->n; number++)
            profile_pass_free(&series->passes[number]);
        free(series->passes);
        free(series->plain_ms);
        free(series->watched_ms);
        free(series->hooks_percent);
    }
}

static enum status open_model(struct bench *bench, int64_t context, int64_t batch, struct model *model,
                              struct error *error)
{
    int64_t rows = context * batch < PREFILL_ROWS_PROFILE ? context * batch : PREFILL_ROWS_PROFILE;
    struct model_limits limits = {
        .max_rows = (int)(rows > batch ? rows : batch), .max_sequences = (int)batch, .max_blocks = 1};
    struct bench_need need = {.kv_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, batch * (context + 1)),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, batch)};
    return bench_open_model(bench, &limits, &need, model, error);
}

enum status profile_group_measure(struct profile_group *group, struct bench *bench, int context, int batch,
                                  struct error *error)
{
    struct model model;
    double matrix;
    *group = (struct profile_group){
        .bench = bench, .context = context, .batch = batch, .n = reps_of(bench), .pairs.rule = rule_of(bench)};
    if (bench_matrix_ceiling(bench, bench->dtype, &matrix, error) != STATUS_OK ||
        open_model(bench, context, batch, &model, error) != STATUS_OK)
        return error->status;
    enum status status = group_init(group, &model, error);
    if (status == STATUS_OK)
        status = run_passes(group, error);
    if (status == STATUS_OK)
        group->read_ceiling = bench_reader_gbps(group->reader) * 1e9;
    group->matrix_ceiling = matrix * 1e12;
    timed_batch_free(&group->sequences);
    model_free(&model);
    return status;
}
