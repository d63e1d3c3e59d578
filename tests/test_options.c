/* What users type: lists, ranges, bytes, options; and everything that must be refused. */
#include "bench/harness/option_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void assert_list(const char *text, const int64_t *expected, size_t count)
{
    struct int_list list;
    struct error error = {0};
    if (int_list_parse(&list, text, "contexts", 1, 1000000, &error) != STATUS_OK)
        fail_msg("%s: %s", text, error.message);
    assert_int_equal(list.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(list.values[i], expected[i]);
    int_list_free(&list);
    assert_null(list.values);
}
#define LIST(text, ...) assert_list(text, (const int64_t[]){__VA_ARGS__}, COUNT(((const int64_t[]){__VA_ARGS__})))

static void lists_and_ranges(void **state)
{
    (void)state;
    LIST("512", 512);
    LIST("512,1024", 512, 1024);
    LIST("512-8192*2", 512, 1024, 2048, 4096, 8192);
    LIST("500-3999*2", 500, 1000, 2000);
    LIST("128-640+256", 128, 384, 640);
    LIST("128-639+256", 128, 384);
    LIST("7-7+1", 7);
    LIST("64,1-4*2,64-66+1", 64, 1, 2, 4, 65, 66);
    LIST("1000,10,1000,10", 1000, 10); /* duplicates go, the order stays */
    LIST("999999-1000000*9000000000000000000", 999999);
}

static void bad_lists(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",       "0",       "-5",    "abc",     "12abc",       "1e3",     " 1",
        "+1",     "1.5",     "1,",    ",1",      "1,,2",        "1000001", "99999999999999999999",
        "1-5",    "5-1+1",   "1-5+0", "1-5*1",   "1-5*",        "1-*2",    "-*2",
        "1--5+1", "1-5+1+1", "0-5+1", "1-5*2*2", "1-1000000+1", "0x10",    "1-5/2",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct int_list list = {0};
        struct error error = {0};
        if (int_list_parse(&list, bad[i], "contexts", 1, 1000000, &error) != STATUS_INPUT)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_int_equal(error.status, STATUS_INPUT);
        assert_non_null(strstr(error.message, "--contexts"));
        assert_null(list.values);
    }
}

static void bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"12490457088", UINT64_C(12490457088)},
        {"1", 1},
        {"12B", 12},
        {"12kB", 12000},
        {"12KiB", 12288},
        {"12MB", 12000000},
        {"12MiB", 12582912},
        {"12GB", UINT64_C(12000000000)},
        {"12GiB", UINT64_C(12884901888)},
        {"1TB", UINT64_C(1000000000000)},
        {"1TiB", UINT64_C(1099511627776)},
        {"1.5GiB", UINT64_C(1610612736)},
        {"12.49GB", UINT64_C(12490000000)}, /* exact, though 12.49 is no binary fraction */
        {"0.000000001GB", 1},
        {"9223372036854775807", INT64_MAX},
    };
    for (size_t i = 0; i < COUNT(good); i++) {
        uint64_t value = 0;
        struct error error = {0};
        if (bytes_parse(&value, good[i].text, "budget", &error) != STATUS_OK)
            fail_msg("%s: %s", good[i].text, error.message);
        assert_true(value == good[i].bytes);
    }
    static const char *const bad[] = {"",
                                      "0",
                                      "-1",
                                      "abc",
                                      "12XB",
                                      "12gb",
                                      "12 GB",
                                      "GB",
                                      "1.5",
                                      "1.5B",
                                      "1.GB",
                                      ".5GB",
                                      "1e9",
                                      "1.5.5GB",
                                      "12GBs",
                                      "18446744073709551616",
                                      "18446744073709551615kB",
                                      "0.0000000001GB",
                                      "0.1kBB",
                                      "99999999TiB",
                                      "9223372036854775808",
                                      "8388608TiB",
                                      "0GB",
                                      "0x10"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        uint64_t value = 0;
        struct error error = {0};
        if (bytes_parse(&value, bad[i], "budget", &error) != STATUS_INPUT)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_non_null(strstr(error.message, "--budget"));
    }
}

static enum status parse(struct options *options, struct error *error, int argc, char **argv)
{
    *error = (struct error){0};
    return options_parse(options, NULL, argc, argv, error);
}
#define PARSE(options, error, ...) parse(options, error, (int)COUNT(((char *[]){__VA_ARGS__})), (char *[]){__VA_ARGS__})

