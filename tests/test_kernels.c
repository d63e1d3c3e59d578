/* Every operation of the device but attention against a plain reference in double precision, written here; opening,
   memory and events. See tests/device_arrays.h for devices and tolerances. */
#include "tests/device_arrays.h"

/* ---- linear */

struct linear_case {
    enum dtype dtype, out_dtype;
    int rows, in, out, bias;
    size_t skew;
};

/* y = x weight^T, and bias where the case has one. */
static struct array multiply(struct device *device, const struct linear_case *c, const struct array *x,
                             const struct array *w, const struct array *bias)
{
    const struct workspace_shape shape = {c->dtype, c->dtype, c->rows, 1, 1, 1, 2, c->in, c->out, c->out};
    struct array workspace, y = array_make(device, c->out_dtype, (size_t)c->rows * (size_t)c->out, 0);
    use_workspace(device, &shape, &workspace);
    const struct linear_args args = {.x = array_memory(x),
                                     .weight = array_memory(w),
                                     .bias = c->bias ? array_memory(bias) : NULL,
                                     .y = array_memory(&y),
                                     .dtype = c->dtype,
                                     .out_dtype = c->out_dtype,
                                     .rows = c->rows,
                                     .in = c->in,
                                     .out = c->out};
    CHECK(device->ops->linear(device, &args, &error));
    array_pull(&y, "linear");
    drop_workspace(device, &workspace);
    return y;
}

/* The same of random arrays, which the caller drops. */
static struct array run_linear(struct device *device, const struct linear_case *c, struct array *x, struct array *w,
                               struct array *bias)
{
    *x = array_random(device, c->dtype, (size_t)c->rows * (size_t)c->in, 0, 1.0f);
    *w = array_random(device, c->dtype, (size_t)c->out * (size_t)c->in, c->skew, 1.0f);
    *bias = array_random(device, c->dtype, (size_t)c->out, c->skew, 1.0f);
    return multiply(device, c, x, w, bias);
}

static void check_linear_case(struct device *device, const struct linear_case *c)
{
    struct array x, w, bias, y = run_linear(device, c, &x, &w, &bias);
    char what[96];
    snprintf(what, sizeof what, "linear %d x %d -> %d%s skew %zu weights %s", c->rows, c->in, c->out,
             c->bias ? " +bias" : "", c->skew, dtype_name(c->dtype));
    for (int r = 0; r < c->rows; r++) {
        for (int o = 0; o < c->out; o++) {
            double sum = c->bias ? array_at(&bias, (size_t)o) : 0.0, magnitude = fabs(sum);
            for (int i = 0; i < c->in; i++) {
                double term = array_at(&x, (size_t)(r * c->in + i)) * array_at(&w, (size_t)(o * c->in + i));
                sum += term;
                magnitude += fabs(term);
            }
            check_value(&y, (size_t)(r * c->out + o), sum, 0x1p-24 * sqrt(c->in + 16.0) * magnitude, what);
        }
    }
    array_drop(&x);
    array_drop(&w);
    array_drop(&bias);
    array_drop(&y);
}

static void check_linear(struct device *device)
{
    static const int rows[] = {1, 2, 3, 4, 5, 7, 16, 17, 33};
    for (size_t t = 0; t < 3; t++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            for (int i = 0; i < 4; i++) {
                struct linear_case c = {
                    .dtype = all_types[t], .out_dtype = i % 2 ? DTYPE_F32 : all_types[t], .rows = rows[r]};
                c.in = i == 0 ? random_int(1, 40) : random_int(1, 300);
                c.out = i == 0 ? random_int(1, 9) : random_int(1, 300);
                c.bias = random_int(0, 1);
                c.skew = i == 3 ? (size_t)random_int(1, 63) : 0;
                check_linear_case(device, &c);
            }
        }
    }
}

static void test_linear(void **state)
{
    (void)state;
    on_every_variant(check_linear);
}

/* More outputs than one block of converted weights, and several blocks per thread; aligned rows, for each count of them
   that kernels make a difference of. */
static void check_linear_wide(struct device *device)
{
    static const int rows[] = {1, 3, 5, 9, 16, 18};
    for (size_t t = 0; t < 3; t++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            struct linear_case odd = {all_types[t], DTYPE_F32, rows[r], 130, 777, 1, 2};
            struct linear_case even = {all_types[t], DTYPE_F32, rows[r], 2 * 8 * 67, 77, 1, 0};
            if (r % 5 == 0)
                check_linear_case(device, &odd);
            check_linear_case(device, &even);
        }
    }
}

