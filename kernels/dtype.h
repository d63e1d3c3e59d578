/* Number types of weights, caches and logits, and their conversions from and to f32; rounding is to nearest, ties to
   even (IEEE 754).

   f32, f16 and bf16 serve everywhere, the last two held as uint16_t bit patterns. Two types of one byte serve caches
   alone:
     fp8   E4M3 of the OCP 8-bit Floating Point Specification 1.0: 1 sign, 4 exponent (bias 7) and 3 fraction bits; no
           infinity, 0x7f and 0xff are NaN; what lies beyond +-448 becomes +-448, a NaN 0x7f, as CUDA's saturating
           conversion has it
     int8  codes -127 .. 127 times an f32 scale, which the values of one KV head and token share:
           scale = largest |value| / 127. The scales lie in tensors of their own. */
#ifndef KVLAB_KERNELS_DTYPE_H
#define KVLAB_KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_INT8, DTYPE_COUNT };
enum { DTYPE_WORKING_COUNT = DTYPE_BF16 + 1 }; /* those before are types of weights and logits too */

size_t dtype_size(enum dtype dtype);       /* bytes per value */
size_t dtype_scale_size(enum dtype dtype); /* bytes per KV head and token beside its values: 4 for int8, else 0 */
const char *dtype_name(enum dtype dtype);  /* "f32", "f16", "bf16", "fp8", "int8" */

float bf16_to_f32(uint16_t bits);
uint16_t bf16_from_f32(float value);
float f16_to_f32(uint16_t bits);
uint16_t f16_from_f32(float value);
float fp8_to_f32(uint8_t bits);
uint8_t fp8_from_f32(float value);

/* The scale of int8 codes for values of which `largest` is the largest magnitude, and the code of one of them. A scale
   of 0 (values too small for one) gives codes of 0, and a scale that is no finite number as well: it is then read back
   as NaN. */
float int8_scale(float largest);
int8_t int8_from_f32(float value, float scale);

/* values[index] of an array of the given type; of int8 the code, as a whole number in +-127. */
float dtype_load(enum dtype dtype, const void *values, size_t index);
void dtype_store(enum dtype dtype, void *values, size_t index, float value);

#ifdef __cplusplus
}
#endif
#endif
