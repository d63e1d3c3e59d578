/* The CUDA device: opening, what it is, events, errors. */
#include "kernels/cuda/cupti.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device_event {
    cudaEvent_t at;
};

/* ---- errors ---- */

enum status cuda_fail(struct error *error, cudaError_t code, const char *call, const char *file, int line)
{
    cudaGetLastError(); /* an error that can be recovered from is over with this report */
    return error_set(error, STATUS_DEVICE, "device cuda: %s: error %d, %s (%s), at %s:%d", call, (int)code,
                     cudaGetErrorName(code), cudaGetErrorString(code), file, line);
}

enum status cublas_fail(struct error *error, cublasStatus_t code, const char *call, const char *file, int line)
{
    return error_set(error, STATUS_DEVICE, "device cuda: %s: error %d, %s (%s), at %s:%d", call, (int)code,
                     cublasGetStatusName(code), cublasGetStatusString(code), file, line);
}

/* ---- workspace ---- */

static size_t workspace_bytes(struct device *device, const struct workspace_shape *shape)
{
    size_t linear = cuda_linear_workspace(cuda_of(device), shape);
    size_t attention = cuda_attention_workspace(cuda_of(device), shape);
    return linear > attention ? linear : attention;
}

/* Products take the workspace up when they come. Recorded passes hold addresses in it. */
static void set_workspace(struct device *device, void *memory, size_t bytes)
{
    if (!memory)
        cuda_passes_forget(cuda_of(device));
    cuda_of(device)->workspace = static_cast<char *>(memory);
    cuda_of(device)->workspace_bytes = bytes;
}

/* ---- time ---- */

static enum status event_create(struct device *device, struct device_event **out, struct error *error)
{
    (void)device;
    struct device_event *event = static_cast<struct device_event *>(calloc(1, sizeof *event));
    *out = NULL;
    if (!event)
        return error_set(error, STATUS_DEVICE, "device cuda: event: out of host memory");
    cudaError_t code = cudaEventCreate(&event->at);
    if (code != cudaSuccess) {
        free(event);
        return cuda_fail(error, code, "cudaEventCreate", __FILE__, __LINE__);
    }
    *out = event;
    return STATUS_OK;
}

static void event_destroy(struct device *device, struct device_event *event)
{
    (void)device;
    if (event)
        cudaEventDestroy(event->at);
    free(event);
}

static enum status event_record(struct device *device, struct device_event *event, struct error *error)
{
    CUDA_TRY(error, cudaEventRecord(event->at, cuda_of(device)->stream));
    return STATUS_OK;
}

static enum status event_elapsed(struct device *device, struct device_event *start, struct device_event *end,
                                 double *ms, struct error *error)
{
    float elapsed = 0.0f;
    CUDA_TRY(error, cudaEventSynchronize(end->at));
    CUDA_TRY(error, cudaEventElapsedTime(&elapsed, start->at, end->at));
    *ms = (double)elapsed;
    return cuda_of(device)->checksum_wanted ? cuda_synchronize(device, error) : STATUS_OK;
}

/* ---- opening and closing ---- */

static void close_device(struct device *device)
{
    struct cuda_device *cuda = cuda_of(device);
    if (cuda->stream)
        cudaStreamSynchronize(cuda->stream);
    cuda_passes_close(cuda);
    cuda_staging_close(cuda);
    if (cuda->blas)
        cublasDestroy(cuda->blas);
    if (cuda->stream)
        cudaStreamDestroy(cuda->stream);
    free(cuda);
}

/* In the order of struct device_ops: C++ before 2020 has no names here. */
static const struct device_ops operations = {
    cuda_alloc,       cuda_release,    cuda_upload,     cuda_download,   cuda_copy,        cuda_memory,
    cuda_fill_random, cuda_fill_value, workspace_bytes, set_workspace,   cuda_pass_begin,  cuda_pass_end,
    event_create,     event_destroy,   event_record,    event_elapsed,   cuda_synchronize, cuda_embed,
    cuda_rms_norm,    cuda_linear,     cuda_rope_table, cuda_rope_store, cuda_attention,   cuda_attention_mass,
    cuda_kv_move,     cuda_swiglu,     cuda_argmax,     cuda_sample,     cuda_read_bytes,  close_device,
};

#ifdef KVLAB_CUPTI
static const struct device_probes probes = {
    cupti_trace_begin,   cupti_trace_operation, cupti_trace_take,     cupti_trace_end,    cupti_account_begin,
    cupti_account_bytes, cupti_account_end,     cupti_counters_begin, cupti_counters_end,
};
#endif

