/* What a cache takes under an engine's rules, and, where an engine's own number is another, in which other way it comes
   out: each known mistake is computed, none is guessed. */
#include "engine/claims/readlog_scan.h"

#include "engine/plan/plan_count.h"
#include "engine/plan/profile.h"

#include <inttypes.h>
#include <string.h>

static bool in_part(const struct layer_shape *layer, enum kv_part part)
{
    bool window = layer->kind == LAYER_WINDOW || layer->kind == LAYER_CHUNK;
    bool grows = layer->kind == LAYER_FULL || layer->kind == LAYER_LATENT;
    return part == PART_ALL ? window || grows : part == PART_FULL ? grows : window;
}

int64_t kv_way_layers(const struct shape *shape, enum kv_part part)
{
    int64_t count = 0;
    for (int64_t i = 0; i < shape->layer_count; i++)
        count += in_part(&shape->layers[i], part);
    return count;
}

int64_t shape_window(const struct shape *shape)
{
    for (int64_t i = 0; i < shape->layer_count; i++)
        if (in_part(&shape->layers[i], PART_WINDOW))
            return shape->layers[i].window;
    return 0;
}

uint64_t kv_way_bytes(const struct shape *shape, const struct kv_way *way)
{
    bool overflow = false;
    uint64_t sum = 0;
    for (int64_t i = 0; i < shape->layer_count; i++) {
        struct layer_shape layer = shape->layers[i];
        if (!in_part(&layer, way->part))
            continue;
        if (way->k_only)
            layer.v_dim = 0;
        if (way->v_only)
            layer.k_dim = 0;
        overflow |= !plan_type_divides(way->k, (uint64_t)layer.k_dim * (uint64_t)layer.kv_heads) ||
                    !plan_type_divides(way->v, (uint64_t)layer.v_dim * (uint64_t)layer.kv_heads);
        uint64_t bytes = way->query_heads ? layer_token_bytes_mha(&layer, way->k, way->v, &overflow)
                                          : layer_token_bytes(&layer, way->k, way->v, way->ranks, false, &overflow);
        sum = count_add(&overflow, sum, bytes);
    }
    return overflow ? 0 : sum;
}

uint64_t kv_times(uint64_t bytes, uint64_t tokens)
{
    uint64_t product;
    return __builtin_mul_overflow(bytes, tokens, &product) ? 0 : product;
}

const struct plan_type *kv_type_of(const struct scan *scan, const char *name)
{
    const struct plan_type *type = scan->options->kv_type;
    struct error ignored;
    if (type)
        return type;
    if (name && strncmp(name, "torch.", 6) == 0)
        name += 6;
    if (!name || !name[0] || strcmp(name, "auto") == 0)
        name = dtype_name(scan->options->shape->torch_dtype);
    else if (strncmp(name, "fp8", 3) == 0 || strncmp(name, "float8", 6) == 0)
        name = "fp8";
    return plan_type_find(&type, name, "kv-dtype", true, &ignored) == STATUS_OK ? type : NULL;
}

/* ---- reasons ----------------------------------------------------------------------------------------------------- */

struct question {
    const struct scan *scan;
    struct readlog_row *row;
    const struct printed *printed;
    const struct byte_unit *unit;
    struct kv_way way;
    uint64_t tokens;
};

static bool is_bytes(const struct question *q, const struct kv_way *way, uint64_t tokens)
{
    return amount_is(q->printed, q->unit, kv_times(kv_way_bytes(q->scan->options->shape, way), tokens));
}

static bool because_of_heads(const struct question *q)
{
    const struct shape *shape = q->scan->options->shape;
    struct kv_way way = q->way;
    way.query_heads = true;
    if (!is_bytes(q, &way, q->tokens))
        return false;
    row_reason(q->row, "as if K and V had the %" PRId64 " query heads instead of %" PRId64 " KV heads",
               shape->query_heads, shape->kv_heads);
    return true;
}

static bool because_of_type(const struct question *q)
{
    static const char *const names[] = {"f32", "f16", "fp8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"};
    struct error ignored;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct kv_way way = q->way;
        if (plan_type_find(&way.k, names[i], "kv-dtype", true, &ignored) != STATUS_OK)
            continue;
        way.v = way.k;
        if (is_bytes(q, &way, q->tokens)) {
            row_reason(q->row, "as a cache in %s%s", names[i], strcmp(names[i], "f16") == 0 ? " or bf16" : "");
            return true;
        }
        way.v = q->way.v;
        if (is_bytes(q, &way, q->tokens)) {
            row_reason(q->row, "as with K in %s and V in %s", names[i], q->way.v->name);
            return true;
        }
    }
    return false;
}

static int64_t kv_heads_of(const struct shape *shape, enum kv_part part)
{
    int64_t i = 0;
    while (i < shape->layer_count && !in_part(&shape->layers[i], part))
        i++;
    return i < shape->layer_count ? shape->layers[i].kv_heads : shape->kv_heads;
}

