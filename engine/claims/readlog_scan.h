/* Inside read-log: one line at a time, what the lines before it said, and how a number is held against the formula. */
#ifndef KVLAB_ENGINE_CLAIMS_READLOG_SCAN_H
#define KVLAB_ENGINE_CLAIMS_READLOG_SCAN_H

#include "engine/claims/readlog.h"

/* What the log said so far. 0 and NULL: nothing yet. */
struct log_facts {
    /* llama.cpp */
    int64_t n_ctx, n_seq_max, n_ubatch, kv_size;
    int64_t window_cells, window_sequences; /* of the cache in hand: cells per stream, and sequences that share them */
    char type_k[24], type_v[24];
    enum { CACHE_WHOLE, CACHE_FULL_LAYERS, CACHE_WINDOW_LAYERS } part; /* of a model with windows */
    /* vLLM, SGLang */
    int64_t ranks, stages, block_size, max_length, blocks, batch_tokens;
    bool all_layers;                     /* vLLM before groups: a block is of all layers, whatever their windows */
    uint64_t tokens;                     /* capacity */
    int64_t page;                        /* SGLang: tokens of one */
    uint64_t full_tokens, window_tokens; /* SGLang: of the two pools */
    char cache_type[24];
    bool has_available;
    struct printed available; /* GiB for the cache */
    uint64_t swap_bytes;
};

/* A buffer of one device, waiting for the line with the total of its cache. */
struct log_buffer {
    size_t line;
    struct printed printed;
    const struct byte_unit *unit;
    char device[48];
};
enum { MAX_BUFFERS = 64 };

struct scan {
    const struct readlog_options *options;
    struct readlog *log;
    struct log_facts facts;
    struct log_buffer buffers[MAX_BUFFERS];
    int buffer_count;
    size_t line;
    enum status status;
    struct error *error;
};

/* One per engine: looks at a line of text (NUL-terminated), adds rows and facts. */
void readlog_llama(struct scan *scan, const char *text);
void readlog_llama_end(struct scan *scan); /* buffers without a total */
void readlog_vllm(struct scan *scan, const char *text);
void readlog_prometheus(struct scan *scan, const char *text);
void readlog_sglang(struct scan *scan, const char *text);
void readlog_pytorch(struct scan *scan, const char *text);

/* ---- readlog_line.c: taking a line apart ------------------------------------------------------------------------- */

/* Behind `label` in the text, or NULL. */
const char *line_after(const char *text, const char *label);
/* The number behind `label`, spaces, '=' and ':' skipped; false where there is none. */
bool line_number(struct printed *printed, const char *text, const char *label);
/* The same as a count of at most 2^53; false where it is none. */
bool line_count(int64_t *count, const char *text, const char *label);
/* A number and its unit of memory: "4352.00 MiB", "8.11GiB", "0 bytes". Returns what stands behind them, or NULL. */
const char *line_amount(struct printed *printed, const struct byte_unit **unit, const char *text);
/* The amount that ends right before `label`: "1.66 GiB" of "of which 1.66 GiB is free". */
bool line_amount_before(struct printed *printed, const struct byte_unit **unit, const char *text, const char *label);
/* A word of letters, digits, '_', '.' and '-' into `to` (size bytes). */
void line_word(char *to, size_t size, const char *text);

/* ---- readlog_rows.c ---------------------------------------------------------------------------------------------- */

/* A new row of the current line, or of another; NULL where there are too many. */
struct readlog_row *scan_row(struct scan *scan, const char *engine, const char *quantity);
void row_reported(struct readlog_row *row, const struct printed *printed, const char *unit);
void row_formula(struct readlog_row *row, const struct printed *printed, long double formula); /* and the ratio */
void row_reason(struct readlog_row *row, const char *format, ...) __attribute__((format(printf, 2, 3))); /* appends */

/* Holds an amount of memory against `formula` bytes: exact, rounded, or right in another unit; else off. Returns the
   unit that the number really has. */
