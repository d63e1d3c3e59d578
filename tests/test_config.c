/* config.json: what is read, and that every bad one is refused with the path and the key. */
#include "engine/formula.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], file[80];

static const char *const LLAMA =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 1000, \"hidden_size\": 96,"
    " \"intermediate_size\": 256, \"num_hidden_layers\": 3, \"num_attention_heads\": 12, \"num_key_value_heads\": 4,"
    " \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\","
    " \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}";

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kvlab-config-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(file, sizeof file, "%s/config.json", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(folder);
}

static void write_text(const char *path, const char *text)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, strlen(text), out), strlen(text));
    assert_int_equal(fclose(out), 0);
}

/* Writes LLAMA with the members of `changes` (a JSON object) put over it; a member "-key": null takes key away. */
static void write_changed(const char *changes)
{
    json_error_t failure;
    json_t *config = json_loads(LLAMA, 0, &failure), *over = json_loads(changes, 0, &failure);
    if (!config || !over)
        fail_msg("test's own JSON: %s in %s", failure.text, changes);
    const char *key;
    json_t *value;
    json_object_foreach(over, key, value)
    {
        if (key[0] == '-')
            json_object_del(config, key + 1);
        else
            json_object_set(config, key, value);
    }
    char *text = json_dumps(config, 0);
    write_text(file, text);
    free(text);
    json_decref(config);
    json_decref(over);
}

static struct config read_changed(const char *changes)
{
    struct config config;
    struct error error = {0};
    write_changed(changes);
    if (config_read(&config, file, &error) != STATUS_OK)
        fail_msg("%s: %s", changes, error.message);
    return config;
}

/* The file as it is written must be refused in one line that names the path, `key` and `value`. */
static void expect_refusal(const char *case_name, const char *key, const char *value)
{
    struct config config;
    struct error error = {0};
    enum status status = config_read(&config, file, &error);
    if (status != STATUS_INPUT || error.status != STATUS_INPUT)
        fail_msg("%s: status %d, message '%s'", case_name, status, error.message);
    if (!strstr(error.message, file) || !strstr(error.message, key) || !strstr(error.message, value) ||
        strchr(error.message, '\n'))
        fail_msg("%s: message '%s' must name '%s' and '%s' in one line", case_name, error.message, key, value);
}

struct refusal {
    const char *changes, *key, *value;
};

static void expect_refusals(const struct refusal *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        write_changed(rows[i].changes);
        expect_refusal(rows[i].changes, rows[i].key, rows[i].value);
    }
}
#define EXPECT_REFUSALS(rows) expect_refusals((rows), sizeof(rows) / sizeof((rows)[0]))

static void reads_every_field(void **state)
{
    (void)state;
    struct config config = read_changed("{\"attention_bias\": true, \"mlp_bias\": true, \"torch_dtype\": \"float16\"}");
    assert_int_equal(config.family, FAMILY_LLAMA);
    assert_int_equal(config.vocab_size, 1000);
    assert_int_equal(config.hidden_size, 96);
    assert_int_equal(config.intermediate_size, 256);
    assert_int_equal(config.num_hidden_layers, 3);
    assert_int_equal(config.num_attention_heads, 12);
    assert_int_equal(config.num_key_value_heads, 4);
    assert_int_equal(config.head_dim, 8);
    assert_int_equal(config.max_position_embeddings, 512);
    assert_true(config.rms_norm_eps == 1e-5 && config.rope_theta == 10000);
    assert_true(config.qkv_bias && config.o_bias && config.mlp_bias);
    assert_false(config.tie_word_embeddings || config.has_rope_llama3);
    assert_int_equal(config.sliding_window, 0);
    assert_int_equal(config.torch_dtype, DTYPE_F16);
    assert_string_equal(config.name, strrchr(folder, '/') + 1);
}

