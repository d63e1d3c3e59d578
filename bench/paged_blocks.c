#include "bench/harness/timed_batch.h"
#include "bench/paged.h"
#include "engine/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_PER_VISIT = 3, WARM_STEPS = 1, PREFILL_ROWS_PAGED = 512 };

/* All caches at once, so that every repetition visits each of them. */
struct group {
    struct bench *bench;
    const struct paged_sweep *sweep;
    struct timed_batch *batches; /* [count]: one block, then each block size */
    size_t count;
    int32_t *chosen;     /* host [STEPS_PER_VISIT][slots] */
    double *samples;     /* ms, [count][reps * STEPS_PER_VISIT] */
    double *visits;      /* ms, [count][reps]: median of a visit's steps */
    uint64_t *checksums; /* [count] of the last visit */
};

int paged_blocks_room(const struct paged_sweep *sweep)
{
    return sweep->context + STEPS_PER_VISIT;
}

static int blocks_for(int tokens, int64_t block_size)
{
    return (int)((tokens + block_size - 1) / block_size);
}

struct model_limits paged_blocks_limits(const struct paged_sweep *sweep)
{
    int64_t least = sweep->block_sizes->values[0];
    for (size_t i = 1; i < sweep->block_sizes->count; i++)
        least = sweep->block_sizes->values[i] < least ? sweep->block_sizes->values[i] : least;
    return (struct model_limits){.max_rows = sweep->slots > PREFILL_ROWS_PAGED ? sweep->slots : PREFILL_ROWS_PAGED,
                                 .max_sequences = sweep->slots,
                                 .max_blocks = blocks_for(paged_blocks_room(sweep), least)};
}

uint64_t paged_blocks_kv_bytes(const struct bench *bench, const struct paged_sweep *sweep)
{
    int64_t tokens = paged_blocks_room(sweep);
    for (size_t i = 0; i < sweep->block_sizes->count; i++) {
        int64_t size = sweep->block_sizes->values[i];
        tokens += blocks_for(paged_blocks_room(sweep), size) * size;
    }
    return timed_batch_kv_bytes(&bench->config, bench->kv_dtype, sweep->slots, tokens);
}

/* Every layer reads the table of every sequence, 4 bytes a block. */
double paged_blocks_predicted_ratio(const struct bench *bench, const struct paged_sweep *sweep, int64_t block_size)
{
    struct pass_shape pass = {.sequences = sweep->slots, .start = sweep->context, .count = 1, .logits = 1};
    double bytes = (double)work_bytes(&bench->config, bench->dtype, bench->kv_dtype, &pass);
    double table = 4.0 * sweep->slots * blocks_for(sweep->context + 1, block_size);
    return (bytes + table * (double)bench->config.num_hidden_layers) / bytes;
}

/* ---- the caches ---- */

static int block_size_of(const struct group *group, size_t at)
{
    return at == 0 ? 0 : (int)group->sweep->block_sizes->values[at - 1];
}

