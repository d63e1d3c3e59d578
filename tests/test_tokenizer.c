/* The tokenizer against the reference's ids (tests/golden/make_tokenizer.py), its parts against plain definitions, and
   words and texts so long that anything quadratic in them would not come to an end. */
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/nfc.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"
#include "tests/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *golden_path(char *path, size_t size, const char *name)
{
    const char *tests = getenv("KVLAB_TESTS");
    snprintf(path, size, "%s/golden/tokenizers/%s", tests ? tests : "tests", name);
    return path;
}

static json_t *read_json(const char *path)
{
    json_error_t failure;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &failure);
    if (!root)
        fail_msg("%s: %s", path, failure.text);
    return root;
}

static struct tokenizer *open_tokenizer(const char *path)
{
    struct tokenizer *tokenizer;
    struct error error;
    check_ok(tokenizer_open(&tokenizer, path, &error));
    return tokenizer;
}

static struct tokenizer *open_golden(const char *name)
{
    char path[4096], file[64];
    snprintf(file, sizeof file, "%s/tokenizer.json", name);
    return open_tokenizer(golden_path(path, sizeof path, file));
}

static struct token_list encode(struct tokenizer *tokenizer, const char *text, size_t size)
{
    struct token_list tokens = {0};
    struct error error;
    check_ok(tokenizer_encode(tokenizer, text, size, true, &tokens, &error));
    return tokens;
}

/* ---- the reference -------------------------------------------------------------------------------------------------
 */

static void compare_ids(const char *what, const json_t *text, const json_t *expected, const struct token_list *tokens)
{
    for (size_t i = 0; i < tokens->count || i < json_array_size(expected); i++) {
        const json_t *id = json_array_get(expected, i);
        if (!id || i >= tokens->count || json_integer_value(id) != tokens->ids[i])
            fail_msg("%s: \"%s\": token %zu of %zu is %d, the reference has %lld of %zu", what, json_string_value(text),
                     i, tokens->count, i < tokens->count ? (int)tokens->ids[i] : -1,
                     id ? (long long)json_integer_value(id) : -1, json_array_size(expected));
    }
}

static void compare_text(struct tokenizer *tokenizer, const char *what, const json_t *expected,
                         const struct token_list *tokens)
{
    char *text;
    size_t size;
    struct error error;
    check_ok(tokenizer_decode(tokenizer, tokens->ids, tokens->count, true, &text, &size, &error));
    if (size != json_string_length(expected) || memcmp(text, json_string_value(expected), size) != 0)
        fail_msg("%s: decoded to \"%s\" (%zu bytes), the reference to \"%s\" (%zu)", what, text, size,
                 json_string_value(expected), json_string_length(expected));
    free(text);
}

static void compare_with_reference(const char *folder)
{
    char path[4096 + 32];
    json_t *texts = read_json(golden_path(path, sizeof path, "texts.json"));
    snprintf(path, sizeof path, "%s/ids.json", folder);
    json_t *cases = read_json(path);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    struct tokenizer *tokenizer = open_tokenizer(path);
    assert_true(json_array_size(texts) > 60);
    assert_int_equal(json_array_size(cases), json_array_size(texts));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i), *one = json_array_get(cases, i);
        struct token_list tokens = encode(tokenizer, json_string_value(text), json_string_length(text));
        compare_ids(folder, text, json_object_get(one, "ids"), &tokens);
        compare_text(tokenizer, folder, json_object_get(one, "text"), &tokens);
        free(tokens.ids);
    }
    tokenizer_close(tokenizer);
    json_decref(cases);
    json_decref(texts);
}

static void ids_equal_the_reference(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "llama3", "smollm2", "bytes"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[4096];
        compare_with_reference(golden_path(path, sizeof path, names[i]));
    }
}

/* Published vocabularies are megabytes, so none lies here: KVLAB_TOKENIZERS=folder:folder, each as make_tokenizer.py
   leaves it. */
static void ids_of_published_vocabularies(void **state)
{
    (void)state;
    char *folders = getenv("KVLAB_TOKENIZERS") ? strdup(getenv("KVLAB_TOKENIZERS")) : NULL;
    char *rest = folders;
    if (!folders)
        skip();
    for (const char *folder = strtok_r(folders, ":", &rest); folder; folder = strtok_r(NULL, ":", &rest))
        compare_with_reference(folder);
    free(folders);
}

/* ---- bytes ---------------------------------------------------------------------------------------------------------
 */

