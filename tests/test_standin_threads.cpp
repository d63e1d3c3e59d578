/* The stand-in device: threads, barriers, warp collectives, shared memory. Each guarantee once kept and once broken. */
#include "tests/standin_test.h"

#include <cuda_pipeline.h>

static const unsigned FULL = 0xffffffffu;

/* ---- indices */

__global__ void record_indices(uint3 *seen, dim3 *sizes)
{
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned at = block * blockDim.x * blockDim.y * blockDim.z + thread;
    seen[2 * at] = threadIdx;
    __syncthreads(); /* indices must be a thread's own again after a switch */
    seen[2 * at + 1] = {blockIdx.x, threadIdx.y, threadIdx.z};
    if (at == 0)
        sizes[0] = gridDim, sizes[1] = blockDim;
}

static void test_indices(void **)
{
    const dim3 grid(3, 2, 2), block(5, 4, 3);
    const unsigned count = 12 * 60;
    uint3 *seen;
    dim3 *sizes;
    CHECK(cudaMalloc(&seen, count * 2 * sizeof *seen));
    CHECK(cudaMalloc(&sizes, 2 * sizeof *sizes));
    LAUNCH(record_indices, grid, block, 0, seen, sizes);
    std::vector<uint3> got = on_host(seen, count * 2);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(got[2 * i].x, i % 5);
        assert_int_equal(got[2 * i].y, i / 5 % 4);
        assert_int_equal(got[2 * i].z, i / 20 % 3);
        assert_int_equal(got[2 * i + 1].x, i / 60 % 3);
        assert_int_equal(got[2 * i + 1].y, i / 5 % 4);
    }
    std::vector<dim3> shape = on_host(sizes, 2);
    assert_int_equal(shape[0].y, 2);
    assert_int_equal(shape[1].z, 3);
    CHECK(cudaFree(seen));
    CHECK(cudaFree(sizes));
}

/* ---- barriers */

/* out[i] = in[255 - i], through shared memory, with or without the barrier that it takes. */
template <bool barrier> __global__ void reverse(int *out, const int *in)
{
    __shared__ int values[256];
    values[threadIdx.x] = in[threadIdx.x];
    if (barrier)
        __syncthreads();
    out[threadIdx.x] = values[255 - threadIdx.x];
}

static std::vector<int> counted(int count)
{
    std::vector<int> values((size_t)count);
    for (int i = 0; i < count; i++)
        values[(size_t)i] = i;
    return values;
}

static void test_barrier(void **)
{
    int *in = on_device(counted(256)), *out = on_device(counted(256));
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        standin_seed(seed);
        LAUNCH(reverse<true>, 1, 256, 0, out, in);
        std::vector<int> got = on_host(out, 256);
        for (int i = 0; i < 256; i++)
            assert_int_equal(got[(size_t)i], 255 - i);
    }
    standin_seed(1);
    CHECK(cudaFree(in));
    CHECK(cudaFree(out));
}

static void missing_barrier()
{
    int *in = on_device(counted(256)), *out = on_device(counted(256));
    standin_launch("reverse", reverse<false>, 1, 256, 0, nullptr, out, in);
    std::vector<int> got = on_host(out, 256);
    for (int i = 0; i < 256; i++) /* where loads are not checked, poison comes through */
        if (got[(size_t)i] != 255 - i) {
            fprintf(stderr, "wrong value, or shared memory never written\n");
            abort();
        }
}

static void test_missing_barrier(void **)
{
    assert_caught(missing_barrier, "shared memory never written");
}

/* Without a barrier between reading and the next round's writing, some order of threads gives another result. */
template <bool barrier> __global__ void rotate(int *out)
{
    __shared__ int values[64];
    values[threadIdx.x] = (int)threadIdx.x;
    for (int round = 0; round < 3; round++) {
        __syncthreads();
        int next = values[(threadIdx.x + 1) % 64];
        if (barrier)
            __syncthreads();
        values[threadIdx.x] = next;
    }
    out[threadIdx.x] = values[threadIdx.x];
}

static void test_missing_barrier_between_rounds(void **)
{
    int *out = on_device(counted(64));
    unsigned wrong = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        standin_seed(seed);
        LAUNCH(rotate<true>, 1, 64, 0, out);
        std::vector<int> good = on_host(out, 64);
        LAUNCH(rotate<false>, 1, 64, 0, out);
        std::vector<int> bad = on_host(out, 64);
        for (int i = 0; i < 64; i++)
            assert_int_equal(good[(size_t)i], (i + 3) % 64);
        wrong += bad != good;
    }
    standin_seed(1);
    assert_true(wrong >= SEEDS / 2);
    CHECK(cudaFree(out));
}

