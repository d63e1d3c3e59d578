/* How well a model predicts a text: the negative log-likelihood of its tokens, taken on the host in double from the
   logits that forward passes leave on the device, and from it
     perplexity     exp(nll / tokens): per token, so that two vocabularies cannot be compared   (Jelinek et al. 1977)
     bits per byte  nll / ln 2 / bytes: whatever the vocabulary
   Whatever decides what a position may see (cache type, window, eviction) is the cache's; this only feeds and counts.
 */
#ifndef KVLAB_BENCH_HARNESS_QUALITY_H
#define KVLAB_BENCH_HARNESS_QUALITY_H

#include "engine/forward.h"

/* A text as a model reads it. */
struct text {
    int32_t *tokens;   /* host [count] */
    int32_t *bytes_of; /* host [count], bytes of the text that token i stands for */
    int64_t count;
};

/* Reads a file whole. A vocabulary of 256 is taken for bytes: the id is the byte's value. Status 2: no file, an empty
   one, or a model whose vocabulary is not bytes. Free with text_free(), which takes a zeroed struct. */
enum status text_read(struct text *text, const char *path, const struct config *config, struct error *error);
void text_free(struct text *text);

/* The text that ships with the trained models and that they have not seen: <data>/tiny/heldout.txt. */
const char *text_held_out(char *path, size_t size);

struct quality {
    double nll;            /* sum over the tokens, nats */
    int64_t tokens, bytes; /* that were predicted */
};
double quality_perplexity(const struct quality *quality);
double quality_bits_per_byte(const struct quality *quality);

/* -log softmax(logits)[target]; logits: host [vocab] of the given type. Not finite where a logit is not. */
double quality_token_nll(enum dtype dtype, const void *logits, int64_t vocab, int32_t target);

/* The memory of scoring, taken before a sequence is fed. */
struct scorer {
    struct model *model;
    struct logits logits; /* [rows][vocab] */
    void *host;           /* the same, downloaded */
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

#endif
