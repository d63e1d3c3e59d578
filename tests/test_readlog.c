/* Other engines' reports: real lines of each format against what the formula gives, lines that are off for a known
   reason, and logs that are no logs at all. */
#include "engine/claims/readlog.h"
#include "engine/plan/plan.h"
#include "tests/command.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *logs_dir(char *path, size_t size, const char *name)
{
    const char *tests = getenv("KVLAB_TESTS");
    snprintf(path, size, "%s/logs/%s", tests ? tests : "tests", name);
    return path;
}

static struct shape shape_of(const char *model)
{
    char models_dir[4096];
    struct shape shape = {0};
    struct error error;
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    if (shape_find(&shape, models_dir, model, &error) != STATUS_OK)
        fail_msg("%s: %s", model, error.message);
    return shape;
}

static const struct plan_type *type_of(const char *name)
{
    const struct plan_type *type = NULL;
    struct error error;
    if (name)
        assert_int_equal(plan_type_find(&type, name, "kv-dtype", true, &error), STATUS_OK);
    return type;
}

static struct readlog read_text(const char *text, const struct readlog_options *options)
{
    struct readlog log;
    struct error error;
    if (readlog_text(&log, text, strlen(text), options, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return log;
}

static void expect_row(const struct readlog *log, size_t line, const char *quantity, const char *verdict,
                       const char *formula, const char *reason)
{
    for (size_t i = 0; i < log->count; i++) {
        const struct readlog_row *row = &log->rows[i];
        if (row->line != line || strcmp(row->quantity, quantity) != 0)
            continue;
        if (strcmp(readlog_verdict_name(row->verdict), verdict) != 0 || strcmp(row->formula, formula) != 0 ||
            !strstr(row->reason, reason))
            fail_msg("line %zu, %s: expected %s, formula %s, \"%s\"; got %s, formula %s, \"%s\"", line, quantity,
                     verdict, formula, reason, readlog_verdict_name(row->verdict), row->formula, row->reason);
        return;
    }
    fail_msg("line %zu has no %s", line, quantity);
}

/* ---- real logs --------------------------------------------------------------------------------------------------- */

struct expected {
    size_t line;
    const char *quantity, *verdict, *formula, *reason;
};

/* Each number by hand from the model's geometry: layers x KV heads x head_dim x 2 x bytes. */
static const struct {
    const char *file, *model, *kv_type;
    size_t rows; /* and no others */
    struct expected expected[8];
} logs[] = {
    /* 32 x 32 x 128 x 2 x 2 = 524,288; x 512 = 256 MiB, which is 268.44 MB */
    {"llama-2023-llama-2-7b.log", "llama-2-7b", NULL, 1, {{9, "kv_bytes", "unit slip", "268.44", "MiB printed as MB"}}},
    /* 64 x 8 x 128 x 2 x 34/32 = 139,264; x 32,768 = 4,352 MiB, 68 a layer */
    {"llama-2024-qwen2.5-32b.log",
     "qwen2.5-32b",
     NULL,
     5,
     {{3, "kv_buffer_bytes", "exact", "2788.00", "CUDA0: 41 of 64 layers"},
      {4, "kv_buffer_bytes", "exact", "1564.00", "CUDA1: 23 of 64 layers"},
      {5, "kv_bytes", "exact", "4352.00", "139264 bytes (q8_0)"},
      {5, "kv_k_bytes", "exact", "2176.00", ""},
      {5, "kv_v_bytes", "exact", "2176.00", ""}}},
    /* the same, where the user had asked for f16: the log is that of a q8_0 cache */
    {"llama-2024-qwen2.5-32b.log", "qwen2.5-32b", "f16", 5, {{5, "kv_bytes", "off", "8192.00", "as a cache in q8_0"}}},
    /* 28 x 4 x 128 x 2 x 2 = 57,344; x 2,048 = 112 MiB */
    {"llama-2025-qwen2.5-7b.log",
     "qwen2.5-7b",
     NULL,
     4,
     {{4, "kv_buffer_bytes", "exact", "112.00", "28 of 28 layers"}, {5, "kv_bytes", "exact", "112.00", "57344 bytes"}}},
    /* read as another model's: 112 MiB is 8 layers of Qwen2.5-32B's 64 at 2,048 tokens, 14 of its layers' */
    {"llama-2025-qwen2.5-7b.log", "qwen2.5-32b", NULL, 4, {{5, "kv_bytes", "off", "512.00", "as for 14 layers"}}},
    {"llama-2025-mistral-7b.log",
     "mistral-7b-v0.1",
     NULL,
     4,
     {{8, "kv_buffer_bytes", "exact", "1024.00", "32 of 32"},
      {9, "kv_bytes", "exact", "1024.00", "the window of 4096 tokens is ignored"}}},
    /* 28 x 8 x 128 x 2 x 2 x 1,024 = 112 MiB; then another model's cache */
    {"llama-2025-llama-3.2.log",
     "llama-3.2-3b",
     NULL,
     8,
     {{3, "kv_bytes", "exact", "112.00", "114688 bytes"}, {6, "kv_bytes", "off", "112.00", "as for 8 layers"}}},
    {"llama-2025-llama-3.2.log", "llama-3.2-1b", NULL, 8, {{6, "kv_bytes", "exact", "32.00", "32768 bytes"}}},
    /* 28,672 x 16 = 458,752 a block: 2.36 GiB hold 5,512 to 5,535; 4 GiB of swap 9,362; 5,517 x 16 / 32,768 = 2.694 */
    {"vllm-v0-qwen2.5-1.5b.log",
     "qwen2.5-1.5b",
     NULL,
     4,
     {{4, "kv_capacity_bytes", "capacity", "", "room for 88379 tokens"},
      {5, "kv_capacity_blocks", "within rounding", "5523", "capacity, not use"},
      {5, "kv_swap_blocks", "exact", "9362", "swap space of 4 GiB"},
      {6, "max_concurrency", "within rounding", "2.69", "88272 tokens / 32768"}}},
    /* as if it were the 7B: half the blocks */
    {"vllm-v0-qwen2.5-1.5b.log",
     "qwen2.5-7b",
     NULL,
     4,
     {{5, "kv_capacity_blocks", "off", "2761", "as a cache in fp8"}}},
    {"vllm-v0-mistral-7b.log",
     "llama-3-8b",
     NULL,
     3,
     {{2, "kv_capacity_blocks", "capacity", "", "21280 tokens; 2.60 GiB"},
      {2, "kv_swap_blocks", "exact", "2048", ""}, /* 4 GiB / (131,072 x 16) */
      {3, "max_concurrency", "within rounding", "10.39", ""}}},
    /* its own model: before groups, a block was of all layers, windowed or not: 4 GiB / (131,072 x 16) */
    {"vllm-v0-mistral-7b.log",
     "mistral-7b-v0.1",
     NULL,
     3,
     {{2, "kv_capacity_blocks", "capacity", "", "21280 tokens; 2.60 GiB"},
      {2, "kv_swap_blocks", "exact", "2048", "swap space of 4 GiB"},
      {3, "max_concurrency", "within rounding", "10.39", "21280 tokens / 2048"}}},
    /* 40 x 40 x 128 x 2 x 2 = 819,200; 4 GiB / (16 x 819,200) = 327.68 */
    {"vllm-v0-llama-2-13b.log", "llama-2-13b", NULL, 2, {{1, "kv_swap_blocks", "exact", "327", ""}}},
    /* 80 x 8 x 128 x 2 x 1 = 163,840 over both ranks: the log does not say that there are two */
    {"vllm-v1-tp2.log",
     "llama-3-70b",
     "fp8",
     3,
     {{2, "kv_capacity_bytes", "capacity", "", "capacity, not use"},
      {3, "kv_capacity_tokens", "off", "343136", "as on one of 2 ranks"},
      {4, "max_concurrency", "within rounding", "6.86", "686320 tokens / 100000"}}},
    /* 65,536 x 20,480 = 1.25 GiB of K */
    {"sglang-llama-3.1-8b.log",
     "llama-3.1-8b",
     NULL,
     3,
     {{2, "kv_capacity_tokens", "capacity", "", "capacity, not use"},
      {2, "kv_k_bytes", "unit slip", "1.34", "GiB printed as GB"},
      {2, "kv_v_bytes", "unit slip", "1.34", "65536 bytes (bf16)"}}},
    /* 6,144 x 20,480 = 0.117 GiB, 0.126 GB */
    {"sglang-qwen2-0.5b.log", "qwen2.5-0.5b", NULL, 3, {{2, "kv_k_bytes", "unit slip", "0.13", "GiB printed as GB"}}},
    /* Four ranks, 39 windowed layers with 2 of 8 KV heads: K 192, V 128 values; a page of 64 more than the tokens makes
       5.5844 GiB of V 5.5855 */
    {"sglang-mimo-v2-flash.log",
     "mimo-v2-flash",
     NULL,
     5,
     {{2, "kv_full_capacity_tokens", "capacity", "", "capacity, not use"},
      {2, "kv_window_capacity_tokens", "exact", "300288", "0.8 of the full"},
      {3, "kv_capacity_tokens", "capacity", "", "capacity, not use"},
      {3, "kv_k_bytes", "unit slip", "9.00", "300288 tokens x 29952 bytes (bf16); the pool of the 39 windowed layers"},
      {3, "kv_v_bytes", "unit slip", "6.00", "300288 tokens x 19968 bytes"}}},
    /* Both pools of one size, and the ranks not said: 1,496,959 x (9 x 4 + 39 x 8) x 320 x 2 over four */
    {"sglang-mimo-v2-flash-2025.log",
     "mimo-v2-flash",
     NULL,
     7,
     {{1, "kv_k_bytes", "off", "179.35", "one rank of 4: 2 of 8 KV heads"},
      {1, "kv_v_bytes", "off", "119.57", "the pool of the 39 windowed layers"},
      {2, "kv_k_bytes", "off", "20.69", "the pool of the 9 full layers"},
      {3, "kv_bytes", "off", "333.40", "as on one of 4 ranks"}}},
    /* 18,944 x 3,584 x 2 = 129.5 MiB */
    {"pytorch-2.log",
     "qwen2.5-7b",
     NULL,
     17,
     {{1, "oom_requested_bytes", "within rounding", "129.50", "a matrix of an MLP: 18944 x 3584 x 2"},
      {1, "oom_capacity_bytes", "capacity", "", "2,625,504,011 more than the card has"},
      {1, "oom_allocated_bytes", "use", "", "80% of the weights"},
      {1, "oom_process_bytes", "use", "", "93,690,266 bytes of it lie outside"},
      {2, "oom_unallocated_bytes", "use", "", "not in use"},
      {3, "oom_reserved_bytes", "use", "", "holds from the driver"}}},
    /* 94 x 4 x 128 x 2 x 2 = 192,512; on each of four ranks a quarter; K of 367,404 tokens is 8.234 GiB there. vLLM had
       1% less than the memory printed would hold, which the log does not explain */
    {"vllm-sglang-qwen3-235b.log",
     "qwen3-235b-a22b",
     NULL,
     5,
     {{2, "kv_capacity_tokens", "off", "45232", "nearly as on one of 4 ranks"},
      {3, "kv_k_bytes", "off", "35.36", "one rank of 4 or more: 1 of 4 KV heads"}}},
    {"vllm-prometheus-v0.txt",
     "qwen2.5-7b",
     NULL,
     3,
     {{3, "kv_capacity_blocks", "capacity", "", "9168 tokens"},
      {6, "requests_running", "use", "", ""},
      {9, "kv_usage", "use", "", "3851 of 9168 tokens; 210.6 MiB"}}},
    {"vllm-prometheus-v1.txt",
     "qwen2.5-7b",
     NULL,
     3,
     {{3, "requests_running", "use", "", ""},
      {5, "requests_waiting", "use", "", "no blocks"},
      {8, "kv_usage", "use", "", "does not say of how many blocks"}}},
};

static void real_logs(void **state)
{
    (void)state;
    char path[4096];
    for (size_t i = 0; i < COUNT(logs); i++) {
        struct shape shape = shape_of(logs[i].model);
        struct readlog_options options = {.shape = &shape, .kv_type = type_of(logs[i].kv_type)};
        struct readlog log;
        struct error error;
        if (readlog_file(&log, logs_dir(path, sizeof path, logs[i].file), &options, &error) != STATUS_OK)
            fail_msg("%s", error.message);
        if (log.count != logs[i].rows)
            fail_msg("%s: %zu rows, not %zu", logs[i].file, log.count, logs[i].rows);
        for (size_t k = 0; k < COUNT(logs[i].expected) && logs[i].expected[k].line; k++) {
            const struct expected *e = &logs[i].expected[k];
            expect_row(&log, e->line, e->quantity, e->verdict, e->formula, e->reason);
        }
        readlog_free(&log);
        shape_free(&shape);
    }
}

/* Full and windowed layers in two caches: 13 and 39 layers of 2 KV heads of 128, f16: 1,024 bytes a layer. */
static void two_kinds_of_layers(void **state)
{
    (void)state;
    char path[4096];
    struct layer_shape layers[52];
    struct shape shape = {.query_heads = 16,
                          .kv_heads = 2,
                          .head_dim = 128,
                          .layer_count = 52,
                          .layers = layers,
                          .torch_dtype = DTYPE_BF16,
                          .vocab_size = 1000,
                          .hidden_size = 2048};
    for (int i = 0; i < 52; i++)
        layers[i] = (struct layer_shape){.kind = i % 4 == 3 ? LAYER_FULL : LAYER_WINDOW,
                                         .query_heads = 16,
                                         .kv_heads = 2,
                                         .k_dim = 128,
                                         .v_dim = 128,
                                         .window = 2048};
    struct readlog_options options = {.shape = &shape};
    struct readlog log;
    struct error error;
    assert_int_equal(readlog_file(&log, logs_dir(path, sizeof path, "llama-2026-windows.log"), &options, &error),
                     STATUS_OK);
    assert_int_equal(log.count, 6);
    expect_row(&log, 2, "kv_bytes", "exact", "416.00", "32768 tokens x 13312 bytes");
    expect_row(&log, 4, "kv_window_bytes", "exact", "97.50", "2560 cells for a window of 2048");
    readlog_free(&log);
    /* with the micro-batch known, the rule: 2048 x 1 + 512 = 2560, a multiple of 256 */
    log = read_text(
        "llama_context: n_ubatch      = 512\nllama_kv_cache_iswa: creating     SWA KV cache, size =  2560 cells\n"
        "llama_kv_cache: size =  97.50 MiB (  2560 cells, 39 layers, 1/1 seqs), K (f16):  48.75 MiB, V (f16):  48.75 "
        "MiB\n",
        &options);
    expect_row(&log, 3, "kv_window_bytes", "exact", "97.50", "window 2048 x 1 + batch 512, padded to 2560");
    readlog_free(&log);
    /* four sequences in one unified cache: 2048 x 4 + 512 = 8704 cells; as four streams, 2560 cells each */
    log = read_text(
        "llama_context: n_ubatch      = 512\nllama_kv_cache_iswa: creating     SWA KV cache, size =  8704 cells\n"
        "llama_kv_cache: size =  331.50 MiB (  8704 cells, 39 layers, 4/1 seqs), K (f16): 165.75 MiB, V (f16): "
        "165.75 MiB\nllama_kv_cache_iswa: creating     SWA KV cache, size =  2560 cells\n"
        "llama_kv_cache: size =  390.00 MiB (  2560 cells, 39 layers, 4/4 seqs), K (f16): 195.00 MiB, V (f16): "
        "195.00 MiB\n",
        &options);
    expect_row(&log, 3, "kv_window_bytes", "exact", "331.50", "window 2048 x 4 + batch 512, padded to 8704");
    expect_row(&log, 5, "kv_window_bytes", "exact", "390.00", "window 2048 x 1 + batch 512, padded to 2560");
    readlog_free(&log);
}

/* ---- known reasons ----------------------------------------------------------------------------------------------- */

/* Qwen2.5-7B: 57,344 bytes a token, 224 MiB at 4,096; 28 query and 4 KV heads, 28 layers. */
static void reasons_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *text, *kv_type, *quantity, *formula, *reason;
        int64_t context, slots, ranks;
    } known[] = {
        {"x: n_ctx = 4096\nx: KV self size = 1568.00 MiB", NULL, "kv_bytes", "224.00",
         "the 28 query heads instead of 4", 0, 0, 0},
        {"x: n_ctx = 4096\nx: KV self size = 448.00 MiB", NULL, "kv_bytes", "224.00", "as a cache in f32", 0, 0, 0},
        {"x: n_seq_max = 2\nx: n_ctx = 4096\nx: KV self size = 448.00 MiB", NULL, "kv_bytes", "224.00", "2 slots", 0, 0,
         0},
        {"x: n_ctx = 4096\nx: KV self size = 896.00 MiB", NULL, "kv_bytes", "224.00", "4 slots", 0, 4, 0},
        {"x: n_ctx = 4096\nx: KV self size = 672.00 MiB", NULL, "kv_bytes", "224.00", "3 times as much", 0, 0, 0},
        {"x: n_ctx = 4096\nx: KV self size = 119.00 MiB", NULL, "kv_bytes", "224.00", "as a cache in q8_0", 0, 0, 0},
        {"x: n_ctx = 4096\nx: KV self size = 171.50 MiB", NULL, "kv_bytes", "224.00", "K in q8_0 and V in f16", 0, 0,
         0},
        {"x: KV self size = 56.00 MiB", NULL, "kv_bytes", "54.69", "1000 is padded to 1024, a multiple of 32", 1000, 0,
         0},
        {"x: n_ctx = 4096\nx: KV self size = 232.00 MiB", NULL, "kv_bytes", "224.00", "as for 29 layers instead of 28",
         0, 0, 0},
        {"x: n_ctx = 4096\nx: KV self size = 218.53 MiB", NULL, "kv_bytes", "224.00", "as for 3996 tokens", 0, 0, 0},
        {"x: n_ctx = 4096\nx: KV self size = 187.31 MiB", NULL, "kv_bytes", "224.00", "no known reason", 0, 0, 0},
        /* SGLang, 20,480 tokens: K is 587,202,560 bytes, 0.547 GiB */
        {"KV Cache is allocated. #tokens: 20480, K size: 0.27 GB, V size: 0.27 GB", NULL, "kv_k_bytes", "0.59",
         "as a cache in fp8", 0, 0, 0},
        {"KV Cache is allocated. #tokens: 2048000, K size: 13.67 GB, V size: 13.67 GB", NULL, "kv_k_bytes", "58.72",
         "one rank of 4 or more: 1 of 4 KV heads", 0, 0, 0},
        /* vLLM, 10 GiB: 11,702 blocks of 917,504 bytes */
        {"Available KV cache memory: 10.00 GiB\nGPU KV cache size: 26,736 tokens", NULL, "kv_capacity_tokens", "187232",
         "the 28 query heads instead of 4", 0, 0, 0},
        {"Available KV cache memory: 10.00 GiB\nGPU KV cache size: 374,480 tokens", NULL, "kv_capacity_tokens",
         "187232", "as a cache in fp8", 0, 0, 0},
        {"Available KV cache memory: 10.00 GiB\nGPU KV cache size: 748,976 tokens", NULL, "kv_capacity_tokens",
         "187232", "as on one of 4 ranks", 0, 0, 0},
        {"Available KV cache memory: 10.00 GiB\nGPU KV cache size: 187,232 tokens", NULL, "kv_capacity_tokens",
         "748976", "on one of 1 ranks", 0, 0, 8},
    };
    struct shape shape = shape_of("qwen2.5-7b");
    for (size_t i = 0; i < COUNT(known); i++) {
        struct readlog_options options = {.shape = &shape,
                                          .kv_type = type_of(known[i].kv_type),
                                          .context = known[i].context,
                                          .slots = known[i].slots,
                                          .ranks = known[i].ranks};
        struct readlog log = read_text(known[i].text, &options);
        expect_row(&log, log.lines, known[i].quantity, "off", known[i].formula, known[i].reason);
        readlog_free(&log);
    }
    shape_free(&shape);
}

