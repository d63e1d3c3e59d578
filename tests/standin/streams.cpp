/* Streams and events. Work is run when the host waits for it, not before: what a program reads too early it reads
   unwritten. Streams that do not wait for each other run interleaved, by the seed. */
#include "internal.h"

#include <memory>

struct CUevent_st {
    struct state {
        uint64_t recorded = 0, done = 0; /* records asked for, and reached */
        uint64_t stamp = 0;              /* operations run when the last was reached */
    };
    std::shared_ptr<state> state = std::make_shared<struct state>();
    unsigned flags = 0;
    CUgraph_st *graph = nullptr; /* recorded in a capture */
    CUstream_st *recorded_in = nullptr;
};

namespace standin
{

static CUstream_st legacy = {true, {}, 0, nullptr, nullptr, {}, {}, false};
static std::vector<CUstream_st *> streams = {&legacy};
static uint64_t operations_run;

std::vector<CUstream_st *> &all_streams()
{
    return streams;
}

CUstream_st *stream_of(cudaStream_t stream)
{
    return stream && stream != cudaStreamLegacy ? stream : &legacy;
}

cudaError_t check_stream(cudaStream_t stream)
{
    for (CUstream_st *s : streams)
        if (s == stream_of(stream))
            return cudaSuccess;
    return cudaErrorInvalidResourceHandle;
}

static bool runnable(const CUstream_st *s)
{
    return s->next < s->queue.size() && (!s->queue[s->next].may_run || s->queue[s->next].may_run());
}

static void run_next(CUstream_st *s)
{
    operation operation = std::move(s->queue[s->next]);
    if (++s->next == s->queue.size()) {
        s->queue.clear();
        s->next = 0;
    }
    cupti_running(operation.call);
    operation.work();
    operations_run++;
}

/* Runs operations of any stream until done(); the device stays open in between. */
template <typename F> static void drain(CUstream_st *wanted, F done)
{
    static bool draining;
    if (draining)
        fail("a host function may not call CUDA");
    draining = true;
    device_open();
    while (!done()) {
        std::vector<CUstream_st *> candidates;
        for (CUstream_st *s : streams)
            if (runnable(s))
                candidates.push_back(s);
        if (candidates.empty())
            fail("streams wait for each other");
        bool direct = wanted && runnable(wanted);
        run_next(direct ? wanted : candidates[random_below((uint32_t)candidates.size())]);
    }
    device_close(nullptr);
    draining = false;
}

void drain_stream(cudaStream_t stream)
{
    CUstream_st *s = stream_of(stream);
    if (!s->queue.empty())
        drain(s, [s] { return s->queue.empty(); });
}

template <typename F> static void drain_those(F which)
{
    auto done = [which] {
        for (CUstream_st *s : streams)
            if (which(s) && !s->queue.empty())
                return false;
        return true;
    };
    if (!done())
        drain(nullptr, done);
}

cudaError_t drain_all()
{
    drain_those([](CUstream_st *) { return true; });
    return cudaSuccess;
}

void drain_for_legacy()
{
    drain_those([](CUstream_st *s) { return s->blocking; });
}

cudaError_t enqueue(cudaStream_t stream, operation operation)
{
    cudaError_t error = check_stream(stream);
    if (error != cudaSuccess)
        return error;
    CUstream_st *s = stream_of(stream);
    if (s->graph) {
        if (s->origin->status == cudaStreamCaptureStatusInvalidated)
            return cudaErrorStreamCaptureInvalidated;
        s->graph->operations.push_back(new struct operation(std::move(operation)));
        s->unjoined = s != s->origin;
        return cudaSuccess;
    }
    if (s == &legacy) {
        error = check_capture(true);
        if (error != cudaSuccess)
            return error;
        drain_those([](CUstream_st *other) { return other->blocking && other != &legacy; });
    } else if (s->blocking)
        drain_stream(&legacy);
    operation.call = cupti_call();
    s->queue.push_back(std::move(operation));
    return cudaSuccess;
}

} // namespace standin

using namespace standin;

/* ---- streams */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    if (!allocation_allowed())
        return result(cudaErrorMemoryAllocation);
    *stream = new CUstream_st{!(flags & cudaStreamNonBlocking), {}, 0, nullptr, nullptr, {}, {}, false};
    streams.push_back(*stream);
    object_count(1);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (check_stream(stream) != cudaSuccess || stream_of(stream) == &legacy)
        return result(cudaErrorInvalidResourceHandle);
    if (stream->graph)
        return result(cudaErrorStreamCaptureUnsupported);
    drain_stream(stream);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream)
            streams.erase(streams.begin() + (long)i--);
    delete stream;
    object_count(-1);
    return cudaSuccess;
}

