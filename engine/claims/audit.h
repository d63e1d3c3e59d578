/* Published numbers, recomputed: what a claim says, what the arithmetic says, and what lies between.

   A claim is a quantity ("kv_bytes"), the inputs it follows from (a model of data/models, and key=value;...), and the
   number as it was printed, with its unit. Nothing here knows any claim: verdicts are found by arithmetic, and a wrong
   number is explained by changing one input at a time and computing again. */
#ifndef KVLAB_ENGINE_CLAIMS_AUDIT_H
#define KVLAB_ENGINE_CLAIMS_AUDIT_H

#include "engine/claims/printed.h"
#include "engine/config.h"
#include "engine/plan/shape.h"

#include <stdio.h>

enum audit_verdict {
    AUDIT_EXACT,
    AUDIT_ROUNDED,
    AUDIT_UNIT_SLIP,
    AUDIT_WRONG,
    AUDIT_NOT_COMPUTABLE,
    AUDIT_VERDICTS,
};
const char *audit_verdict_name(enum audit_verdict verdict); /* "unit slip" */

struct audit_claim {
    const char *quantity, *model, *params, *published, *unit; /* "" where a cell is empty */
};

struct audit_result {
    enum audit_verdict verdict;
    struct quantity_value value; /* in `unit`; nothing where it is not computable */
    char value_text[48];         /* whole numbers in full, others to six digits; "" where not computable */
    const char *unit;            /* the quantity's own: B, x, %, tokens ... */
    double difference_percent;   /* of the published from the value, in the unit printed; NaN where not computable */
    char reason[480];
};

/* Status 2: a quantity, unit, key or number that nobody could read, with those that are known. What can be read but not
   computed (an unknown model, a missing input) is a verdict. */
enum status audit_check(struct audit_result *result, const struct audit_claim *claim, const char *models_dir,
                        struct error *error);

void audit_print_quantities(FILE *file); /* name, unit, inputs and formula of each; for --help */

/* ---- audit_inputs.c: what a quantity is computed from ------------------------------------------------------------ */

/* Counts are 0, reals 0 and types NULL where nothing gives them. */
struct audit_inputs {
    struct config config;    /* of the model, with what `params` say in its place */
    struct config published; /* as the model's file says it */
    bool has_model;          /* the parameters of config can be counted */
    bool has_shape;          /* layers differ, or keep something else than K and V of heads: audit_layer() has them */
    struct shape shape;
    int64_t context, batch, prompt, new_tokens, block_size;
    int64_t free_bytes, budget_bytes, parameters;
    int64_t active_parameters; /* used for one token, where that is fewer: the chosen experts' share */
    int64_t tensors_per_layer; /* 2: K and V */
    enum { HEADS_AS_ASKED, HEADS_QUERY, HEADS_KV } whose; /* whose K and V a cache is computed with */
    bool window_everywhere;                               /* full layers windowed too */
    bool all_keep;     /* layers with a state, or that share, as if they kept K and V */
    bool latent_twice; /* as if a latent vector were K and V */
    const struct plan_type *dtype;
    double flops, bytes_per_s, tokens_per_s, ttft_s, decode_s;
    double flops_per_parameter; /* 2: a multiplication and an addition */
};

/* Free with shape_free(&inputs->shape), whatever it returned. A model without config or shape is no error: `problem`
   says why. */
enum status audit_inputs_read(struct audit_inputs *inputs, const struct audit_claim *claim, const char *models_dir,
                              char *problem, size_t size, struct error *error);
/* Is the input of this name given? Names are those of params ("context"), and "model". */
bool audit_input_given(const struct audit_inputs *inputs, const char *name);

/* ---- audit_layers.c: has_shape alone -----------------------------------------------------------------------------
 */

/* In what the layers that keep K and V of heads are all the same. */
struct audit_alike {
    bool layers; /* in everything */
    bool query_heads, kv_heads, head_dim;
    bool windows;   /* there are windowed layers, of one window */
    int64_t window; /* the first one's; 0: none */
};
struct audit_alike audit_layers_alike(const struct shape *shape);
/* Why config cannot be taken for the layers in the place of published; NULL where it can. */
const char *audit_layers_refuse(const struct audit_inputs *inputs);
/* The layer with what config says in the place of published; index below config.num_hidden_layers. */
struct layer_shape audit_layer(const struct audit_inputs *inputs, int64_t index);

/* ---- audit_quantities.c: one row for each --------------------------------------------------------------------------
 */
struct audit_quantity {
    const char *name, *unit;
    const char *needs; /* names of inputs, separated by spaces */
    const char *formula;
    /* False where it does not fit 64 bits, or has no value. */
    bool (*compute)(const struct audit_inputs *inputs, struct quantity_value *value);
    const char *(*refuse)(const struct audit_inputs *inputs); /* why it cannot be computed; NULL: it can */
    bool of_active; /* of the parameters used for one token, where a model has experts */
};
extern const struct audit_quantity audit_quantities[]; /* ends with a NULL name */
const struct audit_quantity *audit_quantity_find(const char *name);

/* ---- audit_explain.c -----------------------------------------------------------------------------------------------
 */

/* The single changes of an input that make `printed` right, in words ("K only"), at most three; "" where none does. */
void audit_explain(char *text, size_t size, const struct audit_quantity *quantity, const struct audit_inputs *inputs,
                   const struct printed *printed, const struct byte_unit *unit, uint64_t scale);

#endif
