/* ladder: its arithmetic by hand, and its steps on the small model of tests/experiment_place.h: rows counted, tokens
   equal, bytes held, and rates on a clock that the test moves. */
#include "tests/staged_run.h"

#include "bench/ladder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
enum { NO_CACHE, CACHE, STATIC, RESERVED, PAGED, PREFIX, FP8 };

/* The quick workload: 8 requests of 32 shared and 8 own tokens, outputs of 2, 4, 8 and 16, so 60 tokens; reservations
   of 64 tokens, 16,384 bytes, two of which are the budget: 128 tokens or 8 blocks. rows  without a cache 81 + 166 +
   348 + 760 = 1,355 for one of each length; with one 8 * 40 + 2 * (1 + 3 + 7 + 15) */
enum { ONE_OF_EACH_ROWS = 1355, CACHED_ROWS = 372, RESERVATION = 64 * PLACE_KV_BYTES };

/* ---- arithmetic ------------------------------------------------------------------------------------------------- */

/* 2 layers of 2 KV heads of 8, as in the place, and the quick workload. */
static const struct bench bench = {
    .config = {.name = "by hand",
               .vocab_size = 64,
               .hidden_size = 32,
               .intermediate_size = 64,
               .num_hidden_layers = 2,
               .num_attention_heads = 4,
               .num_key_value_heads = 2,
               .head_dim = 8,
               .tie_word_embeddings = true},
    .dtype = DTYPE_F32,
    .kv_dtype = DTYPE_F32,
};
static const struct ladder_load load = {.requests = 8,
                                        .shared = 32,
                                        .own = 8,
                                        .outputs = {2, 4, 8, 16},
                                        .max_tokens = 64,
                                        .rows = 64,
                                        .kv_budget = 2 * RESERVATION};

static struct ladder_estimate estimate(size_t step, double bytes_per_s, double flops_per_s)
{
    return ladder_predict(&bench, &load, &ladder_steps[step], &(struct ladder_machine){bytes_per_s, flops_per_s});
}

/* Where reading costs nothing, time goes by rows; so without a cache a token takes 1,355 / 30, with one 372 / 60. */
static void rows_decide_where_reading_is_free(void **state)
{
    (void)state;
    double row = estimate(CACHE, 1e30, 1.0).seconds / CACHED_ROWS;
    place_assert_near(estimate(NO_CACHE, 1e30, 1.0).seconds / row, ONE_OF_EACH_ROWS, 1e-6, "rows without a cache");
    place_assert_near(estimate(STATIC, 1e30, 1.0).seconds / row, CACHED_ROWS, 1e-6, "rows of static batches");
    place_assert_near(estimate(RESERVED, 1e30, 1.0).seconds / row, CACHED_ROWS, 1e-6, "rows of refilled slots");
    assert_true(estimate(NO_CACHE, 1e30, 1.0).positions == ONE_OF_EACH_ROWS);
    assert_true(estimate(CACHE, 1e30, 1.0).positions == CACHED_ROWS);
    assert_true(estimate(STATIC, 1e30, 1.0).positions == CACHED_ROWS);
    assert_true(estimate(PREFIX, 1e30, 1.0).positions == CACHED_ROWS - 8 * 32);
}

/* Where computing costs nothing a pass costs its bytes: without a cache 30 passes, with one 60 for twice the requests,
   all of them with the weights and the positions held. */
static void passes_decide_where_computing_is_free(void **state)
{
    (void)state;
    double weights = PLACE_WEIGHT_BYTES - 2 * 64 * 4; /* no biases in this config: 2 * 64 values */
    double held = 40 * 30 + 1 + 6 + 28 + 120;         /* P N + N (N - 1) / 2 */
    place_assert_near(estimate(NO_CACHE, 1.0, 1e30).seconds, 30 * weights + held * PLACE_KV_BYTES, 1.0, "no cache");
    place_assert_near(estimate(CACHE, 1.0, 1e30).seconds, 2 * (30 * weights + held * PLACE_KV_BYTES), 1.0, "cache");
}

