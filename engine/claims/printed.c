#include "engine/claims/printed.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide; /* ISO C has no name for it */

enum { MAX_DIGITS = 18, MAX_EXPONENT = 18 };
/* Three digits that count: what is cut off is then less than 1%. 1 GB for 1.54 GB is wrong. */
enum { CUT_DIGITS = 100 };

static uint64_t power_of_ten(int exponent)
{
    uint64_t power = 1;
    while (exponent-- > 0)
        power *= 10;
    return power;
}

/* A comma counts where three digits follow it, and no fourth. */
static bool is_group(const char *text, size_t length)
{
    for (size_t i = 1; i <= 3; i++)
        if (i >= length || !isdigit((unsigned char)text[i]))
            return false;
    return length == 4 || !isdigit((unsigned char)text[4]);
}

/* An exponent moves the point: 27.63e12 is 27630000000000. Without digits after the e it is not one. */
static size_t read_exponent(struct printed *printed, const char *text, size_t length)
{
    size_t at = 1;
    if (length < 2 || (text[0] != 'e' && text[0] != 'E'))
        return 0;
    at += text[1] == '+';
    size_t first = at;
    int exponent = 0;
    while (at < length && isdigit((unsigned char)text[at]) && exponent <= MAX_EXPONENT)
        exponent = exponent * 10 + (text[at++] - '0');
    if (at == first || exponent > MAX_EXPONENT)
        return 0;
    while (exponent > 0 && printed->decimals > 0) {
        printed->decimals--;
        exponent--;
    }
    if (printed->digits > UINT64_MAX / 16 / power_of_ten(exponent))
        return 0;
    printed->digits *= power_of_ten(exponent);
    return at;
}

size_t printed_read(struct printed *printed, const char *text, size_t length)
{
    size_t at = 0;
    int digits = 0;
    bool point = false, any = false;
    *printed = (struct printed){0};
    for (; at < length; at++) {
        if (isdigit((unsigned char)text[at])) {
            digits += printed->digits > 0 || text[at] != '0';
            if (digits > MAX_DIGITS || printed->decimals == MAX_DIGITS)
                return 0;
            printed->digits = printed->digits * 10 + (uint64_t)(text[at] - '0');
            printed->decimals += point;
            any = true;
        } else if (text[at] == '.' && any && !point && at + 1 < length && isdigit((unsigned char)text[at + 1])) {
            point = true;
        } else if (!(text[at] == ',' && any && !point && is_group(text + at, length - at))) {
            break;
        }
    }
    if (!any)
        return 0;
    return at + read_exponent(printed, text + at, length - at);
}

long double printed_value(const struct printed *printed)
{
    return (long double)printed->digits / (long double)power_of_ten(printed->decimals);
}

long double quantity_real(const struct quantity_value *value)
{
    return value->whole ? (long double)value->count : value->real;
}

/* The largest power of ten that divides a whole number and leaves it two digits. */
static uint64_t zeros_step(const struct printed *printed)
{
    uint64_t step = 1;
    while (printed->decimals == 0 && printed->digits % (step * 10) == 0 && printed->digits / (step * 10) >= 10)
        step *= 10;
    return step;
}

/* value * 10^decimals against digits * unit; one last digit is worth `unit` there. */
static enum printed_fit fit_whole(const struct printed *printed, uint64_t unit, uint64_t value)
{
    wide is = (wide)value * power_of_ten(printed->decimals), says = (wide)printed->digits * unit;
    wide apart = is > says ? is - says : says - is;
    if (apart == 0)
        return FIT_EXACT;
    if (apart * 2 <= unit)
        return FIT_ROUNDED;
    if (is > says && apart < unit && printed->digits >= CUT_DIGITS)
        return FIT_CUT;
    return apart * 2 <= (wide)unit * zeros_step(printed) ? FIT_ZEROS : FIT_NONE;
}

