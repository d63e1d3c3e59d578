/* The forward pass against the reference framework: every folder of tests/golden is a model with the logits that
   transformers computed for it (make_golden.py says how). A prefill and then one decode step per token through the
   paged cache must give the reference's logits at every position, in every working type.
   KVLAB_TEST_DEVICE names the device, "cpu" if unset; KVLAB_TESTS the folder of tests. */
#include "engine/forward.h"
#include "engine/safetensors.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Bounds on ||ours - reference|| / ||reference|| over all positions. The reference's own distance from exact
   arithmetic, which make_golden.py prints, is up to 7e-7 (f32), 1.7e-3 (f16) and 1.3e-2 (bf16). f16 has three more bits
   than bf16, so an eighth of its bound. */
static const struct working_type {
    enum dtype dtype;
    double tolerance;
} TYPES[] = {{DTYPE_F32, 1e-5}, {DTYPE_F16, 2e-2 / 8}, {DTYPE_BF16, 2e-2}};
enum { TYPE_COUNT = sizeof TYPES / sizeof TYPES[0] };

/* One position alone may be this many times worse: the norms of one row's 160 errors scatter, a wrong row is off by far
   more (rows of one model differ by about their own size). */
static const double ROW_FACTOR = 3;
/* A greedy choice is compared where the reference's top-2 gap exceeds this many times the error expected of one logit,
   tolerance * rms(row). */
static const double GAP_FACTOR = 4;
/* Least relative change of the logits that a poisoned position counts as; passes over the same cache agree exactly. */
static const double POISON_CHANGE = 1e-3;

enum { BLOCK_SIZE = 16 };
enum { MAX_NAME = 256, MAX_FOLDER = 4096, MAX_CASE = MAX_FOLDER + MAX_NAME, MAX_PATH = MAX_CASE + 32 };

struct golden {
    char folder[MAX_CASE];
    const struct working_type *type;
    int count, prompt; /* tokens; the first `prompt` of them in one pass */
    int32_t *tokens;
    int64_t vocab;
    float *reference; /* [count][vocab] */
};

/* All that a forward pass needs, in the order in which it is opened. */
struct engine {
    struct device *device;
    struct ledger *ledger;
    struct config config;
    struct model model;
    struct kv_cache *cache;
    int sequence;
    struct logits logits;
};

static void must(enum status status, const struct error *error)
{
    if (status != STATUS_OK)
        fail_msg("%s", error->message);
}

static const char *golden_folder(void)
{
    static char folder[MAX_FOLDER];
    const char *tests = getenv("KVLAB_TESTS");
    snprintf(folder, sizeof folder, "%s/golden", tests != NULL ? tests : "tests");
    return folder;
}

/* ---- the reference ---- */

static void read_tokens(struct golden *golden)
{
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s/golden.json", golden->folder);
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error), *tokens = json_object_get(root, "tokens");
    if (root == NULL)
        fail_msg("%s: %s", path, error.text);
    golden->prompt = (int)json_integer_value(json_object_get(root, "prompt_tokens"));
    golden->count = (int)json_array_size(tokens);
    if (golden->prompt < 1 || golden->count <= golden->prompt)
        fail_msg("%s: %d prompt tokens of %d", path, golden->prompt, golden->count);
    golden->tokens = calloc((size_t)golden->count, sizeof(int32_t));
    for (int i = 0; i < golden->count; i++)
        golden->tokens[i] = (int32_t)json_integer_value(json_array_get(tokens, (size_t)i));
    json_decref(root);
}

static void read_reference(struct golden *golden)
{
    char path[MAX_PATH], name[32];
    struct error error = {0};
    struct safetensors *files = NULL;
    snprintf(path, sizeof path, "%s/golden.safetensors", golden->folder);
    snprintf(name, sizeof name, "logits.%s", dtype_name(golden->type->dtype));
    must(safetensors_open(&files, path, &error), &error);
    const struct safetensor *logits = safetensors_find(files, name);
    if (logits == NULL || !logits->known || logits->dimensions != 2 || logits->shape[0] != golden->count) {
        fail_msg("%s: no %s of %d rows", path, name, golden->count);
        return; /* never reached, but nothing tells the analyser so */
    }
    golden->vocab = logits->shape[1];
    size_t values = (size_t)golden->count * (size_t)golden->vocab;
    void *aligned = malloc((size_t)logits->bytes); /* the file need not align it */
    memcpy(aligned, logits->data, (size_t)logits->bytes);
    golden->reference = calloc(values, sizeof(float));
    for (size_t i = 0; i < values; i++)
        golden->reference[i] = dtype_load(logits->dtype, aligned, i);
    free(aligned);
    safetensors_close(files);
}

