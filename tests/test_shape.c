/* engine/shape.h: parameters of every model that ships against the published counts, what layers keep against numbers
   worked by hand, and that what is not understood is refused by name. */
#include "engine/plan/shape.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char file[64];

static int setup(void **state)
{
    (void)state;
    snprintf(file, sizeof file, "/tmp/kvlab-shape-XXXXXX");
    int descriptor = mkstemp(file);
    return descriptor < 0 ? -1 : close(descriptor);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(file);
}

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

/* Published counts: of the safetensors files as Hugging Face shows them, or of the paper (Pythia, gpt-oss, Bloom, OPT).
   Where the files hold more than the model, `how` says what. */
enum how {
    SAME,
    WITH_TIED_HEAD,             /* the files hold the tied head a second time */
    WITH_PREDICTION_AND_TABLES, /* a prediction layer, with an embedding and a head of its own */
    WITHOUT_TOWERS,             /* vision and audio towers of 983,281,504, the same in both models */
    ROUNDED,                    /* published in whole billions only */
    WITHOUT_MTP,                /* a prediction layer that transformers does not load: 1,650,471,424 */
};
static const struct {
    const char *name;
    uint64_t parameters;
    enum how how;
} PUBLISHED[] = {
    {"bloom-176b", 176247271424, SAME},
    {"bloom-560m", 559214592, SAME},
    {"bloom-7b1", 7069016064, SAME},
    {"codellama-34b", 33743970304, SAME},
    {"codellama-7b", 6738546688, SAME},
    {"command-r", 34980831232, SAME},
    {"command-r-plus", 103810674688, SAME},
    {"command-r7b", 8028033024, SAME},
    {"deepseek-llm-7b", 6910365696, SAME},
    {"deepseek-r1", 684489845504, WITH_PREDICTION_AND_TABLES},
    {"deepseek-v2", 235741434880, SAME},
    {"deepseek-v2-lite", 15706484224, SAME},
    {"deepseek-v3", 684489845504, WITH_PREDICTION_AND_TABLES},
    {"exaone-4.0-1.2b", 1279391488, SAME},
    {"exaone-4.0-32b", 32003216384, SAME},
    {"falcon-180b", 179522565120, WITH_TIED_HEAD},
    {"falcon-40b", 41835970560, WITH_TIED_HEAD},
    {"falcon-7b", 7217189760, WITH_TIED_HEAD},
    {"falcon3-10b", 10305653760, SAME},
    {"falcon3-1b", 1669408768, SAME},
    {"falcon3-7b", 7455550464, SAME},
    {"gemma-2-27b", 27227128320, SAME},
    {"gemma-2-2b", 2614341888, SAME},
    {"gemma-2-9b", 9241705984, SAME},
    {"gemma-2b", 2506172416, SAME},
    {"gemma-3-12b", 12187325040, SAME},
    {"gemma-3-1b", 999885952, SAME},
    {"gemma-3-270m", 268098176, SAME},
    {"gemma-3-27b", 27432406640, SAME},
    {"gemma-3-4b", 4300079472, SAME},
    {"gemma-3n-e2b", 5439438272, WITHOUT_TOWERS},
    {"gemma-3n-e4b", 7849978192, WITHOUT_TOWERS},
    {"gemma-7b", 8537680896, SAME},
    {"glm-4-9b-0414", 9400279040, SAME},
    {"glm-4.5", 358337791296, WITH_PREDICTION_AND_TABLES},
    {"glm-4.5-air", 110468824832, WITH_PREDICTION_AND_TABLES},
    {"gpt-j-6b", 6050882784, SAME},
    {"gpt-neox-20b", 20554567680, SAME},
    {"gpt-oss-120b", 116829156672, SAME},
    {"gpt-oss-20b", 20914757184, SAME},
    {"gpt2", 124439808, SAME},
    {"gpt2-large", 774030080, SAME},
    {"gpt2-medium", 354823168, SAME},
    {"gpt2-xl", 1557611200, SAME},
    {"granite-3.1-2b", 2533531648, SAME},
    {"granite-3.1-8b", 8170848256, SAME},
    {"granite-4.0-h-micro", 3191396096, SAME},
    {"granite-4.0-h-small", 32207337984, SAME},
    {"granite-4.0-h-tiny", 6939037248, SAME},
    {"internlm2-20b", 19861149696, SAME},
    {"internlm2-7b", 7737708544, SAME},
    {"jamba-v0.1", 51570323328, SAME},
    {"kimi-k2", 1026408232448, SAME},
    {"llama-2-13b", 13015864320, SAME},
    {"llama-2-70b", 68976648192, SAME},
    {"llama-2-7b", 6738415616, SAME},
    {"llama-3-70b", 70553706496, SAME},
    {"llama-3-8b", 8030261248, SAME},
    {"llama-3.1-405b", 405853388800, SAME},
    {"llama-3.1-70b", 70553706496, SAME},
    {"llama-3.1-8b", 8030261248, SAME},
    {"llama-3.2-1b", 1235814400, SAME},
    {"llama-3.2-3b", 3212749824, SAME},
    {"llama-3.3-70b", 70553706496, SAME},
    {"llama-4-maverick", 401583781376, SAME},
    {"llama-4-scout", 108641793536, SAME},
    {"mamba-130m", 129135360, SAME},
    {"mamba-2.8b", 2768345600, SAME},
    {"mimo-v2-flash", 309000000000, ROUNDED},
    {"mistral-7b-v0.1", 7241732096, SAME},
    {"mistral-7b-v0.3", 7248023552, SAME},
    {"mistral-large-2407", 122610069504, SAME},
    {"mistral-nemo-12b", 12247782400, SAME},
    {"mistral-small-24b", 23572403200, SAME},
    {"mixtral-8x22b", 140620634112, SAME},
    {"mixtral-8x7b", 46702792704, SAME},
    {"mpt-7b", 6649286656, SAME},
    {"olmo-1b", 1176764416, SAME},
    {"olmo-2-13b", 13716198400, SAME},
    {"olmo-2-1b", 1484916736, SAME},
    {"olmo-2-32b", 32234279936, SAME},
    {"olmo-2-7b", 7298617344, SAME},
    {"olmo-3-7b", 7298011136, SAME},
    {"olmo-7b", 6888095744, SAME},
    {"olmoe-1b-7b", 6919161856, SAME},
    {"opt-1.3b", 1315758080, SAME},
    {"opt-125m", 125239296, SAME},
    {"opt-30b", 29974540288, SAME},
    {"opt-6.7b", 6658473984, SAME},
    {"phi-1.5", 1418270720, SAME},
    {"phi-2", 2779683840, SAME},
    {"phi-3-medium-4k", 13960238080, SAME},
    {"phi-3-mini-4k", 3821079552, SAME},
    {"phi-3.5-moe", 41873153344, SAME},
    {"phi-4", 14659507200, SAME},
    {"phi-4-mini", 3836021760, SAME},
    {"pythia-1.4b", 1414647808, SAME},
    {"pythia-12b", 11846072320, SAME},
    {"pythia-160m", 162322944, SAME},
    {"pythia-1b", 1011781632, SAME},
    {"pythia-2.8b", 2775208960, SAME},
    {"pythia-410m", 405334016, SAME},
    {"pythia-6.9b", 6857302016, SAME},
    {"pythia-70m", 70426624, SAME},
    {"qwen1.5-0.5b", 463987712, SAME},
    {"qwen1.5-7b", 7721324544, SAME},
    {"qwen1.5-moe-a2.7b", 14315784192, SAME},
    {"qwen2-72b", 72706203648, SAME},
    {"qwen2-7b", 7615616512, SAME},
    {"qwen2.5-0.5b", 494032768, SAME},
    {"qwen2.5-1.5b", 1543714304, SAME},
    {"qwen2.5-14b", 14770033664, SAME},
    {"qwen2.5-32b", 32763876352, SAME},
    {"qwen2.5-3b", 3085938688, SAME},
    {"qwen2.5-72b", 72706203648, SAME},
    {"qwen2.5-7b", 7615616512, SAME},
    {"qwen3-0.6b", 596049920, SAME},
    {"qwen3-1.7b", 1720574976, SAME},
    {"qwen3-14b", 14768307200, SAME},
    {"qwen3-235b-a22b", 235093634560, SAME},
    {"qwen3-30b-a3b", 30532122624, SAME},
    {"qwen3-32b", 32762123264, SAME},
    {"qwen3-4b", 4022468096, SAME},
    {"qwen3-8b", 8190735360, SAME},
    {"qwen3-next-80b-a3b", 81324862720, WITHOUT_MTP},
    {"smollm2-1.7b", 1711376384, SAME},
    {"smollm2-135m", 134515008, SAME},
    {"smollm2-360m", 361821120, SAME},
    {"smollm3-3b", 3075098624, SAME},
    {"solar-10.7b", 10731524096, SAME},
    {"stablelm-2-1.6b", 1644515328, SAME},
    {"stablelm-3b-4e1t", 2795443200, SAME},
    {"starcoder", 15517456384, SAME},
    {"starcoder2-15b", 15957889024, SAME},
    {"starcoder2-3b", 3030371328, SAME},
    {"starcoder2-7b", 7173923840, SAME},
    {"starcoderbase-1b", 1137207296, SAME},
    {"tinyllama-1.1b", 1100048384, SAME},
    {"yi-34b", 34388917248, SAME},
    {"yi-6b", 6061035520, SAME},
    {"yi-9b", 8829407232, SAME},
};
enum { PUBLISHED_COUNT = sizeof PUBLISHED / sizeof PUBLISHED[0] };

