/* What a model's folder says about text, beside config.json: its tokenizer, and the tokens that end a text. */
#ifndef KVLAB_ENGINE_TOKENIZER_BESIDE_WEIGHTS_H
#define KVLAB_ENGINE_TOKENIZER_BESIDE_WEIGHTS_H

#include "engine/tokenizer/tokenizer.h"

/* FOLDER/tokenizer.json. *tokenizer stays NULL, without an error, where the folder has none. */
enum status tokenizer_open_beside(struct tokenizer **tokenizer, const char *folder, struct error *error);

/* Appends the ids of eos_token_id: of generation_config.json, or of config.json where that has none. An instruction
   model has several. Status 2: a file that cannot be read, an id that is none of the vocabulary. */
enum status stop_tokens_read(struct token_list *stops, const char *folder, int64_t vocab_size, struct error *error);

#endif
