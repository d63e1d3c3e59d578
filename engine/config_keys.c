#include "engine/config_keys.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const json_t *config_key(const struct config_keys *keys, const char *key)
{
    const json_t *value = json_object_get(keys->object, key);
    return json_is_null(value) ? NULL : value;
}

enum status config_refuse(const struct config_keys *keys, const char *key, const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return error_set(keys->error, STATUS_INPUT, "%s: %s%s %s", keys->path, keys->within ? keys->within : "", key, what);
}

enum status config_count(const struct config_keys *keys, const char *key, int64_t maximum, int64_t *value)
{
    const json_t *found = config_key(keys, key);
    char shown[64];
    if (!found)
        return config_refuse(keys, key, "is missing; take it from the model's published config.json");
    int64_t count = json_integer_value(found);
    if (!json_is_integer(found) || count < 1 || count > maximum)
        return config_refuse(keys, key, "is %s; it must be a whole number from 1 to %lld",
                             json_input_show(found, shown, sizeof shown), (long long)maximum);
    *value = count;
    return STATUS_OK;
}

enum status config_real(const struct config_keys *keys, const char *key, double otherwise, double above, double maximum,
                        double *value)
{
    const json_t *found = config_key(keys, key);
    char shown[64];
    *value = otherwise;
    if (!found && !isnan(otherwise))
        return STATUS_OK;
    if (!found)
        return config_refuse(keys, key, "is missing; take it from the model's published config.json");
    double number = json_number_value(found);
    if (!json_is_number(found) || !(number > above && number <= maximum))
        return config_refuse(keys, key, "is %s; it must be a number over %g and up to %g",
                             json_input_show(found, shown, sizeof shown), above, maximum);
    *value = number;
    return STATUS_OK;
}

enum status config_flag(const struct config_keys *keys, const char *key, bool otherwise, bool *value)
{
    const json_t *found = config_key(keys, key);
    char shown[64];
    *value = found ? json_is_true(found) : otherwise;
    if (found && !json_is_boolean(found))
        return config_refuse(keys, key, "is %s; it must be true or false", json_input_show(found, shown, sizeof shown));
    return STATUS_OK;
}

/* Only the folder is resolved: a config.json may be a link to a file of another name (Hugging Face's cache). */
void config_name_from_path(const char *path, char *name, size_t size)
{
    char folder[PATH_MAX], resolved[PATH_MAX];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    if (strcmp(base, "config.json") == 0) {
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
        if (!realpath(folder, resolved))
            snprintf(resolved, sizeof resolved, "%s", folder);
        slash = strrchr(resolved, '/');
        base = slash ? slash + 1 : resolved;
    }
    char shown[PATH_MAX];
    snprintf(shown, sizeof shown, "%s", base[0] ? base : "model");
    size_t length = strlen(shown);
    if (length > 5 && strcmp(shown + length - 5, ".json") == 0)
        shown[length - 5] = '\0';
    json_input_printable(shown, name, size);
}
