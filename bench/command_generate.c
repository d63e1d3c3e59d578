/* kvlab generate: token ids in, token ids out. */
#include "bench/commands.h"
#include "bench/harness/option_table.h"
#include "bench/harness/session.h"
#include "engine/generate.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_ROWS = 512 };

struct generate_arguments {
    struct options shared; /* model, device, types, threads, seed, budget */
    const char *tokens;
    int new_tokens, top_k, stop;
    float temperature, top_p;
    enum { CACHE_ON, CACHE_OFF } cache;
};

static const char *const cache_choices[] = {"on", "off", NULL};

#define FIELD(field) .offset = offsetof(struct generate_arguments, field)
#define GIVEN(field) .has_given = true, .given_offset = offsetof(struct generate_arguments, field)

static const struct option_row rows[] = {
    {"model", "NAME", OPTION_TEXT, FIELD(shared.model), .help = "a name of `kvlab list models`, or a model's folder"},
    {"tokens", "IDS", OPTION_TEXT, FIELD(tokens), .help = "the prompt: token ids, as in 1,2,3"},
    {"new", "N", OPTION_INT, FIELD(new_tokens), .minimum = 1, .maximum = 1 << 24,
     .help = "tokens to choose; 16 unless given"},
    {"temperature", "T", OPTION_REAL, FIELD(temperature), .maximum = 100, .help = "0, the default: greedy"},
    {"top-k", "K", OPTION_INT, FIELD(top_k), .maximum = INT_MAX, .help = "choose among the K likeliest; 0: all"},
    {"top-p", "P", OPTION_REAL, FIELD(top_p), .maximum = 1, .help = "choose among the likeliest that sum to P; 1: all"},
    {"stop", "ID", OPTION_INT, FIELD(stop), .maximum = INT_MAX, .help = "end after this token"},
    {"cache", "on|off", OPTION_CHOICE, FIELD(cache), .choices = cache_choices,
     .help = "off: recompute everything at each step"},
    {"seed", "N", OPTION_SEED, FIELD(shared.seed), .help = "of synthetic weights and of sampling; 1 unless given"},
    {"dtype", "TYPE", OPTION_CHOICE, FIELD(shared.dtype), GIVEN(shared.has_dtype), .choices = dtype_choices,
     .help = "f32, f16 or bf16; as stored unless given"},
    {"kv-dtype", "TYPE", OPTION_CHOICE, FIELD(shared.kv_dtype), GIVEN(shared.has_kv_dtype), .choices = dtype_choices,
     .help = "type of the KV cache; as --dtype unless given"},
    {"device", "NAME", OPTION_TEXT, FIELD(shared.device), .help = "cpu, cuda, cuda:N, or auto (the default)"},
    {"threads", "N", OPTION_INT, FIELD(shared.threads), .maximum = 4096, .help = "CPU threads; 0, the default: all"},
    {"budget", "BYTES", OPTION_BYTES, FIELD(shared.budget_bytes), .help = "behave as a card with this much memory"},
    {"help", NULL, OPTION_FLAG, FIELD(shared.help), .help = "this text"},
    {0},
};

/* The prompt as int32, each id checked against the vocabulary. A list of ids is no list of settings: repeats count. */
static enum status parse_tokens(int32_t **tokens, int *count, const char *text, const struct config *config,
                                struct error *error)
{
    *count = 1;
    for (const char *c = text; *c; c++)
        *count += *c == ',';
    *tokens = malloc((size_t)*count * sizeof **tokens);
    if (!*tokens) {
        error_set(error, STATUS_DEVICE, "--tokens: out of memory");
        return STATUS_DEVICE;
    }
    for (int i = 0; i < *count; i++) {
        char piece[24];
        int64_t id = 0;
        size_t length = strcspn(text, ",");
        if (length == 0)
            return error_set(error, STATUS_INPUT,
                             "--tokens: place %d of the list is empty; give token ids, as in 1,2,3", i + 1);
        if (snprintf(piece, sizeof piece, "%.*s", (int)length, text) >= (int)sizeof piece)
            return error_set(error, STATUS_INPUT, "--tokens: %.*s is no token id", (int)length, text);
        if (int_parse(&id, piece, "tokens", 0, config->vocab_size - 1, error) != STATUS_OK)
            return error->status;
        (*tokens)[i] = (int32_t)id;
        text += length + 1;
    }
    return STATUS_OK;
}

