/* Attention of many rows on tensor cores: the online softmax of Dao 2023 (FlashAttention-2). A block has
   PREFILL_VECTORS query vectors of one sequence and KV head, 16 to a warp, and takes them over tiles of keys in shared
   memory; scores, weights and o stay in registers. q and the weights are rounded to the cache's type, sums are f32.
   Arithmetic: 4 * head_dim per visible pair of vector and key. Bytes moved: q and out once; K and V once per tile of
   vectors, from the second-level cache but for the first. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

#include <math.h>

enum { WARPS = 4, THREADS = 32 * WARPS };
static_assert(WARPS * 16 == PREFILL_VECTORS, "16 vectors to a warp");

/* Rows of K lie 64 mod 128 bytes apart, and rows of V 16 mod 64: then the 8 lanes that are served at a time, reading 16
   bytes of two rows of K, or of four rows of V, touch all 32 banks once. */
template <int DIM> struct layout {
    enum {
        KEYS = DIM > 128 ? 32 : 64, /* per tile */
        K_CHUNKS = DIM / 32,
        V_CHUNKS = (DIM + 63) / 64,
        K_STRIDE = (2 * DIM + 63) / 128 * 128 + 64, /* bytes */
        V_STRIDE = 128 * V_CHUNKS + 16,
        V_OFFSET = KEYS * K_STRIDE,
        Q_OFFSET = V_OFFSET + KEYS * V_STRIDE,
        Q_SHARED = DIM > 128,               /* q does not fit the registers: each lane keeps its own in shared memory */
        Q_CHUNKS = Q_SHARED ? 1 : K_CHUNKS, /* in registers */
        BYTES = Q_OFFSET + (Q_SHARED ? K_CHUNKS * 2 * 16 * THREADS : 0),
    };
};

/* The vectors of lane 4 g + t: rows g and g + 8 of its warp's 16. */
struct vectors {
    int position[2], visible[2]; /* it sees the keys visible .. position */
    size_t at[2];                /* of its values in q and out */
    bool there[2];
};

static __device__ inline struct vectors vectors_of(const struct attend &args, int sequence, int kv_head,
                                                   int first_vector, int count)
{
    struct vectors vectors;
    const int first_row = args.first_row[sequence];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int m = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * i;
        vectors.there[i] = m < count;
        int of = first_vector + min(m, count - 1); /* past the end, the last vector again: nothing of it is stored */
        int row = first_row + of / args.group, head = kv_head * args.group + of % args.group;
        vectors.position[i] = args.positions[row];
        vectors.visible[i] = first_visible(args, vectors.position[i]);
        vectors.at[i] = ((size_t)row * (size_t)args.heads + (size_t)head) * (size_t)args.head_dim;
    }
    return vectors;
}

/* q[0] and q[1]: dimensions 32 c + 8 t .. + 7 of vectors g and g + 8, scaled, as two products' a. */
template <typename T>
static __device__ inline void pack_q(const struct attend &args, const struct vectors &vectors, int c, uint32_t q[2][4])
{
    const int d = 32 * c + 8 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float *from = args.q + vectors.at[i];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t word = 0;
            if (d < args.head_dim)
                word = pack<T>(from[d + 2 * w] * args.scale, from[d + 2 * w + 1] * args.scale);
            q[w / 2][w % 2 * 2 + i] = word; /* product w / 2, inner half w % 2, row i */
        }
    }
}

template <int DIM> static __device__ inline uint4 *shared_q(char *shared, int c)
{
    return reinterpret_cast<uint4 *>(shared + layout<DIM>::Q_OFFSET) + 2 * c * THREADS + threadIdx.x;
}

template <typename T, int DIM>
static __device__ inline void load_q(const struct attend &args, const struct vectors &vectors, char *shared,
                                     uint32_t q[layout<DIM>::Q_CHUNKS][2][4])
{
#pragma unroll
    for (int c = 0; c < layout<DIM>::K_CHUNKS; c++) {
        uint32_t(*to)[4] = q[layout<DIM>::Q_SHARED ? 0 : c];
        pack_q<T>(args, vectors, c, to);
        for (int i = 0; layout<DIM>::Q_SHARED && i < 2; i++)
            shared_q<DIM>(shared, c)[i * THREADS] = make_uint4(to[i][0], to[i][1], to[i][2], to[i][3]);
    }
}

