/* Which tokens a budget keeps, against the papers' rules taken literally: sets of tokens with what they got from every
   step, no slots. Attention is random, by head, step and token. */
#include "engine/eviction.h"
#include "engine/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 3, TOKENS = 160, MOST_BUDGET = 40, GROUP = 2 };
static struct error error;

/* What token number `token` gets of the query of token number `step`, before normalising: a few get much, as in a real
   head, and which these are changes slowly. */
static double raw_attention(uint64_t seed, int head, int step, int token)
{
    uint64_t state = seed * 1000003 + (uint64_t)head * 7919 + (uint64_t)token * 31;
    double lasting = random_uniform(&state);
    state ^= (uint64_t)step * UINT64_C(0x9e3779b97f4a7c15);
    return exp(6.0 * lasting) + 50.0 * random_uniform(&state);
}

/* The rule over sets: weight[step][token] of those in the set, 0 for the others. */
struct reference {
    struct eviction_options options;
    bool held[TOKENS];
    float weight[TOKENS][TOKENS]; /* summed over the group, as the device gives it */
    int size[TOKENS];             /* of the set, at each step */
};

static int size_of(const struct reference *r)
{
    int size = 0;
    for (int t = 0; t < TOKENS; t++)
        size += r->held[t];
    return size;
}

/* H2O, algorithm 1: F(token) = attention added up over all steps. */
static double accumulated(const struct reference *r, int token, int coming)
{
    double sum = 0.0;
    for (int step = token; step < coming; step++)
        sum += (double)r->weight[step][token];
    return sum;
}

/* Scissorhands, algorithm 2: in how many of the last `history` steps it got less than 1 / size. */
static int low_steps(const struct reference *r, int token, int coming)
{
    int low = 0, first = coming - r->options.history;
    for (int step = first > token ? first : token; step < coming; step++)
        low += r->weight[step][token] < (float)GROUP / (float)r->size[step];
    return low;
}

static double worth(const struct reference *r, int token, int coming)
{
    if (r->options.policy == EVICT_LIGHT_HITTERS)
        return accumulated(r, token, coming);
    return r->options.policy == EVICT_UNIMPORTANT ? -low_steps(r, token, coming) : token;
}

static void reference_make_room(struct reference *r, int coming)
{
    const struct eviction_options *options = &r->options;
    if (size_of(r) < options->budget)
        return;
    double value[TOKENS];
    for (int t = 0; t < coming; t++)
        value[t] = worth(r, t, coming);
    for (int i = 0; i < options->drop; i++) {
        int least = -1;
        for (int t = options->sinks; t <= coming - options->recent; t++)
            if (r->held[t] && (least < 0 || value[t] < value[least]))
                least = t;
        assert_true(least >= 0);
        r->held[least] = false;
    }
}

static void reference_add(struct reference *r, int token, uint64_t seed, int head)
{
    double sum = 0.0;
    r->held[token] = true;
    r->size[token] = size_of(r);
    for (int t = 0; t <= token; t++)
        sum += r->held[t] ? raw_attention(seed, head, token, t) : 0.0;
    for (int t = 0; t <= token; t++)
        r->weight[token][t] = r->held[t] ? (float)(GROUP * raw_attention(seed, head, token, t) / sum) : 0.0f;
}

/* ---- */

struct both {
    struct eviction eviction;
    struct reference reference[HEADS];
    int32_t stored[HEADS][MOST_BUDGET]; /* what the moves have made of the slots */
};

static void apply_moves(struct both *both, const int32_t *from, const int32_t *to)
{
    for (int i = 0; i < both->eviction.options.drop; i++)
        for (int h = 0; h < HEADS; h++) {
            int a = from[i * HEADS + h], b = to[i * HEADS + h];
            assert_true((a < 0) == (b < 0));
            if (a >= 0)
                both->stored[h][b] = both->stored[h][a];
        }
}

static void check_same_sets(const struct both *both, int token)
{
    const struct eviction *e = &both->eviction;
    for (int h = 0; h < HEADS; h++) {
        const struct reference *r = &both->reference[h];
        assert_int_equal(e->held, size_of(r));
        for (int slot = 0; slot < e->held; slot++) {
            int held = e->token[h * e->options.budget + slot];
            if (!r->held[held])
                fail_msg("token %d, head %d: %d is kept, by the paper's rule it is not", token, h, held);
            assert_int_equal(both->stored[h][slot], held);
        }
    }
    assert_int_equal(e->held + e->evicted, token + 1);
}

static void check_surely_held(const struct both *both, int token, bool *tight)
{
    int from = eviction_surely_from(&both->eviction.options, token);
    assert_in_range(from, 0, token);
    for (int h = 0; h < HEADS; h++) {
        for (int t = from; t <= token; t++)
            assert_true(both->reference[h].held[t]);
        *tight = *tight || (from > 0 && !both->reference[h].held[from - 1]);
    }
}