static void test_linear_wide(void **state)
{
    (void)state;
    on_every_variant(check_linear_wide);
}

/* x and weight in a pattern that does not depend on the number of rows; no bias. */
static struct array linear_of_pattern(struct device *device, const struct linear_case *c)
{
    struct array x = array_make(device, c->dtype, (size_t)c->rows * (size_t)c->in, 0);
    struct array w = array_make(device, c->dtype, (size_t)c->out * (size_t)c->in, 0);
    for (int k = 0; k < c->rows * c->in; k++)
        dtype_store(c->dtype, array_host(&x), (size_t)k, (float)(k % c->in % 17 - 8) / 7.0f);
    for (int k = 0; k < c->out * c->in; k++)
        dtype_store(c->dtype, array_host(&w), (size_t)k, (float)(k % 23 - 11) / 9.0f);
    array_push(&x);
    array_push(&w);
    struct array y = multiply(device, c, &x, &w, NULL);
    array_drop(&x);
    array_drop(&w);
    return y;
}

/* A row's result is the same alone and among others, bit for bit, up to the rows that the own kernels serve: with and
   without a tail, in one chunk of a row and in several. */
static void check_linear_rows(struct device *device)
{
    static const int rows[] = {2, 3, 4, 5, 8, 13, 16}, ins[] = {203, 1024, 2085};
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < sizeof ins / sizeof ins[0]; i++) {
            struct linear_case c = {all_types[t], DTYPE_F32, 1, ins[i], 61, 0, 0};
            struct array alone = linear_of_pattern(device, &c);
            for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
                c.rows = rows[r];
                struct array y = linear_of_pattern(device, &c);
                for (size_t k = 0; k < y.count; k++)
                    if (array_at(&y, k) != array_at(&alone, k % 61))
                        fail_msg("linear %s, in %d: row %zu, output %zu: %.9g among %d rows, %.9g alone (%s)",
                                 dtype_name(all_types[t]), c.in, k / 61, k % 61, array_at(&y, k), c.rows,
                                 array_at(&alone, k % 61), device->info.features);
                array_drop(&y);
            }
            array_drop(&alone);
        }
}

static void test_linear_rows(void **state)
{
    (void)state;
    if (!testing_cpu())
        skip();
    on_every_variant(check_linear_rows);
}

/* ---- embedding, norm, rope, swiglu, argmax */

static void check_embed(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        int32_t ids[9];
        int vocab = 50, hidden = random_int(1, 200);
        for (size_t i = 0; i < 9; i++)
            ids[i] = random_int(0, vocab - 1);
        struct array table = array_random(device, all_types[t], (size_t)(vocab * hidden), t * 3, 1.0f);
        struct array tokens = array_integers(device, ids, 9),
                     out = array_make(device, DTYPE_F32, 9 * (size_t)hidden, 0);
        CHECK(device->ops->embed(device, array_memory(&out), array_memory(&table), all_types[t], array_memory(&tokens),
                                 9, hidden, &error));
        array_pull(&out, "embed");
        for (size_t i = 0; i < out.count; i++) {
            size_t h = (size_t)hidden;
            double expected = array_at(&table, (size_t)ids[i / h] * h + i % h);
            if (array_at(&out, i) != expected)
                fail_msg("embed %s [%zu]: %.9g instead of %.9g", dtype_name(all_types[t]), i, array_at(&out, i),
                         expected);
        }
        array_drop(&table);
        array_drop(&tokens);
        array_drop(&out);
    }
}

static void test_embed(void **state)
{
    (void)state;
    on_every_variant(check_embed);
}

