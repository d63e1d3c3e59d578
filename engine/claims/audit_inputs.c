/* A claim's inputs: the model's config, and key=value;... in place of what it says. */
#include "engine/claims/audit.h"

#include "engine/formula.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum input_kind { INPUT_COUNT, INPUT_REAL, INPUT_TYPE };

#define INPUT(name, kind, field, maximum)                                                                              \
    {                                                                                                                  \
        name, kind, offsetof(struct audit_inputs, field), maximum                                                      \
    }

/* Counts are bounded so that products of a few fit 64 bits most of the time; the rest is checked as it is computed. */
static const struct input {
    const char *name;
    enum input_kind kind;
    size_t offset;
    int64_t maximum;
} known[] = {
    INPUT("dtype", INPUT_TYPE, dtype, 0),
    INPUT("context", INPUT_COUNT, context, FORMULA_MAX_TOKENS),
    INPUT("batch", INPUT_COUNT, batch, 1 << 24),
    INPUT("prompt", INPUT_COUNT, prompt, FORMULA_MAX_TOKENS),
    INPUT("new", INPUT_COUNT, new_tokens, FORMULA_MAX_TOKENS),
    INPUT("layers", INPUT_COUNT, config.num_hidden_layers, 1 << 12),
    INPUT("heads", INPUT_COUNT, config.num_attention_heads, 1 << 16),
    INPUT("kv_heads", INPUT_COUNT, config.num_key_value_heads, 1 << 16),
    INPUT("head_dim", INPUT_COUNT, config.head_dim, 1 << 16),
    INPUT("vocab", INPUT_COUNT, config.vocab_size, 1 << 24),
    INPUT("window", INPUT_COUNT, config.sliding_window, FORMULA_MAX_TOKENS),
    INPUT("parameters", INPUT_COUNT, parameters, INT64_MAX),
    INPUT("active_parameters", INPUT_COUNT, active_parameters, INT64_MAX),
    INPUT("free_bytes", INPUT_COUNT, free_bytes, INT64_MAX),
    INPUT("budget_bytes", INPUT_COUNT, budget_bytes, INT64_MAX),
    INPUT("block_size", INPUT_COUNT, block_size, 1 << 24),
    INPUT("flops", INPUT_REAL, flops, 0),
    INPUT("bytes_per_s", INPUT_REAL, bytes_per_s, 0),
    INPUT("tokens_per_s", INPUT_REAL, tokens_per_s, 0),
    INPUT("ttft_s", INPUT_REAL, ttft_s, 0),
    INPUT("decode_s", INPUT_REAL, decode_s, 0),
};
enum { INPUTS = sizeof known / sizeof known[0] };

static const struct input *find(const char *name, size_t length)
{
    for (size_t i = 0; i < INPUTS; i++)
        if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0)
            return &known[i];
    return NULL;
}

bool audit_input_given(const struct audit_inputs *inputs, const char *name)
{
    if (strcmp(name, "model") == 0)
        return inputs->has_model || inputs->parameters > 0;
    const struct input *input = find(name, strlen(name));
    const char *field = (const char *)inputs + (input ? input->offset : 0);
    if (!input)
        return false;
    switch (input->kind) {
    case INPUT_COUNT:
        return *(const int64_t *)(const void *)field > 0;
    case INPUT_REAL:
        return *(const double *)(const void *)field > 0;
    case INPUT_TYPE:
        return *(const struct plan_type *const *)(const void *)field != NULL;
    }
    return false;
}

static enum status unknown_key(const char *key, int length, struct error *error)
{
    char names[320] = "";
    size_t used = 0;
    for (size_t i = 0; i < INPUTS && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", known[i].name);
    return error_set(error, STATUS_INPUT, "params: no input \"%.*s\"; there are %s", length, key, names);
}

static enum status set_input(struct audit_inputs *inputs, const struct input *input, const char *text, size_t length,
                             struct error *error)
{
    void *field = (char *)inputs + input->offset;
    struct printed number;
    if (input->kind == INPUT_TYPE) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)length, text);
        if (plan_type_find((const struct plan_type **)field, name, input->name, true, error) == STATUS_OK)
            return STATUS_OK;
        memmove(error->message, error->message + 2, strlen(error->message) - 1); /* a key has no dashes */
        return error_prefix(error, "params");
    }
    if (printed_read(&number, text, length) != length || number.digits == 0)
        return error_set(error, STATUS_INPUT, "params: %s=%.*s is not a number above 0", input->name,
                         (int)(length < 40 ? length : 40), text);
    if (input->kind == INPUT_REAL) {
        *(double *)field = (double)printed_value(&number);
        return STATUS_OK;
    }
    if (number.decimals > 0 || number.digits > (uint64_t)input->maximum)
        return error_set(error, STATUS_INPUT, "params: %s=%.*s must be a whole number of at most %" PRId64, input->name,
                         (int)(length < 40 ? length : 40), text, input->maximum);
    *(int64_t *)field = (int64_t)number.digits;
    return STATUS_OK;
}

