/* From a config.json to a shape: a family is one row of a table, for what all of its models have, and one function for
   what their keys say. Defaults of absent keys are those of transformers' configuration classes. */
#include "engine/plan/shape_read.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is so in every model of a family. */
enum traits {
    TIED = 1 << 0,            /* tie_word_embeddings is true where the file has no such key */
    QKV_BIAS = 1 << 1,        /* q, k and v have biases */
    O_BIAS = 1 << 2,          /* so has the attention's output */
    BIAS_KEY = 1 << 3,        /* attention_bias says whether q, k, v and the output have biases */
    QKV_BIAS_KEY = 1 << 4,    /* attention_bias says it for q, k and v only */
    PLAIN_MLP = 1 << 5,       /* up and down, no gate */
    MLP_BIAS = 1 << 6,        /* its matrices have biases */
    MLP_BIAS_KEY = 1 << 7,    /* mlp_bias says whether */
    NORM_BIAS = 1 << 8,       /* LayerNorm: weight and bias */
    NORM_BARE = 1 << 9,       /* LayerNorm without parameters */
    ONE_NORM = 1 << 10,       /* attention and MLP read the same norm */
    FOUR_NORMS = 1 << 11,     /* before and after each of the two */
    QK_HEAD = 1 << 12,        /* norms of q and k, per head */
    QK_WIDTH = 1 << 13,       /* norms of q and k, all heads side by side */
    HEAD_BIAS = 1 << 14,      /* the output head has a bias */
    POSITIONS = 1 << 15,      /* a learned table of positions */
    EMBED_NORM = 1 << 16,     /* a norm after the embedding */
    KV_AS_Q = 1 << 17,        /* without num_key_value_heads, one KV head per query head */
    IN_TEXT_CONFIG = 1 << 18, /* everything lies in text_config */
    LLAMA_WINDOWS = 1 << 19,  /* llama.cpp has a cache of windows for it (below) */
    SGLANG_POOLS = 1 << 20,   /* SGLang gives its windowed layers a pool of their own (below) */
    WIDTH_LIST = 1 << 21      /* intermediate_size may be a list */
};

/* LLAMA_WINDOWS: what sets hparams.swa_type in llama.cpp's load_hparams (ggml-org/llama.cpp, src/llama-model.cpp at
   00342301; since then src/models/<family>.cpp): gemma2, gemma3, gemma3n, llama4 (chunks), gpt-oss, cohere2, olmo2 with
   a window (OLMo 3), mimo2, and exaone4 with 64 layers. It caches all of mistral, mixtral, qwen2, starcoder2 and
   phimoe, whose windows it does not read, and of phi3 ("Phi SWA is currently disabled", its pull request 13676).
   SGLANG_POOLS: is_hybrid_swa_model of SGLang's python/sglang/srt/configs/model_config.py names Llama4, GptOss, MiMoV2
   and Step3p5 (later Gemma4 and Laguna too); it caches all of any other model. */

/* Keys of the common counts; NULL: the family has none. */
struct names {
    const char *hidden, *layers, *heads, *kv_heads, *head_dim, *intermediate, *positions;
};
static const struct names LLAMA_NAMES = {
    "hidden_size", "num_hidden_layers", "num_attention_heads",    "num_key_value_heads",
    "head_dim",    "intermediate_size", "max_position_embeddings"};
static const struct names PLAIN_NAMES = {"hidden_size", "num_hidden_layers", "num_attention_heads",    NULL,
                                         NULL,          "intermediate_size", "max_position_embeddings"};
static const struct names GPT2_NAMES = {"n_embd", "n_layer", "n_head", NULL, NULL, "n_inner", "n_positions"};
/* The published configs' own names; the class calls the first hidden_size and the last n_head. */
static const struct names BLOOM_NAMES = {"n_embed", "n_layer", "num_attention_heads", NULL, NULL, NULL, NULL};
static const struct names OPT_NAMES = {"hidden_size", "num_hidden_layers", "num_attention_heads",    NULL,
                                       NULL,          "ffn_dim",           "max_position_embeddings"};
