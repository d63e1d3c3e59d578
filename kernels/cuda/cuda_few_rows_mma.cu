/* Products with few rows on tensor cores, for 16-bit types: from about five rows on, plain multiply-adds would take
   longer than the weights to arrive. A block has 16 outputs, whose inner dimension its warps share; rows of x are the
   columns of the products. Every weight is read once, 16 bytes at a time, and serves all rows.
   Bytes moved: as cuda_few_rows.cu. */
#include "kernels/cuda/mma.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, OUTPUTS = 16, STEP = 32, IN_FLIGHT = 4 };

struct product {
    const void *x, *weight, *bias;
    void *y;
    int rows, in, out, y_is_f32;
};

/* 8 values of row `row` of a matrix of 16-bit values, from column k on; zeros outside. */
template <typename T>
static __device__ inline struct words load_row(const void *matrix, int row, int k, int width, bool there, bool once)
{
    const struct words none = {{0, 0, 0, 0}};
    if (!there || k >= width)
        return none;
    const T *at = static_cast<const T *>(matrix) + (size_t)row * (size_t)width + (size_t)k;
    return words_of(once ? load_streaming(at) : *reinterpret_cast<const uint4 *>(at));
}

/* sum[n]: outputs by rows 8 n .. 8 n + 7 of x, over this warp's part of the inner dimension. */
template <typename T, int TILES>
static __device__ inline void multiply(const struct product &args, int first_output, float sum[TILES][4])
{
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    for (int first = warp * STEP; first < args.in; first += IN_FLIGHT * WARPS * STEP) {
        struct words w[IN_FLIGHT][2], x[IN_FLIGHT][TILES];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            const int k = first + i * WARPS * STEP + 8 * t;
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const int output = first_output + g + 8 * part;
                w[i][part] = load_row<T>(args.weight, output, k, args.in, output < args.out, true);
            }
        }
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            const int k = first + i * WARPS * STEP + 8 * t;
#pragma unroll
            for (int n = 0; n < TILES; n++)
                x[i][n] = load_row<T>(args.x, 8 * n + g, k, args.in, 8 * n + g < args.rows, false);
        }
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const uint32_t a[4] = {w[i][0].word[2 * part], w[i][1].word[2 * part], w[i][0].word[2 * part + 1],
                                       w[i][1].word[2 * part + 1]};
#pragma unroll
                for (int n = 0; n < TILES; n++)
                    mma<T>(sum[n], a, x[i][n].word[2 * part], x[i][n].word[2 * part + 1]);
            }
        }
    }
}

template <typename T, int TILES> static __global__ void __launch_bounds__(THREADS, 2) few_rows_mma(struct product args)
{
    __shared__ float partial[WARPS][8 * TILES][OUTPUTS];
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const int first_output = (int)blockIdx.x * OUTPUTS;
    float sum[TILES][4];
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++)
        sum[i / 4][i % 4] = 0.0f;
    multiply<T, TILES>(args, first_output, sum);
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++)
        partial[warp][8 * (i / 4) + 2 * t + i % 2][g + i % 4 / 2 * 8] = sum[i / 4][i % 4];
    __syncthreads();
    const int row = (int)threadIdx.x / OUTPUTS, output = first_output + (int)threadIdx.x % OUTPUTS;
    if (row >= args.rows || row >= 8 * TILES || output >= args.out)
        return;
    float total = args.bias ? load_any<T>(args.bias, (size_t)output) : 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        total += partial[i][row][threadIdx.x % OUTPUTS];
    size_t at = (size_t)row * (size_t)args.out + (size_t)output;
    if (args.y_is_f32)
        static_cast<float *>(args.y)[at] = total;
    else
        static_cast<T *>(args.y)[at] = from_f32<T>(total);
}

template <typename T>
static enum status launch(struct cuda_device *cuda, const struct linear_args *args, struct error *error)
{
    const struct product rows = {args->x,    args->weight, args->bias, args->y,
                                 args->rows, args->in,     args->out,  args->out_dtype == DTYPE_F32};
    const unsigned blocks = cuda_blocks((size_t)args->out, OUTPUTS);
    if (args->rows <= 8)
        return KVLAB_LAUNCH(cuda, error, (few_rows_mma<T, 1>), blocks, THREADS, 0, rows);
    return KVLAB_LAUNCH(cuda, error, (few_rows_mma<T, 2>), blocks, THREADS, 0, rows);
}

enum status cuda_few_rows_mma(struct cuda_device *cuda, const struct linear_args *args, struct error *error)
{
    if (args->dtype == DTYPE_F16)
        return launch<__half>(cuda, args, error);
    return launch<__nv_bfloat16>(cuda, args, error);
}
