#include "bench/harness/quality.h"

#include "engine/input_file.h"
#include "engine/tokenizer/beside_weights.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- texts ---- */

enum { BYTE_VOCABULARY = 256 };

static enum status read_bytes(const char *path, unsigned char **bytes, int64_t *count, struct error *error)
{
    FILE *file;
    off_t length;
    enum status status = input_file_open(path, "give the path of a text", &file, &length, error);
    if (status != STATUS_OK)
        return status;
    *count = (int64_t)length;
    *bytes = malloc((size_t)length + 1);
    if (length == 0 || length > INT_MAX)
        status =
            error_set(error, STATUS_INPUT, "%s: %" PRId64 " bytes are no text to read: 1 to %d", path, *count, INT_MAX);
    else if (*bytes == NULL)
        status = error_set(error, STATUS_DEVICE, "%s: out of host memory for %" PRId64 " bytes", path, *count);
    else if (fread(*bytes, 1, (size_t)length, file) != (size_t)length)
        status = error_set(error, STATUS_INPUT, "%s: it ends before its %" PRId64 " bytes", path, *count);
    fclose(file);
    return status;
}

static enum status make_tokens(struct text *text, int64_t count, struct error *error)
{
    text->count = count;
    text->tokens = malloc((size_t)count * sizeof *text->tokens);
    text->bytes_of = malloc((size_t)count * sizeof *text->bytes_of);
    if (text->tokens == NULL || text->bytes_of == NULL)
        return error_set(error, STATUS_DEVICE, "text: out of host memory for %" PRId64 " tokens", count);
    return STATUS_OK;
}

/* One token per byte. */
static enum status tokens_of_bytes(struct text *text, const unsigned char *bytes, int64_t count,
                                   const struct config *config, const char *path, struct error *error)
{
    if (config->vocab_size != BYTE_VOCABULARY)
        return error_set(error, STATUS_INPUT,
                         "%s: a vocabulary of %" PRId64 " is not one of bytes (%d), and no tokenizer.json lies beside "
                         "its weights: --model tiny can read %s",
                         config->name, config->vocab_size, BYTE_VOCABULARY, path);
    if (make_tokens(text, count, error) != STATUS_OK)
        return error->status;
    for (int64_t i = 0; i < count; i++) {
        text->tokens[i] = bytes[i];
        text->bytes_of[i] = 1;
    }
    return STATUS_OK;
}

static enum status fill_tokens(struct text *text, const struct tokenizer *tokenizer, const struct token_list *list,
                               const struct config *config, struct error *error)
{
    if (make_tokens(text, (int64_t)list->count, error) != STATUS_OK)
        return error->status;
    for (size_t i = 0; i < list->count; i++) {
        const char *bytes;
        size_t size = 0;
        if (list->ids[i] >= config->vocab_size)
            return error_set(error, STATUS_INPUT,
                             "%s: its tokenizer.json gives the id %d, beyond its vocabulary of %" PRId64
                             "; the two are not of one model",
                             config->name, (int)list->ids[i], config->vocab_size);
        tokenizer_token(tokenizer, list->ids[i], &bytes, &size, NULL);
        text->tokens[i] = list->ids[i];
        text->bytes_of[i] = (int32_t)size;
    }
    return STATUS_OK;
}

static enum status tokens_of_text(struct text *text, struct tokenizer *tokenizer, const unsigned char *bytes,
                                  int64_t count, const struct config *config, const char *path, struct error *error)
{
    struct token_list list = {0};
    enum status status = tokenizer_encode(tokenizer, (const char *)bytes, (size_t)count, true, &list, error);
    if (status != STATUS_OK)
        error_prefix(error, "%s", path);
    else
        status = fill_tokens(text, tokenizer, &list, config, error);
    free(list.ids);
    return status;
}

enum status text_read(struct text *text, const char *path, const char *folder, const struct config *config,
                      struct error *error)
{
    struct tokenizer *tokenizer = NULL;
    unsigned char *bytes = NULL;
    int64_t count = 0;
    *text = (struct text){0};
    if (folder[0] != '\0' && tokenizer_open_beside(&tokenizer, folder, error) != STATUS_OK)
        return error->status;
    enum status status = read_bytes(path, &bytes, &count, error);
    if (status == STATUS_OK)
        status = tokenizer ? tokens_of_text(text, tokenizer, bytes, count, config, path, error)
                           : tokens_of_bytes(text, bytes, count, config, path, error);
    free(bytes);
    tokenizer_close(tokenizer);
    if (status != STATUS_OK)
        text_free(text);
    return status;
}

void text_free(struct text *text)
{
    free(text->tokens);
    free(text->bytes_of);
    *text = (struct text){0};
}

static enum status random_text(struct text *text, const struct bench *bench, int64_t count, struct error *error)
{
    *text = (struct text){.tokens = bench_tokens(bench, count, 0), .count = count};
    text->bytes_of = calloc((size_t)count, sizeof *text->bytes_of);
    if (text->tokens != NULL && text->bytes_of != NULL)
        return STATUS_OK;
    text_free(text);
    return error_set(error, STATUS_DEVICE, "text: out of host memory for %" PRId64 " tokens", count);
}

enum status text_for(struct text *text, const struct bench *bench, const char *path, int64_t tokens,
                     struct error *error)
{
    char held_out[4096];
    if (path == NULL && bench->weights_dir[0] == '\0')
        return random_text(text, bench, tokens, error);
    snprintf(held_out, sizeof held_out, "%s/tiny/heldout.txt", config_data_dir());
    if (text_read(text, path ? path : held_out, bench->weights_dir, &bench->config, error) != STATUS_OK)
        return error->status;
    if (text->count >= tokens)
        return STATUS_OK;
    error_set(error, STATUS_INPUT,
              "%s: %" PRId64 " tokens are too few, %" PRId64 " are asked for: take a longer --text or ask for less",
              path ? path : held_out, text->count, tokens);
    text_free(text);
    return error->status;
}

