#include "engine/ledger.h"

#include "engine/bytes.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256 };

/* A piece of a segment: allocated or free. Pieces of a segment lie in order without holes. */
struct piece {
    struct piece *next;     /* the following piece of the same segment */
    uint64_t offset, bytes; /* bytes includes the padding to ALIGNMENT */
    uint64_t asked;         /* 0: free */
    enum ledger_tag tag;
};

struct segment {
    struct segment *next;
    char *memory;
    uint64_t bytes;       /* what the device gave */
    bool adopted;         /* not ours to release */
    enum ledger_tag tag;  /* of everything in it */
    struct piece *pieces; /* adopted: exactly one */
};

struct ledger {
    struct device *device;
    uint64_t budget, device_free; /* device_free: when the ledger was opened */
    struct segment *segments;
    struct ledger_counts counts;
    struct ledger_refusal refusal;
    uint64_t plan[LEDGER_TAGS];
};

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static uint64_t maximum(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

const char *ledger_tag_name(enum ledger_tag tag)
{
    static const char *const names[LEDGER_TAGS] = {"weights", "kv", "logits", "workspace", "other"};
    return names[tag];
}

enum status ledger_open(struct ledger **out, struct device *device, uint64_t budget_bytes, struct error *error)
{
    *out = NULL;
    struct device_memory memory;
    enum status status = device->ops->memory(device, &memory, error);
    if (status != STATUS_OK)
        return status;
    struct ledger *ledger = calloc(1, sizeof *ledger);
    if (ledger == NULL)
        return error_set(error, STATUS_DEVICE, "ledger: out of host memory");
    ledger->device = device;
    ledger->device_free = memory.free_bytes;
    ledger->budget = budget_bytes ? budget_bytes : memory.free_bytes;
    *out = ledger;
    return STATUS_OK;
}

void ledger_close(struct ledger *ledger)
{
    if (ledger == NULL)
        return;
    assert(ledger->counts.live_total == 0 && ledger->segments == NULL);
    free(ledger);
}

struct device *ledger_device(const struct ledger *ledger)
{
    return ledger->device;
}

uint64_t ledger_budget(const struct ledger *ledger)
{
    return ledger->budget;
}

struct ledger_counts ledger_counts(const struct ledger *ledger)
{
    return ledger->counts;
}

struct ledger_refusal ledger_refusal(const struct ledger *ledger)
{
    return ledger->refusal;
}

void ledger_reset_peaks(struct ledger *ledger)
{
    struct ledger_counts *counts = &ledger->counts;
    memcpy(counts->peak, counts->live, sizeof counts->peak);
    counts->peak_total = counts->live_total;
    counts->peak_reserved = counts->reserved;
}

void ledger_plan(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes)
{
    ledger->plan[tag] = bytes;
}

/* What the whole run needs: per tag the larger of what was declared and what lives, plus `extra` bytes of `tag`. */
static uint64_t planned_total(const struct ledger *ledger, enum ledger_tag tag, uint64_t extra)
{
    uint64_t total = 0;
    for (int t = 0; t < LEDGER_TAGS; t++)
        total += maximum(ledger->plan[t], ledger->counts.live[t] + (t == (int)tag ? extra : 0));
    return total;
}

static void note_refusal(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes, bool by_device)
{
    const struct ledger_counts *counts = &ledger->counts;
    uint64_t needed = planned_total(ledger, tag, bytes);
    ledger->refusal = (struct ledger_refusal){.asked = bytes,
                                              .tag = tag,
                                              .live_total = counts->live_total,
                                              .reserved = counts->reserved,
                                              .missing = needed > ledger->budget ? needed - ledger->budget : 0,
                                              .by_device = by_device};
    memcpy(ledger->refusal.live, counts->live, sizeof counts->live);
}

static enum status over_budget(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes, const char *what,
                               struct error *error)
{
    const struct ledger_counts *counts = &ledger->counts;
    uint64_t needed = planned_total(ledger, tag, bytes);
    note_refusal(ledger, tag, bytes, false);
    char held[256] = "", asked[64], lacking[64];
    size_t used = 0;
    for (int t = 0; t < LEDGER_TAGS && used < sizeof held; t++)
        if (counts->live[t] > 0)
            used += (size_t)snprintf(held + used, sizeof held - used, "%s%s %" PRIu64, used ? ", " : "",
                                     ledger_tag_name((enum ledger_tag)t), counts->live[t]);
    return error_set(error, STATUS_DEVICE,
                     "out of memory: %s asked for %" PRIu64 " bytes = %s of %s; held of %" PRIu64
                     " bytes: %s; everything planned needs %" PRIu64 " bytes, that is %" PRIu64
                     " bytes = %s more than there is",
                     what, bytes, bytes_text(asked, sizeof asked, bytes), ledger_tag_name(tag), ledger->budget,
                     used ? held : "nothing", needed, needed - ledger->budget,
                     bytes_text(lacking, sizeof lacking, needed - ledger->budget));
}

enum status ledger_check_plan(const struct ledger *ledger, const char *what, struct error *error)
{
    uint64_t needed = planned_total(ledger, LEDGER_OTHER, 0);
    uint64_t there = ledger->budget < ledger->device_free ? ledger->budget : ledger->device_free;
    if (needed <= there)
        return STATUS_OK;
    char shares[256] = "", lacking[64];
    size_t used = 0;
    for (int t = 0; t < LEDGER_TAGS && used < sizeof shares; t++) {
        uint64_t share = maximum(ledger->plan[t], ledger->counts.live[t]);
        if (share > 0)
            used += (size_t)snprintf(shares + used, sizeof shares - used, "%s%s %" PRIu64, used ? ", " : "",
                                     ledger_tag_name((enum ledger_tag)t), share);
    }
    return error_set(error, STATUS_DEVICE,
                     "%s does not fit: it needs %" PRIu64 " bytes (%s), there are %" PRIu64 ", %" PRIu64
                     " bytes = %s are lacking",
                     what, needed, shares, there, needed - there, bytes_text(lacking, sizeof lacking, needed - there));
}

/* ---- segments and pieces ---- */

/* First free piece that fits in a shared segment of this tag. Tags do not mix: memory that one of them freed, still
   resident in a segment that lives on, would otherwise be handed to another, and the world outside would see that one
   grow by less. */
static struct piece *find_free(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes, struct segment **where)
{
    for (struct segment *segment = ledger->segments; segment != NULL; segment = segment->next) {
        if (segment->adopted || segment->tag != tag)
            continue;
        for (struct piece *piece = segment->pieces; piece != NULL; piece = piece->next)
            if (piece->asked == 0 && piece->bytes >= bytes) {
                *where = segment;
                return piece;
            }
    }
    return NULL;
}

static enum status add_segment(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes, struct segment **out,
                               struct error *error)
{
    struct segment *segment = calloc(1, sizeof *segment);
    struct piece *piece = calloc(1, sizeof *piece);
    void *memory = NULL;
    enum status status = STATUS_OK;
    if (segment == NULL || piece == NULL)
        status = error_set(error, STATUS_DEVICE, "ledger: out of host memory");
    else
        status = ledger->device->ops->alloc(ledger->device, bytes, &memory, error);
    if (status != STATUS_OK) {
        free(segment);
        free(piece);
        return status;
    }
    piece->bytes = bytes;
    *segment =
        (struct segment){.next = ledger->segments, .memory = memory, .bytes = bytes, .tag = tag, .pieces = piece};
    ledger->segments = segment;
    ledger->counts.reserved += bytes;
    ledger->counts.peak_reserved = maximum(ledger->counts.peak_reserved, ledger->counts.reserved);
    *out = segment;
    return STATUS_OK;
}

/* Cuts `bytes` off the front of a free piece; the rest stays free. */
static enum status split(struct piece *piece, uint64_t bytes, struct error *error)
{
    if (piece->bytes == bytes)
        return STATUS_OK;
    struct piece *rest = calloc(1, sizeof *rest);
    if (rest == NULL)
        return error_set(error, STATUS_DEVICE, "ledger: out of host memory");
    *rest = (struct piece){.next = piece->next, .offset = piece->offset + bytes, .bytes = piece->bytes - bytes};
    piece->next = rest;
    piece->bytes = bytes;
    return STATUS_OK;
}

static void count_live(struct ledger_counts *counts, enum ledger_tag tag, uint64_t bytes)
{
    counts->live[tag] += bytes;
    counts->live_total += bytes;
    counts->peak[tag] = maximum(counts->peak[tag], counts->live[tag]);
    counts->peak_total = maximum(counts->peak_total, counts->live_total);
    counts->allocations++;
}

static void release_if_empty(struct ledger *ledger, struct segment *segment)
{
    struct piece *piece = segment->pieces;
    if (piece->asked != 0 || piece->next != NULL)
        return;
    struct segment **link = &ledger->segments;
    while (*link != segment)
        link = &(*link)->next;
    *link = segment->next;
    if (!segment->adopted) {
        ledger->device->ops->release(ledger->device, segment->memory, segment->bytes);
        ledger->counts.reserved -= segment->bytes;
    }
    free(piece);
    free(segment);
}

enum status ledger_alloc(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes, const char *what, void **memory,
                         struct error *error)
{
    assert(bytes > 0);
    *memory = NULL;
    if (bytes > ledger->budget || ledger->counts.live_total > ledger->budget - bytes)
        return over_budget(ledger, tag, bytes, what, error);

    uint64_t padded = round_up(bytes, ALIGNMENT);
    bool own = padded >= LEDGER_OWN_SEGMENT_BYTES;
    struct segment *segment = NULL;
    struct piece *piece = own ? NULL : find_free(ledger, tag, padded, &segment);
    if (piece == NULL) {
        uint64_t page = ledger->device->info.page_bytes;
        enum status status =
            add_segment(ledger, tag, round_up(own ? padded : LEDGER_OWN_SEGMENT_BYTES, page), &segment, error);
        if (status != STATUS_OK) {
            note_refusal(ledger, tag, bytes, true);
            error_prefix(error, "%s (%" PRIu64 " bytes of %s)", what, bytes, ledger_tag_name(tag));
            return status;
        }
        piece = segment->pieces;
    }
    /* The tail of an own segment stays with its piece: it is rounding, not room for others. */
    if (!own && split(piece, padded, error) != STATUS_OK) {
        release_if_empty(ledger, segment);
        return error->status;
    }
    piece->asked = bytes;
    piece->tag = tag;
    count_live(&ledger->counts, tag, bytes);
    *memory = segment->memory + piece->offset;
    return STATUS_OK;
}

enum status ledger_adopt(struct ledger *ledger, enum ledger_tag tag, uint64_t bytes, const char *what,
                         const void *memory, struct error *error)
{
    assert(bytes > 0);
    if (bytes > ledger->budget || ledger->counts.live_total > ledger->budget - bytes)
        return over_budget(ledger, tag, bytes, what, error);
    struct segment *segment = calloc(1, sizeof *segment);
    struct piece *piece = calloc(1, sizeof *piece);
    if (segment == NULL || piece == NULL) {
        free(segment);
        free(piece);
        return error_set(error, STATUS_DEVICE, "ledger: out of host memory");
    }
    *piece = (struct piece){.bytes = bytes, .asked = bytes, .tag = tag};
    *segment = (struct segment){.next = ledger->segments,
                                .memory = (char *)(uintptr_t)memory,
                                .bytes = bytes,
                                .adopted = true,
                                .pieces = piece};
    ledger->segments = segment;
    count_live(&ledger->counts, tag, bytes);
    return STATUS_OK;
}

static bool holds(const struct segment *segment, const void *memory)
{
    uintptr_t at = (uintptr_t)memory, start = (uintptr_t)segment->memory;
    return at >= start && at < start + segment->bytes;
}

/* Joins every free piece of the segment with the free piece that follows it. */
static void merge_free(struct segment *segment)
{
    struct piece *piece = segment->pieces;
    while (piece->next != NULL) {
        struct piece *next = piece->next;
        if (piece->asked == 0 && next->asked == 0) {
            piece->bytes += next->bytes;
            piece->next = next->next;
            free(next);
        } else {
            piece = next;
        }
    }
}

void ledger_release(struct ledger *ledger, const void *memory)
{
    if (memory == NULL)
        return;
    struct segment *segment = ledger->segments;
    while (segment != NULL && !holds(segment, memory))
        segment = segment->next;
    assert(segment != NULL && "memory that is not in the ledger");
    struct piece *piece = segment->pieces;
    while (piece != NULL && segment->memory + piece->offset != (const char *)memory)
        piece = piece->next;
    assert(piece != NULL && piece->asked != 0 && "released twice, or not what was allocated");
    ledger->counts.live[piece->tag] -= piece->asked;
    ledger->counts.live_total -= piece->asked;
    piece->asked = 0;
    merge_free(segment);
    release_if_empty(ledger, segment);
}
