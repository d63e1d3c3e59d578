/* Rotary position embedding, fused with the write into the KV blocks. */
#include "kernels/cuda/types.cuh"

enum { THREADS = 256, MOST_ROWS = 65535 };

/* Angle, cosine and sine in f32, as the published models' reference does: at large positions the rounding of
   position * frequency is part of the model. */
static __global__ void rope_table(float2 *cos_sin, const int32_t *positions, const float *inverse_frequency,
                                  size_t count, int half)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    float angle = (float)positions[i / (size_t)half] * inverse_frequency[i % (size_t)half];
    cos_sin[i] = make_float2(cosf(angle), sinf(angle));
}

enum status cuda_rope_table(struct device *device, float *cos_sin, const int32_t *positions,
                            const float *inverse_frequency, int rows, int half, struct error *error)
{
    size_t count = (size_t)rows * (size_t)half;
    if (count == 0)
        return STATUS_OK;
    return KVLAB_LAUNCH(cuda_of(device), error, rope_table, cuda_blocks(count, THREADS), THREADS, 0,
                        reinterpret_cast<float2 *>(cos_sin), positions, inverse_frequency, count, half);
}

struct rope_rows {
    float *q;
    const float *k, *v;
    const float2 *cos_sin;
    void *const *keys, *const *values;
    const int32_t *positions, *row_sequence, *block_table, *block_size;
    int first_row, blocks_per_sequence, heads, kv_heads, half;
};

/* A thread has one pair of values, i and i + half, of one head of one row: of q (rotated in place), k (rotated into the
   cache) or v (copied into it). Bytes moved per row: 8 heads head_dim + kv_heads head_dim (8 + 2 size). */
template <typename T> static __global__ void __launch_bounds__(THREADS) rope_store(struct rope_rows args)
{
    int item = (int)(blockIdx.x * blockDim.x + threadIdx.x), half = args.half;
    int head = item / half, i = item % half;
    if (head >= args.heads + 2 * args.kv_heads)
        return;
    size_t row = (size_t)args.first_row + blockIdx.y, dim = 2 * (size_t)half;
    float2 turn = args.cos_sin[row * (size_t)half + (size_t)i];
    if (head < args.heads) {
        float *q = args.q + (row * (size_t)args.heads + (size_t)head) * dim + i;
        float low = q[0], high = q[half];
        q[0] = low * turn.x - high * turn.y;
        q[half] = high * turn.x + low * turn.y;
        return;
    }
    bool is_key = head < args.heads + args.kv_heads;
    int kv_head = head - args.heads - (is_key ? 0 : args.kv_heads);
    const float *from = (is_key ? args.k : args.v) + (row * (size_t)args.kv_heads + (size_t)kv_head) * dim + i;
    float low = from[0], high = from[half];
    if (is_key) {
        float turned = low * turn.x - high * turn.y;
        high = high * turn.x + low * turn.y;
        low = turned;
    }
    size_t sequence = (size_t)args.row_sequence[row];
    int position = args.positions[row], block_size = args.block_size[sequence];
    size_t block =
        (size_t)args.block_table[sequence * (size_t)args.blocks_per_sequence + (size_t)(position / block_size)];
    size_t slot =
        (block * (size_t)args.kv_heads + (size_t)kv_head) * (size_t)block_size + (size_t)(position % block_size);
    T *to = static_cast<T *>((is_key ? args.keys : args.values)[sequence]) + slot * dim + i;
    to[0] = from_f32<T>(low);
    to[half] = from_f32<T>(high);
}

enum status cuda_rope_store(struct device *device, const struct rope_store_args *args, struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    const struct device_batch *batch = args->batch;
    if (args->head_dim % 2 != 0)
        return error_set(error, STATUS_DEVICE, "rope: head_dim %d is odd", args->head_dim);
    struct rope_rows rows = {};
    rows.q = args->q;
    rows.k = args->k;
    rows.v = args->v;
    rows.cos_sin = reinterpret_cast<const float2 *>(args->cos_sin);
    rows.keys = args->kv.k;
    rows.values = args->kv.v;
    rows.positions = batch->positions;
    rows.row_sequence = batch->row_sequence;
    rows.block_table = batch->block_table;
    rows.block_size = batch->block_size;
    rows.blocks_per_sequence = batch->blocks_per_sequence;
    rows.heads = args->heads;
    rows.kv_heads = args->kv_heads;
    rows.half = args->head_dim / 2;
    size_t items = (size_t)(args->heads + 2 * args->kv_heads) * (size_t)rows.half;
    for (; rows.first_row < batch->rows; rows.first_row += MOST_ROWS) {
        int left = batch->rows - rows.first_row;
        dim3 grid(cuda_blocks(items, THREADS), (unsigned)(left < MOST_ROWS ? left : MOST_ROWS));
        enum dtype dtype = args->kv.dtype;
        enum status status = dtype == DTYPE_F32 ? KVLAB_LAUNCH(cuda, error, rope_store<float>, grid, THREADS, 0, rows)
                             : dtype == DTYPE_F16
                                 ? KVLAB_LAUNCH(cuda, error, rope_store<__half>, grid, THREADS, 0, rows)
                                 : KVLAB_LAUNCH(cuda, error, rope_store<__nv_bfloat16>, grid, THREADS, 0, rows);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}
