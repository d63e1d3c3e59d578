#include "kernels/profile.h"

#include "kernels/work.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call as it is noted while the pass is timed, and, where kernels are not traced, the events around it. Its name is
   put together when the pass is read: to format 170 of them took 0.4 % of a decode step. */
struct watched {
    const char *operation; /* "attention"; of products "linear", and their widths */
    int in, out, in_pass;  /* in 0: no product */
    uint64_t bytes, flops;
    struct device_event *start, *end;
};

struct profile {
    struct device_ops ops; /* what device->ops points to; first, so that an operation finds its profile */
    const struct device_ops *plain;
    struct device *device;
    struct watched *calls; /* [capacity], events of all of them created */
    size_t count, capacity;
    bool traced, in_pass;
    int graphs; /* of the device, before */
    int replay; /* number of the call that stands for a replayed pass, or -1 */

    /* The last pass that was launched operation by operation: its calls, and of each kernel which one. */
    struct profile_call *known_calls;
    int *known_launches;
    size_t known_call_count, known_launch_count;
};

static struct profile *profile_of(struct device *device)
{
    return (struct profile *)(uintptr_t)device->ops;
}

/* ---- calls ---- */

/* Room for one more, with its events: passes alike find all of it made by the first of them. */
static enum status make_room(struct profile *profile, struct error *error)
{
    if (profile->count < profile->capacity)
        return STATUS_OK;
    size_t capacity = profile->capacity ? 2 * profile->capacity : 512;
    struct watched *calls = realloc(profile->calls, capacity * sizeof *calls);
    if (calls == NULL)
        return error_set(error, STATUS_DEVICE, "profile: out of host memory for %zu operations", capacity);
    profile->calls = calls;
    memset(calls + profile->capacity, 0, (capacity - profile->capacity) * sizeof *calls);
    while (!profile->traced && profile->capacity < capacity) {
        struct watched *next = &calls[profile->capacity];
        profile->capacity++;
        if (profile->plain->event_create(profile->device, &next->start, error) != STATUS_OK ||
            profile->plain->event_create(profile->device, &next->end, error) != STATUS_OK)
            return error->status;
    }
    profile->capacity = capacity;
    return STATUS_OK;
}

static enum status call_begin(struct profile *profile, const char *operation, uint64_t bytes, uint64_t flops,
                              struct error *error)
{
    if (make_room(profile, error) != STATUS_OK)
        return error->status;
    struct watched *watched = &profile->calls[profile->count];
    watched->operation = operation;
    watched->in = watched->out = 0;
    watched->in_pass = profile->in_pass;
    watched->bytes = bytes;
    watched->flops = flops;
    profile->count++;
    if (profile->traced)
        return profile->device->probes->trace_operation(profile->device, (int)profile->count - 1, error);
    return profile->plain->event_record(profile->device, watched->start, error);
}

static enum status call_end(struct profile *profile, enum status status, struct error *error)
{
    if (status != STATUS_OK || profile->traced)
        return status;
    return profile->plain->event_record(profile->device, profile->calls[profile->count - 1].end, error);
}

/* ---- the operations, watched ---- */

static enum status embed(struct device *device, float *out, const void *table, enum dtype dtype, const int32_t *tokens,
                         int rows, int hidden, struct error *error)
{
    struct profile *profile = profile_of(device);
    if (call_begin(profile, "embed", embed_bytes(dtype, rows, hidden), 0, error) != STATUS_OK)
        return error->status;
    return call_end(profile, profile->plain->embed(device, out, table, dtype, tokens, rows, hidden, error), error);
}

static enum status rms_norm(struct device *device, const struct rms_norm_args *args, struct error *error)
{
    struct profile *profile = profile_of(device);
    if (call_begin(profile, "rms_norm", rms_norm_bytes(args), 0, error) != STATUS_OK)
        return error->status;
    return call_end(profile, profile->plain->rms_norm(device, args, error), error);
}