static void check_norm_case(struct device *device, enum dtype dtype, int rows, int hidden, int with_delta, int gather)
{
    int32_t which[40];
    size_t all = (size_t)rows + 3, h = (size_t)hidden;
    for (int i = 0; i < rows; i++)
        which[i] = gather ? (int32_t)(all - 1) - i : i;
    struct array residual = array_random(device, DTYPE_F32, all * h, 0, 3.0f), before = residual;
    struct array delta = array_random(device, DTYPE_F32, all * h, 0, 1.0f);
    struct array weight = array_random(device, dtype, h, 1, 1.0f), index = array_integers(device, which, (size_t)rows);
    struct array out = array_make(device, dtype, (size_t)rows * h, 0);
    before.host = malloc(residual.total_bytes);
    assert_non_null(before.host);
    memcpy(before.host, residual.host, residual.total_bytes);
    const struct rms_norm_args args = {.residual = array_memory(&residual),
                                       .delta = with_delta ? array_memory(&delta) : NULL,
                                       .gather = gather ? array_memory(&index) : NULL,
                                       .weight = array_memory(&weight),
                                       .out = array_memory(&out),
                                       .dtype = dtype,
                                       .epsilon = 1e-6f,
                                       .rows = rows,
                                       .hidden = hidden};
    CHECK(device->ops->rms_norm(device, &args, &error));
    array_pull(&out, "rms_norm");
    array_pull(&residual, "rms_norm residual");
    for (size_t r = 0; r < (size_t)rows; r++) {
        double squares = 0.0;
        size_t from = (size_t)which[r] * h;
        for (size_t i = 0; i < h; i++) {
            double sum = array_at(&before, from + i) + (with_delta ? array_at(&delta, from + i) : 0.0);
            check_value(&residual, from + i, sum, 0.0, "rms_norm residual");
            squares += sum * sum;
        }
        for (size_t i = 0; i < h; i++) {
            double sum = array_at(&before, from + i) + (with_delta ? array_at(&delta, from + i) : 0.0);
            double expected = sum / sqrt(squares / hidden + 1e-6) * array_at(&weight, i);
            check_value(&out, r * h + i, expected, 0x1p-24 * (sqrt(hidden) + 8) * (fabs(expected) + 1e-3), "rms_norm");
        }
    }
    free(before.host);
    array_drop(&residual);
    array_drop(&delta);
    array_drop(&weight);
    array_drop(&index);
    array_drop(&out);
}

static void check_norm(struct device *device)
{
    static const int rows[] = {1, 16, 33};
    for (size_t t = 0; t < 3; t++)
        for (size_t r = 0; r < 3; r++)
            for (int i = 0; i < 4; i++)
                check_norm_case(device, all_types[t], rows[r], random_int(1, 400), i % 2, i / 2);
}

static void test_norm(void **state)
{
    (void)state;
    on_every_variant(check_norm);
}

static void check_swiglu(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        for (int rows = 1; rows <= 33; rows += 16) {
            int width = random_int(1, 500);
            size_t count = (size_t)(rows * width);
            struct array gate = array_random(device, DTYPE_F32, count, 0, 20.0f);
            struct array up = array_random(device, DTYPE_F32, count, 0, 2.0f),
                         out = array_make(device, all_types[t], count, 0);
            dtype_store(DTYPE_F32, array_host(&gate), 0, -500.0f);
            dtype_store(DTYPE_F32, array_host(&gate), count - 1, 500.0f);
            array_push(&gate);
            CHECK(device->ops->swiglu(device, array_memory(&out), array_memory(&gate), array_memory(&up), all_types[t],
                                      rows, width, &error));
            array_pull(&out, "swiglu");
            for (size_t i = 0; i < count; i++) {
                double g = array_at(&gate, i), expected = g / (1.0 + exp(-g)) * array_at(&up, i);
                /* g log2(e) is rounded before the power is taken: 2^-24 of it, relative */
                check_value(&out, i, expected, 0x1p-24 * (8 + 2 * fabs(g)) * fabs(expected) + 1e-30, "swiglu");
            }
            array_drop(&gate);
            array_drop(&up);
            array_drop(&out);
        }
    }
}

static void test_swiglu(void **state)
{
    (void)state;
    on_every_variant(check_swiglu);
}

static void check_argmax(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        for (int i = 0; i < 12; i++) {
            int rows = i % 4 + 1, vocab = i == 0 ? 1 : random_int(1, 3000);
            size_t v = (size_t)vocab;
            struct array logits = array_random(device, all_types[t], (size_t)rows * v, 0, 8.0f);
            struct array index = array_make(device, DTYPE_F32, (size_t)rows, 0);
            size_t first = (size_t)random_int(0, vocab - 1), second = (size_t)random_int(0, vocab - 1);
            dtype_store(all_types[t], array_host(&logits), first, 9.0f); /* a tie in row 0: the first one counts */
            dtype_store(all_types[t], array_host(&logits), second, 9.0f);
            array_push(&logits);
            CHECK(device->ops->argmax(device, array_memory(&index), array_memory(&logits), all_types[t], rows, vocab,
                                      &error));
            array_pull(&index, "argmax");
            for (size_t r = 0; r < (size_t)rows; r++) {
                size_t best = 0;
                for (size_t k = 1; k < v; k++)
                    best = array_at(&logits, r * v + k) > array_at(&logits, r * v + best) ? k : best;
                int32_t got;
                memcpy(&got, array_host(&index) + r * 4, 4);
                if (got != (int32_t)best)
                    fail_msg("argmax %s row %zu of %d x %d: %d instead of %zu (%s)", dtype_name(all_types[t]), r, rows,
                             vocab, got, best, device->info.features);
            }
            array_drop(&logits);
            array_drop(&index);
        }
    }
}

