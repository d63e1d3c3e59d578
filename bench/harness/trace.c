#include "bench/harness/trace.h"

#include "engine/random.h"

#include <assert.h>
#include <math.h>

static const double sigma = 1.0, mean_prompt = 161.31, mean_output = 337.99;

/* Box and Muller 1958; 1 - u is never 0. */
static double normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(1.0 - random_uniform(state)));
    return radius * cos(2.0 * acos(-1.0) * random_uniform(state));
}

/* Log-normal of this mean, which is exp(mu + sigma^2 / 2); at least one token. */
static double tokens(double mean, uint64_t *state)
{
    double drawn = exp(log(mean) - sigma * sigma / 2.0 + sigma * normal(state));
    return fmax(1.0, round(drawn));
}

void trace_chat(struct trace_request *requests, size_t count, int max_tokens, double arrival_steps, uint64_t seed)
{
    assert(max_tokens >= 2);
    uint64_t state = seed;
    int half = max_tokens / 2;
    double arrival = 0.0;
    for (size_t i = 0; i < count; i++) {
        double prompt = fmin(tokens(mean_prompt, &state), half);
        double output = fmin(tokens(mean_output, &state), max_tokens - prompt);
        requests[i] = (struct trace_request){(int)arrival, (int)prompt, (int)output};
        arrival -= arrival_steps * log(1.0 - random_uniform(&state));
    }
}
