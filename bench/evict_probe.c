#include "bench/evict_probe.h"

#include "engine/kv_evict.h"
#include "engine/random.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the names that the tiny models' texts use. */
static const char *const names[] = {"Aaron", "Boaz",  "Caleb", "Dinah", "Esther", "Felix", "Gideon", "Hannah",
                                    "Isaac", "Joel",  "Kenan", "Leah",  "Micah",  "Naomi", "Obed",   "Perez",
                                    "Rahab", "Silas", "Tamar", "Uriah", "Vashti", "Zadok"};

/* ---- prediction ---- */

static int last_asking(const struct probe *probe)
{
    return probe->tokens + PROBE_DIGITS - 2;
}

int probe_distance(const struct probe *probe, int place)
{
    return place == PROBE_FAR ? last_asking(probe) : probe->near_tokens;
}

/* The fact's digits are its last but two characters ("4821.\n"), 30 or so after its first; sinks are only the first few
   of those of a fact at the very start, none of them a digit. */
const char *probe_predict(const struct probe *probe, int place)
{
    enum { FACT_LONGEST = 40 };
    int first = last_asking(probe) - probe_distance(probe, place);
    if (probe->eviction->policy == EVICT_NOTHING)
        return "kept";
    int sure = eviction_surely_from(probe->eviction, last_asking(probe));
    if (first >= sure)
        return "kept";
    int sure_at_first = eviction_surely_from(probe->eviction, probe->tokens - 1);
    bool by_age = probe->eviction->policy == EVICT_ALL_BUT_RECENT;
    return by_age && first + FACT_LONGEST <= sure_at_first ? "lost" : "open";
}

/* ---- the texts ---- */

/* One sequence of the batch: its text, and where the fact's digits stand in it. */
struct asked {
    int32_t *tokens; /* [probe.tokens + PROBE_DIGITS]; the answer is added as it comes */
    int place, digits_at;
    char digits[PROBE_DIGITS + 1];
};

static void put(int32_t *tokens, const char *characters)
{
    for (size_t i = 0; characters[i]; i++)
        tokens[i] = (unsigned char)characters[i];
}

/* Facts alike in both places: fact number i has the same name, number and surroundings near and far. */
static void write_text(struct asked *asked, const struct probe *probe, const struct text *text, uint64_t seed)
{
    char fact[64], question[64];
    const char *name = names[random_next(&seed) % (sizeof names / sizeof *names)];
    snprintf(asked->digits, sizeof asked->digits, "%d", (int)(1000 + random_next(&seed) % 9000));
    snprintf(fact, sizeof fact, "Remember: the number of %s is %s.\n", name, asked->digits);
    snprintf(question, sizeof question, "\nRecall: the number of %s is ", name);
    int64_t from = (int64_t)(random_uniform(&seed) * (double)(text->count - probe->tokens));
    memcpy(asked->tokens, text->tokens + from, (size_t)probe->tokens * sizeof *asked->tokens);
    int first = last_asking(probe) - probe_distance(probe, asked->place);
    if (first > 0)
        asked->tokens[first - 1] = '\n';
    put(asked->tokens + first, fact);
    put(asked->tokens + probe->tokens - strlen(question), question);
    asked->digits_at = first + (int)strlen(fact) - PROBE_DIGITS - 2;
}

/* ---- running ---- */

struct probe_run {
    struct bench *bench;
    struct model *model;
    const struct probe *probe;
    int sequences;
    struct asked *asked;           /* [sequences] */
    struct sequence_tokens *batch; /* [sequences] */
    int32_t *chosen;               /* [sequences] */
    struct kv_cache *cache;
    struct logits logits;
};