static bool because_of_ranks(const struct question *q)
{
    int64_t kv_heads = kv_heads_of(q->scan->options->shape, q->way.part);
    for (int64_t ranks = 2; ranks <= 64; ranks *= 2) {
        struct kv_way way = q->way;
        way.ranks = ranks;
        if (is_bytes(q, &way, q->tokens)) {
            row_reason(q->row, "one rank of %" PRId64 "%s: %" PRId64 " of %" PRId64 " KV heads", ranks,
                       ranks >= kv_heads ? " or more" : "", kv_heads > ranks ? kv_heads / ranks : 1, kv_heads);
            return true;
        }
        uint64_t all = kv_times(kv_way_bytes(q->scan->options->shape, &way), q->tokens);
        if (ranks > kv_heads && amount_is(q->printed, q->unit, kv_times(all, (uint64_t)ranks))) {
            row_reason(q->row, "%" PRId64 " ranks together, more than the %" PRId64 " KV heads: heads are replicated",
                       ranks, kv_heads);
            return true;
        }
    }
    return false;
}

static bool because_of_padding(const struct question *q)
{
    const uint64_t paddings[LLAMA_PADDINGS] = {OLD_PADDING, (uint64_t)profile_of(ENGINE_LLAMACPP)->block_size};
    for (size_t i = 0; i < LLAMA_PADDINGS; i++) {
        uint64_t padded = count_units(q->tokens, paddings[i]) * paddings[i];
        if (padded != q->tokens && is_bytes(q, &q->way, padded)) {
            row_reason(q->row, "the context of %" PRIu64 " is padded to %" PRIu64 ", a multiple of %" PRIu64, q->tokens,
                       padded, paddings[i]);
            return true;
        }
    }
    return false;
}

static bool because_of_known_slots(const struct question *q)
{
    int64_t slots = q->scan->options->slots ? q->scan->options->slots : q->scan->facts.n_seq_max;
    if (slots < 2 || !is_bytes(q, &q->way, kv_times(q->tokens, (uint64_t)slots)))
        return false;
    row_reason(q->row, "%" PRId64 " slots, each with the whole context", slots);
    return true;
}

static bool because_of_slots(const struct question *q)
{
    uint64_t one = kv_times(kv_way_bytes(q->scan->options->shape, &q->way), q->tokens);
    for (uint64_t slots = 2; slots <= 256; slots++)
        if (amount_is(q->printed, q->unit, kv_times(one, slots))) {
            row_reason(q->row, "%" PRIu64 " times as much: as many slots, or so much more context", slots);
            return true;
        }
    return false;
}

/* Layers with a window hold it and a batch beside it, padded; or all layers hold everything; or all only the window. */
static bool because_of_window(const struct question *q)
{
    const struct shape *shape = q->scan->options->shape;
    uint64_t window = (uint64_t)shape_window(shape);
    struct kv_way full = q->way, windowed = q->way;
    if (!window || q->way.part != PART_ALL)
        return false;
    full.part = PART_FULL;
    windowed.part = PART_WINDOW;
    uint64_t held = window < q->tokens ? window : q->tokens;
    uint64_t bytes = kv_times(kv_way_bytes(shape, &full), q->tokens) + kv_times(kv_way_bytes(shape, &windowed), held);
    if (!amount_is(q->printed, q->unit, bytes))
        return false;
    row_reason(q->row, "layers with a window hold %" PRIu64 " tokens instead of %" PRIu64, held, q->tokens);
    return true;
}

static bool because_of_half(const struct question *q)
{
    struct kv_way way = q->way;
    way.k_only = true;
    if (!is_bytes(q, &way, q->tokens))
        return false;
    row_reason(q->row, "K only, without V");
    return true;
}

/* Any whole number of layers or tokens that gives the amount: the weakest reasons, so the last. */
static bool because_of_layers(const struct question *q)
{
    const struct shape *shape = q->scan->options->shape;
    uint64_t layers = (uint64_t)kv_way_layers(shape, q->way.part), all = kv_way_bytes(shape, &q->way);
    for (uint64_t n = 1; layers && all % layers == 0 && n <= 256; n++)
        if (n != layers && amount_is(q->printed, q->unit, kv_times(kv_times(all / layers, n), q->tokens))) {
            row_reason(q->row, "as for %" PRIu64 " layers instead of %" PRIu64 ": another model's cache, or a part", n,
                       layers);
            return true;
        }
    return false;
}

static bool because_of_tokens(const struct question *q)
{
    uint64_t token = kv_way_bytes(q->scan->options->shape, &q->way);
    long double bytes = printed_value(q->printed) * (long double)q->unit->bytes;
    if (!token || bytes / (long double)token > 1e15L)
        return false;
    uint64_t tokens = (uint64_t)(bytes / (long double)token + 0.5L);
    if (!tokens || !amount_is(q->printed, q->unit, kv_times(token, tokens)))
        return false;
    row_reason(q->row, "as for %" PRIu64 " tokens instead of %" PRIu64, tokens, q->tokens);
    return true;
}

void explain_amount(const struct scan *scan, struct readlog_row *row, const struct printed *printed,
                    const struct byte_unit *unit, const struct kv_way *way, uint64_t tokens)
{
    static bool (*const reasons[])(const struct question *) = {
        because_of_known_slots, because_of_heads, because_of_type,  because_of_half,   because_of_padding,
        because_of_window,      because_of_ranks, because_of_slots, because_of_layers, because_of_tokens,
    };
    struct question question = {scan, row, printed, unit, *way, tokens};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (reasons[i](&question))
            return;
    row_reason(row, "no known reason gives this number");
}
