#include "engine/speculative.h"

#include "engine/generate.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct speculative_work {
    struct logits target, draft;   /* [draft_tokens + 1], [1] */
    int32_t *chosen;               /* host [draft_tokens + 1]: the target's greedy choices */
    void *rows;                    /* host, the target's logits in the working type */
    struct distribution judge;     /* the target's at one position */
    struct distribution *proposal; /* [draft_tokens], the draft's at each */
    struct device_event *begun, *drafted, *judged;
};

static bool is_greedy(const struct speculative *s)
{
    return s->options.sampler.temperature <= 0.0f;
}

/* ---- memory ---- */

static bool distribution_init(struct distribution *distribution, size_t vocab)
{
    distribution->share = malloc(vocab * sizeof *distribution->share);
    distribution->ids = malloc(vocab * sizeof *distribution->ids);
    return distribution->share != NULL && distribution->ids != NULL;
}

static void distribution_free(struct distribution *distribution)
{
    free(distribution->share);
    free(distribution->ids);
}

static bool take_host_memory(struct speculative *s)
{
    struct speculative_work *work = s->work;
    size_t vocab = (size_t)s->target.model->config->vocab_size, drafts = (size_t)s->options.draft_tokens;
    s->tokens = malloc(((size_t)s->prompt_tokens + (size_t)s->options.new_tokens) * sizeof *s->tokens);
    work->chosen = malloc((drafts + 1) * sizeof *work->chosen);
    bool taken = s->tokens != NULL && work->chosen != NULL;
    if (is_greedy(s))
        return taken;
    work->rows = malloc((drafts + 1) * vocab * sizeof(float)); /* no working type is wider */
    work->proposal = calloc(drafts + 1, sizeof *work->proposal);
    taken = taken && work->rows != NULL && work->proposal != NULL && distribution_init(&work->judge, vocab);
    for (size_t i = 0; i < drafts && taken; i++)
        taken = distribution_init(&work->proposal[i], vocab);
    return taken;
}