static const struct names FALCON_NAMES = {"hidden_size", "num_hidden_layers", "num_attention_heads",    NULL,
                                          NULL,          "ffn_hidden_size",   "max_position_embeddings"};
static const struct names MPT_NAMES = {"d_model", "n_layers", "n_heads", NULL, NULL, NULL, "max_seq_len"};
static const struct names MAMBA_NAMES = {"hidden_size", "num_hidden_layers", NULL, NULL, NULL, NULL, NULL};

struct family {
    const char *model_type, *architecture;
    const struct names *names;
    unsigned traits;
    describe *describe;
};

static const struct family FAMILIES[] = {
    {"llama", "LlamaForCausalLM", &LLAMA_NAMES, BIAS_KEY | MLP_BIAS_KEY | KV_AS_Q, describe_plain},
    {"mistral", "MistralForCausalLM", &LLAMA_NAMES, 0, describe_mistral},
    {"mixtral", "MixtralForCausalLM", &LLAMA_NAMES, 0, describe_mixtral},
    {"qwen2", "Qwen2ForCausalLM", &LLAMA_NAMES, QKV_BIAS, describe_qwen},
    {"qwen2_moe", "Qwen2MoeForCausalLM", &LLAMA_NAMES, QKV_BIAS, describe_qwen2_moe},
    {"qwen3", "Qwen3ForCausalLM", &LLAMA_NAMES, QK_HEAD | BIAS_KEY, describe_qwen},
    {"qwen3_moe", "Qwen3MoeForCausalLM", &LLAMA_NAMES, QK_HEAD | BIAS_KEY, describe_qwen3_moe},
    {"qwen3_next", "Qwen3NextForCausalLM", &LLAMA_NAMES, QK_HEAD | BIAS_KEY, describe_qwen3_next},
    {"gemma", "GemmaForCausalLM", &LLAMA_NAMES, TIED | BIAS_KEY, describe_plain},
    {"gemma2", "Gemma2ForCausalLM", &LLAMA_NAMES, TIED | BIAS_KEY | FOUR_NORMS | LLAMA_WINDOWS, describe_alternating},
    {"gemma3_text", "Gemma3ForCausalLM", &LLAMA_NAMES, TIED | BIAS_KEY | FOUR_NORMS | QK_HEAD | LLAMA_WINDOWS,
     describe_gemma3},
    {"gemma3", "Gemma3ForConditionalGeneration", &LLAMA_NAMES,
     TIED | BIAS_KEY | FOUR_NORMS | QK_HEAD | IN_TEXT_CONFIG | LLAMA_WINDOWS, describe_gemma3},
    {"gemma3n", "Gemma3nForConditionalGeneration", &LLAMA_NAMES,
     TIED | BIAS_KEY | FOUR_NORMS | QK_HEAD | IN_TEXT_CONFIG | LLAMA_WINDOWS | WIDTH_LIST, describe_gemma3n},
    {"phi", "PhiForCausalLM", &LLAMA_NAMES,
     QKV_BIAS | O_BIAS | PLAIN_MLP | MLP_BIAS | NORM_BIAS | ONE_NORM | HEAD_BIAS | KV_AS_Q, describe_plain},
    {"phi3", "Phi3ForCausalLM", &LLAMA_NAMES, KV_AS_Q, describe_windowed},
    {"phimoe", "PhimoeForCausalLM", &LLAMA_NAMES, BIAS_KEY | NORM_BIAS, describe_phimoe},
    {"gpt_oss", "GptOssForCausalLM", &LLAMA_NAMES, BIAS_KEY | LLAMA_WINDOWS | SGLANG_POOLS, describe_gpt_oss},
    {"deepseek_v2", "DeepseekV2ForCausalLM", &PLAIN_NAMES, BIAS_KEY, describe_deepseek},
    {"deepseek_v3", "DeepseekV3ForCausalLM", &PLAIN_NAMES, BIAS_KEY, describe_deepseek},
    {"kimi_k2", "DeepseekV3ForCausalLM", &PLAIN_NAMES, BIAS_KEY, describe_deepseek},
    {"glm4", "Glm4ForCausalLM", &LLAMA_NAMES, QKV_BIAS_KEY | FOUR_NORMS, describe_plain},
    {"glm4_moe", "Glm4MoeForCausalLM", &LLAMA_NAMES, QKV_BIAS_KEY, describe_glm4_moe},
    {"llama4", "Llama4ForConditionalGeneration", &LLAMA_NAMES, BIAS_KEY | IN_TEXT_CONFIG | LLAMA_WINDOWS | SGLANG_POOLS,
     describe_llama4},
    {"mimo_v2_flash", "MiMoV2FlashForCausalLM", &LLAMA_NAMES, QKV_BIAS_KEY | LLAMA_WINDOWS | SGLANG_POOLS,
     describe_mimo_v2},
    {"smollm3", "SmolLM3ForCausalLM", &LLAMA_NAMES, TIED | BIAS_KEY | MLP_BIAS_KEY, describe_smollm3},
    {"granite", "GraniteForCausalLM", &LLAMA_NAMES, BIAS_KEY | MLP_BIAS_KEY | KV_AS_Q, describe_plain},
    {"granitemoehybrid", "GraniteMoeHybridForCausalLM", &LLAMA_NAMES, BIAS_KEY | KV_AS_Q, describe_granite_hybrid},
    {"jamba", "JambaForCausalLM", &LLAMA_NAMES, 0, describe_jamba},
    {"mamba", "MambaForCausalLM", &MAMBA_NAMES, TIED, describe_mamba},
    {"olmo", "OlmoForCausalLM", &LLAMA_NAMES, BIAS_KEY | NORM_BARE | KV_AS_Q, describe_plain},
    {"olmo2", "Olmo2ForCausalLM", &LLAMA_NAMES, BIAS_KEY | QK_WIDTH | KV_AS_Q, describe_plain},
    {"olmo3", "Olmo3ForCausalLM", &LLAMA_NAMES, BIAS_KEY | QK_WIDTH | KV_AS_Q | LLAMA_WINDOWS, describe_olmo3},
    {"olmoe", "OlmoeForCausalLM", &LLAMA_NAMES, BIAS_KEY | QK_WIDTH | KV_AS_Q, describe_olmoe},
    {"cohere", "CohereForCausalLM", &LLAMA_NAMES, TIED | BIAS_KEY | ONE_NORM | KV_AS_Q, describe_cohere},
    {"cohere2", "Cohere2ForCausalLM", &LLAMA_NAMES, TIED | BIAS_KEY | ONE_NORM | KV_AS_Q | LLAMA_WINDOWS,
     describe_cohere2},
    {"exaone4", "Exaone4ForCausalLM", &LLAMA_NAMES, QK_HEAD | LLAMA_WINDOWS, describe_exaone4},
    {"internlm2", "InternLM2ForCausalLM", &LLAMA_NAMES, KV_AS_Q, describe_plain},
    {"stablelm", "StableLmForCausalLM", &LLAMA_NAMES, NORM_BIAS | KV_AS_Q, describe_stablelm},
    {"starcoder2", "Starcoder2ForCausalLM", &LLAMA_NAMES, TIED | PLAIN_MLP | NORM_BIAS, describe_starcoder2},
    {"gpt_bigcode", "GPTBigCodeForCausalLM", &GPT2_NAMES,
     TIED | QKV_BIAS | O_BIAS | PLAIN_MLP | MLP_BIAS | NORM_BIAS | POSITIONS, describe_gpt_bigcode},
    {"gpt2", "GPT2LMHeadModel", &GPT2_NAMES, TIED | QKV_BIAS | O_BIAS | PLAIN_MLP | MLP_BIAS | NORM_BIAS | POSITIONS,
     describe_plain},
    {"gptj", "GPTJForCausalLM", &GPT2_NAMES, PLAIN_MLP | MLP_BIAS | NORM_BIAS | ONE_NORM | HEAD_BIAS, describe_plain},
    {"gpt_neox", "GPTNeoXForCausalLM", &PLAIN_NAMES, QKV_BIAS | O_BIAS | PLAIN_MLP | MLP_BIAS | NORM_BIAS,
     describe_gpt_neox},
    {"bloom", "BloomForCausalLM", &BLOOM_NAMES,
     TIED | QKV_BIAS | O_BIAS | PLAIN_MLP | MLP_BIAS | NORM_BIAS | EMBED_NORM, describe_plain},
    {"opt", "OPTForCausalLM", &OPT_NAMES, TIED | QKV_BIAS | O_BIAS | PLAIN_MLP | MLP_BIAS | NORM_BIAS | POSITIONS,
     describe_opt},
    {"falcon", "FalconForCausalLM", &FALCON_NAMES, TIED | PLAIN_MLP | NORM_BIAS, describe_falcon},
    {"mpt", "MPTForCausalLM", &MPT_NAMES, TIED | PLAIN_MLP, describe_mpt},
};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof FAMILIES[0], MAX_CONFIG_BYTES = 1 << 22 };

