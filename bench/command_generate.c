/* kvlab generate: text in, text out; or token ids in, token ids out. */
#include "bench/commands.h"
#include "bench/generate_prompt.h"
#include "bench/harness/option_table.h"
#include "bench/harness/session.h"
#include "bench/report.h"
#include "engine/generate.h"
#include "engine/tokenizer/utf8.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_ROWS = 512, NEW_IDS = 16, NEW_TEXT = 64 }; /* tokens to choose unless --new says, for ids and for text */

struct generate_arguments {
    struct options shared;     /* model, device, types, threads, seed, budget */
    const char *text, *tokens; /* one of them is the prompt */
    int new_tokens, top_k, stop;
    float temperature, top_p;
    enum { CACHE_ON, CACHE_OFF } cache;
};

static const char *const cache_choices[] = {"on", "off", NULL};

#define FIELD(field) .offset = offsetof(struct generate_arguments, field)
#define GIVEN(field) .has_given = true, .given_offset = offsetof(struct generate_arguments, field)

static const struct option_row rows[] = {
    {"model", "NAME", OPTION_TEXT, FIELD(shared.model), .help = "a name of `kvlab list models`, or a model's folder"},
    {"tokens", "IDS", OPTION_TEXT, FIELD(tokens), .help = "the prompt as token ids, as in 1,2,3; ids come out too"},
    {"new", "N", OPTION_INT, FIELD(new_tokens), .minimum = 1, .maximum = 1 << 24,
     .help = "tokens to choose; 64 unless given, 16 with --tokens"},
    {"temperature", "T", OPTION_REAL, FIELD(temperature), .maximum = 100, .help = "0, the default: greedy"},
    {"top-k", "K", OPTION_INT, FIELD(top_k), .maximum = INT_MAX, .help = "choose among the K likeliest; 0: all"},
    {"top-p", "P", OPTION_REAL, FIELD(top_p), .maximum = 1, .help = "choose among the likeliest that sum to P; 1: all"},
    {"stop", "ID", OPTION_INT, FIELD(stop), .maximum = INT_MAX,
     .help = "end after this token, beside the model's own ends of a text"},
    {"cache", "on|off", OPTION_CHOICE, FIELD(cache), .choices = cache_choices,
     .help = "off: recompute everything at each step"},
    {"seed", "N", OPTION_SEED, FIELD(shared.seed), .help = "of synthetic weights and of sampling; 1 unless given"},
    {"dtype", "TYPE", OPTION_CHOICE, FIELD(shared.dtype), GIVEN(shared.has_dtype), .choices = dtype_choices,
     .help = "f32, f16 or bf16; as stored unless given"},
    {"kv-dtype", "TYPE", OPTION_CHOICE, FIELD(shared.kv_dtype), GIVEN(shared.has_kv_dtype), .choices = kv_dtype_choices,
     .help = "type of the KV cache: f32, f16, bf16, fp8 or int8; as --dtype unless given"},
    {"device", "NAME", OPTION_TEXT, FIELD(shared.device), .help = "cpu, cuda, cuda:N, or auto (the default)"},
    {"threads", "N", OPTION_INT, FIELD(shared.threads), .maximum = 4096, .help = "CPU threads; 0, the default: all"},
    {"budget", "BYTES", OPTION_BYTES, FIELD(shared.budget_bytes), .help = "behave as a card with this much memory"},
    {"help", NULL, OPTION_FLAG, FIELD(shared.help), .help = "this text"},
    {0},
};

/* What a run continues, and the text that has come out of it so far. */
struct continuation {
    const struct generate_prompt *prompt;
    struct utf8_stream characters;
};

/* Bytes of text out, as whole characters, at once: a reader sees them as they are chosen. */
static void print_bytes(struct continuation *continuation, const char *bytes, size_t size)
{
    enum { PART = 256 };
    char text[UTF8_STREAM_ROOM(PART)];
    for (size_t at = 0; at < size; at += PART) {
        size_t part = size - at < PART ? size - at : PART;
        fwrite(text, 1, utf8_stream_add(&continuation->characters, bytes + at, part, text), stdout);
    }
    fflush(stdout);
}

/* generate()'s `take`, for text. Special tokens are marks for the model and no text. */
static bool print_token(void *context, int32_t token)
{
    struct continuation *continuation = context;
    const struct generate_prompt *prompt = continuation->prompt;
    const char *bytes;
    size_t size;
    bool is_special;
    for (size_t i = 0; i < prompt->stops.count; i++)
        if (prompt->stops.ids[i] == token)
            return false;
    if (tokenizer_token(prompt->tokenizer, token, &bytes, &size, &is_special) && !is_special)
        print_bytes(continuation, bytes, size);
    return true;
}

