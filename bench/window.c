/* window: a sliding window over the cache: what does it save, and what does it cost in quality?

   Predicted: with a window of W tokens a query reads min(W, context) positions, and a paged cache holds only the blocks
   that W adjacent positions and one pass can touch: memory and the time of a step stop rising once the context passes
   W. Measured at every context, window by window in turn on the same pieces of text: the bytes of a pool that has just
   those blocks (one too few, and the run fails), the time of the last decode steps, and how well the text is predicted
   (StreamingLLM's window attention with the blocks given back; Beltagy et al. 2020, section 3.1, and Mistral 7B train
   with such a window, here it is put on afterwards). */
#include "bench/harness/quality.h"

#include "bench/harness/option_table.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_SIZE = 16, PASS_ROWS = 16, STEPS = 32 };

static struct {
    struct int_list windows;
    const char *text;
} own;
static const struct option_row own_rows[] = {
    {"window", "LIST", OPTION_LIST, offsetof(__typeof__(own), windows), .minimum = 1, .maximum = INT32_MAX,
     .help = "tokens that a query sees, a list as for contexts; full attention is always measured beside them"},
    {"text", "FILE", OPTION_TEXT, offsetof(__typeof__(own), text),
     .help = "what is predicted; data/tiny/heldout.txt unless given"},
    {0},
};
static const struct option_set own_set = {own_rows, &own};

