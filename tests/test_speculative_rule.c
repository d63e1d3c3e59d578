/* The acceptance rule draws from the target's distribution, whatever the draft proposes; rules that look like it do
   not.

   One statistic judges all of them: a chi-square test of the joint frequencies of the first three tokens against the
   target's exact probabilities of all 64 sequences. The bound is passed by a right rule with a probability of one in a
   million (and the seeds are fixed). */
#include "tests/support.h"

#include "engine/random.h"
#include "engine/speculative.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 4, TOKENS = 3, SEQUENCES = VOCAB * VOCAB * VOCAB, PROMPT = 5, DRAWS = 20000 };
static const struct model_limits limits = {.max_rows = 16, .max_sequences = 1, .max_blocks = 1};
static const int32_t prompt[PROMPT] = {0, 3, 1, 2, 1};
static struct error error;

/* ---- the statistic ---- */

/* Sum of (seen - expected)^2 / expected; cells that expect fewer than 5 are taken together (Cochran 1954). A cell that
   expects none must have seen none. */
static double chi_square(const int *seen, const double *probability, int cells, int draws, int *degrees)
{
    double sum = 0.0, rest_expected = 0.0, rest_seen = 0.0;
    *degrees = -1;
    for (int i = 0; i < cells; i++) {
        double expected = probability[i] * draws;
        if (expected == 0.0 && seen[i] > 0)
            return INFINITY;
        if (expected < 5.0) {
            rest_expected += expected;
            rest_seen += seen[i];
            continue;
        }
        sum += (seen[i] - expected) * (seen[i] - expected) / expected;
        ++*degrees;
    }
    if (rest_expected >= 5.0) {
        sum += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        ++*degrees;
    }
    return sum;
}

/* Exceeded with a probability of 10^-6: 4.75 standard deviations of the cube root (Wilson & Hilferty 1931). */
static double chi_square_bound(int degrees)
{
    double variance = 2.0 / (9.0 * degrees), root = 1.0 - variance + 4.75 * sqrt(variance);
    return degrees * root * root * root;
}

/* ---- rules: the right one, and two that one might write instead ---- */

typedef int32_t rule(struct distribution *target, const struct distribution *draft, int32_t token, uint64_t *state,
                     bool *accepted);

static int32_t always_accept(struct distribution *target, const struct distribution *draft, int32_t token,
                             uint64_t *state, bool *accepted)
{
    (void)target;
    (void)draft;
    (void)state;
    *accepted = true;
    return token;
}

/* Draws anew from p where it should draw from what p has over q. */
static int32_t refuse_and_draw_again(struct distribution *target, const struct distribution *draft, int32_t token,
                                     uint64_t *state, bool *accepted)
{
    *accepted = random_uniform(state) * (double)draft->share[token] < (double)target->share[token];
    return *accepted ? token : distribution_draw(target, state);
}

/* ---- two models, and what they say after every sequence of up to two tokens ---- */

struct tables {
    float share[2][TOKENS][VOCAB * VOCAB][VOCAB]; /* target, draft; after so many tokens; after which */
};

struct place {
    struct test_model target;
    struct config draft_config;
    struct model draft;
    struct speculative_side sides[2];
};

static struct config small_config(int layers, int hidden)
{
    return (struct config){.name = "small",
                           .family = FAMILY_LLAMA,
                           .vocab_size = VOCAB,
                           .hidden_size = hidden,
                           .intermediate_size = 32,
                           .num_hidden_layers = layers,
                           .num_attention_heads = 2,
                           .num_key_value_heads = 1,
                           .head_dim = 8,
                           .max_position_embeddings = 64,
                           .rms_norm_eps = 1e-5,
                           .rope_theta = 10000.0,
                           .torch_dtype = DTYPE_F32};
}

static void open_side(struct speculative_side *side, struct model *model)
{
    struct kv_options options = {.policy = KV_RESERVED, .dtype = DTYPE_F32, .max_sequences = 1, .max_tokens = 16};
    side->model = model;
    check_ok(kv_open(&side->cache, model->ledger, model->config, &options, &error));
    check_ok(kv_sequence_open(side->cache, &side->sequence, &error));
}

