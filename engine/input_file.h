/* Opening a file that comes from outside: only a regular file is taken, and nothing waits for one that is not (a FIFO
   in its place would hang the reader). */
#ifndef KVLAB_ENGINE_INPUT_FILE_H
#define KVLAB_ENGINE_INPUT_FILE_H

#include "kernels/errors.h"

#include <stdio.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Open for reading, close-on-exec; *bytes (may be NULL) is its length now. The caller closes. Status 2: absent,
   unreadable, or no regular file; `way_out` ends that line ("give the path of a JSON file"). */
enum status input_file_descriptor(const char *path, const char *way_out, int *descriptor, off_t *bytes,
                                  struct error *error);
enum status input_file_open(const char *path, const char *way_out, FILE **file, off_t *bytes, struct error *error);

#ifdef __cplusplus
}
#endif
#endif
