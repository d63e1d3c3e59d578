/* The stand-in device: number types against formulas of their own, tensor-core fragments and cuBLAS against plain
   loops. */
#include "tests/standin_test.h"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>

#include <cmath>

/* ---- conversions: a format's numbers in ascending order, by the definition; a value must go to the nearest of them, a
   tie to the one with the even pattern */

struct format {
    int mantissa_bits, exponent_bits, bias;
    bool infinity; /* the last exponent holds infinity and NaN; else only its last number is NaN */
};

static double value_of(const format &f, unsigned bits) /* without sign */
{
    int exponent = (int)(bits >> f.mantissa_bits);
    double fraction = (double)(bits & ((1u << f.mantissa_bits) - 1)) / (1 << f.mantissa_bits);
    return exponent == 0 ? std::pow(2.0, 1 - f.bias) * fraction : std::pow(2.0, exponent - f.bias) * (1 + fraction);
}

/* The patterns below this are finite numbers. */
static unsigned finite(const format &f)
{
    unsigned last = (1u << f.exponent_bits) - 1;
    return f.infinity ? last << f.mantissa_bits : (1u << (f.exponent_bits + f.mantissa_bits)) - 1;
}

/* Values between all neighbours: at the middle, just below and just above it, and on the numbers themselves. */
template <typename Convert> static void check_rounding(const format &f, unsigned past_largest, Convert convert)
{
    unsigned end = finite(f);
    for (unsigned bits = 0; bits < end; bits++) {
        /* the number past the largest is what the formula would give next: from half way on, values overflow */
        double here = value_of(f, bits), next = value_of(f, bits + 1), middle = (here + next) / 2;
        unsigned above = bits + 1 == end ? past_largest : bits + 1;
        for (int sign = 0; sign < 2; sign++) {
            float s = sign ? -1.0f : 1.0f;
            unsigned set = sign ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
            assert_int_equal(convert(s * (float)here), bits | set);
            assert_int_equal(convert(s * (float)middle), (bits % 2 ? above : bits) | set);
            float just_above = std::nextafterf((float)middle, INFINITY), just_below = std::nextafterf((float)middle, 0);
            assert_int_equal(convert(s * just_below), bits | set);
            assert_int_equal(convert(s * just_above), above | set);
        }
    }
}

static const format BF16 = {7, 8, 127, true}, F16 = {10, 5, 15, true}, E4M3 = {3, 4, 7, false};

static void test_bf16(void **)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        float value = __bfloat162float(__ushort_as_bfloat16((unsigned short)bits));
        unsigned magnitude = bits & 0x7fff;
        double sign = bits >> 15 ? -1 : 1;
        if (magnitude > 0x7f80)
            assert_true(std::isnan(value));
        else if (magnitude == 0x7f80)
            assert_true(value == (float)(sign * INFINITY));
        else
            assert_true(value == (float)(sign * value_of(BF16, magnitude)) && std::signbit(value) == (bits >> 15));
    }
    check_rounding(BF16, 0x7f80, [](float v) { return (unsigned)__bfloat16_as_ushort(__float2bfloat16_rn(v)); });
    assert_true(__bfloat16_as_ushort(__float2bfloat16(NAN)) == 0x7fff);
    assert_true(__bfloat16_as_ushort(__float2bfloat16(-INFINITY)) == 0xff80);
}

static void test_f16(void **)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        float value = __half2float(__ushort_as_half((unsigned short)bits));
        unsigned magnitude = bits & 0x7fff;
        double sign = bits >> 15 ? -1 : 1;
        if (magnitude > 0x7c00)
            assert_true(std::isnan(value));
        else if (magnitude == 0x7c00)
            assert_true(value == (float)(sign * INFINITY));
        else
            assert_true(value == (float)(sign * value_of(F16, magnitude)) && std::signbit(value) == (bits >> 15));
    }
    check_rounding(F16, 0x7c00, [](float v) { return (unsigned)__half_as_ushort(__float2half_rn(v)); });
    assert_true(std::isnan(__half2float(__float2half(NAN))));
    assert_true(__half_as_ushort(__float2half(-INFINITY)) == 0xfc00);
    assert_true(__half_as_ushort(__float2half(1e6f)) == 0x7c00);
}

