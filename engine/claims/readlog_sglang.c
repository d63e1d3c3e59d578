/* SGLang, one line per rank (python/sglang/srt/mem_cache/memory_pool.py):

     [2026-02-09 03:51:05] KV Cache is allocated. #tokens: 20480, K size: 1.25 GB, V size: 1.25 GB
     [2026-03-11 13:53:23 TP0] KV Cache is allocated. #tokens: 383872, KV size: 19.36 GB          latent attention
     KV Cache is allocated. K size: 1.25 GB, V size: 1.25 GB.                                     before tokens were
   printed KV Cache is allocated. dtype: torch.bfloat16, #tokens: 10,097,100, K size: ...               2026

   GB is 1024^3 there. The pool has one page more than the tokens, which no printed digit shows. */
#include "engine/claims/readlog_scan.h"

#include <inttypes.h>
#include <string.h>

static const char engine[] = "sglang";

static void take_facts(struct scan *scan, const char *text)
{
    const char *at = line_after(text, "tp_size=");
    int64_t ranks;
    if (at && line_count(&ranks, at, "") && ranks > 0 && ranks < 1 << 20)
        scan->facts.ranks = ranks;
    at = line_after(text, "KV cache dtype: ");
    if (!at)
        at = line_after(text, "is allocated. dtype: ");
    if (at)
        line_word(scan->facts.cache_type, sizeof scan->facts.cache_type, at);
}

static void size_row(struct scan *scan, const char *quantity, const char *after, const struct kv_way *way,
                     uint64_t tokens)
{
    struct printed printed;
    const struct byte_unit *unit;
    if (!line_amount(&printed, &unit, after))
        return;
    struct readlog_row *row = scan_row(scan, engine, quantity);
    row_reported(row, &printed, unit->name);
    row->verdict = READLOG_CAPACITY;
    row_reason(row, "capacity, not use");
    uint64_t token = way->k ? kv_way_bytes(scan->options->shape, way) : 0;
    if (!token || !tokens) {
        row_reason(row, way->k ? "the line does not say for how many tokens" : "the cache's type is not known");
        return;
    }
    const struct byte_unit *really = row_compare(row, &printed, unit, kv_times(token, tokens));
    row->formula_bytes_per_token = token;
    row->implied_bytes_per_token =
        row->verdict == READLOG_OFF
            ? (uint64_t)(printed_value(&printed) * (long double)really->bytes / (long double)tokens)
            : token;
    if (row->verdict == READLOG_OFF)
        explain_amount(scan, row, &printed, unit, way, tokens);
    row_reason(row, "%" PRIu64 " tokens x %" PRIu64 " bytes (%s)", tokens, token, way->k->name);
}

void readlog_sglang(struct scan *scan, const char *text)
{
    static const struct {
        const char *label, *quantity;
        bool k_only, v_only;
    } sizes[] = {{" K size:", "kv_k_bytes", true, false},
                 {" V size:", "kv_v_bytes", false, true},
                 {" KV size:", "kv_bytes", false, false}};
    take_facts(scan, text);
    const char *at = line_after(text, "KV Cache is allocated.");
    struct printed tokens = {0};
    if (!at)
        return;
    const struct plan_type *type = kv_type_of(scan, scan->facts.cache_type);
    int64_t ranks = scan->options->ranks ? scan->options->ranks : scan->facts.ranks;
    if (line_number(&tokens, at, "#tokens:") && tokens.decimals == 0) {
        struct readlog_row *row = scan_row(scan, engine, "kv_capacity_tokens");
        row_reported(row, &tokens, "tokens");
        row->verdict = READLOG_CAPACITY;
        row_reason(row, "capacity, not use");
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const char *size = line_after(at, sizes[i].label);
        struct kv_way way = {.k = type,
                             .v = type,
                             .ranks = ranks > 0 ? ranks : 1,
                             .part = PART_ALL,
                             .k_only = sizes[i].k_only,
                             .v_only = sizes[i].v_only};
        if (size)
            size_row(scan, sizes[i].quantity, size, &way, tokens.digits);
    }
}
