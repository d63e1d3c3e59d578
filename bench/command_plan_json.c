/* A plan as one JSON document. Every byte count is a whole number of bytes. */
#include "bench/command_plan.h"

#include <jansson.h>
#include <stdio.h>

static void set_int(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void set_text(json_t *object, const char *key, const char *value)
{
    json_object_set_new(object, key, value ? json_string(value) : json_null());
}

static void set_flag(json_t *object, const char *key, bool value)
{
    json_object_set_new(object, key, json_boolean(value));
}

static json_t *memory_json(const struct plan_view *view)
{
    const struct card *card = view->card;
    json_t *memory = json_object();
    set_int(memory, "bytes", view->plan->request.memory_bytes);
    set_int(memory, "usable_bytes", view->plan->stages[0].usable);
    set_text(memory, "card", card ? card->name : NULL);
    set_text(memory, "is", card ? (card->memory_reported ? "reported" : "nominal") : "budget");
    if (card) {
        set_text(memory, "source", card->memory_source);
        set_int(memory, "bandwidth_bytes_per_s", card->bandwidth);
        set_int(memory, "bf16_flop_per_s", card->flops);
        set_text(memory, "rates_source", card->rates_source);
    }
    return memory;
}

static json_t *model_json(const struct shape *shape)
{
    const struct shape_parts *parts = &shape->parts;
    const struct {
        const char *name;
        uint64_t count;
    } all[] = {{"embedding", parts->embedding},
               {"head", parts->head},
               {"attention", parts->attention},
               {"mixers", parts->mixers},
               {"mlp", parts->mlp},
               {"experts", parts->experts},
               {"routers", parts->routers},
               {"shared_experts", parts->shared_experts},
               {"norms", parts->norms},
               {"biases", parts->biases},
               {"vision", parts->vision},
               {"other", parts->other}};
    char layers[96];
    json_t *model = json_object(), *by_part = json_object();
    set_text(model, "name", shape->name);
    set_text(model, "family", shape->family);
    set_text(model, "layers", shape_layers_text(shape, layers, sizeof layers));
    set_int(model, "parameters", shape->total);
    set_int(model, "active_parameters", shape->active);
    set_int(model, "prediction_parameters", parts->prediction);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        set_int(by_part, all[i].name, all[i].count);
    json_object_set_new(model, "parameters_by_part", by_part);
    set_int(model, "max_context", (uint64_t)shape->max_context);
    set_text(model, "not_counted", shape->not_counted);
    return model;
}

static json_t *request_json(const struct plan_request *request)
{
    json_t *object = json_object();
    set_text(object, "engine", profile_of(request->engine)->name);
    set_int(object, "context", (uint64_t)request->context);
    set_int(object, "users", (uint64_t)request->users);
    set_text(object, "dtype", request->weight_type ? request->weight_type->name : "as published");
    set_text(object, "k_dtype", request->k_type->name);
    set_text(object, "v_dtype", request->v_type->name);
    set_text(object, "state_dtype", request->state_type->name);
    set_int(object, "tp", (uint64_t)request->ranks);
    set_int(object, "pp", (uint64_t)request->stages);
    set_int(object, "block_size", (uint64_t)request->block_size);
    set_int(object, "batch_tokens", (uint64_t)request->batch_tokens);
    set_int(object, "slots", (uint64_t)request->slots);
    set_int(object, "memory_parts_per_million", (uint64_t)request->memory_ppm);
    set_text(object, "logits", request->all_logits ? "all" : "last");
    return object;
}

static json_t *items_json(const struct plan *plan)
{
    json_t *items = json_array();
    for (int i = 0; i < PLAN_ITEMS; i++) {
        json_t *item = json_object();
        set_text(item, "item", plan_item_name((enum plan_item)i));
        set_int(item, "bytes", plan->stages[plan->worst].bytes[i]);
        set_text(item, "source", plan->source[i]);
        set_text(item, "sure", plan->sure[i]);
        json_array_append_new(items, item);
    }
    return items;
}

static json_t *stage_json(const struct plan_stage *stage)
{
    json_t *object = json_object();
    char key[32];
    set_int(object, "first_layer", (uint64_t)stage->first);
    set_int(object, "layers", (uint64_t)(stage->end - stage->first));
    for (int i = 0; i < PLAN_ITEMS; i++) {
        snprintf(key, sizeof key, "%s_bytes", plan_item_name((enum plan_item)i));
        set_int(object, key, stage->bytes[i]);
    }
    set_int(object, "sum_bytes", stage->total);
    set_flag(object, "fits", stage->fits);
    set_int(object, "left_bytes", stage->left);
    set_int(object, "lacking_bytes", stage->lacking);
    set_text(object, "limit", plan_limit_name(stage->limit));
    set_int(object, "cells_per_sequence", stage->layout.cells_per_sequence);
    set_int(object, "window_cells", stage->layout.window_cells);
    if (stage->layout.blocks_per_sequence) {
        set_int(object, "pool_blocks", stage->pool_blocks);
        set_int(object, "block_tokens", stage->layout.block_tokens);
        set_int(object, "block_bytes", stage->layout.block_bytes);
        set_int(object, "blocks_per_sequence", stage->layout.blocks_per_sequence);
        set_int(object, "groups", (uint64_t)stage->layout.groups);
        json_object_set_new(object, "concurrency",
                            json_real((double)stage->pool_blocks / (double)stage->layout.blocks_per_sequence));
    }
    return object;
}

static json_t *ways_list(const struct way *ways, int count, const char *bytes_key)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_t *way = json_object();
        set_text(way, "dtype", ways[i].type->name);
        set_int(way, bytes_key, ways[i].bytes);
        set_flag(way, "fits", ways[i].fits);
        set_int(way, "most_users", (uint64_t)ways[i].most_users);
        set_int(way, "longest_context", (uint64_t)ways[i].longest_context);
        json_array_append_new(list, way);
    }
    return list;
}