/* As transformers' configuration classes fill in what a file leaves out. */
static void defaults_are_hugging_faces(void **state)
{
    (void)state;
    struct config config = read_changed("{\"-num_key_value_heads\": 0, \"-rope_theta\": 0, \"-tie_word_embeddings\": 0,"
                                        " \"-rms_norm_eps\": 0, \"-torch_dtype\": 0, \"-hidden_act\": 0,"
                                        " \"-architectures\": 0, \"rope_scaling\": null, \"head_dim\": null,"
                                        " \"sliding_window\": null, \"an unknown key\": [1, 2]}");
    assert_int_equal(config.num_key_value_heads, 12);
    assert_true(config.rope_theta == 10000 && config.rms_norm_eps == 1e-6);
    assert_false(config.tie_word_embeddings || config.qkv_bias || config.o_bias || config.mlp_bias);
    assert_int_equal(config.torch_dtype, DTYPE_BF16);
    config =
        read_changed("{\"-model_type\": 0, \"head_dim\": 32, \"dtype\": \"float32\", \"num_key_value_heads\": null}");
    assert_int_equal(config.head_dim, 32); /* not hidden / heads */
    assert_int_equal(config.num_key_value_heads, 12);
    assert_int_equal(config.torch_dtype, DTYPE_F32);
    config = read_changed("{\"head_dim\": 32, \"hidden_size\": 100}"); /* need not divide when head_dim is given */
    assert_int_equal(config.hidden_size, 100);
}

static void a_bad_count_is_refused_by_key(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "vocab_size",          "hidden_size",         "intermediate_size",       "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "head_dim"};
    static const char *const bad[] = {"0", "-1", "2.5", "16.0", "\"16\"", "true", "[16]", "{}", "9223372036854775807"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        char changes[256];
        for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
            snprintf(changes, sizeof changes, "{\"%s\": %s}", keys[k], bad[b]);
            write_changed(changes);
            expect_refusal(changes, keys[k], "whole number from 1 to");
        }
        if (strcmp(keys[k], "head_dim") == 0 || strcmp(keys[k], "num_key_value_heads") == 0)
            continue; /* these two have a default */
        snprintf(changes, sizeof changes, "{\"-%s\": 0}", keys[k]);
        write_changed(changes);
        expect_refusal(changes, keys[k], "missing");
        snprintf(changes, sizeof changes, "{\"%s\": null}", keys[k]);
        write_changed(changes);
        expect_refusal(changes, keys[k], "missing");
    }
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"{\"num_key_value_heads\": 5}", "num_attention_heads", "not divisible by num_key_value_heads 5"},
        {"{\"num_key_value_heads\": 24}", "num_attention_heads", "not divisible by num_key_value_heads 24"},
        {"{\"hidden_size\": 100}", "hidden_size", "not divisible by num_attention_heads 12"},
        {"{\"head_dim\": 7}", "head_dim", "odd"},
        {"{\"architectures\": \"LlamaForCausalLM\"}", "architectures", "must be a list"},
        {"{\"architectures\": {}}", "architectures", "must be a list"},
        {"{\"hidden_size\": 36}", "head_dim", "odd"},
        {"{\"head_dim\": 1024, \"num_hidden_layers\": 8, \"num_attention_heads\": 65536, \"num_key_value_heads\": 1}",
         "head_dim", "268435456"},
        {"{\"rms_norm_eps\": 0}", "rms_norm_eps", "0"},
        {"{\"rms_norm_eps\": -1e-6}", "rms_norm_eps", "-1e-6"},
        {"{\"rms_norm_eps\": \"1e-6\"}", "rms_norm_eps", "1e-6"},
        {"{\"rope_theta\": 0}", "rope_theta", "0"},
        {"{\"rope_theta\": -10000.0}", "rope_theta", "-10000"},
        {"{\"rope_theta\": 1e300}", "rope_theta", "1e"},
        {"{\"rope_theta\": [1]}", "rope_theta", "[1]"},
        {"{\"tie_word_embeddings\": 1}", "tie_word_embeddings", "true or false"},
        {"{\"attention_bias\": \"yes\"}", "attention_bias", "yes"},
        {"{\"mlp_bias\": 0.5}", "mlp_bias", "0.5"},
        {"{\"torch_dtype\": \"float8_e4m3fn\"}", "torch_dtype", "float8_e4m3fn"},
        {"{\"dtype\": 16}", "dtype", "16"},
    };
    EXPECT_REFUSALS(rows);
}

