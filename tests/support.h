/* What the engine's tests share: a device, random small models, and comparing logits. */
#ifndef KVLAB_TESTS_SUPPORT_H
#define KVLAB_TESTS_SUPPORT_H

#include "engine/forward.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Fails the test with the error's message; needs a `struct error error` in scope. */
#define check_ok(call)                                                                                                 \
    do {                                                                                                               \
        if ((call) != STATUS_OK)                                                                                       \
            fail_msg("%s: %s", #call, error.message);                                                                  \
    } while (0)

/* Opens the device that $KVLAB_TEST_DEVICE names, "cpu" unless set. */
struct device *test_device_open(int threads);

/* A number in [low, high] from a seeded stream. */
int test_random(uint64_t *state, int low, int high);

/* A small random model shape: any head_dim and group, with or without biases, windows and a tied head. */
struct config test_random_config(uint64_t *state);

/* A model with synthetic weights on a ledger of its own. */
struct test_model {
    struct device *device;
    struct ledger *ledger;
    struct config config;
    struct model model;
};
void test_model_open(struct test_model *model, const struct config *config, enum dtype dtype, int threads,
                     const struct model_limits *limits);
void test_model_close(struct test_model *model); /* also checks that nothing is left in the ledger */

int32_t *test_tokens(const struct config *config, int count, uint64_t seed); /* the caller frees */

/* Logits' rows [first, first + rows) as host f32; the caller frees. */
float *test_download_logits(const struct test_model *model, const struct logits *logits, int64_t first, int64_t rows);

/* Fails with the position and the error unless ||a[r] - b[r]|| <= tolerance * ||b[r]|| for every row r. */
void test_assert_close(const float *a, const float *b, int64_t rows, int64_t width, double tolerance, const char *what);

#endif
