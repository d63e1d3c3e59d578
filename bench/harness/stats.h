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
   alike): y[rep * n + i]. The slope is the median over repetitions of each repetition's Theil-Sen slope (Sen 1968). Its
   interval lies between two order statistics of these slopes (stats_median_rank), so that one disturbed repetition does
   not widen it; that needs 6 repetitions. */
struct stats_line stats_fit_repeated(const double *x, const double *y, size_t n, size_t reps);

/* The rank r for which the r-th smallest and the r-th largest of n samples hold the median of what they are drawn from
   between them with at least 95 % probability, whatever the distribution: the largest r with
   P(Binomial(n, 1/2) < r) <= 2.5 %; 10 of 30; 0, none, for n < 6 (David & Nagaraja, Order Statistics, 7.1). */
size_t stats_median_rank(size_t n);

/* Two-sided 95 % point of Student's t (0.975 quantile) for degrees >= 1. */
double stats_t95(size_t degrees);

#endif
