#include "engine/claims/readlog_scan.h"

#include <ctype.h>
#include <string.h>

const char *line_after(const char *text, const char *label)
{
    const char *found = strstr(text, label);
    return found ? found + strlen(label) : NULL;
}

static bool is_number_part(char c)
{
    return isdigit((unsigned char)c) || c == '.' || c == ',';
}

bool line_number(struct printed *printed, const char *text, const char *label)
{
    const char *at = line_after(text, label);
    if (!at)
        return false;
    at += strspn(at, " =:'\"");
    return printed_read(printed, at, strnlen(at, 40)) > 0;
}

bool line_count(int64_t *count, const char *text, const char *label)
{
    struct printed printed;
    if (!line_number(&printed, text, label) || printed.decimals > 0 || printed.digits > (uint64_t)1 << 53)
        return false;
    *count = (int64_t)printed.digits;
    return true;
}

const char *line_amount(struct printed *printed, const struct byte_unit **unit, const char *text)
{
    text += strspn(text, " =:");
    size_t length = printed_read(printed, text, strnlen(text, 40)), letters = 0;
    if (length == 0)
        return NULL;
    text += length;
    text += *text == ' ';
    while (isalpha((unsigned char)text[letters]))
        letters++;
    *unit = byte_unit_find(text, letters);
    return *unit ? text + letters : NULL;
}

bool line_amount_before(struct printed *printed, const struct byte_unit **unit, const char *text, const char *label)
{
    const char *end = strstr(text, label), *at = end;
    if (!end)
        return false;
    while (at > text && isalpha((unsigned char)at[-1]))
        at--;
    while (at > text && at[-1] == ' ')
        at--;
    while (at > text && is_number_part(at[-1]))
        at--;
    return line_amount(printed, unit, at) == end;
}

void line_word(char *to, size_t size, const char *text)
{
    size_t used = 0;
    while (used + 1 < size && (isalnum((unsigned char)text[used]) || (text[used] && strchr("_.-", text[used])))) {
        to[used] = text[used];
        used++;
    }
    to[used] = 0;
}
