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

/* ---- batch ------------------------------------------------------------------------------------------------------ */

static const char batch_columns[] =
    "batch,ttft_ms,tpot_ms,tokens_per_s,tokens_per_s_per_request,kv_bytes,peak_ledger_bytes,intensity_flop_per_byte,"
    "percent_of_matrix_ceiling,percent_of_read_ceiling";

/* The first decode step after 10 tokens, of one request: 2 * 18,432 + 2 * 64 * 32 + 4 * 32 * 11 positions * 2 layers =
   43,776 FLOP; 83,072 bytes of weights + 11 * 256 read + 256 written = 86,144. Of three: 131,328 and 83,072 + 9,216. */
static void batch_counts(void **state)
{
    (void)state;
    static const int64_t batches[] = {1, 3}, flops[] = {43776, 131328}, bytes[] = {86144, 92288};
    place_run("batch --batch 1,3 --contexts 10 --reps 2 --quick", 0);
    struct csv_table table = place_csv("batch");
    place_assert_columns(&table, batch_columns);
    assert_int_equal(table.row_count, 2);
    for (size_t row = 0; row < 2; row++) {
        double batch = (double)batches[row];
        assert_int_equal(place_int(&table, row, "batch"), batches[row]);
        assert_int_equal(place_int(&table, row, "step_flops"), flops[row]);
        assert_int_equal(place_int(&table, row, "step_bytes"), bytes[row]);
        assert_near(place_real(&table, row, "intensity_flop_per_byte"), (double)flops[row] / (double)bytes[row], 0.0005,
                    "intensity");
        /* room for 10 tokens and the 8 steps of a visit */
        assert_int_equal(place_int(&table, row, "kv_bytes"), batches[row] * 18 * PLACE_KV_BYTES);
        assert_int_equal(place_int(&table, row, "kv_formula_bytes"), batches[row] * 18 * PLACE_KV_BYTES);
        assert_int_equal(place_int(&table, row, "steps"), 16);
        double each = place_real(&table, row, "tokens_per_s_per_request");
        assert_near(place_real(&table, row, "tokens_per_s"), batch * each, 0.05 + batch * 0.005, "rate of all");
    }
    assert_int_equal(place_int(&table, 1, "peak_ledger_bytes") - place_int(&table, 0, "peak_ledger_bytes"),
                     2 * 18 * PLACE_KV_BYTES + 2 * PLACE_LOGITS_BYTES);
    csv_table_free(&table);
    table = place_csv("batch_summary");
    assert_int_equal(table.row_count, 1);
    csv_table_free(&table);
}

/* ---- roofline --------------------------------------------------------------------------------------------------- */

static const char roofline_columns[] = "phase,tokens,flops,bytes,intensity_flop_per_byte,tflops,"
                                       "percent_of_matrix_ceiling,gbps,percent_of_read_ceiling,bound";

/* A token takes 36,864 FLOP in the layers' matrices, one row of the head 4,096, a position seen 4 * 32 in each of 2
   layers. Weights are 83,072 bytes, a position 256.
     prefill of 4   4 * 36,864 + 4,096 + 256 * 10 = 154,112        83,072 + 2 * 4 * 256 = 85,120
     prefill of 10  10 * 36,864 + 4,096 + 256 * 55 = 386,816       83,072 + 2 * 10 * 256 = 88,192
     decode at 16   36,864 + 4,096 + 256 * 17 = 45,312             83,072 + (17 + 1) * 256 = 87,680
     of a batch 3   135,936                                        83,072 + 3 * 18 * 256 = 96,896 */
static void roofline_counts(void **state)
{
    (void)state;
    static const struct {
        const char *phase;
        int64_t tokens, flops, bytes;
    } cases[] = {{"prefill", 4, 154112, 85120},
                 {"prefill", 10, 386816, 88192},
                 {"decode", 1, 45312, 87680},
                 {"decode", 3, 135936, 96896}};
    place_run("roofline --contexts 4,10 --batch 1,3 --reps 2 --quick", 0);
    struct csv_table table = place_csv("roofline");
    place_assert_columns(&table, roofline_columns);
    assert_int_equal(table.row_count, 4);
    for (size_t row = 0; row < 4; row++) {
        assert_string_equal(place_text(&table, row, "phase"), cases[row].phase);
        assert_int_equal(place_int(&table, row, "tokens"), cases[row].tokens);
        assert_int_equal(place_int(&table, row, "flops"), cases[row].flops);
        assert_int_equal(place_int(&table, row, "bytes"), cases[row].bytes);
        double balance = place_real(&table, row, "balance_flop_per_byte");
        double intensity = (double)cases[row].flops / (double)cases[row].bytes;
        assert_near(place_real(&table, row, "intensity_flop_per_byte"), intensity, 0.0005, "intensity");
        if (fabs(intensity - balance) > 0.01)
            assert_string_equal(place_text(&table, row, "bound"), intensity > balance ? "compute" : "memory");
        assert_int_equal(place_int(&table, row, "n"), row < 2 ? 2 : 6);
    }
    char *meta = place_meta("roofline");
    assert_non_null(strstr(meta, "\"balance_flop_per_byte\""));
    free(meta);
    csv_table_free(&table);
    place_run("roofline --contexts 4,6 --batch 1,3 --reps 2 --quick --resume", 0);
    table = place_csv("roofline");
    assert_int_equal(table.row_count, 5); /* the four kept, and one more */
    assert_int_equal(place_int(&table, 4, "tokens"), 6);
    csv_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_of_a_request),
        cmocka_unit_test(batch_counts),
        cmocka_unit_test(roofline_counts),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
