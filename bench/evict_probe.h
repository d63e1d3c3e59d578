/* The recall probe of evict: a fact is planted in a text, other text follows, and then it is asked for:
       Remember: the number of Gideon is 4821.
       ...
       Recall: the number of Gideon is
   The data of the tiny models holds such lines, so that these have learned to look back. Right is who says all four
   digits, greedily. Two places of the fact in texts of one length: far, at the very start; near, `near_tokens` before
   the last digit asked for. Tokens are bytes. */
#ifndef KVLAB_BENCH_EVICT_PROBE_H
#define KVLAB_BENCH_EVICT_PROBE_H

#include "bench/harness/quality.h"

enum { PROBE_NEAR, PROBE_FAR, PROBE_PLACES };
enum { PROBE_DIGITS = 4, PROBE_SHORTEST = 96 }; /* no probe is shorter: fact, question and answer */

struct probe {
    const struct eviction_options *eviction; /* EVICT_NOTHING: full attention */
    int tokens;      /* of the text and its question: the last of them asks for the first digit */
    int near_tokens; /* from the near fact's first letter to the token that asks for the last digit */
    int count;       /* facts per place; their names, numbers and the text between differ */
};

/* From the fact's first letter to the token that asks for the last digit. */
int probe_distance(const struct probe *probe, int place);

/* What can be said before the run: "kept" if every token of the fact is held whenever a digit is asked for, whatever
   attention was; "lost" if none of its digits can be; "open" where the policy goes by attention. */
const char *probe_predict(const struct probe *probe, int place);

struct probe_outcome {
    int right[PROBE_PLACES]; /* of probe.count */
    double
        kept_percent[PROBE_PLACES]; /* of the fact's digits' slots, over all heads and layers, when it is asked for */
};

/* Runs all of them side by side, 2 * count sequences; the model's limits must allow that. Filler comes from `text`. */
enum status probe_run(struct bench *bench, struct model *model, const struct text *text, const struct probe *probe,
                      struct probe_outcome *outcome, struct error *error);

#endif