static void what_is_not_understood_is_refused(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"{\"-model_type\": 0, \"-architectures\": 0}", "model_type", "missing"},
        {"{\"model_type\": \"deepseek_v3\"}", "model_type", "deepseek_v3"},
        {"{\"model_type\": \"qwen3\"}", "model_type", "qwen3"},
        {"{\"model_type\": \"gemma2\"}", "model_type", "gemma2"},
        {"{\"model_type\": \"mamba\"}", "model_type", "mamba"},
        {"{\"model_type\": \"mixtral\"}", "model_type", "mixtral"},
        {"{\"model_type\": [\"llama\"]}", "model_type", "llama"},
        {"{\"model_type\": \"evil\\nname\"}", "model_type", "evil"},
        {"{\"model_type\": \"qwen2\"}", "architectures", "contradicts"},
        {"{\"architectures\": [\"Qwen3ForCausalLM\"]}", "architectures", "Qwen3ForCausalLM"},
        {"{\"architectures\": [\"LlamaForCausalLMEagle3\"]}", "architectures", "Eagle3"},
        {"{\"kv_lora_rank\": 512}", "kv_lora_rank", "512"},
        {"{\"num_local_experts\": 8}", "num_local_experts", "8"},
        {"{\"n_routed_experts\": 256}", "n_routed_experts", "256"},
        {"{\"quantization_config\": {\"bits\": 4}}", "quantization_config", "bits"},
        {"{\"attn_logit_softcapping\": 50.0}", "attn_logit_softcapping", "50"},
        {"{\"hidden_act\": \"gelu\"}", "hidden_act", "gelu"},
        {"{\"hidden_act\": 3}", "hidden_act", "3"},
        {"{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor", "0.5"},
        {"{\"rope_interleaved\": true}", "rope_interleaved", "true"},
        {"{\"sliding_window\": 4096}", "sliding_window", "Llama"},
        {"{\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"]}", "layer_types",
         "layer 2"},
        {"{\"layer_types\": [\"full_attention\", \"linear_attention\", \"full_attention\"]}", "layer_types",
         "linear_attention"},
        {"{\"layer_types\": [\"full_attention\"]}", "layer_types", "3 layers"},
        {"{\"layer_types\": \"full_attention\"}", "layer_types", "list"},
        {"{\"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\"]}", "layer_types",
         "contradicts sliding_window"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}}", "rope_scaling.type", "linear"},
        {"{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}", "rope_scaling.type", "dynamic"},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}}", "rope_scaling.rope_type", "yarn"},
        {"{\"rope_scaling\": {\"rope_type\": 3}}", "rope_scaling.rope_type", "3"},
        {"{\"rope_scaling\": {\"factor\": 4.0}}", "rope_scaling", "rope_type"},
        {"{\"rope_scaling\": [8.0]}", "rope_scaling", "object"},
        {"{\"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [1]}}", "rope_scaling.mrope_section",
         "not understood"},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}", "rope_parameters.full_attention",
         "not understood"},
    };
    EXPECT_REFUSALS(rows);
}

#define LLAMA3 "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0"

