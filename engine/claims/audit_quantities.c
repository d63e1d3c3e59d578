/* The quantities that can be audited: one row of the table at the end for each. */
#include "engine/claims/audit.h"

#include "engine/formula.h"
#include "engine/plan/plan_count.h"

#include <math.h>
#include <string.h>

typedef struct quantity_value value;

static const bool never = false;

/* `overflow` as a pointer: it is read when the count beside it has been computed, not before. */
static bool whole(value *result, uint64_t count, const bool *overflow)
{
    *result = (value){.whole = true, .count = count};
    return !*overflow;
}

/* a / b, a whole number where it is one. */
static bool ratio(value *result, uint64_t a, uint64_t b, const bool *overflow)
{
    if (b == 0)
        return false;
    *result = a % b == 0 ? (value){.whole = true, .count = a / b} : (value){.real = (long double)a / (long double)b};
    return !*overflow;
}

static bool real(value *result, long double number)
{
    *result = (value){.real = number};
    return isfinite(number);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

/* Types in blocks run over all heads of a token, as llama.cpp lays them out; scales of int8 are per head. */
static uint64_t row_bytes(const struct audit_inputs *in, int64_t heads, bool *overflow)
{
    uint64_t rows = 1, width = count_mul(overflow, (uint64_t)heads, (uint64_t)in->config.head_dim);
    if (in->dtype->row_scale_bytes) {
        rows = (uint64_t)heads;
        width = (uint64_t)in->config.head_dim;
    }
    *overflow |= !plan_type_divides(in->dtype, width);
    return plan_type_bytes(in->dtype, rows, width, overflow);
}

/* Tokens held, summed over the layers: a windowed layer holds at most its window. */
static uint64_t layer_tokens(const struct audit_inputs *in, bool *overflow)
{
    const struct config *config = &in->config;
    uint64_t context = (uint64_t)in->context, window = (uint64_t)config->sliding_window;
    uint64_t windowed = window > 0 && window < context && config->max_window_layers < config->num_hidden_layers
                            ? (uint64_t)(config->num_hidden_layers - config->max_window_layers)
                            : 0;
    uint64_t full = (uint64_t)config->num_hidden_layers - windowed;
    return count_add(overflow, count_mul(overflow, full, context), count_mul(overflow, windowed, window));
}

/* Layers that differ, one by one: `context` tokens, of which a window may cut some. */
static uint64_t kv_of_layers(const struct audit_inputs *in, bool query_heads, uint64_t context, bool *overflow)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < in->config.num_hidden_layers; i++) {
        struct layer_shape layer = audit_layer(in, i);
        bool window = layer.kind == LAYER_WINDOW || layer.kind == LAYER_CHUNK;
        uint64_t tokens = window && (uint64_t)layer.window < context ? (uint64_t)layer.window : context;
        uint64_t token = query_heads ? layer_token_bytes_mha(&layer, in->dtype, in->dtype, overflow)
                                     : layer_token_bytes(&layer, in->dtype, in->dtype, 1, false, overflow);
        if (in->latent_twice && layer.kind == LAYER_LATENT)
            token = count_mul(overflow, token, 2);
        sum = count_add(overflow, sum, count_mul(overflow, token, tokens));
    }
    return sum;
}

static bool is_query_heads(const struct audit_inputs *in, const int64_t *heads)
{
    return in->whose == HEADS_QUERY || (in->whose == HEADS_AS_ASKED && heads == &in->config.num_attention_heads);
}

static uint64_t kv_token(const struct audit_inputs *in, const int64_t *heads, bool *overflow)
{
    if (in->has_shape)
        return kv_of_layers(in, is_query_heads(in, heads), 1, overflow);
    uint64_t tensors = count_mul(overflow, (uint64_t)in->tensors_per_layer, (uint64_t)in->config.num_hidden_layers);
    return count_mul(overflow, tensors, row_bytes(in, *heads, overflow));
}

