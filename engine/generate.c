#include "engine/generate.h"

#include "engine/random.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What one generation works with. */
struct generation {
    struct model *model;
    struct kv_cache *cache;
    int sequence;
    const struct generate_options *options;
    struct sampler sampler;
    struct logits logits; /* one row, used again at every step */
    int32_t *tokens;      /* host, prompt and what was chosen so far */
    struct device_event *start, *first, *end;
};

static enum status generation_init(struct generation *g, int prompt_tokens, struct error *error)
{
    struct ledger *ledger = g->model->ledger;
    struct device *device = ledger_device(ledger);
    g->tokens = malloc(((size_t)prompt_tokens + (size_t)g->options->new_tokens) * sizeof *g->tokens);
    if (g->tokens == NULL)
        return error_set(error, STATUS_DEVICE, "generation: out of host memory");
    if (logits_init(&g->logits, ledger, g->model->config, g->model->weights.dtype, 1, error) != STATUS_OK ||
        kv_make_room_ahead(g->cache, g->sequence, prompt_tokens + g->options->new_tokens - 1, error) != STATUS_OK ||
        device->ops->event_create(device, &g->start, error) != STATUS_OK ||
        device->ops->event_create(device, &g->first, error) != STATUS_OK)
        return error->status;
    return device->ops->event_create(device, &g->end, error);
}

static void generation_free(struct generation *g)
{
    struct device *device = ledger_device(g->model->ledger);
    struct device_event *events[] = {g->start, g->first, g->end};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i] != NULL)
            device->ops->event_destroy(device, events[i]);
    logits_free(&g->logits, g->model->ledger);
    free(g->tokens);
}

/* ---- choosing a token ---- */

enum status generate_not_finite(const struct model *model, struct error *error)
{
    return error_set(error, STATUS_INPUT,
                     "%s: the logits are not finite: the weights hold NaN or infinity, or values too large for %s; use "
                     "other weights or --dtype f32",
                     model->config->name, dtype_name(model->weights.dtype));
}

/* The largest on the device; of its logit a look: NaN and infinity there, or no largest at all, is no choice. */
static enum status choose_largest(struct model *model, const struct logits *logits, int64_t row, int32_t *token,
                                  struct error *error)
{
    struct device *device = ledger_device(model->ledger);
    size_t size = dtype_size(logits->dtype);
    unsigned char stored[sizeof(float)];
    if (model_argmax(model, logits, row, 1, token, error) != STATUS_OK)
        return error->status;
    if (*token < 0 || *token >= logits->vocab)
        return generate_not_finite(model, error);
    const char *from = (const char *)logits->data + (size_t)(row * logits->vocab + *token) * size;
    if (device->ops->download(device, stored, from, size, error) != STATUS_OK)
        return error->status;
    return isfinite(dtype_load(logits->dtype, stored, 0)) ? STATUS_OK : generate_not_finite(model, error);
}

enum status generate_choose(struct model *model, const struct logits *logits, int64_t row, struct sampler *sampler,
                            int32_t *token, struct error *error)
{
    if (sampler->temperature <= 0.0f)
        return choose_largest(model, logits, row, token, error);
    const uint32_t point = (uint32_t)(random_next(&sampler->state) >> 32);
    if (model_sample(model, logits, row, 1, sampler, &point, token, error) != STATUS_OK)
        return error->status;
    return *token >= 0 ? STATUS_OK : generate_not_finite(model, error);
}

/* ---- from the prompt to the last token ---- */

/* Passes what the cache does not hold yet of tokens[0 .. known) through the model and chooses the token that follows.
   Without a cache that is everything, again. */
static enum status step(struct generation *g, int known, struct error *error)
{
    if (!g->options->use_cache && kv_truncate(g->cache, g->sequence, 0, error) != STATUS_OK)
        return error->status;
    int held = kv_length(g->cache, g->sequence);
    g->logits.rows = 0;
    if (model_prefill(g->model, g->cache, g->sequence, g->tokens + held, known - held, LOGITS_LAST, 0, &g->logits,
                      error) != STATUS_OK)
        return error->status;
    return generate_choose(g->model, &g->logits, 0, &g->sampler, &g->tokens[known], error);
}

static enum status run(struct generation *g, int prompt_tokens, struct generate_result *result, struct error *error)
{
    struct device *device = ledger_device(g->model->ledger);
    uint64_t positions = g->model->positions_processed;
    if (device->ops->synchronize(device, error) != STATUS_OK ||
        device->ops->event_record(device, g->start, error) != STATUS_OK)
        return error->status;
    while (result->count < g->options->new_tokens) {
        int known = prompt_tokens + result->count;
        if (step(g, known, error) != STATUS_OK)
            return error->status;
        result->count++;
        if (result->count == 1 && device->ops->event_record(device, g->first, error) != STATUS_OK)
            return error->status;
        bool goes_on = !g->options->take || g->options->take(g->options->context, g->tokens[known]);
        if (!goes_on || g->tokens[known] == g->options->stop_token)
            break;
    }
    if (device->ops->event_record(device, g->end, error) != STATUS_OK ||
        device->ops->event_elapsed_ms(device, g->start, g->first, &result->prefill_ms, error) != STATUS_OK ||
        device->ops->event_elapsed_ms(device, g->first, g->end, &result->decode_ms, error) != STATUS_OK)
        return error->status;
    result->positions = g->model->positions_processed - positions;
    return STATUS_OK;
}

enum status generate(struct model *model, struct kv_cache *cache, int sequence, const int32_t *prompt,
                     int prompt_tokens, const struct generate_options *options, int32_t *tokens,
                     struct generate_result *result, struct error *error)
{
    assert(prompt_tokens > 0 && options->new_tokens > 0 && kv_length(cache, sequence) == 0);
    struct generation g = {
        .model = model, .cache = cache, .sequence = sequence, .options = options, .sampler = options->sampler};
    *result = (struct generate_result){0};
    enum status status = generation_init(&g, prompt_tokens, error);
    if (status == STATUS_OK) {
        memcpy(g.tokens, prompt, (size_t)prompt_tokens * sizeof *prompt);
        status = run(&g, prompt_tokens, result, error);
    }
    if (status == STATUS_OK)
        memcpy(tokens, g.tokens + prompt_tokens, (size_t)result->count * sizeof *tokens);
    generation_free(&g);
    return status;
}
