/* vLLM's paged pool, with layers of one kind or of several (vllm/v1/core/kv_cache_utils.py, kv_cache_interface.py).

   A page is a block of one layer: block_size tokens of its K and V, or one sequence's whole state. All pages of a pool
   must have one size: layers with smaller pages get longer blocks (unify_kv_cache_spec_page_size), and beside states
   the attention's block is raised until its page is as large as a state, to which the state is padded (platforms'
   config: "Setting attention block size to N tokens to ensure that attention page size is >= mamba page size"). Layers
   of the same kind form groups of equal length: the fewest layers of any kind, or the most where that is less than 1.5
   times as many. A block of the pool holds one page for each layer of a group (get_num_blocks: available // page //
   layers of a group). One block is never handed out (block_pool.py, null_block). */
#include "engine/plan/plan_count.h"
#include "engine/plan/profile.h"

enum { MAX_BUCKETS = 16 };

/* Layers that are alike. */
struct bucket {
    enum layer_kind kind;
    int64_t window, layers;
    uint64_t token_bytes, state_bytes, block_tokens, page_bytes;
};

struct buckets {
    struct bucket all[MAX_BUCKETS];
    int count;
    bool too_many;
};

static void add_layer(struct buckets *buckets, enum layer_kind kind, int64_t window, uint64_t token, uint64_t state)
{
    for (int i = 0; i < buckets->count; i++) {
        struct bucket *bucket = &buckets->all[i];
        if (bucket->kind == kind && bucket->window == window && bucket->token_bytes == token &&
            bucket->state_bytes == state) {
            bucket->layers++;
            return;
        }
    }
    if (buckets->count == MAX_BUCKETS) {
        buckets->too_many = true;
        return;
    }
    buckets->all[buckets->count++] =
        (struct bucket){.kind = kind, .window = window, .layers = 1, .token_bytes = token, .state_bytes = state};
}

static struct buckets sort_layers(const struct kv_demand *demand, bool *overflow)
{
    struct buckets buckets = {0};
    for (int64_t i = demand->first; i < demand->end; i++) {
        const struct layer_shape *layer = &demand->shape->layers[i];
        uint64_t token = layer_token_bytes(layer, demand->k_type, demand->v_type, demand->ranks, false, overflow);
        uint64_t state =
            layer_state_bytes(layer, demand->conv_type, demand->state_type, demand->ranks, false, overflow);
        if (token > 0 || state > 0)
            add_layer(&buckets, layer->kind, layer->window, token, state);
    }
    return buckets;
}

/* Gives every bucket its block and the common page. False: no common page exists. */
static bool unify_pages(const struct kv_demand *demand, struct buckets *buckets, uint64_t *page, bool *overflow)
{
    uint64_t block = (uint64_t)demand->block_size, largest_token = 0, state = 0;
    for (int i = 0; i < buckets->count; i++) {
        const struct bucket *bucket = &buckets->all[i];
        largest_token = bucket->token_bytes > largest_token ? bucket->token_bytes : largest_token;
        state = bucket->state_bytes > state ? bucket->state_bytes : state;
    }
    if (state && largest_token) { /* blocks in steps of 16 tokens until a page holds a state */
        uint64_t raised = 16 * count_units(state, count_mul(overflow, 16, largest_token));
        block = raised > block ? raised : block;
    }
    *page = largest_token ? count_mul(overflow, block, largest_token) : state;
    for (int i = 0; i < buckets->count; i++) {
        struct bucket *bucket = &buckets->all[i];
        bucket->page_bytes = *page;
        if (bucket->kind == LAYER_STATE)
            continue;
        uint64_t own = count_mul(overflow, block, bucket->token_bytes);
        if (own == 0 || *page % own != 0)
            return false;
        bucket->block_tokens = block * (*page / own);
    }
    return true;
}

/* SlidingWindowSpec, ChunkedLocalAttentionSpec, FullAttentionSpec and MambaSpec: max_memory_usage_bytes in blocks. */
static uint64_t blocks_of(const struct kv_demand *demand, const struct bucket *bucket, int64_t context)
{
    int64_t tokens = context, batch = demand->batch_tokens;
    if (bucket->kind == LAYER_STATE)
        return 1;
    if (bucket->kind == LAYER_WINDOW && bucket->window - 1 + batch < tokens)
        tokens = bucket->window - 1 + batch;
    if (bucket->kind == LAYER_CHUNK && bucket->window + batch < tokens)
        tokens = bucket->window + batch;
    return count_units((uint64_t)tokens, bucket->block_tokens) + (bucket->kind == LAYER_WINDOW ? 1 : 0);
}