const char *shape_families(char *to, size_t size)
{
    size_t used = 0;
    to[0] = '\0';
    for (int i = 0; i < FAMILY_COUNT && used < size; i++)
        used += (size_t)snprintf(to + used, size - used, "%s%s", i ? ", " : "", FAMILIES[i].model_type);
    return to;
}

static enum status find_family(struct reader *reader)
{
    const json_t *type = config_key(&reader->keys, "model_type");
    const json_t *architecture = json_array_get(config_key(&reader->keys, "architectures"), 0);
    char shown[64], known[640];
    if (!type && !architecture)
        return config_refuse(&reader->keys, "model_type", "is missing; it must be one of %s",
                             shape_families(known, sizeof known));
    for (int i = 0; i < FAMILY_COUNT && !reader->family; i++) {
        const json_t *given = type ? type : architecture;
        const char *name = type ? FAMILIES[i].model_type : FAMILIES[i].architecture;
        if (json_is_string(given) && strcmp(json_string_value(given), name) == 0)
            reader->family = &FAMILIES[i];
    }
    if (!reader->family)
        return config_refuse(
            &reader->keys, type ? "model_type" : "architectures", "%s is not understood; these are: %s",
            json_input_show(type ? type : architecture, shown, sizeof shown), shape_families(known, sizeof known));
    bool same =
        !architecture ||
        (json_is_string(architecture) && strcmp(json_string_value(architecture), reader->family->architecture) == 0) ||
        strcmp(reader->family->model_type, "gemma3_text") == 0; /* text models split off the larger ones */
    if (!same)
        return config_refuse(&reader->keys, "architectures",
                             "%s contradicts model_type \"%s\", whose numbers are known "
                             "for %s",
                             json_input_show(architecture, shown, sizeof shown), reader->family->model_type,
                             reader->family->architecture);
    reader->shape->family = reader->family->model_type;
    return STATUS_OK;
}

