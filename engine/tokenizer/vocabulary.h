/* The tokens of a vocabulary by id, each with the bytes of text that it stands for. */
#ifndef KVLAB_ENGINE_TOKENIZER_VOCABULARY_H
#define KVLAB_ENGINE_TOKENIZER_VOCABULARY_H

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/key_rules.h"

enum { VOCABULARY_MOST = 1 << 21 }; /* ids; the largest published vocabularies have 2^18 */

struct vocabulary_token {
    const char *bytes; /* NULL: no token has this id */
    uint32_t size;
    bool is_spelled; /* in the byte alphabet; else it stands for its own text, and no word has it */
    bool is_special; /* a mark for the model, no part of the text */
};

struct vocabulary {
    struct vocabulary_token *tokens; /* [count] */
    int32_t count;                   /* above every id */
    char *bytes;                     /* all tokens' bytes */
    size_t bytes_used;
    const struct vocabulary_token **by_bytes; /* spelled ones, sorted by their bytes */
    size_t spelled_count;
};

/* Reads model.vocab and the list added_tokens, which have passed their rules. Status 2: an id that is negative, above
   the limit or taken twice, a token that is empty. `model` and `added` place the two in the file. */
enum status vocabulary_read(struct vocabulary *vocabulary, const struct place *model, json_t *vocab,
                            const struct place *added, json_t *added_tokens, struct error *error);
/* Reads the tokens of single bytes from model.vocab, and model.merges: "left right" or [left, right]. Status 2: a byte
   without a token, a merge that is none or of tokens that do not exist. */
enum status vocabulary_read_merges(const struct vocabulary *vocabulary, struct bpe *bpe, const struct place *model,
                                   json_t *vocab, json_t *merges, struct error *error);
void vocabulary_free(struct vocabulary *vocabulary);

/* The id of the spelled token of exactly these bytes, -1 where there is none. */
int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *bytes, size_t size);

#endif
