/* The tensors of a model as a list: names, shapes, and where each goes; shared by the files that make up weights.h. */
#ifndef KVLAB_ENGINE_WEIGHTS_TENSORS_H
#define KVLAB_ENGINE_WEIGHTS_TENSORS_H

#include "engine/safetensors.h"
#include "engine/weights.h"

enum weight_kind { WEIGHT_MATRIX, WEIGHT_BIAS, WEIGHT_NORM };

struct weight_tensor {
    char name[80]; /* Hugging Face's */
    enum weight_kind kind;
    int layer;                       /* -1: embeddings, last norm, head */
    int64_t rows, columns;           /* shape [rows][columns]; columns 0: a vector [rows] */
    const void **slot;               /* in struct weights; NULL until it has memory */
    const struct safetensor *stored; /* in a file; NULL for synthetic weights */
};

struct weight_list {
    struct weight_tensor *tensors; /* in the order of the forward pass; those of a layer adjacent */
    size_t count;
};

struct weights_storage {
    const void **memory; /* [count] what the ledger gave or adopted */
    size_t count;
    struct safetensors *files; /* NULL for synthetic weights */
};

/* Lists a model's tensors, a tied head not among them, and makes the arrays of `weights`. The list borrows `weights`.
   On an error, weights_free() and weight_list_free() clean up. */
enum status weight_list_init(struct weight_list *list, struct weights *weights, const struct config *config,
                             struct error *error);
void weight_list_free(struct weight_list *list);

size_t weight_count(const struct weight_tensor *tensor); /* values */

/* Ledger memory for every tensor that has none yet. */
enum status weight_list_place(struct weights *weights, struct ledger *ledger, struct weight_list *list,
                              struct error *error);

/* Once all tensors are in place: counts their bytes, ties the head. */
void weight_list_finish(struct weights *weights, const struct weight_list *list, const struct config *config);

#endif