static void without_merges_an_id_is_a_byte(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_golden("bytes");
    static const char text[] = "\0\x01 ~\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf";
    struct token_list tokens = encode(tokenizer, text, sizeof text - 1);
    assert_int_equal(tokens.count, sizeof text - 1);
    for (size_t i = 0; i < tokens.count; i++)
        assert_int_equal(tokens.ids[i], (unsigned char)text[i]);
    free(tokens.ids);
    assert_int_equal(tokenizer_ids(tokenizer), 256);
    for (int id = 0; id < 256; id++) {
        const char *bytes;
        size_t size;
        bool special = true;
        assert_true(tokenizer_token(tokenizer, id, &bytes, &size, &special));
        assert_true(size == 1 && (unsigned char)bytes[0] == id && !special);
    }
    tokenizer_close(tokenizer);
}

static void ids_out_of_range_are_refused(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_golden("bytes");
    static const int32_t bad[] = {-1, 256, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < COUNT(bad); i++) {
        const int32_t ids[] = {'a', bad[i]};
        char *text, number[16];
        size_t size;
        struct error error;
        assert_int_equal(tokenizer_decode(tokenizer, ids, 2, false, &text, &size, &error), STATUS_INPUT);
        snprintf(number, sizeof number, "%d", (int)bad[i]);
        assert_non_null(strstr(error.message, number));
        assert_non_null(strstr(error.message, "bytes/tokenizer.json"));
    }
    tokenizer_close(tokenizer);
}

static void text_that_is_not_utf8_is_refused(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_golden("qwen2");
    static const struct {
        const char *text, *offset;
    } rows[] = {{"\xff", "byte 0 "},
                {"abc\x80", "byte 3 "},
                {"\xc3", "byte 0 "},
                {"a\xc0\xaf", "byte 1 "},
                {"\xed\xa0\x80", "byte 0 "},
                {"\xf4\x90\x80\x80", "byte 0 "},
                {"\xe4\xbd\xa0\xe4\xbd", "byte 3 "},
                {"\xf0\x8f\xbf\xbf", "byte 0 "},
                {"\xe0\x9f\xbf", "byte 0 "}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct token_list tokens = {0};
        struct error error;
        assert_int_equal(tokenizer_encode(tokenizer, rows[i].text, strlen(rows[i].text), true, &tokens, &error),
                         STATUS_INPUT);
        if (!strstr(error.message, "not UTF-8") || !strstr(error.message, rows[i].offset))
            fail_msg("row %zu: \"%s\"", i, error.message);
        free(tokens.ids);
    }
    tokenizer_close(tokenizer);
}

