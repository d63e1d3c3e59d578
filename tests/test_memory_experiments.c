/* anatomy, capacity and oom: bytes and counts against arithmetic by hand, on the small model of
 * tests/experiment_place.h. */
#include "tests/experiment_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- anatomy ---------------------------------------------------------------------------------------------------- */

static const char anatomy_columns[] = "moment,weights_bytes,kv_bytes,logits_bytes,workspace_bytes,other_bytes,"
                                      "ledger_bytes,reserved_bytes,driver_bytes,overhead_bytes";

static void anatomy_parts_add_up(void **state)
{
    (void)state;
    static const char *const moments[] = {
        "start",   "weights loaded", "prefill with all logits", "prefill with last logits", "results released",
        "released"};
    static const int64_t weights[] = {0, PLACE_WEIGHT_BYTES, PLACE_WEIGHT_BYTES, PLACE_WEIGHT_BYTES, PLACE_WEIGHT_BYTES,
                                      0};
    static const int64_t kv[] = {0, 0, 100 * PLACE_KV_BYTES, 100 * PLACE_KV_BYTES, 0, 0};
    static const int64_t logits[] = {0, 0, 100 * PLACE_LOGITS_BYTES, PLACE_LOGITS_BYTES, 0, 0};
    place_run("anatomy --contexts 100", 0);
    struct csv_table table = place_csv("anatomy");
    place_assert_columns(&table, anatomy_columns);
    assert_int_equal(table.row_count, 6);
    for (size_t row = 0; row < 6; row++) {
        assert_string_equal(place_text(&table, row, "moment"), moments[row]);
        assert_int_equal(place_int(&table, row, "weights_bytes"), weights[row]);
        assert_int_equal(place_int(&table, row, "kv_bytes"), kv[row]);
        assert_int_equal(place_int(&table, row, "logits_bytes"), logits[row]);
        int64_t workspace = place_int(&table, row, "workspace_bytes"), ledger = place_int(&table, row, "ledger_bytes");
        assert_true(weights[row] ? workspace > 0 : workspace == 0);
        assert_int_equal(weights[row] + kv[row] + logits[row] + workspace + place_int(&table, row, "other_bytes"),
                         ledger);
        int64_t reserved = place_int(&table, row, "reserved_bytes");
        assert_true(reserved >= ledger && (ledger > 0 || reserved == 0));
        if (place_text(&table, row, "driver_bytes")[0])
            assert_int_equal(reserved + place_int(&table, row, "overhead_bytes"),
                             place_int(&table, row, "driver_bytes"));
    }
    assert_int_equal(place_int(&table, 4, "ledger_bytes"), place_int(&table, 1, "ledger_bytes"));
    csv_table_free(&table);
}

static void anatomy_resumed_has_each_row_once(void **state)
{
    (void)state;
    place_run("anatomy --contexts 16", 0);
    place_run("anatomy --contexts 16,32 --resume", 0);
    struct csv_table table = place_csv("anatomy");
    assert_int_equal(table.row_count, 12);
    for (size_t row = 0; row < 12; row++)
        assert_int_equal(place_int(&table, row, "context"), row < 6 ? 16 : 32);
    csv_table_free(&table);
}

/* ---- capacity --------------------------------------------------------------------------------------------------- */

static const char capacity_columns[] =
    "budget_bytes,context,policy,predicted_sequences,measured_sequences,limit,utilization_percent";

/* The row of a context, policy and kind of logits. */
static size_t capacity_row(const struct csv_table *table, int context, const char *policy, const char *logits)
{
    for (size_t row = 0; row < table->row_count; row++)
        if (place_int(table, row, "context") == context && strcmp(place_text(table, row, "policy"), policy) == 0 &&
            strcmp(place_text(table, row, "logits_positions"), logits) == 0)
            return row;
    fail_msg("no row of %d tokens, %s, logits of %s", context, policy, logits);
    return 0;
}

/* Room for 1,000 tokens and one row of logits beside the model: 256,256 bytes. A paged model's tables take 64 slots *
   15 more blocks * 4 = 3,840 bytes more workspace, so 252,416 are left to it. By hand: exact, 100 tokens: 25,600 each,
   (256,256 - 256) / 25,600 = 10; with 25,600 bytes of logits 9, and a tenth cache fits reserved for 250: 64,000 each,
   256,000 / 64,000 = 4; with logits (256,256 - 25,600) / 64,000 = 3, a fourth fits paged: blocks of 4,096: (252,416 -
   256) / 4,096 = 61, 7 each: 8; with logits (252,416 - 25,600) / 4,096 = 55: 7 at 250 tokens with logits of 64,000
   bytes: exact 3, and a fourth cache fits; paged 188,416 / 4,096 = 46, 16 each: 2 */