static void parameters_match_published_counts(void **state)
{
    (void)state;
    for (int i = 0; i < PUBLISHED_COUNT; i++) {
        struct shape shape = published(PUBLISHED[i].name);
        uint64_t table = (uint64_t)shape.vocab_size * (uint64_t)shape.hidden_size, extra = 0;
        if (PUBLISHED[i].how == WITH_TIED_HEAD)
            extra = table;
        if (PUBLISHED[i].how == WITH_PREDICTION_AND_TABLES)
            extra = shape.parts.prediction + 2 * table;
        if (PUBLISHED[i].how == WITHOUT_TOWERS)
            extra = 983281504;
        if (PUBLISHED[i].how == WITHOUT_MTP)
            extra = 1650471424;
        if (PUBLISHED[i].how == ROUNDED &&
            (shape.total + 500000000) / 1000000000 * 1000000000 == PUBLISHED[i].parameters)
            extra = PUBLISHED[i].parameters - shape.total;
        if (shape.total + extra != PUBLISHED[i].parameters)
            fail_msg("%s: %llu parameters and %llu beside them, published %llu", shape.name,
                     (unsigned long long)shape.total, (unsigned long long)extra,
                     (unsigned long long)PUBLISHED[i].parameters);
        assert_true(shape.active <= shape.total);
        assert_true((shape.experts == 0) == (shape.active == shape.total));
        shape_free(&shape);
    }
}

