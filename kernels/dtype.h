/* Number types of weights, caches and logits, and their conversions from and to f32.
   bf16 and f16 are held as uint16_t bit patterns; rounding is to nearest, ties to even (IEEE 754). */
#ifndef KVLAB_KERNELS_DTYPE_H
#define KVLAB_KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16 };

size_t dtype_size(enum dtype dtype);      /* bytes per value */
const char *dtype_name(enum dtype dtype); /* "f32", "f16", "bf16" */

float bf16_to_f32(uint16_t bits);
uint16_t bf16_from_f32(float value);
float f16_to_f32(uint16_t bits);
uint16_t f16_from_f32(float value);

/* values[index] of an array of the given type. */
float dtype_load(enum dtype dtype, const void *values, size_t index);
void dtype_store(enum dtype dtype, void *values, size_t index, float value);

#ifdef __cplusplus
}
#endif
#endif
