/* Eviction by a budget: which tokens' K and V a sequence keeps, per layer and KV head ("head" here). Host bookkeeping
   only; engine/kv_evict.h moves the rows on the device.

   A head has `budget` slots. The newest token takes the next free slot; where none is left, `drop` tokens are given up
   first, and rows from the end fill the holes, so that slots 0 .. held - 1 are always in use. A query sees at most
   `budget` keys, its own included. The order of the slots is no order of the tokens: attention does not depend on it,
   since each key was rotated for its token's own position.

   The policies, as their papers have them:
   - recent   the newest tokens only: "window attention", which Xiao et al. 2023 (StreamingLLM, section 3.1, figure 1b)
              show to collapse once the first token is evicted; with `sinks` > 0 their remedy, attention sinks: the
              first tokens stay, and positions are those inside the cache (section 3.2). Every head keeps the same.
   - heavy    heavy hitters (Zhang et al. 2023, H2O, section 4, algorithm 1): half of the budget for the newest tokens,
              half for those of largest accumulated attention; greedily, a token per step. Original positions.
   - persistent  persistence of importance (Liu et al. 2023, Scissorhands, section 4, algorithms 1 and 2): when the
              budget is full, half of it is dropped at once: the tokens most often attended below average in the last
              `history` steps, the newest `recent` ones excepted. Original positions.
   Attention of a head's group of query heads counts together. */
#ifndef KVLAB_ENGINE_EVICTION_H
#define KVLAB_ENGINE_EVICTION_H

#include "kernels/errors.h"

#include <stdbool.h>
#include <stdint.h>

enum eviction_policy { EVICT_NOTHING, EVICT_ALL_BUT_RECENT, EVICT_LIGHT_HITTERS, EVICT_UNIMPORTANT };

struct eviction_options {
    enum eviction_policy policy;
    int budget;  /* slots per head, >= 2 */
    int sinks;   /* EVICT_ALL_BUT_RECENT: first tokens that stay, < budget - 1 */
    int recent;  /* newest tokens that a query always sees, its own among them */
    int drop;    /* tokens given up at once */
    int history; /* EVICT_UNIMPORTANT: steps that are counted before a drop */
};

/* The papers' settings at a budget: H2O halves it (section 5); Scissorhands drops half, counts at most 400 steps, and
   spares 10 tokens (section 5). `sinks` is 4 in StreamingLLM. */
struct eviction_options eviction_recent(int budget, int sinks);
struct eviction_options eviction_heavy(int budget);
struct eviction_options eviction_persistent(int budget);

/* Does it go by attention weights? */
bool eviction_observes(const struct eviction_options *options);
/* The first token from which on all are held when token `newest` asks, whatever attention was: what can be said before
   a run. (Sinks are held besides.) */
int eviction_surely_from(const struct eviction_options *options, int newest);

/* One sequence's slots in every head. */
struct eviction {
    struct eviction_options options;
    int heads;      /* layers * KV heads, layer by layer */
    int held;       /* slots in use, in every head */
    int evicted;    /* tokens dropped so far, in every head */
    int32_t *token; /* [heads][budget], which token (position in the text) a slot holds */
    double *score;  /* [heads][budget], what the policy goes by: the lowest is dropped, of equals the oldest */
    bool *dropped;  /* [budget], scratch */
};

enum status eviction_init(struct eviction *eviction, const struct eviction_options *options, int heads,
                          struct error *error);
void eviction_free(struct eviction *eviction); /* takes a zeroed struct */
void eviction_reset(struct eviction *eviction);

/* Tokens that must be given up before the next one has a slot: 0 or options.drop. */
int eviction_due(const struct eviction *eviction);
/* Gives them up. Row from[i][head] is to move to to[i][head], -1: nothing; i < options.drop, a row of both arrays is
   `stride` long. Moves of one head may be made in any order. */
void eviction_drop(struct eviction *eviction, int32_t *from, int32_t *to, int stride);
/* The next token takes slot `held`. */
void eviction_append(struct eviction *eviction);
/* The newest token's attention: mass[head][budget], softmax weights over the slots in use, summed over a group of
   `group` query heads. */
void eviction_observe(struct eviction *eviction, const float *mass, int group);

#endif
