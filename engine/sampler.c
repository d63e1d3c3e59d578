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

int32_t sampler_choose(struct sampler *sampler, float *logits, int vocab, int32_t *scratch)
{
    if (sampler->temperature <= 0.0f)
        return first_largest(logits, vocab);
    for (int32_t i = 0; i < vocab; i++)
        scratch[i] = i;
    qsort_r(scratch, (size_t)vocab, sizeof *scratch, by_logit, logits);
    int kept = sampler->top_k > 0 && sampler->top_k < vocab ? sampler->top_k : vocab;

    /* Probabilities of the kept tokens, relative to the largest; then the nucleus: the fewest whose share reaches
     * top_p. */
    float largest = logits[scratch[0]];
    double sum = 0.0;
    for (int i = 0; i < kept; i++) {
        logits[scratch[i]] = expf((logits[scratch[i]] - largest) / sampler->temperature);
        sum += (double)logits[scratch[i]];
    }
    double nucleus = 0.0;
    int count = 0;
    while (count < kept && (count == 0 || nucleus < (double)sampler->top_p * sum))
        nucleus += (double)logits[scratch[count++]];

    double point = random_uniform(&sampler->state) * nucleus;
    for (int i = 0; i < count - 1; i++) {
        point -= (double)logits[scratch[i]];
        if (point < 0.0)
            return scratch[i];
    }
    return scratch[count - 1];
}
