/* The alphabet in which byte-level vocabularies spell bytes, so that every token is printable text: 188 bytes stand for
   the Latin-1 character of their value, and the others, in rising order, for U+0100 and what follows (Radford et al.
   2019, "Language Models are Unsupervised Multitask Learners", section 2.2; the table is GPT-2's bytes_to_unicode).
   A space reads U+0120, a line feed U+010A. */
#ifndef KVLAB_ENGINE_TOKENIZER_BYTE_ALPHABET_H
#define KVLAB_ENGINE_TOKENIZER_BYTE_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>

/* The character that spells a byte, as NUL-terminated UTF-8. */
void byte_alphabet_spell(unsigned char byte, char character[3]);

/* The bytes that `text` (valid UTF-8) spells: to[at most strlen(text)], their count in *size. False where a character
   is not of the alphabet; nothing useful was written then. */
bool byte_alphabet_bytes(const char *text, char *to, size_t *size);

#endif
