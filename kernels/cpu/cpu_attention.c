/* Attention over the block tables: which tile of which sequence and KV head is whose work.

   A sequence with several rows is cut into tiles of rows; each tile goes over all keys that it may see. A sequence with
   one row (decode) is cut along its keys instead, into at most PARTS parts whose size depends on the context alone;
   each gives an unnormalised result, and a second step joins them (Dao et al. 2023, "Flash-Decoding"). So few KV heads
   still keep all threads busy, and the result does not depend on how many threads there are. Bytes moved by decode:
   context * kv_heads * 2 * (head_dim * size(kv dtype) + scale), once per row. */
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum { PARTS = 16, PART_MIN_KEYS = 2 * HOT_KEYS };

/* Floats of scratch that one thread needs: q, o, k, v, scores, maximum and sum of one tile. */
static size_t thread_floats(size_t heads, size_t kv_heads, int head_dim)
{
    size_t group = heads / kv_heads, m = group > HOT_QUERIES ? group : HOT_QUERIES, padded = hot_padded(head_dim);
    return 2 * m * padded + 2 * HOT_KEYS * padded + m * HOT_KEYS + 2 * cpu_round_up(m, HOT_PAD);
}

/* Of one part of one row: o [heads][padded], maximum [heads], sum [heads]. */
static size_t part_floats(size_t heads, int head_dim)
{
    return heads * hot_padded(head_dim) + 2 * cpu_round_up(heads, HOT_PAD);
}

size_t cpu_attention_workspace(const struct cpu_device *device, const struct workspace_shape *shape)
{
    size_t heads = (size_t)shape->heads, kv_heads = (size_t)shape->kv_heads;
    size_t decode_rows = (size_t)(shape->rows < shape->sequences ? shape->rows : shape->sequences);
    size_t floats = (size_t)device->threads * thread_floats(heads, kv_heads, shape->head_dim) +
                    decode_rows * PARTS * part_floats(heads, shape->head_dim);
    return floats * sizeof(float) + HOT_ALIGN_BYTES;
}

struct plan {
    const struct attention_args *args;
    const struct cpu_hot *hot;
    float *threads_scratch, *parts;
    size_t thread_floats, part_floats;
    int tile_tokens;
    long run; /* items that a thread takes at a time */
};

/* The keys [first, end) that a row at `position` may see. */
static int first_visible(const struct attention_args *args, int position)
{
    return args->window > 0 && position >= args->window ? position - args->window + 1 : 0;
}

static int part_keys(int keys)
{
    int even = (keys + PARTS - 1) / PARTS;
    return even < PART_MIN_KEYS ? PART_MIN_KEYS : (int)cpu_round_up((size_t)even, HOT_KEYS);
}

static int sequence_rows(const struct attention_args *args, int sequence)
{
    return args->batch->host_first_row[sequence + 1] - args->batch->host_first_row[sequence];
}

/* Tiles of rows, or parts of the keys: pieces of work per KV head of a sequence. */
static int pieces_of(const struct plan *plan, int sequence)
{
    int rows = sequence_rows(plan->args, sequence);
    if (rows != 1)
        return (rows + plan->tile_tokens - 1) / plan->tile_tokens;
    int context = plan->args->batch->host_context[sequence], keys = context - first_visible(plan->args, context - 1);
    return (keys + part_keys(keys) - 1) / part_keys(keys);
}

static struct hot_attend tile_of(const struct plan *plan, int sequence, int kv_head, int row, int tokens)
{
    const struct attention_args *args = plan->args;
    const struct device_batch *batch = args->batch;
    int group = args->heads / args->kv_heads;
    size_t q_row = (size_t)args->heads * (size_t)args->head_dim;
    return (struct hot_attend){
        .q = args->q + (size_t)row * q_row + (size_t)kv_head * (size_t)group * (size_t)args->head_dim,
        .positions = batch->positions + row,
        .k = args->kv.k[sequence],
        .v = args->kv.v[sequence],
        .k_scale = args->kv.k_scale ? args->kv.k_scale[sequence] : NULL,
        .v_scale = args->kv.v_scale ? args->kv.v_scale[sequence] : NULL,
        .block_table = batch->block_table + (size_t)sequence * (size_t)batch->blocks_per_sequence,
        .q_stride = q_row,
        .kv_dtype = args->kv.dtype,
        .working = args->out_dtype,
        .tokens = tokens,
        .group = group,
        .head_dim = args->head_dim,
        .block_size = batch->block_size[sequence],
        .kv_heads = args->kv_heads,
        .kv_head = kv_head,
        .first_key = first_visible(args, batch->positions[row]),
        .end_key = batch->positions[row + tokens - 1] + 1,
        .ahead_key = batch->positions[row + tokens - 1] + 1,
        .window = args->window,
        .scale = args->scale,
    };
}

