/* What the parts of the stand-in know of each other. */
#ifndef STANDIN_INTERNAL_H
#define STANDIN_INTERNAL_H

#include "include/cuda_runtime.h"
#include "include/standin.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace standin
{

/* ---- report.cpp */

/* Prints "stand-in: kernel NAME, block (x,y,z), thread (x,y,z): MESSAGE" (the place if one runs) and aborts. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
cudaError_t result(cudaError_t error); /* remembers an error for cudaGetLastError, and returns it */

uint64_t environment_number(const char *name, uint64_t otherwise);
uint64_t seed();                   /* 0: nothing is shuffled */
uint32_t random_below(uint32_t n); /* 0 where the seed is 0 */
void shuffle(std::vector<uint32_t> &order);

/* Counts an allocation; false if it is the one that shall fail. */
bool allocation_allowed();
void object_count(int change);

/* ---- kernel.cpp: running one kernel */

struct launch {
    std::string name;
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    std::shared_ptr<standin_closure> closure;

    bool holds(const void *address) const; /* among the arguments */
};
void run_kernel(const launch &launch);
const launch *running();                              /* NULL: host code runs */
bool stack_address(const void *address, bool *guard); /* in a fiber's stack; guard: the page below one */

/* ---- shared.cpp: a block's shared memory */

size_t static_shared_bytes(const void *kernel);
void shared_begin_launch(const launch &launch);
void shared_begin_block(); /* poisons it */
void shared_end_block();   /* checks that nothing was written past its end */
bool shared_address(const void *address);
bool program_address(const void *address); /* in the running kernel's program: its constants and variables */
void pipeline_end_thread();                /* copies that this thread has not waited for are done now */

/* ---- memory.cpp */

/* The device works between the two: its memory may be touched. They nest. */
void device_open();
void device_close(const char *what);                  /* what has just run, if the guard bytes shall be checked; NULL */
bool device_range(const void *address, size_t bytes); /* all of it inside one live allocation */
void device_bounds(const void *address, const char **low, const char **high); /* of the allocation that holds it */
bool device_address(const void *address); /* anywhere in the range that device memory is taken from */
bool pinned_range(const void *address, size_t bytes);
void poison(void *memory, size_t bytes);

/* ---- check.cpp */

void check_begin_launch();

/* ---- streams.cpp */

struct operation {
    cudaGraphNodeType type;
    std::string name;
    std::function<void()> work;
    std::function<bool()> may_run; /* empty: always */
    uint32_t call = 0;             /* of the CUDA call that enqueued it, for cupti.cpp */
};
cudaError_t enqueue(cudaStream_t stream, operation operation); /* or adds it to the graph that is captured */
cudaError_t check_capture(bool legacy_stream = false); /* the error of a call that may not be made during a capture */
cudaError_t drain_all();                               /* runs everything that has been enqueued */
cudaError_t check_stream(cudaStream_t stream);
void drain_stream(cudaStream_t stream);
void drain_for_legacy(); /* what the legacy default stream waits for */

/* ---- cupti.cpp: what activity records are made of */

uint32_t cupti_call();             /* a call enqueues work: its number */
void cupti_running(uint32_t call); /* the work of that call begins */
void cupti_kernel(const std::string &name);
void cupti_memory(bool allocated, const void *address, size_t bytes);

} // namespace standin

/* A captured stream adds to a graph: its operations, in an order in which they may run. */
struct CUgraph_st {
    std::vector<standin::operation *> operations;
};

struct CUevent_st;
struct CUstream_st {
    bool blocking; /* waits for the legacy default stream, and it for this one */
    std::vector<standin::operation> queue;
    size_t next; /* the first of the queue that has not run */
    /* capture */
    CUgraph_st *graph;   /* NULL: not captured */
    CUstream_st *origin; /* where the capture began */
    cudaStreamCaptureMode mode;
    cudaStreamCaptureStatus status;
    bool unjoined; /* has work that the origin does not wait for */
};

namespace standin
{
std::vector<CUstream_st *> &all_streams();
CUstream_st *stream_of(cudaStream_t stream); /* the legacy default stream for NULL */
cudaError_t capture_wait(CUstream_st *stream, CUstream_st *recorded_in, CUgraph_st *graph);
} // namespace standin
#endif
