/* Statistics against values worked by hand, published tables and published data. */
#include "bench/harness/stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void assert_near(double value, double expected, double tolerance, const char *what)
{
    if (!(fabs(value - expected) <= tolerance))
        fail_msg("%s: %.12g, expected %.12g, error %.3g over %.3g", what, value, expected, fabs(value - expected),
                 tolerance);
}

/* Type 7: place q (n - 1) among the sorted samples, counted from 0, linear in between. */
static void quantiles(void **state)
{
    (void)state;
    const double samples[] = {4, 1, 3, 2}, one[] = {7};
    assert_near(stats_quantile(samples, 4, 0), 1, 0, "least");
    assert_near(stats_quantile(samples, 4, 0.25), 1.75, 1e-15, "quarter"); /* 0.75 of the way from 1 to 2 */
    assert_near(stats_quantile(samples, 4, 0.1), 1.3, 1e-15, "tenth");
    assert_near(stats_quantile(samples, 4, 0.9), 3.7, 1e-15, "nine tenths");
    assert_near(stats_quantile(samples, 4, 1), 4, 0, "largest");
    assert_near(stats_median(samples, 4), 2.5, 0, "median of four");
    assert_near(stats_median(samples, 3), 3, 0, "median of three");
    assert_near(stats_quantile(one, 1, 0.9), 7, 0, "of one");
    assert_near(samples[0], 4, 0, "the samples stay");
}

/* Two-sided 95 % points, as every textbook's table has them. */
static void t_table(void **state)
{
    (void)state;
    static const struct {
        size_t degrees;
        double t;
    } table[] = {{1, 12.7062}, {2, 4.30265},  {3, 3.18245},  {4, 2.77645},   {5, 2.57058},    {6, 2.44691},
                 {9, 2.26216}, {10, 2.22814}, {30, 2.04227}, {100, 1.98397}, {1000, 1.96234}, {1000000, 1.95997}};
    for (size_t i = 0; i < COUNT(table); i++)
        assert_near(stats_t95(table[i].degrees), table[i].t, 5e-5, "t");
}

/* Anscombe's first set (Anscombe 1973): y = 3.0001 + 0.5001 x, standard error of the slope 0.1179, t with 9 degrees. */
static void least_squares(void **state)
{
    (void)state;
    const double x[] = {10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5};
    const double y[] = {8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68};
    struct stats_line line = stats_fit_line(x, y, COUNT(x));
    assert_near(line.slope, 0.500091, 5e-7, "slope");
    assert_near(line.intercept, 3.000091, 5e-7, "intercept");
    assert_true(line.interval_known);
    assert_near(line.slope_high - line.slope, 2.26216 * 0.117906, 1e-5, "half interval");
    assert_near(line.slope - line.slope_low, line.slope_high - line.slope, 1e-12, "its other half");
    assert_near(line.residual_max, 1.921273, 1e-5, "largest residual"); /* at x = 13: 7.58 - 9.501273 */
}

/* Three points by hand: means 2 and 3, sxx = 2, sxy = 1, slope 1/2, residuals 1/2, -1, 1/2, so s^2 = 3/2 with one
 * degree. */
static void three_points(void **state)
{
    (void)state;
    struct stats_line line = stats_fit_line((double[]){1, 2, 3}, (double[]){3, 2, 4}, 3);
    assert_near(line.slope, 0.5, 1e-15, "slope");
    assert_near(line.intercept, 2, 1e-15, "intercept");
    assert_near(line.slope_high, 0.5 + 12.706205 * sqrt(1.5 / 2), 1e-5, "upper end");
    assert_near(line.residual_max, 1, 1e-15, "largest residual");
}

static void two_points_have_no_interval(void **state)
{
    (void)state;
    struct stats_line line = stats_fit_line((double[]){0, 4}, (double[]){1, 3}, 2);
    assert_near(line.slope, 0.5, 0, "slope");
    assert_false(line.interval_known);
}