/* out = o / sum, in the working type; o is scratch. */
static void store(const struct plan *plan, size_t row, size_t head, float *o, float sum)
{
    size_t head_dim = (size_t)plan->args->head_dim;
    size_t at = (row * (size_t)plan->args->heads + head) * head_dim;
    float factor = 1.0f / sum;
    for (size_t d = 0; d < head_dim; d++)
        o[d] *= factor;
    enum dtype dtype = plan->args->out_dtype;
    plan->hot->from_f32[dtype]((char *)plan->args->out + at * dtype_size(dtype), o, head_dim);
}

static void prefill_piece(const struct plan *plan, int sequence, int kv_head, int piece, float *scratch)
{
    const struct attention_args *args = plan->args;
    int first = args->batch->host_first_row[sequence] + piece * plan->tile_tokens;
    int left = args->batch->host_first_row[sequence + 1] - first;
    struct hot_attend tile =
        tile_of(plan, sequence, kv_head, first, left < plan->tile_tokens ? left : plan->tile_tokens);
    size_t m_count = (size_t)tile.tokens * (size_t)tile.group, padded = hot_padded(args->head_dim);
    tile.o = scratch;
    tile.maximum = tile.o + m_count * padded;
    tile.sum = tile.maximum + cpu_round_up(m_count, HOT_PAD);
    tile.scratch = tile.sum + cpu_round_up(m_count, HOT_PAD);
    plan->hot->attend(&tile);
    for (size_t m = 0; m < m_count; m++)
        store(plan, (size_t)first + m / (size_t)tile.group,
              (size_t)kv_head * (size_t)tile.group + m % (size_t)tile.group, tile.o + m * padded, tile.sum[m]);
}

/* The parts of decode row number `decode` (counted over the batch), the heads of all KV heads side by side. */
struct part {
    float *o, *maximum, *sum;
};
static struct part part_at(const struct plan *plan, int decode, int piece)
{
    size_t heads = (size_t)plan->args->heads;
    float *o = plan->parts + ((size_t)decode * PARTS + (size_t)piece) * plan->part_floats;
    float *maximum = o + heads * hot_padded(plan->args->head_dim);
    return (struct part){o, maximum, maximum + cpu_round_up(heads, HOT_PAD)};
}

static void decode_piece(const struct plan *plan, int sequence, int decode, int kv_head, int piece, float *scratch)
{
    struct hot_attend tile = tile_of(plan, sequence, kv_head, plan->args->batch->host_first_row[sequence], 1);
    int keys = part_keys(tile.end_key - tile.first_key);
    tile.first_key += piece * keys;
    if (tile.first_key + keys < tile.end_key)
        tile.end_key = tile.first_key + keys;
    if (plan->run == 1)
        tile.ahead_key = tile.end_key; /* another thread's turn */
    struct part part = part_at(plan, decode, piece);
    size_t head = (size_t)kv_head * (size_t)tile.group;
    tile.o = part.o + head * hot_padded(tile.head_dim);
    tile.maximum = part.maximum + head;
    tile.sum = part.sum + head;
    tile.scratch = scratch;
    plan->hot->attend(&tile);
}

/* Joins the parts of one head, in order: each counts 2^(its maximum - the largest). Part 0 holds the result. */
static void join(const struct plan *plan, int sequence, int decode, int head)
{
    int pieces = pieces_of(plan, sequence);
    size_t h = (size_t)head, padded = hot_padded(plan->args->head_dim);
    float largest = -INFINITY, sum = 0.0f;
    for (int i = 0; i < pieces; i++)
        largest = fmaxf(largest, part_at(plan, decode, i).maximum[h]);
    float *o = part_at(plan, decode, 0).o + h * padded;
    for (int i = 0; i < pieces; i++) {
        struct part part = part_at(plan, decode, i);
        const float *from = part.o + h * padded;
        float factor = exp2f(part.maximum[h] - largest);
        sum += factor * part.sum[h];
        for (size_t d = 0; d < padded; d++)
            o[d] = (i ? o[d] : 0.0f) + factor * from[d];
    }
    store(plan, (size_t)plan->args->batch->host_first_row[sequence], h, o, sum);
}

/* All pieces of a batch in one list, in order of sequence, KV head, piece; `item` counts along it. */
struct place {
    int sequence, decode; /* decode: which of the single-row sequences, in order */
    long first_item;      /* of this sequence */
};
static void advance(const struct plan *plan, struct place *place, long item)
{
    for (;;) {
        long items = (long)pieces_of(plan, place->sequence) * plan->args->kv_heads;
        if (item < place->first_item + items)
            return;
        place->first_item += items;
        place->decode += sequence_rows(plan->args, place->sequence) == 1;
        place->sequence++;
    }
}

static void work(const struct plan *plan, const struct place *place, long item, float *scratch)
{
    int pieces = pieces_of(plan, place->sequence);
    int kv_head = (int)((item - place->first_item) / pieces), piece = (int)((item - place->first_item) % pieces);
    if (sequence_rows(plan->args, place->sequence) == 1)
        decode_piece(plan, place->sequence, place->decode, kv_head, piece, scratch);
    else
        prefill_piece(plan, place->sequence, kv_head, pieces - 1 - piece, scratch); /* longest first */
}

