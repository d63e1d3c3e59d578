/* The host side of CUPTI's range profiler: which counters, in how many passes of the hardware, and from their raw data
   to numbers. Needs CUPTI's library, neither a device nor a driver. Its header is C++: hence a file of its own. */
#include "kernels/cuda/cupti.h"

#ifndef KVLAB_CUPTI_COUNTERS

static enum status without(struct error *error)
{
    return error_set(error, STATUS_DEVICE,
                     "device cuda: built without CUPTI's range profiler (CUDA 12.6 has it), so without counters");
}
enum status cupti_configuration_make(struct cupti_configuration **configuration, const char *, const uint8_t *,
                                     struct error *error)
{
    *configuration = NULL;
    return without(error);
}
void cupti_configuration_free(struct cupti_configuration *)
{
}
const uint8_t *cupti_configuration_image(const struct cupti_configuration *, size_t *bytes)
{
    *bytes = 0;
    return NULL;
}
const char *const *cupti_configuration_metrics(size_t *count)
{
    *count = 0;
    return NULL;
}
size_t cupti_configuration_passes(const struct cupti_configuration *)
{
    return 0;
}
enum status cupti_chips(const char *const **names, size_t *count, struct error *error)
{
    *names = NULL;
    *count = 0;
    return without(error);
}

#else

#include <cupti_profiler_host.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const metrics[] = {"dram__bytes_read.sum", "dram__bytes_write.sum"};
enum { METRICS = sizeof metrics / sizeof metrics[0] };

struct cupti_configuration {
    CUpti_Profiler_Host_Object *host;
    uint8_t *image;
    size_t image_bytes, passes;
};

