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

/* ---- the formula on one rank ------------------------------------------------------------------------------------- */

static int64_t ranks_of(const struct scan *scan)
{
    int64_t ranks = scan->options->ranks ? scan->options->ranks : scan->facts.ranks;
    return ranks > 0 ? ranks : 1;
}

static int64_t block_of(const struct scan *scan)
{
    return scan->facts.block_size ? scan->facts.block_size : profile_of(ENGINE_VLLM)->block_size;
}

static bool way_of(const struct scan *scan, struct kv_way *way)
{
    const struct plan_type *type = kv_type_of(scan, scan->facts.cache_type);
    *way = (struct kv_way){.k = type, .v = type, .ranks = ranks_of(scan), .part = PART_ALL};
    return type != NULL;
}

/* Bytes of a token on the fullest rank. Stages take the layers in nearly equal parts. */
static uint64_t token_bytes(const struct scan *scan, const struct kv_way *way)
{
    uint64_t bytes = kv_way_bytes(scan->options->shape, way);
    int64_t stages = scan->facts.stages > 1 ? scan->facts.stages : 1,
            layers = kv_way_layers(scan->options->shape, PART_ALL);
    if (stages == 1 || layers == 0 || bytes % (uint64_t)layers != 0)
        return bytes;
    return bytes / (uint64_t)layers * (uint64_t)((layers + stages - 1) / stages);
}

/* Layers with windows or states make groups, for which blocks and tokens mean something else. */
static bool is_plain(const struct scan *scan)
{
    const struct shape *shape = scan->options->shape;
    return shape_layers_of_kind(shape, LAYER_FULL) + shape_layers_of_kind(shape, LAYER_LATENT) == shape->layer_count;
}

/* Whole blocks in an amount that was printed to its last digit: between those of the least and the most it can be. */
static bool blocks_in(const struct printed *amount, const struct byte_unit *unit, uint64_t block, uint64_t *least,
                      uint64_t *middle, uint64_t *most)
{
    long double bytes = printed_value(amount) * (long double)unit->bytes, half = (long double)unit->bytes / 2;
    for (int i = 0; i < amount->decimals; i++)
        half /= 10;
    if (block == 0 || bytes + half > 9e18L)
        return false;
    *least = bytes > half ? (uint64_t)(bytes - half) / block : 0;
    *middle = (uint64_t)bytes / block;
    *most = (uint64_t)(bytes + half) / block;
    return true;
}

struct count_check {
    uint64_t count;     /* as reported */
    uint64_t per_count; /* blocks in one: 1 for blocks */
    const struct printed *amount;
    const struct byte_unit *unit;
};

/* `slack`: percent that may be missing, as where another rank has less memory. */
static bool count_fits(const struct scan *scan, const struct count_check *check, const struct kv_way *way, int slack)
{
    uint64_t least, middle, most, block = kv_times(token_bytes(scan, way), (uint64_t)block_of(scan));
    return blocks_in(check->amount, check->unit, block, &least, &middle, &most) &&
           check->count / check->per_count >= least - least / 100 * (uint64_t)slack &&
           check->count / check->per_count <= most;
}

