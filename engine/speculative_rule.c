/* The acceptance rule, and what it lets one expect. Pure functions: no model, no device. */
#include "engine/speculative.h"

#include "engine/random.h"

#include <math.h>

int32_t speculative_judge(struct distribution *target, const struct distribution *draft, int32_t token, uint64_t *state,
                          bool *accepted)
{
    double p = (double)target->share[token], q = (double)draft->share[token];
    *accepted = random_uniform(state) * q < p;
    if (*accepted)
        return token;
    double rest = 0.0;
    for (int i = 0; i < target->count; i++) {
        float *share = &target->share[target->ids[i]];
        *share = fmaxf(0.0f, *share - draft->share[target->ids[i]]);
        rest += (double)*share;
    }
    /* Nothing left: p and q agree but for rounding, and the refusal came of the rounding alone. */
    return rest > 0.0 ? distribution_draw(target, state) : token;
}

double speculative_expected_tokens(double acceptance, int draft_tokens)
{
    double sum = 1.0, power = 1.0; /* 1 + a + a^2 + ... + a^k, which is also right for a = 1 */
    for (int i = 0; i < draft_tokens; i++)
        sum += power *= acceptance;
    return sum;
}

double speculative_expected_speedup(double acceptance, int draft_tokens, double cost_ratio, double pass_ratio)
{
    return speculative_expected_tokens(acceptance, draft_tokens) / (draft_tokens * cost_ratio + pass_ratio);
}

double speculative_break_even(int draft_tokens, double cost_ratio)
{
    double low = 0.0, high = 1.0;
    if (draft_tokens == 0 || speculative_expected_speedup(1.0, draft_tokens, cost_ratio, 1.0) <= 1.0)
        return draft_tokens == 0 ? low : high;
    for (int halving = 0; halving < 60; halving++) { /* it grows with the acceptance; a double holds no more */
        double middle = low + (high - low) / 2;
        if (speculative_expected_speedup(middle, draft_tokens, cost_ratio, 1.0) < 1.0)
            low = middle;
        else
            high = middle;
    }
    return high;
}
