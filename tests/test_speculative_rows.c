/* speculative, the experiment: what its rows say of counts and times, worked out by hand on a staged clock. */
#include "tests/staged_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A pass takes 1 ms for its first row and half a millisecond for each further one. */
static double by_rows(int rows, int context)
{
    (void)context;
    return 1.0 + 0.5 * (rows - 1);
}

static struct csv_table run(const char *draft, const char *options)
{
    char line[256];
    snprintf(line, sizeof line, "speculative --quick --threads 1 --draft %s/%s %s", place_folder(), draft, options);
    int status = staged_run(line, &(struct stage){.pass_ms = by_rows});
    if (status != 0) {
        char *text = staged_stderr();
        fail_msg("kvlab run %s: status %d: %s", line, status, text);
    }
    return place_csv("speculative");
}

static void assert_cell(const struct csv_table *table, size_t row, const char *column, double expected)
{
    place_assert_near(place_real(table, row, column), expected, 1e-3, column);
}

/* The model as its own draft, two prompts, 15 tokens decoded of each. Plain: 15 ms.
     k = 0  15 passes of one row: the same
     k = 1  7 rounds of two tokens, then one without a proposal. The draft passes 1 row in the first round and 2 in the
            others, for it has not passed what was accepted last: 1 + 6 * 1.5 = 10 ms for 7 proposals, so c = 10 / 7.
   The target: 7 * 1.5 + 1 = 11.5 ms in 8 passes k = 2  5 rounds of three tokens; the draft (1 + 1) + 4 * (1.5 + 1) = 12
   ms, the target 5 * 2 = 10 ms */
static void rows_worked_out_by_hand(void **state)
{
    (void)state;
    const double c = 10.0 / 7;
    struct csv_table table = run("tiny", "--draft-tokens 0,1,2");
    assert_int_equal(table.row_count, 6);
    for (size_t row = 0; row < 6; row++) { /* sampled, equal models accept everything too */
        assert_int_equal(place_int(&table, row, "draft_tokens"), row % 3);
        assert_int_equal(place_int(&table, row, "temperature"), row / 3);
        assert_cell(&table, row, "plain_ms_per_token", 1.0);
        assert_cell(&table, row, "measured_cost_ratio", c);
        assert_cell(&table, row, "formula_cost_ratio", 1.0);
        assert_cell(&table, row, "predicted_tokens_per_pass", 1.0 + (double)(row % 3));
    }
    for (size_t first = 0; first < 6; first += 3) {
        assert_string_equal(place_text(&table, first, "acceptance_rate"), "");
        assert_cell(&table, first, "speedup", 1.0);
        assert_cell(&table, first, "pass_cost_ratio", 1.0);
        assert_cell(&table, first, "break_even_acceptance", 0.0);
        assert_int_equal(place_int(&table, first, "target_passes"), 30);

        assert_cell(&table, first + 1, "acceptance_rate", 1.0);
        assert_cell(&table, first + 1, "tokens_per_target_pass", 15.0 / 8);
        assert_cell(&table, first + 1, "speedup", 15.0 / 21.5);
        assert_cell(&table, first + 1, "pass_cost_ratio", 11.5 / 8);
        assert_cell(&table, first + 1, "predicted_speedup", 2.0 / (c + 1));
        assert_cell(&table, first + 1, "break_even_acceptance", 1.0);

        assert_cell(&table, first + 2, "tokens_per_target_pass", 3.0);
        assert_cell(&table, first + 2, "speedup", 15.0 / 22);
        assert_cell(&table, first + 2, "ms_per_token", 22.0 / 15);
        assert_cell(&table, first + 2, "pass_cost_ratio", 2.0);
        assert_cell(&table, first + 2, "predicted_speedup", 3.0 / (2 * c + 1));
        assert_cell(&table, first + 2, "predicted_speedup_at_pass_cost", 3.0 / (2 * c + 2));
        assert_int_equal(place_int(&table, first + 2, "target_passes"), 10);
        assert_int_equal(place_int(&table, first + 2, "proposed"), 20);
        assert_int_equal(place_int(&table, first + 2, "accepted"), 20);
    }
    csv_table_free(&table);
}