static void test_argmax(void **state)
{
    (void)state;
    on_every_variant(check_argmax);
}

/* ---- one thread against two, bit for bit, up to the rows where the matrix library takes over */

static void test_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < VARIANTS; i++) {
        struct device *device[2] = {open_variant(i, 1), open_variant(i, 2)};
        if (!device[0])
            continue;
        for (size_t t = 0; t < TYPES; t++) {
            for (int rows = 1; rows <= 16; rows += 15) {
                struct array x, w, bias, y[2];
                for (int d = 0; d < 2; d++) {
                    struct linear_case c = {all_types[t], all_types[t], rows, 517, 391, 1, 3};
                    random_seed(3);
                    y[d] = run_linear(device[d], &c, &x, &w, &bias);
                    array_drop(&x);
                    array_drop(&w);
                    array_drop(&bias);
                }
                check_same(&y[0], &y[1], "linear");
                array_drop(&y[0]);
                array_drop(&y[1]);
            }
        }
        device[0]->ops->close(device[0]);
        device[1]->ops->close(device[1]);
    }
}

/* ---- filling, reading, copying, memory */

static void test_fill_random(void **state)
{
    (void)state;
    enum { COUNT = 600001 };
    for (size_t t = 0; t < 3; t++) {
        struct array reference = {0};
        for (size_t i = 0; i < 2 * VARIANTS; i++) {
            struct device *device = open_variant(i / 2, (int)(i % 2) + 1);
            if (!device)
                continue;
            struct array a = array_make(device, all_types[t], COUNT, 0), b = array_make(device, all_types[t], COUNT, 0);
            CHECK(device->ops->fill_random(device, array_memory(&a), all_types[t], COUNT, 42, 0.25f, &error));
            CHECK(device->ops->fill_random(device, array_memory(&b), all_types[t], COUNT, 43, 0.25f, &error));
            array_pull(&a, "fill_random");
            array_pull(&b, "fill_random");
            double sum = 0.0, squares = 0.0, crossed = 0.0, lagged = 0.0, most = 0.0;
            for (size_t k = 0; k < COUNT; k++) {
                double value = array_at(&a, k);
                sum += value;
                squares += value * value;
                crossed += value * array_at(&b, k);
                lagged += k ? value * array_at(&a, k - 1) : 0.0;
                most = fmax(most, fabs(value));
            }
            /* Uniform on [-s, s]: variance s^2 / 3; means of n independent ones within 5 standard deviations. */
            double variance = 0.25 * 0.25 / 3, bound = 5 / sqrt(COUNT);
            if (fabs(sum / COUNT) > bound * sqrt(variance) || fabs(squares / COUNT / variance - 1) > bound ||
                fabs(crossed / COUNT) > bound * variance || fabs(lagged / COUNT) > bound * variance || most > 0.25 ||
                most < 0.249)
                fail_msg(
                    "fill_random %s: mean %g, variance %g, with another seed %g, with its neighbour %g, largest %g",
                    dtype_name(all_types[t]), sum / COUNT, squares / COUNT, crossed / COUNT, lagged / COUNT, most);
            if (!reference.host) {
                reference = a;
                reference.host = malloc(a.total_bytes);
                assert_non_null(reference.host);
                memcpy(reference.host, a.host, a.total_bytes);
            } else if (memcmp(reference.host, a.host, a.total_bytes) != 0) {
                fail_msg("fill_random %s differs with variant or threads: %s", dtype_name(all_types[t]),
                         device->info.features);
            }
            array_drop(&a);
            array_drop(&b);
            device->ops->close(device);
        }
        free(reference.host);
    }
}

static void test_fill_random_refuses_zeros(void **state)
{
    (void)state;
    struct device *device = open_variant(0, 1);
    struct error error;
    float values[4];
    assert_int_equal(device->ops->fill_random(device, values, DTYPE_F32, 4, 1, 0.0f, &error), STATUS_INPUT);
    device->ops->close(device);
}

