/* The experiments on serving on a staged clock: what they count and compute, worked out by hand. */
#include "tests/staged_run.h"

#include "bench/harness/in_flight.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* On one thread: models so small gain nothing by more, and lose much where other work has the cores. */
static void run(const char *line, double (*pass_ms)(int, int), int wanted)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s --threads 1", line);
    int status = staged_run(whole, &(struct stage){.pass_ms = pass_ms});
    if (status != wanted) {
        char *text = staged_stderr();
        fail_msg("kvlab run %s: status %d: %s", line, status, text);
    }
}

/* Every pass takes a millisecond, or one per row. */
static double one_ms(int rows, int context)
{
    (void)rows;
    (void)context;
    return 1.0;
}

static double ms_per_row(int rows, int context)
{
    (void)context;
    return rows;
}

static size_t row_of(const struct csv_table *table, const char *a, const char *is_a, const char *b, const char *is_b)
{
    for (size_t row = 0; row < table->row_count; row++)
        if (strcmp(place_text(table, row, a), is_a) == 0 && strcmp(place_text(table, row, b), is_b) == 0)
            return row;
    fail_msg("no row with %s %s and %s %s", a, is_a, b, is_b);
    return 0;
}

/* What a row must lead to once someone has changed it: a check that fails. */
static void check_notices(const char *experiment, const char *line, size_t row, const char *column, const char *value)
{
    char resumed[256];
    place_set(experiment, row, column, value);
    snprintf(resumed, sizeof resumed, "%s --resume", line);
    run(resumed, one_ms, 1);
}

/* ---- batching ---- */

/* 16 requests of 4, 8, 16, 64 tokens in turn, or 23 each, on 4 slots: 4 batches. Static and mixed: 4 * 64 steps, of
   whose 1,024 cells 368 give a token. */
static void batching_counts_its_cells(void **state)
{
    (void)state;
    run("batching --quick", one_ms, 0);
    struct csv_table table = place_csv("batching");
    assert_int_equal(table.row_count, 4);
    size_t same[] = {row_of(&table, "policy", "static", "load", "same"),
                     row_of(&table, "policy", "continuous", "load", "same")};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(place_int(&table, same[i], "steps"), 4 * 23);
        place_assert_near(place_real(&table, same[i], "idle_cells_percent"), 0, 0, "idle cells");
        place_assert_near(place_real(&table, same[i], "tokens_per_s"), 368.0 / 92 * 1e3, 0.05, "tokens per second");
        /* batches give their first tokens at 1, 24, 47 and 70 ms, their last at 23, 46, 69 and 92 */
        place_assert_near(place_real(&table, same[i], "ttft_ms_p50"), 35.5, 0.05, "TTFT");
        place_assert_near(place_real(&table, same[i], "e2e_ms_p50"), 57.5, 0.05, "E2E");
        assert_string_equal(place_text(&table, same[i], "ttft_ms_p50_class_2"), "");
    }
    size_t fixed = row_of(&table, "policy", "static", "load", "mixed");
    size_t free_slot = row_of(&table, "policy", "continuous", "load", "mixed");
    assert_int_equal(place_int(&table, fixed, "steps"), 256);
    place_assert_near(place_real(&table, fixed, "idle_cells_percent"), 64.0625, 0.006, "idle cells");
    place_assert_near(place_real(&table, fixed, "e2e_ms_p50_class_1"), (64 + 128) / 2.0 + 4, 0.05, "E2E of 4 tokens");
    place_assert_near(place_real(&table, fixed, "e2e_ms_p50_class_4"), (64 + 128) / 2.0 + 64, 0.05, "E2E of 64 tokens");
    assert_true(place_int(&table, free_slot, "steps") < 256);
    assert_int_equal(place_int(&table, free_slot, "steps"), place_int(&table, free_slot, "predicted_steps"));
    double cells = 4.0 * (double)place_int(&table, free_slot, "steps");
    place_assert_near(place_real(&table, free_slot, "idle_cells_percent"), 100 - 100 * 368 / cells, 0.006,
                      "idle cells");
    assert_int_equal(place_int(&table, free_slot, "output_equal"), 16);
    assert_string_equal(place_text(&table, fixed, "tokens_checksum"), place_text(&table, free_slot, "tokens_checksum"));
    csv_table_free(&table);
}

