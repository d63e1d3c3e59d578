#include "engine/claims/audit.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const verdict_names[AUDIT_VERDICTS] = {
    [AUDIT_EXACT] = "exact",
    [AUDIT_ROUNDED] = "rounded",
    [AUDIT_UNIT_SLIP] = "unit slip",
    [AUDIT_WRONG] = "wrong",
    [AUDIT_NOT_COMPUTABLE] = "not computable",
};

const char *audit_verdict_name(enum audit_verdict verdict)
{
    return verdict_names[verdict];
}

void audit_print_quantities(FILE *file)
{
    for (const struct audit_quantity *quantity = audit_quantities; quantity->name; quantity++)
        fprintf(file, "  %-24s %-11s %s\n%38s(%s)\n", quantity->name, quantity->unit, quantity->formula, "",
                quantity->needs);
}

static enum status unknown_quantity(const char *name, struct error *error)
{
    char known[800] = "";
    size_t used = 0;
    for (const struct audit_quantity *quantity = audit_quantities; quantity->name && used < sizeof known; quantity++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", quantity->name);
    return error_set(error, STATUS_INPUT, "unknown quantity \"%.60s\"; there are %s", name, known);
}

/* ---- the unit printed -------------------------------------------------------------------------------------------- */

/* What one of the unit is in the quantity's own: 1024 for KiB of bytes, 10^9 for B of parameters. */
static enum status read_unit(uint64_t *scale, const struct byte_unit **bytes, const struct audit_quantity *quantity,
                             const char *unit, struct error *error)
{
    static const struct {
        const char *quantity, *unit;
        uint64_t scale;
    } others[] = {{"parameters", "B", 1000000000}, {"parameters", "billion", 1000000000},
                  {"parameters", "M", 1000000},    {"parameters", "million", 1000000},
                  {"FLOP/B", "FLOP/byte", 1},      {"tokens/s", "tok/s", 1}};
    *bytes = NULL;
    *scale = 1;
    if (strcmp(quantity->unit, "B") == 0) {
        *bytes = byte_unit_find(unit, strlen(unit));
        if (!*bytes)
            return error_set(error, STATUS_INPUT,
                             "unknown unit \"%.40s\" for bytes; there are B, KiB, kB, MiB, MB, GiB, GB, TiB and TB",
                             unit);
        *scale = (*bytes)->bytes;
        return STATUS_OK;
    }
    if (strcmp(unit, quantity->unit) == 0)
        return STATUS_OK;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(others[i].quantity, quantity->unit) == 0 && strcmp(others[i].unit, unit) == 0) {
            *scale = others[i].scale;
            return STATUS_OK;
        }
    return error_set(error, STATUS_INPUT, "unknown unit \"%.40s\"; %s is given in %s", unit, quantity->name,
                     quantity->unit);
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

/* The value with `decimals` digits after the point, zeros at the end taken off: "12", "15.231". */
static const char *in_unit(char *text, size_t size, const struct quantity_value *value, uint64_t unit, int decimals)
{
    char whole[32], digits[64];
    long double number = quantity_real(value) / (long double)unit;
    if (value->whole && value->count % unit == 0)
        return grouped(text, size, value->count / unit);
    snprintf(digits, sizeof digits, "%.*Lf", decimals, number);
    size_t length = strcspn(digits, ".");
    if (length >= sizeof whole || length > 19) {
        snprintf(text, size, "%.6Lg", number);
        return text;
    }
    uint64_t front = 0;
    for (size_t i = 0; i < length; i++)
        front = front * 10 + (uint64_t)(digits[i] - '0');
    size_t end = strlen(digits);
    while (end > length && (digits[end - 1] == '0' || digits[end - 1] == '.'))
        end--;
    snprintf(text, size, "%s%.*s", grouped(whole, sizeof whole, front), (int)(end - length), digits + length);
    return text;
}

static void value_text(struct audit_result *result)
{
    if (result->value.whole)
        snprintf(result->value_text, sizeof result->value_text, "%" PRIu64, result->value.count);
    else
        snprintf(result->value_text, sizeof result->value_text, "%.6Lg", result->value.real);
}

/* "10.737 GB (10 GiB)": the value in the unit printed, and in the one that makes it round, if any does. */
static const char *both_units(char *text, size_t size, const struct audit_result *result, const char *unit,
                              uint64_t scale, int decimals)
{
    char own[48], other[48];
    in_unit(own, sizeof own, &result->value, scale, decimals);
    snprintf(text, size, "%s %s", own, unit);
    bool shown = result->value.whole && result->value.count % scale == 0;
    for (const struct byte_unit *bytes = byte_units; bytes->name && scale > 1 && !shown; bytes++) {
        bool same_class = bytes->bytes / 2 < scale && scale / 2 < bytes->bytes && bytes->bytes != scale;
        if (!same_class || strcmp(result->unit, "B") != 0)
            continue;
        snprintf(text, size, "%s %s (%s %s)", own, unit,
                 in_unit(other, sizeof other, &result->value, bytes->bytes, decimals), bytes->name);
        return text;
    }
    return text;
}

/* ---- the verdict ------------------------------------------------------------------------------------------------ */

static void say_fit(struct audit_result *result, enum printed_fit fit, const struct printed *printed, const char *value)
{
    result->verdict = fit == FIT_EXACT ? AUDIT_EXACT : AUDIT_ROUNDED;
    if (fit == FIT_EXACT)
        snprintf(result->reason, sizeof result->reason, "%s", value);
    else if (fit == FIT_ZEROS)
        snprintf(result->reason, sizeof result->reason, "%s, rounded to %d digits; zeros at the end fill the place",
                 value, printed_significant(printed));
    else
        snprintf(result->reason, sizeof result->reason, "%s, %s", value,
                 fit == FIT_ROUNDED ? "rounded to the digits printed"
                                    : "cut off after the digits printed, not rounded");
}

static void say_slip(struct audit_result *result, const struct unit_slip *slip, const char *unit, uint64_t scale,
                     int decimals)
{
    char really[48], value[48];
    in_unit(value, sizeof value, &result->value, scale, decimals);
    in_unit(really, sizeof really, &result->value, slip->bytes, decimals);
    result->verdict = AUDIT_UNIT_SLIP;
    if (strncmp(slip->name, "thousands of ", 13) == 0) {
        in_unit(really, sizeof really, &result->value, slip->bytes / 1000, decimals);
        snprintf(result->reason, sizeof result->reason, "%s %s divided by 1000 and printed as %s: it is %s %s", really,
                 slip->name + 13, unit, value, unit);
    } else {
        snprintf(result->reason, sizeof result->reason, "%s printed as %s: %s %s is %s %s", slip->name, unit, really,
                 slip->name, value, unit);
    }
}

/* n where a is n times b or the other way round, to the digits of a rounded number; 0 where there is none. */
static int whole_factor(long double a, long double b)
{
    long double factor = a > b ? a / b : b / a, nearest = roundl(factor);
    return nearest >= 2 && nearest <= 64 && fabsl(factor - nearest) < 1e-3L * nearest ? (int)nearest : 0;
}

static void say_wrong(struct audit_result *result, const struct printed *printed, const struct byte_unit *bytes,
                      uint64_t scale, const char *value, const char *explanation)
{
    static const char *const twins[][2] = {{"KB", "KiB"}, {"kB", "KiB"}, {"MB", "MiB"}, {"GB", "GiB"}, {"TB", "TiB"}};
    long double is = quantity_real(&result->value), says = printed_value(printed) * (long double)scale;
    char *reason = result->reason;
    size_t size = sizeof result->reason, used = (size_t)snprintf(reason, size, "it is %s", value);
    result->verdict = AUDIT_WRONG;
    if (is > 0 && says > 0)
        used += (size_t)snprintf(reason + used, size - used, ", the printed number too %s by %.3Lgx",
                                 says >= is ? "large" : "small", says >= is ? says / is : is / says);
    for (size_t i = 0; bytes && is > 0 && says > 0 && i < sizeof twins / sizeof twins[0]; i++) {
        const struct byte_unit *twin = strcmp(bytes->name, twins[i][0]) == 0 ? byte_unit_find(twins[i][1], 3) : NULL;
        int factor = twin ? whole_factor(printed_value(printed) * (long double)twin->bytes, is) : 0;
        if (factor && !whole_factor(says, is))
            used += (size_t)snprintf(reason + used, size - used, " (by %d, if %s was meant)", factor, twin->name);
    }
    if (used < size)
        snprintf(reason + used, size - used,
                 explanation[0] ? "; explained by %s" : "; no single changed input explains it", explanation);
}

/* Digits to show: two more than were printed, so that rounding can be seen. */
static int decimals_shown(const struct printed *printed)
{
    return printed->decimals + 2 < 9 ? printed->decimals + 2 : 9;
}

static void judge(struct audit_result *result, const struct audit_quantity *quantity, const struct audit_inputs *inputs,
                  const struct printed *printed, const struct byte_unit *bytes, uint64_t scale, const char *unit)
{
    char value[128], explanation[320];
    struct unit_slip slip;
    int decimals = decimals_shown(printed);
    long double is = quantity_real(&result->value), says = printed_value(printed) * (long double)scale;
    result->difference_percent = is > 0 ? (double)(100 * (says - is) / is) : NAN;
    both_units(value, sizeof value, result, unit, scale, decimals);

    /* An exact match in another unit is stronger than a rounded one in the unit printed: "1 GB" for 1 GiB. */
    enum printed_fit fit = printed_fit(printed, scale, &result->value);
    bool slipped = fit != FIT_EXACT && bytes && printed->digits > 0 &&
                   unit_slip_find(&slip, printed, bytes, &result->value) && (fit == FIT_NONE || slip.fit == FIT_EXACT);
    if (slipped) {
        say_slip(result, &slip, unit, scale, decimals);
    } else if (fit != FIT_NONE) {
        say_fit(result, fit, printed, value);
    } else {
        audit_explain(explanation, sizeof explanation, quantity, inputs, printed, bytes, scale);
        say_wrong(result, printed, bytes, scale, value, explanation);
    }
}

/* The names in quantity->needs that nothing gives. */
static bool missing_inputs(char *text, size_t size, const struct audit_quantity *quantity,
                           const struct audit_inputs *inputs)
{
    size_t used = 0;
    text[0] = 0;
    for (const char *at = quantity->needs; *at;) {
        char name[32];
        size_t length = strcspn(at, " ");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        if (!audit_input_given(inputs, name) && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", name);
        at += length + (at[length] == ' ');
    }
    return used > 0;
}

static void say_active(struct audit_result *result, const struct audit_inputs *inputs)
{
    size_t used = strlen(result->reason);
    char active[32], all[32];
    grouped(active, sizeof active, (uint64_t)inputs->active_parameters);
    grouped(all, sizeof all, (uint64_t)inputs->parameters);
    snprintf(result->reason + used, sizeof result->reason - used, "; a token uses %s parameters", active);
    used = strlen(result->reason);
    if (inputs->parameters)
        snprintf(result->reason + used, sizeof result->reason - used, " of %s", all);
}

static enum status check(struct audit_result *result, const struct audit_claim *claim,
                         const struct audit_quantity *quantity, const struct printed *printed,
                         struct audit_inputs *inputs, const char *models_dir, struct error *error)
{
    const struct byte_unit *bytes;
    uint64_t scale;
    char problem[320], missing[128];
    if (read_unit(&scale, &bytes, quantity, claim->unit, error) != STATUS_OK ||
        audit_inputs_read(inputs, claim, models_dir, problem, sizeof problem, error) != STATUS_OK)
        return error->status;
    if (missing_inputs(missing, sizeof missing, quantity, inputs)) {
        if (problem[0])
            snprintf(result->reason, sizeof result->reason, "%s", problem);
        else
            snprintf(result->reason, sizeof result->reason, "missing: %s", missing);
        return STATUS_OK;
    }
    const char *refused = quantity->refuse ? quantity->refuse(inputs) : NULL;
    if (refused) {
        snprintf(result->reason, sizeof result->reason, "%s", refused);
        return STATUS_OK;
    }
    if (!quantity->compute(inputs, &result->value)) {
        snprintf(result->reason, sizeof result->reason,
                 "it has no value: more than 64 bits, a division by zero, or a row that its type cannot store in whole "
                 "blocks");
        return STATUS_OK;
    }
    value_text(result);
    judge(result, quantity, inputs, printed, bytes, scale, claim->unit);
    if (quantity->of_active && inputs->active_parameters)
        say_active(result, inputs);
    return STATUS_OK;
}

enum status audit_check(struct audit_result *result, const struct audit_claim *claim, const char *models_dir,
                        struct error *error)
{
    const struct audit_quantity *quantity = audit_quantity_find(claim->quantity);
    struct audit_inputs inputs = {0};
    struct printed printed;
    *result = (struct audit_result){.verdict = AUDIT_NOT_COMPUTABLE, .difference_percent = NAN, .unit = ""};
    if (!quantity)
        return unknown_quantity(claim->quantity, error);
    result->unit = quantity->unit;
    size_t length = strlen(claim->published);
    if (length == 0 || printed_read(&printed, claim->published, length) != length)
        return error_set(error, STATUS_INPUT, "published: \"%.40s\" is not a number", claim->published);
    enum status status = check(result, claim, quantity, &printed, &inputs, models_dir, error);
    shape_free(&inputs.shape);
    return status;
}
