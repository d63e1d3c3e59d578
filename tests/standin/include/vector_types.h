/* CUDA's vector types: x, y, z, w with CUDA's sizes and alignments. */
#ifndef STANDIN_VECTOR_TYPES_H
#define STANDIN_VECTOR_TYPES_H

#define STANDIN_VECTORS(type, name, align2, align4)                                                                    \
    struct name##1                                                                                                     \
    {                                                                                                                  \
        type x;                                                                                                        \
    };                                                                                                                 \
    struct __attribute__((aligned(align2))) name##2                                                                    \
    {                                                                                                                  \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    struct name##3                                                                                                     \
    {                                                                                                                  \
        type x, y, z;                                                                                                  \
    };                                                                                                                 \
    struct __attribute__((aligned(align4))) name##4                                                                    \
    {                                                                                                                  \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    typedef struct name##1 name##1;                                                                                    \
    typedef struct name##2 name##2;                                                                                    \
    typedef struct name##3 name##3;                                                                                    \
    typedef struct name##4 name##4;

STANDIN_VECTORS(signed char, char, 2, 4)
STANDIN_VECTORS(unsigned char, uchar, 2, 4)
STANDIN_VECTORS(short, short, 4, 8)
STANDIN_VECTORS(unsigned short, ushort, 4, 8)
STANDIN_VECTORS(int, int, 8, 16)
STANDIN_VECTORS(unsigned, uint, 8, 16)
STANDIN_VECTORS(long, long, 16, 16)
STANDIN_VECTORS(unsigned long, ulong, 16, 16)
STANDIN_VECTORS(long long, longlong, 16, 16)
STANDIN_VECTORS(unsigned long long, ulonglong, 16, 16)
STANDIN_VECTORS(float, float, 8, 16)
STANDIN_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
#endif
};
typedef struct dim3 dim3;

#ifdef __cplusplus
#define STANDIN_MAKE(type, name)                                                                                       \
    static inline name##1 make_##name##1(type x)                                                                       \
    {                                                                                                                  \
        return {x};                                                                                                    \
    }                                                                                                                  \
    static inline name##2 make_##name##2(type x, type y)                                                               \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    static inline name##3 make_##name##3(type x, type y, type z)                                                       \
    {                                                                                                                  \
        return {x, y, z};                                                                                              \
    }                                                                                                                  \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                                               \
    {                                                                                                                  \
        return {x, y, z, w};                                                                                           \
    }
STANDIN_MAKE(signed char, char)
STANDIN_MAKE(unsigned char, uchar)
STANDIN_MAKE(short, short)
STANDIN_MAKE(unsigned short, ushort)
STANDIN_MAKE(int, int)
STANDIN_MAKE(unsigned, uint)
STANDIN_MAKE(long, long)
STANDIN_MAKE(unsigned long, ulong)
STANDIN_MAKE(long long, longlong)
STANDIN_MAKE(unsigned long long, ulonglong)
STANDIN_MAKE(float, float)
STANDIN_MAKE(double, double)
#endif
#endif
