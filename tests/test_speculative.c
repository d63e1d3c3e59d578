/* Speculative decoding: greedy output is the target's own token by token, sampled output has the target's distribution;
   caches hold what was accepted, and nothing more. (The rule's statistics: tests/test_speculative_rule.c.)

   Drafts of three kinds are tried on each random target: another random model, which is hardly ever right; the target's
   own weights rounded to bf16, which is mostly right; and the target itself, which always is. In f32 a near tie could
   tip between a pass of one row and one of several (see tests/test_forward.c); the seeds here have none. */
#include "tests/support.h"

#include "engine/generate.h"
#include "engine/random.h"
#include "engine/speculative.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 96, MOST_DRAFTS = 8 };
static const struct model_limits limits = {.max_rows = ROOM, .max_sequences = 1, .max_blocks = ROOM};
static struct error error;

/* Less of it where every thread of a kernel is a fiber (tests/standin). */
static bool simulated(void)
{
    const char *device = getenv("KVLAB_TEST_DEVICE");
    return device != NULL && strcmp(device, "cpu") != 0;
}

static int models(void)
{
    return simulated() ? 1 : 8;
}

/* A target, and a draft on the same ledger. */
struct pair {
    struct test_model target;
    struct config draft_config;
    struct model draft;
    struct speculative_side sides[2]; /* target, draft */
    int32_t *prompt;
    int prompt_tokens;
};

enum draft_kind { OTHER_MODEL, ROUNDED, ITSELF, DRAFT_KINDS };

static void open_side(struct speculative_side *side, struct model *model, enum kv_policy policy, int max_tokens)
{
    struct kv_options options = {.policy = policy,
                                 .dtype = model->weights.dtype,
                                 .max_sequences = 1,
                                 .block_size = 5,
                                 .max_tokens = max_tokens,
                                 .pool_blocks = (max_tokens + 4) / 5};
    side->model = model;
    check_ok(kv_open(&side->cache, model->ledger, model->config, &options, &error));
    check_ok(kv_sequence_open(side->cache, &side->sequence, &error));
}

static void open_draft(struct pair *pair, const struct config *config, enum dtype dtype, uint64_t seed)
{
    struct weights weights = {0};
    pair->draft_config = *config;
    check_ok(weights_synthetic(&weights, pair->target.ledger, &pair->draft_config, dtype, seed, &error));
    check_ok(model_init(&pair->draft, pair->target.ledger, &pair->draft_config, &weights, &limits, dtype, &error));
}

static void pair_open(struct pair *pair, enum draft_kind kind, enum kv_policy policy, uint64_t *random)
{
    struct config config = test_random_config(random), other = test_random_config(random);
    *pair = (struct pair){.prompt_tokens = test_random(random, 1, 20)};
    test_model_open(&pair->target, &config, DTYPE_F32, 1, &limits);
    other.vocab_size = config.vocab_size;
    open_draft(pair, kind == OTHER_MODEL ? &other : &config, kind == ROUNDED ? DTYPE_BF16 : DTYPE_F32, 1);
    open_side(&pair->sides[0], &pair->target.model, policy, ROOM);
    open_side(&pair->sides[1], &pair->draft, policy, ROOM);
    pair->prompt = test_tokens(&config, pair->prompt_tokens, random_next(random));
}

static void pair_close(struct pair *pair)
{
    kv_close(pair->sides[0].cache);
    kv_close(pair->sides[1].cache);
    model_free(&pair->draft);
    free(pair->prompt);
    test_model_close(&pair->target); /* nothing is left in the ledger */
}

static void empty(const struct pair *pair)
{
    for (int i = 0; i < 2; i++)
        check_ok(kv_truncate(pair->sides[i].cache, pair->sides[i].sequence, 0, &error));
}

/* What the target says alone; returns how many tokens. */
static int plain(const struct pair *pair, const struct speculative_options *options, int32_t *tokens)
{
    const struct speculative_side *target = &pair->sides[0];
    struct generate_options alone = {.new_tokens = options->new_tokens,
                                     .use_cache = true,
                                     .sampler = options->sampler,
                                     .stop_token = options->stop_token};
    struct generate_result result;
    empty(pair);
    check_ok(generate(target->model, target->cache, target->sequence, pair->prompt, pair->prompt_tokens, &alone, tokens,
                      &result, &error));
    return result.count;
}

