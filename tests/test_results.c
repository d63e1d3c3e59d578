/* Result files: what is on disk is whole at every moment, and an older result goes only when a new row is there. */
#include "bench/harness/output.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
    {"shape", COLUMN_TEXT, 0, false, "s"},
    {"time_ms", COLUMN_REAL, 3, false, "t"},
};
static const struct column fit_columns[] = {{"slope", COLUMN_REAL, 1, false, "s"}};
static const struct table tables[] = {{"", false, columns, COUNT(columns)}, {"_fit", false, fit_columns, 1}};
static const struct experiment experiment = {
    .name = "trial", .needs_device = true, .default_model = "", .tables = tables, .table_count = 2};

static char folder[] = "/tmp/kvlab-results-XXXXXX";
static char csv_path[64], meta_path[64];

/* A run that has opened its output, with prints going nowhere. */
static struct bench open_bench(uint64_t seed, bool resume)
{
    struct bench bench = {.experiment = &experiment};
    struct error error = {0};
    bench.options = (struct options){.out = folder, .seed = seed, .resume = resume, .format = FORMAT_JSON};
    check_ok(output_open(&bench, &error));
    check_ok(meta_open(&bench, &error));
    return bench;
}

static void close_bench(struct bench *bench)
{
    output_free(bench);
    meta_free(bench);
}

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

static void assert_file(const char *path, const char *expected)
{
    char *text = read_file(path);
    assert_non_null(text);
    assert_string_equal(text, expected);
    free(text);
}

static int files_in_folder(void)
{
    DIR *directory = opendir(folder);
    int count = 0;
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.'; /* the lock of a running bench is not counted */
    closedir(directory);
    return count;
}

static void add_row(struct results *results, int64_t context)
{
    struct error error = {0};
    results_set_int(results, "context", context);
    results_set_text(results, "shape", "(1, 2)");
    results_set_real(results, "time_ms", (double)context / 3);
    check_ok(results_end_row(results, &error));
}

static int empty_folder(void **state)
{
    (void)state;
    char path[400];
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2)
            unlink(path);
    }
    if (directory)
        closedir(directory);
    return 0;
}

static void rows_as_they_stand_in_the_file(void **state)
{
    (void)state;
    struct bench bench = open_bench(1, false);
    struct error error = {0};
    struct results *results;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    results_set_real(results, "time_ms", 1.0 / 3);
    results_set_int(results, "context", INT64_MAX);
    results_set_text(results, "shape", "(1, 2)");
    check_ok(results_end_row(results, &error));
    assert_file(csv_path, "context,shape,time_ms\n9223372036854775807,\"(1, 2)\",0.333\n"); /* on disk already */
    results_set_real(results, "time_ms", -0.0001);
    results_set_text(results, "shape", "say \"x\"\n,");
    check_ok(results_end_row(results, &error));
    results_set_text(results, "shape", " a ");
    check_ok(results_end_row(results, &error));
    assert_file(csv_path, "context,shape,time_ms\n9223372036854775807,\"(1, 2)\",0.333\n,\"say \"\"x\"\"\n,\",0.000\n,"
                          "\" a \",\n");
    assert_int_equal(results_rows(results), 3);
    assert_true(isnan(results_real(results, 2, "time_ms")));
    assert_string_equal(results_text(results, 1, "shape"), "say \"x\"\n,");
    assert_true(results_has(results, (struct key[]){{"context", INT64_MAX}}, 1));
    assert_false(results_has(results, (struct key[]){{"context", 0}}, 1)); /* an empty cell is not 0 */
    check_ok(results_close(results, true, &error));

    struct csv_table table;
    check_ok(csv_table_read(&table, csv_path, &error));
    assert_int_equal(table.row_count, 3);
    assert_int_equal(csv_table_column(&table, "shape"), 1);
    assert_int_equal(csv_table_column(&table, "nothing"), -1);
    assert_string_equal(table.cells[1][1], "say \"x\"\n,");
    assert_string_equal(table.cells[2][1], " a ");
    assert_string_equal(table.cells[2][0], "");
    csv_table_free(&table);
    close_bench(&bench);
}