static void every_shipped_model_has_a_published_count(void **state)
{
    (void)state;
    char models[4096], **names;
    size_t count;
    struct error error = {0};
    snprintf(models, sizeof models, "%s/models", config_data_dir());
    assert_int_equal(config_names(models, &names, &count, &error), STATUS_OK);
    assert_true(count >= 60);
    assert_int_equal(count, PUBLISHED_COUNT);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(names[i], PUBLISHED[i].name);
    config_names_free(names, count);
}

/* Active parameters as the model cards round them: everything but the experts that a token does not visit. */
static void active_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t active;
    } rows[] = {
        {"mixtral-8x7b", 12879925248},    /* 46,702,792,704 - 32 layers x 6 of 8 experts x 3 x 4096 x 14336; "12.9B" */
        {"qwen3-30b-a3b", 3353032704},    /* 30,532,122,624 - 48 x 120 x 3 x 2048 x 768; "3.3B" */
        {"deepseek-v3", 37552297472},     /* 671,026,419,200 - 58 x 248 x 3 x 7168 x 2048; "37B" */
        {"deepseek-v2-lite", 2661150208}, /* 15,706,484,224 - 26 x 58 x 3 x 2048 x 1408; "2.4B" without the embedding */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape = published(rows[i].name);
        assert_int_equal(shape.active, rows[i].active);
        shape_free(&shape);
    }
}

/* bf16: bytes per token while windows fill, after that, and without sharing. */
static void token_bytes_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t bytes, bytes_long, bytes_mha;
    } rows[] = {
        {"qwen2.5-7b", 57344, 57344, 401408},         /* 2 * 28 * 4 * 128 * 2; window switched off */
        {"qwen3-8b", 147456, 147456, 589824},         /* 2 * 36 * 8 * 128 * 2; head_dim given, 32 query heads */
        {"mistral-7b-v0.1", 131072, 0, 524288},       /* every layer windowed: nothing grows for ever */
        {"gemma-2-9b", 344064, 172032, 688128},       /* 42 layers, 21 of them global: 2 * 21 * 8 * 256 * 2 */
        {"gemma-3-4b", 139264, 20480, 278528},        /* 34 layers of 2 * 4 * 256 * 2 = 4,096; 5 global */
        {"gemma-3n-e4b", 40960, 8192, 286720},        /* 35 layers, 15 share: 20 of 2 * 2 * 256 * 2 = 2,048, 4 global */
        {"gpt-oss-20b", 49152, 24576, 393216},        /* 24 of 2 * 8 * 64 * 2 = 2,048, 12 global */
        {"olmo-3-7b", 524288, 131072, 524288},        /* 32 of 2 * 32 * 128 * 2 = 16,384, 8 global */
        {"deepseek-v3", 70272, 70272, 4997120},       /* (512 + 64) * 2 * 61; heads: 128 * (192 + 128) * 2 * 61 */
        {"deepseek-v2-lite", 31104, 31104, 276480},   /* 576 * 2 * 27; 16 * 320 * 2 * 27 */
        {"falcon-7b", 8192, 8192, 581632},            /* multi-query: 2 * 32 * 1 * 64 * 2; 71 query heads */
        {"starcoder", 20480, 20480, 983040},          /* 2 * 40 * 1 * 128 * 2; 48 query heads */
        {"jamba-v0.1", 16384, 16384, 65536},          /* 4 of 32 layers attend: 2 * 4 * 8 * 128 * 2 */
        {"qwen3-next-80b-a3b", 24576, 24576, 196608}, /* 12 of 48: 2 * 12 * 2 * 256 * 2 */
        {"llama-4-scout", 196608, 49152, 983040},     /* 48 of 2 * 8 * 128 * 2 = 4,096; 12 see more than their chunk */
        {"mamba-2.8b", 0, 0, 0},
        /* 9 global layers of 4 heads, 39 local ones of 8, K of 192 and V of 128 values: 2,560 and 5,120 bytes */
        {"mimo-v2-flash", 222720, 23040, 1966080},
        {"gpt2-xl", 307200, 307200, 307200}, /* 2 * 48 * 25 * 64 * 2 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape = published(rows[i].name);
        bool overflow = false;
        const struct plan_type *bf16 = type("bf16");
        uint64_t bytes = shape_token_bytes(&shape, bf16, bf16, &overflow);
        uint64_t bytes_long = shape_token_bytes_long(&shape, bf16, bf16, &overflow);
        uint64_t bytes_mha = shape_token_bytes_mha(&shape, bf16, bf16, &overflow);
        if (bytes != rows[i].bytes || bytes_long != rows[i].bytes_long || bytes_mha != rows[i].bytes_mha || overflow)
            fail_msg("%s: %llu, %llu, %llu bytes", rows[i].name, (unsigned long long)bytes,
                     (unsigned long long)bytes_long, (unsigned long long)bytes_mha);
        shape_free(&shape);
    }
}

/* Values of one head: 128. Bytes of K, or V, per head and token. */
static void cache_types_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {{"f32", 512}, {"f16", 256}, {"bf16", 256}, {"fp8", 128}, {"int8", 132}, {"q8_0", 136},
                {"q5_1", 96}, {"q5_0", 88}, {"q4_1", 80},  {"q4_0", 72}, {"iq4_nl", 72}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool overflow = false;
        assert_int_equal(plan_type_bytes(type(rows[i].name), 1, 128, &overflow), rows[i].bytes);
        assert_false(overflow);
    }
    assert_true(plan_type_divides(type("q8_0"), 64));
    assert_false(plan_type_divides(type("q8_0"), 80));
    /* K in q8_0, V in q4_0: Llama-3 8B, 32 layers of 8 heads: 32 * 8 * (136 + 72) */
    struct shape shape = published("llama-3-8b");
    bool overflow = false;
    assert_int_equal(shape_token_bytes(&shape, type("q8_0"), type("q4_0"), &overflow), 53248);
    shape_free(&shape);
}

