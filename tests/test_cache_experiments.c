/* window: bytes, orderings and refusals that arithmetic forces, on the small model of tests/experiment_place.h. How
   long anything took is asserted only where the clock is staged. */
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
    place_run("window --contexts 20,100 --window 8,40 --quick", 0);
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
    assert_non_null(strstr(place_run("window --text /no/such/text --quick", 2), "vocabulary of 64"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_of_blocks),
        cmocka_unit_test(window_on_a_staged_clock),
        cmocka_unit_test(window_refusals),
    };
    return cmocka_run_group_tests_name("cache_experiments", tests, place_make, place_remove);
}
