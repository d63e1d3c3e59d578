#include "bench/harness/serving.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t serving_kv_bytes(const struct bench *bench, const struct kv_options *memory)
{
    int64_t positions = memory->policy == KV_PAGED ? (int64_t)memory->pool_blocks * memory->block_size
                                                   : (int64_t)memory->max_sequences * memory->max_tokens;
    return formula_kv_bytes(&bench->config, bench->kv_dtype, positions);
}

static enum status no_memory(const struct serving *serving, struct error *error)
{
    return error_set(error, STATUS_DEVICE, "%s: out of host memory", serving->bench->experiment->name);
}

enum status serving_init(struct serving *serving, struct bench *bench, struct model *model,
                         const struct kv_options *memory, const struct scheduler_options *options, size_t most,
                         struct error *error)
{
    *serving = (struct serving){.bench = bench, .most = most};
    serving->requests = calloc(most, sizeof *serving->requests);
    serving->last_token_ms = calloc(most, sizeof *serving->last_token_ms);
    serving->values = calloc(most, sizeof *serving->values);
    if (serving->requests == NULL || serving->last_token_ms == NULL || serving->values == NULL)
        return no_memory(serving, error);
    if (kv_open(&serving->cache, bench->ledger, model->config, memory, error) != STATUS_OK ||
        device_clock_open(&serving->clock, bench->device, false, error) != STATUS_OK)
        return error->status;
    struct scheduler_clock clock = device_clock_functions(&serving->clock);
    return scheduler_open(&serving->scheduler, model, serving->cache, options, &clock, error);
}

void serving_free(struct serving *serving)
{
    scheduler_close(serving->scheduler);
    kv_close(serving->cache);
    device_clock_close(&serving->clock);
    for (size_t i = 0; i < serving->count; i++)
        free(serving->requests[i].tokens);
    free(serving->requests);
    free(serving->last_token_ms);
    free(serving->values);
    free(serving->gaps_ms);
    *serving = (struct serving){0};
}

enum status serving_add(struct serving *serving, const int32_t *prompt, int prompt_tokens, int output_tokens,
                        double arrival_ms, struct error *error)
{
    assert(serving->count < serving->most);
    size_t capacity = serving->gap_capacity + (size_t)output_tokens;
    double *gaps = realloc(serving->gaps_ms, capacity * sizeof *gaps);
    if (gaps == NULL)
        return no_memory(serving, error);
    serving->gaps_ms = gaps;
    serving->gap_capacity = capacity;
    struct request *request = &serving->requests[serving->count];
    *request = (struct request){
        .tokens = calloc((size_t)prompt_tokens + (size_t)output_tokens, sizeof *request->tokens),
        .prompt_tokens = prompt_tokens,
        .output_tokens = output_tokens,
        .arrival_ms = arrival_ms,
    };
    if (request->tokens == NULL)
        return no_memory(serving, error);
    serving->count++;
    memcpy(request->tokens, prompt, (size_t)prompt_tokens * sizeof *prompt);
    return scheduler_submit(serving->scheduler, request, error);
}

size_t serving_number(const struct serving *serving, const struct request *request)
{
    assert(request >= serving->requests && request < serving->requests + serving->count);
    return (size_t)(request - serving->requests);
}

enum status serving_step(struct serving *serving, struct step_record *step, struct error *error)
{
    if (scheduler_step(serving->scheduler, step, error) != STATUS_OK)
        return error->status;
    int slots = step->slots_in_use;
    for (int slot = 0; slots > 0; slot++) {
        const struct request *request = step->slots[slot].request;
        if (request == NULL)
            continue;
        slots--;
        if (!step->slots[slot].chose)
            continue;
        double *last = &serving->last_token_ms[serving_number(serving, request)];
        if (request->produced > 1)
            serving->gaps_ms[serving->gap_count++] = step->end_ms - *last;
        *last = step->end_ms;
    }
    serving->steps++;
    serving->rows += step->rows;
    serving->cells += step->cells;
    serving->idle_cells += step->idle_cells;
    serving->preemptions += step->preempted;
    if (step->kv_blocks > serving->kv_blocks_max)
        serving->kv_blocks_max = step->kv_blocks;
    return STATUS_OK;
}

enum status serving_run(struct serving *serving, struct error *error)
{
    struct step_record step;
    while (scheduler_pending(serving->scheduler) > 0)
        if (serving_step(serving, &step, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

double request_queue_ms(const struct request *request)
{
    return request->admitted_ms - request->arrival_ms;
}

double request_ttft_ms(const struct request *request)
{
    return request->first_token_ms - request->arrival_ms;
}

double request_prefill_ms(const struct request *request)
{
    return request->first_token_ms - request->admitted_ms;
}

double request_e2e_ms(const struct request *request)
{
    return request->finished_ms - request->arrival_ms;
}

double request_tpot_ms(const struct request *request)
{
    return request->output_tokens > 1 ? (request->finished_ms - request->first_token_ms) / (request->output_tokens - 1)
                                      : NAN;
}

double serving_quantile(struct serving *serving, double (*property)(const struct request *), int output_tokens,
                        double q)
{
    size_t n = 0;
    for (size_t i = 0; i < serving->count; i++) {
        const struct request *request = &serving->requests[i];
        bool counts = request->produced == request->output_tokens &&
                      (output_tokens == 0 || request->output_tokens == output_tokens);
        double value = counts ? property(request) : NAN;
        if (!isnan(value))
            serving->values[n++] = value;
    }
    return n > 0 ? stats_quantile(serving->values, n, q) : NAN;
}
