/* kv, slope and logits: every cell against arithmetic by hand, and each source against a fault that only it can see: a
   column that echoes the formula, or a check that never fails, does not pass. Small models, see
   tests/experiment_place.h: 256 bytes of KV a token in f32. */
#include "tests/staged_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 2, TENSORS = 2 * LAYERS };

/* ---- kv --------------------------------------------------------------------------------------------------------- */

/* Qwen2.5-1.5B's cache, 28 layers with 2 KV heads of 128, around a model of next to nothing; the window keeps attention
   short and changes nothing in the cache. */
static const char geometry[] =
    "{\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 32,"
    "\"intermediate_size\": 32, \"num_hidden_layers\": 28, \"num_attention_heads\": 2, \"num_key_value_heads\": 2,"
    "\"head_dim\": 128, \"hidden_act\": \"silu\", \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-6,"
    "\"rope_theta\": 1000000.0, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\","
    "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 0}";

/* The published counts: 2 * 28 * 2 * 128 * 2 = 28,672 bytes a token. */
static void kv_of_the_published_shape(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens, bytes;
        const char *shape;
    } cases[] = {{512, 14680064, "(1, 2, 512, 128)"}, {2048, 58720256, "(1, 2, 2048, 128)"}};
    char line[128];
    place_model("geometry", geometry);
    snprintf(line, sizeof line, "kv --contexts 512,2048 --model %s/geometry", place_folder());
    place_run(line, 0);
    struct csv_table table = place_csv("kv");
    assert_int_equal(table.row_count, 2);
    for (size_t row = 0; row < 2; row++) {
        assert_int_equal(place_int(&table, row, "prompt_tokens"), cases[row].tokens);
        assert_int_equal(place_int(&table, row, "n_tensors"), 56);
        assert_string_equal(place_text(&table, row, "tensor_shape"), cases[row].shape);
        assert_int_equal(place_int(&table, row, "kv_formula_bytes"), cases[row].bytes);
        assert_int_equal(place_int(&table, row, "kv_tensor_bytes"), cases[row].bytes);
        assert_int_equal(place_int(&table, row, "kv_ledger_bytes"), cases[row].bytes);
        assert_string_equal(place_text(&table, row, "bytes_per_token"), "28672.0");
        assert_string_equal(place_text(&table, row, "deviation_percent"), "0.000");
    }
    csv_table_free(&table);
}

/* The cache's own type decides, not the weights'. */
static void kv_follows_the_type_of_the_cache(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int64_t per_token;
    } cases[] = {{"kv --contexts 100 --dtype bf16", 128},
                 {"kv --contexts 100 --dtype bf16 --kv-dtype f32", 256},
                 {"kv --contexts 100 --dtype f32 --kv-dtype f16", 128},
                 {"kv --contexts 100 --dtype f32 --kv-dtype fp8", 64},
                 {"kv --contexts 100 --dtype bf16 --kv-dtype int8", 96}}; /* 2 * 2 layers * 2 heads * (8 + 4) */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        place_run(cases[i].line, 0);
        struct csv_table table = place_csv("kv");
        assert_int_equal(place_int(&table, 0, "kv_formula_bytes"), 100 * cases[i].per_token);
        assert_int_equal(place_int(&table, 0, "kv_tensor_bytes"), 100 * cases[i].per_token);
        assert_int_equal(place_int(&table, 0, "kv_ledger_bytes"), 100 * cases[i].per_token);
        assert_int_equal(place_real(&table, 0, "bytes_per_token"), cases[i].per_token);
        csv_table_free(&table);
    }
}

/* At 600 tokens the formula says twice what is there: 307,200 against 153,600. */
static void kv_tells_tensors_from_formula(void **state)
{
    (void)state;
    struct stage stage = {.doubled_at_kv_bytes = 600 * PLACE_KV_BYTES};
    assert_int_equal(staged_run("kv --contexts 600,700", &stage), 1);
    struct csv_table table = place_csv("kv");
    assert_int_equal(table.row_count, 2);
    assert_int_equal(place_int(&table, 0, "kv_formula_bytes"), 307200);
    assert_int_equal(place_int(&table, 0, "kv_tensor_bytes"), 153600);
    assert_int_equal(place_int(&table, 0, "kv_ledger_bytes"), 153600);
    assert_string_equal(place_text(&table, 0, "bytes_per_token"), "256.0");
    assert_string_equal(place_text(&table, 0, "deviation_percent"), "-50.000");
    assert_int_equal(place_int(&table, 1, "kv_formula_bytes"), 179200);
    assert_int_equal(place_int(&table, 1, "kv_tensor_bytes"), 179200);
    assert_string_equal(place_text(&table, 1, "deviation_percent"), "0.000");
    csv_table_free(&table);
}