static uint64_t kv_total(const struct audit_inputs *in, const int64_t *heads, bool *overflow)
{
    if (in->has_shape)
        return count_mul(overflow, kv_of_layers(in, is_query_heads(in, heads), (uint64_t)in->context, overflow),
                         (uint64_t)in->batch);
    uint64_t tokens = count_mul(overflow, layer_tokens(in, overflow), (uint64_t)in->batch);
    uint64_t row = count_mul(overflow, (uint64_t)in->tensors_per_layer, row_bytes(in, *heads, overflow));
    return count_mul(overflow, tokens, row);
}

/* Without scales per row: those belong to caches. */
static uint64_t plain_bytes(const struct audit_inputs *in, uint64_t values, bool *overflow)
{
    return count_mul(overflow, count_units(values, in->dtype->block_values), in->dtype->block_bytes);
}

static uint64_t logits_row(const struct audit_inputs *in, bool *overflow)
{
    return plain_bytes(in, (uint64_t)in->config.vocab_size, overflow);
}

static uint64_t logits_total(const struct audit_inputs *in, bool *overflow)
{
    uint64_t positions = count_mul(overflow, (uint64_t)in->context, (uint64_t)in->batch);
    return count_mul(overflow, positions, logits_row(in, overflow));
}

static uint64_t parameter_count(const struct audit_inputs *in)
{
    return in->parameters ? (uint64_t)in->parameters : formula_parameters(&in->config);
}

static uint64_t weights_total(const struct audit_inputs *in, bool *overflow)
{
    return plain_bytes(in, parameter_count(in), overflow);
}

static bool kv_bytes_per_token(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    return whole(result, kv_token(in, &in->config.num_key_value_heads, &overflow), &overflow);
}

static bool kv_bytes_per_token_mha(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    return whole(result, kv_token(in, &in->config.num_attention_heads, &overflow), &overflow);
}

static bool kv_bytes(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    return whole(result, kv_total(in, &in->config.num_key_value_heads, &overflow), &overflow);
}

static bool kv_bytes_mha(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    return whole(result, kv_total(in, &in->config.num_attention_heads, &overflow), &overflow);
}

static bool logits_bytes(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    return whole(result, logits_total(in, &overflow), &overflow);
}

static bool logits_bytes_per_token(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    return whole(result, logits_row(in, &overflow), &overflow);
}

static bool logits_plus_kv_bytes(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    uint64_t kv = kv_total(in, &in->config.num_key_value_heads, &overflow);
    return whole(result, count_add(&overflow, kv, logits_total(in, &overflow)), &overflow);
}

static bool weight_bytes(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    return whole(result, weights_total(in, &overflow), &overflow);
}

static bool shortfall_bytes(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    uint64_t needed = weights_total(in, &overflow), there = (uint64_t)in->budget_bytes;
    return whole(result, needed > there ? needed - there : 0, &overflow);
}

/* ---- counts ----------------------------------------------------------------------------------------------------- */

static bool kv_tensors(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    uint64_t tensors = count_mul(&overflow, (uint64_t)in->tensors_per_layer, (uint64_t)in->config.num_hidden_layers);
    if (in->has_shape) /* one vector per latent layer; states are no K and V */
        tensors = 0;
    for (int64_t i = 0; in->has_shape && i < in->config.num_hidden_layers; i++) {
        enum layer_kind kind = audit_layer(in, i).kind;
        bool none = kind == LAYER_STATE || kind == LAYER_SHARED;
        tensors += none ? 0 : kind == LAYER_LATENT ? 1 : (uint64_t)in->tensors_per_layer;
    }
    return whole(result, tensors, &overflow);
}

static bool num_layers(const struct audit_inputs *in, value *result)
{
    return whole(result, (uint64_t)in->config.num_hidden_layers, &never);
}

static bool parameters(const struct audit_inputs *in, value *result)
{
    return whole(result, parameter_count(in), &never);
}

static bool capacity_tokens(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    uint64_t token = kv_token(in, &in->config.num_key_value_heads, &overflow);
    return token > 0 && whole(result, (uint64_t)in->free_bytes / token, &overflow);
}

static bool capacity_sequences(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    uint64_t sequence = kv_total(in, &in->config.num_key_value_heads, &overflow);
    return sequence > 0 && whole(result, (uint64_t)in->free_bytes / sequence, &overflow);
}

