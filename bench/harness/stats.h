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
   alike): y[rep * n + i]. The slope is the median over repetitions of each repetition's Theil-Sen slope (Sen 1968), its
   interval from Student's t over the repetitions' slopes, laid around that median; needs 3 repetitions for an interval.
   The intercept is the median of y - slope x; residual_max is taken at each x's median. */
struct stats_line stats_fit_repeated(const double *x, const double *y, size_t n, size_t reps);

/* Two-sided 95 % point of Student's t (0.975 quantile) for degrees >= 1. */
double stats_t95(size_t degrees);

#endif