static void rope_is_read_in_all_its_spellings(void **state)
{
    (void)state;
    static const char *const spellings[] = {
        "{\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3
        ", \"original_max_position_embeddings\": 8192}}",
        "{\"rope_theta\": 500000, \"rope_scaling\": {\"type\": \"llama3\", " LLAMA3
        ", \"original_max_position_embeddings\": 8192}}",
        "{\"-rope_theta\": 0, \"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", " LLAMA3
        ", \"original_max_position_embeddings\": 8192}}",
    };
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        struct config config = read_changed(spellings[i]);
        assert_true(config.has_rope_llama3 && config.rope_theta == 500000);
        assert_true(config.rope_llama3.factor == 8 && config.rope_llama3.low_freq_factor == 1);
        assert_true(config.rope_llama3.high_freq_factor == 4);
        assert_int_equal(config.rope_llama3.original_max_position_embeddings, 8192);
    }
    struct config config = read_changed("{\"-rope_theta\": 0, \"rope_scaling\": null,"
                                        " \"rope_parameters\": {\"rope_theta\": 1000000, \"rope_type\": \"default\"}}");
    assert_true(!config.has_rope_llama3 && config.rope_theta == 1000000);
    static const struct refusal rows[] = {
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}}", "rope_scaling.original_max_position_embeddings",
         "missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 ", \"original_max_position_embeddings\": 0.5}}",
         "rope_scaling.original_max_position_embeddings", "0.5"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}}", "rope_scaling.low_freq_factor", "missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": -8.0}}", "rope_scaling.factor", "-8"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 4.0,"
         " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}",
         "rope_scaling.high_freq_factor", "greater than low_freq_factor"},
        {"{\"rope_parameters\": {\"rope_theta\": 20000.0, \"rope_type\": \"default\"}}", "rope_parameters.rope_theta",
         "contradicts"},
        {"{\"rope_scaling\": {\"type\": \"default\"}, \"rope_parameters\": {\"rope_type\": \"default\"}}",
         "rope_parameters", "differ"},
    };
    EXPECT_REFUSALS(rows);
}

#define QWEN2   "\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"]"
#define MISTRAL "\"model_type\": \"mistral\", \"architectures\": [\"MistralForCausalLM\"]"

static void expect_windows(const char *changes, int64_t first, int64_t second, int64_t third)
{
    struct config config = read_changed(changes);
    const int64_t expected[] = {first, second, third};
    for (int64_t layer = 0; layer < 3; layer++)
        if (config_window(&config, layer) != expected[layer])
            fail_msg("%s: window %lld at layer %lld", changes, (long long)config_window(&config, layer),
                     (long long)layer);
    if (first == 0 && second == 0 && third == 0)
        assert_int_equal(config.sliding_window, 0);
}

