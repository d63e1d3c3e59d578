/* What tests may ask of the stand-in beyond CUDA's API. C11 and C++. */
#ifndef KVLAB_STANDIN_H
#define KVLAB_STANDIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The seed of the order in which blocks, threads and streams run; 0: ascending order, first stream first.
   $KVLAB_STANDIN_SEED until this is called; 1 without it. */
void standin_seed(uint64_t seed);

/* The device's memory in bytes; $KVLAB_STANDIN_MEMORY until this is called; 1 GiB without it. */
void standin_capacity(size_t bytes);

/* The n-th allocation from now (1: the next) fails; 0: none does. $KVLAB_STANDIN_FAIL until this is called.
   Counted are cudaMalloc, cudaMallocHost, cudaHostAlloc, cublasCreate, cudaGraphInstantiate, and the creation of
   streams and events: whatever takes memory on a GPU. */
void standin_fail_allocation(uint64_t n);
uint64_t standin_allocations(void); /* how many have been counted since the process began */

/* What is allocated and not freed: to find leaks. */
size_t standin_live_bytes(void);   /* cudaMalloc's and cudaMallocHost's */
size_t standin_live_objects(void); /* allocations, streams, events, graphs, executable graphs, cuBLAS handles */

uint64_t standin_launches(void); /* kernels that have run since the process began */

/* Memory never written holds this in every two bytes: a NaN as bf16, f16 and f32, a huge number as an index. */
#define STANDIN_POISON 0x7FAD

#ifdef __cplusplus
}
#endif
#endif
