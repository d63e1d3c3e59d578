#include "bench/generate_prompt.h"

#include "bench/harness/option_table.h"
#include "engine/tokenizer/beside_weights.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A list of ids is no list of settings: repeats count. */
enum status generate_prompt_ids(struct generate_prompt *prompt, const char *ids, const struct config *config,
                                struct error *error)
{
    for (int place = 1;; place++) {
        char piece[24];
        int64_t id = 0;
        size_t length = strcspn(ids, ",");
        if (length == 0)
            return error_set(error, STATUS_INPUT,
                             "--tokens: place %d of the list is empty; give token ids, as in 1,2,3", place);
        if (snprintf(piece, sizeof piece, "%.*s", (int)length, ids) >= (int)sizeof piece)
            return error_set(error, STATUS_INPUT, "--tokens: %.*s is no token id", (int)length, ids);
        if (int_parse(&id, piece, "tokens", 0, config->vocab_size - 1, error) != STATUS_OK ||
            token_list_add(&prompt->tokens, (int32_t)id, error) != STATUS_OK)
            return error->status;
        if (ids[length] == '\0')
            return STATUS_OK;
        ids += length + 1;
    }
}

/* The folder in which the model's config.json lies. */
static enum status folder_of(char *folder, size_t size, const char *model, struct error *error)
{
    char models_dir[PATH_MAX];
    bool is_published;
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    if (config_locate(folder, size, models_dir, model, &is_published, error) != STATUS_OK)
        return error->status;
    if (is_published)
        return error_set(error, STATUS_INPUT,
                         "generate: %s is a published config alone, without a tokenizer: for a text, give --model the "
                         "folder of a model with its tokenizer.json; or give token ids by --tokens",
                         model);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    else
        snprintf(folder, size, ".");
    return STATUS_OK;
}

enum status generate_prompt_text(struct generate_prompt *prompt, const char *text, const char *model,
                                 const struct config *config, struct error *error)
{
    char folder[PATH_MAX];
    if (folder_of(folder, sizeof folder, model, error) != STATUS_OK ||
        tokenizer_open_beside(&prompt->tokenizer, folder, error) != STATUS_OK)
        return error->status;
    if (!prompt->tokenizer)
        return error_set(error, STATUS_INPUT,
                         "%s: no tokenizer.json in this folder; put the model's there, or give token ids by --tokens",
                         folder);
    if (tokenizer_encode(prompt->tokenizer, text, strlen(text), true, &prompt->tokens, error) != STATUS_OK)
        return error_prefix(error, "generate");
    if (prompt->tokens.count == 0 || prompt->tokens.count > INT_MAX / 2)
        return error_set(error, STATUS_INPUT, "generate: the text has %zu tokens; 1 to %d can be continued",
                         prompt->tokens.count, INT_MAX / 2);
    for (size_t i = 0; i < prompt->tokens.count; i++)
        if (prompt->tokens.ids[i] >= config->vocab_size)
            return error_set(
                error, STATUS_INPUT,
                "%s: tokenizer.json gives the id %d, and config.json's vocab_size is %lld; the two are not "
                "of one model",
                folder, (int)prompt->tokens.ids[i], (long long)config->vocab_size);
    return stop_tokens_read(&prompt->stops, folder, config->vocab_size, error);
}

void generate_prompt_free(struct generate_prompt *prompt)
{
    free(prompt->tokens.ids);
    free(prompt->stops.ids);
    tokenizer_close(prompt->tokenizer);
}