static void windows_by_family(void **state)
{
    (void)state;
    expect_windows("{" QWEN2 ", \"sliding_window\": 64, \"use_sliding_window\": false, \"max_window_layers\": 1}", 0, 0,
                   0);
    expect_windows("{" QWEN2 ", \"sliding_window\": 64, \"max_window_layers\": 1}", 0, 0, 0);
    expect_windows("{" QWEN2 ", \"sliding_window\": 64, \"use_sliding_window\": true, \"max_window_layers\": 1}", 0, 64,
                   64);
    expect_windows("{" QWEN2 ", \"sliding_window\": 64, \"use_sliding_window\": true, \"max_window_layers\": 0}", 64,
                   64, 64);
    expect_windows("{" QWEN2 ", \"sliding_window\": 64, \"use_sliding_window\": true, \"max_window_layers\": 3}", 0, 0,
                   0);
    expect_windows("{" QWEN2 ", \"sliding_window\": null, \"use_sliding_window\": true, \"max_window_layers\": 0}", 0,
                   0, 0);
    expect_windows("{" QWEN2 ", \"sliding_window\": 64, \"use_sliding_window\": true, \"layer_types\":"
                   " [\"full_attention\", \"full_attention\", \"sliding_attention\"]}",
                   0, 0, 64);
    expect_windows("{" QWEN2 ", \"sliding_window\": null, \"use_sliding_window\": false, \"layer_types\":"
                   " [\"full_attention\", \"full_attention\", \"full_attention\"]}",
                   0, 0, 0);
    expect_windows("{" MISTRAL ", \"sliding_window\": 64}", 64, 64, 64);
    expect_windows("{" MISTRAL ", \"sliding_window\": null}", 0, 0, 0);
    expect_windows("{" MISTRAL "}", 4096, 4096, 4096); /* MistralConfig's default */
    static const struct refusal rows[] = {
        {"{" QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 0}", "sliding_window", "0"},
        {"{" QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": -64}", "sliding_window", "-64"},
        {"{" QWEN2 ", \"use_sliding_window\": \"no\"}", "use_sliding_window", "no"},
        {"{" QWEN2 ", \"use_sliding_window\": true, \"max_window_layers\": -1}", "max_window_layers", "-1"},
        {"{" QWEN2 ", \"use_mrope\": true}", "use_mrope", "true"},
        {"{" QWEN2 ", \"-num_key_value_heads\": 0}", "num_key_value_heads", "missing"},
        {"{" MISTRAL ", \"-num_key_value_heads\": 0}", "num_key_value_heads", "missing"},
        {"{" MISTRAL ", \"sliding_window\": 1.5}", "sliding_window", "1.5"},
        {"{" MISTRAL ", \"sliding_window\": 64, \"layer_types\":"
         " [\"full_attention\", \"full_attention\", \"full_attention\"]}",
         "layer_types", "contradicts"},
    };
    EXPECT_REFUSALS(rows);
    struct config config = read_changed("{" QWEN2 ", \"attention_bias\": false}");
    assert_true(config.qkv_bias && !config.o_bias && !config.mlp_bias);
    config = read_changed("{" MISTRAL ", \"attention_bias\": true}");
    assert_false(config.qkv_bias || config.o_bias);
}

static void malformed_files_are_refused(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"", "malformed", "line 1"},
        {"{", "malformed", "line 1"},
        {"[]", "malformed", "object"},
        {"\"llama\"", "malformed", ""},
        {"{\"vocab_size\": 1,}", "malformed", "line 1"},
        {"{\"vocab_size\": NaN}", "malformed", "NaN"},
        {"{\"a\": \"\xff\xfe\"}", "malformed", "0xff"},
        {"{\"hidden_size\": 64, \"hidden_size\": 65}", "duplicate", "hidden_size"},
        {"{\"num_hidden_layers\": 99999999999999999999999}", "num_hidden_layers", "64 bits"},
        {"{\"vocab_size\": 3, \"rope_theta\" : 1e999}", "rope_theta", "64 bits"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_text(file, rows[i].changes);
        expect_refusal(rows[i].changes, rows[i].key, rows[i].value);
    }
    char *bomb = malloc(200001);
    memset(bomb, '[', 200000);
    bomb[200000] = '\0';
    write_text(file, bomb);
    expect_refusal("nesting bomb", "malformed", "depth");
    memset(bomb, ' ', 200000);
    free(bomb);
    size_t whole = strlen(LLAMA);
    for (size_t cut = 0; cut < whole; cut++) {
        char text[1024];
        snprintf(text, sizeof text, "%.*s", (int)cut, LLAMA);
        write_text(file, text);
        expect_refusal("truncated", "malformed", "");
    }
    unlink(file);
    expect_refusal("absent", "cannot read", "No such file");
    assert_int_equal(mkdir(file, 0700), 0);
    expect_refusal("a folder", "regular file", "");
    assert_int_equal(rmdir(file), 0);
    write_text(file, LLAMA);
}

