/* One stream of random numbers for all that draws on the host: SplitMix64 (Steele, Lea, Flood 2014). */
#ifndef KVLAB_ENGINE_RANDOM_H
#define KVLAB_ENGINE_RANDOM_H

#include <stdint.h>

uint64_t random_next(uint64_t *state);  /* any state is a good one; start with the seed */
double random_uniform(uint64_t *state); /* in [0, 1), 53 bits */

#endif
