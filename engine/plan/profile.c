#include "engine/plan/profile.h"

#include "engine/plan/plan_count.h"

#include <stdio.h>
#include <string.h>

/* Defaults. vLLM: block_size 16 (vllm/config/cache.py), max_num_batched_tokens 2048 and max_num_seqs 256 of small cards
   (vllm/engine/arg_utils.py; plan.c has those of larger ones). llama.cpp: n_ubatch 512
   (common/common.h). SGLang: page_size 1, chunked prefill 8192 (python/sglang/srt/server_args.py). transformers
   prefills whole prompts. */
static const struct profile profiles[ENGINES] = {
    [ENGINE_EXACT] = {"exact", 1, 0, 0, "each sequence takes its own tokens, windowed layers at most the window",
                      "f32 f16 bf16 fp8 int8 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl"},
    [ENGINE_VLLM] = {"vllm", 16, 2048, 256,
                     "whole blocks; windowed layers (window - 1 + batch tokens) / block + 1 blocks; groups of layers "
                     "share one pool",
                     "f32 f16 bf16 fp8 int8"},
    [ENGINE_LLAMACPP] =
        {"llamacpp", 256, 512, 0,
         "a stream per slot: context padded to 256; windowed layers, in families whose windows it reads, window + "
         "micro-batch, padded to 256",
         "f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl"},
    [ENGINE_LLAMACPP_UNIFIED] =
        {"llamacpp-unified", 256, 512, 0,
         "one buffer: context x slots padded to 256; windowed layers, in families whose windows "
         "it reads, window x slots + micro-batch, padded to 256",
         "f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl"},
    [ENGINE_SGLANG] = {"sglang", 1, 8192, 0,
                       "one pool of token slots in whole pages, and a page that is never handed out; windowed layers "
                       "of Llama 4, gpt-oss and MiMo-V2 a pool of 0.8 of it",
                       "f32 f16 bf16 fp8"},
    [ENGINE_TRANSFORMERS_DYNAMIC] = {"transformers-dynamic", 1, 0, 0,
                                     "grown by copying; windowed layers at most the window; latent vectors expanded to "
                                     "every head's K and V",
                                     "f32 f16 bf16"},
    [ENGINE_TRANSFORMERS_STATIC] =
        {"transformers-static", 1, 0, 0,
         "all of the context at once; windowed layers the window; latent vectors expanded to "
         "every head's K and V",
         "f32 f16 bf16"},
};

const char *const engine_choices[] = {
    "exact", "vllm", "llamacpp", "llamacpp-unified", "sglang", "transformers-dynamic", "transformers-static", NULL};

const struct profile *profile_of(enum engine engine)
{
    return &profiles[engine];
}

/* vLLM: gpu_memory_utilization 0.9 (vllm/config/cache.py). SGLang: mem_fraction_static by the number of ranks, as of
   0.4 (server_args.py; later versions work it out from the card). */
int64_t profile_memory_ppm(enum engine engine, int64_t ranks)
{
    if (engine == ENGINE_VLLM)
        return 900000;
    if (engine == ENGINE_SGLANG)
        return ranks >= 16 ? 790000 : ranks >= 8 ? 810000 : ranks >= 4 ? 850000 : ranks >= 2 ? 870000 : 880000;
    return PROFILE_WHOLE;
}

