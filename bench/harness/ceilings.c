/* Ceilings: the fastest that this device reads, copies and multiplies, measured by itself in the run that is compared
   with them. Best of several passes: a ceiling is what is possible, not what is usual; the median of
   such where it is measured in turn with repetitions, of which some may have had less. */
#include "bench/harness/bench.h"
#include "bench/harness/stats.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { READ_PASSES = 10, MATRIX_PASSES = 5, FEWEST_PASSES = 3, MOST_PASSES = 200 };
enum { SMALLEST_SIDE = 128, LARGEST_SIDE = 32768 }; /* of the matrices; doubled from one to the other */
static const double enough_ms = 2000;               /* after the fewest passes, no more than this in all */

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

/* Bytes that can still be had: of the device, and under the budget. */
static enum status memory_room(const struct bench *bench, uint64_t *room, struct error *error)
{
    struct device_memory memory;
    enum status status = bench->device->ops->memory(bench->device, &memory, error);
    if (status)
        return status;
    uint64_t held = ledger_counts(bench->ledger).live_total, budget = ledger_budget(bench->ledger);
    *room = budget > held ? budget - held : 0;
    *room = memory.free_bytes < *room ? memory.free_bytes : *room;
    return STATUS_OK;
}

/* Bytes far beyond the last-level cache: what it may still hold from the pass before must not count. 1 GiB (256 MiB
   when quick), or 16 caches where that is more; half of that, and again, down to 4 caches, where memory is short.
   Measured with 32 MiB of cache: 8 caches read 1.2 times as fast as 96. */
