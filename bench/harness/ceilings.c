/* Ceilings: the fastest that this device reads, copies and multiplies, measured by itself in the run that is compared
   with them. Best of several passes: a ceiling is what is possible, not what is usual. */
#include "bench/harness/bench.h"

#include <inttypes.h>
#include <stdio.h>

enum { READ_PASSES = 10, MATRIX_PASSES = 5, FEWEST_PASSES = 3, MOST_PASSES = 200 };
static const double enough_ms = 2000; /* after the fewest passes, no more than this in all */

/* One buffer of `other` memory, full of random numbers, and the two events around a pass. */
struct probe {
    struct bench *bench;
    struct device *device;
    void *memory;
    uint64_t bytes;
    struct device_event *start, *end;
    double best_ms, second_ms, spent_ms; /* the two fastest passes, and all together */
    int passes;
};

static void probe_close(struct probe *probe)
{
    if (probe->start)
        probe->device->ops->event_destroy(probe->device, probe->start);
    if (probe->end)
        probe->device->ops->event_destroy(probe->device, probe->end);
    ledger_release(probe->bench->ledger, probe->memory);
}

static enum status probe_open(struct probe *probe, struct bench *bench, uint64_t bytes, enum dtype dtype,
                              const char *what, struct error *error)
{
    *probe = (struct probe){.bench = bench, .device = bench->device, .bytes = bytes};
    const struct device_ops *ops = bench->device->ops;
    enum status status = ledger_alloc(bench->ledger, LEDGER_OTHER, bytes, what, &probe->memory, error);
    if (!status) /* writing makes every page resident, and values that differ keep the data real */
        status = ops->fill_random(bench->device, probe->memory, dtype, bytes / dtype_size(dtype), 1, 1.0f, error);
    if (!status)
        status = ops->event_create(bench->device, &probe->start, error);
    if (!status)
        status = ops->event_create(bench->device, &probe->end, error);
    if (status)
        probe_close(probe);
    return status;
}

/* Times one pass; the first one warms up. */
static enum status probe_pass(struct probe *probe, enum status (*pass)(struct probe *, void *, struct error *),
                              void *argument, struct error *error)
{
    const struct device_ops *ops = probe->device->ops;
    double ms = 0;
    enum status status = ops->event_record(probe->device, probe->start, error);
    if (!status)
        status = pass(probe, argument, error);
    if (!status)
        status = ops->event_record(probe->device, probe->end, error);
    if (!status)
        status = ops->event_elapsed_ms(probe->device, probe->start, probe->end, &ms, error);
    if (!status && probe->passes++ > 0) {
        double slower = ms > probe->best_ms ? ms : probe->best_ms;
        if (probe->best_ms == 0 || ms < probe->best_ms)
            probe->best_ms = ms;
        if (probe->passes > 2 && (probe->second_ms == 0 || slower < probe->second_ms))
            probe->second_ms = slower;
    }
    probe->spent_ms += ms;
    return status;
}

/* At least `fewest` passes; then on until the best one has been seen twice within 1 %, so that a machine that others
   disturb is watched longer, and for no more than enough_ms in all. */
static enum status probe_run(struct probe *probe, enum status (*pass)(struct probe *, void *, struct error *),
                             void *argument, int fewest, struct error *error)
{
    enum status status = STATUS_OK;
    for (int i = 0; i <= MOST_PASSES && !status; i++) {
        bool settled = i > fewest && probe->second_ms <= 1.01 * probe->best_ms;
        if (settled || (i > FEWEST_PASSES && probe->spent_ms > enough_ms))
            break;
        status = probe_pass(probe, pass, argument, error);
    }
    if (!status && probe->best_ms <= 0)
        status =
            error_set(error, STATUS_DEVICE, "ceiling: the device's clock did not move in %d passes", probe->passes);
    return status;
}

/* Bytes far beyond the last-level cache: what it may still hold from the pass before must not count. 1 GiB (256 MiB
   when quick), or 16 caches where that is more; half of that, and again, down to 4 caches, where memory is short.
   Measured with 32 MiB of cache: 8 caches read 1.2 times as fast as 96. */
static enum status far_bytes(const struct bench *bench, uint64_t *bytes, struct error *error)
{
    struct device_memory memory;
    enum status status = bench->device->ops->memory(bench->device, &memory, error);
    if (status)
        return status;
    uint64_t held = ledger_counts(bench->ledger).live_total, budget = ledger_budget(bench->ledger);
    uint64_t room = budget > held ? budget - held : 0, cache = (uint64_t)bench->device->info.l2_bytes;
    room = memory.free_bytes < room ? memory.free_bytes : room;
    *bytes = bench->options.quick ? (uint64_t)256 << 20 : (uint64_t)1 << 30;
    while (*bytes < 16 * cache)
        *bytes *= 2;
    while (*bytes > room / 2 && *bytes / 2 >= 4 * cache && *bytes > 1 << 20)
        *bytes /= 2;
    if (*bytes > room)
        return error_set(error, STATUS_DEVICE,
                         "ceiling: reading past the %zu byte cache needs %" PRIu64 " bytes, there are %" PRIu64,
                         bench->device->info.l2_bytes, *bytes, room);
    return STATUS_OK;
}

