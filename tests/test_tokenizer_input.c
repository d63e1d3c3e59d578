/* No tokenizer.json, however wrong or damaged, is believed or crashes: each is refused in one line that names the file
   and the key. */
#include "engine/tokenizer/tokenizer.h"
#include "tests/command.h"
#include "tests/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static char file[4096];

static char *golden(const char *name)
{
    char path[4096];
    const char *tests = getenv("KVLAB_TESTS");
    snprintf(path, sizeof path, "%s/golden/tokenizers/%s/tokenizer.json", tests ? tests : "tests", name);
    return command_read(path);
}

static int setup(void **state)
{
    if (command_setup(state) != 0)
        return -1;
    snprintf(file, sizeof file, "%s/tokenizer.json", command_folder());
    return 0;
}

static void expect_refusal(const char *what, const char *word)
{
    struct tokenizer *tokenizer;
    struct error error = {0};
    enum status status = tokenizer_open(&tokenizer, file, &error);
    if (status != STATUS_INPUT || tokenizer)
        fail_msg("%s: status %d, '%s'", what, status, error.message);
    if (!strstr(error.message, word) || !strstr(error.message, file) || strchr(error.message, '\n'))
        fail_msg("%s: '%s' must name the file and have '%s' in one line", what, error.message, word);
}

/* ---- one thing wrong -----------------------------------------------------------------------------------------------
 */

/* The value at a path of keys and places, "model.merges.0", is set to a JSON text, or taken away by "". */
static void set_value(json_t *root, const char *path, const char *text)
{
    char keys[128], *rest = keys;
    json_t *at = root, *value = text[0] ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    snprintf(keys, sizeof keys, "%s", path);
    for (char *key = strsep(&rest, "."); key; key = strsep(&rest, ".")) {
        json_t *next = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
        if (rest) {
            if (!next)
                fail_msg("%s: no %s in the golden file", path, key);
            at = next;
        } else if (json_is_array(at)) {
            assert_int_equal(json_array_set_new(at, (size_t)atoi(key), value), 0);
        } else if (value) {
            assert_int_equal(json_object_set_new(at, key, value), 0);
        } else {
            assert_int_equal(json_object_del(at, key), 0);
        }
    }
}

