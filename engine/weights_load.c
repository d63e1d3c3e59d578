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
static enum status find_tensor(const struct safetensors *files, const char *folder, const struct weight_tensor *tensor,
                               const struct safetensor **found, struct error *error)
{
    const struct safetensor *stored = *found = safetensors_find(files, tensor->name);
    if (!stored && strcmp(tensor->name, "lm_head.weight") == 0)
        return error_set(
            error, STATUS_INPUT,
            "%s: tensor lm_head.weight is missing; if the head is the embedding table, config.json must say "
            "\"tie_word_embeddings\": true",
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
        return error_set(error, STATUS_INPUT,
                         "%s: tensor %s has shape %s, but config.json makes it %s; use the "
                         "config.json of these weights",
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
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data & ~(page - 1);
    size_t length = (size_t)((uintptr_t)data + bytes - begin);
#ifdef MADV_POPULATE_READ
    if (madvise((void *)begin, length, MADV_POPULATE_READ) == 0)
        return;
#endif
    if (madvise((void *)begin, length, MADV_WILLNEED) != 0)
        return;
    for (size_t offset = 0; offset < length; offset += page)
        (void)*(const volatile char *)(offset ? begin + offset : (uintptr_t)data);
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

/* Through host memory, a piece at a time; `staging` holds STAGING_VALUES f32 twice: as stored (the file's data need not
   be aligned), and converted. */
static enum status upload_converted(struct device *device, const struct weight_tensor *tensor,
                                    const struct safetensor *stored, enum dtype dtype, char *staging,
                                    struct error *error)
{
    char *from = staging, *to = staging + STAGING_VALUES * sizeof(float), *device_to = (char *)*tensor->slot;
    size_t count = weight_count(tensor), stored_size = dtype_size(stored->dtype), size = dtype_size(dtype);
    for (size_t done = 0; done < count; done += STAGING_VALUES) {
        size_t piece = count - done < STAGING_VALUES ? count - done : STAGING_VALUES;
        memcpy(from, (const char *)stored->data + done * stored_size, piece * stored_size);
        if (!convert(to, dtype, from, stored->dtype, piece))
            return error_set(error, STATUS_INPUT, "%s: tensor %s has values too large for %s; use --dtype bf16 or f32",
                             stored->path, tensor->name, dtype_name(dtype));
        if (device->ops->upload(device, device_to + done * size, to, piece * size, error) != STATUS_OK ||
            device->ops->synchronize(device, error) != STATUS_OK) /* the staging is used again */
            return error->status;
    }
    return STATUS_OK;
}

static enum status fill_from(struct device *device, const struct weight_tensor *tensor, const struct safetensor *stored,
                             enum dtype dtype, char *staging, struct error *error)
{
    if (stored->dtype != dtype)
        return upload_converted(device, tensor, stored, dtype, staging, error);
    return device->ops->upload(device, (void *)*tensor->slot, stored->data, stored->bytes, error);
}

/* Every tensor is checked before any memory is taken. */
static enum status adopt(struct weights *weights, struct ledger *ledger, struct weight_list *list,
                         const struct safetensor **stored, const char *folder, struct error *error)
{
    struct weights_storage *storage = weights->storage;
    for (size_t i = 0; i < list->count; i++)
        if (find_tensor(storage->files, folder, &list->tensors[i], &stored[i], error) != STATUS_OK)
            return error->status;
    for (size_t i = 0; i < list->count; i++) {
        if (!fits_in_place(ledger_device(ledger), stored[i], weights->dtype))
            continue;
        const char *name = list->tensors[i].name;
        if (ledger_adopt(ledger, LEDGER_WEIGHTS, stored[i]->bytes, name, stored[i]->data, error) != STATUS_OK)
            return error->status;
        storage->memory[storage->count++] = stored[i]->data;
        *list->tensors[i].slot = stored[i]->data;
        prefault(stored[i]->data, stored[i]->bytes);
    }
    return STATUS_OK;
}

/* Places and fills what could not be read in place. */
static enum status fill_rest(struct weights *weights, struct ledger *ledger, struct weight_list *list,
                             const struct safetensor **stored, struct error *error)
{
    struct device *device = ledger_device(ledger);
    if (weight_list_place(weights, ledger, list, error) != STATUS_OK)
        return error->status;
    char *staging = malloc(2 * STAGING_VALUES * sizeof(float));
    if (!staging)
        return error_set(error, STATUS_DEVICE, "weights: out of host memory for %zu bytes of staging",
                         2 * STAGING_VALUES * sizeof(float));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < list->count && status == STATUS_OK; i++)
        if (*list->tensors[i].slot != stored[i]->data)
            status = fill_from(device, &list->tensors[i], stored[i], weights->dtype, staging, error);
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

enum status weights_load(struct weights *weights, struct ledger *ledger, const struct config *config, enum dtype dtype,
                         const char *folder, struct error *error)
{
    struct weight_list list;
    const struct safetensor **stored = NULL;
    *weights = (struct weights){.dtype = dtype};
    source_name(folder, weights->source, sizeof weights->source);
    ledger_plan(ledger, LEDGER_WEIGHTS, formula_weight_bytes(config, dtype));
    enum status status = weight_list_init(&list, weights, config, error);
    if (status == STATUS_OK)
        status = safetensors_open(&weights->storage->files, folder, error);
    if (status == STATUS_OK && !(stored = calloc(list.count, sizeof *stored)))
        status = error_set(error, STATUS_DEVICE, "weights: out of host memory for the list of tensors");
    if (status == STATUS_OK)
        status = adopt(weights, ledger, &list, stored, folder, error);
    if (status == STATUS_OK)
        status = fill_rest(weights, ledger, &list, stored, error);
    if (status == STATUS_OK)
        weight_list_finish(weights, &list, config);
    free(stored);
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