static enum status group_init(struct group *group, struct model *model, struct error *error)
{
    const struct paged_sweep *sweep = group->sweep;
    size_t slots = (size_t)sweep->slots, reps = (size_t)sweep->reps;
    group->batches = calloc(group->count, sizeof *group->batches);
    group->chosen = calloc(STEPS_PER_VISIT * slots, sizeof *group->chosen);
    group->samples = calloc(group->count * reps * STEPS_PER_VISIT, sizeof *group->samples);
    group->visits = calloc(group->count * reps, sizeof *group->visits);
    group->checksums = calloc(group->count, sizeof *group->checksums);
    if (!group->batches || !group->chosen || !group->samples || !group->visits || !group->checksums)
        return error_set(error, STATUS_DEVICE, "paged: out of host memory");
    for (size_t i = 0; i < group->count; i++) {
        struct timed_batch *batch = &group->batches[i];
        int size = block_size_of(group, i);
        enum status status =
            size == 0 ? timed_batch_init(batch, group->bench, model, sweep->slots, paged_blocks_room(sweep), error)
                      : timed_batch_init_paged(batch, group->bench, model, sweep->slots, paged_blocks_room(sweep), size,
                                               error);
        if (status != STATUS_OK || timed_batch_prefill(batch, sweep->context, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

static void group_free(struct group *group)
{
    for (size_t i = 0; group->batches != NULL && i < group->count; i++)
        timed_batch_free(&group->batches[i]);
    free(group->batches);
    free(group->chosen);
    free(group->samples);
    free(group->visits);
    free(group->checksums);
}

/* ---- measuring ---- */

static enum status visit(struct group *group, size_t at, double *ms, struct error *error)
{
    double warm_ms;
    struct timed_batch *batch = &group->batches[at];
    int slots = group->sweep->slots,
        before = group->sweep->context > WARM_STEPS ? group->sweep->context - WARM_STEPS : 0;
    if (timed_batch_rewind(batch, before, error) != STATUS_OK)
        return error->status;
    for (int i = before; i < group->sweep->context; i++)
        if (timed_batch_pass(batch, slots, 1, &warm_ms, error) != STATUS_OK)
            return error->status;
    for (int i = 0; i < STEPS_PER_VISIT; i++) {
        if (timed_batch_pass(batch, slots, 1, &ms[i], error) != STATUS_OK)
            return error->status;
        memcpy(group->chosen + i * slots, batch->chosen, (size_t)slots * sizeof *group->chosen);
    }
    return STATUS_OK;
}

/* A visit whose times are kept; it must choose the tokens that the visit before it chose. */
static enum status timed_visit(struct group *group, size_t at, int repetition, struct error *error)
{
    size_t reps = (size_t)group->sweep->reps, chosen = STEPS_PER_VISIT * (size_t)group->sweep->slots;
    double *samples = group->samples + (at * reps + (size_t)repetition) * STEPS_PER_VISIT;
    if (visit(group, at, samples, error) != STATUS_OK)
        return error->status;
    uint64_t checksum = bench_checksum(group->chosen, chosen * sizeof *group->chosen);
    char setting[64];
    snprintf(setting, sizeof setting, "context=%d;block_size=%d", group->sweep->context, block_size_of(group, at));
    if (repetition > 0 && checksum != group->checksums[at])
        return error_set(error, STATUS_CHECK_FAILED,
                         "paged: at %s repetition %d chose other tokens than the one before: what is timed is not the "
                         "same work",
                         setting, repetition);
    group->checksums[at] = checksum;
    group->visits[at * reps + (size_t)repetition] = stats_median(samples, STEPS_PER_VISIT);
    for (int i = 0; i < STEPS_PER_VISIT; i++)
        if (samples_add(group->bench, setting, repetition, samples[i], "ms", error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* Every repetition visits all caches, upwards and downwards in turn; the first, which is not timed, stores by decode
   steps what the prefill computed in large products. */
static enum status repeat(struct group *group, struct error *error)
{
    for (int repetition = -1; repetition < group->sweep->reps; repetition++) {
        if (repetition >= 0)
            progress_step(group->bench, 1.0, "%d tokens, all block sizes, repetition %d of %d", group->sweep->context,
                          repetition + 1, group->sweep->reps);
        for (size_t i = 0; i < group->count; i++) {
            double warm[STEPS_PER_VISIT];
            enum status status = repetition < 0
                                     ? visit(group, i, warm, error)
                                     : timed_visit(group, repetition % 2 ? group->count - 1 - i : i, repetition, error);
            if (status != STATUS_OK)
                return status;
        }
    }
    return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Turns the visits of a cache into ratios to those of the one block; the latter itself last. */
static void set_ratio(const struct group *group, size_t at, struct paged_times *times)
{
    size_t reps = (size_t)group->sweep->reps, rank = stats_median_rank(reps);
    double *ratios = group->visits + at * reps;
    for (size_t r = 0; r < reps; r++)
        ratios[r] /= group->visits[r];
    qsort(ratios, reps, sizeof *ratios, ascending);
    times->ratio = stats_median(ratios, reps);
    times->interval_known = rank > 0;
    if (rank > 0) {
        times->ratio_low = ratios[rank - 1];
        times->ratio_high = ratios[reps - rank];
    }
}

static void summarize(const struct group *group, struct paged_times *times)
{
    size_t n = (size_t)group->sweep->reps * STEPS_PER_VISIT;
    for (size_t i = group->count; i-- > 0;) {
        const double *samples = group->samples + i * n;
        times[i] = (struct paged_times){.block_size = block_size_of(group, i),
                                        .n = n,
                                        .p10_ms = stats_quantile(samples, n, 0.1),
                                        .p50_ms = stats_median(samples, n),
                                        .p90_ms = stats_quantile(samples, n, 0.9),
                                        .checksum = group->checksums[i]};
        set_ratio(group, i, &times[i]);
    }
}

enum status paged_blocks_measure(struct bench *bench, struct model *model, const struct paged_sweep *sweep,
                                 struct paged_times *times, struct error *error)
{
    struct group group = {.bench = bench, .sweep = sweep, .count = 1 + sweep->block_sizes->count};
    enum status status = group_init(&group, model, error);
    if (status == STATUS_OK)
        status = repeat(&group, error);
    if (status == STATUS_OK)
        summarize(&group, times);
    group_free(&group);
    return status;
}
