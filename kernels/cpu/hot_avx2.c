/* The variant for AVX2, FMA and F16C; compiled with these switched on. */
#include "kernels/cpu/cpu_hot.h"

#if defined(__x86_64__)
#include "kernels/cpu/vec_avx2.h"

#define HOT_NAME "avx2"
#include "kernels/cpu/hot_table.h"

const struct cpu_hot *const hot_avx2 = &table;
#else
const struct cpu_hot *const hot_avx2 = NULL;
#endif