static enum status linear(struct device *device, const struct linear_args *args, struct error *error)
{
    struct profile *profile = profile_of(device);
    if (call_begin(profile, "linear", linear_bytes(args), linear_flops(args), error) != STATUS_OK)
        return error->status;
    profile->calls[profile->count - 1].in = args->in;
    profile->calls[profile->count - 1].out = args->out;
    return call_end(profile, profile->plain->linear(device, args, error), error);
}

static enum status rope_table(struct device *device, float *cos_sin, const int32_t *positions,
                              const float *inverse_frequency, int rows, int half, struct error *error)
{
    struct profile *profile = profile_of(device);
    if (call_begin(profile, "rope_table", rope_table_bytes(rows, half), 0, error) != STATUS_OK)
        return error->status;
    return call_end(
        profile, profile->plain->rope_table(device, cos_sin, positions, inverse_frequency, rows, half, error), error);
}

static enum status rope_store(struct device *device, const struct rope_store_args *args, struct error *error)
{
    struct profile *profile = profile_of(device);
    if (call_begin(profile, "rope_store", rope_store_bytes(args), 0, error) != STATUS_OK)
        return error->status;
    return call_end(profile, profile->plain->rope_store(device, args, error), error);
}

static enum status attention(struct device *device, const struct attention_args *args, struct error *error)
{
    struct profile *profile = profile_of(device);
    if (call_begin(profile, "attention", attention_bytes(args), attention_flops(args), error) != STATUS_OK)
        return error->status;
    return call_end(profile, profile->plain->attention(device, args, error), error);
}

static enum status swiglu(struct device *device, void *out, const float *gate, const float *up, enum dtype dtype,
                          int rows, int width, struct error *error)
{
    struct profile *profile = profile_of(device);
    if (call_begin(profile, "swiglu", swiglu_bytes(rows, width, dtype), 0, error) != STATUS_OK)
        return error->status;
    return call_end(profile, profile->plain->swiglu(device, out, gate, up, dtype, rows, width, error), error);
}

static enum status argmax(struct device *device, int32_t *index, const void *logits, enum dtype dtype, int rows,
                          int vocab, struct error *error)
{
    struct profile *profile = profile_of(device);
    if (call_begin(profile, "argmax", argmax_bytes(dtype, rows, vocab), 0, error) != STATUS_OK)
        return error->status;
    return call_end(profile, profile->plain->argmax(device, index, logits, dtype, rows, vocab, error), error);
}

static enum status sample(struct device *device, const struct sample_args *args, struct error *error)
{
    struct profile *profile = profile_of(device);
    if (call_begin(profile, "sample", argmax_bytes(args->dtype, args->rows, args->vocab), 0, error) != STATUS_OK)
        return error->status;
    return call_end(profile, profile->plain->sample(device, args, error), error);
}

/* A replayed pass is one call with no work of its own, until profile_read() takes it apart. */
static enum status pass_begin(struct device *device, const struct device_pass *shape, int *replayed,
                              struct error *error)
{
    struct profile *profile = profile_of(device);
    if (profile->traced && profile->device->probes->trace_operation(device, (int)profile->count, error) != STATUS_OK)
        return error->status;
    if (profile->plain->pass_begin(device, shape, replayed, error) != STATUS_OK)
        return error->status;
    profile->in_pass = true;
    if (!*replayed)
        return STATUS_OK;
    profile->replay = (int)profile->count;
    return call_end(profile, call_begin(profile, "replayed pass", 0, 0, error), error);
}

static enum status pass_end(struct device *device, enum status so_far, struct error *error)
{
    struct profile *profile = profile_of(device);
    profile->in_pass = false;
    return profile->plain->pass_end(device, so_far, error);
}

/* ---- opening and closing ---- */

