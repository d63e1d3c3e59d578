/* Seeded sampling as every device does it: temperature, top-k, and the nucleus (Holtzman et al. 2020). For C, CUDA and
   the stand-in; the devices differ in who adds up, not in what.

   Tokens stand in descending order of their logits, of equals the smaller id first. A token's weight is exp((logit -
   largest) / temperature) as a whole number of 2^-32: sums of whole numbers do not depend on the order in which they
   are taken, so that equal logits give the same token on every device. Weights below 2^-32 of the largest are 0.

   The kept tokens are the first top_k; of these the fewest whose weights reach top_p of their sum are the nucleus; the
   choice is the token at which the running sum of weights in the nucleus passes point / 2^32 of it. Each of the three
   is the same search: the first token at which a running sum, of counts or of weights, reaches an amount. */
#ifndef KVLAB_KERNELS_SAMPLE_H
#define KVLAB_KERNELS_SAMPLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SAMPLE_INLINE static __host__ __device__ inline
#else
#define SAMPLE_INLINE static inline
#endif

enum { SAMPLE_BINS = 256, SAMPLE_DIGITS = 4 }; /* a search narrows the key by eight bits at a time */

/* A larger logit has a larger key; -0 is 0. */
SAMPLE_INLINE uint32_t sample_key(float logit)
{
    uint32_t bits;
    float value = logit + 0.0f;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

SAMPLE_INLINE float sample_logit(uint32_t key)
{
    uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

SAMPLE_INLINE uint64_t sample_weight(float logit, float largest, float temperature)
{
    return (uint64_t)(expf((logit - largest) / temperature) * 4294967296.0f);
}

/* What a search found: all tokens with larger keys add up to `before`, and `each` that has `key` adds as much. */
struct sample_place {
    uint32_t key;
    uint64_t before, each;
};

/* Of the tokens with that key, how many the running sum needs to reach `amount` (> before). */
SAMPLE_INLINE uint64_t sample_ties(const struct sample_place *place, uint64_t amount)
{
    return (amount - place->before + place->each - 1) / place->each;
}

/* The amount that the nucleus must reach, of the kept tokens' sum. */
SAMPLE_INLINE uint64_t sample_nucleus(uint64_t sum, float top_p)
{
    double wanted = ceil((double)top_p * (double)sum);
    return wanted < 1.0 ? 1 : wanted < (double)sum ? (uint64_t)wanted : sum;
}

/* The amount at which the choice lies: in 1 .. nucleus. */
SAMPLE_INLINE uint64_t sample_amount(uint64_t nucleus, uint32_t point)
{
    uint64_t at = (uint64_t)((double)nucleus * ((double)point / 4294967296.0));
    return at < nucleus ? at + 1 : nucleus;
}

#endif