static void ranks_by_hand(void **state)
{
    (void)state;
    bool overflow = false;
    const struct plan_type *bf16 = type("bf16");
    struct shape llama = published("llama-3-8b"), deepseek = published("deepseek-v3");
    static const int64_t ranks[] = {1, 2, 8, 16, 64};
    static const uint64_t bytes[] = {4096, 2048, 512, 512, 512}; /* 8 heads: one on each rank, then copies of one */
    for (int i = 0; i < 5; i++) {
        assert_int_equal(layer_token_bytes(&llama.layers[0], bf16, bf16, ranks[i], false, &overflow), bytes[i]);
        assert_int_equal(layer_token_bytes(&deepseek.layers[0], bf16, bf16, ranks[i], false, &overflow), 1152);
    }
    /* Expanded: 128 heads of 192 and 128 values, over 8 ranks */
    assert_int_equal(layer_token_bytes(&deepseek.layers[0], bf16, bf16, 8, true, &overflow), 16 * 320 * 2);
    assert_int_equal(deepseek.prediction_layers, 1);
    assert_int_equal(layer_token_bytes(&deepseek.layers[61], bf16, bf16, 1, false, &overflow), 1152);
    shape_free(&llama);
    shape_free(&deepseek);
}

/* Constant per sequence. Jamba, Mamba layer: 8192 x 3 inputs and 8192 x 16 states. Granite 4 tiny, Mamba-2: channels
   3072 + 2 x 128, states 48 x 64 x 128. Qwen3-Next: channels 2 x 2048 + 4096, states 32 x 128 x 128. */
static void state_bytes_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int layer;
        uint64_t conv, states, channels;
    } rows[] = {{"jamba-v0.1", 0, 8192 * 3, 8192 * 16, 8192},
                {"mamba-130m", 0, 1536 * 3, 1536 * 16, 1536},
                {"granite-4.0-h-tiny", 0, 3328 * 3, 48 * 64 * 128, 3328},
                {"qwen3-next-80b-a3b", 0, 8192 * 3, 32 * 128 * 128, 8192}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape = published(rows[i].name);
        const struct layer_shape *layer = &shape.layers[rows[i].layer];
        bool overflow = false;
        assert_int_equal(layer->kind, LAYER_STATE);
        assert_int_equal(layer_state_bytes(layer, type("bf16"), type("f32"), 1, false, &overflow),
                         2 * rows[i].conv + 4 * rows[i].states);
        assert_int_equal(layer_state_bytes(layer, type("bf16"), type("f32"), 1, true, &overflow),
                         2 * (rows[i].conv + rows[i].channels) + 4 * rows[i].states);
        assert_int_equal(layer_token_bytes(layer, type("bf16"), type("bf16"), 1, false, &overflow), 0);
        shape_free(&shape);
    }
}

static void which_layers(void **state)
{
    (void)state;
    struct shape gemma2 = published("gemma-2-2b"), gemma3 = published("gemma-3-4b"), oss = published("gpt-oss-20b");
    struct shape gemma3n = published("gemma-3n-e4b"), scout = published("llama-4-scout");
    assert_int_equal(gemma2.layers[0].kind, LAYER_WINDOW);
    assert_int_equal(gemma2.layers[1].kind, LAYER_FULL);
    assert_int_equal(gemma2.layers[0].window, 4096);
    for (int i = 0; i < 34; i++)
        assert_int_equal(gemma3.layers[i].kind, (i + 1) % 6 == 0 ? LAYER_FULL : LAYER_WINDOW);
    assert_int_equal(gemma3.layers[0].window, 1024);
    assert_int_equal(gemma3.vocab_size, 262208); /* the class's default: the published file leaves it out */
    assert_int_equal(gemma3.parts.vision, 416866032 + 2950272); /* SigLIP so400m, and the projector */
    assert_int_equal(oss.layers[0].window, 128);
    assert_int_equal(oss.published, PUBLISHED_MXFP4_EXPERTS);
    /* 35 layers, the last 15 shared: local ones read layer 18, global ones layer 19 */
    assert_int_equal(gemma3n.layers[19].kind, LAYER_FULL);
    assert_int_equal(gemma3n.layers[20].kind, LAYER_SHARED);
    assert_int_equal(gemma3n.layers[20].shares_with, 18);
    assert_int_equal(gemma3n.layers[24].shares_with, 19);
    assert_int_equal(scout.layers[0].kind, LAYER_CHUNK);
    assert_int_equal(scout.layers[3].kind, LAYER_FULL);
    assert_int_equal(scout.layers[0].window, 8192);
    shape_free(&gemma2);
    shape_free(&gemma3);
    shape_free(&gemma3n);
    shape_free(&oss);
    shape_free(&scout);
}

