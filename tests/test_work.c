/* work.h against numbers worked by hand. */
#include "engine/work.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/* 2 layers of 32 * (2 * 32 + 2 * 16) + 3 * 32 * 64 = 9,216 matrix parameters; K and V of a position in one layer
   2 * 2 * 8 * 4 = 128 bytes; weights 83,072 bytes. */
static struct config small(void)
{
    return (struct config){.family = FAMILY_QWEN2,
                           .vocab_size = 64,
                           .hidden_size = 32,
                           .intermediate_size = 64,
                           .num_hidden_layers = 2,
                           .num_attention_heads = 4,
                           .num_key_value_heads = 2,
                           .head_dim = 8,
                           .max_position_embeddings = 4096,
                           .tie_word_embeddings = true,
                           .qkv_bias = true,
                           .torch_dtype = DTYPE_F32};
}

static void decode(void **state)
{
    (void)state;
    struct config config = small();
    struct pass_shape one = {.sequences = 1, .start = 9, .count = 1, .logits = 1};
    assert_int_equal(work_matrix_parameters(&config), 18432);
    /* 2 * 18,432 + 2 * 64 * 32 + 4 * 32 * 10 positions * 2 layers */
    assert_int_equal(work_flops(&config, &one), 36864 + 4096 + 2560);
    assert_int_equal(work_kv_read_bytes(&config, DTYPE_F32, &one), 10 * 2 * 128);
    assert_int_equal(work_kv_written_bytes(&config, DTYPE_F32, &one), 2 * 128);
    assert_int_equal(work_kv_read_bytes(&config, DTYPE_INT8, &one), 10 * 2 * 48); /* 2 * 2 heads * (8 + 4) a layer */
    assert_int_equal(work_kv_written_bytes(&config, DTYPE_FP8_E4M3, &one), 2 * 32);
    assert_int_equal(work_bytes(&config, DTYPE_F32, DTYPE_F32, &one), 83072 + 2560 + 256);

    struct pass_shape three = {.sequences = 3, .start = 9, .count = 1, .logits = 1}; /* weights are read once for all */
    assert_int_equal(work_flops(&config, &three), 3 * 43520);
    assert_int_equal(work_bytes(&config, DTYPE_F32, DTYPE_F32, &three), 83072 + 3 * (2560 + 256));
    assert_int_equal(work_bytes(&config, DTYPE_F32, DTYPE_BF16, &three), 83072 + 3 * (1280 + 128));
}

static void prefill(void **state)
{
    (void)state;
    struct config config = small();
    struct pass_shape pass = {.sequences = 1, .start = 0, .count = 4, .logits = 1};
    /* rows see 1 + 2 + 3 + 4 = 10 positions in each of 2 layers */
    assert_int_equal(work_flops(&config, &pass), 4 * 36864 + 4096 + 4 * 32 * 20);
    assert_int_equal(work_bytes(&config, DTYPE_F32, DTYPE_F32, &pass), 83072 + 4 * 256 + 4 * 256);
    pass.logits = 4;
    assert_int_equal(work_flops(&config, &pass), 4 * 36864 + 4 * 4096 + 4 * 32 * 20);
    pass = (struct pass_shape){.sequences = 2, .start = 6, .count = 3, .logits = 0}; /* a chunk: 7 + 8 + 9 = 24 */
    assert_int_equal(work_flops(&config, &pass), 6 * 36864 + 4 * 32 * 24 * 2 * 2);
    assert_int_equal(work_kv_read_bytes(&config, DTYPE_F32, &pass), 2 * 9 * 256);
}

static void windows(void **state)
{
    (void)state;
    struct config config = small();
    config.sliding_window = 3;
    config.max_window_layers = 1; /* layer 1 only */
    struct pass_shape pass = {.sequences = 1, .start = 0, .count = 4, .logits = 1};
    /* 10 positions in layer 0, 1 + 2 + 3 + 3 = 9 in layer 1 */
    assert_int_equal(work_flops(&config, &pass), 4 * 36864 + 4096 + 4 * 32 * 19);
    assert_int_equal(work_kv_read_bytes(&config, DTYPE_F32, &pass), 8 * 128);
    pass = (struct pass_shape){.sequences = 1, .start = 9, .count = 1, .logits = 1};
    assert_int_equal(work_flops(&config, &pass), 36864 + 4096 + 4 * 32 * 13);
    assert_int_equal(work_kv_read_bytes(&config, DTYPE_F32, &pass), 13 * 128);
    pass = (struct pass_shape){.sequences = 1, .start = 9, .count = 2, .logits = 1}; /* layer 1: positions 7 to 10 */
    assert_int_equal(work_kv_read_bytes(&config, DTYPE_F32, &pass), (11 + 4) * 128);
    assert_int_equal(work_flops(&config, &pass), 2 * 36864 + 4096 + 4 * 32 * (10 + 11 + 3 + 3));
}

/* Qwen2.5-0.5B: a layer has 896 * (2 * 896 + 2 * 128) + 3 * 896 * 4,864 = 14,909,440 matrix parameters, the head
   151,936 * 896 = 136,134,656; the first token alone sees one position in 24 layers, 4 * 896 each. */
static void published_model(void **state)
{
    (void)state;
    struct config config;
    struct error error = {0};
    char models[4096], weights[16];
    snprintf(models, sizeof models, "%s/models", config_data_dir());
    if (config_find(&config, models, "qwen2.5-0.5b", weights, sizeof weights, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    struct pass_shape pass = {.sequences = 1, .start = 0, .count = 1, .logits = 1};
    assert_int_equal(work_matrix_parameters(&config), 24 * 14909440);
    assert_int_equal(work_flops(&config, &pass), 2 * (357826560 + 136134656) + 24 * 4 * 896);
    assert_int_equal(work_bytes(&config, DTYPE_BF16, DTYPE_BF16, &pass), 988065536 + 12288 + 12288);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode),
        cmocka_unit_test(prefill),
        cmocka_unit_test(windows),
        cmocka_unit_test(published_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
