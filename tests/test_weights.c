/* weights.h: synthetic weights, weights from files in place, converted and uploaded, and every file that does not fit
   its config. */
#include "engine/formula.h"
#include "engine/weights_tensors.h"
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], file[96];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kvlab-weights-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(file, sizeof file, "%s/model.safetensors", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(folder);
}

/* All biases, an untied head, head_dim other than hidden / heads, and sizes that do not pack to 64 bytes. */
static const struct config SMALL = {.family = FAMILY_LLAMA,
                                    .vocab_size = 37,
                                    .hidden_size = 12,
                                    .intermediate_size = 20,
                                    .num_hidden_layers = 2,
                                    .num_attention_heads = 4,
                                    .num_key_value_heads = 2,
                                    .head_dim = 6,
                                    .max_position_embeddings = 64,
                                    .rms_norm_eps = 1e-6,
                                    .rope_theta = 10000,
                                    .qkv_bias = true,
                                    .o_bias = true,
                                    .mlp_bias = true};

static struct ledger *open_ledger(struct device *device, uint64_t budget)
{
    struct ledger *ledger;
    struct error error;
    check_ok(ledger_open(&ledger, device, budget, &error));
    return ledger;
}

/* A tensor's values as f32 in host memory; the caller frees. */
static float *download(struct device *device, const void *memory, enum dtype dtype, size_t count)
{
    struct error error;
    void *raw = malloc(count * dtype_size(dtype));
    float *values = malloc(count * sizeof *values);
    assert_true(raw && values && memory);
    check_ok(device->ops->download(device, raw, memory, count * dtype_size(dtype), &error));
    for (size_t i = 0; i < count; i++)
        values[i] = dtype_load(dtype, raw, i);
    free(raw);
    return values;
}

/* ---- synthetic */

/* Mean square and largest magnitude of a uniform [-s, s) are s^2 / 3 and below s. 6 sigma of the mean square over n
   values: its variance is (s^4 / 5 - s^4 / 9) / n. */
static void assert_uniform(struct device *device, const void *memory, enum dtype dtype, size_t count, double s)
{
    float *values = download(device, memory, dtype, count);
    double sum = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)values[i] * (double)values[i];
        largest = fmax(largest, fabs((double)values[i]));
    }
    double error = fabs(sum / (double)count - s * s / 3), limit = 6 * s * s * sqrt((1.0 / 5 - 1.0 / 9) / (double)count);
    if (largest > s * 1.005 || error > limit) /* bf16 rounds up by at most 2^-8 */
        fail_msg("mean square off by %g (limit %g), largest %g of %g", error, limit, largest, s);
    free(values);
}

static void synthetic_weights_are_scaled_noise(void **state)
{
    (void)state;
    struct device *device = test_device_open(1);
    struct ledger *ledger = open_ledger(device, 0);
    struct error error;
    struct config config = SMALL;
    for (int d = DTYPE_F32; d <= DTYPE_BF16; d++) {
        enum dtype dtype = (enum dtype)d;
        struct weights weights;
        check_ok(weights_synthetic(&weights, ledger, &config, dtype, 7, &error));
        assert_string_equal(weights.source, "synthetic");
        assert_int_equal(weights.dtype, dtype);
        assert_ptr_not_equal(weights.head, weights.embed);
        const struct layer_weights *layer = &weights.layers[1];
        assert_uniform(device, weights.embed, dtype, 37 * 12, sqrt(3.0 / 12));
        assert_uniform(device, weights.head, dtype, 37 * 12, sqrt(3.0 / 12));
        assert_uniform(device, layer->q, dtype, 24 * 12, sqrt(3.0 / 12));
        assert_uniform(device, layer->k, dtype, 12 * 12, sqrt(3.0 / 12));
        assert_uniform(device, layer->v, dtype, 12 * 12, sqrt(3.0 / 12));
        assert_uniform(device, layer->o, dtype, 12 * 24, sqrt(3.0 / 24));
        assert_uniform(device, layer->gate, dtype, 20 * 12, sqrt(3.0 / 12));
        assert_uniform(device, layer->up, dtype, 20 * 12, sqrt(3.0 / 12));
        assert_uniform(device, layer->down, dtype, 12 * 20, sqrt(3.0 / 20));
        const void *const biases[] = {layer->q_bias,    layer->k_bias,  layer->v_bias,   layer->o_bias,
                                      layer->gate_bias, layer->up_bias, layer->down_bias};
        for (int b = 0; b < 7; b++)
            assert_uniform(device, biases[b], dtype, 12, 0.1);
        const void *const norms[] = {layer->input_norm, layer->post_norm, weights.final_norm};
        for (int n = 0; n < 3; n++) {
            float *values = download(device, norms[n], dtype, 12);
            for (int i = 0; i < 12; i++)
                assert_true(values[i] == 1);
            free(values);
        }
        weights_free(&weights, ledger);
        assert_null(weights.layers);
        weights_free(&weights, ledger);
    }
    assert_int_equal(ledger_counts(ledger).live_total, 0);
    ledger_close(ledger);
    device->ops->close(device);
}

