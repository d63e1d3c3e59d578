/* window and evict: bytes, orderings and refusals that arithmetic forces, on the small model of
   tests/experiment_place.h. How long anything took is asserted only where the clock is staged. */
#include "tests/staged_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- window ----------------------------------------------------------------------------------------------------- */

/* Passes of 16 rows, blocks of 16: a window of 8 touches 8 + 15 positions, so at most (8 + 15 + 14) / 16 + 1 = 3
   blocks; one of 40 (40 + 15 + 14) / 16 + 1 = 5. 16 * 256 bytes a block. Contexts of 20 and 100 take 2 and 7. */
static void window_of_blocks(void **state)
{
    (void)state;
    static const struct {
        int64_t window, context, blocks, full, seen;
    } rows[] = {{0, 20, 2, 2, 20},   {8, 20, 2, 2, 8},  {40, 20, 2, 2, 20},
                {0, 100, 7, 7, 100}, {8, 100, 3, 7, 8}, {40, 100, 5, 7, 40}};
    place_run("window --contexts 20,100 --window 8,40 --threads 1 --quick", 0);
    struct csv_table table = place_csv("window");
    place_assert_columns(&table, "window,context,kv_bytes,kv_bytes_full,tpot_ms_p50,perplexity");
    assert_int_equal(table.row_count, sizeof rows / sizeof *rows);
    for (size_t row = 0; row < table.row_count; row++) {
        assert_int_equal(place_int(&table, row, "window"), rows[row].window);
        assert_int_equal(place_int(&table, row, "context"), rows[row].context);
        assert_int_equal(place_int(&table, row, "kv_bytes"), rows[row].blocks * 16 * PLACE_KV_BYTES);
        assert_int_equal(place_int(&table, row, "kv_bytes_full"), rows[row].full * 16 * PLACE_KV_BYTES);
        assert_int_equal(place_int(&table, row, "kv_formula_bytes"), rows[row].blocks * 16 * PLACE_KV_BYTES);
        assert_int_equal(place_int(&table, row, "kv_tensor_bytes"), rows[row].blocks * 16 * PLACE_KV_BYTES);
        assert_int_equal(place_int(&table, row, "step_kv_bytes"), rows[row].seen * PLACE_KV_BYTES);
        assert_string_equal(place_text(&table, row, "perplexity"), ""); /* synthetic weights */
        assert_string_equal(place_text(&table, row, "weights"), "synthetic");
    }
    csv_table_free(&table);
}

/* Steps of 1/8 ms and, past 64 positions, 1/4 ms: the last 32 of 100, so all of the latter; 10 of 20. Pieces of 256
   tokens in all: 12 of 20, 2 of 100. */
static double step_ms(int rows, int context)
{
    return rows > 1 ? 0.5 : context > 64 ? 0.25 : 0.125;
}
static void window_on_a_staged_clock(void **state)
{
    (void)state;
    struct stage stage = {.pass_ms = step_ms};
    assert_int_equal(staged_run("window --contexts 20,100 --window 8 --quick", &stage), 0);
    struct csv_table table = place_csv("window");
    assert_int_equal(table.row_count, 4);
    for (size_t row = 0; row < 4; row++) {
        assert_string_equal(place_text(&table, row, "tpot_ms_p50"), row < 2 ? "0.1250" : "0.2500");
        assert_string_equal(place_text(&table, row, "tpot_over_full"), "1.000");
        assert_int_equal(place_int(&table, row, "n"), row < 2 ? 12 * 10 : 2 * 32);
        /* every token that has one after it: the last piece ends where the text goes on, or at its end */
        assert_in_range(place_int(&table, row, "tokens"), row < 2 ? 12 * 20 - 1 : 2 * 100 - 1, row < 2 ? 240 : 200);
    }
    csv_table_free(&table);
}

static void window_refusals(void **state)
{
    (void)state;
    assert_non_null(strstr(place_run("window --window 0 --quick", 2), "--window"));
    assert_non_null(strstr(place_run("window --text /no/such/text --quick", 2), "/no/such/text"));
    assert_non_null(strstr(place_run("window --contexts 16,1 --quick", 2), "--contexts: 1 is too short"));
}