static struct speculative_result together(const struct pair *pair, const struct speculative_options *options,
                                          int32_t *tokens)
{
    struct speculative_result result;
    empty(pair);
    check_ok(speculative_generate(&pair->sides[0], &pair->sides[1], options, pair->prompt, pair->prompt_tokens, tokens,
                                  &result, &error));
    return result;
}

static void assert_tokens(const int32_t *tokens, int count, const int32_t *expected, int expected_count, int drafts)
{
    if (count != expected_count)
        fail_msg("%d proposed a round: %d tokens, the target alone gives %d", drafts, count, expected_count);
    for (int i = 0; i < count; i++)
        if (tokens[i] != expected[i])
            fail_msg("%d proposed a round: token %d is %d, the target alone says %d", drafts, i, tokens[i],
                     expected[i]);
}

/* ---- greedy ---- */

static void greedy_output_is_the_targets(void **state)
{
    (void)state;
    uint64_t random = 31;
    int64_t judged[DRAFT_KINDS] = {0}, accepted[DRAFT_KINDS] = {0};
    for (int i = 0; i < models() * DRAFT_KINDS; i++) {
        struct pair pair;
        int32_t expected[ROOM], tokens[ROOM];
        enum draft_kind kind = (enum draft_kind)(i % DRAFT_KINDS);
        pair_open(&pair, kind, (enum kv_policy)(i % 4 % 3), &random);
        struct speculative_options options = {.new_tokens = test_random(&random, 1, simulated() ? 20 : 60),
                                              .stop_token = -1};
        int count = plain(&pair, &options, expected);
        for (int drafts = 0; drafts <= MOST_DRAFTS; drafts += simulated() ? 3 : 1 + drafts / 3) {
            options.draft_tokens = drafts;
            struct speculative_result result = together(&pair, &options, tokens);
            assert_tokens(tokens, result.count, expected, count, drafts);
            assert_int_equal(result.counts.target_passes + result.counts.accepted, count - 1);
            judged[kind] += result.counts.judged;
            accepted[kind] += result.counts.accepted;
        }
        pair_close(&pair);
    }
    /* Both ways through a round have been taken: refusals, and whole proposals accepted. */
    assert_int_equal(accepted[ITSELF], judged[ITSELF]);
    if (simulated())
        return;
    assert_true(accepted[OTHER_MODEL] < judged[OTHER_MODEL] / 2);
    assert_true(accepted[ROUNDED] > judged[ROUNDED] / 2 && accepted[ROUNDED] < judged[ROUNDED]);
}

/* With itself as the draft every proposal stands: each pass gives k + 1 tokens, the last one the rest. */
static void a_draft_that_is_always_right(void **state)
{
    (void)state;
    enum { NEW = 30 };
    uint64_t random = 12;
    struct pair pair;
    int32_t tokens[NEW];
    pair_open(&pair, ITSELF, KV_RESERVED, &random);
    for (int drafts = 1; drafts <= MOST_DRAFTS; drafts += simulated() ? 4 : 1) {
        struct speculative_options options = {.new_tokens = NEW, .draft_tokens = drafts, .stop_token = -1};
        struct speculative_counts counts = together(&pair, &options, tokens).counts;
        int passes = (NEW - 1 + drafts) / (drafts + 1);
        assert_int_equal(counts.target_passes, passes);
        assert_int_equal(counts.proposed, NEW - 1 - passes);
        assert_int_equal(counts.accepted, NEW - 1 - passes);
    }
    pair_close(&pair);
}