/* 4,096 bytes tagged kv that are no tensor of the cache: the ledger alone sees them. */
static void kv_tells_the_ledger_from_tensors(void **state)
{
    (void)state;
    struct stage stage = {.left_tag = LEDGER_KV, .left_bytes = 4096};
    assert_int_equal(staged_run("kv --contexts 100", &stage), 1);
    struct csv_table table = place_csv("kv");
    assert_int_equal(place_int(&table, 0, "kv_formula_bytes"), 25600);
    assert_int_equal(place_int(&table, 0, "kv_tensor_bytes"), 25600);
    assert_int_equal(place_int(&table, 0, "kv_ledger_bytes"), 29696);
    csv_table_free(&table);
    stage.left_tag = LEDGER_OTHER; /* and bytes of another tag are none of kv's */
    assert_int_equal(staged_run("kv --contexts 100", &stage), 0);
    table = place_csv("kv");
    assert_int_equal(place_int(&table, 0, "kv_ledger_bytes"), 25600);
    csv_table_free(&table);
}

/* ---- slope ------------------------------------------------------------------------------------------------------ */

static const int64_t contexts[] = {600, 1000, 1700};
static const char slope_line[] = "slope --contexts 600,1000,1700";

/* The row of a source in slope_fit, against what must stand there. */
static void assert_fit(const char *source, const char *slope, const char *deviation, double limit)
{
    struct csv_table fit = place_csv("slope_fit");
    size_t row = 0;
    while (row < fit.row_count && strcmp(place_text(&fit, row, "source"), source) != 0)
        row++;
    assert_string_equal(place_text(&fit, row, "slope_bytes_per_token"), slope);
    assert_int_equal(place_int(&fit, row, "formula_bytes_per_token"), PLACE_KV_BYTES);
    assert_string_equal(place_text(&fit, row, "deviation_percent"), deviation);
    place_assert_near(place_real(&fit, row, "limit_percent"), limit, 0.0005, "limit_percent");
    assert_int_equal(place_int(&fit, row, "intercept_bytes"), 0);
    assert_int_equal(place_int(&fit, row, "residual_max_bytes"), 0);
    csv_table_free(&fit);
}

/* 5 %, and a page for each tensor, of what the formula gives between the first and the last context. */
static double driver_limit(void)
{
    return 5.0 + 100.0 * TENSORS * (double)sysconf(_SC_PAGESIZE) / ((1700.0 - 600.0) * PLACE_KV_BYTES);
}

