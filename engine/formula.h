/* The `formula` source: arithmetic from a model's config, before anything runs. Whole bytes, 64 bits.
   config_read() bounds every count, so that none of these overflows for contexts and batches up to FORMULA_MAX_TOKENS;
   callers check what a user gives against that. */
#ifndef KVLAB_ENGINE_FORMULA_H
#define KVLAB_ENGINE_FORMULA_H

#include "engine/config.h"

#define FORMULA_MAX_TOKENS ((int64_t)1 << 31)

/* 2 * layers * KV heads * (head_dim * bytes + scale)            (K and V of every layer; Ainslie et al. 2023 for KV
   heads; scale: 4 bytes for int8, else 0) */
uint64_t formula_kv_bytes_per_token(const struct config *config, enum dtype dtype);
/* The same without sharing: every query head with K and V of its own. */
uint64_t formula_kv_bytes_per_token_mha(const struct config *config, enum dtype dtype);
uint64_t formula_kv_bytes(const struct config *config, enum dtype dtype, int64_t tokens);
/* positions * vocab * bytes */
uint64_t formula_logits_bytes(const struct config *config, enum dtype dtype, int64_t positions);
/* Trainable parameters; a tied output head counts once. */
uint64_t formula_parameters(const struct config *config);
uint64_t formula_weight_bytes(const struct config *config, enum dtype dtype);
/* Bytes of weights that one forward pass reads: all of them, except that the embedding table is read only as the output
   head (tied) or only in the rows looked up (untied, `rows` of them). */
uint64_t formula_weight_read_bytes(const struct config *config, enum dtype dtype, int64_t rows);
/* Positions that generating `new_tokens` from `prompt` passes through the model: with a cache P + N - 1, without one
   the sum of P .. P + N - 1. */
uint64_t formula_positions_cached(int64_t prompt, int64_t new_tokens);
uint64_t formula_positions_uncached(int64_t prompt, int64_t new_tokens);

#endif
