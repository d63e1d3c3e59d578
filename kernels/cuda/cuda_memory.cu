/* Device memory, and the ways in and out of it. */
#include "kernels/cuda/cuda.h"

#include <inttypes.h>
#include <string.h>

/* Whole pages, so that what the driver takes is what was asked for. */
enum status cuda_alloc(struct device *device, size_t bytes, void **memory, struct error *error)
{
    (void)device;
    size_t whole = cuda_round_up(bytes, CUDA_PAGE_BYTES), free_bytes = 0, total_bytes = 0;
    *memory = NULL;
    if (whole < bytes)
        return error_set(error, STATUS_DEVICE, "device cuda: cannot allocate %zu bytes: more than an address can reach",
                         bytes);
    cudaError_t code = cudaMalloc(memory, whole);
    if (code == cudaSuccess)
        return STATUS_OK;
    cuda_fail(error, code, "cudaMalloc", __FILE__, __LINE__);
    *memory = NULL;
    if (code == cudaErrorMemoryAllocation && cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
        return error_prefix(error, "cannot allocate %zu bytes (%.1f MiB), %zu bytes (%.1f MiB) are free", bytes,
                            (double)bytes / 1048576.0, free_bytes, (double)free_bytes / 1048576.0);
    return error_prefix(error, "cannot allocate %zu bytes", bytes);
}

/* cudaFree() waits for what is under way, which may use the memory. */
void cuda_release(struct device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)bytes;
    cudaFree(memory);
}

enum status cuda_memory(struct device *device, struct device_memory *memory, struct error *error)
{
    size_t free_bytes, total_bytes;
    memset(memory, 0, sizeof *memory);
    CUDA_TRY(error, cudaMemGetInfo(&free_bytes, &total_bytes));
    memory->free_bytes = free_bytes;
    memory->process_known = cuda_process_bytes(cuda_of(device)->ordinal, &memory->process_bytes);
    return STATUS_OK;
}

/* ---- staging ---- */

enum status cuda_staging_open(struct cuda_device *cuda, struct error *error)
{
    struct cuda_staging *staging = &cuda->staging;
    void *memory = NULL;
    CUDA_TRY(error, cudaHostAlloc(&memory, (size_t)CUDA_STAGING_SLOTS * CUDA_STAGING_BYTES, cudaHostAllocDefault));
    staging->memory = static_cast<char *>(memory);
    for (int slot = 0; slot < CUDA_STAGING_SLOTS; slot++)
        CUDA_TRY(error, cudaEventCreateWithFlags(&staging->done[slot], cudaEventDisableTiming));
    return STATUS_OK;
}

void cuda_staging_close(struct cuda_device *cuda)
{
    struct cuda_staging *staging = &cuda->staging;
    for (int slot = 0; slot < CUDA_STAGING_SLOTS; slot++)
        if (staging->done[slot])
            cudaEventDestroy(staging->done[slot]);
    if (staging->memory)
        cudaFreeHost(staging->memory);
    memset(staging, 0, sizeof *staging);
}

/* The caller's memory is free again on return, and the host runs on while the copies are made: it waits only for a slot
   that is still being read. An event that was never recorded counts as done. */
enum status cuda_upload(struct device *device, void *device_to, const void *host_from, size_t bytes,
                        struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    struct cuda_staging *staging = &cuda->staging;
    const size_t slot_bytes = CUDA_STAGING_BYTES;
    for (size_t done = 0; done < bytes; done += slot_bytes) {
        size_t part = bytes - done < slot_bytes ? bytes - done : slot_bytes;
        int slot = staging->next;
        char *pinned = staging->memory + (size_t)slot * CUDA_STAGING_BYTES;
        CUDA_TRY(error, cudaEventSynchronize(staging->done[slot]));
        memcpy(pinned, static_cast<const char *>(host_from) + done, part);
        CUDA_TRY(error, cudaMemcpyAsync(static_cast<char *>(device_to) + done, pinned, part, cudaMemcpyHostToDevice,
                                        cuda->stream));
        CUDA_TRY(error, cudaEventRecord(staging->done[slot], cuda->stream));
        staging->next = (slot + 1) % CUDA_STAGING_SLOTS;
    }
    return STATUS_OK;
}

/* Waits for all that was asked for before. All slots in a row serve as one buffer. */
enum status cuda_download(struct device *device, void *host_to, const void *device_from, size_t bytes,
                          struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    const size_t all = (size_t)CUDA_STAGING_SLOTS * CUDA_STAGING_BYTES;
    for (size_t done = 0; done < bytes; done += all) {
        size_t part = bytes - done < all ? bytes - done : all;
        CUDA_TRY(error, cudaMemcpyAsync(cuda->staging.memory, static_cast<const char *>(device_from) + done, part,
                                        cudaMemcpyDeviceToHost, cuda->stream));
        if (cuda_synchronize(device, error) != STATUS_OK)
            return error->status;
        memcpy(static_cast<char *>(host_to) + done, cuda->staging.memory, part);
    }
    return STATUS_OK;
}

enum status cuda_copy(struct device *device, void *to, const void *from, size_t bytes, struct error *error)
{
    CUDA_TRY(error, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_of(device)->stream));
    return STATUS_OK;
}

enum status cuda_synchronize(struct device *device, struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    uint64_t *wanted = cuda->checksum_wanted;
    cuda->checksum_wanted = NULL;
    CUDA_TRY(error, cudaStreamSynchronize(cuda->stream));
    return wanted ? cuda_read_checksum(wanted, error) : STATUS_OK;
}