/* The largest counts that are let through, together as far as their product allows; one more is refused. */
static void bounds_are_inclusive(void **state)
{
    (void)state;
    struct config config =
        read_changed("{\"vocab_size\": 16777216, \"hidden_size\": 1048576, \"intermediate_size\": 16777216,"
                     " \"num_hidden_layers\": 4096, \"num_attention_heads\": 256, \"num_key_value_heads\": 256,"
                     " \"head_dim\": 256, \"max_position_embeddings\": 2147483647, \"attention_bias\": true,"
                     " \"mlp_bias\": true}");
    assert_int_equal(formula_kv_bytes(&config, DTYPE_F32, FORMULA_MAX_TOKENS), UINT64_C(1) << 62);
    static const struct refusal rows[] = {
        {"{\"vocab_size\": 16777217}", "vocab_size", "16777216"},
        {"{\"hidden_size\": 1048577}", "hidden_size", "1048576"},
        {"{\"intermediate_size\": 16777217}", "intermediate_size", "16777216"},
        {"{\"num_hidden_layers\": 4097}", "num_hidden_layers", "4096"},
        {"{\"num_attention_heads\": 65537}", "num_attention_heads", "65536"},
        {"{\"head_dim\": 1026}", "head_dim", "1024"},
        {"{\"hidden_size\": 12312}", "head_dim", "1024"},
        {"{\"max_position_embeddings\": 2147483648}", "max_position_embeddings", "2147483647"},
    };
    EXPECT_REFUSALS(rows);
}

static void models_are_found(void **state)
{
    (void)state;
    char models[4096], weights[4096], path[128], index[128];
    struct config config;
    struct error error = {0};
    snprintf(models, sizeof models, "%s/models", config_data_dir());

    assert_int_equal(config_find(&config, models, "Qwen2.5-0.5B", weights, sizeof weights, &error), STATUS_OK);
    assert_string_equal(config.name, "qwen2.5-0.5b");
    assert_int_equal(config_find(&config, models, "no-such-model", weights, sizeof weights, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "no-such-model"));
    assert_non_null(strstr(error.message, "kvlab list models"));
    assert_int_equal(config_find(&config, models, "Llama-2-8b", weights, sizeof weights, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "llama-2-7b, ")); /* those that begin alike */
    assert_null(strstr(error.message, "qwen"));
    assert_int_equal(config_find(&config, models, "", weights, sizeof weights, &error), STATUS_INPUT);
    assert_int_equal(config_find(&config, "/no/such/folder", "x", weights, sizeof weights, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "KVLAB_DATA"));

    write_text(file, LLAMA);
    assert_int_equal(config_find(&config, models, folder, weights, sizeof weights, &error), STATUS_OK);
    assert_string_equal(config.name, strrchr(folder, '/') + 1);
    assert_string_equal(weights, ""); /* a shape without weights */
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
    write_text(index, "{}");
    assert_int_equal(config_find(&config, models, folder, weights, sizeof weights, &error), STATUS_OK);
    assert_string_equal(weights, folder);
    assert_int_equal(config_find(&config, models, file, weights, sizeof weights, &error), STATUS_OK);
    assert_string_equal(weights, folder);
    assert_int_equal(config_find(&config, models, folder, weights, 4, &error), STATUS_INPUT);
    unlink(index);

    snprintf(path, sizeof path, "%s/mine.json", folder);
    write_text(path, LLAMA);
    assert_int_equal(config_find(&config, models, path, weights, sizeof weights, &error), STATUS_OK);
    assert_string_equal(config.name, "mine");
    unlink(path);
    unlink(file);
    assert_int_equal(config_find(&config, models, folder, weights, sizeof weights, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "no config.json"));
}

/* A model that ships with weights is its folder under its own name, and is refused where it, or its weights, are not.
 */