enum status profile_open(struct profile **out, struct device *device, char *reason, size_t reason_size,
                         struct error *error)
{
    struct error why = {0};
    struct profile *profile = calloc(1, sizeof *profile);
    *out = NULL;
    if (profile == NULL)
        return error_set(error, STATUS_DEVICE, "profile: out of host memory");
    if (device->probes != NULL && device->probes->trace_begin(device, &why) == STATUS_OK)
        profile->traced = true;
    if (reason != NULL)
        snprintf(reason, reason_size, "%s", why.message);
    profile->device = device;
    profile->graphs = device->graphs;
    device->graphs = device->graphs && profile->traced; /* events see nothing of what is replayed */
    profile->replay = -1;
    profile->plain = device->ops;
    profile->ops = *device->ops;
    profile->ops.embed = embed;
    profile->ops.rms_norm = rms_norm;
    profile->ops.linear = linear;
    profile->ops.rope_table = rope_table;
    profile->ops.rope_store = rope_store;
    profile->ops.attention = attention;
    profile->ops.swiglu = swiglu;
    profile->ops.argmax = argmax;
    profile->ops.sample = sample;
    profile->ops.pass_begin = pass_begin;
    profile->ops.pass_end = pass_end;
    device->ops = &profile->ops;
    if (make_room(profile, error) != STATUS_OK) { /* and not in the first pass that is timed */
        profile_close(profile);
        return error->status;
    }
    *out = profile;
    return STATUS_OK;
}

void profile_close(struct profile *profile)
{
    if (profile == NULL)
        return;
    struct device *device = profile->device;
    device->ops = profile->plain;
    device->graphs = profile->graphs;
    for (size_t i = 0; i < profile->capacity && !profile->traced; i++) {
        device->ops->event_destroy(device, profile->calls[i].start);
        device->ops->event_destroy(device, profile->calls[i].end);
    }
    if (profile->traced && device->probes != NULL)
        device->probes->trace_end(device);
    free(profile->calls);
    free(profile->known_calls);
    free(profile->known_launches);
    free(profile);
}

/* ---- a pass ---- */

enum status profile_start(struct profile *profile, struct error *error)
{
    profile->count = 0;
    profile->replay = -1;
    if (!profile->traced)
        return profile->plain->synchronize(profile->device, error);
    struct device_trace before = {0};
    enum status status = profile->device->probes->trace_take(profile->device, &before, error);
    free(before.launches);
    return status;
}

/* The calls alone, which the arithmetic takes; the caller frees. */
static struct profile_call *calls_of(const struct profile *profile)
{
    struct profile_call *calls = calloc(profile->count + 1, sizeof *calls);
    for (size_t i = 0; calls != NULL && i < profile->count; i++) {
        const struct watched *watched = &profile->calls[i];
        calls[i] = (struct profile_call){.bytes = watched->bytes, .flops = watched->flops, .in_pass = watched->in_pass};
        if (watched->in > 0)
            snprintf(calls[i].name, sizeof calls[i].name, "%s %d -> %d", watched->operation, watched->in, watched->out);
        else
            snprintf(calls[i].name, sizeof calls[i].name, "%s", watched->operation);
    }
    return calls;
}

