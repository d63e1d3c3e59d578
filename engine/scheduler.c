#include "engine/scheduler.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A request in a slot. */
struct running {
    struct request *request;
    int slot, sequence;
    int rows; /* tokens in this step */
    bool chooses;
};

struct scheduler {
    struct model *model;
    struct kv_cache *cache;
    struct scheduler_options options;
    struct scheduler_clock clock;
    double now_ms;
    struct request **waiting; /* in the order in which they will be admitted */
    size_t waiting_count, waiting_capacity;
    struct running *running; /* [slots], in the order in which they were admitted */
    int running_count;
    struct logits logits;          /* [slots] rows */
    struct sequence_tokens *batch; /* [slots] */
    int32_t *chosen;               /* [slots] */
    struct slot_record *records;   /* [slots] */
};

/* ---- opening, queueing ---- */

static enum status check_options(const struct model *model, const struct kv_cache *cache,
                                 const struct scheduler_options *options, struct error *error)
{
    int sequences = kv_get_options(cache)->max_sequences;
    sequences = sequences < model->limits.max_sequences ? sequences : model->limits.max_sequences;
    if (options->slots < 1 || options->slots > sequences)
        return error_set(error, STATUS_INPUT, "scheduler: %d slots; between 1 and %d are possible here", options->slots,
                         sequences);
    if (options->tokens_per_step < options->slots || options->tokens_per_step > model->limits.max_rows)
        return error_set(error, STATUS_INPUT,
                         "scheduler: %d tokens per step; at least one for each of the %d slots and at most the %d rows "
                         "of a forward pass are possible here",
                         options->tokens_per_step, options->slots, model->limits.max_rows);
    return STATUS_OK;
}

enum status scheduler_open(struct scheduler **out, struct model *model, struct kv_cache *cache,
                           const struct scheduler_options *options, const struct scheduler_clock *clock,
                           struct error *error)
{
    *out = NULL;
    if (check_options(model, cache, options, error) != STATUS_OK)
        return error->status;
    struct scheduler *scheduler = calloc(1, sizeof *scheduler);
    if (scheduler == NULL)
        return error_set(error, STATUS_DEVICE, "scheduler: out of host memory");
    size_t slots = (size_t)options->slots;
    *scheduler = (struct scheduler){
        .model = model,
        .cache = cache,
        .options = *options,
        .clock = *clock,
        .running = calloc(slots, sizeof *scheduler->running),
        .batch = calloc(slots, sizeof *scheduler->batch),
        .chosen = calloc(slots, sizeof *scheduler->chosen),
        .records = calloc(slots, sizeof *scheduler->records),
    };
    if (scheduler->running == NULL || scheduler->batch == NULL || scheduler->chosen == NULL ||
        scheduler->records == NULL)
        error_set(error, STATUS_DEVICE, "scheduler: out of host memory");
    else if (logits_init(&scheduler->logits, model->ledger, model->config, model->weights.dtype, options->slots,
                         error) == STATUS_OK) {
        *out = scheduler;
        return STATUS_OK;
    }
    scheduler_close(scheduler);
    return error->status;
}

void scheduler_close(struct scheduler *scheduler)
{
    if (scheduler == NULL)
        return;
    for (int i = 0; i < scheduler->running_count; i++)
        kv_sequence_close(scheduler->cache, scheduler->running[i].sequence);
    logits_free(&scheduler->logits, scheduler->model->ledger);
    free(scheduler->waiting);
    free(scheduler->running);
    free(scheduler->batch);
    free(scheduler->chosen);
    free(scheduler->records);
    free(scheduler);
}

/* Tokens that the request has so far; all but the last one chosen must be in the cache before the next is chosen. */
static int known_tokens(const struct request *request)
{
    return request->prompt_tokens + request->produced;
}

/* All positions that it will ever store: the last token chosen is not one. */
static int64_t stored_tokens(const struct request *request)
{
    return (int64_t)request->prompt_tokens + request->output_tokens - 1;
}

