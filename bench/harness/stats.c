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

struct weighted {
    double value, weight;
};

static int ascending_value(const void *a, const void *b)
{
    const struct weighted *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

/* Half of the weight lies on each side. Sorts `all` themselves. */
static double weighted_median_in_place(struct weighted *all, size_t n)
{
    double total = 0, below = 0;
    size_t i = 0;
    qsort(all, n, sizeof *all, ascending_value);
    for (size_t k = 0; k < n; k++)
        total += all[k].weight;
    while (i + 1 < n && below + all[i].weight < total / 2)
        below += all[i++].weight;
    bool between = i + 1 < n && below + all[i].weight == total / 2;
    return between ? (all[i].value + all[i + 1].value) / 2 : all[i].value;
}

/* Median slope of all pairs with different x, weighed by their distance; `slopes` is scratch for n (n - 1) / 2. */
static double theil_sen(const double *x, const double *y, size_t n, struct weighted *slopes)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++)
            if (x[j] != x[i])
                slopes[count++] = (struct weighted){(y[j] - y[i]) / (x[j] - x[i]), fabs(x[j] - x[i])};
    assert(count > 0);
    return weighted_median_in_place(slopes, count);
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

static struct stats_interval interval_of_sorted(const double *sorted, size_t n)
{
    double middle = quantile_of_sorted(sorted, n, 0.5);
    size_t rank = stats_median_rank(n);
    if (rank == 0)
        return (struct stats_interval){middle, middle, middle, false};
    return (struct stats_interval){middle, sorted[rank - 1], sorted[n - rank], true};
}

struct stats_interval stats_median_interval(const double *samples, size_t n)
{
    assert(n > 0);
    struct stats_interval interval = {NAN, NAN, NAN, false};
    double *sorted = malloc(n * sizeof *sorted);
    if (sorted) {
        memcpy(sorted, samples, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, ascending);
        interval = interval_of_sorted(sorted, n);
    }
    free(sorted);
    return interval;
}

/* What all repetitions leave beside the slope; `scratch` is for n * reps values. */
static void fit_intercept(struct stats_line *line, const double *x, const double *y, size_t n, size_t reps,
                          double *scratch)
{
    for (size_t i = 0; i < n * reps; i++)
        scratch[i] = y[i] - line->slope * x[i % n];
    line->intercept = median_in_place(scratch, n * reps);
    line->residual_max = 0;
    for (size_t i = 0; i < n; i++) { /* of each x's median: a single disturbed sample is not the line's fault */
        for (size_t rep = 0; rep < reps; rep++)
            scratch[rep] = y[rep * n + i];
        double residual = median_in_place(scratch, reps) - line->intercept - line->slope * x[i];
        line->residual_max = fmax(line->residual_max, fabs(residual));
    }
}

struct stats_line stats_fit_repeated(const double *x, const double *y, size_t n, size_t reps)
{
    assert(n >= 2 && reps >= 1);
    struct weighted *pairs = malloc(n * (n - 1) / 2 * sizeof *pairs);
    double *scratch = malloc(n * reps * sizeof *scratch);
    struct stats_line line = {NAN, NAN, NAN, NAN, NAN, false};
    if (pairs && scratch) {
        for (size_t rep = 0; rep < reps; rep++)
            scratch[rep] = theil_sen(x, y + rep * n, n, pairs);
        qsort(scratch, reps, sizeof *scratch, ascending);
        struct stats_interval slope = interval_of_sorted(scratch, reps);
        line = (struct stats_line){
            .slope = slope.middle, .slope_low = slope.low, .slope_high = slope.high, .interval_known = slope.known};
        fit_intercept(&line, x, y, n, reps, scratch);
    }
    free(pairs);
    free(scratch);
    return line;
}

static bool is_look(const struct stats_rule *rule, size_t reps)
{
    size_t look = rule->least;
    while (look < reps)
        look += look / 2 + (look < 2);
    return look == reps;
}

enum stats_verdict stats_judge(const struct stats_rule *rule, const struct stats_interval *so_far, size_t reps,
                               double spent_ms)
{
    bool last = reps >= rule->most;
    bool narrow = so_far->known && rule->half_width > 0 && (so_far->high - so_far->low) / 2 <= rule->half_width;
    if (reps < rule->least)
        return STATS_GO_ON;
    if (narrow && (last || is_look(rule, reps)))
        return STATS_NARROW;
    if (last)
        return STATS_MOST;
    return rule->limit_ms > 0 && spent_ms >= rule->limit_ms ? STATS_OUT_OF_TIME : STATS_GO_ON;
}

double stats_rule_done(const struct stats_rule *rule, size_t reps, double spent_ms)
{
    double of_most = (double)reps / (double)rule->most, of_least = fmin(1, (double)reps / (double)rule->least);
    double of_time = rule->limit_ms > 0 ? fmin(1, spent_ms / rule->limit_ms) : 0;
    return fmin(1, fmax(of_most, fmin(of_least, of_time)));
}
