/* evict: which tokens may be forgotten? Five policies at one budget of slots per sequence.

   Predicted: K and V of `budget` tokens, whatever the length of the text; and, from what a policy keeps, whether a fact
   planted early can still be there when it is asked for. Measured: text through the model token by token, all policies
   in turn at every token, so that drift hits all of them alike: bytes, the time of the last steps, how well the text is
   predicted; and whether the fact is recalled.
     full                       everything stays
     window only                Xiao et al. 2023 (StreamingLLM), section 3.1: the newest tokens
     sinks + window             the same, section 3.2: and the first four, at positions inside the cache
     heavy hitters              Zhang et al. 2023 (H2O), section 4: half newest, half most attended so far
     persistence of importance  Liu et al. 2023 (Scissorhands), section 4: half goes at once, by counts of low attention
 */
#include "bench/evict_probe.h"

#include "bench/harness/option_table.h"
#include "engine/kv_evict.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 64, BYTE_VOCABULARY = 256 };

static struct {
    struct int_list budgets;
    int sinks, probes;
    bool has_sinks;
    const char *text;
} own;
static const struct option_row own_rows[] = {
    {"budget-tokens", "LIST", OPTION_LIST, offsetof(__typeof__(own), budgets), .minimum = 8, .maximum = 1 << 20,
     .help = "slots per sequence, a list as for contexts"},
    {"sinks", "N", OPTION_INT, offsetof(__typeof__(own), sinks), .has_given = true,
     .given_offset = offsetof(__typeof__(own), has_sinks), .minimum = 1, .maximum = 6,
     .help = "first tokens that sinks + window keeps; 4 unless given"},
    {"probes", "N", OPTION_INT, offsetof(__typeof__(own), probes), .minimum = 1, .maximum = 1000,
     .help = "facts asked for, near and far; 16 unless given"},
    {"text", "FILE", OPTION_TEXT, offsetof(__typeof__(own), text),
     .help = "what is predicted; data/tiny/heldout.txt unless given"},
    {0},
};
static const struct option_set own_set = {own_rows, &own};

static const struct column columns[] = {
    {"policy", COLUMN_TEXT, 0, true,
     "What is kept: full, window only, sinks + window, heavy hitters, persistence of "
     "importance. bench/evict.md has each paper and section."},
    {"budget_tokens", COLUMN_INT, 0, true, "Slots per sequence, layer and KV head; of full attention: the context."},
    {"context", COLUMN_INT, 0, true, "Tokens of the text that went through the cache, one by one."},
    {"kv_bytes", COLUMN_INT, 0, false,
     "Source ledger: growth of live bytes tagged kv by this cache: K and V of the slots, and what the policy needs "
     "beside them on the device."},
    {"perplexity", COLUMN_REAL, 4, false,
     "exp of the mean negative log-likelihood of every token after the first, in double from the logits."},
    {"perplexity_delta_percent", COLUMN_REAL, 2, false, "How far it is above full attention's on the same text."},
    {"tpot_ms_p50", COLUMN_REAL, 4, false,
     "Median time of the last steps, a pass and its greedy choice each, what the policy does included."},
    {"bits_per_byte", COLUMN_REAL, 4, false, "The same likelihood per byte of the text, in bits."},
    {"kv_formula_bytes", COLUMN_INT, 0, false,
     "Source formula: budget_tokens * bytes per token: 2 * layers * KV heads * (head_dim * bytes, and int8's scale)."},
    {"kv_tensor_bytes", COLUMN_INT, 0, false, "Source tensors: sum over the K and V tensors; must be the formula's."},
    {"evicted_tokens", COLUMN_INT, 0, false, "Tokens given up in every head by the end of the text."},
    {"tpot_over_full", COLUMN_REAL, 3, false, "tpot_ms_p50 over full attention's, measured in turn with it."},
    {"n", COLUMN_INT, 0, false, "Steps timed."},
    {"probes", COLUMN_INT, 0, false, "Facts asked for in each place."},
    {"near_tokens", COLUMN_INT, 0, false,
     "From the near fact's first letter to the token that asks for its last digit."},
    {"near_predicted", COLUMN_TEXT, 0, false,
     "Before the run, from what the policy keeps: kept, lost, or open where that depends on attention."},
    {"near_recall_percent", COLUMN_REAL, 1, false, "Near facts whose four digits were all said, greedily."},
    {"near_kept_percent", COLUMN_REAL, 1, false,
     "Slots of the near facts' digits that were there when they were asked for, over all layers and KV heads."},
    {"far_tokens", COLUMN_INT, 0, false, "The same distance of the far fact, at the text's very start."},
    {"probe_predicted", COLUMN_TEXT, 0, false, "The same prediction of the far fact."},
    {"recall_percent", COLUMN_REAL, 1, false, "Far facts whose four digits were all said, greedily."},
    {"probe_kept_percent", COLUMN_REAL, 1, false, "Slots of the far facts' digits that were there."},
    {"sink_attention_percent", COLUMN_REAL, 2, false,
     "Full attention: share of all softmax weight, over every query, head and layer, that the first --sinks tokens "
     "get."},
    {"sink_uniform_percent", COLUMN_REAL, 2, false, "The same share if every query looked at all it sees alike."},
};
static const struct table tables[] = {{"", true, columns, sizeof columns / sizeof *columns}};