/* Why there are more or fewer blocks than the memory and the formula give. */
static void explain_count(const struct scan *scan, struct readlog_row *row, const struct count_check *check,
                          const struct kv_way *way)
{
    static const char *const types[] = {"f32", "f16", "fp8"};
    const struct shape *shape = scan->options->shape;
    struct error ignored;
    struct kv_way other = *way;
    other.query_heads = true;
    if (count_fits(scan, check, &other, 0)) {
        row_reason(row, "as if K and V had the %" PRId64 " query heads instead of %" PRId64 " KV heads",
                   shape->query_heads, shape->kv_heads);
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        other = *way;
        if (plan_type_find(&other.k, types[i], "kv-dtype", true, &ignored) == STATUS_OK &&
            (other.v = other.k) != way->v && count_fits(scan, check, &other, 0)) {
            row_reason(row, "as a cache in %s", types[i]);
            return;
        }
    }
    for (int slack = 0; slack <= 3; slack += 3)
        for (int64_t ranks = 1; ranks <= 64; ranks *= 2) {
            other = *way;
            other.ranks = ranks;
            if (ranks == way->ranks || !count_fits(scan, check, &other, slack))
                continue;
            row_reason(row, "%s on one of %" PRId64 " ranks%s", slack ? "nearly as" : "as", ranks,
                       ranks > shape->kv_heads ? ", which hold replicated KV heads" : "");
            return;
        }
    row_reason(row, row->ratio < 1 ? "fewer: the rank with the least memory decides for all, or memory went elsewhere"
                                   : "more than the memory holds by the formula");
}

