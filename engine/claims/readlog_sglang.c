/* SGLang, one line per rank (python/sglang/srt/mem_cache/memory_pool.py):

     [2026-02-09 03:51:05] KV Cache is allocated. #tokens: 20480, K size: 1.25 GB, V size: 1.25 GB
     [2026-03-11 13:53:23 TP0] KV Cache is allocated. #tokens: 383872, KV size: 19.36 GB          latent attention
     KV Cache is allocated. K size: 1.25 GB, V size: 1.25 GB.                                     before tokens were
   printed KV Cache is allocated. dtype: torch.bfloat16, #tokens: 10,097,100, K size: ...               2026

   GB is 1024^3 there. A pool has one page of tokens more than it says, for slot 0; a page is a token unless said.
   Windowed models that have two pools say so before (model_runner_kv_cache_mixin.py) and after (swa_memory_pool.py);
   the lines of the two pools themselves do not tell which is which:

     Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288
     SWAKVPool mem usage: 77.63 GB, swa size: 1496958, full size: 1496958 */
#include "engine/claims/readlog_scan.h"

#include <inttypes.h>
#include <string.h>

static const char engine[] = "sglang";
enum { MOST_COUNT = 1 << 20 /* ranks, tokens of a page */, MOST_RANKS = 64 /* that are tried */ };

static void argument(int64_t *fact, const char *text, const char *name)
{
    const char *at = line_after(text, name);
    int64_t count;
    if (at && line_count(&count, at, "") && count > 0 && count < MOST_COUNT)
        *fact = count;
}

static void take_facts(struct scan *scan, const char *text)
{
    argument(&scan->facts.ranks, text, "tp_size=");
    argument(&scan->facts.ranks, text, "--tp-size ");
    argument(&scan->facts.page, text, "page_size=");
    argument(&scan->facts.page, text, "--page-size ");
    const char *at = line_after(text, "KV cache dtype: ");
    if (!at)
        at = line_after(text, "is allocated. dtype: ");
    if (at)
        line_word(scan->facts.cache_type, sizeof scan->facts.cache_type, at);
}

static struct kv_way way_now(const struct scan *scan)
{
    const struct plan_type *type = kv_type_of(scan, scan->facts.cache_type);
    int64_t ranks = scan->options->ranks ? scan->options->ranks : scan->facts.ranks;
    return (struct kv_way){.k = type, .v = type, .ranks = ranks > 0 ? ranks : 1, .part = PART_ALL};
}

/* Tokens that a pool has room for. */
static uint64_t pool_tokens(const struct scan *scan, uint64_t tokens)
{
    uint64_t page = scan->facts.page ? (uint64_t)scan->facts.page : 1;
    return tokens <= UINT64_MAX - page ? tokens + page : UINT64_MAX;
}

static uint64_t pool_bytes(const struct scan *scan, const struct kv_way *way, uint64_t tokens)
{
    return kv_times(kv_way_bytes(scan->options->shape, way), pool_tokens(scan, tokens));
}

static const char *part_name(enum kv_part part)
{
    return part == PART_WINDOW ? "windowed" : part == PART_FULL ? "full" : "all";
}

/* ---- the two pools of windowed models ---------------------------------------------------------------------------- */

static bool has_two_pools(const struct shape *shape)
{
    return shape->sglang_pools && kv_way_layers(shape, PART_FULL) > 0 && kv_way_layers(shape, PART_WINDOW) > 0;
}

/* "Use sliding window memory pool.": the second pool has swa_full_tokens_ratio of the first one's tokens, 0.8 unless
   said, rounded down to pages. */
static void two_pools(struct scan *scan, const char *text)
{
    struct printed full, window;
    if (!line_number(&full, text, "full_layer_tokens=") || !line_number(&window, text, "swa_layer_tokens=") ||
        full.decimals || window.decimals || full.digits > UINT64_MAX / 4)
        return;
    scan->facts.full_tokens = full.digits;
    scan->facts.window_tokens = window.digits;
    struct readlog_row *row = scan_row(scan, engine, "kv_full_capacity_tokens");
    row_reported(row, &full, "tokens");
    row->verdict = READLOG_CAPACITY;
    row_reason(row, "capacity, not use");
    row = scan_row(scan, engine, "kv_window_capacity_tokens");
    row_reported(row, &window, "tokens");
    row->verdict = READLOG_CAPACITY;
    row_reason(row, "capacity, not use");
    if (!full.digits || !has_two_pools(scan->options->shape))
        return;
    uint64_t page = scan->facts.page ? (uint64_t)scan->facts.page : 1, share = full.digits * 4 / 5;
    row_formula(row, &window, (long double)(share - share % page));
    row->verdict = window.digits == share - share % page ? READLOG_EXACT : READLOG_OFF;
    if (row->verdict == READLOG_EXACT)
        row_reason(row, "0.8 of the full layers' tokens");
    else
        row_reason(row, "as with --swa-full-tokens-ratio %.3Lg", (long double)window.digits / (long double)full.digits);
}

