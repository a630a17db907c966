// silu(gate) * up.
#include "params.cuh"
#include "element.cuh"

constexpr int kSiluThreads = 256;

// In bf16 the approximate exponential, at 2^-20, is far below the rounding of the result.
template <class E> DEV float silu(float x);
template <> DEV float silu<float>(float x) { return __fdividef(x, 1.0f + expf(-x)); }
template <> DEV float silu<bf16>(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

template <int kWidth, class E> DEV void silu_mul_elements(E* out, const E* gate, const E* up) {
  float g[kWidth], u[kWidth];
  load_elements<kWidth>(g, gate);
  load_elements<kWidth>(u, up);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) u[i] *= silu<E>(g[i]);
  store_elements<kWidth>(out, u);
}

// out[T, width] from gate_up[T, 2 * width]. Block (t, j) does elements [2048 j, 2048 (j + 1)) of row t.
template <class E> DEV void silu_mul(E* out, const E* gate_up, uint32_t width) {
  const E* gate = gate_up + (uint64_t)blockIdx.x * 2 * width;
  const uint32_t first = blockIdx.y * kSiluThreads * 8;
  out += (uint64_t)blockIdx.x * width;
  if (width % 8 == 0 && aligned16(gate_up) && aligned16(out)) {
    const uint32_t i = first + threadIdx.x * 8;
    if (i < width) silu_mul_elements<8>(out + i, gate + i, gate + width + i);
    return;
  }
#pragma unroll 1
  for (int j = 0; j < 8; ++j) {
    const uint32_t i = first + j * kSiluThreads + threadIdx.x;
    if (i < width) silu_mul_elements<1>(out + i, gate + i, gate + width + i);
  }
}

extern "C" __global__ void __launch_bounds__(kSiluThreads)
    silu_mul_f32(float* out, const float* gate_up, uint32_t width) {
  after_earlier_launches();
  silu_mul(out, gate_up, width);
}
CUSIM_KERNEL(silu_mul_f32)

extern "C" __global__ void __launch_bounds__(kSiluThreads)
    silu_mul_bf16(bf16* out, const bf16* gate_up, uint32_t width) {
  after_earlier_launches();
  silu_mul(out, gate_up, width);
}
CUSIM_KERNEL(silu_mul_bf16)
