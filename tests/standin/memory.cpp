/* Device memory: taken from one range of addresses that nothing may touch, except while the device works. Each
   allocation ends at a page that may never be touched, up to ALIGNMENT - 1 bytes, which are checked after every kernel.
   Addresses are not used again while others are left, so that memory that was freed is caught too. */
#include "memory.h"

#include "internal.h"

#include <algorithm>
#include <map>
#include <sys/mman.h>

namespace standin
{

enum { PAGE_BYTES = 4096, ALIGNMENT = 512, CHUNK_BYTES = 256 * 1024, BIG_PAGE_BYTES = 2 << 20 };
static const size_t ARENA_BYTES = (size_t)1 << 38;

struct region { /* the pages of an allocation */
    char *pages;
    size_t page_bytes;
    size_t bytes;              /* asked for */
    std::vector<bool> touched; /* chunks that hold something: poison is written when a chunk is first touched */
};

static char *arena, *cursor;
static std::map<char *, region> regions; /* by the address that cudaMalloc gave */
static std::map<char *, size_t> pinned;
static size_t capacity, used_bytes;
static int depth; /* of device_open */

static void initialise()
{
    install_fault_handler(); /* a test framework may have put its own in its place */
    if (arena)
        return;
    void *memory = mmap(nullptr, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        fail("no address space for the device's memory");
    arena = cursor = (char *)memory;
    if (!capacity)
        capacity = environment_number("KVLAB_STANDIN_MEMORY", (size_t)1 << 30);
}

void poison(void *memory, size_t bytes)
{
    const uint16_t two = STANDIN_POISON;
    const uint64_t eight = two * 0x0001000100010001ull;
    char *at = (char *)memory;
    size_t n = bytes / 8;
    for (size_t i = 0; i < n; i++)
        memcpy(at + i * 8, &eight, 8);
    memcpy(at + n * 8, &eight, bytes % 8);
}

static bool poisoned(const char *from, const char *end)
{
    uint16_t two = STANDIN_POISON;
    for (; from < end; from++)
        if (*from != ((const char *)&two)[(size_t)from % 2])
            return false;
    return true;
}

static void protect(char *from, size_t bytes, int rights)
{
    if (mprotect(from, bytes, rights) != 0)
        fail("mprotect of %zu bytes failed: too many mappings?", bytes);
}

/* The rights of all chunks that hold something. */
static void protect_touched(region &r, int rights)
{
    size_t chunks = r.touched.size();
    for (size_t i = 0, j; i < chunks; i = j + 1) {
        for (j = i; j < chunks && r.touched[j]; j++) {
        }
        if (j > i)
            protect(r.pages + i * CHUNK_BYTES, std::min(j * CHUNK_BYTES, r.page_bytes) - i * CHUNK_BYTES, rights);
    }
}

static void touch(region &r, size_t chunk)
{
    if (r.touched[chunk])
        return;
    char *from = r.pages + chunk * CHUNK_BYTES;
    size_t bytes = std::min((size_t)CHUNK_BYTES, (size_t)(r.pages + r.page_bytes - from));
    protect(from, bytes, PROT_READ | PROT_WRITE);
    poison(from, bytes);
    if (!depth)
        protect(from, bytes, PROT_NONE);
    r.touched[chunk] = true;
}

static std::map<char *, region>::iterator region_of(const void *address)
{
    auto after = regions.upper_bound((char *)address);
    if (after != regions.end() && (const char *)address >= after->second.pages)
        return after; /* before the first byte, in the same page */
    return after == regions.begin() ? regions.end() : std::prev(after);
}

bool touch_on_fault(const void *address)
{
    auto found = region_of(address);
    if (!depth || found == regions.end())
        return false;
    region &r = found->second;
    size_t offset = (size_t)((const char *)address - r.pages);
    if (offset >= r.page_bytes || r.touched[offset / CHUNK_BYTES])
        return false;
    touch(r, offset / CHUNK_BYTES);
    return true;
}

void device_open()
{
    initialise();
    if (depth++ == 0)
        for (auto &[memory, r] : regions)
            protect_touched(r, PROT_READ | PROT_WRITE);
}

static void check_guards(char *memory, const region &r, const char *what)
{
    if (r.touched.front() && !poisoned(r.pages, memory))
        fail("%s wrote before the first byte of an allocation of %zu bytes", what, r.bytes);
    if (r.touched.back() && !poisoned(memory + r.bytes, r.pages + r.page_bytes))
        fail("%s wrote past the end of an allocation of %zu bytes", what, r.bytes);
}

void device_close(const char *what)
{
    if (what)
        for (auto &[memory, r] : regions)
            check_guards(memory, r, what);
    if (--depth == 0)
        for (auto &[memory, r] : regions)
            protect_touched(r, PROT_NONE);
}

bool device_is_open()
{
    return depth > 0;
}

bool device_address(const void *address)
{
    return arena && (const char *)address >= arena && (const char *)address < arena + ARENA_BYTES;
}

bool device_range(const void *address, size_t bytes)
{
    auto after = regions.upper_bound((char *)address);
    if (after == regions.begin())
        return false;
    const auto &[memory, r] = *std::prev(after);
    size_t offset = (size_t)((const char *)address - memory);
    return offset <= r.bytes && bytes <= r.bytes - offset;
}

void device_bounds(const void *address, const char **low, const char **high)
{
    const auto &[memory, r] = *std::prev(regions.upper_bound((char *)address));
    *low = memory;
    *high = memory + r.bytes;
}

bool pinned_range(const void *address, size_t bytes)
{
    auto after = pinned.upper_bound((char *)address);
    if (after == pinned.begin())
        return false;
    const auto &[memory, size] = *std::prev(after);
    size_t offset = (size_t)((const char *)address - memory);
    return offset <= size && bytes <= size - offset;
}

std::string describe(const void *address)
{
    auto found = region_of(address);
    if (found == regions.end())
        return "memory that is not allocated";
    const auto &[memory, r] = *found;
    long offset = (long)((const char *)address - memory);
    if ((const char *)address >= r.pages + r.page_bytes + PAGE_BYTES)
        return "memory that is not allocated (never, or no longer)";
    return "byte " + std::to_string(offset) + " of an allocation of " + std::to_string(r.bytes) + " bytes";
}

/* A place for so many pages between two that stay closed. */
static char *place(size_t page_bytes, size_t alignment)
{
    for (int round = 0; round < 2; round++, cursor = arena)
        while (cursor + page_bytes + alignment + 2 * PAGE_BYTES <= arena + ARENA_BYTES) {
            char *pages = cursor + PAGE_BYTES;
            pages += -(size_t)pages % alignment;
            char *end = pages + page_bytes;
            auto next = regions.lower_bound(pages);
            if (next != regions.begin() && std::prev(next)->second.pages + std::prev(next)->second.page_bytes >= pages)
                next--;
            if (next == regions.end() || next->second.pages > end) {
                cursor = end;
                return pages;
            }
            cursor = next->second.pages + next->second.page_bytes;
        }
    return nullptr;
}

} // namespace standin

using namespace standin;

void standin_capacity(size_t bytes)
{
    capacity = bytes;
}

size_t standin_live_bytes(void)
{
    size_t bytes = 0;
    for (const auto &[memory, r] : regions)
        bytes += r.bytes;
    for (const auto &[memory, size] : pinned)
        bytes += size;
    return bytes;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    initialise();
    cudaError_t error = check_capture();
    if (error != cudaSuccess)
        return result(error);
    if (!memory)
        return result(cudaErrorInvalidValue);
    *memory = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!allocation_allowed() || rounded < bytes || used_bytes > capacity || rounded > capacity - used_bytes)
        return result(cudaErrorMemoryAllocation);
    size_t page_bytes = (rounded + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    size_t divisor = rounded & -rounded; /* a size in whole pages begins at one, as the driver's 2 MiB pages do */
    char *pages = place(page_bytes, std::clamp(divisor, (size_t)PAGE_BYTES, (size_t)BIG_PAGE_BYTES));
    if (!pages)
        return result(cudaErrorMemoryAllocation);
    char *address = pages + page_bytes - rounded;
    region &r = regions[address];
    r = {pages, page_bytes, bytes, std::vector<bool>((page_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES)};
    used_bytes += rounded;
    object_count(1);
    cupti_memory(true, address, bytes);
    *memory = address;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    if (!memory)
        return cudaSuccess;
    cudaError_t error = check_capture();
    if (error == cudaSuccess)
        error = drain_all();
    auto found = regions.find((char *)memory);
    if (error == cudaSuccess && found == regions.end())
        error = cudaErrorInvalidValue;
    if (error != cudaSuccess)
        return result(error);
    region &r = found->second;
    if (mmap(r.pages, r.page_bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) ==
        MAP_FAILED) /* as it was before: the mapping becomes one with its neighbours */
        fail("cannot give pages back");
    used_bytes -= (r.bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    cupti_memory(false, memory, r.bytes);
    regions.erase(found);
    object_count(-1);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    cudaError_t error = check_capture();
    if (error != cudaSuccess)
        return result(error);
    if (!memory)
        return result(cudaErrorInvalidValue);
    *memory = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    void *pages =
        allocation_allowed() ? aligned_alloc(PAGE_BYTES, (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES) : nullptr;
    if (!pages)
        return result(cudaErrorMemoryAllocation);
    poison(pages, bytes);
    pinned[(char *)pages] = bytes;
    object_count(1);
    *memory = pages;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    return cudaMallocHost(memory, bytes);
}

cudaError_t cudaFreeHost(void *memory)
{
    if (!memory)
        return cudaSuccess;
    cudaError_t error = check_capture();
    if (error == cudaSuccess)
        error = drain_all();
    if (error == cudaSuccess && !pinned.erase((char *)memory))
        error = cudaErrorInvalidValue;
    if (error != cudaSuccess)
        return result(error);
    free(memory);
    object_count(-1);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    initialise();
    *free_bytes = capacity > used_bytes ? capacity - used_bytes : 0;
    *total_bytes = capacity;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, (void *)pointer};
    if (device_range(pointer, 0))
        *attributes = {cudaMemoryTypeDevice, 0, (void *)pointer, nullptr};
    else if (pinned_range(pointer, 0))
        *attributes = {cudaMemoryTypeHost, 0, (void *)pointer, (void *)pointer};
    return cudaSuccess;
}
