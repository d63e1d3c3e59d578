#include "bench/ladder.h"

#include "engine/work.h"

#include <math.h>

const struct ladder_step ladder_steps[LADDER_STEPS] = {
    {"no cache", LADDER_NO_CACHE, SCHEDULE_STATIC, KV_RESERVED, false, false},
    {"cache", LADDER_ONE_BY_ONE, SCHEDULE_STATIC, KV_RESERVED, false, false},
    {"static batch", LADDER_SCHEDULED, SCHEDULE_STATIC, KV_RESERVED, false, false},
    {"continuous batch on reserved memory", LADDER_SCHEDULED, SCHEDULE_CONTINUOUS, KV_RESERVED, false, false},
    {"continuous on paged memory", LADDER_SCHEDULED, SCHEDULE_CONTINUOUS, KV_PAGED, false, false},
    {"+ prefix cache", LADDER_SCHEDULED, SCHEDULE_CONTINUOUS, KV_PAGED, true, false},
    {"+ fp8 cache", LADDER_SCHEDULED, SCHEDULE_CONTINUOUS, KV_PAGED, true, true},
};

int ladder_prompt(const struct ladder_load *load)
{
    return load->shared + load->own;
}

int ladder_output(const struct ladder_load *load, int request)
{
    return load->outputs[request % LADDER_CLASSES];
}

int ladder_requests(const struct ladder_load *load, const struct ladder_step *step)
{
    return step->way == LADDER_NO_CACHE ? LADDER_CLASSES : load->requests;
}

int64_t ladder_output_tokens(const struct ladder_load *load, const struct ladder_step *step)
{
    int64_t tokens = 0;
    for (int r = 0; r < ladder_requests(load, step); r++)
        tokens += ladder_output(load, r);
    return tokens;
}

/* ---- memory ---- */

static enum dtype dtype_of(const struct bench *bench, const struct ladder_step *step)
{
    return step->fp8 ? DTYPE_FP8_E4M3 : bench->kv_dtype;
}

static int64_t budget_tokens(const struct bench *bench, const struct ladder_load *load, const struct ladder_step *step)
{
    return (int64_t)(load->kv_budget / formula_kv_bytes_per_token(&bench->config, dtype_of(bench, step)));
}

int ladder_slots(const struct bench *bench, const struct ladder_load *load, const struct ladder_step *step)
{
    if (step->way != LADDER_SCHEDULED)
        return 1;
    int64_t fit = budget_tokens(bench, load, step) / load->max_tokens;
    return step->memory == KV_PAGED || fit > load->requests ? load->requests : (int)fit;
}

struct kv_options ladder_memory(const struct bench *bench, const struct ladder_load *load,
                                const struct ladder_step *step)
{
    struct kv_options options = {.policy = step->memory,
                                 .dtype = dtype_of(bench, step),
                                 .max_sequences = ladder_slots(bench, load, step),
                                 .max_tokens = load->max_tokens};
    if (step->memory == KV_PAGED) {
        options.block_size = LADDER_BLOCK;
        options.pool_blocks = (int)(budget_tokens(bench, load, step) / LADDER_BLOCK);
        options.prefix_cache = step->prefix_cache;
    }
    return options;
}

/* ---- time ---- */

struct pass_model {
    const struct ladder_machine *machine;
    double weight_bytes, row_flops, kv_bytes; /* read once a pass; of a row; of a position */
};

/* `rows` tokens through the model that see `positions` positions of the cache in all. */
static double pass_s(const struct pass_model *model, double rows, double positions)
{
    return fmax((model->weight_bytes + positions * model->kv_bytes) / model->machine->bytes_per_s,
                rows * model->row_flops / model->machine->flops_per_s);
}

