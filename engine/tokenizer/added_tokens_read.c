/* The list added_tokens, as tokens to look for in a text. Their ids were checked with the vocabulary. */
#include "engine/json_input.h"
#include "engine/tokenizer/nfc.h"
#include "engine/tokenizer/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* The text to look for: `content`, in normalized form where it is looked for in normalized text. */
static enum status text_to_find(const struct tokenizer *tokenizer, const char *content, bool normalized, char **text,
                                struct error *error)
{
    size_t size;
    *text = NULL;
    if (normalized && tokenizer->compose && nfc(content, strlen(content), text, &size, error) != STATUS_OK)
        return error->status;
    if (!*text)
        *text = strdup(content);
    return *text ? STATUS_OK : error_set(error, STATUS_DEVICE, "%s: out of memory", tokenizer->path);
}

static enum status add_token(struct tokenizer *tokenizer, const struct place *place, json_t *token, struct error *error)
{
    const char *content = json_string_value(json_object_get(token, "content"));
    bool normalized = json_is_true(json_object_get(token, "normalized"));
    struct added_tokens *added = normalized ? &tokenizer->composed : &tokenizer->as_is;
    if (strlen(content) > ADDED_TOKEN_LONGEST)
        return error_set(error, STATUS_INPUT, "%s: %s.content is longer than %d bytes", place->path, place->key,
                         ADDED_TOKEN_LONGEST);
    char *text;
    if (text_to_find(tokenizer, content, normalized, &text, error) != STATUS_OK)
        return error->status;
    added->tokens[added->count++] = (struct added_token){
        .text = text, .size = strlen(text), .id = (int32_t)json_integer_value(json_object_get(token, "id"))};
    return STATUS_OK;
}

enum status tokenizer_read_added(struct tokenizer *tokenizer, json_t *root, struct error *error)
{
    const struct place top = {.path = tokenizer->path}, place = place_within(&top, "added_tokens", 0);
    json_t *list = json_object_get(root, "added_tokens"), *token;
    struct added_tokens *kinds[] = {&tokenizer->as_is, &tokenizer->composed};
    size_t index;
    const char *twice = "";
    char printable[64];
    for (int i = 0; i < 2; i++) {
        kinds[i]->tokens = calloc(json_array_size(list) + 1, sizeof *kinds[i]->tokens);
        if (!kinds[i]->tokens)
            return error_set(error, STATUS_DEVICE, "%s: out of memory for its added tokens", tokenizer->path);
    }
    json_array_foreach(list, index, token)
    {
        struct place within = place_within(&place, NULL, index);
        if (add_token(tokenizer, &within, token, error) != STATUS_OK)
            return error->status;
    }
    for (int i = 0; i < 2; i++)
        if (!added_tokens_index(kinds[i], &twice))
            return error_set(error, STATUS_INPUT, "%s: %s has \"%s\" twice", tokenizer->path, place.key,
                             json_input_printable(twice, printable, sizeof printable));
    return STATUS_OK;
}
