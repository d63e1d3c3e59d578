#include "engine/kv_cache_parts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const policy_names[] = {"exact", "reserved", "paged"};

const char *kv_policy_name(enum kv_policy policy)
{
    return policy_names[policy];
}

/* ---- tensors ---- */

static uint64_t tensor_bytes(const struct kv_cache *cache, int side, int64_t positions)
{
    return (uint64_t)positions * (uint64_t)cache->config->num_key_value_heads * cache->row_bytes[side];
}

/* One tensor of `positions` positions. */
static enum status tensor_alloc(struct kv_cache *cache, int layer, int side, int64_t positions, void **memory,
                                struct error *error)
{
    static const char *const names[SIDES] = {"K", "V", "scales of K", "scales of V"};
    char what[64];
    snprintf(what, sizeof what, "%s of layer %d", names[side], layer);
    return ledger_alloc(cache->ledger, LEDGER_KV, tensor_bytes(cache, side, positions), what, memory, error);
}

static void tensors_release(struct kv_cache *cache, void **tensors[SIDES])
{
    for (int side = 0; side < SIDES; side++)
        for (int layer = 0; tensors[side] != NULL && layer < cache->layers; layer++) {
            ledger_release(cache->ledger, tensors[side][layer]);
            tensors[side][layer] = NULL;
        }
}

/* K and V of every layer, with their scales, `positions` each; all or none. */
static enum status tensors_alloc(struct kv_cache *cache, void **tensors[SIDES], int64_t positions, struct error *error)
{
    for (int layer = 0; layer < cache->layers; layer++)
        for (int side = 0; side < cache->sides; side++)
            if (tensor_alloc(cache, layer, side, positions, &tensors[side][layer], error) != STATUS_OK) {
                tensors_release(cache, tensors);
                return error->status;
            }
    return STATUS_OK;
}

/* Where the positions of one sequence lie in one tensor. */
struct view {
    char *base;
    const int32_t *table;
    int block_size;
    uint64_t row_bytes;
};

static char *view_at(const struct kv_cache *cache, const struct view *view, int head, int position)
{
    int64_t block = view->table[position / view->block_size], slot = position % view->block_size;
    int64_t row = (block * cache->config->num_key_value_heads + head) * view->block_size + slot;
    return view->base + (uint64_t)row * view->row_bytes;
}

/* Copies positions [0, tokens), in runs that stay inside one block on both sides. */
static enum status copy_positions(struct kv_cache *cache, const struct view *to, const struct view *from, int tokens,
                                  struct error *error)
{
    struct device *device = ledger_device(cache->ledger);
    for (int position = 0, run; position < tokens; position += run) {
        int left_to = to->block_size - position % to->block_size;
        int left_from = from->block_size - position % from->block_size;
        run = left_to < left_from ? left_to : left_from;
        run = run < tokens - position ? run : tokens - position;
        for (int head = 0; head < cache->config->num_key_value_heads; head++)
            if (device->ops->copy(device, view_at(cache, to, head, position), view_at(cache, from, head, position),
                                  (size_t)run * to->row_bytes, error) != STATUS_OK)
                return error->status;
    }
    return STATUS_OK;
}

enum status kv_copy_block(struct kv_cache *cache, int from, int to, int tokens, struct error *error)
{
    const int32_t from_table[] = {from}, to_table[] = {to};
    for (int layer = 0; layer < cache->layers; layer++)
        for (int side = 0; side < cache->sides; side++) {
            const uint64_t row_bytes = cache->row_bytes[side];
            struct view source = {cache->pool[side][layer], from_table, cache->options.block_size, row_bytes};
            struct view target = {cache->pool[side][layer], to_table, cache->options.block_size, row_bytes};
            if (copy_positions(cache, &target, &source, tokens, error) != STATUS_OK)
                return error->status;
        }
    return STATUS_OK;
}

/* ---- opening and closing ---- */

static void sequence_free(struct sequence *sequence)
{
    for (int side = 0; side < SIDES; side++)
        free(sequence->tensors[side]);
    free(sequence->table);
}

