/* phases, batch, roofline and gqa: counts, bytes, checksums and orderings that arithmetic forces, on the small model of
   tests/experiment_place.h. How long anything took is never asserted. */
#include "tests/experiment_place.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* a within a rounding of `decimals` digits of b */
static void assert_near(double a, double b, double tolerance, const char *what)
{
    if (!(fabs(a - b) <= tolerance))
        fail_msg("%s: %.9g is not %.9g (tolerance %g)", what, a, b, tolerance);
}

/* ---- phases ----------------------------------------------------------------------------------------------------- */

static const char phases_columns[] = "prompt_tokens,ttft_ms,tpot_ms_p50,tpot_ms_p95,prefill_tokens_per_s,"
                                     "decode_tokens_per_s,e2e_ms,effective_tokens_per_s,peak_ledger_bytes";

static void phases_of_a_request(void **state)
{
    (void)state;
    place_run("phases --contexts 16,600 --new-tokens 8 --reps 2", 0); /* 600: passes of 512 and 88 */
    struct csv_table table = place_csv("phases");
    place_assert_columns(&table, phases_columns);
    assert_int_equal(table.row_count, 2);
    for (size_t row = 0; row < 2; row++) {
        double ttft = place_real(&table, row, "ttft_ms"), e2e = place_real(&table, row, "e2e_ms");
        assert_true(ttft > 0.0 && e2e >= ttft);
        assert_near(place_real(&table, row, "e2e_predicted_ms"), ttft + 7 * place_real(&table, row, "tpot_ms_p50"),
                    0.0015 + 7 * 0.00005, "TTFT + (N - 1) TPOT");
        assert_int_equal(place_int(&table, row, "n"), 2);
        assert_int_equal(place_int(&table, row, "peak_ledger_bytes"), place_int(&table, row, "peak_formula_bytes"));
        assert_int_equal(strlen(place_text(&table, row, "tokens_checksum")), 16);
    }
    /* The peaks differ by the KV cache of 584 more tokens, and in nothing else. */
    assert_int_equal(place_int(&table, 1, "peak_ledger_bytes") - place_int(&table, 0, "peak_ledger_bytes"),
                     584 * PLACE_KV_BYTES);
    char *checksum = strdup(place_text(&table, 0, "tokens_checksum"));
    csv_table_free(&table);

    place_run("phases --contexts 16 --new-tokens 8 --reps 1", 0);
    place_run("phases --contexts 16,20 --new-tokens 8 --reps 1 --resume", 0);
    table = place_csv("phases");
    assert_int_equal(table.row_count, 2);
    assert_string_equal(place_text(&table, 0, "tokens_checksum"), checksum); /* the same work in another run */
    assert_int_equal(place_int(&table, 1, "prompt_tokens"), 20);
    free(checksum);
    csv_table_free(&table);
    place_run("phases --contexts 16 --new-tokens 1 --reps 1", 0); /* no decode step at all */
    table = place_csv("phases");
    assert_string_equal(place_text(&table, 0, "tpot_ms_p50"), "");
    csv_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_of_a_request),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