static void place_open(struct place *place)
{
    struct config config = small_config(2, 32);
    struct weights weights = {0};
    *place = (struct place){.draft_config = small_config(1, 16)};
    test_model_open(&place->target, &config, DTYPE_F32, 1, &limits);
    check_ok(weights_synthetic(&weights, place->target.ledger, &place->draft_config, DTYPE_F32, 7, &error));
    check_ok(
        model_init(&place->draft, place->target.ledger, &place->draft_config, &weights, &limits, DTYPE_F32, &error));
    open_side(&place->sides[0], &place->target.model);
    open_side(&place->sides[1], &place->draft);
}

static void place_close(struct place *place)
{
    kv_close(place->sides[0].cache);
    kv_close(place->sides[1].cache);
    model_free(&place->draft);
    test_model_close(&place->target);
}

/* What `sampler` draws from after the prompt and `count` tokens, the base-4 digits of `after`. */
static void share_after(const struct place *place, int side, const struct sampler *sampler, int count, int after,
                        float *share)
{
    const struct speculative_side *at = &place->sides[side];
    int32_t tokens[PROMPT + TOKENS], ids[VOCAB];
    struct logits logits;
    memcpy(tokens, prompt, sizeof prompt);
    for (int i = 0; i < count; i++)
        tokens[PROMPT + i] = count == 2 && i == 0 ? after / VOCAB : after % VOCAB;
    check_ok(kv_truncate(at->cache, at->sequence, 0, &error));
    check_ok(logits_init(&logits, at->model->ledger, at->model->config, DTYPE_F32, 1, &error));
    check_ok(
        model_prefill(at->model, at->cache, at->sequence, tokens, PROMPT + count, LOGITS_LAST, 0, &logits, &error));
    float *values = test_download_logits(&place->target, &logits, 0, 1);
    struct distribution distribution = {values, ids, 0};
    sampler_distribution(sampler, &distribution, VOCAB);
    memcpy(share, values, VOCAB * sizeof *share);
    free(values);
    logits_free(&logits, at->model->ledger);
}

static void fill_tables(const struct place *place, const struct sampler *sampler, struct tables *tables)
{
    for (int side = 0; side < 2; side++)
        for (int count = 0, sequences = 1; count < TOKENS; count++, sequences *= VOCAB)
            for (int after = 0; after < sequences; after++)
                share_after(place, side, sampler, count, after, tables->share[side][count][after]);
}

static void joint_probability(const struct tables *tables, double *probability)
{
    for (int s = 0; s < SEQUENCES; s++)
        probability[s] = (double)tables->share[0][0][0][s / VOCAB / VOCAB] *
                         (double)tables->share[0][1][s / VOCAB / VOCAB][s / VOCAB % VOCAB] *
                         (double)tables->share[0][2][s / VOCAB][s % VOCAB];
}

/* ---- three tokens by the tables alone, each but the first proposed by the draft and judged by `judge` ---- */

static struct distribution table_row(const struct tables *tables, int side, int count, int after, float *share,
                                     int32_t *ids)
{
    memcpy(share, tables->share[side][count][after], VOCAB * sizeof *share);
    for (int i = 0; i < VOCAB; i++)
        ids[i] = i;
    return (struct distribution){share, ids, VOCAB};
}

static int sequence_by(rule *judge, const struct tables *tables, uint64_t *state)
{
    float p_share[VOCAB], q_share[VOCAB];
    int32_t p_ids[VOCAB], q_ids[VOCAB];
    struct distribution p = table_row(tables, 0, 0, 0, p_share, p_ids);
    int sequence = distribution_draw(&p, state);
    for (int count = 1; count < TOKENS; count++) {
        bool accepted;
        struct distribution q = table_row(tables, 1, count, sequence, q_share, q_ids);
        p = table_row(tables, 0, count, sequence, p_share, p_ids);
        sequence = sequence * VOCAB + judge(&p, &q, distribution_draw(&q, state), state, &accepted);
    }
    return sequence;
}