/* Layers with windows share a pool of blocks with the full ones, a group of layers at a time. */
static void groups_of_layers(void **state)
{
    (void)state;
    static const struct {
        const char *model, *text, *quantity, *verdict, *formula, *reason;
        size_t line;
    } known[] = {
        /* 12 full, 12 of window 128: 2 groups, 12 x 16 x 2,048 = 393,216 bytes a block. 143,382 blocks are 71,691 x 16
           tokens of each; a request takes 512 + (128 - 1 + 8,192 cut to 8,192) / 16 + 1 = 1,025: 139.88 */
        {"gpt-oss-20b",
         "GPU KV cache size: 1,147,056 tokens\nMaximum concurrency for 8,192 tokens per request: 139.88x",
         "max_concurrency", "within rounding", "139.88", "143382 blocks / 1025 of a request", 2},
        {"gpt-oss-20b", "Available KV cache memory: 52.51 GiB\nGPU KV cache size: 1,147,056 tokens",
         "kv_capacity_tokens", "within rounding", "1147088", "2 groups of layers", 2},
        /* steps of 2,048 tokens: 512 + 136 + 1 = 649; said by the log, or one of the defaults */
        {"gpt-oss-20b", "GPU KV cache size: 442,992 tokens\nMaximum concurrency for 8,192 tokens per request: 85.32x",
         "max_concurrency", "within rounding", "85.32", "55374 blocks / 649 of a request", 2},
        {"gpt-oss-20b",
         "max_num_batched_tokens=8192\nGPU KV cache size: 442,992 tokens\n"
         "Maximum concurrency for 8,192 tokens per request: 85.32x",
         "max_concurrency", "off", "54.02", "55374 blocks / 1025 of a request", 3},
        {"gpt-oss-20b", "GPU KV cache size: 442,992 tokens\nMaximum concurrency for 8,192 tokens per request: 54.08x",
         "max_concurrency", "off", "54.02", "as if every layer held the whole request", 2},
        /* query heads: 8 times the block, 52.51 GiB / 3,145,728 / 2 x 16 */
        {"gpt-oss-20b", "Available KV cache memory: 52.51 GiB\nGPU KV cache size: 143,376 tokens", "kv_capacity_tokens",
         "off", "1147088", "the 64 query heads instead of 8", 2},
        /* 40 GiB / (10 layers x 16 x 8,192) */
        {"gemma-3-27b", "Available KV cache memory: 40.00 GiB\nGPU KV cache size: 74,896 tokens", "kv_capacity_tokens",
         "exact", "74896", "1310720 bytes; 7 groups", 2}, /* 10 full, 52 windowed: 32,768 blocks / 7 */
        {"gemma-3-27b", "Available KV cache memory: 40.00 GiB\nGPU KV cache size: 84,560 tokens", "kv_capacity_tokens",
         "off", "74896", "hybrid KV cache manager off", 2}, /* 40 GiB / (62 x 8,192 x 16) = 5,285 blocks */
        {"gemma-3-27b", "Available KV cache memory: 40.00 GiB", "kv_capacity_bytes", "capacity", "",
         "room for 74896 tokens", 1},
        /* 12 full, 36 in chunks: 4 groups; 40 GiB / (12 x 16 x 4,096) = 54,613 / 4 */
        {"llama-4-scout", "Available KV cache memory: 40.00 GiB\nGPU KV cache size: 218,448 tokens",
         "kv_capacity_tokens", "exact", "218448", "4 groups", 2},
        /* all layers windowed: (4,096 - 1 + 2,048) / 16 + 1 = 385 blocks; 6,250 / 385 */
        {"mistral-7b-v0.1",
         "GPU KV cache size: 100,000 tokens\nMaximum concurrency for 32,768 tokens per request: 16.23x",
         "max_concurrency", "within rounding", "16.23", "6250 blocks / 385", 2},
        {"mistral-7b-v0.1",
         "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n"
         "vllm:kv_cache_usage_perc 0.5",
         "kv_usage", "use", "", "8000 of 16000 tokens; 1000.0 MiB", 2},
        {"qwen2.5-7b", "kv_cache_dtype=turbo3\nAvailable KV cache memory: 40.00 GiB", "kv_capacity_bytes", "capacity",
         "", "type is not known", 2},
        {"gpt-oss-20b", "pipeline_parallel_size=2\nAvailable KV cache memory: 40.00 GiB", "kv_capacity_bytes",
         "capacity", "", "over pipeline stages", 2},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        struct shape shape = shape_of(known[i].model);
        struct readlog_options options = {.shape = &shape};
        struct readlog log = read_text(known[i].text, &options);
        expect_row(&log, known[i].line, known[i].quantity, known[i].verdict, known[i].formula, known[i].reason);
        readlog_free(&log);
        shape_free(&shape);
    }
}

