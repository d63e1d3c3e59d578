/* The device interface: memory, events, memory information, and the operations of a forward pass.
   Two implementations: kernels/cpu (C) and kernels/cuda (CUDA C). The engine calls a device only through this header.

   Conventions
   - "device memory" is memory that alloc() gave; on the CPU it is ordinary memory, on a GPU the host must not touch it.
     Every pointer in an operation's arguments is device memory unless its comment says host.
   - Shapes are row-major, outermost first: x[rows][in] has its `in` values adjacent.
   - "working type" is the type of the weights (f32, f16 or bf16). What enters a product is in the working type, sums
   are taken in f32, and products come out as f32 or in the working type (out_dtype).
   - Operations are asynchronous: they are ordered among themselves, and done only after synchronize() or a download().
   - A device is used from one thread at a time. */
#ifndef KVLAB_KERNELS_DEVICE_H
#define KVLAB_KERNELS_DEVICE_H

#include "kernels/dtype.h"
#include "kernels/errors.h"

#ifdef __cplusplus
extern "C" {
#endif

struct device;
struct device_event;
struct device_probes;

/* Memory as seen from outside, in bytes. */
struct device_memory {
    uint64_t free_bytes; /* what could still be allocated: GPU free memory; CPU MemAvailable under its cgroup limit */
    uint64_t process_bytes; /* what this process uses: resident pages on a CPU, per-process use on a GPU */
    int process_known;      /* 0 where process_bytes cannot be had */
};

/* What a device is, fixed after opening. Fields that a device does not have are 0 or "". */
struct device_info {
    char kind[8];                /* "cpu", "cuda" */
    char name[128];              /* "AMD EPYC 9R14", "NVIDIA H200" */
    char features[256];          /* instruction sets used, or compute capability */
    char driver[64];             /* driver and runtime version */
    int threads;                 /* CPU threads used; 0 on a GPU */
    int multiprocessors;         /* SMs of a GPU; 0 on a CPU */
    size_t l2_bytes;             /* last-level cache (CPU: L3) */
    size_t page_bytes;           /* granularity of alloc(): every allocation really takes a multiple of this */
    uint64_t total_bytes;        /* memory of the device */
    struct device_memory before; /* before anything of the device was opened: on a GPU, before its context; free_bytes 0
                                    where that cannot be had */
};

/* ---- The ragged batch --------------------------------------------------------------------------------------------
   `rows` tokens of `sequences` sequences, the rows of one sequence adjacent and in order. Row r belongs to sequence
   row_sequence[r] and has position positions[r] in it; the rows of sequence s are first_row[s] .. first_row[s+1]-1.
   Before attention the cache holds every position of each sequence up to and including its last row. */
struct device_batch {
    int rows, sequences;
    const int32_t *tokens;       /* [rows] */
    const int32_t *positions;    /* [rows] */
    const int32_t *row_sequence; /* [rows] */
    const int32_t *first_row;    /* [sequences + 1] */
    const int32_t *block_table;  /* [sequences][blocks_per_sequence], block numbers; unused entries are -1 */
    const int32_t *block_size;   /* [sequences], tokens per block (an exact or reserved cache is one large block) */
    int blocks_per_sequence;
    /* The same facts for the host, to choose launches by. */
    const int32_t *host_first_row; /* host [sequences + 1] */
    const int32_t *host_context;   /* host [sequences], positions held once these rows are stored (last position + 1) */
};

/* K and V of one layer. Position p of sequence s lies in block b = block_table[s][p / block_size[s]], slot
   p % block_size[s], and the head_dim values of head h start at element
       ((b * kv_heads + h) * block_size[s] + slot) * head_dim        of k[s], and likewise of v[s];
   where the type has scales (int8), theirs is the element
       (b * kv_heads + h) * block_size[s] + slot                     of k_scale[s] and of v_scale[s]. */
struct device_kv {
    enum dtype dtype;
    void *const *k; /* [sequences] pointers to device memory; the array itself lies in device memory too */
    void *const *v;
    float *const *k_scale, *const *v_scale; /* likewise; NULL where the type has no scales */
};

struct attention_args {
    const struct device_batch *batch;
    struct device_kv kv;
    const float *q;       /* [rows][heads][head_dim] f32, rotated */
    void *out;            /* [rows][heads][head_dim] working type */
    enum dtype out_dtype; /* the working type; bf16 over a bf16 cache: q and the weights may be rounded to it */
    int heads, kv_heads, head_dim; /* query head h reads KV head h / (heads / kv_heads) */
    float scale;                   /* 1 / sqrt(head_dim) */
    int window;                    /* 0: all earlier positions; else position p sees (p - window, p] */
};

/* mass[s][h][p] += sum over rows r of sequence s and query heads of KV head h of the softmax weight that r gives to
   position p: what attention() multiplies V with. One row adds heads / kv_heads in all over the positions that it sees.
 */
struct attention_mass_args {
    const struct device_batch *batch;
    struct device_kv kv; /* V is not read */
    const float *q;      /* [rows][heads][head_dim] f32, rotated */
    float *mass;         /* [sequences][kv_heads][slots] f32, added to; slots past the context are left alone */
    int slots;           /* at least the longest context of the batch */
    int heads, kv_heads, head_dim;
    float scale;
    int window; /* as in attention_args */
};

/* For each sequence s and KV head h the row of position from[s][h], K and V and their scales, onto that of to[s][h];
   -1 in either leaves the head as it is. */
struct kv_move_args {
    const struct device_batch *batch; /* only sequences, block_table, block_size and blocks_per_sequence are read */
    struct device_kv kv;
    const int32_t *from, *to; /* [sequences][kv_heads] positions, below the block table's room */
    int kv_heads, head_dim;
};

struct rope_store_args {
    const struct device_batch *batch;
    struct device_kv kv;
    float *q;             /* [rows][heads][head_dim] f32, rotated in place */
    const float *k, *v;   /* [rows][kv_heads][head_dim] f32; k is rotated on its way into the cache */
    const float *cos_sin; /* [rows][head_dim/2][2] as rope_table() made it */
    int heads, kv_heads, head_dim;
};

struct linear_args {
    const void *x;               /* [rows][in] working type */
    const void *weight;          /* [out][in]  working type, as safetensors holds it */
    const void *bias;            /* [out] working type, or NULL */
    void *y;                     /* [rows][out] of out_dtype */
    enum dtype dtype, out_dtype; /* out_dtype is f32 or dtype */
    int rows, in, out;
};

struct rms_norm_args {
    float *residual;       /* [*][hidden] f32, updated in place */
    const float *delta;    /* [*][hidden] f32, added to the residual first, or NULL */
    const int32_t *gather; /* [rows]: row i of out comes from row gather[i] of residual and delta; NULL: row i */
    const void *weight;    /* [hidden] working type */
    void *out;             /* [rows][hidden] working type */
    enum dtype dtype;
    float epsilon;
    int rows, hidden;
};

/* Which token each row of logits gets, by the rules of kernels/sample.h. */
struct sample_args {
    int32_t *index;     /* [rows]; -1 where a logit is not finite */
    const void *logits; /* [rows][vocab] */
    enum dtype dtype;
    int rows, vocab;
    float temperature;      /* > 0 */
    int top_k;              /* 0: all */
    float top_p;            /* 1: all */
    const uint32_t *points; /* [rows] uniform random numbers; may be the memory of index */
};

/* The largest shapes that will be asked for, so that a device can say how much scratch it needs. */
struct workspace_shape {
    enum dtype dtype, kv_dtype;
    int rows, sequences, heads, kv_heads, head_dim, hidden, intermediate, vocab;
};

/* What the launches of a pass depend on, beside the values in the batch and the buffers, which stay where they are. */
struct device_pass {
    int rows, sequences, logits_rows;
    int context; /* the longest of the batch, with its new rows */
    int window;  /* the cache's own, beside those of the model's layers; 0: none */
    int once;    /* 1: it has operations that later passes of this shape have not */
    enum dtype kv_dtype;
    const void *logits; /* where the head writes its logits_rows rows */
    const void *mass;   /* where attention_mass() of the first layer adds to; NULL: the pass has none */
};

struct device_ops {
    /* ---- memory; the ledger is the only caller of alloc and release */
    enum status (*alloc)(struct device *, size_t bytes, void **memory, struct error *); /* aligned to 256 */
    void (*release)(struct device *, void *memory, size_t bytes);
    enum status (*upload)(struct device *, void *device_to, const void *host_from, size_t bytes, struct error *);
    enum status (*download)(struct device *, void *host_to, const void *device_from, size_t bytes, struct error *);
    enum status (*copy)(struct device *, void *to, const void *from, size_t bytes, struct error *); /* no overlap */
    enum status (*memory)(struct device *, struct device_memory *, struct error *);

    /* Fills count values of the given type with seeded uniform random numbers in [-scale, scale); value i depends on
       seed and i alone, never on the number of threads. scale 0 is refused: synthetic weights are never zeros. int8 is
       filled with codes: scale and value are whole steps of +-127, the scales beside them are filled apart. */
    enum status (*fill_random)(struct device *, void *values, enum dtype, size_t count, uint64_t seed, float scale,
                               struct error *);
    enum status (*fill_value)(struct device *, void *values, enum dtype, size_t count, float value, struct error *);

    /* Scratch for the operations below: how much a device needs for the given shapes, and the memory itself, which the
       engine takes from its ledger. Without it (NULL, 0) no operation may be called. */
    size_t (*workspace_bytes)(struct device *, const struct workspace_shape *);
    void (*set_workspace)(struct device *, void *memory, size_t bytes);

    /* A pass: all operations from embed() to the last product, between these two calls. Where `graphs` is set, a device
       may record those of a decode pass (one row per sequence) and replay them for later batches of the same shape,
       without a launch from the host for each: *replayed is then 1, all is under way, and the caller leaves the
       operations out. What was recorded belongs to the workspace that was set then, and is replayed with that one
       alone; set_workspace(NULL, 0) forgets all. pass_end() is told how the operations went; a pass that failed is not
       recorded. */
    enum status (*pass_begin)(struct device *, const struct device_pass *, int *replayed, struct error *);
    enum status (*pass_end)(struct device *, enum status so_far, struct error *);

    /* ---- time: events are recorded in the order of the operations */
    enum status (*event_create)(struct device *, struct device_event **, struct error *);
    void (*event_destroy)(struct device *, struct device_event *);
    enum status (*event_record)(struct device *, struct device_event *, struct error *);
    /* Waits for `end`; milliseconds from start to end. */
    enum status (*event_elapsed_ms)(struct device *, struct device_event *start, struct device_event *end, double *ms,
                                    struct error *);
    enum status (*synchronize)(struct device *, struct error *);

    /* ---- operations */
    /* out[r] = table[tokens[r]] as f32; out [rows][hidden] f32, table [vocab][hidden] working type. */
    enum status (*embed)(struct device *, float *out, const void *table, enum dtype, const int32_t *tokens, int rows,
                         int hidden, struct error *);
    /* residual += delta; out = residual / sqrt(mean(residual^2) + epsilon) * weight      (Zhang & Sennrich 2019) */
    enum status (*rms_norm)(struct device *, const struct rms_norm_args *, struct error *);
    /* y = x weight^T + bias */
    enum status (*linear)(struct device *, const struct linear_args *, struct error *);
    /* cos_sin[r][i] = (cos, sin)(positions[r] * inverse_frequency[i]); cos_sin [rows][half][2], inverse_frequency
       [half] (Su et al. 2021; half = head_dim / 2) */
    enum status (*rope_table)(struct device *, float *cos_sin, const int32_t *positions, const float *inverse_frequency,
                              int rows, int half, struct error *);
    /* Rotates q and k, pairing value i with value i + head_dim/2 as Hugging Face does; writes k and v into the blocks,
       rounded to the cache's type. int8: a row of head_dim values gets scale = largest |value| / 127 and the codes
       nearest to value / scale; a row with a NaN or an infinity reads back as NaNs. */
    enum status (*rope_store)(struct device *, const struct rope_store_args *, struct error *);
    /* softmax(q k^T * scale) v over the cached positions that each row may see          (Vaswani et al. 2017, eq. 1) */
    enum status (*attention)(struct device *, const struct attention_args *, struct error *);
    /* The weights of that softmax, summed over queries: what heavy hitters and persistence of importance go by
       (Zhang et al. 2023, H2O, section 4; Liu et al. 2023, Scissorhands, section 4) */
    enum status (*attention_mass)(struct device *, const struct attention_mass_args *, struct error *);
    /* One row of the cache onto another, per sequence and KV head; one layer */
    enum status (*kv_move)(struct device *, const struct kv_move_args *, struct error *);
    /* out[r][i] = silu(gate[r][i]) * up[r][i]; gate, up [rows][width] f32, out working type     (Shazeer 2020) */
    enum status (*swiglu)(struct device *, void *out, const float *gate, const float *up, enum dtype, int rows,
                          int width, struct error *);
    /* index[r] = the first of the largest of logits[r]; logits [rows][vocab] of the given type */
    enum status (*argmax)(struct device *, int32_t *index, const void *logits, enum dtype, int rows, int vocab,
                          struct error *);
    /* Seeded sampling: the same token on every device for equal logits and points     (Holtzman et al. 2020, 3.1) */
    enum status (*sample)(struct device *, const struct sample_args *, struct error *);

    /* ---- ceilings: reads `bytes` once with all of the device, in the fastest pattern known. *checksum (host memory),
       the sum of the 64-bit words, keeps the reads from being optimised away; it is there after synchronize() or
       event_elapsed_ms(), and must live until then. Bytes is a multiple of 4096. */
    enum status (*read_bytes)(struct device *, const void *memory, size_t bytes, uint64_t *checksum, struct error *);

    void (*close)(struct device *);
};

/* An open device. Implementations embed it as their first member. */
struct device {
    const struct device_ops *ops;
    struct device_info info;
    int graphs; /* replay decode passes where the device can; 1 when opened, to be set by the device's user */
    const struct device_probes *probes; /* kernels/probes.h; NULL where the device has none */
};

/* Opens "cpu", "cuda" or "cuda:N"; NULL or "auto" takes cuda where a driver and a device answer, else cpu.
   threads: CPU threads, 0 for all that this process may run on. Status 2 for an unknown name, 3 if it cannot be had.
   Close it with device->ops->close(device). */
enum status device_open(const char *name, int threads, struct device **device, struct error *error);

#ifdef __cplusplus
}
#endif
#endif
