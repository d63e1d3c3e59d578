/* The variant for any processor. */
#include "kernels/cpu/vec_portable.h"

#define HOT_NAME "portable"
#include "kernels/cpu/hot_table.h"

const struct cpu_hot *const hot_portable = &table;
