/* vLLM: its log and its Prometheus page. Formats by age:

     INFO gpu_executor.py:122] # GPU blocks: 1330, # CPU blocks: 2048                          V0; "# CUDA blocks" since
   0.8 INFO worker.py:241] ...; the rest of the memory reserved for KV Cache is 3.09GiB.         V0 INFO
   [kv_cache_utils.py:1286] GPU KV cache size: 686,320 tokens                           V1 INFO [kv_cache_utils.py:1291]
   Maximum concurrency for 100,000 tokens per request: 6.86x   both INFO [gpu_worker.py:359] Available KV cache
   memory: 52.36 GiB                             V1

   Rules (vllm/v1/core/kv_cache_utils.py, vllm/worker/cache_engine.py): a block is block_size tokens (16 unless said) of
   all layers on one rank; the memory that is left is divided by it and rounded down; tokens are blocks times
   block_size; concurrency is tokens over the maximum length; CPU blocks are the swap space (4 GiB a rank unless said)
   over a block. */
#include "engine/claims/readlog_scan.h"
#include "engine/plan/profile.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char engine[] = "vllm";
#define GI ((uint64_t)1 << 30)
/* max_num_batched_tokens of cards from 70 GiB on (EngineArgs.get_batch_defaults; engine/plan/plan.c). */
enum { LARGE_CARD_BATCH = 8192 };

/* ---- facts: "tensor_parallel_size=2", "'block_size': 16", "--block-size 32" ---------------------------------------
 */

static void argument(int64_t *fact, const char *text, const char *name)
{
    const char *at = line_after(text, name);
    int64_t count;
    if (at && line_count(&count, at + strspn(at, "'\" =:"), "") && count > 0 && count < 1 << 30)
        *fact = count;
}

static void take_facts(struct scan *scan, const char *text)
{
    struct log_facts *facts = &scan->facts;
    static const char *const types[] = {"kv_cache_dtype=", "'kv_cache_dtype': ", "--kv-cache-dtype "};
    argument(&facts->ranks, text, "tensor_parallel_size");
    argument(&facts->ranks, text, "tensor-parallel-size");
    argument(&facts->stages, text, "pipeline_parallel_size");
    argument(&facts->stages, text, "pipeline-parallel-size");
    argument(&facts->block_size, text, "block_size");
    argument(&facts->block_size, text, "block-size");
    argument(&facts->max_length, text, "max_seq_len=");
    argument(&facts->batch_tokens, text, "max_num_batched_tokens");
    argument(&facts->batch_tokens, text, "max-num-batched-tokens");
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const char *at = line_after(text, types[i]);
        if (at)
            line_word(facts->cache_type, sizeof facts->cache_type, at + (*at == '\'' || *at == '"'));
    }
    const char *at = line_after(text, "swap_space_bytes=\"");
    int64_t swap;
    if (at && line_count(&swap, at, ""))
        facts->swap_bytes = (uint64_t)swap;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void available_row(struct scan *scan, const struct printed *printed, const struct byte_unit *unit)
{
    struct readlog_row *row = scan_row(scan, engine, "kv_capacity_bytes");
    struct kv_way way;
    struct vllm_pool pool;
    row_reported(row, printed, unit->name);
    row->verdict = READLOG_CAPACITY;
    row_reason(row, "capacity, not use");
    scan->facts.has_available = unit->bytes == GI;
    scan->facts.available = *printed;
    vllm_way(scan, &way);
    if (!vllm_pool_now(&pool, scan, &way)) {
        row_reason(row, "%s", pool.problem);
        return;
    }
    long double bytes = printed_value(printed) * (long double)unit->bytes;
    uint64_t token = vllm_pool_token_bytes(&pool);
    row->formula_bytes_per_token = token;
    if (token && pool.groups == 1)
        row_reason(row, "room for %.0Lf tokens of %" PRIu64 " bytes", floorl(bytes / (long double)token), token);
    else if (bytes < 9e18L)
        row_reason(row, "room for %" PRIu64 " tokens in blocks of %" PRIu64 " bytes, %" PRIu64 " groups of layers",
                   vllm_pool_tokens(&pool, (uint64_t)bytes / pool.block_bytes), pool.block_bytes, pool.groups);
}

