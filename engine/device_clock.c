#include "engine/device_clock.h"

#include <time.h>

enum status device_clock_open(struct device_clock *clock, struct device *device, bool waits, struct error *error)
{
    *clock = (struct device_clock){.device = device, .waits = waits};
    if (device->ops->event_create(device, &clock->last, error) != STATUS_OK ||
        device->ops->event_create(device, &clock->next, error) != STATUS_OK ||
        device->ops->synchronize(device, error) != STATUS_OK)
        return error->status;
    return device->ops->event_record(device, clock->last, error);
}

void device_clock_close(struct device_clock *clock)
{
    if (clock->last != NULL)
        clock->device->ops->event_destroy(clock->device, clock->last);
    if (clock->next != NULL)
        clock->device->ops->event_destroy(clock->device, clock->next);
    *clock = (struct device_clock){0};
}

/* From one reading to the next: a GPU gives single-precision milliseconds, too coarse over a long run. */
static enum status read_clock(void *context, double *ms, struct error *error)
{
    struct device_clock *clock = context;
    struct device *device = clock->device;
    double passed;
    if (device->ops->event_record(device, clock->next, error) != STATUS_OK ||
        device->ops->event_elapsed_ms(device, clock->last, clock->next, &passed, error) != STATUS_OK)
        return error->status;
    struct device_event *last = clock->last;
    clock->last = clock->next;
    clock->next = last;
    *ms = clock->ms += passed;
    return STATUS_OK;
}

static enum status wait_until(void *context, double ms, struct error *error)
{
    struct device_clock *clock = context;
    double now = 0.0;
    if (read_clock(clock, &now, error) != STATUS_OK)
        return error->status;
    if (!clock->waits) {
        clock->ms = ms > now ? ms : now;
        return STATUS_OK;
    }
    if (ms > now) {
        double seconds = (ms - now) / 1e3;
        struct timespec span = {.tv_sec = (time_t)seconds};
        span.tv_nsec = (long)((seconds - (double)span.tv_sec) * 1e9);
        nanosleep(&span, NULL); /* a signal may end it: who waits looks at the time again */
    }
    return STATUS_OK;
}

struct scheduler_clock device_clock_functions(struct device_clock *clock)
{
    return (struct scheduler_clock){.context = clock, .read = read_clock, .wait_until = wait_until};
}