static void slope_of_every_source(void **state)
{
    (void)state;
    static const struct {
        double share; /* of the KV bytes, that the process is seen to grow by */
        const char *slope, *deviation;
        int status;
    } cases[] = {{1.0, "256.000", "0.000", 0},
                 {1.0625, "272.000", "6.250", 0},
                 {1.5, "384.000", "50.000", 1},
                 {0.5, "128.000", "-50.000", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(staged_run(slope_line, &(struct stage){.driver_share = cases[i].share}), cases[i].status);
        struct csv_table table = place_csv("slope");
        assert_int_equal(table.row_count, 3);
        for (size_t row = 0; row < 3; row++) {
            int64_t bytes = contexts[row] * PLACE_KV_BYTES;
            assert_int_equal(place_int(&table, row, "context"), contexts[row]);
            assert_int_equal(place_int(&table, row, "kv_formula_bytes"), bytes);
            assert_int_equal(place_int(&table, row, "kv_tensor_bytes"), bytes);
            assert_int_equal(place_int(&table, row, "kv_ledger_bytes"), bytes);
            assert_int_equal(place_int(&table, row, "driver_bytes"), (int64_t)((double)bytes * cases[i].share));
        }
        csv_table_free(&table);
        assert_fit("tensors", "256.000", "0.000", 0.0);
        assert_fit("ledger", "256.000", "0.000", 0.0);
        assert_fit("driver", cases[i].slope, cases[i].deviation, driver_limit());
    }
}

static void slope_without_a_driver(void **state)
{
    (void)state;
    assert_int_equal(staged_run(slope_line, &(struct stage){.driver_share = -1.0}), 0);
    char *text = staged_stderr();
    assert_non_null(strstr(text, "driver_bytes")); /* says why it is empty */
    free(text);
    struct csv_table table = place_csv("slope");
    for (size_t row = 0; row < 3; row++)
        assert_string_equal(place_text(&table, row, "driver_bytes"), "");
    csv_table_free(&table);
    table = place_csv("slope_fit");
    assert_int_equal(table.row_count, 2); /* tensors and ledger */
    csv_table_free(&table);
}

static void slope_tells_sources_apart(void **state)
{
    (void)state;
    struct stage doubled = {.driver_share = 1.0, .doubled_at_kv_bytes = 600 * PLACE_KV_BYTES};
    assert_int_equal(staged_run(slope_line, &doubled), 1);
    struct csv_table table = place_csv("slope");
    assert_int_equal(place_int(&table, 0, "kv_formula_bytes"), 307200);
    assert_int_equal(place_int(&table, 0, "kv_tensor_bytes"), 153600);
    assert_int_equal(place_int(&table, 0, "kv_ledger_bytes"), 153600);
    csv_table_free(&table);

    struct stage left = {.driver_share = 1.0, .left_tag = LEDGER_KV, .left_bytes = 4096};
    assert_int_equal(staged_run(slope_line, &left), 1);
    table = place_csv("slope");
    for (size_t row = 0; row < 3; row++) {
        assert_int_equal(place_int(&table, row, "kv_tensor_bytes"), contexts[row] * PLACE_KV_BYTES);
        assert_int_equal(place_int(&table, row, "kv_ledger_bytes"), contexts[row] * PLACE_KV_BYTES + 4096);
    }
    csv_table_free(&table);
}

/* ---- rows that are not as they were measured -------------------------------------------------------------------- */

/* What --resume finds in a file is held against the formula like what it measures. */
static void a_changed_cell_fails_the_check(void **state)
{
    (void)state;
    static const struct {
        const char *line, *column, *value;
    } cases[] = {
        {"kv --contexts 600,1000,1700", "kv_tensor_bytes", "256256"},
        {"kv --contexts 600,1000,1700", "kv_ledger_bytes", "255744"},
        {"slope --contexts 600,1000,1700", "kv_tensor_bytes", "256256"},
        {"slope --contexts 600,1000,1700", "kv_ledger_bytes", "255744"},
        {"slope --contexts 600,1000,1700", "driver_bytes", "1000000"},
        {"logits --contexts 16,20", "unexplained_bytes", "1"},
        {"logits --contexts 16,20", "unexplained_bytes", "-256"},
    };
    struct stage stage = {.driver_share = 1.0};
    char name[16], line[96];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(sscanf(cases[i].line, "%15s", name), 1);
        snprintf(line, sizeof line, "%s --resume", cases[i].line);
        assert_int_equal(staged_run(cases[i].line, &stage), 0);
        assert_int_equal(staged_run(line, &stage), 0);
        size_t row = strcmp(cases[i].column, "driver_bytes") == 0 ? 2 : 1; /* an end moves the slope */
        place_set(name, row, cases[i].column, cases[i].value);
        if (staged_run(line, &stage) != 1)
            fail_msg("%s: %s of %s does not fail", name, cases[i].column, cases[i].value);
    }
}

/* ---- logits ----------------------------------------------------------------------------------------------------- */

/* 100 tokens, 64 logits a position. bf16: 12,800 bytes of all, 128 of the last; 25,600 of KV in f32. */
static const char logits_line[] = "logits --contexts 100 --dtype bf16 --kv-dtype f32";

