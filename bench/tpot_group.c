#include "bench/tpot_group.h"

#include "engine/work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_STEPS = 1 };

/* Without --reps. Narrow is a tenth of the predicted slope, which no repetition has a part in (see stats_judge()). */
enum { LEAST_REPS = 8, MOST_REPS = 90, QUICK_REPS = 3, REPS_WITHOUT_SLOPE = 30 };
static const double narrow_share = 0.1, limit_ms = 60e3;

/* Relative work, for the time left: of filling the caches; all repetitions count 1. */
static const double fill_weight = 0.25;
const double tpot_group_weight = 1.25;

/* The last of `context` positions, in each of `batch` sequences, sees all of them, or its layer's window. */
uint64_t tpot_kv_read_bytes(const struct bench *bench, int64_t context, int64_t batch)
{
    struct pass_shape step = {.sequences = batch, .start = context - 1, .count = 1, .logits = 1};
    return work_kv_read_bytes(&bench->config, bench->kv_dtype, &step);
}

double tpot_group_kv_bytes_per_token(const struct tpot_group *group)
{
    return stats_fit_line(group->x, group->kv, group->contexts->count).slope;
}

const char *tpot_group_stopped_by(const struct tpot_group *group)
{
    static const char *const texts[] = {[STATS_NARROW] = "width", [STATS_MOST] = "most", [STATS_OUT_OF_TIME] = "time"};
    return group->repeats.rule.least < group->repeats.rule.most ? texts[group->stopped_by] : "given";
}

/* ---- a batch size's memory ---- */

int64_t tpot_room(const struct int_list *contexts)
{
    return int_list_max(contexts) + TPOT_STEPS_PER_VISIT;
}

static enum status group_init(struct tpot_group *group, struct error *error)
{
    size_t contexts = group->contexts->count, batch = (size_t)group->batch, most = group->repeats.rule.most;
    group->chosen = calloc(batch * TPOT_STEPS_PER_VISIT, sizeof *group->chosen);
    group->samples = calloc(contexts * most * TPOT_STEPS_PER_VISIT, sizeof *group->samples);
    group->visits = calloc(most * contexts, sizeof *group->visits);
    group->x = calloc(contexts, sizeof *group->x);
    group->kv = calloc(contexts, sizeof *group->kv);
    group->checksums = calloc(contexts, sizeof *group->checksums);
    if (group->compare_graphs)
        group->launched = calloc(contexts * most * TPOT_STEPS_PER_VISIT, sizeof *group->launched);
    if ((group->compare_graphs && !group->launched) || !group->chosen || !group->samples || !group->visits ||
        !group->x || !group->kv || !group->checksums)
        return error_set(error, STATUS_DEVICE, "tpot: out of host memory");
    for (size_t i = 0; i < contexts; i++) {
        group->x[i] = (double)group->contexts->values[i];
        group->kv[i] = (double)tpot_kv_read_bytes(group->bench, group->contexts->values[i], group->batch);
    }
    int tokens = (int)tpot_room(group->contexts);
    if (timed_batch_init(&group->sequences, group->bench, group->model, group->batch, tokens, error) != STATUS_OK ||
        timed_batch_prefill(&group->sequences, tokens, error) != STATUS_OK)
        return error->status;
    return bench_reader_open(group->bench, &group->reader, error);
}

void tpot_group_free(struct tpot_group *group)
{
    bench_reader_close(group->reader);
    timed_batch_free(&group->sequences);
    free(group->chosen);
    free(group->samples);
    free(group->launched);
    free(group->visits);
    free(group->x);
    free(group->kv);
    free(group->checksums);
}

/* ---- measuring ---- */

/* Takes the steps of one visit to a context; ms [TPOT_STEPS_PER_VISIT]. */
static enum status visit(struct tpot_group *group, size_t at, double *ms, struct error *error)
{
    double warm_ms;
    struct timed_batch *sequences = &group->sequences;
    int context = (int)group->contexts->values[at], before = context > WARM_STEPS ? context - WARM_STEPS : 0;
    if (timed_batch_rewind(sequences, before, error) != STATUS_OK)
        return error->status;
    for (int i = before; i < context; i++) {
        if (timed_batch_pass(sequences, group->batch, 1, &warm_ms, error) != STATUS_OK)
            return error->status;
        group->repeats.spent_ms += warm_ms;
    }
    for (int i = 0; i < TPOT_STEPS_PER_VISIT; i++) {
        if (timed_batch_pass(sequences, group->batch, 1, &ms[i], error) != STATUS_OK)
            return error->status;
        group->repeats.spent_ms += ms[i];
        memcpy(group->chosen + i * group->batch, sequences->chosen, (size_t)group->batch * sizeof *group->chosen);
    }
    return STATUS_OK;
}

/* It must choose the tokens that the visit before it chose. */
static enum status check_tokens(struct tpot_group *group, size_t at, int repetition, bool first, struct error *error)
{
    int64_t context = group->contexts->values[at];
    uint64_t checksum =
        bench_checksum(group->chosen, (size_t)group->batch * TPOT_STEPS_PER_VISIT * sizeof *group->chosen);
    if (!first && checksum != group->checksums[at])
        return error_set(error, STATUS_CHECK_FAILED,
                         "tpot: at context %" PRId64 " repetition %d chose other tokens than the one before: "
                         "what is timed is not the same work",
                         context, repetition);
    group->checksums[at] = checksum;
    return STATUS_OK;
}