/* No slot is held by two requests in one step, and every request holds one for as many steps as it has tokens. */
static void batching_timeline_fits(void **state)
{
    (void)state;
    run("batching --quick", one_ms, 0);
    struct csv_table table = place_csv("batching_timeline");
    assert_int_equal(table.row_count, 4 * 16);
    for (size_t i = 0; i < table.row_count; i++) {
        int64_t first = place_int(&table, i, "first_step"), last = place_int(&table, i, "last_step");
        assert_int_equal(last - first + 1, place_int(&table, i, "output_tokens"));
        assert_in_range(place_int(&table, i, "slot"), 0, 3);
        for (size_t j = 0; j < i; j++)
            if (strcmp(place_text(&table, i, "policy"), place_text(&table, j, "policy")) == 0 &&
                strcmp(place_text(&table, i, "load"), place_text(&table, j, "load")) == 0 &&
                place_int(&table, i, "slot") == place_int(&table, j, "slot"))
                assert_true(place_int(&table, j, "last_step") < first || last < place_int(&table, j, "first_step"));
    }
    csv_table_free(&table);
}

static void batching_prints_the_timeline(void **state)
{
    (void)state;
    run("batching --quick --timeline", one_ms, 0);
    char *text = staged_stderr();
    assert_non_null(strstr(text, "static, mixed: 256 steps"));
    assert_non_null(strstr(text, "slot  3  ddd"));
    assert_non_null(strstr(text, "slot  0  a..."));
    free(text);
    text = staged_stdout(); /* the table, and not the rows of the plot */
    assert_non_null(strstr(text, "continuous"));
    assert_null(strstr(text, "batching_timeline"));
    free(text);
}

/* The lesson's sizes, by arithmetic alone. */
static void batching_predicts_the_lesson(void **state)
{
    (void)state;
    run("batching --dry-run --format csv", one_ms, 0);
    char *text = staged_stdout();
    assert_non_null(strstr(text, ",static,16,mixed,64,11776,,,,,,,,2048,64.06,"));
    assert_non_null(strstr(text, ",continuous,16,same,64,11776,,,,,,,,736,0.00,"));
    free(text);
}

static void batching_refuses_what_does_not_divide(void **state)
{
    (void)state;
    run("batching --quick --requests 18", one_ms, 2);
    char *text = staged_stderr();
    assert_non_null(strstr(text, "--requests 18"));
    free(text);
}

static void batching_notices_wrong_steps(void **state)
{
    (void)state;
    run("batching --quick", one_ms, 0);
    check_notices("batching", "batching --quick", 2, "steps", "255");
}

/* ---- prefix ---- */

/* 100 shared tokens and 10 of the question's own: 96 found in 6 blocks of 16, 14 computed. 113 positions are stored, in
   8 blocks; of these 2 are taken once the others are shared. */
static void prefix_finds_full_blocks(void **state)
{
    (void)state;
    run("prefix --quick", ms_per_row, 0);
    struct csv_table table = place_csv("prefix");
    assert_int_equal(table.row_count, 8);
    for (size_t row = 0; row < table.row_count; row++) {
        bool hits = strcmp(place_text(&table, row, "prefix_cache"), "on") == 0 && place_int(&table, row, "request") > 1;
        assert_int_equal(place_int(&table, row, "prompt_tokens"), 110);
        assert_int_equal(place_int(&table, row, "hit_tokens"), hits ? 96 : 0);
        assert_int_equal(place_int(&table, row, "computed_tokens"), hits ? 14 : 110);
        place_assert_near(place_real(&table, row, "prefill_ms"), hits ? 14 : 110, 1e-3, "prefill");
        assert_int_equal(place_int(&table, row, "kv_allocated_bytes"), (hits ? 2 : 8) * 16 * PLACE_KV_BYTES);
        assert_string_equal(place_text(&table, row, "output_equal"), "yes");
    }
    csv_table_free(&table);
    table = place_csv("prefix_summary");
    place_assert_near(place_real(&table, 0, "prefill_ratio"), 110.0 / 14, 0.006, "ratio");
    place_assert_near(place_real(&table, 0, "hit_percent"), 100.0 * 96 / 110, 0.006, "hits");
    assert_int_equal(place_int(&table, 0, "kv_bytes_off"), 4 * 8 * 16 * PLACE_KV_BYTES);
    assert_int_equal(place_int(&table, 0, "kv_bytes_on"), (8 + 3 * 2) * 16 * PLACE_KV_BYTES);
    csv_table_free(&table);
}

/* A prompt of whole blocks that is there already: its last token is computed all the same. */
static void prefix_leaves_the_last_token(void **state)
{
    (void)state;
    run("prefix --quick --shared-tokens 31 --question-tokens 1", ms_per_row, 0);
    struct csv_table table = place_csv("prefix");
    size_t row = row_of(&table, "prefix_cache", "on", "request", "2");
    assert_int_equal(place_int(&table, row, "hit_tokens"), 16);
    csv_table_free(&table);
}