/* The part of the layers that a pool of so many tokens holds: by its tokens where they tell, else by its amount. */
static bool part_of(const struct scan *scan, struct kv_way *way, const struct printed *printed,
                    const struct byte_unit *unit, uint64_t tokens)
{
    const struct log_facts *facts = &scan->facts;
    if (facts->full_tokens != facts->window_tokens &&
        (tokens == facts->full_tokens || tokens == facts->window_tokens)) {
        way->part = tokens == facts->full_tokens ? PART_FULL : PART_WINDOW;
        return true;
    }
    struct kv_way other = *way;
    for (; other.ranks <= MOST_RANKS; other.ranks *= 2)
        for (other.part = PART_ALL; other.part <= PART_WINDOW; other.part++)
            if (amount_is(printed, unit, pool_bytes(scan, &other, tokens))) {
                way->part = other.part; /* the ranks stay those that are known: the row is off, and says why */
                return true;
            }
    return false;
}

/* Both pools; 0 on overflow. */
static uint64_t both_pools(const struct scan *scan, struct kv_way way, uint64_t full_tokens, uint64_t window_tokens)
{
    uint64_t full, window, sum;
    way.part = PART_FULL;
    full = pool_bytes(scan, &way, full_tokens);
    way.part = PART_WINDOW;
    window = pool_bytes(scan, &way, window_tokens);
    return full && window && !__builtin_add_overflow(full, window, &sum) ? sum : 0;
}

static void both_pools_row(struct scan *scan, const char *text)
{
    const char *at = line_after(text, "SWAKVPool mem usage:");
    struct printed printed;
    const struct byte_unit *unit;
    int64_t window, full;
    if (!at || !line_amount(&printed, &unit, at))
        return;
    struct readlog_row *row = scan_row(scan, engine, "kv_bytes");
    struct kv_way way = way_now(scan);
    row_reported(row, &printed, unit->name);
    row->verdict = READLOG_CAPACITY;
    row_reason(row, "capacity, not use");
    if (!way.k || !has_two_pools(scan->options->shape) || !line_count(&window, at, "swa size:") ||
        !line_count(&full, at, "full size:")) {
        row_reason(row, way.k ? "two pools, which SGLang does not give this model" : "the cache's type is not known");
        return;
    }
    uint64_t bytes = both_pools(scan, way, (uint64_t)full, (uint64_t)window);
    if (!bytes)
        return;
    row_compare(row, &printed, unit, bytes);
    row_reason(row, "both pools together, --tp %" PRId64, way.ranks);
    struct kv_way other = way;
    for (other.ranks = 1; row->verdict == READLOG_OFF && other.ranks <= MOST_RANKS; other.ranks *= 2)
        if (amount_is(&printed, unit, both_pools(scan, other, (uint64_t)full, (uint64_t)window)))
            row_reason(row, "as on one of %" PRId64 " ranks", other.ranks);
}

/* ---- one pool ---------------------------------------------------------------------------------------------------- */

static void size_row(struct scan *scan, const char *quantity, const char *after, struct kv_way way, uint64_t tokens)
{
    struct printed printed;
    const struct byte_unit *unit;
    const struct shape *shape = scan->options->shape;
    if (!line_amount(&printed, &unit, after))
        return;
    struct readlog_row *row = scan_row(scan, engine, quantity);
    row_reported(row, &printed, unit->name);
    row->verdict = READLOG_CAPACITY;
    row_reason(row, "capacity, not use");
    if (!way.k || !tokens) {
        row_reason(row, way.k ? "the line does not say for how many tokens" : "the cache's type is not known");
        return;
    }
    if (has_two_pools(shape) && !part_of(scan, &way, &printed, unit, tokens)) {
        row_reason(row,
                   "not judged: one of two pools, and neither that of the %" PRId64 " full nor that of the %" PRId64
                   " windowed layers takes this, --tp %" PRId64,
                   kv_way_layers(shape, PART_FULL), kv_way_layers(shape, PART_WINDOW), way.ranks);
        return;
    }
    uint64_t token = kv_way_bytes(shape, &way);
    if (!token)
        return;
    const struct byte_unit *really = row_compare(row, &printed, unit, pool_bytes(scan, &way, tokens));
    row->formula_bytes_per_token = token;
    row->implied_bytes_per_token =
        row->verdict == READLOG_OFF
            ? (uint64_t)(printed_value(&printed) * (long double)really->bytes / (long double)tokens)
            : token;
    if (row->verdict == READLOG_OFF)
        explain_amount(scan, row, &printed, unit, &way, tokens);
    row_reason(row, "%" PRIu64 " tokens x %" PRIu64 " bytes (%s)", tokens, token, way.k->name);
    if (has_two_pools(shape))
        row_reason(row, "the pool of the %" PRId64 " %s layers", kv_way_layers(shape, way.part), part_name(way.part));
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
    two_pools(scan, text);
    both_pools_row(scan, text);
    const char *at = line_after(text, "KV Cache is allocated.");
    struct printed tokens = {0};
    if (!at)
        return;
    if (line_number(&tokens, at, "#tokens:") && tokens.decimals == 0) {
        struct readlog_row *row = scan_row(scan, engine, "kv_capacity_tokens");
        row_reported(row, &tokens, "tokens");
        row->verdict = READLOG_CAPACITY;
        row_reason(row, "capacity, not use");
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const char *size = line_after(at, sizes[i].label);
        struct kv_way way = way_now(scan);
        way.k_only = sizes[i].k_only;
        way.v_only = sizes[i].v_only;
        if (size)
            size_row(scan, sizes[i].quantity, size, way, tokens.digits);
    }
}
