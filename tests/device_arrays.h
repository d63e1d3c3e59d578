/* What the tests of device operations share: the devices under test, arrays in device memory with guards, and the check
   of one value.

   On the CPU all variants of the hot loops that this processor can run take part; KVLAB_TEST_DEVICE=cuda runs the same
   against that device.

   Tolerances: u is the unit roundoff of the output's type (f32 2^-24, f16 2^-11, bf16 2^-8, fp8 2^-4). A sum of n f32
   products may be off by about 2^-24 sqrt(n) times the sum of their magnitudes (rounding errors add like a random walk;
   the kernels' many partial sums make it less). */
#ifndef KVLAB_TESTS_DEVICE_ARRAYS_H
#define KVLAB_TESTS_DEVICE_ARRAYS_H

#include "kernels/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VARIANTS = 4, TYPES = 3, GUARD_BYTES = 256 };
extern const enum dtype all_types[TYPES]; /* of weights; caches have all DTYPE_COUNT */

/* Opens variant number i with that many threads, or NULL: not on this processor. */
struct device *open_variant(size_t i, int threads);
/* Is it the CPU that is tested? */
int testing_cpu(void);
/* Runs a check on every variant with one and two threads, from the same seed. */
void on_every_variant(void (*check)(struct device *device));

/* CHECK(device->ops->something(..., &error)): fails the test with the message. */
#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        struct error error;                                                                                            \
        if ((call) != STATUS_OK)                                                                                       \
            fail_msg("%s: %s", #call, error.message);                                                                  \
    } while (0)

/* ---- seeded random numbers */

void random_seed(uint64_t seed);
int random_int(int low, int high); /* both included */
float random_unit(void);           /* [-1, 1) */

/* ---- arrays in device memory, with a host copy and guards of NaNs (all bits 1) around them */

struct array {
    struct device *device;
    enum dtype dtype;
    size_t count, bytes, total_bytes, skew;
    char *host;   /* guard, skew, values, guard */
    char *memory; /* the same in device memory */
};

struct array array_make(struct device *device, enum dtype dtype, size_t count, size_t skew);
struct array array_random(struct device *device, enum dtype dtype, size_t count, size_t skew, float scale);
struct array array_integers(struct device *device, const int32_t *values, size_t count);
void array_drop(struct array *a);

void *array_memory(const struct array *a); /* device memory */
char *array_host(const struct array *a);   /* the host copy */
double array_at(const struct array *a, size_t i);

void array_push(struct array *a); /* host to device */
/* Device to host; fails if a guard was written. */
void array_pull(struct array *a, const char *what);

double unit_roundoff(enum dtype dtype);
/* `slack`: what the arithmetic before the last rounding may be off by. */
int value_matches(const struct array *a, size_t index, double expected, double slack); /* what check_value() asks */
void check_value(const struct array *a, size_t index, double expected, double slack, const char *what);
/* Bit for bit; a was made with one thread, b with two. */
void check_same(const struct array *a, const struct array *b, const char *what);

void use_workspace(struct device *device, const struct workspace_shape *shape, struct array *workspace);
void drop_workspace(struct device *device, struct array *workspace);

#endif
