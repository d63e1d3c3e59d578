/* Reading single keys of a config.json; shared by the files that make up config.h. */
#ifndef KVLAB_ENGINE_CONFIG_KEYS_H
#define KVLAB_ENGINE_CONFIG_KEYS_H

#include "engine/config.h"
#include "engine/json_input.h"

/* An object of the file being read, and what a refusal needs to know. */
struct config_keys {
    const json_t *object;
    const char *path;
    const char *within; /* "rope_scaling." for the keys of that object; NULL at the top level */
    struct error *error;
};

/* The value of a key, NULL where it is absent or null. */
const json_t *config_key(const struct config_keys *keys, const char *key);

/* "path: key <what is wrong>"; returns STATUS_INPUT. */
enum status config_refuse(const struct config_keys *keys, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A required whole number from 1 to maximum. */
enum status config_count(const struct config_keys *keys, const char *key, int64_t maximum, int64_t *value);

/* A number with above < value <= maximum, `otherwise` where absent; a NaN for `otherwise` makes it required. */
enum status config_real(const struct config_keys *keys, const char *key, double otherwise, double above, double maximum,
                        double *value);

enum status config_flag(const struct config_keys *keys, const char *key, bool otherwise, bool *value);

/* rope_theta, rope_scaling and the newer rope_parameters. */
enum status config_read_rope(const struct config_keys *keys, struct config *config);

/* The file's name without .json, or its folder's name where it is called config.json. */
void config_name_from_path(const char *path, char *name, size_t size);

#endif
