/* model.merges: which two tokens become which third one. */
#include "engine/json_input.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/vocabulary.h"

#include <stdlib.h>
#include <string.h>

static enum status read_byte_tokens(struct bpe *bpe, const struct place *model, json_t *vocab, struct error *error)
{
    for (int byte = 0; byte < 256; byte++) {
        char spelled[3];
        byte_alphabet_spell((unsigned char)byte, spelled);
        const json_t *id = json_object_get(vocab, spelled);
        if (!id)
            return error_set(error, STATUS_INPUT, "%s: %s has no token for the byte 0x%02x (\"%s\")", model->path,
                             model->key, (unsigned)byte, spelled);
        bpe->byte_ids[byte] = (int32_t)json_integer_value(id);
    }
    return STATUS_OK;
}

/* The two texts of one merge, NUL-terminated in `texts`, which is the caller's to free. False: it is not two texts. */
static bool split(const json_t *merge, char **texts, const char **right)
{
    const char *first = json_string_value(json_is_array(merge) ? json_array_get(merge, 0) : merge);
    const char *second = json_string_value(json_array_get(merge, 1));
    *texts = NULL;
    if (!first || (json_is_array(merge) && (!second || json_array_size(merge) != 2)))
        return false;
    size_t length = strlen(first), more = second ? strlen(second) : 0;
    *texts = calloc(length + more + 2, 1);
    if (!*texts)
        return false;
    memcpy(*texts, first, length);
    char *space = second ? *texts + length : strchr(*texts, ' ');
    if (!space)
        return false;
    *space = '\0';
    *right = space + 1;
    if (second)
        memcpy(space + 1, second, more);
    return **texts && **right && (second || !strchr(*right, ' '));
}

/* The id of `text` in model.vocab, or -1. */
static int32_t id_of(json_t *vocab, const char *text)
{
    const json_t *id = json_object_get(vocab, text);
    return id ? (int32_t)json_integer_value(id) : -1;
}

static enum status read_merge(struct bpe_merge *merge, const struct place *place, json_t *vocab, const json_t *value,
                              struct error *error)
{
    char *texts, shown[96];
    const char *right = NULL;
    bool known = false, understood = split(value, &texts, &right);
    if (understood) {
        merge->left = id_of(vocab, texts);
        merge->right = id_of(vocab, right);
        size_t left_length = strlen(texts); /* closes the gap: the two texts become that of the merged token */
        memmove(texts + left_length, right, strlen(right) + 1);
        merge->merged = id_of(vocab, texts);
        known = merge->left >= 0 && merge->right >= 0 && merge->merged >= 0;
    }
    free(texts);
    if (known)
        return STATUS_OK;
    json_input_show(value, shown, sizeof shown);
    if (understood)
        return error_set(error, STATUS_INPUT, "%s: %s, %s: model.vocab lacks one of the two tokens or what they become",
                         place->path, place->key, shown);
    return error_set(error, STATUS_INPUT, "%s: %s, %s, is no pair of tokens", place->path, place->key, shown);
}

enum status vocabulary_read_merges(const struct vocabulary *vocabulary, struct bpe *bpe, const struct place *model,
                                   json_t *vocab, json_t *merges, struct error *error)
{
    if (read_byte_tokens(bpe, model, vocab, error) != STATUS_OK)
        return error->status;
    bpe->merge_count = json_array_size(merges);
    bpe->merges = calloc(bpe->merge_count + 1, sizeof *bpe->merges);
    if (!bpe->merges)
        return error_set(error, STATUS_DEVICE, "%s: out of memory for %zu merges", model->path, bpe->merge_count);
    const struct place place = {.path = model->path, .key = "model.merges"};
    size_t index;
    json_t *value;
    json_array_foreach(merges, index, value)
    {
        struct place within = place_within(&place, NULL, index);
        bpe->merges[index].rank = (uint32_t)index;
        if (read_merge(&bpe->merges[index], &within, vocab, value, error) != STATUS_OK)
            return error->status;
    }
    return bpe_index(bpe, vocabulary->count, error) ? error_prefix(error, "%s: model.merges", model->path) : STATUS_OK;
}
