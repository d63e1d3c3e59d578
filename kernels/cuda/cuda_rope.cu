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
    float *const *key_scales, *const *value_scales; /* of int8 */
    const int32_t *positions, *row_sequence, *block_table, *block_size;
    int first_row, blocks_per_sequence, heads, kv_heads, half;
};

/* Heads are counted over q, then k, then v: where the values of one come from, and which of the cache's they become. */
struct rope_head {
    const float *from; /* [2 half] */
    int kv_head;       /* of k and v */
    bool turned, is_key, is_query;
};
static __device__ inline struct rope_head rope_head_of(const struct rope_rows &args, size_t row, int head)
{
    const size_t dim = 2 * (size_t)args.half, kv_heads = (size_t)args.kv_heads;
    if (head < args.heads)
        return {args.q + (row * (size_t)args.heads + (size_t)head) * dim, 0, true, false, true};
    head -= args.heads;
    if (head < args.kv_heads)
        return {args.k + (row * kv_heads + (size_t)head) * dim, head, true, true, false};
    head -= args.kv_heads;
    return {args.v + (row * kv_heads + (size_t)head) * dim, head, false, false, false};
}

/* Values i and i + half of a head, rotated if they are to be. */
static __device__ inline float2 rope_pair(const struct rope_rows &args, const struct rope_head &head, size_t row, int i)
{
    const float low = head.from[i], high = head.from[i + args.half];
    if (!head.turned)
        return make_float2(low, high);
    const float2 turn = args.cos_sin[row * (size_t)args.half + (size_t)i];
    return make_float2(low * turn.x - high * turn.y, high * turn.x + low * turn.y);
}

/* The row of the cache's tensors that a token's KV head goes to. */
static __device__ inline size_t rope_slot(const struct rope_rows &args, size_t row, int kv_head)
{
    size_t sequence = (size_t)args.row_sequence[row];
    int position = args.positions[row], block_size = args.block_size[sequence];
    size_t block =
        (size_t)args.block_table[sequence * (size_t)args.blocks_per_sequence + (size_t)(position / block_size)];
    return (block * (size_t)args.kv_heads + (size_t)kv_head) * (size_t)block_size + (size_t)(position % block_size);
}

/* A thread has one pair of values, i and i + half, of one head of one row: of q (rotated in place), k (rotated into the
   cache) or v (copied into it). Bytes moved per row: 8 heads head_dim + kv_heads head_dim (8 + 2 size). */
template <typename T> static __global__ void __launch_bounds__(THREADS) rope_store(struct rope_rows args)
{
    const int item = (int)(blockIdx.x * blockDim.x + threadIdx.x), half = args.half, i = item % half;
    if (item / half >= args.heads + 2 * args.kv_heads)
        return;
    const size_t row = (size_t)args.first_row + blockIdx.y;
    const struct rope_head head = rope_head_of(args, row, item / half);
    const float2 pair = rope_pair(args, head, row, i);
    if (head.is_query) {
        float *q = const_cast<float *>(head.from);
        q[i] = pair.x;
        q[i + half] = pair.y;
        return;
    }
    void *tensor = (head.is_key ? args.keys : args.values)[args.row_sequence[row]];
    T *to = static_cast<T *>(tensor) + rope_slot(args, row, head.kv_head) * 2 * (size_t)half + i;
    to[0] = from_f32<T>(pair.x);
    to[half] = from_f32<T>(pair.y);
}

/* int8_from_f32() */
static __device__ inline int8_t quantized(float value, float scale)
{
    return scale > 0.0f ? from_f32<int8_t>(fminf(fmaxf(__fdiv_rn(value, scale), -127.0f), 127.0f)) : (int8_t)0;
}

/* The same into int8: a warp has one head of one row, since its values share a scale; they are rotated twice, for the
   largest and for the codes. Grid [heads of a row / WARPS][rows]. A NaN or an infinity times 0 makes the scale a NaN.
 */
enum { WARPS = THREADS / 32 };
static __global__ void __launch_bounds__(THREADS) rope_store_int8(struct rope_rows args)
{
    const int number = (int)(blockIdx.x * WARPS + threadIdx.x / 32), lane = (int)threadIdx.x % 32, half = args.half;
    if (number >= args.heads + 2 * args.kv_heads)
        return;
    const size_t row = (size_t)args.first_row + blockIdx.y, sequence = (size_t)args.row_sequence[row];
    const struct rope_head head = rope_head_of(args, row, number);
    float largest = 0.0f, taint = 0.0f;
    for (int i = lane; i < half; i += 32) {
        const float2 pair = rope_pair(args, head, row, i);
        largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
        taint += pair.x * 0.0f + pair.y * 0.0f;
        if (head.is_query) {
            float *q = const_cast<float *>(head.from);
            q[i] = pair.x;
            q[i + half] = pair.y;
        }
    }
    if (head.is_query)
        return;
    for (int distance = 16; distance > 0; distance /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    const float scale = __fdiv_rn(largest, 127.0f) + warp_sum(taint);
    const size_t slot = rope_slot(args, row, head.kv_head);
    int8_t *to = static_cast<int8_t *>((head.is_key ? args.keys : args.values)[sequence]) + slot * 2 * (size_t)half;
    for (int i = lane; i < half; i += 32) {
        const float2 pair = rope_pair(args, head, row, i);
        to[i] = quantized(pair.x, scale);
        to[i + half] = quantized(pair.y, scale);
    }
    if (lane == 0)
        (head.is_key ? args.key_scales : args.value_scales)[sequence][slot] = scale;
}

/* Rows from args.first_row on, as many as a grid has room for. */
static enum status store_rows(struct cuda_device *cuda, enum dtype dtype, const struct rope_rows &args, int rows,
                              struct error *error)
{
    const size_t heads = (size_t)(args.heads + 2 * args.kv_heads);
    const dim3 grid(cuda_blocks(heads * (size_t)args.half, THREADS), (unsigned)rows);
    switch (dtype) {
    case DTYPE_F32:
        return KVLAB_LAUNCH(cuda, error, rope_store<float>, grid, THREADS, 0, args);
    case DTYPE_F16:
        return KVLAB_LAUNCH(cuda, error, rope_store<__half>, grid, THREADS, 0, args);
    case DTYPE_FP8_E4M3:
        return KVLAB_LAUNCH(cuda, error, rope_store<__nv_fp8_e4m3>, grid, THREADS, 0, args);
    case DTYPE_INT8:
        return KVLAB_LAUNCH(cuda, error, rope_store_int8, dim3(cuda_blocks(heads, WARPS), (unsigned)rows), THREADS, 0,
                            args);
    default:
        return KVLAB_LAUNCH(cuda, error, rope_store<__nv_bfloat16>, grid, THREADS, 0, args);
    }
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
    rows.key_scales = args->kv.k_scale;
    rows.value_scales = args->kv.v_scale;
    rows.positions = batch->positions;
    rows.row_sequence = batch->row_sequence;
    rows.block_table = batch->block_table;
    rows.block_size = batch->block_size;
    rows.blocks_per_sequence = batch->blocks_per_sequence;
    rows.heads = args->heads;
    rows.kv_heads = args->kv_heads;
    rows.half = args->head_dim / 2;
    for (; rows.first_row < batch->rows; rows.first_row += MOST_ROWS) {
        int left = batch->rows - rows.first_row;
        if (store_rows(cuda, args->kv.dtype, rows, left < MOST_ROWS ? left : MOST_ROWS, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}
