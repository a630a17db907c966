// Embedding gather and the rotations of a step's positions.
#include "params.cuh"
#include "element.cuh"

constexpr int kEmbedThreads = 256;
constexpr int kRotationThreads = 64;

template <int kWidth, class E> DEV void copy_row(float* out, const E* row, uint32_t width) {
#pragma unroll 2
  for (uint32_t i = threadIdx.x * kWidth; i < width; i += blockDim.x * kWidth) {
    float v[kWidth];
    load_elements<kWidth>(v, row + i);
    store_elements<kWidth>(out + i, v);
  }
}

// Block t writes row tokens[t] of table[V, hidden] to row t of the residual stream out[T, hidden].
template <class E> DEV void embed(float* out, const E* table, const uint32_t* tokens, uint32_t hidden) {
  const E* row = table + (uint64_t)tokens[blockIdx.x] * hidden;
  out += (uint64_t)blockIdx.x * hidden;
  if (hidden % 8 == 0 && aligned16(table) && aligned16(out)) copy_row<8>(out, row, hidden);
  else copy_row<1>(out, row, hidden);
}

struct SinCos {
  float sin, cos;
};

// Of any angle up to 2^30, to about 2^-30: subtracts the nearest multiple of pi/2 in double, then sums the
// series. sinf would do it with a table in local memory for large angles, and __sinf is off by more than f32
// rounding.
DEV SinCos sin_cos(float angle) {
  constexpr double kTwoOverPi = 0.63661977236758134308, kHalfPi = 1.57079632679489655800;
  constexpr double kHalfPiRest = 6.12323399573676603587e-17;
  const double quarters = rint((double)angle * kTwoOverPi);
  const double r = fma(-quarters, kHalfPiRest, fma(-quarters, kHalfPi, (double)angle));
  const double r2 = r * r;
  double sin = 1.0 / 6227020800.0;
  sin = fma(sin, r2, -1.0 / 39916800.0);
  sin = fma(sin, r2, 1.0 / 362880.0);
  sin = fma(sin, r2, -1.0 / 5040.0);
  sin = fma(sin, r2, 1.0 / 120.0);
  sin = fma(sin, r2, -1.0 / 6.0);
  sin = fma(sin * r2, r, r);
  double cos = -1.0 / 87178291200.0;
  cos = fma(cos, r2, 1.0 / 479001600.0);
  cos = fma(cos, r2, -1.0 / 3628800.0);
  cos = fma(cos, r2, 1.0 / 40320.0);
  cos = fma(cos, r2, -1.0 / 720.0);
  cos = fma(cos, r2, 1.0 / 24.0);
  cos = fma(cos, r2, -0.5);
  cos = fma(cos, r2, 1.0);
  const int quadrant = (int)quarters & 3;
  const double s = quadrant & 1 ? cos : sin, c = quadrant & 1 ? sin : cos;
  return {(float)(quadrant & 2 ? -s : s), (float)(quadrant == 1 || quadrant == 2 ? -c : c)};
}

extern "C" __global__ void __launch_bounds__(kEmbedThreads)
    embed_f32(float* out, const float* table, const uint32_t* tokens, uint32_t hidden) {
  after_earlier_launches();
  embed(out, table, tokens, hidden);
}
CUSIM_KERNEL(embed_f32)

extern "C" __global__ void __launch_bounds__(kEmbedThreads)
    embed_bf16(float* out, const bf16* table, const uint32_t* tokens, uint32_t hidden) {
  after_earlier_launches();
  embed(out, table, tokens, hidden);
}
CUSIM_KERNEL(embed_bf16)

// Block t writes row t of out[T, 2 * half]: the cosines of positions[t] * inv_freq, then the sines, times
// scale.
extern "C" __global__ void __launch_bounds__(kRotationThreads)
    rotations(float* out, const float* inv_freq, const uint32_t* positions, uint32_t half, float scale) {
  after_earlier_launches();
  const float position = (float)positions[blockIdx.x];
  out += (uint64_t)blockIdx.x * 2 * half;
  for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
    const SinCos turn = sin_cos(position * inv_freq[i]);
    out[i] = turn.cos * scale;
    out[half + i] = turn.sin * scale;
  }
}
CUSIM_KERNEL(rotations)
