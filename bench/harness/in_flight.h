/* How many requests are in flight, as it changes over time, and its mean over a span. */
#ifndef KVLAB_BENCH_HARNESS_IN_FLIGHT_H
#define KVLAB_BENCH_HARNESS_IN_FLIGHT_H

#include "kernels/errors.h"

#include <stddef.h>

/* Zeroed to begin with: count[i] of them from at_ms[i] until at_ms[i + 1]. */
struct in_flight {
    double *at_ms;
    int *count;
    size_t n, capacity;
};

/* `more` of them from `at_ms` on, negative for fewer; moments do not go back. */
enum status in_flight_change(struct in_flight *flight, double at_ms, int more, struct error *error);
/* The mean over [from, to], which lies between the first and the last change. */
double in_flight_mean(const struct in_flight *flight, double from, double to);
void in_flight_free(struct in_flight *flight); /* takes a zeroed struct */

#endif
