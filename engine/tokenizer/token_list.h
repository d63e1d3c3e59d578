/* Token ids that grow in number. Zeroed to begin with; the owner frees `ids`. */
#ifndef KVLAB_ENGINE_TOKENIZER_TOKEN_LIST_H
#define KVLAB_ENGINE_TOKENIZER_TOKEN_LIST_H

#include "kernels/errors.h"

#include <stddef.h>
#include <stdint.h>

struct token_list {
    int32_t *ids;
    size_t count, capacity;
};

enum status token_list_add(struct token_list *list, int32_t id, struct error *error);

#endif