/* Every tensor's bytes and nothing else, tied or not, packed (multiples of 64 bytes) or not. */
static void bytes_are_the_formulas(void **state)
{
    (void)state;
    struct device *device = test_device_open(1);
    struct ledger *ledger = open_ledger(device, 0);
    struct error error;
    for (int variant = 0; variant < 16; variant++) {
        struct config config = SMALL;
        config.tie_word_embeddings = variant & 1;
        config.qkv_bias = variant & 2;
        config.o_bias = config.mlp_bias = variant & 4;
        if (variant & 8) {
            config.hidden_size = 64;
            config.intermediate_size = 128;
            config.head_dim = 32;
        }
        struct weights weights;
        check_ok(weights_synthetic(&weights, ledger, &config, DTYPE_BF16, 1, &error));
        struct ledger_counts counts = ledger_counts(ledger);
        assert_int_equal(weights.bytes, formula_weight_bytes(&config, DTYPE_BF16));
        assert_int_equal(counts.live[LEDGER_WEIGHTS], weights.bytes);
        assert_int_equal(counts.live_total, weights.bytes);
        assert_int_equal(weights.head == weights.embed, config.tie_word_embeddings);
        assert_int_equal(weights.layers[0].q_bias != NULL, config.qkv_bias);
        assert_int_equal(weights.layers[1].o_bias != NULL, config.o_bias);
        assert_int_equal(weights.layers[1].gate_bias != NULL, config.mlp_bias);
        weights_free(&weights, ledger);
        assert_int_equal(ledger_counts(ledger).reserved, 0);
    }
    ledger_close(ledger);
    device->ops->close(device);
}

static void the_seed_makes_the_weights(void **state)
{
    (void)state;
    struct device *device = test_device_open(1);
    struct ledger *ledger = open_ledger(device, 0);
    struct error error;
    struct weights weights[3];
    float *q[4];
    for (int i = 0; i < 3; i++)
        check_ok(weights_synthetic(&weights[i], ledger, &SMALL, DTYPE_F32, i == 2 ? 2 : 1, &error));
    for (int i = 0; i < 3; i++)
        q[i] = download(device, weights[i].layers[0].q, DTYPE_F32, 288);
    q[3] = download(device, weights[0].layers[1].q, DTYPE_F32, 288);
    assert_memory_equal(q[0], q[1], 288 * sizeof(float));
    assert_memory_not_equal(q[0], q[2], 288 * sizeof(float)); /* another seed */
    assert_memory_not_equal(q[0], q[3], 288 * sizeof(float)); /* another layer */
    for (int i = 0; i < 4; i++)
        free(q[i]);
    for (int i = 0; i < 3; i++)
        weights_free(&weights[i], ledger);
    ledger_close(ledger);
    device->ops->close(device);
}

static void types_of_caches_are_refused(void **state)
{
    (void)state;
    struct device *device = test_device_open(1);
    struct ledger *ledger = open_ledger(device, 0);
    struct error error;
    struct weights weights;
    assert_int_equal(weights_synthetic(&weights, ledger, &SMALL, DTYPE_INT8, 1, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "int8 is a type of KV caches only"));
    assert_int_equal(weights_unfilled(&weights, ledger, &SMALL, DTYPE_FP8_E4M3, &error), STATUS_INPUT);
    assert_int_equal(weights_load(&weights, ledger, &SMALL, DTYPE_FP8_E4M3, "nowhere", &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "fp8 is a type of KV caches only"));
    ledger_close(ledger);
    device->ops->close(device);
}