/* What the planner says that vLLM will print is right when it is printed. */
static void the_plan_printed_is_right(void **state)
{
    (void)state;
    static const char *const models[] = {
        "qwen2.5-7b",    "mistral-7b-v0.1",  "gpt-oss-20b",        "gemma-2-27b", "gemma-3-27b",        "gemma-3n-e2b",
        "llama-4-scout", "deepseek-v2-lite", "qwen3-next-80b-a3b", "jamba-v0.1",  "granite-4.0-h-micro"};
    static struct plan plan;
    for (size_t i = 0; i < COUNT(models); i++)
        for (int large = 0; large < 2; large++) {
            struct shape shape = shape_of(models[i]);
            struct readlog_options options = {.shape = &shape};
            struct plan_request request = {.shape = &shape,
                                           .memory_bytes = large ? 400000000000 : 250000000000,
                                           .context = 32768,
                                           .users = 1,
                                           .engine = ENGINE_VLLM,
                                           .weight_type = type_of("bf16"),
                                           .ranks = 1,
                                           .stages = 1,
                                           .batch_tokens = large ? 8192 : 2048};
            struct error error;
            char text[256];
            if (plan_make(&plan, &request, &error) != STATUS_OK)
                fail_msg("%s: %s", models[i], error.message);
            const struct kv_layout *layout = &plan.stages[0].layout;
            uint64_t blocks = plan.stages[0].pool_blocks;
            assert_true(blocks > 0 && layout->groups > 0);
            snprintf(text, sizeof text,
                     "Available KV cache memory: %.2f GiB\nGPU KV cache size: %llu tokens\n"
                     "Maximum concurrency for 32,768 tokens per request: %.2fx\n",
                     (double)plan.stages[0].kv_room / (double)(1 << 30),
                     (unsigned long long)(blocks / (uint64_t)layout->groups * layout->block_tokens),
                     (double)blocks / (double)layout->blocks_per_sequence);
            struct readlog log = read_text(text, &options);
            assert_int_equal(log.count, 3);
            for (size_t row = 1; row < 3; row++)
                if (log.rows[row].verdict != READLOG_EXACT && log.rows[row].verdict != READLOG_ROUNDED)
                    fail_msg("%s: %s is %s: %s\n%s", models[i], log.rows[row].quantity,
                             readlog_verdict_name(log.rows[row].verdict), log.rows[row].reason, text);
            readlog_free(&log);
            shape_free(&shape);
        }
}