static void trained_models_are_found(void **state)
{
    (void)state;
    char models[128], tiny[96], target[128], config_path[160], tensors[192], weights[4096];
    struct config config;
    struct error error = {0};
    snprintf(models, sizeof models, "%s/models", folder);
    snprintf(tiny, sizeof tiny, "%s/tiny", folder);
    snprintf(target, sizeof target, "%s/target", tiny);
    snprintf(config_path, sizeof config_path, "%s/config.json", target);
    snprintf(tensors, sizeof tensors, "%s/model.safetensors", target);

    assert_int_equal(config_find(&config, models, "tiny", weights, sizeof weights, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "no config.json"));
    assert_non_null(strstr(error.message, "train.py target"));
    assert_int_equal(mkdir(tiny, 0700) | mkdir(target, 0700), 0);
    write_text(config_path, LLAMA);
    assert_int_equal(config_find(&config, models, "tiny", weights, sizeof weights, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "no safetensors"));
    write_text(tensors, "");
    assert_int_equal(config_find(&config, models, "Tiny", weights, sizeof weights, &error), STATUS_OK);
    assert_string_equal(config.name, "tiny");
    assert_string_equal(weights, target);
    assert_int_equal(config_find(&config, models, "tiny-draft", weights, sizeof weights, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "train.py draft"));
    unlink(tensors);
    unlink(config_path);
    assert_int_equal(rmdir(target) | rmdir(tiny), 0);
}

static void names_are_sorted(void **state)
{
    (void)state;
    char models[4096], **names;
    size_t count;
    struct error error = {0};
    snprintf(models, sizeof models, "%s/models", config_data_dir());
    assert_int_equal(config_names(models, &names, &count, &error), STATUS_OK);
    assert_true(count >= 20);
    for (size_t i = 1; i < count; i++)
        assert_true(strcmp(names[i - 1], names[i]) < 0);
    config_names_free(names, count);
}

/* Angles of theta 500000 and the llama3 scaling of Llama 3.2: kept, blended and slowed frequencies. The values were
   computed in double; f32 steps may lose some 1e-6 of them where powf and the blend round. */
static void inverse_frequencies(void **state)
{
    (void)state;
    struct config config = {.head_dim = 64, .rope_theta = 500000};
    float plain[32], scaled[32];
    config_inverse_frequency(&config, plain);
    config.has_rope_llama3 = true;
    config.rope_llama3 = (struct rope_llama3){
        .factor = 32, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 8192};
    config_inverse_frequency(&config, scaled);
    int kept = 0, blended = 0, slowed = 0;
    for (int i = 0; i < 32; i++) {
        double exact = pow(500000, -2.0 * i / 64), wavelength = 2 * M_PI / exact, expected = exact;
        double smooth = (8192 / wavelength - 1) / 3;
        if (wavelength > 8192)
            expected = exact / 32, slowed++;
        else if (wavelength >= 2048)
            expected = (1 - smooth) * exact / 32 + smooth * exact, blended++;
        else
            kept++;
        if (fabs(plain[i] - exact) > 2e-6 * exact || fabs(scaled[i] - expected) > 5e-6 * expected)
            fail_msg("frequency %d: %.9g and %.9g, expected %.9g and %.9g", i, (double)plain[i], (double)scaled[i],
                     exact, expected);
    }
    assert_true(plain[0] == 1 && scaled[0] == 1);
    assert_int_equal(kept, 15);
    assert_int_equal(blended, 3);
    assert_int_equal(slowed, 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_field),
        cmocka_unit_test(defaults_are_hugging_faces),
        cmocka_unit_test(a_bad_count_is_refused_by_key),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
        cmocka_unit_test(what_is_not_understood_is_refused),
        cmocka_unit_test(rope_is_read_in_all_its_spellings),
        cmocka_unit_test(windows_by_family),
        cmocka_unit_test(malformed_files_are_refused),
        cmocka_unit_test(bounds_are_inclusive),
        cmocka_unit_test(models_are_found),
        cmocka_unit_test(trained_models_are_found),
        cmocka_unit_test(names_are_sorted),
        cmocka_unit_test(inverse_frequencies),
    };
    return cmocka_run_group_tests_name("config", tests, setup, teardown);
}