/* After every round: at least one token and at most k + 1, and caches without anything that was refused. */
static void caches_hold_what_was_accepted(void **state)
{
    (void)state;
    uint64_t random = 41;
    for (int i = 0; i < models() * DRAFT_KINDS; i++) {
        struct pair pair;
        struct speculative s;
        pair_open(&pair, (enum draft_kind)(i % DRAFT_KINDS), (enum kv_policy)(i % 4 % 3), &random);
        struct speculative_options options = {.new_tokens = simulated() ? 12 : 40,
                                              .draft_tokens = test_random(&random, 1, MOST_DRAFTS),
                                              .stop_token = -1,
                                              .sampler = {i % 2 ? 1.0f : 0.0f, 0, 1.0f, random}};
        check_ok(
            speculative_init(&s, &pair.sides[0], &pair.sides[1], &options, pair.prompt, pair.prompt_tokens, &error));
        check_ok(speculative_prefill(&s, &error));
        assert_int_equal(s.known, pair.prompt_tokens + 1);
        uint64_t allocations = ledger_counts(pair.target.ledger).allocations;
        while (!speculative_done(&s)) {
            int known = s.known;
            int64_t accepted = s.counts.accepted;
            check_ok(speculative_round(&s, &error));
            assert_int_equal(s.known - known, s.counts.accepted - accepted + 1);
            assert_in_range(s.known - known, 1, options.draft_tokens + 1);
            int target = kv_length(pair.sides[0].cache, 0), draft = kv_length(pair.sides[1].cache, 0);
            assert_int_equal(target, s.known - 1);
            bool whole = s.known - known == options.draft_tokens + 1;
            if (!speculative_done(&s))
                assert_int_equal(draft, s.known - 1 - whole);
        }
        if (kv_get_options(pair.sides[0].cache)->policy != KV_EXACT)
            assert_int_equal(ledger_counts(pair.target.ledger).allocations, allocations);
        speculative_free(&s);
        pair_close(&pair);
    }
}

/* A stop token in the middle of what a round accepts ends the output there; the cache is as without a draft. */
static void a_stop_token_ends_it_anywhere(void **state)
{
    (void)state;
    enum { NEW = 24 };
    uint64_t random = 51;
    for (int i = 0; i < DRAFT_KINDS; i++) {
        struct pair pair;
        int32_t expected[NEW], tokens[NEW];
        pair_open(&pair, (enum draft_kind)i, KV_PAGED, &random);
        struct speculative_options options = {.new_tokens = NEW, .draft_tokens = 4, .stop_token = -1};
        plain(&pair, &options, expected);
        for (int at = 0; at < NEW; at += simulated() ? 11 : 1) {
            int32_t alone[NEW];
            options.stop_token = expected[at];
            int count = plain(&pair, &options, alone), length = kv_length(pair.sides[0].cache, 0);
            struct speculative_result result = together(&pair, &options, tokens);
            assert_tokens(tokens, result.count, alone, count, options.draft_tokens);
            assert_int_equal(tokens[result.count - 1], options.stop_token);
            assert_int_equal(kv_length(pair.sides[0].cache, 0), length);
        }
        pair_close(&pair);
    }
}

/* ---- sampled ---- */

/* Without proposals the random stream is the plain one, and so are the tokens; top_k 1 leaves nothing to chance. */
static void sampling_that_must_give_the_same_tokens(void **state)
{
    (void)state;
    enum { NEW = 32 };
    uint64_t random = 61;
    for (int i = 0; i < DRAFT_KINDS; i++) {
        struct pair pair;
        int32_t expected[NEW], tokens[NEW];
        pair_open(&pair, (enum draft_kind)i, KV_RESERVED, &random);
        struct speculative_options options = {
            .new_tokens = NEW, .stop_token = -1, .sampler = {.temperature = 0.9f, .top_p = 0.95f, .state = random}};
        plain(&pair, &options, expected);
        struct speculative_result result = together(&pair, &options, tokens);
        assert_tokens(tokens, result.count, expected, NEW, 0);
        assert_int_equal(result.counts.proposed, 0);

        options.sampler.top_k = 1;
        options.draft_tokens = 5;
        plain(&pair, &options, expected);
        assert_tokens(tokens, together(&pair, &options, tokens).count, expected, NEW, 5);
        pair_close(&pair);
    }
}

/* ---- limits and bad input ---- */

