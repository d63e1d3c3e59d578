/* Every access of a kernel, checked. Kernels compiled with -fsanitize=kernel-address call one of the functions below
   before each load and store (compiler's documented interface for a kernel that brings its own checks), and with
   -fsanitize=alignment before each use of a misaligned address, which a GPU refuses. Not used together with
   AddressSanitizer, which then checks in its own way; the pages' rights, guard bytes and poison are checked always. */
#include "internal.h"
#include "memory.h"

#include <dlfcn.h>

namespace standin
{

static const char *low, *high; /* the allocation touched last */

void check_begin_launch()
{
    low = high = nullptr; /* it may have been freed */
}

/* " at program+0x12ab": what addr2line -e program 0x12ab turns into a file and line. */
static std::string place_of(const void *pc)
{
    Dl_info info;
    char text[512] = "";
    if (dladdr(pc, &info) && info.dli_fname)
        snprintf(text, sizeof text, " (addr2line -e %s %#zx)", info.dli_fname,
                 (size_t)((const char *)pc - 1 - (const char *)info.dli_fbase));
    return text;
}

/* Memory never written holds poison in all of an aligned word. */
static bool unwritten(const char *address, size_t bytes)
{
    const uint32_t expected = STANDIN_POISON * 0x10001u;
    if (bytes < 2)
        return false;
    uint32_t word;
    memcpy(&word, address - (size_t)address % 4, sizeof word);
    return word == expected;
}

[[maybe_unused]] static void check(const void *at, size_t bytes, bool store, const void *pc)
{
    const char *address = (const char *)at;
    bool guard;
    if (!running() || stack_address(address, &guard))
        return;
    const char *verb = store ? "writes" : "reads";
    bool shared = shared_address(address);
    if (!shared && !(address >= low && address + bytes <= high)) {
        if (device_address(address)) {
            if (!device_range(address, bytes))
                fail("%s %zu bytes at %p: %s%s", verb, bytes, address, describe(address).c_str(), place_of(pc).c_str());
            device_bounds(address, &low, &high);
        } else {
            if (!pinned_range(address, bytes) && !program_address(address) && !running()->holds(address))
                fail("%s host memory at %p%s", verb, address, place_of(pc).c_str());
            return;
        }
    }
    if (!store && unwritten(address, bytes))
        fail("reads %s never written, at %p%s%s", shared ? "shared memory" : "memory", address,
             shared ? "" : (": " + describe(address)).c_str(), place_of(pc).c_str());
}

} // namespace standin

#ifndef __SANITIZE_ADDRESS__
using standin::check;

extern "C" {
#define ACCESS(bytes)                                                                                                  \
    void __asan_load##bytes##_noabort(void *address)                                                                   \
    {                                                                                                                  \
        check(address, bytes, false, __builtin_return_address(0));                                                     \
    }                                                                                                                  \
    void __asan_store##bytes##_noabort(void *address)                                                                  \
    {                                                                                                                  \
        check(address, bytes, true, __builtin_return_address(0));                                                      \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __asan_loadN_noabort(void *address, size_t bytes)
{
    check(address, bytes, false, __builtin_return_address(0));
}
void __asan_storeN_noabort(void *address, size_t bytes)
{
    check(address, bytes, true, __builtin_return_address(0));
}
void __asan_handle_no_return(void)
{
}

/* What the compiler passes: where the access is, and what for. */
struct standin_misaligned {
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log2_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1_abort(const standin_misaligned *access, const void *address)
{
    standin::fail("%s:%u: the address %p is not a multiple of %u", access->file, access->line, address,
                  1u << access->log2_alignment);
}
}
#endif
