/* Weights from safetensors: checked against the config, then read in place, uploaded, or converted. */
#include "engine/formula.h"
#include "engine/json_input.h"
#include "engine/weights_tensors.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STAGING_VALUES = 1 << 20 }; /* values converted at a time */

static void shape_text(char *text, size_t size, const int64_t *shape, int dimensions)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < dimensions && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
}

/* The stored tensor, if it is there and of the config's shape and a type that can be read. */
static enum status find_tensor(const struct safetensors *files, const char *folder, struct weight_tensor *tensor,
                               struct error *error)
{
    const struct safetensor *stored = tensor->stored = safetensors_find(files, tensor->name);
    if (!stored && strcmp(tensor->name, "lm_head.weight") == 0)
        return error_set(error, STATUS_INPUT,
                         "%s: tensor lm_head.weight is missing; if the head is the embedding table, config.json must "
                         "say \"tie_word_embeddings\": true",
                         folder);
    if (!stored)
        return error_set(error, STATUS_INPUT,
                         "%s: tensor %s is missing, which config.json needs; fetch the weights again", folder,
                         tensor->name);
    int64_t shape[2] = {tensor->rows, tensor->columns};
    int dimensions = tensor->columns ? 2 : 1;
    if (stored->dimensions != dimensions || memcmp(stored->shape, shape, (size_t)dimensions * sizeof *shape) != 0) {
        char have[192], want[64];
        shape_text(have, sizeof have, stored->shape, stored->dimensions);
        shape_text(want, sizeof want, shape, dimensions);
        return error_set(
            error, STATUS_INPUT,
            "%s: tensor %s has shape %s, but config.json makes it %s; use the config.json of these weights",
            stored->path, tensor->name, have, want);
    }
    if (!stored->known)
        return error_set(error, STATUS_INPUT, "%s: tensor %s has type %s; F32, F16 and BF16 can be read", stored->path,
                         tensor->name, stored->dtype_text);
    return STATUS_OK;
}

/* Brings the pages of mapped weights in before anything is timed. A hint: where it fails they come at first use. */
static void prefault(const void *data, uint64_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)data % page, length = before + bytes;
    char *begin = (char *)data - before;
#ifdef MADV_POPULATE_READ
    if (madvise(begin, length, MADV_POPULATE_READ) == 0)
        return;
#endif
    if (madvise(begin, length, MADV_WILLNEED) != 0)
        return;
    for (size_t offset = 0; offset < length; offset += page)
        (void)*(const volatile char *)(begin + offset);
}

static bool fits_in_place(const struct device *device, const struct safetensor *stored, enum dtype dtype)
{
    return strcmp(device->info.kind, "cpu") == 0 && stored->dtype == dtype &&
           (uintptr_t)stored->data % dtype_size(dtype) == 0;
}

/* to[i] = from[i] in another type. False where a finite value has become infinite (f16 ends at 65,504). */
static bool convert(void *to, enum dtype to_dtype, const void *from, enum dtype from_dtype, size_t count)
{
    int overflows = 0;
#pragma omp parallel for schedule(static) reduction(+ : overflows)
    for (size_t i = 0; i < count; i++) {
        float value = dtype_load(from_dtype, from, i);
        dtype_store(to_dtype, to, i, value);
        overflows += isfinite(value) && !isfinite(dtype_load(to_dtype, to, i));
    }
    return overflows == 0;
}

/* Room for pieces of a tensor on their way: as stored (a file's data need not be aligned), and converted. */
struct staging {
    float stored[STAGING_VALUES], converted[STAGING_VALUES];
};

static enum status upload_converted(struct device *device, const struct weight_tensor *tensor, enum dtype dtype,
                                    struct staging *staging, struct error *error)
{
    const struct safetensor *stored = tensor->stored;
    const char *from = stored->data;
    char *to = (char *)*tensor->slot;
    size_t count = weight_count(tensor);
    for (size_t done = 0, piece; done < count; done += piece) {
        piece = count - done < STAGING_VALUES ? count - done : STAGING_VALUES;
        size_t from_bytes = piece * dtype_size(stored->dtype), to_bytes = piece * dtype_size(dtype);
        memcpy(staging->stored, from, from_bytes);
        if (!convert(staging->converted, dtype, staging->stored, stored->dtype, piece))
            return error_set(error, STATUS_INPUT, "%s: tensor %s has values too large for %s; use --dtype bf16 or f32",
                             stored->path, tensor->name, dtype_name(dtype));
        if (device->ops->upload(device, to, staging->converted, to_bytes, error) != STATUS_OK ||
            device->ops->synchronize(device, error) != STATUS_OK) /* the staging is used again */
            return error->status;
        from += from_bytes;
        to += to_bytes;
    }
    return STATUS_OK;
}