enum printed_fit printed_fit(const struct printed *printed, uint64_t unit, const struct quantity_value *value)
{
    if (value->whole && printed->decimals <= 12)
        return fit_whole(printed, unit, value->count);
    /* 64 bits of mantissa, against at most 18 digits: the halves of the last digit are met to 1e-12 of the value. */
    long double is = quantity_real(value) / (long double)unit * (long double)power_of_ten(printed->decimals);
    long double apart = is - (long double)printed->digits, slack = 1e-12L * (1 + fabsl(is));
    if (!isfinite(is))
        return FIT_NONE;
    if (fabsl(apart) <= slack)
        return FIT_EXACT;
    if (fabsl(apart) <= 0.5L + slack)
        return FIT_ROUNDED;
    if (apart > 0 && apart < 1 && printed->digits >= CUT_DIGITS)
        return FIT_CUT;
    return fabsl(apart) <= 0.5L * (long double)zeros_step(printed) ? FIT_ZEROS : FIT_NONE;
}

int printed_significant(const struct printed *printed)
{
    uint64_t digits = printed->digits;
    int count = 0;
    while (printed->decimals == 0 && digits && digits % 10 == 0)
        digits /= 10;
    for (; digits; digits /= 10)
        count++;
    return count;
}

/* ---- units ------------------------------------------------------------------------------------------------------ */

#define KI ((uint64_t)1 << 10)
#define MI ((uint64_t)1 << 20)
#define GI ((uint64_t)1 << 30)
#define TI ((uint64_t)1 << 40)

const struct byte_unit byte_units[] = {
    {"B", 1},    {"KiB", KI},        {"kB", 1000}, {"KB", 1000},          {"MiB", MI},  {"MB", 1000000},
    {"GiB", GI}, {"GB", 1000000000}, {"TiB", TI},  {"TB", 1000000000000}, {"bytes", 1}, {NULL, 0},
};

/* What else a printed unit may have meant, by size class. The last of each: a thousand of the binary unit below. */
static const struct {
    const char *name;
    uint64_t bytes;
    int size_class;
} meanings[] = {
    {"bytes", 1, 0}, {"KiB", KI, 1},           {"kB", 1000, 1},
    {"MiB", MI, 2},  {"MB", 1000000, 2},       {"thousands of KiB", 1000 * KI, 2},
    {"GiB", GI, 3},  {"GB", 1000000000, 3},    {"thousands of MiB", 1000 * MI, 3},
    {"TiB", TI, 4},  {"TB", 1000000000000, 4}, {"thousands of GiB", 1000 * GI, 4},
};
enum { MEANINGS = sizeof meanings / sizeof meanings[0] };

const struct byte_unit *byte_unit_find(const char *name, size_t length)
{
    for (const struct byte_unit *unit = byte_units; unit->name; unit++)
        if (strlen(unit->name) == length && memcmp(unit->name, name, length) == 0)
            return unit;
    return NULL;
}

static int class_of(uint64_t bytes)
{
    int size_class = 0;
    for (; bytes >= 1000; bytes /= 1000)
        size_class++;
    return size_class;
}

bool unit_slip_find(struct unit_slip *slip, const struct printed *printed, const struct byte_unit *unit,
                    const struct quantity_value *value)
{
    int own = class_of(unit->bytes);
    bool found = false;
    for (int other_class = 0; other_class < 2; other_class++)
        for (size_t i = 0; i < MEANINGS; i++) {
            if (meanings[i].bytes == unit->bytes || (meanings[i].size_class == own) == (other_class == 1))
                continue;
            enum printed_fit fit = printed_fit(printed, meanings[i].bytes, value);
            bool counts = fit == FIT_EXACT || (fit == FIT_ROUNDED && printed_significant(printed) >= 2);
            if (!counts || (found && (slip->fit == FIT_EXACT || fit != FIT_EXACT)))
                continue;
            *slip = (struct unit_slip){meanings[i].name, meanings[i].bytes, fit};
            found = true;
        }
    return found;
}

const char *grouped(char *text, size_t size, uint64_t number)
{
    char digits[24];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%" PRIu64, number), used = 0;
    for (size_t i = 0; i < length && used + 2 < size; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = 0;
    return text;
}
