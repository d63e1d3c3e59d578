#include "kernels/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_KEPT = 200 };

/* The longest piece without a space: a path, say, or a text that somebody else gave. */
static char *longest_word(char *text, size_t *length)
{
    char *longest = text;
    *length = 0;
    for (char *word = text; *word; word++) {
        size_t here = strcspn(word, " ");
        if (here > *length) {
            longest = word;
            *length = here;
        }
        word += here;
        if (!*word)
            break;
    }
    return longest;
}

/* Shortens a text that does not fit where it says least: long words to "..." and their end, where a path has its name,
   then its middle. What was wrong and the way out stand at the end and stay. */
static void fit(char *text, size_t size)
{
    static const char dots[] = "...";
    size_t length = strlen(text), word_length;
    while (length >= size) {
        char *word = longest_word(text, &word_length);
        if (word_length <= WORD_KEPT + sizeof dots - 1) {
            size_t head = (size - sizeof dots) / 2, tail = size - sizeof dots - head;
            memcpy(text + head, dots, sizeof dots - 1);
            memmove(text + head + sizeof dots - 1, text + length - tail, tail + 1);
            return;
        }
        size_t cut = word_length - WORD_KEPT;
        memcpy(word, dots, sizeof dots - 1);
        memmove(word + sizeof dots - 1, word + cut, length - (size_t)(word - text) - cut + 1);
        length -= cut - (sizeof dots - 1);
    }
}

static int write_message(struct error *error, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int written = vsnprintf(error->message, sizeof error->message, format, arguments);
    char *whole = written >= (int)sizeof error->message ? malloc((size_t)written + 1) : NULL;
    if (whole) { /* else what does not fit is cut */
        vsnprintf(whole, (size_t)written + 1, format, again);
        fit(whole, sizeof error->message);
        memcpy(error->message, whole, strlen(whole) + 1);
        free(whole);
    }
    va_end(again);
    return written;
}

int error_write(struct error *error, enum status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int written = write_message(error, format, arguments);
    va_end(arguments);
    error->status = status;
    return written;
}

enum status error_prefix(struct error *error, const char *format, ...)
{
    struct error prefix;
    char whole[2 * sizeof error->message + 2];
    va_list arguments;
    va_start(arguments, format);
    write_message(&prefix, format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof whole, "%s: %s", prefix.message, error->message);
    fit(whole, sizeof error->message);
    memcpy(error->message, whole, strlen(whole) + 1);
    return error->status;
}