__global__ void half_waits()
{
    if (threadIdx.x < 32)
        __syncthreads();
}
__global__ void two_places()
{
    if (threadIdx.x % 2)
        __syncthreads();
    else
        __syncthreads_count(1);
}
__global__ void half_a_warp()
{
    if (threadIdx.x < 16)
        __syncwarp(); /* the others wait elsewhere */
    else
        __syncthreads();
}
__global__ void foreign_mask()
{
    __syncwarp(0x0000ffffu);
}

static void test_divergent_barriers(void **)
{
    assert_caught(
        [] {
            standin_launch("half_waits", half_waits, 1, 64, 0, nullptr);
            cudaDeviceSynchronize();
        },
        "kernel half_waits", "32 threads wait at __syncthreads (",
        "test_standin_threads.cpp:", "32 threads have ended");
    assert_caught(
        [] {
            standin_launch("two_places", two_places, 1, 64, 0, nullptr);
            cudaDeviceSynchronize();
        },
        "kernel two_places", "32 threads wait at __syncthreads (", "32 threads wait at __syncthreads_count (");
    assert_caught(
        [] {
            standin_launch("half_a_warp", half_a_warp, 1, 32, 0, nullptr);
            cudaDeviceSynchronize();
        },
        "kernel half_a_warp", "16 threads wait at __syncwarp (", "mask 0xffffffff", "16 threads wait at __syncthreads");
    assert_caught(
        [] {
            standin_launch("foreign_mask", foreign_mask, 1, 32, 0, nullptr);
            cudaDeviceSynchronize();
        },
        "kernel foreign_mask", "mask 0x0000ffff does not name the calling lane");
}

__global__ void barrier_values(int *out)
{
    int t = (int)threadIdx.x;
    out[t] = __syncthreads_count(t % 3 == 0);
    out[t] += 1000 * __syncthreads_or(t == 77);
    out[t] += 2000 * __syncthreads_or(t == 1077);
    out[t] += 4000 * __syncthreads_and(t >= 0);
    out[t] += 8000 * __syncthreads_and(t != 5);
}

static void test_barrier_values(void **)
{
    int *out = on_device(counted(100));
    LAUNCH(barrier_values, 1, 100, 0, out);
    for (int value : on_host(out, 100))
        assert_int_equal(value, 34 + 1000 + 4000);
    CHECK(cudaFree(out));
}

/* ---- warp collectives */

struct lane_results {
    int idx, up, down, exclusive, segment;
    double wide;
    unsigned ballot, any, all, match, live;
    int sum, least, most;
    unsigned bits_and, bits_or, bits_xor;
};

__global__ void collectives(lane_results *out)
{
    int lane = (int)threadIdx.x;
    lane_results r;
    r.idx = __shfl_sync(FULL, lane * 10, (lane + 5) % 32);
    r.up = __shfl_up_sync(FULL, lane, 3);
    r.down = __shfl_down_sync(FULL, lane, 3, 16);
    r.exclusive = __shfl_xor_sync(FULL, lane, 5);
    r.segment = __shfl_sync(FULL, lane, 2, 8);
    r.wide = __shfl_xor_sync(FULL, lane + 0.5, 1);
    r.ballot = __ballot_sync(FULL, lane % 3 == 0);
    r.any = (unsigned)__any_sync(FULL, lane == 31);
    r.all = (unsigned)__all_sync(FULL, lane < 31);
    r.match = __match_any_sync(FULL, lane / 8);
    r.live = __activemask();
    r.sum = __reduce_add_sync(FULL, -lane);
    r.least = __reduce_min_sync(FULL, lane - 7);
    r.most = __reduce_max_sync(FULL, lane - 77);
    r.bits_and = __reduce_and_sync(FULL, (unsigned)lane | 0x40u);
    r.bits_or = __reduce_or_sync(FULL, 1u << lane);
    r.bits_xor = __reduce_xor_sync(FULL, (unsigned)lane + 1);
    out[lane] = r;
}

static void test_collectives(void **)
{
    lane_results *out;
    CHECK(cudaMalloc(&out, 32 * sizeof *out));
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        standin_seed(seed);
        LAUNCH(collectives, 1, 32, 0, out);
        std::vector<lane_results> got = on_host(out, 32);
        for (int lane = 0; lane < 32; lane++) {
            const lane_results &r = got[(size_t)lane];
            assert_int_equal(r.idx, (lane + 5) % 32 * 10);
            assert_int_equal(r.up, lane < 3 ? lane : lane - 3);
            assert_int_equal(r.down, lane % 16 < 13 ? lane + 3 : lane);
            assert_int_equal(r.exclusive, lane ^ 5);
            assert_int_equal(r.segment, lane / 8 * 8 + 2);
            assert_true(r.wide == (lane ^ 1) + 0.5);
            assert_int_equal(r.ballot, 0x49249249u);
            assert_int_equal(r.any, 1);
            assert_int_equal(r.all, 0);
            assert_int_equal(r.match, 0xffu << lane / 8 * 8);
            assert_int_equal(r.live, FULL);
            assert_int_equal(r.sum, -496);
            assert_int_equal(r.least, -7);
            assert_int_equal(r.most, -46);
            assert_int_equal(r.bits_and, 0x40);
            assert_int_equal(r.bits_or, FULL);
            assert_int_equal(r.bits_xor, 32); /* 1 ^ 2 ^ ... ^ 32 */
        }
    }
    standin_seed(1);
    CHECK(cudaFree(out));
}

