/* Seeded traces of requests: how long their prompts and outputs are, and when they arrive. */
#ifndef KVLAB_BENCH_HARNESS_TRACE_H
#define KVLAB_BENCH_HARNESS_TRACE_H

#include <stddef.h>
#include <stdint.h>

struct trace_request {
    int arrival_step;  /* it may be admitted in this step of the engine or later; ascending in a trace */
    int prompt_tokens; /* > 0 */
    int output_tokens; /* > 0, the first of which the prefill chooses */
};

/* Chat as in the ShareGPT trace that Kwon et al. 2023 measure with (section 6.1, fig. 11): prompts of 161.31 tokens on
   average, outputs of 337.99. They print means and a picture with a long tail; the log-normal shape and its spread,
   sigma = 1, are this harness's choice. Prompts are cut to half of `max_tokens` (>= 2), outputs to what is then left
   (ibid., section 6.5), which lowers the means a little. Between two arrivals lie `arrival_steps` steps on average,
   exponentially distributed (Poisson arrivals); 0: all at once. */
void trace_chat(struct trace_request *requests, size_t count, int max_tokens, double arrival_steps, uint64_t seed);

#endif
