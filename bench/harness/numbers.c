/* Numbers as users type them: strictly read, so that "12abc", "1e3" or "-5" is an error and never another number. */
#include "bench/harness/option_table.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* More points than any sweep has, and few enough that a mistyped range does not fill the memory. */
enum { LIST_MAX_VALUES = 10000 };

static bool all_digits(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!isdigit((unsigned char)text[i]))
            return false;
    return length > 0;
}

/* Digits of text[0 .. length) as a value; false where it does not fit. */
static bool read_digits(const char *text, size_t length, uint64_t *value)
{
    *value = 0;
    for (size_t i = 0; i < length; i++) {
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (*value > (UINT64_MAX - digit) / 10)
            return false;
        *value = *value * 10 + digit;
    }
    return true;
}

/* One value of a list or a range; `whole` is the piece it stands in, for the message. */
static enum status piece_parse(int64_t *value, const char *text, size_t length, const char *whole, size_t whole_length,
                               const char *option, int64_t minimum, int64_t maximum, struct error *error)
{
    bool negative = length > 1 && text[0] == '-';
    size_t sign = negative ? 1 : 0;
    uint64_t magnitude = 0;
    if (!all_digits(text + sign, length - sign))
        return error_set(error, STATUS_INPUT, "--%s: \"%.*s\" is not a whole number", option, (int)whole_length, whole);
    bool fits = read_digits(text + sign, length - sign, &magnitude) && magnitude <= INT64_MAX;
    *value = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    if (!fits || *value < minimum || *value > maximum) {
        if (maximum == INT64_MAX && fits)
            return error_set(error, STATUS_INPUT, "--%s: %.*s is out of range, the least is %" PRId64, option,
                             (int)whole_length, whole, minimum);
        return error_set(error, STATUS_INPUT, "--%s: %.*s is out of range, it must lie in %" PRId64 " .. %" PRId64,
                         option, (int)whole_length, whole, minimum, maximum);
    }
    return STATUS_OK;
}

enum status int_parse(int64_t *value, const char *text, const char *option, int64_t minimum, int64_t maximum,
                      struct error *error)
{
    size_t length = strlen(text);
    return piece_parse(value, text, length, text, length, option, minimum, maximum, error);
}

static enum status list_add(struct int_list *list, int64_t value, const char *option, struct error *error)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->values[i] == value)
            return STATUS_OK;
    if (list->count == LIST_MAX_VALUES)
        return error_set(error, STATUS_INPUT, "--%s: more than %d values; take a larger step", option, LIST_MAX_VALUES);
    if ((list->count & (list->count - 1)) == 0) { /* room doubles at every power of two */
        size_t room = list->count ? list->count * 2 : 1;
        int64_t *values = realloc(list->values, room * sizeof *values);
        if (!values)
            return error_set(error, STATUS_DEVICE, "--%s: out of memory", option);
        list->values = values;
    }
    list->values[list->count++] = value;
    return STATUS_OK;
}

/* "first-last*factor" or "first-last+step"; dash and step_sign are where text has them. */
static enum status range_parse(struct int_list *list, const char *text, size_t length, const char *dash,
                               const char *option, int64_t minimum, int64_t maximum, struct error *error)
{
    const char *end = text + length, *last_text = dash + 1, *step_sign = last_text;
    while (step_sign < end && *step_sign != '*' && *step_sign != '+')
        step_sign++;
    if (step_sign == end)
        return error_set(error, STATUS_INPUT, "--%s: range \"%.*s\" needs a step, as in %.*s*2 or %.*s+128", option,
                         (int)length, text, (int)length, text, (int)length, text);
    int64_t first = 0, last = 0, step = 1;
    enum status status =
        piece_parse(&first, text, (size_t)(dash - text), text, length, option, minimum, maximum, error);
    if (!status)
        status = piece_parse(&last, last_text, (size_t)(step_sign - last_text), text, length, option, minimum, maximum,
                             error);
    if (!status)
        status = piece_parse(&step, step_sign + 1, (size_t)(end - step_sign - 1), text, length, option,
                             *step_sign == '*' ? 2 : 1, INT64_MAX, error);
    if (status)
        return status;
    if (last < first)
        return error_set(error, STATUS_INPUT, "--%s: range \"%.*s\" ends before it begins", option, (int)length, text);
    for (int64_t value = first;;) {
        status = list_add(list, value, option, error);
        if (status)
            return status;
        /* Would the next value pass `last`? Asked without computing it: it may not fit. */
        if (*step_sign == '*' ? value > last / step || value == 0 : value > last - step)
            return STATUS_OK;
        value = *step_sign == '*' ? value * step : value + step;
    }
}

