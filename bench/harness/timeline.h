/* Who has which slot, step by step. */
#ifndef KVLAB_BENCH_HARNESS_TIMELINE_H
#define KVLAB_BENCH_HARNESS_TIMELINE_H

#include "bench/harness/serving.h"

/* The steps in which a request had a slot; steps 0 until it had one. */
struct span {
    int slot, first_step, steps;
};

/* Notes in spans [requests] who had a slot in step number `at`. A request keeps the slot that it gets. */
void timeline_note(struct span *spans, const struct serving *serving, const struct step_record *step, int at);

/* A line per slot on stderr, `width` letters for all steps: that of the request, letters[request] from a to z, as a
   capital for every other request of the slot; a dot for nobody. */
void timeline_print(const struct span *spans, const char *letters, int requests, int slots, int64_t steps, int width);

#endif