/* Halves of a warp take different ways; some lanes have ended. */
__global__ void parts_of_a_warp(int *out)
{
    int lane = (int)threadIdx.x % 32;
    if (lane >= 28)
        return;
    unsigned mask = lane < 10 ? 0x000003ffu : 0x0ffffc00u;
    int sum;
    if (lane < 10)
        sum = __reduce_add_sync(mask, 1);
    else
        sum = __reduce_add_sync(mask, 100);
    out[threadIdx.x] = sum + (int)__popc(__ballot_sync(FULL, 1)) * 10000;
}

static void test_parts_of_a_warp(void **)
{
    int *out = on_device(counted(64));
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        standin_seed(seed);
        LAUNCH(parts_of_a_warp, 1, 64, 0, out);
        std::vector<int> got = on_host(out, 64);
        for (int i = 0; i < 64; i++)
            if (i % 32 < 28)
                assert_int_equal(got[(size_t)i], (i % 32 < 10 ? 10 : 1800) + 280000);
    }
    standin_seed(1);
    CHECK(cudaFree(out));
}

__global__ void shuffle_from_ended(float *out)
{
    if (threadIdx.x != 3)
        out[threadIdx.x] = __shfl_sync(FULL, 1.0f, 3);
}

static void test_shuffle_from_ended_lane(void **)
{
    float *out = on_device(std::vector<float>(32, 0.0f));
    LAUNCH(shuffle_from_ended, 1, 32, 0, out);
    std::vector<float> got = on_host(out, 32);
    for (int i = 0; i < 32; i++)
        assert_true(i == 3 ? got[3] == 0 : got[(size_t)i] != got[(size_t)i]); /* NaN: it is undefined */
    CHECK(cudaFree(out));
}

/* ---- shared memory */

__global__ void dynamic_sums(int *out, int n)
{
    int *values = (int *)standin_dynamic_shared();
    values[threadIdx.x] = (int)(threadIdx.x + blockIdx.x);
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

static void test_dynamic_shared(void **)
{
    int *out = on_device(counted(300));
    LAUNCH(dynamic_sums, 3, 100, 400, out, 100);
    std::vector<int> got = on_host(out, 300);
    for (int i = 0; i < 300; i++)
        assert_int_equal(got[(size_t)i], 4950 + i / 100 * 100);
    CHECK(cudaFree(out));
    assert_caught(
        [] { /* the block before wrote it, this one did not */
             int *memory = on_device(counted(300));
             standin_launch("dynamic_sums", dynamic_sums, 3, 100, 404, nullptr, memory, 101);
             for (int value : on_host(memory, 300))
                 if (value > 10000) /* the sum holds poison */
                     fprintf(stderr, "shared memory never written\n"), abort();
        },
        "shared memory never written");
    assert_caught(
        [] {
            int *memory = on_device(counted(300));
            standin_launch("dynamic_sums", dynamic_sums, 1, 100, 396, nullptr, memory, 1);
            cudaDeviceSynchronize();
        },
        "kernel dynamic_sums");
}

static __device__ float shared_in_a_function(int lane)
{
    __shared__ float value;
    if (lane == 0 && blockIdx.x == 0)
        value = 5;
    __syncthreads();
    return __float_as_uint(value) == STANDIN_POISON * 0x10001u ? -1 : value;
}
__attribute__((no_sanitize("kernel-address"))) __global__ void uses_function(float *out)
{
    __shared__ float own[2];
    if (threadIdx.x == 0 && blockIdx.x == 0)
        own[1] = 7;
    __syncthreads();
    out[blockIdx.x * 32 + threadIdx.x] = __float_as_uint(own[1]) == STANDIN_POISON * 0x10001u ? -1 : own[1];
}

static void test_static_shared_is_poisoned(void **)
{
    float *out = on_device(std::vector<float>(64, 0.0f));
    standin_seed(0);
    LAUNCH(uses_function, 2, 32, 0, out);
    std::vector<float> got = on_host(out, 64);
    assert_true(got[0] == 7 && got[31] == 7);
    assert_true(got[32] == -1 && got[63] == -1);
    standin_seed(1);
    CHECK(cudaFree(out));
    (void)shared_in_a_function;
}

/* ---- asynchronous copies */

template <bool wait> __global__ void pipelined(float *out, const float *in)
{
    __shared__ __align__(16) float stage[2][128];
    __pipeline_memcpy_async(&stage[0][4 * threadIdx.x], in + 4 * threadIdx.x, 16);
    __pipeline_commit();
    __pipeline_memcpy_async(&stage[1][4 * threadIdx.x], in + 128 + 4 * threadIdx.x, 16, 4);
    __pipeline_commit();
    __pipeline_wait_prior(wait ? 1 : 2);
    __syncthreads();
    for (int i = 0; i < 4; i++)
        out[4 * threadIdx.x + (unsigned)i] = stage[0][127 - 4 * threadIdx.x - (unsigned)i];
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int i = 0; i < 4; i++)
        out[128 + 4 * threadIdx.x + (unsigned)i] = stage[1][4 * threadIdx.x + (unsigned)i];
}