/* Heads that are replicated over more ranks than there are heads take more in total: 8 ranks of one head each. */
static void replicated_heads(void **state)
{
    (void)state;
    struct shape shape = shape_of("qwen2.5-7b");
    struct readlog_options options = {.shape = &shape};
    struct readlog log = read_text("tensor_parallel_size=8\nAvailable KV cache memory: 10.00 GiB\n"
                                   "GPU KV cache size: 748,976 tokens\n",
                                   &options);
    expect_row(&log, 3, "kv_capacity_tokens", "exact", "748976", "blocks of 16 tokens of 14336 bytes");
    readlog_free(&log);
    log = read_text("x: n_ctx = 4096\nx: KV self size = 448.01 MiB", &options); /* close to f32's 448.00 and no more */
    assert_null(strstr(log.rows[0].reason, "f32"));
    readlog_free(&log);
    shape_free(&shape);
}

/* The crash of the course: 193 positions of logits in f32, seen as 112 MiB. */
static void the_crash_of_112_mib(void **state)
{
    (void)state;
    struct shape shape = shape_of("qwen2.5-7b");
    struct readlog_options options = {.shape = &shape};
    struct readlog log =
        read_text("Tried to allocate 112.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is "
                  "free. Of the allocated memory 22.90 GiB is allocated by PyTorch, and 194.87 MiB is reserved "
                  "by PyTorch but unallocated.",
                  &options);
    expect_row(&log, 1, "oom_requested_bytes", "within rounding", "111.96",
               "a logits-sized temporary: 193 x 152064 x 4 bytes = 117393408");
    expect_row(&log, 1, "oom_allocated_bytes", "use", "", "the weights, and ");
    readlog_free(&log);
    log = read_text("Tried to allocate 1.00 MiB. GPU 0 has", &options); /* nothing of this model is so small */
    expect_row(&log, 1, "oom_requested_bytes", "unchecked", "", "no weight matrix and no logits");
    readlog_free(&log);
    shape_free(&shape);
}

