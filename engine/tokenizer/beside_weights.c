#include "engine/tokenizer/beside_weights.h"

#include "engine/json_input.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

static const size_t LONGEST_CONFIG = (size_t)1 << 24;

/* False where the folder has no such file, or its path is too long to be one. */
static bool find(char *path, size_t size, const char *folder, const char *name)
{
    return snprintf(path, size, "%s/%s", folder, name) < (int)size && access(path, F_OK) == 0;
}

enum status tokenizer_open_beside(struct tokenizer **tokenizer, const char *folder, struct error *error)
{
    char path[PATH_MAX];
    *tokenizer = NULL;
    return find(path, sizeof path, folder, "tokenizer.json") ? tokenizer_open(tokenizer, path, error) : STATUS_OK;
}

static enum status add_stop(struct token_list *stops, const char *path, const json_t *id, int64_t vocab_size,
                            struct error *error)
{
    char shown[64];
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || value >= vocab_size)
        return error_set(error, STATUS_INPUT, "%s: eos_token_id has %s, which is no id of a vocabulary of %lld", path,
                         json_input_show(id, shown, sizeof shown), (long long)vocab_size);
    return token_list_add(stops, (int32_t)value, error);
}

static enum status add_stops(struct token_list *stops, const char *path, json_t *ids, int64_t vocab_size,
                             struct error *error)
{
    size_t index;
    json_t *id;
    if (!json_is_array(ids))
        return !ids || json_is_null(ids) ? STATUS_OK : add_stop(stops, path, ids, vocab_size, error);
    json_array_foreach(ids, index, id)
    {
        if (add_stop(stops, path, id, vocab_size, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

enum status stop_tokens_read(struct token_list *stops, const char *folder, int64_t vocab_size, struct error *error)
{
    static const char *const names[] = {"generation_config.json", "config.json"};
    size_t before = stops->count;
    for (size_t i = 0; i < sizeof names / sizeof *names && stops->count == before; i++) {
        char path[PATH_MAX];
        json_t *root;
        if (!find(path, sizeof path, folder, names[i]))
            continue;
        if (json_input_file(path, LONGEST_CONFIG, &root, error) != STATUS_OK)
            return error->status;
        enum status status = add_stops(stops, path, json_object_get(root, "eos_token_id"), vocab_size, error);
        json_decref(root);
        if (status)
            return status;
    }
    return STATUS_OK;
}
