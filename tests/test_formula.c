/* formula.h against numbers worked by hand and counts published with the models. */
#include "engine/formula.h"
#include "engine/plan/shape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static struct config published(const char *name)
{
    struct config config;
    struct error error = {0};
    char models[4096], weights[16];
    snprintf(models, sizeof models, "%s/models", config_data_dir());
    if (config_find(&config, models, name, weights, sizeof weights, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    assert_string_equal(config.name, name);
    assert_string_equal(weights, "");
    return config;
}

/* Parameter counts as the model cards and safetensors indexes give them. */
static const struct {
    const char *name;
    uint64_t parameters;
} PUBLISHED[] = {
    {"qwen2.5-0.5b", 494032768},     {"qwen2.5-1.5b", 1543714304},   {"qwen2.5-3b", 3085938688},
    {"qwen2.5-7b", 7615616512},      {"qwen2.5-14b", 14770033664},   {"qwen2.5-32b", 32763876352},
    {"qwen2.5-72b", 72706203648},    {"llama-2-7b", 6738415616},     {"llama-2-13b", 13015864320},
    {"llama-2-70b", 68976648192},    {"llama-3-8b", 8030261248},     {"llama-3-70b", 70553706496},
    {"llama-3.1-8b", 8030261248},    {"llama-3.2-1b", 1235814400},   {"llama-3.2-3b", 3212749824},
    {"mistral-7b-v0.1", 7241732096}, {"tinyllama-1.1b", 1100048384}, {"smollm2-135m", 134515008},
    {"smollm2-360m", 361821120},     {"smollm2-1.7b", 1711376384},
};
enum { PUBLISHED_COUNT = sizeof PUBLISHED / sizeof PUBLISHED[0] };

static void parameters_match_published_counts(void **state)
{
    (void)state;
    for (int i = 0; i < PUBLISHED_COUNT; i++) {
        struct config config = published(PUBLISHED[i].name);
        if (formula_parameters(&config) != PUBLISHED[i].parameters)
            fail_msg("%s: %llu parameters, published %llu", config.name,
                     (unsigned long long)formula_parameters(&config), (unsigned long long)PUBLISHED[i].parameters);
        assert_int_equal(formula_weight_bytes(&config, DTYPE_BF16), 2 * PUBLISHED[i].parameters);
    }
}

/* Two readers, one number: every model that the forward pass runs is also a shape (tests/test_shape.c holds the
   published counts of all that ship). */
static void shapes_agree(void **state)
{
    (void)state;
    char models[4096], path[8192], **names;
    size_t count, read = 0;
    struct error error = {0};
    const struct plan_type *type;
    bool overflow = false;
    snprintf(models, sizeof models, "%s/models", config_data_dir());
    assert_int_equal(config_names(models, &names, &count, &error), STATUS_OK);
    assert_int_equal(plan_type_find(&type, "bf16", "kv-dtype", true, &error), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        struct config config;
        struct shape shape;
        snprintf(path, sizeof path, "%s/%s.json", models, names[i]);
        if (config_read(&config, path, &error) != STATUS_OK)
            continue;
        read++;
        if (shape_read(&shape, path, &error) != STATUS_OK)
            fail_msg("%s", error.message);
        assert_int_equal(shape.total, formula_parameters(&config));
        assert_int_equal(shape_token_bytes(&shape, type, type, &overflow),
                         formula_kv_bytes_per_token(&config, DTYPE_BF16));
        assert_int_equal(shape_token_bytes_mha(&shape, type, type, &overflow),
                         formula_kv_bytes_per_token_mha(&config, DTYPE_BF16));
        for (int64_t layer = 0; layer < shape.layer_count; layer++)
            assert_int_equal(shape.layers[layer].window, config_window(&config, layer));
        shape_free(&shape);
    }
    assert_true(read >= PUBLISHED_COUNT);
    config_names_free(names, count);
}

/* KiB per token in bf16, with the KV heads of the model and with one per query head. */
static void kv_bytes_per_token_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t kib, kib_mha;
    } rows[] = {
        {"qwen2.5-0.5b", 12, 84},   /* 2 * 24 * 2 * 64 * 2 = 12,288; 14 heads: 86,016 */
        {"qwen2.5-1.5b", 28, 168},  /* 2 * 28 * 2 * 128 * 2 = 28,672; 12 heads */
        {"qwen2.5-7b", 56, 392},    /* 2 * 28 * 4 * 128 * 2 = 57,344; 28 heads */
        {"llama-3-8b", 128, 512},   /* 2 * 32 * 8 * 128 * 2 = 131,072; 32 heads */
        {"llama-2-7b", 512, 512},   /* 2 * 32 * 32 * 128 * 2 = 524,288: no sharing */
        {"llama-3-70b", 320, 2560}, /* 2 * 80 * 8 * 128 * 2 = 327,680; 64 heads */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct config config = published(rows[i].name);
        assert_int_equal(formula_kv_bytes_per_token(&config, DTYPE_BF16), rows[i].kib * 1024);
        assert_int_equal(formula_kv_bytes_per_token(&config, DTYPE_F32), rows[i].kib * 2048);
        assert_int_equal(formula_kv_bytes_per_token_mha(&config, DTYPE_BF16), rows[i].kib_mha * 1024);
    }
    struct config config = published("qwen2.5-1.5b");
    assert_int_equal(formula_kv_bytes_per_token(&config, DTYPE_FP8_E4M3), 14336); /* 2 * 28 * 2 * 128 */
    assert_int_equal(formula_kv_bytes_per_token(&config, DTYPE_INT8), 14784);     /* 2 * 28 * 2 * (128 + 4) */
    assert_int_equal(formula_kv_bytes_per_token_mha(&config, DTYPE_INT8), 88704); /* 12 heads */
    assert_int_equal(formula_kv_bytes(&config, DTYPE_INT8, 1000), 14784000);
    assert_int_equal(formula_kv_bytes(&config, DTYPE_BF16, 512), 14680064);
    assert_int_equal(formula_kv_bytes(&config, DTYPE_BF16, 2048), 58720256);
    assert_int_equal(formula_kv_bytes(&config, DTYPE_BF16, 8192), 234881024);
}

