#include "engine/tokenizer/key_rules.h"

#include "engine/json_input.h"

#include <stdio.h>
#include <string.h>

struct place place_within(const struct place *place, const char *key, size_t index)
{
    struct place within = {.path = place->path};
    if (key)
        snprintf(within.key, sizeof within.key, "%.100s%s%.56s", place->key, place->key[0] ? "." : "", key);
    else
        snprintf(within.key, sizeof within.key, "%.120s[%zu]", place->key, index);
    return within;
}

static unsigned kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return KEY_NULL;
    case JSON_FALSE:
        return KEY_FALSE;
    case JSON_TRUE:
        return KEY_TRUE;
    case JSON_STRING:
        return KEY_TEXT | (json_string_length(value) == 0 ? KEY_NOTHING : 0);
    case JSON_OBJECT:
        return KEY_OBJECT;
    case JSON_ARRAY:
        return KEY_LIST;
    case JSON_INTEGER:
        return KEY_INTEGER;
    default:
        return 0;
    }
}

static const char *describe(unsigned values, char *to, size_t size)
{
    static const char *const names[] = {"null",     "false",     "true",   "\"\"",
                                        "a string", "an object", "a list", "a whole number"};
    size_t used = 0;
    to[0] = '\0';
    for (unsigned i = 0; i < sizeof names / sizeof *names && used < size; i++)
        if (values & 1U << i)
            used += (size_t)snprintf(to + used, size - used, "%s%s", used ? " or " : "", names[i]);
    return to;
}

static enum status check_value(const struct place *place, const json_t *value, unsigned values, struct error *error)
{
    char shown[64], understood[96];
    if (kind_of(value) & values)
        return STATUS_OK;
    return error_set(error, STATUS_INPUT, "%s: %s is %s; understood is %s", place->path, place->key,
                     json_input_show(value, shown, sizeof shown), describe(values, understood, sizeof understood));
}

static const struct key_rule *rule_of(const struct key_rule *rules, const char *key)
{
    for (; rules->key; rules++)
        if (strcmp(rules->key, key) == 0)
            return rules;
    return NULL;
}

enum status key_rules_check(const struct place *place, json_t *object, const struct key_rule *rules,
                            struct error *error)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return check_value(place, object, KEY_OBJECT, error);
    json_object_foreach(object, key, value)
    {
        char printable[64];
        struct place within = place_within(place, json_input_printable(key, printable, sizeof printable), 0);
        const struct key_rule *rule = rule_of(rules, key);
        if (!rule)
            return error_set(error, STATUS_INPUT, "%s: %s is a key that is not understood here", place->path,
                             within.key);
        if (check_value(&within, value, rule->values, error) != STATUS_OK)
            return error->status;
    }
    for (; rules->key; rules++)
        if (rules->values & KEY_REQUIRED && !json_object_get(object, rules->key))
            return error_set(error, STATUS_INPUT, "%s: %s is missing", place->path,
                             place_within(place, rules->key, 0).key);
    return STATUS_OK;
}

const char *key_rules_type(const struct place *place, json_t *object, struct error *error)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    if (!type)
        error_set(error, STATUS_INPUT, "%s: %s has no type", place->path, place->key);
    return type;
}
