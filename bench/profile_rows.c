#include "bench/profile_rows.h"

#include <stdlib.h>
#include <string.h>

static const struct profile_operation *find(const struct profile_pass *pass, const char *name)
{
    for (size_t i = 0; i < pass->count; i++)
        if (strcmp(pass->operations[i].name, name) == 0)
            return &pass->operations[i];
    return NULL;
}

/* Stable: what takes the same time stays in the order of the pass. */
static void sort(struct profile_row *rows, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        struct profile_row row = rows[i];
        size_t at = i;
        for (; at > 0 && rows[at - 1].ms < row.ms; at--)
            rows[at] = rows[at - 1];
        rows[at] = row;
    }
}

static enum status medians_of_operations(struct profile_medians *medians, const struct profile_pass *passes, size_t n,
                                         double *samples, struct error *error)
{
    for (size_t i = 0; i < passes[0].count; i++) {
        const struct profile_operation *first = &passes[0].operations[i];
        for (size_t pass = 0; pass < n; pass++) {
            const struct profile_operation *same = find(&passes[pass], first->name);
            if (same == NULL || same->calls != first->calls || passes[pass].count != passes[0].count)
                return error_set(error, STATUS_CHECK_FAILED,
                                 "profile: repetition %zu has other calls of %s than the first: what is timed is not "
                                 "the same work",
                                 pass + 1, first->name);
            samples[pass] = same->ms;
        }
        medians->rows[medians->count++] = (struct profile_row){first, stats_median(samples, n)};
    }
    for (size_t pass = 0; pass < n; pass++)
        samples[pass] = passes[pass].pass_ms;
    medians->pass_ms = stats_median(samples, n);
    for (size_t pass = 0; pass < n; pass++)
        samples[pass] = passes[pass].gap_ms;
    medians->gap_ms = stats_median(samples, n);
    medians->gaps = passes[0].gaps;
    return STATUS_OK;
}

enum status profile_medians_of(struct profile_medians *medians, const struct profile_pass *passes, size_t n,
                               struct error *error)
{
    double *samples = calloc(n, sizeof *samples);
    *medians = (struct profile_medians){.rows = calloc(passes[0].count + 1, sizeof *medians->rows)};
    enum status status = STATUS_OK;
    if (samples == NULL || medians->rows == NULL)
        status = error_set(error, STATUS_DEVICE, "profile: out of host memory");
    if (status == STATUS_OK)
        status = medians_of_operations(medians, passes, n, samples, error);
    free(samples);
    sort(medians->rows, medians->count);
    return status;
}

void profile_medians_free(struct profile_medians *medians)
{
    free(medians->rows);
    *medians = (struct profile_medians){0};
}

const char *profile_hooks_verdict(const struct stats_interval *cost, double limit)
{
    if (cost->known && cost->high < limit)
        return "below";
    return cost->known && cost->low > limit ? "above" : "not resolved";
}