static void defaults(void **state)
{
    (void)state;
    struct options options;
    struct error error = {0};
    assert_int_equal(options_parse(&options, NULL, 0, NULL, &error), STATUS_OK);
    assert_null(options.model);
    assert_string_equal(options.out, "results");
    assert_string_equal(options.device, "auto");
    assert_true(options.seed == 1);
    assert_false(options.has_dtype || options.has_kv_dtype || options.quick || options.resume || options.dry_run);
    assert_int_equal(options.reps, 0);
    assert_int_equal(options.threads, 0);
    assert_int_equal(options.format, FORMAT_TABLE);
    assert_int_equal(options.contexts.count, 0);
    options_free(&options);
}

static void every_option(void **state)
{
    (void)state;
    struct options options;
    struct error error;
    enum status status =
        PARSE(&options, &error, "--model", "m", "--device=cpu", "--dtype", "f16", "--kv-dtype", "f32", "--contexts",
              "8,4", "--batch", "1-4*2", "--new-tokens", "64", "--reps", "3", "--threads", "2", "--seed",
              "18446744073709551615", "--budget", "12GiB", "--out", "o", "--quick", "--resume", "--dry-run",
              "--samples", "s.csv", "--format", "json", "--explain", "c", "--help");
    if (status)
        fail_msg("%s", error.message);
    assert_string_equal(options.model, "m");
    assert_string_equal(options.device, "cpu");
    assert_true(options.has_dtype && options.dtype == DTYPE_F16);
    assert_true(options.has_kv_dtype && options.kv_dtype == DTYPE_F32);
    assert_int_equal(options.contexts.count, 2);
    assert_int_equal(options.batch.values[2], 4);
    assert_int_equal(options.new_tokens.values[0], 64);
    assert_int_equal(options.reps, 3);
    assert_int_equal(options.threads, 2);
    assert_true(options.seed == UINT64_MAX);
    assert_true(options.budget_bytes == UINT64_C(12884901888));
    assert_string_equal(options.out, "o");
    assert_true(options.quick && options.resume && options.dry_run && options.help);
    assert_string_equal(options.samples, "s.csv");
    assert_int_equal(options.format, FORMAT_JSON);
    assert_string_equal(options.explain, "c");
    options_free(&options);
    assert_int_equal(PARSE(&options, &error, "--kv-dtype", "fp8"), STATUS_OK);
    assert_int_equal(options.kv_dtype, DTYPE_FP8_E4M3);
    assert_int_equal(PARSE(&options, &error, "--kv-dtype", "int8"), STATUS_OK);
    assert_int_equal(options.kv_dtype, DTYPE_INT8);
}

static void the_last_of_repeated_options_counts(void **state)
{
    (void)state;
    struct options options;
    struct error error;
    assert_int_equal(PARSE(&options, &error, "--contexts", "1,2,3", "--reps", "1", "--contexts", "9", "--reps", "2"),
                     STATUS_OK);
    assert_int_equal(options.contexts.count, 1);
    assert_int_equal(options.contexts.values[0], 9);
    assert_int_equal(options.reps, 2);
    options_free(&options);
}

