#include "engine/safetensors_header.h"

#include "engine/json_input.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PREFIX_BYTES = 8,             /* the header's length */
    MAX_HEADER_BYTES = 100000000, /* the reference implementation's limit */
};

/* Bits per value of every type the format names; `known` types are those that kvlab reads. */
static const struct {
    const char *name;
    unsigned bits;
    bool known;
    enum dtype dtype;
} TYPES[] = {
    {"F32", 32, true, DTYPE_F32}, {"F16", 16, true, DTYPE_F16}, {"BF16", 16, true, DTYPE_BF16},
    {"F64", 64, false, 0},        {"I64", 64, false, 0},        {"U64", 64, false, 0},
    {"C64", 64, false, 0},        {"I32", 32, false, 0},        {"U32", 32, false, 0},
    {"I16", 16, false, 0},        {"U16", 16, false, 0},        {"I8", 8, false, 0},
    {"U8", 8, false, 0},          {"BOOL", 8, false, 0},        {"F8_E4M3", 8, false, 0},
    {"F8_E5M2", 8, false, 0},     {"F8_E8M0", 8, false, 0},     {"F6_E2M3", 6, false, 0},
    {"F6_E3M2", 6, false, 0},     {"F4", 4, false, 0},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof TYPES[0] };

/* What is being read, for refusals. */
struct place {
    const char *path, *tensor;
    struct error *error;
};

static enum status refuse(const struct place *place, const char *what)
{
    char shown[160];
    return error_set(place->error, STATUS_INPUT, "%s: tensor %s: %s; fetch the file again", place->path,
                     json_input_printable(place->tensor, shown, sizeof shown), what);
}

static enum status read_type(const struct place *place, const json_t *entry, struct safetensor *tensor, unsigned *bits)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    for (int i = 0; name && i < TYPE_COUNT; i++)
        if (strcmp(name, TYPES[i].name) == 0) {
            tensor->known = TYPES[i].known;
            tensor->dtype = TYPES[i].dtype;
            snprintf(tensor->dtype_text, sizeof tensor->dtype_text, "%s", TYPES[i].name);
            *bits = TYPES[i].bits;
            return STATUS_OK;
        }
    return refuse(place, "dtype is missing or none that the format names");
}

/* Reads the shape, and the bytes that shape x type make. */
static enum status read_shape(const struct place *place, const json_t *entry, unsigned bits, struct safetensor *tensor,
                              uint64_t *bytes)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t dimensions = json_array_size(shape);
    if (!json_is_array(shape) || dimensions > SAFETENSORS_MAX_DIMENSIONS)
        return refuse(place, "shape is not a list of at most 8 numbers");
    uint64_t product = bits;
    bool overflow = false;
    for (size_t i = 0; i < dimensions; i++) {
        const json_t *extent = json_array_get(shape, i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return refuse(place, "shape holds something other than whole numbers from 0");
        tensor->shape[i] = json_integer_value(extent);
        overflow |= __builtin_mul_overflow(product, (uint64_t)tensor->shape[i], &product);
    }
    if (overflow)
        return refuse(place, "shape is too large for 64 bits");
    if (product % 8 != 0)
        return refuse(place, "shape does not fill whole bytes");
    tensor->dimensions = (int)dimensions;
    *bytes = product / 8;
    return STATUS_OK;
}

static enum status read_offsets(const struct place *place, const json_t *entry, uint64_t data_bytes, uint64_t *begin,
                                uint64_t *end)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
        return refuse(place, "data_offsets are not two whole numbers, begin <= end");
    *begin = (uint64_t)json_integer_value(first);
    *end = (uint64_t)json_integer_value(last);
    if (*end > data_bytes)
        return refuse(place, "data_offsets lie beyond the end of the file, which is truncated or damaged");
    return STATUS_OK;
}

static enum status read_tensor(const struct place *place, const json_t *entry, const char *data, uint64_t data_bytes,
                               struct safetensor *tensor)
{
    unsigned bits = 0;
    uint64_t bytes = 0, begin = 0, end = 0;
    if (!json_is_object(entry))
        return refuse(place, "is not described by an object {dtype, shape, data_offsets}");
    if (read_type(place, entry, tensor, &bits) != STATUS_OK ||
        read_shape(place, entry, bits, tensor, &bytes) != STATUS_OK ||
        read_offsets(place, entry, data_bytes, &begin, &end) != STATUS_OK)
        return place->error->status;
    if (end - begin != bytes)
        return refuse(place, "shape and type make another number of bytes than data_offsets");
    tensor->data = data + begin;
    tensor->bytes = bytes;
    return STATUS_OK;
}