/* A draft made for 30 positions proposes nothing past them; the target goes on alone. */
static void past_the_drafts_context_decoding_goes_on(void **state)
{
    (void)state;
    enum { NEW = 60, CONTEXT = 30 };
    uint64_t random = 71;
    int32_t expected[NEW], tokens[NEW];
    struct pair pair;
    pair_open(&pair, ITSELF, KV_RESERVED, &random);
    struct speculative_options options = {.new_tokens = NEW, .draft_tokens = 3, .stop_token = -1};
    plain(&pair, &options, expected);
    pair.draft_config.max_position_embeddings = CONTEXT;
    struct speculative_result result = together(&pair, &options, tokens);
    assert_tokens(tokens, result.count, expected, NEW, 3);
    assert_in_range(kv_length(pair.sides[1].cache, 0), CONTEXT - 3, CONTEXT);
    assert_int_equal(result.counts.target_passes + result.counts.accepted, NEW - 1);

    pair.draft_config.max_position_embeddings = pair.prompt_tokens; /* nothing fits beside the prompt */
    result = together(&pair, &options, tokens);
    assert_tokens(tokens, result.count, expected, NEW, 3);
    assert_int_equal(result.counts.proposed, 0);
    pair_close(&pair);
}

static void refuses(const struct pair *pair, const struct speculative_options *options, enum status status,
                    const char *words[2])
{
    struct speculative_result result;
    int32_t tokens[ROOM + 1];
    empty(pair);
    assert_int_equal(speculative_generate(&pair->sides[0], &pair->sides[1], options, pair->prompt, pair->prompt_tokens,
                                          tokens, &result, &error),
                     status);
    for (int i = 0; i < 2; i++)
        if (strstr(error.message, words[i]) == NULL)
            fail_msg("\"%s\" is not in: %s", words[i], error.message);
}

static void what_cannot_be_done_is_refused(void **state)
{
    (void)state;
    uint64_t random = 81;
    struct pair pair;
    char sizes[2][32];
    pair_open(&pair, OTHER_MODEL, KV_RESERVED, &random);
    struct speculative_options options = {.new_tokens = 8, .draft_tokens = ROOM, .stop_token = -1};
    refuses(&pair, &options, STATUS_INPUT, (const char *[2]){"97 rows", "allow 96"});
    options = (struct speculative_options){.new_tokens = ROOM + 1, .draft_tokens = 2, .stop_token = -1};
    refuses(&pair, &options, STATUS_DEVICE, (const char *[2]){"96", "tokens"});

    options.new_tokens = 8;
    pair.draft_config.vocab_size++;
    snprintf(sizes[0], sizeof sizes[0], "vocabulary of %d", (int)pair.draft_config.vocab_size);
    snprintf(sizes[1], sizeof sizes[1], "one of %d", (int)pair.target.config.vocab_size);
    refuses(&pair, &options, STATUS_INPUT, (const char *[2]){sizes[0], sizes[1]});
    pair.draft_config.vocab_size--;
    pair_close(&pair);
}

/* NaN or infinity in either model gives no token. */
static void logits_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY};
    for (int i = 0; i < 8; i++) {
        uint64_t random = 91;
        struct pair pair;
        bool in_draft = i / 2 % 2, drawn = i / 4;
        pair_open(&pair, OTHER_MODEL, KV_RESERVED, &random);
        const struct model *model = in_draft ? &pair.draft : &pair.target.model;
        struct device *device = pair.target.device;
        check_ok(device->ops->fill_value(device, (void *)(uintptr_t)model->weights.head, DTYPE_F32,
                                         (size_t)(model->config->vocab_size * model->config->hidden_size),
                                         values[i % 2], &error));
        struct speculative_options options = {
            .new_tokens = 4, .draft_tokens = 2, .stop_token = -1, .sampler = {drawn ? 1.0f : 0.0f, 0, 1.0f, 1}};
        refuses(&pair, &options, STATUS_INPUT, (const char *[2]){"not finite", model->config->name});
        pair_close(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_output_is_the_targets),
        cmocka_unit_test(a_draft_that_is_always_right),
        cmocka_unit_test(caches_hold_what_was_accepted),
        cmocka_unit_test(a_stop_token_ends_it_anywhere),
        cmocka_unit_test(sampling_that_must_give_the_same_tokens),
        cmocka_unit_test(past_the_drafts_context_decoding_goes_on),
        cmocka_unit_test(what_cannot_be_done_is_refused),
        cmocka_unit_test(logits_that_are_not_finite_are_refused),
    };
    return cmocka_run_group_tests_name("speculative", tests, NULL, NULL);
}