static void test_pipeline(void **)
{
    std::vector<float> values(256);
    for (int i = 0; i < 256; i++)
        values[(size_t)i] = (float)i;
    float *in = on_device(values), *out = on_device(values);
    LAUNCH(pipelined<true>, 1, 32, 0, out, in);
    std::vector<float> got = on_host(out, 256);
    for (int i = 0; i < 128; i++) {
        assert_true(got[(size_t)i] == (float)(127 - i));
        assert_true(got[(size_t)i + 128] == (i % 4 == 3 ? 0.0f : (float)(i + 128)));
    }
    CHECK(cudaFree(in));
    CHECK(cudaFree(out));
    assert_caught(
        [] {
            float *memory = on_device(std::vector<float>(256, 1.0f)),
                  *result = on_device(std::vector<float>(256, 1.0f));
            standin_launch("pipelined", pipelined<false>, 1, 32, 0, nullptr, result, memory);
            for (float value : on_host(result, 128))
                if (value != 1)
                    fprintf(stderr, "shared memory never written\n"), abort();
        },
        "shared memory never written");
}

/* ---- atomics */

__global__ void atomics(int *sum, unsigned *most, unsigned long long *bits, float *total, int *order)
{
    int t = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(sum, t);
    atomicMax(most, (unsigned)t);
    atomicAdd(bits, 1ull << 40);
    atomicAdd(total, 0.5f);
    order[atomicCAS(&order[64], 64, 64) == 64 ? t : 0] = t;
    atomicExch(&order[64], 64);
}

static void test_atomics(void **)
{
    int *sum = on_device(std::vector<int>{0}), *order = on_device(std::vector<int>(65, 64));
    unsigned *most = on_device(std::vector<unsigned>{0});
    unsigned long long *bits = on_device(std::vector<unsigned long long>{0});
    float *total = on_device(std::vector<float>{0});
    LAUNCH(atomics, 2, 32, 0, sum, most, bits, total, order);
    assert_int_equal(on_host(sum, 1)[0], 2016);
    assert_int_equal(on_host(most, 1)[0], 63);
    assert_true(on_host(bits, 1)[0] == 64ull << 40);
    assert_true(on_host(total, 1)[0] == 32.0f);
    for (int i = 0; i < 64; i++)
        assert_int_equal(on_host(order, 64)[(size_t)i], i);
    for (void *memory : {(void *)sum, (void *)order, (void *)most, (void *)bits, (void *)total})
        CHECK(cudaFree(memory));
}

/* ---- order */

__global__ void take_a_number(int *next, int *order)
{
    order[blockIdx.x * blockDim.x + threadIdx.x] = (*next)++;
}

static std::vector<int> order_of(uint64_t seed)
{
    standin_seed(seed);
    int *next = on_device(std::vector<int>{0}), *order = on_device(counted(128));
    LAUNCH(take_a_number, 4, 32, 0, next, order);
    std::vector<int> got = on_host(order, 128);
    CHECK(cudaFree(next));
    CHECK(cudaFree(order));
    standin_seed(1);
    return got;
}

static void test_seed_decides_order(void **)
{
    std::vector<int> first = order_of(3), again = order_of(3), other = order_of(4), ascending = order_of(0);
    assert_true(first == again);
    assert_true(first != other);
    assert_true(ascending == counted(128));
    assert_true(first != ascending);
    std::vector<bool> seen(128);
    for (int n : first)
        seen[(size_t)n] = true;
    assert_true(seen == std::vector<bool>(128, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_indices),
        cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_missing_barrier),
        cmocka_unit_test(test_missing_barrier_between_rounds),
        cmocka_unit_test(test_divergent_barriers),
        cmocka_unit_test(test_barrier_values),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_parts_of_a_warp),
        cmocka_unit_test(test_shuffle_from_ended_lane),
        cmocka_unit_test(test_dynamic_shared),
        cmocka_unit_test(test_static_shared_is_poisoned),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_seed_decides_order),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