static bool can_store(const struct profile *profile, const struct plan_type *type)
{
    size_t length = strlen(type->name);
    for (const char *at = profile->cache_types; (at = strstr(at, type->name)); at += length)
        if ((at == profile->cache_types || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

/* llama.cpp refuses a cache type whose block does not divide a head (src/llama-context.cpp: "K cache type ... with
   block size ... does not divide n_embd_head_k"); half a block would be no number of bytes anywhere. */
static enum status check_width(const struct plan_type *type, int64_t width, const char *what, struct error *error)
{
    if (plan_type_divides(type, (uint64_t)width))
        return STATUS_OK;
    return error_set(
        error, STATUS_INPUT,
        "--kv-dtype: %s comes in blocks of %u values, which do not divide %s of %lld values; take f16, bf16 "
        "or fp8",
        type->name, type->block_values, what, (long long)width);
}

enum status profile_check(const struct kv_demand *demand, struct error *error)
{
    const struct profile *profile = &profiles[demand->engine];
    const struct plan_type *types[] = {demand->k_type, demand->v_type};
    for (int i = 0; i < 2; i++)
        if (!can_store(profile, types[i]))
            return error_set(error, STATUS_INPUT, "--kv-dtype: %s is no cache type of %s; it stores %s", types[i]->name,
                             profile->name, profile->cache_types);
    if (demand->k_type != demand->v_type && demand->engine != ENGINE_EXACT && demand->engine != ENGINE_LLAMACPP &&
        demand->engine != ENGINE_LLAMACPP_UNIFIED)
        return error_set(error, STATUS_INPUT, "--kv-dtype: %s stores K and V in one type, not %s and %s", profile->name,
                         types[0]->name, types[1]->name);
    for (int64_t i = demand->first; i < demand->end; i++) {
        const struct layer_shape *layer = &demand->shape->layers[i];
        if (layer->kind == LAYER_STATE || layer->kind == LAYER_SHARED)
            continue;
        bool latent = layer->kind == LAYER_LATENT;
        if (check_width(types[0], latent ? layer->latent + layer->rope : layer->k_dim,
                        latent ? "a latent vector" : "a head's K", error) != STATUS_OK ||
            (!latent && check_width(types[1], layer->v_dim, "a head's V", error) != STATUS_OK))
            return error->status;
    }
    return demand->engine == ENGINE_VLLM ? profile_vllm_check(demand, error) : STATUS_OK;
}

bool profile_has_windows(enum engine engine, const struct shape *shape)
{
    switch (engine) {
    case ENGINE_LLAMACPP:
    case ENGINE_LLAMACPP_UNIFIED:
        return shape->llamacpp_windows;
    case ENGINE_SGLANG:
        return shape->sglang_pools;
    default:
        return true;
    }
}

static bool is_local(const struct kv_demand *demand, const struct layer_shape *layer)
{
    return (layer->kind == LAYER_WINDOW || layer->kind == LAYER_CHUNK) &&
           profile_has_windows(demand->engine, demand->shape);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Sums over the device's layers: bytes per token of layers that keep all, per token of local ones, per sequence. */
struct sums {
    uint64_t full, local, state;
    int64_t window; /* the widest; 0: no local layer */
    bool has_full;
};

/* modeling_deepseek_v2.py, modeling_deepseek_v3.py: past_key_values.update() gets the heads' keys and values. */
static bool expands_latent(enum engine engine)
{
    return engine == ENGINE_TRANSFORMERS_DYNAMIC || engine == ENGINE_TRANSFORMERS_STATIC;
}

/* transformers' MambaCache keeps as many inputs as the kernel is long (modeling_mamba.py, modeling_jamba.py,
   modeling_granitemoehybrid.py: conv_states of conv_kernel_size); the others keep one less. */
static uint64_t state_bytes(const struct kv_demand *demand, const struct layer_shape *layer, bool *overflow)
{
    return layer_state_bytes(layer, demand->conv_type, demand->state_type, demand->ranks,
                             expands_latent(demand->engine), overflow);
}

static struct sums add_up(const struct kv_demand *demand, bool *overflow)
{
    struct sums sums = {0};
    for (int64_t i = demand->first; i < demand->end; i++) {
        const struct layer_shape *layer = &demand->shape->layers[i];
        uint64_t token = layer_token_bytes(layer, demand->k_type, demand->v_type, demand->ranks,
                                           expands_latent(demand->engine), overflow);
        if (is_local(demand, layer)) {
            sums.local = count_add(overflow, sums.local, token);
            sums.window = layer->window > sums.window ? layer->window : sums.window;
        } else {
            sums.full = count_add(overflow, sums.full, token);
            sums.has_full |= token > 0;
        }
        sums.state = count_add(overflow, sums.state, state_bytes(demand, layer, overflow));
    }
    return sums;
}

/* Every sequence alone, to the byte. transformers' DynamicSlidingWindowLayer keeps window - 1 tokens of a tensor of
   `window` (cache_utils.py: a slice of what torch.cat gave); its StaticSlidingWindowLayer min(window, context). After a
   prefill, until the next token, the dynamic one still holds the whole prompt. */
static uint64_t exact_bytes(const struct sums *sums, int64_t context, int64_t users, struct kv_layout *layout,
                            bool *overflow)
{
    layout->cells_per_sequence = (uint64_t)context;
    layout->window_cells = sums->window ? (uint64_t)least(context, sums->window) : 0;
    uint64_t one = count_mul(overflow, sums->full, (uint64_t)context);
    one = count_add(overflow, one, count_mul(overflow, sums->local, layout->window_cells));
    return count_mul(overflow, count_add(overflow, one, sums->state), (uint64_t)users);
}

/* llama.cpp, src/llama-context.cpp: n_ctx padded to 256, and each of n_seq_max streams n_ctx / n_seq_max padded to 256;
   unified: one stream of n_ctx. src/llama-kv-cache-iswa.cpp: windowed layers (shape->llamacpp_windows) get
   PAD(min(size, n_swa * (unified ? n_seq_max : 1) + n_ubatch), 256) cells per stream. src/llama-memory-recurrent.cpp:
   states of each sequence, in f32.
 */
static uint64_t llamacpp_bytes(const struct kv_demand *demand, const struct sums *sums, int64_t context, int64_t users,
                               struct kv_layout *layout, bool *overflow)
{
    bool unified = demand->engine == ENGINE_LLAMACPP_UNIFIED;
    uint64_t pad = (uint64_t)demand->block_size, streams = unified ? 1 : (uint64_t)users;
    uint64_t asked = unified ? count_mul(overflow, (uint64_t)context, (uint64_t)users) : (uint64_t)context;
    uint64_t cells = count_pad(overflow, asked, pad);
    uint64_t local = count_mul(overflow, (uint64_t)sums->window, unified ? (uint64_t)users : 1);
    local = count_add(overflow, local, (uint64_t)demand->batch_tokens);
    local = sums->window ? count_pad(overflow, local < cells ? local : cells, pad) : 0;
    layout->cells_per_sequence = cells;
    layout->window_cells = local;
    uint64_t stream =
        count_add(overflow, count_mul(overflow, sums->full, cells), count_mul(overflow, sums->local, local));
    return count_add(overflow, count_mul(overflow, stream, streams), count_mul(overflow, sums->state, (uint64_t)users));
}

/* SGLang, python/sglang/srt/model_executor/model_runner.py, profile_max_num_token and set_num_token_hybrid: cell_size
   per token over the layers; with windows that it knows (shape->sglang_pools) the second pool has swa_full_tokens_ratio
   = 0.8 of the first one's tokens, so the first must be large enough for the second to hold every window.
   memory_pool.py: page_size more, for slot 0. */
static uint64_t sglang_bytes(const struct kv_demand *demand, const struct sums *sums, int64_t context, int64_t users,
                             struct kv_layout *layout, bool *overflow)
{
    uint64_t page = (uint64_t)demand->block_size;
    uint64_t one = count_pad(overflow, (uint64_t)context, page);
    bool two_pools = sums->window && sums->has_full;
    layout->cells_per_sequence = one;
    uint64_t tokens = count_mul(overflow, one, (uint64_t)users), local = 0;
    if (two_pools) {
        layout->window_cells = count_pad(overflow, (uint64_t)least(context, sums->window), page);
        uint64_t windows = count_mul(overflow, layout->window_cells, (uint64_t)users);
        uint64_t needed = count_pad(overflow, count_units(count_mul(overflow, windows, 5), 4), page);
        tokens = needed > tokens ? needed : tokens;
        local = count_mul(overflow, tokens, 4) / 5;
    }
    uint64_t full = two_pools ? sums->full : count_add(overflow, sums->full, sums->local);
    uint64_t bytes = count_mul(overflow, count_add(overflow, tokens, page), full);
    if (two_pools)
        bytes = count_add(overflow, bytes, count_mul(overflow, count_add(overflow, local, page), sums->local));
    return count_add(overflow, bytes, count_mul(overflow, sums->state, (uint64_t)users));
}

uint64_t profile_kv_bytes(const struct kv_demand *demand, int64_t context, int64_t users, struct kv_layout *layout,
                          bool *overflow)
{
    struct kv_layout unused;
    layout = layout ? layout : &unused;
    *layout = (struct kv_layout){0};
    if (users == 0)
        return 0;
    if (demand->engine == ENGINE_VLLM)
        return profile_vllm_bytes(demand, context, users, layout, overflow);
    struct sums sums = add_up(demand, overflow);
    if (demand->engine == ENGINE_LLAMACPP || demand->engine == ENGINE_LLAMACPP_UNIFIED)
        return llamacpp_bytes(demand, &sums, context, users, layout, overflow);
    if (demand->engine == ENGINE_SGLANG)
        return sglang_bytes(demand, &sums, context, users, layout, overflow);
    return exact_bytes(&sums, context, users, layout, overflow);
}
