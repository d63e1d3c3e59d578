/* The device's properties, and launches: refused as a GPU of compute capability 9.0 refuses them. */
#include "internal.h"

#include <map>
#include <memory>

namespace standin
{

enum {
    MULTIPROCESSORS = 6,
    THREADS_PER_MULTIPROCESSOR = 2048,
    BLOCKS_PER_MULTIPROCESSOR = 32,
    SHARED_BYTES = 48 * 1024,
    SHARED_BYTES_OPTIN = 227 * 1024,
    SHARED_BYTES_PER_MULTIPROCESSOR = 228 * 1024,
    REGISTERS = 65536,
    L2_BYTES = 4 * 1024 * 1024,
};

static std::map<const void *, int> dynamic_limit; /* as set by cudaFuncSetAttribute */

static size_t limit_of(const void *kernel)
{
    auto found = dynamic_limit.find(kernel);
    return found != dynamic_limit.end() ? (size_t)found->second : SHARED_BYTES - static_shared_bytes(kernel);
}

static cudaError_t check_launch(const launch &l)
{
    const dim3 &g = l.grid, &b = l.block;
    if (b.x == 0 || b.y == 0 || b.z == 0 || b.x > 1024 || b.y > 1024 || b.z > 64 || (uint64_t)b.x * b.y * b.z > 1024)
        return cudaErrorInvalidConfiguration;
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (static_shared_bytes(l.kernel) > SHARED_BYTES) /* nvcc refuses such a kernel */
        fail("kernel %s: %zu bytes of static shared memory", l.name.c_str(), static_shared_bytes(l.kernel));
    if (l.shared_bytes > limit_of(l.kernel))
        return cudaErrorInvalidValue;
    if ((uint64_t)g.x * g.y * g.z > 1 << 26)
        fail("kernel %s: too many blocks for a test (%u x %u x %u)", l.name.c_str(), g.x, g.y, g.z);
    return cudaSuccess;
}

bool launch::holds(const void *address) const
{
    return (size_t)((const char *)address - (const char *)closure.get()) < closure->bytes();
}

} // namespace standin

using namespace standin;

cudaError_t standin_enqueue(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
                            cudaStream_t stream, standin_closure *closure)
{
    std::shared_ptr<standin_closure> shared(closure);
    auto l = std::make_shared<launch>();
    *l = {name, kernel, grid, block, shared_bytes, shared};
    cudaError_t error = check_launch(*l);
    if (error == cudaSuccess)
        error = enqueue(stream, {cudaGraphNodeTypeKernel, name, [l] { run_kernel(*l); }, nullptr});
    return result(error);
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value + static_shared_bytes(function) > SHARED_BYTES_OPTIN)
        return result(cudaErrorInvalidValue);
    dynamic_limit[function] = value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    *attributes = {static_shared_bytes(function), 0, 0, 1024, 32, 90, 90, (int)limit_of(function)};
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_threads,
                                                          size_t dynamic_shared_bytes)
{
    if (!blocks || block_threads <= 0)
        return result(cudaErrorInvalidValue);
    size_t shared = static_shared_bytes(function) + dynamic_shared_bytes + 1024; /* 1 KiB is the system's */
    int most = THREADS_PER_MULTIPROCESSOR / ((block_threads + 31) / 32 * 32);
    most = std::min(most, (int)(SHARED_BYTES_PER_MULTIPROCESSOR / shared));
    *blocks = block_threads > 1024 ? 0 : std::min(most, (int)BLOCKS_PER_MULTIPROCESSOR);
    return cudaSuccess;
}

static bool absent()
{
    return environment_number("KVLAB_STANDIN_DEVICES", 1) == 0;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = absent() ? 0 : 1;
    return absent() ? result(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return absent() ? result(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (absent())
        return result(cudaErrorNoDevice);
    return device == 0 ? cudaSuccess : result(cudaErrorInvalidDevice);
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned)
{
    return cudaSetDevice(device);
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    return drain_all();
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = absent() ? 0 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    if (device != 0)
        return result(cudaErrorInvalidDevice);
    snprintf(id, (size_t)length, "0000:00:00.0");
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    cudaError_t error = cudaSetDevice(device);
    if (error != cudaSuccess)
        return error;
    size_t free_bytes, total_bytes;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    *p = {};
    snprintf(p->name, sizeof p->name, "kvlab stand-in");
    p->totalGlobalMem = total_bytes;
    p->sharedMemPerBlock = SHARED_BYTES;
    p->sharedMemPerBlockOptin = SHARED_BYTES_OPTIN;
    p->sharedMemPerMultiprocessor = SHARED_BYTES_PER_MULTIPROCESSOR;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 9;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->maxThreadsPerMultiProcessor = THREADS_PER_MULTIPROCESSOR;
    p->maxBlocksPerMultiProcessor = BLOCKS_PER_MULTIPROCESSOR;
    p->l2CacheSize = L2_BYTES;
    p->concurrentKernels = p->unifiedAddressing = p->canMapHostMemory = p->asyncEngineCount = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess)
        return error;
    const std::map<int, int> values = {
        {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
        {cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0]},
        {cudaDevAttrMaxBlockDimY, p.maxThreadsDim[1]},
        {cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2]},
        {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
        {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
        {cudaDevAttrMaxGridDimZ, p.maxGridSize[2]},
        {cudaDevAttrMaxSharedMemoryPerBlock, (int)p.sharedMemPerBlock},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)p.sharedMemPerBlockOptin},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)p.sharedMemPerMultiprocessor},
        {cudaDevAttrReservedSharedMemoryPerBlock, (int)p.reservedSharedMemPerBlock},
        {cudaDevAttrWarpSize, p.warpSize},
        {cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock},
        {cudaDevAttrMaxRegistersPerMultiprocessor, p.regsPerMultiprocessor},
        {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
        {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
        {cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor},
        {cudaDevAttrL2CacheSize, p.l2CacheSize},
        {cudaDevAttrComputeCapabilityMajor, p.major},
        {cudaDevAttrComputeCapabilityMinor, p.minor},
        {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrAsyncEngineCount, 1},
        {cudaDevAttrCooperativeLaunch, 0},
        {cudaDevAttrManagedMemory, 0},
        {cudaDevAttrMemoryPoolsSupported, 0},
        {cudaDevAttrIntegrated, 0},
        {cudaDevAttrEccEnabled, 0},
        {cudaDevAttrComputeMode, 0},
        {cudaDevAttrMaxPersistingL2CacheSize, 0},
        {cudaDevAttrClockRate, 1000000}, /* kHz */
        {cudaDevAttrMemoryClockRate, 1000000},
        {cudaDevAttrGlobalMemoryBusWidth, 64}, /* bits */
    };
    auto found = values.find(attribute);
    if (found == values.end())
        return result(cudaErrorInvalidValue);
    *value = found->second;
    return cudaSuccess;
}
