// RMSNorm of rows of the residual stream.
#include "params.cuh"
#include "element.cuh"

// The register budget: 64 at the largest block, which is of ceil(width / 256) warps, at most 32.
constexpr int kNormMaxThreads = 1024;
// Pieces of four elements that a thread keeps in registers between the passes: with the block of that rule, a
// row of 8192 is read once.
constexpr int kKeptPieces = 2;

DEV float squares(float4 v, float sum) {
  return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
}
DEV float4 scaled(float4 v, float scale, float4 weight) {
  return make_float4(v.x * scale * weight.x, v.y * scale * weight.y, v.z * scale * weight.z,
                     v.w * scale * weight.w);
}

// The sum over the block, in every thread; the order depends on the block's size only.
DEV float block_sum(float v) {
  __shared__ float warp_sums[kNormMaxThreads / 32];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = v;
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32;
  return warp_sum(lane < blockDim.x / 32 ? warp_sums[lane] : 0.0f);
}

DEV float norm_scale(float squares, uint32_t width, float eps) {
  return rsqrtf(__fdividef(squares, (float)width) + eps);
}

template <class E>
DEV void norm_row_by_fours(E* out, const float* x, const float* weight, uint32_t width, float eps) {
  const uint32_t first = threadIdx.x * 4, step = blockDim.x * 4;
  float4 kept[kKeptPieces], weights[kKeptPieces];
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kKeptPieces; ++j) {
    const uint32_t i = first + j * step;
    kept[j] = i < width ? load4(x + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    weights[j] = i < width ? load4(weight + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll
  for (int j = 0; j < kKeptPieces; ++j) sum = squares(kept[j], sum);
#pragma unroll 1
  for (uint32_t i = first + kKeptPieces * step; i < width; i += step) sum = squares(load4(x + i), sum);
  const float scale = norm_scale(block_sum(sum), width, eps);
#pragma unroll
  for (int j = 0; j < kKeptPieces; ++j) {
    const uint32_t i = first + j * step;
    if (i < width) store4(out + i, scaled(kept[j], scale, weights[j]));
  }
#pragma unroll 1
  for (uint32_t i = first + kKeptPieces * step; i < width; i += step)
    store4(out + i, scaled(load4(x + i), scale, load4(weight + i)));
}

template <class E>
DEV void norm_row_by_ones(E* out, const float* x, const float* weight, uint32_t width, float eps) {
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
  const float scale = norm_scale(block_sum(sum), width, eps);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) out[i] = from_f32<E>(x[i] * scale * weight[i]);
}

// Block i norms row rows[i] of x[*, width], or row i where rows is null, into row i of out.
template <class E> DEV void rms_norm(E* out, const float* x, const uint32_t* rows, const float* weight,
                                     uint32_t width, float eps) {
  x += (uint64_t)(rows ? rows[blockIdx.x] : blockIdx.x) * width;
  out += (uint64_t)blockIdx.x * width;
  if (width % 4 == 0 && aligned16(x) && aligned16(weight) && aligned16(out))
    norm_row_by_fours(out, x, weight, width, eps);
  else norm_row_by_ones(out, x, weight, width, eps);
}

extern "C" __global__ void __launch_bounds__(kNormMaxThreads, 1)
    rms_norm_f32(float* out, const float* x, const uint32_t* rows, const float* weight, uint32_t width,
                 float eps) {
  after_earlier_launches();
  rms_norm(out, x, rows, weight, width, eps);
}
CUSIM_KERNEL(rms_norm_f32)

extern "C" __global__ void __launch_bounds__(kNormMaxThreads, 1)
    rms_norm_bf16(bf16* out, const float* x, const uint32_t* rows, const float* weight, uint32_t width,
                  float eps) {
  after_earlier_launches();
  rms_norm(out, x, rows, weight, width, eps);
}
CUSIM_KERNEL(rms_norm_bf16)
