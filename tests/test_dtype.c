/* Number types: every pattern of f16, bf16 and fp8, every code of int8, rounding at ties, and odd addresses. */
#include "kernels/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* The value of a pattern by IEEE 754's definition, in double. */
static double value_of(uint16_t bits, int exponent_bits, int fraction_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    double fraction = bits & ((1 << fraction_bits) - 1), sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction > 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(1.0 + ldexp(fraction, -fraction_bits), exponent - bias);
}

static void check_every_pattern(enum dtype dtype, int exponent_bits, int fraction_bits)
{
    for (unsigned pattern = 0; pattern < 0x10000; pattern++) {
        uint16_t bits = (uint16_t)pattern;
        double expected = value_of(bits, exponent_bits, fraction_bits);
        float value = dtype_load(dtype, &bits, 0);
        uint16_t back;
        dtype_store(dtype, &back, 0, value);
        if (isnan(expected)) {
            if (!isnan(value) || !isnan(dtype_load(dtype, &back, 0)))
                fail_msg("%s 0x%04x: a NaN became %g", dtype_name(dtype), pattern, (double)value);
        } else if ((double)value != expected || back != bits) {
            fail_msg("%s 0x%04x: read as %g instead of %g, written back as 0x%04x", dtype_name(dtype), pattern,
                     (double)value, expected, (unsigned)back);
        }
    }
}

static void test_every_pattern(void **state)
{
    (void)state;
    check_every_pattern(DTYPE_F16, 5, 10);
    check_every_pattern(DTYPE_BF16, 8, 7);
}

/* Between two neighbouring patterns: just below, at and just above the middle; the middle goes to the even one. */
static void check_rounding(enum dtype dtype, unsigned last_finite)
{
    for (unsigned pattern = 0; pattern < last_finite; pattern++) {
        uint16_t low = (uint16_t)pattern, high = (uint16_t)(pattern + 1), got[3];
        float a = dtype_load(dtype, &low, 0), b = dtype_load(dtype, &high, 0);
        float middle = (float)(((double)a + (double)b) / 2);
        if ((double)middle != ((double)a + (double)b) / 2)
            continue; /* no f32 lies there: f32's own subnormals */
        dtype_store(dtype, got, 0, nextafterf(middle, 0.0f));
        dtype_store(dtype, got, 1, middle);
        dtype_store(dtype, got, 2, nextafterf(middle, INFINITY));
        if (got[0] != low || got[1] != (pattern % 2 ? high : low) || got[2] != high)
            fail_msg("%s between 0x%04x and 0x%04x: rounded to 0x%04x, 0x%04x, 0x%04x", dtype_name(dtype),
                     (unsigned)low, (unsigned)high, (unsigned)got[0], (unsigned)got[1], (unsigned)got[2]);
    }
}

static void test_rounding(void **state)
{
    (void)state;
    check_rounding(DTYPE_F16, 0x7bff);
    check_rounding(DTYPE_BF16, 0x7f7f);
}

static void test_overflow_and_tiny(void **state)
{
    (void)state;
    assert_int_equal(f16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(f16_from_f32(-1e30f), 0xfc00);
    assert_int_equal(f16_from_f32(-INFINITY), 0xfc00);
    assert_int_equal(f16_from_f32(0x1p-25f), 0); /* half of the smallest: a tie, to even */
    assert_int_equal(f16_from_f32(-0x1.8p-25f), 0x8001);
    assert_int_equal(f16_from_f32(-0.0f), 0x8000);
    assert_int_equal(bf16_from_f32(3.4028235e38f), 0x7f80); /* the largest f32 */
    assert_int_equal(bf16_from_f32(-INFINITY), 0xff80);
    assert_true(isnan(bf16_to_f32(bf16_from_f32(NAN))));
}

/* ---- one byte */

/* e4m3 by its definition: no infinity, so its last exponent counts like the others, but for all ones. */
static double fp8_value(unsigned bits)
{
    int exponent = (int)(bits >> 3 & 15), fraction = (int)(bits & 7);
    double magnitude = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    return (bits & 0x7f) == 0x7f ? (double)NAN : bits & 0x80 ? -magnitude : magnitude;
}

static void test_every_fp8(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 256; bits++) {
        double expected = fp8_value(bits);
        float value = fp8_to_f32((uint8_t)bits);
        uint8_t back = fp8_from_f32(value);
        if (isnan(expected) ? !isnan(value) || back != 0x7f : (double)value != expected || back != bits)
            fail_msg("fp8 0x%02x: read as %g instead of %g, written back as 0x%02x", bits, (double)value, expected,
                     (unsigned)back);
    }
    /* worked by hand: smallest, smallest normal, one, the largest of the exponent below, the largest */
    assert_true(fp8_to_f32(0x01) == 0x1p-9f && fp8_to_f32(0x08) == 0x1p-6f && fp8_to_f32(0x38) == 1.0f);
    assert_true(fp8_to_f32(0x77) == 240.0f && fp8_to_f32(0x7e) == 448.0f && fp8_to_f32(0xfe) == -448.0f);
}

