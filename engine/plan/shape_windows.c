/* Which layers see all tokens and which a window. Rules are those of transformers' configuration_*.py, which derive
   layer_types from older keys; a file's own layer_types governs. */
#include "engine/plan/shape_read.h"

#include <string.h>

static const struct {
    const char *name;
    enum layer_type type;
    enum layer_kind kind;
} LAYER_TYPES[] = {
    {"full_attention", TYPE_FULL, LAYER_FULL},        {"sliding_attention", TYPE_SLIDING, LAYER_WINDOW},
    {"chunked_attention", TYPE_CHUNKED, LAYER_CHUNK}, {"linear_attention", TYPE_LINEAR, LAYER_STATE},
    {"attention", TYPE_ATTENTION, LAYER_FULL},        {"mamba", TYPE_MAMBA, LAYER_STATE},
};

enum status windows_from_layer_types(struct reader *reader, unsigned allowed, bool *found)
{
    const json_t *types = shape_key(reader, "layer_types");
    *found = types != NULL;
    if (!types)
        return STATUS_OK;
    char shown[64];
    size_t layers = (size_t)reader->shape->layer_count;
    if (!json_is_array(types) || json_array_size(types) != layers)
        return config_refuse(&reader->keys, "layer_types", "must be a list with an entry for each of the %zu layers",
                             layers);
    for (size_t i = 0; i < layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *name = json_is_string(type) ? json_string_value(type) : "";
        size_t known = 0;
        while (known < sizeof LAYER_TYPES / sizeof LAYER_TYPES[0] && strcmp(LAYER_TYPES[known].name, name) != 0)
            known++;
        if (known == sizeof LAYER_TYPES / sizeof LAYER_TYPES[0] || !(LAYER_TYPES[known].type & allowed))
            return config_refuse(&reader->keys, "layer_types", "%s is no kind of layer that a %s model has",
                                 json_input_show(type, shown, sizeof shown), reader->shape->family);
        reader->kinds[i] = LAYER_TYPES[known].kind;
    }
    return STATUS_OK;
}

static bool any(const struct reader *reader, enum layer_kind kind)
{
    for (int64_t i = 0; i < reader->shape->layer_count; i++)
        if (reader->kinds[i] == kind)
            return true;
    return false;
}

/* The window's width, which must be there if a layer has one. */
enum status windows_width(struct reader *reader, int64_t otherwise)
{
    shape_ignore(reader, "sliding_window");
    if (!any(reader, LAYER_WINDOW))
        return STATUS_OK;
    reader->window = otherwise;
    if (otherwise && !config_key(&reader->keys, "sliding_window"))
        return STATUS_OK;
    return shape_count(reader, "sliding_window", SHAPE_MAX_POSITIONS, &reader->window);
}

enum status windows_everywhere(struct reader *reader, int64_t otherwise)
{
    bool listed;
    const json_t *window = shape_key(reader, "sliding_window");
    bool is_null = json_is_null(json_object_get(reader->keys.object, "sliding_window"));
    bool windowed = window ? !(json_is_integer(window) && json_integer_value(window) == 0) : otherwise && !is_null;
    for (int64_t i = 0; i < reader->shape->layer_count; i++)
        reader->kinds[i] = windowed ? LAYER_WINDOW : LAYER_FULL;
    if (windows_from_layer_types(reader, TYPE_FULL | TYPE_SLIDING, &listed) != STATUS_OK)
        return reader->keys.error->status;
    if (any(reader, LAYER_WINDOW) && !windowed)
        return config_refuse(&reader->keys, "layer_types", "has sliding_attention, but no window is switched on");
    return windows_width(reader, otherwise);
}

enum status windows_alternate(struct reader *reader)
{
    bool listed;
    if (windows_from_layer_types(reader, TYPE_FULL | TYPE_SLIDING, &listed) != STATUS_OK)
        return reader->keys.error->status;
    for (int64_t i = 0; !listed && i < reader->shape->layer_count; i++)
        reader->kinds[i] = i % 2 == 0 ? LAYER_WINDOW : LAYER_FULL;
    return windows_width(reader, 0);
}

/* Layer i (from 0) sees everything where (i + 1) is a multiple of the pattern: five local to one global for 6. */
enum status windows_pattern(struct reader *reader, int64_t otherwise)
{
    bool listed;
    int64_t pattern;
    const char *key =
        config_key(&reader->keys, "_sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
    if (shape_count_or(reader, key, SHAPE_MAX_LAYERS, otherwise, &pattern) != STATUS_OK ||
        windows_from_layer_types(reader, TYPE_FULL | TYPE_SLIDING, &listed) != STATUS_OK)
        return reader->keys.error->status;
    if (pattern == 0 && !listed)
        return config_refuse(&reader->keys, key,
                             "is 0; it must be the number of layers from one global layer to the next");
    for (int64_t i = 0; !listed && i < reader->shape->layer_count; i++)
        reader->kinds[i] = (i + 1) % pattern == 0 ? LAYER_FULL : LAYER_WINDOW;
    return windows_width(reader, 0);
}

/* Qwen2Config, Qwen3Config: windows only with use_sliding_window, on layers from max_window_layers on; defaults 4096
   and 28. Published configs carry a sliding_window that is switched off. */
enum status windows_qwen(struct reader *reader)
{
    bool use, listed;
    int64_t first;
    if (shape_flag(reader, "use_sliding_window", false, &use) != STATUS_OK ||
        shape_count_or(reader, "max_window_layers", SHAPE_MAX_POSITIONS, 28, &first) != STATUS_OK)
        return reader->keys.error->status;
    const json_t *width = json_object_get(reader->keys.object, "sliding_window");
    use = use && !(json_is_null(width) || (json_is_integer(width) && json_integer_value(width) == 0));
    for (int64_t i = 0; i < reader->shape->layer_count; i++)
        reader->kinds[i] = use && i >= first ? LAYER_WINDOW : LAYER_FULL;
    if (windows_from_layer_types(reader, TYPE_FULL | TYPE_SLIDING, &listed) != STATUS_OK)
        return reader->keys.error->status;
    if (any(reader, LAYER_WINDOW) && !use)
        return config_refuse(&reader->keys, "layer_types", "has sliding_attention, but no window is switched on");
    return windows_width(reader, use ? 4096 : 0);
}
