/* The table of a variant, to be included last; HOT_NAME is its name. */
#include "kernels/cpu/hot_attention.h"
#include "kernels/cpu/hot_elementwise.h"
#include "kernels/cpu/hot_linear.h"

static const struct cpu_hot table = {
    .name = HOT_NAME,
    .to_f32 = {to_f32_f32, to_f32_f16, to_f32_bf16},
    .from_f32 = {from_f32_f32, from_f32_f16, from_f32_bf16, from_f32_fp8},
    .quantize = hot_quantize,
    .dot = {dot_f32, dot_f16, dot_bf16},
#if defined(VEC_HAS_PAIRS)
    .dot_x = {DTYPE_F32, DTYPE_F32, DTYPE_BF16},
#else
    .dot_x = {DTYPE_F32, DTYPE_F32, DTYPE_F32},
#endif
    .attend = hot_attend,
    .mass = hot_mass,
    .rms_norm = hot_rms_norm,
    .swiglu = hot_swiglu,
    .rotate = hot_rotate,
    .argmax = hot_argmax,
    .random = hot_random,
    .read4 = hot_read4,
};
