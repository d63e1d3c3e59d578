/* One row of the cache onto another: what a cache that evicts in the middle does, so that its positions stay adjacent.
 */
#include "kernels/cuda/types.cuh"

enum { THREADS = 128 };

struct move_rows {
    void *const *k, *const *v;
    float *const *k_scale, *const *v_scale; /* of int8, else NULL */
    const int32_t *from, *to, *block_table, *block_size;
    int blocks_per_sequence, kv_heads;
    size_t row_bytes;
};

static __device__ inline size_t row_of(const struct move_rows &args, size_t sequence, int position, int kv_head)
{
    const int block_size = args.block_size[sequence];
    const size_t block =
        (size_t)args.block_table[sequence * (size_t)args.blocks_per_sequence + (size_t)(position / block_size)];
    return (block * (size_t)args.kv_heads + (size_t)kv_head) * (size_t)block_size + (size_t)(position % block_size);
}

/* grid [kv_heads][sequences]. Bytes moved: 2 * (row + scale), read and written, per head that moves. */
static __global__ void __launch_bounds__(THREADS) kv_move(struct move_rows args)
{
    const int kv_head = (int)blockIdx.x;
    const size_t sequence = blockIdx.y, item = sequence * (size_t)args.kv_heads + (size_t)kv_head;
    if (args.from[item] < 0 || args.to[item] < 0 || args.from[item] == args.to[item])
        return;
    const size_t from = row_of(args, sequence, args.from[item], kv_head);
    const size_t to = row_of(args, sequence, args.to[item], kv_head);
    unsigned char *k = static_cast<unsigned char *>(args.k[sequence]);
    unsigned char *v = static_cast<unsigned char *>(args.v[sequence]);
    for (size_t i = threadIdx.x; i < args.row_bytes; i += THREADS) {
        k[to * args.row_bytes + i] = k[from * args.row_bytes + i];
        v[to * args.row_bytes + i] = v[from * args.row_bytes + i];
    }
    if (threadIdx.x == 0 && args.k_scale) {
        args.k_scale[sequence][to] = args.k_scale[sequence][from];
        args.v_scale[sequence][to] = args.v_scale[sequence][from];
    }
}

enum status cuda_kv_move(struct device *device, const struct kv_move_args *args, struct error *error)
{
    struct move_rows rows = {};
    rows.k = args->kv.k;
    rows.v = args->kv.v;
    rows.k_scale = args->kv.k_scale;
    rows.v_scale = args->kv.v_scale;
    rows.from = args->from;
    rows.to = args->to;
    rows.block_table = args->batch->block_table;
    rows.block_size = args->batch->block_size;
    rows.blocks_per_sequence = args->batch->blocks_per_sequence;
    rows.kv_heads = args->kv_heads;
    rows.row_bytes = (size_t)args->head_dim * dtype_size(args->kv.dtype);
    const dim3 grid((unsigned)args->kv_heads, (unsigned)args->batch->sequences);
    return KVLAB_LAUNCH(cuda_of(device), error, kv_move, grid, THREADS, 0, rows);
}