static bool sequence_init(struct sequence *sequence, int layers, int sides, int max_blocks)
{
    for (int side = 0; side < sides; side++)
        if ((sequence->tensors[side] = calloc((size_t)layers, sizeof(void *))) == NULL)
            return false;
    return (sequence->table = calloc((size_t)max_blocks, sizeof(int32_t))) != NULL;
}

static bool host_memory_init(struct kv_cache *cache)
{
    const struct kv_options *options = &cache->options;
    cache->sequences = calloc((size_t)options->max_sequences, sizeof *cache->sequences);
    if (cache->sequences == NULL)
        return false;
    for (int s = 0; s < options->max_sequences; s++)
        if (!sequence_init(&cache->sequences[s], cache->layers, cache->sides, cache->max_blocks))
            return false;
    for (int side = 0; options->policy == KV_PAGED && side < cache->sides; side++)
        if ((cache->pool[side] = calloc((size_t)cache->layers, sizeof(void *))) == NULL)
            return false;
    return true;
}

static enum status memory_init(struct kv_cache *cache, struct error *error)
{
    const struct kv_options *options = &cache->options;
    if (!host_memory_init(cache))
        return error_set(error, STATUS_DEVICE, "KV cache: out of host memory");
    if (options->policy == KV_PAGED &&
        (kv_paged_init(cache, error) != STATUS_OK ||
         tensors_alloc(cache, cache->pool, (int64_t)options->pool_blocks * options->block_size, error) != STATUS_OK))
        return error->status;
    if (options->eviction.policy == EVICT_NOTHING)
        return STATUS_OK;
    return kv_evict_open(&cache->evict, cache->ledger, cache->config, &options->eviction, options->max_sequences,
                         error);
}

enum status kv_open(struct kv_cache **out, struct ledger *ledger, const struct config *config,
                    const struct kv_options *options, struct error *error)
{
    assert(options->max_sequences > 0);
    assert(options->policy == KV_EXACT || options->max_tokens > 0);
    assert(options->policy != KV_PAGED || (options->block_size > 0 && options->pool_blocks > 0));
    assert(options->policy == KV_PAGED || !options->prefix_cache);
    assert(options->window >= 0 && (options->window == 0 || !options->prefix_cache));
    assert(options->eviction.policy == EVICT_NOTHING || (options->window == 0 && !options->prefix_cache));
    assert(options->eviction.policy == EVICT_NOTHING || options->policy == KV_EXACT ||
           options->eviction.budget <= options->max_tokens);
    *out = NULL;
    struct kv_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return error_set(error, STATUS_DEVICE, "KV cache: out of host memory");
    cache->ledger = ledger;
    cache->config = config;
    cache->options = *options;
    cache->layers = (int)config->num_hidden_layers;
    cache->sides = dtype_scale_size(options->dtype) > 0 ? SIDES : VALUES + 1;
    cache->row_bytes[KEYS] = cache->row_bytes[VALUES] = (uint64_t)config->head_dim * dtype_size(options->dtype);
    cache->row_bytes[KEY_SCALES] = cache->row_bytes[VALUE_SCALES] = dtype_scale_size(options->dtype);
    cache->max_blocks = 1;
    if (options->policy == KV_PAGED)
        cache->max_blocks = (options->max_tokens + options->block_size - 1) / options->block_size;

    if (memory_init(cache, error) != STATUS_OK) {
        kv_close(cache);
        return error->status;
    }
    *out = cache;
    return STATUS_OK;
}

void kv_close(struct kv_cache *cache)
{
    if (cache == NULL)
        return;
    for (int s = 0; cache->sequences != NULL && s < cache->options.max_sequences; s++) {
        if (cache->sequences[s].open)
            kv_sequence_close(cache, s);
        sequence_free(&cache->sequences[s]);
    }
    tensors_release(cache, cache->pool);
    for (int side = 0; side < SIDES; side++)
        free(cache->pool[side]);
    kv_paged_free(cache);
    kv_evict_close(cache->evict);
    free(cache->sequences);
    free(cache);
}

struct sequence *kv_sequence_at(const struct kv_cache *cache, int sequence)
{
    assert(sequence >= 0 && sequence < cache->options.max_sequences && cache->sequences[sequence].open);
    return &cache->sequences[sequence];
}