static enum status make_events(struct speculative *s, struct error *error)
{
    struct device *device = ledger_device(s->target.model->ledger);
    struct device_event **events[] = {&s->work->begun, &s->work->drafted, &s->work->judged};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (device->ops->event_create(device, events[i], error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* Positions of the prompt and all new tokens but the last, which no pass needs; of the draft as many as it was made
   for. */
static int longest(const struct speculative *s, const struct model *model)
{
    int64_t positions = (int64_t)s->prompt_tokens + s->options.new_tokens - 1;
    bool beyond = model == s->draft.model && positions > model->config->max_position_embeddings;
    return (int)(beyond ? model->config->max_position_embeddings : positions);
}

static enum status side_init(struct speculative *s, const struct speculative_side *side, struct logits *logits,
                             int rows, struct error *error)
{
    struct model *model = side->model;
    assert(kv_length(side->cache, side->sequence) == 0);
    if (logits_init(logits, model->ledger, model->config, model->weights.dtype, rows, error) != STATUS_OK)
        return error->status;
    return kv_make_room(side->cache, side->sequence, longest(s, model), error);
}

enum status speculative_check_vocabularies(const struct config *target, const struct config *draft, struct error *error)
{
    if (draft->vocab_size == target->vocab_size)
        return STATUS_OK;
    return error_set(error, STATUS_INPUT,
                     "speculative decoding: the draft %s has a vocabulary of %" PRId64 ", the target %s one of %" PRId64
                     ": their tokens are not the same; take a draft of the target's family",
                     draft->name, draft->vocab_size, target->name, target->vocab_size);
}

static bool gives_back(const struct speculative_side *side)
{
    const struct kv_options *options = kv_get_options(side->cache);
    return (options->policy == KV_PAGED && options->window > 0) || options->eviction.policy != EVICT_NOTHING;
}

static enum status check_sides(const struct speculative *s, struct error *error)
{
    const struct model *target = s->target.model;
    int drafts = s->options.draft_tokens;
    if (s->draft.model == NULL)
        return STATUS_OK;
    enum status status = speculative_check_vocabularies(target->config, s->draft.model->config, error);
    if (status != STATUS_OK)
        return status;
    if (gives_back(&s->target) || gives_back(&s->draft))
        return error_set(
            error, STATUS_INPUT,
            "speculative decoding: a cache that evicts, or a paged one with a window, gives up what is needed "
            "again where a proposal is refused; take one that keeps all");
    if (drafts + 1 > target->limits.max_rows)
        return error_set(error, STATUS_INPUT,
                         "speculative decoding: %d proposed tokens need a pass of %d rows, the target's limits allow "
                         "%d",
                         drafts, drafts + 1, target->limits.max_rows);
    return STATUS_OK;
}

enum status speculative_init(struct speculative *speculative, const struct speculative_side *target,
                             const struct speculative_side *draft, const struct speculative_options *options,
                             const int32_t *prompt, int prompt_tokens, struct error *error)
{
    assert(prompt_tokens > 0 && options->new_tokens > 0 && options->draft_tokens >= 0);
    struct speculative *s = speculative;
    *s = (struct speculative){.target = *target, .options = *options, .prompt_tokens = prompt_tokens};
    if (options->draft_tokens > 0) {
        assert(ledger_device(draft->model->ledger) == ledger_device(target->model->ledger));
        s->draft = *draft;
    }
    enum status status = check_sides(s, error);
    if (status != STATUS_OK)
        return status;
    s->work = calloc(1, sizeof *s->work);
    if (s->work == NULL || !take_host_memory(s))
        return error_set(error, STATUS_DEVICE, "speculative decoding: out of host memory");
    memcpy(s->tokens, prompt, (size_t)prompt_tokens * sizeof *prompt);
    s->known = prompt_tokens;
    if (make_events(s, error) != STATUS_OK ||
        side_init(s, &s->target, &s->work->target, options->draft_tokens + 1, error) != STATUS_OK)
        return error->status;
    return options->draft_tokens > 0 ? side_init(s, &s->draft, &s->work->draft, 1, error) : STATUS_OK;
}

void speculative_free(struct speculative *speculative)
{
    struct speculative *s = speculative;
    struct speculative_work *work = s->work;
    if (work != NULL) {
        struct device *device = ledger_device(s->target.model->ledger);
        struct device_event *events[] = {work->begun, work->drafted, work->judged};
        for (size_t i = 0; i < sizeof events / sizeof *events; i++)
            if (events[i] != NULL)
                device->ops->event_destroy(device, events[i]);
        logits_free(&work->target, s->target.model->ledger);
        if (s->draft.model != NULL)
            logits_free(&work->draft, s->draft.model->ledger);
        for (int i = 0; i < s->options.draft_tokens && work->proposal != NULL; i++)
            distribution_free(&work->proposal[i]);
        distribution_free(&work->judge);
        free(work->proposal);
        free(work->rows);
        free(work->chosen);
    }
    free(work);
    free(s->tokens);
    *s = (struct speculative){0};
}

/* ---- passes, and what their logits say ---- */

/* Passes what the side's cache does not hold yet of the first `known` tokens; its logits stand alone then. */
static enum status pass(const struct speculative *s, const struct speculative_side *side, int known,
                        enum logits_positions positions, struct logits *logits, struct error *error)
{
    int held = kv_length(side->cache, side->sequence);
    logits->rows = 0;
    return model_prefill(side->model, side->cache, side->sequence, s->tokens + held, known - held, positions, 0, logits,
                         error);
}

static enum status download_rows(const struct speculative *s, const struct logits *logits, struct error *error)
{
    struct device *device = ledger_device(s->target.model->ledger); /* the draft's too */
    size_t bytes = (size_t)logits->rows * (size_t)logits->vocab * dtype_size(logits->dtype);
    return device->ops->download(device, s->work->rows, logits->data, bytes, error);
}

/* What the sampler would draw from at row `row` of the downloaded logits. */
static enum status distribution_of(const struct speculative *s, const struct model *model, const struct logits *logits,
                                   int row, struct distribution *distribution, struct error *error)
{
    for (int64_t i = 0; i < logits->vocab; i++) {
        float value = dtype_load(logits->dtype, s->work->rows, (size_t)(row * logits->vocab + i));
        if (!isfinite(value))
            return generate_not_finite(model, error);
        distribution->share[i] = value;
    }
    sampler_distribution(&s->options.sampler, distribution, (int)logits->vocab);
    return STATUS_OK;
}

/* ---- a round ---- */

/* Never more than can still be used, and none that the draft has no positions for. */
static int proposals(const struct speculative *s)
{
    if (s->draft.model == NULL)
        return 0;
    int64_t count = s->options.draft_tokens, left = s->prompt_tokens + s->options.new_tokens - s->known;
    int64_t room = s->draft.model->config->max_position_embeddings - s->known + 1;
    count = count > left - 1 ? left - 1 : count;
    count = count > room ? room : count;
    return count > 0 ? (int)count : 0;
}

/* Writes tokens[known .. known + count). */
static enum status propose(struct speculative *s, int count, struct error *error)
{
    struct logits *logits = &s->work->draft;
    for (int i = 0; i < count; i++) {
        int32_t *token = &s->tokens[s->known + i];
        if (pass(s, &s->draft, s->known + i, LOGITS_LAST, logits, error) != STATUS_OK)
            return error->status;
        if (is_greedy(s)) {
            if (generate_choose(s->draft.model, logits, 0, &s->options.sampler, token, error) != STATUS_OK)
                return error->status;
            continue;
        }
        struct distribution *proposal = &s->work->proposal[i];
        if (download_rows(s, logits, error) != STATUS_OK ||
            distribution_of(s, s->draft.model, logits, 0, proposal, error) != STATUS_OK)
            return error->status;
        *token = distribution_draw(proposal, &s->options.sampler.state);
    }
    return STATUS_OK;
}

/* Accepts while the target says the same; what it says where it does not, or after all of them, is the next token. */
static enum status judge_greedy(struct speculative *s, int count, int *accepted, struct error *error)
{
    int32_t *chosen = s->work->chosen, *proposed = s->tokens + s->known;
    struct model *model = s->target.model;
    if (model_argmax(model, &s->work->target, 0, count, chosen, error) != STATUS_OK)
        return error->status;
    while (*accepted < count && proposed[*accepted] == chosen[*accepted])
        ++*accepted;
    return generate_choose(model, &s->work->target, *accepted, &s->options.sampler, &proposed[*accepted], error);
}

static enum status judge_sampled(struct speculative *s, int count, int *accepted, struct error *error)
{
    const struct logits *logits = &s->work->target;
    struct distribution *judge = &s->work->judge;
    uint64_t *state = &s->options.sampler.state;
    if (download_rows(s, logits, error) != STATUS_OK)
        return error->status;
    bool kept = true;
    for (; kept && *accepted < count; *accepted += kept) {
        int32_t *token = &s->tokens[s->known + *accepted];
        if (distribution_of(s, s->target.model, logits, *accepted, judge, error) != STATUS_OK)
            return error->status;
        *token = speculative_judge(judge, &s->work->proposal[*accepted], *token, state, &kept);
    }
    if (!kept)
        return STATUS_OK;
    if (distribution_of(s, s->target.model, logits, count, judge, error) != STATUS_OK)
        return error->status;
    s->tokens[s->known + count] = distribution_draw(judge, state);
    return STATUS_OK;
}

/* Without a proposal it is plain decoding. */
static enum status judge(struct speculative *s, int count, int *accepted, struct error *error)
{
    *accepted = 0;
    if (count == 0)
        return generate_choose(s->target.model, &s->work->target, 0, &s->options.sampler, &s->tokens[s->known], error);
    return is_greedy(s) ? judge_greedy(s, count, accepted, error) : judge_sampled(s, count, accepted, error);
}

/* The accepted tokens and the target's own stand, up to a stop token; both caches forget what was refused. */
static enum status keep(struct speculative *s, int count, int accepted, struct error *error)
{
    s->counts.target_passes++;
    s->counts.proposed += count;
    s->counts.judged += accepted + (accepted < count);
    s->counts.accepted += accepted;
    for (int i = 0; i <= accepted && !s->stopped; i++)
        s->stopped = s->tokens[s->known++] == s->options.stop_token;
    const struct speculative_side *sides[] = {&s->target, &s->draft};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        if (sides[i]->model == NULL || kv_length(sides[i]->cache, sides[i]->sequence) < s->known)
            continue;
        if (kv_truncate(sides[i]->cache, sides[i]->sequence, s->known - 1, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

enum status speculative_round(struct speculative *speculative, struct error *error)
{
    struct speculative *s = speculative;
    struct speculative_work *work = s->work;
    struct device *device = ledger_device(s->target.model->ledger);
    assert(!speculative_done(s) && s->known > s->prompt_tokens);
    int count = proposals(s), accepted = 0;
    if (device->ops->event_record(device, work->begun, error) != STATUS_OK || propose(s, count, error) != STATUS_OK ||
        device->ops->event_record(device, work->drafted, error) != STATUS_OK ||
        pass(s, &s->target, s->known + count, LOGITS_ALL, &work->target, error) != STATUS_OK ||
        judge(s, count, &accepted, error) != STATUS_OK || keep(s, count, accepted, error) != STATUS_OK ||
        device->ops->event_record(device, work->judged, error) != STATUS_OK)
        return error->status;
    double draft_ms = 0.0, target_ms = 0.0;
    if (device->ops->event_elapsed_ms(device, work->begun, work->drafted, &draft_ms, error) != STATUS_OK ||
        device->ops->event_elapsed_ms(device, work->drafted, work->judged, &target_ms, error) != STATUS_OK)
        return error->status;
    s->counts.draft_ms += draft_ms;
    s->counts.target_ms += target_ms;
    return STATUS_OK;
}

enum status speculative_prefill(struct speculative *speculative, struct error *error)
{
    struct speculative *s = speculative;
    int accepted;
    assert(s->known == s->prompt_tokens);
    if (pass(s, &s->target, s->known, LOGITS_LAST, &s->work->target, error) != STATUS_OK ||
        judge(s, 0, &accepted, error) != STATUS_OK)
        return error->status;
    s->stopped = s->tokens[s->known++] == s->options.stop_token;
    if (proposals(s) == 0)
        return STATUS_OK;
    return pass(s, &s->draft, s->prompt_tokens, LOGITS_NONE, &s->work->draft, error);
}

bool speculative_done(const struct speculative *speculative)
{
    return speculative->stopped || speculative->known == speculative->prompt_tokens + speculative->options.new_tokens;
}

/* ---- from the prompt to the last token ---- */

static enum status run(struct speculative *s, struct device_event *const events[3], struct speculative_result *result,
                       struct error *error)
{
    struct device *device = ledger_device(s->target.model->ledger);
    if (device->ops->synchronize(device, error) != STATUS_OK ||
        device->ops->event_record(device, events[0], error) != STATUS_OK ||
        speculative_prefill(s, error) != STATUS_OK || device->ops->event_record(device, events[1], error) != STATUS_OK)
        return error->status;
    while (!speculative_done(s))
        if (speculative_round(s, error) != STATUS_OK)
            return error->status;
    if (device->ops->event_record(device, events[2], error) != STATUS_OK ||
        device->ops->event_elapsed_ms(device, events[0], events[1], &result->prefill_ms, error) != STATUS_OK ||
        device->ops->event_elapsed_ms(device, events[1], events[2], &result->decode_ms, error) != STATUS_OK)
        return error->status;
    result->count = s->known - s->prompt_tokens;
    result->counts = s->counts;
    return STATUS_OK;
}

enum status speculative_generate(const struct speculative_side *target, const struct speculative_side *draft,
                                 const struct speculative_options *options, const int32_t *prompt, int prompt_tokens,
                                 int32_t *tokens, struct speculative_result *result, struct error *error)
{
    struct device *device = ledger_device(target->model->ledger);
    struct device_event *events[3] = {NULL};
    struct speculative s;
    *result = (struct speculative_result){0};
    enum status status = speculative_init(&s, target, draft, options, prompt, prompt_tokens, error);
    for (int i = 0; i < 3 && status == STATUS_OK; i++)
        status = device->ops->event_create(device, &events[i], error);
    if (status == STATUS_OK)
        status = run(&s, events, result, error);
    if (status == STATUS_OK)
        memcpy(tokens, s.tokens + prompt_tokens, (size_t)result->count * sizeof *tokens);
    for (int i = 0; i < 3; i++)
        if (events[i] != NULL)
            device->ops->event_destroy(device, events[i]);
    speculative_free(&s);
    return status;
}
