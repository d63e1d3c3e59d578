/* The variant for AVX-512 with bf16 dot products: as the AVX-512 one, but bf16 products take x in bf16 and multiply
   pairs. */
#include "kernels/cpu/cpu_hot.h"

#if defined(__x86_64__)
#define VEC_HAS_PAIRS
#include "kernels/cpu/vec_avx512.h"

#define HOT_NAME "avx512_bf16"
#include "kernels/cpu/hot_table.h"

const struct cpu_hot *const hot_avx512bf16 = &table;
#else
const struct cpu_hot *const hot_avx512bf16 = NULL;
#endif
