/* Choosing the next token: greedy, or seeded sampling with temperature, top-k and top-p (Holtzman et al. 2020). */
#ifndef KVLAB_ENGINE_SAMPLER_H
#define KVLAB_ENGINE_SAMPLER_H

#include <stdint.h>

struct sampler {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: all */
    float top_p;       /* 1: all */
    uint64_t state;    /* of the random stream; engine/random.h; set it to the seed */
};

/* Token chosen from host logits[vocab] (f32, overwritten). scratch: host [vocab]. Greedy takes the first of equals. */
int32_t sampler_choose(struct sampler *sampler, float *logits, int vocab, int32_t *scratch);

#endif