static double statistic_of(rule *judge, const struct tables *tables, int *degrees)
{
    int seen[SEQUENCES] = {0};
    double probability[SEQUENCES];
    uint64_t state = 2023;
    for (int i = 0; i < DRAWS; i++)
        seen[sequence_by(judge, tables, &state)]++;
    joint_probability(tables, probability);
    return chi_square(seen, probability, SEQUENCES, DRAWS, degrees);
}

/* ---- and by the engine ---- */

static int sequence_by_engine(const struct place *place, const struct sampler *sampler, uint64_t seed,
                              struct speculative_counts *counts)
{
    /* One token more than is looked at, so that in the first round too both others can be proposals. */
    struct speculative_options options = {
        .new_tokens = TOKENS + 1, .draft_tokens = 2, .sampler = *sampler, .stop_token = -1};
    struct speculative_result result;
    int32_t tokens[TOKENS + 1];
    options.sampler.state = seed;
    for (int side = 0; side < 2; side++)
        check_ok(kv_truncate(place->sides[side].cache, place->sides[side].sequence, 0, &error));
    check_ok(
        speculative_generate(&place->sides[0], &place->sides[1], &options, prompt, PROMPT, tokens, &result, &error));
    counts->judged += result.counts.judged;
    counts->accepted += result.counts.accepted;
    return (tokens[0] * VOCAB + tokens[1]) * VOCAB + tokens[2];
}

static double statistic_of_engine(const struct place *place, const struct sampler *sampler, const struct tables *tables,
                                  int *degrees)
{
    int seen[SEQUENCES] = {0};
    double probability[SEQUENCES];
    struct speculative_counts counts = {0};
    uint64_t state = 1;
    for (int i = 0; i < DRAWS; i++)
        seen[sequence_by_engine(place, sampler, random_next(&state), &counts)]++;
    assert_in_range(counts.accepted, counts.judged / 10, counts.judged - counts.judged / 10); /* both ways are taken */
    joint_probability(tables, probability);
    return chi_square(seen, probability, SEQUENCES, DRAWS, degrees);
}

static void check_sampler(const struct place *place, const struct sampler *sampler)
{
    struct tables tables;
    int degrees;
    fill_tables(place, sampler, &tables);
    double right = statistic_of(speculative_judge, &tables, &degrees), bound = chi_square_bound(degrees);
    if (!(right < bound))
        fail_msg("the rule: chi-square %g with %d degrees, the bound is %g", right, degrees, bound);
    rule *const wrong[] = {always_accept, refuse_and_draw_again};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        double caught = statistic_of(wrong[i], &tables, &degrees);
        if (!(caught > 2.0 * bound))
            fail_msg("wrong rule %zu passes: chi-square %g, the bound is %g", i, caught, bound);
    }
    double engine = statistic_of_engine(place, sampler, &tables, &degrees);
    if (!(engine < chi_square_bound(degrees)))
        fail_msg("the engine: chi-square %g with %d degrees, the bound is %g", engine, degrees,
                 chi_square_bound(degrees));
}

static void sampled_output_has_the_targets_distribution(void **state)
{
    (void)state;
    static const struct sampler samplers[] = {
        {.temperature = 1.0f, .top_p = 1.0f},
        {.temperature = 1.3f, .top_k = 3, .top_p = 1.0f},
        {.temperature = 0.8f, .top_p = 0.9f},
    };
    struct place place;
    place_open(&place);
    for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++)
        check_sampler(&place, &samplers[i]);
    place_close(&place);
}

/* ---- the rule by itself ---- */

static int32_t judge(const float *p_share, const float *q_share, int32_t token, uint64_t *state, bool *accepted)
{
    float p_values[VOCAB], q_values[VOCAB];
    int32_t ids[VOCAB] = {0, 1, 2, 3};
    memcpy(p_values, p_share, sizeof p_values);
    memcpy(q_values, q_share, sizeof q_values);
    struct distribution p = {p_values, ids, VOCAB}, q = {q_values, ids, VOCAB};
    return speculative_judge(&p, &q, token, state, accepted);
}

