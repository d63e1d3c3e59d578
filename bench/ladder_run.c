#include "bench/harness/serving.h"
#include "bench/ladder.h"
#include "engine/generate.h"

#include <stdio.h>
#include <string.h>

static const int32_t *prompt_of(const struct ladder *ladder, int request)
{
    return ladder->prompts + (size_t)request * (size_t)ladder_prompt(&ladder->load);
}

static struct model *model_of(struct ladder *ladder, const struct ladder_step *step)
{
    return step->fp8 ? &ladder->fp8_model : &ladder->model;
}

static uint64_t positions_processed(const struct ladder *ladder)
{
    return ladder->model.positions_processed + ladder->fp8_model.positions_processed;
}

/* One after the other, through a cache that each finds empty. */
static enum status run_alone(struct ladder *ladder, const struct ladder_step *step, struct ladder_outcome *outcome,
                             double *ms, struct error *error)
{
    struct kv_cache *cache;
    struct kv_options memory = ladder_memory(ladder->bench, &ladder->load, step);
    int32_t *tokens = outcome->tokens;
    int sequence;
    if (kv_open(&cache, ladder->bench->ledger, &ladder->bench->config, &memory, error) != STATUS_OK)
        return error->status;
    enum status status = STATUS_OK;
    for (int r = 0; r < ladder_requests(&ladder->load, step) && status == STATUS_OK; r++) {
        struct generate_result result = {0};
        const struct generate_options options = {.new_tokens = ladder_output(&ladder->load, r),
                                                 .use_cache = step->way == LADDER_ONE_BY_ONE,
                                                 .stop_token = -1};
        status = kv_sequence_open(cache, &sequence, error);
        if (status == STATUS_OK) {
            status = generate(model_of(ladder, step), cache, sequence, prompt_of(ladder, r),
                              ladder_prompt(&ladder->load), &options, tokens, &result, error);
            kv_sequence_close(cache, sequence);
        }
        if (status == STATUS_OK && bench_interrupted())
            status = error_set(error, STATUS_INTERRUPTED, "interrupted");
        *ms += result.prefill_ms + result.decode_ms;
        tokens += options.new_tokens;
    }
    outcome->peak_kv_bytes = ledger_counts(ladder->bench->ledger).peak[LEDGER_KV];
    kv_close(cache);
    return status;
}

/* Steps of the scheduler until all is done; those that choose more than first tokens count for the mean batch. */
static enum status serve(struct serving *serving, struct ladder_outcome *outcome, double *ms, struct error *error)
{
    double start_ms = -1.0;
    while (scheduler_pending(serving->scheduler) > 0) {
        struct step_record step;
        if (serving_step(serving, &step, error) != STATUS_OK)
            return error->status;
        start_ms = start_ms < 0.0 ? step.start_ms : start_ms;
        *ms = step.end_ms - start_ms;
        bool decodes = false;
        for (int slot = 0; slot < step.cells; slot++)
            decodes = decodes || (step.slots[slot].chose && step.slots[slot].request->produced > 1);
        outcome->choosing_passes += decodes;
    }
    return STATUS_OK;
}

/* A server that has been up for a while: the shared tokens have been through it before, in every step of the ladder.
   Then all requests queue up. */
static enum status serve_all(struct ladder *ladder, struct serving *serving, struct ladder_outcome *outcome, double *ms,
                             struct error *error)
{
    const struct ladder_load *load = &ladder->load;
    if (serving_add(serving, prompt_of(ladder, 0), load->shared, 1, 0.0, error) != STATUS_OK ||
        serving_run(serving, error) != STATUS_OK)
        return error->status;
    outcome->positions_before = positions_processed(ladder);
    ledger_reset_peaks(ladder->bench->ledger);
    for (int r = 0; r < load->requests; r++)
        if (serving_add(serving, prompt_of(ladder, r), ladder_prompt(load), ladder_output(load, r), 0.0, error) !=
            STATUS_OK)
            return error->status;
    return serve(serving, outcome, ms, error);
}

static enum status run_scheduled(struct ladder *ladder, const struct ladder_step *step, struct ladder_outcome *outcome,
                                 double *ms, struct error *error)
{
    const struct ladder_load *load = &ladder->load;
    const struct kv_options memory = ladder_memory(ladder->bench, load, step);
    const struct scheduler_options options = {
        .policy = step->schedule, .slots = memory.max_sequences, .tokens_per_step = load->rows};
    struct serving serving;
    enum status status = serving_init(&serving, ladder->bench, model_of(ladder, step), &memory, &options,
                                      1 + (size_t)load->requests, error);
    if (status == STATUS_OK)
        status = serve_all(ladder, &serving, outcome, ms, error);
    int32_t *tokens = outcome->tokens;
    for (size_t r = 1; r < serving.count && status == STATUS_OK; r++) {
        const struct request *request = &serving.requests[r];
        memcpy(tokens, request->tokens + request->prompt_tokens, (size_t)request->output_tokens * sizeof *tokens);
        tokens += request->output_tokens;
        outcome->hit_tokens += request->hit_tokens;
    }
    outcome->preemptions = serving.preemptions;
    outcome->peak_kv_bytes = ledger_counts(ladder->bench->ledger).peak[LEDGER_KV];
    if (status == STATUS_OK && memory.policy == KV_PAGED)
        outcome->peak_kv_bytes =
            kv_tensor_bytes(serving.cache) / (uint64_t)memory.pool_blocks * (uint64_t)serving.kv_blocks_max;
    serving_free(&serving);
    return status;
}

enum status ladder_run_step(struct ladder *ladder, size_t at, int repetition, struct error *error)
{
    const struct ladder_step *step = &ladder_steps[at];
    struct ladder_outcome *outcome = &ladder->outcomes[at];
    uint64_t before = outcome->checksum;
    double ms = 0.0;
    outcome->hit_tokens = outcome->choosing_passes = 0;
    outcome->positions_before = positions_processed(ladder);
    ledger_reset_peaks(ladder->bench->ledger);
    enum status status = step->way == LADDER_SCHEDULED ? run_scheduled(ladder, step, outcome, &ms, error)
                                                       : run_alone(ladder, step, outcome, &ms, error);
    if (status != STATUS_OK)
        return status;
    size_t count = (size_t)ladder_output_tokens(&ladder->load, step);
    outcome->positions = (int64_t)(positions_processed(ladder) - outcome->positions_before);
    outcome->checksum = bench_checksum(outcome->tokens, count * sizeof *outcome->tokens);
    if (repetition > 0 && outcome->checksum != before)
        return error_set(error, STATUS_CHECK_FAILED,
                         "ladder: %s: repetition %d chose other tokens than the one before: what is timed is not the "
                         "same work",
                         step->name, repetition);
    outcome->seconds[repetition] = ms / 1e3;
    char setting[64];
    snprintf(setting, sizeof setting, "step=%s", step->name);
    return samples_add(ladder->bench, setting, repetition, ms, "ms", error);
}