/* CPU blocks came with blocks of all layers. */
static void swap_row(struct scan *scan, const struct printed *cpu)
{
    struct readlog_row *row = scan_row(scan, engine, "kv_swap_blocks");
    uint64_t swap = scan->facts.swap_bytes ? scan->facts.swap_bytes : 4 * GI;
    struct kv_way way;
    struct vllm_pool pool;
    row_reported(row, cpu, "blocks");
    vllm_way(scan, &way);
    if (!vllm_pool_now(&pool, scan, &way)) {
        row_reason(row, "%s", pool.problem);
        return;
    }
    uint64_t blocks = swap / pool.block_bytes;
    row_formula(row, cpu, (long double)blocks);
    row->formula_bytes_per_token = vllm_pool_token_bytes(&pool);
    row->verdict = cpu->digits == blocks ? READLOG_EXACT : READLOG_OFF;
    row->implied_bytes_per_token = swap / cpu->digits / (uint64_t)vllm_block_size(scan);
    if (row->verdict == READLOG_EXACT)
        row->implied_bytes_per_token = row->formula_bytes_per_token;
    else
        vllm_explain_count(scan, row,
                           &(struct vllm_count){cpu->digits, false, &(struct printed){swap, 0}, byte_unit_find("B", 1)},
                           &way);
    row_reason(row, "swap space of %.0Lf GiB a rank over a block", (long double)swap / (long double)GI);
}

/* `all_layers`: of a log before groups of layers. */
static void blocks_rows(struct scan *scan, const char *text, const struct printed *blocks, bool all_layers)
{
    struct readlog_row *row = scan_row(scan, engine, "kv_capacity_blocks");
    struct printed cpu;
    struct kv_way way;
    struct vllm_pool pool;
    scan->facts.all_layers = all_layers;
    row_reported(row, blocks, "blocks");
    row->verdict = READLOG_CAPACITY;
    vllm_way(scan, &way);
    bool known = vllm_pool_now(&pool, scan, &way);
    scan->facts.tokens =
        known ? vllm_pool_tokens(&pool, blocks->digits) : kv_times(blocks->digits, (uint64_t)vllm_block_size(scan));
    if (known || all_layers)
        row_reason(row, "capacity, not use: %" PRIu64 " tokens", scan->facts.tokens);
    else
        row_reason(row, "capacity, not use");
    vllm_check_count(scan, row, blocks, false);
    if (line_number(&cpu, text, "# CPU blocks:") && cpu.digits > 0 && cpu.decimals == 0)
        swap_row(scan, &cpu);
}

static void tokens_row(struct scan *scan, const struct printed *tokens)
{
    struct readlog_row *row = scan_row(scan, engine, "kv_capacity_tokens");
    row_reported(row, tokens, "tokens");
    row->verdict = READLOG_CAPACITY;
    scan->facts.tokens = tokens->digits;
    scan->facts.all_layers = false;
    row_reason(row, "capacity, not use");
    if (tokens->decimals == 0 && tokens->digits > 0)
        vllm_check_count(scan, row, tokens, true);
}

/* The blocks that a capacity was printed for: as many as that, and up to one less than another for each group. */
static enum printed_fit concurrency_fit(const struct printed *times, const struct vllm_pool *pool, uint64_t blocks,
                                        struct quantity_value *value)
{
    for (uint64_t more = 0; more < pool->groups; more++) {
        *value = (struct quantity_value){.real = (long double)(blocks + more) / (long double)pool->blocks_per_sequence};
        enum printed_fit fit = printed_fit(times, 1, value);
        if (fit == FIT_EXACT || fit == FIT_ROUNDED)
            return fit;
    }
    *value = (struct quantity_value){.real = (long double)blocks / (long double)pool->blocks_per_sequence};
    return FIT_NONE;
}