static void a_wrong_value_is_refused_by_its_key(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *word;
    } rows[] = {
        {"model.type", "\"Unigram\"", "model.type is \"Unigram\""},
        {"model.type", "\"WordPiece\"", "model.type"},
        {"model.type", "", "model has no type"},
        {"model.byte_fallback", "true", "model.byte_fallback is true; understood is false"},
        {"model.dropout", "0.1", "model.dropout is 0.1"},
        {"model.unk_token", "\"<unk>\"", "model.unk_token"},
        {"model.continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix"},
        {"model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
        {"model.ignore_merges", "1", "model.ignore_merges"},
        {"model.vocab", "[]", "model.vocab is []; understood is an object"},
        {"model.vocab", "{}", "no token for the byte 0x00"},
        {"model.vocab.A", "", "no token for the byte 0x41"},
        {"model.vocab.A", "-1", "the id of \"A\""},
        {"model.vocab.A", "2097152", "the id of \"A\""},
        {"model.vocab.A", "1.5", "the id of \"A\""},
        {"model.vocab.A", "\"3\"", "the id of \"A\""},
        {"model.vocab.A", "5", "has the id 5, which another token has"},
        {"model.vocab", "{\"\": 1}", "no characters"},
        {"model.merges", "{}", "model.merges"},
        {"model.merges.0", "\"ab\"", "model.merges[0]"},
        {"model.merges.0", "\"a b c\"", "model.merges[0]"},
        {"model.merges.0", "\" b\"", "model.merges[0]"},
        {"model.merges.0", "\"b \"", "model.merges[0]"},
        {"model.merges.0", "[\"a\"]", "model.merges[0]"},
        {"model.merges.0", "[\"a\", \"b\", \"c\"]", "model.merges[0]"},
        {"model.merges.0", "[\"a\", 1]", "model.merges[0]"},
        {"model.merges.0", "null", "model.merges[0]"},
        {"model.merges.0", "\"\\u4f60 b\"", "model.vocab lacks"},
        {"model.merges.0", "\"q \\u0120\"", "model.vocab lacks"},
        {"model.new_key", "1", "model.new_key is a key that is not understood"},
        {"truncation", "{\"max_length\": 512}", "truncation"},
        {"padding", "{}", "padding"},
        {"normalizer", "{\"type\": \"NFKC\"}", "normalizer.type is \"NFKC\"; understood is NFC"},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": []}", "normalizer.type"},
        {"normalizer", "{\"kind\": \"NFC\"}", "normalizer has no type"},
        {"normalizer.form", "1", "normalizer.form"},
        {"pre_tokenizer", "null", "pre_tokenizer is null"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", "pre_tokenizer.type is \"Metaspace\""},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": []}", "no ByteLevel"},
        {"pre_tokenizer.pretokenizers.1.type", "\"Whitespace\"",
         "pre_tokenizer.pretokenizers[1].type is \"Whitespace\""},
        {"pre_tokenizer.pretokenizers.0.type", "\"Sequence\"", "pretokenizers[0].type"},
        {"pre_tokenizer.pretokenizers.0", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}",
         "stands after ByteLevel"},
        {"pre_tokenizer.pretokenizers.1.add_prefix_space", "true", "pretokenizers[1].add_prefix_space is true"},
        {"pre_tokenizer.pretokenizers.1.use_regex", "null", "pretokenizers[1].use_regex"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "behavior is \"Removed\"; understood is Isolated"},
        {"pre_tokenizer.pretokenizers.0.invert", "true", "pretokenizers[0].invert is true"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\": \" \"}", "pattern.String"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(\"",
         "pretokenizers[0].pattern: the expression is malformed"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a*\"", "no characters"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\h\"", "\\h at byte 0"},
        {"decoder", "null", "decoder is null"},
        {"decoder.type", "\"Metaspace\"", "decoder.type"},
        {"post_processor", "{\"type\": \"BertProcessing\"}", "post_processor.type is \"BertProcessing\""},
        {"post_processor", "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"RobertaProcessing\"}]}",
         "post_processor.processors[0].type"},
        {"post_processor", "{\"type\": \"TemplateProcessing\", \"single\": [], \"special_tokens\": {}}", "0 times"},
        {"post_processor", "{\"type\": \"TemplateProcessing\", \"single\": [1], \"special_tokens\": {}}", "single[0]"},
        {"post_processor",
         "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}], \"special_tokens\": "
         "{}}",
         "single[0]"},
        {"post_processor",
         "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}, {\"Sequence\": {}}], "
         "\"special_tokens\": {\"x\": {\"ids\": [99999]}}}",
         "the id 99999, which no token has"},
        {"added_tokens", "{}", "added_tokens"},
        {"added_tokens.0", "1", "added_tokens[0] is 1"},
        {"added_tokens.0.lstrip", "true", "added_tokens[0].lstrip"},
        {"added_tokens.0.rstrip", "true", "added_tokens[0].rstrip"},
        {"added_tokens.0.single_word", "true", "added_tokens[0].single_word"},
        {"added_tokens.0.content", "\"\"", "no characters"},
        {"added_tokens.0.content", "null", "added_tokens[0].content"},
        {"added_tokens.0.content", "\"A\"", "the same token in model.vocab"},
        {"added_tokens.0.id", "5", "which another token has"},
        {"added_tokens.0.id", "-5", "added_tokens[0]"},
        {"added_tokens.0.id", "", "added_tokens[0].id is missing"},
        {"added_tokens.1.content", "\"<|endoftext|>\"", "twice"},
        {"model", "", "model is missing"},
        {"surprise", "1", "surprise is a key that is not understood"},
    };
    char *text = golden("qwen2");
    for (size_t i = 0; i < COUNT(rows); i++) {
        char what[256];
        json_t *root = json_loads(text, 0, NULL);
        assert_non_null(root);
        set_value(root, rows[i].path, rows[i].value);
        assert_int_equal(json_dump_file(root, file, 0), 0);
        json_decref(root);
        snprintf(what, sizeof what, "%s = %s", rows[i].path, rows[i].value);
        expect_refusal(what, rows[i].word);
    }
    free(text);
}

static void a_pair_that_is_merged_twice_is_refused(void **state)
{
    (void)state;
    char *text = golden("qwen2");
    json_t *root = json_loads(text, 0, NULL), *merges = json_object_get(json_object_get(root, "model"), "merges");
    size_t count = json_array_size(merges);
    assert_int_equal(json_array_append(merges, json_array_get(merges, 7)), 0);
    assert_int_equal(json_dump_file(root, file, 0), 0);
    char words[64];
    snprintf(words, sizeof words, "merges 7 and %zu are the same pair", count);
    expect_refusal("a repeated merge", words);
    json_decref(root);
    free(text);
}