static void batches_by_hand(void **state)
{
    (void)state;
    /* Pairs of 2 and 4, of 8 and 16: 1 + 3 and 7 + 15 tokens after the first in 3 and in 15 passes. */
    place_assert_near(estimate(STATIC, 1.0, 1.0).batch, 26.0 / 18.0, 1e-9, "a batch waits for its longest");
    place_assert_near(estimate(RESERVED, 1.0, 1.0).batch, 2.0, 1e-9, "both slots always full");
    /* 30 outputs hold 40 + i positions, 1,355 in all. */
    place_assert_near(estimate(PAGED, 1.0, 1.0).batch, 128.0 / (1355.0 / 30.0 + 7.5), 1e-9, "half a block wasted");
    /* 96 / (1,355 / 30 - 32 + 7.5) = 4.6, but the longest request needs 15 passes for the 52 tokens. */
    place_assert_near(estimate(PREFIX, 1.0, 1.0).batch, 52.0 / 15.0, 1e-9, "never shorter than the longest");
    assert_int_equal(ladder_slots(&bench, &load, &ladder_steps[RESERVED]), 2);
    assert_int_equal(ladder_slots(&bench, &load, &ladder_steps[PAGED]), 8);
    assert_int_equal(ladder_memory(&bench, &load, &ladder_steps[PAGED]).pool_blocks, 8);
    assert_int_equal(ladder_memory(&bench, &load, &ladder_steps[FP8]).pool_blocks, 32); /* a quarter of f32's bytes */
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */

static void steps_do_what_they_say(void **state)
{
    (void)state;
    place_run("ladder --quick", 0);
    struct csv_table table = place_csv("ladder");
    assert_int_equal(table.row_count, LADDER_STEPS);
    for (size_t i = 0; i < LADDER_STEPS; i++) {
        assert_string_equal(place_text(&table, i, "step"), ladder_steps[i].name);
        assert_int_equal(place_int(&table, i, "requests"), i == NO_CACHE ? 4 : 8);
        assert_int_equal(place_int(&table, i, "output_tokens"), i == NO_CACHE ? 30 : 60);
        if (i != FP8) { /* in f32 every request gets what it gets alone */
            assert_string_equal(place_text(&table, i, "output_equal"), "yes");
            assert_string_equal(place_text(&table, i, "equal_tokens_percent"), "100.00");
        }
        if (i != NO_CACHE && i != FP8)
            assert_string_equal(place_text(&table, i, "tokens_checksum"), place_text(&table, CACHE, "tokens_checksum"));
        if (i < PAGED) {
            assert_int_equal(place_int(&table, i, "positions"), i == NO_CACHE ? ONE_OF_EACH_ROWS : CACHED_ROWS);
            assert_int_equal(place_int(&table, i, "peak_kv_bytes"), i < STATIC ? RESERVATION : 2 * RESERVATION);
            assert_int_equal(place_int(&table, i, "preemptions"), 0);
        } else {
            int64_t peak = place_int(&table, i, "peak_kv_bytes");
            assert_true(peak > (i < FP8 ? RESERVATION : RESERVATION / 4) && peak <= 2 * RESERVATION);
        }
        assert_int_equal(place_int(&table, i, "hit_tokens"), i < PREFIX ? 0 : 8 * 32);
    }
    assert_int_equal(place_int(&table, FP8, "positions"), CACHED_ROWS - 8 * 32); /* room for all: nobody gives way */
    assert_true(place_real(&table, PREFIX, "mean_batch") > place_real(&table, STATIC, "mean_batch"));
    csv_table_free(&table);
}

static double rows_take_time(int rows, int context)
{
    (void)context;
    return rows;
}

/* A row takes a millisecond: 30 tokens in 1.355 s, 60 in 0.372 s, and batches gain nothing. */
static void rates_on_a_staged_clock(void **state)
{
    (void)state;
    struct stage stage = {.pass_ms = rows_take_time, .driver_share = 1.0};
    int status = staged_run("ladder --quick --reps 2", &stage);
    if (status != 0)
        fail_msg("status %d: %s", status, staged_stderr());
    struct csv_table table = place_csv("ladder");
    assert_string_equal(place_text(&table, NO_CACHE, "tokens_per_s"), "22.1");
    assert_string_equal(place_text(&table, NO_CACHE, "gain_over_previous"), "");
    assert_string_equal(place_text(&table, CACHE, "tokens_per_s"), "161.3");
    assert_string_equal(place_text(&table, CACHE, "gain_over_previous"), "7.28");
    assert_string_equal(place_text(&table, CACHE, "time_s"), "0.372");
    assert_string_equal(place_text(&table, STATIC, "gain_over_previous"), "1.00");
    assert_string_equal(place_text(&table, RESERVED, "gain_over_previous"), "1.00");
    assert_string_equal(place_text(&table, RESERVED, "gain_over_first"), "7.28");
    assert_string_equal(place_text(&table, RESERVED, "n"), "2");
    double saved = (double)place_int(&table, PAGED, "positions") / (double)place_int(&table, PREFIX, "positions");
    place_assert_near(place_real(&table, PREFIX, "gain_over_previous"), saved, 0.0051, "rows that were found");
    csv_table_free(&table);
}

static void bad_options(void **state)
{
    (void)state;
    static const struct {
        const char *line, *word;
        int status;
    } cases[] = {
        {"ladder --quick --requests 6", "--requests: 6", 2},   {"ladder --quick --requests 2", "--requests", 2},
        {"ladder --quick --max-tokens 55", "--max-tokens", 2}, {"ladder --quick --kv-budget 1000", "--kv-budget", 2},
        {"ladder --quick --contexts 8", "--contexts", 2},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        if (!strstr(place_run(cases[i].line, cases[i].status), cases[i].word))
            fail_msg("%s: no %s in the message", cases[i].line, cases[i].word);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_decide_where_reading_is_free),
        cmocka_unit_test(passes_decide_where_computing_is_free),
        cmocka_unit_test(batches_by_hand),
        cmocka_unit_test(steps_do_what_they_say),
        cmocka_unit_test(rates_on_a_staged_clock),
        cmocka_unit_test(bad_options),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
