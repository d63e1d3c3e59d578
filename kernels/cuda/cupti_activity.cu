/* CUPTI's activity records: kernels with their times, and allocations of device memory. Records belong to the process:
   one trace and one account at a time, of whichever device begins them.

   CUPTI asks for buffers and hands them back filled, on a thread of its own: what it brings is taken over under a lock,
   and matched (kernels to operations) when it is asked for. */
#include "kernels/cuda/cupti.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifndef KVLAB_CUPTI

/* Without CUPTI's headers the device has no probes (cuda_device.cu), and nobody calls these. */
enum status cupti_trace_begin(struct device *, struct error *error)
{
    return cupti_function("cuptiActivityEnable", error) ? STATUS_OK : error->status;
}
enum status cupti_trace_operation(struct device *, int, struct error *)
{
    return STATUS_OK;
}
enum status cupti_trace_take(struct device *, struct device_trace *trace, struct error *)
{
    memset(trace, 0, sizeof *trace);
    return STATUS_OK;
}
void cupti_trace_end(struct device *)
{
}
enum status cupti_account_begin(struct device *device, struct error *error)
{
    return cupti_trace_begin(device, error);
}
enum status cupti_account_bytes(struct device *, uint64_t *held, struct error *)
{
    *held = 0;
    return STATUS_OK;
}
void cupti_account_end(struct device *)
{
}

#else

#include <cupti.h>
#include <dlfcn.h>

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record;
#else
typedef CUpti_ActivityKernel9 kernel_record;
#endif

#define FUNCTIONS(F)                                                                                                   \
    F(cuptiActivityRegisterCallbacks)                                                                                  \
    F(cuptiActivityEnable)                                                                                             \
    F(cuptiActivityDisable)                                                                                            \
    F(cuptiActivityFlushAll)                                                                                           \
    F(cuptiActivityGetNextRecord)                                                                                      \
    F(cuptiActivityGetNumDroppedRecords)                                                                               \
    F(cuptiActivityPushExternalCorrelationId)                                                                          \
    F(cuptiActivityPopExternalCorrelationId)                                                                           \
    F(cuptiActivityEnableAllocationSource)

#define DECLARE(name) static decltype(&name) call_##name;
FUNCTIONS(DECLARE)
#undef DECLARE

#define CUPTI_TRY(error, name, ...)                                                                                    \
    do {                                                                                                               \
        CUptiResult code_ = call_##name(__VA_ARGS__);                                                                  \
        if (code_ != CUPTI_SUCCESS)                                                                                    \
            return cupti_fail(error, (int)code_, #name, __FILE__, __LINE__);                                           \
    } while (0)

enum { BUFFER_BYTES = 4 << 20 };

/* A list that grows; lost counts what there was no host memory for. */
struct list {
    char *items;
    size_t count, capacity;
};

struct correlation {
    uint32_t id;
    int operation;
};
struct traced_kernel {
    struct device_launch launch;
    uint32_t correlation;
};
struct held_memory {
    uint64_t address, bytes;
};

static struct {
    pthread_mutex_t lock;
    bool ready, tracing, accounting, pushed;
    struct list kernels, correlations, memory;
    uint64_t lost;
} records = {PTHREAD_MUTEX_INITIALIZER, false, false, false, false, {}, {}, {}, 0};

static void add(struct list *list, const void *item, size_t size)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 1024;
        char *items = static_cast<char *>(realloc(list->items, capacity * size));
        if (items == NULL) {
            records.lost++;
            return;
        }
        list->items = items;
        list->capacity = capacity;
    }
    memcpy(list->items + list->count * size, item, size);
    list->count++;
}

static void clear(struct list *list)
{
    free(list->items);
    memset(list, 0, sizeof *list);
}

/* ---- what a buffer brings ---- */

static void take_kernel(const kernel_record *record)
{
    struct traced_kernel kernel = {};
    kernel.launch.start_ns = record->start;
    kernel.launch.end_ns = record->end;
    kernel.launch.operation = -1;
    kernel.correlation = record->correlationId;
    cupti_kernel_name(record->name ? record->name : "?", kernel.launch.name, sizeof kernel.launch.name);
    add(&records.kernels, &kernel, sizeof kernel);
}

