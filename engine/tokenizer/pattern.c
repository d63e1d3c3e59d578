#include "engine/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 4096, STEPS_AT_LEAST = 10000000, STEPS_PER_BYTE = 16 };

/* What \s means to the reference: the property White_Space. PCRE2's own has U+180E too. */
static const char WHITE_SPACE[] = "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
                                  "\\x{202f}\\x{205f}\\x{3000}";

struct pattern {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
};

/* One escape sequence of the expression: its length, 0 for one that is refused. */
static size_t escape_length(const char *at)
{
    if (at[1] == 'p' || at[1] == 'P') {
        const char *end = at[2] == '{' ? strchr(at, '}') : NULL;
        return end ? (size_t)(end - at) + 1 : 0;
    }
    return at[1] && strchr("sSrntf\\.^$|()[]{}*+?-/'\"", at[1]) ? 2 : 0;
}

/* Writes what one escape sequence means in PCRE2's terms; returns the bytes written, 0 where it has no equal. */
static size_t write_escape(char *to, const char *at, size_t length, bool in_class)
{
    char *end = to;
    if (at[1] == 's' && in_class)
        end = stpcpy(to, WHITE_SPACE);
    else if (at[1] == 's' || (at[1] == 'S' && !in_class))
        end = stpcpy(stpcpy(stpcpy(to, at[1] == 's' ? "[" : "[^"), WHITE_SPACE), "]");
    else if (at[1] != 'S')
        end = mempcpy(to, at, length);
    return (size_t)(end - to);
}

/* What Ruby and PCRE2 read differently, or may: sets within sets and their intersection, an empty set, ^ $ and . among
   lines, {n}+, verbs, and groups except the plain ones, those that look ahead, and the flag i. */
static const char *refused_here(const char *at, bool in_class)
{
    if (in_class)
        return *at == '[' ? "a set within a set" : strncmp(at, "&&", 2) == 0 ? "&& in a set" : NULL;
    if (*at == '^' || *at == '$' || *at == '.')
        return "^, $ or . (engines differ in what a line is)";
    if (strncmp(at, "[]", 2) == 0 || strncmp(at, "[^]", 3) == 0)
        return "an empty set";
    if (strncmp(at, "}+", 2) == 0)
        return "a + after a count";
    if (strncmp(at, "(*", 2) == 0)
        return "a verb (*...";
    static const char *const known[] = {"(?:", "(?i:", "(?!", "(?=", "(?>"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(at, known[i], strlen(known[i])) == 0)
            return NULL;
    return strncmp(at, "(?", 2) == 0 ? "a group (?... of a kind not known here" : NULL;
}

/* The expression in PCRE2's terms, into `to`, which has room for any of LONGEST bytes. */
static enum status translate(const char *expression, char *to, struct error *error)
{
    bool in_class = false;
    for (const char *at = expression; *at;) {
        const char *refused = refused_here(at, in_class);
        if (refused)
            return error_set(error, STATUS_INPUT, "the expression has %s at byte %zu", refused,
                             (size_t)(at - expression));
        if (*at == '\\') {
            size_t length = escape_length(at), written = length ? write_escape(to, at, length, in_class) : 0;
            if (written == 0)
                return error_set(error, STATUS_INPUT, "the expression has \\%c at byte %zu, which is not known %s",
                                 at[1] >= ' ' && at[1] < 0x7f ? at[1] : '?', (size_t)(at - expression),
                                 length ? "within a set" : "here");
            at += length;
            to += written;
            continue;
        }
        if (*at == '[')
            in_class = true;
        else if (*at == ']')
            in_class = false;
        *to++ = *at++;
        if (in_class && to[-1] == '[' && *at == '^')
            *to++ = *at++;
    }
    *to = '\0';
    return STATUS_OK;
}

static enum status compile(struct pattern *pattern, const char *expression, struct error *error)
{
    int code;
    PCRE2_SIZE offset;
    pattern->code =
        pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    if (!pattern->code) {
        char reason[256];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return error_set(error, STATUS_INPUT, "the expression is malformed: %s", reason);
    }
    uint32_t matches_nothing = 0;
    pcre2_pattern_info(pattern->code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
    if (matches_nothing)
        return error_set(error, STATUS_INPUT, "the expression can match a text of no characters");
    pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* where there is no JIT, pcre2_match() interprets */
    pattern->match = pcre2_match_data_create(1, NULL);
    pattern->context = pcre2_match_context_create(NULL);
    if (!pattern->match || !pattern->context)
        return error_set(error, STATUS_DEVICE, "out of memory for the expression");
    return STATUS_OK;
}

enum status pattern_open(struct pattern **pattern, const char *expression, struct error *error)
{
    *pattern = NULL;
    if (strlen(expression) > LONGEST)
        return error_set(error, STATUS_INPUT, "the expression is longer than %d bytes", LONGEST);
    char *translated = malloc(LONGEST * sizeof WHITE_SPACE + 1); /* two bytes, \s, become sizeof WHITE_SPACE + 1 */
    struct pattern *p = calloc(1, sizeof *p);
    enum status status = STATUS_OK;
    if (!translated || !p)
        status = error_set(error, STATUS_DEVICE, "out of memory for the expression");
    if (!status)
        status = translate(expression, translated, error);
    if (!status)
        status = compile(p, translated, error);
    free(translated);
    if (status)
        pattern_close(p);
    else
        *pattern = p;
    return status;
}

void pattern_close(struct pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_match_context_free(pattern->context);
    pcre2_match_data_free(pattern->match);
    pcre2_code_free(pattern->code);
    free(pattern);
}

enum status pattern_next(struct pattern *pattern, const char *text, size_t size, size_t from, size_t *begin,
                         size_t *end, struct error *error)
{
    uint64_t steps = STEPS_AT_LEAST + (uint64_t)STEPS_PER_BYTE * (size - from);
    pcre2_set_match_limit(pattern->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    /* The text was found valid when it came in; PCRE2 would look through all of it at each call. */
    int found =
        pcre2_match(pattern->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, pattern->match, pattern->context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter backtracks on the heap */
        found = pcre2_match(pattern->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            pattern->match, pattern->context);
    *begin = *end = size;
    if (found == PCRE2_ERROR_NOMATCH)
        return STATUS_OK;
    if (found < 0) {
        char reason[256];
        pcre2_get_error_message(found, (PCRE2_UCHAR *)reason, sizeof reason);
        return error_set(error, STATUS_INPUT, "splitting the text at byte %zu of a part of %zu: %s", from, size,
                         reason);
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(pattern->match);
    *begin = bounds[0];
    *end = bounds[1];
    return STATUS_OK;
}