static enum status run_init(struct probe_run *run, const struct text *text, struct error *error)
{
    const struct probe *probe = run->probe;
    bool all = probe->eviction->policy == EVICT_NOTHING;
    size_t count = (size_t)run->sequences, length = (size_t)probe->tokens + PROBE_DIGITS;
    uint64_t seed = run->bench->options.seed;
    run->asked = calloc(count, sizeof *run->asked);
    run->batch = calloc(count, sizeof *run->batch);
    run->chosen = calloc(count, sizeof *run->chosen);
    if (run->asked == NULL || run->batch == NULL || run->chosen == NULL)
        return error_set(error, STATUS_DEVICE, "evict: out of host memory");
    struct kv_options options = {
        .policy = KV_RESERVED,
        .dtype = run->bench->kv_dtype,
        .max_sequences = run->sequences,
        .max_tokens = all ? (int)length : probe->eviction->budget,
        .eviction = *probe->eviction,
    };
    if (logits_init(&run->logits, run->bench->ledger, run->model->config, run->bench->dtype, run->sequences, error) !=
            STATUS_OK ||
        kv_open(&run->cache, run->bench->ledger, run->model->config, &options, error) != STATUS_OK)
        return error->status;
    for (int s = 0; s < run->sequences; s++) {
        struct asked *asked = &run->asked[s];
        asked->place = s / probe->count;
        asked->tokens = calloc(length, sizeof *asked->tokens);
        if (asked->tokens == NULL)
            return error_set(error, STATUS_DEVICE, "evict: out of host memory");
        write_text(asked, probe, text, seed + (uint64_t)(s % probe->count));
        if (kv_sequence_open(run->cache, &run->batch[s].sequence, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

static void run_free(struct probe_run *run)
{
    for (int s = 0; run->asked != NULL && s < run->sequences; s++)
        free(run->asked[s].tokens);
    logits_free(&run->logits, run->bench->ledger);
    kv_close(run->cache);
    free(run->asked);
    free(run->batch);
    free(run->chosen);
}

/* Token number `at` of every text; with `asks` the choice after it becomes their next. */
static enum status step(struct probe_run *run, int at, bool asks, struct error *error)
{
    if (bench_interrupted())
        return error_set(error, STATUS_INTERRUPTED, "interrupted");
    for (int s = 0; s < run->sequences; s++) {
        run->batch[s].tokens = run->asked[s].tokens + at;
        run->batch[s].count = 1;
        run->batch[s].logits = asks ? LOGITS_LAST : LOGITS_NONE;
    }
    run->logits.rows = 0;
    if (model_forward(run->model, run->cache, run->batch, run->sequences, &run->logits, error) != STATUS_OK)
        return error->status;
    if (!asks)
        return STATUS_OK;
    if (model_argmax(run->model, &run->logits, 0, run->sequences, run->chosen, error) != STATUS_OK)
        return error->status;
    for (int s = 0; s < run->sequences; s++)
        run->asked[s].tokens[at + 1] = run->chosen[s];
    return STATUS_OK;
}

/* Share of (head, digit) pairs whose slot is there. */
static double digits_kept(const struct probe_run *run, int s)
{
    const struct kv_evict *evict = kv_get_evict(run->cache);
    if (evict == NULL)
        return 1.0;
    const struct eviction *slots = kv_evict_slots(evict, run->batch[s].sequence);
    int kept = 0, first = run->asked[s].digits_at;
    for (int head = 0; head < slots->heads; head++)
        for (int slot = 0; slot < slots->held; slot++) {
            int token = slots->token[head * slots->options.budget + slot];
            kept += token >= first && token < first + PROBE_DIGITS;
        }
    return (double)kept / (double)(slots->heads * PROBE_DIGITS);
}

static void judge(const struct probe_run *run, struct probe_outcome *outcome)
{
    for (int s = 0; s < run->sequences; s++) {
        const struct asked *asked = &run->asked[s];
        bool right = true;
        for (int i = 0; i < PROBE_DIGITS; i++)
            right = right && asked->tokens[run->probe->tokens + i] == (unsigned char)asked->digits[i];
        outcome->right[asked->place] += right;
    }
}

static enum status ask(struct probe_run *run, struct probe_outcome *outcome, struct error *error)
{
    int tokens = run->probe->tokens;
    for (int at = 0; at < tokens; at++)
        if (step(run, at, at == tokens - 1, error) != STATUS_OK)
            return error->status;
    for (int s = 0; s < run->sequences; s++)
        outcome->kept_percent[run->asked[s].place] += 100.0 * digits_kept(run, s) / run->probe->count;
    for (int at = tokens; at < tokens + PROBE_DIGITS - 1; at++)
        if (step(run, at, true, error) != STATUS_OK)
            return error->status;
    judge(run, outcome);
    return STATUS_OK;
}

enum status probe_run(struct bench *bench, struct model *model, const struct text *text, const struct probe *probe,
                      struct probe_outcome *outcome, struct error *error)
{
    assert(probe->near_tokens >= PROBE_SHORTEST && probe->near_tokens <= last_asking(probe));
    struct probe_run run = {.bench = bench, .model = model, .probe = probe, .sequences = PROBE_PLACES * probe->count};
    *outcome = (struct probe_outcome){0};
    enum status status = run_init(&run, text, error);
    if (status == STATUS_OK)
        status = ask(&run, outcome, error);
    run_free(&run);
    return status;
}