enum status kv_sequence_open(struct kv_cache *cache, int *out, struct error *error)
{
    int s = 0;
    while (s < cache->options.max_sequences && cache->sequences[s].open)
        s++;
    cache->out_of_room = s == cache->options.max_sequences;
    if (cache->out_of_room)
        return error_set(error, STATUS_DEVICE, "KV cache: all %d sequences are taken", s);
    struct sequence *sequence = &cache->sequences[s];
    sequence->length = sequence->capacity = sequence->blocks = sequence->published = sequence->passed = 0;
    sequence->block_size = cache->options.policy == KV_PAGED ? cache->options.block_size : 0;
    if (cache->options.policy == KV_RESERVED) {
        if (tensors_alloc(cache, sequence->tensors, cache->options.max_tokens, error) != STATUS_OK) {
            cache->out_of_room = !ledger_refusal(cache->ledger).by_device;
            return error->status;
        }
        sequence->capacity = sequence->block_size = cache->options.max_tokens;
        sequence->blocks = 1;
        sequence->table[0] = 0;
    }
    if (cache->evict != NULL)
        eviction_reset(kv_evict_slots(cache->evict, s));
    sequence->open = true;
    *out = s;
    return STATUS_OK;
}

/* Lets go of all that an exact sequence holds. */
static void exact_empty(struct kv_cache *cache, struct sequence *sequence)
{
    tensors_release(cache, sequence->tensors);
    sequence->length = sequence->capacity = sequence->block_size = sequence->blocks = 0;
}

void kv_sequence_close(struct kv_cache *cache, int number)
{
    struct sequence *sequence = kv_sequence_at(cache, number);
    if (cache->options.policy == KV_PAGED)
        kv_paged_release(cache, sequence, 0);
    else
        exact_empty(cache, sequence);
    sequence->open = false;
}

/* ---- growing and shrinking ---- */

/* One tensor of an exact sequence, reallocated to `tokens` positions, `kept` of them copied. */
static enum status exact_resize_tensor(struct kv_cache *cache, struct sequence *sequence, int layer, int side,
                                       int tokens, int kept, struct error *error)
{
    static const int32_t one_block[1] = {0};
    void **tensor = &sequence->tensors[side][layer], *resized = NULL;
    if (tensor_alloc(cache, layer, side, tokens, &resized, error) != STATUS_OK)
        return error->status;
    struct view from = {*tensor, one_block, sequence->block_size, cache->row_bytes[side]};
    struct view to = {resized, one_block, tokens, cache->row_bytes[side]};
    if (copy_positions(cache, &to, &from, kept, error) != STATUS_OK) {
        ledger_release(cache->ledger, resized);
        return error->status;
    }
    ledger_release(cache->ledger, *tensor);
    *tensor = resized;
    return STATUS_OK;
}

/* Of all tensors of an exact sequence. */
static uint64_t sequence_bytes(const struct kv_cache *cache, int tokens)
{
    uint64_t bytes = 0;
    for (int side = 0; side < cache->sides; side++)
        bytes += tensor_bytes(cache, side, tokens);
    return bytes * (uint64_t)cache->layers;
}

/* Reallocates an exact sequence to exactly `tokens` > 0 positions, tensor by tensor, so that only one of them exists
   twice at a time. What fits the budget is checked before anything changes; if the device itself refuses midway, the
   sequence is emptied. */
static enum status exact_resize(struct kv_cache *cache, struct sequence *sequence, int tokens, struct error *error)
{
    uint64_t all = sequence_bytes(cache, tokens), held = sequence_bytes(cache, sequence->capacity);
    uint64_t grown = ledger_counts(cache->ledger).live_total - held + all;
    uint64_t twice = sequence->capacity > 0 ? tensor_bytes(cache, KEYS, tokens) : 0;
    cache->out_of_room = tokens > sequence->capacity && grown + twice > ledger_budget(cache->ledger);
    if (cache->out_of_room)
        return error_set(error, STATUS_DEVICE,
                         "out of memory: an exact KV cache of %d tokens takes %" PRIu64 " bytes (+ %" PRIu64
                         " while it grows), with what else is held %" PRIu64 " of %" PRIu64 " bytes",
                         tokens, all, twice, grown + twice, ledger_budget(cache->ledger));

