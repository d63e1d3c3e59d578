/* The ledger: every device byte is allocated through it, with a tag. It knows live and peak bytes per tag and in total,
   what is reserved from the device beyond that, and can hold a budget, so that any machine behaves as a smaller card.

   Memory comes from segments: an allocation of LEDGER_OWN_SEGMENT_BYTES or more has a segment of its own, rounded up to
   the device's page; smaller ones of one tag share segments of that size. A segment goes back to the device as soon as
   nothing in it lives, so `reserved` shows rounding and fragmentation and nothing else. Not thread-safe: one ledger,
   one thread. */
#ifndef KVLAB_ENGINE_LEDGER_H
#define KVLAB_ENGINE_LEDGER_H

#include "kernels/device.h"

#include <stdbool.h>

enum { LEDGER_OWN_SEGMENT_BYTES = 1 << 20 };

enum ledger_tag { LEDGER_WEIGHTS, LEDGER_KV, LEDGER_LOGITS, LEDGER_WORKSPACE, LEDGER_OTHER, LEDGER_TAGS };

/* A snapshot, in bytes. Live and peak count what was asked for; reserved what the device gave for it. */
struct ledger_counts {
    uint64_t live[LEDGER_TAGS], peak[LEDGER_TAGS];
    uint64_t live_total, peak_total;
    uint64_t reserved, peak_reserved;
    uint64_t allocations; /* calls of ledger_alloc() so far: unchanged across a decode step that allocates nothing */
};

/* The latest request that failed, over the budget or refused by the device: asked 0 if none has. */
struct ledger_refusal {
    uint64_t asked;
    enum ledger_tag tag;
    uint64_t live[LEDGER_TAGS], live_total, reserved; /* held at that moment */
    uint64_t missing; /* what the whole declared plan lacks under the budget, as the message says; 0 if it fits */
    bool by_device;   /* it was within the budget */
};

struct ledger;

/* budget_bytes 0: what the device has free now. The ledger borrows the device. */
enum status ledger_open(struct ledger **ledger, struct device *device, uint64_t budget_bytes, struct error *error);
/* Everything must have been released (an assertion: a leak is our mistake). Takes NULL. */
void ledger_close(struct ledger *ledger);

struct device *ledger_device(const struct ledger *ledger);
uint64_t ledger_budget(const struct ledger *ledger);
struct ledger_counts ledger_counts(const struct ledger *ledger);
struct ledger_refusal ledger_refusal(const struct ledger *ledger);
const char *ledger_tag_name(enum ledger_tag tag); /* "weights", "kv", "logits", "workspace", "other" */
void ledger_reset_peaks(struct ledger *ledger);   /* peaks start again from what lives now */

/* Takes `bytes` (> 0) aligned to 256. Over the budget, or refused by the device: status 3 with a message that names
   what was asked and `what` for, each tag's share, and how much the declared plan lacks as a whole. */
enum status ledger_alloc(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes, const char *what, void **memory,
                         struct error *error);
/* Memory that the device reads in place but did not allocate (weights mapped from a file): counted, not owned. */
enum status ledger_adopt(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes, const char *what,
                         const void *memory, struct error *error);
/* Gives back what alloc or adopt gave; NULL is allowed. */
void ledger_release(struct ledger *ledger, const void *memory);

/* What the run as a whole means to hold under a tag, so that running out can say how much everything lacks. */
void ledger_plan(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes);
/* Checks the declared plan before anything is allocated, against the budget and what the device had free when the
   ledger was opened (a larger budget does not make memory): status 3 with needed, available and missing bytes. */
enum status ledger_check_plan(const struct ledger *ledger, const char *what, struct error *error);

#endif