static enum status check_all(const struct weights *weights, struct weight_list *list, const char *folder,
                             struct error *error)
{
    for (size_t i = 0; i < list->count; i++)
        if (find_tensor(weights->storage->files, folder, &list->tensors[i], error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* Counts what can be read where it is mapped. */
static enum status adopt(struct weights *weights, struct ledger *ledger, struct weight_list *list, struct error *error)
{
    struct weights_storage *storage = weights->storage;
    for (size_t i = 0; i < list->count; i++) {
        struct weight_tensor *tensor = &list->tensors[i];
        const struct safetensor *stored = tensor->stored;
        if (!fits_in_place(ledger_device(ledger), stored, weights->dtype))
            continue;
        if (ledger_adopt(ledger, LEDGER_WEIGHTS, stored->bytes, tensor->name, stored->data, error) != STATUS_OK)
            return error->status;
        storage->memory[storage->count++] = stored->data;
        *tensor->slot = stored->data;
        prefault(stored->data, stored->bytes);
    }
    return STATUS_OK;
}

/* Places and fills what could not be read in place. */
static enum status fill_rest(struct weights *weights, struct ledger *ledger, struct weight_list *list,
                             struct error *error)
{
    struct device *device = ledger_device(ledger);
    if (weight_list_place(weights, ledger, list, error) != STATUS_OK)
        return error->status;
    struct staging *staging = malloc(sizeof *staging);
    if (!staging)
        return error_set(error, STATUS_DEVICE, "weights: out of host memory for %zu bytes of staging", sizeof *staging);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < list->count && status == STATUS_OK; i++) {
        const struct weight_tensor *tensor = &list->tensors[i];
        const struct safetensor *stored = tensor->stored;
        if (*tensor->slot == stored->data)
            continue;
        if (stored->dtype == weights->dtype)
            status = device->ops->upload(device, (void *)*tensor->slot, stored->data, stored->bytes, error);
        else
            status = upload_converted(device, tensor, weights->dtype, staging, error);
    }
    if (status == STATUS_OK)
        status = device->ops->synchronize(device, error);
    free(staging);
    return status;
}

/* The folder's own name, for the CSV. */
static void source_name(const char *folder, char *source, size_t size)
{
    char resolved[PATH_MAX];
    const char *path = realpath(folder, resolved) ? resolved : folder, *slash = strrchr(path, '/');
    json_input_printable(slash && slash[1] ? slash + 1 : path, source, size);
}

/* Every tensor is checked before any memory is taken. */
enum status weights_load(struct weights *weights, struct ledger *ledger, const struct config *config, enum dtype dtype,
                         const char *folder, struct error *error)
{
    struct weight_list list;
    *weights = (struct weights){.dtype = dtype};
    source_name(folder, weights->source, sizeof weights->source);
    ledger_plan(ledger, LEDGER_WEIGHTS, formula_weight_bytes(config, dtype));
    enum status status = weight_list_init(&list, weights, config, error);
    if (status == STATUS_OK)
        status = safetensors_open(&weights->storage->files, folder, error);
    if (status == STATUS_OK)
        status = check_all(weights, &list, folder, error);
    if (status == STATUS_OK)
        status = adopt(weights, ledger, &list, error);
    if (status == STATUS_OK)
        status = fill_rest(weights, ledger, &list, error);
    if (status == STATUS_OK)
        weight_list_finish(weights, &list, config);
    weight_list_free(&list);
    if (status != STATUS_OK)
        weights_free(weights, ledger);
    return status;
}

enum status weights_stored_dtype(const char *folder, enum dtype *dtype, struct error *error)
{
    struct safetensors *files;
    uint64_t bytes[] = {[DTYPE_F32] = 0, [DTYPE_F16] = 0, [DTYPE_BF16] = 0};
    if (safetensors_open(&files, folder, error) != STATUS_OK)
        return error->status;
    *dtype = DTYPE_BF16;
    for (size_t i = 0; i < safetensors_count(files); i++)
        if (safetensors_at(files, i)->known)
            bytes[safetensors_at(files, i)->dtype] += safetensors_at(files, i)->bytes;
    safetensors_close(files);
    for (int d = DTYPE_F32; d <= DTYPE_BF16; d++)
        if (bytes[d] > bytes[*dtype])
            *dtype = (enum dtype)d;
    if (bytes[*dtype] == 0)
        return error_set(error, STATUS_INPUT, "%s: no tensor of type F32, F16 or BF16; give a folder of such weights",
                         folder);
    return STATUS_OK;
}
