/* Reports, the seed, and the counts that tests ask for. */
#include "internal.h"

#include <cstdarg>
#include <cstdio>
#include <optional>

namespace standin
{

static cudaError_t last_error;
static std::optional<uint64_t> the_seed;
static uint64_t random_state;
static uint64_t allocation_count, allocation_to_fail;
static bool fail_known;
static size_t live_objects;

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fputs("stand-in: ", stderr);
    if (running())
        fprintf(stderr, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u): ", running()->name.c_str(), blockIdx.x,
                blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

cudaError_t result(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

uint64_t environment_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    char *end;
    unsigned long long value = strtoull(text, &end, 0);
    if (*end || *text == '-')
        fail("%s=%s is not a number", name, text);
    return value;
}

static void set_seed(uint64_t seed)
{
    the_seed = seed;
    random_state = seed * 0x9e3779b97f4a7c15ull + 1;
}

uint64_t seed()
{
    if (!the_seed)
        set_seed(environment_number("KVLAB_STANDIN_SEED", 1));
    return *the_seed;
}

uint32_t random_below(uint32_t n)
{
    if (seed() == 0)
        return 0;
    random_state ^= random_state << 13; /* xorshift64 (Marsaglia 2003) */
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

void shuffle(std::vector<uint32_t> &order)
{
    if (seed() != 0)
        for (size_t i = order.size(); i > 1; i--)
            std::swap(order[i - 1], order[random_below((uint32_t)i)]);
}

bool allocation_allowed()
{
    if (!fail_known)
        standin_fail_allocation(environment_number("KVLAB_STANDIN_FAIL", 0));
    return ++allocation_count != allocation_to_fail;
}

void object_count(int change)
{
    live_objects += (size_t)change;
}

} // namespace standin

using namespace standin;

void standin_seed(uint64_t seed)
{
    set_seed(seed);
}

void standin_fail_allocation(uint64_t n)
{
    fail_known = true;
    allocation_to_fail = n ? allocation_count + n : 0;
}

uint64_t standin_allocations(void)
{
    return allocation_count;
}

size_t standin_live_objects(void)
{
    return live_objects;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define ERROR_NAME(name, value, text)                                                                                  \
    case name:                                                                                                         \
        return #name;
        STANDIN_ERRORS(ERROR_NAME)
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define ERROR_TEXT(name, value, text)                                                                                  \
    case name:                                                                                                         \
        return text;
        STANDIN_ERRORS(ERROR_TEXT)
    }
    return "unrecognized error code";
}
