/* UTF-8 as the Unicode Standard has it (table 3-7: no surrogates, no overlong forms, nothing above U+10FFFF), and text
   that comes in pieces cut anywhere: a token of a byte-level vocabulary may hold a part of a character. */
#ifndef KVLAB_ENGINE_TOKENIZER_UTF8_H
#define KVLAB_ENGINE_TOKENIZER_UTF8_H

#include <stddef.h>

/* Bytes of the character that `bytes` begins with (1 to 4); 0: what is there is the beginning of one, and more must
   come; -1: no character begins so. size > 0. */
int utf8_character(const char *bytes, size_t size);

/* The offset of the first byte that is no UTF-8, or `size` where all is. */
size_t utf8_valid_bytes(const char *bytes, size_t size);

/* Bytes in, whole characters out; what can be no character becomes U+FFFD, one for each maximal part of one (the
   Standard, section 3.9). Zeroed to begin with. */
struct utf8_stream {
    char held[4]; /* a character that is not whole yet */
    size_t count;
};

/* Writes to `text`, which has room for UTF8_STREAM_ROOM(size) bytes, and returns how many it wrote; not terminated. */
size_t utf8_stream_add(struct utf8_stream *stream, const char *bytes, size_t size, char *text);
/* At the end: U+FFFD (3 bytes) for a character that was not completed, or nothing. */
size_t utf8_stream_end(struct utf8_stream *stream, char *text);

#define UTF8_STREAM_ROOM(size) (3 * ((size) + 1)) /* at most U+FFFD for each byte, and for one that was held */

#endif
