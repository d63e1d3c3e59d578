#include "engine/tokenizer/nfc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { CLASSES = 256, MOST_PARTS = 4 }; /* combining classes; code points that one decomposes into canonically */

/* Below U+0300 (bytes CC 80) every character is composed and no mark. */
static int is_composed(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] >= 0xCC)
            return 0;
    return 1;
}

static int class_of(int32_t point)
{
    return utf8proc_get_property(point)->combining_class;
}

/* Canonical order of one run of marks, stable: a counting sort, since a hostile run is as long as the text (utf8proc's
   own sort takes quadratic time). scratch: as long as the run. */
static void order_run(int32_t *run, size_t count, int32_t *scratch)
{
    size_t first[CLASSES + 1] = {0};
    for (size_t i = 0; i < count; i++)
        first[class_of(run[i]) + 1]++;
    for (int class = 0; class < CLASSES; class ++)
        first[class + 1] += first[class];
    for (size_t i = 0; i < count; i++)
        scratch[first[class_of(run[i])]++] = run[i];
    memcpy(run, scratch, count * sizeof *run);
}

static void order_marks(int32_t *points, size_t count, int32_t *scratch)
{
    size_t begin = 0;
    while (begin < count) {
        size_t end = begin;
        while (end < count && class_of(points[end]) != 0)
            end++;
        if (end - begin > 1)
            order_run(points + begin, end - begin, scratch);
        begin = end + 1;
    }
}

/* The canonical decomposition of each character, in the order of the text; returns how many code points that are. */
static size_t decompose(const char *text, size_t size, int32_t *points)
{
    size_t count = 0;
    for (size_t at = 0; at < size;) {
        utf8proc_int32_t point;
        int boundary = 0;
        at += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &point);
        count += (size_t)utf8proc_decompose_char(point, points + count, MOST_PARTS,
                                                 UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
    }
    return count;
}

enum status nfc(const char *text, size_t size, char **composed, size_t *composed_size, struct error *error)
{
    *composed = NULL;
    *composed_size = size;
    if (is_composed(text, size))
        return STATUS_OK;
    /* A character of two bytes decomposes into at most three code points, one of three bytes into four. utf8proc writes
       the composed text, and a NUL, where they were. */
    size_t room = 2 * size + MOST_PARTS;
    int32_t *points = malloc(room * sizeof *points), *scratch = malloc(room * sizeof *scratch);
    if (!points || !scratch) {
        free(points);
        free(scratch);
        return error_set(error, STATUS_DEVICE, "composing text: out of memory for its %zu bytes", size);
    }
    size_t count = decompose(text, size, points);
    order_marks(points, count, scratch);
    free(scratch);
    *composed_size = (size_t)utf8proc_reencode(points, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    *composed = (char *)points;
    return STATUS_OK;
}
