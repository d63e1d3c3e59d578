/* What a device can tell of itself from another side than its operations: kernels by their own clock, memory by the
   driver's records, traffic by hardware counters. `struct device` has NULL for devices that have none of it; each
   function may say status 3 with the reason where this machine does not allow it, and the caller goes on without.
   Off until begun, and then at a cost: nothing of it runs in a pass that is timed. */
#ifndef KVLAB_KERNELS_PROBES_H
#define KVLAB_KERNELS_PROBES_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One kernel as it ran. Times in nanoseconds, on a clock that all launches of a trace share. */
struct device_launch {
    uint64_t start_ns, end_ns;
    int operation; /* as trace_operation() last said when it was launched; -1 where nothing is known of it */
    char name[80]; /* as the source has it, template arguments and all, cut to fit */
};

struct device_trace {
    struct device_launch *launches; /* in the order of their starts; the caller frees */
    size_t count;
    uint64_t dropped; /* records that were lost: times and gaps are then not to be trusted */
};

/* Traffic of the device's memory between counters_begin() and counters_end(), whoever caused it. */
struct device_counters {
    uint64_t read_bytes, written_bytes;
};

struct device_probes {
    /* From begin to end every kernel leaves a record. take() waits for the device and gives those since the last take.
       A recorded pass (device_ops.pass_begin) is forgotten at both ends, and leaves records when it is replayed. */
    enum status (*trace_begin)(struct device *, struct error *);
    enum status (*trace_operation)(struct device *, int operation, struct error *);
    enum status (*trace_take)(struct device *, struct device_trace *, struct error *);
    void (*trace_end)(struct device *);

    /* Bytes that this device's library has allocated since begin and not freed, by the driver's own records. */
    enum status (*account_begin)(struct device *, struct error *);
    enum status (*account_bytes)(struct device *, uint64_t *held, struct error *);
    void (*account_end)(struct device *);

    /* Counted in one pass of the hardware, so that the work in between runs once: a decode step that were replayed
       would append to the cache twice. end() waits for the device. */
    enum status (*counters_begin)(struct device *, struct error *);
    enum status (*counters_end)(struct device *, struct device_counters *, struct error *);
};

#ifdef __cplusplus
}
#endif
#endif
