/* Byte counts as people read them: binary and decimal side by side, so that MB never stands for MiB. */
#ifndef KVLAB_ENGINE_BYTES_H
#define KVLAB_ENGINE_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* "2.9 GiB (3.1 GB)" into text; 32 characters are enough. Returns text. */
const char *bytes_text(char *text, size_t size, uint64_t bytes);

#endif