static enum status far_bytes(const struct bench *bench, uint64_t *bytes, struct error *error)
{
    uint64_t room, cache = (uint64_t)bench->device->info.l2_bytes;
    enum status status = memory_room(bench, &room, error);
    if (status)
        return status;
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

/* ---- the read ceiling in turn with other things */

enum { READER_SAMPLES = 1024 }; /* further ones take the place of the first */

struct bench_reader {
    struct probe probe;
    uint64_t checksum;
    size_t count;
    double gb_per_s[READER_SAMPLES];
};

enum status bench_reader_open(struct bench *bench, struct bench_reader **reader, struct error *error)
{
    uint64_t bytes;
    *reader = NULL;
    if (far_bytes(bench, &bytes, error) != STATUS_OK)
        return error->status;
    struct bench_reader *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return error_set(error, STATUS_DEVICE, "ceiling: out of host memory");
    if (probe_open(&opened->probe, bench, bytes, DTYPE_F32, "the buffer of a ceiling", error) != STATUS_OK) {
        free(opened);
        return error->status;
    }
    meta_int(bench, "ceiling_buffer_bytes", (int64_t)bytes);
    *reader = opened;
    return STATUS_OK;
}

enum status bench_reader_sample(struct bench_reader *reader, struct error *error)
{
    struct probe *probe = &reader->probe;
    probe->best_ms = probe->second_ms = probe->spent_ms = 0;
    for (int i = probe->passes > 0; i <= FEWEST_PASSES; i++) /* the first of all warms up */
        if (probe_pass(probe, read_pass, &reader->checksum, error) != STATUS_OK)
            return error->status;
    if (probe->best_ms <= 0)
        return error_set(error, STATUS_DEVICE, "ceiling: the device's clock did not move in %d passes", FEWEST_PASSES);
    reader->gb_per_s[reader->count++ % READER_SAMPLES] = (double)probe->bytes / (probe->best_ms * 1e6);
    return STATUS_OK;
}

double bench_reader_gbps(const struct bench_reader *reader)
{
    assert(reader->count > 0);
    double median =
        stats_median(reader->gb_per_s, reader->count < READER_SAMPLES ? reader->count : (size_t)READER_SAMPLES);
    meta_real(reader->probe.bench, "read_ceiling_gb_per_s", median);
    return median;
}

void bench_reader_close(struct bench_reader *reader)
{
    if (reader != NULL)
        probe_close(&reader->probe);
    free(reader);
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

/* A product of two square matrices of `side`, in a probe of its own, with the scratch that the device asks for. */
struct product {
    struct probe probe;
    struct linear_args args;
    int side;
};

static uint64_t product_bytes(struct device *device, enum dtype dtype, int side, uint64_t *scratch_bytes)
{
    struct workspace_shape shape = {.dtype = dtype,
                                    .kv_dtype = dtype,
                                    .rows = side,
                                    .sequences = 1,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 64,
                                    .hidden = side,
                                    .intermediate = side,
                                    .vocab = side};
    *scratch_bytes = device->ops->workspace_bytes(device, &shape);
    return 3 * (uint64_t)side * (uint64_t)side * dtype_size(dtype) + *scratch_bytes;
}

static enum status product_open(struct product *product, struct bench *bench, enum dtype dtype, int side,
                                struct error *error)
{
    uint64_t matrix_bytes = (uint64_t)side * (uint64_t)side * dtype_size(dtype), scratch_bytes;
    uint64_t bytes = product_bytes(bench->device, dtype, side, &scratch_bytes);
    if (probe_open(&product->probe, bench, bytes, dtype, "the matrices of a ceiling", error) != STATUS_OK)
        return error->status;
    product->side = side;
    product->args = (struct linear_args){.dtype = dtype,
                                         .out_dtype = dtype,
                                         .rows = side,
                                         .in = side,
                                         .out = side,
                                         .x = product->probe.memory,
                                         .weight = part(&product->probe, matrix_bytes),
                                         .y = part(&product->probe, 2 * matrix_bytes)};
    bench->device->ops->set_workspace(bench->device, part(&product->probe, 3 * matrix_bytes), scratch_bytes);
    return STATUS_OK;
}

static void product_close(struct product *product)
{
    struct device *device = product->probe.device;
    device->ops->set_workspace(device, NULL, 0);
    probe_close(&product->probe);
}

/* FLOP per ms: multiplications and additions. */
static double product_rate(const struct product *product)
{
    double side = product->side;
    return 2.0 * side * side * side / product->probe.best_ms;
}

/* The smallest product whose pass takes long enough to be timed and to fill the device, or the largest that memory
   holds: the same product takes one device microseconds, most of them the launch, and another seconds. A rate that
   still rises says that the time was not the product's: on a busy machine also a small one waits for its threads. */
static enum status product_grow(struct product *product, struct bench *bench, enum dtype dtype, struct error *error)
{
    double long_enough_ms = bench->options.quick ? 2 : 20, smaller_rate = 0;
    for (int side = SMALLEST_SIDE;; side *= 2) {
        uint64_t room, scratch_bytes;
        if (product_open(product, bench, dtype, side, error) != STATUS_OK)
            return error->status;
        enum status status = memory_room(bench, &room, error);
        for (int i = 0; i < 3 && !status; i++) /* the first warms up */
            status = probe_pass(&product->probe, matrix_pass, &product->args, error);
        bool settled = product->probe.best_ms >= long_enough_ms && product_rate(product) < 1.5 * smaller_rate;
        if (!status && (settled || side == LARGEST_SIDE ||
                        product_bytes(bench->device, dtype, 2 * side, &scratch_bytes) > room / 2))
            return STATUS_OK;
        smaller_rate = product_rate(product);
        product_close(product);
        if (status)
            return status;
    }
}

enum status bench_matrix_ceiling(struct bench *bench, enum dtype dtype, double *tflop_per_s, struct error *error)
{
    struct product product;
    enum status status = product_grow(&product, bench, dtype, error);
    if (status)
        return status;
    status = probe_run(&product.probe, matrix_pass, &product.args, MATRIX_PASSES, error);
    if (!status) {
        char key[64];
        snprintf(key, sizeof key, "matrix_ceiling_%s_tflop_per_s", dtype_name(dtype));
        *tflop_per_s = product_rate(&product) / 1e9;
        meta_real(bench, key, *tflop_per_s);
        meta_int(bench, "matrix_ceiling_side", product.side);
        meta_real(bench, "matrix_ceiling_pass_ms", product.probe.best_ms);
    }
    product_close(&product);
    return status;
}