/* ---- likelihood ---- */

double quality_perplexity(const struct quality *quality)
{
    return exp(quality->nll / (double)quality->tokens);
}

double quality_bits_per_byte(const struct quality *quality)
{
    static const double LN_2 = 0.69314718055994530942;
    return quality->nll / LN_2 / (double)quality->bytes;
}

void quality_set(const struct bench *bench, struct results *results, const char *column, double value)
{
    if (bench->weights_dir[0] != '\0')
        results_set_real(results, column, value);
    else
        results_set_missing(results, column, "weights are synthetic: they predict nothing");
}

/* log sum exp, with the largest taken out first so that nothing overflows. */
double quality_token_nll(enum dtype dtype, const void *logits, int64_t vocab, int32_t target)
{
    assert(target >= 0 && target < vocab);
    double largest = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < vocab; i++)
        largest = fmax(largest, (double)dtype_load(dtype, logits, (size_t)i));
    for (int64_t i = 0; i < vocab; i++)
        sum += exp((double)dtype_load(dtype, logits, (size_t)i) - largest);
    return largest + log(sum) - (double)dtype_load(dtype, logits, (size_t)target);
}

enum status scorer_init(struct scorer *scorer, struct model *model, int rows, struct error *error)
{
    *scorer = (struct scorer){.model = model};
    rows = rows < model->limits.max_rows ? rows : model->limits.max_rows;
    scorer->host = malloc((size_t)rows * (size_t)model->config->vocab_size * dtype_size(model->weights.dtype));
    struct device *device = ledger_device(model->ledger);
    if (scorer->host == NULL)
        return error_set(error, STATUS_DEVICE, "perplexity: out of host memory for %d rows of logits", rows);
    if (device->ops->event_create(device, &scorer->start, error) != STATUS_OK ||
        device->ops->event_create(device, &scorer->end, error) != STATUS_OK)
        return error->status;
    return logits_init(&scorer->logits, model->ledger, model->config, model->weights.dtype, rows, error);
}

void scorer_free(struct scorer *scorer)
{
    if (scorer->model != NULL) {
        struct device *device = ledger_device(scorer->model->ledger);
        if (scorer->start != NULL)
            device->ops->event_destroy(device, scorer->start);
        if (scorer->end != NULL)
            device->ops->event_destroy(device, scorer->end);
        logits_free(&scorer->logits, scorer->model->ledger);
    }
    free(scorer->host);
    *scorer = (struct scorer){0};
}

/* The logits' rows belong to the tokens from `first` on. */
static enum status add_rows(struct scorer *scorer, const struct text *text, int64_t first, struct quality *quality,
                            struct error *error)
{
    const struct logits *logits = &scorer->logits;
    struct device *device = ledger_device(scorer->model->ledger);
    size_t row_bytes = (size_t)logits->vocab * dtype_size(logits->dtype);
    if (device->ops->download(device, scorer->host, logits->data, (size_t)logits->rows * row_bytes, error) != STATUS_OK)
        return error->status;
    for (int64_t i = 0; i < logits->rows && first + i + 1 < text->count; i++) {
        int64_t next = first + i + 1;
        const char *row = (const char *)scorer->host + (size_t)i * row_bytes;
        double nll = quality_token_nll(logits->dtype, row, logits->vocab, text->tokens[next]);
        if (!isfinite(nll))
            return error_set(error, STATUS_INPUT,
                             "%s: the logits of token %" PRId64 " are not finite: the weights hold NaN or infinity, or "
                             "values too large for %s; use other weights or --dtype f32",
                             scorer->model->config->name, first + i, dtype_name(logits->dtype));
        quality->nll += nll;
        quality->tokens++;
        quality->bytes += text->bytes_of[next];
    }
    return STATUS_OK;
}

enum status scorer_feed(struct scorer *scorer, struct kv_cache *cache, int sequence, const struct text *text,
                        int64_t first, int64_t count, struct quality *quality, struct error *error)
{
    assert(first >= 0 && first + count <= text->count);
    for (int64_t done = 0, rows; done < count; done += rows) {
        rows = count - done < scorer->logits.capacity ? count - done : scorer->logits.capacity;
        scorer->logits.rows = 0;
        if (model_prefill(scorer->model, cache, sequence, text->tokens + first + done, (int)rows, LOGITS_ALL, 0,
                          &scorer->logits, error) != STATUS_OK ||
            add_rows(scorer, text, first + done, quality, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

enum status scorer_step(struct scorer *scorer, struct kv_cache *cache, int sequence, const struct text *text,
                        int64_t at, struct quality *quality, double *ms, struct error *error)
{
    int32_t chosen;
    struct device *device = ledger_device(scorer->model->ledger);
    assert(at >= 0 && at < text->count);
    scorer->logits.rows = 0;
    if (device->ops->synchronize(device, error) != STATUS_OK ||
        device->ops->event_record(device, scorer->start, error) != STATUS_OK ||
        model_prefill(scorer->model, cache, sequence, text->tokens + at, 1, LOGITS_ALL, 0, &scorer->logits, error) !=
            STATUS_OK ||
        model_argmax(scorer->model, &scorer->logits, 0, 1, &chosen, error) != STATUS_OK ||
        device->ops->event_record(device, scorer->end, error) != STATUS_OK ||
        device->ops->event_elapsed_ms(device, scorer->start, scorer->end, ms, error) != STATUS_OK)
        return error->status;
    return add_rows(scorer, text, at, quality, error);
}
