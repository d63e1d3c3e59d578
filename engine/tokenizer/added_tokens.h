/* Tokens that are found in a text before it is split into words: special ones such as <|im_end|>, and others that were
   added to a trained vocabulary. The leftmost match counts, and of those that begin there the longest. */
#ifndef KVLAB_ENGINE_TOKENIZER_ADDED_TOKENS_H
#define KVLAB_ENGINE_TOKENIZER_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ADDED_TOKEN_LONGEST = 1024 }; /* bytes; bounds the work at each place of a text */

struct added_token {
    char *text; /* NUL-terminated, owned */
    size_t size;
    int32_t id;
};

struct added_tokens {
    struct added_token *tokens; /* sorted by their bytes once indexed */
    size_t count;
    size_t first_of[257]; /* those that begin with byte b are tokens[first_of[b] .. first_of[b + 1]) */
};

/* Sorts and indexes; false where two have the same text: then *twice is one of them. */
bool added_tokens_index(struct added_tokens *added, const char **twice);
void added_tokens_free(struct added_tokens *added);

/* The first one in text[from .. size), or NULL; *begin is where it stands, or `size`. */
const struct added_token *added_tokens_next(const struct added_tokens *added, const char *text, size_t size,
                                            size_t from, size_t *begin);

#endif
