/* Why a number is wrong: each input is changed alone, the quantity computed again, and compared with what was printed.

   Changes that name one mistake (query heads for KV heads, K without V) may explain by the digits printed; those that
   try many numbers (another count of layers) only by an exact match, for among many some would fit by chance. */
#include "engine/claims/audit.h"

#include "engine/formula.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_EXPLANATIONS = 3 };

/* Makes change number `index` in the inputs and says it; false where there are no more. A change that changes nothing
   gives no explanation, for the number stays as wrong as it was. */
struct change {
    bool (*make)(struct audit_inputs *inputs, int index, char *text, size_t size);
    bool free_number; /* tries many: only exact matches count */
};

static bool query_heads(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 1)
        return false;
    int64_t heads = in->config.num_attention_heads, kv_heads = in->config.num_key_value_heads;
    bool latent = in->has_shape && shape_layers_of_kind(&in->shape, LAYER_LATENT) > 0;
    if (in->has_shape)
        in->whose = index == 0 ? HEADS_QUERY : HEADS_KV;
    if (latent) {
        snprintf(text, size,
                 index == 0 ? "K and V of the %" PRId64 " query heads instead of the latent vector"
                            : "the latent vector instead of K and V of the %" PRId64 " query heads",
                 heads);
    } else if (index == 0) {
        if (!in->has_shape)
            in->config.num_key_value_heads = heads;
        snprintf(text, size, "the %" PRId64 " query heads instead of the %" PRId64 " KV heads", heads, kv_heads);
    } else {
        if (!in->has_shape)
            in->config.num_attention_heads = kv_heads;
        snprintf(text, size, "the %" PRId64 " KV heads instead of the %" PRId64 " query heads", kv_heads, heads);
    }
    return true;
}

static bool one_tensor(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 0)
        return false;
    in->tensors_per_layer = 1;
    snprintf(text, size, "K only, without V");
    return true;
}

static bool other_type(struct audit_inputs *in, int index, char *text, size_t size)
{
    static const struct {
        const char *name, *what;
    } types[] = {{"f32", "f32 (4 bytes a value)"},
                 {"bf16", "f16 or bf16 (2 bytes a value)"},
                 {"fp8", "fp8 or int8 (1 byte a value)"},
                 {"q8_0", "q8_0 (34 bytes per 32 values)"},
                 {"q4_0", "q4_0 (18 bytes per 32 values)"}};
    struct error ignored;
    if (index >= (int)(sizeof types / sizeof types[0]) || !in->dtype)
        return false;
    plan_type_find(&in->dtype, types[index].name, "dtype", true, &ignored);
    snprintf(text, size, "%s", types[index].what);
    return true;
}

static bool no_window(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 0 || in->config.sliding_window == 0)
        return false;
    snprintf(text, size, "without the window of %" PRId64 " tokens", in->config.sliding_window);
    in->config.sliding_window = 0;
    return true;
}

/* What else is made of a model whose layers differ. */
static bool all_windowed(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 0 || !in->has_shape || in->config.sliding_window == 0)
        return false;
    in->window_everywhere = true;
    snprintf(text, size, "the window of %" PRId64 " tokens on all layers", in->config.sliding_window);
    return true;
}

static bool all_layers(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 0 || !in->has_shape)
        return false;
    int64_t states = shape_layers_of_kind(&in->shape, LAYER_STATE),
            shared = shape_layers_of_kind(&in->shape, LAYER_SHARED);
    in->all_keep = true;
    snprintf(text, size, "K and V of all %" PRId64 " layers instead of the %" PRId64 " that keep them",
             in->shape.layer_count, in->shape.layer_count - states - shared);
    return true;
}

static bool latent_twice(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 0 || !in->has_shape)
        return false;
    in->latent_twice = true;
    snprintf(text, size, "the latent vector counted twice, as K and as V");
    return true;
}

static bool experts(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 1 || !in->active_parameters || !in->parameters)
        return false;
    if (index == 0) {
        in->parameters = in->active_parameters;
        snprintf(text, size, "the parameters active for a token instead of all");
    } else {
        in->active_parameters = 0;
        snprintf(text, size, "all parameters instead of those active for a token");
    }
    return true;
}

static bool no_batch(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 0 || in->batch == 1)
        return false;
    snprintf(text, size, "one sequence instead of %" PRId64, in->batch);
    in->batch = 1;
    return true;
}

static bool last_position(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 0)
        return false;
    in->context = 1;
    snprintf(text, size, "one token instead of the whole context");
    return true;
}

static bool tied_head(struct audit_inputs *in, int index, char *text, size_t size)
{
    struct config *config = &in->config;
    if (index == 0 && !in->has_model && in->shape.total) {
        in->parameters -= (int64_t)(in->shape.parts.embedding + in->shape.parts.head);
        snprintf(text, size, "without embeddings and head");
        return in->parameters > 0;
    }
    if (index > 2 || !in->has_model)
        return false;
    if (index == 0) {
        snprintf(text, size,
                 config->tie_word_embeddings ? "the tied head counted a second time"
                                             : "the head taken for tied to the embeddings");
        config->tie_word_embeddings = !config->tie_word_embeddings;
    } else if (index == 1) {
        uint64_t tables =
            (uint64_t)config->vocab_size * (uint64_t)config->hidden_size * (config->tie_word_embeddings ? 1 : 2);
        in->parameters = (int64_t)(formula_parameters(config) - tables);
        snprintf(text, size, "without embeddings and head");
    } else {
        config->qkv_bias = config->o_bias = config->mlp_bias = false;
        snprintf(text, size, "without biases");
    }
    return true;
}

static bool one_flop(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 0)
        return false;
    in->flops_per_parameter = 1;
    snprintf(text, size, "one FLOP per parameter and token instead of two");
    return true;
}

