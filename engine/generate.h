/* Generation: a prompt, then one token at a time, with the cache on or off. */
#ifndef KVLAB_ENGINE_GENERATE_H
#define KVLAB_ENGINE_GENERATE_H

#include "engine/forward.h"
#include "engine/sampler.h"

struct generate_options {
    int new_tokens;
    bool use_cache; /* false: every step passes the whole sequence through the model again */
    struct sampler sampler;
    int32_t stop_token; /* -1: none */
    /* Told each token as it is chosen, on the caller's thread; false ends the generation after it. NULL: nobody is. */
    bool (*take)(void *context, int32_t token);
    void *context;
};

struct generate_result {
    int count;          /* tokens chosen */
    double prefill_ms;  /* until the first token was chosen (TTFT) */
    double decode_ms;   /* the rest */
    uint64_t positions; /* rows that really went through the model */
};

/* Continues `prompt` in an empty sequence of the cache; tokens: host [new_tokens]. All memory is taken before the clock
   starts, except that an exact cache grows by its nature. */
enum status generate(struct model *model, struct kv_cache *cache, int sequence, const int32_t *prompt,
                     int prompt_tokens, const struct generate_options *options, int32_t *tokens,
                     struct generate_result *result, struct error *error);

/* The next token from a row of the logits, the largest or drawn, chosen on the device: a few bytes move. Status 2 where
   that row is not finite. */
enum status generate_choose(struct model *model, const struct logits *logits, int64_t row, struct sampler *sampler,
                            int32_t *token, struct error *error);
/* The error that says so. */
enum status generate_not_finite(const struct model *model, struct error *error);

#endif