static enum status queue_at(struct scheduler *scheduler, size_t place, struct request *request, struct error *error)
{
    if (scheduler->waiting_count == scheduler->waiting_capacity) {
        size_t capacity = 2 * scheduler->waiting_capacity + 16;
        struct request **waiting = realloc(scheduler->waiting, capacity * sizeof *waiting);
        if (waiting == NULL)
            return error_set(error, STATUS_DEVICE, "scheduler: out of host memory");
        scheduler->waiting = waiting;
        scheduler->waiting_capacity = capacity;
    }
    memmove(scheduler->waiting + place + 1, scheduler->waiting + place,
            (scheduler->waiting_count++ - place) * sizeof(struct request *));
    scheduler->waiting[place] = request;
    return STATUS_OK;
}

enum status scheduler_submit(struct scheduler *scheduler, struct request *request, struct error *error)
{
    const struct kv_options *options = kv_get_options(scheduler->cache);
    assert(request->prompt_tokens > 0 && request->output_tokens > 0 && request->produced == 0);
    int64_t stored = stored_tokens(request);
    if (options->policy != KV_EXACT && stored > options->max_tokens)
        return error_set(error, STATUS_INPUT,
                         "a request of %d prompt and %d output tokens stores %" PRId64
                         " positions; a sequence of this cache holds at most %d",
                         request->prompt_tokens, request->output_tokens, stored, options->max_tokens);
    if (options->policy == KV_PAGED && stored > (int64_t)options->pool_blocks * options->block_size)
        return error_set(error, STATUS_INPUT,
                         "a request of %d prompt and %d output tokens stores %" PRId64
                         " positions; the pool of %d blocks of %d holds %" PRId64 " in all: it could never finish",
                         request->prompt_tokens, request->output_tokens, stored, options->pool_blocks,
                         options->block_size, (int64_t)options->pool_blocks * options->block_size);
    return queue_at(scheduler, scheduler->waiting_count, request, error);
}

int scheduler_pending(const struct scheduler *scheduler)
{
    return (int)scheduler->waiting_count + scheduler->running_count;
}

/* ---- admission and preemption ---- */

static int free_slot(const struct scheduler *scheduler)
{
    for (int slot = 0;; slot++) {
        int i = 0;
        while (i < scheduler->running_count && scheduler->running[i].slot != slot)
            i++;
        if (i == scheduler->running_count)
            return slot;
    }
}

/* Opens the request's sequence, with what the prefix cache has of it, and makes room for what it is admitted with. */
static enum status take_memory(struct scheduler *scheduler, struct request *request, int *sequence, int *hit,
                               struct error *error)
{
    bool whole = scheduler->options.admission == ADMIT_WHOLE;
    int known = known_tokens(request), room = whole ? (int)stored_tokens(request) : known;
    if (kv_sequence_open_with_prefix(scheduler->cache, request->tokens, known, sequence, hit, error) != STATUS_OK)
        return error->status;
    if (kv_make_room(scheduler->cache, *sequence, room, error) != STATUS_OK) {
        kv_sequence_close(scheduler->cache, *sequence);
        return error->status;
    }
    return STATUS_OK;
}

/* What a failure to make room means: an error where it is none of room, or where nobody else could give some back. */
static enum status no_room(const struct scheduler *scheduler, bool alone, int tokens, struct error *error)
{
    if (!kv_out_of_room(scheduler->cache))
        return error->status;
    return alone ? error_prefix(error, "a request of %d tokens does not fit even alone", tokens) : STATUS_OK;
}