static void a_budget_too_small_leaves_nothing_behind(void **state)
{
    (void)state;
    struct device *device = test_device_open(1);
    struct config config = SMALL;
    uint64_t needed = formula_weight_bytes(&config, DTYPE_F32);
    struct error error;
    struct weights weights;
    for (uint64_t budget = 1; budget < needed; budget += needed / 50) {
        struct ledger *ledger = open_ledger(device, budget);
        assert_int_equal(weights_synthetic(&weights, ledger, &config, DTYPE_F32, 1, &error), STATUS_DEVICE);
        assert_non_null(strstr(error.message, "weights"));
        char lacking[32]; /* the whole plan's, not only the next tensor's */
        snprintf(lacking, sizeof lacking, "%llu", (unsigned long long)(needed - budget));
        if (!strstr(error.message, lacking))
            fail_msg("'%s' must say that %s bytes are lacking", error.message, lacking);
        assert_int_equal(ledger_counts(ledger).live_total, 0);
        ledger_close(ledger);
    }
    struct ledger *ledger = open_ledger(device, needed);
    check_ok(weights_synthetic(&weights, ledger, &config, DTYPE_F32, 1, &error));
    weights_free(&weights, ledger);
    ledger_close(ledger);
    device->ops->close(device);
}

/* ---- files */

/* A file of a model, with one tensor changed. */
struct damage {
    const char *name; /* the tensor changed, NULL: none */
    enum { OMIT, SHAPE, RANK, I64, HUGE_VALUE, KEEP } how;
    int padding; /* bytes of header added: data alignment */
};

/* The value of a tensor's i-th element: exact in bf16 and f16. */
static float element(size_t tensor, size_t i)
{
    return (float)((int)((tensor * 31 + i * 7) % 255) - 127) / 64;
}

static void write_model(const struct config *config, enum dtype stored, struct damage damage)
{
    static const char *const type_names[] = {[DTYPE_F32] = "F32", [DTYPE_F16] = "F16", [DTYPE_BF16] = "BF16"};
    struct weight_list list;
    struct weights shell = {0};
    struct error error;
    check_ok(weight_list_init(&list, &shell, config, &error));
    size_t capacity = 65536, used = 8, data = 0;
    char *header = calloc(1, capacity), *values = calloc(1, 1 << 20);
    assert_true(header && values);
    used += (size_t)sprintf(header + used, "{\"__metadata__\": {\"format\": \"pt\"}");
    for (size_t t = 0; t < list.count; t++) {
        const struct weight_tensor *tensor = &list.tensors[t];
        bool damaged = damage.name && strcmp(damage.name, tensor->name) == 0;
        if (damaged && damage.how == OMIT)
            continue;
        size_t size = damaged && damage.how == I64 ? 8 : dtype_size(stored), count = weight_count(tensor);
        long long rows = tensor->rows, columns = tensor->columns ? tensor->columns : 1;
        char shape[64];
        if (damaged && damage.how == SHAPE)
            snprintf(shape, sizeof shape, "[%lld, %lld]", columns, rows);
        else if ((tensor->columns == 0) != (damaged && damage.how == RANK))
            snprintf(shape, sizeof shape, "[%lld]", rows * columns);
        else
            snprintf(shape, sizeof shape, "[%lld, %lld]", rows, columns);
        used +=
            (size_t)sprintf(header + used, ", \"%s\": {\"dtype\": \"%s\", \"shape\": %s, \"data_offsets\": [%zu, %zu]}",
                            tensor->name, size == 8 ? "I64" : type_names[stored], shape, data, data + count * size);
        for (size_t i = 0; size < 8 && i < count; i++)
            dtype_store(stored, values + data, i, damaged && damage.how == HUGE_VALUE ? 1e6f : element(t, i));
        data += count * size;
        assert_true(used < capacity - 1024 && data < 1 << 20);
    }
    header[used++] = '}';
    while (used % 8 != 0)
        header[used++] = ' ';
    for (int i = 0; i < damage.padding; i++)
        header[used++] = ' ';
    for (int i = 0; i < 8; i++)
        header[i] = (char)((used - 8) >> 8 * i);
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(header, 1, used, out), used);
    assert_int_equal(fwrite(values, 1, data, out), data);
    assert_int_equal(fclose(out), 0);
    free(header);
    free(values);
    free(shell.layers);
    free(shell.storage->memory);
    free(shell.storage);
    weight_list_free(&list);
}

/* Loaded tensors hold what write_model() wrote; the list's order is that of a second list over the same weights. */
static void assert_loaded(struct device *device, const struct weights *weights, const struct config *config)
{
    struct weights other = {0};
    struct weight_list list;
    struct error error;
    check_ok(weight_list_init(&list, &other, config, &error));
    for (size_t t = 0; t < list.count; t++) {
        /* The same field of the loaded weights. */
        const char *slot = (const char *)list.tensors[t].slot, *layers = (const char *)other.layers;
        size_t bytes = (size_t)config->num_hidden_layers * sizeof *other.layers;
        bool in_layer = slot >= layers && slot < layers + bytes;
        const char *base = in_layer ? (const char *)weights->layers : (const char *)weights;
        const void *memory = *(const void *const *)(base + (slot - (in_layer ? layers : (const char *)&other)));
        size_t count = weight_count(&list.tensors[t]);
        float *values = download(device, memory, weights->dtype, count);
        for (size_t i = 0; i < count; i++)
            if (values[i] != element(t, i))
                fail_msg("%s[%zu] is %g, written as %g", list.tensors[t].name, i, (double)values[i],
                         (double)element(t, i));
        free(values);
    }
    free(other.layers);
    free(other.storage->memory);
    free(other.storage);
    weight_list_free(&list);
}

