/* formula: bytes of KV cache per token, from published configs alone. No device, nothing measured.

   2 * layers * KV heads * head_dim * bytes per value: K and V of every layer. Sharing KV heads among query heads
   (Ainslie et al. 2023) divides what multi-head attention would take by the group size. */
#include "bench/harness/bench.h"

#include <stdio.h>

static const struct column columns[] = {
    {"model", COLUMN_TEXT, 0, true, "A name of data/models, whose config.json is as published."},
    {"num_hidden_layers", COLUMN_INT, 0, false, "Layers, each with a K and a V of its own (config.json)."},
    {"num_attention_heads", COLUMN_INT, 0, false, "Query heads (config.json)."},
    {"num_key_value_heads", COLUMN_INT, 0, false, "Heads that K and V really have (config.json)."},
    {"head_dim", COLUMN_INT, 0, false,
     "Values per head; config.json's own where it has the key, else hidden_size / num_attention_heads."},
    {"kv_bytes_per_token", COLUMN_INT, 0, false,
     "Source formula: 2 * num_hidden_layers * num_key_value_heads * head_dim * bytes per value (--kv-dtype, bf16)."},
    {"kv_bytes_per_token_mha", COLUMN_INT, 0, false,
     "Source formula: the same if every query head had K and V of its own (multi-head attention)."},
    {"gqa_ratio", COLUMN_REAL, 2, false, "kv_bytes_per_token_mha / kv_bytes_per_token: what sharing saves."},
    {"kv_kib_per_token", COLUMN_REAL, 2, false, "kv_bytes_per_token / 1024."},
};
static const struct table tables[] = {{"", false, columns, sizeof columns / sizeof *columns}};

static enum status write_row(struct bench *bench, struct results *results, const struct config *config,
                             struct error *error)
{
    uint64_t bytes = formula_kv_bytes_per_token(config, bench->kv_dtype);
    uint64_t bytes_mha = formula_kv_bytes_per_token_mha(config, bench->kv_dtype);
    results_set_text(results, "model", config->name);
    results_set_int(results, "num_hidden_layers", config->num_hidden_layers);
    results_set_int(results, "num_attention_heads", config->num_attention_heads);
    results_set_int(results, "num_key_value_heads", config->num_key_value_heads);
    results_set_int(results, "head_dim", config->head_dim);
    results_set_int(results, "kv_bytes_per_token", (int64_t)bytes);
    results_set_int(results, "kv_bytes_per_token_mha", (int64_t)bytes_mha);
    results_set_real(results, "gqa_ratio", (double)bytes_mha / (double)bytes);
    results_set_real(results, "kv_kib_per_token", (double)bytes / 1024);
    return results_end_row(results, error);
}

static enum status write_all(struct bench *bench, struct results *results, struct error *error)
{
    char models_dir[4096], path[8192], **names;
    size_t count;
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    if (config_names(models_dir, &names, &count, error) != STATUS_OK)
        return error->status;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        struct config config;
        snprintf(path, sizeof path, "%s/%s.json", models_dir, names[i]);
        status = config_read(&config, path, error);
        if (status == STATUS_OK)
            status = write_row(bench, results, &config, error);
    }
    config_names_free(names, count);
    return status;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    enum status status =
        bench->options.model ? write_row(bench, results, &bench->config, error) : write_all(bench, results, error);
    return status == STATUS_OK ? results_close(results, true, error) : status;
}

const struct experiment formula_experiment = {
    .name = "formula",
    .summary = "bytes of KV cache per token of every published model, from its config",
    .needs_device = false,
    .default_model = "",
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
