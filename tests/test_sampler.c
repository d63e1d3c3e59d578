/* Choosing tokens: greedy, top-k, top-p, the seed, and the distribution that comes out. */
#include "engine/random.h"
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 5, DRAWS = 20000 };
/* Probabilities 0.4, 0.3, 0.2, 0.07, 0.03 at temperature 1, in an order that is not sorted. */
static const double probability[VOCAB] = {0.07, 0.4, 0.03, 0.3, 0.2};

static int32_t draw(struct sampler *sampler)
{
    float logits[VOCAB];
    int32_t scratch[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)log(probability[i]) + 3.0f;
    struct distribution distribution = {.share = logits, .ids = scratch};
    sampler_distribution(sampler, &distribution, VOCAB);
    return distribution_draw(&distribution, &sampler->state);
}

static void frequencies(struct sampler sampler, double share[VOCAB])
{
    memset(share, 0, VOCAB * sizeof *share);
    for (int i = 0; i < DRAWS; i++)
        share[draw(&sampler)] += 1.0 / DRAWS;
}

/* Five standard deviations of a share over DRAWS draws. */
static void assert_share(double share, double expected)
{
    double limit = 5.0 * sqrt(expected * (1.0 - expected) / DRAWS);
    if (fabs(share - expected) > limit)
        fail_msg("share %g, expected %g within %g", share, expected, limit);
}

static void greedy_takes_the_first_of_the_largest(void **state)
{
    (void)state;
    float logits[] = {1.0f, 7.0f, -2.0f, 7.0f};
    int32_t scratch[4];
    struct sampler greedy = {.top_p = 1.0f};
    struct distribution distribution = {.share = logits, .ids = scratch};
    sampler_distribution(&greedy, &distribution, 4);
    assert_int_equal(distribution.count, 1);
    assert_int_equal(distribution.ids[0], 1);
    assert_true(logits[1] == 1.0f && logits[3] == 0.0f);
}

static void temperature_one_draws_the_distribution(void **state)
{
    (void)state;
    double share[VOCAB];
    frequencies((struct sampler){.temperature = 1.0f, .top_p = 1.0f, .state = 1}, share);
    for (int i = 0; i < VOCAB; i++)
        assert_share(share[i], probability[i]);
}

static void temperature_sharpens(void **state)
{
    (void)state;
    double share[VOCAB], sum = 0.0;
    frequencies((struct sampler){.temperature = 0.5f, .top_p = 1.0f, .state = 2}, share);
    for (int i = 0; i < VOCAB; i++)
        sum += probability[i] * probability[i];
    for (int i = 0; i < VOCAB; i++)
        assert_share(share[i], probability[i] * probability[i] / sum);
}

static void top_k_keeps_the_k_largest(void **state)
{
    (void)state;
    double share[VOCAB];
    frequencies((struct sampler){.temperature = 1.0f, .top_k = 2, .top_p = 1.0f, .state = 3}, share);
    assert_share(share[1], 0.4 / 0.7);
    assert_share(share[3], 0.3 / 0.7);
    assert_true(share[0] == 0.0 && share[2] == 0.0 && share[4] == 0.0);
}

static void top_p_keeps_the_smallest_nucleus(void **state)
{
    (void)state;
    double share[VOCAB];
    /* 0.4 + 0.3 < 0.75 <= 0.4 + 0.3 + 0.2 */
    frequencies((struct sampler){.temperature = 1.0f, .top_p = 0.75f, .state = 4}, share);
    assert_share(share[1], 0.4 / 0.9);
    assert_share(share[3], 0.3 / 0.9);
    assert_share(share[4], 0.2 / 0.9);
    assert_true(share[0] == 0.0 && share[2] == 0.0);
    frequencies((struct sampler){.temperature = 1.0f, .top_p = 0.0f, .state = 4}, share);
    assert_true(share[1] == 1.0 || fabs(share[1] - 1.0) < 1e-9); /* never fewer than one */
}

static void the_seed_decides(void **state)
{
    (void)state;
    struct sampler a = {.temperature = 1.0f, .top_p = 1.0f, .state = 9}, b = a, c = a;
    c.state = 10;
    int differs = 0;
    for (int i = 0; i < 100; i++) {
        int32_t token = draw(&a);
        assert_int_equal(token, draw(&b));
        differs += token != draw(&c);
    }
    assert_true(differs > 0);
}

/* SplitMix64's published numbers for the seed 1234567. */
static void the_stream_is_splitmix64(void **state)
{
    (void)state;
    static const uint64_t known[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                     UINT64_C(9817491932198370423)};
    uint64_t stream = 1234567;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(random_next(&stream) == known[i]);
    for (int i = 0; i < 1000; i++) {
        double value = random_uniform(&stream);
        assert_true(value >= 0 && value < 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_stream_is_splitmix64),
        cmocka_unit_test(greedy_takes_the_first_of_the_largest),
        cmocka_unit_test(temperature_one_draws_the_distribution),
        cmocka_unit_test(temperature_sharpens),
        cmocka_unit_test(top_k_keeps_the_k_largest),
        cmocka_unit_test(top_p_keeps_the_smallest_nucleus),
        cmocka_unit_test(the_seed_decides),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