/* The same visit with every operation launched: what replaying saves. */
static enum status launched_visit(struct tpot_group *group, size_t at, int repetition, struct error *error)
{
    struct device *device = group->bench->device;
    double *ms = group->launched + (at * group->repeats.rule.most + (size_t)repetition) * TPOT_STEPS_PER_VISIT;
    device->graphs = 0;
    enum status status = visit(group, at, ms, error);
    device->graphs = 1;
    return status == STATUS_OK ? check_tokens(group, at, repetition, false, error) : status;
}

/* A visit whose times are kept. The line goes through the fastest of its steps: what disturbs a step only lengthens it,
   and the prediction is of steps that nothing disturbs. */
static enum status timed_visit(struct tpot_group *group, size_t at, int repetition, struct error *error)
{
    int64_t context = group->contexts->values[at];
    double *samples = group->samples + (at * group->repeats.rule.most + (size_t)repetition) * TPOT_STEPS_PER_VISIT;
    if (visit(group, at, samples, error) != STATUS_OK ||
        check_tokens(group, at, repetition, repetition == 0, error) != STATUS_OK)
        return error->status;
    if (group->launched && launched_visit(group, at, repetition, error) != STATUS_OK)
        return error->status;
    group->visits[(size_t)repetition * group->contexts->count + at] = stats_quantile(samples, TPOT_STEPS_PER_VISIT, 0);
    char setting[64];
    snprintf(setting, sizeof setting, "context=%" PRId64 ";batch=%d", context, group->batch);
    for (int i = 0; i < TPOT_STEPS_PER_VISIT; i++)
        if (samples_add(group->bench, setting, repetition, samples[i], "ms", error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

struct stats_line tpot_group_fit(const struct tpot_group *group)
{
    if (group->contexts->count < 2)
        return (struct stats_line){.interval_known = false};
    return stats_fit_repeated(group->x, group->visits, group->contexts->count, group->repeats.count);
}

static enum stats_verdict judge(const struct tpot_group *group)
{
    if (group->repeats.count < group->repeats.rule.least)
        return STATS_GO_ON;
    struct stats_line line = tpot_group_fit(group);
    struct stats_interval slope = {line.slope, line.slope_low, line.slope_high, line.interval_known};
    return stats_judge(&group->repeats.rule, &slope, group->repeats.count, group->repeats.spent_ms);
}

/* The read ceiling, and one pass over all contexts, upwards or downwards. */
static enum status repetition_of(struct tpot_group *group, struct error *error)
{
    size_t contexts = group->contexts->count, repetition = group->repeats.count;
    if (bench_reader_sample(group->reader, error) != STATUS_OK)
        return error->status;
    for (size_t i = 0; i < contexts; i++)
        if (timed_visit(group, repetition % 2 ? contexts - 1 - i : i, (int)repetition, error) != STATUS_OK)
            return error->status;
    group->repeats.count++;
    return STATUS_OK;
}

/* Every repetition visits all contexts, upwards and downwards in turn. A visit stores its tokens' K and V again, by
   decode steps where the prefill had computed them in large products; the pass that is not timed does that once for
   every context, upwards, so that all timed visits find the same values. */
static enum status repeat(struct tpot_group *group, struct error *error)
{
    double warm[TPOT_STEPS_PER_VISIT];
    char what[32];
    snprintf(what, sizeof what, "batch %d", group->batch);
    for (size_t i = 0; i < group->contexts->count; i++)
        if (visit(group, i, warm, error) != STATUS_OK)
            return error->status;
    group->repeats.spent_ms = 0;
    while ((group->stopped_by = judge(group)) == STATS_GO_ON) {
        repeats_announce(group->bench, &group->repeats, 1, what);
        if (repetition_of(group, error) != STATUS_OK)
            return error->status;
    }
    repeats_announce_end(group->bench, &group->repeats, 1, what);
    return STATUS_OK;
}

/* How many repetitions, by what was asked for; the width comes when the read ceiling is known. */
static struct stats_rule rule_of(const struct bench *bench, size_t contexts)
{
    if (!bench->options.reps && !bench->options.quick && contexts >= 2)
        return (struct stats_rule){.least = LEAST_REPS, .most = MOST_REPS, .limit_ms = limit_ms};
    size_t reps = (size_t)bench_reps(bench, REPS_WITHOUT_SLOPE, QUICK_REPS);
    return (struct stats_rule){.least = reps, .most = reps};
}

enum status tpot_group_measure(struct tpot_group *group, struct bench *bench, struct model *model,
                               const struct int_list *contexts, int batch, bool compare_graphs, struct error *error)
{
    *group = (struct tpot_group){.bench = bench,
                                 .model = model,
                                 .contexts = contexts,
                                 .batch = batch,
                                 .compare_graphs = compare_graphs,
                                 .repeats.rule = rule_of(bench, contexts->count)};
    progress_step(bench, fill_weight, "batch %d, filling the caches", batch);
    if (group_init(group, error) != STATUS_OK || bench_reader_sample(group->reader, error) != STATUS_OK)
        return error->status;
    if (contexts->count >= 2)
        group->repeats.rule.half_width = narrow_share * tpot_group_kv_bytes_per_token(group) /
                                         (bench_reader_gbps(group->reader) * 1e6); /* ms per token */
    if (repeat(group, error) != STATUS_OK)
        return error->status;
    group->read_ceiling = bench_reader_gbps(group->reader) * 1e9;
    return STATUS_OK;
}
