/* cache and tpot: positions, bytes and checksums of real passes, and what is computed from times on a clock that the
   test moves, so that every cell can be worked out by hand. How long anything took is never asserted. */
#include "tests/staged_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- cache ------------------------------------------------------------------------------------------------------ */

/* One layer, one head of 8, vocabulary 16: what the clock says does not depend on it, and 300,000 positions pass
   through it. */
static const char smallest[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 16, \"hidden_size\": 8,"
    "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"num_key_value_heads\": 1,"
    "\"hidden_act\": \"silu\", \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0,"
    "\"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}";

static double pass_by_rows(int rows, int context)
{
    (void)context;
    return 64.0 + rows;
}

static void assert_checksums(const struct csv_table *table, size_t row)
{
    const char *cached = place_text(table, row, "cached_checksum");
    assert_int_equal(strlen(cached), 16);
    assert_string_equal(place_text(table, row, "uncached_checksum"), cached);
}

/* The published work ratios. With the cache P + N - 1 positions in N passes, without it P + (P + 1) + ... in N passes:
   at 64 + rows milliseconds a pass, 64 N more than positions. */
static void cache_counts_positions(void **state)
{
    (void)state;
    static const struct {
        int64_t new_tokens, cached, uncached;
        int published;
    } cases[] = {{64, 191, 10208, 53}, {128, 255, 24512, 96}, {256, 383, 65408, 171}, {512, 639, 196352, 307}};
    char line[192];
    place_model("smallest", smallest);
    snprintf(line, sizeof line, "cache --new-tokens 64,128,256,512 --reps 1 --model %s/smallest", place_folder());
    assert_int_equal(staged_run(line, &(struct stage){.pass_ms = pass_by_rows}), 0);
    struct csv_table table = place_csv("cache");
    assert_int_equal(table.row_count, 4);
    for (size_t row = 0; row < 4; row++) {
        int64_t n = cases[row].new_tokens;
        assert_int_equal(place_int(&table, row, "prompt_tokens"), 128);
        assert_int_equal(place_int(&table, row, "new_tokens"), n);
        assert_int_equal(place_int(&table, row, "cached_positions"), cases[row].cached);
        assert_int_equal(place_int(&table, row, "uncached_positions"), cases[row].uncached);
        assert_int_equal(place_int(&table, row, "cached_formula_positions"), cases[row].cached);
        assert_int_equal(place_int(&table, row, "uncached_formula_positions"), cases[row].uncached);
        double work = (double)cases[row].uncached / (double)cases[row].cached;
        place_assert_near(place_real(&table, row, "work_ratio"), work, 0.005, "work_ratio");
        assert_int_equal(lround(place_real(&table, row, "work_ratio")), cases[row].published);

        double cached = (double)(cases[row].cached + 64 * n) / 1e3,
               uncached = (double)(cases[row].uncached + 64 * n) / 1e3;
        place_assert_near(place_real(&table, row, "cached_s"), cached, 0.0005, "cached_s");
        place_assert_near(place_real(&table, row, "uncached_s"), uncached, 0.0005, "uncached_s");
        place_assert_near(place_real(&table, row, "time_ratio"), uncached / cached, 0.005, "time_ratio");
        assert_int_equal(place_int(&table, row, "n"), 1);
        assert_int_equal(place_int(&table, row, "equal_tokens"), n); /* f32 */
        assert_checksums(&table, row);
    }
    csv_table_free(&table);
}

/* A run begins with a pass over the prompt of 16. Two runs, one of each kind, are a turn; turns take 1, 2 and 4 times
   as long, over and over. */
static int runs_begun;

static double pass_by_turn(int rows, int context)
{
    runs_begun += rows == 16 && context == 16;
    return 1000.0 * rows * (1 << (runs_begun - 1) / 2 % 3);
}

/* 8 tokens after 16: 23 s with the cache and 16 + ... + 23 = 156 s without, times 1, 2 and 4: the medians are 46 and
   312, wherever the three turns begin. */
static void cache_takes_the_median(void **state)
{
    (void)state;
    runs_begun = 0;
    assert_int_equal(staged_run("cache --quick --new-tokens 8 --reps 3", &(struct stage){.pass_ms = pass_by_turn}), 0);
    struct csv_table table = place_csv("cache");
    static const struct {
        const char *column, *value;
    } cells[] = {{"cached_s", "46.000"},        {"uncached_s", "312.000"},
                 {"time_ratio", "6.78"},        {"cached_min_s", "23.000"},
                 {"cached_max_s", "92.000"},    {"uncached_min_s", "156.000"},
                 {"uncached_max_s", "624.000"}, {"n", "3"}};
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        assert_string_equal(place_text(&table, 0, cells[i].column), cells[i].value);
    csv_table_free(&table);
}

/* A row that has taken a minute is not repeated, unless --reps asks for it. */
static void cache_stops_repeating_after_a_minute(void **state)
{
    (void)state;
    runs_begun = 0;
    assert_int_equal(staged_run("cache --quick --new-tokens 8", &(struct stage){.pass_ms = pass_by_turn}), 0);
    struct csv_table table = place_csv("cache");
    assert_string_equal(place_text(&table, 0, "n"), "1");
    csv_table_free(&table);
}

static void cache_checks_what_it_keeps(void **state)
{
    (void)state;
    static const struct {
        const char *column, *value;
    } cases[] = {{"cached_positions", "24"}, {"uncached_positions", "157"}, {"equal_tokens", "7"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(staged_run("cache --quick --new-tokens 8 --reps 1", &(struct stage){0}), 0);
        assert_int_equal(staged_run("cache --quick --new-tokens 8 --reps 1 --resume", &(struct stage){0}), 0);
        place_set("cache", 0, cases[i].column, cases[i].value);
        if (staged_run("cache --quick --new-tokens 8 --reps 1 --resume", &(struct stage){0}) != 1)
            fail_msg("%s of %s does not fail", cases[i].column, cases[i].value);
    }
}

/* ---- tpot ------------------------------------------------------------------------------------------------------- */

static const int batches[] = {1, 8}, contexts[] = {16, 32, 64};
static const char tpot_line[] = "tpot --contexts 16,32,64 --batch 1,8 --reps 9";
static const double base_ms = 0.0625, token_ms = 1.0 / 1024; /* both exact in binary */

static double pass_by_context(int rows, int context)
{
    (void)rows;
    return base_ms + token_ms * context;
}

/* The times of three steps of a visit rise by token_ms; 27 of them, of which p10 is one of the lowest nine, p50 of the
   middle ones, p90 of the highest. */
static void assert_tpot_row(const struct csv_table *table, size_t row, int batch, int context, double gbps)
{
    assert_int_equal(place_int(table, row, "batch"), batch);
    assert_int_equal(place_int(table, row, "context"), context);
    assert_int_equal(place_int(table, row, "n"), 27);
    double p50 = place_real(table, row, "tpot_ms_p50");
    assert_true(p50 > base_ms + token_ms * context && p50 < base_ms + token_ms * (context + 8));
    place_assert_near(p50 - place_real(table, row, "tpot_ms_p10"), token_ms, 0.0001, "p50 - p10");
    place_assert_near(place_real(table, row, "tpot_ms_p90") - p50, token_ms, 0.0001, "p90 - p50");

    double bytes = PLACE_WEIGHT_BYTES + (double)batch * context * PLACE_KV_BYTES;
    assert_int_equal(place_int(table, row, "weight_bytes"), PLACE_WEIGHT_BYTES);
    assert_int_equal(place_int(table, row, "kv_bytes"), (int64_t)batch * context * PLACE_KV_BYTES);
    place_assert_near(place_real(table, row, "predicted_ms"), bytes / gbps / 1e6, 0.00006, "predicted_ms");
    double rate = bytes / p50 / 1e6, error = rate * 0.00005 / p50; /* of p50's rounding */
    place_assert_near(place_real(table, row, "effective_gbps"), rate, 0.005 + error, "effective_gbps");
    place_assert_near(place_real(table, row, "percent_of_read_ceiling"), 100.0 * rate / gbps,
                      0.05 + 100.0 * error / gbps, "percent_of_read_ceiling");
    const char *checksum = place_text(table, row, "tokens_checksum");
    assert_int_equal(strlen(checksum), 16);
    assert_int_equal(strspn(checksum, "0123456789abcdef"), 16);
}

/* A byte costs 1 / gbps ns: 256 * batch bytes a token. */
static void tpot_on_a_clock_that_rises_with_context(void **state)
{
    (void)state;
    static const double ceilings[] = {2.0, 8.0};
    for (size_t c = 0; c < 2; c++) {
        struct stage stage = {.pass_ms = pass_by_context, .read_gbps = ceilings[c]};
        assert_int_equal(staged_run(tpot_line, &stage), 0);
        struct csv_table table = place_csv("tpot");
        assert_int_equal(table.row_count, 6);
        for (size_t row = 0; row < 6; row++)
            assert_tpot_row(&table, row, batches[row / 3], contexts[row % 3], ceilings[c]);
        csv_table_free(&table);
        table = place_csv("tpot_fit");
        assert_int_equal(table.row_count, 2);
        for (size_t row = 0; row < 2; row++) {
            assert_int_equal(place_int(&table, row, "batch"), batches[row]);
            /* 10^6 / 1,024 = 976.5625 ns; every repetition gives the same */
            static const char *const slopes[] = {"slope_ns_per_token", "ci95_low", "ci95_high"};
            for (size_t i = 0; i < 3; i++)
                place_assert_near(place_real(&table, row, slopes[i]), 976.5625, 0.0006, slopes[i]);
            place_assert_near(place_real(&table, row, "predicted_ns_per_token"),
                              batches[row] * PLACE_KV_BYTES / ceilings[c], 0.01, "predicted_ns_per_token");
            assert_string_equal(place_text(&table, row, "resolved"), "yes");
            place_assert_near(place_real(&table, row, "read_ceiling_gbps"), ceilings[c], 0.005, "read_ceiling_gbps");
            /* what a step takes beside its context, and up to the steps of a visit */
            double intercept = place_real(&table, row, "intercept_ms");
            assert_true(intercept >= base_ms && intercept < base_ms + 8 * token_ms);
            place_assert_near(place_real(&table, row, "residual_max_ms"), 0.0, 0.00005, "residual_max_ms");
        }
        csv_table_free(&table);
    }
}

/* A memory that is fast at first: the ceiling is what it was during the repetitions, not the best that was seen. */
static void tpot_ceiling_is_that_of_the_repetitions(void **state)
{
    (void)state;
    struct stage stage = {.pass_ms = pass_by_context, .read_gbps = 2.0, .fast_passes = 8};
    assert_int_equal(staged_run(tpot_line, &stage), 0);
    struct csv_table table = place_csv("tpot_fit");
    for (size_t row = 0; row < table.row_count; row++)
        place_assert_near(place_real(&table, row, "read_ceiling_gbps"), 2.0, 0.005, "read_ceiling_gbps");
    csv_table_free(&table);
}

static double pass_that_stays(int rows, int context)
{
    (void)rows;
    (void)context;
    return base_ms;
}

static double pass_that_falls(int rows, int context)
{
    (void)rows;
    return 0.25 - token_ms * context / 8;
}

/* Rises in one pass over all contexts, and falls in the next. */
static double pass_that_sways(int rows, int context)
{
    static int last, rising;
    (void)rows;
    if ((context > 40) != (last > 40)) /* between the contexts 16 and 64: once per repetition, up or down */
        rising += last > 40;
    last = context;
    return 0.25 + (rising % 2 ? 1 : -1) * token_ms * context / 8;
}

static void tpot_says_whether_a_rise_is_resolved(void **state)
{
    (void)state;
    static const struct {
        double (*pass_ms)(int rows, int context);
        const char *resolved;
    } cases[] = {{pass_by_context, "yes"}, {pass_that_falls, "yes"}, {pass_that_stays, "no"}, {pass_that_sways, "no"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stage stage = {.pass_ms = cases[i].pass_ms, .read_gbps = 2.0};
        assert_int_equal(staged_run("tpot --contexts 16,64 --batch 1 --reps 9", &stage), 0);
        struct csv_table fit = place_csv("tpot_fit");
        double low = place_real(&fit, 0, "ci95_low"), high = place_real(&fit, 0, "ci95_high"),
               slope = place_real(&fit, 0, "slope_ns_per_token");
        assert_true(low <= slope && slope <= high && (i != 3 || low < high));
        assert_int_equal(low > 0.0 || high < 0.0, strcmp(place_text(&fit, 0, "resolved"), "yes") == 0);
        if (strcmp(place_text(&fit, 0, "resolved"), cases[i].resolved) != 0)
            fail_msg("clock %zu: slope %g in [%g, %g] is not \"%s\"", i, slope, low, high, cases[i].resolved);
        csv_table_free(&fit);
    }
}

static double slow_pass_that_sways(int rows, int context)
{
    return 800 + pass_that_sways(rows, context);
}

/* Without --reps: as many repetitions as the interval needs. A swaying slope has an interval of 1/8,192 ms = 122 ns on
   both sides, the prediction is 256 bytes / 2 GB/s = 128 ns. A slow repetition has two contexts with four steps of 0.8
   s: ten of them are past a minute. */
static void tpot_repeats_by_what_it_sees(void **state)
{
    (void)state;
    static const struct {
        double (*pass_ms)(int rows, int context);
        const char *options, *stopped_by;
        int reps;
    } cases[] = {{pass_by_context, "", "width", 8},         {pass_that_stays, "", "width", 8},
                 {pass_that_sways, "", "most", 90},         {slow_pass_that_sways, "", "time", 10},
                 {pass_that_sways, "--reps 7", "given", 7}, {pass_by_context, "--quick", "given", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[128];
        snprintf(line, sizeof line, "tpot --contexts 16,64 --batch 1 %s", cases[i].options);
        assert_int_equal(staged_run(line, &(struct stage){.pass_ms = cases[i].pass_ms, .read_gbps = 2.0}), 0);
        struct csv_table table = place_csv("tpot"), fit = place_csv("tpot_fit");
        assert_string_equal(place_text(&fit, 0, "stopped_by"), cases[i].stopped_by);
        assert_int_equal(place_int(&fit, 0, "repetitions"), cases[i].reps);
        for (size_t row = 0; row < 2; row++)
            assert_int_equal(place_int(&table, row, "n"), 3 * cases[i].reps);
        csv_table_free(&table);
        csv_table_free(&fit);
    }
}

/* One context has no slope to be known closely; nor has one that --resume adds, beside rows of another run. */
static void tpot_of_one_context(void **state)
{
    (void)state;
    static const char *const lines[] = {"tpot --contexts 16 --batch 1", "tpot --contexts 16,64 --batch 1 --resume"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(staged_run(lines[i], &(struct stage){.pass_ms = pass_by_context}), 0);
        struct csv_table table = place_csv("tpot");
        assert_int_equal(place_int(&table, i, "n"), 90);
        csv_table_free(&table);
    }
    struct csv_table fit = place_csv("tpot_fit");
    assert_string_equal(place_text(&fit, 0, "interval_from"), "rows");
    assert_string_equal(place_text(&fit, 0, "stopped_by"), "");
    csv_table_free(&fit);
}

/* Every repetition's samples are kept, those beyond the least too. */
static void tpot_keeps_all_samples(void **state)
{
    (void)state;
    char line[256];
    snprintf(line, sizeof line, "tpot --contexts 16,64 --batch 1 --samples %s/samples.csv", place_folder());
    assert_int_equal(staged_run(line, &(struct stage){.pass_ms = pass_that_sways, .read_gbps = 2.0}), 0);
    char *text = place_file("samples.csv");
    size_t lines = 0;
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 1 + 2 * 3 * 90);
    assert_non_null(strstr(text, "context=64;batch=1,89,"));
    free(text);
}

/* Two repetitions have no interval, and what has none is not resolved. */
static void tpot_without_an_interval(void **state)
{
    (void)state;
    struct stage stage = {.pass_ms = pass_by_context};
    assert_int_equal(staged_run("tpot --contexts 16,64 --batch 1 --reps 2", &stage), 0);
    struct csv_table fit = place_csv("tpot_fit");
    assert_string_equal(place_text(&fit, 0, "ci95_low"), "");
    assert_string_equal(place_text(&fit, 0, "ci95_high"), "");
    assert_string_equal(place_text(&fit, 0, "resolved"), "no");
    csv_table_free(&fit);
}

/* The tokens are the real model's: the same in every run of one seed, others with another. */
static void tpot_checksums_are_of_the_work(void **state)
{
    (void)state;
    static const char *const lines[] = {"tpot --contexts 16,64 --batch 1 --reps 1",
                                        "tpot --contexts 16,64 --batch 1 --reps 2",
                                        "tpot --contexts 16,64 --batch 1 --reps 1 --seed 2"};
    char checksums[3][32];
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(staged_run(lines[i], &(struct stage){0}), 0);
        struct csv_table table = place_csv("tpot");
        snprintf(checksums[i], sizeof checksums[i], "%s", place_text(&table, 1, "tokens_checksum"));
        csv_table_free(&table);
    }
    assert_string_equal(checksums[0], checksums[1]);
    assert_string_not_equal(checksums[0], checksums[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_counts_positions),
        cmocka_unit_test(cache_takes_the_median),
        cmocka_unit_test(cache_stops_repeating_after_a_minute),
        cmocka_unit_test(cache_checks_what_it_keeps),
        cmocka_unit_test(tpot_on_a_clock_that_rises_with_context),
        cmocka_unit_test(tpot_ceiling_is_that_of_the_repetitions),
        cmocka_unit_test(tpot_says_whether_a_rise_is_resolved),
        cmocka_unit_test(tpot_repeats_by_what_it_sees),
        cmocka_unit_test(tpot_of_one_context),
        cmocka_unit_test(tpot_keeps_all_samples),
        cmocka_unit_test(tpot_without_an_interval),
        cmocka_unit_test(tpot_checksums_are_of_the_work),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
