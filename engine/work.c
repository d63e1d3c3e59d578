#include "engine/work.h"

#include "kernels/work.h"

uint64_t work_matrix_parameters(const struct config *config)
{
    uint64_t hidden = (uint64_t)config->hidden_size;
    uint64_t q = (uint64_t)(config->num_attention_heads * config->head_dim);
    uint64_t kv = (uint64_t)(config->num_key_value_heads * config->head_dim);
    uint64_t layer = hidden * (2 * q + 2 * kv) + 3 * hidden * (uint64_t)config->intermediate_size;
    return (uint64_t)config->num_hidden_layers * layer;
}

uint64_t work_flops(const struct config *config, const struct pass_shape *pass)
{
    uint64_t rows = (uint64_t)(pass->sequences * pass->count), head_rows = (uint64_t)(pass->sequences * pass->logits);
    uint64_t table = (uint64_t)config->vocab_size * (uint64_t)config->hidden_size, seen = 0;
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++)
        seen += positions_seen(pass->start, pass->count, config_window(config, layer));
    uint64_t attention =
        4 * (uint64_t)(config->num_attention_heads * config->head_dim) * seen * (uint64_t)pass->sequences;
    return 2 * work_matrix_parameters(config) * rows + 2 * table * head_rows + attention;
}

uint64_t work_kv_read_bytes(const struct config *config, enum dtype kv_dtype, const struct pass_shape *pass)
{
    uint64_t layers = (uint64_t)config->num_hidden_layers, positions = 0;
    uint64_t per_layer = formula_kv_bytes_per_token(config, kv_dtype) / layers;
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++)
        positions += positions_read(pass->start, pass->count, config_window(config, layer));
    return per_layer * positions * (uint64_t)pass->sequences;
}

uint64_t work_kv_written_bytes(const struct config *config, enum dtype kv_dtype, const struct pass_shape *pass)
{
    return formula_kv_bytes(config, kv_dtype, pass->sequences * pass->count);
}

uint64_t work_bytes(const struct config *config, enum dtype dtype, enum dtype kv_dtype, const struct pass_shape *pass)
{
    return formula_weight_read_bytes(config, dtype, pass->sequences * pass->count) +
           work_kv_read_bytes(config, kv_dtype, pass) + work_kv_written_bytes(config, kv_dtype, pass);
}