static void only_one_engine(void **state)
{
    (void)state;
    static const char text[] = "x: n_ctx = 4096\nx: KV self size = 224.00 MiB\nGPU KV cache size: 1,024 tokens\n";
    struct shape shape = shape_of("qwen2.5-7b");
    struct readlog_options options = {.shape = &shape, .engine = "vllm"};
    struct readlog log = read_text(text, &options);
    assert_int_equal(log.count, 1);
    assert_string_equal(log.rows[0].engine, "vllm");
    readlog_free(&log);
    options.engine = NULL;
    log = read_text(text, &options);
    assert_int_equal(log.count, 2);
    readlog_free(&log);
    shape_free(&shape);
}

/* ---- no logs ----------------------------------------------------------------------------------------------------- */

static void odd_lines(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "\n\n\n",
        "KV self size",
        "KV self size =",
        "KV self size = MiB",
        "KV self size = 1 furlong",
        "KV self size = 99999999999999999999999999 MiB",
        "KV self size = 999999999999999999 TiB, K (f16): 1 TiB, V (",
        "KV self size = 1.00 MiB, K (turbo3): 1 MiB",
        " KV buffer size = 1.00 MiB",
        "KV buffer size = 1.00 MiB",
        "llama_kv_cache: size = 1.00 MiB (",
        "llama_kv_cache: size = 1.00 MiB ( 9223372036854775807 cells, 0 layers, 0/0 seqs)",
        "llama_kv_cache: size = 1.00 MiB ( 1 cells, 1 layers, 9007199254740992/9007199254740992 seqs)",
        "# GPU blocks: 18446744073709551615, # CPU blocks: 0",
        "# GPU blocks: 999999999999999999, # CPU blocks: 999999999999999999",
        "GPU KV cache size: ,,, tokens",
        "GPU KV cache size: 0 tokens",
        "Maximum concurrency for 0 tokens per request: 1x",
        "GPU KV cache size: 5 tokens\nMaximum concurrency for 999999999999999999 tokens per request: 0.00x",
        "Available KV cache memory: -7.83 GiB",
        "Available KV cache memory: 999999999999999999 TiB",
        "Available KV cache memory: 0 GiB\n# GPU blocks: 0",
        "block_size=1073741823\n# GPU blocks: 999999999999999999",
        "the rest of the memory reserved for KV Cache is -7.83GiB.",
        "tensor_parallel_size=0\n# GPU blocks: 5",
        "KV Cache is allocated. #tokens: 999999999999999999, K size: 999999999999999999 TB, V size:",
        "Tried to allocate",
        "Tried to allocate 0 bytes",
        "Tried to allocate 130206.04 GiB. GPU 0 has a total capacity of 0 bytes",
        "Tried to allocate 999999999999999999 TiB. GPU",
        "Tried to allocate 9.00 EiB",
        "vllm:kv_cache_usage_perc{",
        "vllm:kv_cache_usage_perc} 1",
        "vllm:kv_cache_usage_perc NaN",
        "vllm:cache_config_info{block_size=\"0\",num_gpu_blocks=\"99999999999\"} 1",
        "vllm:kv_cache_usage_perc 99999999999999",
    };
    struct shape shape = shape_of("qwen2.5-7b");
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct readlog_options options = {.shape = &shape};
        struct readlog log = read_text(texts[i], &options);
        for (size_t row = 0; row < log.count; row++) {
            assert_true(log.rows[row].line >= 1 && log.rows[row].line <= log.lines);
            assert_true(isnan(log.rows[row].ratio) || log.rows[row].formula[0]);
        }
        readlog_free(&log);
    }
    shape_free(&shape);
}

