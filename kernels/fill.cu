// Random weights. The host makes the same bits (src/kernels/random.rs): element i depends on the seed and i alone.
#include "params.cuh"
#include "element.cuh"

constexpr int kFillThreads = 256;
constexpr int kFillWidth = 8;

// The finaliser of splitmix64 over its counter.
DEV uint64_t scramble(uint64_t seed, uint64_t index) {
  uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Uniform in [-2^23, 2^23) times unit: the integer is exact as a float, and the product is rounded once.
DEV float random_element(uint64_t seed, uint64_t index, float unit) {
  return (float)((int)(scramble(seed, index) >> 40) - (1 << 23)) * unit;
}

// Threads of the grid take turns at pieces of eight elements of out[n].
template <class E> DEV void fill_random(E* out, uint64_t n, uint64_t seed, float unit) {
  const bool vectors = aligned16(out);
  const uint64_t step = (uint64_t)gridDim.x * kFillThreads * kFillWidth;
  for (uint64_t i = ((uint64_t)blockIdx.x * kFillThreads + threadIdx.x) * kFillWidth; i < n; i += step) {
    if (vectors && i + kFillWidth <= n) {
      float v[kFillWidth];
#pragma unroll
      for (int j = 0; j < kFillWidth; ++j) v[j] = random_element(seed, i + j, unit);
      store8(out + i, v);
    } else {
#pragma unroll 1
      for (uint64_t j = i; j < n && j < i + kFillWidth; ++j) out[j] = from_f32<E>(random_element(seed, j, unit));
    }
  }
}

extern "C" __global__ void __launch_bounds__(kFillThreads)
    fill_random_f32(float* out, uint64_t n, uint64_t seed, float unit) {
  after_earlier_launches();
  fill_random(out, n, seed, unit);
}
CUSIM_KERNEL(fill_random_f32)

extern "C" __global__ void __launch_bounds__(kFillThreads)
    fill_random_bf16(bf16* out, uint64_t n, uint64_t seed, float unit) {
  after_earlier_launches();
  fill_random(out, n, seed, unit);
}
CUSIM_KERNEL(fill_random_bf16)
