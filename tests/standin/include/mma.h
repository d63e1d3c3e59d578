/* nvcuda::wmma: a warp's matrix product, 16-bit inputs, f32 or f16 sums. Which lane holds which element is not said by
   CUDA, and is different here: element e of the matrix, counted by rows, is x[e / 32] of lane e % 32. */
#ifndef STANDIN_MMA_H
#define STANDIN_MMA_H

#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda
{
namespace wmma
{

struct matrix_a {
};
struct matrix_b {
};
struct accumulator {
};
struct row_major {
};
struct col_major {
};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int m, int n, int k, typename T, typename Layout = void> struct fragment {
    static constexpr bool is_a = std::is_same_v<Use, matrix_a>, is_b = std::is_same_v<Use, matrix_b>;
    static_assert((m == 16 && n == 16 && k == 16) || (m == 32 && n == 8 && k == 16) || (m == 8 && n == 32 && k == 16),
                  "a shape that tensor cores have for 16-bit inputs");
    static_assert(sizeof(T) == 2 || (!is_a && !is_b), "16-bit inputs");
    static constexpr int rows = is_b ? k : m, columns = is_a ? k : n;
    static constexpr int num_elements = rows * columns / 32;
    typedef T element_type;
    T x[num_elements];
};

/* All lanes of the warp must come to each of these. */
static inline void standin_together(const char *what, const char *file, int line)
{
    standin_warp_collective(what, STANDIN_FULL_MASK, nullptr, nullptr, file, line);
}

/* Calls f(element of the fragment, index in memory) for the elements of this lane. */
template <typename Fragment, typename F>
void standin_each(Fragment &fragment, const void *memory, unsigned leading, bool by_rows, const char *what, F f)
{
    typedef typename Fragment::element_type T;
    if ((size_t)memory % 32 || leading * sizeof(T) % 16)
        standin_misaligned_matrix(what, memory, leading);
    for (int i = 0; i < Fragment::num_elements; i++) {
        unsigned e = (unsigned)i * 32 + standin_lane();
        unsigned row = e / (unsigned)Fragment::columns, column = e % (unsigned)Fragment::columns;
        f(fragment.x[i], by_rows ? row * leading + column : column * leading + row);
    }
}

template <typename Fragment, typename T> void fill_fragment(Fragment &fragment, const T &value)
{
    for (auto &element : fragment.x)
        element = (typename Fragment::element_type)value;
}

template <typename Use, int m, int n, int k, typename T, typename Layout>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout> &a, const T *memory, unsigned leading, STANDIN_PLACE)
{
    standin_together("load_matrix_sync", file, line);
    standin_each(a, memory, leading, std::is_same_v<Layout, row_major>, "load_matrix_sync",
                 [memory](T &element, unsigned at) { element = memory[at]; });
}

template <int m, int n, int k, typename T>
void load_matrix_sync(fragment<accumulator, m, n, k, T> &a, const T *memory, unsigned leading, layout_t layout,
                      STANDIN_PLACE)
{
    standin_together("load_matrix_sync", file, line);
    standin_each(a, memory, leading, layout == mem_row_major, "load_matrix_sync",
                 [memory](T &element, unsigned at) { element = memory[at]; });
}

template <int m, int n, int k, typename T>
void store_matrix_sync(T *memory, const fragment<accumulator, m, n, k, T> &a, unsigned leading, layout_t layout,
                       STANDIN_PLACE)
{
    standin_together("store_matrix_sync", file, line);
    standin_each(a, memory, leading, layout == mem_row_major, "store_matrix_sync",
                 [memory](const T &element, unsigned at) { memory[at] = element; });
}

template <typename D, typename A, typename B, typename C> struct standin_mma_lane {
    D *d;
    const A *a;
    const B *b;
    const C *c;
};

/* d = a b + c: exact products, summed in double, rounded once. */
template <typename D, typename A, typename B, typename C> void standin_mma(void *lanes[32])
{
    typedef standin_mma_lane<D, A, B, C> lane;
    standin_whole_warp("mma_sync", lanes);
    auto holder = [lanes](int e) { return (lane *)lanes[e % 32]; };
    D results[32];
    for (int e = 0; e < D::rows * D::columns; e++) {
        double sum = (double)(float)holder(e)->c->x[e / 32];
        for (int i = 0; i < A::columns; i++) {
            int in_a = e / D::columns * A::columns + i, in_b = i * B::columns + e % D::columns;
            sum += (double)(float)holder(in_a)->a->x[in_a / 32] * (double)(float)holder(in_b)->b->x[in_b / 32];
        }
        results[e % 32].x[e / 32] = (typename D::element_type)sum;
    }
    for (int i = 0; i < 32; i++)
        *((lane *)lanes[i])->d = results[i]; /* last: d may be c */
}

template <int m, int n, int k, typename TD, typename T, typename LA, typename LB, typename TC>
void mma_sync(fragment<accumulator, m, n, k, TD> &d, const fragment<matrix_a, m, n, k, T, LA> &a,
              const fragment<matrix_b, m, n, k, T, LB> &b, const fragment<accumulator, m, n, k, TC> &c, STANDIN_PLACE)
{
    typedef fragment<accumulator, m, n, k, TD> D;
    typedef fragment<matrix_a, m, n, k, T, LA> A;
    typedef fragment<matrix_b, m, n, k, T, LB> B;
    typedef fragment<accumulator, m, n, k, TC> C;
    standin_mma_lane<D, A, B, C> lane = {&d, &a, &b, &c};
    standin_warp_collective("mma_sync", STANDIN_FULL_MASK, &lane, standin_mma<D, A, B, C>, file, line);
}

} // namespace wmma
} // namespace nvcuda
#endif
