#include "tests/command.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/kvlab-command-XXXXXX";

const char *command_folder(void)
{
    return folder;
}

int command_setup(void **state)
{
    (void)state;
    unsetenv("GOMP_SPINCOUNT"); /* tests/run's: kvlab is to be started as its users start it */
    unsetenv("OMP_WAIT_POLICY");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)facts;
    (void)kind;
    (void)place;
    return remove(path);
}

int command_cleanup(void **state)
{
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

char *command_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size;
    if (!file)
        fail_msg("%s is missing", path);
    FILE *copy = open_memstream(&text, &size);
    assert_non_null(copy);
    for (int c; (c = fgetc(file)) != EOF;)
        fputc(c, copy);
    fclose(file);
    assert_int_equal(fclose(copy), 0);
    return text;
}

void command_write(const char *path, const void *data, unsigned long size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static struct command_outcome run(const char *format, va_list arguments)
{
    char words[4096], line[8192], out[64], err[64];
    const char *binary = getenv("KVLAB_BIN"), *runner = getenv("KVLAB_RUNNER");
    vsnprintf(words, sizeof words, format, arguments);
    snprintf(out, sizeof out, "%s/stdout", folder);
    snprintf(err, sizeof err, "%s/stderr", folder);
    snprintf(line, sizeof line, "%s '%s' %s >%s 2>%s", runner ? runner : "", binary ? binary : "build/kvlab", words,
             out, err);
    int status = system(line); /* NOLINT(cert-env33-c): a test's own words */
    assert_int_not_equal(status, -1);
    return (struct command_outcome){WIFEXITED(status) ? WEXITSTATUS(status) : -1, command_read(out), command_read(err)};
}

struct command_outcome command_run(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    struct command_outcome outcome = run(format, arguments);
    va_end(arguments);
    return outcome;
}

void command_free(struct command_outcome *outcome)
{
    free(outcome->out);
    free(outcome->err);
}

void command_refuses(int status, const char *word, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    struct command_outcome outcome = run(format, arguments);
    va_end(arguments);
    const char *end = strchr(outcome.err, '\n');
    if (outcome.status != status || strncmp(outcome.err, "kvlab: ", 7) != 0 || !end || end[1])
        fail_msg("kvlab %s: status %d and one line expected, got %d: %s", format, status, outcome.status, outcome.err);
    if (!strstr(outcome.err, word))
        fail_msg("kvlab %s: \"%s\" is not in: %s", format, word, outcome.err);
    assert_string_equal(outcome.out, "");
    command_free(&outcome);
}