/* Bytes of a cache are large whole numbers on an exact line: the slope must come out whole. */
static void exact_bytes(void **state)
{
    (void)state;
    const double x[] = {512, 1024, 2048, 4096, 8192};
    double y[COUNT(x)];
    for (size_t i = 0; i < COUNT(x); i++)
        y[i] = 28672 * x[i] + 3087428608.0;
    struct stats_line line = stats_fit_line(x, y, COUNT(x));
    assert_near(line.slope, 28672, 1e-9, "slope");
    assert_near(line.intercept, 3087428608.0, 1e-3, "intercept");
    assert_near(line.residual_max, 0, 1e-3, "residual");
}

/* x = 0, 1, 3. Repetition 1: y = 0, 1, 9: slopes 1, 3, 4, median 3. Repetition 2: 1, 3, 7: 2, 2, 2. Repetition 3: 0, 4,
   4: slopes 4, 4/3, 0, median 4/3. Median of 3, 2, 4/3 is 2; three repetitions have no interval, six one from their
   least to their largest slope. */
static void repeated(void **state)
{
    (void)state;
    const double x[] = {0, 1, 3}, y[] = {0, 1, 9, 1, 3, 7, 0, 4, 4};
    struct stats_line line = stats_fit_repeated(x, y, 3, 3);
    assert_near(line.slope, 2, 1e-15, "slope");
    assert_false(line.interval_known);
    /* y - 2x: 0, -1, 3, 1, 1, 1, 0, 2, -2: median 1. Medians of y at each x: 0, 3, 7; residuals -1, 0, 0. */
    assert_near(line.intercept, 1, 1e-15, "intercept");
    assert_near(line.residual_max, 1, 1e-15, "largest residual");
    line = stats_fit_repeated(x, y, 3, 2);
    assert_near(line.slope, 2.5, 1e-15, "slope of two repetitions");
    const double twice[] = {0, 1, 9, 1, 3, 7, 0, 4, 4, 0, 1, 9, 1, 3, 7, 0, 4, 4};
    line = stats_fit_repeated(x, twice, 3, 6);
    assert_true(line.interval_known);
    assert_near(line.slope_low, 4.0 / 3, 1e-15, "least slope");
    assert_near(line.slope_high, 3, 1e-15, "largest slope");
}

/* One disturbed sample in one repetition moves a least-squares line, and not this one. */
static void one_disturbed_sample(void **state)
{
    (void)state;
    const double x[] = {1, 2, 3, 4, 5};
    double y[25];
    for (size_t i = 0; i < 25; i++)
        y[i] = 10 + 0.25 * x[i % 5];
    y[9] = 1000;
    struct stats_line line = stats_fit_repeated(x, y, 5, 5);
    assert_near(line.slope, 0.25, 1e-12, "slope");
    assert_near(line.intercept, 10, 1e-12, "intercept");
}

/* Ranks from the table of the sign test's intervals (Conover, Practical Nonparametric Statistics, 3.2). */
static void median_ranks(void **state)
{
    (void)state;
    const size_t n[] = {1, 5, 6, 8, 9, 12, 20, 30, 100, 1000}, rank[] = {0, 0, 1, 1, 2, 3, 6, 10, 40, 469};
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        assert_int_equal(stats_median_rank(n[i]), rank[i]);
    assert_in_range(stats_median_rank(1001), 469, 470);
}

/* 30 repetitions around a slope of 1, one of them disturbed: the interval stays as narrow as the others are. */
static void a_disturbed_repetition_does_not_widen_the_interval(void **state)
{
    (void)state;
    const double x[] = {1, 2, 3};
    double y[90];
    for (size_t rep = 0; rep < 30; rep++)
        for (size_t i = 0; i < 3; i++)
            y[rep * 3 + i] = x[i] * (rep == 7 ? 1e6 : 1 + 0.001 * (double)rep);
    struct stats_line line = stats_fit_repeated(x, y, 3, 30);
    assert_true(line.slope_low > 1.005 && line.slope_high < 1.025);
}

