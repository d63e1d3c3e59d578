/* An experiment in this process, on a CPU device whose clock and memory the test sets: what a driver computes from
   times can be worked out by hand, and a fault can be put where the driver must see it. The results lie where those of
   place_run() do (tests/experiment_place.h). */
#ifndef KVLAB_TESTS_STAGED_RUN_H
#define KVLAB_TESTS_STAGED_RUN_H

#include "tests/experiment_place.h"

/* A zeroed stage stages the clock and what the process uses (a constant), and puts no fault anywhere. */
struct stage {
    /* Milliseconds that a pass of `rows` tokens takes whose first sequence then holds `context` positions; NULL: 1/64.
       Multiples of 2^-20 are kept exactly. Nothing else takes time but the passes of ceilings. */
    double (*pass_ms)(int rows, int context);
    double read_gbps; /* the read ceiling that will be measured, 10^9 bytes per second; 1 unless set */
    int fast_passes;  /* so many passes of it are ten times as fast, before it is what it is */

    /* Left in the ledger by every pass that ends in a wait, while the cache holds something. */
    uint64_t left_bytes;
    enum ledger_tag left_tag;

    /* Once the cache holds this many bytes, the config has twice as many layers until that row is written: what is
       then said by formula is twice what tensors and ledger hold. 0: never. */
    uint64_t doubled_at_kv_bytes;

    /* What the process is said to use: a constant and, of the KV bytes in the ledger, this share. Negative: unknown. */
    double driver_share;

    bool interrupted; /* SIGINT arrives in the first pass that begins when the CSV exists */
};

/* Runs `kvlab run <line>`, with device, folder and, where a device is needed, model as place_run() does; returns its
   exit status. */
int staged_run(const char *line, const struct stage *stage);

/* What it wrote to stdout and stderr; the caller frees. */
char *staged_stdout(void);
char *staged_stderr(void);

/* The same in a process of its own, which a signal may end: *ended is as waitpid() gives it. The test program's main()
   must hand over to staged_child() when it has arguments. */
void staged_run_interrupted(const char *program, const char *line, int *ended);
int staged_child(int argc, char **argv);

#endif
