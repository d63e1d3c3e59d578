/* The CUDA device, inside: what its files share. Users see kernels/device.h only.
   The sources are C-style CUDA. They compile with nvcc, and with a host compiler against the stand-in device of the
   tests, which has headers of the same names. */
#ifndef KVLAB_KERNELS_CUDA_CUDA_H
#define KVLAB_KERNELS_CUDA_CUDA_H

#include "kernels/device.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>

struct cuda_passes;

enum {
    CUDA_FEW_ROWS = 16, /* up to here a product is bound by reading the weights: own kernels */
    CUDA_STAGING_SLOTS = 4,
    CUDA_STAGING_BYTES = 1 << 20, /* of one slot */
    CUDA_PAGE_BYTES = 2 << 20,    /* what the driver gives memory in */
    CUDA_ALIGN_BYTES = 256,       /* of workspace parts */
};

/* Pinned host memory through which uploads go: a slot is free again once its copy is done, which its event tells. */
struct cuda_staging {
    char *memory; /* [slots][bytes] */
    cudaEvent_t done[CUDA_STAGING_SLOTS];
    int next;
};

struct cuda_device {
    struct device base;
    int ordinal;
    int capability;       /* 10 x major + minor: 90 is 9.0 */
    int shared_max_bytes; /* dynamic shared memory that a block can have */
    cudaStream_t stream;  /* all work goes here, in order */
    cublasHandle_t blas;
    char *workspace; /* borrowed from the engine's ledger */
    size_t workspace_bytes;
    struct cuda_staging staging;
    uint64_t *checksum_wanted;  /* host: where the last read's checksum goes when the device is next waited for */
    struct cuda_passes *passes; /* decode passes recorded as graphs */
};

static inline struct cuda_device *cuda_of(struct device *device)
{
    return (struct cuda_device *)device;
}

static inline size_t cuda_round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static inline unsigned cuda_blocks(size_t work, size_t per_block)
{
    return (unsigned)((work + per_block - 1) / per_block);
}

/* ---- errors: a failed call's text, code, string, file and line; status 3 */
enum status cuda_fail(struct error *error, cudaError_t code, const char *call, const char *file, int line);
enum status cublas_fail(struct error *error, cublasStatus_t code, const char *call, const char *file, int line);

#define CUDA_TRY(error, call)                                                                                          \
    do {                                                                                                               \
        cudaError_t code_ = (call);                                                                                    \
        if (code_ != cudaSuccess)                                                                                      \
            return cuda_fail(error, code_, #call, __FILE__, __LINE__);                                                 \
    } while (0)
#define CUBLAS_TRY(error, call)                                                                                        \
    do {                                                                                                               \
        cublasStatus_t code_ = (call);                                                                                 \
        if (code_ != CUBLAS_STATUS_SUCCESS)                                                                            \
            return cublas_fail(error, code_, #call, __FILE__, __LINE__);                                               \
    } while (0)

/* ---- cuda_memory.cu */
enum status cuda_alloc(struct device *device, size_t bytes, void **memory, struct error *error);
void cuda_release(struct device *device, void *memory, size_t bytes);
enum status cuda_memory(struct device *device, struct device_memory *memory, struct error *error);
enum status cuda_staging_open(struct cuda_device *cuda, struct error *error);
void cuda_staging_close(struct cuda_device *cuda);
enum status cuda_upload(struct device *device, void *device_to, const void *host_from, size_t bytes,
                        struct error *error);
enum status cuda_download(struct device *device, void *host_to, const void *device_from, size_t bytes,
                          struct error *error);
enum status cuda_copy(struct device *device, void *to, const void *from, size_t bytes, struct error *error);
/* Waits for the stream, and delivers the checksum of a read. */
enum status cuda_synchronize(struct device *device, struct error *error);

/* ---- cuda_nvml.cu: bytes of device memory that this process uses, 0 (and nothing stored) where that cannot be had */
int cuda_process_bytes(int ordinal, uint64_t *bytes);
/* Free memory and this process's use before the device has a context; zeroed where that cannot be had. */
void cuda_memory_before(int ordinal, struct device_memory *memory);

/* ---- cuda_passes.cu: decode passes recorded and replayed as graphs */
enum status cuda_passes_open(struct cuda_device *cuda, struct error *error);
void cuda_passes_close(struct cuda_device *cuda);
void cuda_passes_forget(struct cuda_device *cuda); /* what was recorded holds addresses that are about to change */
enum status cuda_pass_begin(struct device *device, const struct device_pass *shape, int *replayed, struct error *error);
enum status cuda_pass_end(struct device *device, enum status so_far, struct error *error);
/* The context that launches are made for: a power of two, so that a recorded pass serves until contexts have doubled.
 */
static inline int cuda_context_bucket(int context)
{
    int bucket = 64;
    while (bucket < context && bucket < 1 << 30)
        bucket *= 2;
    return bucket;
}

/* ---- cuda_fill.cu */
enum status cuda_fill_random(struct device *device, void *values, enum dtype dtype, size_t count, uint64_t seed,
                             float scale, struct error *error);
enum status cuda_fill_value(struct device *device, void *values, enum dtype dtype, size_t count, float value,
                            struct error *error);
enum status cuda_read_bytes(struct device *device, const void *memory, size_t bytes, uint64_t *checksum,
                            struct error *error);
enum status cuda_read_checksum(uint64_t *checksum, struct error *error); /* of the last read, which is done */

/* ---- cuda_ops.cu, cuda_rope.cu */
enum status cuda_embed(struct device *device, float *out, const void *table, enum dtype dtype, const int32_t *tokens,
                       int rows, int hidden, struct error *error);
enum status cuda_rms_norm(struct device *device, const struct rms_norm_args *args, struct error *error);
enum status cuda_swiglu(struct device *device, void *out, const float *gate, const float *up, enum dtype dtype,
                        int rows, int width, struct error *error);
enum status cuda_argmax(struct device *device, int32_t *index, const void *logits, enum dtype dtype, int rows,
                        int vocab, struct error *error);
enum status cuda_rope_table(struct device *device, float *cos_sin, const int32_t *positions,
                            const float *inverse_frequency, int rows, int half, struct error *error);
enum status cuda_rope_store(struct device *device, const struct rope_store_args *args, struct error *error);

/* ---- cuda_sample.cu */
enum status cuda_sample(struct device *device, const struct sample_args *args, struct error *error);

/* ---- cuda_linear.cu: chooses; cuda_few_rows.cu, cuda_few_rows_mma.cu: up to CUDA_FEW_ROWS rows */
enum status cuda_linear(struct device *device, const struct linear_args *args, struct error *error);
size_t cuda_linear_workspace(const struct cuda_device *cuda, const struct workspace_shape *shape);
enum status cuda_few_rows(struct cuda_device *cuda, const struct linear_args *args, struct error *error);
enum status cuda_few_rows_mma(struct cuda_device *cuda, const struct linear_args *args, struct error *error);

/* ---- cuda_kv_move.cu */
enum status cuda_kv_move(struct device *device, const struct kv_move_args *args, struct error *error);

/* ---- cuda_attention.cu: plans; the kernels are in cuda_attention_*.cu */
enum status cuda_attention(struct device *device, const struct attention_args *args, struct error *error);
enum status cuda_attention_mass(struct device *device, const struct attention_mass_args *args, struct error *error);
size_t cuda_attention_workspace(const struct cuda_device *cuda, const struct workspace_shape *shape);

#endif