/* Writes the config of `model` with the members of `changes` put over it; a member "-key" takes key away. */
static void write_changed(const char *model, const char *changes)
{
    char path[8192];
    json_error_t failure;
    snprintf(path, sizeof path, "%s/models/%s.json", config_data_dir(), model);
    json_t *config = json_load_file(path, 0, &failure), *over = json_loads(changes, 0, &failure), *value;
    if (!config || !over)
        fail_msg("%s: %s in %s", path, failure.text, changes);
    const char *key;
    json_object_foreach(over, key, value)
    {
        if (key[0] == '-')
            json_object_del(config, key + 1);
        else
            json_object_set(config, key, value);
    }
    assert_int_equal(json_dump_file(config, file, 0), 0);
    json_decref(config);
    json_decref(over);
}

static void refuses_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *model, *changes, *key, *value;
    } rows[] = {
        {"llama-3-8b", "{\"model_type\": \"rwkv\"}", "model_type", "rwkv"},
        {"gemma-3-4b", "{\"model_type\": \"gemma4\"}", "model_type", "gemma4"},
        {"granite-4.0-h-tiny", "{\"model_type\": \"falcon_h1\"}", "model_type", "falcon_h1"},
        {"granite-4.0-h-tiny", "{\"model_type\": \"nemotron_h\"}", "model_type", "nemotron_h"},
        {"qwen2.5-7b", "{\"model_type\": \"qwen2_5_vl\"}", "model_type", "qwen2_5_vl"},
        {"llama-3-8b", "{\"model_type\": \"mllama\"}", "model_type", "mllama"},
        {"llama-3-8b", "{\"-model_type\": 0, \"architectures\": [\"FooForCausalLM\"]}", "architectures", "Foo"},
        {"llama-3-8b", "{\"architectures\": [\"Qwen2ForCausalLM\"]}", "architectures", "Qwen2ForCausalLM"},
        {"llama-3-8b", "{\"sliding_window\": 4096}", "sliding_window", "4096"},
        {"llama-3-8b", "{\"num_experts\": 8}", "num_experts", "8"},
        {"llama-3-8b", "{\"kv_lora_rank\": 512}", "kv_lora_rank", "512"},
        {"llama-3-8b", "{\"cla_share_factor\": 2}", "cla_share_factor", "2"},
        {"llama-3-8b", "{\"num_kv_shared_layers\": 2}", "num_kv_shared_layers", "2"},
        {"llama-3-8b", "{\"layer_types\": [\"full_attention\"]}", "layer_types", "full_attention"},
        {"llama-3-8b", "{\"vision_config\": {\"hidden_size\": 3}}", "vision_config", "hidden_size"},
        {"llama-3-8b", "{\"num_key_value_heads\": 5}", "num_attention_heads", "5"},
        {"llama-3-8b", "{\"hidden_size\": -1}", "hidden_size", "-1"},
        {"llama-3-8b", "{\"vocab_size\": 0.5}", "vocab_size", "0.5"},
        {"llama-3-8b", "{\"num_hidden_layers\": 100000}", "num_hidden_layers", "100000"},
        {"llama-3-8b", "{\"torch_dtype\": \"int4\"}", "torch_dtype", "int4"},
        {"qwen3-8b", "{\"-num_key_value_heads\": 0}", "num_key_value_heads", "missing"},
        {"qwen3-8b", "{\"layer_types\": [\"linear\"]}", "layer_types", "36"},
        {"gemma-2-2b", "{\"-sliding_window\": 0}", "sliding_window", "missing"},
        {"gemma-3-1b", "{\"sliding_window_pattern\": 0}", "sliding_window_pattern", "0"},
        {"gemma-3-4b", "{\"-text_config\": 0}", "text_config", "missing"},
        {"deepseek-v3", "{\"index_topk\": 2048}", "index_topk", "2048"},
        {"deepseek-v3", "{\"attention_bias\": true}", "attention_bias", "true"},
        {"deepseek-v3", "{\"moe_layer_freq\": 2}", "moe_layer_freq", "2"},
        {"deepseek-v3", "{\"num_experts_per_tok\": 300}", "num_experts_per_tok", "300"},
        {"stablelm-2-1.6b", "{\"qk_layernorm\": true}", "qk_layernorm", "true"},
        {"opt-125m", "{\"word_embed_proj_dim\": 512}", "word_embed_proj_dim", "512"},
        {"opt-125m", "{\"do_layer_norm_before\": false}", "do_layer_norm_before", "false"},
        {"jamba-v0.1", "{\"attn_layer_offset\": 8}", "attn_layer_offset", "8"},
        {"granite-4.0-h-tiny", "{\"-layer_types\": 0}", "layer_types", "missing"},
        {"granite-4.0-h-tiny", "{\"mamba_expand\": 3}", "mamba_expand", "3"},
        {"gpt2", "{\"-n_positions\": 0}", "n_positions", "missing"},
        {"pythia-70m", "{\"attention_bias\": false}", "attention_bias", "false"},
        {"internlm2-7b", "{\"bias\": true}", "bias", "true"},
        {"mistral-7b-v0.3", "{\"attention_bias\": true}", "attention_bias", "true"},
        {"mpt-7b", "{\"attn_config\": {\"alibi\": false}}", "attn_config", "alibi"},
        {"gemma-3n-e2b", "{\"text_config\": {\"vocab_size\": 10}}", "text_config.hidden_size", "missing"},
        {"llama-3-8b", "{\"intermediate_size\": [14336]}", "intermediate_size", "14336"},
        {"gemma-3-1b", "{\"intermediate_size\": [6912]}", "intermediate_size", "6912"},
        {"gpt2", "{\"n_inner\": [3072]}", "n_inner", "3072"},
        {"falcon-7b", "{\"ffn_hidden_size\": [18176]}", "ffn_hidden_size", "18176"},
        {"llama-3-8b", "{\"attention_k_eq_v\": true}", "attention_k_eq_v", "true"},
        {"llama-3-8b", "{\"attn_output_gate\": true}", "attn_output_gate", "true"},
        {"qwen3-next-80b-a3b", "{\"attn_output_gate\": false}", "attn_output_gate", "false"},
        {"llama-3-8b", "{\"use_mla\": true}", "use_mla", "true"},
        {"llama-3-8b", "{\"block_configs\": [{\"attention\": {\"no_op\": true}}]}", "block_configs", "no_op"},
        {"llama-3-8b", "{\"weight_tying\": true}", "weight_tying", "true"},
        {"gemma-2b", "{\"weight_tying\": false}", "weight_tying", "false"},
        {"llama-3-8b", "{\"attention_type\": \"linear\"}", "attention_type", "linear"},
        {"gpt2", "{\"add_cross_attention\": true}", "add_cross_attention", "true"},
        {"gemma-3-4b", "{\"tie_word_embeddings\": false}", "tie_word_embeddings", "false"},
        {"llama-4-scout", "{\"tie_word_embeddings\": true}", "tie_word_embeddings", "true"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape;
        struct error error = {0};
        write_changed(rows[i].model, rows[i].changes);
        if (shape_read(&shape, file, &error) != STATUS_INPUT || !strstr(error.message, file) ||
            !strstr(error.message, rows[i].key) || !strstr(error.message, rows[i].value) || strchr(error.message, '\n'))
            fail_msg("%s with %s: '%s' must name %s and %s", rows[i].model, rows[i].changes, error.message, rows[i].key,
                     rows[i].value);
        assert_null(shape.layers);
    }
}