const struct byte_unit *row_compare(struct readlog_row *row, const struct printed *printed,
                                    const struct byte_unit *unit, uint64_t formula);
/* Does the amount print as these bytes, in its unit or the one that it really has? */
bool amount_is(const struct printed *printed, const struct byte_unit *unit, uint64_t bytes);

/* ---- readlog_kv.c: the formula, and why a number is off ---------------------------------------------------------- */

/* Contexts of llama.cpp are multiples of 32 in versions without flash attention, of its profile's block in others. */
enum { OLD_PADDING = 32, LLAMA_PADDINGS = 2 };

enum kv_part { PART_ALL, PART_FULL, PART_WINDOW };

/* One way of computing a cache. */
struct kv_way {
    const struct plan_type *k, *v;
    int64_t ranks;
    enum kv_part part;
    bool query_heads, k_only, v_only;
};
/* Bytes of a token over the layers; 0 on overflow or where a row does not divide into blocks. */
uint64_t kv_way_bytes(const struct shape *shape, const struct kv_way *way);
int64_t kv_way_layers(const struct shape *shape, enum kv_part part); /* layers that hold a cache */
int64_t shape_window(const struct shape *shape);                     /* the first windowed layer's; 0: none */
/* Bytes per token times tokens; 0 on overflow. */
uint64_t kv_times(uint64_t bytes, uint64_t tokens);

/* ---- readlog_pool.c: vLLM's blocks ------------------------------------------------------------------------------- */

struct vllm_pool {
    uint64_t block_bytes, block_tokens; /* tokens 0: states alone */
    uint64_t groups;                    /* of layers, each with blocks of its own */
    uint64_t blocks_per_sequence;       /* of `context` tokens, over all groups */
    char problem[256];                  /* why there is none, "" where there is */
};
/* False, with the problem, where the profile does not cover it. `all_layers`: as before groups. */
bool vllm_pool(struct vllm_pool *pool, const struct scan *scan, const struct kv_way *way, bool all_layers,
               int64_t context, int64_t batch_tokens);
uint64_t vllm_pool_tokens(const struct vllm_pool *pool, uint64_t blocks); /* as vLLM prints its capacity */
uint64_t vllm_pool_token_bytes(const struct vllm_pool *pool);             /* of a token of that capacity */

/* As the log says so far: the block, the cache's type and ranks (false: the type is not known), and the pool, for
   numbers that no context matters to. */
int64_t vllm_block_size(const struct scan *scan);
bool vllm_way(const struct scan *scan, struct kv_way *way);
bool vllm_pool_now(struct vllm_pool *pool, const struct scan *scan, const struct kv_way *way);

/* ---- readlog_count.c: vLLM's counts against the memory printed before ---------------------------------------------
 */

struct vllm_count {
    uint64_t count; /* as reported */
    bool of_tokens; /* else of blocks */
    const struct printed *amount;
    const struct byte_unit *unit;
};
/* Appends why there are more or fewer than the memory and the formula give. */
void vllm_explain_count(const struct scan *scan, struct readlog_row *row, const struct vllm_count *check,
                        const struct kv_way *way);
/* Verdict, formula and reason of a capacity in blocks or tokens. */
void vllm_check_count(struct scan *scan, struct readlog_row *row, const struct printed *printed, bool of_tokens);

/* ---- readlog_kv.c again */

/* The type of the cache: the user's, else the one of this name in the log, else the model's own. NULL where the log
   names one that is not known. */
const struct plan_type *kv_type_of(const struct scan *scan, const char *name);

/* Appends the likely reason why an amount for `tokens` tokens is not what `way` gives, found by computing it in other
   ways. */
void explain_amount(const struct scan *scan, struct readlog_row *row, const struct printed *printed,
                    const struct byte_unit *unit, const struct kv_way *way, uint64_t tokens);

#endif
