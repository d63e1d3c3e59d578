#include "kernels/dtype.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[DTYPE_COUNT] = {[DTYPE_F32] = {"f32", 4},
                        [DTYPE_F16] = {"f16", 2},
                        [DTYPE_BF16] = {"bf16", 2},
                        [DTYPE_FP8_E4M3] = {"fp8", 1},
                        [DTYPE_INT8] = {"int8", 1}};

size_t dtype_size(enum dtype dtype)
{
    return types[dtype].bytes;
}

size_t dtype_scale_size(enum dtype dtype)
{
    return dtype == DTYPE_INT8 ? sizeof(float) : 0;
}

const char *dtype_name(enum dtype dtype)
{
    return types[dtype].name;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint16_t bf16_from_f32(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u); /* a NaN stays one, quiet */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* f16: 1 sign, 5 exponent (bias 15), 10 fraction bits; f32: 1, 8 (bias 127), 23. Subnormal f16 are fraction * 2^-24. */
float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
    if (exponent == 31)
        return float_of(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    if (exponent == 0) {
        float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t f16_from_f32(float value)
{
    uint32_t bits = bits_of(value);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) /* NaN: quiet, with the top of its payload */
        return (uint16_t)(sign | 0x7e00u | ((bits >> 13) & 0x3ffu));
    if (bits >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) {
        /* Below 2^-14: adding 0.5 leaves the value in units of 2^-24, rounded by the addition itself. */
        uint32_t units = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
        return (uint16_t)(sign | units);
    }
    uint32_t rounded = bits + 0xfffu + ((bits >> 13) & 1u);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

/* fp8: 1 sign, 4 exponent (bias 7), 3 fraction bits. Moved into f32's place an exponent counts 120 too few, which the
   product makes up for exactly, for subnormals too. */
float fp8_to_f32(uint8_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x80u) << 24, magnitude = bits & 0x7fu;
    if (magnitude == 0x7f)
        return float_of(sign | 0x7fc00000u);
    float value = float_of(magnitude << 20) * 0x1p120f;
    return sign ? -value : value;
}

uint8_t fp8_from_f32(float value)
{
    uint32_t bits = bits_of(value);
    uint8_t sign = (uint8_t)((bits >> 24) & 0x80u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return 0x7f;
    if (bits >= 0x43e00000u) /* 448, the largest there is */
        return sign | 0x7e;
    if (bits < 0x3c800000u) {
        /* Below 2^-6: adding 2^14 leaves the value in units of 2^-9, rounded by the addition itself. */
        uint32_t units = bits_of(float_of(bits) + 0x1p14f) - bits_of(0x1p14f);
        return (uint8_t)(sign | units);
    }
    uint32_t rounded = bits + 0x7ffffu + ((bits >> 20) & 1u);
    return (uint8_t)(sign | ((rounded >> 20) - (120u << 3)));
}

float int8_scale(float largest)
{
    return largest / 127.0f;
}

int8_t int8_from_f32(float value, float scale)
{
    if (!(scale > 0.0f && isfinite(scale)))
        return 0;
    return (int8_t)fminf(fmaxf(nearbyintf(value / scale), -127.0f), 127.0f);
}

/* Arrays may start on any byte (weights mapped from a file do): hence memcpy. */
float dtype_load(enum dtype dtype, const void *values, size_t index)
{
    const char *at = (const char *)values + index * dtype_size(dtype);
    if (dtype == DTYPE_F32) {
        float value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (dtype == DTYPE_FP8_E4M3)
        return fp8_to_f32((uint8_t)*at);
    if (dtype == DTYPE_INT8)
        return (float)(int8_t)*at;
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return dtype == DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void dtype_store(enum dtype dtype, void *values, size_t index, float value)
{
    char *at = (char *)values + index * dtype_size(dtype);
    if (dtype == DTYPE_F32) {
        memcpy(at, &value, sizeof value);
        return;
    }
    if (dtype == DTYPE_FP8_E4M3 || dtype == DTYPE_INT8) {
        *at = dtype == DTYPE_INT8 ? (char)int8_from_f32(value, 1.0f) : (char)fp8_from_f32(value);
        return;
    }
    uint16_t bits = dtype == DTYPE_F16 ? f16_from_f32(value) : bf16_from_f32(value);
    memcpy(at, &bits, sizeof bits);
}
