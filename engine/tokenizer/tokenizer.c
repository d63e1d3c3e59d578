#include "engine/tokenizer/tokenizer.h"

#include "engine/json_input.h"
#include "engine/tokenizer/nfc.h"
#include "engine/tokenizer/tokenizer_parts.h"
#include "engine/tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>

static const size_t LONGEST_FILE = (size_t)1 << 26, LONGEST_TEXT = (size_t)1 << 29;

/* ---- reading -------------------------------------------------------------------------------------------------------
 */

static const struct key_rule file_rules[] = {{"version", KEY_TEXT},
                                             {"truncation", KEY_NULL},
                                             {"padding", KEY_NULL},
                                             {"added_tokens", KEY_LIST},
                                             {"normalizer", KEY_NULL | KEY_OBJECT},
                                             {"pre_tokenizer", KEY_OBJECT | KEY_REQUIRED},
                                             {"post_processor", KEY_NULL | KEY_OBJECT},
                                             {"decoder", KEY_OBJECT | KEY_REQUIRED},
                                             {"model", KEY_OBJECT | KEY_REQUIRED},
                                             {0}};

static const struct key_rule model_rules[] = {{"type", KEY_TEXT | KEY_REQUIRED},
                                              {"dropout", KEY_NULL},
                                              {"unk_token", KEY_NULL},
                                              {"continuing_subword_prefix", KEY_NULL | KEY_NOTHING},
                                              {"end_of_word_suffix", KEY_NULL | KEY_NOTHING},
                                              {"fuse_unk", KEY_FLAG}, /* no byte is unknown */
                                              {"byte_fallback", KEY_FALSE},
                                              {"ignore_merges", KEY_FLAG},
                                              {"vocab", KEY_OBJECT | KEY_REQUIRED},
                                              {"merges", KEY_LIST | KEY_REQUIRED},
                                              {0}};

static const struct key_rule added_rules[] = {{"id", KEY_INTEGER | KEY_REQUIRED},
                                              {"content", KEY_TEXT | KEY_REQUIRED},
                                              {"single_word", KEY_FALSE},
                                              {"lstrip", KEY_FALSE},
                                              {"rstrip", KEY_FALSE},
                                              {"normalized", KEY_FLAG},
                                              {"special", KEY_FLAG},
                                              {0}};

/* The type first: the keys of a model of another kind are not the reason to refuse it. */
static enum status check_model(const struct place *place, json_t *model, struct error *error)
{
    char printable[64];
    const char *type = key_rules_type(place, model, error);
    if (!type)
        return error->status;
    if (strcmp(type, "BPE") != 0)
        return error_set(error, STATUS_INPUT, "%s: model.type is \"%s\"; understood is BPE over bytes", place->path,
                         json_input_printable(type, printable, sizeof printable));
    return key_rules_check(place, model, model_rules, error);
}