/* Blocks over those of one request of the longest length (max_memory_usage_bytes). Windowed layers need them for a
   step's tokens too; where the log does not say how many, both of vLLM's defaults are tried. */
static void check_concurrency(struct scan *scan, struct readlog_row *row, const struct printed *times, int64_t length)
{
    const int64_t defaults[] = {profile_of(ENGINE_VLLM)->batch_tokens, LARGE_CARD_BATCH},
                  *batches = scan->facts.batch_tokens ? &scan->facts.batch_tokens : defaults;
    struct kv_way way;
    struct vllm_pool pool;
    struct quantity_value value;
    enum printed_fit fit = FIT_NONE;
    int64_t batch = 0;
    uint64_t blocks = 0;
    struct error ignored;
    if (!vllm_way(scan, &way) && plan_type_find(&way.k, "bf16", "kv-dtype", true, &ignored) == STATUS_OK)
        way.v = way.k; /* blocks of a request are the same in any type */
    for (int i = 0; fit == FIT_NONE && i < (scan->facts.batch_tokens ? 1 : 2); i++) {
        batch = batches[i];
        if (!vllm_pool(&pool, scan, &way, scan->facts.all_layers, length, batch) || !pool.block_tokens) {
            row_reason(row, "%s", pool.problem[0] ? pool.problem : "states alone have no tokens to count");
            return;
        }
        blocks = kv_times(scan->facts.tokens / pool.block_tokens, pool.groups);
        fit = concurrency_fit(times, &pool, blocks, &value);
    }
    row_formula(row, times, value.real);
    row->verdict = fit == FIT_EXACT ? READLOG_EXACT : fit == FIT_ROUNDED ? READLOG_ROUNDED : READLOG_OFF;
    bool windows = shape_window(scan->options->shape) > 0 && !scan->facts.all_layers;
    if (pool.groups == 1 && !windows)
        row_reason(row, "%" PRIu64 " tokens / %" PRId64 " of the longest request", scan->facts.tokens, length);
    else
        row_reason(
            row, "%" PRIu64 " blocks / %" PRIu64 " of a request of %" PRId64 " tokens, in steps of %" PRId64 " tokens",
            blocks, pool.blocks_per_sequence, length, batch);
    struct quantity_value plain = {.real = (long double)scan->facts.tokens / (long double)length};
    if (row->verdict == READLOG_OFF && printed_fit(times, 1, &plain) == FIT_ROUNDED)
        row_reason(row, "as if every layer held the whole request");
}

static void concurrency_row(struct scan *scan, const char *after)
{
    struct printed length, times;
    struct readlog_row *row;
    if (!line_number(&length, after, "") || length.digits == 0 || !line_number(&times, after, "per request"))
        return;
    row = scan_row(scan, engine, "max_concurrency");
    row_reported(row, &times, "x");
    row->verdict = READLOG_CAPACITY;
    row_reason(row, "capacity, not use");
    if (scan->facts.tokens && length.decimals == 0)
        check_concurrency(scan, row, &times, (int64_t)length.digits);
}

void readlog_vllm(struct scan *scan, const char *text)
{
    static const char *const available[] = {"Available KV cache memory:", "memory reserved for KV Cache is"};
    static const char *const blocks[] = {"# GPU blocks:", "# CUDA blocks:", "# cuda blocks:"};
    struct printed printed;
    const struct byte_unit *unit;
    const char *at;
    take_facts(scan, text);
    for (int i = 0; i < 2; i++) {
        at = line_after(text, available[i]);
        if (at && at[strspn(at, " ")] == '-') {
            struct readlog_row *row = scan_row(scan, engine, "kv_capacity_bytes");
            line_word(row->reported, sizeof row->reported, at + strspn(at, " "));
            row->verdict = READLOG_CAPACITY;
            row_reason(row, "nothing is left for a cache: weights and activations take more than the share of memory");
        } else if (at && line_amount(&printed, &unit, at)) {
            scan->facts.all_layers = i == 1; /* V0's line */
            available_row(scan, &printed, unit);
        }
    }
    for (int i = 0; i < 3; i++)
        if (line_number(&printed, text, blocks[i]) && printed.decimals == 0)
            blocks_rows(scan, text, &printed, true);
    if (line_number(&printed, text, "GPU KV cache size:") && strstr(text, "tokens"))
        tokens_row(scan, &printed);
    at = line_after(text, "that can be stored in KV cache (");
    if (at && line_number(&printed, at, ""))
        tokens_row(scan, &printed);
    at = line_after(text, "Maximum concurrency for");
    if (at)
        concurrency_row(scan, at);
}

