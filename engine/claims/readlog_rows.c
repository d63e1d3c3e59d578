#include "engine/claims/readlog_scan.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct readlog_row spare; /* takes what is written where no row could be had */

struct readlog_row *scan_row(struct scan *scan, const char *engine, const char *quantity)
{
    struct readlog *log = scan->log;
    spare = (struct readlog_row){0};
    if (log->count >= READLOG_MAX_ROWS) {
        log->truncated = true;
        return &spare;
    }
    if ((log->count & (log->count - 1)) == 0) { /* room doubles at every power of two */
        size_t room = log->count ? log->count * 2 : 1;
        struct readlog_row *rows = realloc(log->rows, room * sizeof *rows);
        if (!rows) {
            scan->status = error_set(scan->error, STATUS_DEVICE, "read-log: out of memory");
            return &spare;
        }
        log->rows = rows;
    }
    struct readlog_row *row = &log->rows[log->count];
    *row = (struct readlog_row){.line = scan->line,
                                .order = log->count++,
                                .engine = engine,
                                .quantity = quantity,
                                .unit = "",
                                .ratio = NAN,
                                .verdict = READLOG_UNCHECKED};
    return row;
}

static void print_number(char *text, size_t size, const struct printed *printed)
{
    uint64_t ten = 1;
    for (int i = 0; i < printed->decimals; i++)
        ten *= 10;
    if (printed->decimals)
        snprintf(text, size, "%" PRIu64 ".%0*" PRIu64, printed->digits / ten, printed->decimals, printed->digits % ten);
    else
        snprintf(text, size, "%" PRIu64, printed->digits);
}

void row_reported(struct readlog_row *row, const struct printed *printed, const char *unit)
{
    print_number(row->reported, sizeof row->reported, printed);
    row->unit = unit;
}

void row_formula(struct readlog_row *row, const struct printed *printed, long double formula)
{
    int decimals = printed->decimals < 6 ? printed->decimals : 6;
    if (snprintf(row->formula, sizeof row->formula, "%.*Lf", decimals, formula) >= (int)sizeof row->formula)
        snprintf(row->formula, sizeof row->formula, "%.6Lg", formula);
    row->ratio = formula > 0 ? (double)(printed_value(printed) / formula) : NAN;
}

void row_reason(struct readlog_row *row, const char *format, ...)
{
    size_t used = strlen(row->reason);
    if (used && used + 3 < sizeof row->reason) {
        memcpy(row->reason + used, "; ", 3);
        used += 2;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(row->reason + used, sizeof row->reason - used, format, arguments);
    va_end(arguments);
}

/* Engines print by printf(), which rounds: digits cut off, or zeros that fill, would be another number. */
static enum printed_fit amount_fit(const struct printed *printed, uint64_t unit, uint64_t bytes)
{
    struct quantity_value value = {.whole = true, .count = bytes};
    enum printed_fit fit = printed_fit(printed, unit, &value);
    return fit == FIT_EXACT || fit == FIT_ROUNDED ? fit : FIT_NONE;
}

/* The binary unit that an engine means when it prints the decimal one. */
static const struct byte_unit *binary_twin(const struct byte_unit *unit)
{
    static const char *const twins[][2] = {{"kB", "KiB"}, {"KB", "KiB"}, {"MB", "MiB"}, {"GB", "GiB"}, {"TB", "TiB"}};
    for (size_t i = 0; i < sizeof twins / sizeof twins[0]; i++)
        if (strcmp(unit->name, twins[i][0]) == 0)
            return byte_unit_find(twins[i][1], 3);
    return NULL;
}

const struct byte_unit *row_compare(struct readlog_row *row, const struct printed *printed,
                                    const struct byte_unit *unit, uint64_t formula)
{
    const struct byte_unit *twin = binary_twin(unit);
    enum printed_fit fit = amount_fit(printed, unit->bytes, formula);
    enum printed_fit twin_fit = twin ? amount_fit(printed, twin->bytes, formula) : FIT_NONE;
    row_reported(row, printed, unit->name);
    row_formula(row, printed, (long double)formula / (long double)unit->bytes);
    if (fit != FIT_EXACT && (twin_fit == FIT_EXACT || (twin_fit == FIT_ROUNDED && fit == FIT_NONE))) {
        row->verdict = READLOG_UNIT_SLIP;
        row_reason(row, "%s printed as %s", twin->name, unit->name);
        return twin;
    }
    row->verdict = fit == FIT_EXACT ? READLOG_EXACT : fit == FIT_ROUNDED ? READLOG_ROUNDED : READLOG_OFF;
    return unit;
}

bool amount_is(const struct printed *printed, const struct byte_unit *unit, uint64_t bytes)
{
    const struct byte_unit *twin = binary_twin(unit);
    return bytes > 0 && (amount_fit(printed, unit->bytes, bytes) != FIT_NONE ||
                         (twin && amount_fit(printed, twin->bytes, bytes) != FIT_NONE));
}
