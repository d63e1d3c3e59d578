#include "engine/tokenizer/token_list.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 64 };

enum status token_list_add(struct token_list *list, int32_t id, struct error *error)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : FIRST_CAPACITY;
        int32_t *ids = realloc(list->ids, capacity * sizeof *ids);
        if (!ids)
            return error_set(error, STATUS_DEVICE, "out of memory for %zu tokens", capacity);
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->count++] = id;
    return STATUS_OK;
}
