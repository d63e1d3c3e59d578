/* The stand-in device: streams, events, copies, graphs, and calls that must be refused. */
#include "tests/standin_test.h"

__global__ void add(int *values, int amount)
{
    values[blockIdx.x * blockDim.x + threadIdx.x] += amount;
}
__global__ void times(int *values, int factor)
{
    values[blockIdx.x * blockDim.x + threadIdx.x] *= factor;
}
__global__ void uses_dynamic_shared(int *out)
{
    int *values = (int *)standin_dynamic_shared();
    values[threadIdx.x] = 1;
    out[threadIdx.x] = values[threadIdx.x];
}
__global__ void uses_static_shared(int *out)
{
    __shared__ int values[1000];
    values[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = values[31 - threadIdx.x];
}

static int *zeros(int count)
{
    return on_device(std::vector<int>((size_t)count, 0));
}

/* ---- launches */

static cudaError_t launch_of(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream = nullptr)
{
    cudaError_t error =
        standin_launch("uses_dynamic_shared", uses_dynamic_shared, grid, block, shared_bytes, stream, (int *)nullptr);
    assert_int_equal(cudaGetLastError(), error);
    return error;
}

static void test_refused_launches(void **)
{
    assert_int_equal(launch_of(1, 1025, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_of(1, dim3(32, 33), 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_of(1, dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_of(1, 0, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_of(0, 1, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_of(dim3(1, 65536), 1, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_of(1, 1, 48 * 1024 + 1), cudaErrorInvalidValue);
    assert_int_equal(launch_of(1, 1, 0, (cudaStream_t)zeros), cudaErrorInvalidResourceHandle);

    int *out = zeros(32);
    LAUNCH(uses_dynamic_shared, 1, 32, 48 * 1024, out);
    CHECK(cudaFuncSetAttribute(uses_dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024));
    LAUNCH(uses_dynamic_shared, 1, 32, 100 * 1024, out);
    assert_int_equal(launch_of(1, 1, 100 * 1024 + 1), cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(uses_dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 * 1024),
                     cudaErrorInvalidValue);
    cudaGetLastError();
    /* static shared memory counts too */
    LAUNCH(uses_static_shared, 1, 32, 48 * 1024 - 4000, out);
    assert_int_equal(standin_launch("uses_static_shared", uses_static_shared, 1, 32, 48 * 1024 - 3999, nullptr, out),
                     cudaErrorInvalidValue);
    cudaGetLastError();
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, uses_static_shared));
    assert_int_equal(attributes.sharedSizeBytes, 4000);
    CHECK(cudaFree(out));
}

static void test_occupancy(void **)
{
    int blocks;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 0));
    assert_int_equal(blocks, 8); /* of 2048 threads */
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 32, 0));
    assert_int_equal(blocks, 32);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 99 * 1024));
    assert_int_equal(blocks, 2); /* of 228 KiB */
}

