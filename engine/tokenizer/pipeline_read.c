/* The keys normalizer, pre_tokenizer, post_processor and decoder of a tokenizer.json. */
#include "engine/json_input.h"
#include "engine/tokenizer/tokenizer_parts.h"

#include <string.h>

/* What ByteLevel splits by unless use_regex is false (Radford et al. 2019; the library's own constant). */
static const char BYTE_LEVEL_WORDS[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Where a pre-tokenizer ByteLevel has add_prefix_space, it would change the text. After splitting, it means nothing. */
static const struct key_rule splits_byte_level[] = {{"type", KEY_TEXT | KEY_REQUIRED},
                                                    {"add_prefix_space", KEY_FALSE | KEY_REQUIRED},
                                                    {"trim_offsets", KEY_FLAG},
                                                    {"use_regex", KEY_FLAG},
                                                    {0}};
static const struct key_rule byte_level[] = {{"type", KEY_TEXT | KEY_REQUIRED},
                                             {"add_prefix_space", KEY_FLAG},
                                             {"trim_offsets", KEY_FLAG},
                                             {"use_regex", KEY_FLAG},
                                             {0}};

static enum status refuse_type(const struct place *place, const char *type, const char *understood, struct error *error)
{
    char printable[64];
    return error_set(error, STATUS_INPUT, "%s: %s.type is \"%s\"; understood is %s", place->path, place->key,
                     json_input_printable(type, printable, sizeof printable), understood);
}

/* ---- normalizer ----------------------------------------------------------------------------------------------------
 */

static enum status read_normalizer(struct tokenizer *tokenizer, const struct place *place, json_t *value,
                                   struct error *error)
{
    static const struct key_rule rules[] = {{"type", KEY_TEXT | KEY_REQUIRED}, {0}};
    if (!value || json_is_null(value))
        return STATUS_OK;
    const char *type = key_rules_type(place, value, error);
    if (!type)
        return error->status;
    if (strcmp(type, "NFC") != 0)
        return refuse_type(place, type, "NFC, or null for none", error);
    tokenizer->compose = true;
    return key_rules_check(place, value, rules, error);
}

/* ---- pre-tokenizer -------------------------------------------------------------------------------------------------
 */

static enum status add_pattern(struct tokenizer *tokenizer, const struct place *place, const char *expression,
                               struct error *error)
{
    if (tokenizer->pattern_count == MOST_PATTERNS)
        return error_set(error, STATUS_INPUT, "%s: %s: more than %d expressions split the text", place->path,
                         place->key, MOST_PATTERNS);
    if (pattern_open(&tokenizer->patterns[tokenizer->pattern_count], expression, error) != STATUS_OK)
        return error_prefix(error, "%s: %s", place->path, place->key);
    tokenizer->pattern_count++;
    return STATUS_OK;
}

static enum status read_split(struct tokenizer *tokenizer, const struct place *place, json_t *value,
                              struct error *error)
{
    static const struct key_rule rules[] = {{"type", KEY_TEXT | KEY_REQUIRED},
                                            {"pattern", KEY_OBJECT | KEY_REQUIRED},
                                            {"behavior", KEY_TEXT | KEY_REQUIRED},
                                            {"invert", KEY_FALSE | KEY_REQUIRED},
                                            {0}};
    static const struct key_rule pattern_rules[] = {{"Regex", KEY_TEXT | KEY_REQUIRED}, {0}};
    const struct place pattern = place_within(place, "pattern", 0);
    if (key_rules_check(place, value, rules, error) != STATUS_OK ||
        key_rules_check(&pattern, json_object_get(value, "pattern"), pattern_rules, error) != STATUS_OK)
        return error->status;
    const char *behavior = json_string_value(json_object_get(value, "behavior"));
    char printable[64];
    if (strcmp(behavior, "Isolated") != 0)
        return error_set(error, STATUS_INPUT, "%s: %s.behavior is \"%s\"; understood is Isolated", place->path,
                         place->key, json_input_printable(behavior, printable, sizeof printable));
    const char *expression = json_string_value(json_object_get(json_object_get(value, "pattern"), "Regex"));
    return add_pattern(tokenizer, &pattern, expression, error);
}

static enum status read_digits(struct tokenizer *tokenizer, const struct place *place, json_t *value,
                               struct error *error)
{
    static const struct key_rule rules[] = {
        {"type", KEY_TEXT | KEY_REQUIRED}, {"individual_digits", KEY_FLAG | KEY_REQUIRED}, {0}};
    if (key_rules_check(place, value, rules, error) != STATUS_OK)
        return error->status;
    bool individual = json_is_true(json_object_get(value, "individual_digits"));
    return add_pattern(tokenizer, place, individual ? "\\p{N}" : "\\p{N}+", error);
}

static enum status read_splits_byte_level(struct tokenizer *tokenizer, const struct place *place, json_t *value,
                                          struct error *error)
{
    if (key_rules_check(place, value, splits_byte_level, error) != STATUS_OK)
        return error->status;
    if (json_is_false(json_object_get(value, "use_regex")))
        return STATUS_OK;
    return add_pattern(tokenizer, place, BYTE_LEVEL_WORDS, error);
}

/* `inside`: of a sequence. *spelled: a ByteLevel was there, after which nothing may split. */
static enum status read_pre_tokenizer(struct tokenizer *tokenizer, const struct place *place, json_t *value,
                                      bool inside, bool *spelled, struct error *error)
{
    static const struct key_rule rules[] = {
        {"type", KEY_TEXT | KEY_REQUIRED}, {"pretokenizers", KEY_LIST | KEY_REQUIRED}, {0}};
    const char *type = key_rules_type(place, value, error);
    if (!type)
        return error->status;
    if (*spelled)
        return error_set(error, STATUS_INPUT, "%s: %s stands after ByteLevel, which must be the last", place->path,
                         place->key);
    if (strcmp(type, "ByteLevel") == 0) {
        *spelled = true;
        return read_splits_byte_level(tokenizer, place, value, error);
    }
    if (strcmp(type, "Split") == 0)
        return read_split(tokenizer, place, value, error);
    if (strcmp(type, "Digits") == 0)
        return read_digits(tokenizer, place, value, error);
    if (inside || strcmp(type, "Sequence") != 0)
        return refuse_type(place, type, "ByteLevel, Split, Digits or a Sequence of these", error);
    if (key_rules_check(place, value, rules, error) != STATUS_OK)
        return error->status;
    const struct place list = place_within(place, "pretokenizers", 0);
    size_t index;
    json_t *each;
    json_array_foreach(json_object_get(value, "pretokenizers"), index, each)
    {
        struct place within = place_within(&list, NULL, index);
        if (read_pre_tokenizer(tokenizer, &within, each, true, spelled, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* ---- post-processor ------------------------------------------------------------------------------------------------
 */

/* The ids of one special token of a template, into the list that it stands in. */
static enum status add_special(struct tokenizer *tokenizer, const struct place *place, json_t *special_tokens,
                               json_t *piece, struct token_list *list, struct error *error)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    json_t *ids = json_object_get(name ? json_object_get(special_tokens, name) : NULL, "ids"), *id;
    size_t index;
    char shown[96];
    if (!json_is_array(ids))
        return error_set(error, STATUS_INPUT, "%s: %s, %s, has no list of ids in special_tokens", place->path,
                         place->key, json_input_show(piece, shown, sizeof shown));
    json_array_foreach(ids, index, id)
    {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        const struct vocabulary *vocabulary = &tokenizer->vocabulary;
        if (value < 0 || value >= vocabulary->count || !vocabulary->tokens[value].bytes)
            return error_set(error, STATUS_INPUT, "%s: %s: special_tokens gives \"%s\" the id %s, which no token has",
                             place->path, place->key, name, json_input_show(id, shown, sizeof shown));
        if (token_list_add(list, (int32_t)value, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* "single": special tokens, the text ("Sequence", once), special tokens. */
static enum status read_template(struct tokenizer *tokenizer, const struct place *place, json_t *value,
                                 struct error *error)
{
    static const struct key_rule rules[] = {{"type", KEY_TEXT | KEY_REQUIRED},
                                            {"single", KEY_LIST | KEY_REQUIRED},
                                            {"pair", KEY_LIST},
                                            {"special_tokens", KEY_OBJECT | KEY_REQUIRED},
                                            {0}};
    const struct place list = place_within(place, "single", 0);
    size_t index;
    int texts = 0;
    json_t *piece;
    if (key_rules_check(place, value, rules, error) != STATUS_OK)
        return error->status;
    json_array_foreach(json_object_get(value, "single"), index, piece)
    {
        struct place within = place_within(&list, NULL, index);
        json_t *special = json_object_get(piece, "SpecialToken");
        if (json_object_get(piece, "Sequence"))
            texts++;
        else if (!special)
            return error_set(error, STATUS_INPUT, "%s: %s is neither a SpecialToken nor a Sequence", place->path,
                             within.key);
        else if (add_special(tokenizer, &within, json_object_get(value, "special_tokens"), special,
                             texts ? &tokenizer->after : &tokenizer->before, error) != STATUS_OK)
            return error->status;
    }
    if (texts != 1)
        return error_set(error, STATUS_INPUT, "%s: %s has the text (Sequence) %d times; understood is once",
                         place->path, list.key, texts);
    return STATUS_OK;
}

/* *templates: how many there were; a second one would go around the first. */
static enum status read_post_processor(struct tokenizer *tokenizer, const struct place *place, json_t *value,
                                       bool inside, int *templates, struct error *error)
{
    static const struct key_rule rules[] = {
        {"type", KEY_TEXT | KEY_REQUIRED}, {"processors", KEY_LIST | KEY_REQUIRED}, {0}};
    const char *type = key_rules_type(place, value, error);
    if (!type)
        return error->status;
    if (strcmp(type, "ByteLevel") == 0) /* moves offsets, which are not kept here */
        return key_rules_check(place, value, byte_level, error);
    if (strcmp(type, "TemplateProcessing") == 0 && (*templates)++ == 0)
        return read_template(tokenizer, place, value, error);
    if (inside || strcmp(type, "Sequence") != 0)
        return refuse_type(place, type, "ByteLevel, one TemplateProcessing, or a Sequence of these", error);
    if (key_rules_check(place, value, rules, error) != STATUS_OK)
        return error->status;
    const struct place list = place_within(place, "processors", 0);
    size_t index;
    json_t *each;
    json_array_foreach(json_object_get(value, "processors"), index, each)
    {
        struct place within = place_within(&list, NULL, index);
        if (read_post_processor(tokenizer, &within, each, true, templates, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* ---- all of it -----------------------------------------------------------------------------------------------------
 */

static enum status read_decoder(const struct place *place, json_t *value, struct error *error)
{
    const char *type = key_rules_type(place, value, error);
    if (!type)
        return error->status;
    if (strcmp(type, "ByteLevel") != 0)
        return refuse_type(place, type, "ByteLevel", error);
    return key_rules_check(place, value, byte_level, error);
}

enum status tokenizer_read_pipeline(struct tokenizer *tokenizer, json_t *root, struct error *error)
{
    const struct place top = {.path = tokenizer->path};
    const struct place normalizer = place_within(&top, "normalizer", 0);
    const struct place pre_tokenizer = place_within(&top, "pre_tokenizer", 0);
    const struct place post_processor = place_within(&top, "post_processor", 0);
    const struct place decoder = place_within(&top, "decoder", 0);
    json_t *after = json_object_get(root, "post_processor");
    bool spelled = false;
    int templates = 0;
    if (read_normalizer(tokenizer, &normalizer, json_object_get(root, "normalizer"), error) != STATUS_OK ||
        read_pre_tokenizer(tokenizer, &pre_tokenizer, json_object_get(root, "pre_tokenizer"), false, &spelled, error) !=
            STATUS_OK)
        return error->status;
    if (!spelled)
        return error_set(error, STATUS_INPUT, "%s: pre_tokenizer has no ByteLevel; only byte-level BPE is understood",
                         tokenizer->path);
    if (after && !json_is_null(after) &&
        read_post_processor(tokenizer, &post_processor, after, false, &templates, error) != STATUS_OK)
        return error->status;
    return read_decoder(&decoder, json_object_get(root, "decoder"), error);
}