/* What a file may leave out, or say in another way, changes nothing. */
static void other_ways_to_say_the_same_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
    } rows[] = {{"version", ""},
                {"truncation", ""},
                {"model.dropout", ""},
                {"model.continuing_subword_prefix", "\"\""},
                {"model.end_of_word_suffix", "\"\""},
                {"model.fuse_unk", "true"},
                {"post_processor", "null"},
                {"post_processor", ""}};
    char *text = golden("smollm2");
    for (size_t i = 0; i < COUNT(rows); i++) {
        json_t *root = json_loads(text, 0, NULL);
        struct tokenizer *tokenizer;
        struct error error;
        set_value(root, rows[i].path, rows[i].value);
        assert_int_equal(json_dump_file(root, file, 0), 0);
        json_decref(root);
        check_ok(tokenizer_open(&tokenizer, file, &error));
        tokenizer_close(tokenizer);
    }
    free(text);
}

/* The older form of the list of merges: "left right" for [left, right]. */
static void merges_in_one_text_are_read(void **state)
{
    (void)state;
    static const char sample[] = "The cache of the model grows with the text.";
    char *text = golden("llama3");
    json_t *root = json_loads(text, 0, NULL), *merges = json_object_get(json_object_get(root, "model"), "merges");
    struct token_list ids[2] = {{0}};
    for (int form = 0; form < 2; form++) {
        struct tokenizer *tokenizer;
        struct error error;
        assert_int_equal(json_dump_file(root, file, 0), 0);
        check_ok(tokenizer_open(&tokenizer, file, &error));
        check_ok(tokenizer_encode(tokenizer, sample, sizeof sample - 1, true, &ids[form], &error));
        tokenizer_close(tokenizer);
        for (size_t i = 0; i < json_array_size(merges) && form == 0; i++) {
            json_t *pair = json_array_get(merges, i);
            json_array_set_new(merges, i,
                               json_sprintf("%s %s", json_string_value(json_array_get(pair, 0)),
                                            json_string_value(json_array_get(pair, 1))));
        }
    }
    assert_true(ids[0].count > 5 && ids[0].count < sizeof sample - 1);
    assert_int_equal(ids[0].count, ids[1].count);
    assert_memory_equal(ids[0].ids, ids[1].ids, ids[0].count * sizeof *ids[0].ids);
    free(ids[0].ids);
    free(ids[1].ids);
    json_decref(root);
    free(text);
}

/* ---- damage --------------------------------------------------------------------------------------------------------
 */

static void no_file_or_no_json_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "null",
                                        "{}",
                                        "\xff\xfe{}",
                                        "{\"model\": 1, \"model\": 2}",
                                        "{\"a\\u0000\": 1}",
                                        "{\"model\": {\"type\": \"\xed\xa0\x80\"}}"};
    struct tokenizer *tokenizer;
    struct error error;
    assert_int_equal(tokenizer_open(&tokenizer, "/no/such/tokenizer.json", &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "/no/such/tokenizer.json"));
    assert_int_equal(tokenizer_open(&tokenizer, command_folder(), &error), STATUS_INPUT);
    for (size_t i = 0; i < COUNT(texts); i++) {
        command_write(file, texts[i], strlen(texts[i]));
        expect_refusal(texts[i], "");
    }
    char *deep = malloc(200001);
    assert_non_null(deep);
    memset(deep, '[', 200000);
    deep[200000] = '\0';
    command_write(file, deep, 200000);
    expect_refusal("200,000 lists within each other", "");
    free(deep);
}

static void a_file_truncated_anywhere_is_refused(void **state)
{
    (void)state;
    char *text = golden("qwen2");
    size_t size = strlen(text);
    while (size > 0 && text[size - 1] != '}')
        size--;
    for (size_t cut = 0; cut < size; cut += cut < 3000 ? 17 : 331) {
        char what[64];
        snprintf(what, sizeof what, "%zu of %zu bytes", cut, size);
        command_write(file, text, cut);
        expect_refusal(what, "");
    }
    free(text);
}

/* One to four changes anywhere: a byte set, bits flipped, a part left out, doubled or moved. */
static size_t damage(char *text, size_t size, uint64_t *seed)
{
    for (int changes = test_random(seed, 1, 4); changes > 0; changes--) {
        size_t at = (size_t)test_random(seed, 0, (int)size - 40), from = (size_t)test_random(seed, 0, (int)size - 40);
        size_t length = (size_t)test_random(seed, 1, 32);
        static const char marks[] = "{}[]\",:0-9a\\ \xc4\xa0\xff";
        switch (test_random(seed, 0, 3)) {
        case 0:
            text[at] = marks[test_random(seed, 0, (int)sizeof marks - 2)];
            break;
        case 1:
            text[at] = (char)(text[at] ^ 1 << test_random(seed, 0, 7));
            break;
        case 2:
            memmove(text + at, text + at + length, size - at - length);
            size -= length;
            break;
        default:
            memmove(text + at, text + from, length);
        }
    }
    return size;
}

