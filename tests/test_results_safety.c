/* What other runs, killed runs, full disks and damaged files do to results: nothing is mixed, nothing is lost unsaid.
 */
#include "bench/harness/output.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define check_ok(call)                                                                                                 \
    do {                                                                                                               \
        if ((call) != STATUS_OK)                                                                                       \
            fail_msg("%s: %s", #call, error.message);                                                                  \
    } while (0)

static const struct column columns[] = {
    {"context", COLUMN_INT, 0, true, "c"},
    {"batch", COLUMN_INT, 0, true, "b"},
    {"time_ms", COLUMN_REAL, 3, false, "t"},
};
static const struct column fit_columns[] = {{"slope", COLUMN_REAL, 1, false, "s"}};
static const struct table tables[] = {{"", true, columns, COUNT(columns)}, {"_fit", false, fit_columns, 1}};
static const struct experiment experiment = {.name = "trial",
                                             .needs_device = true,
                                             .default_model = "",
                                             .uses = USES_SAMPLES,
                                             .tables = tables,
                                             .table_count = 2};

static char folder[] = "/tmp/kvlab-safety-XXXXXX";
static char csv_path[64], meta_path[64], fit_path[64], samples_path[64];
static struct error error;

static struct bench make_bench(bool resume)
{
    struct bench bench = {.experiment = &experiment, .config = {.name = "m"}, .dtype = DTYPE_F32};
    bench.options = (struct options){.out = folder, .seed = 1, .resume = resume, .format = FORMAT_JSON};
    return bench;
}

static struct bench open_bench(bool resume)
{
    struct bench bench = make_bench(resume);
    check_ok(output_open(&bench, &error));
    check_ok(meta_open(&bench, &error));
    return bench;
}

static void close_bench(struct bench *bench)
{
    output_free(bench);
    meta_free(bench);
}

static enum status add_row(struct results *results, int64_t context)
{
    results_set_int(results, "context", context);
    results_set_int(results, "batch", 1);
    results_set_real(results, "time_ms", 0.5);
    return results_end_row(results, &error);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_file(const char *path, const char *expected)
{
    char text[4096] = "";
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing", path);
    assert_true(fread(text, 1, sizeof text - 1, file) < sizeof text - 1);
    fclose(file);
    assert_string_equal(text, expected);
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static int empty_folder(void **state)
{
    (void)state;
    char path[400];
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            remove(path);
    }
    if (directory)
        closedir(directory);
    return 0;
}

/* An older run: rows for 512 and 1024. */
static void write_older(void)
{
    struct bench bench = open_bench(false);
    struct results *results;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    check_ok(add_row(results, 512));
    check_ok(add_row(results, 1024));
    check_ok(output_finish(&bench, true, &error));
    close_bench(&bench);
}
static const char older_text[] = "model,device,dtype,weights,context,batch,time_ms\nm,,f32,synthetic,512,1,0.500\n"
                                 "m,,f32,synthetic,1024,1,0.500\n";

static void a_fit_that_this_run_wrote_stays(void **state)
{
    (void)state;
    write_older();
    write_file(fit_path, "slope\n9.0\n");
    struct bench bench = open_bench(true);
    struct results *results, *fit;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    check_ok(results_open(&fit, &bench, &tables[1], &error));
    results_set_real(fit, "slope", 2); /* of the rows that were kept, before any new one */
    check_ok(results_end_row(fit, &error));
    check_ok(add_row(results, 3));
    check_ok(output_finish(&bench, true, &error));
    assert_file(fit_path, "slope\n2.0\n");
    close_bench(&bench);
}

static void one_run_at_a_time(void **state)
{
    (void)state;
    struct bench first = open_bench(false), second = make_bench(false);
    assert_int_equal(output_open(&second, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, csv_path));
    assert_non_null(strstr(error.message, "another kvlab run"));
    output_free(&second);
    assert_int_equal(output_open(&second, &error), STATUS_INPUT); /* the one refused did not free the folder */
    output_free(&second);
    close_bench(&first);
    second = open_bench(false);
    close_bench(&second);
    char path[96];
    snprintf(path, sizeof path, "%s/.trial.lock", folder);
    assert_false(exists(path));
}

static void a_file_taken_away_is_noticed(void **state)
{
    (void)state;
    struct results *results;
    for (int replaced = 0; replaced < 2; replaced++) {
        struct bench bench = open_bench(false);
        check_ok(results_open(&results, &bench, &tables[0], &error));
        check_ok(add_row(results, 1));
        assert_int_equal(unlink(csv_path), 0);
        if (replaced)
            write_file(csv_path, older_text);
        assert_int_equal(add_row(results, 2), STATUS_INPUT);
        assert_non_null(strstr(error.message, csv_path));
        assert_int_equal(output_finish(&bench, false, &error), STATUS_INPUT);
        if (replaced)
            assert_file(csv_path, older_text);
        close_bench(&bench);
    }
    struct bench bench = open_bench(false); /* after the last row */
    check_ok(results_open(&results, &bench, &tables[0], &error));
    check_ok(add_row(results, 1));
    assert_int_equal(unlink(csv_path), 0);
    assert_int_equal(output_finish(&bench, true, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, csv_path));
    close_bench(&bench);
}

static void what_is_no_file_is_not_replaced(void **state)
{
    (void)state;
    for (int fifo = 0; fifo < 2; fifo++) {
        write_file(meta_path, "{\"kept\": 1}");
        assert_int_equal(fifo ? mkfifo(csv_path, 0666) : mkdir(csv_path, 0777), 0);
        struct bench bench = make_bench(false);
        assert_int_equal(output_open(&bench, &error), STATUS_INPUT);
        assert_non_null(strstr(error.message, csv_path));
        assert_file(meta_path, "{\"kept\": 1}");
        output_free(&bench);
        assert_int_equal(remove(csv_path), 0);
    }
    assert_int_equal(unlink(meta_path), 0); /* a folder where the meta file goes: found before anything is measured */
    write_file(csv_path, older_text);
    assert_int_equal(mkdir(meta_path, 0777), 0);
    struct bench bench = open_bench(false);
    struct results *results;
    assert_int_equal(results_open(&results, &bench, &tables[0], &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, meta_path));
    assert_file(csv_path, older_text);
    close_bench(&bench);

    assert_int_equal(rmdir(meta_path), 0); /* a folder that comes in mid-run */
    bench = open_bench(false);
    check_ok(results_open(&results, &bench, &tables[0], &error));
    write_file(meta_path, "{\"kept\": 1}");
    assert_int_equal(unlink(csv_path), 0);
    assert_int_equal(mkdir(csv_path, 0777), 0);
    assert_int_equal(add_row(results, 1), STATUS_INPUT);
    assert_file(meta_path, "{\"kept\": 1}");
    close_bench(&bench);
}

/* A kill at any moment of --resume must leave a CSV with a meta file: the older one is replaced, never removed. */
static void resume_always_has_a_meta_file(void **state)
{
    (void)state;
    write_older();
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(inotify_add_watch(watch, folder, IN_DELETE) >= 0);
    struct bench bench = open_bench(true);
    struct results *results;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    check_ok(add_row(results, 3));
    check_ok(output_finish(&bench, true, &error));
    _Alignas(struct inotify_event) char events[8192];
    ssize_t got = read(watch, events, sizeof events);
    for (ssize_t at = 0; at < got;) {
        const struct inotify_event *event = (const struct inotify_event *)(events + at);
        assert_string_not_equal(event->name, strrchr(meta_path, '/') + 1);
        at += (ssize_t)(sizeof *event + event->len);
    }
    close(watch);
    close_bench(&bench);
}

static void damaged_rows_are_not_kept(void **state)
{
    (void)state;
    static const struct {
        const char *rows, *word;
    } cases[] = {
        {"m,,f32,synthetic,abc,1,0.5\n", "line 3: context is \"abc\""},
        {"m,,f32,synthetic,16xyz,1,0.5\n", "16xyz"},
        {"m,,f32,synthetic, 16,1,0.5\n", NULL}, /* spaces around a bare cell are no part of it */
        {"m,,f32,synthetic,99999999999999999999,1,0.5\n", "99999999999999999999"},
        {"m,,f32,synthetic,1.5,1,0.5\n", "1.5"},
        {"m,,f32,synthetic,16,1,fast\n", "fast"},
        {"m,,f32,synthetic,16,1,nan\n", "nan"},
        {"m,,f32,synthetic,16,1,0x1p3\n", "0x1p3"},
        {"m,,f32,synthetic,512,1,0.7\n", "line 3 measures the same as line 2"},
        {"m,,f32,synthetic,512,2,0.7\n", NULL},
        {"m,,f32,synthetic,16,1,\n", NULL}, /* an empty cell is a value that the machine could not give */
        {"other,,f32,synthetic,16,1,0.5\n", "other"},
        {"m,,bf16,synthetic,16,1,0.5\n", "bf16"},
        {"m,cuda,f32,synthetic,16,1,0.5\n", "cuda"},
        {"m,,f32,folder,16,1,0.5\n", "folder"},
        {"m,,f32,synthetic,16,1\n", "cells"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[512];
        empty_folder(NULL);
        write_older();
        snprintf(text, sizeof text,
                 "model,device,dtype,weights,context,batch,time_ms\nm,,f32,synthetic,512,1,0.500\n%s", cases[i].rows);
        write_file(csv_path, text);
        struct bench bench = open_bench(true);
        struct results *results;
        enum status status = results_open(&results, &bench, &tables[0], &error);
        if (status != (cases[i].word ? STATUS_INPUT : STATUS_OK))
            fail_msg("%s gave status %d: %s", cases[i].rows, (int)status, status ? error.message : "");
        if (cases[i].word && (!strstr(error.message, cases[i].word) || !strstr(error.message, csv_path)))
            fail_msg("%s: %s", cases[i].rows, error.message);
        close_bench(&bench);
        assert_file(csv_path, text);
    }
}

static void leftovers_are_swept(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool stays;
    } files[] = {{"trial.csv.AbC123", false},    {"trial.meta.json.abcdef", false}, {"trial_fit.csv.ABCDEF", false},
                 {"trial.csv.AbC1234", true},    {"trial.csv.AbC-12", true},        {"trial.csv.old", true},
                 {"another.csv.AbC123", true},   {"trial2.csv.AbC123", true},       {"trial_other.csv.AbC123", true},
                 {"trial_fit.meta.json.1", true}};
    char path[96];
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i].name);
        write_file(path, "x");
    }
    struct bench bench = open_bench(false);
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i].name);
        if (exists(path) != files[i].stays)
            fail_msg("%s %s", files[i].name, files[i].stays ? "was removed" : "is still there");
    }
    close_bench(&bench);
}

