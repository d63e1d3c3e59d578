/* The variant for AVX-512 F, BW, VL and DQ; compiled with these switched on. */
#include "kernels/cpu/cpu_hot.h"

#if defined(__x86_64__)
#include "kernels/cpu/vec_avx512.h"

#define HOT_NAME "avx512"
#include "kernels/cpu/hot_table.h"

const struct cpu_hot *const hot_avx512 = &table;
#else
const struct cpu_hot *const hot_avx512 = NULL;
#endif
