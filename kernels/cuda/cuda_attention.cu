/* Attention over the block tables: which kernel takes which rows, and into how many parts a decode row's keys are cut.
   Decode (a sequence's only row in the batch): parts of the keys, so that few KV heads still fill the card, joined by a
   second small kernel (Dao et al. 2023, "Flash-Decoding"). Other rows: tiles of query vectors that go over the keys
   they see (Dao et al. 2022, FlashAttention). A batch may hold both. */
#include "kernels/cuda/attention.cuh"

#include <math.h>

enum { BLOCKS_PER_SM = 4, KEYS_PER_SPLIT = 64 };

static int decode_head_tiles(int group)
{
    return (group + DECODE_HEADS - 1) / DECODE_HEADS;
}

/* Enough blocks to fill the card, none with fewer keys than a round of its warps. */
static int choose_splits(const struct cuda_device *cuda, int sequences, int kv_heads, int group, int context)
{
    int others = sequences * kv_heads * decode_head_tiles(group);
    int splits = cuda->base.info.multiprocessors * BLOCKS_PER_SM / others;
    int most = cuda_context_bucket(context) / KEYS_PER_SPLIT;
    splits = splits < most ? splits : most;
    return splits > 1 ? splits : 1;
}

/* Whatever the batch, splits * sequences * kv_heads stays under multiprocessors * BLOCKS_PER_SM where splits > 1. */
size_t cuda_attention_workspace(const struct cuda_device *cuda, const struct workspace_shape *shape)
{
    size_t group = (size_t)(shape->heads / shape->kv_heads);
    size_t parts = (size_t)cuda->base.info.multiprocessors * BLOCKS_PER_SM * group;
    return parts * ((size_t)shape->head_dim + 2) * sizeof(float) + 2 * CUDA_ALIGN_BYTES;
}

/* ---- joining the parts of a decode row */

enum { JOIN_THREADS = 128 };

/* One block per head and sequence: each part counts 2^(its maximum - the largest).
   Bytes moved: splits * (head_dim + 2) * 4 per head. */