/* The ids, or the end of the text that was printed on the way; then the times. */
static void print_result(const struct bench *bench, struct continuation *continuation,
                         const struct generate_result *result, const int32_t *tokens)
{
    char rest[UTF8_STREAM_ROOM(0)];
    if (continuation->prompt->tokenizer)
        fwrite(rest, 1, utf8_stream_end(&continuation->characters, rest), stdout);
    for (int i = 0; i < result->count && !continuation->prompt->tokenizer; i++)
        printf("%s%" PRId32, i ? "," : "", tokens[i]);
    putchar('\n');
    fflush(stdout);
    fprintf(stderr, "kvlab: %s, weights %s: ", bench->config.name, bench_weights_name(bench));
    if (continuation->prompt->tokenizer)
        fprintf(stderr, "%zu + %d tokens, ", continuation->prompt->tokens.count, result->count);
    fprintf(stderr, "first token after %.1f ms", result->prefill_ms);
    if (result->count > 1)
        fprintf(stderr, ", then %.2f ms a token", result->decode_ms / (result->count - 1));
    fprintf(stderr, ", %" PRIu64 " positions computed\n", result->positions);
}

static enum status run_model(struct bench *bench, const struct generate_arguments *arguments,
                             const struct generate_prompt *prompt, struct error *error)
{
    int prompt_tokens = (int)prompt->tokens.count;
    int new_tokens = arguments->new_tokens ? arguments->new_tokens : prompt->tokenizer ? NEW_TEXT : NEW_IDS;
    int total = prompt_tokens + new_tokens;
    struct continuation continuation = {.prompt = prompt};
    struct model_limits limits = {
        .max_rows = total < CHUNK_ROWS ? total : CHUNK_ROWS, .max_sequences = 1, .max_blocks = 1};
    struct bench_need need = {.kv_bytes = formula_kv_bytes(&bench->config, bench->kv_dtype, total),
                              .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, 1)};
    struct kv_options kv = {.policy = KV_RESERVED, .dtype = bench->kv_dtype, .max_sequences = 1, .max_tokens = total};
    struct generate_options options = {
        .new_tokens = new_tokens,
        .use_cache = arguments->cache == CACHE_ON,
        .sampler = {arguments->temperature, arguments->top_k, arguments->top_p, arguments->shared.seed},
        .stop_token = arguments->stop,
        .take = prompt->tokenizer ? print_token : NULL,
        .context = &continuation,
    };
    struct model model = {0};
    struct kv_cache *cache = NULL;
    struct generate_result result;
    int sequence = 0;
    int32_t *tokens = malloc((size_t)new_tokens * sizeof *tokens);
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
        status = generate(&model, cache, sequence, prompt->tokens.ids, prompt_tokens, &options, tokens, &result, error);
    if (!status)
        print_result(bench, &continuation, &result, tokens);
    kv_close(cache);
    model_free(&model);
    free(tokens);
    return status;
}

/* The one prompt: a text among the words, or ids. */
static enum status check_prompt(const struct generate_arguments *arguments, int words, struct error *error)
{
    if (!arguments->shared.model)
        return error_set(error, STATUS_INPUT, "generate: --model is missing; `kvlab list models` has names");
    if (words > 1)
        return error_set(error, STATUS_INPUT, "generate: %d words where one text is expected; put it in quotes", words);
    if (words == 0 && !arguments->tokens)
        return error_set(error, STATUS_INPUT,
                         "generate: no prompt; give a text in quotes, or token ids, as in --tokens 1,2,3");
    if (words == 1 && arguments->tokens)
        return error_set(error, STATUS_INPUT, "generate: a text and --tokens are two prompts; give one");
    return STATUS_OK;
}

static enum status run(struct bench *bench, const struct generate_arguments *arguments, struct error *error)
{
    struct generate_prompt prompt = {0};
    const char *model = arguments->shared.model;
    enum status status = session_find_model(bench, model, error);
    if (!status)
        status = arguments->tokens ? generate_prompt_ids(&prompt, arguments->tokens, &bench->config, error)
                                   : generate_prompt_text(&prompt, arguments->text, model, &bench->config, error);
    if (!status)
        status = session_open_device(bench, error);
    if (!status)
        status = run_model(bench, arguments, &prompt, error);
    session_close_device(bench);
    generate_prompt_free(&prompt);
    return status;
}

int command_generate(int argc, char **argv)
{
    struct generate_arguments arguments = {.shared = {.device = "auto", .seed = 1}, .top_p = 1, .stop = -1};
    struct error error = {0};
    int words;
    bool help;
    enum status status = report_take_words(&arguments.text, 1, &words, rows, &argc, argv, &help, &error);
    if (!status)
        status = option_table_parse(rows, &arguments, argc, argv, &error);
    if (!status && arguments.shared.help) {
        puts("usage: kvlab generate --model DIR \"text\" [options]\n"
             "       kvlab generate --model NAME --tokens IDS [options]\n\n"
             "Continues a text, and prints what follows it as it is chosen, up to a token that ends a text "
             "(eos_token_id\n"
             "of generation_config.json or config.json). DIR holds config.json, the weights, and tokenizer.json: "
             "byte-level\n"
             "BPE, as Qwen2.5 and Llama 3 have it. No chat template is applied: special tokens such as <|im_start|> "
             "may\n"
             "stand in the text, and what the tokenizer puts before a text (<|begin_of_text|>) is put there. A text "
             "that\n"
             "begins with a dash needs a space before it.\n\n"
             "With --tokens ids go in and ids come out, for any model of `kvlab list models` with synthetic weights "
             "too.\n"
             "Times go to stderr.\n\noptions:");
        option_table_help(rows);
        return 0;
    }
    if (!status)
        status = check_prompt(&arguments, words, &error);
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
