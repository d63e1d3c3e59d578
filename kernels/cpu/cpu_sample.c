/* Seeded sampling, a row to a thread: kernels/sample.h says what is chosen. */
#include "kernels/cpu/cpu.h"
#include "kernels/sample.h"

#include <math.h>

struct row {
    const struct sample_args *args;
    size_t first; /* element of the row's first logit */
    float largest;
};

static float logit_of(const struct row *row, int id)
{
    return dtype_load(row->args->dtype, row->args->logits, row->first + (size_t)id) + 0.0f;
}

static uint64_t amount_of(const struct row *row, float logit, bool weights)
{
    return weights ? sample_weight(logit, row->largest, row->args->temperature) : 1;
}

/* The first token, in the order of sampling, at which the running sum of counts or weights reaches `amount`. */
static struct sample_place search(const struct row *row, bool weights, uint64_t amount)
{
    struct sample_place place = {0};
    for (int digit = SAMPLE_DIGITS - 1; digit >= 0; digit--) {
        uint64_t bins[SAMPLE_BINS] = {0};
        int shift = 8 * digit, bin = SAMPLE_BINS - 1;
        for (int id = 0; id < row->args->vocab; id++) {
            float logit = logit_of(row, id);
            uint32_t key = sample_key(logit);
            if (digit == SAMPLE_DIGITS - 1 || key >> (shift + 8) == place.key >> (shift + 8))
                bins[key >> shift & (SAMPLE_BINS - 1)] += amount_of(row, logit, weights);
        }
        while (bin > 0 && place.before + bins[bin] < amount)
            place.before += bins[bin--];
        place.key |= (uint32_t)bin << shift;
    }
    place.each = amount_of(row, sample_logit(place.key), weights);
    return place;
}

/* Id of the n-th token (from 1) with that key. */
static int32_t nth(const struct row *row, uint32_t key, uint64_t n)
{
    for (int id = 0; id < row->args->vocab; id++)
        if (sample_key(logit_of(row, id)) == key && --n == 0)
            return id;
    return -1;
}

/* Of all logits; NaN where one is not finite. */
static float largest_of(const struct row *row)
{
    float largest = -INFINITY;
    for (int id = 0; id < row->args->vocab; id++) {
        float logit = logit_of(row, id);
        if (!isfinite(logit))
            return NAN;
        largest = logit > largest ? logit : largest;
    }
    return largest;
}

static int32_t choose(struct row *row, uint32_t point)
{
    const struct sample_args *args = row->args;
    row->largest = largest_of(row);
    if (isnan(row->largest))
        return -1;
    uint64_t kept = args->top_k > 0 && args->top_k < args->vocab ? (uint64_t)args->top_k : (uint64_t)args->vocab;
    struct sample_place last = search(row, false, kept);
    uint64_t weight = sample_weight(sample_logit(last.key), row->largest, args->temperature), sum = 0;
    for (int id = 0; id < args->vocab; id++) {
        float logit = logit_of(row, id);
        if (sample_key(logit) > last.key)
            sum += sample_weight(logit, row->largest, args->temperature);
    }
    sum += sample_ties(&last, kept) * weight;
    uint64_t wanted = sample_nucleus(sum, args->top_p);
    struct sample_place edge = search(row, true, wanted);
    uint64_t nucleus = edge.before + sample_ties(&edge, wanted) * edge.each;
    uint64_t amount = sample_amount(nucleus, point);
    struct sample_place chosen = search(row, true, amount);
    return nth(row, chosen.key, sample_ties(&chosen, amount));
}

enum status cpu_sample(struct device *device, const struct sample_args *args, struct error *error)
{
    (void)error;
#pragma omp parallel for schedule(static) num_threads(cpu_of(device)->threads) if (args->rows > 1)
    for (int r = 0; r < args->rows; r++) {
        struct row row = {.args = args, .first = (size_t)r * (size_t)args->vocab};
        args->index[r] = choose(&row, args->points[r]);
    }
    return STATUS_OK;
}
