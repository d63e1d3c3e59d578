#include "engine/bytes.h"

#include <stdio.h>

const char *bytes_text(char *text, size_t size, uint64_t bytes)
{
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB"}, *const decimal[] = {"kB", "MB", "GB", "TB"};
    double b = (double)bytes / 1024, d = (double)bytes / 1000;
    int unit = 0;
    while (unit < 3 && b >= 1024) {
        unit++;
        b /= 1024;
        d /= 1000;
    }
    snprintf(text, size, "%.2f %s (%.2f %s)", b, binary[unit], d, decimal[unit]);
    return text;
}
