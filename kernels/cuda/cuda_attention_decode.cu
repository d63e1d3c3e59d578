/* Decode attention on tensor cores. A block has one part of the keys of one sequence and KV head, for up to
   DECODE_HEADS query heads: a warp takes 16 keys at a time, its K and V rows loaded straight into the registers that
   the products want, and scores are kept the wrong way round (keys down, heads across), so that one product serves 8
   heads. q and the weights are rounded to the cache's type, sums are f32. Bytes moved: attention_decode_bytes() in
   kernels/work.h: K and V once for groups of up to DECODE_HEADS. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

#include <math.h>

enum { WARPS = 4, THREADS = 32 * WARPS, TILE = 16, HEADS = DECODE_HEADS };

/* What a warp carries along: lane 4 g + t has heads 2t and 2t + 1 of maximum and sum, and of o the dimensions
   64 c + 8 g .. + 7: o[c][j] is a product's 16 x 8, rows g and g + 8 being dimensions 2j and 2j + 1 of those 8. */
template <int DIM> struct warp_state {
    enum { K_CHUNKS = DIM / 32, V_CHUNKS = (DIM + 63) / 64 };
    float maximum[2], sum[2];
    float o[V_CHUNKS][4][4];
};

/* q of head g, dimensions 32 c + 8 t .. + 7, scaled, as two products' b. */
template <typename T, int DIM>
static __device__ inline void load_q(const struct attend &args, int row, int head, bool there,
                                     uint32_t q[warp_state<DIM>::K_CHUNKS][4])
{
    const int t = (int)threadIdx.x % 4;
    const float *from = args.q + ((size_t)row * (size_t)args.heads + (size_t)head) * (size_t)args.head_dim;
#pragma unroll
    for (int c = 0; c < warp_state<DIM>::K_CHUNKS; c++) {
        const int d = 32 * c + 8 * t;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            q[c][i] = 0;
            if (there && d < args.head_dim)
                q[c][i] = pack<T>(from[d + 2 * i] * args.scale, from[d + 2 * i + 1] * args.scale);
        }
    }
}

/* 16 bytes of a row of K or V from dimension d on; zeros where the padded dimension ends. */
static __device__ inline struct words load_part(const void *tensor, unsigned row, int d, int head_dim)
{
    const struct words none = {{0, 0, 0, 0}};
    if (d >= head_dim)
        return none;
    const char *at = static_cast<const char *>(tensor) + ((size_t)row * (size_t)head_dim + (size_t)d) * 2;
    return words_of(load_streaming(at));
}

/* 16 keys from `first` on: s = k q^T, p = 2^(s - maximum), o += v^T p^T. Keys from `end` on count nothing. */
template <typename T, int DIM>
static __device__ inline void attend_keys(const struct attend &args, const struct kv_rows &rows, int first, int end,
                                          const uint32_t q[warp_state<DIM>::K_CHUNKS][4], struct warp_state<DIM> &state)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const unsigned mine = kv_row(rows, min(first + lane % TILE, end - 1)); /* every lane looks up one key's row */
    const unsigned k_row[2] = {__shfl_sync(0xffffffffu, mine, g), __shfl_sync(0xffffffffu, mine, g + 8)};
    const unsigned v_row[4] = {__shfl_sync(0xffffffffu, mine, 2 * t), __shfl_sync(0xffffffffu, mine, 2 * t + 1),
                               __shfl_sync(0xffffffffu, mine, 2 * t + 8), __shfl_sync(0xffffffffu, mine, 2 * t + 9)};
    struct words k[warp_state<DIM>::K_CHUNKS][2], v[warp_state<DIM>::V_CHUNKS][4];
#pragma unroll
    for (int c = 0; c < warp_state<DIM>::K_CHUNKS; c++)
        for (int i = 0; i < 2; i++)
            k[c][i] = load_part(rows.k, k_row[i], 32 * c + 8 * t, args.head_dim);
#pragma unroll
    for (int c = 0; c < warp_state<DIM>::V_CHUNKS; c++)
        for (int i = 0; i < 4; i++)
            v[c][i] = load_part(rows.v, v_row[i], 64 * c + 8 * g, args.head_dim);

    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f}; /* keys g, g, g + 8, g + 8 of heads 2t, 2t + 1, 2t, 2t + 1 */
#pragma unroll
    for (int c = 0; c < warp_state<DIM>::K_CHUNKS; c++) {
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const uint32_t a[4] = {k[c][0].word[2 * step], k[c][1].word[2 * step], k[c][0].word[2 * step + 1],
                                   k[c][1].word[2 * step + 1]};
            mma<T>(s, a, q[c][2 * step], q[c][2 * step + 1]);
        }
    }
    float correction[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s[h] = first + g < end ? s[h] : -INFINITY;
        s[h + 2] = first + g + 8 < end ? s[h + 2] : -INFINITY;
        float largest = fmaxf(state.maximum[h], fmaxf(s[h], s[h + 2]));
        for (int distance = 4; distance < 32; distance *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
        correction[h] = exp2f(state.maximum[h] - largest);
        state.maximum[h] = largest;
        s[h] = exp2f(s[h] - largest);
        s[h + 2] = exp2f(s[h + 2] - largest);
        state.sum[h] = state.sum[h] * correction[h] + (s[h] + s[h + 2]); /* of this lane's keys */
    }
    const uint32_t p_low = transpose_8x8(pack<T>(s[0], s[1])), p_high = transpose_8x8(pack<T>(s[2], s[3]));
#pragma unroll
    for (int c = 0; c < warp_state<DIM>::V_CHUNKS; c++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float *o = state.o[c][j];
            const uint32_t a[4] = {
                lower_halves(v[c][0].word[j], v[c][1].word[j]), upper_halves(v[c][0].word[j], v[c][1].word[j]),
                lower_halves(v[c][2].word[j], v[c][3].word[j]), upper_halves(v[c][2].word[j], v[c][3].word[j])};
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[i] *= correction[i % 2];
            mma<T>(o, a, p_low, p_high);
        }
    }
}