/* Gemma 3's published configs leave out what equals the class's defaults (configuration_gemma3.py, Gemma3TextConfig).
 */
static void fill_in_gemma3(json_t *text)
{
    static const struct {
        const char *key;
        json_int_t value;
    } defaults[] = {{"vocab_size", 262208},
                    {"num_attention_heads", 8},
                    {"num_key_value_heads", 4},
                    {"head_dim", 256},
                    {"max_position_embeddings", 131072}};
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        if (!json_object_get(text, defaults[i].key))
            json_object_set_new(text, defaults[i].key, json_integer(defaults[i].value));
}

/* BloomConfig (configuration_bloom.py) writes hidden_size and n_head, and reads n_embed and num_attention_heads too. */
static void rename_bloom(json_t *root)
{
    static const char *const names[][2] = {{"hidden_size", "n_embed"}, {"n_head", "num_attention_heads"}};
    for (size_t i = 0; i < 2; i++)
        if (!json_object_get(root, names[i][1]) && json_object_get(root, names[i][0]))
            json_object_set(root, names[i][1], json_object_get(root, names[i][0]));
}

static enum status enter_text_config(struct reader *reader)
{
    if (strcmp(reader->family->model_type, "bloom") == 0)
        rename_bloom(reader->root);
    if (!(reader->family->traits & IN_TEXT_CONFIG))
        return STATUS_OK;
    json_t *text = json_object_get(reader->root, "text_config");
    if (!json_is_object(text))
        return config_refuse(&reader->keys, "text_config", "is missing; it must hold the text model's keys");
    shape_ignore(reader, "text_config");
    if (strcmp(reader->family->model_type, "gemma3") == 0)
        fill_in_gemma3(text);
    reader->keys.object = text;
    reader->keys.within = "text_config.";
    return STATUS_OK;
}

