/* Ragged batches over block tables, with a cache of random values, for the tests of the operations that read or write
   the cache. */
#ifndef KVLAB_TESTS_RAGGED_H
#define KVLAB_TESTS_RAGGED_H

#include "tests/device_arrays.h"

struct ragged_case {
    enum dtype kv_dtype, out_dtype;
    int heads, kv_heads, head_dim, window;
    int sequences, block_size; /* block_size 0: one block that holds the context exactly */
    int rows[4], past[4];      /* new tokens, and positions before them */
};

struct ragged {
    struct ragged_case shape;
    int total_rows, contexts[4], blocks_per_sequence;
    int32_t first_row[5], block_size[4];
    int32_t *positions, *row_sequence, *table;
    struct array tokens_d, positions_d, row_sequence_d, first_row_d, table_d, block_size_d;
    struct array k[4], v[4];                                                 /* one tensor per sequence */
    struct array k_scale[4], v_scale[4], k_scale_pointers, v_scale_pointers; /* int8 */
    struct array k_pointers, v_pointers;
    struct device_batch batch;
    struct device_kv kv;
};

/* Blocks lie in random order among as many that nobody uses; block sizes, types and shapes as the case says. */
void ragged_make(struct ragged *g, struct device *device, const struct ragged_case *c);
void ragged_drop(struct ragged *g);
/* Number i of a series that goes over types, dimensions and block sizes in turn; the rest is random. */
struct ragged_case ragged_random_case(int i);

/* First element of a head's row in K or V: the formula of struct device_kv. Its scale has that element / head_dim. */
size_t ragged_element(const struct ragged *g, int s, int position, int head);
/* Values of K and V by element: of int8 the code times the scale. */
double ragged_k(const struct ragged *g, int s, size_t element);
double ragged_v(const struct ragged *g, int s, size_t element);

/* Positions that no row of the sequence may see become NaN (int8: their scales do): reading one shows. */
void ragged_poison(struct ragged *g);

#endif