/* Pairs count by their distance: of x = 0, 1, 2, 10 the pairs lie 1, 2, 10, 1, 9 and 8 apart, 31 in all. y: slopes 5,
   0, 1, -5, 5/9 and 5/4; in order -5 (1), 0 (2), 5/9 (9), 1 (10): past half of 31 with it. Unweighted: (5/9 + 1) / 2.
 */
static void distant_pairs_count_more(void **state)
{
    (void)state;
    struct stats_line line = stats_fit_repeated((double[]){0, 1, 2, 10}, (double[]){0, 5, 0, 10}, 4, 1);
    assert_near(line.slope, 1, 1e-15, "slope");
    /* 0, 1, 2, 3 with y = 0, 0, 3, 3: slopes 0 (1), 0 (1), 1 (3), 3/2 (2), 3/2 (2), 3 (1): half of 10 ends with the 1.
     */
    line = stats_fit_repeated((double[]){0, 1, 2, 3}, (double[]){0, 0, 3, 3}, 4, 1);
    assert_near(line.slope, 1.25, 1e-15, "slope between two");
}

static void median_intervals(void **state)
{
    (void)state;
    const double samples[] = {7, 3, 9, 1, 5, 8, 2, 6, 4};
    struct stats_interval interval = stats_median_interval(samples, 9); /* rank 2 */
    assert_true(interval.known);
    assert_near(interval.middle, 5, 0, "middle");
    assert_near(interval.low, 2, 0, "low");
    assert_near(interval.high, 8, 0, "high");
    interval = stats_median_interval(samples, 5);
    assert_false(interval.known);
    assert_near(interval.middle, 5, 0, "middle of five");
    assert_near(interval.low, 5, 0, "low of five");
}

static const struct stats_rule rule = {.least = 8, .most = 90, .half_width = 10, .limit_ms = 1000};

static enum stats_verdict verdict(double half_width, size_t reps, double spent_ms)
{
    struct stats_interval interval = {50, 50 - half_width, 50 + half_width, true};
    return stats_judge(&rule, &interval, reps, spent_ms);
}

static void the_rule_at_its_boundaries(void **state)
{
    (void)state;
    assert_int_equal(verdict(0, 7, 0), STATS_GO_ON);      /* too few, however narrow */
    assert_int_equal(verdict(0, 7, 1e6), STATS_GO_ON);    /* and however long they take */
    assert_int_equal(verdict(10, 8, 0), STATS_NARROW);    /* the width itself is narrow enough */
    assert_int_equal(verdict(10.001, 8, 0), STATS_GO_ON); /* and no more */
    assert_int_equal(verdict(20, 8, 999), STATS_GO_ON);
    assert_int_equal(verdict(20, 8, 1000), STATS_OUT_OF_TIME);
    assert_int_equal(verdict(10, 8, 1000), STATS_NARROW);
    assert_int_equal(verdict(20, 89, 0), STATS_GO_ON);
    assert_int_equal(verdict(20, 90, 1e6), STATS_MOST);
    assert_int_equal(verdict(10, 90, 0), STATS_NARROW);
    struct stats_interval unknown = {50, 50, 50, false}, upwards = {1e9, 1e9 - 10, 1e9 + 10, true};
    assert_int_equal(stats_judge(&rule, &unknown, 8, 0), STATS_GO_ON);
    assert_int_equal(stats_judge(&rule, &upwards, 8, 0), STATS_NARROW); /* where it lies does not matter */
    struct stats_rule given = {.least = 3, .most = 3}, endless = {.least = 8, .most = 90};
    assert_int_equal(stats_judge(&given, &unknown, 2, 1e6), STATS_GO_ON);
    assert_int_equal(stats_judge(&given, &unknown, 3, 0), STATS_MOST);
    unknown.known = true; /* no width at all, and a rule that calls none narrow */
    assert_int_equal(stats_judge(&endless, &unknown, 8, 1e12), STATS_GO_ON);
    assert_int_equal(stats_judge(&endless, &unknown, 90, 0), STATS_MOST);
}

