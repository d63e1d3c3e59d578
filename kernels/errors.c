#include "kernels/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_write(struct error *error, enum status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    error->status = status;
    return written;
}

enum status error_prefix(struct error *error, const char *format, ...)
{
    char rest[sizeof error->message];
    memcpy(rest, error->message, sizeof rest);
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    if (used >= 0 && (size_t)used < sizeof error->message)
        snprintf(error->message + used, sizeof error->message - (size_t)used, ": %.*s", (int)sizeof rest - used - 3,
                 rest); /* what does not fit is cut */
    return error->status;
}