static const struct column columns[] = {
    {"window", COLUMN_INT, 0, true, "Tokens that a query sees, its own among them; 0: all (full attention)."},
    {"context", COLUMN_INT, 0, true,
     "Tokens of the text that went through the cache, passes of 16, the last one by one."},
    {"kv_bytes", COLUMN_INT, 0, false,
     "Source ledger: live bytes tagged kv of a paged pool with just the blocks that this window and context need; the "
     "whole context then went through it."},
    {"kv_bytes_full", COLUMN_INT, 0, false, "The same of full attention at this context, measured beside it."},
    {"tpot_ms_p50", COLUMN_REAL, 4, false, "Median time of the last decode steps, a pass and its greedy choice each."},
    {"perplexity", COLUMN_REAL, 4, false,
     "exp of the mean negative log-likelihood of every token after the first, in double from the logits."},
    {"perplexity_delta_percent", COLUMN_REAL, 2, false, "How far it is above full attention's on the same text."},
    {"bits_per_byte", COLUMN_REAL, 4, false, "The same likelihood per byte of the text, in bits."},
    {"tokens", COLUMN_INT, 0, false, "Tokens predicted: pieces of the text, each `context` long, from its start on."},
    {"kv_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: blocks that min(window, context) + 15 adjacent positions can touch, times a block's K and V."},
    {"kv_tensor_bytes", COLUMN_INT, 0, false, "Source tensors: sum over the K and V tensors of that pool."},
    {"step_kv_bytes", COLUMN_INT, 0, false,
     "Source formula: bytes of K and V that the last step reads, min(window, context) positions in every layer."},
    {"tpot_over_full", COLUMN_REAL, 3, false, "tpot_ms_p50 over full attention's at this context, measured in turn."},
    {"n", COLUMN_INT, 0, false, "Steps timed."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

/* ---- prediction ---- */

static int blocks_needed(int64_t window, int64_t context)
{
    int whole = (int)((context + BLOCK_SIZE - 1) / BLOCK_SIZE);
    bool hides = window > 0 && window < context;
    int some = hides ? kv_window_blocks((int)window, BLOCK_SIZE, PASS_ROWS) : whole;
    return some < whole ? some : whole;
}

static int64_t pool_bytes(const struct bench *bench, int64_t window, int64_t context)
{
    return (int64_t)formula_kv_bytes(&bench->config, bench->kv_dtype,
                                     (int64_t)blocks_needed(window, context) * BLOCK_SIZE);
}

/* Of every layer the narrowest of the window, the layer's own and the context. */
static int64_t step_kv_bytes(const struct bench *bench, int64_t window, int64_t context)
{
    const struct config *config = &bench->config;
    int64_t per_layer = (int64_t)formula_kv_bytes_per_token(config, bench->kv_dtype) / config->num_hidden_layers;
    int64_t positions = 0;
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++) {
        int64_t of_layer = config_window(config, layer), seen = context;
        seen = of_layer > 0 && of_layer < seen ? of_layer : seen;
        positions += window > 0 && window < seen ? window : seen;
    }
    return positions * per_layer;
}

static void predict(const struct bench *bench, struct results *results, int64_t window, int64_t context)
{
    results_set_int(results, "window", window);
    results_set_int(results, "context", context);
    results_set_int(results, "kv_formula_bytes", pool_bytes(bench, window, context));
    results_set_int(results, "step_kv_bytes", step_kv_bytes(bench, window, context));
}

static void predict_nth(const struct bench *bench, struct results *results, const void *contexts, size_t i)
{
    size_t windows = own.windows.count + 1, at = i % windows;
    predict(bench, results, at ? own.windows.values[at - 1] : 0,
            ((const struct int_list *)contexts)->values[i / windows]);
}

/* ---- measuring ---- */

/* One window at the group's context. */
struct cell {
    int64_t window;
    bool wanted;           /* false: --resume has the row */
    uint64_t ledger_bytes; /* growth of live bytes tagged kv */
    uint64_t tensor_bytes;
    struct quality quality;
    double *step_ms; /* [pieces * STEPS] */
    size_t n;
};

/* All windows at one context; cell 0 is full attention. */
struct group {
    struct bench *bench;
    struct scorer *scorer;
    const struct text *text;
    int64_t context;
    int pieces;
    struct cell *cells;
    size_t count;
};

static enum status feed(struct group *group, struct cell *cell, struct kv_cache *cache, int piece, struct error *error)
{
    int sequence;
    int64_t first = piece * group->context, last = first + group->context;
    int64_t steps = group->context / 2 < STEPS ? group->context / 2 : STEPS;
    if (kv_sequence_open(cache, &sequence, error) != STATUS_OK ||
        scorer_feed(group->scorer, cache, sequence, group->text, first, group->context - steps, &cell->quality,
                    error) != STATUS_OK)
        return error->status;
    for (int64_t at = last - steps; at < last; at++)
        if (scorer_step(group->scorer, cache, sequence, group->text, at, &cell->quality, &cell->step_ms[cell->n++],
                        error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

static enum status measure_piece(struct group *group, struct cell *cell, int piece, struct error *error)
{
    struct bench *bench = group->bench;
    struct kv_cache *cache;
    struct kv_options options = {
        .policy = KV_PAGED,
        .dtype = bench->kv_dtype,
        .max_sequences = 1,
        .block_size = BLOCK_SIZE,
        .max_tokens = (int)group->context,
        .pool_blocks = blocks_needed(cell->window, group->context),
        .window = (int)cell->window,
    };
    uint64_t before = ledger_counts(bench->ledger).live[LEDGER_KV];
    if (kv_open(&cache, bench->ledger, &bench->config, &options, error) != STATUS_OK)
        return error->status;
    enum status status = feed(group, cell, cache, piece, error);
    cell->ledger_bytes = ledger_counts(bench->ledger).live[LEDGER_KV] - before;
    cell->tensor_bytes = kv_tensor_bytes(cache);
    kv_close(cache);
    return status;
}

static enum status write_row(const struct group *group, const struct cell *cell, struct results *results,
                             struct error *error)
{
    const struct bench *bench = group->bench;
    const struct cell *full = &group->cells[0];
    double perplexity = quality_perplexity(&cell->quality), of_full = quality_perplexity(&full->quality);
    double p50 = stats_median(cell->step_ms, cell->n);
    predict(bench, results, cell->window, group->context);
    results_set_int(results, "kv_bytes", (int64_t)cell->ledger_bytes);
    results_set_int(results, "kv_bytes_full", (int64_t)full->ledger_bytes);
    results_set_int(results, "kv_tensor_bytes", (int64_t)cell->tensor_bytes);
    results_set_real(results, "tpot_ms_p50", p50);
    results_set_real(results, "tpot_over_full", p50 / stats_median(full->step_ms, full->n));
    results_set_int(results, "n", (int64_t)cell->n);
    quality_set(bench, results, "perplexity", perplexity);
    quality_set(bench, results, "perplexity_delta_percent", 100.0 * (perplexity - of_full) / of_full);
    quality_set(bench, results, "bits_per_byte", quality_bits_per_byte(&cell->quality));
    results_set_int(results, "tokens", cell->quality.tokens);
    return results_end_row(results, error);
}

/* A window that hides nothing must give full attention's sum to the last bit: the same products in the same order. */
static enum status check(const struct group *group, const struct cell *cell, struct error *error)
{
    double difference = cell->quality.nll - group->cells[0].quality.nll;
    if (cell->window < group->context || difference == 0.0)
        return STATUS_OK;
    return error_set(error, STATUS_CHECK_FAILED,
                     "window: %" PRId64 " tokens hide nothing at context %" PRId64
                     ", yet the likelihood differs from full attention's by %g",
                     cell->window, group->context, difference);
}

/* Piece by piece, every window in turn, so that drift hits all of them alike. */
static enum status measure_group(struct group *group, struct results *results, struct error *error)
{
    for (int piece = 0; piece < group->pieces; piece++)
        for (size_t i = 0; i < group->count; i++) {
            struct cell *cell = &group->cells[i];
            if (i > 0 && !cell->wanted)
                continue;
            progress_step(group->bench, (double)group->context, "context %" PRId64 ", window %" PRId64, group->context,
                          cell->window);
            if (measure_piece(group, cell, piece, error) != STATUS_OK)
                return error->status;
        }
    for (size_t i = 0; i < group->count; i++)
        if (group->cells[i].wanted && write_row(group, &group->cells[i], results, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

/* ---- the experiment ---- */

/* Pieces of the text at a context, so that short contexts are not judged by a few words. */
static int pieces_of(const struct bench *bench, int64_t context)
{
    int64_t tokens = bench->options.quick ? 256 : 4096;
    return context < tokens ? (int)(tokens / context) : 1;
}

static enum status group_init(struct group *group, const struct results *results, struct error *error)
{
    group->count = own.windows.count + 1;
    group->cells = calloc(group->count, sizeof *group->cells);
    if (group->cells == NULL)
        return error_set(error, STATUS_DEVICE, "window: out of host memory");
    for (size_t i = 0; i < group->count; i++) {
        struct cell *cell = &group->cells[i];
        cell->window = i ? own.windows.values[i - 1] : 0;
        cell->wanted = !results_has(results, (struct key[]){{"window", cell->window}, {"context", group->context}}, 2);
        cell->step_ms = calloc((size_t)group->pieces * STEPS, sizeof *cell->step_ms);
        if (cell->step_ms == NULL)
            return error_set(error, STATUS_DEVICE, "window: out of host memory");
    }
    return STATUS_OK;
}

static void group_free(struct group *group)
{
    for (size_t i = 0; group->cells != NULL && i < group->count; i++)
        free(group->cells[i].step_ms);
    free(group->cells);
}

static enum status measure_context(struct bench *bench, struct scorer *scorer, const struct text *text,
                                   struct results *results, int64_t context, struct error *error)
{
    struct group group = {
        .bench = bench, .scorer = scorer, .text = text, .context = context, .pieces = pieces_of(bench, context)};
    enum status status = group_init(&group, results, error);
    bool any = false;
    for (size_t i = 0; status == STATUS_OK && i < group.count; i++)
        any = any || group.cells[i].wanted;
    if (any)
        status = measure_group(&group, results, error);
    for (size_t i = 0; any && status == STATUS_OK && i < group.count; i++)
        status = group.cells[i].wanted ? check(&group, &group.cells[i], error) : STATUS_OK;
    group_free(&group);
    return status;
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               struct error *error)
{
    struct model model;
    struct scorer scorer = {0};
    struct text text;
    int64_t longest = int_list_max(contexts), most = longest;
    struct model_limits limits = {.max_rows = PASS_ROWS, .max_sequences = 1, .max_blocks = blocks_needed(0, longest)};
    struct bench_need need = {.kv_bytes = (uint64_t)pool_bytes(bench, 0, longest),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, PASS_ROWS)};
    double work = 0.0;
    for (size_t i = 0; i < contexts->count; i++) {
        int64_t tokens = contexts->values[i] * pieces_of(bench, contexts->values[i]);
        most = tokens > most ? tokens : most;
        work += (double)tokens * (double)(own.windows.count + 1);
    }
    if (text_for(&text, bench, own.text, most, error) != STATUS_OK)
        return error->status;
    enum status status = bench_open_model(bench, &limits, &need, &model, error);
    if (status == STATUS_OK)
        status = scorer_init(&scorer, &model, PASS_ROWS, error);
    progress_start(bench, work);
    for (size_t i = 0; i < contexts->count && status == STATUS_OK; i++)
        status = measure_context(bench, &scorer, &text, results, contexts->values[i], error);
    progress_end(bench);
    scorer_free(&scorer);
    model_free(&model);
    text_free(&text);
    return status;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    const struct int_list *contexts = bench_contexts(bench, "128-4096*2", "32-128*2");
    /* The last half of a context is timed step by step: of one token nothing is. */
    if (bench_check_contexts(contexts, 2, "for a decode step to be timed", error) != STATUS_OK)
        return error->status;
    bench_own_list(bench, &own.windows, "64-1024*4", "48,256");
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, contexts, contexts->count * (own.windows.count + 1),
                                  error);
    return measure_all(bench, results, contexts, error);
}

const struct experiment window_experiment = {
    .name = "window",
    .summary = "a sliding window over the cache: memory and time flat after it, and what it costs in perplexity",
    .needs_device = true,
    .default_model = "tiny",
    .uses = USES_CONTEXTS,
    .own = &own_set,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
