#include "engine/forward.h"

#include "engine/kv_evict.h"
#include "engine/model_buffers.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

static char *logits_row(const struct logits *logits, int64_t row)
{
    return (char *)logits->data + (uint64_t)row * (uint64_t)logits->vocab * dtype_size(logits->dtype);
}

/* ---- the batch ---- */

static int logits_rows_wanted(const struct sequence_tokens *item)
{
    return item->logits == LOGITS_ALL ? item->count : item->logits == LOGITS_LAST ? 1 : 0;
}

static enum status check_batch(const struct model *model, const struct sequence_tokens *batch, int sequences, int *rows,
                               int *logits_rows, struct error *error)
{
    if (sequences > model->limits.max_sequences)
        return error_set(error, STATUS_INPUT, "forward pass: %d sequences, at most %d are allowed for", sequences,
                         model->limits.max_sequences);
    int64_t total = 0, wanted = 0;
    for (int s = 0; s < sequences; s++) {
        assert(batch[s].count > 0);
        total += batch[s].count;
        wanted += logits_rows_wanted(&batch[s]);
        for (int i = 0; i < batch[s].count; i++)
            if (batch[s].tokens[i] < 0 || batch[s].tokens[i] >= model->config->vocab_size)
                return error_set(error, STATUS_INPUT,
                                 "token %d of sequence %d: id %" PRId32 " is not in the vocabulary of %" PRId64
                                 " (0 to %" PRId64 ")",
                                 i, s, batch[s].tokens[i], model->config->vocab_size, model->config->vocab_size - 1);
    }
    if (total > model->limits.max_rows)
        return error_set(error, STATUS_INPUT, "forward pass: %" PRId64 " tokens, at most %d are allowed for", total,
                         model->limits.max_rows);
    *rows = (int)total;
    *logits_rows = (int)wanted;
    return STATUS_OK;
}

/* Where the cache keeps this sequence: its blocks, and its tensors of every layer. */
static void describe_cache(const struct model *model, const struct kv_cache *cache, int sequence, int s)
{
    struct batch_memory *host = &model->buffers->on_host;
    const int32_t *table;
    int blocks = kv_block_table(cache, sequence, &table), max_blocks = model->limits.max_blocks;
    const bool scales = dtype_scale_size(kv_get_options(cache)->dtype) > 0;
    assert(blocks <= max_blocks);
    assert(!scales || host->key_scales != NULL); /* the model was made for this type of cache */
    int32_t *row = host->block_table + (size_t)s * (size_t)max_blocks;
    for (int b = 0; b < max_blocks; b++)
        row[b] = b < blocks ? table[b] : -1;
    host->block_size[s] = kv_block_size(cache, sequence);
    for (int layer = 0; layer < model->config->num_hidden_layers; layer++) {
        size_t at = (size_t)layer * (size_t)model->limits.max_sequences + (size_t)s;
        host->keys[at] = kv_layer_keys(cache, sequence, layer);
        host->values[at] = kv_layer_values(cache, sequence, layer);
        if (scales) {
            host->key_scales[at] = kv_layer_key_scales(cache, sequence, layer);
            host->value_scales[at] = kv_layer_value_scales(cache, sequence, layer);
        }
    }
}

/* Writes the batch into the host mirror and sends it; the cache has room for it. */
static enum status send_batch(struct model *model, const struct kv_cache *cache, const struct sequence_tokens *batch,
                              int sequences, struct device_batch *on_device, struct error *error)
{
    struct model_buffers *buffers = model->buffers;
    struct batch_memory *host = &buffers->on_host;
    int row = 0, gathered = 0;
    for (int s = 0; s < sequences; s++) {
        const struct sequence_tokens *item = &batch[s];
        int start = kv_length(cache, item->sequence), evicted = kv_evicted(cache, item->sequence);
        int without_logits = item->count - logits_rows_wanted(item);
        host->first_row[s] = row;
        for (int i = 0; i < item->count; i++, row++) {
            host->tokens[row] = item->tokens[i];
            host->positions[row] = start + i;
            host->rope_positions[row] = start + evicted + i;
            host->row_sequence[row] = s;
            if (i >= without_logits)
                host->gather[gathered++] = row;
        }
        buffers->host_context[s] = start + item->count;
        describe_cache(model, cache, item->sequence, s);
    }
    host->first_row[sequences] = row;

    const struct batch_memory *there = &buffers->on_device;
    *on_device = (struct device_batch){
        .rows = row,
        .sequences = sequences,
        .tokens = there->tokens,
        .positions = there->positions,
        .row_sequence = there->row_sequence,
        .first_row = there->first_row,
        .block_table = there->block_table,
        .block_size = there->block_size,
        .blocks_per_sequence = model->limits.max_blocks,
        .host_first_row = host->first_row,
        .host_context = buffers->host_context,
    };
    struct device *device = ledger_device(model->ledger);
    return device->ops->upload(device, buffers->device[BATCH], buffers->host_batch, buffers->batch_bytes, error);
}