/* Every layer of a kind that its family does not have: such a layer once cost nothing. */
static void refuses_kinds_of_other_families(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int layers;
        const char *kind;
    } rows[] = {
        {"qwen2.5-0.5b", 24, "chunked_attention"},
        {"qwen2.5-0.5b", 24, "linear_attention"},
        {"qwen2.5-0.5b", 24, "mamba"},
        {"qwen2.5-0.5b", 24, "attention"},
        {"qwen3-8b", 36, "linear_attention"},
        {"qwen3-8b", 36, "mamba"},
        {"gemma-2-2b", 26, "chunked_attention"},
        {"gemma-2-2b", 26, "mamba"},
        {"gemma-3-1b", 26, "chunked_attention"},
        {"smollm3-3b", 36, "linear_attention"},
        {"smollm3-3b", 36, "chunked_attention"},
        {"olmo-3-7b", 32, "mamba"},
        {"olmo-3-7b", 32, "chunked_attention"},
        {"exaone-4.0-32b", 64, "linear_attention"},
        {"granite-4.0-h-tiny", 40, "sliding_attention"},
        {"granite-4.0-h-tiny", 40, "linear_attention"},
        {"granite-4.0-h-tiny", 40, "full_attention"},
        {"qwen3-next-80b-a3b", 48, "sliding_attention"},
        {"qwen3-next-80b-a3b", 48, "mamba"},
        {"qwen3-next-80b-a3b", 48, "chunked_attention"},
        {"gpt-oss-20b", 24, "chunked_attention"},
        {"mistral-7b-v0.1", 32, "chunked_attention"},
        {"mixtral-8x7b", 32, "linear_attention"},
        {"command-r7b", 32, "chunked_attention"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char changes[2048] = "{\"layer_types\": [";
        for (int l = 0; l < rows[i].layers; l++)
            snprintf(changes + strlen(changes), sizeof changes - strlen(changes), "%s\"%s\"", l ? ", " : "",
                     rows[i].kind);
        strncat(changes, "]}", sizeof changes - strlen(changes) - 1);
        struct shape shape;
        struct error error = {0};
        write_changed(rows[i].model, changes);
        if (shape_read(&shape, file, &error) != STATUS_INPUT || !strstr(error.message, "layer_types") ||
            !strstr(error.message, rows[i].kind))
            fail_msg("%s of %s: '%s' must name layer_types and the kind", rows[i].model, rows[i].kind, error.message);
    }
}

/* Windows without a width. */
static void refuses_windows_without_a_width(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"exaone-4.0-1.2b", "sliding_window"}, /* its own layer_types are all full */
        {"mistral-7b-v0.3", "layer_types"},    /* sliding_window is null */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape = published(rows[i][0]);
        char changes[2048] = "{\"sliding_window\": null, \"layer_types\": [";
        for (int l = 0; l < shape.layer_count; l++)
            snprintf(changes + strlen(changes), sizeof changes - strlen(changes), "%s\"sliding_attention\"",
                     l ? ", " : "");
        strncat(changes, "]}", sizeof changes - strlen(changes) - 1);
        shape_free(&shape);
        struct error error = {0};
        write_changed(rows[i][0], changes);
        if (shape_read(&shape, file, &error) != STATUS_INPUT || !strstr(error.message, rows[i][1]))
            fail_msg("%s: '%s' must name %s", rows[i][0], error.message, rows[i][1]);
    }
}

/* Llama 4 Scout with members of its text_config changed; 48 layers, all with 16 experts. */
static enum status scout_with(const char *key, json_t *value, struct shape *shape, struct error *error)
{
    char path[8192];
    snprintf(path, sizeof path, "%s/models/llama-4-scout.json", config_data_dir());
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    json_object_set_new(json_object_get(config, "text_config"), key, value);
    assert_int_equal(json_dump_file(config, file, 0), 0);
    json_decref(config);
    return shape_read(shape, file, error);
}

