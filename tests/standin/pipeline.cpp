/* Asynchronous copies to shared memory: done as late as CUDA allows, when the thread waits for them, so that a missing
   wait shows as a read of poison. */
#include "include/cuda_pipeline.h"
#include "internal.h"

namespace standin
{

struct copy {
    void *to;
    const void *from;
    size_t bytes, zero_fill;
};

struct pipeline {
    std::vector<std::vector<copy>> groups; /* committed, oldest first */
    std::vector<copy> open;
};

static std::vector<pipeline> pipelines; /* of each thread of the block; those in use */
static bool in_use;

static pipeline &mine()
{
    size_t number = threadIdx.x + blockDim.x * (threadIdx.y + (size_t)blockDim.y * threadIdx.z);
    if (pipelines.size() <= number)
        pipelines.resize(number + 1);
    in_use = true;
    return pipelines[number];
}

static void run(const std::vector<copy> &copies)
{
    for (const copy &c : copies) {
        memcpy(c.to, c.from, c.bytes - c.zero_fill);
        memset((char *)c.to + c.bytes - c.zero_fill, 0, c.zero_fill);
    }
}

void pipeline_end_thread()
{
    if (!in_use)
        return;
    pipeline &p = mine();
    for (const auto &group : p.groups)
        run(group);
    run(p.open);
    p.groups.clear();
    p.open.clear();
}

} // namespace standin

using namespace standin;

void standin_pipeline_copy(void *shared, const void *global, size_t bytes, size_t zero_fill)
{
    if ((bytes != 4 && bytes != 8 && bytes != 16) || zero_fill > bytes)
        fail("__pipeline_memcpy_async of %zu bytes with %zu zeros: 4, 8 or 16 bytes can be copied", bytes, zero_fill);
    if ((size_t)shared % bytes || (size_t)global % bytes)
        fail("__pipeline_memcpy_async of %zu bytes from %p to %p: misaligned", bytes, global, shared);
    mine().open.push_back({shared, global, bytes, zero_fill});
}

void standin_pipeline_commit(void)
{
    pipeline &p = mine();
    p.groups.push_back(std::move(p.open));
    p.open.clear();
}

void standin_pipeline_wait(size_t newer)
{
    pipeline &p = mine();
    while (p.groups.size() > newer) {
        run(p.groups.front());
        p.groups.erase(p.groups.begin());
    }
}