/* Accepted with min(1, p / q), else drawn from max(0, p - q): here token 1 with 1/3, and then 2 or 3 as 0.1 to 0.3. */
static void shares_of_acceptance_and_residual(void **state)
{
    (void)state;
    static const float p[VOCAB] = {0.2f, 0.2f, 0.2f, 0.4f}, q[VOCAB] = {0.2f, 0.6f, 0.1f, 0.1f};
    int kept = 0, drawn[VOCAB] = {0};
    uint64_t random = 3;
    for (int i = 0; i < DRAWS; i++) {
        bool accepted;
        int32_t token = judge(p, q, 1, &random, &accepted);
        assert_true(!accepted || token == 1);
        kept += accepted;
        drawn[token] += !accepted;
    }
    int degrees, refused = DRAWS - kept;
    double statistic = chi_square((int[2]){kept, refused}, (double[2]){1.0 / 3, 2.0 / 3}, 2, DRAWS, &degrees);
    assert_true(statistic < chi_square_bound(degrees));
    statistic = chi_square(drawn, (double[VOCAB]){0.0, 0.0, 0.25, 0.75}, VOCAB, refused, &degrees);
    assert_int_equal(degrees, 1);
    assert_true(statistic < chi_square_bound(degrees));
}

/* p >= q: always kept. p = q: kept whatever is drawn. p = 0: never. Both on one token: greedy decoding. */
static void certain_cases(void **state)
{
    (void)state;
    static const float p[VOCAB] = {0.5f, 0.5f, 0.0f, 0.0f}, q[VOCAB] = {0.25f, 0.25f, 0.5f, 0.0f};
    static const float one[VOCAB] = {0.0f, 1.0f, 0.0f, 0.0f}, another[VOCAB] = {0.0f, 0.0f, 0.0f, 1.0f};
    uint64_t random = 4;
    bool accepted;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(judge(p, q, i % 2, &random, &accepted), i % 2);
        assert_true(accepted);
        assert_in_range(judge(p, q, 2, &random, &accepted), 0, 1);
        assert_false(accepted);
        assert_int_equal(judge(q, q, i % 3, &random, &accepted), i % 3);
        assert_true(accepted);
        assert_int_equal(judge(one, one, 1, &random, &accepted), 1);
        assert_true(accepted);
        assert_int_equal(judge(one, another, 3, &random, &accepted), 1);
        assert_false(accepted);
    }
}

/* ---- what it lets one expect ---- */

static void assert_near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.12g, worked out by hand: %.12g", value, expected);
}

static void expectations_worked_out_by_hand(void **state)
{
    (void)state;
    assert_near(speculative_expected_tokens(0.8, 4), 3.3616); /* (1 - 0.8^5) / 0.2 */
    assert_near(speculative_expected_tokens(0.5, 2), 1.75);
    assert_near(speculative_expected_tokens(0.0, 7), 1.0);
    assert_near(speculative_expected_tokens(1.0, 7), 8.0);
    assert_near(speculative_expected_tokens(0.9, 0), 1.0);
    assert_near(speculative_expected_speedup(0.8, 4, 0.05, 1.0), 3.3616 / 1.2);
    assert_near(speculative_expected_speedup(0.8, 4, 0.05, 1.5), 3.3616 / 1.7);
    assert_near(speculative_break_even(1, 0.15), 0.15); /* 1 + a = 1 + c */
    assert_near(speculative_break_even(2, 0.375), 0.5); /* 1 + a + a^2 = 1.75 = 1 + 2 c */
    assert_near(speculative_break_even(3, 1.0), 1.0);
    assert_near(speculative_break_even(3, 2.0), 1.0);
    assert_true(speculative_break_even(0, 0.5) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_of_acceptance_and_residual),
        cmocka_unit_test(certain_cases),
        cmocka_unit_test(expectations_worked_out_by_hand),
        cmocka_unit_test(sampled_output_has_the_targets_distribution),
    };
    return cmocka_run_group_tests_name("speculative rule", tests, NULL, NULL);
}
