/* data/cards: every file reads, says where its numbers are from, and the one that the lessons used is exact. */
#include "engine/config.h"
#include "engine/plan/card.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void cards_dir(char *to, size_t size)
{
    snprintf(to, size, "%s/cards", config_data_dir());
}

static void every_card_reads(void **state)
{
    (void)state;
    char folder[4096], **names;
    size_t count;
    struct error error = {0};
    cards_dir(folder, sizeof folder);
    assert_int_equal(config_names(folder, &names, &count, &error), STATUS_OK);
    assert_true(count >= 20);
    for (size_t i = 0; i < count; i++) {
        struct card card;
        if (card_find(&card, folder, names[i], &error) != STATUS_OK)
            fail_msg("%s", error.message);
        assert_string_equal(card.name, names[i]);
        /* Sizes, rates and their ratio within what cards of these years have: a slipped digit shows. */
        assert_in_range(card.memory_bytes, 8000000000, 300000000000);
        assert_in_range(card.bandwidth, 200000000000, 10000000000000);
        assert_in_range(card.flops / card.bandwidth, 50, 450);
        assert_true(strlen(card.memory_source) > 4 && strlen(card.rates_source) > 4);
        /* What is reported is a whole number of MiB or of pages less than the nominal size. */
        if (card.memory_reported)
            assert_int_equal(card.memory_bytes % 4096, 0);
    }
    config_names_free(names, count);
}

static void the_lessons_card(void **state)
{
    (void)state;
    char folder[4096];
    struct card card;
    struct error error = {0};
    cards_dir(folder, sizeof folder);
    assert_int_equal(card_find(&card, folder, "RTX3060", &error), STATUS_OK);
    assert_int_equal(card.memory_bytes, 12490457088);
    assert_true(card.memory_reported);
    assert_int_equal(card.bandwidth, 360000000000);
    assert_int_equal(card_find(&card, folder, "h200", &error), STATUS_OK);
    assert_false(card.memory_reported); /* nominal, and marked so */
}

static void unknown_and_broken_cards(void **state)
{
    (void)state;
    static const struct {
        const char *text, *key;
    } rows[] = {
        {"{}", "name"},
        {"{\"name\": \"x\"}", "memory_bytes"},
        {"{\"name\": \"x\", \"memory_bytes\": -1}", "memory_bytes"},
        {"{\"name\": \"x\", \"memory_bytes\": 1, \"memory_is\": \"guessed\", \"memory_source\": \"y\", "
         "\"bandwidth_bytes_per_s\": 1, \"bf16_flop_per_s\": 1, \"rates_are\": \"published\", \"rates_source\": \"z\", "
         "\"compute_capability\": \"1.0\"}",
         "memory_is"},
        {"[1]", "object"},
    };
    char folder[4096], path[] = "/tmp/kvlab-card-XXXXXX";
    struct card card;
    struct error error = {0};
    cards_dir(folder, sizeof folder);
    assert_int_equal(card_find(&card, folder, "voodoo", &error), STATUS_INPUT);
    assert_true(strstr(error.message, "voodoo") && strstr(error.message, "rtx3060") &&
                strstr(error.message, "--budget"));
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fputs(rows[i].text, out);
        assert_int_equal(fclose(out), 0);
        assert_int_equal(card_read(&card, path, &error), STATUS_INPUT);
        if (!strstr(error.message, rows[i].key) || !strstr(error.message, path))
            fail_msg("%s: '%s' must name %s", rows[i].text, error.message, rows[i].key);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_card_reads),
        cmocka_unit_test(the_lessons_card),
        cmocka_unit_test(unknown_and_broken_cards),
    };
    return cmocka_run_group_tests_name("cards", tests, NULL, NULL);
}
