/* PyTorch's out-of-memory message, taken into its parts (c10/cuda/CUDACachingAllocator.cpp):

     CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacity of 14.75 GiB of which 235.06 MiB is
   free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by PyTorch, and
   330.42 MiB is reserved by PyTorch but unallocated. from 2.1 on CUDA out of memory. Tried to allocate 2.26 GiB (GPU
   0; 6.00 GiB total capacity; 781.59 MiB already allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)
   before

   What was tried last is rarely what is too much: it is held against the tensors that the model's config gives, and the
   weights against the card. The allocator asks the driver in steps: below 1 MiB 2 MiB, below 10 MiB 20 MiB, else a
   multiple of 2 MiB (get_allocation_size() there). */
#include "engine/claims/readlog_scan.h"

#include "engine/plan/plan_count.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char engine[] = "pytorch";
enum { STEP = 2 << 20, MAX_SPREAD = 100000 };

static uint64_t allocation(uint64_t bytes)
{
    if (bytes < 1 << 20)
        return STEP;
    if (bytes < 10 << 20)
        return 20 << 20;
    return bytes > UINT64_MAX - STEP ? 0 : count_units(bytes, STEP) * STEP;
}

struct parts {
    struct printed requested, capacity, free, process, allocated, unallocated;
    const struct byte_unit *requested_unit, *capacity_unit, *free_unit, *process_unit, *allocated_unit,
        *unallocated_unit;  /* NULL: not in the message */
    bool reserved_in_total; /* before 2.1: `unallocated` is all that is reserved */
};

static uint64_t bytes_of(const struct printed *printed, const struct byte_unit *unit)
{
    long double bytes = printed_value(printed) * (long double)unit->bytes;
    return bytes < 9e18L ? (uint64_t)bytes : 0;
}

static void amount_before(struct printed *printed, const struct byte_unit **unit, const char *text, const char *label)
{
    if (!*unit && !line_amount_before(printed, unit, text, label))
        *unit = NULL;
}

static void read_parts(struct parts *parts, const char *text)
{
    const char *at = line_after(text, "total capacity of");
    if (!at)
        at = line_after(text, "total capacty of"); /* 2.1 and 2.2 */
    if (at && !line_amount(&parts->capacity, &parts->capacity_unit, at))
        parts->capacity_unit = NULL;
    at = line_after(text, "this process has");
    if (at && !line_amount(&parts->process, &parts->process_unit, at))
        parts->process_unit = NULL;
    amount_before(&parts->capacity, &parts->capacity_unit, text, " total capacity");
    amount_before(&parts->free, &parts->free_unit, text, " is free");
    amount_before(&parts->free, &parts->free_unit, text, " free;");
    amount_before(&parts->process, &parts->process_unit, text, " memory in use");
    amount_before(&parts->allocated, &parts->allocated_unit, text, " is allocated by PyTorch");
    amount_before(&parts->allocated, &parts->allocated_unit, text, " already allocated");
    amount_before(&parts->unallocated, &parts->unallocated_unit, text, " is reserved by PyTorch but unallocated");
    if (!parts->unallocated_unit) {
        amount_before(&parts->unallocated, &parts->unallocated_unit, text, " reserved in total by PyTorch");
        amount_before(&parts->unallocated, &parts->unallocated_unit, text, " cached");
        parts->reserved_in_total = parts->unallocated_unit != NULL;
    }
}

/* ---- what was asked for last ------------------------------------------------------------------------------------- */

struct tensor {
    const char *what;
    uint64_t rows, columns;
};

static bool is_request(const struct parts *parts, uint64_t bytes)
{
    return amount_is(&parts->requested, parts->requested_unit, allocation(bytes));
}

static void found_tensor(struct readlog_row *row, const struct parts *parts, const struct tensor *tensor, uint64_t size)
{
    uint64_t bytes = tensor->rows * tensor->columns * size;
    row->verdict = READLOG_ROUNDED;
    row_formula(row, &parts->requested, (long double)bytes / (long double)parts->requested_unit->bytes);
    row_reason(row, "%s: %" PRIu64 " x %" PRIu64 " x %" PRIu64 " bytes = %" PRIu64 ", in steps of 2 MiB", tensor->what,
               tensor->rows, tensor->columns, size, bytes);
}

