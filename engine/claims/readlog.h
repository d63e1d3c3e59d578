/* The third source: what another engine printed about its own cache, held against the formula under that engine's
   rules.

   Understood are lines of llama.cpp (and what wraps it), vLLM, SGLang, PyTorch's out-of-memory message, and a saved
   Prometheus page of vLLM. Unknown lines are skipped. Whatever a file holds, reading it ends well: lines of any length,
   NULs, no newline at the end, numbers beyond 64 bits. */
#ifndef KVLAB_ENGINE_CLAIMS_READLOG_H
#define KVLAB_ENGINE_CLAIMS_READLOG_H

#include "engine/claims/printed.h"
#include "engine/plan/shape.h"

enum readlog_verdict {
    READLOG_EXACT,     /* the formula's number to the last bit */
    READLOG_ROUNDED,   /* to the digits printed */
    READLOG_UNIT_SLIP, /* the formula's number in another unit than the one printed */
    READLOG_OFF,       /* another number: ratio says by how much, the reason why if arithmetic finds it */
    READLOG_CAPACITY,  /* room that the engine reserved, which says nothing of use; nothing to hold it against */
    READLOG_USE,       /* what was really in use */
    READLOG_UNCHECKED, /* the log does not give what the formula needs */
};
const char *readlog_verdict_name(enum readlog_verdict verdict); /* "within rounding" */

struct readlog_row {
    size_t line, order; /* in the file, from 1; and among all rows, as they were found */
    const char *engine, *quantity;
    char reported[32]; /* as printed */
    const char *unit;  /* as printed: MiB, tokens ... */
    char formula[32];  /* in that unit; "" where there is none */
    double ratio;      /* reported / formula; NaN where there is none */
    enum readlog_verdict verdict;
    uint64_t implied_bytes_per_token, formula_bytes_per_token; /* 0: the line implies none */
    char reason[512];
};

/* What the user says; the rest is taken from the log. */
struct readlog_options {
    const struct shape *shape;
    const struct plan_type *kv_type; /* NULL: as the log says, else the model's own */
    const char *engine;              /* "llama.cpp", "vllm", "sglang", "pytorch"; NULL: all */
    int64_t context, slots, ranks;   /* asked for; 0: as the log says */
};

struct readlog {
    struct readlog_row *rows;
    size_t count;
    size_t lines;   /* read */
    bool truncated; /* more rows than READLOG_MAX_ROWS: the rest is left out */
};
enum { READLOG_MAX_ROWS = 10000, READLOG_MAX_LINE = 65536 };

/* Status 2: the file cannot be read. Lines are looked at up to READLOG_MAX_LINE bytes. */
enum status readlog_file(struct readlog *log, const char *path, const struct readlog_options *options,
                         struct error *error);
/* The same of `size` bytes in memory. */
enum status readlog_text(struct readlog *log, const char *text, size_t size, const struct readlog_options *options,
                         struct error *error);
void readlog_free(struct readlog *log); /* takes a zeroed one */

extern const char *const readlog_engines[]; /* NULL-terminated */

#endif