static enum status read_params(struct audit_inputs *inputs, const char *params, struct error *error)
{
    for (const char *at = params; *at;) {
        size_t length = strcspn(at, ";"), key = strcspn(at, "=;");
        if (key == length || key + 1 == length)
            return error_set(error, STATUS_INPUT, "params: \"%.*s\" is not key=value", (int)(length < 40 ? length : 40),
                             at);
        const struct input *input = find(at, key);
        if (!input)
            return unknown_key(at, (int)(key < 40 ? key : 40), error);
        if (set_input(inputs, input, at + key + 1, length - key - 1, error) != STATUS_OK)
            return error->status;
        at += length + (at[length] == ';');
    }
    return STATUS_OK;
}

/* A message that lists all models is too long for a reason, which names the one that is missing. */
static void describe_problem(char *problem, size_t size, const char *model, const struct error *error)
{
    if (strncmp(error->message, "no model", 8) == 0)
        snprintf(problem, size, "unknown model %s: data/models has no such name, and it is no folder", model);
    else
        snprintf(problem, size, "%s", error->message);
}

static bool all_alike(const struct shape *shape)
{
    for (int64_t i = 0; i < shape->layer_count; i++) {
        const struct layer_shape *layer = &shape->layers[i];
        if (layer->kind != LAYER_FULL || layer->kv_heads != shape->kv_heads || layer->k_dim != shape->head_dim ||
            layer->v_dim != shape->head_dim || layer->query_heads != shape->query_heads)
            return false;
    }
    return true;
}

/* Models that the forward pass cannot run are read as shapes. Where all layers are alike, the config's words say it
   all, and explanations can change them one by one. */
static void take_shape(struct audit_inputs *inputs)
{
    const struct shape *shape = &inputs->shape;
    inputs->has_shape = !all_alike(shape);
    inputs->parameters = shape->total <= INT64_MAX ? (int64_t)shape->total : 0;
    inputs->active_parameters = shape->active < shape->total ? (int64_t)shape->active : 0;
    inputs->config = (struct config){
        .vocab_size = shape->vocab_size,
        .hidden_size = shape->hidden_size,
        .num_hidden_layers = shape->layer_count,
        .num_attention_heads = shape->query_heads,
        .num_key_value_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .max_position_embeddings = shape->max_context,
        .sliding_window = audit_layers_alike(shape).window,
    };
}

static void read_model(struct audit_inputs *inputs, const char *model, const char *models_dir, char *problem,
                       size_t size)
{
    char weights_dir[4096];
    struct error refused;
    inputs->has_model =
        config_find(&inputs->config, models_dir, model, weights_dir, sizeof weights_dir, &refused) == STATUS_OK;
    if (inputs->has_model)
        return;
    inputs->config = (struct config){0};
    if (shape_find(&inputs->shape, models_dir, model, &refused) == STATUS_OK)
        take_shape(inputs);
    else
        describe_problem(problem, size, model, &refused);
}

enum status audit_inputs_read(struct audit_inputs *inputs, const struct audit_claim *claim, const char *models_dir,
                              char *problem, size_t size, struct error *error)
{
    *inputs = (struct audit_inputs){.batch = 1, .tensors_per_layer = 2, .flops_per_parameter = 2};
    problem[0] = 0;
    if (claim->model[0])
        read_model(inputs, claim->model, models_dir, problem, size);
    inputs->published = inputs->config;
    int64_t parameters = inputs->parameters, active = inputs->active_parameters;
    enum status status = read_params(inputs, claim->params, error);
    if (inputs->parameters != parameters && inputs->active_parameters == active)
        inputs->active_parameters = 0; /* of another model, of which the claim says no more */
    return status;
}
