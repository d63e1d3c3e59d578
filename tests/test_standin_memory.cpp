/* The stand-in device: device memory apart from host memory, bounds, memory never written, capacity, failing
   allocations. */
#include "tests/standin_test.h"

__global__ void fill(float *out, int count, float value)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        out[i] = value;
}
__global__ void add_one(float *values, int count)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        values[i] += 1;
}
/* As if compiled without checks: only pages' rights, guard bytes and poison are left. */
__attribute__((no_sanitize("kernel-address"))) __global__ void store_unchecked(float *out, long index)
{
    out[index] = 1;
}
__attribute__((no_sanitize("kernel-address"))) __global__ void load_unchecked(float *out, const float *in, long index)
{
    out[0] = in[index];
}

static const int COUNT = 100;

static float *floats(int count)
{
    float *memory = nullptr;
    cudaMalloc(&memory, (size_t)count * sizeof *memory);
    return memory;
}

static void test_kernel_writes_memory(void **)
{
    float *memory = floats(COUNT);
    LAUNCH(fill, 4, 32, 0, memory, COUNT, 3.0f);
    LAUNCH(add_one, 4, 32, 0, memory, COUNT);
    for (float value : on_host(memory, (size_t)COUNT))
        assert_true(value == 4);
    CHECK(cudaFree(memory));
}

static void test_host_touches_device_memory(void **)
{
    assert_caught([] { fprintf(stderr, "%f", (double)floats(COUNT)[5]); }, "host code", "device memory",
                  "of an allocation of 400 bytes");
    assert_caught([] { floats(COUNT)[99] = 1; }, "host code", "of an allocation of 400 bytes");
    assert_caught(
        [] { /* after a kernel it is closed again */
             float *memory = floats(COUNT);
             standin_launch("fill", fill, 4, 32, 0, nullptr, memory, COUNT, 3.0f);
             cudaDeviceSynchronize();
             memset(memory, 0, 4);
        },
        "host code");
}

struct hidden_pointer {
    float *memory;
};
__global__ void follow(hidden_pointer p)
{
    p.memory[threadIdx.x] = 1;
}
static float host_array[32];

static void test_kernel_touches_host_memory(void **)
{
    assert_caught(
        [] {
            std::vector<float> values(32);
            standin_launch("fill", fill, 1, 32, 0, nullptr, values.data(), 32, 1.0f);
        },
        "kernel fill", "argument 1", "pointer to host memory");
    assert_caught([] { standin_launch("fill", fill, 1, 32, 0, nullptr, host_array, 32, 1.0f); }, "argument 1");
    /* not an argument of its own: found at the access, which the compiler tells of except in a sanitized build */
    int status;
    std::string report = run_child(
        [] {
            std::vector<float> values(32);
            standin_launch("follow", follow, 1, 32, 0, nullptr, hidden_pointer{values.data()});
            cudaDeviceSynchronize();
        },
        &status);
#ifndef STANDIN_CHECKED
    bool checked = report.find("writes") != std::string::npos || status == 0;
#else
    bool checked = report.find("host memory") != std::string::npos;
#endif
    assert_true(checked);
    assert_caught(
        [] {
            standin_launch("follow", follow, 1, 32, 0, nullptr, hidden_pointer{nullptr});
            cudaDeviceSynchronize();
        },
        "kernel follow", "writes");
}

static void test_pinned_memory_is_for_both(void **)
{
    float *memory;
    CHECK(cudaMallocHost(&memory, 32 * sizeof *memory));
    LAUNCH(fill, 1, 32, 0, memory, 32, 2.0f);
    CHECK(cudaDeviceSynchronize());
    assert_true(memory[31] == 2);
    CHECK(cudaFreeHost(memory));
}