static enum status append(struct safetensor_list *list, struct safetensor *tensor, const struct place *place)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        struct safetensor *more = realloc(list->tensors, capacity * sizeof *more);
        if (!more)
            return error_set(place->error, STATUS_DEVICE, "%s: out of memory for its list of tensors", place->path);
        list->tensors = more;
        list->capacity = capacity;
    }
    tensor->name = strdup(place->tensor);
    if (!tensor->name)
        return error_set(place->error, STATUS_DEVICE, "%s: out of memory for its list of tensors", place->path);
    list->tensors[list->count++] = *tensor;
    return STATUS_OK;
}

static enum status check_metadata(const char *path, const json_t *metadata, struct error *error)
{
    bool texts = json_is_object(metadata);
    void *iterator = json_object_iter((json_t *)metadata);
    for (; iterator; iterator = json_object_iter_next((json_t *)metadata, iterator))
        texts = texts && json_is_string(json_object_iter_value(iterator));
    if (!texts)
        return error_set(error, STATUS_INPUT, "%s: __metadata__ is not an object of texts; fetch the file again", path);
    return STATUS_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The tensors of a file tile its data: every one starts where the one before ends, and the last ends with the file. */
static enum status check_tiling(const char *path, struct safetensor *tensors, size_t count, const char *data,
                                uint64_t data_bytes, struct error *error)
{
    uint64_t end = 0;
    if (count > 0)
        qsort(tensors, count, sizeof *tensors, by_offset);
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = (uint64_t)((const char *)tensors[i].data - data);
        struct place place = {.path = path, .tensor = tensors[i].name, .error = error};
        if (begin < end)
            return refuse(&place, "data_offsets overlap those of another tensor");
        if (begin > end)
            return refuse(&place, "data_offsets leave a hole before it");
        end = begin + tensors[i].bytes;
    }
    if (end != data_bytes)
        return error_set(error, STATUS_INPUT,
                         "%s: holds %" PRIu64 " bytes of data, its tensors only %" PRIu64 "; fetch the file again",
                         path, data_bytes, end);
    return STATUS_OK;
}

/* The header's JSON text: its length is inside the file and within the limit. */
static enum status find_header(const char *path, const unsigned char *memory, size_t bytes, uint64_t *header_bytes,
                               struct error *error)
{
    uint64_t length = 0;
    if (bytes < PREFIX_BYTES)
        return error_set(error, STATUS_INPUT, "%s: truncated: %zu bytes, and a safetensors file has at least 8", path,
                         bytes);
    for (int i = PREFIX_BYTES - 1; i >= 0; i--)
        length = length << 8 | memory[i];
    if (length > MAX_HEADER_BYTES)
        return error_set(error, STATUS_INPUT,
                         "%s: header length %" PRIu64 " is over the limit of %d bytes; this is no safetensors file",
                         path, length, MAX_HEADER_BYTES);
    if (length > bytes - PREFIX_BYTES)
        return error_set(error, STATUS_INPUT,
                         "%s: header length %" PRIu64 " is longer than the file (%zu bytes), which is truncated or "
                         "damaged; fetch it again",
                         path, length, bytes);
    if (length == 0 || memory[PREFIX_BYTES] != '{')
        return error_set(error, STATUS_INPUT, "%s: the header does not begin with '{'; this is no safetensors file",
                         path);
    *header_bytes = length;
    return STATUS_OK;
}

enum status safetensors_parse(struct safetensor_list *list, const char *path, const void *memory, size_t bytes,
                              struct error *error)
{
    uint64_t header_bytes = 0;
    json_t *header = NULL;
    if (find_header(path, memory, bytes, &header_bytes, error) != STATUS_OK ||
        json_input_text(path, (const char *)memory + PREFIX_BYTES, header_bytes, &header, error) != STATUS_OK)
        return error->status;
    const char *data = (const char *)memory + PREFIX_BYTES + header_bytes;
    uint64_t data_bytes = bytes - PREFIX_BYTES - header_bytes;
    size_t first = list->count;
    enum status status = STATUS_OK;
    void *iterator = json_object_iter(header);
    for (; iterator && status == STATUS_OK; iterator = json_object_iter_next(header, iterator)) {
        struct place place = {.path = path, .tensor = json_object_iter_key(iterator), .error = error};
        struct safetensor tensor = {.path = path};
        if (strcmp(place.tensor, "__metadata__") == 0) {
            status = check_metadata(path, json_object_iter_value(iterator), error);
            continue;
        }
        status = read_tensor(&place, json_object_iter_value(iterator), data, data_bytes, &tensor);
        if (status == STATUS_OK)
            status = append(list, &tensor, &place);
    }
    json_decref(header);
    if (status == STATUS_OK)
        status = check_tiling(path, list->tensors + first, list->count - first, data, data_bytes, error);
    return status;
}

void safetensor_list_free(struct safetensor_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->tensors[i].name);
    free(list->tensors);
    *list = (struct safetensor_list){0};
}