    int kept = sequence->length < tokens ? sequence->length : tokens;
    for (int layer = 0; layer < cache->layers; layer++)
        for (int side = 0; side < cache->sides; side++)
            if (exact_resize_tensor(cache, sequence, layer, side, tokens, kept, error) != STATUS_OK) {
                exact_empty(cache, sequence);
                return error->status;
            }
    sequence->capacity = sequence->block_size = tokens;
    sequence->length = kept;
    sequence->blocks = 1;
    sequence->table[0] = 0;
    return STATUS_OK;
}

enum status kv_make_room(struct kv_cache *cache, int number, int tokens, struct error *error)
{
    struct sequence *sequence = kv_sequence_at(cache, number);
    const struct kv_options *options = &cache->options;
    cache->out_of_room = false;
    if (cache->evict != NULL && tokens > options->eviction.budget)
        tokens = options->eviction.budget;
    if (tokens > options->max_tokens && options->policy != KV_EXACT)
        return error_set(error, STATUS_DEVICE, "KV cache: %d tokens do not fit a sequence of at most %d", tokens,
                         options->max_tokens);
    if (options->policy == KV_PAGED)
        return kv_paged_make_room(cache, sequence, tokens, error);
    return tokens > sequence->capacity ? exact_resize(cache, sequence, tokens, error) : STATUS_OK;
}

enum status kv_make_room_ahead(struct kv_cache *cache, int number, int tokens, struct error *error)
{
    bool gives_back = cache->options.policy == KV_PAGED && cache->options.window > 0;
    return gives_back && tokens <= cache->options.max_tokens ? STATUS_OK : kv_make_room(cache, number, tokens, error);
}

bool kv_out_of_room(const struct kv_cache *cache)
{
    return cache->out_of_room;
}

int kv_length(const struct kv_cache *cache, int sequence)
{
    return kv_sequence_at(cache, sequence)->length;
}

void kv_advance(struct kv_cache *cache, int number, int tokens)
{
    struct sequence *sequence = kv_sequence_at(cache, number);
    assert(tokens >= 0 && sequence->length + tokens <= sequence->capacity);
    sequence->length += tokens;
    for (int i = 0; cache->evict != NULL && i < tokens; i++)
        eviction_append(kv_evict_slots(cache->evict, number));
    if (cache->options.policy == KV_PAGED && cache->options.window > 0)
        kv_paged_pass(cache, sequence);
}

enum status kv_truncate(struct kv_cache *cache, int number, int tokens, struct error *error)
{
    struct sequence *sequence = kv_sequence_at(cache, number);
    assert(tokens >= 0 && tokens <= sequence->length);
    assert(tokens == 0 || tokens - cache->options.window + 1 >= sequence->passed * sequence->block_size ||
           sequence->passed == 0);
    assert(cache->evict == NULL || tokens == 0);
    if (cache->evict != NULL)
        eviction_reset(kv_evict_slots(cache->evict, number));
    if (cache->options.policy == KV_EXACT && tokens > 0 && tokens < sequence->capacity)
        return exact_resize(cache, sequence, tokens, error);
    if (cache->options.policy == KV_EXACT && tokens == 0)
        exact_empty(cache, sequence);
    if (cache->options.policy == KV_PAGED)
        kv_paged_release(cache, sequence, tokens);
    sequence->length = tokens;
    return STATUS_OK;
}

static void *layer_tensor(const struct kv_cache *cache, int sequence, int layer, int side)
{
    assert(layer >= 0 && layer < cache->layers);
    const struct sequence *holder = kv_sequence_at(cache, sequence);
    return cache->options.policy == KV_PAGED ? cache->pool[side][layer] : holder->tensors[side][layer];
}

enum status kv_copy_sequence(struct kv_cache *cache, int from, int to, struct error *error)
{
    const struct sequence *source = kv_sequence_at(cache, from);
    struct sequence *target = kv_sequence_at(cache, to);
    assert(from != to && target->length == 0 && source->passed == 0 && cache->evict == NULL);
    if (kv_make_room(cache, to, source->length, error) != STATUS_OK)
        return error->status;
    for (int layer = 0; layer < cache->layers; layer++)
        for (int side = 0; side < cache->sides; side++) {
            const uint64_t row_bytes = cache->row_bytes[side];
            struct view seen = {layer_tensor(cache, from, layer, side), source->table, source->block_size, row_bytes};
            struct view copy = {layer_tensor(cache, to, layer, side), target->table, target->block_size, row_bytes};
            if (copy_positions(cache, &copy, &seen, source->length, error) != STATUS_OK)
                return error->status;
        }
    target->length = source->length;
    return STATUS_OK;
}

