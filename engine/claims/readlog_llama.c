/* llama.cpp and what wraps it (ollama, llama-cpp-python, ...). Formats by age:

     llama_new_context_with_model: kv self size  =  256.00 MB                      2023: MiB, printed as MB
     llama_kv_cache_init:      CUDA0 KV buffer size =  2788.00 MiB                 2024: one line per device
     llama_new_context_with_model: KV self size  = 4352.00 MiB, K (q8_0): 2176.00 MiB, V (q8_0): 2176.00 MiB
     llama_kv_cache_unified: size = 1024.00 MiB (  8192 cells,  32 layers), K (f16):  512.00 MiB, V (f16):  512.00 MiB
     llama_kv_cache: size =  416.00 MiB ( 32768 cells, 13 layers, 1/1 seqs), K (f16): ...    2025: sequences/streams

   Rules (src/llama-kv-cache.cpp): a cache has cells for every stream, streams are the second number of "8/8 seqs" (one
   where the cache is unified); models with windows have two caches, of which that of the windowed layers has the window
   times the sequences and a micro-batch, padded to 256. */
#include "engine/claims/readlog_scan.h"

#include "engine/plan/plan_count.h"
#include "engine/plan/profile.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char engine[] = "llama.cpp";

/* ---- facts ------------------------------------------------------------------------------------------------------- */

/* "n_ctx      = 8192", but not n_ctx_per_seq or n_ctx_train: the name must end there. */
static void named_count(int64_t *count, const char *text, const char *name)
{
    const char *at = line_after(text, name);
    int64_t found;
    if (at && (at[0] == ' ' || at[0] == '=') && at[strspn(at, " ")] == '=' && line_count(&found, at, ""))
        *count = found;
}

static void quoted_type(char *to, size_t size, const char *text, const char *label)
{
    const char *at = line_after(text, label);
    if (at)
        line_word(to, size, at);
}

static void take_facts(struct scan *scan, const char *text)
{
    struct log_facts *facts = &scan->facts;
    if (line_after(text, "constructing llama_context") || line_after(text, "n_ctx      ="))
        facts->kv_size = 0;
    named_count(&facts->n_ctx, text, " n_ctx");
    named_count(&facts->n_seq_max, text, "n_seq_max");
    named_count(&facts->n_ubatch, text, "n_ubatch");
    named_count(&facts->kv_size, text, "kv_size");
    quoted_type(facts->type_k, sizeof facts->type_k, text, "type_k = '");
    quoted_type(facts->type_v, sizeof facts->type_v, text, "type_v = '");
    if (line_after(text, "creating non-SWA KV cache"))
        facts->part = CACHE_FULL_LAYERS;
    else if (line_after(text, "creating     SWA KV cache") || line_after(text, "creating SWA KV cache"))
        facts->part = CACHE_WINDOW_LAYERS;
}

/* ---- one cache --------------------------------------------------------------------------------------------------- */

struct cache_line {
    struct printed total, part[2]; /* K and V */
    const struct byte_unit *unit, *part_unit[2];
    char type[2][24];                          /* "" where the line names none */
    int64_t cells, layers, sequences, streams; /* 0: not said */
};

/* "), K (f16):  512.00 MiB, V (f16):  512.00 MiB" */
static void read_parts(struct cache_line *line, const char *text)
{
    static const char *const labels[] = {"K (", "V ("};
    for (int i = 0; i < 2; i++) {
        const char *at = line_after(text, labels[i]);
        if (!at)
            continue;
        line_word(line->type[i], sizeof line->type[i], at);
        at = line_after(at, "):");
        if (!at || !line_amount(&line->part[i], &line->part_unit[i], at))
            line->part_unit[i] = NULL;
    }
}

/* "(  8192 cells,  32 layers,  8/ 1 seqs)" */
static void read_shape(struct cache_line *line, const char *text)
{
    const char *at = line_after(text, "(");
    struct printed number;
    if (!at || !strstr(at, "cells") || !line_count(&line->cells, at, ""))
        return;
    at = line_after(at, "cells,");
    if (!at || !line_count(&line->layers, at, ""))
        return;
    at = line_after(at, "layers,");
    line->streams = 1;
    if (!at || !strstr(at, "seqs") || !line_count(&line->sequences, at, ""))
        return;
    at += strspn(at, " ");
    at += printed_read(&number, at, strnlen(at, 24));
    if (*at == '/')
        line_count(&line->streams, at + 1, "");
}

static enum kv_part part_of(const struct scan *scan)
{
    switch (scan->facts.part) {
    case CACHE_FULL_LAYERS:
        return PART_FULL;
    case CACHE_WINDOW_LAYERS:
        return PART_WINDOW;
    case CACHE_WHOLE:
        break;
    }
    return PART_ALL;
}

/* A type that the line names beats one that an earlier line named; the user's beats both. llama.cpp's default is f16,
   whatever the model's own type. */