/* ---- settings ---- */

struct setting {
    const char *policy;
    struct eviction_options eviction; /* EVICT_NOTHING: full attention */
    int64_t budget;
};

enum { FULL, WINDOW, SINKS, HEAVY, PERSISTENT, POLICIES };

/* Setting 0 is full attention, then the four policies at each budget below the context. */
static struct setting setting_at(int64_t context, size_t i)
{
    if (i == FULL)
        return (struct setting){"full", {.policy = EVICT_NOTHING}, context};
    int64_t budget = own.budgets.values[(i - 1) / (POLICIES - 1)];
    int slots = (int)budget;
    switch (1 + (i - 1) % (POLICIES - 1)) {
    case WINDOW:
        return (struct setting){"window only", eviction_recent(slots, 0), budget};
    case SINKS:
        return (struct setting){"sinks + window", eviction_recent(slots, own.sinks), budget};
    case HEAVY:
        return (struct setting){"heavy hitters", eviction_heavy(slots), budget};
    default:
        return (struct setting){"persistence of importance", eviction_persistent(slots), budget};
    }
}

static size_t settings_count(void)
{
    return 1 + (POLICIES - 1) * own.budgets.count;
}

/* The probe at this setting, in texts as long as the row's context. Near is the same for all settings, inside the
   newest half of the smallest budget, or of the text where no budget is smaller. */
static struct probe probe_of(const struct setting *setting, int64_t context)
{
    int64_t near = context / 2 - 16;
    for (size_t i = 0; i < own.budgets.count; i++)
        near = own.budgets.values[i] / 2 - 16 < near ? own.budgets.values[i] / 2 - 16 : near;
    return (struct probe){.eviction = &setting->eviction,
                          .tokens = (int)context - PROBE_DIGITS + 1,
                          .near_tokens = near > PROBE_SHORTEST ? (int)near : PROBE_SHORTEST,
                          .count = own.probes};
}

/* Past the positions that it was trained on, full attention itself fails, and there is nothing to compare with. */
static const char *no_probe(const struct bench *bench, int64_t context)
{
    if (bench->config.vocab_size != BYTE_VOCABULARY)
        return "the probe is written in bytes, which this vocabulary is not";
    if (context > bench->config.max_position_embeddings)
        return "the text is longer than the positions that the model was trained on";
    return context < 2 * PROBE_SHORTEST ? "the text is too short for a fact near and one far" : NULL;
}

static void predict(const struct bench *bench, struct results *results, const struct setting *setting, int64_t context)
{
    results_set_text(results, "policy", setting->policy);
    results_set_int(results, "budget_tokens", setting->budget);
    results_set_int(results, "context", context);
    results_set_int(results, "kv_formula_bytes",
                    (int64_t)formula_kv_bytes(&bench->config, bench->kv_dtype, setting->budget));
    if (no_probe(bench, context))
        return;
    struct probe probe = probe_of(setting, context);
    results_set_int(results, "near_tokens", probe_distance(&probe, PROBE_NEAR));
    results_set_text(results, "near_predicted", probe_predict(&probe, PROBE_NEAR));
    results_set_int(results, "far_tokens", probe_distance(&probe, PROBE_FAR));
    results_set_text(results, "probe_predicted", probe_predict(&probe, PROBE_FAR));
}

static void predict_nth(const struct bench *bench, struct results *results, const void *contexts, size_t i)
{
    int64_t context = ((const struct int_list *)contexts)->values[i / settings_count()];
    struct setting setting = setting_at(context, i % settings_count());
    predict(bench, results, &setting, context);
}