static enum status read_pass(struct probe *probe, void *argument, struct error *error)
{
    return probe->device->ops->read_bytes(probe->device, probe->memory, probe->bytes, argument, error);
}

static enum status copy_pass(struct probe *probe, void *argument, struct error *error)
{
    uint64_t half = probe->bytes / 2;
    (void)argument;
    return probe->device->ops->copy(probe->device, (char *)probe->memory + half, probe->memory, half, error);
}

static enum status memory_ceiling(struct bench *bench, enum status (*pass)(struct probe *, void *, struct error *),
                                  uint64_t share, const char *key, double *gb_per_s, struct error *error)
{
    struct probe probe;
    uint64_t bytes, checksum = 0;
    enum status status = far_bytes(bench, &bytes, error);
    if (!status)
        status = probe_open(&probe, bench, bytes, DTYPE_F32, "the buffer of a ceiling", error);
    if (status)
        return status;
    status = probe_run(&probe, pass, &checksum, READ_PASSES, error);
    if (!status) {
        *gb_per_s = (double)bytes / (double)share / (probe.best_ms * 1e6); /* bytes per ms is kB/s */
        meta_real(bench, key, *gb_per_s);
        meta_int(bench, "ceiling_buffer_bytes", (int64_t)bytes);
    }
    probe_close(&probe);
    return status;
}

enum status bench_read_ceiling(struct bench *bench, double *gb_per_s, struct error *error)
{
    return memory_ceiling(bench, read_pass, 1, "read_ceiling_gb_per_s", gb_per_s, error);
}

enum status bench_copy_ceiling(struct bench *bench, double *gb_per_s, struct error *error)
{
    return memory_ceiling(bench, copy_pass, 2, "copy_ceiling_gb_per_s", gb_per_s, error);
}

static enum status matrix_pass(struct probe *probe, void *argument, struct error *error)
{
    return probe->device->ops->linear(probe->device, argument, error);
}

/* The part of the buffer after `offset` bytes. */
static void *part(const struct probe *probe, uint64_t offset)
{
    return (char *)probe->memory + offset;
}

enum status bench_matrix_ceiling(struct bench *bench, enum dtype dtype, double *tflop_per_s, struct error *error)
{
    struct device *device = bench->device;
    bool gpu = device->info.multiprocessors > 0, quick = bench->options.quick;
    struct linear_args product = {.dtype = dtype, .out_dtype = dtype};
    product.rows = gpu ? 8192 : quick ? 512 : 2048;
    product.in = product.out = gpu ? 8192 : quick ? 2048 : 4096;
    struct workspace_shape shape = {.dtype = dtype,
                                    .kv_dtype = dtype,
                                    .rows = product.rows,
                                    .sequences = 1,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 64,
                                    .hidden = product.in,
                                    .intermediate = product.out,
                                    .vocab = product.out};
    uint64_t value = dtype_size(dtype), rows = (uint64_t)product.rows, width = (uint64_t)product.in;
    uint64_t x_bytes = rows * width * value, weight_bytes = width * width * value, y_bytes = rows * width * value;
    uint64_t scratch_bytes = device->ops->workspace_bytes(device, &shape);
    struct probe probe;
    enum status status = probe_open(&probe, bench, x_bytes + weight_bytes + y_bytes + scratch_bytes, dtype,
                                    "the matrices of a ceiling", error);
    if (status)
        return status;
    product.x = probe.memory;
    product.weight = part(&probe, x_bytes);
    product.y = part(&probe, x_bytes + weight_bytes);
    device->ops->set_workspace(device, part(&probe, x_bytes + weight_bytes + y_bytes), scratch_bytes);
    status = probe_run(&probe, matrix_pass, &product, MATRIX_PASSES, error);
    device->ops->set_workspace(device, NULL, 0);
    if (!status) {
        char key[64];
        snprintf(key, sizeof key, "matrix_ceiling_%s_tflop_per_s", dtype_name(dtype));
        *tflop_per_s = 2.0 * (double)rows * (double)width * (double)width / (probe.best_ms * 1e9);
        meta_real(bench, key, *tflop_per_s);
    }
    probe_close(&probe);
    return status;
}