static void test_device(void **)
{
    int count, value;
    CHECK(cudaGetDeviceCount(&count));
    assert_int_equal(count, 1);
    CHECK(cudaSetDevice(0));
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    assert_string_equal(cudaGetErrorName(cudaGetLastError()), "cudaErrorInvalidDevice");
    assert_string_equal(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    assert_int_equal(properties.warpSize, 32);
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    assert_int_equal(value, properties.multiProcessorCount);
    CHECK(cudaDriverGetVersion(&value));
    assert_true(value >= 13000);
    setenv("KVLAB_STANDIN_DEVICES", "0", 1);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    unsetenv("KVLAB_STANDIN_DEVICES");
    cudaGetLastError();
}

/* ---- copies */

static void test_copies(void **)
{
    std::vector<int> values(100, 7), got(100, 0);
    int *a = zeros(100), *b = zeros(100);
    CHECK(cudaMemcpy(a, values.data(), 400, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b, a, 400, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy(got.data(), b, 400, cudaMemcpyDefault));
    assert_true(got == values);
    CHECK(cudaMemset(b, 1, 400));
    assert_int_equal(on_host(b, 100)[99], 0x01010101);
    CHECK(cudaMemcpy2DAsync(b, 40, a, 8, 8, 5, cudaMemcpyDeviceToDevice));
    assert_int_equal(on_host(b, 100)[10], 7);
    assert_int_equal(on_host(b, 100)[2], 0x01010101);

    /* wrong direction, or past the end */
    assert_int_equal(cudaMemcpy(a, values.data(), 400, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(a, b, 400, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(got.data(), a, 400, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(a, values.data(), 401, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(a + 1, values.data(), 400, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(a, 0, 401), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(values.data(), 0, 4), cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
}

/* ---- streams and events */

/* What has been enqueued runs when it is waited for: a result read too early is the old one. */
static void test_work_is_asynchronous(void **)
{
    int *pinned, *memory = zeros(32);
    cudaStream_t stream;
    CHECK(cudaMallocHost(&pinned, 128));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    memset(pinned, 0, 128);
    CHECK(standin_launch("add", add, 1, 32, 0, stream, memory, 5));
    CHECK(cudaMemcpyAsync(pinned, memory, 128, cudaMemcpyDeviceToHost, stream));
    assert_int_equal(pinned[31], 0);
    CHECK(cudaDeviceSynchronize());
    assert_int_equal(pinned[31], 5);

    /* page-locked memory is read when the stream gets there, ordinary memory before the call returns */
    std::vector<int> plain(32, 9);
    CHECK(cudaMemcpyAsync(memory, plain.data(), 128, cudaMemcpyHostToDevice, stream));
    plain[0] = 1;
    CHECK(cudaStreamSynchronize(stream));
    assert_int_equal(on_host(memory, 1)[0], 9);
    pinned[0] = 20;
    CHECK(cudaMemcpyAsync(memory, pinned, 128, cudaMemcpyHostToDevice, stream));
    pinned[0] = 21; /* a mistake, that shows */
    CHECK(cudaStreamSynchronize(stream));
    assert_int_equal(on_host(memory, 1)[0], 21);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(memory));
    CHECK(cudaFreeHost(pinned));
}

/* Two streams, with and without an event between them. */
static bool ordered(uint64_t seed, bool wait)
{
    standin_seed(seed);
    int *memory = zeros(32);
    cudaStream_t first, second;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(standin_launch("add", add, 1, 32, 0, first, memory, 1));
    CHECK(cudaEventRecord(event, first));
    if (wait)
        CHECK(cudaStreamWaitEvent(second, event, 0));
    CHECK(standin_launch("times", times, 1, 32, 0, second, memory, 10));
    CHECK(cudaDeviceSynchronize());
    bool result = on_host(memory, 1)[0] == 10;
    CHECK(cudaStreamDestroy(first));
    CHECK(cudaStreamDestroy(second));
    CHECK(cudaEventDestroy(event));
    CHECK(cudaFree(memory));
    standin_seed(1);
    return result;
}

static void test_streams_wait_for_events(void **)
{
    unsigned wrong = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        assert_true(ordered(seed, true));
        wrong += !ordered(seed, false);
    }
    assert_true(wrong > 0);
}

static void test_legacy_stream_waits(void **)
{
    int *memory = zeros(32);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        standin_seed(seed);
        CHECK(cudaMemset(memory, 0, 128));
        CHECK(standin_launch("add", add, 1, 32, 0, stream, memory, 1));
        LAUNCH(times, 1, 32, 0, memory, 10);
        CHECK(standin_launch("add", add, 1, 32, 0, stream, memory, 1));
        assert_int_equal(on_host(memory, 1)[0], 11);
    }
    standin_seed(1);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(memory));
}

static void test_events(void **)
{
    cudaEvent_t start, end, untimed;
    float ms = -1;
    int *memory = zeros(32);
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    assert_int_equal(cudaEventElapsedTime(&ms, start, end), cudaErrorInvalidResourceHandle); /* not recorded */
    CHECK(cudaEventRecord(start, nullptr));
    LAUNCH(add, 1, 32, 0, memory, 1);
    LAUNCH(add, 1, 32, 0, memory, 1);
    CHECK(cudaEventRecord(end, nullptr));
    CHECK(cudaEventRecord(untimed, nullptr));
    assert_int_equal(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    int polls = 0;
    while (cudaEventQuery(end) == cudaErrorNotReady)
        polls++;
    assert_true(polls > 1);
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, start, end));
    assert_true(ms == 3); /* two kernels and the first event itself: operations, not time */
    assert_int_equal(cudaEventElapsedTime(&ms, start, untimed), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    for (cudaEvent_t event : {start, end, untimed})
        CHECK(cudaEventDestroy(event));
    CHECK(cudaFree(memory));
}

static void append(void *data)
{
    ((std::string *)data)->push_back('h');
}

static void test_host_function(void **)
{
    std::string text;
    CHECK(cudaLaunchHostFunc(nullptr, append, &text));
    assert_true(text.empty());
    CHECK(cudaStreamSynchronize(nullptr));
    assert_string_equal(text.c_str(), "h");
}

/* ---- graphs */

static void enqueue_step(cudaStream_t stream, int *memory, int *pinned)
{
    CHECK(cudaMemcpyAsync(memory, pinned, 128, cudaMemcpyHostToDevice, stream));
    CHECK(standin_launch("add", add, 1, 32, 0, stream, memory, 3));
    CHECK(standin_launch("times", times, 1, 32, 0, stream, memory, 7));
    CHECK(cudaMemcpyAsync(pinned, memory, 128, cudaMemcpyDeviceToHost, stream));
}

static void test_graph_is_the_same_work(void **)
{
    size_t objects = standin_live_objects();
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamCaptureStatus status;
    int *memory = zeros(32), *pinned;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMallocHost(&pinned, 128));
    for (int i = 0; i < 32; i++)
        pinned[i] = i;
    uint64_t launches = standin_launches();
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaStreamIsCapturing(stream, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    enqueue_step(stream, memory, pinned);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaDeviceSynchronize());
    assert_int_equal(standin_launches(), launches); /* recorded, not run */
    assert_int_equal(pinned[5], 5);
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    assert_int_equal(nodes, 4);
    cudaGraphNode_t node[4];
    cudaGraphNodeType type;
    CHECK(cudaGraphGetNodes(graph, node, &nodes));
    CHECK(cudaGraphNodeGetType(node[1], &type));
    assert_int_equal(type, cudaGraphNodeTypeKernel);
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph)); /* what was instantiated lives on */
    for (int round = 0; round < 3; round++)
        CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    assert_int_equal(standin_launches(), launches + 6);
    std::vector<int> replayed(pinned, pinned + 32);
    for (int i = 0; i < 32; i++)
        pinned[i] = i;
    for (int round = 0; round < 3; round++)
        enqueue_step(stream, memory, pinned);
    CHECK(cudaStreamSynchronize(stream));
    assert_true(replayed == std::vector<int>(pinned, pinned + 32));
    assert_int_equal(replayed[1], ((1 + 3) * 7 + 3) * 7 * 7 + 3 * 7);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(memory));
    CHECK(cudaFreeHost(pinned));
    assert_int_equal(standin_live_objects(), objects);
}