/* ---- Prometheus: vllm:kv_cache_usage_perc{engine="0",...} 0.3412 ---------------------------------------------------
 */

/* The value of a sample of this name, with or without labels; HELP and TYPE lines and longer names are none. */
static bool sample(struct printed *printed, const char *text, const char *name)
{
    size_t length = strlen(name);
    text += strspn(text, " \t");
    if (strncmp(text, name, length) != 0 || (text[length] != '{' && text[length] != ' '))
        return false;
    const char *at = text + length;
    if (*at == '{')
        at = strrchr(at, '}'); /* a label's value may hold one too */
    if (!at)
        return false;
    at += 1 + strspn(at + 1, " ");
    return printed_read(printed, at, strnlen(at, 40)) > 0;
}

static void usage_row(struct scan *scan, const struct printed *usage)
{
    struct readlog_row *row = scan_row(scan, engine, "kv_usage");
    struct kv_way way;
    struct vllm_pool pool;
    row_reported(row, usage, "of capacity");
    row->verdict = READLOG_USE;
    long double share = printed_value(usage);
    row_reason(row, "use, not capacity");
    if (!scan->facts.blocks) {
        row_reason(row, "the page does not say of how many blocks (vllm:cache_config_info)");
        return;
    }
    vllm_way(scan, &way);
    if (!vllm_pool_now(&pool, scan, &way)) {
        row_reason(row, "%s", pool.problem);
        return;
    }
    long double blocks = share * (long double)scan->facts.blocks, all = (long double)scan->facts.tokens;
    row->formula_bytes_per_token = vllm_pool_token_bytes(&pool);
    row_reason(row, "%.0Lf of %.0Lf tokens", share * all, all);
    row_reason(row, "%.1Lf MiB by the formula", blocks * (long double)pool.block_bytes / 1048576);
}

void readlog_prometheus(struct scan *scan, const char *text)
{
    static const struct {
        const char *metric, *quantity, *unit, *reason;
    } counts[] = {
        {"vllm:num_requests_running", "requests_running", "requests", "in the batch now: these hold blocks"},
        {"vllm:num_requests_waiting", "requests_waiting", "requests", "waiting: these hold no blocks"},
    };
    static const char *const usage[] = {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"};
    struct printed printed;
    if (!strstr(text, "vllm:"))
        return;
    if (sample(&printed, text, "vllm:cache_config_info")) {
        argument(&scan->facts.blocks, text, "num_gpu_blocks=");
        const char *at = line_after(text, "cache_dtype=\"");
        if (at)
            line_word(scan->facts.cache_type, sizeof scan->facts.cache_type, at);
        if (scan->facts.blocks && !strstr(text, "num_gpu_blocks=\"None\""))
            blocks_rows(scan, "", &(struct printed){(uint64_t)scan->facts.blocks, 0}, false);
    }
    for (int i = 0; i < 2; i++)
        if (sample(&printed, text, usage[i]))
            usage_row(scan, &printed);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (sample(&printed, text, counts[i].metric)) {
            struct readlog_row *row = scan_row(scan, engine, counts[i].quantity);
            row_reported(row, &printed, counts[i].unit);
            row->verdict = READLOG_USE;
            row_reason(row, "%s", counts[i].reason);
        }
}
