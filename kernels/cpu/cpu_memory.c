/* Memory of the CPU device: pages from the system, and what the system says about them. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A huge page of x86-64, and of aarch64 with pages of 4 KiB. An allocation of at least one starts on such a boundary,
   and what whole ones cover may be huge: once all of it is written, the resident bytes are those of small pages. */
static const size_t huge_page_bytes = (size_t)2 << 20;

/* From here on a request is held against what is free. */
static const size_t checked_from_bytes = (size_t)16 << 20;

/* The number after `key` at the start of a line ("MemAvailable:   123 kB" gives 123). Returns 0, or -1. */
static int read_key(const char *path, const char *key, uint64_t *value)
{
    char line[256];
    int result = -1;
    FILE *file = fopen(path, "r");
    if (!file)
        return -1;
    while (result != 0 && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), " %" SCNu64, value) == 1)
            result = 0;
    }
    fclose(file);
    return result;
}

/* What one control group leaves: its limit, its use without cached files that could be dropped. */
struct group_files {
    const char *limit, *usage, *reclaimable;
};
static const struct group_files version1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
static const struct group_files version2 = {"memory.max", "memory.current", "inactive_file"};

static void limit_by_group(const char *folder, const struct group_files *files, uint64_t *total, uint64_t *available)
{
    char path[1200];
    uint64_t limit, usage, reclaimable;
    snprintf(path, sizeof path, "%s/%s", folder, files->limit);
    if (read_key(path, "", &limit) != 0) /* absent, or "max" */
        return;
    if (limit < *total)
        *total = limit;
    snprintf(path, sizeof path, "%s/%s", folder, files->usage);
    if (read_key(path, "", &usage) != 0)
        return;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (read_key(path, files->reclaimable, &reclaimable) != 0)
        reclaimable = 0;
    usage = usage > reclaimable ? usage - reclaimable : 0;
    uint64_t left = limit > usage ? limit - usage : 0;
    if (left < *available)
        *available = left;
}

/* The group itself and all above it: each one's limit holds. In a container the path may not be visible, its root is.
 */
static void limit_by_groups(const char *root, const char *group, const struct group_files *files, uint64_t *total,
                            uint64_t *available)
{
    char folder[1024];
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", root, group) >= sizeof folder)
        return;
    for (;;) {
        limit_by_group(folder, files, total, available);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < strlen(root))
            return;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup: "0::/path" (version 2), "4:memory:/path" (version 1). */
static void limit_by_own_groups(uint64_t *total, uint64_t *available)
{
    char line[1024];
    FILE *file = fopen("/proc/self/cgroup", "r");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        if (controllers[1] == '\0')
            limit_by_groups("/sys/fs/cgroup", group, &version2, total, available);
        else if (strstr(controllers + 1, "memory"))
            limit_by_groups("/sys/fs/cgroup/memory", group, &version1, total, available);
    }
    fclose(file);
}

static int read_memory(uint64_t *total, uint64_t *available)
{
    if (read_key("/proc/meminfo", "MemTotal:", total) != 0 ||
        read_key("/proc/meminfo", "MemAvailable:", available) != 0)
        return -1;
    *total *= 1024;
    *available *= 1024;
    limit_by_own_groups(total, available);
    return 0;
}

uint64_t cpu_total_bytes(void)
{
    uint64_t total, available;
    return read_memory(&total, &available) == 0 ? total : 0;
}

/* Resident bytes: smaps_rollup counts the page tables now, while statm lags behind by up to a batch of pages per CPU.
 */
static int read_resident(uint64_t *bytes)
{
    if (read_key("/proc/self/smaps_rollup", "Rss:", bytes) == 0) {
        *bytes *= 1024;
        return 0;
    }
    uint64_t size, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file)
        return -1;
    int fields = fscanf(file, "%" SCNu64 " %" SCNu64, &size, &pages);
    fclose(file);
    if (fields != 2)
        return -1;
    *bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return 0;
}

enum status cpu_memory(struct device *device, struct device_memory *memory, struct error *error)
{
    (void)device;
    uint64_t total;
    memset(memory, 0, sizeof *memory);
    if (read_memory(&total, &memory->free_bytes) != 0)
        return error_set(error, STATUS_DEVICE, "device cpu: /proc/meminfo has no MemAvailable; is /proc mounted?");
    memory->process_known = read_resident(&memory->process_bytes) == 0;
    return STATUS_OK;
}

static enum status refuse(size_t bytes, uint64_t available, const char *reason, struct error *error)
{
    return error_set(error, STATUS_DEVICE,
                     "device cpu: cannot allocate %zu bytes (%.1f MiB): %s; %" PRIu64 " bytes (%.1f MiB) are free",
                     bytes, (double)bytes / 0x1p20, reason, available, (double)available / 0x1p20);
}

/* `bytes`, a multiple of pages, on a boundary of huge pages: mapped with one more, and trimmed. MAP_FAILED where
   there is no room. */
static void *map_huge(size_t bytes)
{
    char *mapped = mmap(NULL, bytes + huge_page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return MAP_FAILED;
    size_t before = cpu_round_up((size_t)mapped, huge_page_bytes) - (size_t)mapped;
    if ((before > 0 && munmap(mapped, before) != 0) || munmap(mapped + before + bytes, huge_page_bytes - before) != 0) {
        (void)munmap(mapped, bytes + huge_page_bytes);
        return MAP_FAILED;
    }
    /* A wish: kernels without them refuse. */
    (void)madvise(mapped + before, bytes / huge_page_bytes * huge_page_bytes, MADV_HUGEPAGE);
    return mapped + before;
}

/* The system promises more than it has, and ends the process when the pages are touched: so a large request is held
   against what is free before it is made. */
enum status cpu_alloc(struct device *device, size_t bytes, void **memory, struct error *error)
{
    uint64_t total, available = 0;
    *memory = NULL;
    if (bytes >= checked_from_bytes && read_memory(&total, &available) == 0 && bytes > available)
        return refuse(bytes, available, "not enough memory", error);
    size_t mapped = cpu_round_up(bytes, device->info.page_bytes);
    const bool reachable = mapped >= bytes && mapped <= SIZE_MAX - huge_page_bytes;
    void *pages = MAP_FAILED;
    if (reachable)
        pages = mapped >= huge_page_bytes
                    ? map_huge(mapped)
                    : mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        const char *reason = reachable ? strerror(errno) : "more than an address can reach";
        if (read_memory(&total, &available) != 0)
            available = 0;
        return refuse(bytes, available, reason, error);
    }
    *memory = pages;
    return STATUS_OK;
}

void cpu_release(struct device *device, void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, cpu_round_up(bytes, device->info.page_bytes));
}
