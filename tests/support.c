#include "tests/support.h"

#include "engine/random.h"

#include <math.h>
#include <stdlib.h>

struct device *test_device_open(int threads)
{
    struct error error;
    struct device *device;
    const char *name = getenv("KVLAB_TEST_DEVICE");
    check_ok(device_open(name != NULL ? name : "cpu", threads, &device, &error));
    return device;
}

int test_random(uint64_t *state, int low, int high)
{
    return low + (int)(random_next(state) % (uint64_t)(high - low + 1));
}

struct config test_random_config(uint64_t *state)
{
    static const int head_dims[] = {8, 16, 32, 40, 64};
    int kv_heads = test_random(state, 1, 3), group = test_random(state, 1, 4);
    int head_dim = head_dims[test_random(state, 0, 4)];
    struct config config = {
        .name = "random",
        .family = FAMILY_QWEN2,
        .vocab_size = test_random(state, 50, 300),
        .hidden_size = 2 * test_random(state, 10, 40),
        .intermediate_size = test_random(state, 20, 100),
        .num_hidden_layers = test_random(state, 1, 4),
        .num_attention_heads = kv_heads * group,
        .num_key_value_heads = kv_heads,
        .head_dim = head_dim,
        .max_position_embeddings = 4096,
        .rms_norm_eps = 1e-6,
        .rope_theta = 10000.0,
        .tie_word_embeddings = test_random(state, 0, 1),
        .qkv_bias = test_random(state, 0, 1),
        .torch_dtype = DTYPE_F32,
    };
    if (test_random(state, 0, 1)) {
        config.sliding_window = test_random(state, 1, 30);
        config.max_window_layers = test_random(state, 0, (int)config.num_hidden_layers);
    }
    return config;
}

void test_model_open(struct test_model *model, const struct config *config, enum dtype dtype, int threads,
                     const struct model_limits *limits)
{
    struct error error;
    struct weights weights = {0};
    *model = (struct test_model){.device = test_device_open(threads), .config = *config};
    check_ok(ledger_open(&model->ledger, model->device, 0, &error));
    check_ok(weights_synthetic(&weights, model->ledger, &model->config, dtype, 1, &error));
    check_ok(model_init(&model->model, model->ledger, &model->config, &weights, limits, dtype, &error));
}

void test_model_close(struct test_model *model)
{
    model_free(&model->model);
    assert_int_equal(ledger_counts(model->ledger).live_total, 0);
    assert_int_equal(ledger_counts(model->ledger).reserved, 0);
    ledger_close(model->ledger);
    model->device->ops->close(model->device);
}

int32_t *test_tokens(const struct config *config, int count, uint64_t seed)
{
    int32_t *tokens = malloc((size_t)count * sizeof *tokens);
    assert_non_null(tokens);
    for (int i = 0; i < count; i++)
        tokens[i] = test_random(&seed, 0, (int)config->vocab_size - 1);
    return tokens;
}

float *test_download_logits(const struct test_model *model, const struct logits *logits, int64_t first, int64_t rows)
{
    struct error error;
    size_t count = (size_t)(rows * logits->vocab), size = dtype_size(logits->dtype);
    void *raw = malloc(count * size);
    float *values = malloc(count * sizeof *values);
    assert_true(raw != NULL && values != NULL && first + rows <= logits->rows);
    const char *from = (const char *)logits->data + (size_t)(first * logits->vocab) * size;
    check_ok(model->device->ops->download(model->device, raw, from, count * size, &error));
    for (size_t i = 0; i < count; i++)
        values[i] = dtype_load(logits->dtype, raw, i);
    free(raw);
    return values;
}

void test_assert_close(const float *a, const float *b, int64_t rows, int64_t width, double tolerance, const char *what)
{
    for (int64_t row = 0; row < rows; row++) {
        double difference = 0.0, norm = 0.0;
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            norm += (double)b[i] * b[i];
        }
        if (!(sqrt(difference) <= tolerance * sqrt(norm)) || !(norm > 0.0))
            fail_msg("%s: row %d: relative error %g, at most %g (norm %g)", what, (int)row, sqrt(difference / norm),
                     tolerance, sqrt(norm));
    }
}
