/* kvlab generate with a text: the ids that --tokens gives for the text's own ids, decoded, up to the end of a text. */
#include "engine/tokenizer/beside_weights.h"
#include "tests/command.h"
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEW = 24, MOST = 64 };

static char folder[4096];

/* Synthetic weights over the ids of a golden tokenizer; `generation` goes into generation_config.json, if any. */
static void make_folder(const char *tokenizer, const char *end, const char *generation)
{
    static const char config[] =
        "{\"model_type\": \"qwen2\", \"vocab_size\": 704, \"hidden_size\": 32, \"intermediate_size\": 64,"
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
        "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0,"
        "\"tie_word_embeddings\": false, \"torch_dtype\": \"float32\", \"use_sliding_window\": false%s}";
    const char *tests = getenv("KVLAB_TESTS");
    char path[4200], text[2048];
    snprintf(folder, sizeof folder, "%s", command_folder());
    snprintf(path, sizeof path, "%s/golden/tokenizers/%s/tokenizer.json", tests ? tests : "tests", tokenizer);
    char *json = command_read(path);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    command_write(path, json, strlen(json));
    free(json);
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(text, sizeof text, config, end);
    command_write(path, text, strlen(text));
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    remove(path);
    if (generation)
        command_write(path, generation, strlen(generation));
}

static struct tokenizer *open_tokenizer(void)
{
    struct tokenizer *tokenizer;
    struct error error;
    check_ok(tokenizer_open_beside(&tokenizer, folder, &error));
    assert_non_null(tokenizer);
    return tokenizer;
}

/* What --tokens makes of a text's ids; returns how many. */
static size_t ids_after(struct tokenizer *tokenizer, const char *text, const char *options, int32_t ids[MOST])
{
    struct token_list prompt = {0};
    struct error error;
    char list[4096] = "", *rest;
    size_t count = 0;
    check_ok(tokenizer_encode(tokenizer, text, strlen(text), true, &prompt, &error));
    for (size_t i = 0, used = 0; i < prompt.count; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", i ? "," : "", (int)prompt.ids[i]);
    free(prompt.ids);
    struct command_outcome outcome =
        command_run("generate --model %s --tokens %s --new %d --threads 1 %s", folder, list, NEW, options);
    assert_int_equal(outcome.status, 0);
    for (char *at = strtok_r(outcome.out, ",\n", &rest); at && count < MOST; at = strtok_r(NULL, ",\n", &rest))
        ids[count++] = atoi(at);
    command_free(&outcome);
    return count;
}

static void expect_text(struct tokenizer *tokenizer, const char *text, const char *options, const int32_t *ids,
                        size_t count)
{
    char *expected, *with_end;
    size_t size;
    struct error error;
    check_ok(tokenizer_decode(tokenizer, ids, count, true, &expected, &size, &error));
    struct command_outcome outcome =
        command_run("generate --model %s --new %d --threads 1 '%s' %s", folder, NEW, text, options);
    if (outcome.status != 0)
        fail_msg("%s", outcome.err);
    assert_true(asprintf(&with_end, "%s\n", expected) > 0);
    assert_string_equal(outcome.out, with_end);
    command_free(&outcome);
    free(with_end);
    free(expected);
}

static void a_text_is_continued_as_its_ids_are(void **state)
{
    (void)state;
    static const char *const tokenizers[] = {"qwen2", "llama3", "bytes"};
    static const char *const options[] = {"--seed 1", "--seed 7 --temperature 1.5", "--cache off --seed 3"};
    static const char text[] = "The cache, e\xcc\x81 12 <|im_end|> keeps";
    for (size_t i = 0; i < 3; i++) {
        int32_t ids[MOST];
        make_folder(tokenizers[i], "", NULL);
        struct tokenizer *tokenizer = open_tokenizer();
        for (size_t o = 0; o < 3; o++) {
            size_t count = ids_after(tokenizer, text, options[o], ids);
            assert_int_equal(count, NEW);
            size_t known = 0; /* synthetic weights choose ids above the tokenizer's own, too: these have no text */
            for (size_t t = 0; t < count; t++)
                if (ids[t] < tokenizer_ids(tokenizer))
                    ids[known++] = ids[t];
            expect_text(tokenizer, text, options[o], ids, known);
        }
        tokenizer_close(tokenizer);
    }
}

/* The end of a text is the first id of eos_token_id that comes; generation_config.json goes before config.json. */
static void a_text_ends_where_the_model_says(void **state)
{
    (void)state;
    static const char text[] = "The cache keeps", options[] = "--seed 7 --temperature 2";
    char end[64], generation[64];
    int32_t ids[MOST];
    make_folder("qwen2", "", NULL);
    struct tokenizer *tokenizer = open_tokenizer();
    assert_int_equal(ids_after(tokenizer, text, options, ids), NEW);
    for (int at = 0; at < NEW; at++)
        if (ids[at] >= tokenizer_ids(tokenizer))
            ids[at] = -1;
    size_t sixth = 6, third = 3;
    assert_true(ids[sixth] >= 0 && ids[third] >= 0);
    for (size_t i = 0; i < sixth; i++)
        assert_true(ids[i] >= 0 && ids[i] != ids[sixth] && (i >= third || ids[i] != ids[third]));
    snprintf(end, sizeof end, ", \"eos_token_id\": %d", (int)ids[sixth]);
    make_folder("qwen2", end, NULL);
    expect_text(tokenizer, text, options, ids, sixth);
    make_folder("qwen2", end, "{\"temperature\": 0.7}");
    expect_text(tokenizer, text, options, ids, sixth);
    snprintf(generation, sizeof generation, "{\"eos_token_id\": [703, %d]}", (int)ids[third]);
    make_folder("qwen2", end, generation);
    expect_text(tokenizer, text, options, ids, third);
    make_folder("qwen2", "", generation);
    expect_text(tokenizer, text, options, ids, third);
    tokenizer_close(tokenizer);
}

static void bad_folders_are_refused(void **state)
{
    (void)state;
    static const char *const ends[] = {"704", "-1", "\"</s>\"", "[1, null]", "1.5"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char end[64];
        snprintf(end, sizeof end, ", \"eos_token_id\": %s", ends[i]);
        make_folder("qwen2", end, NULL);
        command_refuses(2, "config.json: eos_token_id has", "generate --model %s text", folder);
    }
    make_folder("qwen2", "", "{\"eos_token_id\": 704}");
    command_refuses(2, "generation_config.json: eos_token_id has 704", "generate --model %s text", folder);
    make_folder("qwen2", "", "{");
    command_refuses(2, "generation_config.json: malformed", "generate --model %s text", folder);
    make_folder("qwen2", "", NULL);
    command_refuses(2, "the text has 0 tokens", "generate --model %s ''", folder);
    command_refuses(2, "not UTF-8 at byte 1", "generate --model %s \"$(printf 'a\\377')\"", folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_continued_as_its_ids_are),
        cmocka_unit_test(a_text_ends_where_the_model_says),
        cmocka_unit_test(bad_folders_are_refused),
    };
    return cmocka_run_group_tests(tests, command_setup, command_cleanup);
}