/* ---- which model ------------------------------------------------------------------------------------------------ */

static void resume_tells_models_of_one_name_apart(void **state)
{
    (void)state;
    write_older();
    struct bench bench = make_bench(true);
    bench.config.hidden_size = 32; /* another config in a folder of the same name */
    check_ok(output_open(&bench, &error));
    check_ok(meta_open(&bench, &error));
    struct results *results;
    assert_int_equal(results_open(&results, &bench, &tables[0], &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "config_hash"));
    close_bench(&bench);
}

static void hashes_of_weights(void **state)
{
    (void)state;
    char path[96];
    uint64_t none = model_weights_hash(folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    write_file(path, "12345678");
    uint64_t one = model_weights_hash(folder);
    assert_true(one != none && one == model_weights_hash(folder));
    write_file(path, "123456789");
    assert_true(model_weights_hash(folder) != one);
    write_file(path, "12345678");
    struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    uint64_t dated = model_weights_hash(folder);
    assert_true(dated != one);
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    write_file(path, "no weights");
    assert_true(model_weights_hash(folder) == dated);
}

/* ---- samples ---------------------------------------------------------------------------------------------------- */

static const char samples_text[] = "experiment,setting,repetition,value,unit\ntrial,context=512;batch=1,0,1.5,ms\n"
                                   "trial,context=512;batch=1,1,0.1,ms\n";

static struct bench open_with_samples(bool resume)
{
    struct bench bench = make_bench(resume);
    bench.options.samples = samples_path;
    check_ok(output_open(&bench, &error));
    return bench;
}

static void samples(void **state)
{
    (void)state;
    for (int run = 0; run < 2; run++) { /* the second run replaces what the first wrote */
        struct bench bench = open_with_samples(false);
        if (run == 1)
            assert_file(samples_path, samples_text); /* only once there is a new sample */
        check_ok(samples_add(&bench, "context=512;batch=1", 0, 1.5, "ms", &error));
        check_ok(samples_add(&bench, "context=512;batch=1", 1, 0.1, "ms", &error));
        output_free(&bench);
        assert_file(samples_path, samples_text);
    }
    assert_int_equal(unlink(samples_path), 0);
    struct bench bench = open_with_samples(false); /* no sample, no file */
    output_free(&bench);
    assert_false(exists(samples_path));
}

static void samples_leave_other_files_alone(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"model_type\": \"qwen2\"}\n", "a,b\n1,2\n", "experiment,setting\n", "x",
                                        "experiment,setting,repetition,value,unit,more\n"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        write_file(samples_path, texts[i]);
        struct bench bench = make_bench(i % 2);
        bench.options.samples = samples_path;
        assert_int_equal(output_open(&bench, &error), STATUS_INPUT);
        assert_non_null(strstr(error.message, samples_path));
        output_free(&bench);
        assert_file(samples_path, texts[i]);
    }
    write_older();
    char lock_path[96];
    snprintf(lock_path, sizeof lock_path, "%s/.trial.lock", folder);
    const char *const taken[] = {csv_path, meta_path, lock_path, folder, "/dev/null"};
    for (size_t i = 0; i < COUNT(taken); i++) {
        struct bench bench = make_bench(false);
        bench.options.samples = taken[i];
        if (output_open(&bench, &error) != STATUS_INPUT)
            fail_msg("%s was taken", taken[i]);
        output_free(&bench);
    }
    assert_file(csv_path, older_text);
    assert_int_equal(unlink(csv_path), 0); /* also where the table is not there yet */
    struct bench bench = make_bench(false);
    bench.options.samples = csv_path;
    assert_int_equal(output_open(&bench, &error), STATUS_INPUT);
    output_free(&bench);
    assert_false(exists(csv_path));
}