/* What may not be done while a stream is captured fails as on a GPU, and spoils the capture. */
static void forbidden(cudaError_t expected, cudaError_t (*call)(cudaStream_t stream, int *memory),
                      cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal)
{
    cudaStream_t stream;
    cudaGraph_t graph = (cudaGraph_t)&stream;
    int *memory = zeros(32);
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, mode));
    CHECK(standin_launch("add", add, 1, 32, 0, stream, memory, 3));
    assert_string_equal(cudaGetErrorName(call(stream, memory)), cudaGetErrorName(expected));
    if (expected != cudaSuccess) {
        assert_int_equal(standin_launch("add", add, 1, 32, 0, stream, memory, 3), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
    } else {
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphDestroy(graph));
    }
    cudaGetLastError();
    CHECK(standin_launch("add", add, 1, 32, 0, stream, memory, 3)); /* the stream can be used again */
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(memory));
}

static void test_forbidden_while_capturing(void **)
{
    size_t objects = standin_live_objects();
    auto allocate = [](cudaStream_t, int *) {
        void *more = nullptr;
        cudaError_t error = cudaMalloc(&more, 16);
        if (error == cudaSuccess) /* cudaFree would wait */
            assert_int_equal(cudaFree(more), cudaSuccess);
        return error;
    };
    forbidden(cudaErrorStreamCaptureUnsupported, allocate);
    forbidden(cudaErrorStreamCaptureUnsupported, allocate, cudaStreamCaptureModeThreadLocal);
    forbidden(cudaSuccess, allocate, cudaStreamCaptureModeRelaxed);
    forbidden(cudaErrorStreamCaptureUnsupported, [](cudaStream_t, int *memory) { return cudaFree(memory); });
    forbidden(cudaErrorStreamCaptureUnsupported,
              [](cudaStream_t stream, int *) { return cudaStreamSynchronize(stream); });
    forbidden(cudaErrorStreamCaptureUnsupported, [](cudaStream_t, int *) { return cudaDeviceSynchronize(); });
    forbidden(cudaErrorStreamCaptureImplicit, [](cudaStream_t, int *memory) { return cudaMemset(memory, 0, 4); });
    forbidden(cudaErrorStreamCaptureImplicit, [](cudaStream_t, int *memory) {
        int value;
        return cudaMemcpy(&value, memory, 4, cudaMemcpyDeviceToHost);
    });
    assert_int_equal(standin_live_objects(), objects);
}

