#include "bench/harness/in_flight.h"

#include <math.h>
#include <stdlib.h>

enum status in_flight_change(struct in_flight *flight, double at_ms, int more, struct error *error)
{
    if (flight->n == flight->capacity) {
        size_t capacity = 2 * flight->capacity + 1024;
        double *at = realloc(flight->at_ms, capacity * sizeof *at);
        flight->at_ms = at ? at : flight->at_ms;
        int *count = realloc(flight->count, capacity * sizeof *count);
        flight->count = count ? count : flight->count;
        if (!at || !count)
            return error_set(error, STATUS_DEVICE, "requests in flight: out of host memory");
        flight->capacity = capacity;
    }
    flight->count[flight->n] = more + (flight->n ? flight->count[flight->n - 1] : 0);
    flight->at_ms[flight->n++] = at_ms;
    return STATUS_OK;
}

double in_flight_mean(const struct in_flight *flight, double from, double to)
{
    double area = 0.0;
    for (size_t i = 0; i + 1 < flight->n; i++) {
        double low = fmax(flight->at_ms[i], from), high = fmin(flight->at_ms[i + 1], to);
        area += high > low ? (high - low) * flight->count[i] : 0.0;
    }
    return area / (to - from);
}

void in_flight_free(struct in_flight *flight)
{
    free(flight->at_ms);
    free(flight->count);
    *flight = (struct in_flight){0};
}
