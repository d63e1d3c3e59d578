/* vLLM's counts of blocks and tokens against the memory that its log gave for them. */
#include "engine/claims/readlog_scan.h"

#include <inttypes.h>

#define GI ((uint64_t)1 << 30)

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

/* What vLLM prints for so many blocks. */
static uint64_t count_of(const struct vllm_count *check, const struct vllm_pool *pool, uint64_t blocks)
{
    return check->of_tokens ? vllm_pool_tokens(pool, blocks) : blocks;
}

/* `slack`: percent that may be missing, as where another rank has less memory. */
static bool count_fits(const struct vllm_count *check, const struct vllm_pool *pool, int slack)
{
    uint64_t least, middle, most;
    return blocks_in(check->amount, check->unit, pool->block_bytes, &least, &middle, &most) &&
           check->count >= count_of(check, pool, least - least / 100 * (uint64_t)slack) &&
           check->count <= count_of(check, pool, most);
}

static bool way_fits(const struct scan *scan, const struct vllm_count *check, const struct kv_way *way, int slack)
{
    struct vllm_pool pool;
    return vllm_pool_now(&pool, scan, way) && count_fits(check, &pool, slack);
}

static bool fits_without_groups(const struct scan *scan, const struct vllm_count *check, const struct kv_way *way)
{
    struct vllm_pool pool;
    return !scan->facts.all_layers && vllm_pool(&pool, scan, way, true, 1, 1) && count_fits(check, &pool, 0);
}

/* Why there are more or fewer blocks than the memory and the formula give. */
void vllm_explain_count(const struct scan *scan, struct readlog_row *row, const struct vllm_count *check,
                        const struct kv_way *way)
{
    static const char *const types[] = {"f32", "f16", "fp8"};
    const struct shape *shape = scan->options->shape;
    struct error ignored;
    struct kv_way other = *way;
    if (fits_without_groups(scan, check, way)) {
        row_reason(row, "as without groups of layers (hybrid KV cache manager off): all layers hold every token");
        return;
    }
    other.query_heads = true;
    if (way_fits(scan, check, &other, 0)) {
        row_reason(row, "as if K and V had the %" PRId64 " query heads instead of %" PRId64 " KV heads",
                   shape->query_heads, shape->kv_heads);
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        other = *way;
        if (plan_type_find(&other.k, types[i], "kv-dtype", true, &ignored) == STATUS_OK &&
            (other.v = other.k) != way->v && way_fits(scan, check, &other, 0)) {
            row_reason(row, "as a cache in %s", types[i]);
            return;
        }
    }
    for (int slack = 0; slack <= 3; slack += 3)
        for (int64_t ranks = 1; ranks <= 64; ranks *= 2) {
            other = *way;
            other.ranks = ranks;
            if (ranks == way->ranks || !way_fits(scan, check, &other, slack))
                continue;
            row_reason(row, "%s on one of %" PRId64 " ranks%s", slack ? "nearly as" : "as", ranks,
                       ranks > shape->kv_heads ? ", which hold replicated KV heads" : "");
            return;
        }
    row_reason(row, row->ratio < 1 ? "fewer: the rank with the least memory decides for all, or memory went elsewhere"
                                   : "more than the memory holds by the formula");
}

static void say_blocks(struct readlog_row *row, const struct vllm_pool *pool)
{
    if (pool->groups == 1)
        row_reason(row, "the memory printed before, over blocks of %" PRIu64 " tokens of %" PRIu64 " bytes",
                   pool->block_tokens, vllm_pool_token_bytes(pool));
    else
        row_reason(row,
                   "the memory printed before, over blocks of %" PRIu64 " tokens and %" PRIu64 " bytes; %" PRIu64
                   " groups of layers share them",
                   pool->block_tokens, pool->block_bytes, pool->groups);
}

/* Blocks or tokens against the memory that the log gave for them. */
void vllm_check_count(struct scan *scan, struct readlog_row *row, const struct printed *printed, bool of_tokens)
{
    const struct byte_unit *gib = byte_unit_find("GiB", 3);
    struct vllm_count check = {printed->digits, of_tokens, &scan->facts.available, gib};
    struct kv_way way;
    struct vllm_pool pool;
    uint64_t least, middle, most;
    vllm_way(scan, &way);
    if (!vllm_pool_now(&pool, scan, &way)) {
        row_reason(row, "%s", pool.problem);
        return;
    }
    if (of_tokens && !pool.block_tokens) {
        row_reason(row, "a model of states alone has no tokens to count");
        return;
    }
    uint64_t token = vllm_pool_token_bytes(&pool);
    row->formula_bytes_per_token = token;
    if (!scan->facts.has_available) {
        uint64_t blocks = of_tokens ? kv_times(check.count / pool.block_tokens, pool.groups) : check.count;
        uint64_t bytes = kv_times(pool.block_bytes, blocks);
        if (bytes)
            row_reason(row, "%.2Lf GiB by the formula, %" PRIu64 " bytes a token", (long double)bytes / (long double)GI,
                       token);
        return;
    }
    if (!blocks_in(&scan->facts.available, gib, pool.block_bytes, &least, &middle, &most))
        return;
    uint64_t formula = count_of(&check, &pool, middle);
    row_formula(row, printed, (long double)formula);
    row->verdict = check.count == formula         ? READLOG_EXACT
                   : count_fits(&check, &pool, 0) ? READLOG_ROUNDED
                                                  : READLOG_OFF;
    long double tokens = (long double)check.count;
    if (!of_tokens)
        tokens = tokens * (long double)pool.block_tokens / (long double)pool.groups;
    if (tokens > 0)
        row->implied_bytes_per_token =
            row->verdict == READLOG_OFF ? (uint64_t)(printed_value(&scan->facts.available) * (long double)GI / tokens)
                                        : token;
    if (row->verdict == READLOG_OFF)
        vllm_explain_count(scan, row, &check, &way);
    say_blocks(row, &pool);
}