static void a_torn_sample_is_cut(void **state)
{
    (void)state;
    char text[512];
    snprintf(text, sizeof text, "%strial,context=512;ba", samples_text); /* a kill in mid-write */
    write_file(samples_path, text);
    struct bench bench = open_with_samples(true);
    check_ok(samples_add(&bench, "s", 0, 2, "ms", &error));
    output_free(&bench);
    snprintf(text, sizeof text, "%strial,s,0,2,ms\n", samples_text);
    assert_file(samples_path, text);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_sample_that_does_not_fit_is_taken_back(void **state)
{
    (void)state;
    struct bench bench = open_with_samples(false);
    check_ok(samples_add(&bench, "context=512;batch=1", 0, 1.5, "ms", &error));
    check_ok(samples_add(&bench, "context=512;batch=1", 1, 0.1, "ms", &error));
    limit_files(sizeof samples_text - 1 + 5);
    enum status status = samples_add(&bench, "context=512;batch=1", 2, 0.2, "ms", &error);
    limit_files(0);
    assert_int_equal(status, STATUS_INPUT);
    output_free(&bench);
    assert_file(samples_path, samples_text);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(csv_path, sizeof csv_path, "%s/trial.csv", folder);
    snprintf(meta_path, sizeof meta_path, "%s/trial.meta.json", folder);
    snprintf(fit_path, sizeof fit_path, "%s/trial_fit.csv", folder);
    snprintf(samples_path, sizeof samples_path, "%s/samples.csv", folder);
    return 0;
}

static int remove_folder(void **state)
{
    return empty_folder(state) || rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_fit_that_this_run_wrote_stays, empty_folder),
        cmocka_unit_test_setup(one_run_at_a_time, empty_folder),
        cmocka_unit_test_setup(a_file_taken_away_is_noticed, empty_folder),
        cmocka_unit_test_setup(what_is_no_file_is_not_replaced, empty_folder),
        cmocka_unit_test_setup(resume_always_has_a_meta_file, empty_folder),
        cmocka_unit_test_setup(damaged_rows_are_not_kept, empty_folder),
        cmocka_unit_test_setup(leftovers_are_swept, empty_folder),
        cmocka_unit_test_setup(resume_tells_models_of_one_name_apart, empty_folder),
        cmocka_unit_test_setup(hashes_of_weights, empty_folder),
        cmocka_unit_test_setup(samples, empty_folder),
        cmocka_unit_test_setup(samples_leave_other_files_alone, empty_folder),
        cmocka_unit_test_setup(a_torn_sample_is_cut, empty_folder),
        cmocka_unit_test_setup(a_sample_that_does_not_fit_is_taken_back, empty_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
