/* Filling memory with values, and reading it as fast as the machine can. */
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Values per piece of work: a huge page of 16-bit ones or more, so that threads fault in pages of their own. Divides
   2^32, so that no piece crosses a counter's half. */
enum { FILL_CHUNK = 1 << 20 };

enum status cpu_fill_random(struct device *device, void *values, enum dtype dtype, size_t count, uint64_t seed,
                            float scale, struct error *error)
{
    const struct cpu_device *cpu = cpu_of(device);
    if (!(fabsf(scale) > 0.0f) || isinf(scale))
        return error_set(error, STATUS_INPUT, "fill_random: scale %g would not give random values", (double)scale);
    long chunks = (long)((count + FILL_CHUNK - 1) / FILL_CHUNK);
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu->threads) if (chunks > 1)
    for (long i = 0; i < chunks; i++) {
        size_t first = (size_t)i * FILL_CHUNK, left = count - first;
        cpu->hot->random((char *)values + first * dtype_size(dtype), dtype, first,
                         left < FILL_CHUNK ? left : FILL_CHUNK, seed, scale);
    }
    return STATUS_OK;
}

enum status cpu_fill_value(struct device *device, void *values, enum dtype dtype, size_t count, float value,
                           struct error *error)
{
    (void)error;
    size_t size = dtype_size(dtype);
    char pattern[4096];
    for (size_t i = 0; i < sizeof pattern / size; i++)
        dtype_store(dtype, pattern, i, value);
    long chunks = (long)((count * size + sizeof pattern - 1) / sizeof pattern);
#pragma omp parallel for schedule(static) num_threads(cpu_of(device)->threads) if (chunks > 64)
    for (long i = 0; i < chunks; i++) {
        size_t offset = (size_t)i * sizeof pattern, left = count * size - offset;
        memcpy((char *)values + offset, pattern, left < sizeof pattern ? left : sizeof pattern);
    }
    return STATUS_OK;
}

/* Each thread reads its own contiguous share as four streams side by side: more misses in flight than one stream's
   prefetcher asks for. Bytes moved: `bytes`, read once. */
enum status cpu_read_bytes(struct device *device, const void *memory, size_t bytes, uint64_t *checksum,
                           struct error *error)
{
    const struct cpu_device *cpu = cpu_of(device);
    (void)error;
    assert(bytes % 4096 == 0);
    const size_t unit = 4 * 1024; /* four streams of 1024 bytes */
    long threads = cpu->threads, units = (long)(bytes / unit);
    uint64_t total = 0;
#pragma omp parallel for schedule(static) num_threads(cpu->threads) reduction(+ : total)
    for (long t = 0; t < threads; t++) {
        size_t first = (size_t)(units * t / threads), end = (size_t)(units * (t + 1) / threads);
        size_t stream = (end - first) * (unit / 4);
        total += cpu->hot->read4((const char *)memory + first * unit, stream, stream);
    }
    *checksum = total;
    return STATUS_OK;
}