static const struct plan_type *type_of(const struct scan *scan, const char *named, const char *fact)
{
    return kv_type_of(scan, named[0] ? named : fact[0] ? fact : "f16");
}

/* Does the cache of windowed layers have the cells that the rule gives it? A stream of its own has one sequence, a
   unified cache all of them. */
static void check_window(const struct scan *scan, struct readlog_row *row)
{
    uint64_t window = (uint64_t)shape_window(scan->options->shape), batch = (uint64_t)scan->facts.n_ubatch;
    uint64_t pad = (uint64_t)profile_of(ENGINE_LLAMACPP)->block_size, cells = (uint64_t)scan->facts.window_cells;
    uint64_t sequences = (uint64_t)scan->facts.window_sequences;
    bool overflow = false;
    uint64_t needed = count_add(&overflow, count_mul(&overflow, window, sequences), batch);
    if (!window || !cells || overflow)
        return;
    if (batch && count_pad(&overflow, needed, pad) == cells)
        row_reason(row, "window %" PRIu64 " x %" PRIu64 " + batch %" PRIu64 ", padded to %" PRIu64 " cells", window,
                   sequences, batch, cells);
    else
        row_reason(row, "%" PRIu64 " cells for a window of %" PRIu64, cells, window);
}

/* A window that the engine does not use is worth saying even where every number is right. */
static void note_unused_window(const struct scan *scan, struct readlog_row *row, uint64_t tokens)
{
    uint64_t window = (uint64_t)shape_window(scan->options->shape);
    if (window && window < tokens && part_of(scan) == PART_ALL)
        row_reason(row, "the window of %" PRIu64 " tokens is ignored: every layer holds %" PRIu64, window, tokens);
}

static void note_context(const struct scan *scan, struct readlog_row *row, uint64_t tokens)
{
    int64_t asked = scan->options->context;
    const uint64_t paddings[LLAMA_PADDINGS] = {OLD_PADDING, (uint64_t)profile_of(ENGINE_LLAMACPP)->block_size};
    if (asked && tokens > (uint64_t)asked && part_of(scan) != PART_WINDOW) {
        for (size_t i = 0; i < LLAMA_PADDINGS; i++)
            if (count_units((uint64_t)asked, paddings[i]) * paddings[i] == tokens) {
                row_reason(row, "the context of %" PRId64 " asked for is padded to %" PRIu64, asked, tokens);
                return;
            }
        if (tokens % (uint64_t)asked == 0)
            row_reason(row, "%" PRIu64 " slots of the %" PRId64 " tokens asked for", tokens / (uint64_t)asked, asked);
        else
            row_reason(row, "%" PRId64 " tokens were asked for", asked);
    }
}

static void say_per_token(struct readlog_row *row, const struct printed *printed, const struct byte_unit *unit,
                          uint64_t formula, uint64_t tokens)
{
    long double bytes = printed_value(printed) * (long double)unit->bytes;
    row->formula_bytes_per_token = formula;
    if (tokens && bytes / (long double)tokens < 1e15L)
        row->implied_bytes_per_token = (uint64_t)(bytes / (long double)tokens + 0.5L);
    if (row->verdict == READLOG_EXACT) /* rounding aside, they are the same */
        row->implied_bytes_per_token = formula;
}

/* One amount: K, V, or both. `tokens` 0: unknown. */
static void cache_row(struct scan *scan, const char *quantity, const struct printed *printed,
                      const struct byte_unit *unit, const struct kv_way *way, uint64_t tokens)
{
    struct readlog_row *row = scan_row(scan, engine, quantity);
    row_reported(row, printed, unit->name);
    if (!way->k || !way->v) {
        row_reason(row, "the cache's type is not known: no formula");
        return;
    }
    uint64_t token = kv_way_bytes(scan->options->shape, way), formula = kv_times(token, tokens);
    if (!tokens || !formula) {
        long double bytes = printed_value(printed) * (long double)unit->bytes;
        row_reason(row, "the log does not say for how many tokens: give --context");
        if (token && bytes / (long double)token < 1e15L)
            row_reason(row, "%.0Lf tokens of %" PRIu64 " bytes", bytes / (long double)token, token);
        return;
    }
    const struct byte_unit *really = row_compare(row, printed, unit, formula);
    say_per_token(row, printed, really, token, tokens);
    if (row->verdict == READLOG_OFF)
        explain_amount(scan, row, printed, unit, way, tokens);
    row_reason(row, "%" PRIu64 " tokens x %" PRIu64 " bytes (%s%s%s)", tokens, token, way->k->name,
               way->k == way->v ? "" : "/", way->k == way->v ? "" : way->v->name);
    if (way->part == PART_WINDOW)
        check_window(scan, row);
    note_unused_window(scan, row, tokens);
    note_context(scan, row, tokens);
}

