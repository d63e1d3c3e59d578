/* safetensors: what a valid file gives, and that no file, however damaged, is believed or crashes. */
#include "engine/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], file[96];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kvlab-safetensors-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(file, sizeof file, "%s/model.safetensors", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(folder);
}

static void write_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

/* A file of the given header and `data_bytes` bytes 0, 1, 2 ... of data. Returns its size; *out is the caller's. */
static size_t make_file(unsigned char **out, const char *header, size_t data_bytes)
{
    size_t length = strlen(header), size = 8 + length + data_bytes;
    unsigned char *bytes = malloc(size + 1);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length + 1);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + length + i] = (unsigned char)i;
    *out = bytes;
    return size;
}

static void write_file(const char *path, const char *header, size_t data_bytes)
{
    unsigned char *bytes;
    size_t size = make_file(&bytes, header, data_bytes);
    write_bytes(path, bytes, size);
    free(bytes);
}

/* Opening must be refused in one line with each of the two words in it. */
static void expect_refusal(const char *path, const char *case_name, const char *word, const char *other)
{
    struct safetensors *files;
    struct error error = {0};
    enum status status = safetensors_open(&files, path, &error);
    if (status != STATUS_INPUT || files)
        fail_msg("%s: status %d, '%s'", case_name, status, error.message);
    if (!strstr(error.message, word) || !strstr(error.message, other) || strchr(error.message, '\n'))
        fail_msg("%s: message '%s' must have '%s' and '%s' in one line", case_name, error.message, word, other);
}

/* 24 + 4 + 8 + 0 + 2 = 38 bytes of data, not in the order of their names. */
static const char *const VALID = "{\"__metadata__\": {\"format\": \"pt\"},"
                                 " \"w\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]},"
                                 " \"b\": {\"dtype\": \"BF16\", \"shape\": [2], \"data_offsets\": [24, 28]},"
                                 " \"ids\": {\"dtype\": \"I64\", \"shape\": [], \"data_offsets\": [28, 36]},"
                                 " \"empty\": {\"dtype\": \"F16\", \"shape\": [0, 5], \"data_offsets\": [36, 36]},"
                                 " \"last\": {\"dtype\": \"F16\", \"shape\": [1, 1, 1], \"data_offsets\": [36, 38]}}  ";
enum { VALID_DATA = 38 };

static void a_valid_file_is_read(void **state)
{
    (void)state;
    struct safetensors *files;
    struct error error = {0};
    write_file(file, VALID, VALID_DATA);
    const char *const paths[] = {file, folder};
    for (int i = 0; i < 2; i++) {
        if (safetensors_open(&files, paths[i], &error) != STATUS_OK)
            fail_msg("%s", error.message);
        assert_int_equal(safetensors_count(files), 5);
        for (size_t t = 1; t < 5; t++)
            assert_true(strcmp(safetensors_at(files, t - 1)->name, safetensors_at(files, t)->name) < 0);
        const struct safetensor *w = safetensors_find(files, "w"), *b = safetensors_find(files, "b");
        const struct safetensor *ids = safetensors_find(files, "ids"), *last = safetensors_find(files, "last");
        assert_true(w->known && w->dtype == DTYPE_F32 && w->dimensions == 2 && w->shape[0] == 2 && w->shape[1] == 3);
        assert_true(b->known && b->dtype == DTYPE_BF16 && b->bytes == 4 && *(const unsigned char *)b->data == 24);
        assert_true(!ids->known && ids->dimensions == 0 && ids->bytes == 8);
        assert_string_equal(ids->dtype_text, "I64");
        assert_true(last->bytes == 2 && ((const unsigned char *)last->data)[1] == 37);
        assert_int_equal(safetensors_find(files, "empty")->bytes, 0);
        assert_string_equal(w->path, file);
        assert_null(safetensors_find(files, "absent"));
        safetensors_close(files);
    }
    safetensors_close(NULL);
    write_file(file, "{}", 0);
    assert_int_equal(safetensors_open(&files, file, &error), STATUS_OK);
    assert_int_equal(safetensors_count(files), 0);
    assert_null(safetensors_find(files, "w"));
    safetensors_close(files);
}