/* Rows of the Unicode Standard, tables 3-8 to 3-11: one U+FFFD for each maximal part of a character. */
static void streams_give_whole_characters(void **state)
{
    (void)state;
#define R "\xEF\xBF\xBD"
    static const struct {
        const char *bytes, *text;
    } rows[] = {{"plain", "plain"},
                {"\xe2\x82\xac\xf0\x9f\x98\x80", "\xe2\x82\xac\xf0\x9f\x98\x80"},
                {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A"},
                {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A"},
                {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B"},
                {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A"},
                {"a\xf0\x9f\x98", "a" R}};
#undef R
    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t step = 1; step <= strlen(rows[i].bytes); step++) {
            char text[128];
            struct utf8_stream stream = {0};
            size_t size = strlen(rows[i].bytes), written = 0;
            for (size_t at = 0; at < size; at += step) {
                size_t take = size - at < step ? size - at : step;
                written += utf8_stream_add(&stream, rows[i].bytes + at, take, text + written);
                assert_int_equal(utf8_valid_bytes(text, written), written);
            }
            written += utf8_stream_end(&stream, text + written);
            text[written] = '\0';
            assert_string_equal(text, rows[i].text);
        }
}

/* ---- merges --------------------------------------------------------------------------------------------------------
 */

enum { LETTERS = 3, MERGES = 60, IDS = LETTERS + MERGES, WORD = 40 };

/* The definition, word for word: the pair of lowest rank, leftmost first, until there is none. */
static size_t merge_plainly(const struct bpe_merge *merges, size_t count, int32_t *ids, size_t size)
{
    for (;;) {
        size_t best = count, at = 0;
        for (size_t i = 0; i + 1 < size; i++)
            for (size_t m = 0; m < best; m++)
                if (merges[m].left == ids[i] && merges[m].right == ids[i + 1]) {
                    best = m;
                    at = i;
                }
        if (best == count)
            return size;
        ids[at] = merges[best].merged;
        memmove(ids + at + 1, ids + at + 2, (size - at - 2) * sizeof *ids);
        size--;
    }
}

/* A vocabulary of random pairs over three letters; `ordered` gets them by rank, the bpe its own copy. */
static void random_merges(struct bpe *bpe, struct bpe_merge *ordered, uint64_t *seed)
{
    *bpe = (struct bpe){.merges = calloc(MERGES, sizeof *ordered)};
    assert_non_null(bpe->merges);
    for (int byte = 0; byte < 256; byte++)
        bpe->byte_ids[byte] = byte % LETTERS;
    for (int i = 0; i < MERGES; i++) {
        bool again = true;
        while (again) {
            ordered[i] = (struct bpe_merge){test_random(seed, 0, LETTERS + i - 1),
                                            test_random(seed, 0, LETTERS + i - 1), LETTERS + i, (uint32_t)i};
            again = false;
            for (int j = 0; j < i; j++)
                again |= ordered[j].left == ordered[i].left && ordered[j].right == ordered[i].right;
        }
    }
    memcpy(bpe->merges, ordered, MERGES * sizeof *ordered);
    bpe->merge_count = MERGES;
    struct error error;
    check_ok(bpe_index(bpe, IDS, &error));
}

static void merges_follow_the_definition(void **state)
{
    (void)state;
    uint64_t seed = 11;
    size_t merged = 0;
    for (int round = 0; round < 200; round++) {
        struct bpe bpe;
        struct bpe_merge ordered[MERGES];
        struct bpe_scratch scratch = {0};
        random_merges(&bpe, ordered, &seed);
        for (int words = 0; words < 50; words++) {
            char word[WORD];
            int32_t expected[WORD];
            size_t size = (size_t)test_random(&seed, 0, WORD);
            for (size_t i = 0; i < size; i++) {
                word[i] = (char)test_random(&seed, 0, LETTERS - 1);
                expected[i] = (unsigned char)word[i];
            }
            size_t count = merge_plainly(ordered, MERGES, expected, size);
            struct token_list tokens = {0};
            struct error error;
            check_ok(bpe_encode(&bpe, &scratch, word, size, &tokens, &error));
            assert_int_equal(tokens.count, count);
            for (size_t i = 0; i < count; i++)
                assert_int_equal(tokens.ids[i], expected[i]);
            merged += size - count;
            free(tokens.ids);
        }
        bpe_scratch_free(&scratch);
        bpe_free(&bpe);
    }
    assert_true(merged > 10000);
}

/* ---- long texts ----------------------------------------------------------------------------------------------------
 */

/* `size` bytes of `unit`, over and over, whole units only. */
static char *repeat(const char *unit, size_t size, size_t *length)
{
    size_t unit_size = strlen(unit);
    char *text = malloc(size + 1);
    assert_non_null(text);
    for (*length = 0; *length + unit_size <= size; *length += unit_size)
        memcpy(text + *length, unit, unit_size);
    return text;
}

static void a_megabyte_in_one_word_comes_to_an_end(void **state)
{
    (void)state;
    static const char *const units[] = {"a", "the",         "ab",           " ",  " \n",     "\n",          "\t", "1",
                                        "-", "<|im_start|", "\xe4\xbd\xa0", "'s", "cafe<++", "\xe2\x80\x83"};
    static const char *const names[] = {"qwen2", "llama3", "smollm2", "bytes"};
    for (size_t n = 0; n < COUNT(names); n++) {
        struct tokenizer *tokenizer = open_golden(names[n]);
        for (size_t i = 0; i < COUNT(units); i++) {
            size_t size, decoded_size;
            char *text = repeat(units[i], 1 << 20, &size), *decoded;
            struct error error;
            struct token_list tokens = encode(tokenizer, text, size);
            check_ok(tokenizer_decode(tokenizer, tokens.ids, tokens.count, true, &decoded, &decoded_size, &error));
            if (decoded_size != size || memcmp(decoded, text, size) != 0)
                fail_msg("%s: a megabyte of \"%s\" does not come back from its %zu tokens", names[n], units[i],
                         tokens.count);
            free(decoded);
            free(text);
            free(tokens.ids);
        }
        tokenizer_close(tokenizer);
    }
}

/* A run of marks in falling order of their classes (U+0301: 230, U+0323: 220) is the worst for a sort. Composed: i with
   the first of class 220 (U+1ECB), the others of that class, then those of class 230. */
static void a_megabyte_of_marks_is_ordered(void **state)
{
    (void)state;
    size_t size, composed_size;
    char *text = repeat("\xcc\x81\xcc\xa3", 1 << 20, &size), *composed;
    struct error error;
    text[0] = 'i';
    text[1] = 'i';
    check_ok(nfc(text, size, &composed, &composed_size, &error));
    assert_int_equal(composed_size, size);
    assert_memory_equal(composed, "i\xe1\xbb\x8b\xcc\xa3", 6);
    size_t marks = (size - 4) / 4; /* of class 220 after the first, and as many of class 230 */
    for (size_t i = 0; i < 2 * marks; i++)
        assert_memory_equal(composed + 4 + 2 * i, i < marks ? "\xcc\xa3" : "\xcc\x81", 2);
    free(composed);
    free(text);
}

/* ---- expressions ---------------------------------------------------------------------------------------------------
 */

static void expressions_mean_what_the_reference_means(void **state)
{
    (void)state;
    static const struct {
        const char *expression, *text;
        size_t begin, end;
    } rows[] = {
        {"\\s+",
         "a\xe1\xa0\x8e"
         "b",
         5, 5}, /* U+180E is no white space; PCRE2's own \s has it */
        {"\\s+",
         "a\xc2\x85\xe3\x80\x80"
         "b",
         1, 6},                                     /* U+0085, U+3000 are */
        {"[\\sx]+", "a\x1c\x0b\x78\xc2\xa0", 2, 6}, /* U+001C is none, U+000B is */
        {"\\S+", " \xe1\xa0\x8e ", 1, 4},
        {"(?i:'s)",
         "a'\xc5\xbf"
         "b",
         1, 4}, /* U+017F folds to s */
        {"\\p{N}{1,3}",
         "ab\xc2\xbd\xe2\x85\xa7"
         "1234",
         2, 8},
        {"[^\\r\\n\\p{L}]?\\p{L}+", "1\n\xd0\x9f", 2, 4},
        {"x\\.\\\\s", "x.x.\\s", 2, 6}, /* an escaped backslash begins no \s */
        {"a", "bbb", 3, 3},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pattern *pattern;
        struct error error;
        size_t begin, end;
        check_ok(pattern_open(&pattern, rows[i].expression, &error));
        check_ok(pattern_next(pattern, rows[i].text, strlen(rows[i].text), 0, &begin, &end, &error));
        if (begin != rows[i].begin || end != rows[i].end)
            fail_msg("%s: matched %zu .. %zu, not %zu .. %zu", rows[i].expression, begin, end, rows[i].begin,
                     rows[i].end);
        pattern_close(pattern);
    }
}

static void expressions_that_engines_read_differently_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *expression, *word;
    } rows[] = {{"^a", "^, $ or ."},      {"a$", "^, $ or ."},       {"a.b", "^, $ or ."},
                {"[a[b]]", "set within"}, {"[a&&b]", "&&"},          {"[]a]", "empty"},
                {"[^]", "empty"},         {"\\h+", "\\h"},           {"\\w+", "\\w"},
                {"\\d", "\\d"},           {"[\\S]", "within a set"}, {"a\\", "\\?"},
                {"\\p{L", "\\p"},         {"\\pL", "\\p"},           {"(?<a>b)", "group"},
                {"(?m:a)", "group"},      {"(*UTF)a", "verb"},       {"a{2}+", "count"},
                {"(a", "malformed"},      {"[a", "malformed"},       {"\\p{Nope}", "malformed"},
                {"a*", "no characters"},  {"", "no characters"},     {"(?!a)", "no characters"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pattern *pattern;
        struct error error;
        assert_int_equal(pattern_open(&pattern, rows[i].expression, &error), STATUS_INPUT);
        assert_null(pattern);
        if (!strstr(error.message, rows[i].word))
            fail_msg("%s: \"%s\" must have \"%s\"", rows[i].expression, error.message, rows[i].word);
    }
}

static void an_expression_that_never_ends_is_stopped(void **state)
{
    (void)state;
    struct pattern *pattern;
    struct error error;
    size_t begin, end, size;
    char *text = repeat("a", 64, &size);
    check_ok(pattern_open(&pattern, "(a+)+[bc]", &error));
    assert_int_equal(pattern_next(pattern, text, size, 0, &begin, &end, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "limit"));
    pattern_close(pattern);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_the_reference),
        cmocka_unit_test(ids_of_published_vocabularies),
        cmocka_unit_test(without_merges_an_id_is_a_byte),
        cmocka_unit_test(ids_out_of_range_are_refused),
        cmocka_unit_test(text_that_is_not_utf8_is_refused),
        cmocka_unit_test(streams_give_whole_characters),
        cmocka_unit_test(merges_follow_the_definition),
        cmocka_unit_test(a_megabyte_in_one_word_comes_to_an_end),
        cmocka_unit_test(a_megabyte_of_marks_is_ordered),
        cmocka_unit_test(expressions_mean_what_the_reference_means),
        cmocka_unit_test(expressions_that_engines_read_differently_are_refused),
        cmocka_unit_test(an_expression_that_never_ends_is_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
