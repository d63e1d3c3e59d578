/* What only a device with graphs and limited memory can get wrong: recorded passes against launched ones, running out
   of memory at every allocation, and the byte models of its kernels. KVLAB_TEST_DEVICE=cuda, on a card or the stand-in;
   on the CPU the first and the last hold too. */
#include "kernels/profile.h"
#include "kernels/work.h"
#include "tests/support.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQUENCES = 2, PROMPT = 58, STEPS = 14, TOKENS = PROMPT + STEPS };
static const struct model_limits limits = {.max_rows = 2 * PROMPT, .max_sequences = SEQUENCES, .max_blocks = TOKENS};
static struct error error;

static struct config small_config(void)
{
    uint64_t random = 12;
    struct config config = test_random_config(&random);
    config.num_attention_heads = 6;
    config.num_key_value_heads = 2;
    config.head_dim = 64;
    config.hidden_size = 64;
    config.sliding_window = 0;
    return config;
}

/* ---- graphs */

/* Logits [STEPS][SEQUENCES][vocab] of decode steps that cross a bucket of contexts; the caller frees. */
static float *decode(const struct config *config, enum dtype dtype, int graphs)
{
    struct test_model m;
    struct kv_cache *cache;
    struct logits logits;
    int sequence[SEQUENCES];
    int32_t *tokens = test_tokens(config, TOKENS, 4);
    size_t step_values = SEQUENCES * (size_t)config->vocab_size;
    float *all = malloc(STEPS * step_values * sizeof *all);
    assert_non_null(all);
    test_model_open(&m, config, dtype, 0, &limits);
    m.device->graphs = graphs;
    struct kv_options options = {.policy = KV_RESERVED, .dtype = dtype, .max_sequences = 2, .max_tokens = TOKENS};
    check_ok(kv_open(&cache, m.ledger, &m.config, &options, &error));
    check_ok(logits_init(&logits, m.ledger, &m.config, dtype, SEQUENCES, &error));
    for (int s = 0; s < SEQUENCES; s++) {
        check_ok(kv_sequence_open(cache, &sequence[s], &error));
        check_ok(model_prefill(&m.model, cache, sequence[s], tokens + s, PROMPT - s, LOGITS_NONE, 0, NULL, &error));
    }
    for (int i = 0; i < STEPS; i++) {
        struct sequence_tokens batch[SEQUENCES];
        for (int s = 0; s < SEQUENCES; s++)
            batch[s] = (struct sequence_tokens){sequence[s], tokens + PROMPT + i - s, 1, LOGITS_LAST};
        logits.rows = 0;
        check_ok(model_forward(&m.model, cache, batch, SEQUENCES, &logits, &error));
        float *values = test_download_logits(&m, &logits, 0, SEQUENCES);
        memcpy(all + (size_t)i * step_values, values, step_values * sizeof *values);
        free(values);
    }
    assert_int_equal(m.model.positions_processed, 2 * TOKENS - 1);
    logits_free(&logits, m.ledger);
    kv_close(cache);
    test_model_close(&m);
    free(tokens);
    return all;
}

static void graphs_on_equals_graphs_off(void **state)
{
    (void)state;
    struct config config = small_config();
    for (int dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        float *on = decode(&config, (enum dtype)dtype, 1), *off = decode(&config, (enum dtype)dtype, 0);
        size_t count = (size_t)STEPS * SEQUENCES * (size_t)config.vocab_size;
        for (size_t i = 0; i < count; i++)
            if (on[i] != off[i])
                fail_msg("%s: logit %zu is %.9g replayed, %.9g launched", dtype_name((enum dtype)dtype), i,
                         (double)on[i], (double)off[i]);
        free(on);
        free(off);
    }
}

/* ---- the device's own records (kernels/probes.h) */

/* Skips where the device has none, and says why. */
static void need_probes(struct device *device)
{
    enum status status = device->probes ? device->probes->trace_begin(device, &error) : STATUS_DEVICE;
    if (status == STATUS_OK) {
        device->probes->trace_end(device);
        return;
    }
    print_message("%s\n", device->probes ? error.message : "this device keeps no records of its kernels");
    device->ops->close(device);
    skip();
}

