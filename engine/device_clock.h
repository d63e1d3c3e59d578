/* A clock for the scheduler by the device's own events: what operations take is measured. Time without work is skipped
   (a run of hours of arrivals takes as long as its forward passes), or really waited through. */
#ifndef KVLAB_ENGINE_DEVICE_CLOCK_H
#define KVLAB_ENGINE_DEVICE_CLOCK_H

#include "engine/scheduler.h"

struct device_clock {
    struct device *device;
    bool waits; /* false: time without work is skipped */
    double ms;  /* as read last; 0 when opened */
    struct device_event *last, *next;
};

enum status device_clock_open(struct device_clock *clock, struct device *device, bool waits, struct error *error);
void device_clock_close(struct device_clock *clock);                       /* takes a zeroed struct */
struct scheduler_clock device_clock_functions(struct device_clock *clock); /* borrow it */

#endif