static void print_result(const struct bench *bench, const struct generate_result *result, const int32_t *tokens)
{
    for (int i = 0; i < result->count; i++)
        printf("%s%" PRId32, i ? "," : "", tokens[i]);
    putchar('\n');
    fprintf(stderr, "kvlab: %s, weights %s: first token after %.1f ms", bench->config.name, bench_weights_name(bench),
            result->prefill_ms);
    if (result->count > 1)
        fprintf(stderr, ", then %.2f ms a token", result->decode_ms / (result->count - 1));
    fprintf(stderr, ", %" PRIu64 " positions computed\n", result->positions);
}

static enum status run_model(struct bench *bench, const struct generate_arguments *arguments, const int32_t *prompt,
                             int prompt_tokens, struct error *error)
{
    int total = prompt_tokens + arguments->new_tokens;
    struct model_limits limits = {
        .max_rows = total < CHUNK_ROWS ? total : CHUNK_ROWS, .max_sequences = 1, .max_blocks = 1};
    struct bench_need need = {.kv_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, total),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, 1)};
    struct kv_options kv = {.policy = KV_RESERVED, .dtype = bench->kv_dtype, .max_sequences = 1, .max_tokens = total};
    struct generate_options options = {
        .new_tokens = arguments->new_tokens,
        .use_cache = arguments->cache == CACHE_ON,
        .sampler = {arguments->temperature, arguments->top_k, arguments->top_p, arguments->shared.seed},
        .stop_token = arguments->stop,
    };
    struct model model = {0};
    struct kv_cache *cache = NULL;
    struct generate_result result;
    int sequence = 0;
    int32_t *tokens = malloc((size_t)arguments->new_tokens * sizeof *tokens);
    if (!tokens) {
        error_set(error, STATUS_DEVICE, "generate: out of memory");
        return STATUS_DEVICE;
    }
    enum status status = bench_open_model(bench, &limits, &need, &model, error);
    if (status) {
        free(tokens);
        return status;
    }
    status = kv_open(&cache, bench->ledger, &bench->config, &kv, error);
    if (!status)
        status = kv_sequence_open(cache, &sequence, error);
    if (!status)
        status = generate(&model, cache, sequence, prompt, prompt_tokens, &options, tokens, &result, error);
    if (!status)
        print_result(bench, &result, tokens);
    kv_close(cache);
    model_free(&model);
    free(tokens);
    return status;
}

static enum status run(struct bench *bench, const struct generate_arguments *arguments, struct error *error)
{
    int32_t *prompt = NULL;
    int prompt_tokens = 0;
    if (!arguments->shared.model)
        return error_set(error, STATUS_INPUT, "generate: --model is missing; `kvlab list models` has names");
    if (!arguments->tokens)
        return error_set(error, STATUS_INPUT, "generate: --tokens is missing; give token ids, as in --tokens 1,2,3");
    enum status status = session_find_model(bench, arguments->shared.model, error);
    if (!status)
        status = parse_tokens(&prompt, &prompt_tokens, arguments->tokens, &bench->config, error);
    if (!status)
        status = session_open_device(bench, error);
    if (!status)
        status = run_model(bench, arguments, prompt, prompt_tokens, error);
    session_close_device(bench);
    free(prompt);
    return status;
}

int command_generate(int argc, char **argv)
{
    struct generate_arguments arguments = {
        .shared = {.device = "auto", .seed = 1}, .new_tokens = 16, .top_p = 1, .stop = -1};
    struct error error = {0};
    enum status status = option_table_parse(rows, &arguments, argc, argv, &error);
    if (!status && arguments.shared.help) {
        puts("usage: kvlab generate --model NAME --tokens IDS [options]\n\n"
             "Continues the prompt and prints the chosen token ids; times go to stderr.\n\noptions:");
        option_table_help(rows);
        return 0;
    }
    struct bench bench = {.options = arguments.shared};
    if (!status) {
        signals_install();
        status = run(&bench, &arguments, &error);
    }
    if (status)
        session_fail(&error);
    if (status == STATUS_INTERRUPTED)
        signals_raise_again();
    return (int)status;
}
