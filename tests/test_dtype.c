/* Number types: every f16 and bf16 pattern, rounding at ties, and odd addresses. */
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

static void test_odd_addresses(void **state)
{
    (void)state;
    const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (size_t t = 0; t < 3; t++) {
        char memory[64];
        memset(memory, 0x5a, sizeof memory);
        dtype_store(types[t], memory + 1, 3, -1.5f);
        assert_true(dtype_load(types[t], memory + 1, 3) == -1.5f);
        size_t begin = 1 + 3 * dtype_size(types[t]), end = begin + dtype_size(types[t]);
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pattern), cmocka_unit_test(test_rounding), cmocka_unit_test(test_overflow_and_tiny),
        cmocka_unit_test(test_odd_addresses), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