static __global__ void __launch_bounds__(JOIN_THREADS) join_parts(struct attend args)
{
    KVLAB_DYNAMIC_SHARED(float, weight); /* [splits] */
    __shared__ float of_warp[2][JOIN_THREADS / 32];
    const int head = (int)blockIdx.x, sequence = (int)blockIdx.y, row = args.first_row[sequence];
    const size_t part = ((size_t)sequence * (size_t)args.heads + (size_t)head) * (size_t)args.splits;
    if (args.first_row[sequence + 1] - row != 1)
        return;
    float largest = ATTEND_LOWEST, sum = 0.0f;
    for (int i = (int)threadIdx.x; i < args.splits; i += JOIN_THREADS)
        largest = fmaxf(largest, args.partial_max_sum[part + (size_t)i].x);
    for (int distance = 16; distance > 0; distance /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    if (threadIdx.x % 32 == 0)
        of_warp[0][threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < JOIN_THREADS / 32; i++)
        largest = fmaxf(largest, of_warp[0][i]);
    for (int i = (int)threadIdx.x; i < args.splits; i += JOIN_THREADS) {
        float2 max_sum = args.partial_max_sum[part + (size_t)i];
        weight[i] = exp2f(max_sum.x - largest);
        sum += weight[i] * max_sum.y;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        of_warp[1][threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < JOIN_THREADS / 32; i++)
        sum += of_warp[1][i];
    for (int d = (int)threadIdx.x; d < args.head_dim; d += JOIN_THREADS) {
        const float *o = args.partial_o + part * (size_t)args.head_dim + d;
        float total = 0.0f;
#pragma unroll 4
        for (int i = 0; i < args.splits; i++)
            total += weight[i] * o[(size_t)i * (size_t)args.head_dim];
        store_out(args, ((size_t)row * (size_t)args.heads + (size_t)head) * (size_t)args.head_dim + (size_t)d,
                  total / sum);
    }
}

/* ---- the plan */

struct plan {
    int decode_rows;     /* sequences with one row */
    int longest_decode;  /* context of theirs */
    int prefill_vectors; /* most of one other sequence */
};

static struct plan make_plan(const struct device_batch *batch, int group)
{
    struct plan plan = {};
    for (int s = 0; s < batch->sequences; s++) {
        int rows = batch->host_first_row[s + 1] - batch->host_first_row[s];
        if (rows == 1) {
            plan.decode_rows++;
            if (batch->host_context[s] > plan.longest_decode)
                plan.longest_decode = batch->host_context[s];
        } else if (rows * group > plan.prefill_vectors) {
            plan.prefill_vectors = rows * group;
        }
    }
    return plan;
}

struct attend cuda_make_attend(const struct attention_args *args)
{
    const struct device_batch *batch = args->batch;
    struct attend attend = {};
    attend.q = args->q;
    attend.out = args->out;
    attend.out_dtype = args->out_dtype;
    attend.k = args->kv.k;
    attend.v = args->kv.v;
    attend.k_scale = args->kv.k_scale;
    attend.v_scale = args->kv.v_scale;
    attend.positions = batch->positions;
    attend.first_row = batch->first_row;
    attend.block_table = batch->block_table;
    attend.block_size = batch->block_size;
    attend.blocks_per_sequence = batch->blocks_per_sequence;
    attend.heads = args->heads;
    attend.kv_heads = args->kv_heads;
    attend.group = args->heads / args->kv_heads;
    attend.head_dim = args->head_dim;
    attend.window = args->window;
    attend.scale = args->scale * 0x1.715476p0f;
    return attend;
}

static enum status attend_decode(struct cuda_device *cuda, struct attend *attend, enum dtype kv_dtype,
                                 bool tensor_cores, const struct plan *plan, int sequences, struct error *error)
{
    attend->splits = choose_splits(cuda, sequences, attend->kv_heads, attend->group, plan->longest_decode);
    size_t parts = (size_t)sequences * (size_t)attend->heads * (size_t)attend->splits;
    if (attend->splits > 1) {
        char *start =
            reinterpret_cast<char *>(cuda_round_up(reinterpret_cast<size_t>(cuda->workspace), CUDA_ALIGN_BYTES));
        attend->partial_max_sum = reinterpret_cast<float2 *>(start);
        attend->partial_o = reinterpret_cast<float *>(start + cuda_round_up(parts * sizeof(float2), CUDA_ALIGN_BYTES));
        const char *end = reinterpret_cast<const char *>(attend->partial_o + parts * (size_t)attend->head_dim);
        if (!cuda->workspace || end > cuda->workspace + cuda->workspace_bytes)
            return error_set(error, STATUS_DEVICE, "attention: the workspace of %zu bytes is too small",
                             cuda->workspace_bytes);
    }
    enum status status = tensor_cores
                             ? cuda_attention_decode(cuda, attend, kv_dtype, sequences, error)
                             : cuda_attention_plain(cuda, attend, kv_dtype, 1, attend->splits, sequences, error);
    if (status != STATUS_OK || attend->splits == 1)
        return status;
    dim3 grid((unsigned)attend->heads, (unsigned)sequences);
    return KVLAB_LAUNCH(cuda, error, join_parts, grid, JOIN_THREADS, (size_t)attend->splits * sizeof(float), *attend);
}

enum status cuda_attention(struct device *device, const struct attention_args *args, struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    struct attend attend = cuda_make_attend(args);
    const struct plan plan = make_plan(args->batch, attend.group);
    const enum dtype kv_dtype = args->kv.dtype;
    const int sequences = args->batch->sequences;
    bool tensor_cores =
        dtype_size(kv_dtype) == 2 && args->head_dim % 8 == 0 && args->head_dim <= TENSOR_DIM && cuda->capability >= 80;
    if (plan.decode_rows > 0 &&
        attend_decode(cuda, &attend, kv_dtype, tensor_cores, &plan, sequences, error) != STATUS_OK)
        return error->status;
    if (plan.prefill_vectors == 0)
        return STATUS_OK;
    if (tensor_cores)
        return cuda_attention_prefill(cuda, &attend, kv_dtype,
                                      (plan.prefill_vectors + PREFILL_VECTORS - 1) / PREFILL_VECTORS, sequences, error);
    return cuda_attention_plain(cuda, &attend, kv_dtype, 0, (plan.prefill_vectors + PLAIN_VECTORS - 1) / PLAIN_VECTORS,
                                sequences, error);
}