static void check_fill_and_read(struct device *device)
{
    for (size_t t = 0; t < 3; t++) {
        struct array a = array_make(device, all_types[t], 70001, 0);
        CHECK(device->ops->fill_value(device, array_memory(&a), all_types[t], a.count, -1.5f, &error));
        array_pull(&a, "fill_value");
        for (size_t i = 0; i < a.count; i++)
            assert_true(array_at(&a, i) == -1.5);
        array_drop(&a);
    }
    static const size_t sizes[] = {4096, 12288, 1 << 20, 36864};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t expected = 0, got = 0;
        struct array a = array_random(device, DTYPE_F32, sizes[i] / 4, 0, 1.0f);
        for (size_t k = 0; k < sizes[i]; k += 8) {
            uint64_t word;
            memcpy(&word, array_host(&a) + k, sizeof word);
            expected += word;
        }
        CHECK(device->ops->read_bytes(device, array_memory(&a), sizes[i], &got, &error));
        CHECK(device->ops->synchronize(device, &error));
        assert_int_equal(got, expected);
        array_drop(&a);
    }
}

static void test_fill_and_read(void **state)
{
    (void)state;
    on_every_variant(check_fill_and_read);
}

static void test_memory(void **state)
{
    (void)state;
    struct device *device = open_variant(0, 2);
    struct device_memory before, after;
    struct error refusal;
    void *memory;
    const size_t bytes = (size_t)24 << 20;
    CHECK(device->ops->memory(device, &before, &error));
    assert_true(before.free_bytes > 0 && before.free_bytes <= device->info.total_bytes);
    CHECK(device->ops->alloc(device, bytes, &memory, &error));
    assert_int_equal((uintptr_t)memory % 256, 0);
    CHECK(device->ops->fill_value(device, memory, DTYPE_F32, bytes / 4, 1.0f, &error));
    CHECK(device->ops->memory(device, &after, &error));
    if (strcmp(device->info.kind, "cpu") == 0) {
        assert_true(after.process_known);
        int64_t growth = (int64_t)(after.process_bytes - before.process_bytes) - (int64_t)bytes;
        if (growth < 0 || growth > 4 << 20) /* a thread's stack and heap on top */
            fail_msg("touching %zu bytes made the process grow by %lld more", bytes, (long long)growth);
    }
    device->ops->release(device, memory, bytes);
    assert_int_equal(device->ops->alloc(device, (size_t)1 << 50, &memory, &refusal), STATUS_DEVICE);
    assert_non_null(strstr(refusal.message, "1125899906842624"));
    assert_int_equal(device->ops->alloc(device, SIZE_MAX - 5, &memory, &refusal), STATUS_DEVICE);
    assert_null(memory);
    device->ops->close(device);
}

static void test_events(void **state)
{
    (void)state;
    struct device *device = open_variant(0, 1);
    struct device_event *start, *end;
    double ms = -1.0;
    CHECK(device->ops->event_create(device, &start, &error));
    CHECK(device->ops->event_create(device, &end, &error));
    CHECK(device->ops->event_record(device, start, &error));
    CHECK(device->ops->event_record(device, end, &error));
    CHECK(device->ops->event_elapsed_ms(device, start, end, &ms, &error));
    assert_true(ms >= 0.0);
    device->ops->event_destroy(device, start);
    device->ops->event_destroy(device, end);
    device->ops->close(device);
}

static void test_open(void **state)
{
    (void)state;
    static const char *const unknown[] = {
        "", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cuda:99999999999"};
    struct device *device;
    struct error error;
    unsetenv("KVLAB_CPU");
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_int_equal(device_open(unknown[i], 0, &device, &error), STATUS_INPUT);
        assert_null(device);
    }
    assert_int_equal(device_open(NULL, 0, &device, &error), STATUS_OK);
    assert_non_null(strstr("cpu cuda", device->info.kind));
    device->ops->close(device);
    setenv("KVLAB_CPU", "sse9", 1);
    assert_int_equal(device_open("cpu", 0, &device, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "sse9"));
    unsetenv("KVLAB_CPU");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_fill_random),
        cmocka_unit_test(test_fill_random_refuses_zeros),
        cmocka_unit_test(test_fill_and_read),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_wide),
        cmocka_unit_test(test_linear_rows),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