static void test_fp8(void **)
{
    for (unsigned bits = 0; bits < 256; bits++) {
        __nv_fp8_e4m3 number;
        number.__x = (unsigned char)bits;
        float value = (float)number;
        if ((bits & 0x7f) == 0x7f)
            assert_true(std::isnan(value));
        else
            assert_true(value == (float)((bits >> 7 ? -1 : 1) * value_of(E4M3, bits & 0x7f)));
    }
    check_rounding(E4M3, 0x7e, [](float v) { return (unsigned)__nv_fp8_e4m3(v).__x; }); /* saturates at 448 */
    check_rounding(E4M3, 0x7f, [](float v) { return (unsigned)__nv_cvt_float_to_fp8(v, __NV_NOSAT, __NV_E4M3); });
    assert_int_equal(__nv_fp8_e4m3(INFINITY).__x, 0x7e);
    assert_int_equal(__nv_fp8_e4m3(NAN).__x & 0x7f, 0x7f);
}

/* Sums and products of all pairs of some numbers are the exact result rounded once. */
template <typename T> static void check_arithmetic(const format &f, T (*from)(unsigned short), unsigned short (*to)(T))
{
    const unsigned step = 977; /* coprime to the fields' sizes */
    for (unsigned a = 1; a < finite(f); a += step)
        for (unsigned b = 2; b < finite(f); b += step) {
            double x = value_of(f, a), y = value_of(f, b);
            T p = from((unsigned short)a), q = from((unsigned short)b);
            assert_int_equal(to(p * q), to(T(x * y)));
            assert_int_equal(to(p + q), to(T(x + y)));
            assert_int_equal(to(p - q), to(T(x - y)));
            assert_int_equal(to(__hfma(p, q, p)), to(T(x * y + x)));
            assert_true((p < q) == (x < y));
        }
}

static void test_arithmetic(void **)
{
    check_arithmetic<__half>(F16, __ushort_as_half, __half_as_ushort);
    __half2 sum = __hadd2(__floats2half2_rn(1, 2), __float2half2_rn(0.5f));
    assert_true(__low2float(sum) == 1.5f && __high2float(sum) == 2.5f);
    __nv_bfloat162 product = __hmul2(__floats2bfloat162_rn(3, 2), __bfloat162bfloat162(__float2bfloat16(1.5f)));
    assert_true(__bfloat1622float2(product).x == 4.5f && __bfloat1622float2(product).y == 3.0f);
    assert_int_equal(sizeof(__half2), 4);
    assert_int_equal(alignof(__nv_bfloat162), 4);
    assert_int_equal(sizeof(float4) + alignof(float4), 32);
    assert_int_equal(sizeof(float3) + alignof(float3), 16);
    assert_int_equal(__byte_perm(0x33221100u, 0x77665544u, 0x7620), 0x77662200u);
    assert_int_equal(__brev(1), 0x80000000u);
    assert_int_equal(__clz(1), 31);
    assert_int_equal(__ffs(8), 4);
    assert_int_equal(__umulhi(1u << 31, 6), 3);
    assert_true(rsqrtf(16) == 0.25f && __fdividef(3, 2) == 1.5f && __expf(0) == 1);
}

/* ---- tensor cores */

using namespace nvcuda;

template <typename T, typename LA, typename LB>
__global__ void multiply(float *out, const T *a, const T *b, const float *c, unsigned leading)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, LA> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, LB> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums, zero;
    wmma::load_matrix_sync(fa, a, leading);
    wmma::load_matrix_sync(fb, b, leading);
    wmma::load_matrix_sync(sums, c, 16, wmma::mem_row_major);
    wmma::fill_fragment(zero, 0.0f);
    wmma::mma_sync(sums, fa, fb, sums);
    wmma::mma_sync(zero, fa, fb, zero);
    for (int i = 0; i < sums.num_elements; i++)
        sums.x[i] += zero.x[i];
    wmma::store_matrix_sync(out, sums, 16, wmma::mem_col_major);
}