static void logits_bytes_by_hand(void **state)
{
    (void)state;
    struct config config = published("qwen2.5-1.5b");
    assert_int_equal(formula_logits_bytes(&config, DTYPE_BF16, 2048), 622329856); /* 2,048 * 151,936 * 2 */
    assert_int_equal(formula_logits_bytes(&config, DTYPE_BF16, 8192), 2489319424);
    assert_int_equal(formula_logits_bytes(&config, DTYPE_F32, 1), 607744);
}

/* Tied: everything is read once, the table as the head. Untied: all but the table, and the rows looked up. */
static void weight_bytes_read(void **state)
{
    (void)state;
    struct config tied = published("qwen2.5-0.5b"), untied = published("llama-3-8b");
    assert_int_equal(formula_weight_read_bytes(&tied, DTYPE_BF16, 7), 2 * 494032768);
    uint64_t table = 128256 * 4096;
    assert_int_equal(formula_weight_read_bytes(&untied, DTYPE_BF16, 3), 2 * (8030261248 - table + 3 * 4096));
}

static void positions_by_hand(void **state)
{
    (void)state;
    static const struct {
        int64_t new_tokens;
        uint64_t cached, uncached, ratio;
    } rows[] = {{64, 191, 10208, 53}, {128, 255, 24512, 96}, {256, 383, 65408, 171}, {512, 639, 196352, 307}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t cached = formula_positions_cached(128, rows[i].new_tokens);
        uint64_t uncached = formula_positions_uncached(128, rows[i].new_tokens);
        assert_int_equal(cached, rows[i].cached);
        assert_int_equal(uncached, rows[i].uncached);
        assert_int_equal((2 * uncached + cached) / (2 * cached), rows[i].ratio); /* rounded */
    }
    assert_int_equal(formula_positions_cached(128, 0), 0);
    assert_int_equal(formula_positions_uncached(128, 0), 0);
    assert_int_equal(formula_positions_cached(1, 1), 1);
    assert_int_equal(formula_positions_uncached(1, 1), 1);
}

/* The largest shape that config_read() lets through (test_config reads it from a file), in long double for comparison:
   64 bits of mantissa on x86, 113 on aarch64. */
static void no_overflow_at_the_bounds(void **state)
{
    (void)state;
    struct config config = {.vocab_size = 1 << 24,
                            .hidden_size = 1 << 20,
                            .intermediate_size = 1 << 24,
                            .num_hidden_layers = 1 << 12,
                            .num_attention_heads = 1 << 8,
                            .num_key_value_heads = 1 << 8,
                            .head_dim = 1 << 8,
                            .qkv_bias = true,
                            .o_bias = true,
                            .mlp_bias = true};
    long double tokens = (long double)FORMULA_MAX_TOKENS;
    assert_true((long double)formula_kv_bytes(&config, DTYPE_F32, FORMULA_MAX_TOKENS) == 2.0L * (1 << 28) * 4 * tokens);
    assert_true((long double)formula_logits_bytes(&config, DTYPE_F32, FORMULA_MAX_TOKENS) ==
                (long double)config.vocab_size * 4 * tokens);
    long double h = 1 << 20, i = 1 << 24, q = 1 << 16;
    long double layer = 4 * h * q + 3 * h * i + 2 * h + 3 * q + h + 2 * i + h;
    long double parameters = 4096 * layer + 2 * i * h + h;
    assert_true((long double)formula_parameters(&config) == parameters);
    assert_true((long double)formula_weight_bytes(&config, DTYPE_F32) == 4 * parameters);
    assert_true((long double)formula_weight_read_bytes(&config, DTYPE_F32, FORMULA_MAX_TOKENS) ==
                4 * (parameters - i * h + tokens * h));
    assert_true((long double)formula_positions_uncached(FORMULA_MAX_TOKENS, FORMULA_MAX_TOKENS) ==
                tokens * tokens + tokens * (tokens - 1) / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_match_published_counts),
        cmocka_unit_test(shapes_agree),
        cmocka_unit_test(kv_bytes_per_token_by_hand),
        cmocka_unit_test(logits_bytes_by_hand),
        cmocka_unit_test(weight_bytes_read),
        cmocka_unit_test(positions_by_hand),
        cmocka_unit_test(no_overflow_at_the_bounds),
    };
    return cmocka_run_group_tests_name("formula", tests, NULL, NULL);
}
