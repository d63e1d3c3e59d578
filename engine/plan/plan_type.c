#include "engine/plan/plan_type.h"

#include "engine/plan/plan_count.h"

#include <stdio.h>
#include <string.h>

/* Blocks of llama.cpp: ggml/src/ggml-common.h, block_q8_0 (a half scale and 32 bytes), block_q4_0 (half, 16 bytes),
   block_q4_1 (two halves, 16 bytes), block_q5_0 (half, 4 bytes of fifth bits, 16 bytes), block_q5_1 (two halves, 4,
   16), block_q2_K .. block_q6_K (256 values). mxfp4: 32 values of 4 bits under one 8-bit exponent (OCP Microscaling
   Formats 1.0). int8: a byte per value and one f32 scale per head and token, as vLLM's int8_per_token_head
   (vllm/v1/kv_cache_interface.py, AttentionSpec.page_size_bytes). fp8 has one scale per tensor, which is left out. */
static const struct plan_type types[] = {
    {"f32", 1, 4, 0, true, true, "4 bytes"},
    {"f16", 1, 2, 0, true, true, "2 bytes"},
    {"bf16", 1, 2, 0, true, true, "2 bytes"},
    {"fp8", 1, 1, 0, true, true, "1 byte"},
    {"int8", 1, 1, 4, true, true, "1 byte, and a f32 scale per row"},
    {"q8_0", 32, 34, 0, true, true, "34 bytes per 32 values"},
    {"q5_1", 32, 24, 0, true, true, "24 bytes per 32 values"},
    {"q5_0", 32, 22, 0, true, true, "22 bytes per 32 values"},
    {"q4_1", 32, 20, 0, true, true, "20 bytes per 32 values"},
    {"q4_0", 32, 18, 0, true, true, "18 bytes per 32 values"},
    {"iq4_nl", 32, 18, 0, true, true, "18 bytes per 32 values"},
    {"mxfp4", 32, 17, 0, false, true, "17 bytes per 32 values"},
    {"q6_k", 256, 210, 0, false, true, "210 bytes per 256 values"},
    {"q5_k", 256, 176, 0, false, true, "176 bytes per 256 values"},
    {"q4_k", 256, 144, 0, false, true, "144 bytes per 256 values"},
    {"q3_k", 256, 110, 0, false, true, "110 bytes per 256 values"},
    {"q2_k", 256, 84, 0, false, true, "84 bytes per 256 values"},
};
enum { TYPES = sizeof types / sizeof types[0] };

/* Other names of the same storage. */
static const struct {
    const char *alias, *name;
} aliases[] = {
    {"float32", "f32"}, {"fp32", "f32"},      {"float16", "f16"},  {"fp16", "f16"},
    {"half", "f16"},    {"bfloat16", "bf16"}, {"fp8_e4m3", "fp8"}, {"fp8_e5m2", "fp8"},
};

const char *plan_type_names(char *to, uint64_t size, bool for_cache)
{
    uint64_t used = 0;
    to[0] = '\0';
    for (int i = 0; i < TYPES; i++)
        if ((for_cache ? types[i].is_cache : types[i].is_weights) && used < size)
            used += (uint64_t)snprintf(to + used, size - used, "%s%s", used ? ", " : "", types[i].name);
    return to;
}

enum status plan_type_find(const struct plan_type **type, const char *name, const char *option, bool for_cache,
                           struct error *error)
{
    char known[256];
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (strcmp(aliases[i].alias, name) == 0)
            name = aliases[i].name;
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, name) == 0 && (for_cache ? types[i].is_cache : types[i].is_weights)) {
            *type = &types[i];
            return STATUS_OK;
        }
    return error_set(error, STATUS_INPUT, "--%s: unknown type \"%s\"; it is one of %s", option, name,
                     plan_type_names(known, sizeof known, for_cache));
}

uint64_t plan_type_bytes(const struct plan_type *type, uint64_t rows, uint64_t width, bool *overflow)
{
    uint64_t row = count_mul(overflow, count_units(width, type->block_values), type->block_bytes);
    return count_mul(overflow, rows, count_add(overflow, row, type->row_scale_bytes));
}

bool plan_type_divides(const struct plan_type *type, uint64_t width)
{
    return width % type->block_values == 0;
}
