/* The CPU device, inside: what its files share. Users see kernels/device.h only. */
#ifndef KVLAB_KERNELS_CPU_CPU_H
#define KVLAB_KERNELS_CPU_CPU_H

#include "kernels/cpu/cpu_hot.h"
#include "kernels/device.h"

#include <stdbool.h>

struct cpu_matrix;

struct cpu_device {
    struct device base;
    const struct cpu_hot *hot;
    int threads;
    char *workspace; /* borrowed from the engine's ledger */
    size_t workspace_bytes;
    struct cpu_matrix *matrix; /* primitives of the matrix library, cached by shape */
};

static inline struct cpu_device *cpu_of(struct device *device)
{
    return (struct cpu_device *)device;
}

static inline size_t cpu_round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* threads 0: all that the process may run on. Status 2 for a KVLAB_CPU that is unknown or that this processor lacks. */
enum status cpu_open(int threads, struct device **device, struct error *error);

/* ---- cpu_hot.c: the variant to use: KVLAB_CPU's, else the best that the processor has */
enum status cpu_hot_choose(const struct cpu_hot **hot, struct error *error);

/* ---- cpu_memory.c */
enum status cpu_alloc(struct device *device, size_t bytes, void **memory, struct error *error);
void cpu_release(struct device *device, void *memory, size_t bytes);
enum status cpu_memory(struct device *device, struct device_memory *memory, struct error *error);
uint64_t cpu_total_bytes(void); /* of the machine, or the cgroup's limit where that is less */

/* ---- cpu_fill.c */
enum status cpu_fill_random(struct device *device, void *values, enum dtype dtype, size_t count, uint64_t seed,
                            float scale, struct error *error);
enum status cpu_fill_value(struct device *device, void *values, enum dtype dtype, size_t count, float value,
                           struct error *error);
enum status cpu_read_bytes(struct device *device, const void *memory, size_t bytes, uint64_t *checksum,
                           struct error *error);

/* ---- cpu_ops.c */
enum status cpu_embed(struct device *device, float *out, const void *table, enum dtype dtype, const int32_t *tokens,
                      int rows, int hidden, struct error *error);
enum status cpu_rms_norm(struct device *device, const struct rms_norm_args *args, struct error *error);
enum status cpu_rope_table(struct device *device, float *cos_sin, const int32_t *positions,
                           const float *inverse_frequency, int rows, int half, struct error *error);
enum status cpu_rope_store(struct device *device, const struct rope_store_args *args, struct error *error);
enum status cpu_kv_move(struct device *device, const struct kv_move_args *args, struct error *error);
enum status cpu_swiglu(struct device *device, void *out, const float *gate, const float *up, enum dtype dtype, int rows,
                       int width, struct error *error);
enum status cpu_argmax(struct device *device, int32_t *index, const void *logits, enum dtype dtype, int rows, int vocab,
                       struct error *error);

/* ---- cpu_sample.c */
enum status cpu_sample(struct device *device, const struct sample_args *args, struct error *error);

/* ---- cpu_linear.c */
enum { CPU_FEW_ROWS = 16 }; /* up to here a product is bound by reading the weights: own kernels */
enum status cpu_linear(struct device *device, const struct linear_args *args, struct error *error);
size_t cpu_linear_workspace(struct cpu_device *device, const struct workspace_shape *shape);

/* ---- cpu_matrix.c: y[rows][out] = x[rows][in] weight[out][in]^T + bias by the matrix library */
struct cpu_product {
    enum dtype dtype, out_dtype; /* of x, weight and bias; of y */
    int rows, in, out;
    int y_stride; /* elements between rows of y */
    bool has_bias;
};
struct cpu_matrix *cpu_matrix_new(void); /* NULL: out of memory */
void cpu_matrix_free(struct cpu_matrix *matrix);
void cpu_matrix_name(char *name, size_t size);                         /* "oneDNN 2.6.3" */
bool cpu_matrix_supports(const struct cpu_hot *hot, enum dtype dtype); /* else convert to f32 first */
/* Scratch that the product wants; with less it is refused with status 3. 0 if the library has no such product. */
size_t cpu_matrix_scratch(struct cpu_matrix *matrix, const struct cpu_product *product);
enum status cpu_matrix_multiply(struct cpu_matrix *matrix, const struct cpu_product *product, const void *x,
                                const void *weight, const void *bias, void *y, void *scratch, size_t scratch_bytes,
                                struct error *error);

/* ---- cpu_attention.c */
enum status cpu_attention(struct device *device, const struct attention_args *args, struct error *error);
enum status cpu_attention_mass(struct device *device, const struct attention_mass_args *args, struct error *error);
size_t cpu_attention_workspace(const struct cpu_device *device, const struct workspace_shape *shape);

#endif
