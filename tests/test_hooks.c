/* What looking costs, as kvlab profile says it, on a clock that runs slower while operations are timed. How long
   anything took is never asserted. */
#include "tests/staged_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Passes are known by their order: a repetition visits prefill and decode step, with nothing timed inside and with all
   of it; the first is not kept, and from the second on (number 1) the order alternates. Then pairs of three decode
   steps. */
enum { REPS = 6, VISIT = 2, STEPS = 3 };
static int reps, passes;
static double slower;

static bool is_watched(int number)
{
    int visits = 2 * (reps + 1);
    if (number < visits * VISIT) {
        int visit = number / VISIT, repetition = visit / 2 - 1;
        return visit % 2 != (repetition > 0 && repetition % 2);
    }
    int steps = number - visits * VISIT;
    return steps / STEPS % 2 != steps / STEPS / 2 % 2;
}

static double pass_by_order(int rows, int context)
{
    (void)rows;
    (void)context;
    return is_watched(passes++) ? 1 + slower : 1;
}

static void run(const char *line, double by)
{
    passes = 0;
    slower = by;
    assert_int_equal(staged_run(line, &(struct stage){.pass_ms = pass_by_order}), 0);
}

/* Row of the pass of a phase. */
static size_t row_of(const struct csv_table *table, const char *phase)
{
    for (size_t row = 0; row < table->row_count; row++)
        if (strcmp(place_text(table, row, "phase"), phase) == 0 &&
            strcmp(place_text(table, row, "operation"), "pass") == 0)
            return row;
    fail_msg("no pass of %s", phase);
    return 0;
}

static void assert_cost(const char *phase, double percent, int pairs, const char *verdict)
{
    static const char *const columns[] = {"hooks_percent", "hooks_ci95_low", "hooks_ci95_high"};
    struct csv_table table = place_csv("profile");
    size_t row = row_of(&table, phase);
    for (size_t i = 0; i < 3; i++)
        place_assert_near(place_real(&table, row, columns[i]), percent, 0.0006, columns[i]);
    assert_int_equal(place_int(&table, row, "hooks_pairs"), pairs);
    assert_string_equal(place_text(&table, row, "hooks_verdict"), verdict);
    place_assert_near(place_real(&table, row, "plain_ms"), 1, 0, "plain_ms");
    csv_table_free(&table);
}

/* 1/128 is 0.78 %, 1/256 is 0.39 %; neither is a reason to fail. */
static void cost_of_looking(void **state)
{
    (void)state;
    reps = REPS;
    run("profile --contexts 16 --batch 1 --reps 6", 1.0 / 128);
    assert_cost("prefill", 0.78125, REPS, "above");
    assert_cost("decode", 0.78125, REPS, "above");
    char *text = staged_stderr();
    assert_non_null(strstr(text,
                           "decode, context 16, batch 1: looking costs 0.78 % (95 % interval 0.78 to 0.78; 6 pairs): "
                           "above 0.5 %"));
    free(text);
    run("profile --contexts 16 --batch 1 --reps 6", 1.0 / 256);
    assert_cost("prefill", 0.390625, REPS, "below");
    assert_cost("decode", 0.390625, REPS, "below");
}

/* Of decode steps as many pairs as it takes: without any spread the least, eight. */
static void pairs_without_reps(void **state)
{
    (void)state;
    reps = 7;
    run("profile --contexts 16 --batch 1", 1.0 / 128);
    assert_cost("prefill", 0.78125, 7, "above");
    assert_cost("decode", 0.78125, 8, "above");
}

/* Two pairs have no interval. */
static void too_few_pairs(void **state)
{
    (void)state;
    reps = 2;
    run("profile --contexts 16 --batch 1 --reps 2", 1.0 / 128);
    struct csv_table table = place_csv("profile");
    size_t row = row_of(&table, "decode");
    assert_string_equal(place_text(&table, row, "hooks_ci95_low"), "");
    assert_string_equal(place_text(&table, row, "hooks_verdict"), "not resolved");
    csv_table_free(&table);
    char *text = staged_stderr();
    assert_non_null(strstr(text, "(no interval from so few; 2 pairs): not resolved from 0.5 %"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cost_of_looking),
        cmocka_unit_test(pairs_without_reps),
        cmocka_unit_test(too_few_pairs),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