static bool one_time(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index > 1)
        return false;
    snprintf(text, size, index == 0 ? "the time after the first token alone" : "the time to the first token alone");
    *(index == 0 ? &in->ttft_s : &in->decode_s) = 0;
    return true;
}

/* ---- changes that try many numbers ------------------------------------------------------------------------------- */

static bool other_context(struct audit_inputs *in, int index, char *text, size_t size)
{
    int64_t context = in->context;
    const int64_t others[] = {context / 2,           context * 2, context / 1024 * 1000,
                              context / 1000 * 1024, context / 4, context * 4,
                              context - 1,           context + 1, in->config.max_position_embeddings};
    if (index >= (int)(sizeof others / sizeof others[0]) || context == 0)
        return false;
    in->context = others[index] > 0 ? others[index] : context;
    snprintf(text, size, "a context of %" PRId64, in->context);
    return true;
}

static bool other_lengths(struct audit_inputs *in, int index, char *text, size_t size)
{
    static const int steps[] = {-1, 1};
    if (index >= 4 || in->new_tokens <= 1 || in->prompt <= 1)
        return false;
    int64_t *length = index < 2 ? &in->new_tokens : &in->prompt;
    *length += steps[index % 2];
    snprintf(text, size, "%" PRId64 " %s", *length, index < 2 ? "new tokens" : "tokens of prompt");
    return true;
}

static bool other_layers(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index >= 200 || in->config.num_hidden_layers == 0)
        return false;
    snprintf(text, size, "%d layers instead of %" PRId64, index + 1, in->config.num_hidden_layers);
    in->config.num_hidden_layers = index + 1;
    return true;
}

static bool other_kv_heads(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index >= 128 || in->config.num_key_value_heads == 0)
        return false;
    snprintf(text, size, "%d KV head%s instead of %" PRId64, index + 1, index ? "s" : "",
             in->config.num_key_value_heads);
    in->config.num_key_value_heads = index + 1;
    return true;
}

static bool other_head_dim(struct audit_inputs *in, int index, char *text, size_t size)
{
    static const int dims[] = {64, 80, 96, 128, 160, 192, 256};
    if (index >= (int)(sizeof dims / sizeof dims[0]) || in->config.head_dim == 0)
        return false;
    snprintf(text, size, "a head_dim of %d instead of %" PRId64, dims[index], in->config.head_dim);
    in->config.head_dim = dims[index];
    return true;
}

static bool other_batch(struct audit_inputs *in, int index, char *text, size_t size)
{
    if (index >= 256 || in->context == 0)
        return false;
    snprintf(text, size, "%d sequences instead of %" PRId64, index + 1, in->batch);
    in->batch = index + 1;
    return true;
}

static const struct change changes[] = {
    {query_heads, false},   {one_tensor, false},    {other_type, false},   {no_window, false},
    {all_windowed, false},  {latent_twice, false},  {all_layers, false},   {experts, false},
    {no_batch, false},      {last_position, false}, {tied_head, false},    {one_flop, false},
    {one_time, false},      {other_lengths, false}, {other_context, true}, {other_layers, true},
    {other_kv_heads, true}, {other_head_dim, true}, {other_batch, true},
};

/* "1.25 GiB printed as GB", where the changed value fits only in another unit; false where it fits in none. */
static bool fits(char *slip_text, size_t size, const struct printed *printed, const struct byte_unit *unit,
                 uint64_t scale, const struct quantity_value *value, bool exact_only)
{
    enum printed_fit fit = printed_fit(printed, scale, value);
    struct unit_slip slip;
    slip_text[0] = 0;
    if (fit == FIT_EXACT || (fit == FIT_ROUNDED && !exact_only && printed_significant(printed) >= 2))
        return true;
    if (!unit || !unit_slip_find(&slip, printed, unit, value) || slip.fit != FIT_EXACT)
        return false;
    snprintf(slip_text, size, " and %s printed as %s", slip.name, unit->name);
    return true;
}

/* A count that is read from the config may be another count of it. */
static void explain_layers(char *text, size_t size, const struct audit_inputs *inputs, const struct printed *printed)
{
    const struct config *config = &inputs->config;
    const struct {
        const char *what;
        int64_t count;
    } others[] = {{"query heads", config->num_attention_heads},
                  {"KV heads", config->num_key_value_heads},
                  {"head_dim", config->head_dim}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i].count > 0 && printed->decimals == 0 && printed->digits == (uint64_t)others[i].count) {
            snprintf(text, size, "%" PRIu64 " is its number of %s", printed->digits, others[i].what);
            return;
        }
}

void audit_explain(char *text, size_t size, const struct audit_quantity *quantity, const struct audit_inputs *inputs,
                   const struct printed *printed, const struct byte_unit *unit, uint64_t scale)
{
    int found = 0;
    size_t used = 0;
    text[0] = 0;
    if (strcmp(quantity->name, "num_layers") == 0) {
        explain_layers(text, size, inputs, printed);
        return;
    }
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        for (int index = 0; found < MAX_EXPLANATIONS; index++) {
            struct audit_inputs changed = *inputs;
            struct quantity_value value;
            char what[96], slip[64];
            if (!changes[i].make(&changed, index, what, sizeof what))
                break;
            if (quantity->refuse && quantity->refuse(&changed))
                continue;
            if (!quantity->compute(&changed, &value) ||
                !fits(slip, sizeof slip, printed, unit, scale, &value, changes[i].free_number))
                continue;
            used += (size_t)snprintf(text + used, size > used ? size - used : 0, "%s%s%s", found ? "; or " : "", what,
                                     slip);
            if (used >= size)
                return;
            found++;
        }
}