/* Blocks or tokens against the memory that the log gave for them. */
static void check_count(struct scan *scan, struct readlog_row *row, const struct printed *printed, uint64_t count,
                        uint64_t per_block)
{
    struct kv_way way;
    uint64_t least, middle, most;
    if (!way_of(scan, &way) || !is_plain(scan)) {
        row_reason(row, "a type or layers that this formula does not cover");
        return;
    }
    uint64_t token = token_bytes(scan, &way), block = kv_times(token, (uint64_t)block_of(scan));
    row->formula_bytes_per_token = token;
    if (!scan->facts.has_available) {
        uint64_t bytes = kv_times(block, per_block ? count / per_block : 0);
        if (bytes)
            row_reason(row, "%.2Lf GiB by the formula, %" PRIu64 " bytes a token", (long double)bytes / (long double)GI,
                       token);
        return;
    }
    const struct byte_unit *gib = byte_unit_find("GiB", 3);
    if (!blocks_in(&scan->facts.available, gib, block, &least, &middle, &most))
        return;
    row_formula(row, printed, (long double)kv_times(middle, per_block));
    uint64_t blocks = count / per_block;
    row->verdict = blocks == middle && count % per_block == 0 ? READLOG_EXACT
                   : blocks >= least && blocks <= most        ? READLOG_ROUNDED
                                                              : READLOG_OFF;
    if (count)
        row->implied_bytes_per_token =
            row->verdict == READLOG_OFF
                ? (uint64_t)(printed_value(&scan->facts.available) * (long double)GI / (long double)count *
                             (long double)per_block / (long double)block_of(scan))
                : token;
    if (row->verdict == READLOG_OFF)
        explain_count(scan, row, &(struct count_check){count, per_block, &scan->facts.available, gib}, &way);
    row_reason(row, "the memory printed before, over blocks of %" PRId64 " tokens of %" PRIu64 " bytes", block_of(scan),
               token);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void available_row(struct scan *scan, const struct printed *printed, const struct byte_unit *unit)
{
    struct readlog_row *row = scan_row(scan, engine, "kv_capacity_bytes");
    struct kv_way way;
    row_reported(row, printed, unit->name);
    row->verdict = READLOG_CAPACITY;
    row_reason(row, "capacity, not use");
    scan->facts.has_available = unit->bytes == GI;
    scan->facts.available = *printed;
    if (way_of(scan, &way) && is_plain(scan)) {
        uint64_t token = token_bytes(scan, &way);
        row->formula_bytes_per_token = token;
        if (token)
            row_reason(row, "room for %.0Lf tokens of %" PRIu64 " bytes",
                       floorl(printed_value(printed) * (long double)unit->bytes / (long double)token), token);
    }
}

static void blocks_rows(struct scan *scan, const char *text, const struct printed *blocks)
{
    struct readlog_row *row = scan_row(scan, engine, "kv_capacity_blocks");
    struct printed cpu;
    struct kv_way way;
    row_reported(row, blocks, "blocks");
    row->verdict = READLOG_CAPACITY;
    scan->facts.tokens = kv_times(blocks->digits, (uint64_t)block_of(scan));
    row_reason(row, "capacity, not use: %" PRIu64 " tokens", scan->facts.tokens);
    check_count(scan, row, blocks, blocks->digits, 1);
    if (!line_number(&cpu, text, "# CPU blocks:") || cpu.digits == 0 || cpu.decimals > 0)
        return;
    row = scan_row(scan, engine, "kv_swap_blocks");
    row_reported(row, &cpu, "blocks");
    uint64_t swap = scan->facts.swap_bytes ? scan->facts.swap_bytes : 4 * GI;
    uint64_t block =
        way_of(scan, &way) && is_plain(scan) ? kv_times(token_bytes(scan, &way), (uint64_t)block_of(scan)) : 0;
    if (!block)
        return;
    uint64_t fit = swap / block;
    row_formula(row, &cpu, (long double)fit);
    row->formula_bytes_per_token = token_bytes(scan, &way);
    row->verdict = cpu.digits == fit ? READLOG_EXACT : READLOG_OFF;
    row->implied_bytes_per_token = swap / cpu.digits / (uint64_t)block_of(scan);
    if (row->verdict == READLOG_EXACT)
        row->implied_bytes_per_token = row->formula_bytes_per_token;
    else
        explain_count(scan, row,
                      &(struct count_check){cpu.digits, 1, &(struct printed){swap, 0}, byte_unit_find("B", 1)}, &way);
    row_reason(row, "swap space of %.0Lf GiB a rank over a block", (long double)swap / (long double)GI);
}

static void tokens_row(struct scan *scan, const struct printed *tokens)
{
    struct readlog_row *row = scan_row(scan, engine, "kv_capacity_tokens");
    row_reported(row, tokens, "tokens");
    row->verdict = READLOG_CAPACITY;
    scan->facts.tokens = tokens->digits;
    row_reason(row, "capacity, not use");
    if (tokens->decimals == 0 && tokens->digits > 0)
        check_count(scan, row, tokens, tokens->digits, (uint64_t)block_of(scan));
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
    if (!scan->facts.tokens)
        return;
    struct quantity_value value = {.real = (long double)scan->facts.tokens / printed_value(&length)};
    enum printed_fit fit = printed_fit(&times, 1, &value);
    row_formula(row, &times, value.real);
    row->verdict = fit == FIT_EXACT ? READLOG_EXACT : fit == FIT_ROUNDED ? READLOG_ROUNDED : READLOG_OFF;
    row_reason(row, "%" PRIu64 " tokens / %" PRIu64 " of the longest request", scan->facts.tokens, length.digits);
    if (row->verdict == READLOG_OFF && !is_plain(scan))
        row_reason(row, "layers with windows or states need less than the whole length");
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
            available_row(scan, &printed, unit);
        }
    }
    for (int i = 0; i < 3; i++)
        if (line_number(&printed, text, blocks[i]) && printed.decimals == 0)
            blocks_rows(scan, text, &printed);
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
    row_reported(row, usage, "of capacity");
    row->verdict = READLOG_USE;
    long double share = printed_value(usage);
    row_reason(row, "use, not capacity");
    if (!scan->facts.blocks) {
        row_reason(row, "the page does not say of how many blocks (vllm:cache_config_info)");
        return;
    }
    long double tokens = share * (long double)scan->facts.blocks * (long double)block_of(scan);
    row_reason(row, "%.0Lf of %.0Lf tokens", tokens, (long double)scan->facts.blocks * (long double)block_of(scan));
    if (way_of(scan, &way) && is_plain(scan)) {
        row->formula_bytes_per_token = token_bytes(scan, &way);
        row_reason(row, "%.1Lf MiB by the formula", tokens * (long double)row->formula_bytes_per_token / 1048576);
    }
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
            blocks_rows(scan, "", &(struct printed){(uint64_t)scan->facts.blocks, 0});
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
