/* What .cu files use of CUDA C++, for g++: the runtime API, launches, and the language of kernels (indices, barriers,
   warp collectives, atomics, cached loads, intrinsics). */
#ifndef STANDIN_CUDA_RUNTIME_H
#define STANDIN_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __noinline__    /* libstdc++ writes __attribute__((__noinline__)) */
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

/* Blocks run one after the other, so a block's shared memory is a static variable. thread_local, because that is what
   tells it from other statics in the program's symbol table, where shared.cpp finds it to poison it before each block.
   Dynamic shared memory: standin_dynamic_shared(). */
#define __shared__ static thread_local

/* The thread that runs: set at each switch of threads. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

extern "C" void *standin_dynamic_shared(void); /* this block's dynamic shared memory, aligned to 128 bytes */

/* ---- launching: the arguments are copied now, the kernel runs when its stream gets to it */

struct standin_closure { /* a launched kernel with its arguments */
    virtual void call() const = 0;
    virtual size_t bytes() const = 0;
    virtual ~standin_closure()
    {
    }
};

/* Takes the closure. Returns what a launch on a GPU would, as cudaGetLastError() then does too. */
cudaError_t standin_enqueue(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
                            cudaStream_t stream, standin_closure *closure);
/* Aborts if argument `index` of a launch points neither to device memory nor to page-locked host memory. */
void standin_check_argument(const char *name, int index, const void *pointer);

template <typename T> void standin_check_value(const char *name, int index, const T &value)
{
    if constexpr (std::is_pointer_v<T>)
        if constexpr (!std::is_function_v<std::remove_pointer_t<T>>)
            standin_check_argument(name, index, (const void *)value);
    (void)name, (void)index, (void)value;
}

template <typename... P> struct standin_closure_of final : standin_closure {
    void (*kernel)(P...);
    std::tuple<std::decay_t<P>...> arguments;
    template <typename... A>
    standin_closure_of(const char *name, void (*k)(P...), A... a) : kernel(k), arguments(static_cast<P>(a)...)
    {
        std::apply(
            [name](const auto &...value) {
                int index = 0;
                (standin_check_value(name, ++index, value), ...);
                (void)index, (void)name;
            },
            arguments);
    }
    size_t bytes() const override
    {
        return sizeof *this;
    }
    void call() const override
    {
        std::apply(kernel, arguments);
    }
};

/* What launch.cuh calls where nvcc would have kernel<<<grid, block, shared_bytes, stream>>>(arguments...). */
template <typename... P, typename... A>
cudaError_t standin_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                           cudaStream_t stream, A... arguments)
{
    return standin_enqueue(name, (const void *)kernel, grid, block, shared_bytes, stream,
                           new standin_closure_of<P...>(name, kernel, arguments...));
}

/* ---- CUDA's C++ overloads */

template <typename T> cudaError_t cudaMalloc(T **memory, size_t bytes)
{
    return cudaMalloc((void **)memory, bytes);
}
template <typename T> cudaError_t cudaMallocHost(T **memory, size_t bytes, unsigned = 0)
{
    return cudaMallocHost((void **)memory, bytes);
}
template <typename T> cudaError_t cudaHostAlloc(T **memory, size_t bytes, unsigned flags)
{
    return cudaHostAlloc((void **)memory, bytes, flags);
}
template <typename... P> cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}
template <typename... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*kernel)(P...))
{
    return cudaFuncGetAttributes(attributes, (const void *)kernel);
}
template <typename... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*kernel)(P...), int block_threads,
                                                          size_t dynamic_shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)kernel, block_threads,
                                                         dynamic_shared_bytes);
}
/* __device__ and __constant__ variables are ordinary ones. */
template <typename T>
cudaError_t cudaMemcpyToSymbol(T &symbol, const void *from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice)
{
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess || offset + bytes > sizeof symbol)
        return error != cudaSuccess ? error : cudaErrorInvalidValue;
    memcpy((char *)&symbol + offset, from, bytes);
    return cudaSuccess;
}
template <typename T>
cudaError_t cudaMemcpyFromSymbol(void *to, const T &symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost)
{
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess || offset + bytes > sizeof symbol)
        return error != cudaSuccess ? error : cudaErrorInvalidValue;
    memcpy(to, (const char *)&symbol + offset, bytes);
    return cudaSuccess;
}

#include "standin_collectives.h"
#include "standin_intrinsics.h"

#endif
#endif