/* 15 shared tokens and a vocabulary of 64: among 40 questions some begin alike and complete a block. What was found is
   still what is predicted (else status 1), and somebody found it. */
static void prefix_of_questions_that_begin_alike(void **state)
{
    (void)state;
    run("prefix --quick --shared-tokens 15 --question-tokens 4 --requests 40", ms_per_row, 0);
    struct csv_table table = place_csv("prefix");
    int found = 0;
    for (size_t row = 0; row < table.row_count; row++)
        found += place_int(&table, row, "hit_tokens") == 16;
    assert_true(found > 0 && found < 39);
    csv_table_free(&table);
}

static void prefix_notices_a_hit_that_should_miss(void **state)
{
    (void)state;
    run("prefix --quick", one_ms, 0);
    check_notices("prefix", "prefix --quick", 1, "hit_tokens", "96");
}

/* ---- chunked ---- */

/* A millisecond per row, a prompt of 56: chunks of 16 take it in 7 steps of 16 rows, chunks of 64 in one of 64. The
   others' gaps are 8 ms before, and a chunk's after. */
static void chunked_gaps_by_hand(void **state)
{
    (void)state;
    static const int steps[] = {7, 3, 1}, ttft[] = {7 * 16, 56 + 3 * 8, 64}, longest[] = {16, 32, 64};
    run("chunked --quick", ms_per_row, 0);
    struct csv_table table = place_csv("chunked");
    assert_int_equal(table.row_count, 3);
    for (size_t row = 0; row < 3; row++) {
        assert_int_equal(place_int(&table, row, "steps"), steps[row]);
        place_assert_near(place_real(&table, row, "ttft_ms"), ttft[row], 0.01, "TTFT");
        place_assert_near(place_real(&table, row, "itl_ms_max"), longest[row], 0.001, "longest gap");
        place_assert_near(place_real(&table, row, "itl_ms_p50"), 8, 0.001, "median gap");
        assert_int_equal(place_int(&table, row, "peak_workspace_bytes"),
                         place_int(&table, row, "workspace_formula_bytes"));
        assert_string_equal(place_text(&table, row, "tokens_checksum"), place_text(&table, 0, "tokens_checksum"));
    }
    csv_table_free(&table);
}

static void chunked_notices_wrong_steps(void **state)
{
    (void)state;
    run("chunked --quick", one_ms, 0);
    check_notices("chunked", "chunked --quick", 0, "steps", "8");
}

/* ---- serve ---- */

/* 2 from 1 ms, 3 from 2, 1 from 4, 0 from 8. */
static void in_flight_means_by_hand(void **state)
{
    (void)state;
    struct error error;
    struct in_flight flight = {0};
    static const double at_ms[] = {1, 2, 4, 8};
    static const int more[] = {2, 1, -2, -1};
    for (int i = 0; i < 4; i++)
        assert_int_equal(in_flight_change(&flight, at_ms[i], more[i], &error), STATUS_OK);
    place_assert_near(in_flight_mean(&flight, 1, 8), (2 * 1 + 3 * 2 + 1 * 4) / 7.0, 1e-12, "mean");
    place_assert_near(in_flight_mean(&flight, 1.5, 3), (2 * 0.5 + 3 * 1) / 1.5, 1e-12, "mean of a part");
    place_assert_near(in_flight_mean(&flight, 5, 6), 1, 1e-12, "mean between two changes");
    in_flight_free(&flight);
}