static const struct profile_operation *operation(const struct profile_pass *pass, const char *name)
{
    for (size_t i = 0; i < pass->count; i++)
        if (strcmp(pass->operations[i].name, name) == 0)
            return &pass->operations[i];
    fail_msg("no operation %s", name);
    return NULL;
}

/* Every operation has its kernels, also in a pass that is replayed, whose list is the launched one's. */
static void kernels_are_traced(void **state)
{
    (void)state;
    struct device *tried = test_device_open(0);
    need_probes(tried);
    tried->ops->close(tried);
    struct config config = small_config();
    struct test_model m;
    struct kv_cache *cache;
    struct logits logits;
    struct profile *profile;
    struct profile_pass launched, pass;
    int32_t *tokens = test_tokens(&config, TOKENS, 4), chosen;
    int sequence;
    char reason[256];
    test_model_open(&m, &config, DTYPE_BF16, 0, &limits);
    struct kv_options options = {.policy = KV_RESERVED, .dtype = DTYPE_BF16, .max_sequences = 1, .max_tokens = TOKENS};
    check_ok(kv_open(&cache, m.ledger, &m.config, &options, &error));
    check_ok(logits_init(&logits, m.ledger, &m.config, DTYPE_BF16, 1, &error));
    check_ok(kv_sequence_open(cache, &sequence, &error));
    check_ok(model_prefill(&m.model, cache, sequence, tokens, PROMPT, LOGITS_NONE, 0, NULL, &error));
    check_ok(profile_open(&profile, m.device, reason, sizeof reason, &error));
    assert_string_equal(reason, "");
    for (int i = 0; i < 5; i++) { /* launched; launched, recorded; replayed twice */
        struct sequence_tokens next = {sequence, tokens + PROMPT, 1, LOGITS_LAST};
        m.device->graphs = i > 0;
        check_ok(kv_truncate(cache, sequence, PROMPT, &error));
        logits.rows = 0;
        check_ok(profile_start(profile, &error));
        check_ok(model_forward(&m.model, cache, &next, 1, &logits, &error));
        check_ok(model_argmax(&m.model, &logits, 0, 1, &chosen, &error));
        if (i == 1 || i == 2)
            continue;
        check_ok(profile_read(profile, &pass, &error));
        assert_int_equal(pass.replayed, i > 2);
        assert_string_equal(pass.timed_by, "cupti");
        for (size_t at = 0; at < pass.count; at++) {
            const struct profile_operation *now = &pass.operations[at];
            assert_string_not_equal(now->name, "other kernels");
            assert_true(now->launches >= now->calls);
            assert_true(now->ms > 0);
            assert_string_not_equal(now->kernels, "");
            if (i > 0)
                assert_int_equal(now->launches, operation(&launched, now->name)->launches);
        }
        if (i == 0)
            launched = pass;
        else
            profile_pass_free(&pass);
    }
    assert_int_equal(operation(&launched, "attention")->calls, config.num_hidden_layers);
    profile_pass_free(&launched);
    profile_close(profile);
    free(tokens);
    logits_free(&logits, m.ledger);
    kv_close(cache);
    test_model_close(&m);
}

/* The driver's records of allocations agree with what the ledger says that it holds, byte by byte. */
static void memory_records_agree_with_the_ledger(void **state)
{
    (void)state;
    struct device *device = test_device_open(0);
    struct ledger *ledger;
    need_probes(device);
    check_ok(ledger_open(&ledger, device, 0, &error));
    check_ok(device->probes->account_begin(device, &error));
    void *memory[24];
    uint64_t random = 9, held;
    for (int i = 0; i < 24; i++) {
        uint64_t bytes = (uint64_t)test_random(&random, 1, i % 3 == 0 ? 5 << 20 : 3000);
        check_ok(ledger_alloc(ledger, (enum ledger_tag)(i % LEDGER_TAGS), bytes, "a test", &memory[i], &error));
        if (i >= 8 && i % 2) {
            ledger_release(ledger, memory[i - 8]);
            memory[i - 8] = NULL;
        }
        check_ok(device->probes->account_bytes(device, &held, &error));
        assert_int_equal(held, ledger_counts(ledger).reserved);
        assert_true(held > 0);
    }
    for (int i = 0; i < 24; i++)
        ledger_release(ledger, memory[i]);
    check_ok(device->probes->account_bytes(device, &held, &error));
    assert_int_equal(held, 0);
    device->probes->account_end(device);
    ledger_close(ledger);
    device->ops->close(device);
}

