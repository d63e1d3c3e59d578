#include "engine/kv_evict.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Attention sinks keep positions inside the cache: when the window moves on by a token, they move on too. Since RoPE is
   relative, moving S sinks is the same as moving the whole window back. They are rotated from f32 copies that never
   were, so that no rounding adds up. */
struct sinks {
    int count;
    float *k, *v;       /* [layers][max_sequences][count][kv_heads][head_dim] f32, not rotated */
    float *frequencies; /* [head_dim / 2], RoPE's */
    float *cos_sin;     /* [max_sequences][count][head_dim] */
    int32_t *rows;      /* device: struct sink_rows, host: `host` */
    int32_t *host;      /* [3][max_sequences * count]: slots, entries of the batch, positions for RoPE */
};

struct kv_evict {
    struct ledger *ledger;
    const struct config *config;
    struct eviction_options options;
    int layers, kv_heads, max_sequences;
    struct eviction *slots; /* [max_sequences], by number */

    /* The current pass. */
    int sequences;
    int *numbers;      /* [max_sequences] */
    bool *moves_sinks; /* [max_sequences], by entry */
    int rounds;        /* of moves: the largest number of rows that a head moves */

    /* from and to: [2][drop][layers][max_sequences][kv_heads], on the device and its host mirror */
    int32_t *moves, *host_moves;
    int32_t *chosen; /* host [2][drop][layers * kv_heads], of one sequence */
    /* [layers][max_sequences][kv_heads][budget] f32, and one sequence's [layers * kv_heads][budget] */
    float *mass, *host_mass, *of_sequence;
    struct sinks sinks;
};

/* ---- opening and closing ---- */

static size_t heads_of(const struct kv_evict *evict)
{
    return (size_t)evict->layers * (size_t)evict->kv_heads;
}

/* Numbers of one array of moves. */
static size_t moves_count(const struct kv_evict *evict)
{
    return (size_t)evict->options.drop * heads_of(evict) * (size_t)evict->max_sequences;
}

static size_t mass_count(const struct kv_evict *evict)
{
    return heads_of(evict) * (size_t)evict->max_sequences * (size_t)evict->options.budget;
}

/* Values of one row of K, all KV heads. */
static size_t row_values(const struct kv_evict *evict)
{
    return (size_t)evict->kv_heads * (size_t)evict->config->head_dim;
}