static void meta_says_how_it_was_made(void **state)
{
    (void)state;
    struct bench bench = open_bench(7, false);
    struct error error = {0};
    struct results *results;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    add_row(results, 1);
    json_t *meta = json_load_file(meta_path, 0, NULL); /* there from the first row on */
    assert_false(json_boolean_value(json_object_get(meta, "complete")));
    json_decref(meta);
    check_ok(results_close(results, true, &error));
    meta_real(&bench, "read_ceiling_gb_per_s", 12.5); /* after the table was closed */
    meta_text(&bench, "note", "n");
    check_ok(output_finish(&bench, true, &error));
    meta = json_load_file(meta_path, 0, NULL);
    assert_non_null(meta);
    assert_true(json_boolean_value(json_object_get(meta, "complete")));
    assert_int_equal(json_integer_value(json_object_get(meta, "rows")), 1);
    assert_string_equal(json_string_value(json_object_get(meta, "seed")), "7");
    assert_true(json_real_value(json_object_get(meta, "read_ceiling_gb_per_s")) == 12.5);
    static const char *const keys[] = {"kvlab", "date", "host", "kernel", "command", "load_average_start", "note"};
    for (size_t i = 0; i < COUNT(keys); i++)
        assert_non_null(json_object_get(meta, keys[i]));
    json_decref(meta);
    close_bench(&bench);
}

/* The line "AnonHugePages:   2048 kB", in bytes; -1: the system has none. */
static int64_t huge_page_bytes(void)
{
    int64_t kib = -1;
    char line[256];
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "AnonHugePages: %" SCNd64, &kib);
    if (file)
        fclose(file);
    return kib < 0 ? -1 : kib * 1024;
}

static json_t *meta_of_one_row(struct device *device, size_t *held)
{
    struct error error = {0};
    struct results *results;
    struct bench bench = open_bench(7, false);
    const size_t bytes = 32 << 20;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    *held = (size_t)huge_page_bytes();
    bench.device = device;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    add_row(results, 1);
    munmap(memory, bytes);
    add_row(results, 2); /* less than before, which is not what counts */
    check_ok(output_finish(&bench, true, &error));
    json_t *meta = json_load_file(meta_path, 0, NULL);
    assert_non_null(meta);
    close_bench(&bench);
    return meta;
}

static void meta_has_the_most_huge_pages(void **state)
{
    (void)state;
    size_t held;
    struct device cpu = {.info.threads = 1}, gpu = {.info.multiprocessors = 1};
    json_t *meta = meta_of_one_row(&cpu, &held);
    if (held == 0) /* the system gives none: nothing to tell the most from the last */
        print_message("no huge pages here\n");
    if (huge_page_bytes() < 0) {
        assert_null(json_object_get(meta, "huge_page_bytes"));
    } else {
        assert_int_equal(json_integer_value(json_object_get(meta, "huge_page_bytes")), held);
        assert_non_null(strstr(json_string_value(json_object_get(meta, "huge_page_source")), "smaps_rollup"));
    }
    json_decref(meta);
    meta = meta_of_one_row(&gpu, &held);
    assert_null(json_object_get(meta, "huge_page_bytes"));
    assert_null(json_object_get(meta, "huge_page_source"));
    json_decref(meta);
}

static void write_older(void)
{
    struct bench bench = open_bench(1, false);
    struct error error = {0};
    struct results *results;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    add_row(results, 512);
    add_row(results, 1024);
    check_ok(results_close(results, false, &error));
    close_bench(&bench);
}

static void an_older_file_stays_until_the_first_row(void **state)
{
    (void)state;
    write_older();
    char *older = read_file(csv_path), *older_meta = read_file(meta_path);
    struct bench bench = open_bench(1, false);
    struct error error = {0};
    struct results *results;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    assert_file(csv_path, older);
    check_ok(results_close(results, true, &error)); /* no row at all */
    assert_file(csv_path, older);
    assert_file(meta_path, older_meta);
    assert_int_equal(files_in_folder(), 2);
    close_bench(&bench);

    bench = open_bench(1, false);
    check_ok(results_open(&results, &bench, &tables[0], &error));
    add_row(results, 3);
    assert_file(csv_path, "context,shape,time_ms\n3,\"(1, 2)\",1.000\n");
    check_ok(results_close(results, true, &error));
    assert_int_equal(files_in_folder(), 2);
    close_bench(&bench);
    free(older);
    free(older_meta);
}

