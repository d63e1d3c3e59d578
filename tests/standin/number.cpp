/* Rounding to small float formats, to nearest, ties to even. */
#include "include/cuda_fp8.h"

/* The bits of a format without special values: units of the last place, counted from 0. A normal number has
   2^mantissa_bits units for its leading bit, which is the exponent field's first step; rounding up to the next power of
   two carries into the exponent by itself. */
static double round_units(double magnitude, int mantissa_bits, int bias)
{
    int exponent;
    frexp(magnitude, &exponent); /* magnitude = [0.5, 1) * 2^exponent */
    exponent--;
    if (magnitude == 0 || exponent < 1 - bias)
        exponent = 1 - bias; /* a subnormal number has the smallest exponent */
    return nearbyint(ldexp(magnitude, mantissa_bits - exponent)) + ldexp(exponent + bias - 1, mantissa_bits);
}

uint32_t standin_round(double magnitude, int mantissa_bits, int exponent_bits)
{
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    double bits = isinf(magnitude) ? infinity : round_units(magnitude, mantissa_bits, (1 << (exponent_bits - 1)) - 1);
    return bits >= infinity ? infinity : (uint32_t)bits;
}

/* E4M3's last exponent is not special, except that all ones are NaN. */
__nv_fp8_storage_t standin_e4m3_from_double(double value, __nv_saturation_t saturate)
{
    if (isnan(value))
        return 0x7f;
    unsigned sign = signbit(value) ? 0x80 : 0, largest = 0x7e, nan = 0x7f;
    double bits = isinf(value) ? nan : round_units(fabs(value), 3, 7);
    if (bits > largest)
        bits = saturate == __NV_SATFINITE ? largest : nan;
    return (__nv_fp8_storage_t)(sign | (unsigned)bits);
}

float standin_e4m3_to_float(__nv_fp8_storage_t bits)
{
    int exponent = bits >> 3 & 15, fraction = bits & 7;
    if (exponent == 15 && fraction == 7)
        return NAN;
    return (bits & 0x80 ? -1.0f : 1.0f) *
           (float)ldexp(exponent ? fraction + 8 : fraction, (exponent ? exponent : 1) - 7 - 3);
}
