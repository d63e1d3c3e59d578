/* kvquant: every type's bytes by hand, its errors against the f32 cache. Small
   models, see tests/experiment_place.h: 2 layers with 2 KV heads of 8, published in f32. */
#include "tests/staged_run.h"

#include <string.h>

static const char *const types[] = {"f32", "f16", "bf16", "fp8", "int8"};
static const int per_token[] = {256, 128, 128, 64, 96}; /* 2 * 2 * 2 * (8 * bytes), int8: 2 * 2 * 2 * (8 + 4) */
enum { TYPES = 5 };

static double half_a_millisecond(int rows, int context)
{
    (void)rows;
    (void)context;
    return 0.5;
}

static void every_type_by_hand(void **state)
{
    (void)state;
    static const double saved[] = {0.0, 50.0, 50.0, 75.0, 62.5};
    assert_int_equal(staged_run("kvquant --contexts 16 --quick", &(struct stage){.pass_ms = half_a_millisecond}), 0);
    struct csv_table table = place_csv("kvquant");
    assert_int_equal(table.row_count, TYPES);
    for (size_t row = 0; row < TYPES; row++) {
        assert_string_equal(place_text(&table, row, "kv_dtype"), types[row]);
        assert_int_equal(place_int(&table, row, "kv_formula_bytes"), 16 * per_token[row]);
        assert_int_equal(place_int(&table, row, "kv_tensor_bytes"), 16 * per_token[row]);
        assert_int_equal(place_int(&table, row, "kv_ledger_bytes"), 16 * per_token[row]);
        place_assert_near(place_real(&table, row, "kv_bytes_per_token"), per_token[row], 0.0, "bytes per token");
        place_assert_near(place_real(&table, row, "bytes_saved_percent"), saved[row], 0.005, "saved");
        place_assert_near(place_real(&table, row, "tpot_ms_p50"), 0.5, 0.0, "tpot");
        assert_int_equal(place_int(&table, row, "n"), 9);
        /* weights once, 17 positions read, one written, at 1 GB/s */
        place_assert_near(place_real(&table, row, "predicted_ms"), (83072 + 18 * per_token[row]) / 1e6, 0.00005,
                          "predicted");
        assert_string_equal(place_text(&table, row, "perplexity"), ""); /* the weights have learned nothing */
        assert_int_equal(place_int(&table, row, "tokens"), 15);         /* one is followed by none */
    }
    csv_table_free(&table);
}

/* Seeded random tokens: the f32 cache agrees with itself, rounding shows, and most where there are fewest bits. */
static void errors_follow_the_rounding(void **state)
{
    (void)state;
    assert_int_equal(staged_run("kvquant --contexts 64 --quick --reps 1", &(struct stage){0}), 0);
    struct csv_table table = place_csv("kvquant");
    double rms[TYPES];
    for (size_t row = 0; row < TYPES; row++) {
        rms[row] = place_real(&table, row, "rms_logit_error");
        assert_true(place_real(&table, row, "max_logit_error") >= rms[row]);
    }
    assert_true(rms[0] == 0.0 && place_real(&table, 0, "same_choice_percent") == 100.0);
    assert_true(rms[1] > 0.0 && rms[2] > 2 * rms[1] && rms[4] > 2 * rms[1]);
    assert_true(rms[3] > 4 * rms[2] && rms[3] > 4 * rms[4]);
    csv_table_free(&table);
}

static void types_of_weights_and_cache_are_two_choices(void **state)
{
    (void)state;
    static const char *const weights[] = {"f32", "f16", "bf16"};
    assert_int_equal(staged_run("kvquant --contexts 16 --quick --reps 1", &(struct stage){0}), 0);
    struct csv_table table = place_csv("kvquant_types");
    assert_int_equal(table.row_count, 3 * TYPES);
    for (size_t row = 0; row < table.row_count; row++) {
        int64_t bytes = row / TYPES == 0 ? 83072 : 41536, kv = 16 * per_token[row % TYPES];
        assert_string_equal(place_text(&table, row, "weights_dtype"), weights[row / TYPES]);
        assert_string_equal(place_text(&table, row, "kv_dtype"), types[row % TYPES]);
        assert_int_equal(place_int(&table, row, "weights_bytes"), bytes);
        assert_int_equal(place_int(&table, row, "kv_bytes"), kv);
        assert_int_equal(place_int(&table, row, "total_bytes"), bytes + kv);
        assert_int_equal(place_int(&table, row, "formula_bytes"), bytes + kv);
    }
    csv_table_free(&table);
}

static void one_type_is_held_against_f32(void **state)
{
    (void)state;
    assert_int_equal(staged_run("kvquant --contexts 16 --quick --reps 1 --kv-dtype int8", &(struct stage){0}), 0);
    struct csv_table table = place_csv("kvquant");
    assert_int_equal(table.row_count, 2);
    assert_string_equal(place_text(&table, 0, "kv_dtype"), "f32");
    assert_string_equal(place_text(&table, 1, "kv_dtype"), "int8");
    csv_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_by_hand),
        cmocka_unit_test(errors_follow_the_rounding),
        cmocka_unit_test(types_of_weights_and_cache_are_two_choices),
        cmocka_unit_test(one_type_is_held_against_f32),
    };
    return cmocka_run_group_tests_name("kvquant", tests, place_make, place_remove);
}
