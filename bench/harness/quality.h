/* How well a model predicts a text: the negative log-likelihood of its tokens, taken on the host in double from the
   logits that forward passes leave on the device, and from it
     perplexity     exp(nll / tokens): per token, so that two vocabularies cannot be compared   (Jelinek et al. 1977)
     bits per byte  nll / ln 2 / bytes: whatever the vocabulary
   Whatever decides what a position may see (cache type, window, eviction) is the cache's; this only feeds and counts.
 */
#ifndef KVLAB_BENCH_HARNESS_QUALITY_H
#define KVLAB_BENCH_HARNESS_QUALITY_H

#include "bench/harness/bench.h"

/* A text as a model reads it. */
struct text {
    int32_t *tokens;   /* host [count] */
    int32_t *bytes_of; /* host [count], bytes of the text that token i stands for */
    int64_t count;
};

/* Reads a file whole. `folder` is the model's (bench->weights_dir; "" for none): its tokenizer.json makes the tokens,
   with what it puts before a text, and bytes_of counts the text as it normalizes it. Without one, a vocabulary of 256
   is taken for bytes: the id is the byte's value. Status 2: no file, an empty one, one that the tokenizer refuses, an
   id above the vocabulary, or no tokenizer for a vocabulary that is not bytes. Free with text_free(), which takes a
   zeroed struct. */
enum status text_read(struct text *text, const char *path, const char *folder, const struct config *config,
                      struct error *error);
void text_free(struct text *text);

/* What an experiment feeds, at least `tokens` of it: the file that the user gave; else what ships with the trained
   models and they have not seen, <data>/tiny/heldout.txt; else, where weights are synthetic, seeded random tokens.
   Status 2 also where the text is too short. */
enum status text_for(struct text *text, const struct bench *bench, const char *path, int64_t tokens,
                     struct error *error);

struct quality {
    double nll;            /* sum over the tokens, nats */
    int64_t tokens, bytes; /* that were predicted */
};
double quality_perplexity(const struct quality *quality);
double quality_bits_per_byte(const struct quality *quality);
/* A number that comes of them into a column, which stays empty where weights are synthetic: they have learned nothing.
 */
void quality_set(const struct bench *bench, struct results *results, const char *column, double value);

/* -log softmax(logits)[target]; logits: host [vocab] of the given type. Not finite where a logit is not. */
double quality_token_nll(enum dtype dtype, const void *logits, int64_t vocab, int32_t target);

/* The memory of scoring, taken before a sequence is fed. */
struct scorer {
    struct model *model;
    struct logits logits; /* [rows][vocab] */
    void *host;           /* the same, downloaded */
    struct device_event *start, *end;
};
/* `rows`: positions per forward pass, at most the model's own limit; 1 feeds token by token. Free with scorer_free(),
   also after an error. */
enum status scorer_init(struct scorer *scorer, struct model *model, int rows, struct error *error);
void scorer_free(struct scorer *scorer);

/* Appends tokens [first, first + count) of the text to a sequence, and adds to `quality` how well each of them predicts
   the token after it (not the last of the text: nothing follows it). Status 130 between passes if interrupted; 2 where
   the logits are not finite. */
enum status scorer_feed(struct scorer *scorer, struct kv_cache *cache, int sequence, const struct text *text,
                        int64_t first, int64_t count, struct quality *quality, struct error *error);
/* The same for one token, timed as a decode step is: the pass and the greedy choice, not the logits' way to the host.
 */
enum status scorer_step(struct scorer *scorer, struct kv_cache *cache, int sequence, const struct text *text,
                        int64_t at, struct quality *quality, double *ms, struct error *error);

#endif
