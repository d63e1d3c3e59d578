#include "bench/harness/option_table.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, FIRST_FOUND = 256 /* what getopt_long() returns for the first row, past every character */ };

const char *const dtype_choices[] = {"f32", "f16", "bf16", NULL};
const char *const kv_dtype_choices[] = {"f32", "f16", "bf16", "fp8", "int8", NULL};

static enum status set_choice(const struct option_row *row, int *field, const char *text, struct error *error)
{
    char known[256] = "";
    for (int i = 0; row->choices[i]; i++) {
        if (strcmp(row->choices[i], text) == 0) {
            *field = i;
            return STATUS_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", row->choices[i]);
    }
    return error_set(error, STATUS_INPUT, "--%s: unknown value \"%s\"; it is one of %s", row->name, text, known);
}

static enum status set_real(const struct option_row *row, float *field, const char *text, struct error *error)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end || strspn(text, "0123456789.eE+-") != strlen(text))
        return error_set(error, STATUS_INPUT, "--%s: \"%s\" is not a number", row->name, text);
    if (errno || value < (double)row->minimum || value > (double)row->maximum)
        return error_set(error, STATUS_INPUT, "--%s: %s is out of range, it must lie in %lld .. %lld", row->name, text,
                         (long long)row->minimum, (long long)row->maximum);
    *field = (float)value;
    return STATUS_OK;
}

static enum status set_seed(const struct option_row *row, uint64_t *field, const char *text, struct error *error)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno)
        return error_set(error, STATUS_INPUT, "--%s: \"%s\" is not a whole number from 0 to 2^64 - 1", row->name, text);
    *field = value;
    return STATUS_OK;
}

static enum status set_field(const struct option_row *row, char *target, const char *text, struct error *error)
{
    void *field = target + row->offset;
    enum status status = STATUS_OK;
    int64_t value;
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)field = true;
        break;
    case OPTION_TEXT:
        if (!*text)
            return error_set(error, STATUS_INPUT, "--%s: the value is empty", row->name);
        *(const char **)field = text;
        break;
    case OPTION_INT:
        status = int_parse(&value, text, row->name, row->minimum, row->maximum, error);
        if (!status)
            *(int *)field = (int)value;
        break;
    case OPTION_SEED:
        status = set_seed(row, field, text, error);
        break;
    case OPTION_REAL:
        status = set_real(row, field, text, error);
        break;
    case OPTION_LIST:
        int_list_free(field); /* the last of repeated options counts */
        status = int_list_parse(field, text, row->name, row->minimum, row->maximum, error);
        break;
    case OPTION_BYTES:
        status = bytes_parse(field, text, row->name, error);
        break;
    case OPTION_CHOICE:
        status = set_choice(row, field, text, error);
        break;
    }
    if (!status && row->has_given)
        *(bool *)(target + row->given_offset) = true;
    return status;
}

/* All rows of all sets, in order. */
struct known {
    const struct option_row *rows[MAX_ROWS];
    void *targets[MAX_ROWS];
    struct option words[MAX_ROWS + 1]; /* getopt_long()'s form */
    int count;
};

static void collect(struct known *known, const struct option_set *sets, size_t count)
{
    *known = (struct known){0};
    for (size_t s = 0; s < count; s++)
        for (const struct option_row *row = sets[s].rows; row && row->name; row++) {
            assert(known->count < MAX_ROWS);
            known->rows[known->count] = row;
            known->targets[known->count] = sets[s].target;
            known->words[known->count] =
                (struct option){row->name, row->kind == OPTION_FLAG ? no_argument : required_argument, NULL,
                                known->count + FIRST_FOUND};
            known->count++;
        }
}

/* getopt_long() does not say why it took none: the word may be short for several. Their names, or "" where there are
   fewer than two. */
static const char *meant_by(const struct known *known, const char *word, char *names, size_t size)
{
    size_t length = strcspn(word, "="), found = 0, used = 0;
    names[0] = 0;
    for (int i = 0; i < known->count; i++)
        if (length > 2 && strncmp(word, "--", 2) == 0 && strncmp(known->rows[i]->name, word + 2, length - 2) == 0) {
            used += (size_t)snprintf(names + used, size - used, "%s--%s", found++ ? ", " : "", known->rows[i]->name);
            if (used >= size)
                break;
        }
    if (found < 2)
        names[0] = 0;
    return names;
}

static enum status unknown_option(const struct known *known, const char *word, struct error *error)
{
    char names[256];
    if (meant_by(known, word, names, sizeof names)[0])
        return error_set(error, STATUS_INPUT, "%s is short for more than one option: %s", word, names);
    return error_set(error, STATUS_INPUT, "unknown option %s; --help lists the options", word);
}