/* ---- the text through every policy ---- */

struct stream {
    struct setting setting;
    bool wanted; /* false: --resume has the row */
    struct kv_cache *cache;
    int sequence;
    uint64_t ledger_bytes; /* growth of live bytes tagged kv */
    struct quality quality;
    double step_ms[STEPS];
    size_t n;
    struct probe_outcome outcome;
};

/* All settings at one context; stream 0 is full attention. */
struct group {
    struct bench *bench;
    struct model *model;
    struct scorer *scorer;
    const struct text *text;
    int64_t context;
    struct stream *streams;
    size_t count;
    double sink_percent; /* of all attention, that the first own.sinks tokens get where nothing is evicted */
};

static enum status stream_open(struct group *group, struct stream *stream, struct error *error)
{
    struct bench *bench = group->bench;
    struct kv_options options = {
        .policy = KV_RESERVED,
        .dtype = bench->kv_dtype,
        .max_sequences = 1,
        .max_tokens = (int)stream->setting.budget,
        .eviction = stream->setting.eviction,
    };
    uint64_t before = ledger_counts(bench->ledger).live[LEDGER_KV];
    if (kv_open(&stream->cache, bench->ledger, &bench->config, &options, error) != STATUS_OK ||
        kv_sequence_open(stream->cache, &stream->sequence, error) != STATUS_OK)
        return error->status;
    stream->ledger_bytes = ledger_counts(bench->ledger).live[LEDGER_KV] - before;
    return STATUS_OK;
}

static enum status feed(struct group *group, struct error *error)
{
    for (int64_t at = 0; at < group->context; at++)
        for (size_t i = 0; i < group->count; i++) {
            struct stream *stream = &group->streams[i];
            double ms;
            if (bench_interrupted())
                return error_set(error, STATUS_INTERRUPTED, "interrupted");
            if (i > 0 && !stream->wanted)
                continue;
            if (scorer_step(group->scorer, stream->cache, stream->sequence, group->text, at, &stream->quality, &ms,
                            error) != STATUS_OK)
                return error->status;
            if (at >= group->context - STEPS)
                stream->step_ms[stream->n++] = ms;
        }
    return STATUS_OK;
}

/* Heavy hitters with a slot for every token: nothing goes, and the scores are all that a token ever got. Query t of a
   uniform head gives min(1, sinks / (t + 1)) to the sinks. */
static enum status weigh_sinks(struct group *group, struct error *error)
{
    const struct config *config = &group->bench->config;
    struct stream all = {.setting = {"", eviction_heavy((int)group->context), group->context}};
    enum status status = stream_open(group, &all, error);
    if (status == STATUS_OK)
        status =
            scorer_feed(group->scorer, all.cache, all.sequence, group->text, 0, group->context, &all.quality, error);
    if (status == STATUS_OK) {
        const struct eviction *slots = kv_evict_slots(kv_get_evict(all.cache), all.sequence);
        double of_sinks = 0.0, queries = (double)(config->num_hidden_layers * config->num_attention_heads);
        for (int head = 0; head < slots->heads; head++)
            for (int slot = 0; slot < own.sinks && slot < slots->held; slot++)
                of_sinks += slots->score[(size_t)head * (size_t)group->context + (size_t)slot];
        group->sink_percent = 100.0 * of_sinks / (queries * (double)group->context);
    }
    kv_close(all.cache);
    return status;
}

static double uniform_percent(int64_t context)
{
    double sum = 0.0;
    for (int64_t t = 0; t < context; t++)
        sum += t < own.sinks ? 1.0 : own.sinks / (double)(t + 1);
    return 100.0 * sum / (double)context;
}