/* Fills slots with requests that have arrived, first come, first served: the first one that does not fit ends it. */
static enum status admit(struct scheduler *scheduler, struct error *error)
{
    if (scheduler->options.policy == SCHEDULE_STATIC && scheduler->running_count > 0)
        return STATUS_OK;
    while (scheduler->running_count < scheduler->options.slots && scheduler->waiting_count > 0 &&
           scheduler->waiting[0]->arrival_ms <= scheduler->now_ms) {
        struct request *request = scheduler->waiting[0];
        int sequence, hit;
        if (take_memory(scheduler, request, &sequence, &hit, error) != STATUS_OK)
            return no_room(scheduler, scheduler->running_count == 0, known_tokens(request), error);
        if (request->preemptions == 0) {
            request->admitted_ms = scheduler->now_ms;
            request->hit_tokens = hit;
        }
        scheduler->running[scheduler->running_count] =
            (struct running){.request = request, .slot = free_slot(scheduler), .sequence = sequence};
        scheduler->running_count++;
        memmove(scheduler->waiting, scheduler->waiting + 1, --scheduler->waiting_count * sizeof(struct request *));
    }
    return STATUS_OK;
}

/* The latest admitted loses its memory, and is the next to be admitted again. */
static enum status preempt_latest(struct scheduler *scheduler, struct error *error)
{
    struct running *latest = &scheduler->running[--scheduler->running_count];
    latest->request->preemptions++;
    kv_sequence_close(scheduler->cache, latest->sequence);
    return queue_at(scheduler, 0, latest->request, error);
}

/* ---- one step ---- */

static int tokens_left(const struct scheduler *scheduler, const struct running *running)
{
    return known_tokens(running->request) - kv_length(scheduler->cache, running->sequence);
}

