/* Inside the tokenizer: what was read, and the readers of its parts. */
#ifndef KVLAB_ENGINE_TOKENIZER_TOKENIZER_PARTS_H
#define KVLAB_ENGINE_TOKENIZER_TOKENIZER_PARTS_H

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocabulary.h"

enum { MOST_PATTERNS = 8 };

struct tokenizer {
    char *path;
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct bpe_scratch scratch;
    bool ignore_merges;                      /* a word that is a token is that token, whatever the merges say */
    bool compose;                            /* NFC */
    struct added_tokens as_is;               /* looked for before the text is normalized */
    struct added_tokens composed;            /* and afterwards, in normalized form (added_tokens' key "normalized") */
    struct pattern *patterns[MOST_PATTERNS]; /* each splits what the one before it gave */
    int pattern_count;
    struct token_list before, after; /* around a whole text */
};

/* Fill in their parts from the root of a tokenizer.json whose own keys were checked. */
enum status tokenizer_read_added(struct tokenizer *tokenizer, json_t *root, struct error *error);
enum status tokenizer_read_pipeline(struct tokenizer *tokenizer, json_t *root, struct error *error);

#endif