static enum status read_events(struct profile *profile, struct profile_call *calls, struct error *error)
{
    const struct device_ops *ops = profile->plain;
    struct device *device = profile->device;
    for (size_t i = 0; i < profile->count; i++) {
        const struct watched *first = &profile->calls[0], *watched = &profile->calls[i];
        if (ops->event_elapsed_ms(device, first->start, watched->end, &calls[i].end_ms, error) != STATUS_OK ||
            ops->event_elapsed_ms(device, first->start, watched->start, &calls[i].start_ms, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* Keeps which kernel of a launched pass belongs to which of its calls. */
static enum status learn(struct profile *profile, const struct profile_call *calls, const struct device_trace *trace,
                         struct error *error)
{
    free(profile->known_calls);
    free(profile->known_launches);
    profile->known_call_count = profile->known_launch_count = 0;
    profile->known_calls = calloc(profile->count + 1, sizeof *profile->known_calls);
    profile->known_launches = calloc(trace->count + 1, sizeof *profile->known_launches);
    if (profile->known_calls == NULL || profile->known_launches == NULL)
        return error_set(error, STATUS_DEVICE, "profile: out of host memory");
    for (size_t i = 0; i < profile->count; i++)
        profile->known_calls[profile->known_call_count++] = calls[i];
    for (size_t i = 0; i < trace->count; i++) {
        int operation = trace->launches[i].operation;
        if (operation >= 0 && (size_t)operation < profile->count && calls[operation].in_pass)
            profile->known_launches[profile->known_launch_count++] = operation;
    }
    return STATUS_OK;
}

/* Gives the kernels of a replayed pass the operations that launched the same ones before: kernels of one pass run in
   one order. What came after the pass keeps its own, behind those of the pass. *calls becomes the list of both. */
static enum status take_apart(const struct profile *profile, struct profile_call **calls, size_t *count,
                              struct device_trace *trace, struct error *error)
{
    size_t replayed = 0, known = profile->known_call_count;
    for (size_t i = 0; i < trace->count; i++)
        replayed += trace->launches[i].operation == profile->replay;
    if (known == 0 || replayed != profile->known_launch_count)
        return error_set(error, STATUS_DEVICE,
                         "profile: a replayed pass ran %zu kernels, the launched one %zu: they cannot be told apart "
                         "(--graphs off goes without replaying)",
                         replayed, profile->known_launch_count);
    struct profile_call *both = calloc(known + *count, sizeof *both);
    if (both == NULL)
        return error_set(error, STATUS_DEVICE, "profile: out of host memory");
    size_t in_pass = 0, at = 0;
    while (in_pass < known && profile->known_calls[in_pass].in_pass) {
        both[in_pass] = profile->known_calls[in_pass];
        in_pass++;
    }
    size_t after = (size_t)profile->replay + 1, rest = *count - after;
    memcpy(both + in_pass, *calls + after, rest * sizeof *both);
    for (size_t i = 0; i < trace->count; i++) {
        int *operation = &trace->launches[i].operation;
        *operation = *operation == profile->replay  ? profile->known_launches[at++]
                     : *operation > profile->replay ? *operation - (int)after + (int)in_pass
                                                    : -1;
    }
    free(*calls);
    *calls = both;
    *count = in_pass + rest;
    return STATUS_OK;
}

static enum status read_trace(struct profile *profile, struct profile_call **calls, size_t *count,
                              struct device_trace *trace, struct error *error)
{
    if (profile->device->probes->trace_take(profile->device, trace, error) != STATUS_OK)
        return error->status;
    if (trace->dropped > 0)
        return error_set(error, STATUS_DEVICE, "profile: %llu kernel records were lost; take a shorter pass",
                         (unsigned long long)trace->dropped);
    if (profile->replay < 0)
        return learn(profile, *calls, trace, error);
    return take_apart(profile, calls, count, trace, error);
}

enum status profile_read(struct profile *profile, struct profile_pass *pass, struct error *error)
{
    struct device_trace trace = {0};
    struct profile_call *calls = calls_of(profile);
    size_t count = profile->count;
    *pass = (struct profile_pass){0};
    enum status status =
        calls ? STATUS_OK : error_set(error, STATUS_DEVICE, "profile: out of host memory for %zu operations", count);
    if (status == STATUS_OK)
        status =
            profile->traced ? read_trace(profile, &calls, &count, &trace, error) : read_events(profile, calls, error);
    if (status == STATUS_OK)
        status = profile_sum(pass, calls, count, profile->traced ? trace.launches : NULL, trace.count, error);
    if (status == STATUS_OK) {
        pass->replayed = profile->replay >= 0;
        if (!profile->traced && profile->device->info.multiprocessors > 0)
            pass->timed_by = "events";
    }
    free(trace.launches);
    free(calls);
    return status;
}