static void test_out_of_bounds(void **)
{
    assert_caught(
        [] {
            float *memory = floats(COUNT);
            standin_launch("fill", fill, 4, 32, 0, nullptr, memory, COUNT + 1, 3.0f);
            cudaDeviceSynchronize();
        },
        "kernel fill", "of an allocation of 400 bytes");
    /* the guard bytes, which do not need the compiler */
    assert_caught(
        [] {
            standin_launch("store_unchecked", store_unchecked, 1, 1, 0, nullptr, floats(COUNT), 100l);
            cudaDeviceSynchronize();
        },
        "kernel store_unchecked wrote past the end of an allocation of 400 bytes");
    assert_caught(
        [] {
            standin_launch("store_unchecked", store_unchecked, 1, 1, 0, nullptr, floats(COUNT), -1l);
            cudaDeviceSynchronize();
        },
        "kernel store_unchecked wrote before the first byte of an allocation of 400 bytes");
    /* the page after, which nothing may touch */
    assert_caught(
        [] {
            standin_launch("load_unchecked", load_unchecked, 1, 1, 0, nullptr, floats(COUNT), floats(COUNT), 128l);
            cudaDeviceSynchronize();
        },
        "kernel load_unchecked", "reads", "byte 512 of an allocation of 400 bytes");
}

static void test_use_after_free(void **)
{
    assert_caught(
        [] {
            float *memory = floats(COUNT);
            cudaFree(memory);
            floats(COUNT);
            standin_launch("store_unchecked", store_unchecked, 1, 1, 0, nullptr, memory, 0l);
            cudaDeviceSynchronize();
        },
        "kernel store_unchecked", "writes");
    float *memory = floats(COUNT);
    CHECK(cudaFree(memory));
    assert_int_equal(cudaFree(memory), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(host_array), cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaFree(nullptr));
}

static void test_memory_never_written(void **)
{
    float *memory = floats(COUNT), *out = floats(1);
    LAUNCH(load_unchecked, 1, 1, 0, out, memory, 7l);
    float value = on_host(out, 1)[0];
    assert_true(value != value);
    CHECK(cudaFree(memory));
    CHECK(cudaFree(out));
    assert_caught(
        [] { /* checked: at the load; else its value, a NaN, comes through */
             float *values = floats(COUNT);
             standin_launch("add_one", add_one, 1, 32, 0, nullptr, values, COUNT);
             float got = on_host(values, 1)[0];
             if (got != got)
                 fprintf(stderr, "memory never written\n"), abort();
        },
        "memory never written");
}

/* A large allocation is filled with poison piece by piece, when touched. */
static void test_large_allocation(void **)
{
    const size_t count = (size_t)200 << 20 >> 2;
    float *memory = floats((int)count), *out = floats(1);
    for (long at : {0l, 12345678l, (long)count - 1}) {
        LAUNCH(load_unchecked, 1, 1, 0, out, memory, at);
        float value = on_host(out, 1)[0];
        assert_true(value != value);
        LAUNCH(store_unchecked, 1, 1, 0, memory, at);
        LAUNCH(load_unchecked, 1, 1, 0, out, memory, at);
        assert_true(on_host(out, 1)[0] == 1);
    }
    std::vector<float> piece(1000, 5.0f);
    CHECK(cudaMemcpy(memory + 30000000, piece.data(), 4000, cudaMemcpyHostToDevice));
    std::vector<float> got = on_host(memory + 29999999, 1002);
    assert_true(got[0] != got[0] && got[1] == 5 && got[1000] == 5 && got[1001] != got[1001]);
    CHECK(cudaFree(memory));
    CHECK(cudaFree(out));
}

#ifdef STANDIN_CHECKED
__global__ void wide_load(float *out, const float *in)
{
    const float4 *from = (const float4 *)in;
    float4 value = *from;
    out[0] = value.x + value.w;
}

static void test_misaligned(void **)
{
    assert_caught(
        [] {
            float *in = on_device(std::vector<float>(8, 1.0f));
            standin_launch("wide_load", wide_load, 1, 1, 0, nullptr, floats(1), in + 1);
            cudaDeviceSynchronize();
        },
        "kernel wide_load", "test_standin_memory.cpp:", "is not a multiple of 16");
}
#endif

