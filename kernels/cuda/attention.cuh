/* What the attention kernels share. Query vectors: the `group` query heads of a KV head and the rows of a sequence make
   vectors m = row * group + head, which see the same keys. */
#ifndef KVLAB_KERNELS_CUDA_ATTENTION_CUH
#define KVLAB_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/types.cuh"

struct attend {
    const float *q;
    void *out;
    enum dtype out_dtype;
    void *const *k, *const *v;
    float *const *k_scale, *const *v_scale; /* of int8 */
    const int32_t *positions, *first_row, *block_table, *block_size;
    int blocks_per_sequence, heads, kv_heads, group, head_dim, window;
    float scale; /* times log2(e): weights are powers of two */
    /* Decode: keys are cut into `splits` parts. With more than one, each writes its unnormalised result, relative to
       its maximum, for a second step to join: partial_o [sequences][heads][splits][head_dim], partial_max_sum
       [sequences][heads][splits] (maximum, sum). */
    int splits;
    float *partial_o;
    float2 *partial_max_sum;
};

/* Below any score, yet (-infinity) - LOWEST is no NaN. */
#define ATTEND_LOWEST (-0x1p120f)

/* The KV tensors of one sequence and KV head. */
struct kv_rows {
    const void *k, *v;
    const int32_t *table;
    int block_size, kv_heads, kv_head;
};
static __device__ inline struct kv_rows kv_rows_of(const struct attend &args, int sequence, int kv_head)
{
    return {args.k[sequence],
            args.v[sequence],
            args.block_table + (size_t)sequence * (size_t)args.blocks_per_sequence,
            args.block_size[sequence],
            args.kv_heads,
            kv_head};
}
/* Which row of head_dim values the position lies in: of K and of V alike. */
static __device__ inline unsigned kv_row(const struct kv_rows &rows, int position)
{
    unsigned block_size = (unsigned)rows.block_size, block = (unsigned)position / block_size;
    unsigned slot = (unsigned)position - block * block_size;
    return ((unsigned)rows.table[block] * (unsigned)rows.kv_heads + (unsigned)rows.kv_head) * block_size + slot;
}

static __device__ inline int first_visible(const struct attend &args, int position)
{
    return args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
}

/* The part [begin, end) of a decode row's keys that split number `split` has; it may be empty. */
struct key_range {
    int begin, end;
};
static __device__ inline struct key_range split_keys(const struct attend &args, int position, int split)
{
    int first = first_visible(args, position), end = position + 1;
    int part = ((end - first + args.splits - 1) / args.splits + 15) / 16 * 16;
    int begin = min(first + split * part, end);
    return {begin, min(begin + part, end)};
}

static __device__ inline void store_out(const struct attend &args, size_t at, float value)
{
    if (args.out_dtype == DTYPE_F32)
        static_cast<float *>(args.out)[at] = value;
    else if (args.out_dtype == DTYPE_F16)
        static_cast<__half *>(args.out)[at] = from_f32<__half>(value);
    else
        static_cast<__nv_bfloat16 *>(args.out)[at] = from_f32<__nv_bfloat16>(value);
}

/* Result d of a decode row's head: final, or this split's part of it. */
static __device__ inline void store_decode(const struct attend &args, int sequence, int row, int head, int split, int d,
                                           float o, float maximum, float sum)
{
    size_t dim = (size_t)args.head_dim;
    if (args.splits == 1) {
        store_out(args, ((size_t)row * (size_t)args.heads + (size_t)head) * dim + (size_t)d, o / sum);
        return;
    }
    size_t part = ((size_t)sequence * (size_t)args.heads + (size_t)head) * (size_t)args.splits + (size_t)split;
    args.partial_o[part * dim + (size_t)d] = o;
    if (d == 0)
        args.partial_max_sum[part] = make_float2(maximum, sum);
}

/* ---- launchers; sequences, tiles and capability have been looked at. Status as ever. */

struct attend cuda_make_attend(const struct attention_args *args);
/* For any type, head_dim and card: decode rows in splits (grid of splits), or rows of prompts in tiles. */
enum { PLAIN_VECTORS = 8 }; /* query vectors per tile */
enum status cuda_attention_plain(struct cuda_device *cuda, const struct attend *args, enum dtype kv_dtype, int decode,
                                 int pieces, int sequences, struct error *error);
/* On tensor cores: 16-bit types, head_dim % 8 == 0 up to TENSOR_DIM, capability 8.0. */
enum { TENSOR_DIM = 256, DECODE_HEADS = 8, PREFILL_VECTORS = 64 };
enum status cuda_attention_decode(struct cuda_device *cuda, const struct attend *args, enum dtype kv_dtype,
                                  int sequences, struct error *error);
enum status cuda_attention_prefill(struct cuda_device *cuda, const struct attend *args, enum dtype kv_dtype, int tiles,
                                   int sequences, struct error *error);

#endif