static double norm(const float *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sqrt(sum);
}

/* ||ours - reference|| / ||reference||; not a number if ours is not. */
static double relative_error(const float *ours, const float *reference, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += ((double)ours[i] - reference[i]) * ((double)ours[i] - reference[i]);
    return sqrt(sum) / norm(reference, count);
}

/* ---- our side ---- */

static void engine_open(struct engine *engine, const struct golden *golden)
{
    struct error error = {0};
    char path[MAX_PATH];
    const char *name = getenv("KVLAB_TEST_DEVICE");
    enum dtype dtype = golden->type->dtype;
    memset(engine, 0, sizeof *engine);
    snprintf(path, sizeof path, "%s/config.json", golden->folder);
    must(config_read(&engine->config, path, &error), &error);
    if (engine->config.vocab_size != golden->vocab)
        fail_msg("%s: vocab_size %lld, logits have %lld", path, (long long)engine->config.vocab_size,
                 (long long)golden->vocab);
    must(device_open(name != NULL ? name : "cpu", 0, &engine->device, &error), &error);
    must(ledger_open(&engine->ledger, engine->device, 0, &error), &error);

    struct weights weights = {0};
    must(weights_load(&weights, engine->ledger, &engine->config, dtype, golden->folder, &error), &error);
    int blocks = (golden->count + BLOCK_SIZE - 1) / BLOCK_SIZE;
    struct model_limits limits = {.max_rows = golden->prompt, .max_sequences = 1, .max_blocks = blocks};
    must(model_init(&engine->model, engine->ledger, &engine->config, &weights, &limits, dtype, &error), &error);

    /* A second sequence holds the pool's first block, so that block numbers and table entries differ. */
    struct kv_options options = {
        .policy = KV_PAGED,
        .dtype = dtype,
        .max_sequences = 2,
        .block_size = BLOCK_SIZE,
        .max_tokens = blocks * BLOCK_SIZE,
        .pool_blocks = blocks + 1,
    };
    int other;
    must(kv_open(&engine->cache, engine->ledger, &engine->config, &options, &error), &error);
    must(kv_sequence_open(engine->cache, &other, &error), &error);
    must(kv_make_room(engine->cache, other, 1, &error), &error);
    must(kv_sequence_open(engine->cache, &engine->sequence, &error), &error);
    must(logits_init(&engine->logits, engine->ledger, &engine->config, dtype, golden->count, &error), &error);
}

static void engine_close(struct engine *engine)
{
    logits_free(&engine->logits, engine->ledger);
    kv_close(engine->cache);
    model_free(&engine->model);
    ledger_close(engine->ledger);
    engine->device->ops->close(engine->device);
}

/* Passes tokens [from, to) through the model; rows [from, to) of `ours` and `choices` get the logits and their argmax.
 */
static void pass(struct engine *engine, const struct golden *golden, int from, int to, float *ours, int32_t *choices)
{
    struct error error = {0};
    struct device *device = engine->device;
    struct logits *logits = &engine->logits;
    int count = to - from;
    struct sequence_tokens batch = {
        .sequence = engine->sequence, .tokens = golden->tokens + from, .count = count, .logits = LOGITS_ALL};
    size_t values = (size_t)count * (size_t)golden->vocab, bytes = values * dtype_size(logits->dtype);
    assert_int_equal(kv_length(engine->cache, engine->sequence), from);
    logits->rows = 0;
    must(model_forward(&engine->model, engine->cache, &batch, 1, logits, &error), &error);
    assert_int_equal(logits->rows, count);
    assert_int_equal(kv_length(engine->cache, engine->sequence), to);
    must(model_argmax(&engine->model, logits, 0, count, choices + from, &error), &error);

    void *host = malloc(bytes);
    must(device->ops->download(device, host, logits->data, bytes, &error), &error);
    must(device->ops->synchronize(device, &error), &error);
    for (size_t i = 0; i < values; i++)
        ours[(size_t)from * (size_t)golden->vocab + i] = dtype_load(logits->dtype, host, i);
    free(host);
}

/* ---- checks ---- */

/* Logits that hardly differ from one position to the next would prove nothing; unrelated rows differ by about 1.4. */
static void check_reference_varies(const struct golden *golden)
{
    for (int row = 1; row < golden->count; row++) {
        const float *logits = golden->reference + row * golden->vocab;
        if (golden->tokens[row] != golden->tokens[row - 1] &&
            relative_error(logits - golden->vocab, logits, golden->vocab) < 0.2)
            fail_msg("%s: the reference's logits at %d hardly differ from those before", golden->folder, row);
    }
}

