#include "engine/tokenizer/byte_alphabet.h"

enum { SHIFTED = 0x100, SHIFTED_COUNT = 256 - 188 };

static bool stands_for_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* Bytes below `byte` that do not stand for themselves. */
static int shifted_before(int byte)
{
    int count = 0;
    for (int b = 0; b < byte; b++)
        count += !stands_for_itself(b);
    return count;
}

void byte_alphabet_spell(unsigned char byte, char character[3])
{
    int point = stands_for_itself(byte) ? byte : SHIFTED + shifted_before(byte);
    int at = 0;
    if (point >= 0x80)
        character[at++] = (char)(0xC0 | point >> 6);
    character[at++] = (char)(point < 0x80 ? point : 0x80 | (point & 0x3F));
    character[at] = '\0';
}

/* The byte that a code point spells, -1 where it spells none. */
static int byte_of(int point)
{
    if (point < SHIFTED)
        return stands_for_itself(point) ? point : -1;
    int index = point - SHIFTED;
    if (index >= SHIFTED_COUNT)
        return -1;
    int byte = 0;
    while (stands_for_itself(byte) || index-- > 0)
        byte++;
    return byte;
}

bool byte_alphabet_bytes(const char *text, char *to, size_t *size)
{
    *size = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        int point = *c;
        if (point >= 0xE0) /* above U+07FF */
            return false;
        if (point >= 0xC0)
            point = (point & 0x1F) << 6 | (*++c & 0x3F);
        int byte = byte_of(point);
        if (byte < 0)
            return false;
        to[(*size)++] = (char)byte;
    }
    return true;
}