/* A file size limit behaves as a full disk: write() stores a part, then nothing. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_row_that_does_not_fit_is_taken_back(void **state)
{
    (void)state;
    struct bench bench = open_bench(1, false);
    struct error error = {0};
    struct results *results;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    add_row(results, 512);
    char *whole = read_file(csv_path);
    limit_files((rlim_t)strlen(whole) + 5); /* the next row has more than 5 bytes */
    results_set_int(results, "context", 1024);
    results_set_text(results, "shape", "(1, 2)");
    enum status status = results_end_row(results, &error);
    limit_files(0);
    assert_int_equal(status, STATUS_INPUT);
    assert_non_null(strstr(error.message, csv_path));
    assert_file(csv_path, whole);
    assert_int_equal(results_rows(results), 1);
    check_ok(results_end_row(results, &error)); /* there is room again: the same row goes in whole */
    struct csv_table table;
    check_ok(csv_table_read(&table, csv_path, &error));
    assert_int_equal(table.row_count, 2);
    csv_table_free(&table);
    check_ok(results_close(results, false, &error));
    free(whole);
    close_bench(&bench);
}

static void a_full_disk_leaves_the_older_file(void **state)
{
    (void)state;
    write_older();
    char *older = read_file(csv_path), *older_meta = read_file(meta_path);
    struct bench bench = open_bench(1, false);
    struct error error = {0};
    struct results *results;
    limit_files(5); /* not even the header */
    enum status status = results_open(&results, &bench, &tables[0], &error);
    limit_files(0);
    assert_int_equal(status, STATUS_INPUT);
    assert_null(results);
    check_ok(results_open(&results, &bench, &tables[0], &error));
    limit_files(60); /* header and row, but no meta file */
    results_set_int(results, "context", 1);
    status = results_end_row(results, &error);
    limit_files(0);
    assert_int_equal(status, STATUS_INPUT);
    check_ok(output_finish(&bench, false, &error));
    assert_file(csv_path, older);
    assert_file(meta_path, older_meta);
    assert_int_equal(files_in_folder(), 2);

    close_bench(&bench);
    struct bench another = {.experiment = &experiment, .options = {.out = folder}};
    limit_files(2000); /* found before anything is measured */
    status = output_open(&another, &error);
    limit_files(0);
    assert_int_equal(status, STATUS_INPUT);
    assert_int_equal(files_in_folder(), 2);
    output_free(&another);
    free(older);
    free(older_meta);
}

static void resume_keeps_rows(void **state)
{
    (void)state;
    write_older();
    struct bench bench = open_bench(1, true);
    struct error error = {0};
    struct results *results;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    assert_int_equal(results_rows(results), 2);
    assert_true(results_has(results, (struct key[]){{"context", 1024}}, 1));
    assert_true(results_real(results, 0, "time_ms") == 170.667);
    add_row(results, 3);
    check_ok(results_close(results, true, &error));
    assert_file(csv_path,
                "context,shape,time_ms\n512,\"(1, 2)\",170.667\n1024,\"(1, 2)\",341.333\n3,\"(1, 2)\",1.000\n");
    close_bench(&bench);

    bench = open_bench(1, true); /* nothing left to measure: the file stays as it is */
    check_ok(results_open(&results, &bench, &tables[0], &error));
    assert_int_equal(results_rows(results), 3);
    check_ok(results_close(results, true, &error));
    assert_int_equal(files_in_folder(), 2);
    close_bench(&bench);
}

static void resume_refuses_other_settings(void **state)
{
    (void)state;
    write_older();
    char *older = read_file(csv_path);
    struct bench bench = open_bench(2, true);
    struct error error = {0};
    struct results *results;
    assert_int_equal(results_open(&results, &bench, &tables[0], &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "seed 1"));
    assert_non_null(strstr(error.message, "--resume"));
    close_bench(&bench);

    assert_int_equal(unlink(meta_path), 0);
    bench = open_bench(1, true);
    assert_int_equal(results_open(&results, &bench, &tables[0], &error), STATUS_INPUT);
    assert_file(csv_path, older);
    assert_int_equal(files_in_folder(), 1);
    close_bench(&bench);
    free(older);
}

static void a_fit_goes_with_the_rows_it_fits(void **state)
{
    (void)state;
    struct bench bench = open_bench(1, false);
    struct error error = {0};
    struct results *results, *fit;
    check_ok(results_open(&results, &bench, &tables[0], &error));
    add_row(results, 1);
    check_ok(results_open(&fit, &bench, &tables[1], &error));
    results_set_real(fit, "slope", 2);
    check_ok(results_end_row(fit, &error));
    check_ok(output_finish(&bench, true, &error)); /* closes what was left open */
    assert_int_equal(files_in_folder(), 4);
    close_bench(&bench);

    bench = open_bench(1, true);
    check_ok(results_open(&results, &bench, &tables[0], &error));
    check_ok(results_open(&fit, &bench, &tables[1], &error));
    assert_int_equal(results_rows(results), 1);
    assert_int_equal(results_rows(fit), 0); /* made anew from the rows */
    add_row(results, 2);
    check_ok(output_finish(&bench, false, &error));
    assert_int_equal(files_in_folder(), 2); /* interrupted before the new fit: the old one is gone */
    close_bench(&bench);
}

