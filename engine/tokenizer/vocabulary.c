#include "engine/tokenizer/vocabulary.h"

#include "engine/json_input.h"
#include "engine/tokenizer/byte_alphabet.h"

#include <stdlib.h>
#include <string.h>

static int compare_bytes(const char *a, size_t a_size, const char *b, size_t b_size)
{
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order != 0 ? order : a_size < b_size ? -1 : a_size > b_size;
}

static int by_bytes(const void *a, const void *b)
{
    const struct vocabulary_token *x = *(const struct vocabulary_token *const *)a;
    const struct vocabulary_token *y = *(const struct vocabulary_token *const *)b;
    return compare_bytes(x->bytes, x->size, y->bytes, y->size);
}

/* Checks one id, and widens what the vocabulary must hold: ids, and bytes of text. */
static enum status count_token(struct vocabulary *vocabulary, const struct place *place, const char *text,
                               const json_t *id, size_t *bytes, struct error *error)
{
    char printable[64];
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (text[0] == '\0')
        return error_set(error, STATUS_INPUT, "%s: %s has a token of no characters", place->path, place->key);
    if (value < 0 || value >= VOCABULARY_MOST)
        return error_set(error, STATUS_INPUT, "%s: %s: the id of \"%s\" is no whole number from 0 to %d", place->path,
                         place->key, json_input_printable(text, printable, sizeof printable), VOCABULARY_MOST - 1);
    if (value >= vocabulary->count)
        vocabulary->count = (int32_t)value + 1;
    *bytes += strlen(text);
    return STATUS_OK;
}

static enum status reserve(struct vocabulary *vocabulary, const struct place *model, json_t *vocab,
                           const struct place *added, json_t *added_tokens, struct error *error)
{
    size_t bytes = 0, index;
    const char *text;
    json_t *id, *token;
    json_object_foreach(vocab, text, id)
    {
        if (count_token(vocabulary, model, text, id, &bytes, error) != STATUS_OK)
            return error->status;
    }
    json_array_foreach(added_tokens, index, token)
    {
        struct place place = place_within(added, NULL, index);
        if (count_token(vocabulary, &place, json_string_value(json_object_get(token, "content")),
                        json_object_get(token, "id"), &bytes, error) != STATUS_OK)
            return error->status;
    }
    vocabulary->tokens = calloc((size_t)vocabulary->count + 1, sizeof *vocabulary->tokens);
    vocabulary->by_bytes = calloc((size_t)vocabulary->count + 1, sizeof *vocabulary->by_bytes);
    vocabulary->bytes = malloc(bytes + 1);
    if (!vocabulary->tokens || !vocabulary->by_bytes || !vocabulary->bytes)
        return error_set(error, STATUS_DEVICE, "%s: out of memory for %d tokens", model->path, (int)vocabulary->count);
    return STATUS_OK;
}

static enum status taken(const struct place *place, const char *text, int32_t id, struct error *error)
{
    char printable[64];
    return error_set(error, STATUS_INPUT, "%s: %s: \"%s\" has the id %d, which another token has", place->path,
                     place->key, json_input_printable(text, printable, sizeof printable), (int)id);
}

/* The place of a new token whose bytes are the text itself, or those that it spells. NULL where the id is taken. */
static struct vocabulary_token *add(struct vocabulary *vocabulary, const char *text, int32_t id, bool spelled)
{
    struct vocabulary_token *token = &vocabulary->tokens[id];
    if (token->bytes)
        return NULL;
    char *bytes = vocabulary->bytes + vocabulary->bytes_used;
    size_t size = 0;
    token->is_spelled = spelled && byte_alphabet_bytes(text, bytes, &size);
    if (!token->is_spelled) {
        size = strlen(text);
        memcpy(bytes, text, size);
    }
    token->bytes = bytes;
    token->size = (uint32_t)size;
    vocabulary->bytes_used += size;
    return token;
}

/* A token that was added to the vocabulary, or one of it that is marked here. */
static enum status add_added(struct vocabulary *vocabulary, const struct place *place, json_t *vocab, json_t *added,
                             struct error *error)
{
    const char *text = json_string_value(json_object_get(added, "content"));
    int32_t id = (int32_t)json_integer_value(json_object_get(added, "id"));
    const json_t *same = json_object_get(vocab, text);
    if (same && json_integer_value(same) != id)
        return error_set(error, STATUS_INPUT,
                         "%s: %s has the id %d, and the same token in model.vocab %" JSON_INTEGER_FORMAT, place->path,
                         place->key, (int)id, json_integer_value(same));
    struct vocabulary_token *token = same ? &vocabulary->tokens[id] : add(vocabulary, text, id, false);
    if (!token)
        return taken(place, text, id, error);
    token->is_special = json_is_true(json_object_get(added, "special"));
    return STATUS_OK;
}

enum status vocabulary_read(struct vocabulary *vocabulary, const struct place *model, json_t *vocab,
                            const struct place *added, json_t *added_tokens, struct error *error)
{
    const char *text;
    json_t *id, *token;
    size_t index;
    if (reserve(vocabulary, model, vocab, added, added_tokens, error) != STATUS_OK)
        return error->status;
    json_object_foreach(vocab, text, id)
    {
        if (!add(vocabulary, text, (int32_t)json_integer_value(id), true))
            return taken(model, text, (int32_t)json_integer_value(id), error);
    }
    json_array_foreach(added_tokens, index, token)
    {
        struct place place = place_within(added, NULL, index);
        if (add_added(vocabulary, &place, vocab, token, error) != STATUS_OK)
            return error->status;
    }
    for (int32_t i = 0; i < vocabulary->count; i++)
        if (vocabulary->tokens[i].is_spelled)
            vocabulary->by_bytes[vocabulary->spelled_count++] = &vocabulary->tokens[i];
    qsort(vocabulary->by_bytes, vocabulary->spelled_count, sizeof *vocabulary->by_bytes, by_bytes);
    return STATUS_OK;
}

void vocabulary_free(struct vocabulary *vocabulary)
{
    free(vocabulary->tokens);
    free(vocabulary->by_bytes);
    free(vocabulary->bytes);
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *bytes, size_t size)
{
    size_t low = 0, high = vocabulary->spelled_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct vocabulary_token *token = vocabulary->by_bytes[middle];
        int order = compare_bytes(token->bytes, token->size, bytes, size);
        if (order == 0)
            return (int32_t)(token - vocabulary->tokens);
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}
