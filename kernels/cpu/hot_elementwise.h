/* Bodies of the element-wise hot loops, over the vector primitives that the including variant has chosen. Everything is
   static, so that nothing compiled for one instruction set can be linked into another's path. */
#ifndef KVLAB_KERNELS_CPU_HOT_ELEMENTWISE_H
#define KVLAB_KERNELS_CPU_HOT_ELEMENTWISE_H

#include "kernels/cpu/cpu_hot.h"

#include <math.h>
#include <string.h>

VEC_INLINE size_t hot_size(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : dtype <= DTYPE_BF16 ? 2 : 1;
}
VEC_INLINE const void *hot_at(enum dtype dtype, const void *values, size_t index)
{
    return (const char *)values + index * hot_size(dtype);
}

VEC_INLINE vec hot_load(enum dtype dtype, const void *from)
{
    switch (dtype) {
    case DTYPE_F32:
        return vec_load_f32(from);
    case DTYPE_F16:
        return vec_load_f16(from);
    case DTYPE_FP8_E4M3:
        return vec_load_fp8(from);
    case DTYPE_INT8:
        return vec_load_int8(from);
    default:
        return vec_load_bf16(from);
    }
}

/* Stores of one byte a value are not on a hot path: the compilers' vector extension serves every variant. */
typedef uint32_t hot_bits __attribute__((vector_size(VL * 4)));
typedef uint8_t hot_bytes __attribute__((vector_size(VL)));

VEC_INLINE hot_bits hot_select(hot_bits mask, hot_bits a, hot_bits b)
{
    return (a & mask) | (b & ~mask);
}
/* fp8_from_f32(), lane by lane */
VEC_INLINE void hot_store_fp8(void *to, vec a)
{
    const vec unit = vec_set1(0x1p14f); /* its last place is 2^-9, the smallest fp8 */
    hot_bits bits = (hot_bits)a, magnitude = bits & 0x7fffffffu;
    hot_bits rounded = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
    hot_bits units = (hot_bits)vec_add((vec)magnitude, unit) - (hot_bits)unit;
    hot_bits code = hot_select((hot_bits)(magnitude < 0x3c800000u), units, rounded);
    code = hot_select((hot_bits)(magnitude >= 0x43e00000u), (hot_bits){0} + 0x7e, code) | (bits >> 24 & 0x80u);
    code = hot_select((hot_bits)(magnitude > 0x7f800000u), (hot_bits){0} + 0x7f, code);
    hot_bytes bytes = __builtin_convertvector(code, hot_bytes);
    memcpy(to, &bytes, sizeof bytes);
}
/* Whole numbers in [-127, 127] after rounding: adding 1.5 * 2^23 leaves them in the low bits. */
VEC_INLINE void hot_store_int8(void *to, vec a)
{
    hot_bits bits = (hot_bits)vec_add(a, vec_set1(0x1.8p23f));
    hot_bytes bytes = __builtin_convertvector(bits, hot_bytes);
    memcpy(to, &bytes, sizeof bytes);
}

VEC_INLINE void hot_store(enum dtype dtype, void *to, vec a)
{
    switch (dtype) {
    case DTYPE_F32:
        vec_store_f32(to, a);
        break;
    case DTYPE_F16:
        vec_store_f16(to, a);
        break;
    case DTYPE_FP8_E4M3:
        hot_store_fp8(to, a);
        break;
    case DTYPE_INT8:
        hot_store_int8(to, a);
        break;
    default:
        vec_store_bf16(to, a);
        break;
    }
}

/* The first `count` < VL lanes; the others are 0 and nothing past them is read or written. */
VEC_INLINE vec hot_load_part(enum dtype dtype, const void *from, size_t count)
{
    float buffer[VL] = {0};
    memcpy(buffer, from, count * hot_size(dtype));
    return hot_load(dtype, buffer);
}
VEC_INLINE void hot_store_part(enum dtype dtype, void *to, vec a, size_t count)
{
    float buffer[VL];
    hot_store(dtype, buffer, a);
    memcpy(to, buffer, count * hot_size(dtype));
}
VEC_INLINE vec hot_load_upto(enum dtype dtype, const void *from, size_t count)
{
    return count >= VL ? hot_load(dtype, from) : hot_load_part(dtype, from, count);
}
VEC_INLINE void hot_store_upto(enum dtype dtype, void *to, vec a, size_t count)
{
    if (count >= VL)
        hot_store(dtype, to, a);
    else
        hot_store_part(dtype, to, a, count);
}

