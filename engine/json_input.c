#include "engine/json_input.h"

#include "engine/input_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *json_input_printable(const char *text, char *to, size_t size)
{
    size_t length = strlen(text), used = length < size ? length : size - 1;
    for (size_t i = 0; i < used; i++)
        to[i] = (unsigned char)text[i] < ' ' || text[i] == 0x7f ? '?' : text[i];
    to[used] = '\0';
    if (length > used && used >= 3)
        memcpy(to + used - 3, "...", 3);
    return to;
}

const char *json_input_show(const json_t *value, char *to, size_t size)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(10));
    json_input_printable(text ? text : "?", to, size);
    free(text);
    return to;
}

/* The key whose value ends at `position`: the last "key": before it. "" if there is none; for messages only. */
static void key_before(const char *text, size_t position, char *key, size_t size)
{
    key[0] = '\0';
    size_t end = position;
    while (end > 0 && text[end - 1] != ':')
        end--;
    while (end > 0 && text[end - 1] != '"')
        end--;
    if (end == 0)
        return;
    size_t begin = --end;
    while (begin > 0 && text[begin - 1] != '"')
        begin--;
    char raw[64];
    snprintf(raw, sizeof raw, "%.*s", (int)(end - begin < sizeof raw ? end - begin : sizeof raw - 1), text + begin);
    json_input_printable(raw, key, size);
}

enum status json_input_text(const char *path, const char *text, size_t size, json_t **root, struct error *error)
{
    json_error_t failure;
    *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &failure);
    if (!*root) {
        char what[sizeof failure.text], key[64];
        json_input_printable(failure.text, what, sizeof what);
        size_t position = failure.position < 0 ? 0 : (size_t)failure.position;
        if (json_error_code(&failure) == json_error_numeric_overflow) {
            key_before(text, position < size ? position : size, key, sizeof key);
            return error_set(error, STATUS_INPUT,
                             "%s: %s is a number too large for 64 bits (line %d: %s); write its true value", path,
                             key[0] ? key : "a value", failure.line, what);
        }
        return error_set(error, STATUS_INPUT, "%s: malformed JSON at line %d, column %d: %s; fetch the file again",
                         path, failure.line, failure.column, what);
    }
    if (json_is_object(*root))
        return STATUS_OK;
    json_decref(*root);
    *root = NULL;
    return error_set(error, STATUS_INPUT, "%s: malformed JSON: the top level must be an object {...}", path);
}

/* The whole of an open file of that length; *text is malloc'd. */
static enum status read_all(FILE *file, const char *path, off_t length, size_t max_bytes, char **text, size_t *size,
                            struct error *error)
{
    if ((uint64_t)length > max_bytes)
        return error_set(error, STATUS_INPUT, "%s: %lld bytes long; such a file has at most %zu", path,
                         (long long)length, max_bytes);
    size_t bytes = (size_t)length;
    *text = malloc(bytes + 1);
    if (!*text)
        return error_set(error, STATUS_DEVICE, "%s: out of memory for its %zu bytes", path, bytes);
    *size = fread(*text, 1, bytes, file);
    if (ferror(file)) {
        free(*text);
        *text = NULL;
        return error_set(error, STATUS_INPUT, "%s: cannot be read: %s", path, strerror(errno));
    }
    return STATUS_OK;
}

enum status json_input_file(const char *path, size_t max_bytes, json_t **root, struct error *error)
{
    *root = NULL;
    FILE *file;
    off_t length;
    if (input_file_open(path, "give the path of a JSON file", &file, &length, error) != STATUS_OK)
        return error->status;
    char *text = NULL;
    size_t size = 0;
    enum status status = read_all(file, path, length, max_bytes, &text, &size, error);
    if (fclose(file) != 0 && status == STATUS_OK)
        status = error_set(error, STATUS_INPUT, "%s: cannot be read: %s", path, strerror(errno));
    if (status == STATUS_OK)
        status = json_input_text(path, text, size, root, error);
    free(text);
    return status;
}