static enum status check_keys(const struct place *top, json_t *root, struct error *error)
{
    const struct place model = place_within(top, "model", 0), added = place_within(top, "added_tokens", 0);
    size_t index;
    json_t *token;
    if (key_rules_check(top, root, file_rules, error) != STATUS_OK ||
        check_model(&model, json_object_get(root, "model"), error) != STATUS_OK)
        return error->status;
    json_array_foreach(json_object_get(root, "added_tokens"), index, token)
    {
        struct place within = place_within(&added, NULL, index);
        if (key_rules_check(&within, token, added_rules, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

static enum status read_parts(struct tokenizer *tokenizer, json_t *root, struct error *error)
{
    const struct place top = {.path = tokenizer->path};
    const struct place vocab = place_within(&top, "model.vocab", 0), added = place_within(&top, "added_tokens", 0);
    if (check_keys(&top, root, error) != STATUS_OK)
        return error->status;
    json_t *model = json_object_get(root, "model"), *words = json_object_get(model, "vocab");
    tokenizer->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    if (vocabulary_read(&tokenizer->vocabulary, &vocab, words, &added, json_object_get(root, "added_tokens"), error) !=
            STATUS_OK ||
        vocabulary_read_merges(&tokenizer->vocabulary, &tokenizer->bpe, &vocab, words, json_object_get(model, "merges"),
                               error) != STATUS_OK ||
        tokenizer_read_pipeline(tokenizer, root, error) != STATUS_OK)
        return error->status;
    return tokenizer_read_added(tokenizer, root, error);
}

enum status tokenizer_open(struct tokenizer **tokenizer, const char *path, struct error *error)
{
    json_t *root = NULL;
    *tokenizer = NULL;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (t)
        t->path = strdup(path);
    if (!t || !t->path) {
        free(t);
        return error_set(error, STATUS_DEVICE, "%s: out of memory", path);
    }
    enum status status = json_input_file(path, LONGEST_FILE, &root, error);
    if (!status)
        status = read_parts(t, root, error);
    json_decref(root);
    if (status)
        tokenizer_close(t);
    else
        *tokenizer = t;
    return status;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    for (int i = 0; i < tokenizer->pattern_count; i++)
        pattern_close(tokenizer->patterns[i]);
    added_tokens_free(&tokenizer->as_is);
    added_tokens_free(&tokenizer->composed);
    free(tokenizer->before.ids);
    free(tokenizer->after.ids);
    bpe_free(&tokenizer->bpe);
    bpe_scratch_free(&tokenizer->scratch);
    vocabulary_free(&tokenizer->vocabulary);
    free(tokenizer->path);
    free(tokenizer);
}

/* ---- encoding: added tokens, normalized text, words, tokens --------------------------------------------------------
 */

static enum status encode_word(struct tokenizer *tokenizer, const char *word, size_t size, struct token_list *tokens,
                               struct error *error)
{
    int32_t id = tokenizer->ignore_merges ? vocabulary_find(&tokenizer->vocabulary, word, size) : -1;
    if (id >= 0)
        return token_list_add(tokens, id, error);
    return bpe_encode(&tokenizer->bpe, &tokenizer->scratch, word, size, tokens, error);
}

/* Splits by the patterns from `level` on: both what matches and what lies between goes on to the next. */
static enum status encode_part(struct tokenizer *tokenizer, int level, const char *text, size_t size,
                               struct token_list *tokens, struct error *error)
{
    if (size == 0)
        return STATUS_OK;
    if (level == tokenizer->pattern_count)
        return encode_word(tokenizer, text, size, tokens, error);
    for (size_t from = 0, begin, end; from < size; from = end)
        if (pattern_next(tokenizer->patterns[level], text, size, from, &begin, &end, error) != STATUS_OK ||
            encode_part(tokenizer, level + 1, text + from, begin - from, tokens, error) != STATUS_OK ||
            encode_part(tokenizer, level + 1, text + begin, end - begin, tokens, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* Normalized text: the tokens to be found in it, and the words between them. */
static enum status encode_composed(struct tokenizer *tokenizer, const char *text, size_t size,
                                   struct token_list *tokens, struct error *error)
{
    for (size_t from = 0, begin; from < size;) {
        const struct added_token *found = added_tokens_next(&tokenizer->composed, text, size, from, &begin);
        if (encode_part(tokenizer, 0, text + from, begin - from, tokens, error) != STATUS_OK ||
            (found && token_list_add(tokens, found->id, error) != STATUS_OK))
            return error->status;
        from = found ? begin + found->size : size;
    }
    return STATUS_OK;
}

/* Text between tokens that were found as they are. */
static enum status encode_between(struct tokenizer *tokenizer, const char *text, size_t size, struct token_list *tokens,
                                  struct error *error)
{
    char *composed = NULL;
    size_t composed_size = size;
    if (tokenizer->compose && nfc(text, size, &composed, &composed_size, error) != STATUS_OK)
        return error->status;
    enum status status = encode_composed(tokenizer, composed ? composed : text, composed_size, tokens, error);
    free(composed);
    return status;
}

static enum status add_all(struct token_list *tokens, const struct token_list *more, struct error *error)
{
    for (size_t i = 0; i < more->count; i++)
        if (token_list_add(tokens, more->ids[i], error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

enum status tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t size, bool whole,
                             struct token_list *tokens, struct error *error)
{
    size_t valid = utf8_valid_bytes(text, size);
    if (valid < size)
        return error_set(error, STATUS_INPUT, "the text is not UTF-8 at byte %zu (0x%02x)", valid,
                         (unsigned)(unsigned char)text[valid]);
    if (size > LONGEST_TEXT)
        return error_set(error, STATUS_INPUT, "the text is %zu bytes long; at most %zu are taken", size, LONGEST_TEXT);
    if (whole && add_all(tokens, &tokenizer->before, error) != STATUS_OK)
        return error->status;
    for (size_t from = 0, begin; from < size;) {
        const struct added_token *found = added_tokens_next(&tokenizer->as_is, text, size, from, &begin);
        if (encode_between(tokenizer, text + from, begin - from, tokens, error) != STATUS_OK ||
            (found && token_list_add(tokens, found->id, error) != STATUS_OK))
            return error->status;
        from = found ? begin + found->size : size;
    }
    return whole ? add_all(tokens, &tokenizer->after, error) : STATUS_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------
 */

bool tokenizer_token(const struct tokenizer *tokenizer, int32_t id, const char **bytes, size_t *size, bool *is_special)
{
    const struct vocabulary *vocabulary = &tokenizer->vocabulary;
    if (id < 0 || id >= vocabulary->count || !vocabulary->tokens[id].bytes)
        return false;
    *bytes = vocabulary->tokens[id].bytes;
    *size = vocabulary->tokens[id].size;
    if (is_special)
        *is_special = vocabulary->tokens[id].is_special;
    return true;
}

int32_t tokenizer_ids(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary.count;
}

enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                             char **text, size_t *size, struct error *error)
{
    size_t bytes_in_all = 0, length;
    const char *bytes;
    bool special;
    for (size_t i = 0; i < count; i++) {
        if (!tokenizer_token(tokenizer, ids[i], &bytes, &length, &special))
            return error_set(error, STATUS_INPUT, "%s: no token has the id %d", tokenizer->path, (int)ids[i]);
        bytes_in_all += length;
    }
    *text = malloc(UTF8_STREAM_ROOM(bytes_in_all) + 1);
    if (!*text)
        return error_set(error, STATUS_DEVICE, "out of memory for the text of %zu tokens", count);
    struct utf8_stream stream = {0};
    *size = 0;
    for (size_t i = 0; i < count; i++)
        if (tokenizer_token(tokenizer, ids[i], &bytes, &length, &special) && !(special && skip_special))
            *size += utf8_stream_add(&stream, bytes, length, *text + *size);
    *size += utf8_stream_end(&stream, *text + *size);
    (*text)[*size] = '\0';
    return STATUS_OK;
}
