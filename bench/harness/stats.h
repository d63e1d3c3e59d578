/* Statistics of repeated measurements. Pure functions over arrays; nothing here measures or prints. */
#ifndef KVLAB_BENCH_HARNESS_STATS_H
#define KVLAB_BENCH_HARNESS_STATS_H

#include <stdbool.h>
#include <stddef.h>

enum { STATS_MIN_SPREAD_SAMPLES = 5 }; /* fewer have no p10/p90 */

/* The q-quantile, 0 <= q <= 1, of n > 0 samples in any order: linear interpolation between order statistics (type 7 of
   Hyndman & Fan 1996). The samples are left as they are. */
double stats_quantile(const double *samples, size_t n, double q);
double stats_median(const double *samples, size_t n);

/* A straight line y = intercept + slope x. */
struct stats_line {
    double slope, intercept;
    double slope_low, slope_high; /* 95 % interval of the slope */
    double residual_max;          /* largest |y - line| */
    bool interval_known;          /* false with too few points for one */
};

/* Ordinary least squares over n >= 2 points with at least two different x; interval from Student's t, n - 2 degrees. */
struct stats_line stats_fit_line(const double *x, const double *y, size_t n);

/* The same line measured `reps` times, every repetition visiting all `n` values of x (so that drift hits all of them
   alike): y[rep * n + i]. The slope is the median over repetitions of each repetition's Theil-Sen slope (Sen 1968), in
   which a pair counts by its distance in x (Sievers 1978): of x = 128, 256, ..., 8192 most pairs lie close together and
   say little. Its interval is that of a median (stats_median_interval), so that one disturbed repetition does not widen
   it; that needs 6 repetitions. */
struct stats_line stats_fit_repeated(const double *x, const double *y, size_t n, size_t reps);

/* The rank r for which the r-th smallest and the r-th largest of n samples hold the median of what they are drawn from
   between them with at least 95 % probability, whatever the distribution: the largest r with
   P(Binomial(n, 1/2) < r) <= 2.5 %; 10 of 30; 0, none, for n < 6 (David & Nagaraja, Order Statistics, 7.1). */
size_t stats_median_rank(size_t n);

/* A median with its 95 % interval, from order statistics of that rank. */
struct stats_interval {
    double middle, low, high;
    bool known; /* false, and low = high = middle, for fewer than 6 samples */
};
struct stats_interval stats_median_interval(const double *samples, size_t n);

/* ---- How often to repeat

   The rule sees how wide the interval is and never where it lies: to stop once a value looks right would prefer
   repetitions that happen to make it so. For the same reason what counts as narrow is fixed before the first
   repetition, and not a share of the value found. An interval that is looked at often enough is narrow by chance at
   some point, so the rule looks at few: at `least` repetitions, and then after half as many more each time (8, 12, 18,
   27, 40, 60), and at `most`. With that the interval of 95 % held the true value in 94 to 99 % of simulated runs (not
   kept): samples normal, heavy-tailed, skewed, or one in five of them spread twenty times as far; looked at every time,
   in 92
   %. */
struct stats_rule {
    size_t least, most; /* repetitions */
    double half_width;  /* of the interval, in the value's unit: this or less is narrow; 0 or less: nothing is */
    double limit_ms;    /* no new repetition after `least` of them once so much is spent; 0: none */
};
enum stats_verdict { STATS_GO_ON, STATS_NARROW, STATS_MOST, STATS_OUT_OF_TIME };
enum stats_verdict stats_judge(const struct stats_rule *rule, const struct stats_interval *so_far, size_t reps,
                               double spent_ms);
/* Of the repetitions that the rule may take, or of their time, how much is done: 0 to 1, for the time left. */
double stats_rule_done(const struct stats_rule *rule, size_t reps, double spent_ms);

/* Two-sided 95 % point of Student's t (0.975 quantile) for degrees >= 1. */
double stats_t95(size_t degrees);

#endif