template <typename T> static void check_fragments()
{
    const unsigned leading = 24;
    std::vector<T> a(16 * leading), b(16 * leading);
    std::vector<float> c(256);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = T((float)((int)(i * 7 % 23) - 11) / 4);
        b[i] = T((float)((int)(i * 5 % 29) - 14) / 8);
    }
    for (size_t i = 0; i < 256; i++)
        c[i] = (float)(i % 17);
    T *da = on_device(a), *db = on_device(b);
    float *dc = on_device(c), *out = on_device(c);
    for (int layouts = 0; layouts < 4; layouts++) {
        bool a_rows = layouts & 1, b_rows = layouts & 2;
        auto kernel = layouts == 0   ? multiply<T, wmma::col_major, wmma::col_major>
                      : layouts == 1 ? multiply<T, wmma::row_major, wmma::col_major>
                      : layouts == 2 ? multiply<T, wmma::col_major, wmma::row_major>
                                     : multiply<T, wmma::row_major, wmma::row_major>;
        LAUNCH(kernel, 1, 32, 0, out, da, db, dc, leading);
        std::vector<float> got = on_host(out, 256);
        for (unsigned row = 0; row < 16; row++)
            for (unsigned column = 0; column < 16; column++) {
                float sum = 0; /* exact: small multiples of 1/32 */
                for (unsigned k = 0; k < 16; k++)
                    sum += (float)a[a_rows ? row * leading + k : k * leading + row] *
                           (float)b[b_rows ? k * leading + column : column * leading + k];
                assert_true(got[column * 16 + row] == c[row * 16 + column] + 2 * sum);
            }
    }
    for (void *memory : {(void *)da, (void *)db, (void *)dc, (void *)out})
        CHECK(cudaFree(memory));
}

static void test_fragments(void **)
{
    check_fragments<__half>();
    check_fragments<__nv_bfloat16>();
    assert_caught(
        [] { /* half a warp */
             __half *m = on_device(std::vector<__half>(256, __half(1.0f)));
             float *c = on_device(std::vector<float>(256, 1.0f));
             standin_launch("multiply", multiply<__half, wmma::row_major, wmma::row_major>, 1, 16, 0, nullptr, c, m, m,
                            c, 16u);
             cudaDeviceSynchronize();
        },
        "kernel multiply", "lane 16 takes no part");
    assert_caught(
        [] {
            __half *m = on_device(std::vector<__half>(512, __half(1.0f)));
            float *c = on_device(std::vector<float>(256, 1.0f));
            standin_launch("multiply", multiply<__half, wmma::row_major, wmma::row_major>, 1, 32, 0, nullptr, c, m + 1,
                           m, c, 16u);
            cudaDeviceSynchronize();
        },
        "load_matrix_sync", "least alignment");
}

/* ---- cuBLAS */

static float as_float(const std::vector<char> &bytes, cudaDataType type, size_t index)
{
    if (type == CUDA_R_32F)
        return ((const float *)bytes.data())[index];
    unsigned short bits = ((const unsigned short *)bytes.data())[index];
    return type == CUDA_R_16F ? __half2float(__ushort_as_half(bits)) : __bfloat162float(__ushort_as_bfloat16(bits));
}

static void put(std::vector<char> &bytes, cudaDataType type, size_t index, float value)
{
    if (type == CUDA_R_32F)
        ((float *)bytes.data())[index] = value;
    else
        ((unsigned short *)bytes.data())[index] =
            type == CUDA_R_16F ? __half_as_ushort(__float2half(value)) : __bfloat16_as_ushort(__float2bfloat16(value));
}

static std::vector<char> numbers(cudaDataType type, size_t count, unsigned seed)
{
    std::vector<char> bytes(count * 4);
    for (size_t i = 0; i < count; i++)
        put(bytes, type, i, (float)((int)((i * 2654435761u + seed) >> 7 & 31) - 16) / 8);
    return bytes;
}

