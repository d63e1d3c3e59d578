/* Stream capture and graphs: a graph is the list of what was enqueued, run again at each launch. */
#include "internal.h"

#include <memory>

struct CUgraphExec_st {
    std::shared_ptr<std::vector<standin::operation>> operations;
};

namespace standin
{

cudaError_t check_capture(bool legacy_stream)
{
    for (CUstream_st *s : all_streams()) {
        if (!s->graph || (legacy_stream ? !s->blocking : s->mode == cudaStreamCaptureModeRelaxed))
            continue;
        s->origin->status = cudaStreamCaptureStatusInvalidated;
        return legacy_stream ? cudaErrorStreamCaptureImplicit : cudaErrorStreamCaptureUnsupported;
    }
    return cudaSuccess;
}

/* A stream waits for an event and one of the two is captured: the stream joins the capture, or is joined to it. */
cudaError_t capture_wait(CUstream_st *stream, CUstream_st *recorded_in, CUgraph_st *graph)
{
    if (!graph)
        return cudaErrorStreamCaptureIsolation; /* a captured stream would wait for something outside */
    if (recorded_in->graph != graph)
        return cudaErrorCapturedEvent; /* that capture has ended */
    if (stream->graph && stream->graph != graph)
        return cudaErrorStreamCaptureMerge;
    if (stream->graph) {
        recorded_in->unjoined = false;
        return cudaSuccess;
    }
    stream->graph = graph;
    stream->origin = recorded_in->origin;
    stream->mode = recorded_in->mode;
    stream->unjoined = true;
    return cudaSuccess;
}

} // namespace standin

using namespace standin;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaError_t error = check_stream(stream);
    if (error != cudaSuccess)
        return result(error);
    CUstream_st *s = stream_of(stream);
    if (s == stream_of(nullptr))
        return result(cudaErrorStreamCaptureUnsupported);
    if (s->graph)
        return result(cudaErrorIllegalState);
    s->graph = new CUgraph_st;
    s->origin = s;
    s->mode = mode;
    s->status = cudaStreamCaptureStatusActive;
    s->unjoined = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t error = check_stream(stream);
    CUstream_st *s = stream_of(stream);
    if (error == cudaSuccess && (!s->graph || s->origin != s))
        error = s->graph ? cudaErrorStreamCaptureUnmatched : cudaErrorIllegalState;
    if (error != cudaSuccess)
        return result(error);
    CUgraph_st *captured = s->graph;
    if (s->status == cudaStreamCaptureStatusInvalidated)
        error = cudaErrorStreamCaptureInvalidated;
    for (CUstream_st *other : all_streams())
        if (other->graph == captured) {
            if (other->unjoined && error == cudaSuccess)
                error = cudaErrorStreamCaptureUnjoined;
            other->graph = nullptr;
            other->unjoined = false;
        }
    object_count(1);
    *graph = captured;
    if (error != cudaSuccess) {
        cudaGraphDestroy(captured);
        *graph = nullptr;
    }
    return result(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    cudaError_t error = check_stream(stream);
    if (error != cudaSuccess)
        return result(error);
    CUstream_st *s = stream_of(stream);
    *status = s->graph ? s->origin->status : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    std::swap(current, *mode);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    size_t room = nodes ? *count : 0;
    *count = graph->operations.size();
    for (size_t i = 0; i < room && i < *count; i++)
        nodes[i] = (cudaGraphNode_t)graph->operations[i];
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    *type = ((const operation *)node)->type;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    if (!exec || !graph)
        return result(cudaErrorInvalidValue);
    if (!allocation_allowed())
        return result(cudaErrorMemoryAllocation);
    auto operations = std::make_shared<std::vector<operation>>();
    for (const operation *o : graph->operations)
        operations->push_back(*o);
    *exec = new CUgraphExec_st{operations};
    object_count(1);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    return result(exec ? check_stream(stream) : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (!exec)
        return result(cudaErrorInvalidValue);
    auto operations = exec->operations;
    return result(enqueue(stream, {cudaGraphNodeTypeGraph, "graph",
                                   [operations] {
                                       for (const operation &o : *operations)
                                           o.work();
                                   },
                                   nullptr}));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    if (!exec)
        return result(cudaErrorInvalidValue);
    delete exec;
    object_count(-1);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (!graph)
        return result(cudaErrorInvalidValue);
    for (operation *o : graph->operations)
        delete o;
    delete graph;
    object_count(-1);
    return cudaSuccess;
}