/* getopt_long() wants a program name first and may reorder: it works on a copy. */
enum status option_sets_parse(const struct option_set *sets, size_t count, int argc, char **argv, struct error *error)
{
    struct known known;
    collect(&known, sets, count);
    char **words = calloc((size_t)argc + 2, sizeof *words);
    if (!words)
        return error_set(error, STATUS_DEVICE, "out of memory for the command line");
    words[0] = "kvlab";
    for (int i = 0; i < argc; i++)
        words[i + 1] = argv[i];

    enum status status = STATUS_OK;
    opterr = 0; /* our own messages */
    optind = 0; /* glibc: start afresh */
    while (!status) {
        int found = getopt_long(argc + 1, words, ":", known.words, NULL);
        if (found == -1)
            break;
        if (found == ':')
            status = error_set(error, STATUS_INPUT, "%s needs a value; --help shows which", words[optind - 1]);
        else if (found == '?' && optopt >= FIRST_FOUND)
            status = error_set(error, STATUS_INPUT, "--%s takes no value", known.rows[optopt - FIRST_FOUND]->name);
        else if (found == '?' && optopt)
            status = error_set(error, STATUS_INPUT, "unknown option -%c; --help lists the options", optopt);
        else if (found == '?')
            status = unknown_option(&known, words[optind - 1], error);
        else
            status = set_field(known.rows[found - FIRST_FOUND], known.targets[found - FIRST_FOUND], optarg, error);
    }
    if (!status && optind < argc + 1)
        status = error_set(error, STATUS_INPUT, "unexpected word \"%s\"; --help lists the options", words[optind]);
    free(words);
    return status;
}

enum status option_table_parse(const struct option_row *rows, void *target, int argc, char **argv, struct error *error)
{
    return option_sets_parse(&(struct option_set){rows, target}, 1, argc, argv, error);
}

static size_t field_size(enum option_kind kind)
{
    static const size_t sizes[] = {
        [OPTION_FLAG] = sizeof(bool),      [OPTION_TEXT] = sizeof(char *), [OPTION_INT] = sizeof(int),
        [OPTION_SEED] = sizeof(uint64_t),  [OPTION_REAL] = sizeof(float),  [OPTION_LIST] = sizeof(struct int_list),
        [OPTION_BYTES] = sizeof(uint64_t), [OPTION_CHOICE] = sizeof(int),
    };
    return sizes[kind];
}

void option_set_free(const struct option_set *set)
{
    for (const struct option_row *row = set->rows; row && row->name; row++) {
        char *field = (char *)set->target + row->offset;
        if (row->kind == OPTION_LIST)
            int_list_free((struct int_list *)(void *)field);
        memset(field, 0, field_size(row->kind));
        if (row->has_given)
            *(bool *)(void *)((char *)set->target + row->given_offset) = false;
    }
}

static void field_text(const struct option_row *row, const char *target, char *text, size_t size)
{
    const void *field = target + row->offset;
    switch (row->kind) {
    case OPTION_FLAG:
        snprintf(text, size, "%s", *(const bool *)field ? "true" : "false");
        break;
    case OPTION_TEXT:
        snprintf(text, size, "%s", *(const char *const *)field ? *(const char *const *)field : "");
        break;
    case OPTION_INT:
        snprintf(text, size, "%d", *(const int *)field);
        break;
    case OPTION_REAL:
        snprintf(text, size, "%.9g", (double)*(const float *)field);
        break;
    case OPTION_SEED:
    case OPTION_BYTES:
        snprintf(text, size, "%" PRIu64, *(const uint64_t *)field);
        break;
    case OPTION_CHOICE:
        snprintf(text, size, "%s", row->choices[*(const int *)field]);
        break;
    case OPTION_LIST:
        break;
    }
}

void option_set_text(const struct option_set *set, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (const struct option_row *row = set->rows; row->name && used < size; row++) {
        char value[4096];
        if (row->kind == OPTION_LIST)
            continue;
        field_text(row, set->target, value, sizeof value);
        used += (size_t)snprintf(text + used, size - used, "%s%s=%s", used ? " " : "", row->name, value);
    }
}

void option_table_help(const struct option_row *rows)
{
    int width = 0;
    for (const struct option_row *row = rows; row->name; row++) {
        int length = (int)strlen(row->name) + (row->argument ? 1 + (int)strlen(row->argument) : 0);
        width = length > width ? length : width;
    }
    for (const struct option_row *row = rows; row->name; row++) {
        int used = printf("  --%s%s%s", row->name, row->argument ? " " : "", row->argument ? row->argument : "");
        printf("%*s%s\n", width + 6 - used, "", row->help);
    }
}
