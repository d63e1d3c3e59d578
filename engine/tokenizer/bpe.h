/* Byte-pair encoding (Sennrich et al. 2016, section 3.2, over bytes as in Radford et al. 2019): a word begins as one
   token for each of its bytes; of all neighbours that the list of merges has, the pair that comes first in that list,
   and of equals the leftmost, becomes one token, until no pair is left.
   n log n in the length of the word. Reads only, except for the scratch, which belongs to one thread. */
#ifndef KVLAB_ENGINE_TOKENIZER_BPE_H
#define KVLAB_ENGINE_TOKENIZER_BPE_H

#include "engine/tokenizer/token_list.h"

#include <stdbool.h>

struct bpe_merge {
    int32_t left, right, merged;
    uint32_t rank; /* place in the list of merges */
};

struct bpe_symbol;
struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *heap;
    size_t capacity; /* bytes of the longest word that fits */
};

struct bpe {
    int32_t byte_ids[256];
    struct bpe_merge *merges; /* sorted by left, then right */
    size_t merge_count;
    uint32_t *first_of; /* [ids + 1]: merges whose left is i are merges[first_of[i] .. first_of[i + 1]) */
};

/* Sorts the merges and indexes them; `ids` is above every id in them. Status 2 where a pair occurs twice: the message
   names both places in the list. */
enum status bpe_index(struct bpe *bpe, int32_t ids, struct error *error);
void bpe_free(struct bpe *bpe); /* merges too */

/* Appends the tokens of one word of fewer than 2^31 bytes. */
enum status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, size_t size,
                       struct token_list *tokens, struct error *error);
void bpe_scratch_free(struct bpe_scratch *scratch);

#endif