/* A captured stream can be neither waited for nor asked; trying spoils the capture. */
static cudaError_t check_wait(cudaStream_t stream)
{
    cudaError_t error = check_stream(stream);
    if (error == cudaSuccess && stream_of(stream) == &legacy)
        error = check_capture(true);
    if (error == cudaSuccess && stream_of(stream)->graph) {
        stream_of(stream)->origin->status = cudaStreamCaptureStatusInvalidated;
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t error = check_wait(stream);
    if (error != cudaSuccess)
        return result(error);
    if (stream_of(stream) == &legacy)
        drain_for_legacy();
    drain_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t error = check_wait(stream);
    if (error != cudaSuccess)
        return result(error);
    CUstream_st *s = stream_of(stream);
    size_t left = s->queue.size() - s->next;
    if (left == 0)
        return cudaSuccess;
    drain(s, [s, left] { return s->queue.empty() || s->queue.size() - s->next < left; }); /* so that polling ends */
    return result(cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    for (CUstream_st *s : streams)
        if (s->graph) {
            s->origin->status = cudaStreamCaptureStatusInvalidated;
            return result(cudaErrorStreamCaptureUnsupported);
        }
    return drain_all();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    return result(enqueue(stream, {cudaGraphNodeTypeHost, "host function",
                                   [=] {
                                       device_close(nullptr);
                                       function(data);
                                       device_open();
                                   },
                                   nullptr}));
}

/* ---- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    if (!allocation_allowed())
        return result(cudaErrorMemoryAllocation);
    *event = new CUevent_st;
    (*event)->flags = flags;
    object_count(1);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (!event)
        return result(cudaErrorInvalidResourceHandle);
    delete event;
    object_count(-1);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t error = event ? check_stream(stream) : cudaErrorInvalidResourceHandle;
    if (error != cudaSuccess)
        return result(error);
    CUstream_st *s = stream_of(stream);
    event->graph = s->graph;
    event->recorded_in = s;
    if (s->graph) /* in a graph, an event is only an order */
        return s->origin->status == cudaStreamCaptureStatusInvalidated ? result(cudaErrorStreamCaptureInvalidated)
                                                                       : cudaSuccess;
    auto state = event->state;
    uint64_t record = state->recorded + 1;
    error = enqueue(stream, {cudaGraphNodeTypeEventRecord, "event record",
                             [state, record] {
                                 state->done = record;
                                 state->stamp = operations_run;
                             },
                             nullptr});
    if (error == cudaSuccess)
        state->recorded = record;
    return result(error);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    return cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    cudaError_t error = event ? check_stream(stream) : cudaErrorInvalidResourceHandle;
    if (error != cudaSuccess)
        return result(error);
    CUstream_st *s = stream_of(stream);
    if (event->graph || s->graph)
        return result(event->recorded_in ? capture_wait(s, event->recorded_in, event->graph) : cudaSuccess);
    auto state = event->state;
    uint64_t record = state->recorded;
    return result(enqueue(
        stream, {cudaGraphNodeTypeWaitEvent, "event wait", [] {}, [state, record] { return state->done >= record; }}));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (!event || event->graph)
        return result(event ? cudaErrorCapturedEvent : cudaErrorInvalidResourceHandle);
    auto state = event->state;
    if (state->done < state->recorded)
        drain(event->recorded_in, [state] { return state->done >= state->recorded; });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!event || event->graph)
        return result(event ? cudaErrorCapturedEvent : cudaErrorInvalidResourceHandle);
    if (event->state->done >= event->state->recorded)
        return cudaSuccess;
    uint64_t before = operations_run;
    drain(event->recorded_in, [before] { return operations_run > before; });
    return result(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (!ms || !start || !end || (start->flags | end->flags) & cudaEventDisableTiming || !start->state->recorded ||
        !end->state->recorded)
        return result(cudaErrorInvalidResourceHandle);
    if (start->state->done < start->state->recorded || end->state->done < end->state->recorded)
        return result(cudaErrorNotReady);
    *ms = (float)((double)end->state->stamp - (double)start->state->stamp);
    return cudaSuccess;
}
