/* speculative: how much faster does a draft model make decoding, and is the output still the target's own?

   Predicted: before anything runs, from bytes, what a step of the draft costs against one of the target (c), and which
   acceptance a draft length needs to pay; then, from the acceptance measured with one proposed token (a), tokens per
   pass of the target and the speed-up at every draft length. Measured: plain decoding and every draft length in turn
   over the same prompts, greedily and sampled; proposals counted as they are judged; tokens compared one by one. */
#include "bench/harness/option_table.h"
#include "bench/speculative_runs.h"
#include "engine/work.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_TOKENS = 64, NEW_TOKENS = 128, QUICK_TOKENS = 16, MOST_DRAFT_TOKENS = 64 };
enum { TEMPERATURES = 2 }; /* 0, greedy, and 1: each compared with plain decoding of its own kind */

static struct {
    const char *draft, *text;
    int prompts;
    struct int_list draft_tokens;
} own;
#define FIELD(field) .offset = (size_t)((const char *)&own.field - (const char *)&own)
static const struct option_row own_rows[] = {
    {"draft", "NAME", OPTION_TEXT, FIELD(draft), .help = "the draft model, as --model; tiny-draft unless given"},
    {"draft-tokens", "LIST", OPTION_LIST, FIELD(draft_tokens), .maximum = MOST_DRAFT_TOKENS,
     .help = "tokens proposed per pass of the target; 0-8 unless given"},
    {"text", "FILE", OPTION_TEXT, FIELD(text), .help = "prompts are taken from it; the held-out text unless given"},
    {"prompts", "N", OPTION_INT, FIELD(prompts), .minimum = 1, .maximum = 4096,
     .help = "prompts that every setting decodes from; 8 unless given"},
    {0},
};
static const struct option_set own_set = {own_rows, &own};