/* Hugging Face's names, and that the shapes are those that the field's comments say. */
static void tensors_have_published_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t rows, columns;
    } expected[] = {
        {"model.embed_tokens.weight", 37, 12},
        {"model.layers.0.input_layernorm.weight", 12, 0},
        {"model.layers.0.self_attn.q_proj.weight", 24, 12},
        {"model.layers.0.self_attn.k_proj.weight", 12, 12},
        {"model.layers.0.self_attn.v_proj.weight", 12, 12},
        {"model.layers.0.self_attn.q_proj.bias", 24, 0},
        {"model.layers.0.self_attn.k_proj.bias", 12, 0},
        {"model.layers.0.self_attn.v_proj.bias", 12, 0},
        {"model.layers.0.self_attn.o_proj.weight", 12, 24},
        {"model.layers.0.self_attn.o_proj.bias", 12, 0},
        {"model.layers.0.post_attention_layernorm.weight", 12, 0},
        {"model.layers.0.mlp.gate_proj.weight", 20, 12},
        {"model.layers.0.mlp.up_proj.weight", 20, 12},
        {"model.layers.0.mlp.down_proj.weight", 12, 20},
        {"model.layers.0.mlp.gate_proj.bias", 20, 0},
        {"model.layers.0.mlp.up_proj.bias", 20, 0},
        {"model.layers.0.mlp.down_proj.bias", 12, 0},
    };
    enum { FIRST_LAYER = 17, ALL = 1 + 2 * 16 + 2 };
    struct weight_list list;
    struct weights shell = {0};
    struct error error;
    check_ok(weight_list_init(&list, &shell, &SMALL, &error));
    assert_int_equal(list.count, ALL);
    for (int t = 0; t < FIRST_LAYER; t++) {
        assert_string_equal(list.tensors[t].name, expected[t].name);
        assert_int_equal(list.tensors[t].rows, expected[t].rows);
        assert_int_equal(list.tensors[t].columns, expected[t].columns);
    }
    assert_string_equal(list.tensors[ALL - 3].name, "model.layers.1.mlp.down_proj.bias");
    assert_string_equal(list.tensors[ALL - 2].name, "model.norm.weight");
    assert_string_equal(list.tensors[ALL - 1].name, "lm_head.weight");
    free(shell.layers);
    free(shell.storage->memory);
    free(shell.storage);
    weight_list_free(&list);
}

/* Every stored type into every working type, aligned and not, on the CPU and on a device that is not the CPU. In place
   means: nothing reserved, and the ledger still counts every byte. */
static void files_load_in_place_or_converted(void **state)
{
    (void)state;
    struct device *device = test_device_open(1);
    struct ledger *ledger = open_ledger(device, 0);
    struct error error;
    bool cpu = strcmp(device->info.kind, "cpu") == 0;
    for (int variant = 0; variant < 3 * 3 * 2 * 2; variant++) {
        enum dtype stored = (enum dtype)(variant % 3), dtype = (enum dtype)(variant / 3 % 3);
        bool aligned = variant / 9 % 2 == 0, elsewhere = variant / 18;
        struct config config = SMALL;
        config.tie_word_embeddings = variant % 2;
        write_model(&config, stored, (struct damage){.padding = aligned ? 0 : 1});
        struct weights weights;
        char kind[sizeof device->info.kind];
        memcpy(kind, device->info.kind, sizeof kind);
        if (elsewhere)
            snprintf(device->info.kind, sizeof device->info.kind, "other");
        check_ok(weights_load(&weights, ledger, &config, dtype, folder, &error));
        memcpy(device->info.kind, kind, sizeof kind);
        struct ledger_counts counts = ledger_counts(ledger);
        assert_int_equal(weights.bytes, formula_weight_bytes(&config, dtype));
        assert_int_equal(counts.live[LEDGER_WEIGHTS], weights.bytes);
        assert_int_equal(counts.reserved == 0, cpu && stored == dtype && aligned && !elsewhere);
        assert_string_equal(weights.source, strrchr(folder, '/') + 1);
        assert_int_equal(weights.head == weights.embed, config.tie_word_embeddings);
        assert_loaded(device, &weights, &config);
        weights_free(&weights, ledger);
        assert_int_equal(ledger_counts(ledger).live_total, 0);
    }
    ledger_close(ledger);
    device->ops->close(device);
}