/* The keys [first, first + KEYS) into shared memory; past the end the last key stands in, past head_dim zeros. */
template <int DIM>
static __device__ inline void load_tile(const struct kv_rows &rows, int first, int end, int head_dim, char *shared,
                                        unsigned *row_of)
{
    enum { PARTS = layout<DIM>::V_CHUNKS * 8 }; /* of 16 bytes: K is padded to no more than V */
    for (int i = (int)threadIdx.x; i < layout<DIM>::KEYS; i += THREADS)
        row_of[i] = kv_row(rows, min(first + i, end - 1));
    __syncthreads();
    for (int i = (int)threadIdx.x; i < layout<DIM>::KEYS * PARTS; i += THREADS) {
        const int key = i / PARTS, d = i % PARTS * 8;
        uint4 k = make_uint4(0, 0, 0, 0), v = k;
        if (d < head_dim) {
            size_t at = ((size_t)row_of[key] * (size_t)head_dim + (size_t)d) * 2;
            k = *reinterpret_cast<const uint4 *>(static_cast<const char *>(rows.k) + at);
            v = *reinterpret_cast<const uint4 *>(static_cast<const char *>(rows.v) + at);
        }
        if (d < 32 * layout<DIM>::K_CHUNKS)
            *reinterpret_cast<uint4 *>(shared + key * layout<DIM>::K_STRIDE + 2 * d) = k;
        *reinterpret_cast<uint4 *>(shared + layout<DIM>::V_OFFSET + key * layout<DIM>::V_STRIDE + 2 * d) = v;
    }
    __syncthreads();
}

/* s[n]: 16 vectors by the keys 8 n .. 8 n + 7 of the tile. */
template <typename T, int DIM>
static __device__ inline void multiply_keys(char *shared, const uint32_t q[layout<DIM>::Q_CHUNKS][2][4],
                                            float s[layout<DIM>::KEYS / 8][4])
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < layout<DIM>::KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < layout<DIM>::K_CHUNKS; c++) {
        struct words a[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t *in_registers = q[layout<DIM>::Q_SHARED ? 0 : c][i];
            a[i] = layout<DIM>::Q_SHARED
                       ? words_of(shared_q<DIM>(shared, c)[i * THREADS])
                       : words_of(make_uint4(in_registers[0], in_registers[1], in_registers[2], in_registers[3]));
        }
#pragma unroll
        for (int n = 0; n < layout<DIM>::KEYS / 8; n++) {
            const char *at = shared + (8 * n + g) * layout<DIM>::K_STRIDE + 64 * c + 16 * t;
            const struct words k = words_of(*reinterpret_cast<const uint4 *>(at));
            mma<T>(s[n], a[0].word, k.word[0], k.word[1]);
            mma<T>(s[n], a[1].word, k.word[2], k.word[3]);
        }
    }
}

/* Scores to weights; brings maximum and sum up to date, and o to the new maximum. */
template <int DIM>
static __device__ inline void weigh(const struct vectors &vectors, int first, int end, bool masked,
                                    float s[layout<DIM>::KEYS / 8][4], float maximum[2], float sum[2],
                                    float o[layout<DIM>::V_CHUNKS * 8][4])
{
    const int t = (int)threadIdx.x % 4;
    float largest[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int n = 0; n < layout<DIM>::KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = first + 8 * n + 2 * t + i % 2, r = i / 2;
            if (masked && (key > vectors.position[r] || key < vectors.visible[r] || key >= end))
                s[n][i] = -INFINITY;
            largest[r] = fmaxf(largest[r], s[n][i]);
        }
    }
    float correction[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 1));
        largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 2));
        correction[r] = exp2f(maximum[r] - largest[r]);
        maximum[r] = largest[r];
        sum[r] *= correction[r];
    }
#pragma unroll
    for (int n = 0; n < layout<DIM>::KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[n][i] = exp2f(s[n][i] - maximum[i / 2]);
            sum[i / 2] += s[n][i]; /* of this lane's keys */
        }
    }
#pragma unroll
    for (int n = 0; n < layout<DIM>::V_CHUNKS * 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[n][i] *= correction[i / 2];
}

/* o += p v. Column n of product (c, j) is dimension 64 c + 8 n + j, so that a lane's 8 values of a key serve 8
 * products.
 */
template <typename T, int DIM>
static __device__ inline void multiply_values(const char *shared, const float p[layout<DIM>::KEYS / 8][4],
                                              float o[layout<DIM>::V_CHUNKS * 8][4])
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < layout<DIM>::KEYS / 16; k++) {
        const uint32_t a[4] = {pack<T>(p[2 * k][0], p[2 * k][1]), pack<T>(p[2 * k][2], p[2 * k][3]),
                               pack<T>(p[2 * k + 1][0], p[2 * k + 1][1]), pack<T>(p[2 * k + 1][2], p[2 * k + 1][3])};
        const char *base = shared + layout<DIM>::V_OFFSET + (16 * k + 2 * t) * layout<DIM>::V_STRIDE + 16 * g;
#pragma unroll
        for (int c = 0; c < layout<DIM>::V_CHUNKS; c++) {
            struct words v[4]; /* keys 2t, 2t + 1, 2t + 8, 2t + 9 */
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = words_of(
                    *reinterpret_cast<const uint4 *>(base + 128 * c + (i % 2 + i / 2 * 8) * layout<DIM>::V_STRIDE));
#pragma unroll
            for (int w = 0; w < 4; w++) {
                mma<T>(o[8 * c + 2 * w], a, lower_halves(v[0].word[w], v[1].word[w]),
                       lower_halves(v[2].word[w], v[3].word[w]));
                mma<T>(o[8 * c + 2 * w + 1], a, upper_halves(v[0].word[w], v[1].word[w]),
                       upper_halves(v[2].word[w], v[3].word[w]));
            }
        }
    }
}

