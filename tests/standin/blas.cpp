/* cuBLAS: products as written, with sums in double, rounded once at the end. */
#include "include/cublas_v2.h"
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "internal.h"

struct cublasContext {
    cudaStream_t stream;
};

namespace standin
{

struct matrix {
    char *memory;
    cudaDataType type;
    long long leading, stride; /* elements from column to column, and from batch to batch */
    int rows, columns;         /* as stored */
};

struct product {
    matrix a, b, c;
    bool transpose_a, transpose_b;
    int k, batches;
    float alpha, beta;
};

static size_t size_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static float load(const matrix &m, size_t index)
{
    if (m.type == CUDA_R_32F)
        return ((const float *)m.memory)[index];
    uint16_t bits = ((const uint16_t *)m.memory)[index];
    return m.type == CUDA_R_16F ? standin_f16_format::load(bits) : standin_bf16_format::load(bits);
}

static bool unwritten(const matrix &m, size_t index)
{
    if (m.type == CUDA_R_32F)
        return ((const uint32_t *)m.memory)[index] == STANDIN_POISON * 0x10001u;
    return ((const uint16_t *)m.memory)[index] == STANDIN_POISON;
}

static void store(const matrix &m, size_t index, double value)
{
    if (m.type == CUDA_R_32F)
        ((float *)m.memory)[index] = (float)value;
    else
        ((uint16_t *)m.memory)[index] =
            m.type == CUDA_R_16F ? standin_f16_format::store_double(value) : standin_bf16_format::store_double(value);
}

/* The k values that every row of op(A), or column of op(B), is summed over, adjacent. */
static std::vector<float> gather(const matrix &m, const char *name, int batch, bool k_is_columns)
{
    std::vector<float> values((size_t)m.rows * (size_t)m.columns);
    size_t base = (size_t)(m.stride * batch);
    for (int column = 0; column < m.columns; column++)
        for (int row = 0; row < m.rows; row++) {
            size_t from = base + (size_t)m.leading * (size_t)column + (size_t)row;
            if (unwritten(m, from))
                fail("cublasGemm: %s holds memory that was never written (row %d, column %d)", name, row, column);
            size_t to = k_is_columns ? (size_t)row * (size_t)m.columns + (size_t)column
                                     : (size_t)column * (size_t)m.rows + (size_t)row;
            values[to] = load(m, from);
        }
    return values;
}

static void check_range(const matrix &m, const char *name, int batches)
{
    long long last = m.stride * (batches - 1) + m.leading * (m.columns - 1) + m.rows;
    if (!device_range(m.memory, (size_t)last * size_of(m.type)))
        fail("cublasGemm: %s, %d x %d, does not lie in one allocation of device memory", name, m.rows, m.columns);
}

static double dot(const float *x, const float *y, int k)
{
    double sums[4] = {};
    int i = 0;
    for (; i + 4 <= k; i += 4)
        for (int j = 0; j < 4; j++)
            sums[j] += (double)x[i + j] * (double)y[i + j];
    for (; i < k; i++)
        sums[0] += (double)x[i] * (double)y[i];
    return sums[0] + sums[1] + (sums[2] + sums[3]);
}

static void multiply(const product &p)
{
    device_open();
    if (p.k > 0) {
        check_range(p.a, "A", p.batches);
        check_range(p.b, "B", p.batches);
    }
    check_range(p.c, "C", p.batches);
    for (int batch = 0; batch < p.batches; batch++) {
        std::vector<float> a = gather(p.a, "A", batch, !p.transpose_a), b = gather(p.b, "B", batch, p.transpose_b);
        for (int column = 0; column < p.c.columns; column++)
            for (int row = 0; row < p.c.rows; row++) {
                size_t at = (size_t)(p.c.stride * batch + p.c.leading * column + row);
                double value =
                    (double)p.alpha * dot(&a[(size_t)row * (size_t)p.k], &b[(size_t)column * (size_t)p.k], p.k);
                if (p.beta != 0)
                    value += (double)p.beta * (double)load(p.c, at);
                store(p.c, at, value);
            }
    }
    device_close("cublasGemm");
}

static bool supported(cudaDataType a, cudaDataType b, cudaDataType c, cublasComputeType_t compute)
{
    bool inputs = a == b && (a == CUDA_R_32F || a == CUDA_R_16F || a == CUDA_R_16BF);
    bool sums =
        compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
        (a == CUDA_R_32F && (compute == CUBLAS_COMPUTE_32F_FAST_TF32 || compute == CUBLAS_COMPUTE_32F_FAST_16BF ||
                             compute == CUBLAS_COMPUTE_32F_FAST_16F));
    return inputs && sums && (c == CUDA_R_32F || c == a);
}

} // namespace standin

using namespace standin;

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int m, int n, int k, const void *alpha, const void *A, cudaDataType Atype,
                                          int lda, long long stride_a, const void *B, cudaDataType Btype, int ldb,
                                          long long stride_b, const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long stride_c, int batches, cublasComputeType_t compute,
                                          cublasGemmAlgo_t)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    bool ta = transa != CUBLAS_OP_N, tb = transb != CUBLAS_OP_N;
    if (m < 0 || n < 0 || k < 0 || batches < 0 || !alpha || !beta || lda < std::max(1, ta ? k : m) ||
        ldb < std::max(1, tb ? n : k) || ldc < std::max(1, m))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(Atype, Btype, Ctype, compute))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m == 0 || n == 0 || batches == 0)
        return CUBLAS_STATUS_SUCCESS;
    product p = {{(char *)A, Atype, lda, stride_a, ta ? k : m, ta ? m : k},
                 {(char *)B, Btype, ldb, stride_b, tb ? n : k, tb ? k : n},
                 {(char *)C, Ctype, ldc, stride_c, m, n},
                 ta,
                 tb,
                 k,
                 batches,
                 *(const float *)alpha,
                 *(const float *)beta};
    cudaError_t error = enqueue(handle->stream, {cudaGraphNodeTypeKernel, "cublasGemm",
                                                 [p] { multiply(p), cupti_kernel("cublasGemm"); }, nullptr});
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void *alpha, const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C, cudaDataType Ctype, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta,
                                      C, Ctype, ldc, 0, 1, compute, algo);
}

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    if (!handle)
        return CUBLAS_STATUS_INVALID_VALUE;
    *handle = nullptr;
    if (!allocation_allowed())
        return CUBLAS_STATUS_ALLOC_FAILED;
    *handle = new cublasContext();
    object_count(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    object_count(-1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion(cublasHandle_t, int *version)
{
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t *stream)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

/* Nothing is stored there; where it lies is checked, as cuBLAS checks its alignment. */
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (workspace && ((size_t)workspace % 256 || !device_range(workspace, bytes)))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t)
{
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "CUBLAS_STATUS unknown";
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    default:
        return cublasGetStatusName(status);
    }
}