/* Buffers hold whole layers: so many of them, on this device. */
static void buffer_rows(struct scan *scan, const struct kv_way *way, uint64_t tokens)
{
    int64_t layers = kv_way_layers(scan->options->shape, way->part);
    uint64_t all = way->k && way->v ? kv_times(kv_way_bytes(scan->options->shape, way), tokens) : 0;
    size_t line = scan->line;
    for (int i = 0; i < scan->buffer_count; i++) {
        struct log_buffer *buffer = &scan->buffers[i];
        scan->line = buffer->line;
        struct readlog_row *row = scan_row(scan, engine, "kv_buffer_bytes");
        row_reported(row, &buffer->printed, buffer->unit->name);
        bool found = false;
        for (int64_t n = layers; n > 0 && !found && all && all % (uint64_t)layers == 0; n--) {
            found = amount_is(&buffer->printed, buffer->unit, all / (uint64_t)layers * (uint64_t)n);
            if (found) {
                row_compare(row, &buffer->printed, buffer->unit, all / (uint64_t)layers * (uint64_t)n);
                row_reason(row, "%s: %" PRId64 " of %" PRId64 " layers", buffer->device, n, layers);
            }
        }
        if (!found && all) {
            row_compare(row, &buffer->printed, buffer->unit, all);
            explain_amount(scan, row, &buffer->printed, buffer->unit, way, tokens);
        }
        if (!all)
            row_reason(row, "%s; its cache's tokens or type are not known", buffer->device);
    }
    scan->line = line;
    scan->buffer_count = 0;
}

static void add_buffer(struct scan *scan, const char *text, const char *after)
{
    struct log_buffer buffer = {.line = scan->line};
    if (!line_amount(&buffer.printed, &buffer.unit, after))
        return;
    if (scan->buffer_count == MAX_BUFFERS) /* no cache has so many: their total is not in this log */
        readlog_llama_end(scan);
    const char *end = strstr(text, " KV buffer size"), *start = end;
    while (start > text && start[-1] != ' ')
        start--;
    size_t length = (size_t)(end - start);
    snprintf(buffer.device, sizeof buffer.device, "%.*s", (int)(length < 40 ? length : 40), start);
    scan->buffers[scan->buffer_count++] = buffer;
}

static void total_rows(struct scan *scan, const struct cache_line *line, uint64_t tokens)
{
    struct kv_way way = {.k = type_of(scan, line->type[0], scan->facts.type_k),
                         .v = type_of(scan, line->type[1], scan->facts.type_v),
                         .ranks = 1,
                         .part = part_of(scan)};
    buffer_rows(scan, &way, tokens);
    cache_row(scan, way.part == PART_WINDOW ? "kv_window_bytes" : "kv_bytes", &line->total, line->unit, &way, tokens);
    struct kv_way half = way;
    half.k_only = true;
    if (line->part_unit[0])
        cache_row(scan, "kv_k_bytes", &line->part[0], line->part_unit[0], &half, tokens);
    half.k_only = false;
    half.v_only = true;
    if (line->part_unit[1])
        cache_row(scan, "kv_v_bytes", &line->part[1], line->part_unit[1], &half, tokens);
}

void readlog_llama(struct scan *scan, const char *text)
{
    static const char *const totals[] = {"KV self size", "kv self size"};
    struct cache_line line = {0};
    const char *at;
    take_facts(scan, text);
    if ((at = line_after(text, " KV buffer size")) != NULL) {
        add_buffer(scan, text, at);
        return;
    }
    for (int i = 0; i < 2; i++)
        if ((at = line_after(text, totals[i])) != NULL && line_amount(&line.total, &line.unit, at)) {
            int64_t tokens = scan->facts.kv_size ? scan->facts.kv_size
                             : scan->facts.n_ctx ? scan->facts.n_ctx
                                                 : scan->options->context;
            read_parts(&line, at);
            total_rows(scan, &line, (uint64_t)tokens);
            return;
        }
    at = line_after(text, "llama_kv_cache");
    if (at)
        at = line_after(at, ": size");
    if (at && line_amount(&line.total, &line.unit, at)) {
        read_shape(&line, at);
        read_parts(&line, at);
        scan->facts.window_cells = line.cells;
        scan->facts.window_sequences = line.streams == 1 && line.sequences > 1 ? line.sequences : 1;
        total_rows(scan, &line, kv_times((uint64_t)line.cells, (uint64_t)line.streams));
        scan->facts.part = CACHE_WHOLE;
    }
}

void readlog_llama_end(struct scan *scan)
{
    struct cache_line none = {0};
    struct kv_way way = {.k = type_of(scan, none.type[0], scan->facts.type_k),
                         .v = type_of(scan, none.type[1], scan->facts.type_v),
                         .ranks = 1,
                         .part = part_of(scan)};
    int64_t tokens = scan->facts.kv_size ? scan->facts.kv_size
                     : scan->facts.n_ctx ? scan->facts.n_ctx
                                         : scan->options->context;
    buffer_rows(scan, &way, (uint64_t)tokens);
}