static void test_fp8_rounding(void **state)
{
    (void)state;
    for (unsigned low = 0; low < 0x7e; low++) {
        float middle = (fp8_to_f32((uint8_t)low) + fp8_to_f32((uint8_t)(low + 1))) / 2;
        uint8_t got[] = {fp8_from_f32(nextafterf(middle, 0.0f)), fp8_from_f32(middle),
                         fp8_from_f32(nextafterf(middle, INFINITY)), fp8_from_f32(-middle)};
        unsigned even = low % 2 ? low + 1 : low;
        if (got[0] != low || got[1] != even || got[2] != low + 1 || got[3] != (even | 0x80))
            fail_msg("fp8 between 0x%02x and 0x%02x: rounded to 0x%02x, 0x%02x, 0x%02x, 0x%02x", low, low + 1,
                     (unsigned)got[0], (unsigned)got[1], (unsigned)got[2], (unsigned)got[3]);
    }
    const struct {
        float value;
        unsigned bits;
    } ends[] = {{448.0f, 0x7e},   {464.0f, 0x7e},    {479.0f, 0x7e},   {1e30f, 0x7e},           {-1e30f, 0xfe},
                {INFINITY, 0x7e}, {-INFINITY, 0xfe}, {0x1p-10f, 0x00}, {0x1.000002p-10f, 0x01}, {-0x1p-10f, 0x80},
                {-0.0f, 0x80},    {NAN, 0x7f},       {-NAN, 0x7f}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (fp8_from_f32(ends[i].value) != ends[i].bits)
            fail_msg("fp8: %a became 0x%02x instead of 0x%02x", (double)ends[i].value,
                     (unsigned)fp8_from_f32(ends[i].value), ends[i].bits);
}

/* Codes and their scale: the largest value is 127 or -127 scales, the others the nearest whole number of them. */
static void test_int8(void **state)
{
    (void)state;
    for (int code = -127; code <= 127; code++) {
        float scale = int8_scale(3.0f), value = (float)code * scale;
        char byte;
        assert_int_equal(int8_from_f32(value, scale), code);
        dtype_store(DTYPE_INT8, &byte, 0, (float)code);
        assert_true(dtype_load(DTYPE_INT8, &byte, 0) == (float)code);
    }
    assert_true(int8_scale(254.0f) == 2.0f);
    assert_int_equal(int8_from_f32(3.0f, 2.0f), 2); /* 1.5 and 2.5: ties, to even */
    assert_int_equal(int8_from_f32(5.0f, 2.0f), 2);
    assert_int_equal(int8_from_f32(-5.1f, 2.0f), -3);
    assert_int_equal(int8_from_f32(1000.0f, 2.0f), 127);
    assert_int_equal(int8_from_f32(-1000.0f, 2.0f), -127);
    assert_int_equal(int8_from_f32(1.0f, 0.0f), 0);
    assert_int_equal(int8_from_f32(1.0f, NAN), 0);
    assert_int_equal(int8_from_f32(1.0f, INFINITY), 0);
}

static void test_odd_addresses(void **state)
{
    (void)state;
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++) {
        char memory[64];
        float value = type == DTYPE_INT8 ? -2.0f : -1.5f;
        memset(memory, 0x5a, sizeof memory);
        dtype_store(type, memory + 1, 3, value);
        assert_true(dtype_load(type, memory + 1, 3) == value);
        size_t begin = 1 + 3 * dtype_size(type), end = begin + dtype_size(type);
        for (size_t i = 0; i < sizeof memory; i++) {
            if (i < begin || i >= end)
                assert_int_equal(memory[i], 0x5a);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(dtype_name(DTYPE_F32), "f32");
    assert_string_equal(dtype_name(DTYPE_F16), "f16");
    assert_string_equal(dtype_name(DTYPE_BF16), "bf16");
    assert_int_equal(dtype_size(DTYPE_F32), 4);
    assert_int_equal(dtype_size(DTYPE_F16), 2);
    assert_int_equal(dtype_size(DTYPE_BF16), 2);
    assert_string_equal(dtype_name(DTYPE_FP8_E4M3), "fp8");
    assert_string_equal(dtype_name(DTYPE_INT8), "int8");
    assert_int_equal(dtype_size(DTYPE_FP8_E4M3), 1);
    assert_int_equal(dtype_size(DTYPE_INT8), 1);
    for (enum dtype type = DTYPE_F32; type < DTYPE_COUNT; type++)
        assert_int_equal(dtype_scale_size(type), type == DTYPE_INT8 ? 4 : 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pattern),     cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_overflow_and_tiny), cmocka_unit_test(test_every_fp8),
        cmocka_unit_test(test_fp8_rounding),      cmocka_unit_test(test_int8),
        cmocka_unit_test(test_odd_addresses),     cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
