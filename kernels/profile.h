/* Where the time of a pass goes, by operation: calls, time, bytes and floating-point operations, and the gaps between.

   While a profile is open it stands before the device's operations and passes each call on: device->ops points to its
   own table. A device without an open profile has nothing of it, so there is no cost when it is off.

   Where the device can trace its kernels (kernels/probes.h), an operation's time is that of its kernels, gaps are
   those between kernels, and replayed passes are seen inside. Elsewhere each operation has an event before and after
   it: on a CPU that is the clock; on a GPU the events stand between the kernels and take time themselves, and passes
   are not replayed while the profile is open.

   A profile borrows the device; one at a time; as thread-safe as the device. */
#ifndef KVLAB_KERNELS_PROFILE_H
#define KVLAB_KERNELS_PROFILE_H

#include "kernels/probes.h"

struct profile;

/* An operation as it was called: the work of it by kernels/work.h, flops 0 where they do not matter. */
struct profile_call {
    char name[40]; /* "attention"; products with their shape, "linear 896 -> 4864" */
    uint64_t bytes, flops;
    double start_ms, end_ms; /* where no kernels are traced */
    int in_pass;             /* between pass_begin() and pass_end(): replayed with it */
};

/* All calls of one name. */
struct profile_operation {
    char name[40];
    int calls, launches; /* launches: kernels; 0 where they are not traced */
    uint64_t bytes, flops;
    double ms;
    char kernels[200]; /* names of its kernels, the first first; "" where they are not traced */
};

struct profile_pass {
    struct profile_operation *operations; /* in the order of their first calls */
    size_t count;
    double pass_ms; /* from the first start to the last end */
    double gap_ms;  /* of that, when nothing ran */
    int gaps;
    int replayed;
    const char *timed_by; /* "clock", "events" or "cupti" */
};

/* Begins to stand before the device's operations, and ends. Status 3 if there is no memory. profile_close() takes
   NULL. *reason of profile_open, if given: why kernels are not traced, or "". */
enum status profile_open(struct profile **profile, struct device *device, char *reason, size_t reason_size,
                         struct error *error);
void profile_close(struct profile *profile);

/* What comes between start and read is one pass. read() waits for the device. A pass that was replayed is taken apart
   by the last one that was read and was not, which must have launched the same kernels: status 3 else. */
enum status profile_start(struct profile *profile, struct error *error);
enum status profile_read(struct profile *profile, struct profile_pass *pass, struct error *error);
void profile_pass_free(struct profile_pass *pass); /* takes a zeroed struct */

/* The arithmetic of profile_read(): sums calls by name; `launches` NULL: by the calls' own times. */
enum status profile_sum(struct profile_pass *pass, const struct profile_call *calls, size_t count,
                        const struct device_launch *launches, size_t launch_count, struct error *error);

#endif
