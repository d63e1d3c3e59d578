/* The prompt of kvlab generate, given as token ids or as text. */
#ifndef KVLAB_BENCH_GENERATE_PROMPT_H
#define KVLAB_BENCH_GENERATE_PROMPT_H

#include "bench/harness/bench.h"
#include "engine/tokenizer/tokenizer.h"

struct generate_prompt {
    struct token_list tokens;
    struct tokenizer *tokenizer; /* NULL where ids were given: ids come out too */
    struct token_list stops;     /* tokens that end a text, as the model's folder says; none where ids were given */
};

/* Each fills in a zeroed prompt; the caller frees it, also after an error. Status 2: an id that is none of the model's
   vocabulary; a text where the model's folder has no tokenizer.json, or that has no tokens. */
enum status generate_prompt_ids(struct generate_prompt *prompt, const char *ids, const struct config *config,
                                struct error *error);
/* `model` as --model has it. */
enum status generate_prompt_text(struct generate_prompt *prompt, const char *text, const char *model,
                                 const struct config *config, struct error *error);
void generate_prompt_free(struct generate_prompt *prompt);

#endif