static void test_capacity(void **)
{
    size_t free_bytes, total_bytes;
    size_t before = standin_live_objects();
    standin_capacity(1 << 20);
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(total_bytes, 1 << 20);
    assert_int_equal(free_bytes, 1 << 20);
    void *half, *rest, *none = &half;
    CHECK(cudaMalloc(&half, 1 << 19));
    assert_int_equal(cudaMalloc(&none, (1 << 19) + 1), cudaErrorMemoryAllocation);
    assert_null(none);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    CHECK(cudaMalloc(&rest, 1 << 19));
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(free_bytes, 0);
    assert_int_equal(cudaMalloc(&none, 1), cudaErrorMemoryAllocation);
    CHECK(cudaFree(half));
    CHECK(cudaMalloc(&half, 1));
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(free_bytes, (1 << 19) - 512);
    assert_int_equal(standin_live_objects(), before + 2);
    CHECK(cudaFree(half));
    CHECK(cudaFree(rest));
    assert_int_equal(standin_live_objects(), before);
    assert_int_equal(cudaMalloc(&none, SIZE_MAX - 5), cudaErrorMemoryAllocation);
    cudaGetLastError();
    standin_capacity((size_t)1 << 30);
}

static void test_capacity_from_environment(void **)
{
    assert_caught(
        [] {
            setenv("KVLAB_STANDIN_MEMORY", "3000", 1);
            execl("/proc/self/exe", "test_standin_memory", "print-capacity", (char *)nullptr);
        },
        "capacity 3000");
}

static void test_failing_allocation(void **)
{
    for (uint64_t n = 1; n <= 4; n++) {
        void *memory[4];
        standin_fail_allocation(n);
        for (uint64_t i = 1; i <= 4; i++) {
            cudaError_t error = i == 2 ? cudaMallocHost(&memory[i - 1], 100) : cudaMalloc(&memory[i - 1], 100);
            assert_int_equal(error, i == n ? cudaErrorMemoryAllocation : cudaSuccess);
            assert_true((memory[i - 1] == nullptr) == (i == n));
        }
        for (uint64_t i = 1; i <= 4; i++)
            CHECK(i == 2 ? cudaFreeHost(memory[i - 1]) : cudaFree(memory[i - 1]));
    }
    standin_fail_allocation(0);
    cudaGetLastError();
    uint64_t before = standin_allocations();
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamDestroy(stream));
    assert_int_equal(standin_allocations(), before + 1);
    assert_int_equal(standin_live_bytes(), 0);
}

static void test_many_allocations(void **)
{
    std::vector<float *> memory;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 200; i++)
            memory.push_back(floats(1 + i * 37));
        LAUNCH(fill, 1, 32, 0, memory.back(), 32, 1.0f);
        for (size_t i = 0; i < memory.size(); i++) {
            assert_int_equal((size_t)memory[i] % 256, 0);
            CHECK(cudaFree(memory[i]));
        }
        memory.clear();
    }
    for (size_t bytes : {(size_t)4 << 20, (size_t)6 << 20, (size_t)3 << 20}) {
        float *aligned = floats((int)(bytes / 4));
        assert_int_equal((size_t)aligned % (bytes == (size_t)3 << 20 ? 1 << 20 : 2 << 20), 0);
        CHECK(cudaFree(aligned));
    }
    assert_int_equal(standin_live_bytes(), 0);
}

static void test_pointer_attributes(void **)
{
    float *device = floats(4), *pinned, plain = 0;
    CHECK(cudaMallocHost(&pinned, 16));
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, device + 1));
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    CHECK(cudaPointerGetAttributes(&attributes, pinned));
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    CHECK(cudaPointerGetAttributes(&attributes, &plain));
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
    CHECK(cudaFree(device));
    CHECK(cudaFreeHost(pinned));
}

int main(int argc, char **)
{
    if (argc == 2) { /* test_capacity_from_environment */
        size_t free_bytes, total_bytes;
        cudaMemGetInfo(&free_bytes, &total_bytes);
        fprintf(stderr, "capacity %zu", total_bytes);
        abort();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel_writes_memory),
        cmocka_unit_test(test_host_touches_device_memory),
        cmocka_unit_test(test_kernel_touches_host_memory),
        cmocka_unit_test(test_pinned_memory_is_for_both),
        cmocka_unit_test(test_out_of_bounds),
        cmocka_unit_test(test_use_after_free),
        cmocka_unit_test(test_memory_never_written),
        cmocka_unit_test(test_large_allocation),
#ifdef STANDIN_CHECKED
        cmocka_unit_test(test_misaligned),
#endif
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_capacity_from_environment),
        cmocka_unit_test(test_failing_allocation),
        cmocka_unit_test(test_many_allocations),
        cmocka_unit_test(test_pointer_attributes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