static bool kv_blocks(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    uint64_t blocks = count_units((uint64_t)in->context, (uint64_t)in->block_size);
    return whole(result, count_mul(&overflow, blocks, (uint64_t)in->batch), &overflow);
}

/* ---- ratios ----------------------------------------------------------------------------------------------------- */

static bool gqa_ratio(const struct audit_inputs *in, value *result)
{
    return ratio(result, (uint64_t)in->config.num_attention_heads, (uint64_t)in->config.num_key_value_heads, &never);
}

static bool logits_over_kv(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    uint64_t logits = logits_row(in, &overflow), kv = kv_token(in, &in->config.num_key_value_heads, &overflow);
    return ratio(result, logits, kv, &overflow);
}

static bool percent(value *result, uint64_t part, uint64_t all, bool *overflow)
{
    return ratio(result, count_mul(overflow, part, 100), all, overflow);
}

static bool logits_share_percent(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    uint64_t logits = logits_total(in, &overflow), kv = kv_total(in, &in->config.num_key_value_heads, &overflow);
    return percent(result, logits, count_add(&overflow, logits, kv), &overflow);
}

static bool kv_over_weights_percent(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    uint64_t kv = kv_total(in, &in->config.num_key_value_heads, &overflow), weights = weights_total(in, &overflow);
    return percent(result, kv, weights, &overflow);
}

/* Positions passed through the model to generate N tokens after a prompt of P: without a cache N*P + N(N-1)/2, with one
   P + N - 1 (formula.h). */
static bool work_ratio(const struct audit_inputs *in, value *result)
{
    return in->prompt <= INT32_MAX && in->new_tokens <= INT32_MAX &&
           ratio(result, formula_positions_uncached(in->prompt, in->new_tokens),
                 formula_positions_cached(in->prompt, in->new_tokens), &never);
}

/* ---- rates ------------------------------------------------------------------------------------------------------ */

static bool balance_flop_per_byte(const struct audit_inputs *in, value *result)
{
    return real(result, (long double)in->flops / (long double)in->bytes_per_s);
}

/* A token passes through the experts chosen for it, and no others. */
static uint64_t active_count(const struct audit_inputs *in)
{
    return in->active_parameters ? (uint64_t)in->active_parameters : parameter_count(in);
}

static bool matrix_percent(const struct audit_inputs *in, value *result)
{
    long double per_token = (long double)in->flops_per_parameter * (long double)active_count(in);
    return real(result, 100 * (long double)in->tokens_per_s * per_token / (long double)in->flops);
}

/* A step of decode reads the weights once, whatever the number of sequences. */
static bool decode_read_percent(const struct audit_inputs *in, value *result)
{
    bool overflow = false;
    long double bytes = (long double)plain_bytes(in, active_count(in), &overflow);
    long double steps_per_s = (long double)in->tokens_per_s / (long double)in->batch;
    return real(result, 100 * steps_per_s * bytes / (long double)in->bytes_per_s) && !overflow;
}

static const char *refuse_routing(const struct audit_inputs *in)
{
    if (in->batch == 1 || !in->active_parameters)
        return NULL;
    return "the model has experts: which of them more than one sequence reads depends on the routing";
}

static bool effective_tokens_per_s(const struct audit_inputs *in, value *result)
{
    return real(result, (long double)in->new_tokens / ((long double)in->ttft_s + (long double)in->decode_s));
}

#define KV_INPUTS "layers kv_heads head_dim dtype"

