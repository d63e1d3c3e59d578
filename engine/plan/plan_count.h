/* Whole numbers of bytes and parameters that know when they no longer fit 64 bits. `overflow` is sticky: a whole
   formula is computed and looked at once. */
#ifndef KVLAB_ENGINE_PLAN_PLAN_COUNT_H
#define KVLAB_ENGINE_PLAN_PLAN_COUNT_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

static inline uint64_t count_add(bool *overflow, uint64_t a, uint64_t b)
{
    uint64_t sum;
    *overflow |= __builtin_add_overflow(a, b, &sum);
    return sum;
}

static inline uint64_t count_mul(bool *overflow, uint64_t a, uint64_t b)
{
    uint64_t product;
    *overflow |= __builtin_mul_overflow(a, b, &product);
    return product;
}

/* Units of `size` that hold `amount`; size > 0. */
static inline uint64_t count_units(uint64_t amount, uint64_t size)
{
    assert(size > 0);
    return amount / size + (amount % size != 0);
}

/* `amount` rounded up to a multiple of `size`; size > 0. */
static inline uint64_t count_pad(bool *overflow, uint64_t amount, uint64_t size)
{
    return count_mul(overflow, count_units(amount, size), size);
}

#endif
