#include "bench/speculative_runs.h"

#include "bench/harness/quality.h"
#include "engine/generate.h"
#include "engine/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- prompts ---------------------------------------------------------------------------------------------------- */

/* From seeded places of the text. What models with synthetic weights say to it has no meaning: that is said. */
static enum status read_prompts(struct subject *subject, struct error *error)
{
    struct bench *bench = subject->bench;
    int64_t length = subject->prompt_tokens, total = subject->prompt_count * length;
    uint64_t state = bench->options.seed;
    struct text text = {0};
    if (bench->weights_dir[0] == '\0' || subject->draft_bench.weights_dir[0] == '\0')
        output_note(bench, "speculative: synthetic weights: acceptance, tokens per pass and speed-up are those of "
                           "random models, and say nothing about trained ones");
    enum status status = text_for(&text, bench, subject->text, total, error);
    subject->prompts = calloc((size_t)total, sizeof *subject->prompts);
    if (status == STATUS_OK && subject->prompts == NULL)
        status = error_set(error, STATUS_DEVICE, "speculative: out of host memory");
    for (int prompt = 0; prompt < subject->prompt_count && status == STATUS_OK; prompt++) {
        int64_t first = (int64_t)(random_uniform(&state) * (double)(text.count - length + 1));
        memcpy(subject->prompts + prompt * length, text.tokens + first, (size_t)length * sizeof *text.tokens);
    }
    text_free(&text);
    return status;
}

/* ---- both models ------------------------------------------------------------------------------------------------ */

static enum status open_side(struct subject *subject, int side, const struct bench *bench, struct model *model,
                             int max_tokens, struct error *error)
{
    struct kv_options options = {
        .policy = KV_RESERVED, .dtype = bench->kv_dtype, .max_sequences = 1, .max_tokens = max_tokens};
    if (kv_open(&subject->caches[side], bench->ledger, &bench->config, &options, error) != STATUS_OK)
        return error->status;
    subject->sides[side] = (struct speculative_side){.model = model, .cache = subject->caches[side]};
    return kv_sequence_open(subject->caches[side], &subject->sides[side].sequence, error);
}

static uint64_t workspace(const struct bench *bench, const struct model_limits *limits)
{
    return model_workspace_bytes(&bench->config, bench->device, limits, bench->dtype, bench->kv_dtype);
}

enum status subject_init(struct subject *subject, struct error *error)
{
    struct bench *target = subject->bench, *draft = &subject->draft_bench;
    int longest = subject->prompt_tokens + subject->new_tokens, most = subject->most_draft_tokens;
    struct model_limits limits = {
        .max_rows = longest > most + 2 ? longest : most + 2, .max_sequences = 1, .max_blocks = 1};
    struct bench_need need = {
        .kv_bytes = formula_kv_bytes(&target->config, target->kv_dtype, longest) +
                    formula_kv_bytes(&draft->config, draft->kv_dtype, longest),
        .logits_bytes = formula_logits_bytes(&target->config, target->dtype, most + 2) +
                        formula_logits_bytes(&draft->config, draft->dtype, 1),
        .other_weight_bytes = formula_weight_bytes(&draft->config, draft->dtype),
        .other_workspace_bytes = workspace(draft, &limits),
    };
    if (bench_open_model(target, &limits, &need, &subject->target, error) != STATUS_OK)
        return error->status;
    need.other_weight_bytes = formula_weight_bytes(&target->config, target->dtype);
    need.other_workspace_bytes = workspace(target, &limits);
    if (bench_open_model(draft, &limits, &need, &subject->draft, error) != STATUS_OK ||
        open_side(subject, 0, target, &subject->target, longest, error) != STATUS_OK ||
        open_side(subject, 1, draft, &subject->draft, longest, error) != STATUS_OK)
        return error->status;
    return read_prompts(subject, error);
}