static const struct column columns[] = {
    {"draft", COLUMN_TEXT, 0, false, "The model that proposes."},
    {"target", COLUMN_TEXT, 0, false, "The model whose output it is, and whose passes are saved."},
    {"draft_tokens", COLUMN_INT, 0, true, "Tokens proposed per pass of the target, k. 0: none, through the same code."},
    {"acceptance_rate", COLUMN_REAL, 4, false,
     "Proposals accepted, of those that the target looked at: of a round all up to the first refusal (Leviathan et al. "
     "2023, alpha)."},
    {"tokens_per_target_pass", COLUMN_REAL, 3, false, "Tokens decoded / passes of the target, counted; prefill apart."},
    {"speedup", COLUMN_REAL, 3, false,
     "Decode time of plain decoding / that of this row, medians of n runs in turn; as many tokens in both."},
    {"output_equal", COLUMN_TEXT, 0, false,
     "yes: every token is the one of plain greedy decoding. Always so in f32; in 16-bit types sums in another order "
     "may "
     "tip a near tie. Empty where sampled: equal in distribution only."},
    {"temperature", COLUMN_INT, 0, true, "0: greedy. 1: both models sampled at temperature 1."},
    {"predicted_tokens_per_pass", COLUMN_REAL, 3, false,
     "(1 - a^(k + 1)) / (1 - a), with a the acceptance rate measured at k = 1 (Leviathan et al. 2023, eq. 1)."},
    {"predicted_speedup", COLUMN_REAL, 3, false,
     "predicted_tokens_per_pass / (k c + 1), with c = measured_cost_ratio (ibid., theorem 3.8): as if a pass over k + "
     "1 "
     "tokens took as long as one over a single token."},
    {"predicted_speedup_at_pass_cost", COLUMN_REAL, 3, false,
     "predicted_tokens_per_pass / (k c + v), with v = pass_cost_ratio."},
    {"measured_cost_ratio", COLUMN_REAL, 4, false,
     "c: time of the draft per proposed token at k = 1 / time per token of plain decoding."},
    {"pass_cost_ratio", COLUMN_REAL, 3, false,
     "v: time of the target's pass over k + 1 tokens, the judging included / time per token of plain decoding."},
    {"formula_cost_ratio", COLUMN_REAL, 4, false,
     "Source formula: bytes that a decode step of the draft must move / those of the target, halfway through."},
    {"break_even_acceptance", COLUMN_REAL, 4, false,
     "Source formula: over which acceptance k proposals pay where c = formula_cost_ratio: 1 + a + ... + a^k = k c + 1. "
     "1: never."},
    {"accepted_of_proposed", COLUMN_REAL, 4, false,
     "Proposals accepted, of all: those after a refusal were drafted in vain."},
    {"target_passes", COLUMN_INT, 0, false, "Passes of the target after the prefill, over all prompts, counted."},
    {"proposed", COLUMN_INT, 0, false, "Tokens that the draft proposed, counted."},
    {"accepted", COLUMN_INT, 0, false, "Of them accepted, counted."},
    {"ms_per_token", COLUMN_REAL, 4, false, "Decode time of this row per token, median of n."},
    {"plain_ms_per_token", COLUMN_REAL, 4, false, "That of plain decoding, in turn with it."},
    {"ms_per_token_min", COLUMN_REAL, 4, false, "Of the fastest of the n runs."},
    {"ms_per_token_max", COLUMN_REAL, 4, false, "Of the slowest."},
    {"equal_tokens", COLUMN_INT, 0, false,
     "Greedy: leading tokens on which this row and plain decoding agree, summed over the prompts."},
    {"new_tokens", COLUMN_INT, 0, true, "Tokens from each prompt; the first comes of the prefill, and is not timed."},
    {"prompt_tokens", COLUMN_INT, 0, true, "Tokens of each prompt, read before."},
    {"prompts", COLUMN_INT, 0, true, "Prompts that every setting decodes from."},
    {"n", COLUMN_INT, 0, false, "Runs over all prompts: --reps, else 5."},
    {"tokens_checksum", COLUMN_TEXT, 0, false, "FNV-1a of all tokens of a run; the same in each of the n."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

/* What is expected of every draft length, from what was measured at k = 1. */
struct expectation {
    double acceptance, cost_ratio;
};

static int prompt_count(const struct bench *bench)
{
    return own.prompts ? own.prompts : bench->options.quick ? 2 : 8;
}

static int tokens_or(const struct bench *bench, int tokens)
{
    return bench->options.quick ? QUICK_TOKENS : tokens;
}

static double formula_cost_ratio(const struct bench *target, const struct bench *draft)
{
    struct pass_shape step = {1, tokens_or(target, PROMPT_TOKENS) + tokens_or(target, NEW_TOKENS) / 2, 1, 1};
    return (double)work_bytes(&draft->config, draft->dtype, draft->kv_dtype, &step) /
           (double)work_bytes(&target->config, target->dtype, target->kv_dtype, &step);
}

static void predict(const struct bench *target, const struct bench *draft, struct results *results, int draft_tokens,
                    int temperature)
{
    double cost_ratio = formula_cost_ratio(target, draft);
    results_set_text(results, "draft", draft->config.name);
    results_set_text(results, "target", target->config.name);
    results_set_int(results, "draft_tokens", draft_tokens);
    results_set_int(results, "temperature", temperature);
    results_set_real(results, "formula_cost_ratio", cost_ratio);
    results_set_real(results, "break_even_acceptance", speculative_break_even(draft_tokens, cost_ratio));
    results_set_int(results, "new_tokens", tokens_or(target, NEW_TOKENS));
    results_set_int(results, "prompt_tokens", tokens_or(target, PROMPT_TOKENS));
    results_set_int(results, "prompts", prompt_count(target));
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

static int64_t equal_tokens(const struct subject *subject, const struct cell *a, const struct cell *b)
{
    int64_t equal = 0;
    for (int prompt = 0; prompt < subject->prompt_count; prompt++) {
        const int32_t *left = a->tokens + (size_t)prompt * (size_t)subject->new_tokens;
        const int32_t *right = b->tokens + (size_t)prompt * (size_t)subject->new_tokens;
        for (int i = 0; i < subject->new_tokens && left[i] == right[i]; i++)
            equal++;
    }
    return equal;
}

static double ratio(int64_t part, int64_t whole)
{
    return (double)part / (double)whole;
}

static void record_counts(struct results *results, const struct cell *cell, int64_t decoded)
{
    const struct speculative_counts *counts = &cell->counts;
    if (counts->judged > 0)
        results_set_real(results, "acceptance_rate", ratio(counts->accepted, counts->judged));
    if (counts->proposed > 0)
        results_set_real(results, "accepted_of_proposed", ratio(counts->accepted, counts->proposed));
    results_set_real(results, "tokens_per_target_pass", ratio(decoded, counts->target_passes));
    results_set_int(results, "target_passes", counts->target_passes);
    results_set_int(results, "proposed", counts->proposed);
    results_set_int(results, "accepted", counts->accepted);
}

static void record_times(const struct subject *subject, struct results *results, const struct cell *cell,
                         const struct cell *plain, const struct expectation *expected, int64_t decoded)
{
    size_t n = (size_t)subject->n;
    double ms = stats_median(cell->ms, n), plain_ms = stats_median(plain->ms, n), tokens = (double)decoded;
    double pass_ratio = stats_median(cell->target_ms, n) / (double)cell->counts.target_passes / (plain_ms / tokens);
    int k = cell->draft_tokens;
    results_set_real(results, "speedup", plain_ms / ms);
    results_set_real(results, "ms_per_token", ms / tokens);
    results_set_real(results, "plain_ms_per_token", plain_ms / tokens);
    results_set_real(results, "ms_per_token_min", stats_quantile(cell->ms, n, 0.0) / tokens);
    results_set_real(results, "ms_per_token_max", stats_quantile(cell->ms, n, 1.0) / tokens);
    results_set_real(results, "pass_cost_ratio", pass_ratio);
    results_set_real(results, "measured_cost_ratio", expected->cost_ratio);
    results_set_real(results, "predicted_tokens_per_pass", speculative_expected_tokens(expected->acceptance, k));
    results_set_real(results, "predicted_speedup",
                     speculative_expected_speedup(expected->acceptance, k, expected->cost_ratio, 1.0));
    results_set_real(results, "predicted_speedup_at_pass_cost",
                     speculative_expected_speedup(expected->acceptance, k, expected->cost_ratio, pass_ratio));
}

static enum status record(const struct subject *subject, struct results *results, const struct cell *cell,
                          const struct cell *plain, const struct expectation *expected, int temperature,
                          struct error *error)
{
    int64_t all = (int64_t)subject->prompt_count * subject->new_tokens, decoded = all - subject->prompt_count;
    char checksum[32];
    predict(subject->bench, &subject->draft_bench, results, cell->draft_tokens, temperature);
    record_counts(results, cell, decoded);
    record_times(subject, results, cell, plain, expected, decoded);
    if (temperature == 0) {
        int64_t equal = equal_tokens(subject, cell, plain);
        results_set_int(results, "equal_tokens", equal);
        results_set_text(results, "output_equal", equal == all ? "yes" : "no");
    } else {
        results_set_missing(results, "output_equal", "sampled tokens are equal in distribution, not one by one");
    }
    results_set_int(results, "n", subject->n);
    snprintf(checksum, sizeof checksum, "%016" PRIx64, cell->checksum);
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

/* ---- a temperature: all its rows, measured side by side ---------------------------------------------------------- */

static bool measured(const struct bench *bench, const struct results *results, int64_t draft_tokens, int temperature)
{
    return results_has(results,
                       (struct key[]){{"draft_tokens", draft_tokens},
                                      {"temperature", temperature},
                                      {"new_tokens", tokens_or(bench, NEW_TOKENS)},
                                      {"prompts", prompt_count(bench)}},
                       4);
}

/* What k = 1 and plain decoding gave. */
static struct expectation expectation_of(const struct subject *subject, const struct cell *one,
                                         const struct cell *plain)
{
    size_t n = (size_t)subject->n;
    double decoded = (double)subject->prompt_count * (subject->new_tokens - 1);
    return (struct expectation){
        .acceptance = ratio(one->counts.accepted, one->counts.judged),
        .cost_ratio =
            stats_median(one->draft_ms, n) / (double)one->counts.proposed / (stats_median(plain->ms, n) / decoded),
    };
}

/* cells[0] is plain decoding, cells[1] has k = 1. */
static enum status measure_cells(struct subject *subject, struct results *results, struct cell *cells, int count,
                                 int temperature, struct error *error)
{
    for (int run = -1; run < subject->n; run++) { /* an untimed one first, whose time the next one replaces */
        progress_step(subject->bench, 1.0, "temperature %d, run %d of %d", temperature, run + 1, subject->n);
        if (subject_run(subject, cells, count, temperature, run < 0 ? 0 : run, error) != STATUS_OK)
            return error->status;
    }
    struct expectation expected = expectation_of(subject, &cells[1], &cells[0]);
    for (size_t i = 0; i < own.draft_tokens.count; i++)
        for (int c = 1; c < count; c++)
            if (cells[c].is_row && cells[c].draft_tokens == own.draft_tokens.values[i] &&
                record(subject, results, &cells[c], &cells[0], &expected, temperature, error) != STATUS_OK)
                return error->status;
    return STATUS_OK;
}

static enum status measure_temperature(struct subject *subject, struct results *results, int temperature,
                                       struct error *error)
{
    const struct int_list *lengths = &own.draft_tokens;
    struct cell cells[MOST_DRAFT_TOKENS + 3];
    int count = 0;
    bool one_is_row = false;
    enum status status = cell_init(&cells[count++], subject, DRAFT_TOKENS_PLAIN, false, error);
    for (size_t i = 0; i < lengths->count; i++)
        one_is_row |= lengths->values[i] == 1 && !measured(subject->bench, results, 1, temperature);
    if (status == STATUS_OK)
        status = cell_init(&cells[count++], subject, 1, one_is_row, error);
    for (size_t i = 0; i < lengths->count && status == STATUS_OK; i++)
        if (lengths->values[i] != 1 && !measured(subject->bench, results, lengths->values[i], temperature))
            status = cell_init(&cells[count++], subject, (int)lengths->values[i], true, error);
    if (status == STATUS_OK && (count > 2 || one_is_row))
        status = measure_cells(subject, results, cells, count, temperature, error);
    for (int c = 0; c < count; c++)
        cell_free(&cells[c]);
    return status;
}

static bool any_missing(const struct bench *bench, const struct results *results, int temperature)
{
    for (size_t i = 0; i < own.draft_tokens.count; i++)
        if (!measured(bench, results, own.draft_tokens.values[i], temperature))
            return true;
    return false;
}

static enum status measure_all(struct subject *subject, struct results *results, struct error *error)
{
    struct bench *bench = subject->bench;
    double work = 0.0;
    for (int temperature = 0; temperature < TEMPERATURES; temperature++)
        work += any_missing(bench, results, temperature) ? subject->n + 1 : 0;
    enum status status = work > 0.0 ? subject_init(subject, error) : STATUS_OK;
    progress_start(bench, work);
    for (int temperature = 0; temperature < TEMPERATURES && status == STATUS_OK; temperature++)
        if (any_missing(bench, results, temperature))
            status = measure_temperature(subject, results, temperature, error);
    progress_end(bench);
    subject_free(subject);
    return status;
}

/* In f32 greedy output must be the target's own. */
static enum status check(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (strcmp(results_text(results, row, "dtype"), "f32") == 0 &&
            strcmp(results_text(results, row, "output_equal"), "no") == 0)
            return error_set(error, STATUS_CHECK_FAILED,
                             "speculative: with %s tokens proposed in f32 the output is not that of plain decoding",
                             results_text(results, row, "draft_tokens"));
    return STATUS_OK;
}

static enum status predict_all(const struct subject *subject, struct results *results, struct error *error)
{
    for (int temperature = 0; temperature < TEMPERATURES; temperature++)
        for (size_t i = 0; i < own.draft_tokens.count; i++) {
            predict(subject->bench, &subject->draft_bench, results, (int)own.draft_tokens.values[i], temperature);
            if (results_end_row(results, error) != STATUS_OK)
                return error->status;
        }
    return STATUS_OK;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    struct subject subject = {.bench = bench};
    bench_own_list(bench, &own.draft_tokens, "0-8+1", "0,1,2,4");
    if (bench_second_model(bench, own.draft ? own.draft : "tiny-draft", &subject.draft_bench, error) != STATUS_OK ||
        speculative_check_vocabularies(&bench->config, &subject.draft_bench.config, error) != STATUS_OK ||
        results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    subject.text = own.text;
    subject.most_draft_tokens = (int)int_list_max(&own.draft_tokens);
    subject.prompt_count = prompt_count(bench);
    subject.prompt_tokens = tokens_or(bench, PROMPT_TOKENS);
    subject.new_tokens = tokens_or(bench, NEW_TOKENS);
    subject.n = bench_reps(bench, 5, 2);
    if (bench->options.dry_run)
        return predict_all(&subject, results, error);
    if (measure_all(&subject, results, error) != STATUS_OK)
        return error->status;
    return check(results, error);
}

const struct experiment speculative_experiment = {
    .name = "speculative",
    .summary = "a draft model proposes, the target judges: acceptance, tokens per pass, speed-up, equal output",
    .needs_device = true,
    .default_model = "tiny",
    .uses = USES_REPS | USES_SAMPLES,
    .own = &own_set,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