static void check_logits(const struct golden *golden, const float *ours)
{
    const char *type = dtype_name(golden->type->dtype);
    double tolerance = golden->type->tolerance;
    int worst = 0, wrong = 0;
    double worst_error = 0;
    for (int row = 0; row < golden->count; row++) {
        double error =
            relative_error(ours + row * golden->vocab, golden->reference + row * golden->vocab, golden->vocab);
        if (!(error <= ROW_FACTOR * tolerance)) {
            print_error("%s %s: position %d (%s): relative error %.2e, limit %.2e\n", golden->folder, type, row,
                        row < golden->prompt ? "prefill" : "decode", error, ROW_FACTOR * tolerance);
            wrong++;
        }
        if (!(error <= worst_error)) {
            worst = row;
            worst_error = error;
        }
    }
    double error = relative_error(ours, golden->reference, golden->count * golden->vocab);
    print_message("%s %s: relative error %.2e (limit %.1e), worst position %d: %.2e\n", golden->folder, type, error,
                  tolerance, worst, worst_error);
    if (wrong > 0 || !(error < tolerance))
        fail_msg("%s %s: relative error %.2e (limit %.1e), %d of %d positions wrong", golden->folder, type, error,
                 tolerance, wrong, golden->count);
}

/* Each position's choice, given the reference's tokens before it, so that one near-tie cannot spoil the rest. */
static void check_greedy(const struct golden *golden, const int32_t *choices)
{
    int compared = 0, wrong = 0;
    for (int row = 0; row < golden->count; row++) {
        const float *logits = golden->reference + row * golden->vocab;
        int64_t first = logits[1] > logits[0], second = !first;
        for (int64_t token = 2; token < golden->vocab; token++)
            if (logits[token] > logits[first]) {
                second = first;
                first = token;
            } else if (logits[token] > logits[second]) {
                second = token;
            }
        double gap = (double)logits[first] - logits[second];
        double rms = norm(logits, golden->vocab) / sqrt((double)golden->vocab);
        if (gap <= GAP_FACTOR * golden->type->tolerance * rms)
            continue;
        compared++;
        if (choices[row] != first) {
            print_error("%s %s: position %d: token %d chosen, the reference's is %d by a gap of %.2e\n", golden->folder,
                        dtype_name(golden->type->dtype), row, (int)choices[row], (int)first, gap);
            wrong++;
        }
    }
    print_message("%s %s: %d of %d greedy choices compared\n", golden->folder, dtype_name(golden->type->dtype),
                  compared, golden->count);
    if (wrong > 0 || compared < golden->count / 2)
        fail_msg("%s %s: %d of %d greedy choices wrong, of %d positions", golden->folder,
                 dtype_name(golden->type->dtype), wrong, compared, golden->count);
}

/* Exchanges the stored K or V of one position, every head, with `values` [kv_heads][head_dim] in the cache's type. */
static void exchange(struct engine *engine, void *tensor, int position, void *values)
{
    struct error error = {0};
    struct device *device = engine->device;
    const struct config *config = &engine->config;
    const int32_t *table;
    int block_size = kv_block_size(engine->cache, engine->sequence);
    kv_block_table(engine->cache, engine->sequence, &table);
    size_t bytes = (size_t)config->head_dim * dtype_size(kv_get_options(engine->cache)->dtype);
    char *stored = malloc(bytes);
    for (int64_t head = 0; head < config->num_key_value_heads; head++) {
        int64_t row =
            (table[position / block_size] * config->num_key_value_heads + head) * block_size + position % block_size;
        char *at = (char *)tensor + (size_t)row * bytes, *value = (char *)values + (size_t)head * bytes;
        must(device->ops->download(device, stored, at, bytes, &error), &error);
        must(device->ops->synchronize(device, &error), &error);
        must(device->ops->upload(device, at, value, bytes, &error), &error);
        must(device->ops->synchronize(device, &error), &error);
        memcpy(value, stored, bytes);
    }
    free(stored);
}