static struct plan make_plan(const struct cpu_device *cpu, const struct attention_args *args, int decodes)
{
    size_t heads = (size_t)args->heads, kv_heads = (size_t)args->kv_heads, group = heads / kv_heads;
    struct plan plan = {.args = args, .hot = cpu->hot};
    plan.thread_floats = thread_floats(heads, kv_heads, args->head_dim);
    plan.part_floats = part_floats(heads, args->head_dim);
    plan.tile_tokens = group > HOT_QUERIES ? 1 : (int)(HOT_QUERIES / group);
    char *start = (char *)cpu_round_up((size_t)cpu->workspace, HOT_ALIGN_BYTES);
    plan.threads_scratch = (float *)(void *)start;
    plan.parts = plan.threads_scratch + (size_t)cpu->threads * plan.thread_floats;
    float *end = plan.parts + (size_t)decodes * PARTS * plan.part_floats;
    assert(cpu->workspace && (char *)(void *)end <= cpu->workspace + cpu->workspace_bytes);
    (void)end;
    return plan;
}

/* How many items a thread takes at a time. Reading on costs less than beginning elsewhere: of a batch of decode as many
   as a head has on average, or fewer, so that all threads get some. Tiles of prefill differ: one. */
static long run_of(const struct plan *plan, int threads, int decodes, long items)
{
    const long sequences = plan->args->batch->sequences, heads = sequences * plan->args->kv_heads;
    const long takers = heads > threads ? heads : threads;
    return decodes < sequences ? 1 : (items + takers - 1) / takers;
}

enum status cpu_attention(struct device *device, const struct attention_args *args, struct error *error)
{
    const struct cpu_device *cpu = cpu_of(device);
    (void)error;
    int decodes = 0;
    for (int s = 0; s < args->batch->sequences; s++)
        decodes += sequence_rows(args, s) == 1;
    struct plan plan = make_plan(cpu, args, decodes);
    long items = 0;
    for (int s = 0; s < args->batch->sequences; s++)
        items += (long)pieces_of(&plan, s) * args->kv_heads;
    const long run = plan.run = run_of(&plan, cpu->threads, decodes, items);
    (void)run; /* read in a clause of OpenMP only, which clang's analyzer does not look into */
#pragma omp parallel num_threads(cpu->threads)
    {
        float *scratch = plan.threads_scratch + (size_t)omp_get_thread_num() * plan.thread_floats;
        struct place place = {0, 0, 0};
        /* monotonic: `place` only moves forward, and OpenMP 5 would let a runtime hand lower items to a thread later */
#pragma omp for schedule(monotonic : dynamic, run)
        for (long item = 0; item < items; item++) {
            advance(&plan, &place, item);
            work(&plan, &place, item, scratch);
        }
        int decode = 0;
        for (int s = 0; s < args->batch->sequences; s++) {
            if (sequence_rows(args, s) != 1)
                continue;
#pragma omp for schedule(static) nowait
            for (int h = 0; h < args->heads; h++)
                join(&plan, s, decode, h);
            decode++;
        }
    }
    return STATUS_OK;
}

/* ---- the weights of that softmax, summed up */

/* All rows of a sequence with the query heads of one KV head, one after the other: nobody else adds to that row of
 * mass.
 */
static void mass_of(const struct plan *plan, const struct attention_mass_args *args, int sequence, int kv_head,
                    float *scratch)
{
    const int32_t *first_row = args->batch->host_first_row + sequence;
    float *mass = args->mass + ((size_t)sequence * (size_t)args->kv_heads + (size_t)kv_head) * (size_t)args->slots;
    for (int row = first_row[0]; row < first_row[1]; row++) {
        struct hot_attend tile = tile_of(plan, sequence, kv_head, row, 1);
        tile.maximum = scratch;
        tile.sum = tile.maximum + cpu_round_up((size_t)tile.group, HOT_PAD);
        tile.scratch = tile.sum + cpu_round_up((size_t)tile.group, HOT_PAD);
        plan->hot->mass(&tile, mass);
    }
}

enum status cpu_attention_mass(struct device *device, const struct attention_mass_args *args, struct error *error)
{
    const struct cpu_device *cpu = cpu_of(device);
    (void)error;
    const struct attention_args attention = {.batch = args->batch,
                                             .kv = args->kv,
                                             .q = args->q,
                                             .heads = args->heads,
                                             .kv_heads = args->kv_heads,
                                             .head_dim = args->head_dim,
                                             .scale = args->scale,
                                             .window = args->window};
    const struct plan plan = make_plan(cpu, &attention, 0);
    const int items = args->batch->sequences * args->kv_heads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu->threads) if (items > 1)
    for (int item = 0; item < items; item++)
        mass_of(&plan, args, item / args->kv_heads, item % args->kv_heads,
                plan.threads_scratch + (size_t)omp_get_thread_num() * plan.thread_floats);
    return STATUS_OK;
}