/* Layers that all keep every token need no common page: a block holds each one's (UniformTypeKVCacheSpecs). */
static bool all_full(const struct buckets *buckets)
{
    for (int i = 0; i < buckets->count; i++)
        if (buckets->all[i].kind != LAYER_FULL && buckets->all[i].kind != LAYER_LATENT)
            return false;
    return true;
}

static int64_t group_length(const struct buckets *buckets)
{
    int64_t fewest = INT64_MAX, most = 0;
    for (int i = 0; i < buckets->count; i++) {
        fewest = buckets->all[i].layers < fewest ? buckets->all[i].layers : fewest;
        most = buckets->all[i].layers > most ? buckets->all[i].layers : most;
    }
    return 2 * most < 3 * fewest ? most : fewest;
}

static uint64_t uniform(const struct kv_demand *demand, const struct buckets *buckets, int64_t context,
                        struct kv_layout *layout, bool *overflow)
{
    uint64_t tokens = 0;
    for (int i = 0; i < buckets->count; i++)
        tokens = count_add(overflow, tokens,
                           count_mul(overflow, (uint64_t)buckets->all[i].layers, buckets->all[i].token_bytes));
    layout->groups = 1;
    layout->block_tokens = (uint64_t)demand->block_size;
    layout->block_bytes = count_mul(overflow, tokens, layout->block_tokens);
    return count_units((uint64_t)context, layout->block_tokens);
}

static uint64_t grouped(const struct kv_demand *demand, struct buckets *buckets, int64_t context,
                        struct kv_layout *layout, bool *overflow)
{
    uint64_t page = 0, blocks = 0;
    if (!unify_pages(demand, buckets, &page, overflow)) {
        *overflow = true; /* profile_vllm_check() has refused it before */
        return 0;
    }
    int64_t length = group_length(buckets);
    layout->block_bytes = count_mul(overflow, page, (uint64_t)length);
    for (int i = 0; i < buckets->count; i++) {
        const struct bucket *bucket = &buckets->all[i];
        uint64_t groups = count_units((uint64_t)bucket->layers, (uint64_t)length);
        uint64_t one = blocks_of(demand, bucket, context);
        layout->groups += (int64_t)groups;
        blocks = count_add(overflow, blocks, count_mul(overflow, groups, one));
        if (bucket->kind != LAYER_STATE && (layout->block_tokens == 0 || bucket->block_tokens < layout->block_tokens))
            layout->block_tokens = bucket->block_tokens;
        if (bucket->kind == LAYER_WINDOW || bucket->kind == LAYER_CHUNK)
            layout->window_cells = count_mul(overflow, one, bucket->block_tokens);
    }
    return blocks;
}

uint64_t profile_vllm_bytes(const struct kv_demand *demand, int64_t context, int64_t users, struct kv_layout *layout,
                            bool *overflow)
{
    struct buckets buckets = sort_layers(demand, overflow);
    if (buckets.count == 0)
        return 0;
    uint64_t blocks = all_full(&buckets) ? uniform(demand, &buckets, context, layout, overflow)
                                         : grouped(demand, &buckets, context, layout, overflow);
    layout->blocks_per_sequence = blocks;
    layout->cells_per_sequence =
        layout->block_tokens ? count_pad(overflow, (uint64_t)context, layout->block_tokens) : 0;
    uint64_t all = count_add(overflow, count_mul(overflow, blocks, (uint64_t)users), 1);
    return count_mul(overflow, all, layout->block_bytes);
}

enum status profile_vllm_check(const struct kv_demand *demand, struct error *error)
{
    bool overflow = false;
    uint64_t page;
    struct buckets buckets = sort_layers(demand, &overflow);
    if (buckets.too_many)
        return error_set(error, STATUS_INPUT, "%s: more than %d kinds of layers, which the vllm profile does not plan",
                         demand->shape->name, MAX_BUCKETS);
    if (buckets.count > 0 && !all_full(&buckets) && !unify_pages(demand, &buckets, &page, &overflow) && !overflow)
        return error_set(error, STATUS_INPUT,
                         "%s: its layers' pages have no common size, which vLLM asks for; plan with --engine exact",
                         demand->shape->name);
    return STATUS_OK;
}