static json_t *ways_json(const struct plan_view *view)
{
    const struct plan *plan = view->plan;
    json_t *ways = json_object(), *shorter = json_object(), *fewer = json_object();
    set_int(shorter, "context", (uint64_t)plan->longest_context);
    set_int(shorter, "kv_bytes", view->ways.shorter_kv_bytes);
    set_int(fewer, "users", (uint64_t)plan->most_users);
    set_int(fewer, "kv_bytes", view->ways.fewer_kv_bytes);
    json_object_set_new(ways, "shorter_context", shorter);
    json_object_set_new(ways, "fewer_users", fewer);
    json_object_set_new(ways, "smaller_cache", ways_list(view->ways.caches, view->ways.cache_count, "kv_bytes"));
    json_object_set_new(ways, "smaller_weights",
                        ways_list(view->ways.weights, view->ways.weight_count, "weights_bytes"));
    return ways;
}

void plan_print_json(const struct plan_view *view)
{
    const struct plan *plan = view->plan;
    const struct plan_stage *worst = &plan->stages[plan->worst];
    json_t *document = json_object(), *stages = json_array();
    json_object_set_new(document, "model", model_json(view->shape));
    json_object_set_new(document, "memory", memory_json(view));
    json_object_set_new(document, "request", request_json(&plan->request));
    set_int(document, "bytes_per_token", plan->token_bytes);
    set_int(document, "bytes_per_token_long", plan->token_bytes_long);
    set_int(document, "bytes_per_token_without_sharing", plan->token_bytes_mha);
    set_int(document, "state_bytes_per_sequence", plan->state_bytes);
    json_object_set_new(document, "items", items_json(plan));
    set_int(document, "sum_bytes", worst->total);
    set_flag(document, "fits", plan->fits);
    set_text(document, "limit", plan_limit_name(plan->limit));
    set_int(document, "left_bytes", worst->left);
    set_int(document, "lacking_bytes", worst->lacking);
    set_int(document, "weights_lacking_bytes", worst->weights_lacking);
    set_int(document, "most_users", (uint64_t)plan->most_users);
    set_int(document, "longest_context", (uint64_t)plan->longest_context);
    for (int64_t s = 0; s < plan->request.stages; s++)
        json_array_append_new(stages, stage_json(&plan->stages[s]));
    json_object_set_new(document, "stages", stages);
    set_text(document, "layers_divided", plan->stage_rule);
    json_object_set_new(document, "ways_out", ways_json(view));
    json_dumpf(document, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(document);
}
