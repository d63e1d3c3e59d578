/* A model's memory: what model_init() takes so that a forward pass takes none. */
#include "engine/model_buffers.h"

#include <assert.h>
#include <stdlib.h>

static size_t batch_bytes(const struct config *config, const struct model_limits *limits, enum dtype kv_dtype)
{
    size_t tensors = dtype_scale_size(kv_dtype) > 0 ? 4 : 2;
    size_t pointers = tensors * (size_t)config->num_hidden_layers * (size_t)limits->max_sequences;
    size_t integers = 5 * (size_t)limits->max_rows + 2 * (size_t)limits->max_sequences + 1 +
                      (size_t)limits->max_sequences * (size_t)limits->max_blocks;
    return pointers * sizeof(void *) + integers * sizeof(int32_t);
}

static struct batch_memory batch_layout(void *base, const struct config *config, const struct model_limits *limits,
                                        enum dtype kv_dtype)
{
    size_t pointers = (size_t)config->num_hidden_layers * (size_t)limits->max_sequences;
    size_t rows = (size_t)limits->max_rows, sequences = (size_t)limits->max_sequences;
    const bool scales = dtype_scale_size(kv_dtype) > 0;
    struct batch_memory memory;
    memory.keys = base;
    memory.values = memory.keys + pointers;
    memory.key_scales = scales ? memory.values + pointers : NULL;
    memory.value_scales = scales ? memory.key_scales + pointers : NULL;
    memory.tokens = (int32_t *)((scales ? memory.value_scales : memory.values) + pointers);
    memory.positions = memory.tokens + rows;
    memory.row_sequence = memory.positions + rows;
    memory.gather = memory.row_sequence + rows;
    memory.rope_positions = memory.gather + rows;
    memory.first_row = memory.rope_positions + rows;
    memory.block_size = memory.first_row + sequences + 1;
    memory.block_table = memory.block_size + sequences;
    return memory;
}

/* Bytes of every buffer of a pass. */
static void buffer_bytes(uint64_t bytes[BUFFERS], const struct config *config, struct device *device,
                         const struct model_limits *limits, enum dtype dtype, enum dtype kv_dtype)
{
    uint64_t rows = (uint64_t)limits->max_rows, working = dtype_size(dtype), f32 = sizeof(float);
    uint64_t hidden = (uint64_t)config->hidden_size, intermediate = (uint64_t)config->intermediate_size;
    uint64_t head_dim = (uint64_t)config->head_dim;
    uint64_t q_width = (uint64_t)config->num_attention_heads * head_dim;
    uint64_t kv_width = (uint64_t)config->num_key_value_heads * head_dim;
    struct workspace_shape shape = {
        .dtype = dtype,
        .kv_dtype = kv_dtype,
        .rows = limits->max_rows,
        .sequences = limits->max_sequences,
        .heads = (int)config->num_attention_heads,
        .kv_heads = (int)config->num_key_value_heads,
        .head_dim = (int)head_dim,
        .hidden = (int)hidden,
        .intermediate = (int)intermediate,
        .vocab = (int)config->vocab_size,
    };
    bytes[INVERSE_FREQUENCY] = head_dim / 2 * f32;
    bytes[COS_SIN] = rows * head_dim * f32;
    bytes[RESIDUAL] = bytes[DELTA] = rows * hidden * f32;
    bytes[NORMED] = rows * hidden * working;
    bytes[Q] = rows * q_width * f32;
    bytes[K] = bytes[V] = rows * kv_width * f32;
    bytes[ATTENDED] = rows * q_width * working;
    bytes[GATE] = bytes[UP] = rows * intermediate * f32;
    bytes[GATED] = rows * intermediate * working;
    bytes[BATCH] = batch_bytes(config, limits, kv_dtype);
    bytes[CHOSEN] = rows * sizeof(int32_t);
    bytes[SCRATCH] = device->ops->workspace_bytes(device, &shape);
}

uint64_t model_workspace_bytes(const struct config *config, struct device *device, const struct model_limits *limits,
                               enum dtype dtype, enum dtype kv_dtype)
{
    uint64_t bytes[BUFFERS], total = 0;
    buffer_bytes(bytes, config, device, limits, dtype, kv_dtype);
    for (int b = 0; b < BUFFERS; b++)
        total += bytes[b];
    return total;
}