static void lines_of_any_length(void **state)
{
    (void)state;
    enum { LONG = 3 << 20 };
    static const char line[] = "\nx: n_ctx = 4096\nx: KV self size = 224.00 MiB";
    struct shape shape = shape_of("qwen2.5-7b");
    struct readlog_options options = {.shape = &shape};
    struct readlog log;
    struct error error;
    char *text = malloc(LONG + sizeof line);
    assert_non_null(text);
    for (int i = 0; i < LONG; i++) /* one line of letters and NULs */
        text[i] = (char)(i % 7 ? 'a' : 0);
    memcpy(text + LONG, line, sizeof line);
    assert_int_equal(readlog_text(&log, text, LONG + sizeof line - 1, &options, &error), STATUS_OK);
    assert_int_equal(log.lines, 3);
    assert_int_equal(log.count, 1);
    expect_row(&log, 3, "kv_bytes", "exact", "224.00", "57344 bytes");
    readlog_free(&log);
    for (int i = 0; i + 30 < LONG; i += 30) /* more rows than are kept */
        memcpy(text + i, "GPU KV cache size: 123 tokens\n", 30);
    assert_int_equal(readlog_text(&log, text, LONG / 30 * 30, &options, &error), STATUS_OK);
    assert_int_equal(log.count, READLOG_MAX_ROWS);
    assert_true(log.truncated);
    readlog_free(&log);
    free(text);
    shape_free(&shape);
}