/* One request after the other: every step computes all positions, or one. */
static struct ladder_estimate one_by_one(const struct pass_model *model, const struct ladder_load *load,
                                         const struct ladder_step *step)
{
    struct ladder_estimate estimate = {.batch = 1.0};
    for (int r = 0; r < ladder_requests(load, step); r++)
        for (int i = 0; i < ladder_output(load, r); i++) {
            int held = ladder_prompt(load) + i;
            double rows = step->way == LADDER_NO_CACHE || i == 0 ? held : 1.0;
            estimate.seconds += pass_s(model, rows, held);
            estimate.positions += rows;
        }
    return estimate;
}

/* Batches of `slots`, each until its longest output is done. */
static struct ladder_estimate in_batches(const struct pass_model *model, const struct ladder_load *load, int slots)
{
    struct ladder_estimate estimate = {0};
    double passes = 0.0, decoded = 0.0;
    for (int first = 0; first < load->requests; first += slots) {
        int end = first + slots < load->requests ? first + slots : load->requests;
        double prompts = (double)(end - first) * ladder_prompt(load), rows = 1.0;
        estimate.seconds += pass_s(model, prompts, prompts);
        estimate.positions += prompts;
        for (int i = 1; rows > 0.0; i++) {
            rows = 0.0;
            for (int r = first; r < end; r++)
                rows += ladder_output(load, r) > i;
            if (rows > 0.0)
                estimate.seconds += pass_s(model, rows, rows * (ladder_prompt(load) + i));
            estimate.positions += rows;
            decoded += rows;
            passes += rows > 0.0;
        }
    }
    estimate.batch = passes > 0.0 ? decoded / passes : 1.0;
    return estimate;
}

/* Positions that a sequence holds on average while it decodes. */
static double mean_held(const struct ladder_load *load)
{
    double steps = 0.0, held = 0.0;
    for (int c = 0; c < LADDER_CLASSES; c++) {
        double n = load->outputs[c];
        steps += n;
        held += n * ladder_prompt(load) + n * (n - 1.0) / 2.0;
    }
    return held / steps;
}

/* Slots always full: as many sequences as fit, half a block wasted in each, the shared blocks held once and found by
   every request. */
static struct ladder_estimate refilled(const struct bench *bench, const struct pass_model *model,
                                       const struct ladder_load *load, const struct ladder_step *step)
{
    double slots = ladder_slots(bench, load, step), room = (double)budget_tokens(bench, load, step);
    double held = mean_held(load), prompt = ladder_prompt(load), longest = 0.0, decoded = 0.0;
    double shared = step->prefix_cache ? load->shared - load->shared % LADDER_BLOCK : 0.0;
    if (step->memory == KV_PAGED)
        slots = fmin(slots, (room - shared) / (held - shared + (LADDER_BLOCK - 1) / 2.0));
    for (int c = 0; c < LADDER_CLASSES; c++) {
        longest = fmax(longest, load->outputs[c] - 1.0);
        decoded += (load->outputs[c] - 1.0) * load->requests / LADDER_CLASSES;
    }
    double passes = fmax(decoded / slots, longest), rows = decoded / passes;
    return (struct ladder_estimate){
        .seconds = load->requests * pass_s(model, prompt - shared, prompt) + passes * pass_s(model, rows, rows * held),
        .positions = load->requests * (prompt - shared) + decoded,
        .batch = rows,
    };
}

struct ladder_estimate ladder_predict(const struct bench *bench, const struct ladder_load *load,
                                      const struct ladder_step *step, const struct ladder_machine *machine)
{
    const struct pass_shape row = {.sequences = 1, .start = ladder_prompt(load), .count = 1, .logits = 1};
    const struct pass_model model = {
        .machine = machine,
        .weight_bytes = (double)formula_weight_read_bytes(&bench->config, bench->dtype, 1),
        .row_flops = (double)work_flops(&bench->config, &row),
        .kv_bytes = (double)formula_kv_bytes_per_token(&bench->config, dtype_of(bench, step)),
    };
    if (step->way != LADDER_SCHEDULED)
        return one_by_one(&model, load, step);
    if (step->schedule == SCHEDULE_STATIC)
        return in_batches(&model, load, ladder_slots(bench, load, step));
    return refilled(bench, &model, load, step);
}
