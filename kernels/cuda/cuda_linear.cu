/* Products y = x weight^T + bias: few rows go to kernels of our own, many to cuBLAS. */
#include "kernels/cuda/types.cuh"

/* What cuBLAS asks for, as its manual says: 32 MiB from capability 9.0 on, 4 MiB before. Only where rows can go to it.
 */
size_t cuda_linear_workspace(const struct cuda_device *cuda, const struct workspace_shape *shape)
{
    if (shape->rows <= CUDA_FEW_ROWS)
        return 0;
    return (size_t)(cuda->capability >= 90 ? 32 : 4) << 20;
}

/* ---- the bias, laid into y before the product adds to it */

enum { THREADS = 256, MOST_ROWS = 65535 };

template <typename T, typename Y>
static __global__ void __launch_bounds__(THREADS) spread_bias(Y *y, const void *bias, int rows, int out)
{
    int o = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (o >= out)
        return;
    Y value = from_f32<Y>(load_any<T>(bias, (size_t)o));
    for (size_t row = blockIdx.y; row < (size_t)rows; row += gridDim.y)
        y[row * (size_t)out + (size_t)o] = value;
}

template <typename T>
static enum status spread(struct cuda_device *cuda, const struct linear_args *args, struct error *error)
{
    dim3 grid(cuda_blocks((size_t)args->out, THREADS),
              (unsigned)(args->rows < (int)MOST_ROWS ? args->rows : (int)MOST_ROWS));
    if (args->out_dtype == DTYPE_F32)
        return KVLAB_LAUNCH(cuda, error, (spread_bias<T, float>), grid, THREADS, 0, static_cast<float *>(args->y),
                            args->bias, args->rows, args->out);
    return KVLAB_LAUNCH(cuda, error, (spread_bias<T, T>), grid, THREADS, 0, static_cast<T *>(args->y), args->bias,
                        args->rows, args->out);
}

static enum status lay_bias(struct cuda_device *cuda, const struct linear_args *args, struct error *error)
{
    if (args->dtype == DTYPE_F32)
        return spread<float>(cuda, args, error);
    if (args->dtype == DTYPE_F16)
        return spread<__half>(cuda, args, error);
    return spread<__nv_bfloat16>(cuda, args, error);
}

/* ---- many rows */

static cudaDataType_t data_type(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? CUDA_R_32F : dtype == DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* cuBLAS counts columns first: our y [rows][out] is its [out x rows], = weight^T [out x in] times x [in x rows].
   Sums in f32 (f32 products too: no TF32 unless asked for). */
static enum status many_rows(struct cuda_device *cuda, const struct linear_args *args, struct error *error)
{
    const float one = 1.0f, beta = args->bias ? 1.0f : 0.0f;
    cudaDataType_t type = data_type(args->dtype);
    if (args->bias && lay_bias(cuda, args, error) != STATUS_OK)
        return error->status;
    CUBLAS_TRY(error, cublasSetWorkspace(cuda->blas, cuda->workspace, cuda->workspace_bytes));
    CUBLAS_TRY(error, cublasGemmEx(cuda->blas, CUBLAS_OP_T, CUBLAS_OP_N, args->out, args->rows, args->in, &one,
                                   args->weight, type, args->in, args->x, type, args->in, &beta, args->y,
                                   data_type(args->out_dtype), args->out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return STATUS_OK;
}

/* cuBLAS takes values at multiples of their size, and bf16 from capability 8.0 on. */
static bool suits_blas(const struct cuda_device *cuda, const struct linear_args *args)
{
    size_t size = dtype_size(args->dtype);
    return reinterpret_cast<uintptr_t>(args->x) % size == 0 && reinterpret_cast<uintptr_t>(args->weight) % size == 0 &&
           (args->dtype != DTYPE_BF16 || cuda->capability >= 80);
}

/* Rows from which tensor cores are worth their idle columns. */
enum { MMA_ROWS = 5 };

static bool suits_mma(const struct cuda_device *cuda, const struct linear_args *args)
{
    return args->rows >= MMA_ROWS && args->dtype != DTYPE_F32 && cuda->capability >= 80 && args->in % 8 == 0 &&
           reinterpret_cast<uintptr_t>(args->x) % 16 == 0 && reinterpret_cast<uintptr_t>(args->weight) % 16 == 0;
}

enum status cuda_linear(struct device *device, const struct linear_args *args, struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    if (args->rows > CUDA_FEW_ROWS && suits_blas(cuda, args))
        return many_rows(cuda, args, error);
    struct linear_args part = *args;
    for (int first = 0; first < args->rows; first += CUDA_FEW_ROWS) {
        size_t row = (size_t)first;
        part.rows = args->rows - first < CUDA_FEW_ROWS ? args->rows - first : CUDA_FEW_ROWS;
        part.x = static_cast<const char *>(args->x) + row * (size_t)args->in * dtype_size(args->dtype);
        part.y = static_cast<char *>(args->y) + row * (size_t)args->out * dtype_size(args->out_dtype);
        enum status status =
            suits_mma(cuda, &part) ? cuda_few_rows_mma(cuda, &part, error) : cuda_few_rows(cuda, &part, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}