static void a_file_truncated_anywhere_is_refused(void **state)
{
    (void)state;
    unsigned char *bytes;
    size_t size = make_file(&bytes, VALID, VALID_DATA);
    for (size_t cut = 0; cut < size; cut++) {
        char case_name[64];
        snprintf(case_name, sizeof case_name, "%zu of %zu bytes", cut, size);
        write_bytes(file, bytes, cut);
        expect_refusal(file, case_name, file, "truncated");
    }
    bytes = realloc(bytes, size + 1);
    assert_non_null(bytes);
    bytes[size] = 0;
    write_bytes(file, bytes, size + 1);
    expect_refusal(file, "a byte too many", file, "39 bytes");
    free(bytes);
}

static void headers_longer_than_the_file_are_refused(void **state)
{
    (void)state;
    static const struct {
        unsigned char length[8];
        const char *word;
    } rows[] = {
        {{0, 0, 0, 0, 0, 0, 0, 0}, "begin with"},
        {{3, 0, 0, 0, 0, 0, 0, 0}, "longer than the file"},
        {{0, 0xe1, 0xf5, 0x05, 0, 0, 0, 0}, "longer than the file"}, /* 100,000,000 */
        {{1, 0xe1, 0xf5, 0x05, 0, 0, 0, 0}, "limit"},
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, "limit"},
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "limit"},
        {{0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "limit"}, /* + 8 wraps to 0 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char bytes[10] = {[8] = '{', [9] = '}'};
        memcpy(bytes, rows[i].length, 8);
        write_bytes(file, bytes, sizeof bytes);
        expect_refusal(file, rows[i].word, file, rows[i].word);
    }
}

#define TENSOR(name, dtype, shape, offsets)                                                                            \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": " offsets "}"

static void bad_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        const char *word, *other;
    } rows[] = {
        {"{" TENSOR("a", "F32", "[2]", "[0, 8]") ", " TENSOR("b", "F32", "[2]", "[4, 12]") "}", "tensor b", "overlap"},
        {"{" TENSOR("a", "F32", "[2]", "[0, 8]") ", " TENSOR("b", "F32", "[2]", "[0, 8]") "}", "tensor", "overlap"},
        {"{" TENSOR("a", "F32", "[1]", "[0, 4]") ", " TENSOR("b", "F32", "[1]", "[8, 12]") "}", "tensor b", "hole"},
        {"{" TENSOR("a", "F32", "[2]", "[4, 12]") "}", "tensor a", "hole"},
        {"{" TENSOR("a", "F32", "[2]", "[0, 8]") "}", "12 bytes", "only 8"},
        {"{" TENSOR("a", "F32", "[4]", "[0, 16]") "}", "tensor a", "beyond the end"},
        {"{" TENSOR("a", "F32", "[3]", "[9223372036854775804, 9223372036854775807]") "}", "tensor a", "beyond the end"},
        {"{" TENSOR("a", "F32", "[3]", "[0, 18446744073709551628]") "}", "64 bits", ""},
        {"{" TENSOR("a", "F32", "[3]", "[12, 0]") "}", "tensor a", "begin <= end"},
        {"{" TENSOR("a", "F32", "[3]", "[-12, 0]") "}", "tensor a", "begin <= end"},
        {"{" TENSOR("a", "F32", "[3]", "[0.0, 12.0]") "}", "tensor a", "whole numbers"},
        {"{" TENSOR("a", "F32", "[3]", "[\"0\", \"12\"]") "}", "tensor a", "whole numbers"},
        {"{" TENSOR("a", "F32", "[3]", "[0]") "}", "tensor a", "two whole numbers"},
        {"{" TENSOR("a", "F32", "[3]", "[0, 6, 12]") "}", "tensor a", "two whole numbers"},
        {"{" TENSOR("a", "F32", "[3]", "null") "}", "tensor a", "data_offsets"},
        {"{" TENSOR("a", "F32", "[2]", "[0, 12]") "}", "tensor a", "another number of bytes"},
        {"{" TENSOR("a", "F16", "[3]", "[0, 12]") "}", "tensor a", "another number of bytes"},
        {"{" TENSOR("a", "F32", "[-3]", "[0, 12]") "}", "tensor a", "shape"},
        {"{" TENSOR("a", "F32", "[3.0]", "[0, 12]") "}", "tensor a", "shape"},
        {"{" TENSOR("a", "F32", "3", "[0, 12]") "}", "tensor a", "shape"},
        {"{" TENSOR("a", "F32", "[1, 1, 1, 1, 1, 1, 1, 1, 3]", "[0, 12]") "}", "tensor a", "at most 8"},
        {"{" TENSOR("a", "F32", "[4294967296, 4294967296]", "[0, 12]") "}", "tensor a", "too large"},
        {"{" TENSOR("a", "F32", "[4611686018427387907]", "[0, 12]") "}", "tensor a", "too large"}, /* x 4 wraps to 12 */
        {"{" TENSOR("a", "F4", "[3]", "[0, 1]") "}", "tensor a", "whole bytes"},
        {"{" TENSOR("a", "F33", "[3]", "[0, 12]") "}", "tensor a", "dtype"},
        {"{" TENSOR("a", "", "[3]", "[0, 12]") "}", "tensor a", "dtype"},
        {"{\"a\": {\"shape\": [3], \"data_offsets\": [0, 12]}}", "tensor a", "dtype"},
        {"{\"a\": {\"dtype\": 3, \"shape\": [3], \"data_offsets\": [0, 12]}}", "tensor a", "dtype"},
        {"{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 12]}}", "tensor a", "shape"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [3]}}", "tensor a", "data_offsets"},
        {"{\"a\": [0, 12]}", "tensor a", "object"},
        {"{\"a\": null}", "tensor a", "object"},
        {"{" TENSOR("a", "F32", "[3]", "[0, 12]") ", " TENSOR("a", "F32", "[3]", "[0, 12]") "}", "duplicate", "a"},
        {"{\"__metadata__\": 3, " TENSOR("a", "F32", "[3]", "[0, 12]") "}", "__metadata__", "texts"},
        {"{\"__metadata__\": {\"x\": 3}, " TENSOR("a", "F32", "[3]", "[0, 12]") "}", "__metadata__", "texts"},
        {"{" TENSOR("evil\\nname", "F32", "[2]", "[0, 12]") "}", "evil?name", "bytes"},
        {"[]", "begin with", ""},
        {"{\"a\"", "malformed", ""},
        {"{} {}", "malformed", ""},
        {"{\"a\\u0000b\": {}}", "malformed", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_file(file, rows[i].header, 12);
        expect_refusal(file, rows[i].header, rows[i].word, rows[i].other);
    }
    char *bomb = malloc(1000001);
    assert_non_null(bomb);
    memset(bomb, '[', 1000000);
    memcpy(bomb, "{\"a\":", 5);
    bomb[1000000] = '\0';
    write_file(file, bomb, 12);
    expect_refusal(file, "nesting bomb", "malformed", "depth");
    free(bomb);
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    unlink(file);
    expect_refusal(file, "absent", file, "No such file");
    expect_refusal(folder, "empty folder", "model.safetensors.index.json", folder);
    assert_int_equal(mkdir(file, 0700), 0);
    expect_refusal(folder, "a folder as the file", file, "regular file");
    assert_int_equal(rmdir(file), 0);
    assert_int_equal(mkfifo(file, 0600), 0);
    expect_refusal(file, "a pipe", file, "regular file");
    unlink(file);
}