static enum status read_dtype(struct reader *reader)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"float32", DTYPE_F32}, {"float16", DTYPE_F16}, {"bfloat16", DTYPE_BF16}};
    const json_t *objects[] = {reader->keys.object, reader->root};
    reader->shape->torch_dtype = DTYPE_BF16;
    for (size_t o = 0; o < 2; o++)
        for (int k = 0; k < 2; k++) {
            const char *key = k ? "torch_dtype" : "dtype"; /* newer files say dtype */
            const json_t *value = json_object_get(objects[o], key);
            if (!value || json_is_null(value))
                continue;
            for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
                if (json_is_string(value) && strcmp(json_string_value(value), names[i].name) == 0) {
                    reader->shape->torch_dtype = names[i].dtype;
                    reader->shape->dtype_given = true;
                    return STATUS_OK;
                }
            char shown[64];
            return config_refuse(&reader->keys, key,
                                 "%s is not understood; it must be \"float32\", \"float16\" or \"bfloat16\"",
                                 json_input_show(value, shown, sizeof shown));
        }
    return STATUS_OK;
}

/* How the files are quantized: gpt-oss keeps its experts in mxfp4 (its model card), DeepSeek-V3 its matrices in fp8
   with a f32 scale per block of 128 x 128 (its README_WEIGHTS). Others are known by name only: the user then says
   --dtype. */
static enum status read_quantization(struct reader *reader)
{
    shape_ignore(reader, "quantization_config");
    const json_t *object = json_object_get(reader->root, "quantization_config");
    if (!json_is_object(object))
        return STATUS_OK;
    const json_t *method = json_object_get(object, "quant_method"),
                 *block = json_object_get(object, "weight_block_size");
    if (!json_is_string(method))
        return config_refuse(&reader->keys, "quantization_config", "has no quant_method");
    json_input_printable(json_string_value(method), reader->shape->quantization, sizeof reader->shape->quantization);
    bool blocks = json_array_size(block) == 2 && json_integer_value(json_array_get(block, 0)) == 128 &&
                  json_integer_value(json_array_get(block, 1)) == 128;
    reader->shape->published = PUBLISHED_OTHER;
    if (strcmp(json_string_value(method), "mxfp4") == 0)
        reader->shape->published = PUBLISHED_MXFP4_EXPERTS;
    else if (strcmp(json_string_value(method), "fp8") == 0 && blocks)
        reader->shape->published = PUBLISHED_FP8_BLOCKS;
    return STATUS_OK;
}

