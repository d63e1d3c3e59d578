/* vLLM's pool of blocks by the planner's profile (engine/plan/profile_vllm.c), for a way of computing the cache. Before
   layers were put into groups, a block was block_size tokens of all layers, whatever their windows. */
#include "engine/claims/readlog_scan.h"

#include "engine/plan/plan_count.h"
#include "engine/plan/profile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool alike(const struct shape *shape)
{
    for (int64_t i = 1; i < shape->layer_count; i++) {
        const struct layer_shape *a = &shape->layers[0], *b = &shape->layers[i];
        if (a->kind != b->kind || a->window != b->window || a->kv_heads != b->kv_heads || a->k_dim != b->k_dim ||
            a->v_dim != b->v_dim)
            return false;
    }
    return true;
}

/* With the mistake of query heads made, if the way has it. Free the layers. */
static bool copy_layers(struct shape *copy, const struct shape *shape, bool query_heads)
{
    *copy = *shape;
    copy->layers = calloc((size_t)shape->layer_count + 1, sizeof *copy->layers);
    for (int64_t i = 0; copy->layers && i < shape->layer_count; i++) {
        copy->layers[i] = shape->layers[i];
        if (query_heads && copy->layers[i].kind == LAYER_LATENT)
            copy->layers[i].kind = LAYER_FULL;
        if (query_heads)
            copy->layers[i].kv_heads = copy->layers[i].query_heads;
    }
    return copy->layers != NULL;
}

/* Files in f32 are loaded in two bytes (vllm/config/model.py, _resolve_auto_dtype). */
static const struct plan_type *working_type(const struct shape *shape)
{
    const struct plan_type *type = NULL;
    struct error ignored;
    plan_type_find(&type, dtype_name(shape->torch_dtype == DTYPE_F32 ? DTYPE_BF16 : shape->torch_dtype), "dtype", true,
                   &ignored);
    return type;
}

static void by_profile(struct vllm_pool *pool, const struct kv_demand *demand, int64_t context)
{
    struct kv_layout layout = {0};
    struct error error;
    bool overflow = false;
    if (profile_check(demand, &error) != STATUS_OK) {
        snprintf(pool->problem, sizeof pool->problem, "%.*s", (int)sizeof pool->problem - 1, error.message);
        return;
    }
    profile_vllm_bytes(demand, context, 1, &layout, &overflow);
    if (overflow || !layout.block_bytes || layout.groups < 1 || !layout.blocks_per_sequence) {
        snprintf(pool->problem, sizeof pool->problem, "its layers keep nothing, or more than 64 bits count");
        return;
    }
    pool->block_bytes = layout.block_bytes;
    pool->block_tokens = layout.block_tokens; /* 0: states alone */
    pool->groups = (uint64_t)layout.groups;
    pool->blocks_per_sequence = layout.blocks_per_sequence;
}

static void by_all_layers(struct vllm_pool *pool, const struct kv_demand *demand, const struct kv_way *way,
                          int64_t context)
{
    const struct shape *shape = demand->shape;
    uint64_t token = kv_way_bytes(shape, way), layers = (uint64_t)kv_way_layers(shape, PART_ALL);
    uint64_t part = (uint64_t)(demand->end - demand->first), block = (uint64_t)demand->block_size;
    if (part < (uint64_t)shape->layer_count && layers) /* a stage; layers are alike */
        token = token / layers * part;
    pool->block_bytes = kv_times(token, block);
    if (!pool->block_bytes)
        snprintf(pool->problem, sizeof pool->problem, "a row that its type cannot store, or nothing to keep");
    pool->block_tokens = block;
    pool->groups = 1;
    pool->blocks_per_sequence = count_units((uint64_t)context, block);
}

bool vllm_pool(struct vllm_pool *pool, const struct scan *scan, const struct kv_way *way, bool all_layers,
               int64_t context, int64_t batch_tokens)
{
    const struct shape *shape = scan->options->shape;
    int64_t stages = scan->facts.stages > 1 ? scan->facts.stages : 1;
    struct shape copy;
    *pool = (struct vllm_pool){0};
    if (!way->k || !way->v) {
        snprintf(pool->problem, sizeof pool->problem, "the cache's type is not known: no formula");
        return false;
    }
    if (stages > 1 && !alike(shape)) {
        snprintf(pool->problem, sizeof pool->problem,
                 "layers that differ, over pipeline stages: which of them a stage has is not said");
        return false;
    }
    if (!copy_layers(&copy, shape, way->query_heads)) {
        snprintf(pool->problem, sizeof pool->problem, "out of memory");
        return false;
    }
    struct kv_demand demand = {.shape = &copy,
                               .end = shape->layer_count / stages + (shape->layer_count % stages != 0),
                               .ranks = way->ranks,
                               .k_type = way->k,
                               .v_type = way->v,
                               .conv_type = working_type(shape),
                               .state_type = working_type(shape),
                               .engine = ENGINE_VLLM,
                               .block_size = vllm_block_size(scan),
                               .batch_tokens = batch_tokens};
    struct kv_way plain = *way;
    plain.query_heads = false; /* the copy has it */
    if (all_layers)
        by_all_layers(pool, &demand, &plain, context);
    else
        by_profile(pool, &demand, context);
    free(copy.layers);
    return !pool->problem[0];
}

uint64_t vllm_pool_tokens(const struct vllm_pool *pool, uint64_t blocks)
{
    return kv_times(blocks / pool->groups, pool->block_tokens);
}

uint64_t vllm_pool_token_bytes(const struct vllm_pool *pool)
{
    return pool->block_tokens ? kv_times(pool->block_bytes, pool->groups) / pool->block_tokens : 0;
}

static int64_t ranks_of(const struct scan *scan)
{
    int64_t ranks = scan->options->ranks ? scan->options->ranks : scan->facts.ranks;
    return ranks > 0 ? ranks : 1;
}

int64_t vllm_block_size(const struct scan *scan)
{
    return scan->facts.block_size ? scan->facts.block_size : profile_of(ENGINE_VLLM)->block_size;
}

bool vllm_way(const struct scan *scan, struct kv_way *way)
{
    const struct plan_type *type = kv_type_of(scan, scan->facts.cache_type);
    const char *named = scan->facts.cache_type;
    bool own = !scan->options->kv_type && (!named[0] || strcmp(named, "auto") == 0);
    if (own && scan->options->shape->torch_dtype == DTYPE_F32) /* loaded in two bytes a value */
        type = kv_type_of(scan, "bf16");
    *way = (struct kv_way){.k = type, .v = type, .ranks = ranks_of(scan), .part = PART_ALL};
    return type != NULL;
}

/* The layout of the cache, for numbers that no context matters to. */
bool vllm_pool_now(struct vllm_pool *pool, const struct scan *scan, const struct kv_way *way)
{
    return vllm_pool(pool, scan, way, scan->facts.all_layers, 1, profile_of(ENGINE_VLLM)->batch_tokens);
}
