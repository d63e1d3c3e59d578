/* The work of one forward pass, counted from the config (source: formula): floating-point operations of its products,
   and bytes that it must move. For `sequences` sequences alike, each with `start` positions in the cache and `count`
   tokens that are passed through the model together, `logits` positions of each through the output head.

   Counted: products of weights and activations, 2 per parameter and row, and attention's two products, Q K^T and P V,
   over the positions that each row may see. Not counted: norms, rotations, softmax, activations, biases, all of them
   far below the products. Results fit 64 bits for every config that config_read() takes and FORMULA_MAX_TOKENS. */
#ifndef KVLAB_ENGINE_WORK_H
#define KVLAB_ENGINE_WORK_H

#include "engine/formula.h"

struct pass_shape {
    int64_t sequences, start, count, logits;
};

/* Parameters of the matrices that every row goes through: per layer hidden * (2 q + 2 kv) + 3 * hidden * intermediate,
   with q = heads * head_dim and kv = KV heads * head_dim. */
uint64_t work_matrix_parameters(const struct config *config);

/* 2 * matrix parameters * rows + 2 * vocab * hidden * rows with logits + 4 * heads * head_dim * positions seen, summed
   over rows and layers; a row at position p sees p + 1 positions, or its layer's window. */
uint64_t work_flops(const struct config *config, const struct pass_shape *pass);

/* K and V that the rows of a pass read, each position once per sequence and layer, and those that it writes. */
uint64_t work_kv_read_bytes(const struct config *config, enum dtype kv_dtype, const struct pass_shape *pass);
uint64_t work_kv_written_bytes(const struct config *config, enum dtype kv_dtype, const struct pass_shape *pass);

/* Weights once (formula_weight_read_bytes), K and V read and written. */
uint64_t work_bytes(const struct config *config, enum dtype dtype, enum dtype kv_dtype, const struct pass_shape *pass);

#endif