/* A second stream joins the capture through an event, and must be joined again. */
static cudaError_t forked(bool join, int *memory)
{
    cudaStream_t stream, other;
    cudaEvent_t fork, joined;
    cudaGraph_t graph;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(fork, stream));
    CHECK(cudaStreamWaitEvent(other, fork, 0));
    CHECK(standin_launch("add", add, 1, 32, 0, other, memory, 3));
    assert_int_equal(cudaEventQuery(fork), cudaErrorCapturedEvent);
    cudaGetLastError();
    if (join) {
        CHECK(cudaEventRecord(joined, other));
        CHECK(cudaStreamWaitEvent(stream, joined, 0));
    }
    cudaError_t error = cudaStreamEndCapture(stream, &graph);
    cudaGetLastError();
    if (error == cudaSuccess) {
        cudaGraphExec_t exec;
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(other));
    CHECK(cudaEventDestroy(fork));
    CHECK(cudaEventDestroy(joined));
    return error;
}

static void test_capture_of_two_streams(void **)
{
    int *memory = zeros(32);
    assert_int_equal(forked(true, memory), cudaSuccess);
    assert_int_equal(on_host(memory, 1)[0], 3);
    assert_int_equal(forked(false, memory), cudaErrorStreamCaptureUnjoined);
    CHECK(cudaFree(memory));
}

static void test_capture_errors(void **)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    CHECK(cudaStreamCreate(&stream));
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    assert_int_equal(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
    CHECK(cudaStreamEndCapture(stream, &graph));
    standin_fail_allocation(1);
    cudaGraphExec_t exec;
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaErrorMemoryAllocation);
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    cudaGetLastError();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_launches),
        cmocka_unit_test(test_occupancy),
        cmocka_unit_test(test_device),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_work_is_asynchronous),
        cmocka_unit_test(test_streams_wait_for_events),
        cmocka_unit_test(test_legacy_stream_waits),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_host_function),
        cmocka_unit_test(test_graph_is_the_same_work),
        cmocka_unit_test(test_forbidden_while_capturing),
        cmocka_unit_test(test_capture_of_two_streams),
        cmocka_unit_test(test_capture_errors),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
