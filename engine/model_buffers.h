/* The memory of a forward pass; shared by model.c, which makes it, and forward.c, which uses it. */
#ifndef KVLAB_ENGINE_MODEL_BUFFERS_H
#define KVLAB_ENGINE_MODEL_BUFFERS_H

#include "engine/forward.h"

/* What a pass tells the device about its batch, laid out by the limits so that addresses never change (a captured graph
   can be replayed) and sent in one upload. Pointers first, for their alignment. */
struct batch_memory {
    void **keys, **values;                               /* [layers][max_sequences] */
    void **key_scales, **value_scales;                   /* likewise; NULL where the cache's type has none */
    int32_t *tokens, *positions, *row_sequence, *gather; /* [max_rows] */
    int32_t *rope_positions;                             /* [max_rows], positions and what was evicted before them */
    int32_t *first_row;                                  /* [max_sequences + 1] */
    int32_t *block_size;                                 /* [max_sequences] */
    int32_t *block_table;                                /* [max_sequences][max_blocks] */
};

enum {
    INVERSE_FREQUENCY,
    COS_SIN,
    RESIDUAL,
    DELTA,
    NORMED,
    Q,
    K,
    V,
    ATTENDED,
    GATE,
    UP,
    GATED,
    BATCH,
    CHOSEN,
    SCRATCH,
    BUFFERS
};

struct model_buffers {
    void *device[BUFFERS];
    void *host_batch; /* mirror of device[BATCH] */
    struct batch_memory on_host, on_device;
    int32_t *host_context; /* [max_sequences] */
    size_t batch_bytes, scratch_bytes;
};

#endif