static void bad_options(void **state)
{
    (void)state;
    static char *const bad[][2] = {
        {"--bogus", NULL},         {"-x", NULL},          {"word", NULL},
        {"--quick=1", NULL},       {"--model", NULL},     {"--model", ""},
        {"--dtype", "int3"},       {"--format", "xml"},   {"--reps", "0"},
        {"--reps", "-1"},          {"--reps", "1e3"},     {"--threads", "99999999"},
        {"--seed", "-1"},          {"--seed", "x"},       {"--seed", "18446744073709551616"},
        {"--budget", "12 apples"}, {"--batch", "0"},      {"--batch", "999999"},
        {"--contexts", "0"},       {"--contexts", "-5"},  {"--contexts", "abc"},
        {"--new-tokens", "0"},     {"--kv-dtype", "F32"}, {"--dtype", "fp8"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct options options;
        struct error error = {0};
        char *argv[] = {"--contexts", "1,2", bad[i][0], bad[i][1]};
        if (options_parse(&options, NULL, bad[i][1] ? 4 : 3, argv, &error) != STATUS_INPUT)
            fail_msg("%s %s was taken", bad[i][0], bad[i][1] ? bad[i][1] : "");
        assert_true(strlen(error.message) > 10);
        assert_null(strchr(error.message, '\n'));
    }
}

static void short_for_more_than_one(void **state)
{
    (void)state;
    struct options options;
    struct error error;
    assert_int_equal(PARSE(&options, &error, "--mod", "m"), STATUS_OK); /* short for one */
    options_free(&options);
    assert_int_equal(PARSE(&options, &error, "--d", "f32"), STATUS_INPUT);
    assert_non_null(strstr(error.message, "--d is short for more than one option: --device, --dtype, --dry-run"));
    assert_int_equal(PARSE(&options, &error, "--d=f32"), STATUS_INPUT);
    assert_non_null(strstr(error.message, "--device, --dtype, --dry-run"));
    assert_int_equal(PARSE(&options, &error, "--dig", "f32"), STATUS_INPUT);
    assert_non_null(strstr(error.message, "unknown option --dig"));
}

static void options_that_have_no_effect(void **state)
{
    (void)state;
    static char *const given[][2] = {
        {"--contexts", "1"}, {"--batch", "1"}, {"--new-tokens", "1"}, {"--reps", "1"}, {"--samples", "s"}};
    for (unsigned i = 0; i < COUNT(given); i++) {
        struct options options;
        struct error error;
        assert_int_equal(PARSE(&options, &error, given[i][0], given[i][1]), STATUS_OK);
        assert_int_equal(options_check_used(&options, 1u << i, "e", &error), STATUS_OK);
        assert_int_equal(options_check_used(&options, USES_ALL & ~(1u << i), "e", &error), STATUS_INPUT);
        assert_non_null(strstr(error.message, given[i][0]));
        assert_int_equal(options_check_used(&options, 0, "e", &error), STATUS_INPUT);
        assert_non_null(strstr(error.message, "none"));
        options_free(&options);
    }
}

/* An experiment's own options: parsed beside the common ones, refused elsewhere, told apart by their text. */
static void options_of_one_experiment(void **state)
{
    (void)state;
    static const char *const choices[] = {"fast", "slow", NULL};
    struct own {
        bool timeline;
        const char *draft;
        int slots, speed;
        struct int_list windows;
    } values = {0};
    const struct option_row rows[] = {
        {"timeline", NULL, OPTION_FLAG, offsetof(struct own, timeline), .help = "t"},
        {"draft", "NAME", OPTION_TEXT, offsetof(struct own, draft), .help = "d"},
        {"slots", "N", OPTION_INT, offsetof(struct own, slots), .minimum = 1, .maximum = 9, .help = "s"},
        {"speed", "HOW", OPTION_CHOICE, offsetof(struct own, speed), .choices = choices, .help = "h"},
        {"windows", "LIST", OPTION_LIST, offsetof(struct own, windows), .minimum = 1, .maximum = 99, .help = "w"},
        {0},
    };
    const struct option_set own = {rows, &values};
    struct options options;
    struct error error = {0};
    char *argv[] = {"--slots", "3", "--model=m", "--windows", "4,8", "--timeline", "--speed", "slow"}, text[256];
    assert_int_equal(options_parse(&options, &own, (int)COUNT(argv), argv, &error), STATUS_OK);
    assert_string_equal(options.model, "m");
    assert_true(values.timeline && values.slots == 3 && values.speed == 1);
    assert_int_equal(values.windows.count, 2);
    option_set_text(&own, text, sizeof text);
    assert_string_equal(text, "timeline=true draft= slots=3 speed=slow");
    options_free(&options);
    option_set_free(&own);
    assert_null(values.windows.values);
    assert_true(!values.timeline && values.slots == 0 && values.speed == 0 && values.draft == NULL);

    char *outside[] = {"--slots", "10"};
    assert_int_equal(options_parse(&options, &own, 2, outside, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "--slots"));
    assert_int_equal(options_parse(&options, NULL, 2, argv, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "unknown option --slots"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_and_ranges),
        cmocka_unit_test(bad_lists),
        cmocka_unit_test(bytes),
        cmocka_unit_test(defaults),
        cmocka_unit_test(every_option),
        cmocka_unit_test(the_last_of_repeated_options_counts),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(short_for_more_than_one),
        cmocka_unit_test(options_that_have_no_effect),
        cmocka_unit_test(options_of_one_experiment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