/* ---- the pass ---- */

/* y = x weight^T + bias for all rows of the pass. */
static enum status project(struct model *model, void *y, enum dtype y_dtype, const void *x, const void *weight,
                           const void *bias, int rows, int64_t in, int64_t out, struct error *error)
{
    struct device *device = ledger_device(model->ledger);
    struct linear_args args = {
        .x = x,
        .weight = weight,
        .bias = bias,
        .y = y,
        .dtype = model->weights.dtype,
        .out_dtype = y_dtype,
        .rows = rows,
        .in = (int)in,
        .out = (int)out,
    };
    return device->ops->linear(device, &args, error);
}

/* normed = norm(residual + delta) * weight; delta NULL: nothing to add. gather NULL: all rows of the pass. */
static enum status normalise(struct model *model, const void *weight, const float *delta, const int32_t *gather,
                             int rows, struct error *error)
{
    struct device *device = ledger_device(model->ledger);
    struct rms_norm_args args = {
        .residual = model->buffers->device[RESIDUAL],
        .delta = delta,
        .gather = gather,
        .weight = weight,
        .out = model->buffers->device[NORMED],
        .dtype = model->weights.dtype,
        .epsilon = (float)model->config->rms_norm_eps,
        .rows = rows,
        .hidden = (int)model->config->hidden_size,
    };
    return device->ops->rms_norm(device, &args, error);
}

/* The narrower of the layer's own window and the cache's; 0: there is none. */
static int attention_window(const struct config *config, int layer, const struct kv_options *cache)
{
    int of_layer = (int)config_window(config, layer);
    return of_layer == 0 || (cache->window > 0 && cache->window < of_layer) ? cache->window : of_layer;
}

static struct device_kv layer_kv(const struct model *model, int layer, const struct kv_cache *cache)
{
    size_t pointers = (size_t)layer * (size_t)model->limits.max_sequences;
    const struct batch_memory *there = &model->buffers->on_device;
    struct device_kv kv = {
        .dtype = kv_get_options(cache)->dtype, .k = there->keys + pointers, .v = there->values + pointers};
    if (dtype_scale_size(kv.dtype) > 0) {
        kv.k_scale = (float *const *)(there->key_scales + pointers);
        kv.v_scale = (float *const *)(there->value_scales + pointers);
    }
    return kv;
}

/* What a cache that evicts wants of a layer's attention: sinks as they are before rotation, and the weights by which it
   chooses. */
static enum status watch_attention(struct model *model, int layer, const struct kv_cache *cache,
                                   const struct attention_args *attention, struct error *error)
{
    struct kv_evict *evict = kv_get_evict(cache);
    struct device *device = ledger_device(model->ledger);
    void **buffer = model->buffers->device;
    if (evict == NULL)
        return STATUS_OK;
    struct attention_mass_args args = {
        .batch = attention->batch,
        .kv = attention->kv,
        .q = attention->q,
        .mass = kv_evict_mass(evict, layer),
        .slots = kv_get_options(cache)->eviction.budget,
        .heads = attention->heads,
        .kv_heads = attention->kv_heads,
        .head_dim = attention->head_dim,
        .scale = attention->scale,
    };
    if (kv_evict_stores_sinks(evict) && kv_evict_keep_sinks(evict, layer, buffer[K], buffer[V], error) != STATUS_OK)
        return error->status;
    return args.mass != NULL ? device->ops->attention_mass(device, &args, error) : STATUS_OK;
}

