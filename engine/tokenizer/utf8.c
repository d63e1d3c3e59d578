#include "engine/tokenizer/utf8.h"

#include <stdbool.h>
#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* Bytes that a character with this first byte has, 0 for a byte that begins none. */
static int length_of(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xC2)
        return 0;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

/* The second byte's range depends on the first: no overlong forms (E0, F0), no surrogates (ED), no end beyond (F4). */
static bool may_follow(unsigned char first, unsigned char second)
{
    unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high;
}

int utf8_character(const char *bytes, size_t size)
{
    const unsigned char *b = (const unsigned char *)bytes;
    int length = length_of(b[0]);
    if (length == 0)
        return -1;
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= size)
            return 0;
        if (i == 1 ? !may_follow(b[0], b[1]) : (b[i] & 0xC0) != 0x80)
            return -1;
    }
    return length;
}

size_t utf8_valid_bytes(const char *bytes, size_t size)
{
    size_t valid = 0;
    while (valid < size) {
        int length = utf8_character(bytes + valid, size - valid);
        if (length <= 0)
            break;
        valid += (size_t)length;
    }
    return valid;
}

size_t utf8_stream_add(struct utf8_stream *stream, const char *bytes, size_t size, char *text)
{
    size_t written = 0, taken = 0;
    while (taken < size) {
        stream->held[stream->count++] = bytes[taken++];
        int length = utf8_character(stream->held, stream->count);
        if (length == 0)
            continue;
        const char *out = length > 0 ? stream->held : REPLACEMENT;
        size_t bytes_out = length > 0 ? (size_t)length : sizeof REPLACEMENT - 1;
        memcpy(text + written, out, bytes_out);
        written += bytes_out;
        if (length < 0 && stream->count > 1)
            taken--; /* it ended what was held and may itself begin a character */
        stream->count = 0;
    }
    return written;
}

size_t utf8_stream_end(struct utf8_stream *stream, char *text)
{
    size_t written = stream->count > 0 ? sizeof REPLACEMENT - 1 : 0;
    memcpy(text, REPLACEMENT, written);
    stream->count = 0;
    return written;
}
