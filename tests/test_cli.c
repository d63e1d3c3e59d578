/* The binary as a user meets it: exit status, one clear line on stderr, and older results untouched by what fails. */
#include "bench/harness/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

extern char **environ;

static char folder[] = "/tmp/kvlab-cli-XXXXXX", binary[4096];
static char tiny[64], out[64], csv_path[96], out_file[64], err_file[64];

/* ---- running it ------------------------------------------------------------------------------------------------- */

struct outcome {
    int status, signal; /* exit status, or -1 and the signal */
    char *stdout_text, *stderr_text;
};

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) < (1 << 20) - 1);
    fclose(file);
    return text;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* `line` is split at spaces; "@tiny" and "@out" stand for the tiny model's and the results folder. */
static pid_t start(const char *line, const char *stdout_path)
{
    char text[1024], *argv[64], *runner = getenv("KVLAB_RUNNER"); /* qemu-aarch64, say */
    int argc = 0;
    if (runner && runner[0])
        argv[argc++] = runner;
    argv[argc++] = binary;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word && argc < 63; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "@tiny") == 0 ? tiny : strcmp(word, "@out") == 0 ? out : word;

    argv[argc] = NULL;

    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    pid_t child;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT); /* a test runner in the background has it ignored */
    sigaddset(&defaults, SIGXFSZ);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawnattr_init(&attributes), 0);
    posix_spawn_file_actions_addopen(&actions, 1, stdout_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_addopen(&actions, 2, err_file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    int failed = posix_spawnp(&child, argv[0], &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (failed)
        fail_msg("%s: %s", binary, strerror(failed));
    return child;
}

static struct outcome finish(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    struct outcome outcome = {-1, 0, read_file(out_file), read_file(err_file)};
    if (WIFEXITED(status))
        outcome.status = WEXITSTATUS(status);
    else
        outcome.signal = WTERMSIG(status);
    return outcome;
}

static void outcome_free(struct outcome *outcome)
{
    free(outcome->stdout_text);
    free(outcome->stderr_text);
}

static void run(const char *line, int status)
{
    struct outcome outcome = finish(start(line, out_file));
    if (outcome.status != status)
        fail_msg("kvlab %s: exit status %d, not %d: %s", line, outcome.status, status, outcome.stderr_text);
    outcome_free(&outcome);
}

/* Fails as it should: the status, exactly one line on stderr with `word` in it, nothing on stdout. */
static void refuses(const char *line, int status, const char *word)
{
    struct outcome outcome = finish(start(line, out_file));
    const char *text = outcome.stderr_text, *end = strchr(text, '\n');
    if (outcome.status != status)
        fail_msg("kvlab %s: exit status %d (signal %d), not %d: %s", line, outcome.status, outcome.signal, status,
                 text);
    if (strncmp(text, "kvlab: ", 7) != 0 || !end || end[1])
        fail_msg("kvlab %s: not one line on stderr: %s", line, text);
    if (!strstr(text, word))
        fail_msg("kvlab %s: \"%s\" is not in: %s", line, word, text);
    if (outcome.stdout_text[0])
        fail_msg("kvlab %s: stdout has: %s", line, outcome.stdout_text);
    outcome_free(&outcome);
}

/* ---- a small place of its own ----------------------------------------------------------------------------------- */

static const char config_text[] =
    "{\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 32,"
    "\"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    "\"hidden_act\": \"silu\", \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0,"
    "\"tie_word_embeddings\": true, \"torch_dtype\": \"float32\", \"use_sliding_window\": false}";

static int remove_entry(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)facts;
    (void)kind;
    (void)place;
    return remove(path);
}

static int make_place(void **state)
{
    (void)state;
    const char *given = getenv("KVLAB_BIN");
    if (!realpath(given ? given : "build/kvlab", binary) || !mkdtemp(folder))
        return -1;
    snprintf(tiny, sizeof tiny, "%s/tiny", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(csv_path, sizeof csv_path, "%s/kv.csv", out);
    snprintf(out_file, sizeof out_file, "%s/stdout", folder);
    snprintf(err_file, sizeof err_file, "%s/stderr", folder);
    char path[96];
    snprintf(path, sizeof path, "%s/config.json", tiny);
    if (mkdir(tiny, 0777) != 0)
        return -1;
    write_file(path, config_text);
    return 0;
}

static int remove_place(void **state)
{
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static int no_results(void **state)
{
    (void)state;
    if (access(out, F_OK) == 0)
        nftw(out, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

/* Whatever fails in between must leave these files as they are, and none beside them. */
struct older {
    char *csv, *meta;
};

static char *meta_text_of_kv(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/kv.meta.json", out);
    return read_file(path);
}

static struct older make_older(void)
{
    run("run kv --model @tiny --contexts 16,32 --out @out", 0);
    return (struct older){read_file(csv_path), meta_text_of_kv()};
}

static void assert_untouched(struct older *older)
{
    char *csv = read_file(csv_path), *meta = meta_text_of_kv();
    assert_non_null(csv);
    assert_non_null(meta);
    assert_string_equal(csv, older->csv);
    assert_string_equal(meta, older->meta);
    free(csv);
    free(meta);
    free(older->csv);
    free(older->meta);
    assert_int_equal(remove(csv_path), 0);
    char path[96];
    snprintf(path, sizeof path, "%s/kv.meta.json", out);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(out), 0); /* nothing else was in it */
}

/* ---- what must be refused --------------------------------------------------------------------------------------- */

static void bad_words(void **state)
{
    (void)state;
    refuses("", 2, "list, info, run, generate");
    refuses("bogus", 2, "list, info, run, generate");
    refuses("run", 2, "formula, kv, slope");
    refuses("run bogus", 2, "formula, kv, slope");
    refuses("list bogus", 2, "bogus");
    refuses("info --bogus", 2, "--bogus");
    refuses("generate --bogus", 2, "--bogus");
    refuses("generate", 2, "--model");
    refuses("generate --model @tiny", 2, "--tokens");
    refuses("generate text", 2, "--model");
    refuses("generate --model @tiny two words", 2, "quotes");
    refuses("generate --model @tiny text --tokens 1", 2, "two prompts");
    refuses("generate --model @tiny text", 2, "tokenizer.json");
    refuses("generate --model qwen2.5-0.5b text", 2, "published config alone");
    refuses("run formula --explain bogus", 2, "kv_bytes_per_token");
    refuses("run formula bogus", 2, "bogus");
    refuses("run formula --device", 2, "--device");
    refuses("run kv --model @tiny --device bogus --out @out", 2, "bogus");
}

static void bad_settings_touch_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int status;
        const char *word;
    } cases[] = {
        {"--bogus", 2, "--bogus"},
        {"--contexts 0", 2, "--contexts"},
        {"--contexts -5", 2, "-5"},
        {"--contexts abc", 2, "abc"},
        {"--contexts 16,,32", 2, "--contexts"},
        {"--contexts 99999999999999999999999", 2, "--contexts"},
        {"--contexts 2000000000000", 3, "512000000000000"}, /* 2 * 2 layers * 2 heads * 8 * 4 = 256 bytes a token */
        {"--contexts 1000000 --budget 100MB", 3, "--contexts: 1000000 tokens need 256000000 bytes"},
        {"--contexts 16 --budget 150kB", 3, "tiny does not fit"}, /* found before any weight is made */
        {"--budget -1", 2, "--budget"},
        {"--threads many", 2, "--threads"},
        {"--dtype int3", 2, "f32, f16, bf16"},
        {"--format xml", 2, "table, csv, json, md"},
        {"--samples s.csv", 2, "--samples: kv does not use it"},
        {"--reps 3", 2, "--reps: kv does not use it"},
        {"--new-tokens 3", 2, "--new-tokens"},
        {"--model /no/such/model", 2, "/no/such/model"},
    };
    struct older older = make_older();
    for (size_t i = 0; i < COUNT(cases); i++) {
        char line[256];
        snprintf(line, sizeof line, "run kv --model @tiny --out @out %s", cases[i].line);
        refuses(line, cases[i].status, cases[i].word);
    }
    assert_untouched(&older);
}

static void bad_configs_touch_nothing(void **state)
{
    (void)state;
    /* Each replaces the first occurrence of one text in the config by another. */
    static const char *const cases[][3] = {
        {"{", "{{", "config.json"},
        {"false}", "false", "config.json"},
        {"\"num_hidden_layers\": 2,", "", "num_hidden_layers"},
        {"\"hidden_size\": 32", "\"hidden_size\": -32", "hidden_size"},
        {"\"vocab_size\": 64", "\"vocab_size\": 0", "vocab_size"},
        {"\"vocab_size\": 64", "\"vocab_size\": 64.5", "vocab_size"},
        {"\"vocab_size\": 64", "\"vocab_size\": 99999999999999999999", "config.json"},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 9223372036854775807", "num_hidden_layers"},
        {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "num_key_value_heads"},
    };
    struct older older = make_older();
    char place[96], path[128];
    snprintf(place, sizeof place, "%s/bad", folder);
    snprintf(path, sizeof path, "%s/config.json", place);
    assert_int_equal(mkdir(place, 0777), 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[2048], line[256];
        const char *found = strstr(config_text, cases[i][0]);
        assert_non_null(found);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(found - config_text), config_text, cases[i][1],
                 found + strlen(cases[i][0]));
        write_file(path, text);
        snprintf(line, sizeof line, "run kv --out @out --model %s", place);
        refuses(line, 2, cases[i][2]);
    }
    assert_untouched(&older);
}

static void bad_weights_touch_nothing(void **state)
{
    (void)state;
    /* A header of 2 bytes, "{}": no tensors. Cut short in the middle of the length. A header longer than the file. */
    static const struct {
        const char *bytes;
        size_t length;
    } cases[] = {{"\2\0\0\0\0\0\0\0{}", 10}, {"\2\0\0", 3}, {"\377\0\0\0\0\0\0\0{}", 10}, {"", 0}};
    struct older older = make_older();
    char place[96], path[128], line[256];
    snprintf(place, sizeof place, "%s/weights", folder);
    assert_int_equal(mkdir(place, 0777), 0);
    snprintf(path, sizeof path, "%s/config.json", place);
    write_file(path, config_text);
    snprintf(path, sizeof path, "%s/model.safetensors", place);
    for (size_t i = 0; i < COUNT(cases); i++) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(cases[i].bytes, 1, cases[i].length, file), cases[i].length);
        assert_int_equal(fclose(file), 0);
        snprintf(line, sizeof line, "run kv --out @out --model %s", place);
        refuses(line, 2, place);
    }
    assert_int_equal(remove(path), 0);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", place);
    write_file(path, "{\"weight_map\": {\"model.norm.weight\": \"gone.safetensors\"}}");
    refuses(line, 2, "gone.safetensors");
    assert_untouched(&older);
}