static enum status host_memory_init(struct kv_evict *evict, struct error *error)
{
    size_t sequences = (size_t)evict->max_sequences, budget = (size_t)evict->options.budget;
    size_t sink_rows = sequences * (size_t)evict->sinks.count;
    evict->slots = calloc(sequences, sizeof *evict->slots);
    evict->numbers = calloc(sequences, sizeof *evict->numbers);
    evict->moves_sinks = calloc(sequences, sizeof *evict->moves_sinks);
    evict->host_moves = calloc(2 * moves_count(evict), sizeof *evict->host_moves);
    evict->chosen = calloc(2 * (size_t)evict->options.drop * heads_of(evict), sizeof *evict->chosen);
    evict->host_mass = calloc(mass_count(evict), sizeof *evict->host_mass);
    evict->of_sequence = calloc(heads_of(evict) * budget, sizeof *evict->of_sequence);
    evict->sinks.host = calloc(3 * sink_rows + 1, sizeof *evict->sinks.host);
    if (evict->slots == NULL || evict->numbers == NULL || evict->moves_sinks == NULL || evict->host_moves == NULL ||
        evict->chosen == NULL || evict->host_mass == NULL || evict->of_sequence == NULL || evict->sinks.host == NULL)
        return error_set(error, STATUS_DEVICE, "eviction: out of host memory");
    for (int i = 0; i < evict->max_sequences; i++)
        if (eviction_init(&evict->slots[i], &evict->options, (int)heads_of(evict), error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

static enum status take(struct kv_evict *evict, size_t bytes, const char *what, void *memory, struct error *error)
{
    void *taken;
    if (ledger_alloc(evict->ledger, LEDGER_KV, bytes, what, &taken, error) != STATUS_OK)
        return error->status;
    memcpy(memory, &taken, sizeof taken);
    return STATUS_OK;
}

static enum status sinks_init(struct kv_evict *evict, struct error *error)
{
    struct sinks *sinks = &evict->sinks;
    struct device *device = ledger_device(evict->ledger);
    size_t rows = (size_t)evict->max_sequences * (size_t)sinks->count, head_dim = (size_t)evict->config->head_dim;
    size_t kept_bytes = (size_t)evict->layers * rows * row_values(evict) * sizeof(float);
    size_t half_bytes = head_dim / 2 * sizeof(float);
    float *frequencies = malloc(half_bytes);
    enum status status = STATUS_OK;
    if (frequencies == NULL)
        return error_set(error, STATUS_DEVICE, "attention sinks: out of host memory");
    config_inverse_frequency(evict->config, frequencies);
    if (take(evict, kept_bytes, "K of attention sinks", &sinks->k, error) != STATUS_OK ||
        take(evict, kept_bytes, "V of attention sinks", &sinks->v, error) != STATUS_OK ||
        take(evict, rows * head_dim * sizeof(float), "angles of attention sinks", &sinks->cos_sin, error) !=
            STATUS_OK ||
        take(evict, 3 * rows * sizeof(int32_t), "rows of attention sinks", &sinks->rows, error) != STATUS_OK ||
        take(evict, half_bytes, "frequencies of attention sinks", &sinks->frequencies, error) != STATUS_OK ||
        device->ops->upload(device, sinks->frequencies, frequencies, half_bytes, error) != STATUS_OK)
        status = error->status;
    free(frequencies);
    return status;
}

static enum status device_memory_init(struct kv_evict *evict, struct error *error)
{
    if (take(evict, 2 * moves_count(evict) * sizeof(int32_t), "moves of evicted rows", &evict->moves, error) !=
        STATUS_OK)
        return error->status;
    if (eviction_observes(&evict->options) &&
        take(evict, mass_count(evict) * sizeof(float), "attention of cached tokens", &evict->mass, error) != STATUS_OK)
        return error->status;
    return evict->sinks.count > 0 ? sinks_init(evict, error) : STATUS_OK;
}

enum status kv_evict_open(struct kv_evict **out, struct ledger *ledger, const struct config *config,
                          const struct eviction_options *options, int max_sequences, struct error *error)
{
    *out = NULL;
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++)
        if (config_window(config, layer) > 0)
            return error_set(error, STATUS_INPUT,
                             "%s: layer %lld has a window of its own, which goes by positions in the text: a cache "
                             "that evicts knows slots only; take a model without windows",
                             config->name, (long long)layer);
    struct kv_evict *evict = calloc(1, sizeof *evict);
    if (evict == NULL)
        return error_set(error, STATUS_DEVICE, "eviction: out of host memory");
    *evict = (struct kv_evict){
        .ledger = ledger,
        .config = config,
        .options = *options,
        .layers = (int)config->num_hidden_layers,
        .kv_heads = (int)config->num_key_value_heads,
        .max_sequences = max_sequences,
        .sinks = {.count = options->sinks},
    };
    if (host_memory_init(evict, error) != STATUS_OK || device_memory_init(evict, error) != STATUS_OK) {
        kv_evict_close(evict);
        return error->status;
    }
    *out = evict;
    return STATUS_OK;
}

void kv_evict_close(struct kv_evict *evict)
{
    if (evict == NULL)
        return;
    const void *const device_memory[] = {
        evict->moves,         evict->mass,       evict->sinks.k,          evict->sinks.v,
        evict->sinks.cos_sin, evict->sinks.rows, evict->sinks.frequencies};
    for (size_t i = 0; i < sizeof device_memory / sizeof *device_memory; i++)
        ledger_release(evict->ledger, device_memory[i]);
    for (int i = 0; evict->slots != NULL && i < evict->max_sequences; i++)
        eviction_free(&evict->slots[i]);
    free(evict->slots);
    free(evict->numbers);
    free(evict->moves_sinks);
    free(evict->host_moves);
    free(evict->chosen);
    free(evict->host_mass);
    free(evict->of_sequence);
    free(evict->sinks.host);
    free(evict);
}

struct eviction *kv_evict_slots(const struct kv_evict *evict, int number)
{
    assert(number >= 0 && number < evict->max_sequences);
    return &evict->slots[number];
}

/* ---- giving up ---- */

/* One sequence's moves, [side][round][layer * kv_heads + head], to their places among the other entries'. */
static void scatter_moves(struct kv_evict *evict, int s)
{
    size_t kv_heads = (size_t)evict->kv_heads, heads = heads_of(evict), drop = (size_t)evict->options.drop;
    size_t round_count = heads * (size_t)evict->max_sequences;
    for (size_t i = 0; i < 2 * drop; i++)
        for (size_t layer = 0; layer < (size_t)evict->layers; layer++)
            memcpy(evict->host_moves + i * round_count + (layer * (size_t)evict->max_sequences + (size_t)s) * kv_heads,
                   evict->chosen + i * heads + layer * kv_heads, kv_heads * sizeof *evict->chosen);
}

void kv_evict_choose(struct kv_evict *evict, int s, int number)
{
    assert(s < evict->max_sequences);
    struct eviction *slots = kv_evict_slots(evict, number);
    size_t heads = heads_of(evict);
    if (s == 0)
        evict->rounds = 0;
    evict->sequences = s + 1;
    evict->numbers[s] = number;
    evict->moves_sinks[s] = false;
    if (eviction_due(slots) == 0)
        return;
    if (evict->rounds == 0) /* -1: entries that give up nothing move nothing */
        memset(evict->host_moves, 0xff, 2 * moves_count(evict) * sizeof *evict->host_moves);
    evict->rounds = evict->options.drop;
    evict->moves_sinks[s] = evict->sinks.count > 0;
    eviction_drop(slots, evict->chosen, evict->chosen + (size_t)evict->options.drop * heads, (int)heads);
    scatter_moves(evict, s);
}

static enum status move_rows(struct kv_evict *evict, int layer, const struct device_batch *batch,
                             const struct device_kv *kv, struct error *error)
{
    struct device *device = ledger_device(evict->ledger);
    size_t per_layer = (size_t)evict->max_sequences * (size_t)evict->kv_heads;
    for (int round = 0; round < evict->rounds; round++) {
        size_t at = ((size_t)round * (size_t)evict->layers + (size_t)layer) * per_layer;
        struct kv_move_args args = {
            .batch = batch,
            .kv = *kv,
            .from = evict->moves + at,
            .to = evict->moves + moves_count(evict) + at,
            .kv_heads = evict->kv_heads,
            .head_dim = (int)evict->config->head_dim,
        };
        if (device->ops->kv_move(device, &args, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* ---- attention sinks ---- */

/* Slot, entry and position of every sink of the pass: sink i of a sequence that evicted e tokens stands at i + e. */
static enum status send_sink_rows(struct kv_evict *evict, struct error *error)
{
    struct sinks *sinks = &evict->sinks;
    struct device *device = ledger_device(evict->ledger);
    int rows = evict->max_sequences * sinks->count;
    for (int s = 0; s < evict->sequences; s++)
        for (int i = 0; i < sinks->count; i++) {
            int row = s * sinks->count + i;
            sinks->host[row] = i;
            sinks->host[rows + row] = s;
            sinks->host[2 * rows + row] = i + kv_evict_slots(evict, evict->numbers[s])->evicted;
        }
    if (device->ops->upload(device, sinks->rows, sinks->host, 3 * (size_t)rows * sizeof(int32_t), error) != STATUS_OK)
        return error->status;
    return device->ops->rope_table(device, sinks->cos_sin, sinks->rows + (size_t)2 * (size_t)rows, sinks->frequencies,
                                   evict->sequences * sinks->count, (int)evict->config->head_dim / 2, error);
}

/* The rows of one sequence's sinks in a layer's copies. */
static size_t sink_row(const struct kv_evict *evict, int layer, int number)
{
    return ((size_t)layer * (size_t)evict->max_sequences + (size_t)number) * (size_t)evict->sinks.count;
}

static enum status rotate_sinks(struct kv_evict *evict, int s, int layer, const struct device_batch *batch,
                                const struct device_kv *kv, struct error *error)
{
    const struct sinks *sinks = &evict->sinks;
    struct device *device = ledger_device(evict->ledger);
    size_t first = (size_t)s * (size_t)sinks->count, head_dim = (size_t)evict->config->head_dim;
    struct device_batch rows = *batch;
    rows.rows = sinks->count;
    rows.positions = sinks->rows + first;
    rows.row_sequence = sinks->rows + (size_t)evict->max_sequences * (size_t)sinks->count + first;
    size_t copy = sink_row(evict, layer, evict->numbers[s]) * row_values(evict);
    struct rope_store_args args = {
        .batch = &rows,
        .kv = *kv,
        .k = sinks->k + copy,
        .v = sinks->v + copy,
        .cos_sin = sinks->cos_sin + first * head_dim,
        .heads = 0, /* there is no query here */
        .kv_heads = evict->kv_heads,
        .head_dim = (int)head_dim,
    };
    return device->ops->rope_store(device, &args, error);
}

bool kv_evict_stores_sinks(const struct kv_evict *evict)
{
    for (int s = 0; s < evict->sequences; s++)
        if (kv_evict_slots(evict, evict->numbers[s])->held < evict->sinks.count)
            return true;
    return false;
}

enum status kv_evict_keep_sinks(struct kv_evict *evict, int layer, const float *k, const float *v, struct error *error)
{
    struct device *device = ledger_device(evict->ledger);
    size_t values = row_values(evict), bytes = values * sizeof(float);
    for (int s = 0; s < evict->sequences; s++) {
        int slot = kv_evict_slots(evict, evict->numbers[s])->held;
        if (slot >= evict->sinks.count)
            continue;
        size_t to = (sink_row(evict, layer, evict->numbers[s]) + (size_t)slot) * values, from = (size_t)s * values;
        if (device->ops->copy(device, evict->sinks.k + to, k + from, bytes, error) != STATUS_OK ||
            device->ops->copy(device, evict->sinks.v + to, v + from, bytes, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* ---- around a pass ---- */

enum status kv_evict_send(struct kv_evict *evict, struct error *error)
{
    struct device *device = ledger_device(evict->ledger);
    if (evict->mass != NULL &&
        device->ops->fill_value(device, evict->mass, DTYPE_F32, mass_count(evict), 0.0f, error) != STATUS_OK)
        return error->status;
    if (evict->rounds == 0)
        return STATUS_OK;
    if (device->ops->upload(device, evict->moves, evict->host_moves, 2 * moves_count(evict) * sizeof *evict->moves,
                            error) != STATUS_OK)
        return error->status;
    return evict->sinks.count > 0 ? send_sink_rows(evict, error) : STATUS_OK;
}

enum status kv_evict_apply(struct kv_evict *evict, int layer, const struct device_batch *batch,
                           const struct device_kv *kv, struct error *error)
{
    if (move_rows(evict, layer, batch, kv, error) != STATUS_OK)
        return error->status;
    for (int s = 0; s < evict->sequences; s++)
        if (evict->moves_sinks[s] && rotate_sinks(evict, s, layer, batch, kv, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

float *kv_evict_mass(const struct kv_evict *evict, int layer)
{
    if (evict->mass == NULL)
        return NULL;
    return evict->mass + (size_t)layer * mass_count(evict) / (size_t)evict->layers;
}

enum status kv_evict_observe(struct kv_evict *evict, struct error *error)
{
    if (evict->mass == NULL)
        return STATUS_OK;
    struct device *device = ledger_device(evict->ledger);
    size_t of_layer = (size_t)evict->kv_heads * (size_t)evict->options.budget;
    int group = (int)(evict->config->num_attention_heads / evict->config->num_key_value_heads);
    if (device->ops->download(device, evict->host_mass, evict->mass, mass_count(evict) * sizeof(float), error) !=
        STATUS_OK)
        return error->status;
    for (int s = 0; s < evict->sequences; s++) {
        for (size_t layer = 0; layer < (size_t)evict->layers; layer++)
            memcpy(evict->of_sequence + layer * of_layer,
                   evict->host_mass + (layer * (size_t)evict->max_sequences + (size_t)s) * of_layer,
                   of_layer * sizeof(float));
        eviction_observe(kv_evict_slots(evict, evict->numbers[s]), evict->of_sequence, group);
    }
    return STATUS_OK;
}