static enum status read_heads(struct reader *reader)
{
    const struct names *names = reader->family->names;
    struct block *block = &reader->block;
    struct shape *shape = reader->shape;
    if (!names->heads)
        return STATUS_OK;
    if (shape_count(reader, names->heads, SHAPE_MAX_HEADS, &block->query_heads) != STATUS_OK)
        return reader->keys.error->status;
    block->kv_heads = block->query_heads;
    bool is_null = names->kv_heads && json_is_null(json_object_get(reader->keys.object, names->kv_heads));
    bool given = names->kv_heads && shape_key(reader, names->kv_heads);
    if (names->kv_heads && !is_null && (given || !(reader->family->traits & KV_AS_Q)) &&
        shape_count(reader, names->kv_heads, SHAPE_MAX_HEADS, &block->kv_heads) != STATUS_OK)
        return reader->keys.error->status;
    if (block->query_heads % block->kv_heads != 0)
        return config_refuse(&reader->keys, names->heads, "%lld is not divisible by %s %lld",
                             (long long)block->query_heads, names->kv_heads, (long long)block->kv_heads);
    bool has_dim = names->head_dim && shape_key(reader, names->head_dim);
    if (has_dim) {
        if (shape_count(reader, names->head_dim, SHAPE_MAX_HEADS, &block->k_dim) != STATUS_OK)
            return reader->keys.error->status;
    } else if (shape->hidden_size % block->query_heads != 0) {
        return config_refuse(&reader->keys, names->hidden,
                             "%lld is not divisible by %s %lld, and head_dim is not given",
                             (long long)shape->hidden_size, names->heads, (long long)block->query_heads);
    } else {
        block->k_dim = shape->hidden_size / block->query_heads;
    }
    block->v_dim = block->k_dim;
    return STATUS_OK;
}

static enum status read_counts(struct reader *reader)
{
    const struct names *names = reader->family->names;
    struct shape *shape = reader->shape;
    if (shape_count(reader, "vocab_size", SHAPE_MAX_WIDTH, &shape->vocab_size) != STATUS_OK ||
        shape_count(reader, names->hidden, SHAPE_MAX_HIDDEN, &shape->hidden_size) != STATUS_OK ||
        shape_count(reader, names->layers, SHAPE_MAX_LAYERS / 2, &shape->layer_count) != STATUS_OK)
        return reader->keys.error->status;
    /* The MLP of models older than the key is four times as wide as the model (GPT-2, Bloom, Falcon, MPT). */
    bool four = names->intermediate == NULL || names == &GPT2_NAMES || names == &FALCON_NAMES;
    int64_t wide = names == &MAMBA_NAMES ? 0 : 4 * shape->hidden_size;
    reader->block.intermediate = wide;
    /* Only Gemma 3n's describe function reads a list; elsewhere it is refused as no number. */
    bool is_list = names->intermediate && reader->family->traits & WIDTH_LIST &&
                   json_is_array(config_key(&reader->keys, names->intermediate));
    if (names->intermediate && !is_list &&
        (four ? shape_count_or(reader, names->intermediate, SHAPE_MAX_WIDTH, wide, &reader->block.intermediate)
              : shape_count(reader, names->intermediate, SHAPE_MAX_WIDTH, &reader->block.intermediate)) != STATUS_OK)
        return reader->keys.error->status;
    if (names->positions &&
        shape_count_or(reader, names->positions, SHAPE_MAX_POSITIONS, 0, &shape->max_context) != STATUS_OK)
        return reader->keys.error->status;
    return read_heads(reader);
}

/* One head or two tables. Where the file has text_config, versions of transformers differ in which of the two objects
   they tie by: the outer key may only repeat the inner one, or the family's default. weight_tying is an older name. */
static enum status read_tied(struct reader *reader)
{
    struct config_keys outer = {.object = reader->root, .path = reader->keys.path, .error = reader->keys.error};
    bool tied, repeated, older;
    if (shape_flag(reader, "tie_word_embeddings", reader->family->traits & TIED, &tied) != STATUS_OK ||
        config_flag(&outer, "tie_word_embeddings", tied, &repeated) != STATUS_OK ||
        shape_flag(reader, "weight_tying", tied, &older) != STATUS_OK)
        return reader->keys.error->status;
    if (repeated != tied)
        return config_refuse(&outer, "tie_word_embeddings", "is %s, the text model's is %s",
                             repeated ? "true" : "false", tied ? "true" : "false");
    if (older != tied)
        return config_refuse(&reader->keys, "weight_tying", "is %s, but tie_word_embeddings is %s",
                             older ? "true" : "false", tied ? "true" : "false");
    reader->shape->tied = tied;
    return STATUS_OK;
}

