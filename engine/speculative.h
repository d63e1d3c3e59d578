/* Speculative decoding: a small draft model proposes tokens, one decode step each; the target passes all of them at
   once, keeps the leading ones that it accepts, and adds a token of its own. What comes out is what the target alone
   would say, token by token where it is greedy, in distribution where it is sampled (Leviathan, Kalman, Matias 2023,
   algorithm 1; Chen et al. 2023, algorithm 2). Only the number of passes changes.

   Between two rounds the tokens 0 .. known - 1 stand; the target's cache holds known - 1 positions, all but the last
   token's, and the draft's that many, or one fewer where a proposal was accepted whole (its last token was never
   passed). */
#ifndef KVLAB_ENGINE_SPECULATIVE_H
#define KVLAB_ENGINE_SPECULATIVE_H

#include "engine/forward.h"
#include "engine/sampler.h"

/* A model with the sequence that it works on; borrowed. Both models are on one device. */
struct speculative_side {
    struct model *model;
    struct kv_cache *cache;
    int sequence; /* empty at first */
};

/* Status 2 with both sizes where they differ. */
enum status speculative_check_vocabularies(const struct config *target, const struct config *draft,
                                           struct error *error);

struct speculative_options {
    int new_tokens;
    int draft_tokens;       /* proposed per round; 0: plain decoding, the draft is not looked at */
    struct sampler sampler; /* the same for both models */
    int32_t stop_token;     /* -1: none */
};

/* Counted since the prefill. */
struct speculative_counts {
    int64_t target_passes;
    int64_t proposed;
    int64_t judged;   /* proposals that the target looked at: up to the first refusal of a round */
    int64_t accepted; /* of these */
    double draft_ms, target_ms;
};

struct speculative {
    struct speculative_side target, draft;
    struct speculative_options options;
    struct speculative_counts counts;
    int32_t *tokens; /* host [prompt + new_tokens] */
    int prompt_tokens, known;
    bool stopped;                  /* by the stop token, which is the last one then */
    struct speculative_work *work; /* buffers and events */
};

/* Takes all memory, except that exact caches grow by their nature. Status 2: the vocabularies differ in size, the
   target's limits do not allow draft_tokens + 1 rows in a pass, or a cache gives up positions that a refusal may need
   again (windows of paged caches, eviction); 3: no room for the prompt and new_tokens. Past the
   draft's max_position_embeddings nothing is proposed any more. Free with speculative_free(), also after an error. */
enum status speculative_init(struct speculative *speculative, const struct speculative_side *target,
                             const struct speculative_side *draft, const struct speculative_options *options,
                             const int32_t *prompt, int prompt_tokens, struct error *error);
void speculative_free(struct speculative *speculative);

/* Both models read the prompt; the first token is the target's. */
enum status speculative_prefill(struct speculative *speculative, struct error *error);
/* One proposal and one pass of the target: at least one more token, at most draft_tokens + 1. */
enum status speculative_round(struct speculative *speculative, struct error *error);
/* All tokens asked for are there, or the stop token is. */
bool speculative_done(const struct speculative *speculative);

struct speculative_result {
    int count;         /* tokens chosen */
    double prefill_ms; /* until the first token was chosen and the draft had read the prompt */
    double decode_ms;  /* the rest */
    struct speculative_counts counts;
};

/* All of this in turn; tokens: host [new_tokens]. */
enum status speculative_generate(const struct speculative_side *target, const struct speculative_side *draft,
                                 const struct speculative_options *options, const int32_t *prompt, int prompt_tokens,
                                 int32_t *tokens, struct speculative_result *result, struct error *error);

/* The acceptance rule for one token that was drawn from `draft`: kept with probability min(1, p / q), p and q its
   shares in the target's and the draft's distribution; else another is drawn from what p has over q, max(0, p - q).
   Returns the token; target->share is then overwritten where it was refused. */
int32_t speculative_judge(struct distribution *target, const struct distribution *draft, int32_t token, uint64_t *state,
                          bool *accepted);

/* Tokens expected of a pass of the target where each of `draft_tokens` proposals is accepted with probability
   `acceptance`, independently: (1 - a^(k + 1)) / (1 - a); k + 1 for a = 1     (Leviathan et al. 2023, eq. 1) */
double speculative_expected_tokens(double acceptance, int draft_tokens);
/* Expected factor of time saved; a step of the draft takes cost_ratio times, the pass over k + 1 rows pass_ratio times
   what a decode step of the target takes: expected / (k c + v)     (ibid. theorem 3.8, where v = 1) */
double speculative_expected_speedup(double acceptance, int draft_tokens, double cost_ratio, double pass_ratio);
/* The acceptance over which that factor passes 1 with v = 1: 0 for k = 0, and 1 where even all accepted would not
   pay. For k = 1 it is c. */
double speculative_break_even(int draft_tokens, double cost_ratio);

#endif