/* Relative change of the last position's logits when K or V of an earlier one is overwritten; undone afterwards. */
static double change_by_poison(struct engine *engine, const struct golden *golden, int layer, bool value, int position,
                               const float *clean)
{
    struct error error = {0};
    int last = golden->count - 1;
    size_t count = (size_t)(engine->config.num_key_value_heads * engine->config.head_dim);
    void *poison = calloc(count, sizeof(float)); /* as many of any type */
    float *ours = calloc((size_t)golden->count * (size_t)golden->vocab, sizeof(float));
    int32_t *choices = calloc((size_t)golden->count, sizeof(int32_t));
    for (size_t i = 0; i < count; i++)
        dtype_store(golden->type->dtype, poison, i, i % 3 == 0 ? -8.0f : 8.0f);

    must(kv_truncate(engine->cache, engine->sequence, last, &error), &error);
    void *tensor = (value ? kv_layer_values : kv_layer_keys)(engine->cache, engine->sequence, layer);
    exchange(engine, tensor, position, poison);
    pass(engine, golden, last, last + 1, ours, choices);
    exchange(engine, tensor, position, poison);
    double change = relative_error(ours + last * golden->vocab, clean + last * golden->vocab, golden->vocab);
    free(poison);
    free(ours);
    free(choices);
    return change;
}

/* A cache that is not read would pass every comparison of logits made without one. So each stored K and V that the last
   position sees must matter, and one that its window hides must not. */
static void check_poison(struct engine *engine, const struct golden *golden, const float *ours)
{
    int last = golden->count - 1, positions[] = {2, last - 4};
    double least = INFINITY;
    for (int layer = 0; layer < engine->config.num_hidden_layers; layer++)
        for (int value = 0; value < 2; value++)
            for (int i = 0; i < 2; i++) {
                int64_t window = config_window(&engine->config, layer);
                bool seen = window == 0 || positions[i] > last - window;
                double change = change_by_poison(engine, golden, layer, value, positions[i], ours);
                least = seen ? fmin(least, change) : least;
                if (seen ? !(change > POISON_CHANGE) : change != 0)
                    fail_msg("%s %s: layer %d: overwriting %s of position %d changes the logits of %d by %.2e, %s",
                             golden->folder, dtype_name(golden->type->dtype), layer, value ? "V" : "K", positions[i],
                             last, change, seen ? "too little" : "though its window hides it");
            }
    print_message("%s %s: one poisoned K or V changes the logits by %.2e or more\n", golden->folder,
                  dtype_name(golden->type->dtype), least);
}

static void agrees_with_reference(void **state)
{
    struct golden golden = *(struct golden *)*state;
    struct engine engine;
    read_tokens(&golden);
    read_reference(&golden);
    check_reference_varies(&golden);
    float *ours = calloc((size_t)golden.count * (size_t)golden.vocab, sizeof(float));
    int32_t *choices = calloc((size_t)golden.count, sizeof(int32_t));

    engine_open(&engine, &golden);
    pass(&engine, &golden, 0, golden.prompt, ours, choices);
    for (int position = golden.prompt; position < golden.count; position++)
        pass(&engine, &golden, position, position + 1, ours, choices);
    check_logits(&golden, ours);
    check_greedy(&golden, choices);
    check_poison(&engine, &golden, ours);
    engine_close(&engine);
    free(ours);
    free(choices);
    free(golden.reference);
    free(golden.tokens);
}

/* ---- one test per folder and type ---- */

static int has_golden(const struct dirent *entry)
{
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s/%s/golden.json", golden_folder(), entry->d_name);
    return access(path, R_OK) == 0;
}

int main(void)
{
    struct dirent **cases = NULL;
    int count = scandir(golden_folder(), &cases, has_golden, alphasort);
    if (count <= 0) {
        fprintf(stderr, "%s: no folder with a golden.json\n", golden_folder());
        return 1;
    }
    size_t tests = (size_t)count * TYPE_COUNT;
    struct golden *states = calloc(tests, sizeof *states);
    struct CMUnitTest *list = calloc(tests, sizeof *list);
    char(*names)[MAX_NAME + 8] = calloc(tests, sizeof *names);
    for (size_t i = 0; i < tests; i++) {
        const char *name = cases[i / TYPE_COUNT]->d_name;
        states[i].type = &TYPES[i % TYPE_COUNT];
        snprintf(states[i].folder, sizeof states[i].folder, "%s/%s", golden_folder(), name);
        snprintf(names[i], sizeof names[i], "%s %s", name, dtype_name(states[i].type->dtype));
        list[i] = (struct CMUnitTest){names[i], agrees_with_reference, NULL, NULL, &states[i]};
    }
    int failed = _cmocka_run_group_tests("golden", list, tests, NULL, NULL);
    for (int i = 0; i < count; i++)
        free(cases[i]);
    free(cases);
    free(names);
    free(list);
    free(states);
    return failed;
}
