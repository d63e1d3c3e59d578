/* cudaMemcpy and cudaMemset. Page-locked memory is copied when the stream gets there; ordinary host memory, as CUDA
   documents it, before the call returns (to the device: into a buffer from which it is copied later). */
#include "internal.h"

#include <memory>

namespace standin
{

struct transfer {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
    bool to_device, from_device;
};

static bool side(const void *address, size_t bytes, bool *device)
{
    *device = device_address(address);
    return address && (!*device || device_range(address, bytes));
}

/* Which sides are device memory, and whether that is what `kind` says. */
static cudaError_t check(transfer &t, cudaMemcpyKind kind)
{
    if (t.width > t.to_pitch || t.width > t.from_pitch)
        return cudaErrorInvalidValue;
    if (!side(t.to, (t.height - 1) * t.to_pitch + t.width, &t.to_device) ||
        !side(t.from, (t.height - 1) * t.from_pitch + t.width, &t.from_device))
        return cudaErrorInvalidValue;
    int found = (t.from_device ? 2 : 0) + (t.to_device ? 1 : 0); /* the values of cudaMemcpyKind */
    if (kind != cudaMemcpyDefault && kind != found)
        return (unsigned)kind > cudaMemcpyDefault ? cudaErrorInvalidMemcpyDirection : cudaErrorInvalidValue;
    return cudaSuccess;
}

static void run(const transfer &t)
{
    device_open();
    for (size_t row = 0; row < t.height; row++)
        memmove((char *)t.to + row * t.to_pitch, (const char *)t.from + row * t.from_pitch, t.width);
    device_close(nullptr);
}

static bool pageable(const void *address, bool device)
{
    return !device && !pinned_range(address, 0);
}

static cudaError_t copy(transfer t, cudaMemcpyKind kind, cudaStream_t stream, bool wait)
{
    cudaError_t error = check_stream(stream);
    if (error != cudaSuccess || t.width == 0 || t.height == 0)
        return error;
    error = check(t, kind);
    if (error != cudaSuccess)
        return error;
    if (wait) {
        error = check_capture(true);
        if (error == cudaSuccess)
            error = check_capture();
        if (error != cudaSuccess)
            return error;
        drain_for_legacy();
        run(t);
        return cudaSuccess;
    }
    bool captured = stream_of(stream)->graph != nullptr;
    if (!captured && pageable(t.from, t.from_device)) {
        auto staged = std::make_shared<std::vector<char>>(t.width * t.height);
        for (size_t row = 0; row < t.height; row++)
            memcpy(staged->data() + row * t.width, (const char *)t.from + row * t.from_pitch, t.width);
        t.from = staged->data();
        t.from_pitch = t.width;
        error = enqueue(stream, {cudaGraphNodeTypeMemcpy, "copy", [t, staged] { run(t); }, nullptr});
    } else
        error = enqueue(stream, {cudaGraphNodeTypeMemcpy, "copy", [t] { run(t); }, nullptr});
    if (error == cudaSuccess && !captured && pageable(t.to, t.to_device))
        drain_stream(stream);
    return error;
}

static cudaError_t set(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = check_stream(stream);
    if (error != cudaSuccess || bytes == 0)
        return error;
    if (!device_range(memory, bytes))
        return cudaErrorInvalidValue;
    return enqueue(stream, {cudaGraphNodeTypeMemset, "memset",
                            [=] {
                                device_open();
                                memset(memory, value, bytes);
                                device_close(nullptr);
                            },
                            nullptr});
}

} // namespace standin

using namespace standin;

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return result(copy({to, from, bytes, bytes, bytes, 1, false, false}, kind, nullptr, true));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return result(copy({to, from, bytes, bytes, bytes, 1, false, false}, kind, stream, false));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return result(copy({to, from, to_pitch, from_pitch, width, height, false, false}, kind, stream, false));
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    return result(set(memory, value, bytes, nullptr));
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    return result(set(memory, value, bytes, stream));
}