/* 2^x for x <= 127, 0 below -126.5; relative error under 3e-7. 2^x = 2^n 2^f, n the nearest whole number: the Taylor
   series of 2^f on [-1/2, 1/2] has left 1.2e-7 after the sixth power. The operand order lets a NaN through. */
VEC_INLINE vec vec_exp2(vec x)
{
    x = vec_max(vec_set1(-127.0f), x);
    vec n = vec_round(x), f = vec_sub(x, n);
    vec p = vec_set1(1.5403530e-4f);
    p = vec_fma(p, f, vec_set1(1.3333558e-3f));
    p = vec_fma(p, f, vec_set1(9.6181291e-3f));
    p = vec_fma(p, f, vec_set1(5.5504109e-2f));
    p = vec_fma(p, f, vec_set1(2.4022651e-1f));
    p = vec_fma(p, f, vec_set1(6.9314718e-1f));
    p = vec_fma(p, f, vec_set1(1.0f));
    return vec_scale_exponent(p, n);
}

VEC_INLINE void hot_to_f32(enum dtype dtype, float *to, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i += VL)
        hot_store_upto(DTYPE_F32, to + i, hot_load_upto(dtype, hot_at(dtype, from, i), count - i), count - i);
}
VEC_INLINE void hot_from_f32(enum dtype dtype, void *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i += VL)
        hot_store_upto(dtype, (char *)to + i * hot_size(dtype), hot_load_upto(DTYPE_F32, from + i, count - i),
                       count - i);
}

static void to_f32_f32(float *to, const void *from, size_t count)
{
    memcpy(to, from, count * sizeof *to);
}
static void to_f32_f16(float *to, const void *from, size_t count)
{
    hot_to_f32(DTYPE_F16, to, from, count);
}
static void to_f32_bf16(float *to, const void *from, size_t count)
{
    hot_to_f32(DTYPE_BF16, to, from, count);
}
static void from_f32_f32(void *to, const float *from, size_t count)
{
    memcpy(to, from, count * sizeof *from);
}
static void from_f32_f16(void *to, const float *from, size_t count)
{
    hot_from_f32(DTYPE_F16, to, from, count);
}
static void from_f32_bf16(void *to, const float *from, size_t count)
{
    hot_from_f32(DTYPE_BF16, to, from, count);
}

static void from_f32_fp8(void *to, const float *from, size_t count)
{
    hot_from_f32(DTYPE_FP8_E4M3, to, from, count);
}

/* A row as int8 codes under one scale, which is returned. A NaN or an infinity times 0 makes the scale a NaN. */
static float hot_quantize(void *to, const float *from, size_t count)
{
    const vec zero = vec_set1(0.0f);
    vec most = zero, taint = zero;
    for (size_t i = 0; i < count; i += VL) {
        vec a = hot_load_upto(DTYPE_F32, from + i, count - i);
        most = vec_max(vec_max(a, vec_sub(zero, a)), most);
        taint = vec_fma(a, zero, taint);
    }
    float scale = int8_scale(vec_largest(most)) + vec_sum(taint);
    if (!(scale > 0.0f)) {
        memset(to, 0, count);
        return scale;
    }
    const vec divisor = vec_set1(scale), limit = vec_set1(127.0f);
    for (size_t i = 0; i < count; i += VL) {
        vec code = vec_div(hot_load_upto(DTYPE_F32, from + i, count - i), divisor);
        code = vec_max(vec_sub(zero, limit), vec_min(limit, code));
        hot_store_upto(DTYPE_INT8, (char *)to + i, code, count - i);
    }
    return scale;
}

static void hot_rms_norm(float *residual, const float *delta, const void *weight, void *out, enum dtype dtype,
                         float epsilon, size_t hidden)
{
    vec squares = vec_set1(0.0f);
    for (size_t i = 0; i < hidden; i += VL) {
        size_t left = hidden - i;
        vec r = hot_load_upto(DTYPE_F32, residual + i, left);
        if (delta) {
            r = vec_add(r, hot_load_upto(DTYPE_F32, delta + i, left));
            hot_store_upto(DTYPE_F32, residual + i, r, left);
        }
        squares = vec_fma(r, r, squares);
    }
    vec factor = vec_set1(1.0f / sqrtf(vec_sum(squares) / (float)hidden + epsilon));
    for (size_t i = 0; i < hidden; i += VL) {
        size_t left = hidden - i;
        vec w = hot_load_upto(dtype, hot_at(dtype, weight, i), left);
        vec r = vec_mul(hot_load_upto(DTYPE_F32, residual + i, left), factor);
        hot_store_upto(dtype, (char *)out + i * hot_size(dtype), vec_mul(r, w), left);
    }
}

