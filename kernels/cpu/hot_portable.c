/* The variant for any processor. */
#include "kernels/cpu/vec_portable.h"

#define HOT_NAME       "portable"
#define HOT_DOT_BF16   dot_bf16
#define HOT_DOT_BF16_X DTYPE_F32
#include "kernels/cpu/hot_table.h"

const struct cpu_hot *const hot_portable = &table;
