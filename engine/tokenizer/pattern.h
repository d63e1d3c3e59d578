/* The pre-tokenizer's regular expressions, run by PCRE2 with the meaning that the reference (Oniguruma, Ruby's syntax,
   Unicode) gives them. An expression that uses what the two read differently is refused. A pattern is used by one
   thread at a time. */
#ifndef KVLAB_ENGINE_TOKENIZER_PATTERN_H
#define KVLAB_ENGINE_TOKENIZER_PATTERN_H

#include "kernels/errors.h"

#include <stdbool.h>
#include <stddef.h>

struct pattern;

/* `expression`: UTF-8. Status 2: malformed, too long, can match nothing at all, or not read alike by both engines; the
   message says why, without a path. */
enum status pattern_open(struct pattern **pattern, const char *expression, struct error *error);
void pattern_close(struct pattern *pattern); /* takes NULL */

/* The first match in text[from .. size), valid UTF-8; *begin == *end == size where there is none. Status 2 when the
   expression needs more steps than any sane one on this text. */
enum status pattern_next(struct pattern *pattern, const char *text, size_t size, size_t from, size_t *begin,
                         size_t *end, struct error *error);

#endif
