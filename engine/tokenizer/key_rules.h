/* Objects of a tokenizer.json held against what is understood of them: a key that is not known, or a value that would
   mean another tokenizer, is refused by its name. */
#ifndef KVLAB_ENGINE_TOKENIZER_KEY_RULES_H
#define KVLAB_ENGINE_TOKENIZER_KEY_RULES_H

#include "kernels/errors.h"

#include <jansson.h>
#include <stdbool.h>

enum key_value { /* what a key may hold; a sum of these */
                 KEY_NULL = 1,
                 KEY_FALSE = 2,
                 KEY_TRUE = 4,
                 KEY_NOTHING = 8, /* "" */
                 KEY_TEXT = 16,
                 KEY_OBJECT = 32,
                 KEY_LIST = 64,
                 KEY_INTEGER = 128,
                 KEY_REQUIRED = 256,
                 KEY_FLAG = KEY_FALSE | KEY_TRUE,
};

struct key_rule {
    const char *key; /* NULL ends the rules */
    unsigned values;
};

/* Where a value stands, for messages. */
struct place {
    const char *path;
    char key[160]; /* "pre_tokenizer.pretokenizers[1]"; "" for the whole file */
};

/* The place of object[key], or of list[index] where key is NULL. */
struct place place_within(const struct place *place, const char *key, size_t index);

/* Status 2, "PATH: PLACE.KEY is ...": `object` is none, has a key without a rule, lacks one that is required, or holds
   a value that the rule does not list. */
enum status key_rules_check(const struct place *place, json_t *object, const struct key_rule *rules,
                            struct error *error);

/* The text of object["type"] of an object that may hold any other keys; NULL, with the error, where there is none. */
const char *key_rules_type(const struct place *place, json_t *object, struct error *error);

#endif
