/* Seeded sampling, a block to a row: kernels/sample.h says what is chosen. Some fourteen passes over the row, which
   stays in the second-level cache. Bytes moved: rows * vocab * size, the first time. */
#include "kernels/cuda/types.cuh"
#include "kernels/sample.h"

enum { THREADS = 512 };

/* What the block shares. */
struct shared_row {
    unsigned long long bins[SAMPLE_BINS];
    unsigned long long sum;
    struct sample_place place;
    float largest[THREADS / 32];
    int counts[THREADS];
    int chosen;
};

template <typename T> struct logits_row {
    const T *logits;
    int vocab;
    float largest, temperature;
};

template <typename T> static __device__ float logit_of(const struct logits_row<T> &row, int id)
{
    return to_f32(row.logits[id]) + 0.0f;
}

template <typename T>
static __device__ unsigned long long amount_of(const struct logits_row<T> &row, float logit, bool weights)
{
    return weights ? (unsigned long long)sample_weight(logit, row.largest, row.temperature) : 1ull;
}

/* The largest logit in every thread; NaN where one is not finite. */
template <typename T> static __device__ float largest_of(const struct logits_row<T> &row, struct shared_row *shared)
{
    float mine = -INFINITY;
    int bad = 0;
    for (int id = (int)threadIdx.x; id < row.vocab; id += THREADS) {
        float logit = logit_of(row, id);
        bad |= !isfinite(logit);
        mine = fmaxf(mine, logit);
    }
    for (int distance = 16; distance > 0; distance /= 2)
        mine = fmaxf(mine, __shfl_xor_sync(0xffffffffu, mine, distance));
    if (threadIdx.x % 32 == 0)
        shared->largest[threadIdx.x / 32] = mine;
    if (__syncthreads_or(bad))
        return NAN;
    mine = shared->largest[0];
    for (int warp = 1; warp < THREADS / 32; warp++)
        mine = fmaxf(mine, shared->largest[warp]);
    return mine;
}

/* The first token, in the order of sampling, at which the running sum of counts or weights reaches `amount`; the same
   in every thread. */
template <typename T>
static __device__ struct sample_place search(const struct logits_row<T> &row, struct shared_row *shared, bool weights,
                                             unsigned long long amount)
{
    struct sample_place place = {0, 0, 0};
    for (int digit = SAMPLE_DIGITS - 1; digit >= 0; digit--) {
        const int shift = 8 * digit;
        for (int bin = (int)threadIdx.x; bin < SAMPLE_BINS; bin += THREADS)
            shared->bins[bin] = 0;
        __syncthreads();
        for (int id = (int)threadIdx.x; id < row.vocab; id += THREADS) {
            float logit = logit_of(row, id);
            uint32_t key = sample_key(logit);
            if (digit == SAMPLE_DIGITS - 1 || key >> (shift + 8) == place.key >> (shift + 8))
                atomicAdd(&shared->bins[key >> shift & (SAMPLE_BINS - 1)], amount_of(row, logit, weights));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int bin = SAMPLE_BINS - 1;
            while (bin > 0 && place.before + shared->bins[bin] < amount)
                place.before += shared->bins[bin--];
            place.key |= (uint32_t)bin << shift;
            shared->place = place;
        }
        __syncthreads();
        place = shared->place;
    }
    place.each = amount_of(row, sample_logit(place.key), weights);
    return place;
}

/* Sum of the weights of larger keys, in every thread. */
template <typename T>
static __device__ unsigned long long sum_above(const struct logits_row<T> &row, struct shared_row *shared, uint32_t key)
{
    unsigned long long mine = 0;
    if (threadIdx.x == 0)
        shared->sum = 0;
    __syncthreads();
    for (int id = (int)threadIdx.x; id < row.vocab; id += THREADS) {
        float logit = logit_of(row, id);
        if (sample_key(logit) > key)
            mine += amount_of(row, logit, true);
    }
    atomicAdd(&shared->sum, mine);
    __syncthreads();
    return shared->sum;
}

/* Id of the n-th token (from 1) with that key, in thread 0. Each thread has a piece of the row, in the order of ids. */
template <typename T>
static __device__ int nth(const struct logits_row<T> &row, struct shared_row *shared, uint32_t key,
                          unsigned long long n)
{
    const int piece = (row.vocab + THREADS - 1) / THREADS, first = (int)threadIdx.x * piece;
    const int end = first + piece < row.vocab ? first + piece : row.vocab;
    int mine = 0;
    for (int id = first; id < end; id++)
        mine += sample_key(logit_of(row, id)) == key;
    shared->counts[threadIdx.x] = mine;
    if (threadIdx.x == 0)
        shared->chosen = -1;
    __syncthreads();
    unsigned long long before = 0;
    for (int thread = 0; thread < (int)threadIdx.x; thread++)
        before += (unsigned long long)shared->counts[thread];
    for (int id = first; id < end && before < n; id++)
        if (sample_key(logit_of(row, id)) == key && ++before == n)
            shared->chosen = id;
    __syncthreads();
    return shared->chosen;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, 1)
    sample(int32_t *index, const T *logits, int vocab, float temperature, int top_k, float top_p,
           const uint32_t *points)
{
    __shared__ struct shared_row shared;
    struct logits_row<T> row = {
        logits + (size_t)blockIdx.x *(size_t)vocab, vocab, 0.0f, temperature
    };
    row.largest = largest_of(row, &shared);
    if (isnan(row.largest)) {
        if (threadIdx.x == 0)
            index[blockIdx.x] = -1;
        return;
    }
    const unsigned long long kept = top_k > 0 && top_k < vocab ? (unsigned long long)top_k : (unsigned long long)vocab;
    const struct sample_place last = search(row, &shared, false, kept);
    const unsigned long long sum =
        sum_above(row, &shared, last.key) + sample_ties(&last, kept) * amount_of(row, sample_logit(last.key), true);
    const unsigned long long wanted = sample_nucleus(sum, top_p);
    const struct sample_place edge = search(row, &shared, true, wanted);
    const unsigned long long amount =
        sample_amount(edge.before + sample_ties(&edge, wanted) * edge.each, points[blockIdx.x]);
    const struct sample_place chosen = search(row, &shared, true, amount);
    const int id = nth(row, &shared, chosen.key, sample_ties(&chosen, amount));
    if (threadIdx.x == 0)
        index[blockIdx.x] = id;
}

template <typename T>
static enum status sample_rows(struct cuda_device *cuda, const struct sample_args *args, struct error *error)
{
    if (args->rows == 0)
        return STATUS_OK;
    return KVLAB_LAUNCH(cuda, error, sample<T>, (unsigned)args->rows, THREADS, 0, args->index,
                        static_cast<const T *>(args->logits), args->vocab, args->temperature, args->top_k, args->top_p,
                        args->points);
}

enum status cuda_sample(struct device *device, const struct sample_args *args, struct error *error)
{
    if (args->dtype == DTYPE_F32)
        return sample_rows<float>(cuda_of(device), args, error);
    if (args->dtype == DTYPE_F16)
        return sample_rows<__half>(cuda_of(device), args, error);
    return sample_rows<__nv_bfloat16>(cuda_of(device), args, error);
}