static void check_product(cublasHandle_t blas, cudaDataType type, cudaDataType out_type, bool ta, bool tb, int m, int n,
                          int k, float alpha, float beta, int batches)
{
    const int lda = (ta ? k : m) + 3, ldb = (tb ? n : k) + 1, ldc = m + 2;
    const long long sa = lda * (ta ? m : k) + 5, sb = ldb * (tb ? k : n), sc = ldc * n + 1;
    std::vector<char> a = numbers(type, (size_t)(sa * batches), 1), b = numbers(type, (size_t)(sb * batches), 2),
                      c = numbers(out_type, (size_t)(sc * batches), 3);
    char *da = on_device(a), *db = on_device(b), *dc = on_device(c);
    cublasOperation_t op_a = ta ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (batches == 1)
        assert_int_equal(cublasGemmEx(blas, op_a, op_b, m, n, k, &alpha, da, type, lda, db, type, ldb, &beta, dc,
                                      out_type, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                         CUBLAS_STATUS_SUCCESS);
    else
        assert_int_equal(cublasGemmStridedBatchedEx(blas, op_a, op_b, m, n, k, &alpha, da, type, lda, sa, db, type, ldb,
                                                    sb, &beta, dc, out_type, ldc, sc, batches, CUBLAS_COMPUTE_32F,
                                                    CUBLAS_GEMM_DEFAULT),
                         CUBLAS_STATUS_SUCCESS);
    std::vector<char> got = on_host(dc, c.size()), expected = c;
    for (int batch = 0; batch < batches; batch++)
        for (int column = 0; column < n; column++)
            for (int row = 0; row < m; row++) {
                float sum = 0; /* exact in f32: multiples of 1/64 */
                for (int i = 0; i < k; i++)
                    sum += as_float(a, type, (size_t)(sa * batch + (ta ? row * lda + i : i * lda + row))) *
                           as_float(b, type, (size_t)(sb * batch + (tb ? i * ldb + column : column * ldb + i)));
                size_t at = (size_t)(sc * batch + ldc * column + row);
                put(expected, out_type, at, alpha * sum + (beta != 0 ? beta * as_float(c, out_type, at) : 0));
            }
    assert_memory_equal(got.data(), expected.data(), got.size()); /* and nothing between the columns */
    for (char *memory : {da, db, dc})
        CHECK(cudaFree(memory));
}

static void test_products(void **)
{
    cublasHandle_t blas;
    assert_int_equal(cublasCreate(&blas), CUBLAS_STATUS_SUCCESS);
    for (cudaDataType type : {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF})
        for (int form = 0; form < 16; form++) {
            bool ta = form & 1, tb = form & 2;
            cudaDataType out_type = form & 4 ? type : CUDA_R_32F;
            check_product(blas, type, out_type, ta, tb, 7, 5, 9, form & 8 ? 0.5f : 1, form & 8 ? 2 : 0, 1);
            check_product(blas, type, out_type, ta, tb, 3, 1, 2, form & 8 ? 0.5f : 1, form & 8 ? 2 : 0, 3);
        }
    check_product(blas, CUDA_R_16BF, CUDA_R_32F, true, false, 33, 17, 64, 1, 0, 1);
    assert_int_equal(cublasDestroy(blas), CUBLAS_STATUS_SUCCESS);
}

static void test_refused_products(void **)
{
    cublasHandle_t blas;
    standin_fail_allocation(1);
    assert_int_equal(cublasCreate(&blas), CUBLAS_STATUS_ALLOC_FAILED);
    assert_int_equal(cublasCreate(&blas), CUBLAS_STATUS_SUCCESS);
    float one = 1, zero = 0, *m = on_device(std::vector<float>(256, 1.0f));
    auto product = [&](cublasHandle_t handle, int lda, cudaDataType type, cublasComputeType_t compute) {
        return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, m, type, lda, m, CUDA_R_32F, 8, &zero, m,
                            CUDA_R_32F, 8, compute, CUBLAS_GEMM_DEFAULT);
    };
    assert_int_equal(product(nullptr, 8, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_INITIALIZED);
    assert_int_equal(product(blas, 7, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(product(blas, 8, CUDA_R_16F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(product(blas, 8, CUDA_R_32F, CUBLAS_COMPUTE_16F), CUBLAS_STATUS_NOT_SUPPORTED);
    assert_string_equal(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
    assert_int_equal(cublasDestroy(blas), CUBLAS_STATUS_SUCCESS);
    CHECK(cudaFree(m));
}

static void product_of(bool written, int n)
{
    cublasHandle_t blas;
    float one = 1, zero = 0, *a = on_device(std::vector<float>(64, 1.0f)), *b, *c;
    cublasCreate(&blas);
    cudaMalloc(&b, 64 * sizeof *b);
    cudaMalloc(&c, 64 * sizeof *c);
    if (written)
        cudaMemset(b, 0, 64 * sizeof *b);
    cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 8, n, 8, &one, a, CUDA_R_32F, 8, b, CUDA_R_32F, 8, &zero, c,
                 CUDA_R_32F, 8, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    cudaDeviceSynchronize();
    for (float *memory : {a, b, c})
        cudaFree(memory);
    cublasDestroy(blas);
}

static void test_products_are_checked(void **)
{
    product_of(true, 8);
    assert_caught([] { product_of(false, 8); }, "cublasGemm", "B holds memory that was never written");
    assert_caught([] { product_of(true, 9); }, "cublasGemm", "B, 8 x 9, does not lie in one allocation");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_fragments),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_refused_products),
        cmocka_unit_test(test_products_are_checked),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
