/* The weights of a model in device memory: read from safetensors, or synthetic. Each tensor is [out][in] row-major in
   the working type, as the published files hold it. */
#ifndef KVLAB_ENGINE_WEIGHTS_H
#define KVLAB_ENGINE_WEIGHTS_H

#include "engine/config.h"
#include "engine/ledger.h"

struct layer_weights {
    const void *input_norm;               /* [hidden] */
    const void *q, *k, *v;                /* [heads * head_dim][hidden], [kv_heads * head_dim][hidden] twice */
    const void *q_bias, *k_bias, *v_bias; /* [out] or NULL */
    const void *o, *o_bias;               /* [hidden][heads * head_dim]; [hidden] or NULL */
    const void *post_norm;                /* [hidden] */
    const void *gate, *up;                /* [intermediate][hidden] */
    const void *gate_bias, *up_bias;      /* [intermediate] or NULL */
    const void *down, *down_bias;         /* [hidden][intermediate]; [hidden] or NULL */
};

struct weights {
    enum dtype dtype;                /* the working type */
    char source[64];                 /* "synthetic", or the folder's name: the CSV's `weights` column */
    const void *embed;               /* [vocab][hidden] */
    const void *final_norm;          /* [hidden] */
    const void *head;                /* [vocab][hidden]; equals embed where tied */
    struct layer_weights *layers;    /* [num_hidden_layers] */
    uint64_t bytes;                  /* of all tensors, a tied one once */
    struct weights_storage *storage; /* what to give back */
};

/* Synthetic weights: each matrix uniform in [-s, s) with s = sqrt(3 / in) (so that a product keeps the variance of its
   input), embeddings too, as they may be the output head; norms 1, biases small and random; all from `seed`. */
enum status weights_synthetic(struct weights *weights, struct ledger *ledger, const struct config *config,
                              enum dtype dtype, uint64_t seed, struct error *error);

/* The same tensors in the same memory, but nothing written into them: for counting memory, where no pass will run. On a
   CPU pages that nobody writes take none, so that shapes larger than the machine can be counted. */
enum status weights_unfilled(struct weights *weights, struct ledger *ledger, const struct config *config,
                             enum dtype dtype, struct error *error);

/* Weights from a folder of safetensors under Hugging Face's names. Read in place (mapped, counted by ledger_adopt)
   where the device is the CPU and the stored type is the working type; else converted or uploaded into ledger memory.
   Status 2 for a missing tensor, wrong shape or type, naming the tensor and file. */
enum status weights_load(struct weights *weights, struct ledger *ledger, const struct config *config, enum dtype dtype,
                         const char *folder, struct error *error);

void weights_free(struct weights *weights, struct ledger *ledger); /* takes a zeroed struct */

/* The type that most bytes of the folder's weights have, for --dtype's default. */
enum status weights_stored_dtype(const char *folder, enum dtype *dtype, struct error *error);

#endif