static void capacity_counts(void **state)
{
    (void)state;
    static const struct {
        int context;
        const char *policy, *logits;
        int sequences;
        const char *limit;
        int64_t kv_bytes;
    } cases[] = {
        {100, "exact", "last", 10, "kv", 256000},   {100, "exact", "all", 9, "logits", 230400},
        {100, "reserved", "last", 4, "kv", 256000}, {100, "reserved", "all", 3, "logits", 192000},
        {100, "paged", "last", 8, "kv", 249856},    {100, "paged", "all", 7, "kv", 225280},
        {250, "exact", "last", 4, "kv", 256000},    {250, "exact", "all", 3, "logits", 192000},
        {250, "reserved", "last", 4, "kv", 256000}, {250, "reserved", "all", 3, "logits", 192000},
        {250, "paged", "last", 3, "kv", 249856},    {250, "paged", "all", 2, "kv", 188416},
    };
    char line[128];
    place_run("capacity --contexts 100,250 --batch 64 --budget 1GB", 0); /* what workspace do 64 slots take? */
    struct csv_table table = place_csv("capacity");
    place_assert_columns(&table, capacity_columns);
    int64_t workspace = place_int(&table, capacity_row(&table, 100, "exact", "last"), "workspace_bytes");
    assert_int_equal(place_int(&table, capacity_row(&table, 100, "paged", "last"), "workspace_bytes"),
                     workspace + 64 * 15 * 4);
    csv_table_free(&table);

    int64_t budget = PLACE_WEIGHT_BYTES + workspace + 1000 * PLACE_KV_BYTES + PLACE_LOGITS_BYTES;
    snprintf(line, sizeof line, "capacity --contexts 100,250 --batch 64 --budget %lld", (long long)budget);
    place_run(line, 0);
    table = place_csv("capacity");
    assert_int_equal(table.row_count, sizeof cases / sizeof *cases);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t row = capacity_row(&table, cases[i].context, cases[i].policy, cases[i].logits);
        assert_int_equal(place_int(&table, row, "budget_bytes"), budget);
        assert_int_equal(place_int(&table, row, "predicted_sequences"), cases[i].sequences);
        assert_int_equal(place_int(&table, row, "measured_sequences"), cases[i].sequences);
        assert_string_equal(place_text(&table, row, "limit"), cases[i].limit);
        /* When the logits are refused the sequence they were for has been closed again. */
        assert_int_equal(place_int(&table, row, "kv_bytes"), cases[i].kv_bytes);
        assert_int_equal(place_int(&table, row, "weights_bytes"), PLACE_WEIGHT_BYTES);
    }
    /* 8 * 100 * 256 = 204,800 of 252,416 */
    assert_string_equal(place_text(&table, capacity_row(&table, 100, "paged", "last"), "utilization_percent"), "81.1");
    csv_table_free(&table);
}

static void capacity_other_limits(void **state)
{
    (void)state;
    static const struct {
        const char *line, *limit;
        int sequences;
    } cases[] = {{"capacity --contexts 100 --batch 2 --budget 1GB", "slots", 2},
                 {"capacity --contexts 100 --batch 2 --budget 80000", "weights", 0}};
    for (size_t i = 0; i < 2; i++) {
        place_run(cases[i].line, 0);
        struct csv_table table = place_csv("capacity");
        assert_int_equal(table.row_count, 6);
        for (size_t row = 0; row < 6; row++) {
            assert_string_equal(place_text(&table, row, "limit"), cases[i].limit);
            assert_string_equal(place_text(&table, row, "predicted_limit"), cases[i].limit);
            assert_int_equal(place_int(&table, row, "measured_sequences"), cases[i].sequences);
        }
        csv_table_free(&table);
    }
}

/* A budget beyond the machine: K of one layer would take 2,000,000,000 x 32 x 128 x 2 bytes = 16 TB. What the machine
   refuses is no count of the sequences that a card of this size holds. */
static void capacity_beyond_the_device(void **state)
{
    (void)state;
    const char *message = place_run("capacity --model llama-2-7b --contexts 2000000000 --batch 1 --budget 9000TB", 3);
    assert_non_null(strstr(message, "the device itself refused, below the budget"));
}

/* ---- oom -------------------------------------------------------------------------------------------------------- */

