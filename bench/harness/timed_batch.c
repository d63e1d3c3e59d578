#include "bench/harness/timed_batch.h"

#include <stdlib.h>

enum { TIMER_READINGS = 101 };

uint64_t timed_batch_kv_bytes(const struct config *config, enum dtype kv_dtype, int64_t sequences, int64_t room)
{
    return formula_kv_bytes(config, kv_dtype, sequences * room);
}

/* What two readings of the timer in a row cost, median: it is in every time that is taken. Goes into the meta file. */
static enum status measure_timer(struct timed_batch *batch, struct error *error)
{
    struct device *device = batch->bench->device;
    double ms[TIMER_READINGS];
    for (int i = 0; i < TIMER_READINGS; i++)
        if (device->ops->event_record(device, batch->start, error) != STATUS_OK ||
            device->ops->event_record(device, batch->end, error) != STATUS_OK ||
            device->ops->event_elapsed_ms(device, batch->start, batch->end, &ms[i], error) != STATUS_OK)
            return error->status;
    meta_real(batch->bench, "timer_overhead_ns", 1e6 * stats_median(ms, TIMER_READINGS));
    return STATUS_OK;
}

static enum status init(struct timed_batch *batch, struct bench *bench, struct model *model, int sequences, int room,
                        const struct kv_options *options, struct error *error)
{
    const struct device_ops *ops = bench->device->ops;
    size_t count = (size_t)sequences;
    *batch = (struct timed_batch){.bench = bench, .model = model, .sequences = sequences, .room = room};
    batch->tokens = bench_tokens(bench, room, 0);
    batch->chosen = calloc(count, sizeof *batch->chosen);
    batch->numbers = calloc(count, sizeof *batch->numbers);
    batch->items = calloc(count, sizeof *batch->items);
    if (batch->tokens == NULL || batch->chosen == NULL || batch->numbers == NULL || batch->items == NULL)
        return error_set(error, STATUS_DEVICE, "%s: out of host memory", bench->experiment->name);
    if (ops->event_create(bench->device, &batch->start, error) != STATUS_OK ||
        ops->event_create(bench->device, &batch->end, error) != STATUS_OK || measure_timer(batch, error) != STATUS_OK ||
        logits_init(&batch->logits, bench->ledger, model->config, bench->dtype, sequences, error) != STATUS_OK ||
        kv_open(&batch->cache, bench->ledger, model->config, options, error) != STATUS_OK)
        return error->status;
    for (int s = 0; s < sequences; s++)
        if (kv_sequence_open(batch->cache, &batch->numbers[s], error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

enum status timed_batch_init(struct timed_batch *batch, struct bench *bench, struct model *model, int sequences,
                             int room, struct error *error)
{
    struct kv_options options = {
        .policy = KV_RESERVED, .dtype = bench->kv_dtype, .max_sequences = sequences, .max_tokens = room};
    return init(batch, bench, model, sequences, room, &options, error);
}

enum status timed_batch_init_paged(struct timed_batch *batch, struct bench *bench, struct model *model, int sequences,
                                   int room, int block_size, struct error *error)
{
    int blocks = (room + block_size - 1) / block_size;
    struct kv_options options = {.policy = KV_PAGED,
                                 .dtype = bench->kv_dtype,
                                 .max_sequences = sequences,
                                 .block_size = block_size,
                                 .max_tokens = room,
                                 .pool_blocks = blocks * sequences};
    if (init(batch, bench, model, sequences, room, &options, error) != STATUS_OK)
        return error->status;
    for (int block = 1; block <= blocks; block++)
        for (int s = 0; s < sequences; s++) {
            int tokens = block < blocks ? block * block_size : room;
            if (kv_make_room(batch->cache, batch->numbers[s], tokens, error) != STATUS_OK)
                return error->status;
        }
    return STATUS_OK;
}

void timed_batch_free(struct timed_batch *batch)
{
    if (batch->bench != NULL) {
        struct device *device = batch->bench->device;
        meta_huge_pages(batch->bench);
        if (batch->start != NULL)
            device->ops->event_destroy(device, batch->start);
        if (batch->end != NULL)
            device->ops->event_destroy(device, batch->end);
        logits_free(&batch->logits, batch->bench->ledger);
    }
    kv_close(batch->cache);
    free(batch->tokens);
    free(batch->chosen);
    free(batch->numbers);
    free(batch->items);
    *batch = (struct timed_batch){0};
}

enum status timed_batch_prefill(struct timed_batch *batch, int count, struct error *error)
{
    if (model_prefill(batch->model, batch->cache, batch->numbers[0], batch->tokens, count, LOGITS_NONE, 0, NULL,
                      error) != STATUS_OK)
        return error->status;
    for (int s = 1; s < batch->sequences; s++)
        if (kv_copy_sequence(batch->cache, batch->numbers[0], batch->numbers[s], error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* Values in [-1, 1): of int8 any codes, under scales of 1 / 127. */
static enum status fill_tensor(struct timed_batch *batch, void *tensor, float *scales, uint64_t seed,
                               struct error *error)
{
    struct device *device = batch->bench->device;
    const struct config *config = batch->model->config;
    size_t rows = (size_t)batch->room * (size_t)config->num_key_value_heads, values = rows * (size_t)config->head_dim;
    if (scales != NULL && device->ops->fill_value(device, scales, DTYPE_F32, rows, 1.0f / 127.0f, error) != STATUS_OK)
        return error->status;
    return device->ops->fill_random(device, tensor, batch->bench->kv_dtype, values, seed,
                                    scales != NULL ? 127.0f : 1.0f, error);
}

enum status timed_batch_fill_random(struct timed_batch *batch, int count, struct error *error)
{
    struct device *device = batch->bench->device;
    const struct config *config = batch->model->config;
    uint64_t seed = batch->bench->options.seed;
    for (int s = 0; s < batch->sequences; s++) {
        int number = batch->numbers[s];
        for (int layer = 0; layer < config->num_hidden_layers; layer++)
            if (fill_tensor(batch, kv_layer_keys(batch->cache, number, layer),
                            kv_layer_key_scales(batch->cache, number, layer), seed++, error) != STATUS_OK ||
                fill_tensor(batch, kv_layer_values(batch->cache, number, layer),
                            kv_layer_value_scales(batch->cache, number, layer), seed++, error) != STATUS_OK)
                return error->status;
        kv_advance(batch->cache, batch->numbers[s], count);
    }
    return device->ops->synchronize(device, error);
}

enum status timed_batch_rewind(struct timed_batch *batch, int length, struct error *error)
{
    for (int s = 0; s < batch->sequences; s++) {
        int sequence = batch->numbers[s], held = kv_length(batch->cache, sequence);
        if (held < length)
            kv_advance(batch->cache, sequence, length - held);
        else if (kv_truncate(batch->cache, sequence, length, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* Where the tokens of a batch have got to: sequences before `sequence` are done, of that one `done` tokens. */
struct cursor {
    int sequence, done;
};

/* As many tokens as one pass takes, from the cursor on; returns the sequences in batch->items. */
static int fill_pass(struct timed_batch *batch, int sequences, int count, struct cursor *at)
{
    const struct model_limits *limits = &batch->model->limits;
    int rows = 0, filled = 0;
    while (at->sequence < sequences && rows < limits->max_rows && filled < limits->max_sequences) {
        int number = batch->numbers[at->sequence], left = count - at->done, space = limits->max_rows - rows;
        int taken = left < space ? left : space;
        batch->items[filled++] = (struct sequence_tokens){.sequence = number,
                                                          .tokens = batch->tokens + kv_length(batch->cache, number),
                                                          .count = taken,
                                                          .logits = taken == left ? LOGITS_LAST : LOGITS_NONE};
        rows += taken;
        *at = taken == left ? (struct cursor){at->sequence + 1, 0} : (struct cursor){at->sequence, at->done + taken};
    }
    return filled;
}

enum status timed_batch_pass(struct timed_batch *batch, int sequences, int count, double *ms, struct error *error)
{
    struct device *device = batch->bench->device;
    struct cursor at = {0};
    batch->logits.rows = 0;
    if (device->ops->synchronize(device, error) != STATUS_OK ||
        device->ops->event_record(device, batch->start, error) != STATUS_OK)
        return error->status;
    while (at.sequence < sequences) {
        if (bench_interrupted())
            return error_set(error, STATUS_INTERRUPTED, "interrupted");
        int filled = fill_pass(batch, sequences, count, &at);
        if (model_forward(batch->model, batch->cache, batch->items, filled, &batch->logits, error) != STATUS_OK)
            return error->status;
    }
    if (model_argmax(batch->model, &batch->logits, 0, sequences, batch->chosen, error) != STATUS_OK ||
        device->ops->event_record(device, batch->end, error) != STATUS_OK)
        return error->status;
    return device->ops->event_elapsed_ms(device, batch->start, batch->end, ms, error);
}
