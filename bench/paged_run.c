#include "bench/paged.h"

#include "engine/formula.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum state { WAITING, RUNNING, DONE };

struct request {
    enum state state;
    int tokens;   /* that it needs room for when it is admitted */
    int left;     /* outputs still to come */
    int sequence; /* in the cache, while it runs */
};

/* Requests are admitted, and keep their memory, in the order of the trace: the oldest has the least number. */
struct run {
    struct ledger *ledger;
    const struct config *config;
    const struct paged_setting *setting;
    const struct trace_request *trace;
    struct kv_cache *cache;
    struct request *requests; /* [count] */
    int count, running, done, step;
    bool refused, preempted; /* in this step */
    uint64_t token_bytes, allocations_before;
    struct paged_counts *counts;
};

double paged_mean_held(const struct trace_request *requests, int count)
{
    double steps = 0.0, held = 0.0;
    for (int i = 0; i < count; i++) {
        double p = requests[i].prompt_tokens, n = requests[i].output_tokens;
        steps += n;
        held += n * p + n * (n - 1.0) / 2.0;
    }
    return held / steps;
}

/* ---- the cache ---- */

static enum status open_counted(struct run *run, const struct kv_options *options, struct error *error)
{
    ledger_reset_peaks(run->ledger);
    run->allocations_before = ledger_counts(run->ledger).allocations;
    return kv_open(&run->cache, run->ledger, run->config, options, error);
}

/* A pool of as many blocks as the budget has room for once each tensor is rounded up by the ledger. */
static enum status open_pool(struct run *run, struct kv_options *options, struct error *error)
{
    uint64_t budget = ledger_budget(run->ledger), page = ledger_device(run->ledger)->info.page_bytes;
    uint64_t tensors = 2 * (uint64_t)run->config->num_hidden_layers, share = budget / tensors;
    if (share >= LEDGER_OWN_SEGMENT_BYTES)
        share -= share % page;
    uint64_t blocks = share * tensors / (run->token_bytes * (uint64_t)options->block_size);
    for (options->pool_blocks = blocks < INT32_MAX ? (int)blocks : INT32_MAX; options->pool_blocks > 0;
         options->pool_blocks--) {
        if (open_counted(run, options, error) != STATUS_OK)
            return error->status;
        if (ledger_counts(run->ledger).reserved <= budget)
            return STATUS_OK;
        kv_close(run->cache);
        run->cache = NULL;
    }
    return error_set(error, STATUS_DEVICE,
                     "paged: no block of %d tokens fits %" PRIu64 " bytes; --kv-budget gives more", options->block_size,
                     budget);
}

static enum status open_cache(struct run *run, struct error *error)
{
    struct kv_options options = {.policy = run->setting->policy,
                                 .dtype = run->setting->dtype,
                                 .max_sequences = run->count,
                                 .block_size = run->setting->block_size,
                                 .max_tokens = run->setting->max_tokens};
    return options.policy == KV_PAGED ? open_pool(run, &options, error) : open_counted(run, &options, error);
}

/* Room for `tokens` positions, within the budget: a refusal is an answer, anything else that fails an error. */
static enum status make_room(struct run *run, int sequence, int tokens, bool *fits, struct error *error)
{
    int before = kv_length(run->cache, sequence);
    enum status status = kv_make_room(run->cache, sequence, tokens, error);
    *fits = status == STATUS_OK && ledger_counts(run->ledger).reserved <= ledger_budget(run->ledger);
    return status == STATUS_DEVICE && kv_length(run->cache, sequence) == before ? STATUS_OK : status;
}

static enum status does_not_fit(const struct run *run, int request, struct error *error)
{
    return error_set(error, STATUS_DEVICE,
                     "%s: a request of %d + %d tokens does not fit %" PRIu64
                     " bytes even alone; --kv-budget gives more",
                     kv_policy_name(run->setting->policy), run->trace[request].prompt_tokens,
                     run->trace[request].output_tokens, ledger_budget(run->ledger));
}

/* ---- a step ---- */

static void leave(struct run *run, int request, enum state state)
{
    kv_sequence_close(run->cache, run->requests[request].sequence);
    run->requests[request].state = state;
    run->running--;
}

/* The token that was to be stored next is known already: it belongs to what is computed again. */
static int preempt_youngest(struct run *run)
{
    int youngest = run->count - 1;
    while (run->requests[youngest].state != RUNNING)
        youngest--;
    run->requests[youngest].tokens = kv_length(run->cache, run->requests[youngest].sequence) + 1;
    leave(run, youngest, WAITING);
    run->counts->preemptions++;
    run->preempted = true;
    return youngest;
}

/* Every admission gives at least one token more, so that even a sequence that loses its memory each time gets on. */
static enum status grow(struct run *run, int request, struct error *error)
{
    int sequence = run->requests[request].sequence;
    for (;;) {
        bool fits;
        if (make_room(run, sequence, kv_length(run->cache, sequence) + 1, &fits, error) != STATUS_OK)
            return error->status;
        if (fits)
            break;
        if (preempt_youngest(run) == request)
            return STATUS_OK;
    }
    kv_advance(run->cache, sequence, 1);
    return STATUS_OK;
}

