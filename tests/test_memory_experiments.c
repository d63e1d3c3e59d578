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
    static const char *const moments[] = {"start", "weights loaded", "prefill with all logits",
                                          "prefill with last logits", "released"};
    static const int64_t weights[] = {0, PLACE_WEIGHT_BYTES, PLACE_WEIGHT_BYTES, PLACE_WEIGHT_BYTES, 0};
    static const int64_t kv[] = {0, 0, 100 * PLACE_KV_BYTES, 100 * PLACE_KV_BYTES, 0};
    static const int64_t logits[] = {0, 0, 100 * PLACE_LOGITS_BYTES, PLACE_LOGITS_BYTES, 0};
    place_run("anatomy --contexts 100", 0);
    struct csv_table table = place_csv("anatomy");
    place_assert_columns(&table, anatomy_columns);
    assert_int_equal(table.row_count, 5);
    for (size_t row = 0; row < 5; row++) {
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
    csv_table_free(&table);
}

static void anatomy_resumed_has_each_row_once(void **state)
{
    (void)state;
    place_run("anatomy --contexts 16", 0);
    place_run("anatomy --contexts 16,32 --resume", 0);
    struct csv_table table = place_csv("anatomy");
    assert_int_equal(table.row_count, 10);
    for (size_t row = 0; row < 10; row++)
        assert_int_equal(place_int(&table, row, "context"), row < 5 ? 16 : 32);
    csv_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anatomy_parts_add_up),
        cmocka_unit_test(anatomy_resumed_has_each_row_once),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