/* The driver's records name the library that asked, by its path. One without a name cannot be told from another's. */
static bool is_ours(const char *source)
{
    Dl_info own;
    return source != NULL && dladdr(reinterpret_cast<void *>(&cupti_kernel_name), &own) != 0 && own.dli_fname != NULL &&
           strcmp(strrchr(source, '/') ? strrchr(source, '/') : source,
                  strrchr(own.dli_fname, '/') ? strrchr(own.dli_fname, '/') : own.dli_fname) == 0;
}

static void take_memory(const CUpti_ActivityMemory4 *record)
{
    struct held_memory *held = reinterpret_cast<struct held_memory *>(records.memory.items);
    if (record->memoryKind != CUPTI_ACTIVITY_MEMORY_KIND_DEVICE)
        return;
    if (record->memoryOperationType == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION) {
        struct held_memory added = {record->address, record->bytes};
        if (is_ours(record->source))
            add(&records.memory, &added, sizeof added);
        return;
    }
    for (size_t i = 0; i < records.memory.count; i++)
        if (held[i].address == record->address) {
            held[i] = held[--records.memory.count];
            return;
        }
}

static void take_record(CUpti_Activity *record)
{
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        take_kernel(reinterpret_cast<kernel_record *>(record));
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMORY2) {
        take_memory(reinterpret_cast<CUpti_ActivityMemory4 *>(record));
    } else if (record->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
        CUpti_ActivityExternalCorrelation *external = reinterpret_cast<CUpti_ActivityExternalCorrelation *>(record);
        struct correlation correlation = {external->correlationId, (int)external->externalId};
        add(&records.correlations, &correlation, sizeof correlation);
    }
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *most_records)
{
    *buffer = static_cast<uint8_t *>(aligned_alloc(64, BUFFER_BYTES)); /* CUPTI takes 8 */
    *size = *buffer ? (size_t)BUFFER_BYTES : 0;
    *most_records = 0; /* as many as fit */
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t, size_t valid)
{
    CUpti_Activity *record = NULL;
    size_t dropped = 0;
    pthread_mutex_lock(&records.lock);
    while (valid > 0 && call_cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
        take_record(record);
    if (call_cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
        records.lost += dropped;
    pthread_mutex_unlock(&records.lock);
    free(buffer);
}

static enum status make_ready(struct error *error)
{
    if (records.ready)
        return STATUS_OK;
#define FIND(name)                                                                                                     \
    call_##name = reinterpret_cast<decltype(&name)>(cupti_function(#name, error));                                     \
    if (call_##name == NULL)                                                                                           \
        return error->status;
    FUNCTIONS(FIND)
#undef FIND
    CUPTI_TRY(error, cuptiActivityRegisterCallbacks, give_buffer, take_buffer);
    records.ready = true;
    return STATUS_OK;
}

/* Brings all records of what is done. */
static enum status flush(struct device *device, struct error *error)
{
    if (cuda_synchronize(device, error) != STATUS_OK)
        return error->status;
    CUPTI_TRY(error, cuptiActivityFlushAll, 0);
    return STATUS_OK;
}

/* ---- kernels ---- */

/* Calls of the runtime and of the driver leave records too: they are what an operation's number is attached to. */
static const CUpti_ActivityKind trace_kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                                 CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME,
                                                 CUPTI_ACTIVITY_KIND_DRIVER};
enum { TRACE_KINDS = sizeof trace_kinds / sizeof trace_kinds[0] };

static void forget_trace(void)
{
    pthread_mutex_lock(&records.lock);
    clear(&records.kernels);
    clear(&records.correlations);
    records.lost = 0;
    pthread_mutex_unlock(&records.lock);
}

static void stop_kinds(int count)
{
    for (int i = 0; i < count; i++)
        call_cuptiActivityDisable(trace_kinds[i]);
}

/* A graph shows its kernels if it was made while they are traced. */
enum status cupti_trace_begin(struct device *device, struct error *error)
{
    if (records.tracing)
        return error_set(error, STATUS_DEVICE, "device cuda: kernels are traced already");
    if (make_ready(error) != STATUS_OK || cuda_synchronize(device, error) != STATUS_OK)
        return error->status;
    for (int i = 0; i < TRACE_KINDS; i++) {
        CUptiResult code = call_cuptiActivityEnable(trace_kinds[i]);
        if (code != CUPTI_SUCCESS) {
            stop_kinds(i);
            return cupti_fail(error, (int)code, "cuptiActivityEnable", __FILE__, __LINE__);
        }
    }
    cuda_passes_forget(cuda_of(device));
    records.tracing = true;
    records.pushed = false;
    return STATUS_OK;
}

enum status cupti_trace_operation(struct device *, int operation, struct error *error)
{
    if (records.pushed)
        CUPTI_TRY(error, cuptiActivityPopExternalCorrelationId, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, NULL);
    records.pushed = false;
    CUPTI_TRY(error, cuptiActivityPushExternalCorrelationId, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
              (uint64_t)operation);
    records.pushed = true;
    return STATUS_OK;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = static_cast<const struct correlation *>(a)->id, y = static_cast<const struct correlation *>(b)->id;
    return (x > y) - (x < y);
}

static int by_start(const void *a, const void *b)
{
    uint64_t x = static_cast<const struct device_launch *>(a)->start_ns;
    uint64_t y = static_cast<const struct device_launch *>(b)->start_ns;
    return (x > y) - (x < y);
}

/* Under the lock. A kernel's operation is that of the call with the same correlation. */
static enum status match(struct device_trace *trace, struct error *error)
{
    const struct traced_kernel *kernels = reinterpret_cast<struct traced_kernel *>(records.kernels.items);
    size_t count = records.kernels.count;
    trace->launches = static_cast<struct device_launch *>(calloc(count + 1, sizeof *trace->launches));
    if (trace->launches == NULL)
        return error_set(error, STATUS_DEVICE, "device cuda: out of host memory for %zu kernel records", count);
    if (records.correlations.count > 0)
        qsort(records.correlations.items, records.correlations.count, sizeof(struct correlation), by_id);
    for (size_t i = 0; i < count; i++) {
        const struct correlation wanted = {kernels[i].correlation, 0};
        const void *found = records.correlations.count == 0
                                ? NULL
                                : bsearch(&wanted, records.correlations.items, records.correlations.count,
                                          sizeof(struct correlation), by_id);
        trace->launches[i] = kernels[i].launch;
        if (found != NULL)
            trace->launches[i].operation = static_cast<const struct correlation *>(found)->operation;
    }
    trace->count = count;
    trace->dropped = records.lost;
    qsort(trace->launches, count, sizeof *trace->launches, by_start);
    return STATUS_OK;
}

enum status cupti_trace_take(struct device *device, struct device_trace *trace, struct error *error)
{
    memset(trace, 0, sizeof *trace);
    if (flush(device, error) != STATUS_OK)
        return error->status;
    pthread_mutex_lock(&records.lock);
    enum status status = match(trace, error);
    pthread_mutex_unlock(&records.lock);
    forget_trace();
    return status;
}

void cupti_trace_end(struct device *device)
{
    struct error ignored;
    if (!records.tracing)
        return;
    if (records.pushed)
        call_cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, NULL);
    flush(device, &ignored);
    stop_kinds(TRACE_KINDS);
    records.tracing = records.pushed = false;
    forget_trace();
    cuda_passes_forget(cuda_of(device));
}

/* ---- memory ---- */

enum status cupti_account_begin(struct device *, struct error *error)
{
    if (make_ready(error) != STATUS_OK)
        return error->status;
    CUPTI_TRY(error, cuptiActivityEnableAllocationSource, 1);
    CUPTI_TRY(error, cuptiActivityEnable, CUPTI_ACTIVITY_KIND_MEMORY2);
    records.accounting = true;
    return STATUS_OK;
}

enum status cupti_account_bytes(struct device *device, uint64_t *held, struct error *error)
{
    *held = 0;
    if (flush(device, error) != STATUS_OK)
        return error->status;
    pthread_mutex_lock(&records.lock);
    const struct held_memory *memory = reinterpret_cast<struct held_memory *>(records.memory.items);
    for (size_t i = 0; i < records.memory.count; i++)
        *held += memory[i].bytes;
    uint64_t lost = records.lost;
    pthread_mutex_unlock(&records.lock);
    return lost == 0 ? STATUS_OK
                     : error_set(error, STATUS_DEVICE, "device cuda: %llu memory records were lost",
                                 (unsigned long long)lost);
}

void cupti_account_end(struct device *device)
{
    struct error ignored;
    if (!records.accounting)
        return;
    flush(device, &ignored);
    call_cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMORY2);
    call_cuptiActivityEnableAllocationSource(0);
    records.accounting = false;
    pthread_mutex_lock(&records.lock);
    clear(&records.memory);
    pthread_mutex_unlock(&records.lock);
}

#endif