static void a_dry_run_writes_nothing(void **state)
{
    (void)state;
    struct bench bench = {.experiment = &experiment};
    struct error error = {0};
    bench.options = (struct options){.out = "/tmp/kvlab-no-such-folder", .dry_run = true, .format = FORMAT_JSON};
    struct results *results;
    check_ok(output_open(&bench, &error));
    check_ok(meta_open(&bench, &error));
    check_ok(results_open(&results, &bench, &tables[0], &error));
    add_row(results, 1);
    assert_int_equal(results_rows(results), 1);
    check_ok(results_close(results, true, &error));
    assert_int_equal(access("/tmp/kvlab-no-such-folder", F_OK), -1);
    close_bench(&bench);
}

static void bad_csv(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "a,b\n1\n", "a,b\n1,2,3\n", "a,b\n1,\"x\n", "a,b\n1,x\"y\n", "\n\n"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        FILE *file = fopen(csv_path, "wb");
        assert_non_null(file);
        fputs(bad[i], file);
        fclose(file);
        struct csv_table table;
        struct error error = {0};
        if (csv_table_read(&table, csv_path, &error) != STATUS_INPUT)
            fail_msg("case %zu was taken", i);
        assert_non_null(strstr(error.message, csv_path));
    }
    struct csv_table table;
    struct error error = {0};
    assert_int_equal(csv_table_read(&table, "/nothing/here.csv", &error), STATUS_INPUT);
}

static void separated_digits(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"0", "0"},          {"999", "999"},           {"1000", "1,000"},
        {"-1000", "-1,000"}, {"-999", "-999"},         {"1234567.25", "1,234,567.25"},
        {"28672", "28,672"}, {"0.123456", "0.123456"}, {"-123456", "-123,456"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[64];
        print_separated(text, sizeof text, cases[i][0]);
        assert_string_equal(text, cases[i][1]);
    }
}

/* Test vectors of the FNV authors. */
static void checksum(void **state)
{
    (void)state;
    assert_true(bench_checksum("", 0) == UINT64_C(0xcbf29ce484222325));
    assert_true(bench_checksum("a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(bench_checksum("foobar", 6) == UINT64_C(0x85944171f73967e8));
}

/* Every experiment explains every column that it writes, and no column twice. */
static void every_column_is_explained(void **state)
{
    (void)state;
    for (const struct experiment *const *e = experiments; *e; e++)
        for (size_t t = 0; t < (*e)->table_count; t++)
            for (size_t i = 0; i < (*e)->tables[t].column_count; i++) {
                const struct column *column = &(*e)->tables[t].columns[i];
                if (!column->explain || strlen(column->explain) < 10)
                    fail_msg("%s%s: %s is not explained", (*e)->name, (*e)->tables[t].suffix, column->name);
                for (size_t j = 0; j < i; j++)
                    assert_string_not_equal(column->name, (*e)->tables[t].columns[j].name);
            }
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(csv_path, sizeof csv_path, "%s/trial.csv", folder);
    snprintf(meta_path, sizeof meta_path, "%s/trial.meta.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    return empty_folder(state) || rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rows_as_they_stand_in_the_file, empty_folder),
        cmocka_unit_test_setup(meta_says_how_it_was_made, empty_folder),
        cmocka_unit_test_setup(meta_has_the_most_huge_pages, empty_folder),
        cmocka_unit_test_setup(an_older_file_stays_until_the_first_row, empty_folder),
        cmocka_unit_test_setup(a_row_that_does_not_fit_is_taken_back, empty_folder),
        cmocka_unit_test_setup(a_full_disk_leaves_the_older_file, empty_folder),
        cmocka_unit_test_setup(resume_keeps_rows, empty_folder),
        cmocka_unit_test_setup(resume_refuses_other_settings, empty_folder),
        cmocka_unit_test_setup(a_fit_goes_with_the_rows_it_fits, empty_folder),
        cmocka_unit_test_setup(a_dry_run_writes_nothing, empty_folder),
        cmocka_unit_test_setup(bad_csv, empty_folder),
        cmocka_unit_test(separated_digits),
        cmocka_unit_test(checksum),
        cmocka_unit_test(every_column_is_explained),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