/* moe_layers overrides the interleave (configuration_llama4.py). A layer's 16 experts, shared one and router weigh
   17 x 3 x 5,120 x 8,192 + 5,120 x 16; the dense MLP 3 x 5,120 x 16,384. */
static void llama4_lists(void **state)
{
    (void)state;
    struct shape shape, before = published("llama-4-scout");
    struct error error = {0};
    assert_int_equal(scout_with("moe_layers", json_loads("[0, 47]", 0, NULL), &shape, &error), STATUS_OK);
    assert_int_equal(before.total - shape.total, 46 * (17 * 125829120ull + 81920 - 251658240));
    assert_true(shape.layers[0].weights.experts > 0 && shape.layers[1].weights.experts == 0);
    shape_free(&shape);
    assert_int_equal(scout_with("moe_layers", json_array(), &shape, &error), STATUS_OK);
    assert_int_equal(shape.parts.experts, 0);
    shape_free(&shape);
    static const char *const wrong[] = {"[48]", "[-1]", "[\"a\"]", "7"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(scout_with("moe_layers", json_loads(wrong[i], JSON_DECODE_ANY, NULL), &shape, &error),
                         STATUS_INPUT);
        assert_non_null(strstr(error.message, "moe_layers"));
    }
    static const char *const marks[] = {"\"a\"", "2", "null", "1.0"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        json_t *list = json_array();
        for (int l = 0; l < 48; l++)
            json_array_append_new(list, json_loads(marks[i], JSON_DECODE_ANY, NULL));
        assert_int_equal(scout_with("no_rope_layers", list, &shape, &error), STATUS_INPUT);
        assert_non_null(strstr(error.message, "no_rope_layers"));
    }
    assert_int_equal(scout_with("no_rope_layers", json_string("x"), &shape, &error), STATUS_INPUT);
    assert_int_equal(scout_with("no_rope_layers", json_array(), &shape, &error), STATUS_OK); /* the default */
    assert_int_equal(shape_layers_of_kind(&shape, LAYER_CHUNK), 36);
    shape_free(&shape);
    shape_free(&before);
}

