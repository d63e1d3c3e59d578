/* CUPTI's activity records: kernels in the order they ran, numbered instead of timed; calls with the number that was
   pushed; allocations of device memory. They are kept until they are flushed, and then given in buffers. */
#include "include/cupti.h"

#include "internal.h"

#include <cstring>
#include <dlfcn.h>
#include <string>
#include <unordered_set>

namespace
{

bool enabled[CUPTI_ACTIVITY_KIND_COUNT];
bool with_source;
CUpti_BuffersCallbackRequestFunc request_buffer;
CUpti_BuffersCallbackCompleteFunc complete_buffer;
std::vector<std::vector<uint8_t>> pending;
std::vector<uint64_t> pushed;
uint32_t calls, current;
uint64_t ticks;
std::unordered_set<std::string> names; /* records point into it */

const size_t RECORD_BYTES = 64; /* of every record in a buffer */

template <typename T> void keep(const T &record)
{
    static_assert(sizeof(T) <= RECORD_BYTES, "a record fits its place");
    if (!enabled[record.kind])
        return;
    std::vector<uint8_t> bytes(RECORD_BYTES);
    memcpy(bytes.data(), &record, sizeof record);
    pending.push_back(bytes);
}

const char *own_path()
{
    static Dl_info own;
    return dladdr((void *)&own_path, &own) ? own.dli_fname : "";
}

} // namespace

namespace standin
{

uint32_t cupti_call()
{
    calls++;
    if (!pushed.empty())
        keep(CUpti_ActivityExternalCorrelation{CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                               CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, pushed.back(), calls});
    return calls;
}

void cupti_running(uint32_t call)
{
    current = call;
}

/* A launch has its kernel in parentheses where the name holds commas. */
void cupti_kernel(const std::string &name)
{
    bool enclosed = name.front() == '(' && name.back() == ')';
    const std::string plain = enclosed ? name.substr(1, name.size() - 2) : name;
    ticks += 2;
    keep(CUpti_ActivityKernel10{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, ticks, ticks + 1, current,
                                names.insert(plain).first->c_str()});
}

void cupti_memory(bool allocated, const void *address, size_t bytes)
{
    keep(CUpti_ActivityMemory4{
        CUPTI_ACTIVITY_KIND_MEMORY2,
        allocated ? CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION : CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE,
        CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, (uint64_t)(uintptr_t)address, bytes, with_source ? own_path() : nullptr});
}

} // namespace standin

CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
    *text = result == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : "an error of the stand-in's CUPTI";
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete)
{
    request_buffer = request;
    complete_buffer = complete;
    return request && complete ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    if (kind <= 0 || kind >= CUPTI_ACTIVITY_KIND_COUNT)
        return CUPTI_ERROR_INVALID_KIND;
    enabled[kind] = true;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    if (kind <= 0 || kind >= CUPTI_ACTIVITY_KIND_COUNT)
        return CUPTI_ERROR_INVALID_KIND;
    enabled[kind] = false;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t)
{
    size_t next = 0;
    while (next < pending.size()) {
        uint8_t *buffer = nullptr;
        size_t size = 0, most = 0, used = 0;
        request_buffer(&buffer, &size, &most);
        if (!buffer)
            return CUPTI_ERROR_MAX_LIMIT_REACHED;
        for (; next < pending.size() && used + RECORD_BYTES <= size; next++, used += RECORD_BYTES)
            memcpy(buffer + used, pending[next].data(), RECORD_BYTES);
        complete_buffer(nullptr, 0, buffer, size, used);
    }
    pending.clear();
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t validBytes, CUpti_Activity **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + RECORD_BYTES : buffer;
    if (next >= buffer + validBytes)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *dropped)
{
    *dropped = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t id)
{
    pushed.push_back(id);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t *lastId)
{
    if (pushed.empty())
        return CUPTI_ERROR_QUEUE_EMPTY;
    if (lastId)
        *lastId = pushed.back();
    pushed.pop_back();
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableAllocationSource(uint8_t enable)
{
    with_source = enable;
    return CUPTI_SUCCESS;
}

void *standin_cupti_function(const char *name)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"cuptiGetResultString", (void *)cuptiGetResultString},
        {"cuptiActivityRegisterCallbacks", (void *)cuptiActivityRegisterCallbacks},
        {"cuptiActivityEnable", (void *)cuptiActivityEnable},
        {"cuptiActivityDisable", (void *)cuptiActivityDisable},
        {"cuptiActivityFlushAll", (void *)cuptiActivityFlushAll},
        {"cuptiActivityGetNextRecord", (void *)cuptiActivityGetNextRecord},
        {"cuptiActivityGetNumDroppedRecords", (void *)cuptiActivityGetNumDroppedRecords},
        {"cuptiActivityPushExternalCorrelationId", (void *)cuptiActivityPushExternalCorrelationId},
        {"cuptiActivityPopExternalCorrelationId", (void *)cuptiActivityPopExternalCorrelationId},
        {"cuptiActivityEnableAllocationSource", (void *)cuptiActivityEnableAllocationSource},
    };
    for (const auto &known : functions)
        if (strcmp(known.name, name) == 0)
            return known.function;
    return nullptr;
}