/* Calls CUPTI's `name` with a parameter block of its type, whose first field is its size. */
#define HOST_TRY(error, name, parameters)                                                                              \
    do {                                                                                                               \
        decltype(&name) call_ = reinterpret_cast<decltype(&name)>(cupti_function(#name, error));                       \
        if (call_ == NULL)                                                                                             \
            return (error)->status;                                                                                    \
        CUptiResult code_ = call_(parameters);                                                                         \
        if (code_ != CUPTI_SUCCESS)                                                                                    \
            return cupti_fail(error, (int)code_, #name, __FILE__, __LINE__);                                           \
    } while (0)

enum status cupti_chips(const char *const **names, size_t *count, struct error *error)
{
    CUpti_Profiler_Host_GetSupportedChips_Params chips = {};
    chips.structSize = CUpti_Profiler_Host_GetSupportedChips_Params_STRUCT_SIZE;
    *names = NULL;
    *count = 0;
    HOST_TRY(error, cuptiProfilerHostGetSupportedChips, &chips);
    *names = chips.ppChipNames;
    *count = chips.numChips;
    return STATUS_OK;
}

static enum status open_host(struct cupti_configuration *configuration, const char *chip, const uint8_t *availability,
                             struct error *error)
{
    CUpti_Profiler_Host_Initialize_Params open = {};
    open.structSize = CUpti_Profiler_Host_Initialize_Params_STRUCT_SIZE;
    open.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    open.pChipName = chip;
    open.pCounterAvailabilityImage = availability;
    HOST_TRY(error, cuptiProfilerHostInitialize, &open);
    configuration->host = open.pHostObject;
    CUpti_Profiler_Host_ConfigAddMetrics_Params add = {};
    add.structSize = CUpti_Profiler_Host_ConfigAddMetrics_Params_STRUCT_SIZE;
    add.pHostObject = configuration->host;
    add.ppMetricNames = const_cast<const char **>(metrics);
    add.numMetrics = METRICS;
    HOST_TRY(error, cuptiProfilerHostConfigAddMetrics, &add);
    return STATUS_OK;
}

static enum status read_image(struct cupti_configuration *configuration, struct error *error)
{
    CUpti_Profiler_Host_GetConfigImageSize_Params size = {};
    size.structSize = CUpti_Profiler_Host_GetConfigImageSize_Params_STRUCT_SIZE;
    size.pHostObject = configuration->host;
    HOST_TRY(error, cuptiProfilerHostGetConfigImageSize, &size);
    configuration->image = static_cast<uint8_t *>(calloc(size.configImageSize, 1));
    if (configuration->image == NULL)
        return error_set(error, STATUS_DEVICE, "device cuda: out of host memory for counters");
    configuration->image_bytes = size.configImageSize;
    CUpti_Profiler_Host_GetConfigImage_Params image = {};
    image.structSize = CUpti_Profiler_Host_GetConfigImage_Params_STRUCT_SIZE;
    image.pHostObject = configuration->host;
    image.pConfigImage = configuration->image;
    image.configImageSize = configuration->image_bytes;
    HOST_TRY(error, cuptiProfilerHostGetConfigImage, &image);
    CUpti_Profiler_Host_GetNumOfPasses_Params passes = {};
    passes.structSize = CUpti_Profiler_Host_GetNumOfPasses_Params_STRUCT_SIZE;
    passes.pConfigImage = configuration->image;
    passes.configImageSize = configuration->image_bytes;
    HOST_TRY(error, cuptiProfilerHostGetNumOfPasses, &passes);
    configuration->passes = passes.numOfPasses;
    return STATUS_OK;
}

enum status cupti_configuration_make(struct cupti_configuration **out, const char *chip, const uint8_t *availability,
                                     struct error *error)
{
    struct cupti_configuration *made = static_cast<struct cupti_configuration *>(calloc(1, sizeof *made));
    *out = NULL;
    if (made == NULL)
        return error_set(error, STATUS_DEVICE, "device cuda: out of host memory for counters");
    enum status status = open_host(made, chip, availability, error);
    if (status != STATUS_OK)
        error_prefix(error, "counters of chip \"%s\"", chip);
    else
        status = read_image(made, error);
    if (status == STATUS_OK && made->passes != 1)
        status = error_set(error, STATUS_DEVICE,
                           "device cuda: this chip needs %zu passes to count reads and writes; the work would run as "
                           "often, and a decode step appends to the cache",
                           made->passes);
    if (status == STATUS_OK)
        *out = made;
    else
        cupti_configuration_free(made);
    return status;
}

void cupti_configuration_free(struct cupti_configuration *configuration)
{
    struct error ignored;
    if (configuration == NULL)
        return;
    if (configuration->host != NULL) {
        CUpti_Profiler_Host_Deinitialize_Params close = {};
        close.structSize = CUpti_Profiler_Host_Deinitialize_Params_STRUCT_SIZE;
        close.pHostObject = configuration->host;
        decltype(&cuptiProfilerHostDeinitialize) call = reinterpret_cast<decltype(&cuptiProfilerHostDeinitialize)>(
            cupti_function("cuptiProfilerHostDeinitialize", &ignored));
        if (call != NULL)
            call(&close);
    }
    free(configuration->image);
    free(configuration);
}

const uint8_t *cupti_configuration_image(const struct cupti_configuration *configuration, size_t *bytes)
{
    *bytes = configuration->image_bytes;
    return configuration->image;
}

const char *const *cupti_configuration_metrics(size_t *count)
{
    *count = METRICS;
    return metrics;
}

size_t cupti_configuration_passes(const struct cupti_configuration *configuration)
{
    return configuration->passes;
}

enum status cupti_configuration_evaluate(struct cupti_configuration *configuration, const uint8_t *counter_data,
                                         size_t bytes, struct device_counters *counters, struct error *error)
{
    double values[METRICS] = {0};
    CUpti_Profiler_Host_EvaluateToGpuValues_Params evaluate = {};
    evaluate.structSize = CUpti_Profiler_Host_EvaluateToGpuValues_Params_STRUCT_SIZE;
    evaluate.pHostObject = configuration->host;
    evaluate.pCounterDataImage = counter_data;
    evaluate.counterDataImageSize = bytes;
    evaluate.rangeIndex = 0;
    evaluate.ppMetricNames = const_cast<const char **>(metrics);
    evaluate.numMetrics = METRICS;
    evaluate.pMetricValues = values;
    HOST_TRY(error, cuptiProfilerHostEvaluateToGpuValues, &evaluate);
    for (int i = 0; i < METRICS; i++)
        if (!isfinite(values[i]) || values[i] < 0)
            return error_set(error, STATUS_DEVICE, "device cuda: counter %s gave %g, no number of bytes", metrics[i],
                             values[i]);
    counters->read_bytes = (uint64_t)values[0];
    counters->written_bytes = (uint64_t)values[1];
    return STATUS_OK;
}

#endif