const struct audit_quantity audit_quantities[] = {
    {"kv_bytes_per_token", "B", KV_INPUTS, "2 * layers * KV heads * head_dim * bytes per value",
     .compute = kv_bytes_per_token, .refuse = audit_layers_refuse},
    {"kv_bytes_per_token_mha", "B", "layers heads head_dim dtype", "the same with every query head its own K and V",
     .compute = kv_bytes_per_token_mha, .refuse = audit_layers_refuse},
    {"gqa_ratio", "x", "heads kv_heads", "query heads / KV heads", .compute = gqa_ratio, .refuse = audit_layers_refuse},
    {"kv_bytes", "B", KV_INPUTS " context",
     "bytes per token * context * batch; a windowed layer holds at most its window", .compute = kv_bytes,
     .refuse = audit_layers_refuse},
    {"kv_bytes_mha", "B", "layers heads head_dim dtype context", "the same with every query head its own K and V",
     .compute = kv_bytes_mha, .refuse = audit_layers_refuse},
    {"kv_tensors", "tensors", "layers", "2 * layers: one K and one V each", .compute = kv_tensors,
     .refuse = audit_layers_refuse},
    {"logits_bytes", "B", "vocab dtype context", "positions * vocabulary * bytes per value", .compute = logits_bytes},
    {"logits_plus_kv_bytes", "B", "vocab " KV_INPUTS " context", "logits of all positions, and the cache",
     .compute = logits_plus_kv_bytes, .refuse = audit_layers_refuse},
    {"logits_share_percent", "%", "vocab " KV_INPUTS " context", "100 * logits / (logits + KV)",
     .compute = logits_share_percent, .refuse = audit_layers_refuse},
    {"logits_bytes_per_token", "B", "vocab dtype", "vocabulary * bytes per value", .compute = logits_bytes_per_token},
    {"logits_over_kv", "x", "vocab " KV_INPUTS, "logits per token / KV per token", .compute = logits_over_kv,
     .refuse = audit_layers_refuse},
    {"weight_bytes", "B", "model dtype", "parameters * bytes per value; a tied head counts once",
     .compute = weight_bytes},
    {"kv_over_weights_percent", "%", "model " KV_INPUTS " context", "100 * KV / weights",
     .compute = kv_over_weights_percent, .refuse = audit_layers_refuse},
    {"work_ratio", "x", "prompt new", "(N*P + N(N-1)/2) / (P + N - 1) positions, without a cache / with one",
     .compute = work_ratio},
    {"capacity_tokens", "tokens", KV_INPUTS " free_bytes", "free bytes / bytes per token, rounded down",
     .compute = capacity_tokens, .refuse = audit_layers_refuse},
    {"capacity_sequences", "sequences", KV_INPUTS " free_bytes context",
     "free bytes / (bytes per token * context), rounded down", .compute = capacity_sequences,
     .refuse = audit_layers_refuse},
    {"parameters", "parameters", "model", "embeddings, layers, norms and head; a tied head counts once",
     .compute = parameters},
    {"balance_flop_per_byte", "FLOP/B", "flops bytes_per_s", "matrix rate / bandwidth",
     .compute = balance_flop_per_byte},
    {"decode_matrix_percent", "%", "model tokens_per_s flops", "100 * tokens/s * 2 * active parameters / matrix rate",
     .compute = matrix_percent, .of_active = true},
    {"decode_read_percent", "%", "model dtype tokens_per_s bytes_per_s",
     "100 * tokens/s / batch * bytes of the active parameters / bandwidth", .compute = decode_read_percent,
     .refuse = refuse_routing, .of_active = true},
    {"prefill_matrix_percent", "%", "model tokens_per_s flops", "100 * tokens/s * 2 * active parameters / matrix rate",
     .compute = matrix_percent, .of_active = true},
    {"shortfall_bytes", "B", "model dtype budget_bytes", "weights - budget; 0 where they fit",
     .compute = shortfall_bytes},
    {"num_layers", "layers", "layers", "num_hidden_layers", .compute = num_layers},
    {"kv_blocks", "blocks", "context block_size", "context / block size, rounded up, for each sequence",
     .compute = kv_blocks},
    {"effective_tokens_per_s", "tokens/s", "new ttft_s decode_s", "new tokens / (time to the first + time after it)",
     .compute = effective_tokens_per_s},
    {0},
};

const struct audit_quantity *audit_quantity_find(const char *name)
{
    for (const struct audit_quantity *quantity = audit_quantities; quantity->name; quantity++)
        if (strcmp(quantity->name, name) == 0)
            return quantity;
    return NULL;
}