/* The widest window that the option takes is full attention, byte for byte. */
static void window_wider_than_any_context(void **state)
{
    (void)state;
    place_run("window --contexts 20 --window 2147483647 --threads 1 --quick", 0);
    struct csv_table table = place_csv("window");
    assert_int_equal(table.row_count, 2);
    assert_int_equal(place_int(&table, 1, "window"), INT32_MAX);
    assert_int_equal(place_int(&table, 1, "kv_bytes"), place_int(&table, 1, "kv_bytes_full"));
    assert_string_equal(place_text(&table, 1, "perplexity"), place_text(&table, 0, "perplexity"));
    csv_table_free(&table);
}

/* ---- evict ------------------------------------------------------------------------------------------------------ */

/* The place's model with a vocabulary of bytes, and 256 positions. */
static const char byte_model[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 256, \"hidden_size\": 32,"
    " \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"head_dim\": 8, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,"
    " \"hidden_act\": \"silu\", \"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}";

/* 128 slots of 256 bytes. Beside them 2 layers * 2 heads = 4 heads: moves 2 * 4 * 4 bytes a token dropped (1; 64 of
   Scissorhands); attention 4 * 128 * 4; four sinks' K and V 2 * 4 * 4 * 8 * 4, angles 4 * 8 * 4, slot, entry and
   position 4 * 12, frequencies 4 * 4. The facts are asked for by tokens 252 to 255. Far, from 0 on, is before the
   newest 128. Near, 96 before 255 so from 159 on, is within them, but neither in the newest half nor after the last
   drop, which was before token 192: H2O and Scissorhands go by attention. */
static void evict_at_one_budget(void **state)
{
    (void)state;
    static const struct {
        const char *policy;
        int64_t budget, beside;
        const char *near, *far;
        int64_t evicted;
    } rows[] = {{"full", 256, 0, "kept", "kept", 0},
                {"window only", 128, 32, "kept", "lost", 128},
                {"sinks + window", 128, 32 + 1024 + 128 + 48 + 16, "kept", "lost", 128},
                {"heavy hitters", 128, 32 + 2048, "open", "open", 128},
                {"persistence of importance", 128, 64 * 32 + 2048, "open", "open", 128}};
    char line[256];
    snprintf(line, sizeof line, "evict --contexts 256 --budget-tokens 128 --probes 2 --threads 1 --model %s/bytes",
             place_folder());
    place_run(line, 0);
    struct csv_table table = place_csv("evict");
    place_assert_columns(&table, "policy,budget_tokens,context,kv_bytes,perplexity,perplexity_delta_percent,"
                                 "tpot_ms_p50");
    assert_int_equal(table.row_count, sizeof rows / sizeof *rows);
    for (size_t row = 0; row < table.row_count; row++) {
        assert_string_equal(place_text(&table, row, "policy"), rows[row].policy);
        assert_int_equal(place_int(&table, row, "budget_tokens"), rows[row].budget);
        assert_int_equal(place_int(&table, row, "kv_formula_bytes"), rows[row].budget * PLACE_KV_BYTES);
        assert_int_equal(place_int(&table, row, "kv_tensor_bytes"), rows[row].budget * PLACE_KV_BYTES);
        assert_int_equal(place_int(&table, row, "kv_bytes"), rows[row].budget * PLACE_KV_BYTES + rows[row].beside);
        assert_int_equal(place_int(&table, row, "evicted_tokens"), rows[row].evicted);
        assert_int_equal(place_int(&table, row, "near_tokens"), 96);
        assert_int_equal(place_int(&table, row, "far_tokens"), 255);
        assert_string_equal(place_text(&table, row, "near_predicted"), rows[row].near);
        assert_string_equal(place_text(&table, row, "probe_predicted"), rows[row].far);
        if (strcmp(rows[row].near, "kept") == 0)
            assert_string_equal(place_text(&table, row, "near_kept_percent"), "100.0");
        if (strcmp(rows[row].far, "open") != 0)
            assert_string_equal(place_text(&table, row, "probe_kept_percent"), row == 0 ? "100.0" : "0.0");
        assert_string_equal(place_text(&table, row, "perplexity"), ""); /* synthetic weights */
    }
    /* They recall nothing, with full attention either: of the policies nothing is said. */
    assert_string_equal(place_text(&table, 0, "recall_percent"), "0.0");
    assert_string_equal(place_text(&table, 1, "recall_percent"), "");
    csv_table_free(&table);
}

/* Texts past the trained positions, too short ones, and vocabularies that are not bytes have no probe. */
static void evict_without_probes(void **state)
{
    (void)state;
    char line[256];
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "evict --contexts %d --budget-tokens 16 --probes 2 --threads 1 %s%s%s",
                 i == 0 ? 257 : 40, i < 2 ? "--model " : "", i < 2 ? place_folder() : "", i < 2 ? "/bytes" : "");
        place_run(line, 0);
        struct csv_table table = place_csv("evict");
        assert_int_equal(table.row_count, 5);
        for (size_t row = 0; row < 5; row++) {
            assert_string_equal(place_text(&table, row, "probe_predicted"), "");
            assert_string_equal(place_text(&table, row, "probe_kept_percent"), "");
            assert_string_equal(place_text(&table, row, "recall_percent"), "");
        }
        assert_int_equal(place_int(&table, 4, "evicted_tokens"), i == 0 ? 257 - 257 % 8 - 8 : 24);
        csv_table_free(&table);
    }
}