/* xorshift64* (Vigna 2016) */
static uint64_t next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

static size_t damage(char *text, size_t size, size_t room, uint64_t *random)
{
    static const char *const pieces[] = {"99999999999999999999",
                                         "-1",
                                         "0",
                                         "\n",
                                         "MiB",
                                         "GB",
                                         "KV self size = ",
                                         "cells, ",
                                         "(",
                                         ")",
                                         "'",
                                         "{",
                                         "}",
                                         "# CPU blocks:",
                                         "Tried to allocate ",
                                         "1e18",
                                         ".",
                                         ",",
                                         "n_ctx = ",
                                         "K (q4_0): ",
                                         "tensor_parallel_size="};
    int changes = 1 + (int)(next(random) % 12);
    for (int i = 0; i < changes; i++) {
        size_t at = size ? next(random) % size : 0, length = size - at;
        const char *piece = pieces[next(random) % COUNT(pieces)];
        size_t added = strlen(piece), removed = next(random) % 20;
        switch (next(random) % 4) {
        case 0:
            if (size)
                text[at] = (char)next(random);
            break;
        case 1: /* digits turn into others */
            for (size_t k = at; k < size && k < at + 40; k++)
                if (text[k] >= '0' && text[k] <= '9')
                    text[k] = (char)('0' + next(random) % 10);
            break;
        case 2:
            if (size + added < room) {
                memmove(text + at + added, text + at, length);
                memcpy(text + at, piece, added);
                size += added;
            }
            break;
        default:
            removed = removed < length ? removed : length;
            memmove(text + at, text + at + removed, length - removed);
            size -= removed;
        }
    }
    return size;
}