static void files_that_do_not_fit_the_config_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct damage damage;
        const char *word, *other;
    } rows[] = {
        {{"model.embed_tokens.weight", OMIT, 0}, "model.embed_tokens.weight", "missing"},
        {{"model.layers.1.self_attn.k_proj.bias", OMIT, 0}, "model.layers.1.self_attn.k_proj.bias", "missing"},
        {{"model.norm.weight", OMIT, 0}, "model.norm.weight", "missing"},
        {{"lm_head.weight", OMIT, 0}, "lm_head.weight", "tie_word_embeddings"},
        {{"model.layers.0.self_attn.q_proj.weight", SHAPE, 0}, "[12, 24]", "[24, 12]"},
        {{"model.layers.0.mlp.down_proj.weight", SHAPE, 0}, "[20, 12]", "[12, 20]"},
        {{"model.layers.1.input_layernorm.weight", RANK, 0}, "[12, 1]", "[12]"},
        {{"lm_head.weight", RANK, 0}, "[444]", "[37, 12]"},
        {{"model.layers.0.mlp.up_proj.weight", I64, 0}, "I64", "model.layers.0.mlp.up_proj.weight"},
        {{"model.layers.0.mlp.up_proj.bias", HUGE_VALUE, 0}, "too large for f16", "model.layers.0.mlp.up_proj.bias"},
    };
    struct device *device = test_device_open(1);
    struct ledger *ledger = open_ledger(device, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct weights weights;
        struct error error = {0};
        write_model(&SMALL, DTYPE_F32, rows[i].damage);
        assert_int_equal(weights_load(&weights, ledger, &SMALL, DTYPE_F16, folder, &error), STATUS_INPUT);
        if (!strstr(error.message, rows[i].word) || !strstr(error.message, rows[i].other) ||
            !strstr(error.message, folder))
            fail_msg("message '%s' must have '%s' and '%s'", error.message, rows[i].word, rows[i].other);
        assert_int_equal(ledger_counts(ledger).live_total, 0);
        weights_free(&weights, ledger);
    }
    ledger_close(ledger);
    device->ops->close(device);
}

/* A tied config with a head in the file (some publish it twice): the table is the head, and counts once. */
static void a_head_in_a_tied_file_is_ignored(void **state)
{
    (void)state;
    struct device *device = test_device_open(1);
    struct ledger *ledger = open_ledger(device, 0);
    struct config tied = SMALL;
    struct weights weights;
    struct error error;
    tied.tie_word_embeddings = true;
    write_model(&SMALL, DTYPE_BF16, (struct damage){0});
    check_ok(weights_load(&weights, ledger, &tied, DTYPE_BF16, folder, &error));
    assert_ptr_equal(weights.head, weights.embed);
    assert_int_equal(weights.bytes, formula_weight_bytes(&tied, DTYPE_BF16));
    assert_int_equal(ledger_counts(ledger).live_total, weights.bytes);
    weights_free(&weights, ledger);
    ledger_close(ledger);
    device->ops->close(device);
}

static void the_stored_type_is_found(void **state)
{
    (void)state;
    struct error error;
    for (int d = DTYPE_F32; d <= DTYPE_BF16; d++) {
        enum dtype found;
        write_model(&SMALL, (enum dtype)d, (struct damage){0});
        check_ok(weights_stored_dtype(folder, &found, &error));
        assert_int_equal(found, d);
    }
    enum dtype found;
    assert_int_equal(weights_stored_dtype("/no/such/folder", &found, &error), STATUS_INPUT);
    unlink(file);
    assert_int_equal(weights_stored_dtype(folder, &found, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synthetic_weights_are_scaled_noise),
        cmocka_unit_test(bytes_are_the_formulas),
        cmocka_unit_test(the_seed_makes_the_weights),
        cmocka_unit_test(types_of_caches_are_refused),
        cmocka_unit_test(a_budget_too_small_leaves_nothing_behind),
        cmocka_unit_test(tensors_have_published_names),
        cmocka_unit_test(files_load_in_place_or_converted),
        cmocka_unit_test(files_that_do_not_fit_the_config_are_refused),
        cmocka_unit_test(a_head_in_a_tied_file_is_ignored),
        cmocka_unit_test(the_stored_type_is_found),
    };
    return cmocka_run_group_tests_name("weights", tests, setup, teardown);
}
