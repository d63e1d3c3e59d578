#include "engine/safetensors.h"

#include "engine/input_file.h"
#include "engine/json_input.h"
#include "engine/safetensors_header.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_INDEX_BYTES = 100000000 };

struct mapping {
    char *path; /* its own allocation: tensors point to it */
    void *memory;
    size_t bytes;
};

struct safetensors {
    struct mapping *mappings;
    size_t mapping_count;
    struct safetensor_list list; /* sorted by name once open */
};

static enum status map_descriptor(int descriptor, off_t bytes, struct mapping *mapping, struct error *error)
{
    if (bytes == 0)
        return error_set(error, STATUS_INPUT, "%s: truncated: the file is empty; fetch it again", mapping->path);
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (memory == MAP_FAILED)
        return error_set(error, STATUS_INPUT, "%s: cannot be mapped: %s", mapping->path, strerror(errno));
    mapping->memory = memory;
    mapping->bytes = (size_t)bytes;
    return STATUS_OK;
}

/* Maps one more file and appends its tensors. */
static enum status add_file(struct safetensors *files, const char *path, struct error *error)
{
    struct mapping *more = realloc(files->mappings, (files->mapping_count + 1) * sizeof *more);
    if (!more)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", path);
    files->mappings = more;
    struct mapping *mapping = &more[files->mapping_count];
    *mapping = (struct mapping){.path = strdup(path)};
    if (!mapping->path)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", path);
    files->mapping_count++;
    int descriptor;
    off_t bytes;
    if (input_file_descriptor(path, "give a .safetensors file or its folder", &descriptor, &bytes, error) != STATUS_OK)
        return error->status;
    enum status status = map_descriptor(descriptor, bytes, mapping, error);
    close(descriptor); /* read only: nothing can be lost */
    if (status != STATUS_OK)
        return status;
    return safetensors_parse(&files->list, mapping->path, mapping->memory, mapping->bytes, error);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

static enum status sort_by_name(struct safetensors *files, struct error *error)
{
    struct safetensor *tensors = files->list.tensors;
    char shown[160];
    if (files->list.count > 0)
        qsort(tensors, files->list.count, sizeof *tensors, by_name);
    for (size_t i = 1; i < files->list.count; i++)
        if (strcmp(tensors[i - 1].name, tensors[i].name) == 0)
            return error_set(error, STATUS_INPUT, "%s: tensor %s is also in %s; keep one of them", tensors[i].path,
                             json_input_printable(tensors[i].name, shown, sizeof shown), tensors[i - 1].path);
    return STATUS_OK;
}

/* The path of a shard that an index names. Shards lie beside their index: a name that leads elsewhere is refused. */
static enum status shard_path(char *path, size_t size, const char *folder, const char *index, const json_t *shard,
                              struct error *error)
{
    const char *name = json_string_value(shard);
    char shown[128];
    if (!name || !name[0] || name[0] == '.' || strchr(name, '/') || strstr(name, ".."))
        return error_set(error, STATUS_INPUT, "%s: weight_map names the shard %s; it must be a file of the same folder",
                         index, json_input_show(shard, shown, sizeof shown));
    if (snprintf(path, size, "%s/%s", folder, name) >= (int)size)
        return error_set(error, STATUS_INPUT, "%s: the path of a shard is too long", index);
    return STATUS_OK;
}

static bool is_mapped(const struct safetensors *files, const char *path)
{
    for (size_t i = 0; i < files->mapping_count; i++)
        if (strcmp(files->mappings[i].path, path) == 0)
            return true;
    return false;
}

static enum status add_shards(struct safetensors *files, const char *folder, const char *index, json_t *map,
                              struct error *error)
{
    char path[PATH_MAX];
    for (void *it = json_object_iter(map); it; it = json_object_iter_next(map, it)) {
        if (shard_path(path, sizeof path, folder, index, json_object_iter_value(it), error) != STATUS_OK)
            return error->status;
        if (!is_mapped(files, path) && add_file(files, path, error) != STATUS_OK)
            return access(path, F_OK) == 0 ? error->status
                                           : error_prefix(error, "%s names a shard that is absent", index);
    }
    return STATUS_OK;
}

static enum status check_index(const struct safetensors *files, const char *folder, const char *index, json_t *map,
                               struct error *error)
{
    char path[PATH_MAX], shown[160];
    for (void *it = json_object_iter(map); it; it = json_object_iter_next(map, it)) {
        const char *name = json_object_iter_key(it);
        const struct safetensor *tensor = safetensors_find(files, name);
        if (shard_path(path, sizeof path, folder, index, json_object_iter_value(it), error) != STATUS_OK)
            return error->status;
        if (!tensor || strcmp(tensor->path, path) != 0)
            return error_set(error, STATUS_INPUT, "%s: tensor %s is missing, which %s says is there; fetch both again",
                             path, json_input_printable(name, shown, sizeof shown), index);
    }
    return STATUS_OK;
}

static enum status open_sharded(struct safetensors *files, const char *folder, const char *index, struct error *error)
{
    json_t *root;
    if (json_input_file(index, MAX_INDEX_BYTES, &root, error) != STATUS_OK)
        return error->status;
    json_t *map = json_object_get(root, "weight_map");
    enum status status = STATUS_OK;
    if (!json_is_object(map) || json_object_size(map) == 0)
        status = error_set(error, STATUS_INPUT, "%s: weight_map is missing or empty; fetch the file again", index);
    if (status == STATUS_OK)
        status = add_shards(files, folder, index, map, error);
    if (status == STATUS_OK)
        status = sort_by_name(files, error);
    if (status == STATUS_OK)
        status = check_index(files, folder, index, map, error);
    json_decref(root);
    return status;
}

static enum status open_file(struct safetensors *files, const char *path, struct error *error)
{
    enum status status = add_file(files, path, error);
    return status == STATUS_OK ? sort_by_name(files, error) : status;
}

static enum status open_folder(struct safetensors *files, const char *folder, struct error *error)
{
    char whole[PATH_MAX], index[PATH_MAX];
    if (snprintf(whole, sizeof whole, "%s/model.safetensors", folder) >= (int)sizeof whole ||
        snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder) >= (int)sizeof index)
        return error_set(error, STATUS_INPUT, "%.80s...: the path is too long", folder);
    if (access(whole, F_OK) == 0)
        return open_file(files, whole, error);
    if (access(index, F_OK) == 0)
        return open_sharded(files, folder, index, error);
    return error_set(error, STATUS_INPUT,
                     "%s: no model.safetensors and no model.safetensors.index.json; give a folder that has one",
                     folder);
}

