/* formula: bytes of KV cache per token, from published configs alone. No device, nothing measured.

   2 * layers * KV heads * head_dim * bytes per value: K and V of every layer. Sharing KV heads among query heads
   (Ainslie et al. 2023) divides what multi-head attention would take by the group size. Layers with windows, latent
   vectors, states or shared caches count by their own rules (engine/shape.h). */
#include "bench/harness/bench.h"
#include "engine/plan/shape.h"

#include <stdio.h>

static const struct column columns[] = {
    {"model", COLUMN_TEXT, 0, true, "A name of data/models, whose config.json is as published."},
    {"num_hidden_layers", COLUMN_INT, 0, false, "Layers (config.json); `layers` says what each keeps."},
    {"num_attention_heads", COLUMN_INT, 0, false, "Query heads (config.json); empty where no layer attends."},
    {"num_key_value_heads", COLUMN_INT, 0, false,
     "Heads that K and V really have (config.json); empty where a latent vector or a state stands for them."},
    {"head_dim", COLUMN_INT, 0, false,
     "Values per head; config.json's own where it has the key, else hidden_size / num_attention_heads."},
    {"kv_bytes_per_token", COLUMN_INT, 0, false,
     "Source formula: 2 * num_hidden_layers * num_key_value_heads * head_dim * bytes per value (--kv-dtype, bf16)."},
    {"kv_bytes_per_token_mha", COLUMN_INT, 0, false,
     "Source formula: the same if every query head had K and V of its own (multi-head attention)."},
    {"gqa_ratio", COLUMN_REAL, 2, false, "kv_bytes_per_token_mha / kv_bytes_per_token: what sharing saves."},
    {"kv_kib_per_token", COLUMN_REAL, 2, false, "kv_bytes_per_token / 1024."},
    {"kv_bytes_per_token_long", COLUMN_INT, 0, false,
     "Source formula: what a token adds once every window is full: full and latent layers only."},
    {"layers", COLUMN_TEXT, 0, false, "Layers by what they keep: full, window, chunk, latent, state, shared."},
    {"runs", COLUMN_TEXT, 0, false, "yes: kvlab's forward pass runs the model; no: it can only be planned."},
};
static const struct table tables[] = {{"", false, columns, sizeof columns / sizeof *columns}};

static enum status write_row(struct bench *bench, struct results *results, const struct shape *shape, bool runs,
                             struct error *error)
{
    const struct plan_type *type;
    char layers[96];
    bool overflow = false, latent = shape_layers_of_kind(shape, LAYER_LATENT) > 0;
    if (plan_type_find(&type, dtype_name(bench->kv_dtype), "kv-dtype", true, error) != STATUS_OK)
        return error->status;
    uint64_t bytes = shape_token_bytes(shape, type, type, &overflow);
    uint64_t bytes_mha = shape_token_bytes_mha(shape, type, type, &overflow);
    if (overflow)
        return error_set(error, STATUS_INPUT, "%s: more bytes per token than 64 bits hold", shape->name);
    shape_layers_text(shape, layers, sizeof layers);
    results_set_text(results, "model", shape->name);
    results_set_int(results, "num_hidden_layers", shape->layer_count);
    if (shape->query_heads > 0)
        results_set_int(results, "num_attention_heads", shape->query_heads);
    if (shape->query_heads > 0 && !latent) {
        results_set_int(results, "num_key_value_heads", shape->kv_heads);
        results_set_int(results, "head_dim", shape->head_dim);
    }
    results_set_int(results, "kv_bytes_per_token", (int64_t)bytes);
    results_set_int(results, "kv_bytes_per_token_mha", (int64_t)bytes_mha);
    if (bytes > 0)
        results_set_real(results, "gqa_ratio", (double)bytes_mha / (double)bytes);
    results_set_real(results, "kv_kib_per_token", (double)bytes / 1024);
    results_set_int(results, "kv_bytes_per_token_long", (int64_t)shape_token_bytes_long(shape, type, type, &overflow));
    results_set_text(results, "layers", layers);
    results_set_text(results, "runs", runs ? "yes" : "no");
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
        struct shape shape;
        struct config config;
        struct error refusal; /* of the forward pass: most families can only be planned */
        snprintf(path, sizeof path, "%s/%s.json", models_dir, names[i]);
        status = shape_read(&shape, path, error);
        if (status == STATUS_OK)
            status = write_row(bench, results, &shape, config_read(&config, path, &refusal) == STATUS_OK, error);
        shape_free(&shape);
    }
    config_names_free(names, count);
    return status;
}

/* The one model that --model named, which the harness has read for the forward pass. */
static enum status write_one(struct bench *bench, struct results *results, struct error *error)
{
    char models_dir[4096];
    struct shape shape;
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    enum status status = shape_find(&shape, models_dir, bench->options.model, error);
    if (status == STATUS_OK)
        status = write_row(bench, results, &shape, true, error);
    shape_free(&shape);
    return status;
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    if (results_open(&results, bench, &tables[0], error) != STATUS_OK)
        return error->status;
    enum status status = bench->options.model ? write_one(bench, results, error) : write_all(bench, results, error);
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