/* The warps' results side by side in shared memory: o [WARPS][HEADS][DIM], maximum and sum [WARPS][HEADS]. */
template <int DIM>
static __device__ inline void share(const struct warp_state<DIM> &state, int head_dim, float *o, float2 *max_sum)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = state.sum[h];
        for (int distance = 4; distance < 32; distance *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        if (g == 0)
            max_sum[warp * HEADS + 2 * t + h] = make_float2(state.maximum[h], sum);
    }
#pragma unroll
    for (int c = 0; c < warp_state<DIM>::V_CHUNKS; c++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int d = 64 * c + 8 * g + 2 * j + i / 2;
                if (d < head_dim)
                    o[(warp * HEADS + 2 * t + i % 2) * DIM + d] = state.o[c][j][i];
            }
        }
    }
}

/* grid [splits][kv_heads * head tiles][sequences] */
template <typename T, int DIM> static __global__ void __launch_bounds__(THREADS, 2) attention_decode(struct attend args)
{
    KVLAB_DYNAMIC_SHARED(float, shared_o);
    __shared__ float2 max_sum[WARPS * HEADS];
    const int tiles = (args.group + HEADS - 1) / HEADS, kv_head = (int)blockIdx.y / tiles;
    const int head_in_group = (int)blockIdx.y % tiles * HEADS, heads = min(args.group - head_in_group, (int)HEADS);
    const int sequence = (int)blockIdx.z, row = args.first_row[sequence], warp = (int)threadIdx.x / 32;
    if (args.first_row[sequence + 1] - row != 1)
        return;
    const struct key_range keys = split_keys(args, args.positions[row], (int)blockIdx.x);
    const struct kv_rows rows = kv_rows_of(args, sequence, kv_head);
    const int first_head = kv_head * args.group + head_in_group, g = (int)threadIdx.x % 32 / 4;

    uint32_t q[warp_state<DIM>::K_CHUNKS][4];
    struct warp_state<DIM> state;
    load_q<T, DIM>(args, row, first_head + min(g, heads - 1), g < heads, q);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        state.maximum[h] = ATTEND_LOWEST;
        state.sum[h] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < warp_state<DIM>::V_CHUNKS * 16; i++)
        state.o[i / 16][i / 4 % 4][i % 4] = 0.0f;
    for (int first = keys.begin + warp * TILE; first < keys.end; first += WARPS * TILE)
        attend_keys<T, DIM>(args, rows, first, keys.end, q, state);

    share<DIM>(state, args.head_dim, shared_o, max_sum);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < heads * args.head_dim; i += THREADS) {
        const int head = i / args.head_dim, d = i % args.head_dim;
        float largest = ATTEND_LOWEST, sum = 0.0f, o = 0.0f;
        for (int w = 0; w < WARPS; w++)
            largest = fmaxf(largest, max_sum[w * HEADS + head].x);
        for (int w = 0; w < WARPS; w++) {
            float factor = exp2f(max_sum[w * HEADS + head].x - largest);
            sum += factor * max_sum[w * HEADS + head].y;
            o += factor * shared_o[(w * HEADS + head) * DIM + d];
        }
        store_decode(args, sequence, row, first_head + head, (int)blockIdx.x, d, o, largest, sum);
    }
}

template <typename T, int DIM>
static enum status launch(struct cuda_device *cuda, const struct attend *args, dim3 grid, struct error *error)
{
    return KVLAB_LAUNCH(cuda, error, (attention_decode<T, DIM>), grid, THREADS, WARPS * HEADS * DIM * sizeof(float),
                        *args);
}

template <typename T>
static enum status launch_padded(struct cuda_device *cuda, const struct attend *args, dim3 grid, struct error *error)
{
    return args->head_dim <= 64    ? launch<T, 64>(cuda, args, grid, error)
           : args->head_dim <= 96  ? launch<T, 96>(cuda, args, grid, error)
           : args->head_dim <= 128 ? launch<T, 128>(cuda, args, grid, error)
                                   : launch<T, 256>(cuda, args, grid, error);
}

enum status cuda_attention_decode(struct cuda_device *cuda, const struct attend *args, enum dtype kv_dtype,
                                  int sequences, struct error *error)
{
    const int tiles = (args->group + HEADS - 1) / HEADS;
    const dim3 grid((unsigned)args->splits, (unsigned)(args->kv_heads * tiles), (unsigned)sequences);
    if (kv_dtype == DTYPE_F16)
        return launch_padded<__half>(cuda, args, grid, error);
    return launch_padded<__nv_bfloat16>(cuda, args, grid, error);
}