/* delta = o(attention(rope(q(normed)), rope(k(normed)), v(normed))), K and V going through the cache. */
static enum status attention_block(struct model *model, int layer, const struct device_batch *batch,
                                   const struct kv_cache *cache, struct error *error)
{
    const struct config *config = model->config;
    const struct layer_weights *weights = &model->weights.layers[layer];
    struct device *device = ledger_device(model->ledger);
    void **buffer = model->buffers->device;
    int64_t hidden = config->hidden_size, q_width = config->num_attention_heads * config->head_dim;
    int64_t kv_width = config->num_key_value_heads * config->head_dim;
    struct device_kv kv = layer_kv(model, layer, cache);

    if (project(model, buffer[Q], DTYPE_F32, buffer[NORMED], weights->q, weights->q_bias, batch->rows, hidden, q_width,
                error) != STATUS_OK ||
        project(model, buffer[K], DTYPE_F32, buffer[NORMED], weights->k, weights->k_bias, batch->rows, hidden, kv_width,
                error) != STATUS_OK ||
        project(model, buffer[V], DTYPE_F32, buffer[NORMED], weights->v, weights->v_bias, batch->rows, hidden, kv_width,
                error) != STATUS_OK)
        return error->status;

    struct rope_store_args rope = {
        .batch = batch,
        .kv = kv,
        .q = buffer[Q],
        .k = buffer[K],
        .v = buffer[V],
        .cos_sin = buffer[COS_SIN],
        .heads = (int)config->num_attention_heads,
        .kv_heads = (int)config->num_key_value_heads,
        .head_dim = (int)config->head_dim,
    };
    struct attention_args attention = {
        .batch = batch,
        .kv = kv,
        .q = buffer[Q],
        .out = buffer[ATTENDED],
        .out_dtype = model->weights.dtype,
        .heads = rope.heads,
        .kv_heads = rope.kv_heads,
        .head_dim = rope.head_dim,
        .scale = (float)(1.0 / sqrt((double)config->head_dim)),
        .window = attention_window(config, layer, kv_get_options(cache)),
    };
    if (device->ops->rope_store(device, &rope, error) != STATUS_OK ||
        device->ops->attention(device, &attention, error) != STATUS_OK ||
        watch_attention(model, layer, cache, &attention, error) != STATUS_OK)
        return error->status;
    return project(model, buffer[DELTA], DTYPE_F32, buffer[ATTENDED], weights->o, weights->o_bias, batch->rows, q_width,
                   hidden, error);
}

/* delta = down(silu(gate(normed)) * up(normed)) */
static enum status mlp_block(struct model *model, int layer, int rows, struct error *error)
{
    const struct layer_weights *weights = &model->weights.layers[layer];
    struct device *device = ledger_device(model->ledger);
    void **buffer = model->buffers->device;
    int64_t hidden = model->config->hidden_size, intermediate = model->config->intermediate_size;
    if (project(model, buffer[GATE], DTYPE_F32, buffer[NORMED], weights->gate, weights->gate_bias, rows, hidden,
                intermediate, error) != STATUS_OK ||
        project(model, buffer[UP], DTYPE_F32, buffer[NORMED], weights->up, weights->up_bias, rows, hidden, intermediate,
                error) != STATUS_OK ||
        device->ops->swiglu(device, buffer[GATED], buffer[GATE], buffer[UP], model->weights.dtype, rows,
                            (int)intermediate, error) != STATUS_OK)
        return error->status;
    return project(model, buffer[DELTA], DTYPE_F32, buffer[GATED], weights->down, weights->down_bias, rows,
                   intermediate, hidden, error);
}