static void bad_token_ids(void **state)
{
    (void)state;
    refuses("generate --model @tiny --tokens 1,64", 2, "64");
    refuses("generate --model @tiny --tokens -1", 2, "-1");
    refuses("generate --model @tiny --tokens 1,,2", 2, "place 2 of the list is empty");
    refuses("generate --model @tiny --tokens 1,", 2, "place 2 of the list is empty");
    refuses("generate --model @tiny --tokens 1,two", 2, "two");
    refuses("generate --model @tiny --tokens 99999999999999999999", 2, "--tokens");
    refuses("generate --model @tiny --tokens 1 --new 0", 2, "--new");
    refuses("generate --model @tiny --tokens 1 --temperature warm", 2, "--temperature");
    refuses("generate --model @tiny --tokens 1 --top-p 2", 2, "--top-p");
    refuses("generate --model @tiny --tokens 1 --cache maybe", 2, "on, off");
    refuses("generate --model @tiny --tokens 1 --budget 1kB", 3, "1000");
}

static void unwritable_results(void **state)
{
    (void)state;
    char line[256];
    write_file(out_file, "");
    snprintf(line, sizeof line, "run kv --model @tiny --contexts 16 --out %s/config.json/results", tiny);
    refuses(line, 2, "results"); /* a folder under a regular file, which root cannot make either */
    snprintf(line, sizeof line, "run kv --model @tiny --contexts 16 --out %s/config.json", tiny);
    refuses(line, 2, "config.json");
    refuses("run kv --model @tiny --contexts 16 --out /proc/kvlab", 2, "/proc/kvlab");
}