static void logits_of_all_and_of_the_last(void **state)
{
    (void)state;
    static const struct {
        const char *positions, *shape;
        int64_t logits, extra;
        const char *share, *over_kv;
    } cases[] = {{"all", "(100, 64)", 12800, 38400, "33.3", "1.5"}, {"last", "(1, 64)", 128, 25728, "0.5", "1.0"}};
    place_run(logits_line, 0);
    struct csv_table table = place_csv("logits");
    assert_int_equal(table.row_count, 2);
    for (size_t row = 0; row < 2; row++) {
        assert_int_equal(place_int(&table, row, "context"), 100);
        assert_string_equal(place_text(&table, row, "logits_positions"), cases[row].positions);
        assert_string_equal(place_text(&table, row, "logits_shape"), cases[row].shape);
        assert_int_equal(place_int(&table, row, "logits_bytes"), cases[row].logits);
        assert_int_equal(place_int(&table, row, "logits_formula_bytes"), cases[row].logits);
        assert_int_equal(place_int(&table, row, "kv_bytes"), 25600);
        assert_int_equal(place_int(&table, row, "kv_formula_bytes"), 25600);
        assert_int_equal(place_int(&table, row, "extra_ledger_bytes"), cases[row].extra);
        assert_int_equal(place_int(&table, row, "unexplained_bytes"), 0);
        assert_string_equal(place_text(&table, row, "logits_share_percent"), cases[row].share);
        assert_string_equal(place_text(&table, row, "extra_over_kv"), cases[row].over_kv);
    }
    csv_table_free(&table);
}

/* Bytes left behind under a tag are found: of another tag as unexplained, of logits also as logits. */
static void logits_finds_what_is_left(void **state)
{
    (void)state;
    static const struct {
        enum ledger_tag tag;
        int64_t more_logits;
        const char *share; /* of the logits of all positions */
    } cases[] = {{LEDGER_OTHER, 0, "30.1"}, {LEDGER_WORKSPACE, 0, "30.1"}, {LEDGER_LOGITS, 4096, "39.8"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stage stage = {.left_tag = cases[i].tag, .left_bytes = 4096};
        assert_int_equal(staged_run(logits_line, &stage), 1);
        struct csv_table table = place_csv("logits");
        static const int64_t logits[] = {12800, 128};
        for (size_t row = 0; row < 2; row++) {
            assert_int_equal(place_int(&table, row, "logits_bytes"), logits[row] + cases[i].more_logits);
            assert_int_equal(place_int(&table, row, "logits_formula_bytes"), logits[row]);
            assert_int_equal(place_int(&table, row, "kv_bytes"), 25600);
            assert_int_equal(place_int(&table, row, "extra_ledger_bytes"), logits[row] + 25600 + 4096);
            assert_int_equal(place_int(&table, row, "unexplained_bytes"), 4096);
        }
        assert_string_equal(place_text(&table, 0, "logits_share_percent"), cases[i].share);
        assert_string_equal(place_text(&table, 0, "extra_over_kv"), "1.7"); /* 42,496 / 25,600 */
        csv_table_free(&table);
    }
}

/* At 600 tokens the formula says 307,200 bytes of KV and there are 153,600. */
static void logits_tells_tensors_from_formula(void **state)
{
    (void)state;
    struct stage stage = {.doubled_at_kv_bytes = 600 * PLACE_KV_BYTES};
    assert_int_equal(staged_run("logits --contexts 600,700 --dtype bf16 --kv-dtype f32", &stage), 1);
    struct csv_table table = place_csv("logits");
    for (size_t row = 0; row < 2; row++) {
        assert_int_equal(place_int(&table, row, "kv_bytes"), 153600);
        assert_int_equal(place_int(&table, row, "kv_formula_bytes"), 307200);
        assert_int_equal(place_int(&table, row, "unexplained_bytes"), -153600);
        assert_int_equal(place_int(&table, row + 2, "kv_bytes"), 179200);
        assert_int_equal(place_int(&table, row + 2, "unexplained_bytes"), 0);
    }
    csv_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_of_the_published_shape),
        cmocka_unit_test(kv_follows_the_type_of_the_cache),
        cmocka_unit_test(kv_tells_tensors_from_formula),
        cmocka_unit_test(kv_tells_the_ledger_from_tensors),
        cmocka_unit_test(slope_of_every_source),
        cmocka_unit_test(slope_without_a_driver),
        cmocka_unit_test(slope_tells_sources_apart),
        cmocka_unit_test(a_changed_cell_fails_the_check),
        cmocka_unit_test(logits_of_all_and_of_the_last),
        cmocka_unit_test(logits_finds_what_is_left),
        cmocka_unit_test(logits_tells_tensors_from_formula),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