/* Writes every page of a buffer now, so that none becomes resident in the middle of a measurement. */
static enum status touch(struct device *device, void *memory, uint64_t bytes, struct error *error)
{
    uint64_t whole = bytes / sizeof(float);
    return whole > 0 ? device->ops->fill_value(device, memory, DTYPE_F32, whole, 0.0f, error) : STATUS_OK;
}

static enum status buffers_init(struct model *model, enum dtype kv_dtype, struct error *error)
{
    static const char *const names[BUFFERS] = {"RoPE frequencies",
                                               "RoPE angles",
                                               "residual",
                                               "residual delta",
                                               "normed",
                                               "Q",
                                               "K",
                                               "V",
                                               "attention output",
                                               "gate",
                                               "up",
                                               "gated",
                                               "batch",
                                               "chosen tokens",
                                               "device scratch"};
    const struct config *config = model->config;
    struct device *device = ledger_device(model->ledger);
    struct model_buffers *buffers = model->buffers = calloc(1, sizeof *buffers);
    if (buffers == NULL)
        return error_set(error, STATUS_DEVICE, "forward pass: out of host memory");
    uint64_t bytes[BUFFERS];
    buffer_bytes(bytes, config, device, &model->limits, model->weights.dtype, kv_dtype);
    for (int b = 0; b < BUFFERS; b++)
        if (bytes[b] > 0 && (ledger_alloc(model->ledger, LEDGER_WORKSPACE, bytes[b], names[b], &buffers->device[b],
                                          error) != STATUS_OK ||
                             touch(device, buffers->device[b], bytes[b], error) != STATUS_OK))
            return error->status;
    buffers->scratch_bytes = bytes[SCRATCH];
    buffers->batch_bytes = bytes[BATCH];
    buffers->host_batch = calloc(1, bytes[BATCH]);
    buffers->host_context = calloc((size_t)model->limits.max_sequences, sizeof(int32_t));
    float *frequency = malloc(bytes[INVERSE_FREQUENCY]);
    if (buffers->host_batch == NULL || buffers->host_context == NULL || frequency == NULL) {
        free(frequency);
        return error_set(error, STATUS_DEVICE, "forward pass: out of host memory");
    }
    buffers->on_host = batch_layout(buffers->host_batch, config, &model->limits, kv_dtype);
    buffers->on_device = batch_layout(buffers->device[BATCH], config, &model->limits, kv_dtype);
    config_inverse_frequency(config, frequency);
    device->ops->upload(device, buffers->device[INVERSE_FREQUENCY], frequency, bytes[INVERSE_FREQUENCY], error);
    free(frequency);
    return error->status;
}

enum status model_init(struct model *model, struct ledger *ledger, const struct config *config, struct weights *weights,
                       const struct model_limits *limits, enum dtype kv_dtype, struct error *error)
{
    assert(limits->max_rows > 0 && limits->max_sequences > 0 && limits->max_blocks > 0);
    *model = (struct model){.config = config, .ledger = ledger, .weights = *weights, .limits = *limits};
    *weights = (struct weights){0};
    error->status = STATUS_OK;
    if (buffers_init(model, kv_dtype, error) != STATUS_OK)
        model_free(model);
    return error->status;
}

void model_free(struct model *model)
{
    struct model_buffers *buffers = model->buffers;
    if (buffers != NULL) {
        struct device *device = ledger_device(model->ledger);
        device->ops->set_workspace(device, NULL, 0);
        for (int b = 0; b < BUFFERS; b++)
            ledger_release(model->ledger, buffers->device[b]);
        free(buffers->host_batch);
        free(buffers->host_context);
        free(buffers);
    }
    if (model->ledger != NULL)
        weights_free(&model->weights, model->ledger);
    *model = (struct model){0};
}

enum status logits_init(struct logits *logits, struct ledger *ledger, const struct config *config, enum dtype dtype,
                        int64_t capacity, struct error *error)
{
    *logits = (struct logits){.dtype = dtype, .capacity = capacity, .vocab = config->vocab_size};
    uint64_t bytes = (uint64_t)capacity * (uint64_t)config->vocab_size * dtype_size(dtype);
    return ledger_alloc(ledger, LEDGER_LOGITS, bytes, "logits", &logits->data, error);
}

void logits_free(struct logits *logits, struct ledger *ledger)
{
    ledger_release(ledger, logits->data);
    *logits = (struct logits){0};
}