/* Changes whole values, so that most files get past the JSON parser. */
static void damage_value(json_t *value, uint64_t *seed)
{
    static const char *const values[] = {"null",
                                         "true",
                                         "-1",
                                         "0",
                                         "2097151",
                                         "9223372036854775807",
                                         "1e300",
                                         "\"\"",
                                         "\"a b\"",
                                         "\"\\\\p{L}+|(\"",
                                         "[]",
                                         "{}",
                                         "[[[]]]",
                                         "\"ByteLevel\"",
                                         "{\"type\": \"Sequence\"}"};
    json_t *new = json_loads(values[test_random(seed, 0, COUNT(values) - 1)], JSON_DECODE_ANY, NULL);
    size_t size = json_is_array(value) ? json_array_size(value) : json_object_size(value);
    int chosen = size ? test_random(seed, 0, (int)(size < 12 || test_random(seed, 0, 1) ? size : 12) - 1) : 0, at = 0;
    json_t *child = NULL;
    const char *key = NULL, *each;
    json_t *one;
    if (json_is_array(value)) {
        child = json_array_get(value, (size_t)chosen);
    } else {
        json_object_foreach(value, each, one)
        {
            if (at++ == chosen) {
                child = one;
                key = each;
            }
        }
    }
    bool deeper = json_is_object(child) || json_is_array(child) ? test_random(seed, 0, 4) > 0 : false;
    if (deeper)
        damage_value(child, seed);
    else if (json_is_array(value) && size)
        json_array_set(value, (size_t)chosen, new);
    else if (key && test_random(seed, 0, 3) == 0)
        json_object_del(value, key);
    else if (key)
        json_object_set(value, key, new);
    json_decref(new);
}

/* It opens, or is refused; what opens takes text or refuses it. Returns whether it opened. */
static bool try_file(uint64_t *seed)
{
    struct tokenizer *tokenizer;
    struct error error = {0};
    enum status status = tokenizer_open(&tokenizer, file, &error);
    if (status != STATUS_OK) {
        if (status != STATUS_INPUT || tokenizer || !error.message[0] || strchr(error.message, '\n'))
            fail_msg("status %d, '%s'", status, error.message);
        return false;
    }
    static const char text[] = "It's <|im_start|>12 caf\xc3\xa9 e\xcc\x81  \n\xe4\xbd\xa0\xe5\xa5\xbd <tool_call>";
    struct token_list tokens = {0};
    char *decoded = NULL;
    size_t size, cut = (size_t)test_random(seed, 0, sizeof text - 1);
    status = tokenizer_encode(tokenizer, text, cut, true, &tokens, &error);
    assert_true(status == STATUS_OK || status == STATUS_INPUT);
    if (status == STATUS_OK)
        check_ok(tokenizer_decode(tokenizer, tokens.ids, tokens.count, false, &decoded, &size, &error));
    free(decoded);
    free(tokens.ids);
    tokenizer_close(tokenizer);
    return true;
}

static void damaged_files_never_crash(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "llama3", "smollm2", "bytes"};
    uint64_t seed = 4;
    int opened = 0, refused = 0;
    for (size_t n = 0; n < COUNT(names); n++) {
        char *text = golden(names[n]);
        size_t size = strlen(text);
        char *copy = malloc(size + 1);
        assert_non_null(copy);
        for (int round = 0; round < 500; round++) {
            memcpy(copy, text, size + 1);
            command_write(file, copy, damage(copy, size, &seed));
            bool did = try_file(&seed);
            json_t *root = json_loads(text, 0, NULL);
            for (int changes = test_random(&seed, 1, 3); changes > 0; changes--)
                damage_value(root, &seed);
            assert_int_equal(json_dump_file(root, file, 0), 0);
            json_decref(root);
            did += try_file(&seed);
            opened += did;
            refused += !did;
        }
        free(copy);
        free(text);
    }
    assert_true(opened > 20 && refused > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_value_is_refused_by_its_key), cmocka_unit_test(a_pair_that_is_merged_twice_is_refused),
        cmocka_unit_test(other_ways_to_say_the_same_are_read), cmocka_unit_test(merges_in_one_text_are_read),
        cmocka_unit_test(no_file_or_no_json_is_refused),       cmocka_unit_test(a_file_truncated_anywhere_is_refused),
        cmocka_unit_test(damaged_files_never_crash),
    };
    return cmocka_run_group_tests(tests, setup, command_cleanup);
}
