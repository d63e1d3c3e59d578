#include "bench/harness/stats.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile_of_sorted(const double *sorted, size_t n, double q)
{
    double place = q * (double)(n - 1);
    size_t below = (size_t)place;
    if (below + 1 >= n)
        return sorted[n - 1];
    return sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
}

/* Sorts `samples` themselves. */
static double median_in_place(double *samples, size_t n)
{
    qsort(samples, n, sizeof *samples, ascending);
    return quantile_of_sorted(samples, n, 0.5);
}

/* Statistics have no way to fail: without memory for a copy of the samples, the answer is "not a number". */
double stats_quantile(const double *samples, size_t n, double q)
{
    assert(n > 0 && q >= 0 && q <= 1);
    double *sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return NAN;
    memcpy(sorted, samples, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    double value = quantile_of_sorted(sorted, n, q);
    free(sorted);
    return value;
}

double stats_median(const double *samples, size_t n)
{
    return stats_quantile(samples, n, 0.5);
}

/* P(|T| <= t) for whole degrees of freedom: finite series, exact            (Abramowitz & Stegun 1964, 26.7.3, 26.7.4)
 */
static double t_within(double t, size_t degrees)
{
    double theta = atan(t / sqrt((double)degrees)), sine = sin(theta), cosine = cos(theta), square = cosine * cosine;
    bool odd = degrees % 2 == 1;
    double term = odd ? cosine : 1, sum = degrees > 1 ? term : 0;
    for (size_t k = odd ? 3 : 2; k + 1 < degrees + (odd ? 0 : 1); k += 2) {
        term *= square * (double)(k - 1) / (double)k;
        sum += term;
    }
    return odd ? 2 / M_PI * (theta + sine * sum) : sine * sum;
}

double stats_t95(size_t degrees)
{
    assert(degrees >= 1);
    if (degrees > 100000) /* the normal limit, equal to six digits */
        return 1.959964 + 2.4 / (double)degrees;
    double low = 1.9, high = 12.8; /* t for infinite and for 1 degree lie between */
    for (int i = 0; i < 60; i++) {
        double middle = 0.5 * (low + high);
        if (t_within(middle, degrees) < 0.95)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}

struct stats_line stats_fit_line(const double *x, const double *y, size_t n)
{
    assert(n >= 2);
    double x_mean = 0, y_mean = 0, sxx = 0, sxy = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        x_mean += x[i] / (double)n;
        y_mean += y[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        sxx += (x[i] - x_mean) * (x[i] - x_mean);
        sxy += (x[i] - x_mean) * (y[i] - y_mean);
    }
    assert(sxx > 0);
    struct stats_line line = {.slope = sxy / sxx};
    line.intercept = y_mean - line.slope * x_mean;
    for (size_t i = 0; i < n; i++) {
        /* From the means: y - intercept - slope x would lose digits where the values are large. */
        double residual = (y[i] - y_mean) - line.slope * (x[i] - x_mean);
        squares += residual * residual;
        line.residual_max = fmax(line.residual_max, fabs(residual));
    }
    line.slope_low = line.slope_high = line.slope;
    if (n > 2) {
        double half = stats_t95(n - 2) * sqrt(squares / (double)(n - 2) / sxx);
        line.slope_low -= half;
        line.slope_high += half;
        line.interval_known = true;
    }
    return line;
}

/* Median slope of all pairs with different x; `slopes` is scratch for n (n - 1) / 2 values. */
static double theil_sen(const double *x, const double *y, size_t n, double *slopes)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++)
            if (x[j] != x[i])
                slopes[count++] = (y[j] - y[i]) / (x[j] - x[i]);
    assert(count > 0);
    return median_in_place(slopes, count);
}

size_t stats_median_rank(size_t n)
{
    if (n > 1000) /* the binomial as a normal distribution: far below one rank off, and 2^-n stays a number */
        return (size_t)((double)n / 2 - 1.96 * sqrt((double)n) / 2);
    double term = ldexp(1.0, -(int)n), below = 0; /* P(Binomial(n, 1/2) = rank), P(... < rank) */
    size_t rank = 0;
    while (below + term <= 0.025) {
        below += term;
        term *= (double)(n - rank) / (double)(rank + 1);
        rank++;
    }
    return rank;
}

struct stats_line stats_fit_repeated(const double *x, const double *y, size_t n, size_t reps)
{
    assert(n >= 2 && reps >= 1);
    size_t pairs = n * (n - 1) / 2, room = pairs > n * reps ? pairs : n * reps;
    double *scratch = malloc((room > reps ? room : reps) * sizeof *scratch), *slopes = malloc(reps * sizeof *slopes);
    struct stats_line line = {NAN, NAN, NAN, NAN, NAN, false};
    if (scratch && slopes) {
        for (size_t rep = 0; rep < reps; rep++)
            slopes[rep] = theil_sen(x, y + rep * n, n, scratch);
        line.slope = line.slope_low = line.slope_high = median_in_place(slopes, reps); /* sorts them */
        size_t rank = stats_median_rank(reps);
        if (rank > 0) {
            line.slope_low = slopes[rank - 1];
            line.slope_high = slopes[reps - rank];
            line.interval_known = true;
        }
        for (size_t i = 0; i < n * reps; i++)
            scratch[i] = y[i] - line.slope * x[i % n];
        line.intercept = median_in_place(scratch, n * reps);
        line.residual_max = 0;
        for (size_t i = 0; i < n; i++) { /* of each x's median: a single disturbed sample is not the line's fault */
            for (size_t rep = 0; rep < reps; rep++)
                scratch[rep] = y[rep * n + i];
            double residual = median_in_place(scratch, reps) - line.intercept - line.slope * x[i];
            line.residual_max = fmax(line.residual_max, fabs(residual));
        }
    }
    free(scratch);
    free(slopes);
    return line;
}