/* Lane 4 g + t holds columns 2t and 2t + 1 of each product: dimensions 64 c + 16 t .. + 15. */
template <int DIM>
static __device__ inline void store(const struct attend &args, const struct vectors &vectors, const float sum[2],
                                    const float o[layout<DIM>::V_CHUNKS * 8][4])
{
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = sum[r];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const float factor = 1.0f / total;
#pragma unroll
        for (int c = 0; c < layout<DIM>::V_CHUNKS; c++) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int d = 64 * c + 16 * t + i;
                if (vectors.there[r] && d < args.head_dim)
                    store_out(args, vectors.at[r] + (size_t)d, o[8 * c + i % 8][2 * r + i / 8] * factor);
            }
        }
    }
}

/* grid [tiles of the sequence with most][kv_heads][sequences], the longest tiles first */
template <typename T, int DIM>
static __global__ void __launch_bounds__(THREADS, 2) attention_prefill(struct attend args)
{
    KVLAB_DYNAMIC_SHARED(char, shared);
    __shared__ unsigned row_of[layout<DIM>::KEYS];
    const int sequence = (int)blockIdx.z, kv_head = (int)blockIdx.y, first_row = args.first_row[sequence];
    const int rows = args.first_row[sequence + 1] - first_row, all = rows * args.group;
    const int first_vector = (int)(gridDim.x - 1 - blockIdx.x) * PREFILL_VECTORS;
    if (rows <= 1 || first_vector >= all)
        return;
    const int count = min(all - first_vector, (int)PREFILL_VECTORS);
    const struct vectors vectors = vectors_of(args, sequence, kv_head, first_vector, count);
    const struct kv_rows kv = kv_rows_of(args, sequence, kv_head);
    const int lowest = args.positions[first_row + first_vector / args.group];
    const int highest = args.positions[first_row + (first_vector + count - 1) / args.group];
    const int end = highest + 1, seen_by_all = first_visible(args, highest);

    uint32_t q[layout<DIM>::Q_CHUNKS][2][4];
    float maximum[2] = {ATTEND_LOWEST, ATTEND_LOWEST}, sum[2] = {0.0f, 0.0f}, o[layout<DIM>::V_CHUNKS * 8][4];
    load_q<T, DIM>(args, vectors, shared, q);
#pragma unroll
    for (int i = 0; i < layout<DIM>::V_CHUNKS * 32; i++)
        o[i / 4][i % 4] = 0.0f;
    for (int first = first_visible(args, lowest); first < end; first += layout<DIM>::KEYS) {
        float s[layout<DIM>::KEYS / 8][4];
        const bool masked = first < seen_by_all || first + layout<DIM>::KEYS > lowest + 1;
        load_tile<DIM>(kv, first, end, args.head_dim, shared, row_of);
        multiply_keys<T, DIM>(shared, q, s);
        weigh<DIM>(vectors, first, end, masked, s, maximum, sum, o);
        multiply_values<T, DIM>(shared, s, o);
        __syncthreads();
    }
    store<DIM>(args, vectors, sum, o);
}

template <typename T, int DIM>
static enum status launch(struct cuda_device *cuda, const struct attend *args, dim3 grid, struct error *error)
{
    if (layout<DIM>::BYTES > 48 << 10) /* what a block has without asking */
        CUDA_TRY(error, cudaFuncSetAttribute(attention_prefill<T, DIM>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             layout<DIM>::BYTES));
    return KVLAB_LAUNCH(cuda, error, (attention_prefill<T, DIM>), grid, THREADS, layout<DIM>::BYTES, *args);
}

template <typename T>
static enum status launch_padded(struct cuda_device *cuda, const struct attend *args, dim3 grid, struct error *error)
{
    return args->head_dim <= 64    ? launch<T, 64>(cuda, args, grid, error)
           : args->head_dim <= 96  ? launch<T, 96>(cuda, args, grid, error)
           : args->head_dim <= 128 ? launch<T, 128>(cuda, args, grid, error)
                                   : launch<T, 256>(cuda, args, grid, error);
}

enum status cuda_attention_prefill(struct cuda_device *cuda, const struct attend *args, enum dtype kv_dtype, int tiles,
                                   int sequences, struct error *error)
{
    const dim3 grid((unsigned)tiles, (unsigned)args->kv_heads, (unsigned)sequences);
    if (kv_dtype == DTYPE_F16)
        return launch_padded<__half>(cuda, args, grid, error);
    return launch_padded<__nv_bfloat16>(cuda, args, grid, error);
}