void subject_free(struct subject *subject)
{
    kv_close(subject->caches[0]);
    kv_close(subject->caches[1]);
    model_free(&subject->draft);
    model_free(&subject->target);
    free(subject->prompts);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static enum status empty(const struct speculative_side *side, struct error *error)
{
    return kv_truncate(side->cache, side->sequence, 0, error);
}

/* One prompt, decoded in the way of the cell: its time and counts are added to the run's. */
static enum status decode(struct subject *subject, struct cell *cell, int temperature, int prompt, int run,
                          int32_t *tokens, struct error *error)
{
    const int32_t *from = subject->prompts + (size_t)prompt * (size_t)subject->prompt_tokens;
    struct sampler sampler = {(float)temperature, 0, 1.0f, subject->bench->options.seed + (uint64_t)prompt};
    const struct speculative_side *sides = subject->sides;
    if (empty(&sides[0], error) != STATUS_OK || empty(&sides[1], error) != STATUS_OK)
        return error->status;
    if (cell->draft_tokens == DRAFT_TOKENS_PLAIN) {
        struct generate_options options = {
            .new_tokens = subject->new_tokens, .use_cache = true, .sampler = sampler, .stop_token = -1};
        struct generate_result result;
        if (generate(sides[0].model, sides[0].cache, sides[0].sequence, from, subject->prompt_tokens, &options, tokens,
                     &result, error) != STATUS_OK)
            return error->status;
        cell->ms[run] += result.decode_ms;
        return STATUS_OK;
    }
    struct speculative_options options = {subject->new_tokens, cell->draft_tokens, sampler, -1};
    struct speculative_result result;
    if (speculative_generate(&sides[0], &sides[1], &options, from, subject->prompt_tokens, tokens, &result, error) !=
        STATUS_OK)
        return error->status;
    cell->ms[run] += result.decode_ms;
    cell->draft_ms[run] += result.counts.draft_ms;
    cell->target_ms[run] += result.counts.target_ms;
    cell->counts.target_passes += result.counts.target_passes;
    cell->counts.proposed += result.counts.proposed;
    cell->counts.judged += result.counts.judged;
    cell->counts.accepted += result.counts.accepted;
    return STATUS_OK;
}

enum status cell_init(struct cell *cell, const struct subject *subject, int draft_tokens, bool is_row,
                      struct error *error)
{
    size_t n = (size_t)subject->n, tokens = (size_t)subject->prompt_count * (size_t)subject->new_tokens;
    *cell = (struct cell){.draft_tokens = draft_tokens, .is_row = is_row};
    cell->ms = calloc(n, sizeof *cell->ms);
    cell->draft_ms = calloc(n, sizeof *cell->draft_ms);
    cell->target_ms = calloc(n, sizeof *cell->target_ms);
    cell->tokens = calloc(tokens, sizeof *cell->tokens);
    bool taken = cell->ms != NULL && cell->draft_ms != NULL && cell->target_ms != NULL && cell->tokens != NULL;
    return taken ? STATUS_OK : error_set(error, STATUS_DEVICE, "speculative: out of host memory");
}

void cell_free(struct cell *cell)
{
    free(cell->ms);
    free(cell->draft_ms);
    free(cell->target_ms);
    free(cell->tokens);
}

enum status subject_run(struct subject *subject, struct cell *cells, int cell_count, int temperature, int run,
                        struct error *error)
{
    size_t length = (size_t)subject->new_tokens;
    for (int c = 0; c < cell_count; c++) {
        cells[c].counts = (struct speculative_counts){0};
        cells[c].ms[run] = cells[c].draft_ms[run] = cells[c].target_ms[run] = 0.0;
    }
    for (int prompt = 0; prompt < subject->prompt_count; prompt++)
        for (int c = 0; c < cell_count; c++)
            if (decode(subject, &cells[c], temperature, prompt, run, cells[c].tokens + (size_t)prompt * length,
                       error) != STATUS_OK)
                return error->status;
    for (int c = 0; c < cell_count; c++) {
        uint64_t checksum =
            bench_checksum(cells[c].tokens, (size_t)subject->prompt_count * length * sizeof *cells[c].tokens);
        if (run > 0 && checksum != cells[c].checksum)
            return error_set(error, STATUS_CHECK_FAILED,
                             "speculative: run %d with %d tokens proposed gave other tokens than the run before it",
                             run + 1, cells[c].draft_tokens);
        cells[c].checksum = checksum;
        char setting[64];
        snprintf(setting, sizeof setting, "draft_tokens=%d;temperature=%d", cells[c].draft_tokens, temperature);
        if (cells[c].draft_tokens != DRAFT_TOKENS_PLAIN &&
            samples_add(subject->bench, setting, run, cells[c].ms[run], "ms", error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}
