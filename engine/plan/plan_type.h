/* Storage types of a plan, beyond those that the forward pass computes in (kernels/dtype.h): what a row of values
   takes, scales included. */
#ifndef KVLAB_ENGINE_PLAN_PLAN_TYPE_H
#define KVLAB_ENGINE_PLAN_PLAN_TYPE_H

#include "kernels/errors.h"

#include <stdbool.h>
#include <stdint.h>

struct plan_type {
    const char *name;
    uint32_t block_values, block_bytes; /* a row is stored in blocks of so many values */
    uint32_t row_scale_bytes;           /* beside each row: a head's K or V of one token */
    bool is_cache, is_weights;          /* what it may be used for */
    const char *what;                   /* for --help and messages */
};

/* Status 2 with the names that exist; `option` names the option in the message. */
enum status plan_type_find(const struct plan_type **type, const char *name, const char *option, bool for_cache,
                           struct error *error);

/* "f32, f16, ..." of the types that caches (or weights) may have. Returns `to`. */
const char *plan_type_names(char *to, uint64_t size, bool for_cache);

/* Bytes of `rows` rows of `width` values. Whole blocks: the caller has checked width with plan_type_divides(). */
uint64_t plan_type_bytes(const struct plan_type *type, uint64_t rows, uint64_t width, bool *overflow);
bool plan_type_divides(const struct plan_type *type, uint64_t width);

#endif