static enum status read_attributes(struct cuda_device *cuda, struct error *error)
{
    struct device_info *info = &cuda->base.info;
    int major, minor, l2, ordinal = cuda->ordinal;
    CUDA_TRY(error, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
    CUDA_TRY(error, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
    CUDA_TRY(error, cudaDeviceGetAttribute(&info->multiprocessors, cudaDevAttrMultiProcessorCount, ordinal));
    CUDA_TRY(error, cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, ordinal));
    CUDA_TRY(error, cudaDeviceGetAttribute(&cuda->shared_max_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal));
    cuda->capability = 10 * major + minor;
    info->l2_bytes = (size_t)l2;
    info->page_bytes = CUDA_PAGE_BYTES;
    snprintf(info->features, sizeof info->features, "compute capability %d.%d", major, minor);
    return STATUS_OK;
}

/* CUDA's versions are 1000 x major + 10 x minor, cuBLAS's are said by itself. */
static enum status read_versions(struct cuda_device *cuda, struct error *error)
{
    struct device_info *info = &cuda->base.info;
    int driver, runtime, blas;
    CUDA_TRY(error, cudaDriverGetVersion(&driver));
    CUDA_TRY(error, cudaRuntimeGetVersion(&runtime));
    CUBLAS_TRY(error, cublasGetVersion(cuda->blas, &blas));
    snprintf(info->driver, sizeof info->driver, "driver for CUDA %d.%d, runtime %d.%d, cuBLAS %d", driver / 1000,
             driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, blas);
    return STATUS_OK;
}

static enum status read_info(struct cuda_device *cuda, struct error *error)
{
    struct cudaDeviceProp properties;
    size_t free_bytes, total_bytes;
    CUDA_TRY(error, cudaGetDeviceProperties(&properties, cuda->ordinal));
    CUDA_TRY(error, cudaMemGetInfo(&free_bytes, &total_bytes));
    snprintf(cuda->base.info.kind, sizeof cuda->base.info.kind, "cuda");
    snprintf(cuda->base.info.name, sizeof cuda->base.info.name, "%.*s", (int)sizeof cuda->base.info.name - 1,
             properties.name);
    cuda->base.info.total_bytes = total_bytes;
    if (read_attributes(cuda, error) != STATUS_OK)
        return error->status;
    return read_versions(cuda, error);
}

/* The matrix library: on our stream, sums in f32 throughout. */
static enum status open_blas(struct cuda_device *cuda, struct error *error)
{
    CUBLAS_TRY(error, cublasCreate(&cuda->blas));
    CUBLAS_TRY(error, cublasSetStream(cuda->blas, cuda->stream));
    CUBLAS_TRY(error, cublasSetMathMode(cuda->blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    return STATUS_OK;
}

static enum status open_parts(struct cuda_device *cuda, struct error *error)
{
    CUDA_TRY(error, cudaSetDevice(cuda->ordinal));
    CUDA_TRY(error, cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    if (open_blas(cuda, error) != STATUS_OK || cuda_staging_open(cuda, error) != STATUS_OK ||
        cuda_passes_open(cuda, error) != STATUS_OK)
        return error->status;
    return read_info(cuda, error);
}

/* What kernels/device.c asks this library for. Status 3 where there is no driver, no such device, or no room on it. */
extern "C" __attribute__((visibility("default"))) enum status kvlab_cuda_open(int ordinal, struct device **device,
                                                                              struct error *error)
{
    int count = 0;
    *device = NULL;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
        cuda_fail(error, code, "cudaGetDeviceCount", __FILE__, __LINE__);
        return error_prefix(error, "no NVIDIA driver or card answers here (--device cpu goes without)");
    }
    if (ordinal >= count)
        return error_set(error, STATUS_DEVICE, "device cuda:%d: there are %d devices, numbered from 0", ordinal, count);
    struct cuda_device *cuda = static_cast<struct cuda_device *>(calloc(1, sizeof *cuda));
    if (!cuda)
        return error_set(error, STATUS_DEVICE, "device cuda: out of host memory");
    cuda->base.ops = &operations;
    cuda->base.graphs = 1;
#ifdef KVLAB_CUPTI
    cuda->base.probes = &probes;
#endif
    cuda->ordinal = ordinal;
    cuda_memory_before(ordinal, &cuda->base.info.before); /* setting the device makes its context */
    if (open_parts(cuda, error) != STATUS_OK) {
        close_device(&cuda->base);
        return error->status;
    }
    *device = &cuda->base;
    return STATUS_OK;
}