static const char oom_columns[] =
    "budget_bytes,requested_bytes,ledger_bytes,weights_loaded_percent,missing_bytes,message";

/* Pieces of the small model: embedding 64 * 32 * 4 = 8,192, two layers of 37,376, the last norm 128: 83,072 bytes. */
static void oom_stops_where_the_sum_passes_the_budget(void **state)
{
    (void)state;
    static const struct {
        int64_t budget, loaded, requested, missing;
        const char *percent, *word;
    } cases[] = {
        {8000, 0, 8192, 75072, "0.00", "embed_tokens"},    {9000, 8192, 37376, 74072, "9.86", "layer 0"},
        {50000, 45568, 37376, 33072, "54.85", "layer 1"},  {83000, 82944, 128, 72, "99.85", "norm"},
        {83072, 83072, 0, 0, "100.00", "all weights fit"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[64];
        snprintf(line, sizeof line, "oom --budget %lld", (long long)cases[i].budget);
        place_run(line, 0); /* it failed as predicted */
        struct csv_table table = place_csv("oom");
        place_assert_columns(&table, oom_columns);
        assert_int_equal(table.row_count, 1);
        assert_int_equal(place_int(&table, 0, "budget_bytes"), cases[i].budget);
        assert_int_equal(place_int(&table, 0, "requested_bytes"), cases[i].requested);
        assert_int_equal(place_int(&table, 0, "ledger_bytes"), cases[i].loaded);
        assert_int_equal(place_int(&table, 0, "missing_bytes"), cases[i].missing);
        assert_int_equal(place_int(&table, 0, "predicted_missing_bytes"), cases[i].missing);
        assert_string_equal(place_text(&table, 0, "weights_loaded_percent"), cases[i].percent);
        assert_string_equal(place_text(&table, 0, "predicted_loaded_percent"), cases[i].percent);
        assert_non_null(strstr(place_text(&table, 0, "message"), cases[i].word));
        csv_table_free(&table);
    }
}

/* Qwen2.5-7B under a "12 GB" card, the published case: 15,231,233,024 - 12,490,457,088 = 2,740,775,936 bytes. Embedding
   and head 152,064 * 3,584 * 2 = 1,089,994,752 each, a layer 466,115,584: embedding and 24 layers are 12,276,768,768,
   80.60 %; the 25th layer does not fit. Nothing is written into them, so it runs on any machine. */
static void oom_of_the_published_case(void **state)
{
    (void)state;
    place_run("oom --model qwen2.5-7b", 0);
    struct csv_table table = place_csv("oom");
    assert_int_equal(place_int(&table, 0, "budget_bytes"), 12490457088);
    assert_int_equal(place_int(&table, 0, "weights_formula_bytes"), 15231233024);
    assert_int_equal(place_int(&table, 0, "missing_bytes"), 2740775936);
    assert_int_equal(place_int(&table, 0, "requested_bytes"), 466115584);
    assert_int_equal(place_int(&table, 0, "ledger_bytes"), 12276768768);
    assert_string_equal(place_text(&table, 0, "weights_loaded_percent"), "80.60");
    const char *message = place_text(&table, 0, "message");
    assert_non_null(strstr(message, "466115584"));   /* asked */
    assert_non_null(strstr(message, "12276768768")); /* held */
    assert_non_null(strstr(message, "2740775936"));  /* lacking */
    assert_string_equal(place_text(&table, 0, "filled"), "no");
    csv_table_free(&table);

    table = place_csv("oom_summary");
    int helping = 0;
    for (size_t row = 0; row < table.row_count; row++) {
        int64_t saves = place_int(&table, row, "saves_bytes"), still = place_int(&table, row, "still_missing_bytes");
        bool helps = strcmp(place_text(&table, row, "helps"), "yes") == 0;
        assert_int_equal(still, saves >= 2740775936 ? 0 : 2740775936 - saves);
        assert_int_equal(helps, still == 0);
        helping += helps;
    }
    assert_int_equal(helping, 3); /* 8 bits, 4 bits, two cards; nothing about the KV cache */
    csv_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anatomy_parts_add_up),
        cmocka_unit_test(anatomy_resumed_has_each_row_once),
        cmocka_unit_test(capacity_counts),
        cmocka_unit_test(capacity_other_limits),
        cmocka_unit_test(capacity_beyond_the_device),
        cmocka_unit_test(oom_stops_where_the_sum_passes_the_budget),
        cmocka_unit_test(oom_of_the_published_case),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
