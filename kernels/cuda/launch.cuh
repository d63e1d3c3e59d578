/* What differs between compiling with nvcc and compiling with a host compiler against the stand-in device of the tests:
   how a kernel is launched, how it reaches its dynamic shared memory, and instructions that have no C++ spelling. */
#ifndef KVLAB_KERNELS_CUDA_LAUNCH_CUH
#define KVLAB_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/cuda.h"

/* Launches `kernel` (in parentheses if its name holds commas) on the device's stream, and takes the launch's error:
   KVLAB_LAUNCH(cuda, error, kernel, grid, block, shared_bytes, arguments...) gives an enum status. */
#define KVLAB_LAUNCH(cuda, error, kernel, grid, block, shared_bytes, ...)                                              \
    kvlab_launch(cuda, error, #kernel, __FILE__, __LINE__, kernel, dim3(grid), dim3(block), shared_bytes, ##__VA_ARGS__)

template <typename... P, typename... A>
static enum status kvlab_launch(struct cuda_device *cuda, struct error *error, const char *name, const char *file,
                                int line, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                A... arguments)
{
#ifdef __CUDACC__
    kernel<<<grid, block, shared_bytes, cuda->stream>>>(static_cast<P>(arguments)...);
#else
    standin_launch(name, kernel, grid, block, shared_bytes, cuda->stream, static_cast<P>(arguments)...);
#endif
    cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? STATUS_OK : cuda_fail(error, code, name, file, line);
}

/* Declares `type *name`, the block's dynamic shared memory, aligned to 16 bytes. */
#ifdef __CUDACC__
#define KVLAB_DYNAMIC_SHARED(type, name)                                                                               \
    extern __shared__ __align__(16) unsigned char kvlab_dynamic_shared[];                                              \
    type *name = reinterpret_cast<type *>(kvlab_dynamic_shared)
#else
#define KVLAB_DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(standin_dynamic_shared())
#endif

/* Compute capability that a kernel's body is compiled for, 10 x major + minor; the stand-in runs every body. */
#ifndef __CUDACC__
#define KVLAB_ARCH 900
#elif defined(__CUDA_ARCH__)
#define KVLAB_ARCH __CUDA_ARCH__
#else
#define KVLAB_ARCH 0 /* host code */
#endif

#endif