/* A matrix of the weights, in the type they are published in or in f32. Below 10 MiB every request looks alike. */
static bool is_weight(struct readlog_row *row, const struct shape *shape, const struct parts *parts)
{
    uint64_t hidden = (uint64_t)shape->hidden_size, heads = (uint64_t)(shape->query_heads * shape->head_dim);
    uint64_t kv = (uint64_t)(shape->kv_heads * shape->head_dim), mlp = (uint64_t)shape->widest_mlp;
    const struct tensor tensors[] = {
        {"a matrix of an MLP", mlp, hidden},
        {"gate and up projection of an MLP together", 2 * mlp, hidden},
        {"the embeddings or the head", (uint64_t)shape->vocab_size, hidden},
        {"a query or output projection", heads, hidden},
        {"query, key and value projections together", heads + 2 * kv, hidden},
    };
    uint64_t own = dtype_size(shape->torch_dtype);
    for (uint64_t size = own; size <= 4; size += 2)
        for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
            uint64_t bytes = tensors[i].rows * tensors[i].columns * size;
            if (bytes >= 10 << 20 && is_request(parts, bytes)) {
                found_tensor(row, parts, &tensors[i], size);
                return true;
            }
        }
    return false;
}

/* Logits of some positions: the most that fit the request, and the least. */
static bool is_logits(struct readlog_row *row, const struct shape *shape, const struct parts *parts)
{
    static const uint64_t sizes[] = {4, 2};
    uint64_t request = bytes_of(&parts->requested, parts->requested_unit), vocab = (uint64_t)shape->vocab_size;
    for (size_t i = 0; i < 2; i++) {
        uint64_t most = vocab ? (request + parts->requested_unit->bytes / 50) / (vocab * sizes[i]) : 0, least;
        while (most > 0 && most * vocab * sizes[i] + STEP > request && !is_request(parts, most * vocab * sizes[i]))
            most--;
        if (most == 0 || !is_request(parts, most * vocab * sizes[i]))
            continue;
        for (least = most; least > 1 && most - least < MAX_SPREAD && is_request(parts, (least - 1) * vocab * sizes[i]);)
            least--;
        found_tensor(row, parts, &(struct tensor){"a logits-sized temporary", most, vocab}, sizes[i]);
        if (least < most)
            row_reason(row, "%" PRIu64 " to %" PRIu64 " positions of the vocabulary fit", least, most);
        return true;
    }
    return false;
}

static void request_row(struct scan *scan, const struct parts *parts, uint64_t weights)
{
    const struct shape *shape = scan->options->shape;
    struct readlog_row *row = scan_row(scan, engine, "oom_requested_bytes");
    row_reported(row, &parts->requested, parts->requested_unit->name);
    bool loading = parts->allocated_unit && bytes_of(&parts->allocated, parts->allocated_unit) < weights;
    bool found = loading || !parts->allocated_unit ? is_weight(row, shape, parts) || is_logits(row, shape, parts)
                                                   : is_logits(row, shape, parts) || is_weight(row, shape, parts);
    if (!found)
        row_reason(row, "no weight matrix and no logits of this model have this size");
    if (loading)
        row_reason(
            row,
            "less is allocated than the weights take: it failed while loading them, unless they are stored smaller");
}

/* ---- the other parts --------------------------------------------------------------------------------------------- */

static void capacity_row(struct scan *scan, const struct parts *parts, uint64_t weights)
{
    char text[2][32];
    struct readlog_row *row = scan_row(scan, engine, "oom_capacity_bytes");
    row->verdict = READLOG_CAPACITY;
    row_reported(row, &parts->capacity, parts->capacity_unit->name);
    uint64_t capacity = bytes_of(&parts->capacity, parts->capacity_unit);
    if (weights > capacity)
        row_reason(row, "the weights alone take %s bytes in %s: %s more than the card has, whatever was asked for last",
                   grouped(text[0], sizeof text[0], weights), dtype_name(scan->options->shape->torch_dtype),
                   grouped(text[1], sizeof text[1], weights - capacity));
    else
        row_reason(row, "the weights take %s bytes in %s: %s are left for everything else",
                   grouped(text[0], sizeof text[0], weights), dtype_name(scan->options->shape->torch_dtype),
                   grouped(text[1], sizeof text[1], capacity - weights));
}