/* ---- caches that evict ---- */

int kv_evicted(const struct kv_cache *cache, int number)
{
    return cache->evict != NULL ? kv_evict_slots(cache->evict, number)->evicted : 0;
}

struct kv_evict *kv_get_evict(const struct kv_cache *cache)
{
    return cache->evict;
}

void kv_enter_pass(struct kv_cache *cache, int s, int number)
{
    if (cache->evict == NULL)
        return;
    kv_evict_choose(cache->evict, s, number);
    kv_sequence_at(cache, number)->length = kv_evict_slots(cache->evict, number)->held;
}

/* ---- what exists ---- */

const struct kv_options *kv_get_options(const struct kv_cache *cache)
{
    return &cache->options;
}

size_t kv_tensor_count(const struct kv_cache *cache)
{
    size_t holders = cache->options.policy == KV_PAGED ? 1 : 0;
    for (int s = 0; cache->options.policy != KV_PAGED && s < cache->options.max_sequences; s++)
        if (cache->sequences[s].open && cache->sequences[s].capacity > 0)
            holders++;
    return holders * (size_t)cache->layers * (size_t)cache->sides;
}

struct kv_tensor kv_tensor_at(const struct kv_cache *cache, size_t index)
{
    assert(index < kv_tensor_count(cache));
    size_t sides = (size_t)cache->sides, per_holder = (size_t)cache->layers * sides;
    size_t holder = index / per_holder, rest = index % per_holder;
    const bool is_scale = rest % sides >= KEY_SCALES;
    struct kv_tensor tensor = {
        .layer = (int)(rest / sides),
        .is_value = rest % 2 == VALUES,
        .is_scale = is_scale,
        .sequence = -1,
        .shape = {cache->options.pool_blocks, cache->config->num_key_value_heads, cache->options.block_size,
                  is_scale ? 1 : cache->config->head_dim},
        .dtype = is_scale ? DTYPE_F32 : cache->options.dtype,
    };
    if (cache->options.policy != KV_PAGED) {
        int s = 0;
        for (;; s++)
            if (cache->sequences[s].open && cache->sequences[s].capacity > 0 && holder-- == 0)
                break;
        tensor.sequence = s;
        tensor.shape[0] = 1;
        tensor.shape[2] = cache->sequences[s].capacity;
    }
    tensor.bytes = dtype_size(tensor.dtype);
    for (int d = 0; d < 4; d++)
        tensor.bytes *= (uint64_t)tensor.shape[d];
    return tensor;
}

uint64_t kv_tensor_bytes(const struct kv_cache *cache)
{
    uint64_t total = 0;
    for (size_t i = 0, count = kv_tensor_count(cache); i < count; i++)
        total += kv_tensor_at(cache, i).bytes;
    return total;
}

int kv_block_size(const struct kv_cache *cache, int sequence)
{
    return kv_sequence_at(cache, sequence)->block_size;
}

int kv_block_table(const struct kv_cache *cache, int sequence, const int32_t **table)
{
    *table = kv_sequence_at(cache, sequence)->table;
    return kv_sequence_at(cache, sequence)->blocks;
}

void *kv_layer_keys(const struct kv_cache *cache, int sequence, int layer)
{
    return layer_tensor(cache, sequence, layer, KEYS);
}

void *kv_layer_values(const struct kv_cache *cache, int sequence, int layer)
{
    return layer_tensor(cache, sequence, layer, VALUES);
}

float *kv_layer_key_scales(const struct kv_cache *cache, int sequence, int layer)
{
    return cache->sides > KEY_SCALES ? layer_tensor(cache, sequence, layer, KEY_SCALES) : NULL;
}

float *kv_layer_value_scales(const struct kv_cache *cache, int sequence, int layer)
{
    return cache->sides > VALUE_SCALES ? layer_tensor(cache, sequence, layer, VALUE_SCALES) : NULL;
}
