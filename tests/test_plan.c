/* engine/plan.h and `kvlab plan`: every engine's rule against numbers worked by hand, the largest that fits, refusals,
   and what the command prints. */
#include "engine/plan/plan.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#define GB ((uint64_t)1000000000)

static struct shape published(const char *name)
{
    struct shape shape;
    struct error error = {0};
    char models[4096];
    snprintf(models, sizeof models, "%s/models", config_data_dir());
    if (shape_find(&shape, models, name, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return shape;
}

static const struct plan_type *type(const char *name)
{
    const struct plan_type *found = NULL;
    struct error error = {0};
    if (plan_type_find(&found, name, "kv-dtype", true, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return found;
}

static struct plan_request request_of(const struct shape *shape, enum engine engine, int64_t context, int64_t users)
{
    return (struct plan_request){.shape = shape,
                                 .memory_bytes = 1000 * GB,
                                 .context = context,
                                 .users = users,
                                 .engine = engine,
                                 .ranks = 1,
                                 .stages = 1};
}

static struct plan made(const struct plan_request *request)
{
    struct plan plan;
    struct error error = {0};
    if (plan_make(&plan, request, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return plan;
}

/* KV and state bytes on the one device. */
static void kv_by_engine(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum engine engine;
        const char *type;
        int64_t context, users;
        uint64_t bytes;
    } rows[] = {
        /* 131,072 x 4,000 x 3 */
        {"llama-3-8b", ENGINE_EXACT, "bf16", 4000, 3, 1572864000},
        /* 5 global layers x 4,096 x 8,192, 29 local ones x 4,096 x 1,024: windows stop growing */
        {"gemma-3-4b", ENGINE_EXACT, "bf16", 8192, 1, 289406976},
        {"gemma-3-4b", ENGINE_EXACT, "bf16", 1024, 1, 142606336},       /* 139,264 x 1,024: nothing has stopped yet */
        {"mistral-7b-v0.1", ENGINE_EXACT, "bf16", 32768, 1, 536870912}, /* 131,072 x 4,096 */
        {"deepseek-v3", ENGINE_EXACT, "bf16", 1000, 2, 140544000},      /* 70,272 x 1,000 x 2 */
        {"llama-3-8b", ENGINE_EXACT, "int8", 1000, 1, 67584000},        /* 32 x 8 x 2 x (128 + 4) x 1,000 */
        /* Jamba: 16,384 x 1,000, and 28 states of (8,192 x 3 + 8,192 x 16) x 2 = 311,296; two users */
        {"jamba-v0.1", ENGINE_EXACT, "bf16", 1000, 2, 50200576},
        {"jamba-v0.1", ENGINE_EXACT, "bf16", 2000, 2, 82968576}, /* 32,768,000 more: the states do not grow */
        /* Gemma 3n: 4 global layers x 2,048 x 4,096, 16 local ones x 2,048 x 512; 15 layers share */
        {"gemma-3n-e4b", ENGINE_EXACT, "bf16", 4096, 1, 50331648},
        {"mamba-2.8b", ENGINE_EXACT, "bf16", 4096, 1, 24903680}, /* 64 x (5,120 x 3 + 5,120 x 16) x 4 (f32 model) */

        /* Blocks of 16, and one that is never handed out: (3 x 250 + 1) x 131,072 x 16; 4,001 tokens take 251 */
        {"llama-3-8b", ENGINE_VLLM, "bf16", 4000, 3, 1574961152},
        {"llama-3-8b", ENGINE_VLLM, "bf16", 4001, 3, 1581252608},
        {"llama-3-8b", ENGINE_VLLM, "fp8", 4000, 3, 787480576},
        /* 5 global and 29 local layers: groups of 5, 1 + 6; a block is 5 x 4,096 x 16 = 327,680. 8,192 / 16 = 512
           blocks, and 6 x ((1,024 - 1 + 2,048) / 16 rounded up + 1) = 6 x 193; (1,670 + 1) x 327,680 */
        {"gemma-3-4b", ENGINE_VLLM, "bf16", 8192, 1, 547553280},
        /* 12 and 12 layers: one group each, 12 x 2,048 x 16 = 393,216; 256 + (127 + 2,048) / 16 rounded up + 1 = 137 */
        {"gpt-oss-20b", ENGINE_VLLM, "bf16", 4096, 1, 154927104},
        /* Every layer windowed: one group of 32; (4,095 + 2,048) / 16 rounded up + 1 = 385 blocks of 2 MiB, + 1 */
        {"mistral-7b-v0.1", ENGINE_VLLM, "bf16", 32768, 1, 809500672},
        {"deepseek-v3", ENGINE_VLLM, "bf16", 4096, 1, 288958464}, /* 257 x 16 x 70,272 */
        /* States of (8,192 x 3 + 32 x 128 x 128) x 2 = 1,097,728: attention blocks of 16 x 34 = 544 tokens, pages of
           544 x 2,048; groups of 12, 1 + 3; 16 + 3 blocks and one more, of 12 x 1,114,112 */
        {"qwen3-next-80b-a3b", ENGINE_VLLM, "bf16", 8192, 1, 267386880},

        /* Unlike heads: pages of 16 x 5,120 bytes hold 16 local or 32 global tokens. 39 and 9 layers: groups of 9, 1
           + 5. 8,192 / 32 = 256 blocks, and 5 x ((128 - 1 + 2,048) / 16 rounded up + 1) = 5 x 137; one more; of 9 pages
         */
        {"mimo-v2-flash", ENGINE_VLLM, "bf16", 8192, 1, 694517760},
        {"mimo-v2-flash", ENGINE_EXACT, "bf16", 8192, 1, 214302720}, /* 23,040 x 8,192 + 199,680 x 128 */

        /* 4,000 padded to 4,096, three streams */
        {"llama-3-8b", ENGINE_LLAMACPP, "f16", 4000, 3, 1610612736},
        {"llama-3-8b", ENGINE_LLAMACPP, "q8_0", 4000, 3, 855638016}, /* 32 x 8 x 2 x 136 x 4,096 x 3 */
        /* Two streams of 20,480 x 8,192 and 118,784 x PAD(1,024 + 512, 256) */
        {"gemma-3-4b", ENGINE_LLAMACPP, "f16", 8192, 2, 700448768},
        /* One stream of 16,384 cells; windowed PAD(2 x 1,024 + 512, 256) = 2,560 */
        {"gemma-3-4b", ENGINE_LLAMACPP_UNIFIED, "f16", 8192, 2, 639631360},
        {"gemma-3-4b", ENGINE_LLAMACPP, "f16", 1000, 1, 142606336}, /* the window is never more than the context */
        /* 1,000 padded to 1,024; states in f32: 28 x 622,592 */
        {"jamba-v0.1", ENGINE_LLAMACPP, "f16", 1000, 2, 68419584},
        {"deepseek-v3", ENGINE_LLAMACPP, "f16", 256, 1, 17989632}, /* 70,272 x 256: K only */

        /* Windows that llama.cpp does not read: all tokens. tests/logs/llama-2025-mistral-7b.log says 1,024 MiB */
        {"mistral-7b-v0.1", ENGINE_LLAMACPP, "f16", 8192, 1, 1073741824},
        {"mistral-7b-v0.1", ENGINE_LLAMACPP_UNIFIED, "f16", 4096, 2, 1073741824},
        {"phi-3-mini-4k", ENGINE_LLAMACPP, "f16", 4096, 1, 1610612736}, /* 32 x 2 x 32 x 96 x 2 = 393,216 a token */
        {"starcoder2-7b", ENGINE_LLAMACPP, "f16", 8192, 1, 536870912},  /* 32 x 2 x 4 x 128 x 2 = 65,536 */
        {"phi-3.5-moe", ENGINE_LLAMACPP, "f16", 4096, 1, 536870912},    /* 32 x 2 x 8 x 128 x 2 = 131,072 */
        /* Windows that it reads. 8 global of 32 layers: 8 x 16,384 x 8,192 + 24 x 16,384 x (4,096 + 512) */
        {"olmo-3-7b", ENGINE_LLAMACPP, "f16", 8192, 1, 2885681152},
        /* 12 and 12 layers of 2,048: 8,192 cells and PAD(128 + 512, 256) = 768 */
        {"gpt-oss-20b", ENGINE_LLAMACPP, "f16", 8192, 1, 220200960},
        /* 13 and 13 layers of 4,096: 8,192 cells and 4,096 + 512 */
        {"gemma-2-2b", ENGINE_LLAMACPP, "f16", 8192, 1, 681574400},

        {"llama-3-8b", ENGINE_SGLANG, "bf16", 1000, 4, 524419072}, /* (4,000 + 1) x 131,072 */
        /* One pool for windowed layers too: 62 x 2 x 16 x 128 x 2 = 507,904, x (4 x 8,192 + 1) */
        {"gemma-3-27b", ENGINE_SGLANG, "bf16", 8192, 4, 16643506176},
        {"mistral-7b-v0.1", ENGINE_SGLANG, "bf16", 8192, 1, 1073872896}, /* 131,072 x 8,193 */
        {"olmo-3-7b", ENGINE_SGLANG, "bf16", 8192, 1, 4295491584},       /* 524,288 x 8,193 */
        /* 4,000 tokens for 12 global layers, 3,200 for 12 local ones, a slot more in each: 7,202 x 24,576 */
        {"gpt-oss-20b", ENGINE_SGLANG, "bf16", 1000, 4, 176996352},
        /* Short: 0.8 of the first pool must hold 4 x 100 tokens: 500 and 400; (501 + 401) x 24,576 */
        {"gpt-oss-20b", ENGINE_SGLANG, "bf16", 100, 4, 22167552},
        {"deepseek-v3", ENGINE_SGLANG, "bf16", 999, 1, 70272000},

        /* Heads' full K and V: 16 x (192 + 128) x 2 x 27 = 276,480 */
        {"deepseek-v2-lite", ENGINE_TRANSFORMERS_DYNAMIC, "bf16", 100, 1, 27648000},
        {"deepseek-v2-lite", ENGINE_TRANSFORMERS_STATIC, "bf16", 100, 1, 27648000},
        /* 13 layers x 4,096 bytes x 5,000 tokens, and 13 x 4,096 x the window's 4,096 */
        {"gemma-2-2b", ENGINE_TRANSFORMERS_DYNAMIC, "bf16", 5000, 1, 484343808},
        /* States with all four inputs of the kernel: 28 x (8,192 x 4 + 8,192 x 16) x 2 */
        {"jamba-v0.1", ENGINE_TRANSFORMERS_STATIC, "bf16", 1000, 1, 25559040},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape = published(rows[i].model);
        struct plan_request request = request_of(&shape, rows[i].engine, rows[i].context, rows[i].users);
        request.k_type = request.v_type = type(rows[i].type);
        request.batch_tokens = rows[i].engine == ENGINE_VLLM ? 2048 : 0; /* what cards below 70 GiB get */
        struct plan plan = made(&request);
        if (plan.stages[0].bytes[PLAN_KV] != rows[i].bytes)
            fail_msg("%s, %s, %s, %lld x %lld: %llu bytes, by hand %llu", rows[i].model,
                     profile_of(rows[i].engine)->name, rows[i].type, (long long)rows[i].context,
                     (long long)rows[i].users, (unsigned long long)plan.stages[0].bytes[PLAN_KV],
                     (unsigned long long)rows[i].bytes);
        shape_free(&shape);
    }
}

/* What a token adds in the long run follows the engine: nothing where every layer is windowed, all where the engine
   does not read the windows. */
static void later_bytes_follow_the_engine(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum engine engine;
        uint64_t later;
    } rows[] = {{"mistral-7b-v0.1", ENGINE_EXACT, 0},      {"mistral-7b-v0.1", ENGINE_LLAMACPP, 131072},
                {"gemma-3-4b", ENGINE_LLAMACPP, 20480},    {"gemma-3-4b", ENGINE_SGLANG, 139264},
                {"gpt-oss-20b", ENGINE_SGLANG, 24576},     {"exaone-4.0-1.2b", ENGINE_LLAMACPP, 61440},
                {"mistral-7b-v0.1", ENGINE_VLLM, 0},       {"phi-3-mini-4k", ENGINE_LLAMACPP_UNIFIED, 393216},
                {"exaone-4.0-32b", ENGINE_LLAMACPP, 65536}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape = published(rows[i].model);
        struct plan_request request = request_of(&shape, rows[i].engine, 100, 1);
        struct plan plan = made(&request);
        if (plan.token_bytes_long != rows[i].later)
            fail_msg("%s, %s: %llu", rows[i].model, profile_of(rows[i].engine)->name,
                     (unsigned long long)plan.token_bytes_long);
        shape_free(&shape);
    }
}

static void k_and_v_of_different_types(void **state)
{
    (void)state;
    struct shape shape = published("llama-3-8b");
    struct plan_request request = request_of(&shape, ENGINE_LLAMACPP, 256, 1);
    request.k_type = type("q8_0");
    request.v_type = type("q4_0");
    assert_int_equal(made(&request).stages[0].bytes[PLAN_KV], 256 * 32 * 8 * (136 + 72));
    shape_free(&shape);
}

/* The example: 15,231,233,024 bytes of weights on 12,490,457,088. */
static void qwen_7b_on_12_gb(void **state)
{
    (void)state;
    struct shape shape = published("qwen2.5-7b");
    struct plan_request request = request_of(&shape, ENGINE_EXACT, 4096, 8);
    request.memory_bytes = 12490457088;
    struct plan plan = made(&request);
    const struct plan_stage *stage = &plan.stages[0];
    assert_int_equal(stage->bytes[PLAN_WEIGHTS], 15231233024);
    assert_int_equal(stage->weights_lacking, 2740775936);
    assert_int_equal(stage->bytes[PLAN_KV], 57344 * 4096 * 8);
    assert_int_equal(stage->bytes[PLAN_LOGITS], 8 * 152064 * 2);
    assert_int_equal(stage->bytes[PLAN_RUNTIME], 0); /* a budget */
    assert_int_equal(stage->lacking, stage->total - request.memory_bytes);
    assert_false(plan.fits);
    assert_int_equal(plan.limit, LIMIT_WEIGHTS);
    assert_int_equal(plan.most_users, 0);
    assert_int_equal(plan.longest_context, 0);
    request.is_card = true;
    assert_int_equal(made(&request).stages[0].bytes[PLAN_RUNTIME], 106954752);
    shape_free(&shape);
}

static void weights_as_stored(void **state)
{
    (void)state;
    /* gpt-oss-20b: 24 x 32 x 3 x 2,880 x 2,880 experts' values in 17 bytes per 32, 1,804,459,584 others in 2 */
    struct shape oss = published("gpt-oss-20b"), llama = published("llama-3-8b"), v3 = published("deepseek-v3");
    struct plan_request request = request_of(&oss, ENGINE_EXACT, 16, 1);
    struct error error = {0};
    assert_int_equal(made(&request).stages[0].bytes[PLAN_WEIGHTS], 10152345600 + 3608919168);
    assert_int_equal(plan_type_find(&request.weight_type, "bf16", "dtype", false, &error), STATUS_OK);
    assert_int_equal(made(&request).stages[0].bytes[PLAN_WEIGHTS], 2 * oss.total);
    /* Llama-3 8B in q8_0: 266,240 values of norms in f32, the rest 34 bytes per 32 */
    request = request_of(&llama, ENGINE_EXACT, 16, 1);
    assert_int_equal(plan_type_find(&request.weight_type, "q8_0", "dtype", false, &error), STATUS_OK);
    assert_int_equal(made(&request).stages[0].bytes[PLAN_WEIGHTS], (8030261248 - 266240) / 32 * 34 + 266240 * 4);
    /* DeepSeek-V3 in fp8 with scales: a byte for nearly all; embedding and head in bf16 */
    request = request_of(&v3, ENGINE_EXACT, 16, 1);
    uint64_t bytes = made(&request).stages[0].bytes[PLAN_WEIGHTS];
    assert_in_range(bytes, v3.total + 2 * 129280ull * 7168, v3.total + 2 * 129280ull * 7168 + v3.total / 1000);
    shape_free(&oss);
    shape_free(&llama);
    shape_free(&v3);
    /* Published in f32: 4 bytes a value, and in the cache; vLLM loads 2; the cache follows the type asked for. */
    struct shape gemma = published("gemma-2-2b");
    request = request_of(&gemma, ENGINE_EXACT, 16, 1);
    assert_int_equal(made(&request).stages[0].bytes[PLAN_WEIGHTS], 4 * gemma.total);
    assert_string_equal(made(&request).request.k_type->name, "f32");
    request.weight_type = type("f16");
    assert_string_equal(made(&request).request.k_type->name, "f16");
    request = request_of(&gemma, ENGINE_VLLM, 16, 1);
    assert_int_equal(made(&request).stages[0].bytes[PLAN_WEIGHTS], 2 * gemma.total);
    assert_string_equal(made(&request).request.k_type->name, "bf16");
    shape_free(&gemma);
}

/* llama.cpp: the input embedding stays in the host's memory, on any number of devices; a tied head is a copy. */
static void llamacpp_input_is_on_the_host(void **state)
{
    (void)state;
    struct shape llama = published("llama-3-8b"), qwen = published("qwen2.5-0.5b"), gpt2 = published("gpt2"),
                 gemma = published("gemma-3n-e4b");
    const uint64_t llama_device = 8030261248 - (uint64_t)128256 * 4096;
    struct error error = {0};
    struct plan_request request = request_of(&llama, ENGINE_LLAMACPP, 16, 1);
    assert_int_equal(made(&request).stages[0].bytes[PLAN_WEIGHTS], 2 * llama_device);
    request.stages = 2;
    struct plan two = made(&request);
    assert_int_equal(two.stages[0].bytes[PLAN_WEIGHTS] + two.stages[1].bytes[PLAN_WEIGHTS], 2 * llama_device);
    /* 17 layers of 218,112,000 parameters and nothing else: the last norm is on the last stage, with the head */
    assert_int_equal(two.stages[0].bytes[PLAN_WEIGHTS], 2 * (uint64_t)17 * 218112000);
    request.engine = ENGINE_VLLM;
    two = made(&request);
    assert_int_equal(two.stages[0].bytes[PLAN_WEIGHTS], 2 * (16 * (uint64_t)218112000 + (uint64_t)128256 * 4096));
    assert_int_equal(two.stages[0].bytes[PLAN_WEIGHTS] + 2 * 4096, two.stages[1].bytes[PLAN_WEIGHTS]);

    request = request_of(&qwen, ENGINE_LLAMACPP, 16, 1);
    assert_int_equal(made(&request).stages[0].bytes[PLAN_WEIGHTS], 2 * qwen.total);
    request = request_of(&gpt2, ENGINE_LLAMACPP, 16, 1); /* positions too: 1,024 x 768 */
    assert_int_equal(plan_type_find(&request.weight_type, "f16", "dtype", false, &error), STATUS_OK);
    assert_int_equal(made(&request).stages[0].bytes[PLAN_WEIGHTS], 2 * (gpt2.total - 1024 * 768));

    /* Embeddings of each layer, 262,144 x 35 x 256, are looked up too, and quantized as tables are. */
    const uint64_t per_layer = (uint64_t)262144 * 35 * 256;
    request = request_of(&gemma, ENGINE_LLAMACPP, 16, 1);
    assert_int_equal(made(&request).stages[0].bytes[PLAN_WEIGHTS], 2 * (gemma.total - per_layer));
    request.engine = ENGINE_EXACT;
    assert_int_equal(plan_type_find(&request.weight_type, "q8_0", "dtype", false, &error), STATUS_OK);
    assert_in_range(made(&request).stages[0].bytes[PLAN_WEIGHTS], gemma.total / 32 * 34,
                    gemma.total / 32 * 34 / 100 * 101);
    shape_free(&llama);
    shape_free(&qwen);
    shape_free(&gpt2);
    shape_free(&gemma);
}

static void which_limit_is_first(void **state)
{
    (void)state;
    struct shape shape = published("qwen2.5-1.5b");
    struct plan_request request = request_of(&shape, ENGINE_EXACT, 8192, 1);
    request.memory_bytes = 4 * GB; /* weights 3,087,428,608, KV 234,881,024: what fails is 8,192 x 151,936 x 2 bytes */
    request.all_logits = true;
    struct plan plan = made(&request);
    assert_int_equal(plan.stages[0].bytes[PLAN_LOGITS], 2489319424);
    assert_int_equal(plan.limit, LIMIT_LOGITS);
    request.all_logits = false;
    request.users = 100;
    assert_int_equal(made(&request).limit, LIMIT_KV);
    request.users = 1;
    request.memory_bytes = 3 * GB;
    assert_int_equal(made(&request).limit, LIMIT_WEIGHTS);
    request.memory_bytes = 100 * GB;
    request.slots = 4;
    plan = made(&request);
    assert_true(plan.fits);
    assert_int_equal(plan.limit, LIMIT_SLOTS); /* what more users would run into */
    assert_int_equal(plan.most_users, 4);
    request.users = 5;
    plan = made(&request);
    assert_false(plan.fits);
    assert_int_equal(plan.limit, LIMIT_SLOTS);
    assert_int_equal(plan.most_users, 4);
    assert_int_equal(plan.longest_context, 0); /* no context makes room for the fifth */
    request.memory_bytes = 3 * GB;
    plan = made(&request);
    assert_int_equal(plan.limit, LIMIT_WEIGHTS); /* memory is named first */
    assert_int_equal(plan.longest_context, 0);
    shape_free(&shape);
}

/* One more user, or one more token, and it does not fit: for every engine. */
static void the_most_is_the_most(void **state)
{
    (void)state;
    static const char *const models[] = {"llama-3-8b", "gemma-3-4b",       "gpt-oss-20b",
                                         "jamba-v0.1", "deepseek-v2-lite", "qwen3-next-80b-a3b"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (int engine = 0; engine < ENGINES; engine++) {
            struct shape shape = published(models[m]);
            struct plan_request request = request_of(&shape, (enum engine)engine, 3000, 2);
            request.memory_bytes = 2 * shape.total / 9 * 10 + 20 * GB;
            request.slots = 1 << 20;
            struct plan plan = made(&request);
            assert_true(plan.fits && plan.most_users >= 2 && plan.longest_context >= 3000);
            assert_int_equal(plan.stages[0].lacking, 0);
            for (int more = 0; more < 2; more++) {
                request.users = plan.most_users + more;
                request.context = 3000;
                if (made(&request).fits != !more)
                    fail_msg("%s, %s: most users %lld", models[m], engine_choices[engine], (long long)plan.most_users);
                request.users = 2;
                request.context = plan.longest_context + more;
                if (made(&request).fits != !more)
                    fail_msg("%s, %s: longest context %lld", models[m], engine_choices[engine],
                             (long long)plan.longest_context);
            }
            shape_free(&shape);
        }
}

/* A token more never takes less, in any engine: the search for the largest relies on it. */
static void needs_never_shrink(void **state)
{
    (void)state;
    struct shape shape = published("gemma-3-4b");
    for (int engine = 0; engine < ENGINES; engine++) {
        uint64_t before = 0;
        for (int64_t context = 1; context < 6000; context += 37) {
            struct plan_request request = request_of(&shape, (enum engine)engine, context, 3);
            uint64_t total = made(&request).stages[0].total;
            assert_true(total >= before);
            before = total;
        }
    }
    shape_free(&shape);
}

/* vLLM's own report: blocks are what is left of 90% in whole blocks, tokens and concurrency follow. */
static void vllm_pool(void **state)
{
    (void)state;
    struct shape shape = published("llama-3-8b");
    struct plan_request request = request_of(&shape, ENGINE_VLLM, 8192, 1);
    request.memory_bytes = 24 * GB;
    struct plan plan = made(&request);
    const struct plan_stage *stage = &plan.stages[0];
    assert_int_equal(stage->usable, 21600000000);
    uint64_t others = 16060522496 + stage->bytes[PLAN_LOGITS] + stage->bytes[PLAN_ACTIVATIONS];
    assert_int_equal(stage->bytes[PLAN_LOGITS], 256 * 128256 * 6);
    assert_int_equal(stage->layout.block_bytes, 131072 * 16);
    assert_int_equal(stage->layout.blocks_per_sequence, 512);
    assert_int_equal(stage->pool_blocks, (21600000000 - others) / (131072 * 16));
    request.memory_ppm = 855000;
    assert_int_equal(made(&request).stages[0].usable, 20520000000);
    request.memory_ppm = 1;
    assert_int_equal(made(&request).stages[0].usable, 24000);
    request.memory_ppm = 800000;
    assert_int_equal(made(&request).stages[0].usable, 19200000000);
    request.block_size = 32;
    assert_int_equal(made(&request).stages[0].layout.blocks_per_sequence, 256);
    shape_free(&shape);
    shape = published("qwen3-next-80b-a3b");
    request = request_of(&shape, ENGINE_VLLM, 8192, 1);
    plan = made(&request);
    /* What vLLM prints for this model: "Setting attention block size to 544 tokens", "Padding mamba page size by 1.49%"
     */
    assert_int_equal(plan.stages[0].layout.block_tokens, 544);
    assert_int_equal(plan.stages[0].layout.block_bytes, 12 * 544 * 2048);
    assert_int_equal(plan.stages[0].layout.groups, 4);
    assert_int_equal(plan.request.batch_tokens, 8192); /* more than 70 GiB */
    assert_int_equal(plan.request.slots, 1024);
    request.memory_bytes = 80 * GB;
    request.card_title = "NVIDIA A100 80GB SXM";
    assert_int_equal(made(&request).request.batch_tokens, 2048);
    assert_int_equal(made(&request).request.slots, 256);
    shape_free(&shape);
}

static void tensor_parallel(void **state)
{
    (void)state;
    struct shape llama = published("llama-3-8b"), v3 = published("deepseek-v3");
    static const struct {
        int64_t ranks;
        uint64_t kv;
    } rows[] = {{1, 131072}, {2, 65536}, {8, 16384}, {16, 16384}, {32, 16384}}; /* 8 KV heads: then copies */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plan_request request = request_of(&llama, ENGINE_EXACT, 1, 1);
        request.ranks = rows[i].ranks;
        struct plan plan = made(&request);
        assert_int_equal(plan.stages[0].bytes[PLAN_KV], rows[i].kv);
        /* All matrices divide evenly here; K and V projections (32 x 2 x 4,096 x 1,024) stop at 8 ranks, norms stay. */
        uint64_t kv = 268435456, norms = 266240, ranks = (uint64_t)rows[i].ranks;
        assert_int_equal(plan.stages[0].bytes[PLAN_WEIGHTS],
                         2 * ((8030261248 - kv - norms) / ranks + kv / (ranks < 8 ? ranks : 8) + norms));
    }
    struct plan_request request = request_of(&v3, ENGINE_EXACT, 1, 1);
    request.ranks = 8;
    assert_int_equal(made(&request).stages[0].bytes[PLAN_KV], 70272); /* replicated */
    request.prediction_layers = true;
    assert_int_equal(made(&request).stages[0].bytes[PLAN_KV], 70272 + 1152);
    shape_free(&llama);
    shape_free(&v3);
}

static void pipeline_parallel(void **state)
{
    (void)state;
    struct shape shape = published("llama-3-8b");
    static const int64_t five[] = {6, 6, 7, 7, 6}, three[] = {11, 11, 10}, own[] = {3, 29}, wrong[] = {3, 28};
    /* llama.cpp: of 33 layers with the output, those below 16.5, 11, 22, ... */
    static const int64_t llama_two[] = {17, 15}, llama_three[] = {11, 11, 10}, llama_four[] = {9, 8, 8, 7};
    static const struct {
        int64_t stages;
        const int64_t *depths;
        bool given;
        enum engine engine;
    } rows[] = {{5, five, false, ENGINE_EXACT},
                {3, three, false, ENGINE_EXACT},
                {2, own, true, ENGINE_EXACT},
                {2, llama_two, false, ENGINE_LLAMACPP},
                {3, llama_three, false, ENGINE_LLAMACPP},
                {4, llama_four, false, ENGINE_LLAMACPP_UNIFIED},
                {2, own, true, ENGINE_LLAMACPP}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plan_request request = request_of(&shape, rows[i].engine, 256, 1);
        request.stages = rows[i].stages;
        request.stage_layers = rows[i].given ? rows[i].depths : NULL;
        struct plan plan = made(&request);
        uint64_t weights = 0;
        for (int64_t s = 0; s < rows[i].stages; s++) {
            const struct plan_stage *stage = &plan.stages[s];
            assert_int_equal(stage->end - stage->first, rows[i].depths[s]);
            assert_int_equal(stage->bytes[PLAN_KV], 4096 * 256 * rows[i].depths[s]);
            assert_true((stage->bytes[PLAN_LOGITS] > 0) == (s == rows[i].stages - 1));
            weights += stage->bytes[PLAN_WEIGHTS];
        }
        /* llama.cpp's input embedding, 128,256 x 4,096, lies on the host */
        assert_int_equal(weights, 16060522496 - (rows[i].engine >= ENGINE_LLAMACPP ? 1050673152 : 0));
    }
    struct plan plan;
    struct error error = {0};
    struct plan_request request = request_of(&shape, ENGINE_EXACT, 100, 1);
    request.stages = 2;
    request.stage_layers = wrong;
    assert_int_equal(plan_make(&plan, &request, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "31 layers"));
    shape_free(&shape);
    /* A tied head is held on the last stage too. */
    shape = published("qwen2.5-0.5b");
    request = request_of(&shape, ENGINE_EXACT, 100, 1);
    request.stages = 2;
    plan = made(&request);
    assert_int_equal(plan.stages[0].bytes[PLAN_WEIGHTS] + plan.stages[1].bytes[PLAN_WEIGHTS],
                     2 * (494032768 + 151936 * 896));
    shape_free(&shape);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum engine engine;
        const char *k, *v;
        int64_t ranks, stages;
        const char *says[2];
    } rows[] = {
        {"llama-3-8b", ENGINE_VLLM, "q8_0", "q8_0", 1, 1, {"q8_0", "vllm"}},
        {"llama-3-8b", ENGINE_LLAMACPP, "fp8", "fp8", 1, 1, {"fp8", "llamacpp"}},
        {"llama-3-8b", ENGINE_VLLM, "fp8", "bf16", 1, 1, {"one type", "vllm"}},
        {"phi-2", ENGINE_LLAMACPP, "q8_0", "q8_0", 1, 1, {"q8_0", "80"}}, /* heads of 80 values, blocks of 32 */
        {"llama-3-8b", ENGINE_EXACT, "bf16", "bf16", 3, 1, {"--tp", "32 query heads"}},
        {"command-r-plus", ENGINE_EXACT, "bf16", "bf16", 12, 1, {"--tp", "8 KV heads"}},
        {"llama-3-8b", ENGINE_EXACT, "bf16", "bf16", 1, 33, {"--pp", "32 layers"}},
        {"llama-3-8b", ENGINE_LLAMACPP, "f16", "f16", 2, 1, {"--tp", "--pp 2"}},
        {"llama-3-8b", ENGINE_LLAMACPP_UNIFIED, "f16", "f16", 4, 1, {"--tp", "--pp 4"}},
        {"llama-3-8b", ENGINE_TRANSFORMERS_DYNAMIC, "bf16", "bf16", 2, 1, {"--tp", "transformers-dynamic"}},
        {"llama-3-8b", ENGINE_TRANSFORMERS_STATIC, "bf16", "bf16", 2, 1, {"--tp", "transformers-static"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape = published(rows[i].model);
        struct plan_request request = request_of(&shape, rows[i].engine, 100, 1);
        struct plan plan;
        struct error error = {0};
        request.k_type = type(rows[i].k);
        request.v_type = type(rows[i].v);
        request.ranks = rows[i].ranks;
        request.stages = rows[i].stages;
        if (plan_make(&plan, &request, &error) != STATUS_INPUT || !strstr(error.message, rows[i].says[0]) ||
            !strstr(error.message, rows[i].says[1]))
            fail_msg("row %zu: '%s' must say %s and %s", i, error.message, rows[i].says[0], rows[i].says[1]);
        shape_free(&shape);
    }
}

static void overflow_is_an_error(void **state)
{
    (void)state;
    struct shape shape = published("llama-2-7b");
    for (int engine = 0; engine < ENGINES; engine++) {
        struct plan_request request = request_of(&shape, (enum engine)engine, PLAN_MAX_COUNT, PLAN_MAX_COUNT);
        struct plan plan;
        struct error error = {0};
        assert_int_equal(plan_make(&plan, &request, &error), STATUS_INPUT);
        assert_non_null(strstr(error.message, "64 bits"));
    }
    shape_free(&shape);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Runs `kvlab plan <line>`; stdout and stderr together. Returns the exit status. */
static int run(const char *line, char *text, size_t size)
{
    char command[1024];
    const char *binary = getenv("KVLAB_BIN"), *runner = getenv("KVLAB_RUNNER");
    snprintf(command, sizeof command, "%s %s plan %s 2>&1", runner ? runner : "", binary ? binary : "build/kvlab",
             line);
    FILE *out = popen(command, "r"); /* NOLINT(cert-env33-c): the test's own words */
    assert_non_null(out);
    size_t used = fread(text, 1, size - 1, out);
    text[used] = '\0';
    int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static json_t *json_of(const char *line, int expected_status)
{
    static char text[65536];
    json_error_t failure;
    int status = run(line, text, sizeof text);
    if (status != expected_status)
        fail_msg("plan %s: status %d: %s", line, status, text);
    json_t *document = json_loads(text, 0, &failure);
    if (!document)
        fail_msg("plan %s: %s in %s", line, failure.text, text);
    return document;
}

static int64_t integer(const json_t *document, const char *key)
{
    const json_t *value = json_object_get(document, key);
    if (!json_is_integer(value))
        fail_msg("no whole number under %s", key);
    return json_integer_value(value);
}

static void json_of_the_command(void **state)
{
    (void)state;
    json_t *document = json_of("--model qwen2.5-7b --card rtx3060 --context 4096 --users 8 --json", 0);
    assert_false(json_is_true(json_object_get(document, "fits")));
    assert_string_equal(json_string_value(json_object_get(document, "limit")), "weights");
    assert_int_equal(integer(document, "weights_lacking_bytes"), 2740775936);
    assert_int_equal(integer(document, "bytes_per_token"), 57344);
    assert_int_equal(integer(document, "bytes_per_token_without_sharing"), 401408);
    assert_int_equal(integer(json_object_get(document, "memory"), "bytes"), 12490457088);
    json_t *items = json_object_get(document, "items"), *item;
    size_t index;
    int64_t sum = 0;
    json_array_foreach(items, index, item)
    {
        sum += integer(item, "bytes");
        assert_true(json_string_length(json_object_get(item, "source")) > 0);
        assert_true(json_string_length(json_object_get(item, "sure")) > 0);
    }
    assert_int_equal(json_array_size(items), PLAN_ITEMS);
    assert_int_equal(sum, integer(document, "sum_bytes"));
    assert_int_equal(integer(document, "lacking_bytes"), sum - 12490457088);
    assert_true(json_array_size(json_object_get(json_object_get(document, "ways_out"), "smaller_weights")) > 0);
    json_decref(document);

    char line[4352];
    snprintf(line, sizeof line,
             "--model %s/models/llama-3-8b.json --budget 24GB --context 8000 --users 50 --kv-dtype int8"
             " --json",
             config_data_dir());
    document = json_of(line, 0);
    assert_int_equal(integer(document, "bytes_per_token"), 67584); /* 32 x 8 x 2 x 132 */
    assert_int_equal(integer(json_object_get(document, "memory"), "bytes"), 24000000000);
    json_t *fewer = json_object_get(json_object_get(document, "ways_out"), "fewer_users");
    assert_int_equal(integer(fewer, "users"), integer(document, "most_users"));
    assert_int_equal(integer(fewer, "kv_bytes"), 67584 * 8000 * integer(document, "most_users"));
    json_decref(document);
    json_decref(json_of("--model qwen2.5-7b --card rtx3060 --check --json", STATUS_CHECK_FAILED));
    json_decref(json_of("--model qwen2.5-0.5b --card rtx3060 --check --json", 0));
}

/* Every model under every engine is a plan, or one line that says why not. */
static void text_of_the_command(void **state)
{
    (void)state;
    static char text[65536];
    static const struct {
        const char *line;
        int status;
        const char *says[4];
    } rows[] = {
        {"--model qwen2.5-7b --card rtx3060 --context 4096 --users 8",
         0,
         {"12,490,457,088 bytes = 11.63 GiB, 12.49 GB", "DOES NOT FIT", "weights alone lack 2,740,775,936", "q4_k"}},
        {"--model qwen2.5-1.5b --card rtx3060 --context 8192 --users 64",
         0,
         {"First limit: KV", "1. shorter context: ", "2. fewer users: ", "3. smaller cache type:"}},
        {"--model gemma-3-4b --card rtx4090 --engine vllm --context 8192",
         0,
         {"FITS", "concurrency", "groups", "later"}},
        {"--model jamba-v0.1 --card a100-80gb --tp 2 --dtype q8_0", 0, {"per sequence", "2 devices", "states", "FITS"}},
        {"--model deepseek-v3 --card h200 --tp 8", 0, {"latent", "prediction layers", "8 devices", "FITS"}},
        {"--model llama-3-8b --card a10 --pp 10,22", 0, {"2 devices", "0-9", "10-31", "FITS"}},
        {"--model llama-3-8b --card l4 --engine llamacpp --kv-dtype q8_0,q4_0", 0, {"K q8_0, V q4_0", "FITS", "", ""}},
        {"--model gemma-3n-e2b --budget 24GB", 0, {"not counted", "shared", "too low", ""}},
        {"--model llama-3-8b", 2, {"--card", "--budget", "", ""}},
        {"--model llama-3-8b --card rtx3060 --budget 1GB", 2, {"--card", "--budget", "", ""}},
        {"--model llama-9 --card rtx3060", 2, {"llama-9", "llama-3-8b", "", ""}},
        {"--model llama-3-8b --card gtx1", 2, {"gtx1", "rtx3060", "", ""}},
        {"--card rtx3060", 2, {"--model", "", "", ""}},
        {"--model llama-3-8b --budget 1GB --kv-dtype q9", 2, {"--kv-dtype", "q9", "q8_0", ""}},
        {"--model llama-3-8b --budget 1GB --dtype q9", 2, {"--dtype", "q9", "q4_k", ""}},
        {"--model llama-3-8b --budget 1GB --engine tgi", 2, {"--engine", "tgi", "vllm", ""}},
        {"--model llama-3-8b --budget 1GB --pp 1,x", 2, {"--pp", "x", "", ""}},
        {"--model llama-3-8b --budget 1GB --prediction-layers", 2, {"--prediction-layers", "none", "", ""}},
        {"--model llama-3-8b --budget 1GB --v-dtype f16", 2, {"--v-dtype", "K", "", ""}},
        {"--model llama-2-7b --budget 1GB --context 2147483647 --users 2147483647", 2, {"64 bits", "", "", ""}},
        {"--model qwen2.5-0.5b --budget 24GB --engine vllm --memory-fraction 0.855",
         0,
         {"20,520,000,000 bytes", "85.5%", "", ""}},
        {"--model qwen2.5-0.5b --budget 24GB --engine vllm --memory-fraction .333333",
         0,
         {"7,999,992,000 bytes", "33.3333%", "", ""}},
        {"--model qwen2.5-0.5b --budget 24GB --engine vllm --memory-fraction 1.0", 0, {"FITS", "", "", ""}},
        {"--model qwen2.5-0.5b --budget 1GB --memory-fraction 0.8555555",
         2,
         {"--memory-fraction", "0.8555555", "", ""}},
        {"--model qwen2.5-0.5b --budget 1GB --memory-fraction 1.1", 2, {"--memory-fraction", "1.1", "", ""}},
        {"--model qwen2.5-0.5b --budget 1GB --memory-fraction 0", 2, {"--memory-fraction", "'0'", "", ""}},
        {"--model qwen2.5-0.5b --budget 1GB --memory-fraction x", 2, {"--memory-fraction", "'x'", "", ""}},
        {"--model qwen2.5-0.5b --budget 1GB --memory-fraction .", 2, {"--memory-fraction", "'.'", "", ""}},
        {"--model qwen2.5-0.5b --budget 1GB --memory-fraction 99999999999999999999",
         2,
         {"--memory-fraction", "", "", ""}},
        {"--model llama-3-8b --engine vllm --users 300 --slots 256 --context 16 --budget 24GB",
         0,
         {"300 users, 256 slots", "Most users at 16 tokens: 256", "300 users: 0 tokens",
          "Only more slots (--slots 300)"}},
        {"--model llama-3-8b --engine vllm --users 300 --slots 256 --context 8192 --budget 24GB",
         0,
         {"First limit: KV", "slots lack", "--slots 300", "44 of them wait"}},
        {"--model mamba-2.8b --engine vllm --budget 24GB",
         0,
         {"of a sequence's states", "any; memory sets no limit", "FITS", ""}},
        {"--model llama-3-8b --engine llamacpp --pp 2 --budget 24GB",
         0,
         {"as llama.cpp does", "0-16", "17-31", "FITS"}},
        {"--model llama-3-8b --engine transformers-static --pp 2 --budget 24GB", 0, {"accelerate", "FITS", "", ""}},
        {"--model llama-3-8b --engine llamacpp --tp 2 --budget 24GB", 2, {"--tp", "whole layers", "--pp 2", ""}},
        {"--help", 0, {"--model", "Exit status", "--memory-fraction", ""}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int status = run(rows[i].line, text, sizeof text);
        bool one_line = strchr(text, '\n') == text + strlen(text) - 1;
        for (int s = 0; s < 4; s++)
            if (rows[i].says[s] && !strstr(text, rows[i].says[s]))
                fail_msg("plan %s: must say '%s': %s", rows[i].line, rows[i].says[s], text);
        if (status != rows[i].status || (status == 2 && !one_line))
            fail_msg("plan %s: status %d: %s", rows[i].line, status, text);
    }
}

static void every_model_plans(void **state)
{
    (void)state;
    char models[4096], **names;
    size_t count;
    struct error error = {0};
    snprintf(models, sizeof models, "%s/models", config_data_dir());
    assert_int_equal(config_names(models, &names, &count, &error), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        struct shape shape = published(names[i]);
        for (int engine = 0; engine < ENGINES; engine++) {
            struct plan_request request = request_of(&shape, (enum engine)engine, 2048, 4);
            request.memory_bytes = 10000 * GB;
            struct plan plan = made(&request);
            assert_true(plan.fits && plan.stages[0].total > shape.total / 2);
            assert_int_equal(
                plan.stages[0].left + plan.stages[0].total + (engine == ENGINE_SGLANG ? 0 : plan.stages[0].lacking),
                plan.stages[0].usable + (engine == ENGINE_SGLANG ? plan.stages[0].bytes[PLAN_LOGITS] +
                                                                       plan.stages[0].bytes[PLAN_ACTIVATIONS]
                                                                 : 0));
        }
        shape_free(&shape);
    }
    config_names_free(names, count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_by_engine),
        cmocka_unit_test(later_bytes_follow_the_engine),
        cmocka_unit_test(k_and_v_of_different_types),
        cmocka_unit_test(qwen_7b_on_12_gb),
        cmocka_unit_test(weights_as_stored),
        cmocka_unit_test(llamacpp_input_is_on_the_host),
        cmocka_unit_test(which_limit_is_first),
        cmocka_unit_test(the_most_is_the_most),
        cmocka_unit_test(needs_never_shrink),
        cmocka_unit_test(vllm_pool),
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(pipeline_parallel),
        cmocka_unit_test(refusals),
        cmocka_unit_test(overflow_is_an_error),
        cmocka_unit_test(json_of_the_command),
        cmocka_unit_test(text_of_the_command),
        cmocka_unit_test(every_model_plans),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