enum status int_list_parse(struct int_list *list, const char *text, const char *option, int64_t minimum,
                           int64_t maximum, struct error *error)
{
    enum status status = STATUS_OK;
    *list = (struct int_list){0};
    for (const char *piece = text; !status;) {
        size_t length = strcspn(piece, ",");
        /* A dash after the first character makes a range; at the front it is a sign. */
        const char *dash = length > 1 ? memchr(piece + 1, '-', length - 1) : NULL;
        if (length == 0) {
            status = error_set(error, STATUS_INPUT, "--%s: \"%s\" has an empty place in the list", option, text);
        } else if (dash) {
            status = range_parse(list, piece, length, dash, option, minimum, maximum, error);
        } else {
            int64_t value = 0;
            status = piece_parse(&value, piece, length, piece, length, option, minimum, maximum, error);
            if (!status)
                status = list_add(list, value, option, error);
        }
        if (piece[length] == 0)
            break;
        piece += length + 1;
    }
    if (status)
        int_list_free(list);
    return status;
}

void int_list_free(struct int_list *list)
{
    free(list->values);
    *list = (struct int_list){0};
}

static const struct {
    const char *name;
    uint64_t bytes;
} units[] = {
    {"", 1},
    {"B", 1},
    {"kB", 1000},
    {"MB", 1000 * 1000},
    {"GB", 1000 * 1000 * 1000},
    {"TB", 1000000000000},
    {"KiB", (uint64_t)1 << 10},
    {"MiB", (uint64_t)1 << 20},
    {"GiB", (uint64_t)1 << 30},
    {"TiB", (uint64_t)1 << 40},
};

enum status bytes_parse(uint64_t *bytes, const char *text, const char *option, struct error *error)
{
    size_t whole_digits = strspn(text, "0123456789"), fraction_digits = 0;
    const char *fraction = text + whole_digits, *unit = fraction;
    if (*fraction == '.') {
        fraction++;
        fraction_digits = strspn(fraction, "0123456789");
        unit = fraction + fraction_digits;
    }
    size_t index = 0;
    while (index < sizeof units / sizeof units[0] && strcmp(unit, units[index].name) != 0)
        index++;
    bool has_fraction = unit != text + whole_digits;
    if (whole_digits == 0 || index == sizeof units / sizeof units[0] || (has_fraction && fraction_digits == 0) ||
        (has_fraction && units[index].bytes == 1) || fraction_digits > 9)
        return error_set(error, STATUS_INPUT,
                         "--%s: \"%s\" is not a number of bytes, as in 12490457088, 12GB (10^9) or 1.5GiB (2^30)",
                         option, text);

    /* In whole numbers: 12.49GB is 12490000000 bytes, not what the nearest binary fraction makes of it. */
    uint64_t whole, part, ten = 1;
    bool fits = read_digits(text, whole_digits, &whole) && read_digits(fraction, fraction_digits, &part);
    for (size_t i = 0; i < fraction_digits; i++)
        ten *= 10;
    if (!fits || __builtin_mul_overflow(whole, units[index].bytes, bytes))
        return error_set(error, STATUS_INPUT, "--%s: %s is more bytes than 64 bits hold", option, text);
    if (has_fraction) {
        __extension__ unsigned __int128 product = (unsigned __int128)part * units[index].bytes;
        if (__builtin_add_overflow(*bytes, (uint64_t)(product / ten), bytes))
            return error_set(error, STATUS_INPUT, "--%s: %s is more bytes than 64 bits hold", option, text);
    }
    if (*bytes > INT64_MAX) /* columns and JSON hold signed numbers */
        return error_set(error, STATUS_INPUT, "--%s: %s is more than 2^63 - 1 bytes", option, text);
    if (*bytes == 0)
        return error_set(error, STATUS_INPUT, "--%s: it must be more than 0 bytes", option);
    return STATUS_OK;
}

int64_t int_list_max(const struct int_list *list)
{
    int64_t largest = list->values[0];
    for (size_t i = 1; i < list->count; i++)
        if (list->values[i] > largest)
            largest = list->values[i];
    return largest;
}

int64_t int_list_sum(const struct int_list *list)
{
    int64_t sum = 0;
    for (size_t i = 0; i < list->count; i++)
        sum += list->values[i];
    return sum;
}