/* Counts where it may: what a read of 256 MiB brings from memory is not far below them. */
static void counted_reads(void **state)
{
    (void)state;
    const size_t bytes = (size_t)256 << 20; /* beyond any cache; and half of it is */
    struct device *device = test_device_open(0);
    struct device_counters counters;
    void *memory;
    uint64_t checksum;
    need_probes(device);
    if (device->probes->counters_begin(device, &error) != STATUS_OK) {
        print_message("%s\n", error.message);
        device->ops->close(device);
        skip();
    }
    check_ok(device->probes->counters_end(device, &counters, &error));
    check_ok(device->ops->alloc(device, bytes, &memory, &error));
    check_ok(device->ops->fill_random(device, memory, DTYPE_F32, bytes / sizeof(float), 1, 1.0f, &error));
    check_ok(device->probes->counters_begin(device, &error));
    check_ok(device->ops->read_bytes(device, memory, bytes, &checksum, &error));
    check_ok(device->probes->counters_end(device, &counters, &error));
    print_message("%zu bytes read: counters say %llu read, %llu written\n", bytes,
                  (unsigned long long)counters.read_bytes, (unsigned long long)counters.written_bytes);
    assert_true(counters.read_bytes > bytes / 2);
    assert_true(counters.written_bytes < bytes / 2);
    device->ops->release(device, memory, bytes);
    device->ops->close(device);
}

/* ---- running out of memory */

static struct {
    void (*fail_allocation)(uint64_t n);
    uint64_t (*allocations)(void);
    size_t (*live_objects)(void);
} standin;

static void *standin_function(void *library, const char *name)
{
    void *function = dlsym(library, name);
    if (function == NULL)
        skip(); /* a real card */
    return function;
}

/* The stand-in is in the device's library, which lies beside this program and stays loaded once a device was open. */
static void find_standin(void)
{
    char path[PATH_MAX + 32];
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    assert_true(length > 0);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, "libkvlab-cuda.so");
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        skip();
    *(void **)&standin.fail_allocation = standin_function(library, "standin_fail_allocation");
    *(void **)&standin.allocations = standin_function(library, "standin_allocations");
    *(void **)&standin.live_objects = standin_function(library, "standin_live_objects");
}

struct run {
    struct device *device;
    struct ledger *ledger;
    struct model model;
    struct kv_cache *cache;
    struct logits logits;
};

static enum status run_to_the_end(struct run *run, const struct config *config, const int32_t *tokens)
{
    struct weights weights = {0};
    struct kv_options options = {.policy = KV_EXACT, .dtype = DTYPE_F16, .max_sequences = 1};
    int sequence;
    int32_t chosen;
    if (device_open("cuda", 0, &run->device, &error) != STATUS_OK ||
        ledger_open(&run->ledger, run->device, 0, &error) != STATUS_OK ||
        weights_synthetic(&weights, run->ledger, config, DTYPE_F16, 1, &error) != STATUS_OK ||
        model_init(&run->model, run->ledger, config, &weights, &limits, DTYPE_F16, &error) != STATUS_OK ||
        logits_init(&run->logits, run->ledger, config, DTYPE_F16, 1, &error) != STATUS_OK ||
        kv_open(&run->cache, run->ledger, config, &options, &error) != STATUS_OK ||
        kv_sequence_open(run->cache, &sequence, &error) != STATUS_OK ||
        model_prefill(&run->model, run->cache, sequence, tokens, 20, LOGITS_NONE, 0, NULL, &error) != STATUS_OK)
        return error.status;
    for (int i = 20; i < 24; i++) {
        struct sequence_tokens next = {sequence, tokens + i, 1, LOGITS_LAST};
        run->logits.rows = 0;
        if (model_forward(&run->model, run->cache, &next, 1, &run->logits, &error) != STATUS_OK ||
            model_argmax(&run->model, &run->logits, 0, 1, &chosen, &error) != STATUS_OK)
            return error.status;
    }
    return STATUS_OK;
}