/* Room for the rows of running[at]; those admitted later give way, the latest first, and it itself last. */
static enum status make_room(struct scheduler *scheduler, int at, int rows, struct error *error)
{
    const struct running *running = &scheduler->running[at];
    int length = kv_length(scheduler->cache, running->sequence);
    while (at < scheduler->running_count) {
        if (kv_make_room(scheduler->cache, running->sequence, length + rows, error) == STATUS_OK)
            return STATUS_OK;
        if (no_room(scheduler, scheduler->running_count == 1, length + rows, error) != STATUS_OK)
            return error->status;
        if (preempt_latest(scheduler, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* Who computes how many tokens: one row for everyone who needs just one, the rest for prompts, first come, first
   served. */
static enum status plan_rows(struct scheduler *scheduler, struct error *error)
{
    int spare = scheduler->options.tokens_per_step;
    for (int i = 0; i < scheduler->running_count; i++)
        spare -= tokens_left(scheduler, &scheduler->running[i]) == 1;
    for (int i = 0; i < scheduler->running_count; i++) {
        struct running *running = &scheduler->running[i];
        int left = tokens_left(scheduler, running);
        running->rows = left == 1 || left < spare ? left : spare;
        running->chooses = running->rows == left;
        spare -= left == 1 ? 0 : running->rows;
        if (make_room(scheduler, i, running->rows, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* The forward pass, the choice of tokens, and the time when they are there. */
static enum status compute(struct scheduler *scheduler, struct error *error)
{
    int sequences = 0, choices = 0;
    for (int i = 0; i < scheduler->running_count; i++) {
        const struct running *running = &scheduler->running[i];
        if (running->rows > 0)
            scheduler->batch[sequences++] = (struct sequence_tokens){
                .sequence = running->sequence,
                .tokens = running->request->tokens + kv_length(scheduler->cache, running->sequence),
                .count = running->rows,
                .logits = running->chooses ? LOGITS_LAST : LOGITS_NONE,
            };
        choices += running->chooses;
    }
    scheduler->logits.rows = 0;
    if (model_forward(scheduler->model, scheduler->cache, scheduler->batch, sequences, &scheduler->logits, error) !=
            STATUS_OK ||
        (choices > 0 &&
         model_argmax(scheduler->model, &scheduler->logits, 0, choices, scheduler->chosen, error) != STATUS_OK))
        return error->status;
    return scheduler->clock.read(scheduler->clock.context, &scheduler->now_ms, error);
}

static void record_slots(struct scheduler *scheduler, struct step_record *step)
{
    memset(scheduler->records, 0, (size_t)scheduler->options.slots * sizeof *scheduler->records);
    step->slots = scheduler->records;
    step->cells = step->idle_cells = scheduler->options.slots;
    step->slots_in_use = scheduler->running_count;
    for (int i = 0; i < scheduler->running_count; i++) {
        const struct running *running = &scheduler->running[i];
        scheduler->records[running->slot] =
            (struct slot_record){.request = running->request, .rows = running->rows, .chose = running->chooses};
        step->rows += running->rows;
        step->idle_cells -= running->rows > 0;
    }
    if (kv_get_options(scheduler->cache)->policy == KV_PAGED)
        step->kv_blocks = kv_get_options(scheduler->cache)->pool_blocks - kv_blocks_free(scheduler->cache);
}

static enum status take_token(struct scheduler *scheduler, struct request *request, int32_t token, struct error *error)
{
    if (token < 0 || token >= scheduler->model->config->vocab_size)
        return error_set(error, STATUS_INPUT,
                         "%s: the logits are not finite: the weights hold NaN or infinity, or values too large for %s; "
                         "use other weights or --dtype f32",
                         scheduler->model->config->name, dtype_name(scheduler->logits.dtype));
    if (request->produced == 0)
        request->first_token_ms = scheduler->now_ms;
    request->tokens[known_tokens(request)] = token;
    request->produced++;
    if (request->produced == request->output_tokens)
        request->finished_ms = scheduler->now_ms;
    return STATUS_OK;
}

/* Hands out the tokens chosen; full blocks can be found from now on; who is done leaves. */
static enum status collect(struct scheduler *scheduler, struct step_record *step, struct error *error)
{
    int stay = 0, taken = 0;
    for (int i = 0; i < scheduler->running_count; i++) {
        struct running running = scheduler->running[i];
        if (running.chooses && take_token(scheduler, running.request, scheduler->chosen[taken++], error) != STATUS_OK)
            return error->status;
        kv_publish(scheduler->cache, running.sequence, running.request->tokens);
        if (running.request->produced < running.request->output_tokens) {
            scheduler->running[stay++] = running;
            continue;
        }
        kv_sequence_close(scheduler->cache, running.sequence);
        step->finished++;
    }
    scheduler->running_count = stay;
    return STATUS_OK;
}

static enum status wait_for_work(struct scheduler *scheduler, struct error *error)
{
    struct scheduler_clock *clock = &scheduler->clock;
    if (clock->read(clock->context, &scheduler->now_ms, error) != STATUS_OK)
        return error->status;
    while (scheduler->running_count == 0 && scheduler->waiting[0]->arrival_ms > scheduler->now_ms)
        if (clock->wait_until(clock->context, scheduler->waiting[0]->arrival_ms, error) != STATUS_OK ||
            clock->read(clock->context, &scheduler->now_ms, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

enum status scheduler_step(struct scheduler *scheduler, struct step_record *step, struct error *error)
{
    const volatile sig_atomic_t *stop = scheduler->model->stop;
    *step = (struct step_record){.slots = scheduler->records};
    if (scheduler_pending(scheduler) == 0)
        return STATUS_OK;
    if (stop != NULL && *stop)
        return error_set(error, STATUS_INTERRUPTED, "interrupted with %d requests to go", scheduler_pending(scheduler));
    if (wait_for_work(scheduler, error) != STATUS_OK)
        return error->status;
    step->start_ms = scheduler->now_ms;
    int before = scheduler->running_count;
    if (admit(scheduler, error) != STATUS_OK)
        return error->status;
    int admitted = scheduler->running_count;
    if (plan_rows(scheduler, error) != STATUS_OK)
        return error->status;
    step->admitted = admitted - before;
    step->preempted = admitted - scheduler->running_count;
    if (compute(scheduler, error) != STATUS_OK)
        return error->status;
    step->end_ms = scheduler->now_ms;
    record_slots(scheduler, step);
    return collect(scheduler, step, error);
}