enum status safetensors_open(struct safetensors **files, const char *path, struct error *error)
{
    *files = NULL;
    struct stat facts;
    if (stat(path, &facts) != 0)
        return error_set(error, STATUS_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
    struct safetensors *opened = calloc(1, sizeof *opened);
    if (!opened)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", path);
    enum status status = S_ISDIR(facts.st_mode) ? open_folder(opened, path, error) : open_file(opened, path, error);
    if (status != STATUS_OK) {
        safetensors_close(opened);
        return status;
    }
    *files = opened;
    return STATUS_OK;
}

void safetensors_close(struct safetensors *files)
{
    if (!files)
        return;
    safetensor_list_free(&files->list);
    for (size_t i = 0; i < files->mapping_count; i++) {
        if (files->mappings[i].memory)
            munmap(files->mappings[i].memory, files->mappings[i].bytes);
        free(files->mappings[i].path);
    }
    free(files->mappings);
    free(files);
}

size_t safetensors_count(const struct safetensors *files)
{
    return files->list.count;
}

const struct safetensor *safetensors_at(const struct safetensors *files, size_t index)
{
    return &files->list.tensors[index];
}

const struct safetensor *safetensors_find(const struct safetensors *files, const char *name)
{
    struct safetensor key = {.name = (char *)name};
    if (files->list.count == 0)
        return NULL;
    return bsearch(&key, files->list.tensors, files->list.count, sizeof key, by_name);
}
