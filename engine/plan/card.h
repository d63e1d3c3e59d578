/* Graphics cards for planning: data/cards/<name>.json. */
#ifndef KVLAB_ENGINE_PLAN_CARD_H
#define KVLAB_ENGINE_PLAN_CARD_H

#include "kernels/errors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct card {
    char name[32];              /* "rtx3060" */
    char title[64];             /* "NVIDIA GeForce RTX 3060 12GB" */
    uint64_t memory_bytes;      /* in all */
    bool memory_reported;       /* as the CUDA runtime reports it; else the nominal size */
    char memory_source[160];    /* who says so */
    uint64_t bandwidth;         /* bytes per second, as published */
    uint64_t flops;             /* dense bf16 (or f16) operations per second, as published */
    char rates_source[256];     /* where */
    char compute_capability[8]; /* "8.6" */
};

/* By the file's name, whatever its case. Status 2: no such card (with the names that exist), or a file that lacks a
 * key. */
enum status card_find(struct card *card, const char *cards_dir, const char *name, struct error *error);
enum status card_read(struct card *card, const char *path, struct error *error);

#endif
