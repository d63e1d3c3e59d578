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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles),     cmocka_unit_test(t_table),
        cmocka_unit_test(least_squares), cmocka_unit_test(three_points),
        cmocka_unit_test(exact_bytes),   cmocka_unit_test(two_points_have_no_interval),
        cmocka_unit_test(repeated),      cmocka_unit_test(one_disturbed_sample),
        cmocka_unit_test(median_ranks),  cmocka_unit_test(a_disturbed_repetition_does_not_widen_the_interval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