static enum status ask_probes(struct group *group, struct error *error)
{
    for (size_t i = 0; !no_probe(group->bench, group->context) && i < group->count; i++) {
        struct stream *stream = &group->streams[i];
        struct probe probe = probe_of(&stream->setting, group->context);
        progress_step(group->bench, (double)group->context, "context %" PRId64 ", facts, %s of %" PRId64,
                      group->context, stream->setting.policy, stream->setting.budget);
        if ((i == FULL || stream->wanted) &&
            probe_run(group->bench, group->model, group->text, &probe, &stream->outcome, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* ---- rows ---- */

/* Where full attention itself recalls nothing, a policy can lose nothing, and its zero would say something of the model
   only. */
static void set_recall(const struct group *group, const struct stream *stream, int place, const char *column,
                       struct results *results)
{
    if (stream == &group->streams[FULL] || group->streams[FULL].outcome.right[place] > 0)
        results_set_real(results, column, 100.0 * stream->outcome.right[place] / own.probes);
    else
        results_set_missing(results, column,
                            "full attention itself recalls none of the facts: this model has not learned to look back; "
                            "--model DIR takes one that has");
}

static void set_probes(const struct group *group, const struct stream *stream, struct results *results)
{
    static const char *const of_probes[] = {
        "probes",     "near_tokens",     "near_predicted", "near_recall_percent", "near_kept_percent",
        "far_tokens", "probe_predicted", "recall_percent", "probe_kept_percent"};
    const char *reason = no_probe(group->bench, group->context);
    for (size_t i = 0; reason && i < sizeof of_probes / sizeof *of_probes; i++)
        results_set_missing(results, of_probes[i], reason);
    if (reason)
        return;
    results_set_int(results, "probes", own.probes);
    set_recall(group, stream, PROBE_NEAR, "near_recall_percent", results);
    results_set_real(results, "near_kept_percent", stream->outcome.kept_percent[PROBE_NEAR]);
    set_recall(group, stream, PROBE_FAR, "recall_percent", results);
    results_set_real(results, "probe_kept_percent", stream->outcome.kept_percent[PROBE_FAR]);
}

static enum status write_row(const struct group *group, const struct stream *stream, struct results *results,
                             struct error *error)
{
    const struct bench *bench = group->bench;
    const struct stream *full = &group->streams[FULL];
    double perplexity = quality_perplexity(&stream->quality), of_full = quality_perplexity(&full->quality);
    double p50 = stats_median(stream->step_ms, stream->n);
    predict(bench, results, &stream->setting, group->context);
    results_set_int(results, "kv_bytes", (int64_t)stream->ledger_bytes);
    results_set_int(results, "kv_tensor_bytes", (int64_t)kv_tensor_bytes(stream->cache));
    results_set_int(results, "evicted_tokens", kv_evicted(stream->cache, stream->sequence));
    quality_set(bench, results, "perplexity", perplexity);
    quality_set(bench, results, "perplexity_delta_percent", 100.0 * (perplexity - of_full) / of_full);
    quality_set(bench, results, "bits_per_byte", quality_bits_per_byte(&stream->quality));
    results_set_real(results, "tpot_ms_p50", p50);
    results_set_real(results, "tpot_over_full", p50 / stats_median(full->step_ms, full->n));
    results_set_int(results, "n", (int64_t)stream->n);
    set_probes(group, stream, results);
    if (stream == full) {
        results_set_real(results, "sink_attention_percent", group->sink_percent);
        results_set_real(results, "sink_uniform_percent", uniform_percent(group->context));
    }
    return results_end_row(results, error);
}

/* What arithmetic forces: the slots' bytes are the formula's, and what is surely kept or lost is. */
static enum status check_rows(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++) {
        const char *policy = results_text(results, row, "policy");
        if (results_real(results, row, "kv_tensor_bytes") != results_real(results, row, "kv_formula_bytes"))
            return error_set(error, STATUS_CHECK_FAILED,
                             "evict: %s of %s slots: the cache's tensors hold other bytes than the formula says",
                             policy, results_text(results, row, "budget_tokens"));
        for (int place = 0; place < PROBE_PLACES; place++) {
            const char *predicted =
                results_text(results, row, place == PROBE_FAR ? "probe_predicted" : "near_predicted");
            double kept = results_real(results, row, place == PROBE_FAR ? "probe_kept_percent" : "near_kept_percent");
            if ((strcmp(predicted, "kept") == 0 && kept != 100.0) || (strcmp(predicted, "lost") == 0 && kept != 0.0))
                return error_set(error, STATUS_CHECK_FAILED,
                                 "evict: %s of %s slots: the %s fact was predicted to be %s, and %g %% of its slots "
                                 "were there",
                                 policy, results_text(results, row, "budget_tokens"),
                                 place == PROBE_FAR ? "far" : "near", predicted, kept);
        }
    }
    return STATUS_OK;
}

/* ---- the experiment ---- */

static bool has_row(const struct results *results, const struct setting *setting, int64_t context)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (strcmp(results_text(results, row, "policy"), setting->policy) == 0 &&
            results_real(results, row, "budget_tokens") == (double)setting->budget &&
            results_real(results, row, "context") == (double)context)
            return true;
    return false;
}

static enum status measure_group(struct group *group, struct results *results, struct error *error)
{
    progress_step(group->bench, (double)group->context, "context %" PRId64 ", the text", group->context);
    for (size_t i = 0; i < group->count; i++)
        if (stream_open(group, &group->streams[i], error) != STATUS_OK)
            return error->status;
    if (feed(group, error) != STATUS_OK || weigh_sinks(group, error) != STATUS_OK ||
        ask_probes(group, error) != STATUS_OK)
        return error->status;
    for (size_t i = 0; i < group->count; i++)
        if (group->streams[i].wanted && write_row(group, &group->streams[i], results, error) != STATUS_OK)
            return error->status;
    return STATUS_OK;
}

static enum status measure_context(struct group *group, struct results *results, struct error *error)
{
    bool any = false;
    enum status status = STATUS_OK;
    group->count = settings_count();
    group->streams = calloc(group->count, sizeof *group->streams);
    if (group->streams == NULL)
        return error_set(error, STATUS_DEVICE, "evict: out of host memory");
    for (size_t i = 0; i < group->count; i++) {
        struct stream *stream = &group->streams[i];
        stream->setting = setting_at(group->context, i);
        stream->wanted = !has_row(results, &stream->setting, group->context);
        any = any || stream->wanted;
    }
    if (any)
        status = measure_group(group, results, error);
    for (size_t i = 0; i < group->count; i++)
        kv_close(group->streams[i].cache);
    free(group->streams);
    return status;
}

/* Most bytes at once: every policy's stream, and the scores of full attention or one setting's probes. */
static uint64_t most_kv_bytes(const struct bench *bench, int64_t context)
{
    int64_t slots = 2 * context + (POLICIES - 1) * int_list_sum(&own.budgets);
    int64_t probes = context * PROBE_PLACES * own.probes;
    return formula_kv_bytes(&bench->config, bench->kv_dtype, slots + probes);
}

static enum status measure_all(struct bench *bench, struct results *results, const struct int_list *contexts,
                               struct error *error)
{
    struct model model;
    struct scorer scorer = {0};
    struct text text;
    int64_t longest = int_list_max(contexts);
    int side_by_side = PROBE_PLACES * own.probes;
    struct model_limits limits = {.max_rows = side_by_side, .max_sequences = side_by_side, .max_blocks = 1};
    struct bench_need need = {.kv_bytes = most_kv_bytes(bench, longest),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, side_by_side + 1)};
    if (text_for(&text, bench, own.text, longest + 1, error) != STATUS_OK)
        return error->status;
    enum status status = bench_open_model(bench, &limits, &need, &model, error);
    if (status == STATUS_OK)
        status = scorer_init(&scorer, &model, 1, error);
    progress_start(bench, (double)int_list_sum(contexts) * (double)(settings_count() + 1));
    for (size_t i = 0; i < contexts->count && status == STATUS_OK; i++) {
        struct group group = {
            .bench = bench, .model = &model, .scorer = &scorer, .text = &text, .context = contexts->values[i]};
        status = measure_context(&group, results, error);
    }
    progress_end(bench);
    scorer_free(&scorer);
    model_free(&model);
    text_free(&text);
    return status == STATUS_OK ? check_rows(results, error) : status;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    bool quick = bench->options.quick;
    const struct int_list *contexts = bench_contexts(bench, "2048,4096", "256");
    /* Heavy hitters with a slot for every token weigh the sinks, and a policy by attention has two slots at least. */
    if (bench_check_contexts(contexts, 2, "for anything to be forgotten", error) != STATUS_OK)
        return error->status;
    bench_own_list(bench, &own.budgets, "256,512", "128");
    own.probes = own.probes ? own.probes : quick ? 2 : 16;
    own.sinks = own.has_sinks ? own.sinks : 4;
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    if (bench->options.dry_run)
        return bench_predict_rows(bench, results, predict_nth, contexts, contexts->count * settings_count(), error);
    return measure_all(bench, results, contexts, error);
}

const struct experiment evict_experiment = {
    .name = "evict",
    .summary =
        "what may be forgotten: window, sinks, heavy hitters, persistence, by perplexity and recall at one budget",
    .needs_device = true,
    .default_model = "tiny",
    .uses = USES_CONTEXTS,
    .own = &own_set,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