/* Thousands of damaged copies, of models of several kinds; under AddressSanitizer too (make test-sanitize). */
static void damaged_logs(void **state)
{
    (void)state;
    enum { ROUNDS = 300, ROOM = 1 << 16 };
    static const char *const models[] = {"qwen2.5-7b",  "mistral-7b-v0.1", "llama-2-7b", "llama-3-70b",
                                         "gpt-oss-20b", "jamba-v0.1",      "deepseek-v3"};
    char path[4096], *text = malloc(ROOM);
    uint64_t random = 20250301;
    size_t seen = 0;
    assert_non_null(text);
    for (size_t i = 0; i < COUNT(logs); i++) {
        char *whole = command_read(logs_dir(path, sizeof path, logs[i].file));
        struct shape shape = shape_of(models[i % COUNT(models)]);
        for (int round = 0; round < ROUNDS; round++) {
            size_t size = strlen(whole) < ROOM / 2 ? strlen(whole) : ROOM / 2;
            struct readlog_options options = {.shape = &shape,
                                              .kv_type = round % 3 ? NULL : type_of("q8_0"),
                                              .context = round % 5 ? 0 : 1000,
                                              .ranks = round % 7 ? 0 : 3};
            struct readlog log;
            struct error error;
            memcpy(text, whole, size);
            size = damage(text, size, ROOM, &random);
            assert_int_equal(readlog_text(&log, text, size, &options, &error), STATUS_OK);
            for (size_t row = 0; row < log.count; row++) {
                assert_non_null(memchr(log.rows[row].reason, 0, sizeof log.rows[row].reason));
                assert_true(row == 0 || log.rows[row].line >= log.rows[row - 1].line);
            }
            seen += log.count;
            readlog_free(&log);
        }
        shape_free(&shape);
        free(whole);
    }
    free(text);
    assert_true(seen > COUNT(logs) * ROUNDS); /* damage leaves most lines readable: the readers were really reached */
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void the_command(void **state)
{
    (void)state;
    char path[4096], file[96];
    logs_dir(path, sizeof path, "llama-2024-qwen2.5-32b.log");
    struct command_outcome outcome =
        command_run("read-log '%s' --model qwen2.5-32b --format csv --out %s/out", path, command_folder());
    assert_int_equal(outcome.status, 0);
    static const char header[] = "line,engine,quantity,reported,unit,formula,ratio,verdict,reason,";
    assert_memory_equal(outcome.out, header, sizeof header - 1);
    assert_non_null(strstr(outcome.out, "\n5,llama.cpp,kv_bytes,4352.00,MiB,4352.00,1.0000,exact,"));
    assert_non_null(strstr(outcome.out, ",139264,139264\n"));
    snprintf(file, sizeof file, "%s/out/readlog.csv", command_folder());
    char *csv = command_read(file);
    assert_string_equal(outcome.out, csv);
    free(csv);
    command_free(&outcome);
    outcome = command_run("read-log --help");
    assert_int_equal(outcome.status, 0);
    command_free(&outcome);
    command_refuses(2, "--model is missing", "read-log '%s'", path);
    command_refuses(2, "no model 'nobody'", "read-log '%s' --model nobody", path);
    command_refuses(2, "unknown type \"f17\"", "read-log '%s' --model qwen2.5-32b --kv-dtype f17", path);
    command_refuses(2, "unknown value \"ollama\"", "read-log '%s' --model qwen2.5-32b --engine ollama", path);
    command_refuses(2, "cannot read", "read-log /no/such.log --model qwen2.5-32b");
    command_refuses(2, "FILE is missing", "read-log --model qwen2.5-32b");
    command_refuses(2, "none of its", "read-log '%s' --model qwen2.5-32b --engine vllm", path);
    command_refuses(2, "is all that can be given", "read-log '%s' '%s' --model qwen2.5-32b", path, path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_logs),
        cmocka_unit_test(groups_of_layers),
        cmocka_unit_test(the_plan_printed_is_right),
        cmocka_unit_test(two_kinds_of_layers),
        cmocka_unit_test(reasons_are_found),
        cmocka_unit_test(replicated_heads),
        cmocka_unit_test(the_crash_of_112_mib),
        cmocka_unit_test(only_one_engine),
        cmocka_unit_test(odd_lines),
        cmocka_unit_test(lines_of_any_length),
        cmocka_unit_test(damaged_logs),
        cmocka_unit_test(the_command),
    };
    return cmocka_run_group_tests(tests, command_setup, command_cleanup);
}