static void allocated_row(struct scan *scan, const struct parts *parts, uint64_t weights)
{
    char text[32];
    struct readlog_row *row = scan_row(scan, engine, "oom_allocated_bytes");
    row->verdict = READLOG_USE;
    row_reported(row, &parts->allocated, parts->allocated_unit->name);
    uint64_t allocated = bytes_of(&parts->allocated, parts->allocated_unit);
    if (allocated < weights)
        row_reason(row, "%.0Lf%% of the weights", 100 * (long double)allocated / (long double)weights);
    else
        row_reason(row, "the weights, and %s bytes of cache, activations and the rest",
                   grouped(text, sizeof text, allocated - weights));
}

static void simple_row(struct scan *scan, const char *quantity, enum readlog_verdict verdict,
                       const struct printed *printed, const struct byte_unit *unit, const char *reason)
{
    struct readlog_row *row = scan_row(scan, engine, quantity);
    row->verdict = verdict;
    row_reported(row, printed, unit->name);
    row_reason(row, "%s", reason);
}

/* What the process holds is what PyTorch reserved and what the CUDA context and libraries take beside it. */
static void process_row(struct scan *scan, const struct parts *parts)
{
    char text[32];
    struct readlog_row *row = scan_row(scan, engine, "oom_process_bytes");
    row->verdict = READLOG_USE;
    row_reported(row, &parts->process, parts->process_unit->name);
    if (!parts->allocated_unit || !parts->unallocated_unit || parts->reserved_in_total)
        return;
    uint64_t process = bytes_of(&parts->process, parts->process_unit);
    uint64_t reserved =
        bytes_of(&parts->allocated, parts->allocated_unit) + bytes_of(&parts->unallocated, parts->unallocated_unit);
    if (process >= reserved)
        row_reason(row, "%s bytes of it lie outside PyTorch's allocator: context, libraries",
                   grouped(text, sizeof text, process - reserved));
    else
        row_reason(row, "less than PyTorch reserved: it was seen from another process, or memory is shared");
}

static void free_row(struct scan *scan, const struct parts *parts)
{
    bool enough = bytes_of(&parts->free, parts->free_unit) >= bytes_of(&parts->requested, parts->requested_unit);
    simple_row(scan, "oom_free_bytes", READLOG_USE, &parts->free, parts->free_unit,
               enough ? "enough for what was asked: a limit on the process, or other allocations came between"
                      : "less than was asked for");
}

void readlog_pytorch(struct scan *scan, const char *text)
{
    const char *at = line_after(text, "Tried to allocate");
    struct parts parts = {0};
    if (!at || !line_amount(&parts.requested, &parts.requested_unit, at))
        return;
    read_parts(&parts, at);
    bool overflow = false;
    uint64_t weights = count_mul(&overflow, scan->options->shape->total, dtype_size(scan->options->shape->torch_dtype));
    request_row(scan, &parts, overflow ? 0 : weights);
    if (parts.capacity_unit)
        capacity_row(scan, &parts, overflow ? 0 : weights);
    if (parts.free_unit)
        free_row(scan, &parts);
    if (parts.process_unit)
        process_row(scan, &parts);
    if (parts.allocated_unit)
        allocated_row(scan, &parts, overflow ? 0 : weights);
    if (parts.unallocated_unit)
        simple_row(scan, parts.reserved_in_total ? "oom_reserved_bytes" : "oom_unallocated_bytes", READLOG_USE,
                   &parts.unallocated, parts.unallocated_unit,
                   parts.reserved_in_total ? "what PyTorch holds from the driver, in use or not"
                                           : "held from the driver and not in use: cached blocks, fragments");
}