/* Any change of any bytes gives a valid file or a refusal. What is handed out lies within the file: every byte of it is
   read, which AddressSanitizer and the end of the mapping watch. */
static void damaged_files_never_crash(void **state)
{
    (void)state;
    enum { ROUNDS = 6000 };
    unsigned char *valid, *bytes;
    size_t size = make_file(&valid, VALID, VALID_DATA);
    uint64_t random = 88172645463325252u;
    int opened = 0;
    bytes = malloc(size);
    assert_non_null(bytes);
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(bytes, valid, size);
        for (int flips = 1 + round % 4; flips > 0; flips--) {
            random ^= random << 13; /* xorshift64 (Marsaglia 2003) */
            random ^= random >> 7;
            random ^= random << 17;
            unsigned char any = (unsigned char)(random >> 40),
                          syntax = (unsigned char)"0123456789,[]{}\""[random >> 60];
            bytes[random % (size - VALID_DATA)] = round % 2 ? any : syntax;
        }
        write_bytes(file, bytes, size);
        struct safetensors *files;
        struct error error = {0};
        enum status status = safetensors_open(&files, file, &error);
        if (status != STATUS_OK && status != STATUS_INPUT)
            fail_msg("round %d: status %d, '%s'", round, status, error.message);
        if (status != STATUS_OK)
            continue;
        opened++;
        unsigned sum = 0;
        for (size_t t = 0; t < safetensors_count(files); t++)
            for (uint64_t i = 0; i < safetensors_at(files, t)->bytes; i++)
                sum += ((const unsigned char *)safetensors_at(files, t)->data)[i];
        assert_true(sum <= VALID_DATA * (VALID_DATA - 1) / 2);
        safetensors_close(files);
    }
    assert_true(opened > 0 && opened < ROUNDS); /* the flips do reach both outcomes */
    free(bytes);
    free(valid);
}

