/* JSON that comes from outside (config.json, shard indexes, safetensors headers): read with limits, checked for
   duplicate keys, and every refusal one line that names the file. */
#ifndef KVLAB_ENGINE_JSON_INPUT_H
#define KVLAB_ENGINE_JSON_INPUT_H

#include "kernels/errors.h"

#include <jansson.h>
#include <stdint.h>

/* Reads a whole file whose top level is an object. *root is the caller's to json_decref(). Status 2: unreadable, longer
   than max_bytes, malformed, a key twice, a number beyond 64 bits (the message names its key). */
enum status json_input_file(const char *path, size_t max_bytes, json_t **root, struct error *error);

/* The same for text that is already in memory; path is for the message only. */
enum status json_input_text(const char *path, const char *text, size_t size, json_t **root, struct error *error);

/* Text fit for a message: control characters become '?', and what does not fit `size` ends in "...". Returns `to`. */
const char *json_input_printable(const char *text, char *to, size_t size);

/* A value as JSON text fit for a message, shortened to `size`. Returns `to`. */
const char *json_input_show(const json_t *value, char *to, size_t size);

#endif
