// The keywords and vector types of CUDA C++.
#pragma once
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Shared by the fibers of a block: an OS thread runs one block at a time.
#define __shared__ static thread_local
#define DYN_SMEM(T, name) T* name = reinterpret_cast<T*>(cusim::blk->dynamic_shared)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define CUSIM_VECTORS(T, name)                                                                         \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                   \
  struct name##3 { T x, y, z; };                                                                       \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };                   \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                           \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                   \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUSIM_VECTORS(signed char, char)
CUSIM_VECTORS(unsigned char, uchar)
CUSIM_VECTORS(short, short)
CUSIM_VECTORS(unsigned short, ushort)
CUSIM_VECTORS(int, int)
CUSIM_VECTORS(unsigned, uint)
CUSIM_VECTORS(long long, longlong)
CUSIM_VECTORS(unsigned long long, ulonglong)
CUSIM_VECTORS(float, float)
CUSIM_VECTORS(double, double)
#undef CUSIM_VECTORS