static enum status read_traits(struct reader *reader)
{
    unsigned traits = reader->family->traits;
    struct block *block = &reader->block;
    bool attention_bias = false;
    block->mlp_matrices = traits & PLAIN_MLP ? 2 : 3;
    block->mlp_bias = traits & MLP_BIAS;
    block->norms = traits & ONE_NORM ? 1 : traits & FOUR_NORMS ? 4 : 2;
    block->values_per_norm = traits & NORM_BARE ? 0 : traits & NORM_BIAS ? 2 : 1;
    block->qk_norm = traits & QK_HEAD ? QK_NORM_HEAD : traits & QK_WIDTH ? QK_NORM_WIDTH : QK_NORM_NONE;
    reader->head_bias = traits & HEAD_BIAS;
    reader->shape->llamacpp_windows = traits & LLAMA_WINDOWS;
    reader->shape->sglang_pools = traits & SGLANG_POOLS;
    if (traits & (BIAS_KEY | QKV_BIAS_KEY) && shape_flag(reader, "attention_bias", false, &attention_bias) != STATUS_OK)
        return reader->keys.error->status;
    block->q_bias = block->kv_bias = (traits & QKV_BIAS) || attention_bias;
    block->o_bias = (traits & O_BIAS) || (attention_bias && traits & BIAS_KEY);
    if (traits & MLP_BIAS_KEY && shape_flag(reader, "mlp_bias", false, &block->mlp_bias) != STATUS_OK)
        return reader->keys.error->status;
    return read_tied(reader);
}

static void remember_first_heads(struct shape *shape)
{
    for (int64_t i = 0; i < shape->layer_count && shape->query_heads == 0; i++) {
        const struct layer_shape *layer = &shape->layers[i];
        shape->query_heads = layer->query_heads;
        shape->kv_heads = layer->kv_heads;
        shape->head_dim = layer->k_dim;
    }
}

static enum status read_layers(struct reader *reader)
{
    struct shape *shape = reader->shape;
    if (reader->family->describe(reader) != STATUS_OK)
        return reader->keys.error->status;
    remember_first_heads(shape);
    unsigned traits = reader->family->traits;
    bool is_opt = strcmp(shape->family, "opt") == 0; /* OPTLearnedPositionalEmbedding: two more */
    if (traits & POSITIONS && shape->max_context == 0)
        return config_refuse(&reader->keys, reader->family->names->positions,
                             "is missing; the table of positions has its size");
    shape_add_edges(reader, traits & POSITIONS ? shape->max_context + (is_opt ? 2 : 0) : 0, traits & EMBED_NORM, true);
    shape_sum(reader);
    if (reader->overflow)
        return error_set(reader->keys.error, STATUS_INPUT,
                         "%s: the model has more parameters than 64 bits count; look for a mistyped size",
                         reader->keys.path);
    return shape_refuse_rest(reader);
}

enum status shape_read(struct shape *shape, const char *path, struct error *error)
{
    struct reader *reader = calloc(1, sizeof *reader);
    *shape = (struct shape){0};
    if (!reader)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", path);
    config_name_from_path(path, shape->name, sizeof shape->name);
    enum status status = json_input_file(path, MAX_CONFIG_BYTES, &reader->root, error);
    reader->keys = (struct config_keys){.object = reader->root, .path = path, .error = error};
    reader->shape = shape;
    if (!status)
        status = find_family(reader);
    if (!status)
        status = enter_text_config(reader);
    if (!status)
        status = read_dtype(reader);
    if (!status)
        status = read_quantization(reader);
    if (!status)
        status = read_counts(reader);
    if (!status)
        status = read_traits(reader);
    if (!status)
        status = read_layers(reader);
    json_decref(reader->root);
    free(reader);
    if (status)
        shape_free(shape);
    return status;
}

enum status shape_find(struct shape *shape, const char *models_dir, const char *model, struct error *error)
{
    char path[PATH_MAX];
    bool is_published;
    *shape = (struct shape){0};
    enum status status = config_locate(path, sizeof path, models_dir, model, &is_published, error);
    if (!status)
        status = shape_read(shape, path, error);
    if (!status && config_trained_find(model))
        snprintf(shape->name, sizeof shape->name, "%s", config_trained_find(model)->name);
    return status;
}