/* A narrow interval is only looked for at 8, 12, 18, 27, 40, 60 and 90 repetitions. */
static void the_rule_looks_seldom(void **state)
{
    (void)state;
    static const size_t looks[] = {8, 12, 18, 27, 40, 60, 90};
    size_t next = 0;
    for (size_t reps = 1; reps <= 90; reps++) {
        bool looked = verdict(1, reps, 0) == STATS_NARROW;
        assert_int_equal(looked, reps == looks[next]);
        next += looked;
    }
    struct stats_rule single = {.least = 1, .most = 4, .half_width = 1};
    assert_int_equal(stats_judge(&single, &(struct stats_interval){1, 1, 1, true}, 2, 0), STATS_NARROW);
}

/* Repetitions of a line of slope 100 with noise of the given spread, until the rule stops. */
static enum stats_verdict repeat(double spread, size_t *reps)
{
    const double x[] = {0, 1, 2};
    double y[90 * 3], random = 0.5;
    enum stats_verdict stopped = STATS_GO_ON;
    for (*reps = 0; stopped == STATS_GO_ON; ++*reps) {
        if (*reps > 0) {
            struct stats_line line = stats_fit_repeated(x, y, 3, *reps);
            struct stats_interval slope = {line.slope, line.slope_low, line.slope_high, line.interval_known};
            stopped = stats_judge(&rule, &slope, *reps, 0);
        }
        for (size_t i = 0; stopped == STATS_GO_ON && i < 3; i++) {
            random = fmod(random * 16807 + 0.1234567, 1);
            y[*reps * 3 + i] = 100 * x[i] + spread * (random - 0.5);
        }
    }
    --*reps;
    return stopped;
}

static void quiet_data_stop_early_and_noisy_ones_late(void **state)
{
    (void)state;
    size_t quiet, noisy, between;
    assert_int_equal(repeat(1, &quiet), STATS_NARROW);
    assert_int_equal(quiet, 8);
    assert_int_equal(repeat(1000, &noisy), STATS_MOST);
    assert_int_equal(noisy, 90);
    assert_int_equal(repeat(60, &between), STATS_NARROW);
    assert_in_range(between, 9, 89);
}

/* Of what the rule may take, the part that comes first to its end: time only where that many repetitions are enough. */
static void done_of_a_rule(void **state)
{
    (void)state;
    assert_near(stats_rule_done(&rule, 0, 0), 0, 0, "nothing");
    assert_near(stats_rule_done(&rule, 45, 100), 0.5, 0, "half of the repetitions");
    assert_near(stats_rule_done(&rule, 9, 700), 0.7, 0, "most of the time");
    assert_near(stats_rule_done(&rule, 2, 900), 0.25, 0, "a quarter of the least");
    assert_near(stats_rule_done(&rule, 8, 5000), 1, 0, "the least, and more than the time");
    assert_near(stats_rule_done(&(struct stats_rule){.least = 30, .most = 30}, 15, 1e9), 0.5, 0, "half of those given");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles),
        cmocka_unit_test(t_table),
        cmocka_unit_test(least_squares),
        cmocka_unit_test(three_points),
        cmocka_unit_test(exact_bytes),
        cmocka_unit_test(two_points_have_no_interval),
        cmocka_unit_test(repeated),
        cmocka_unit_test(one_disturbed_sample),
        cmocka_unit_test(median_ranks),
        cmocka_unit_test(a_disturbed_repetition_does_not_widen_the_interval),
        cmocka_unit_test(distant_pairs_count_more),
        cmocka_unit_test(median_intervals),
        cmocka_unit_test(the_rule_at_its_boundaries),
        cmocka_unit_test(the_rule_looks_seldom),
        cmocka_unit_test(quiet_data_stop_early_and_noisy_ones_late),
        cmocka_unit_test(done_of_a_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
