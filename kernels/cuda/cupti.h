/* CUPTI, as far as it is used: kernel records, memory records, and counters of the device's memory.

   Its library is opened when a probe is first begun (dlopen), never linked: the device loads on machines without it,
   and whoever measures without probes does not pay for it. Its headers are needed to build; without them the device
   has no probes. On the stand-in of the tests the functions are the stand-in's own, and there are no counters. */
#ifndef KVLAB_KERNELS_CUDA_CUPTI_H
#define KVLAB_KERNELS_CUDA_CUPTI_H

#include "kernels/cuda/cuda.h"
#include "kernels/probes.h"

#ifdef __has_include
#if __has_include(<cupti.h>)
#define KVLAB_CUPTI 1
#endif
#if __has_include(<cupti_range_profiler.h>) && __has_include(<cupti_profiler_host.h>) && !defined(KVLAB_STANDIN)
#define KVLAB_CUPTI_COUNTERS 1 /* from CUDA 12.6 on */
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cupti_library.cu: the address of a function of CUPTI's, or NULL with the reason in *error. */
void *cupti_function(const char *name, struct error *error);
/* A failed call of CUPTI's, with its code and string; status 3. Where the code says that counters are not permitted,
   the message says how to allow them. */
enum status cupti_fail(struct error *error, int code, const char *call, const char *file, int line);

/* "void few_rows<float, 2>(struct args)" or its mangled form as "few_rows<float, 2>", cut to size - 1 characters. */
void cupti_kernel_name(const char *name, char *text, size_t size);

/* ---- cupti_activity.cu */
enum status cupti_trace_begin(struct device *device, struct error *error);
enum status cupti_trace_operation(struct device *device, int operation, struct error *error);
enum status cupti_trace_take(struct device *device, struct device_trace *trace, struct error *error);
void cupti_trace_end(struct device *device);
enum status cupti_account_begin(struct device *device, struct error *error);
enum status cupti_account_bytes(struct device *device, uint64_t *held, struct error *error);
void cupti_account_end(struct device *device);

/* ---- cupti_host.cu: what counting asks of CUPTI's host side, which needs neither device nor driver */
struct cupti_configuration; /* of the two metrics, for one chip */
/* chip: as cuptiDeviceGetChipName() says, "GH100"; availability: the image of the device's counters, or NULL. Status 3
   unless the chip has the counters and one pass of the hardware takes them all. Free with
   cupti_configuration_free(), which takes NULL. */
enum status cupti_configuration_make(struct cupti_configuration **configuration, const char *chip,
                                     const uint8_t *availability, struct error *error);
void cupti_configuration_free(struct cupti_configuration *configuration);
const uint8_t *cupti_configuration_image(const struct cupti_configuration *configuration, size_t *bytes);
const char *const *cupti_configuration_metrics(size_t *count);
size_t cupti_configuration_passes(const struct cupti_configuration *configuration);
enum status cupti_configuration_evaluate(struct cupti_configuration *configuration, const uint8_t *counter_data,
                                         size_t bytes, struct device_counters *counters, struct error *error);
/* Chips that this CUPTI knows, in *names, borrowed from it; status 3 without one. */
enum status cupti_chips(const char *const **names, size_t *count, struct error *error);

/* ---- cupti_counters.cu */
enum status cupti_counters_begin(struct device *device, struct error *error);
enum status cupti_counters_end(struct device *device, struct device_counters *counters, struct error *error);

#ifdef __cplusplus
}
#endif
#endif
