// Between the projection of queries, keys and values and the attention: head norms, rotation, KV scatter.
#include "params.cuh"
#include "element.cuh"

constexpr int kRopeThreads = 128;
// Eight lanes have a head: at head_dim 128 in bf16 each holds eight low and eight high elements.
constexpr uint32_t kLanesPerHead = 8;
constexpr uint32_t kHeadsPerBlock = kRopeThreads / kLanesPerHead;

// Over the eight lanes of a head.
DEV float head_sum(float v) {
#pragma unroll
  for (int offset = kLanesPerHead / 2; offset; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

// A head of this token: where it comes from and goes to, and what is done to it.
template <class E> struct Head {
  const E* in;
  E* out;             // null: nowhere
  const float* norm;  // or null
  bool turned;
};

template <class E> DEV Head<E> head_of(const RopeStoreParams<E>& p, uint32_t index) {
  const uint64_t token = blockIdx.x;
  const uint32_t n_heads = p.n_heads + 2 * p.n_kv_heads;
  Head<E> head = {nullptr, nullptr, nullptr, false};
  if (index >= n_heads) return head;
  head.in = p.qkv + (token * n_heads + index) * p.head_dim;
  if (index < p.n_heads) {
    head.out = p.q + (token * p.n_heads + index) * p.head_dim;
    head.norm = p.q_norm;
    head.turned = true;
    return head;
  }
  // Padding tokens share slot 0, which nobody reads.
  const uint64_t slot = p.slots[token];
  const uint32_t kv = index - p.n_heads;
  const bool key = kv < p.n_kv_heads;
  const uint64_t offset = (slot * p.n_kv_heads + (key ? kv : kv - p.n_kv_heads)) * p.head_dim;
  if (slot != 0) head.out = (key ? p.k_pool : p.v_pool) + offset;
  head.norm = key ? p.k_norm : nullptr;
  head.turned = key;
  return head;
}

template <int kWidth, class E> DEV float squares(const E* in, uint32_t head_dim, uint32_t lane) {
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t i = lane * kWidth; i < head_dim; i += kLanesPerHead * kWidth) {
    float v[kWidth];
    load_elements<kWidth>(v, in + i);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum = fmaf(v[j], v[j], sum);
  }
  return sum;
}

// Multiplies by scale and weight, one each where the head is not normed.
template <int kWidth> DEV void apply_norm(float (&v)[kWidth], float scale, const float* weight) {
  float w[kWidth];
  load_elements<kWidth>(w, weight);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) v[j] = v[j] * scale * w[j];
}

template <int kWidth>
DEV void turn(float (&low)[kWidth], float (&high)[kWidth], const float* cos, const float* sin) {
  float c[kWidth], s[kWidth];
  load_elements<kWidth>(c, cos);
  load_elements<kWidth>(s, sin);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float a = low[j], b = high[j];
    low[j] = a * c[j] - b * s[j];
    high[j] = b * c[j] + a * s[j];
  }
}

template <int kWidth, class E> DEV void rope_store_head(const RopeStoreParams<E>& p) {
  const uint32_t lane = threadIdx.x % kLanesPerHead, half = p.head_dim / 2;
  const Head<E> head = head_of(p, blockIdx.y * kHeadsPerBlock + threadIdx.x / kLanesPerHead);
  const float* cos = p.rotations + (uint64_t)blockIdx.x * p.head_dim;
  float scale = 1.0f;
  if (p.q_norm || p.k_norm) {
    const float sum = head_sum(head.norm && head.out ? squares<kWidth>(head.in, p.head_dim, lane) : 0.0f);
    scale = rsqrtf(__fdividef(sum, (float)p.head_dim) + p.eps);
  }
  if (!head.out) return;
#pragma unroll 1
  for (uint32_t i = lane * kWidth; i < half; i += kLanesPerHead * kWidth) {
    float low[kWidth], high[kWidth];
    load_elements<kWidth>(low, head.in + i);
    load_elements<kWidth>(high, head.in + half + i);
    if (head.norm) {
      apply_norm(low, scale, head.norm + i);
      apply_norm(high, scale, head.norm + half + i);
    }
    if (head.turned) turn(low, high, cos + i, cos + half + i);
    store_elements<kWidth>(head.out + i, low);
    store_elements<kWidth>(head.out + half + i, high);
  }
}

// Block (t, j) does heads [16 j, 16 (j + 1)) of token t: queries, then keys, then values.
template <class E> DEV void rope_store(const RopeStoreParams<E>& p) {
  const bool aligned = aligned16(p.q) && aligned16(p.k_pool) && aligned16(p.v_pool) && aligned16(p.qkv) &&
                       aligned16(p.q_norm) && aligned16(p.k_norm) && aligned16(p.rotations);
  if (p.head_dim % 16 == 0 && aligned) rope_store_head<8>(p);
  else rope_store_head<1>(p);
}

extern "C" __global__ void __launch_bounds__(kRopeThreads)
    rope_store_f32(const __grid_constant__ RopeStoreParams<float> p) {
  rope_store(p);
}
CUSIM_KERNEL(rope_store_f32)

extern "C" __global__ void __launch_bounds__(kRopeThreads)
    rope_store_bf16(const __grid_constant__ RopeStoreParams<bf16> p) {
  rope_store(p);
}
CUSIM_KERNEL(rope_store_bf16)