/* All layers: leaves the last MLP's output in delta, still to be added to the residual. */
static enum status run_layers(struct model *model, const struct device_batch *batch, const struct kv_cache *cache,
                              struct error *error)
{
    const struct config *config = model->config;
    struct device *device = ledger_device(model->ledger);
    void **buffer = model->buffers->device;
    if (device->ops->embed(device, buffer[RESIDUAL], model->weights.embed, model->weights.dtype, batch->tokens,
                           batch->rows, (int)config->hidden_size, error) != STATUS_OK ||
        device->ops->rope_table(device, buffer[COS_SIN], model->buffers->on_device.rope_positions,
                                buffer[INVERSE_FREQUENCY], batch->rows, (int)config->head_dim / 2, error) != STATUS_OK)
        return error->status;
    for (int layer = 0; layer < config->num_hidden_layers; layer++) {
        const struct layer_weights *weights = &model->weights.layers[layer];
        const float *from_mlp = layer > 0 ? buffer[DELTA] : NULL;
        if (normalise(model, weights->input_norm, from_mlp, NULL, batch->rows, error) != STATUS_OK ||
            attention_block(model, layer, batch, cache, error) != STATUS_OK ||
            normalise(model, weights->post_norm, buffer[DELTA], NULL, batch->rows, error) != STATUS_OK ||
            mlp_block(model, layer, batch->rows, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* to[i] = head(norm(residual[gather[i]])), for the positions asked for only. */
static enum status run_head(struct model *model, int rows, void *to, struct error *error)
{
    const struct config *config = model->config;
    void **buffer = model->buffers->device;
    if (normalise(model, model->weights.final_norm, buffer[DELTA], model->buffers->on_device.gather, rows, error) !=
        STATUS_OK)
        return error->status;
    return project(model, to, model->weights.dtype, buffer[NORMED], model->weights.head, NULL, rows,
                   config->hidden_size, config->vocab_size, error);
}

static int longest_context(const struct device_batch *batch)
{
    int longest = 0;
    for (int s = 0; s < batch->sequences; s++)
        longest = batch->host_context[s] > longest ? batch->host_context[s] : longest;
    return longest;
}

/* Layers and head over a batch that is on the device; the device may replay what it recorded of an earlier pass. */
static enum status run_pass(struct model *model, const struct device_batch *batch, const struct kv_cache *cache,
                            int logits_rows, void *logits, struct error *error)
{
    struct device *device = ledger_device(model->ledger);
    const struct kv_evict *evict = kv_get_evict(cache);
    const struct device_pass shape = {
        .rows = batch->rows,
        .sequences = batch->sequences,
        .logits_rows = logits_rows,
        .context = longest_context(batch),
        .window = kv_get_options(cache)->window,
        .once = evict != NULL && kv_evict_stores_sinks(evict),
        .kv_dtype = kv_get_options(cache)->dtype,
        .logits = logits,
        .mass = evict != NULL ? kv_evict_mass(evict, 0) : NULL,
    };
    int replayed;
    /* Other models may have run on the device since. */
    device->ops->set_workspace(device, model->buffers->device[SCRATCH], model->buffers->scratch_bytes);
    if (device->ops->pass_begin(device, &shape, &replayed, error) != STATUS_OK)
        return error->status;
    enum status status = replayed ? STATUS_OK : run_layers(model, batch, cache, error);
    if (!replayed && status == STATUS_OK && logits_rows > 0)
        status = run_head(model, logits_rows, logits, error);
    return device->ops->pass_end(device, status, error);
}

/* Before a pass over a cache that evicts: what gives way to the new tokens. */
static enum status give_way(struct model *model, struct kv_cache *cache, const struct device_batch *batch,
                            struct error *error)
{
    struct kv_evict *evict = kv_get_evict(cache);
    if (evict == NULL)
        return STATUS_OK;
    if (kv_evict_send(evict, error) != STATUS_OK)
        return error->status;
    for (int layer = 0; layer < model->config->num_hidden_layers; layer++) {
        struct device_kv kv = layer_kv(model, layer, cache);
        if (kv_evict_apply(evict, layer, batch, &kv, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

enum status model_forward(struct model *model, struct kv_cache *cache, const struct sequence_tokens *batch,
                          int sequences, struct logits *logits, struct error *error)
{
    int rows = 0, logits_rows = 0;
    struct device_batch on_device;
    if (check_batch(model, batch, sequences, &rows, &logits_rows, error) != STATUS_OK)
        return error->status;
    for (int s = 0; s < sequences; s++)
        if (kv_make_room(cache, batch[s].sequence, kv_length(cache, batch[s].sequence) + batch[s].count, error) !=
            STATUS_OK)
            return error->status;
    assert(kv_get_evict(cache) == NULL || rows == sequences);
    for (int s = 0; s < sequences; s++)
        kv_enter_pass(cache, s, batch[s].sequence);
    assert(logits_rows == 0 ||
           (logits->dtype == model->weights.dtype && logits->rows + logits_rows <= logits->capacity));
    void *logits_to = logits_rows > 0 ? logits_row(logits, logits->rows) : NULL;
    if (send_batch(model, cache, batch, sequences, &on_device, error) != STATUS_OK ||
        give_way(model, cache, &on_device, error) != STATUS_OK ||
        run_pass(model, &on_device, cache, logits_rows, logits_to, error) != STATUS_OK)
        return error->status;
    model->positions_processed += (uint64_t)rows;
    if (logits_rows > 0)
        logits->rows += logits_rows;
    for (int s = 0; s < sequences; s++)
        kv_advance(cache, batch[s].sequence, batch[s].count);
    return kv_get_evict(cache) != NULL ? kv_evict_observe(kv_get_evict(cache), error) : STATUS_OK;
}

enum status model_prefill(struct model *model, struct kv_cache *cache, int sequence, const int32_t *tokens, int count,
                          enum logits_positions positions, int chunk, struct logits *logits, struct error *error)
{
    if (chunk <= 0 || chunk > model->limits.max_rows)
        chunk = model->limits.max_rows;
    if (kv_get_evict(cache) != NULL)
        chunk = 1;
    if (kv_make_room_ahead(cache, sequence, kv_length(cache, sequence) + count, error) != STATUS_OK)
        return error->status;
    for (int done = 0; done < count; done += chunk) {
        if (model->stop != NULL && *model->stop)
            return error_set(error, STATUS_INTERRUPTED, "interrupted during a prefill of %d tokens", count);
        int rows = count - done < chunk ? count - done : chunk;
        bool last = done + rows == count;
        struct sequence_tokens part = {
            .sequence = sequence,
            .tokens = tokens + done,
            .count = rows,
            .logits = positions == LOGITS_LAST && !last ? LOGITS_NONE : positions,
        };
        if (model_forward(model, cache, &part, 1, logits, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

enum status model_argmax(struct model *model, const struct logits *logits, int64_t first, int count, int32_t *tokens,
                         struct error *error)
{
    struct device *device = ledger_device(model->ledger);
    assert(first >= 0 && first + count <= logits->rows && count <= model->limits.max_rows);
    int32_t *chosen = model->buffers->device[CHOSEN];
    if (device->ops->argmax(device, chosen, logits_row(logits, first), logits->dtype, count, (int)logits->vocab,
                            error) != STATUS_OK)
        return error->status;
    return device->ops->download(device, tokens, chosen, (size_t)count * sizeof *tokens, error);
}

enum status model_sample(struct model *model, const struct logits *logits, int64_t first, int count,
                         const struct sampler *sampler, const uint32_t *points, int32_t *tokens, struct error *error)
{
    struct device *device = ledger_device(model->ledger);
    assert(first >= 0 && first + count <= logits->rows && count <= model->limits.max_rows);
    int32_t *chosen = model->buffers->device[CHOSEN];
    const struct sample_args args = {
        .index = chosen,
        .logits = logits_row(logits, first),
        .dtype = logits->dtype,
        .rows = count,
        .vocab = (int)logits->vocab,
        .temperature = sampler->temperature,
        .top_k = sampler->top_k,
        .top_p = sampler->top_p,
        .points = (const uint32_t *)chosen,
    };
    if (device->ops->upload(device, chosen, points, (size_t)count * sizeof *points, error) != STATUS_OK ||
        device->ops->sample(device, &args, error) != STATUS_OK)
        return error->status;
    return device->ops->download(device, tokens, chosen, (size_t)count * sizeof *tokens, error);
}
