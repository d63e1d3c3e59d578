/* What the next token is drawn from, on the host: greedy, or sampling with temperature, top-k and top-p (Holtzman et
   al. 2020). Speculative decoding needs the whole distribution; plain decoding chooses on the device
   (kernels/device.h). */
#ifndef KVLAB_ENGINE_SAMPLER_H
#define KVLAB_ENGINE_SAMPLER_H

#include <stdint.h>

struct sampler {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: all */
    float top_p;       /* 1: all */
    uint64_t state;    /* of the random stream; engine/random.h; set it to the seed */
};

/* What a sampler draws from: the tokens that top-k and top-p leave, and the share of each. */
struct distribution {
    float *share; /* host [vocab], sums to 1; 0 for a token that is not left */
    int32_t *ids; /* host [vocab]; the first `count` are the tokens left, the likeliest first */
    int count;
};

/* Turns the logits in distribution->share into shares. Greedy leaves one token. */
void sampler_distribution(const struct sampler *sampler, struct distribution *distribution, int vocab);
/* A token with a probability in proportion to its share: the shares need not sum to 1, but one must be above 0. */
int32_t distribution_draw(const struct distribution *distribution, uint64_t *state);

#endif
