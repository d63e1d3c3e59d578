/* Which variant of the hot loops to use. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Asked of the processor itself: not every compiler's __builtin_cpu_supports() knows "f16c". */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
static bool has_avx512bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#else
static bool has_avx2(void)
{
    return false;
}
static bool has_avx512(void)
{
    return false;
}
static bool has_avx512bf16(void)
{
    return false;
}
#endif
static bool has_portable(void)
{
    return true;
}

enum status cpu_hot_choose(const struct cpu_hot **hot, struct error *error)
{
    /* Best first. */
    const struct {
        const char *name;
        const struct cpu_hot *table;
        bool (*has)(void);
    } variants[] = {{"avx512_bf16", hot_avx512bf16, has_avx512bf16},
                    {"avx512", hot_avx512, has_avx512},
                    {"avx2", hot_avx2, has_avx2},
                    {"portable", hot_portable, has_portable}};
    const char *wanted = getenv("KVLAB_CPU");
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        bool usable = variants[i].table && variants[i].has();
        if (wanted && *wanted && strcmp(wanted, variants[i].name) != 0)
            continue;
        if (usable) {
            *hot = variants[i].table;
            return STATUS_OK;
        }
        if (wanted && *wanted)
            return error_set(error, STATUS_INPUT, "KVLAB_CPU=%s: this processor has no such instructions; unset it",
                             wanted);
    }
    return error_set(error, STATUS_INPUT, "KVLAB_CPU=%s: unknown; use avx512_bf16, avx512, avx2 or portable", wanted);
}