/* Another random model as the draft: hardly ever right, and greedy output is still the target's. */
static void a_draft_that_is_wrong(void **state)
{
    (void)state;
    struct csv_table table = run("other", "--draft-tokens 3 --prompts 4");
    char *said = staged_stderr();
    assert_non_null(strstr(said, "synthetic weights"));
    free(said);
    assert_int_equal(table.row_count, 2);
    for (size_t row = 0; row < 2; row++) {
        int64_t passes = place_int(&table, row, "target_passes"), accepted = place_int(&table, row, "accepted");
        assert_int_equal(passes + accepted, 4 * 15);
        assert_cell(&table, row, "tokens_per_target_pass", 60.0 / (double)passes);
        assert_true(place_real(&table, row, "acceptance_rate") < 1.0);
        assert_true(place_real(&table, row, "formula_cost_ratio") < 1.0); /* it has one layer of two */
    }
    assert_string_equal(place_text(&table, 0, "output_equal"), "yes");
    assert_int_equal(place_int(&table, 0, "equal_tokens"), 4 * 16);
    assert_string_equal(place_text(&table, 1, "output_equal"), "");
    csv_table_free(&table);
}

static void prompts_come_from_a_text(void **state)
{
    (void)state;
    char path[128], line[256];
    snprintf(path, sizeof path, "%s/text", place_folder());
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < 100; i++)
        fputs("Recall: the number of Gideon is 4821.\n", file);
    fclose(file);
    snprintf(line, sizeof line,
             "speculative --quick --threads 1 --model %s/bytes --draft %s/bytes --draft-tokens 2 --text %s",
             place_folder(), place_folder(), path);
    assert_int_equal(staged_run(line, &(struct stage){0}), 0);
}

static void refuses(const char *options, int status, const char *words)
{
    char line[256];
    snprintf(line, sizeof line, "speculative --quick %s", options);
    assert_int_equal(staged_run(line, &(struct stage){0}), status);
    char *said = staged_stderr();
    if (strstr(said, words) == NULL)
        fail_msg("%s: \"%s\" is not in: %s", line, words, said);
    free(said);
}

static void bad_input(void **state)
{
    (void)state;
    char options[256];
    snprintf(options, sizeof options, "--draft %s/bytes", place_folder());
    refuses(options, 2, "vocabulary of 256, the target tiny one of 64");
    refuses("--draft nowhere", 2, "nowhere");
    refuses("--draft-tokens 65", 2, "65");
    refuses("--prompts 0", 2, "0");
    refuses("--contexts 64", 2, "--contexts");
    snprintf(options, sizeof options, "--draft %s/tiny --text /nowhere", place_folder());
    refuses(options, 2, "/nowhere");
    snprintf(options, sizeof options, "--model %s/bytes --draft %s/bytes --text /nowhere", place_folder(),
             place_folder());
    refuses(options, 2, "/nowhere");
    snprintf(options, sizeof options, "--draft %s/tiny --budget 100kB", place_folder());
    refuses(options, 3, "weights");
}

static void dry_run_predicts(void **state)
{
    (void)state;
    char line[256];
    snprintf(line, sizeof line, "speculative --dry-run --draft %s/other --draft-tokens 0,1,4 --format csv",
             place_folder());
    assert_int_equal(staged_run(line, &(struct stage){0}), 0);
    char *said = staged_stdout();
    int lines = 0;
    for (const char *c = said; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 1 + 2 * 3);
    free(said);
}

static int make(void **state)
{
#define SHAPE(vocabulary, layers)                                                                                      \
    "{\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"], \"vocab_size\": " vocabulary ","           \
    "\"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": " layers ", \"num_attention_heads\": 4,"   \
    "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\", \"max_position_embeddings\": 4096,"                         \
    "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}"
    if (place_make(state) != 0)
        return -1;
    place_model("other", SHAPE("64", "1"));
    place_model("bytes", SHAPE("256", "1"));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_worked_out_by_hand),  cmocka_unit_test(a_draft_that_is_wrong),
        cmocka_unit_test(prompts_come_from_a_text), cmocka_unit_test(bad_input),
        cmocka_unit_test(dry_run_predicts),
    };
    return cmocka_run_group_tests_name("speculative rows", tests, make, place_remove);
}
