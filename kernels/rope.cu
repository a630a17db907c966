// Between the projection of queries, keys and values and the attention: head norms, rotation, KV scatter.
#include "params.cuh"
#include "element.cuh"

// A warp has a head. Lanes take single elements, whatever the head size: rows of 32 are coalesced.
constexpr uint32_t kRopeThreads = 128, kHeadsPerBlock = kRopeThreads / 32;

// A head of this token: where it comes from and goes to, and what is done to it.
template <class E> struct Head {
  const E* in;
  E* out;             // null: nowhere
  const float* norm;  // or null
  bool turned;
};

template <class E> DEV Head<E> head_of(const RopeStoreParams<E>& p, uint32_t index) {
  const uint64_t token = blockIdx.x;
  const uint32_t n_all = p.n_heads + 2 * p.n_kv_heads;
  if (index >= n_all) return {nullptr, nullptr, nullptr, false};
  const E* in = p.qkv + (token * n_all + index) * p.head_dim;
  if (index < p.n_heads) return {in, p.q + (token * p.n_heads + index) * p.head_dim, p.q_norm, true};
  // Padding tokens share slot 0, which nobody reads.
  const uint64_t slot = p.slots[token];
  if (slot == 0) return {in, nullptr, nullptr, false};
  const bool key = index < p.n_heads + p.n_kv_heads;
  const uint32_t kv_head = index - p.n_heads - (key ? 0 : p.n_kv_heads);
  E* out = (key ? p.k_pool : p.v_pool) + (slot * p.n_kv_heads + kv_head) * p.head_dim;
  return {in, out, key ? p.k_norm : nullptr, key};
}

// 1 / sqrt(mean of squares + eps), in every lane.
template <class E> DEV float norm_scale(const E* head, uint32_t head_dim, float eps) {
  float squares = 0.0f;
#pragma unroll 1
  for (uint32_t i = threadIdx.x % 32; i < head_dim; i += 32)
    squares = fmaf(f32(head[i]), f32(head[i]), squares);
  return rsqrtf(__fdividef(warp_sum(squares), (float)head_dim) + eps);
}

// Block (t, j) does heads [4 j, 4 (j + 1)) of token t: queries, then keys, then values.
template <class E> DEV void rope_store(const RopeStoreParams<E>& p) {
  const uint32_t half = p.head_dim / 2;
  const Head<E> head = head_of(p, blockIdx.y * kHeadsPerBlock + threadIdx.x / 32);
  if (!head.out) return;
  const float* cos = p.rotations + (uint64_t)blockIdx.x * p.head_dim;
  const float scale = head.norm ? norm_scale(head.in, p.head_dim, p.eps) : 1.0f;
#pragma unroll 1
  for (uint32_t i = threadIdx.x % 32; i < half; i += 32) {
    float low = f32(head.in[i]), high = f32(head.in[half + i]);
    if (head.norm) {
      low *= scale * head.norm[i];
      high *= scale * head.norm[half + i];
    }
    const float c = head.turned ? cos[i] : 1.0f, s = head.turned ? cos[half + i] : 0.0f;
    head.out[i] = from_f32<E>(low * c - high * s);
    head.out[half + i] = from_f32<E>(high * c + low * s);
  }
}

extern "C" __global__ void __launch_bounds__(kRopeThreads)
    rope_store_f32(const __grid_constant__ RopeStoreParams<float> p) {
  after_earlier_launches();
  rope_store(p);
}
CUSIM_KERNEL(rope_store_f32)

extern "C" __global__ void __launch_bounds__(kRopeThreads)
    rope_store_bf16(const __grid_constant__ RopeStoreParams<bf16> p) {
  after_earlier_launches();
  rope_store(p);
}
CUSIM_KERNEL(rope_store_bf16)
