/* The table of a variant, to be included last. HOT_NAME: its name; HOT_DOT_BF16 and HOT_DOT_BF16_X: the bf16 product
   and the type of the x it takes. */
#include "kernels/cpu/hot_attention.h"
#include "kernels/cpu/hot_elementwise.h"
#include "kernels/cpu/hot_linear.h"

static const struct cpu_hot table = {
    .name = HOT_NAME,
    .to_f32 = {to_f32_f32, to_f32_f16, to_f32_bf16},
    .from_f32 = {from_f32_f32, from_f32_f16, from_f32_bf16},
    .dot = {dot_f32, dot_f16, HOT_DOT_BF16},
    .dot_x = {DTYPE_F32, DTYPE_F32, HOT_DOT_BF16_X},
    .attend = hot_attend,
    .rms_norm = hot_rms_norm,
    .swiglu = hot_swiglu,
    .rotate = hot_rotate,
    .argmax = hot_argmax,
    .random = hot_random,
    .read4 = hot_read4,
};
