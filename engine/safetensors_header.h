/* One safetensors file in memory, checked fully; shared by the files that make up safetensors.h. */
#ifndef KVLAB_ENGINE_SAFETENSORS_HEADER_H
#define KVLAB_ENGINE_SAFETENSORS_HEADER_H

#include "engine/safetensors.h"

#include <stdint.h>

struct safetensor_list {
    struct safetensor *tensors; /* names are the list's, data and path are borrowed */
    size_t count, capacity;
};

/* Appends the tensors of a file of `bytes` bytes at `memory`. Status 2 names the path, the tensor and what is wrong;
   what was appended until then stays in the list. */
enum status safetensors_parse(struct safetensor_list *list, const char *path, const void *memory, size_t bytes,
                              struct error *error);
void safetensor_list_free(struct safetensor_list *list);

#endif
