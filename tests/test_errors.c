/* Messages: what was wrong and the way out stay, however long a path is. */
#include "kernels/errors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void fill(char *text, size_t size, const char *pattern)
{
    for (size_t i = 0; i + 1 < size; i++)
        text[i] = pattern[i % strlen(pattern)];
    text[size - 1] = '\0';
}

static void short_messages_are_kept(void **state)
{
    (void)state;
    struct error error;
    assert_int_equal(error_set(&error, STATUS_INPUT, "%s: %d", "path", 3), STATUS_INPUT);
    assert_int_equal(error.status, STATUS_INPUT);
    assert_string_equal(error.message, "path: 3");
    assert_int_equal(error_prefix(&error, "%s", "where"), STATUS_INPUT);
    assert_string_equal(error.message, "where: path: 3");
}

static void long_paths_keep_their_end(void **state)
{
    (void)state;
    static char path[8000];
    struct error error;
    for (size_t size = 900; size <= sizeof path; size += 71) {
        fill(path, size, "folder/");
        memcpy(path + size - 12, "/config.json", 11);
        error_set(&error, STATUS_INPUT, "%s: cannot read: %s; give another", path, "No such file");
        assert_true(strlen(error.message) < sizeof error.message);
        if (!strstr(error.message, "/config.jso: cannot read: No such file; give another"))
            fail_msg("%zu: %s", size, error.message);
        error_prefix(&error, "%s", path);
        if (!strstr(error.message, "/config.jso: cannot read: No such file; give another"))
            fail_msg("%zu: %s", size, error.message);
        error_set(&error, STATUS_INPUT, "%s contradicts %s: keep one", path, path);
        if (!strstr(error.message, "/config.jso contradicts ..."))
            fail_msg("%zu: %s", size, error.message);
        if (!strstr(error.message, "/config.jso: keep one"))
            fail_msg("%zu: %s", size, error.message);
    }
}

static void long_texts_with_spaces_keep_both_ends(void **state)
{
    (void)state;
    static char text[8000];
    struct error error;
    fill(text, sizeof text, "one two ");
    error_set(&error, STATUS_INPUT, "begin %s: the reason", text);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    assert_memory_equal(error.message, "begin one", 9);
    assert_string_equal(error.message + strlen(error.message) - 12, ": the reason");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_messages_are_kept),
        cmocka_unit_test(long_paths_keep_their_end),
        cmocka_unit_test(long_texts_with_spaces_keep_both_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
