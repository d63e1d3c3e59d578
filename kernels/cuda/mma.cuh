/* The tensor cores: one warp multiplies a 16 x 16 by a 16 x 8 matrix of 16-bit values and adds to 16 x 8 f32 sums.

   Lane = 4 g + t holds (PTX manual, mma.m16n8k16; lower half of a word first)
     a[0]: row g,     columns 2t, 2t+1        a[2]: row g,     columns 2t+8, 2t+9
     a[1]: row g + 8, columns 2t, 2t+1        a[3]: row g + 8, columns 2t+8, 2t+9
     b[0]: rows 2t, 2t+1 of column g          b[1]: rows 2t+8, 2t+9 of column g
     c[0], c[1]: row g, columns 2t, 2t+1      c[2], c[3]: row g + 8, columns 2t, 2t+1

   The order of the 16 inner indices is free as long as a and b agree. So a lane takes 8 adjacent values (16 bytes) of a
   row where two products want 4 + 4 scattered ones: words 0 and 1 serve the first product, words 2 and 3 the second. */
#ifndef KVLAB_KERNELS_CUDA_MMA_CUH
#define KVLAB_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/types.cuh"

enum { MMA_CAPABILITY = 80 }; /* bf16 and this shape come with 8.0 */

#ifdef __CUDACC__

template <typename T> static __device__ inline void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
template <> __device__ inline void mma<__half>(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
#if KVLAB_ARCH >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
template <> __device__ inline void mma<__nv_bfloat16>(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
#if KVLAB_ARCH >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* An 8 x 8 matrix of 16-bit values, lane 4 g + t holding columns 2t, 2t+1 of row g, turned over its diagonal. */
static __device__ inline uint32_t transpose_8x8(uint32_t word)
{
#if KVLAB_ARCH >= 800
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(word));
#endif
    return word;
}

#else /* the same for the stand-in: the last lane that comes does the work for all */

struct mma_lane {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

template <typename T> static void mma_of_warp(void *lanes[32])
{
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float sum = static_cast<struct mma_lane *>(lanes[lane])->c[i];
            for (int k = 0; k < 16; k += 2) {
                int holder = k % 8 / 2;
                const struct mma_lane *of_a = static_cast<struct mma_lane *>(lanes[row % 8 * 4 + holder]);
                const struct mma_lane *of_b = static_cast<struct mma_lane *>(lanes[column * 4 + holder]);
                float2 a = unpack<T>(of_a->a[row / 8 + k / 8 * 2]), b = unpack<T>(of_b->b[k / 8]);
                sum += a.x * b.x + a.y * b.y;
            }
            static_cast<struct mma_lane *>(lanes[lane])->c[i] = sum;
        }
    }
}

template <typename T> static void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    struct mma_lane mine = {c, a, {b0, b1}};
    standin_warp_collective("mma", 0xffffffffu, &mine, mma_of_warp<T>, __FILE__, __LINE__);
}

static inline void transpose_of_warp(void *lanes[32])
{
    uint32_t before[32];
    for (int lane = 0; lane < 32; lane++)
        before[lane] = *static_cast<uint32_t *>(lanes[lane]);
    for (int lane = 0; lane < 32; lane++) {
        int row = lane / 4, column = lane % 4 * 2; /* of the result: element (i, j) was (j, i) */
        uint32_t low = before[column * 4 + row / 2] >> (row % 2 * 16) & 0xffffu;
        uint32_t high = before[(column + 1) * 4 + row / 2] >> (row % 2 * 16) & 0xffffu;
        *static_cast<uint32_t *>(lanes[lane]) = low | high << 16;
    }
}

static inline uint32_t transpose_8x8(uint32_t word)
{
    standin_warp_collective("transpose_8x8", 0xffffffffu, &word, transpose_of_warp, __FILE__, __LINE__);
    return word;
}

#endif

/* The words of a 16-byte load, as an array that unrolled loops can index. */
struct words {
    uint32_t word[4];
};
static __device__ inline struct words words_of(uint4 loaded)
{
    return {{loaded.x, loaded.y, loaded.z, loaded.w}};
}

/* The lower, or the upper, halves of two words side by side. */
static __device__ inline uint32_t lower_halves(uint32_t first, uint32_t second)
{
    return __byte_perm(first, second, 0x5410);
}
static __device__ inline uint32_t upper_halves(uint32_t first, uint32_t second)
{
    return __byte_perm(first, second, 0x7632);
}

#endif
