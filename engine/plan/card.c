#include "engine/plan/card.h"

#include "engine/config_keys.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_CARD_BYTES = 1 << 16 };
static const int64_t MAX_RATE = (int64_t)1 << 60;

static enum status read_text(const struct config_keys *keys, const char *key, char *to, size_t size)
{
    const json_t *value = config_key(keys, key);
    if (!json_is_string(value) || json_string_length(value) == 0)
        return config_refuse(keys, key, "is missing; it must be text");
    json_input_printable(json_string_value(value), to, size);
    return STATUS_OK;
}

static enum status read_number(const struct config_keys *keys, const char *key, uint64_t *to)
{
    int64_t value = 0;
    if (!config_key(keys, key))
        return config_refuse(keys, key, "is missing; it must be a whole number");
    if (config_count(keys, key, MAX_RATE, &value) != STATUS_OK)
        return keys->error->status;
    *to = (uint64_t)value;
    return STATUS_OK;
}

static enum status read_keys(const struct config_keys *keys, struct card *card)
{
    char kind[16], rates[16];
    if (read_text(keys, "name", card->title, sizeof card->title) != STATUS_OK ||
        read_number(keys, "memory_bytes", &card->memory_bytes) != STATUS_OK ||
        read_text(keys, "memory_is", kind, sizeof kind) != STATUS_OK ||
        read_text(keys, "memory_source", card->memory_source, sizeof card->memory_source) != STATUS_OK ||
        read_number(keys, "bandwidth_bytes_per_s", &card->bandwidth) != STATUS_OK ||
        read_number(keys, "bf16_flop_per_s", &card->flops) != STATUS_OK ||
        read_text(keys, "rates_are", rates, sizeof rates) != STATUS_OK ||
        read_text(keys, "rates_source", card->rates_source, sizeof card->rates_source) != STATUS_OK ||
        read_text(keys, "compute_capability", card->compute_capability, sizeof card->compute_capability) != STATUS_OK)
        return keys->error->status;
    card->memory_reported = strcmp(kind, "reported") == 0;
    if (!card->memory_reported && strcmp(kind, "nominal") != 0)
        return config_refuse(keys, "memory_is", "\"%s\" must be \"reported\" or \"nominal\"", kind);
    if (strcmp(rates, "published") != 0)
        return config_refuse(keys, "rates_are", "\"%s\" must be \"published\"", rates);
    return STATUS_OK;
}

enum status card_read(struct card *card, const char *path, struct error *error)
{
    json_t *root = NULL;
    *card = (struct card){0};
    if (json_input_file(path, MAX_CARD_BYTES, &root, error) != STATUS_OK)
        return error->status;
    struct config_keys keys = {.object = root, .path = path, .error = error};
    config_name_from_path(path, card->name, sizeof card->name);
    enum status status = read_keys(&keys, card);
    json_decref(root);
    return status;
}

enum status card_find(struct card *card, const char *cards_dir, const char *name, struct error *error)
{
    char **names, path[PATH_MAX], list[640] = "", shown[64];
    size_t count, used = 0, found = SIZE_MAX;
    *card = (struct card){0};
    if (config_names(cards_dir, &names, &count, error) != STATUS_OK)
        return error->status;
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(names[i], name) == 0)
            found = i;
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    enum status status = STATUS_OK;
    if (found == SIZE_MAX)
        status = error_set(error, STATUS_INPUT,
                           "--card: no card '%s'; there are %s. For another, give its memory with --budget",
                           json_input_printable(name, shown, sizeof shown), list);
    else if (snprintf(path, sizeof path, "%s/%s.json", cards_dir, names[found]) >= (int)sizeof path)
        status = error_set(error, STATUS_INPUT, "%.80s...: the path is too long", cards_dir);
    else
        status = card_read(card, path, error);
    config_names_free(names, count);
    return status;
}
