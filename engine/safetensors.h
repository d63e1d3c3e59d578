/* Reads safetensors files by mmap: 8 bytes little-endian header length, a JSON header {"name": {"dtype", "shape",
   "data_offsets": [begin, end]}, "__metadata__": ...}, then the data (format: github.com/huggingface/safetensors).
   A file is checked fully before any tensor is handed out: header inside the file, offsets in range, in order, without
   overlap or holes, shape x type = bytes. Nothing of a file is trusted. */
#ifndef KVLAB_ENGINE_SAFETENSORS_H
#define KVLAB_ENGINE_SAFETENSORS_H

#include "kernels/dtype.h"
#include "kernels/errors.h"

#include <stdbool.h>

enum { SAFETENSORS_MAX_DIMENSIONS = 8 };

struct safetensor {
    char *name;
    bool known; /* dtype is one of ours; others (I64, F8 ...) are listed but their data is not read */
    enum dtype dtype;
    char dtype_text[16]; /* as the file has it: "F32", "BF16", "I64" */
    int dimensions;
    int64_t shape[SAFETENSORS_MAX_DIMENSIONS];
    const void *data; /* in the mapping; not necessarily aligned */
    uint64_t bytes;
    const char *path; /* of the file it lies in */
};

struct safetensors;

/* Opens one .safetensors file, or a folder: model.safetensors, or the shards of model.safetensors.index.json (every
   shard the index names must exist and hold the tensors the index says). Status 2 with path and reason. */
enum status safetensors_open(struct safetensors **files, const char *path, struct error *error);
void safetensors_close(struct safetensors *files); /* unmaps; takes NULL */

size_t safetensors_count(const struct safetensors *files);
const struct safetensor *safetensors_at(const struct safetensors *files, size_t index);
const struct safetensor *safetensors_find(const struct safetensors *files, const char *name); /* NULL if absent */

#endif