static void step(struct both *both, int token, uint64_t seed, bool *tight)
{
    struct eviction *e = &both->eviction;
    float mass[HEADS][MOST_BUDGET];
    int32_t from[MOST_BUDGET * HEADS], to[MOST_BUDGET * HEADS];
    for (int h = 0; h < HEADS; h++)
        reference_make_room(&both->reference[h], token);
    if (eviction_due(e) > 0) {
        eviction_drop(e, from, to, HEADS);
        apply_moves(both, from, to);
    }
    for (int h = 0; h < HEADS; h++) {
        reference_add(&both->reference[h], token, seed, h);
        both->stored[h][e->held] = token;
    }
    eviction_append(e);
    check_same_sets(both, token);
    check_surely_held(both, token, tight);
    for (int h = 0; h < HEADS; h++)
        for (int slot = 0; slot < e->held; slot++)
            mass[h][slot] = both->reference[h].weight[token][e->token[h * e->options.budget + slot]];
    float packed[HEADS * MOST_BUDGET];
    for (int h = 0; h < HEADS; h++)
        memcpy(packed + h * e->options.budget, mass[h], (size_t)e->options.budget * sizeof *packed);
    eviction_observe(e, packed, GROUP);
}

static void against_the_rule(struct eviction_options options, uint64_t seed)
{
    struct both *both = calloc(1, sizeof *both);
    bool tight = false;
    assert_non_null(both);
    assert_int_equal(eviction_init(&both->eviction, &options, HEADS, &error), STATUS_OK);
    for (int h = 0; h < HEADS; h++)
        both->reference[h].options = options;
    for (int token = 0; token < TOKENS; token++)
        step(both, token, seed, &tight);
    assert_true(tight); /* what is said to be sure is not said of too little */
    eviction_reset(&both->eviction);
    assert_int_equal(both->eviction.held + both->eviction.evicted, 0);
    eviction_free(&both->eviction);
    free(both);
}

static void heavy_hitters(void **state)
{
    (void)state;
    for (int budget = 2; budget <= MOST_BUDGET; budget += budget < 8 ? 1 : 11)
        for (uint64_t seed = 1; seed <= 3; seed++)
            against_the_rule(eviction_heavy(budget), seed);
}

static void persistence_of_importance(void **state)
{
    (void)state;
    for (int budget = 2; budget <= MOST_BUDGET; budget += budget < 8 ? 1 : 11)
        for (uint64_t seed = 1; seed <= 3; seed++)
            against_the_rule(eviction_persistent(budget), seed);
    struct eviction_options narrow = eviction_persistent(MOST_BUDGET);
    narrow.history = 5;
    narrow.recent = 3;
    against_the_rule(narrow, 4);
    struct eviction_options options = eviction_persistent(2000); /* the paper's settings */
    assert_int_equal(options.drop, 1000);
    assert_int_equal(options.history, 400);
    assert_int_equal(options.recent, 10);
}

static void the_newest_tokens_and_sinks(void **state)
{
    (void)state;
    for (int budget = 2; budget <= MOST_BUDGET; budget += 7)
        for (int sinks = 0; sinks <= 4 && sinks < budget - 1; sinks++)
            against_the_rule(eviction_recent(budget, sinks), 1);
}

/* Of four slots, two recent: tokens 0 and 1 have got 3.0 and 2.0 when token 4 comes, so 1 goes; 2 has got 5.0. */
static void a_case_by_hand(void **state)
{
    (void)state;
    struct eviction e;
    struct eviction_options options = eviction_heavy(4);
    int32_t from, to;
    static const float mass[4][4] = {{1.0f}, {0.5f, 0.5f}, {0.75f, 0.75f, 1.5f}, {0.75f, 0.75f, 3.5f, 1.0f}};
    assert_int_equal(options.recent, 2);
    assert_int_equal(eviction_init(&e, &options, 1, &error), STATUS_OK);
    for (int token = 0; token < 4; token++) {
        assert_int_equal(eviction_due(&e), 0);
        eviction_append(&e);
        eviction_observe(&e, mass[token], 1);
    }
    assert_int_equal(eviction_due(&e), 1);
    eviction_drop(&e, &from, &to, 1);
    assert_int_equal(from, 3); /* the last row fills the hole */
    assert_int_equal(to, 1);
    eviction_append(&e);
    static const int32_t kept[] = {0, 3, 2, 4};
    assert_memory_equal(e.token, kept, sizeof kept);
    assert_true(e.score[0] == 3.0 && e.score[1] == 1.0 && e.score[2] == 5.0 && e.score[3] == 0.0);
    assert_int_equal(e.evicted, 1);
    eviction_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heavy_hitters),
        cmocka_unit_test(persistence_of_importance),
        cmocka_unit_test(the_newest_tokens_and_sinks),
        cmocka_unit_test(a_case_by_hand),
    };
    return cmocka_run_group_tests_name("eviction", tests, NULL, NULL);
}
