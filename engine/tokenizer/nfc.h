/* Unicode's canonical composition (NFC, Unicode Standard Annex 15): Qwen2's tokenizers compose text before they split
   it. The tables are utf8proc's. */
#ifndef KVLAB_ENGINE_TOKENIZER_NFC_H
#define KVLAB_ENGINE_TOKENIZER_NFC_H

#include "kernels/errors.h"

#include <stddef.h>

/* Composes `size` bytes of valid UTF-8. *composed is the caller's to free(), or NULL where the text is composed as it
   stands; then *composed_size is `size`. Time grows with the size alone, whatever the order of its marks. */
enum status nfc(const char *text, size_t size, char **composed, size_t *composed_size, struct error *error);

#endif