/* A row whose slots were not what the prediction says fails the check, also when --resume finds it. */
static void evict_checks_its_predictions(void **state)
{
    (void)state;
    static const struct {
        size_t row;
        const char *column, *value;
    } cases[] = {{0, "kv_tensor_bytes", "65535"},
                 {1, "probe_kept_percent", "12.5"},
                 {2, "near_kept_percent", "87.5"},
                 {0, "probe_kept_percent", "99.0"}};
    char line[256];
    snprintf(line, sizeof line, "evict --contexts 256 --budget-tokens 128 --probes 1 --threads 1 --model %s/bytes",
             place_folder());
    place_run(line, 0);
    strcat(line, " --resume");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct csv_table table = place_csv("evict");
        char *was = strdup(place_text(&table, cases[i].row, cases[i].column));
        csv_table_free(&table);
        place_run(line, 0);
        place_set("evict", cases[i].row, cases[i].column, cases[i].value);
        place_run(line, 1);
        place_set("evict", cases[i].row, cases[i].column, was);
        free(was);
    }
}

/* With a budget over the context nothing goes: both facts are kept by every policy, and the near one is nearer. */
static void evict_budget_over_the_context(void **state)
{
    (void)state;
    char line[256];
    snprintf(line, sizeof line, "evict --contexts 192 --budget-tokens 100000 --probes 1 --threads 1 --model %s/bytes",
             place_folder());
    place_run(line, 0);
    struct csv_table table = place_csv("evict");
    assert_int_equal(table.row_count, 5);
    for (size_t row = 0; row < 5; row++) {
        assert_int_equal(place_int(&table, row, "near_tokens"), 96);
        assert_int_equal(place_int(&table, row, "evicted_tokens"), 0);
        assert_string_equal(place_text(&table, row, "near_kept_percent"), "100.0");
        assert_string_equal(place_text(&table, row, "probe_kept_percent"), "100.0");
    }
    csv_table_free(&table);
}

static void evict_refusals(void **state)
{
    (void)state;
    assert_non_null(strstr(place_run("evict --budget-tokens 7 --quick", 2), "--budget-tokens"));
    assert_non_null(strstr(place_run("evict --sinks 7 --quick", 2), "--sinks"));
    assert_non_null(strstr(place_run("evict --text /no/such/text --quick", 2), "/no/such/text"));
    assert_non_null(strstr(place_run("evict --contexts 16,1 --quick", 2), "--contexts: 1 is too short"));
}

static int make_places(void **state)
{
    if (place_make(state) != 0)
        return -1;
    place_model("bytes", byte_model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_of_blocks),
        cmocka_unit_test(window_on_a_staged_clock),
        cmocka_unit_test(window_refusals),
        cmocka_unit_test(evict_at_one_budget),
        cmocka_unit_test(evict_without_probes),
        cmocka_unit_test(evict_checks_its_predictions),
        cmocka_unit_test(evict_refusals),
        cmocka_unit_test(window_wider_than_any_context),
        cmocka_unit_test(evict_budget_over_the_context),
    };
    return cmocka_run_group_tests_name("cache_experiments", tests, make_places, place_remove);
}
