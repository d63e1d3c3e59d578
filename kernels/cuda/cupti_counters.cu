/* CUPTI's range profiler on the device: bytes that its memory gave and took between begin and end, as one user-defined
   range in one pass. Everything is set up at begin and given back at end: counting is rare, and not timed. */
#include "kernels/cuda/cupti.h"

#include <stdlib.h>
#include <string.h>

#ifndef KVLAB_CUPTI_COUNTERS

enum status cupti_counters_begin(struct device *, struct error *error)
{
#ifdef KVLAB_STANDIN
    return error_set(error, STATUS_DEVICE, "device cuda: the stand-in counts no traffic");
#else
    struct cupti_configuration *none;
    return cupti_configuration_make(&none, "", NULL, error);
#endif
}

enum status cupti_counters_end(struct device *device, struct device_counters *counters, struct error *error)
{
    memset(counters, 0, sizeof *counters);
    return cupti_counters_begin(device, error);
}

#else

#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>
#include <dlfcn.h>

/* The range that is being counted; the process can have one. */
static struct {
    CUpti_RangeProfiler_Object *profiler;
    struct cupti_configuration *configuration;
    uint8_t *data;
    size_t data_bytes;
} range;

/* Calls CUPTI's `name` with a parameter block. */
#define RANGE_TRY(error, name, parameters)                                                                             \
    do {                                                                                                               \
        decltype(&name) call_ = reinterpret_cast<decltype(&name)>(cupti_function(#name, error));                       \
        if (call_ == NULL)                                                                                             \
            return (error)->status;                                                                                    \
        CUptiResult code_ = call_(parameters);                                                                         \
        if (code_ != CUPTI_SUCCESS)                                                                                    \
            return cupti_fail(error, (int)code_, #name, __FILE__, __LINE__);                                           \
    } while (0)

/* A zeroed parameter block that knows its size. */
#define PARAMETERS(type, variable)                                                                                     \
    type variable = {};                                                                                                \
    variable.structSize = type##_STRUCT_SIZE

/* The runtime's context of this device, by the driver's library, which the runtime has loaded. */
static enum status current_context(CUcontext *context, struct error *error)
{
    typedef int context_function(CUcontext *);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    context_function *current = driver ? reinterpret_cast<context_function *>(dlsym(driver, "cuCtxGetCurrent")) : NULL;
    *context = NULL;
    int code = current ? current(context) : -1;
    if (driver)
        dlclose(driver);
    if (code != 0 || *context == NULL)
        return error_set(error, STATUS_DEVICE, "device cuda: counters: the driver names no context (cuCtxGetCurrent)");
    return STATUS_OK;
}

static enum status configure(struct cuda_device *cuda, CUcontext context, struct error *error)
{
    PARAMETERS(CUpti_Profiler_Initialize_Params, initialise);
    RANGE_TRY(error, cuptiProfilerInitialize, &initialise);
    PARAMETERS(CUpti_Device_GetChipName_Params, chip);
    chip.deviceIndex = (size_t)cuda->ordinal;
    RANGE_TRY(error, cuptiDeviceGetChipName, &chip);
    PARAMETERS(CUpti_Profiler_GetCounterAvailability_Params, available);
    available.ctx = context;
    RANGE_TRY(error, cuptiProfilerGetCounterAvailability, &available);
    available.pCounterAvailabilityImage = static_cast<uint8_t *>(calloc(available.counterAvailabilityImageSize, 1));
    if (available.pCounterAvailabilityImage == NULL)
        return error_set(error, STATUS_DEVICE, "device cuda: out of host memory for counters");
    decltype(&cuptiProfilerGetCounterAvailability) read =
        reinterpret_cast<decltype(&cuptiProfilerGetCounterAvailability)>(
            cupti_function("cuptiProfilerGetCounterAvailability", error));
    CUptiResult code = read(&available);
    enum status status = code != CUPTI_SUCCESS
                             ? cupti_fail(error, (int)code, "cuptiProfilerGetCounterAvailability", __FILE__, __LINE__)
                             : cupti_configuration_make(&range.configuration, chip.pChipName,
                                                        available.pCounterAvailabilityImage, error);
    free(available.pCounterAvailabilityImage);
    return status;
}

/* Where the counters' raw data goes: room for one range. */
static enum status make_data(struct error *error)
{
    PARAMETERS(CUpti_RangeProfiler_GetCounterDataSize_Params, size);
    size_t count;
    size.pRangeProfilerObject = range.profiler;
    size.pMetricNames = const_cast<const char **>(cupti_configuration_metrics(&count));
    size.numMetrics = count;
    size.maxNumOfRanges = 1;
    size.maxNumRangeTreeNodes = 1;
    RANGE_TRY(error, cuptiRangeProfilerGetCounterDataSize, &size);
    range.data_bytes = size.counterDataSize;
    range.data = static_cast<uint8_t *>(calloc(range.data_bytes, 1));
    if (range.data == NULL)
        return error_set(error, STATUS_DEVICE, "device cuda: out of host memory for counters");
    PARAMETERS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, image);
    image.pRangeProfilerObject = range.profiler;
    image.pCounterData = range.data;
    image.counterDataSize = range.data_bytes;
    RANGE_TRY(error, cuptiRangeProfilerCounterDataImageInitialize, &image);
    return STATUS_OK;
}

/* The user marks the range and would replay it, which one pass makes needless. */
static enum status set_configuration(struct error *error)
{
    PARAMETERS(CUpti_RangeProfiler_SetConfig_Params, set);
    set.pRangeProfilerObject = range.profiler;
    set.pConfig = cupti_configuration_image(range.configuration, &set.configSize);
    set.pCounterDataImage = range.data;
    set.counterDataImageSize = range.data_bytes;
    set.range = CUPTI_UserRange;
    set.replayMode = CUPTI_UserReplay;
    set.maxRangesPerPass = 1;
    set.numNestingLevels = 1;
    set.minNestingLevel = 1;
    set.targetNestingLevel = 1;
    RANGE_TRY(error, cuptiRangeProfilerSetConfig, &set);
    return STATUS_OK;
}

static enum status start(struct error *error)
{
    PARAMETERS(CUpti_RangeProfiler_Start_Params, begin);
    begin.pRangeProfilerObject = range.profiler;
    RANGE_TRY(error, cuptiRangeProfilerStart, &begin);
    PARAMETERS(CUpti_RangeProfiler_PushRange_Params, push);
    push.pRangeProfilerObject = range.profiler;
    push.pRangeName = "kvlab";
    RANGE_TRY(error, cuptiRangeProfilerPushRange, &push);
    return STATUS_OK;
}

/* Takes whatever begin got to. */
static enum status close_range(struct error *error)
{
    CUpti_RangeProfiler_Object *profiler = range.profiler;
    cupti_configuration_free(range.configuration);
    free(range.data);
    memset(&range, 0, sizeof range);
    if (profiler == NULL)
        return STATUS_OK;
    PARAMETERS(CUpti_RangeProfiler_Disable_Params, disable);
    disable.pRangeProfilerObject = profiler;
    RANGE_TRY(error, cuptiRangeProfilerDisable, &disable);
    return STATUS_OK;
}

static enum status open_range(struct cuda_device *cuda, struct error *error)
{
    CUcontext context;
    if (current_context(&context, error) != STATUS_OK || configure(cuda, context, error) != STATUS_OK)
        return error->status;
    PARAMETERS(CUpti_RangeProfiler_Enable_Params, enable);
    enable.ctx = context;
    RANGE_TRY(error, cuptiRangeProfilerEnable, &enable);
    range.profiler = enable.pRangeProfilerObject;
    if (make_data(error) != STATUS_OK || set_configuration(error) != STATUS_OK)
        return error->status;
    return start(error);
}

enum status cupti_counters_begin(struct device *device, struct error *error)
{
    struct error ignored;
    if (range.configuration != NULL)
        return error_set(error, STATUS_DEVICE, "device cuda: counters are in use already");
    if (cuda_synchronize(device, error) != STATUS_OK)
        return error->status;
    enum status status = open_range(cuda_of(device), error);
    if (status != STATUS_OK)
        close_range(&ignored);
    return status;
}

static enum status read_range(struct device_counters *counters, struct error *error)
{
    PARAMETERS(CUpti_RangeProfiler_PopRange_Params, pop);
    pop.pRangeProfilerObject = range.profiler;
    RANGE_TRY(error, cuptiRangeProfilerPopRange, &pop);
    PARAMETERS(CUpti_RangeProfiler_Stop_Params, stop);
    stop.pRangeProfilerObject = range.profiler;
    RANGE_TRY(error, cuptiRangeProfilerStop, &stop);
    if (!stop.isAllPassSubmitted)
        return error_set(error, STATUS_DEVICE, "device cuda: counters: one pass was not enough");
    PARAMETERS(CUpti_RangeProfiler_DecodeData_Params, decode);
    decode.pRangeProfilerObject = range.profiler;
    RANGE_TRY(error, cuptiRangeProfilerDecodeData, &decode);
    if (decode.numOfRangeDropped > 0)
        return error_set(error, STATUS_DEVICE, "device cuda: counters: the range was dropped");
    return cupti_configuration_evaluate(range.configuration, range.data, range.data_bytes, counters, error);
}

enum status cupti_counters_end(struct device *device, struct device_counters *counters, struct error *error)
{
    struct error closing = {STATUS_OK, ""};
    memset(counters, 0, sizeof *counters);
    if (range.configuration == NULL)
        return error_set(error, STATUS_DEVICE, "device cuda: counters were not begun");
    enum status status = cuda_synchronize(device, error);
    if (status == STATUS_OK)
        status = read_range(counters, error);
    if (close_range(&closing) != STATUS_OK && status == STATUS_OK) {
        *error = closing;
        status = closing.status;
    }
    return status;
}

#endif