static void write_index(const char *map)
{
    char path[128], text[512];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    snprintf(text, sizeof text, "{\"metadata\": {\"total_size\": 16}, \"weight_map\": %s}", map);
    write_bytes(path, text, strlen(text));
}

static void shards_are_joined(void **state)
{
    (void)state;
    char first[128], second[128], index[128];
    struct safetensors *files;
    struct error error = {0};
    unlink(file);
    snprintf(first, sizeof first, "%s/m-1.safetensors", folder);
    snprintf(second, sizeof second, "%s/m-2.safetensors", folder);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
    write_file(first, "{" TENSOR("x", "F32", "[1]", "[0, 4]") ", " TENSOR("y", "F32", "[1]", "[4, 8]") "}", 8);
    write_file(second, "{" TENSOR("a", "F32", "[2]", "[0, 8]") "}", 8);

    write_index("{\"x\": \"m-1.safetensors\", \"a\": \"m-2.safetensors\", \"y\": \"m-1.safetensors\"}");
    assert_int_equal(safetensors_open(&files, folder, &error), STATUS_OK);
    assert_int_equal(safetensors_count(files), 3);
    assert_string_equal(safetensors_find(files, "a")->path, second);
    assert_string_equal(safetensors_find(files, "y")->path, first);
    safetensors_close(files);

    static const struct {
        const char *map, *word, *other;
    } rows[] = {
        {"{\"x\": \"m-1.safetensors\", \"a\": \"m-3.safetensors\"}", "m-3.safetensors", "absent"},
        {"{\"x\": \"m-1.safetensors\", \"z\": \"m-1.safetensors\"}", "m-1.safetensors", "tensor z is missing"},
        {"{\"x\": \"m-1.safetensors\", \"a\": \"m-1.safetensors\"}", "m-1.safetensors", "tensor a is missing"},
        {"{\"x\": \"m-2.safetensors\", \"a\": \"m-2.safetensors\"}", "m-2.safetensors", "tensor x is missing"},
        {"{\"x\": \"../m-1.safetensors\"}", "m-1.safetensors", "same folder"},
        {"{\"x\": \"/etc/passwd\"}", "/etc/passwd", "same folder"},
        {"{\"x\": \"sub/m-1.safetensors\"}", "sub/m-1", "same folder"},
        {"{\"x\": \"..\"}", "..", "same folder"},
        {"{\"x\": \"\"}", "\"\"", "same folder"},
        {"{\"x\": 3}", "3", "same folder"},
        {"{}", "weight_map", "empty"},
        {"[]", "weight_map", "missing"},
        {"{\"x\": ", "malformed", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_index(rows[i].map);
        expect_refusal(folder, rows[i].map, rows[i].word, rows[i].other);
    }
    write_file(second, "{" TENSOR("x", "F32", "[2]", "[0, 8]") "}", 8);
    write_index("{\"x\": \"m-1.safetensors\", \"y\": \"m-2.safetensors\"}");
    expect_refusal(folder, "a tensor in two shards", "tensor x", "also in");
    write_bytes(second, "x", 1);
    write_index("{\"x\": \"m-1.safetensors\", \"a\": \"m-2.safetensors\"}");
    expect_refusal(folder, "a truncated shard", second, "truncated");
    unlink(first);
    unlink(second);
    unlink(index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_valid_file_is_read),
        cmocka_unit_test(a_file_truncated_anywhere_is_refused),
        cmocka_unit_test(headers_longer_than_the_file_are_refused),
        cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(damaged_files_never_crash),
        cmocka_unit_test(shards_are_joined),
    };
    return cmocka_run_group_tests_name("safetensors", tests, setup, teardown);
}