/* silu(g) = g / (1 + 2^(-g log2 e)); the exponent stops at 126, where the quotient is below 1e-35 */
static void hot_swiglu(void *out, const float *gate, const float *up, enum dtype dtype, size_t count)
{
    const vec one = vec_set1(1.0f), minus_log2e = vec_set1(-0x1.715476p0f);
    for (size_t i = 0; i < count; i += VL) {
        size_t left = count - i;
        vec g = hot_load_upto(DTYPE_F32, gate + i, left), u = hot_load_upto(DTYPE_F32, up + i, left);
        vec power = vec_exp2(vec_min(vec_set1(126.0f), vec_mul(g, minus_log2e)));
        vec silu = vec_div(g, vec_add(one, power));
        hot_store_upto(dtype, (char *)out + i * hot_size(dtype), vec_mul(silu, u), left);
    }
}

static void hot_rotate(float *to, const float *x, const float *cos_sin, size_t half)
{
    for (size_t i = 0; i < half; i++) {
        float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], low = x[i], high = x[i + half];
        to[i] = low * c - high * s;
        to[i + half] = high * c + low * s;
    }
}

/* First the largest value, then where it first stands: both passes in vectors, the second one stops early. */
static size_t hot_argmax(const void *values, enum dtype dtype, size_t count)
{
    vec most = vec_set1(-INFINITY);
    size_t whole = count / VL * VL;
    for (size_t i = 0; i < whole; i += VL)
        most = vec_max(hot_load(dtype, hot_at(dtype, values, i)), most);
    float largest = vec_largest(most);
    for (size_t i = whole; i < count; i++) {
        float value = dtype_load(dtype, values, i);
        largest = value > largest ? value : largest;
    }
    for (size_t i = 0; i < whole; i += VL) {
        float lane[VL];
        vec_store_f32(lane, hot_load(dtype, hot_at(dtype, values, i)));
        for (size_t j = 0; j < VL; j++) {
            if (lane[j] == largest)
                return i + j;
        }
    }
    for (size_t i = whole; i < count; i++) {
        if (dtype_load(dtype, values, i) == largest)
            return i;
    }
    return 0; /* nothing but NaNs */
}

/* Two rounds of multiply and xor-shift over a 32-bit counter (Steele & Vigna 2021 study such mixers), with keys from
   the seed and the counter's upper half between them; the top 24 bits, signed, make the value. */
static void hot_random(void *values, enum dtype dtype, uint64_t first, size_t count, uint64_t seed, float scale)
{
    uint64_t key = (seed + 0x9e3779b97f4a7c15u) ^ ((first >> 32) * 0xd1342543de82ef95u);
    key = (key ^ (key >> 32)) * 0xd6e8feb86659fd93u;
    key = (key ^ (key >> 32)) * 0xd6e8feb86659fd93u;
    uint32_t key0 = (uint32_t)(key >> 32), key1 = (uint32_t)key, low = (uint32_t)first;
    float unit = scale * 0x1p-23f, buffer[256];
    for (size_t done = 0; done < count; done += 256) {
        size_t part = count - done < 256 ? count - done : 256;
        for (size_t i = 0; i < 256; i++) {
            uint32_t x = (low + (uint32_t)(done + i)) ^ key0;
            x ^= x >> 16;
            x *= 0x7feb352du;
            x = (x ^ x >> 15) + key1;
            x *= 0x846ca68bu;
            x ^= x >> 16;
            x *= 0x9e3779b1u;
            buffer[i] = (float)((int32_t)x >> 8) * unit;
        }
        hot_from_f32(dtype, (char *)values + done * hot_size(dtype), buffer, part);
    }
}

/* Words are added in any order: 64-bit addition does not round. */
typedef uint64_t hot_words __attribute__((vector_size(VL * 4), aligned(8)));
static uint64_t hot_read4(const void *memory, size_t stride_bytes, size_t bytes)
{
    const char *at = memory;
    hot_words sum[8] = {0};
    for (size_t offset = 0; offset < bytes; offset += 2 * VL * 4) {
        for (size_t stream = 0; stream < 4; stream++) {
            hot_words a, b;
            memcpy(&a, at + stream * stride_bytes + offset, sizeof a);
            memcpy(&b, at + stream * stride_bytes + offset + sizeof a, sizeof b);
            sum[2 * stream] += a;
            sum[2 * stream + 1] += b;
        }
    }
    uint64_t total = 0;
    for (size_t i = 0; i < 8; i++) {
        for (size_t j = 0; j < VL / 2; j++)
            total += sum[i][j];
    }
    return total;
}

#endif