/* ---- a full disk: a limit on the size of files, which the child inherits ---------------------------------------- */

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_full_disk_at_the_start(void **state)
{
    (void)state;
    struct older older = make_older();
    limit_files(1000);
    pid_t child = start("run kv --model @tiny --contexts 16 --out @out", out_file);
    limit_files(0);
    struct outcome outcome = finish(child);
    assert_int_equal(outcome.status, 2);
    assert_non_null(strstr(outcome.stderr_text, csv_path));
    outcome_free(&outcome);
    assert_untouched(&older);
}

static void a_full_disk_in_mid_run(void **state)
{
    (void)state;
    limit_files(6000); /* more than a meta file, less than 200 rows */
    pid_t child = start("run kv --model @tiny --contexts 1-200+1 --format csv --out @out", "/dev/null");
    limit_files(0);
    struct outcome outcome = finish(child);
    assert_int_equal(outcome.status, 2);
    assert_non_null(strstr(outcome.stderr_text, csv_path));
    outcome_free(&outcome);
    struct csv_table table;
    struct error error = {0};
    if (csv_table_read(&table, csv_path, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    assert_in_range(table.row_count, 10, 199);
    size_t rows = table.row_count;
    csv_table_free(&table);
    run("run kv --model @tiny --contexts 1-200+1 --out @out --resume", 0); /* there is room again */
    assert_int_equal(csv_table_read(&table, csv_path, &error), STATUS_OK);
    assert_true(rows < table.row_count);
    assert_int_equal(table.row_count, 200);
    csv_table_free(&table);
}

static void a_full_stdout(void **state)
{
    (void)state;
    struct outcome outcome = finish(start("list", "/dev/full"));
    assert_int_equal(outcome.status, 2);
    assert_non_null(strstr(outcome.stderr_text, "stdout"));
    outcome_free(&outcome);
}

/* ---- Ctrl-C and --resume ---------------------------------------------------------------------------------------- */

/* Waits until the CSV has at least `rows` rows. No measure of speed: a minute is for a machine that stands still. */
static void wait_for_rows(size_t rows)
{
    for (int i = 0; i < 60000; i++) {
        struct csv_table table;
        struct error error = {0};
        if (access(csv_path, F_OK) == 0 && csv_table_read(&table, csv_path, &error) == STATUS_OK) {
            size_t found = table.row_count;
            csv_table_free(&table);
            if (found >= rows)
                return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    fail_msg("%s did not get %zu rows", csv_path, rows);
}

static void interrupted_then_resumed(int number)
{
    no_results(NULL);
    /* The last context takes long; the others do not. */
    pid_t child = start("run kv --model @tiny --contexts 16,32,100000 --out @out", out_file);
    wait_for_rows(2);
    assert_int_equal(kill(child, number), 0);
    struct outcome outcome = finish(child);
    if (outcome.signal != number)
        fail_msg("it ended with status %d, signal %d: %s", outcome.status, outcome.signal, outcome.stderr_text);
    assert_non_null(strstr(outcome.stderr_text, "--resume"));
    outcome_free(&outcome);
    struct csv_table before, after;
    struct error error = {0};
    assert_int_equal(csv_table_read(&before, csv_path, &error), STATUS_OK);
    assert_int_equal(before.row_count, 2);
    char *meta = meta_text_of_kv();
    assert_non_null(strstr(meta, "\"complete\": false"));
    free(meta);

    struct outcome other =
        finish(start("run kv --model @tiny --contexts 16,32,48 --out @out --resume --seed 2", out_file));
    assert_int_equal(other.status, 2); /* other settings are another measurement */
    assert_non_null(strstr(other.stderr_text, "seed"));
    outcome_free(&other);

    run("run kv --model @tiny --contexts 16,32,48 --out @out --resume", 0);
    assert_int_equal(csv_table_read(&after, csv_path, &error), STATUS_OK);
    assert_int_equal(after.row_count, 3);
    for (size_t row = 0; row < 2; row++)
        for (size_t i = 0; i < before.column_count; i++)
            assert_string_equal(after.cells[row][i], before.cells[row][i]);
    assert_string_equal(after.cells[2][csv_table_column(&after, "prompt_tokens")], "48");
    meta = meta_text_of_kv();
    assert_non_null(strstr(meta, "\"complete\": true"));
    free(meta);
    csv_table_free(&before);
    csv_table_free(&after);
}

static void ctrl_c_then_resume(void **state)
{
    (void)state;
    interrupted_then_resumed(SIGINT);
    interrupted_then_resumed(SIGTERM);
}

/* ---- what works ------------------------------------------------------------------------------------------------- */

static json_t *json_of(const char *line, int highest_status)
{
    struct outcome outcome = finish(start(line, out_file));
    if (outcome.status < 0 || outcome.status > highest_status)
        fail_msg("kvlab %s: %d: %s", line, outcome.status, outcome.stderr_text);
    json_error_t reason;
    json_t *document = json_loads(outcome.stdout_text, 0, &reason);
    if (!document)
        fail_msg("kvlab %s: %s in: %s", line, reason.text, outcome.stdout_text);
    outcome_free(&outcome);
    return document;
}

/* The numbers of the lessons: KiB per token 12, 28, 56, without sharing 84, 168, 392; Llama 128, 512, 320. */
static void formula_of_published_models(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int kib, kib_mha;
    } known[] = {{"qwen2.5-0.5b", 12, 84}, {"qwen2.5-1.5b", 28, 168}, {"qwen2.5-7b", 56, 392},
                 {"llama-3-8b", 128, 512}, {"llama-2-7b", 512, 512},  {"llama-3-70b", 320, 2560}};
    json_t *document = json_of("run formula --format json --out @out", 0), *row;
    size_t found = 0, index;
    json_array_foreach(json_object_get(document, "formula"), index, row)
    {
        const char *model = json_string_value(json_object_get(row, "model"));
        for (size_t i = 0; i < COUNT(known); i++) {
            if (strcmp(model, known[i].model) != 0)
                continue;
            found++;
            assert_int_equal(json_integer_value(json_object_get(row, "kv_bytes_per_token")), known[i].kib * 1024);
            assert_int_equal(json_integer_value(json_object_get(row, "kv_bytes_per_token_mha")),
                             known[i].kib_mha * 1024);
        }
    }
    assert_int_equal(found, COUNT(known));
    json_decref(document);
}

/* Every experiment with a small model: one JSON document with all its tables. Status 1 is allowed: how far the pages of
   so small a cache are from the formula is not what is asked here. */
static void json_of_every_experiment(void **state)
{
    (void)state;
    for (const struct experiment *const *experiment = experiments; *experiment; experiment++) {
        char line[256];
        /* A draft must have the target's vocabulary, which the default one has not. */
        const char *draft = strcmp((*experiment)->name, "speculative") == 0 ? " --draft @tiny" : "";
        snprintf(line, sizeof line, "run %s --model @tiny%s --quick --format json --out @out", (*experiment)->name,
                 draft);
        json_t *document = json_of(line, 1), *rows = json_object_get(document, (*experiment)->name);
        size_t count = json_array_size(rows);
        assert_true(json_is_array(rows) && json_array_size(rows) > 0);
        for (size_t i = 0; i < (*experiment)->tables[0].column_count; i++)
            assert_non_null(json_object_get(json_array_get(rows, 0), (*experiment)->tables[0].columns[i].name));
        json_decref(document);
        strcat(line, " --resume"); /* takes its own rows: their keys are unique, their cells what their columns say */
        document = json_of(line, 1);
        assert_int_equal(json_array_size(json_object_get(document, (*experiment)->name)), count);
        json_decref(document);
    }
}

static void other_formats(void **state)
{
    (void)state;
    struct outcome outcome = finish(start("run kv --model @tiny --contexts 16 --format csv --out @out", out_file));
    char *csv = read_file(csv_path);
    assert_string_equal(outcome.stdout_text, csv); /* the same bytes */
    free(csv);
    outcome_free(&outcome);
    outcome = finish(start("run kv --model @tiny --contexts 16 --format md --out @out", out_file));
    assert_non_null(strstr(outcome.stdout_text, "| 4096 "));
    assert_non_null(strstr(outcome.stdout_text, "|---"));
    outcome_free(&outcome);
}

static void a_dry_run_writes_nothing(void **state)
{
    (void)state;
    for (const struct experiment *const *experiment = experiments; *experiment; experiment++) {
        char line[256];
        snprintf(line, sizeof line, "run %s --dry-run --out @out --format json", (*experiment)->name);
        json_t *document = json_of(line, 0); /* of the default model, whose weights would take seconds */
        assert_true(json_array_size(json_object_get(document, (*experiment)->name)) > 0);
        json_decref(document);
        assert_int_equal(access(out, F_OK), -1);
    }
}

static void help_everywhere(void **state)
{
    (void)state;
    static const char *const lines[] = {"--help",
                                        "list --help",
                                        "info --help",
                                        "run --help",
                                        "generate --help",
                                        "--version",
                                        "list",
                                        "list models",
                                        "run formula --explain gqa_ratio",
                                        "run kv --explain weights"};
    char line[64];
    for (size_t i = 0; i < COUNT(lines); i++)
        run(lines[i], 0);
    for (const struct experiment *const *experiment = experiments; *experiment; experiment++) {
        snprintf(line, sizeof line, "run %s --help", (*experiment)->name);
        struct outcome outcome = finish(start(line, out_file));
        assert_int_equal(outcome.status, 0);
        assert_non_null(strstr(outcome.stdout_text, "--kv-dtype"));
        assert_int_equal(strstr(outcome.stdout_text, "--new-tokens LIST") != NULL,
                         ((*experiment)->uses & USES_NEW_TOKENS) != 0);
        assert_string_equal(outcome.stderr_text, "");
        outcome_free(&outcome);
    }
}

/* The same tokens with the cache, without it, and again. */
static void generated_tokens(void **state)
{
    (void)state;
    static const char *const lines[] = {"generate --model @tiny --tokens 1,2,3 --new 12",
                                        "generate --model @tiny --tokens 1,2,3 --new 12 --cache off",
                                        "generate --model @tiny --tokens 1,2,3 --new 12 --threads 1"};
    char *first = NULL;
    for (size_t i = 0; i < COUNT(lines); i++) {
        struct outcome outcome = finish(start(lines[i], out_file));
        assert_int_equal(outcome.status, 0);
        int commas = 0;
        for (const char *c = outcome.stdout_text; *c; c++)
            commas += *c == ',';
        assert_int_equal(commas, 11);
        if (first)
            assert_string_equal(outcome.stdout_text, first);
        else
            first = strdup(outcome.stdout_text);
        outcome_free(&outcome);
    }
    free(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(bad_words, no_results),
        cmocka_unit_test_setup(bad_settings_touch_nothing, no_results),
        cmocka_unit_test_setup(bad_configs_touch_nothing, no_results),
        cmocka_unit_test_setup(bad_weights_touch_nothing, no_results),
        cmocka_unit_test_setup(bad_token_ids, no_results),
        cmocka_unit_test_setup(unwritable_results, no_results),
        cmocka_unit_test_setup(a_full_disk_at_the_start, no_results),
        cmocka_unit_test_setup(a_full_disk_in_mid_run, no_results),
        cmocka_unit_test_setup(a_full_stdout, no_results),
        cmocka_unit_test_setup(ctrl_c_then_resume, no_results),
        cmocka_unit_test_setup(formula_of_published_models, no_results),
        cmocka_unit_test_setup(json_of_every_experiment, no_results),
        cmocka_unit_test_setup(other_formats, no_results),
        cmocka_unit_test_setup(a_dry_run_writes_nothing, no_results),
        cmocka_unit_test_setup(help_everywhere, no_results),
        cmocka_unit_test_setup(generated_tokens, no_results),
    };
    return cmocka_run_group_tests(tests, make_place, remove_place);
}
