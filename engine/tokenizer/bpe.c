#include "engine/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#define NO_PAIR UINT32_MAX

/* A token of the word so far, in a list that keeps its order. */
struct bpe_symbol {
    int32_t id, previous, next; /* places, -1 at the ends */
    int32_t merged;             /* what it and its right neighbour become, where rank is not NO_PAIR */
    uint32_t rank;              /* of that pair; NO_PAIR too once it is merged into its left neighbour */
};

static int by_pair(const void *a, const void *b)
{
    const struct bpe_merge *x = a, *y = b;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

enum status bpe_index(struct bpe *bpe, int32_t ids, struct error *error)
{
    bpe->first_of = calloc((size_t)ids + 1, sizeof *bpe->first_of);
    if (!bpe->first_of)
        return error_set(error, STATUS_DEVICE, "out of memory for %zu merges", bpe->merge_count);
    if (bpe->merge_count == 0)
        return STATUS_OK;
    qsort(bpe->merges, bpe->merge_count, sizeof *bpe->merges, by_pair);
    for (size_t i = 0; i < bpe->merge_count; i++) {
        if (i > 0 && by_pair(&bpe->merges[i - 1], &bpe->merges[i]) == 0)
            return error_set(error, STATUS_INPUT, "merges %u and %u are the same pair", bpe->merges[i - 1].rank,
                             bpe->merges[i].rank);
        bpe->first_of[bpe->merges[i].left + 1]++;
    }
    for (int32_t id = 0; id < ids; id++)
        bpe->first_of[id + 1] += bpe->first_of[id];
    return STATUS_OK;
}

void bpe_free(struct bpe *bpe)
{
    free(bpe->merges);
    free(bpe->first_of);
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
}

/* Room for a word of `size` bytes: at most size - 1 pairs wait at first, and a merge takes one and adds two. */
static enum status make_room(struct bpe_scratch *scratch, size_t size, struct error *error)
{
    if (size <= scratch->capacity)
        return STATUS_OK;
    size_t capacity = 2 * size;
    bpe_scratch_free(scratch);
    scratch->symbols = malloc(capacity * sizeof *scratch->symbols);
    scratch->heap = malloc(2 * capacity * sizeof *scratch->heap);
    scratch->capacity = scratch->symbols && scratch->heap ? capacity : 0;
    return scratch->capacity ? STATUS_OK
                             : error_set(error, STATUS_DEVICE, "out of memory for a word of %zu bytes", size);
}

/* ---- pairs that wait, lowest rank << 32 | place first --------------------------------------------------------------
 */

static void heap_add(uint64_t *heap, size_t *count, uint64_t key)
{
    size_t at = (*count)++;
    for (; at > 0 && heap[(at - 1) / 2] > key; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = key;
}

static uint64_t heap_take(uint64_t *heap, size_t *count)
{
    uint64_t least = heap[0], last = heap[--*count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < *count && heap[child + 1] < heap[child])
            child++;
        if (child >= *count || heap[child] >= last)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return least;
}

/* ---- one word ------------------------------------------------------------------------------------------------------
 */

static const struct bpe_merge *find_merge(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint32_t low = bpe->first_of[left], high = bpe->first_of[left + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (bpe->merges[middle].right < right)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < bpe->first_of[left + 1] && bpe->merges[low].right == right;
    return found ? &bpe->merges[low] : NULL;
}

/* Looks up the pair of a symbol and its right neighbour, and lets it wait for its turn. */
static void look_up(const struct bpe *bpe, const struct bpe_scratch *scratch, size_t *waiting, int32_t place)
{
    struct bpe_symbol *symbol = &scratch->symbols[place];
    const struct bpe_merge *merge =
        symbol->next < 0 ? NULL : find_merge(bpe, symbol->id, scratch->symbols[symbol->next].id);
    symbol->rank = merge ? merge->rank : NO_PAIR;
    symbol->merged = merge ? merge->merged : -1;
    if (merge)
        heap_add(scratch->heap, waiting, (uint64_t)merge->rank << 32 | (uint32_t)place);
}

enum status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, size_t size,
                       struct token_list *tokens, struct error *error)
{
    if (make_room(scratch, size, error) != STATUS_OK)
        return error->status;
    struct bpe_symbol *symbols = scratch->symbols;
    size_t waiting = 0;
    for (size_t i = 0; i < size; i++)
        symbols[i] = (struct bpe_symbol){.id = bpe->byte_ids[(unsigned char)word[i]],
                                         .previous = (int32_t)i - 1,
                                         .next = i + 1 < size ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i < size; i++)
        look_up(bpe, scratch, &waiting, (int32_t)i);
    while (waiting > 0) {
        uint64_t key = heap_take(scratch->heap, &waiting);
        int32_t place = (int32_t)(uint32_t)key;
        struct bpe_symbol *symbol = &symbols[place];
        if (symbol->rank != key >> 32) /* one of the two was merged otherwise meanwhile */
            continue;
        struct bpe_symbol *gone = &symbols[symbol->next];
        symbol->id = symbol->merged;
        symbol->next = gone->next;
        gone->rank = NO_PAIR;
        if (symbol->next >= 0)
            symbols[symbol->next].previous = place;
        look_up(bpe, scratch, &waiting, place);
        if (symbol->previous >= 0)
            look_up(bpe, scratch, &waiting, symbol->previous);
    }
    for (int32_t i = size > 0 ? 0 : -1; i >= 0; i = symbols[i].next)
        if (token_list_add(tokens, symbols[i].id, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}
