#include "engine/tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct added_token *)a)->text, ((const struct added_token *)b)->text);
}

bool added_tokens_index(struct added_tokens *added, const char **twice)
{
    if (added->count > 0)
        qsort(added->tokens, added->count, sizeof *added->tokens, by_text);
    for (size_t i = 0; i < added->count; i++) {
        if (i > 0 && by_text(&added->tokens[i - 1], &added->tokens[i]) == 0) {
            *twice = added->tokens[i].text;
            return false;
        }
        added->first_of[(unsigned char)added->tokens[i].text[0] + 1]++;
    }
    for (int byte = 0; byte < 256; byte++)
        added->first_of[byte + 1] += added->first_of[byte];
    return true;
}

void added_tokens_free(struct added_tokens *added)
{
    for (size_t i = 0; i < added->count; i++)
        free(added->tokens[i].text);
    free(added->tokens);
}

/* The first of tokens[low .. high), all longer than `at` and alike before it, whose byte `at` is `byte` or above. */
static size_t lower_bound(const struct added_tokens *added, size_t low, size_t high, size_t at, int byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)added->tokens[middle].text[at] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest that text[0 .. size) begins with; the candidates get fewer with each byte. */
static const struct added_token *longest_here(const struct added_tokens *added, const char *text, size_t size)
{
    const struct added_token *longest = NULL;
    size_t low = added->first_of[(unsigned char)text[0]], high = added->first_of[(unsigned char)text[0] + 1];
    for (size_t at = 1; low < high; at++) {
        if (added->tokens[low].size == at) /* the shortest comes first */
            longest = &added->tokens[low++];
        if (at == size)
            break;
        unsigned char byte = (unsigned char)text[at];
        low = lower_bound(added, low, high, at, byte);
        high = lower_bound(added, low, high, at, byte + 1);
    }
    return longest;
}

const struct added_token *added_tokens_next(const struct added_tokens *added, const char *text, size_t size,
                                            size_t from, size_t *begin)
{
    for (*begin = from; *begin < size; ++*begin) {
        const struct added_token *token = longest_here(added, text + *begin, size - *begin);
        if (token)
            return token;
    }
    return NULL;
}
