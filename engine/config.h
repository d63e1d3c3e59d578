/* A model's shape, read from a Hugging Face config.json (Qwen2, Llama and Mistral families). */
#ifndef KVLAB_ENGINE_CONFIG_H
#define KVLAB_ENGINE_CONFIG_H

#include "kernels/dtype.h"
#include "kernels/errors.h"

#include <stdbool.h>
#include <stdint.h>

enum config_family { FAMILY_LLAMA, FAMILY_QWEN2, FAMILY_MISTRAL };

/* RoPE scaling of type "llama3": long wavelengths are slowed down by `factor` (Llama 3.1; transformers'
   modeling_rope_utils documents the keys). */
struct rope_llama3 {
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
};

/* Field names are the keys of config.json. Every count is positive and small enough that the products taken in
   engine/formula.h fit 64 bits; int64_t from the start so that none of them overflows on the way. */
struct config {
    char name[64]; /* "qwen2.5-0.5b", or the folder's name */
    enum config_family family;
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
    int64_t num_attention_heads, num_key_value_heads;
    int64_t head_dim; /* as given; hidden_size / num_attention_heads where the file has none */
    int64_t max_position_embeddings;
    double rms_norm_eps, rope_theta;
    bool has_rope_llama3;
    struct rope_llama3 rope_llama3;
    bool tie_word_embeddings;
    bool qkv_bias;             /* Qwen2: true */
    bool o_bias;               /* Llama with attention_bias: q, k, v and o have one */
    bool mlp_bias;             /* Llama's mlp_bias */
    int64_t sliding_window;    /* tokens a windowed layer sees, 0 where no layer has one */
    int64_t max_window_layers; /* layers from this one on are windowed (Qwen2); 0 where all are (Mistral) */
    enum dtype torch_dtype;    /* type the weights were published in; bf16 where the file does not say */
};

/* Reads one file. Status 2 with the path and the offending key: malformed JSON, a key that is missing, negative, zero,
   fractional or too large, heads that do not divide, an attention that is not understood. */
enum status config_read(struct config *config, const char *path, struct error *error);

/* Finds a model: a name of data/models ("qwen2.5-0.5b"), one of config_trained ("tiny"), a folder with a config.json,
   or a .json file. `models_dir` is the folder of the published configs. Fills config->name; `weights_dir` (size bytes)
   gets the folder if it also holds safetensors, else "". Unknown names: status 2 with the names that exist. */
enum status config_find(struct config *config, const char *models_dir, const char *model, char *weights_dir,
                        size_t size, struct error *error);

/* The small models that ship with weights, which have learned something: folders beside that of the published configs
   (data/tiny). A NULL name ends the list. */
struct config_trained_model {
    const char *name, *folder; /* "tiny", "tiny/target" */
};
extern const struct config_trained_model config_trained[];
const struct config_trained_model *config_trained_find(const char *model); /* whatever its case; NULL: none of them */

/* The folder of one of them. Status 2 where its config or its weights are not there, with the way to get them. */
enum status config_trained_folder(char *path, size_t size, const char *models_dir,
                                  const struct config_trained_model *trained, struct error *error);

/* The path of a model's config.json, for any reader of it; `is_published`: it is one of data/models. */
enum status config_locate(char *path, size_t size, const char *models_dir, const char *model, bool *is_published,
                          struct error *error);

/* Names (without .json) in data/models, sorted. Free with config_names_free(). */
enum status config_names(const char *models_dir, char ***names, size_t *count, struct error *error);
void config_names_free(char **names, size_t count);

/* Where data/ lies: $KVLAB_DATA, else beside the binary's folder (build/../data), else the folder it was built from. */
const char *config_data_dir(void);

/* Window of a layer in tokens; 0: it sees everything. */
int64_t config_window(const struct config *config, int64_t layer);

/* inverse_frequency[head_dim / 2] of RoPE, llama3 scaling included, computed as the reference does: in f32 where it
   does, so that angles agree (Su et al. 2021). */
void config_inverse_frequency(const struct config *config, float *inverse_frequency);

#endif