static void run_close(struct run *run)
{
    if (run->ledger != NULL) {
        kv_close(run->cache);
        logits_free(&run->logits, run->ledger);
        if (run->model.ledger != NULL)
            model_free(&run->model);
        assert_int_equal(ledger_counts(run->ledger).live_total, 0);
        ledger_close(run->ledger);
    }
    if (run->device != NULL)
        run->device->ops->close(run->device);
}

/* The n-th allocation fails, for each n that a run has: status 3 and a message that says so, and all is given back. */
static void every_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    const char *name = getenv("KVLAB_TEST_DEVICE");
    if (name == NULL || strcmp(name, "cuda") != 0)
        skip();
    struct config config = small_config();
    int32_t *tokens = test_tokens(&config, 24, 3);
    struct run whole = {0};
    check_ok(run_to_the_end(&whole, &config, tokens));
    run_close(&whole);
    find_standin();
    assert_int_equal(standin.live_objects(), 0);
    uint64_t before = standin.allocations(), count;
    struct run again = {0};
    check_ok(run_to_the_end(&again, &config, tokens));
    run_close(&again);
    count = standin.allocations() - before;
    assert_true(count > 10);
    for (uint64_t n = 1; n <= count; n++) {
        struct run run = {0};
        standin.fail_allocation(n);
        if (run_to_the_end(&run, &config, tokens) != STATUS_DEVICE)
            fail_msg("allocation %d of %d fails, and the run does not: %s", (int)n, (int)count, error.message);
        if (strstr(error.message, "device cuda: ") == NULL || strstr(error.message, "at kernels/cuda/") == NULL)
            fail_msg("allocation %d of %d: an unclear message: %s", (int)n, (int)count, error.message);
        standin.fail_allocation(0);
        run_close(&run);
        if (standin.live_objects() != 0)
            fail_msg("allocation %d of %d fails, and %d objects stay: %s", (int)n, (int)count,
                     (int)standin.live_objects(), error.message);
    }
    free(tokens);
}

/* ---- byte models, worked by hand */

static void byte_models(void **state)
{
    (void)state;
    int some = 0;
    /* 3 x 8 -> 5 in bf16 with bias, y in f32: 40 weights, 24 x, 5 bias of 2 bytes; 15 y of 4 */
    struct linear_args linear = {
        .rows = 3, .in = 8, .out = 5, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .bias = &some};
    assert_int_equal(linear_bytes(&linear), 69 * 2 + 15 * 4);
    /* 100 keys, 2 KV heads of 64 in f16: 25,600 values of K and V; 8 heads: 512 of q in f32, 512 out in bf16 */
    struct attention_args attention = {
        .heads = 8, .kv_heads = 2, .head_dim = 64, .out_dtype = DTYPE_BF16, .kv = {.dtype = DTYPE_F16}};
    assert_int_equal(attention_decode_bytes(&attention, 100, 1), 51200 + 2048 + 1024);
    /* 4 splits: 8 heads x 4 x (64 + 2) floats, written and read */
    assert_int_equal(attention_decode_bytes(&attention, 100, 4), 54272 + 2 * 8448);
    /* 2 x 16 with delta in f32: 32 x (4 + 4 + 4 + 4), and 16 weights of 4 */
    struct rms_norm_args norm = {.rows = 2, .hidden = 16, .dtype = DTYPE_F32, .delta = (const float *)&some};
    assert_int_equal(rms_norm_bytes(&norm), 512 + 64);
    norm.delta = NULL;
    assert_int_equal(rms_norm_bytes(&norm), 256 + 64);
    assert_int_equal(swiglu_bytes(2, 10, DTYPE_F16), 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_models),        cmocka_unit_test(graphs_on_equals_graphs_off),
        cmocka_unit_test(kernels_are_traced), cmocka_unit_test(memory_records_agree_with_the_ledger),
        cmocka_unit_test(counted_reads),      cmocka_unit_test(every_failed_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