/* Keys that say "not used", and a window that is there but switched off, change nothing. */
static void reads_what_is_switched_off(void **state)
{
    (void)state;
    static const struct {
        const char *model, *changes;
    } rows[] = {
        {"llama-3-8b",
         "{\"sliding_window\": null, \"num_experts\": 0, \"layer_types\": null, \"quantization_config\": null}"},
        {"qwen2.5-7b", "{\"use_sliding_window\": true}"}, /* max_window_layers 28: none of the 28 layers */
        {"qwen3-8b", "{\"sliding_window\": 4096}"},
        {"mixtral-8x7b", "{\"-sliding_window\": 0}"},
        {"llama-3-8b", "{\"attention_k_eq_v\": false, \"use_mla\": false, \"weight_tying\": false,"
                       " \"add_cross_attention\": false, \"block_configs\": null, \"attention_type\": null}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape;
        struct error error = {0};
        write_changed(rows[i].model, rows[i].changes);
        if (shape_read(&shape, file, &error) != STATUS_OK)
            fail_msg("%s", error.message);
        assert_int_equal(shape_layers_of_kind(&shape, LAYER_FULL), shape.layer_count);
        shape_free(&shape);
    }
    struct shape shape;
    struct error error = {0};
    write_changed("qwen2.5-7b", "{\"use_sliding_window\": true, \"max_window_layers\": 20, \"sliding_window\": 64}");
    assert_int_equal(shape_read(&shape, file, &error), STATUS_OK);
    assert_int_equal(shape.layers[19].kind, LAYER_FULL);
    assert_int_equal(shape.layers[20].kind, LAYER_WINDOW);
    assert_int_equal(shape.layers[20].window, 64);
    shape_free(&shape);
}

/* Published files carry more keys than data/models keeps. These change nothing, and must not be taken for what does. */
static void other_keys_of_published_files(void **state)
{
    (void)state;
    static const struct {
        const char *model, *changes;
    } rows[] = {
        {"smollm3-3b", "{\"max_window_layers\": 28, \"no_rope_layers\": [1, 1, 1, 0], \"pretraining_tp\": 2}"},
        {"starcoder", "{\"pad_key_length\": true, \"pre_allocate_kv_cache\": true, \"attention_softmax_in_fp32\": true,"
                      " \"scale_attention_softmax_in_fp32\": true, \"summary_use_proj\": true}"},
        {"pythia-410m", "{\"attention_bias\": true, \"rotary_emb_base\": 10000, \"hidden_dropout\": 0.0}"},
        {"bloom-7b1", "{\"bias_dropout_fusion\": true, \"skip_bias_add\": true, \"skip_bias_add_qkv\": false,"
                      " \"n_inner\": null, \"offset_alibi\": 100, \"pretraining_tp\": 2}"},
        {"bloom-560m", "{\"-n_embed\": 0, \"hidden_size\": 1024, \"-num_attention_heads\": 0, \"n_head\": 16}"},
        {"gemma-3n-e4b",
         "{\"audio_token_id\": 262273, \"audio_soft_tokens_per_image\": 188, \"audio_config\": {\"a\": 1},"
         " \"vision_config\": {\"a\": 1}, \"vision_soft_tokens_per_image\": 256}"},
        {"gpt-oss-20b", "{\"swiglu_limit\": 7.0, \"router_aux_loss_coef\": 0.9, \"output_router_logits\": true}"},
        {"deepseek-v3", "{\"ep_size\": 1, \"aux_loss_alpha\": 0.001, \"seq_aux\": true, \"routed_scaling_factor\": 2.5,"
                        " \"auto_map\": {\"AutoConfig\": \"x\"}, \"pretraining_tp\": 1}"},
        {"jamba-v0.1", "{\"use_mamba_kernels\": true, \"num_logits_to_keep\": 1, \"mamba_inner_layernorms\": true}"},
        {"granite-4.0-h-tiny", "{\"mamba_chunk_size\": 256, \"router_aux_loss_coef\": 0.01, \"logits_scaling\": 6}"},
        {"mamba-2.8b", "{\"ssm_cfg\": {}, \"fused_add_norm\": true, \"d_inner\": 5120, \"use_mambapy\": false,"
                       " \"time_step_min\": 0.001}"},
        {"gemma-2-9b", "{\"cache_implementation\": \"hybrid\", \"use_cache\": true, \"hidden_act\": \"gelu\"}"},
        {"phi-3-mini-4k", "{\"original_max_position_embeddings\": 4096, \"resid_pdrop\": 0.0}"},
        {"command-r7b", "{\"order_of_interleaved_layers\": \"local_attn_first\", \"rotary_pct\": 1.0}"},
        {"gpt2", "{\"summary_type\": \"cls_index\", \"n_inner\": null, \"task_specific_params\": {\"x\": 1}}"},
        {"falcon-7b", "{\"apply_residual_connection_post_layernorm\": false, \"hidden_dropout\": 0.0}"},
        {"mpt-7b",
         "{\"learned_pos_emb\": true, \"norm_type\": \"low_precision_layernorm\", \"init_config\": {\"x\": 1}}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shape shape, before = published(rows[i].model);
        struct error error = {0};
        write_changed(rows[i].model, rows[i].changes);
        if (shape_read(&shape, file, &error) != STATUS_OK)
            fail_msg("%s with %s: %s", rows[i].model, rows[i].changes, error.message);
        assert_int_equal(shape.total, before.total);
        shape_free(&shape);
        shape_free(&before);
    }
}

/* Any one value of any model replaced by one that does not belong there: a shape, or one line that names the file. */
static void replace_each(json_t *config, json_t *object)
{
    static const char *const values[] = {"0", "-1", "4611686018427387904", "\"x\"", "[1]"};
    const char *key;
    json_t *original;
    void *next;
    json_object_foreach_safe(object, next, key, original)
    {
        json_incref(original);
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            struct shape shape;
            struct error error = {0};
            json_object_set_new(object, key, json_loads(values[i], JSON_DECODE_ANY, NULL));
            assert_int_equal(json_dump_file(config, file, 0), 0);
            enum status status = shape_read(&shape, file, &error);
            if (status != STATUS_OK &&
                (status != STATUS_INPUT || !strstr(error.message, file) || strchr(error.message, '\n')))
                fail_msg("%s = %s: status %d, '%s'", key, values[i], status, error.message);
            shape_free(&shape);
        }
        json_object_set_new(object, key, original);
    }
}

static void no_value_crashes(void **state)
{
    (void)state;
    static const char *const models[] = {"gemma-3-4b",         "gemma-3n-e2b",  "deepseek-v3",   "qwen3-next-80b-a3b",
                                         "granite-4.0-h-tiny", "mamba-130m",    "llama-4-scout", "gpt-oss-20b",
                                         "jamba-v0.1",         "mimo-v2-flash", "falcon-40b",    "exaone-4.0-32b"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char path[8192];
        json_error_t failure;
        snprintf(path, sizeof path, "%s/models/%s.json", config_data_dir(), models[i]);
        json_t *config = json_load_file(path, 0, &failure);
        assert_non_null(config);
        replace_each(config, config);
        if (json_object_get(config, "text_config"))
            replace_each(config, json_object_get(config, "text_config"));
        if (json_object_get(config, "vision_config"))
            replace_each(config, json_object_get(config, "vision_config"));
        json_decref(config);
    }
}

static void too_many_parameters(void **state)
{
    (void)state;
    struct shape shape;
    struct error error = {0};
    write_changed("mixtral-8x7b",
                  "{\"hidden_size\": 1048576, \"intermediate_size\": 16777216, \"num_local_experts\": 65536,"
                  " \"num_hidden_layers\": 2048, \"head_dim\": 128}");
    assert_int_equal(shape_read(&shape, file, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "64 bits"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_match_published_counts),
        cmocka_unit_test(every_shipped_model_has_a_published_count),
        cmocka_unit_test(active_parameters),
        cmocka_unit_test(token_bytes_by_hand),
        cmocka_unit_test(cache_types_by_hand),
        cmocka_unit_test(ranks_by_hand),
        cmocka_unit_test(state_bytes_by_hand),
        cmocka_unit_test(which_layers),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(refuses_kinds_of_other_families),
        cmocka_unit_test(refuses_windows_without_a_width),
        cmocka_unit_test(llama4_lists),
        cmocka_unit_test(reads_what_is_switched_off),
        cmocka_unit_test(other_keys_of_published_files),
        cmocka_unit_test(no_value_crashes),
        cmocka_unit_test(too_many_parameters),
    };
    return cmocka_run_group_tests_name("shape", tests, setup, teardown);
}
