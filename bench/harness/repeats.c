#include "bench/harness/repeats.h"

#include <math.h>

void repeats_announce(struct bench *bench, struct repeats *repeats, double weight, const char *what)
{
    size_t count = repeats->count;
    double each_ms = count > 0 ? repeats->spent_ms / (double)count : 0;
    double done = stats_rule_done(&repeats->rule, count + 1, repeats->spent_ms + each_ms);
    progress_step(bench, weight * fmax(0, done - repeats->announced), "%s, repetition %zu of %s%zu", what, count + 1,
                  repeats->rule.least < repeats->rule.most ? "at most " : "", repeats->rule.most);
    repeats->announced = fmax(done, repeats->announced);
}

void repeats_announce_end(struct bench *bench, struct repeats *repeats, double weight, const char *what)
{
    progress_step(bench, weight * (1 - repeats->announced), "%s, repeated often enough", what);
    progress_step(bench, 0, "%s, what comes after", what); /* ends that step, in no time */
    repeats->announced = 1;
}
