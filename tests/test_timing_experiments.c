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

/* ---- gqa -------------------------------------------------------------------------------------------------------- */

static const char gqa_columns[] = "num_key_value_heads,kind,bytes_per_token,tpot_ms_p50,percent_of_read_ceiling";

/* A KV head: 2 * 2 layers * 8 * 4 = 128 bytes a token, and 2 * 2 * (32 + 1) * 8 * 4 = 4,224 bytes of K and V matrices
   with their biases; the model's own two make 83,072 bytes of weights. A step at 20 tokens reads 21 and writes one:
     1 head 78,848 + 22 * 128 = 81,664, 2 heads 83,072 + 22 * 256 = 88,704, 4 heads 91,520 + 22 * 512 = 102,784 */
static void gqa_is_linear_in_the_heads(void **state)
{
    (void)state;
    static const int64_t heads[] = {1, 2, 4}, bytes[] = {128, 256, 512}, read[] = {81664, 88704, 102784};
    static const char *const kinds[] = {"MQA", "GQA", "MHA"};
    place_run("gqa --contexts 20 --reps 3 --quick", 0);
    struct csv_table table = place_csv("gqa");
    place_assert_columns(&table, gqa_columns);
    assert_int_equal(table.row_count, 3);
    for (size_t row = 0; row < 3; row++) {
        assert_int_equal(place_int(&table, row, "num_key_value_heads"), heads[row]);
        assert_string_equal(place_text(&table, row, "kind"), kinds[row]);
        assert_int_equal(place_int(&table, row, "bytes_per_token"), bytes[row]);
        assert_int_equal(place_int(&table, row, "bytes_per_token_formula"), bytes[row]);
        assert_int_equal(place_int(&table, row, "step_bytes"), read[row]);
        assert_int_equal(place_int(&table, row, "n"), 9);
        if (row > 0) /* other heads choose other tokens, or the heads were not what was changed */
            assert_string_not_equal(place_text(&table, row, "tokens_checksum"),
                                    place_text(&table, row - 1, "tokens_checksum"));
    }
    csv_table_free(&table);
    table = place_csv("gqa_fit");
    assert_int_equal(table.row_count, 2);
    assert_string_equal(place_text(&table, 0, "quantity"), "bytes_per_token");
    assert_near(place_real(&table, 0, "slope_per_kv_head"), 128.0, 1e-6, "slope of bytes");
    assert_near(place_real(&table, 0, "predicted_slope"), 128.0, 1e-6, "its prediction");
    assert_near(place_real(&table, 0, "intercept"), 0.0, 1e-6, "bytes without heads");
    assert_string_equal(place_text(&table, 1, "quantity"), "tpot_ms");
    assert_string_equal(place_text(&table, 1, "interval_from"), "repetitions");
    csv_table_free(&table);

    place_run("gqa --contexts 20,30 --reps 3 --quick --resume", 0);
    table = place_csv("gqa");
    assert_int_equal(table.row_count, 6);
    csv_table_free(&table);
    table = place_csv("gqa_fit");
    assert_int_equal(table.row_count, 4);
    assert_string_equal(place_text(&table, 1, "interval_from"), "repetitions"); /* 30 tokens */
    assert_int_equal(place_int(&table, 3, "context"), 20);
    assert_string_equal(place_text(&table, 3, "interval_from"), "rows"); /* kept */
    csv_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_of_a_request),
        cmocka_unit_test(batch_counts),
        cmocka_unit_test(roofline_counts),
        cmocka_unit_test(gqa_is_linear_in_the_heads),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
