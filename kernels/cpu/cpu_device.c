/* The CPU device: opening, what it is, copies, events. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct device_event {
    struct timespec at;
};

static enum status cpu_copy(struct device *device, void *to, const void *from, size_t bytes, struct error *error)
{
    (void)error;
    const size_t chunk = (size_t)4 << 20;
    long chunks = (long)((bytes + chunk - 1) / chunk);
#pragma omp parallel for schedule(static) num_threads(cpu_of(device)->threads) if (chunks > 1)
    for (long i = 0; i < chunks; i++) {
        size_t offset = (size_t)i * chunk, left = bytes - offset;
        memcpy((char *)to + offset, (const char *)from + offset, left < chunk ? left : chunk);
    }
    return STATUS_OK;
}

static void cpu_set_workspace(struct device *device, void *memory, size_t bytes)
{
    cpu_of(device)->workspace = memory;
    cpu_of(device)->workspace_bytes = bytes;
}

static size_t cpu_workspace_bytes(struct device *device, const struct workspace_shape *shape)
{
    size_t linear = cpu_linear_workspace(cpu_of(device), shape);
    size_t attention = cpu_attention_workspace(cpu_of(device), shape);
    return linear > attention ? linear : attention;
}

/* Operations are done as they are called: nothing to record. */
static enum status cpu_pass_begin(struct device *device, const struct device_pass *shape, int *replayed,
                                  struct error *error)
{
    (void)device;
    (void)shape;
    (void)error;
    *replayed = 0;
    return STATUS_OK;
}

static enum status cpu_pass_end(struct device *device, enum status so_far, struct error *error)
{
    (void)device;
    (void)error;
    return so_far;
}

static enum status cpu_event_create(struct device *device, struct device_event **event, struct error *error)
{
    (void)device;
    *event = calloc(1, sizeof **event);
    return *event ? STATUS_OK : error_set(error, STATUS_DEVICE, "cpu event: out of memory");
}

static void cpu_event_destroy(struct device *device, struct device_event *event)
{
    (void)device;
    free(event);
}

/* Operations are done when they return, so an event is just the time. */
static enum status cpu_event_record(struct device *device, struct device_event *event, struct error *error)
{
    (void)device;
    if (clock_gettime(CLOCK_MONOTONIC, &event->at) != 0)
        return error_set(error, STATUS_DEVICE, "cpu event: CLOCK_MONOTONIC cannot be read");
    return STATUS_OK;
}

static enum status cpu_event_elapsed(struct device *device, struct device_event *start, struct device_event *end,
                                     double *ms, struct error *error)
{
    (void)device;
    (void)error;
    *ms = (double)(end->at.tv_sec - start->at.tv_sec) * 1e3 + (double)(end->at.tv_nsec - start->at.tv_nsec) * 1e-6;
    return STATUS_OK;
}

static enum status cpu_synchronize(struct device *device, struct error *error)
{
    (void)device;
    (void)error;
    return STATUS_OK;
}

static void cpu_close(struct device *device)
{
    cpu_matrix_free(cpu_of(device)->matrix);
    free(device);
}

static const struct device_ops operations = {
    .alloc = cpu_alloc,
    .release = cpu_release,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy = cpu_copy,
    .memory = cpu_memory,
    .fill_random = cpu_fill_random,
    .fill_value = cpu_fill_value,
    .workspace_bytes = cpu_workspace_bytes,
    .set_workspace = cpu_set_workspace,
    .pass_begin = cpu_pass_begin,
    .pass_end = cpu_pass_end,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_elapsed_ms = cpu_event_elapsed,
    .synchronize = cpu_synchronize,
    .embed = cpu_embed,
    .rms_norm = cpu_rms_norm,
    .linear = cpu_linear,
    .rope_table = cpu_rope_table,
    .rope_store = cpu_rope_store,
    .attention = cpu_attention,
    .attention_mass = cpu_attention_mass,
    .kv_move = cpu_kv_move,
    .swiglu = cpu_swiglu,
    .argmax = cpu_argmax,
    .sample = cpu_sample,
    .read_bytes = cpu_read_bytes,
    .close = cpu_close,
};

/* "model name : AMD EPYC 9R14 96-Core Processor" of /proc/cpuinfo; aarch64 has no such line. */
static void read_name(char *name, size_t size)
{
    char line[512];
#if defined(__aarch64__)
    snprintf(name, size, "aarch64 processor");
#else
    snprintf(name, size, "unknown processor");
#endif
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon[1 + strcspn(colon + 1, "\n")] = '\0';
        snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    fclose(file);
}

/* The largest cache that the first processor reports, as "32768K"; 0 where the system does not say. */
static size_t last_level_cache(void)
{
    size_t largest = 0;
    for (int index = 0; index < 8; index++) {
        char path[96];
        unsigned long kilobytes;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        FILE *file = fopen(path, "r");
        if (!file)
            break;
        if (fscanf(file, "%luK", &kilobytes) == 1 && kilobytes * 1024 > largest)
            largest = kilobytes * 1024;
        fclose(file);
    }
    return largest;
}

static void fill_info(struct cpu_device *cpu)
{
    struct device_info *info = &cpu->base.info;
    char matrix[64];
    cpu_matrix_name(matrix, sizeof matrix);
    snprintf(info->kind, sizeof info->kind, "cpu");
    read_name(info->name, sizeof info->name);
    snprintf(info->features, sizeof info->features, "%s; matrix products: %s", cpu->hot->name, matrix);
    info->threads = cpu->threads;
    info->l2_bytes = last_level_cache();
    info->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    info->total_bytes = cpu_total_bytes();
}

static void *wait_at_gate(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* Can that many threads be at a time? OpenMP ends the process where they cannot, so it is tried first. */
static enum status check_threads(int threads, struct error *error)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *made = calloc((size_t)threads, sizeof *made);
    int count = 1, failed = made ? 0 : ENOMEM; /* the one that asks is there already */
    pthread_mutex_lock(&gate);
    while (!failed && count < threads) {
        failed = pthread_create(&made[count], NULL, wait_at_gate, &gate);
        count += !failed;
    }
    pthread_mutex_unlock(&gate);
    for (int i = 1; i < count; i++)
        pthread_join(made[i], NULL);
    pthread_mutex_destroy(&gate);
    free(made);
    if (!failed)
        return STATUS_OK;
    return error_set(error, STATUS_DEVICE, "device cpu: only %d of %d threads can be made here: %s; give --threads %d",
                     count, threads, strerror(failed), count > 2 ? count / 2 : 1);
}

enum status cpu_open(int threads, struct device **device, struct error *error)
{
    const struct cpu_hot *hot;
    enum status status = cpu_hot_choose(&hot, error);
    if (status != STATUS_OK)
        return status;
    struct device_memory before = {0};
    if (cpu_memory(NULL, &before, error) != STATUS_OK)
        return error->status;
    threads = threads > 0 ? threads : omp_get_num_procs(); /* the latter heeds the affinity mask */
    status = check_threads(threads, error);
    if (status != STATUS_OK)
        return status;
    struct cpu_device *cpu = calloc(1, sizeof *cpu);
    struct cpu_matrix *matrix = cpu_matrix_new();
    if (!cpu || !matrix) {
        free(cpu);
        cpu_matrix_free(matrix);
        return error_set(error, STATUS_DEVICE, "device cpu: out of memory");
    }
    cpu->base.ops = &operations;
    cpu->base.graphs = 1;
    cpu->hot = hot;
    cpu->matrix = matrix;
    cpu->threads = threads;
    fill_info(cpu);
    cpu->base.info.before = before;
    *device = &cpu->base;
    return STATUS_OK;
}
