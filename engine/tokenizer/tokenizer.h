/* Text to token ids and back, as a Hugging Face tokenizer.json says. Understood is what Qwen2.5 and Llama 3 use,
   byte-level BPE: model BPE without byte_fallback (ignore_merges or not), pre-tokenizers ByteLevel, Split (a Regex,
   isolated), Digits, and sequences of them, normalizer NFC or none, post-processors ByteLevel and TemplateProcessing,
   decoder ByteLevel, and added tokens. Anything else in the file is refused by its name.

   Ids equal those of the reference (the library `tokenizers`). Decoding differs in one thing: an added token gives its
   own text, where the reference would take letters such as a French e acute in it for bytes.

   A tokenizer is used by one thread at a time. No chat template is applied. */
#ifndef KVLAB_ENGINE_TOKENIZER_TOKENIZER_H
#define KVLAB_ENGINE_TOKENIZER_TOKENIZER_H

#include "engine/tokenizer/token_list.h"

#include <stdbool.h>

struct tokenizer;

/* Status 2, with the path and the key: unreadable, malformed, not understood, or at odds with itself. */
enum status tokenizer_open(struct tokenizer **tokenizer, const char *path, struct error *error);
void tokenizer_close(struct tokenizer *tokenizer); /* takes NULL */

/* Appends the tokens of `size` bytes of text, at most 2^29. Special tokens in the text become their ids. `whole`: what
   the post-processor puts around a whole text is added (Llama 3: <|begin_of_text|>). Status 2: text that is not UTF-8
   (the message has the offset), or that needs too many steps to split. */
enum status tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t size, bool whole,
                             struct token_list *tokens, struct error *error);

/* The bytes of one token, which may be a part of a character (see utf8_stream_add()). False for an id that no token
   has. *is_special (may be NULL): a mark for the model, no part of the text. */
bool tokenizer_token(const struct tokenizer *tokenizer, int32_t id, const char **bytes, size_t *size, bool *is_special);

/* Above every id. */
int32_t tokenizer_ids(const struct tokenizer *tokenizer);

/* The text of tokens as valid UTF-8, NUL-terminated, the caller's to free(); special tokens are left out if so asked.
   Status 2 names an id that no token has. */
enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                             char **text, size_t *size, struct error *error);

#endif
