/* Columns that are the same number in another unit: kv_tensor_mb and kv_tensor_bytes, ttft_s and ttft_ms. */
#include "bench/compare.h"

#include <string.h>

enum dimension { BYTES, SECONDS };

static const struct unit {
    const char *suffix;
    enum dimension dimension;
    double size;
} units[] = {
    {"_bytes", BYTES, 1},        {"_kib", BYTES, 1024}, {"_kb", BYTES, 1e3},
    {"_mib", BYTES, 1048576},    {"_mb", BYTES, 1e6},   {"_gb", BYTES, 1e9},
    {"_gib", BYTES, 1073741824}, {"_tb", BYTES, 1e12},  {"_tib", BYTES, 1099511627776},
    {"_s", SECONDS, 1e9},        {"_ms", SECONDS, 1e6}, {"_us", SECONDS, 1e3},
    {"_ns", SECONDS, 1},
};

static bool ends_with(const char *name, size_t length, const char *suffix)
{
    size_t end = strlen(suffix);
    return length > end && memcmp(name + length - end, suffix, end) == 0;
}

/* The unit at the end of a name, and the length of what stands before it. A rate (tokens_per_s) is no time. */
static const struct unit *unit_of(const char *name, size_t *stem)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (ends_with(name, length, units[i].suffix)) {
            *stem = length - strlen(units[i].suffix);
            return ends_with(name, *stem, "_per") ? NULL : &units[i];
        }
    return NULL;
}

double compare_unit_ratio(const char *a, const char *b)
{
    size_t stem_a = 0, stem_b = 0;
    const struct unit *unit_a = unit_of(a, &stem_a), *unit_b = unit_of(b, &stem_b);
    if (strcmp(a, b) == 0)
        return 1;
    if (!unit_a || !unit_b || unit_a->dimension != unit_b->dimension || stem_a != stem_b || memcmp(a, b, stem_a) != 0)
        return 0;
    return unit_b->size / unit_a->size;
}
