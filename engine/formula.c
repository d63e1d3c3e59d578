#include "engine/formula.h"

static uint64_t kv_bytes_per_token(const struct config *config, int64_t heads, enum dtype dtype)
{
    uint64_t row = (uint64_t)config->head_dim * dtype_size(dtype) + dtype_scale_size(dtype);
    return 2 * (uint64_t)config->num_hidden_layers * (uint64_t)heads * row;
}

uint64_t formula_kv_bytes_per_token(const struct config *config, enum dtype dtype)
{
    return kv_bytes_per_token(config, config->num_key_value_heads, dtype);
}

uint64_t formula_kv_bytes_per_token_mha(const struct config *config, enum dtype dtype)
{
    return kv_bytes_per_token(config, config->num_attention_heads, dtype);
}

uint64_t formula_kv_bytes(const struct config *config, enum dtype dtype, int64_t tokens)
{
    return formula_kv_bytes_per_token(config, dtype) * (uint64_t)tokens;
}

uint64_t formula_logits_bytes(const struct config *config, enum dtype dtype, int64_t positions)
{
    return (uint64_t)positions * (uint64_t)config->vocab_size * dtype_size(dtype);
}

/* Per layer, with q = heads * head_dim and kv = KV heads * head_dim:
     attention  hidden * q + 2 * hidden * kv + q * hidden     (q, k, v, o), biases q + 2 * kv and hidden
     MLP        3 * hidden * intermediate                     (gate, up, down), biases 2 * intermediate + hidden
     norms      2 * hidden
   and once: embeddings vocab * hidden, the head the same again where it is not tied, the last norm hidden. */
uint64_t formula_parameters(const struct config *config)
{
    uint64_t hidden = (uint64_t)config->hidden_size, intermediate = (uint64_t)config->intermediate_size;
    uint64_t q = (uint64_t)(config->num_attention_heads * config->head_dim);
    uint64_t kv = (uint64_t)(config->num_key_value_heads * config->head_dim);
    uint64_t layer = 2 * hidden * (q + kv) + 3 * hidden * intermediate + 2 * hidden;
    if (config->qkv_bias)
        layer += q + 2 * kv;
    if (config->o_bias)
        layer += hidden;
    if (config->mlp_bias)
        layer += 2 * intermediate + hidden;
    uint64_t table = (uint64_t)config->vocab_size * hidden;
    return (uint64_t)config->num_hidden_layers * layer + table * (config->tie_word_embeddings ? 1 : 2) + hidden;
}

uint64_t formula_weight_bytes(const struct config *config, enum dtype dtype)
{
    return formula_parameters(config) * dtype_size(dtype);
}

uint64_t formula_weight_read_bytes(const struct config *config, enum dtype dtype, int64_t rows)
{
    if (config->tie_word_embeddings)
        return formula_weight_bytes(config, dtype);
    uint64_t hidden = (uint64_t)config->hidden_size, table = (uint64_t)config->vocab_size * hidden;
    return (formula_parameters(config) - table + (uint64_t)rows * hidden) * dtype_size(dtype);
}

uint64_t formula_positions_cached(int64_t prompt, int64_t new_tokens)
{
    return new_tokens > 0 ? (uint64_t)(prompt + new_tokens - 1) : 0;
}

uint64_t formula_positions_uncached(int64_t prompt, int64_t new_tokens)
{
    if (new_tokens <= 0)
        return 0;
    uint64_t n = (uint64_t)new_tokens;
    return n * (uint64_t)prompt + n * (n - 1) / 2;
}