static void serve_by_hand(void **state)
{
    (void)state;
    run("serve --quick", one_ms, 0);
    struct csv_table table = place_csv("serve");
    size_t one = row_of(&table, "load", "closed", "level", "1"), eight = row_of(&table, "load", "closed", "level", "8");
    size_t half = row_of(&table, "load", "open", "level", "50"), over = row_of(&table, "load", "open", "level", "150");
    /* One user: in flight all the time, never in the queue; the first token takes the step of the prompt. */
    place_assert_near(place_real(&table, one, "in_flight"), 1, 1e-3, "in flight");
    place_assert_near(place_real(&table, one, "queue_ms_p50"), 0, 0, "queue");
    place_assert_near(place_real(&table, one, "ttft_ms_p50"), 1, 0, "TTFT");
    place_assert_near(place_real(&table, one, "ttft_ms_p99"), 1, 0, "TTFT");
    place_assert_near(place_real(&table, one, "tpot_ms_p50"), 1, 0, "TPOT");
    place_assert_near(place_real(&table, one, "decode_tokens_per_s"), 1e3, 0.05, "decode rate");
    place_assert_near(place_real(&table, one, "effective_tokens_per_s"), 1e3, 0.05, "a token per step, prompts too");
    place_assert_near(place_real(&table, one, "littles_law_error_percent"), 0, 1e-3, "Little's law");
    /* Eight users on four slots: four of them wait, until there is nothing left to send. */
    place_assert_near(place_real(&table, eight, "in_flight_first_half"), 8, 0, "in flight");
    place_assert_near(place_real(&table, eight, "in_flight_second_half"), 8, 0, "in flight");
    assert_true(place_real(&table, eight, "queue_ms_p50") >= 1);
    assert_true(place_real(&table, eight, "ttft_ms_p50") >= place_real(&table, eight, "queue_ms_p50"));
    place_assert_near(place_real(&table, eight, "prefill_ms_p50"), 1, 0, "prefill");
    /* Half the capacity is kept up with; one and a half is not. */
    assert_string_equal(place_text(&table, half, "stable"), "yes");
    place_assert_near(place_real(&table, half, "rate_or_users"), 0.5 * place_real(&table, eight, "requests_per_s"),
                      0.001, "rate");
    assert_string_equal(place_text(&table, over, "stable"), "no");
    assert_true(place_real(&table, over, "queue_ms_p50") > place_real(&table, half, "queue_ms_p50"));
    for (size_t row = 0; row < table.row_count; row++) {
        place_assert_near(place_real(&table, row, "littles_law_error_percent"), 0, 2, "Little's law");
        assert_in_range(place_int(&table, row, "preemptions"), 0, 0);
        assert_string_equal(place_text(&table, row, "tokens_checksum"), place_text(&table, 0, "tokens_checksum"));
    }
    csv_table_free(&table);
}

static void serve_notices_a_broken_law(void **state)
{
    (void)state;
    run("serve --quick", one_ms, 0);
    check_notices("serve", "serve --quick", 0, "littles_law_error_percent", "2.500");
}

/* Four requests at a hundredth of the capacity are mostly waiting, and with the real clock that takes its time: what
   the rows say has passed, has. */
static void serve_waits_by_the_real_clock(void **state)
{
    (void)state;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    place_run("serve --quick --threads 1 --requests 4 --users 1 --load-percents 1 --clock real", 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double passed_s = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
    struct csv_table table = place_csv("serve");
    double said_s = 4 / place_real(&table, row_of(&table, "load", "open", "level", "1"), "requests_per_s");
    if (passed_s < 0.99 * said_s)
        fail_msg("%g s of load in %g s", said_s, passed_s);
    csv_table_free(&table);
}

static int64_t preemptions_of(const char *line)
{
    int64_t sum = 0;
    run(line, one_ms, 0);
    struct csv_table table = place_csv("serve");
    for (size_t row = 0; row < table.row_count; row++) {
        sum += place_int(&table, row, "preemptions");
        assert_true(place_real(&table, row, "kv_used_percent_max") <= 100.0);
    }
    csv_table_free(&table);
    return sum;
}

/* 5 blocks, where the longest request takes 3: admitted with what they know, requests give way; as a whole, none. */
static void serve_admits_what_fits(void **state)
{
    (void)state;
    assert_true(preemptions_of("serve --quick --kv-budget 20480") > 0);
    assert_int_equal(preemptions_of("serve --quick --kv-budget 20480 --admission whole"), 0);
    run("serve --quick --kv-budget 12287", one_ms, 2); /* a byte less than 3 blocks of 16 * PLACE_KV_BYTES */
    char *text = staged_stderr();
    assert_non_null(strstr(text, "12288 bytes"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batching_counts_its_cells),
        cmocka_unit_test(batching_timeline_fits),
        cmocka_unit_test(batching_prints_the_timeline),
        cmocka_unit_test(batching_predicts_the_lesson),
        cmocka_unit_test(batching_refuses_what_does_not_divide),
        cmocka_unit_test(batching_notices_wrong_steps),
        cmocka_unit_test(prefix_finds_full_blocks),
        cmocka_unit_test(prefix_leaves_the_last_token),
        cmocka_unit_test(prefix_of_questions_that_begin_alike),
        cmocka_unit_test(prefix_notices_a_hit_that_should_miss),
        cmocka_unit_test(chunked_gaps_by_hand),
        cmocka_unit_test(chunked_notices_wrong_steps),
        cmocka_unit_test(in_flight_means_by_hand),
        cmocka_unit_test(serve_by_hand),
        cmocka_unit_test(serve_notices_a_broken_law),
        cmocka_unit_test(serve_admits_what_fits),
        cmocka_unit_test(serve_waits_by_the_real_clock),
    };
    return cmocka_run_group_tests_name("serving_experiments", tests, place_make, place_remove);
}