/* Admits the request or leaves it waiting, which *fits tells. */
static enum status admit(struct run *run, int number, bool *fits, struct error *error)
{
    struct request *request = &run->requests[number];
    *fits = false;
    enum status status = kv_sequence_open(run->cache, &request->sequence, error);
    if (status != STATUS_OK) /* the reservation is refused: there is a slot for every request */
        return status == STATUS_DEVICE ? STATUS_OK : status;
    status = make_room(run, request->sequence, request->tokens, fits, error);
    if (!*fits) {
        kv_sequence_close(run->cache, request->sequence);
        return status;
    }
    kv_advance(run->cache, request->sequence, request->tokens);
    request->state = RUNNING;
    run->running++;
    return STATUS_OK;
}

static enum status admit_all(struct run *run, struct error *error)
{
    for (int i = 0; i < run->count && run->trace[i].arrival_step <= run->step; i++) {
        bool fits = false;
        if (run->requests[i].state != WAITING)
            continue;
        if (!run->preempted && admit(run, i, &fits, error) != STATUS_OK)
            return error->status;
        run->refused = !fits;
        if (!fits)
            return run->running == 0 && !run->preempted ? does_not_fit(run, i, error) : STATUS_OK;
    }
    return STATUS_OK;
}

/* Adds up what is held now. Tables and ledger count the same memory, each in its own way. */
static enum status count(struct run *run, struct error *error)
{
    struct ledger_counts ledger = ledger_counts(run->ledger);
    uint64_t positions = 0, room = 0, live = ledger.live[LEDGER_KV];
    for (int i = 0; i < run->count; i++)
        if (run->requests[i].state == RUNNING) {
            const int32_t *table;
            int sequence = run->requests[i].sequence, blocks = kv_block_table(run->cache, sequence, &table);
            positions += (uint64_t)kv_length(run->cache, sequence);
            room += (uint64_t)blocks * (uint64_t)kv_block_size(run->cache, sequence);
        }
    uint64_t block = (uint64_t)run->setting->block_size * run->token_bytes;
    uint64_t unheld = (uint64_t)kv_blocks_free(run->cache) * block;
    if (live != kv_tensor_bytes(run->cache) || live != room * run->token_bytes + unheld)
        return error_set(error, STATUS_CHECK_FAILED,
                         "paged: the ledger holds %" PRIu64 " bytes, the tensors are %" PRIu64
                         ", the tables have room for %" PRIu64 " tokens beside %" PRIu64 " free bytes",
                         live, kv_tensor_bytes(run->cache), room, unheld);
    run->counts->full_steps++;
    run->counts->used += positions * run->token_bytes;
    run->counts->internal += (room - positions) * run->token_bytes;
    run->counts->external += ledger.reserved - live + unheld;
    run->counts->ledger += live;
    run->counts->allocated += ledger.reserved;
    run->counts->running += (uint64_t)run->running;
    return STATUS_OK;
}

static enum status step(struct run *run, struct error *error)
{
    run->refused = run->preempted = false;
    for (int i = 0; i < run->count; i++)
        if (run->requests[i].state == RUNNING && grow(run, i, error) != STATUS_OK)
            return error->status;
    if (admit_all(run, error) != STATUS_OK)
        return error->status;
    if (run->running > run->counts->max_concurrent)
        run->counts->max_concurrent = run->running;
    if (run->refused && count(run, error) != STATUS_OK)
        return error->status;
    for (int i = 0; i < run->count; i++)
        if (run->requests[i].state == RUNNING && --run->requests[i].left == 0) {
            leave(run, i, DONE);
            run->done++;
        }
    run->counts->steps++;
    run->step++;
    return STATUS_OK;
}

/* ---- a trace ---- */

enum status paged_run(struct ledger *ledger, const struct config *config, const struct paged_setting *setting,
                      const struct trace_request *requests, int number, const volatile sig_atomic_t *stop,
                      struct paged_counts *counts, struct error *error)
{
    assert(ledger_counts(ledger).reserved == 0);
    struct run run = {.ledger = ledger,
                      .config = config,
                      .setting = setting,
                      .trace = requests,
                      .requests = calloc((size_t)number, sizeof *run.requests),
                      .count = number,
                      .token_bytes = formula_kv_bytes_per_token(config, setting->dtype),
                      .counts = counts};
    *counts = (struct paged_counts){0};
    enum status status =
        run.requests == NULL ? error_set(error, STATUS_DEVICE, "paged: out of host memory") : open_cache(&run, error);
    for (int i = 0; status == STATUS_OK && i < number; i++)
        run.requests[i] = (struct request){.tokens = requests[i].prompt_tokens, .left = requests[i].output_tokens};
    while (status == STATUS_OK && run.done < number)
        status = stop != NULL && *stop ? error_set(error, STATUS_INTERRUPTED, "interrupted") : step(&run, error);
    counts->allocations = ledger_counts(ledger).allocations - run.allocations_before;
    counts->device_bytes = ledger_counts(ledger).peak_reserved;
    kv_close(run.cache);
    free(run.requests);
    return status;
}
