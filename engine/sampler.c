#include "engine/sampler.h"

#include "engine/random.h"

#include <math.h>
#include <stdlib.h>

static int32_t first_largest(const float *logits, int vocab)
{
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Descending by logit, ties by id, so that the order never depends on the sort. */
static int by_logit(const void *a, const void *b, void *context)
{
    const float *logits = context;
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (logits[i] != logits[j])
        return logits[i] > logits[j] ? -1 : 1;
    return (i > j) - (i < j);
}

/* All on one token. */
static void one_token(struct distribution *distribution, int vocab, int32_t token)
{
    for (int i = 0; i < vocab; i++)
        distribution->share[i] = 0.0f;
    distribution->share[token] = 1.0f;
    distribution->ids[0] = token;
    distribution->count = 1;
}

void sampler_distribution(const struct sampler *sampler, struct distribution *distribution, int vocab)
{
    float *share = distribution->share;
    int32_t *ids = distribution->ids;
    if (sampler->temperature <= 0.0f) {
        one_token(distribution, vocab, first_largest(share, vocab));
        return;
    }
    for (int32_t i = 0; i < vocab; i++)
        ids[i] = i;
    qsort_r(ids, (size_t)vocab, sizeof *ids, by_logit, share);
    int kept = sampler->top_k > 0 && sampler->top_k < vocab ? sampler->top_k : vocab;

    /* Probabilities of the kept tokens, relative to the largest; then the nucleus: the fewest whose share reaches
     * top_p. */
    float largest = share[ids[0]];
    double sum = 0.0;
    for (int i = 0; i < kept; i++) {
        share[ids[i]] = expf((share[ids[i]] - largest) / sampler->temperature);
        sum += (double)share[ids[i]];
    }
    double nucleus = 0.0;
    int count = 0;
    while (count < kept && (count == 0 || nucleus < (double)sampler->top_p * sum))
        nucleus += (double)share[ids[count++]];

    for (int i = 0; i < vocab; i++)
        share[ids[i]] = i < count ? (float)((double)share[ids[i]] / nucleus) : 0.0f;
    distribution->count = count;
}

int32_t distribution_draw(const struct distribution *distribution, uint64_t *state)
{
    const float *share = distribution->share;
    const int32_t *ids = distribution->ids;
    double sum = 0.0;
    for (int i = 0; i < distribution->count; i++)
        sum += (double)share[ids[i]];
    double point = random_uniform(state) * sum;
    int32_t last = ids[0]; /* with a share: the point may come to lie behind all of them by rounding */
    for (int i = 0; i < distribution->count; i++) {
        if (share[ids[i]] <= 0.0f)
            continue;
        last = ids[i];
        point -= (double)share[ids[i]];
        if (point < 0.0)
            break;
    }
    return last;
}
