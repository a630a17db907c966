// Compares embed.cu, norm.cu, rope.cu and activation.cu with plain references in double.
#include "cusim.h"

#include "element.cuh"
#include "params.cuh"

#include "activation.cu"
#include "embed.cu"
#include "norm.cu"
#include "rope.cu"

#include "arrays.h"

using namespace arrays;

template <class E> static std::string named(const char* kernel) {
  return std::string(kernel) + "_" + type_name<E>();
}

template <class E> static void check_embed(uint32_t n_tokens, uint32_t vocab, uint32_t hidden, bool aligned) {
  const auto table = normal<E>((size_t)vocab * hidden);
  Unaligned<E> moved(table);
  std::vector<uint32_t> tokens(n_tokens);
  std::vector<double> want;
  for (uint32_t& token : tokens) {
    token = any_of(0, vocab - 1);
    for (uint32_t i = 0; i < hidden; ++i) want.push_back(f32(table[(size_t)token * hidden + i]));
  }
  auto out = poisoned<float>(want.size());
  const E* from = aligned ? table.data() : moved.data();
  launch(named<E>("embed"), n_tokens, 256, 0, out.data(), from, (const uint32_t*)tokens.data(), hidden);
  expect_close(named<E>("embed") + " " + std::to_string(hidden), out.data(), want, 0.0, 0.0);
}

static void check_rotations(uint32_t half, float scale) {
  std::vector<uint32_t> positions = {0, 1, 2, 17, 4095, 131071, 999999, 1000000, 134217727};
  for (int i = 0; i < 40; ++i) positions.push_back(any_of(0, 1000000));
  std::vector<float> inv_freq(half);
  for (uint32_t i = 0; i < half; ++i) inv_freq[i] = (float)std::pow(10000.0, -(double)i / half);
  // Multiples of the float nearest to pi/2, for which an inexact range reduction causes the largest errors.
  if (half > 3) inv_freq[3] = 1.57079637f;
  auto out = poisoned<float>(positions.size() * 2 * half);
  launch("rotations", (unsigned)positions.size(), 64, 0, out.data(), (const float*)inv_freq.data(),
         (const uint32_t*)positions.data(), half, scale);
  std::vector<double> want;
  for (const uint32_t position : positions) {
    const auto angle = [&](uint32_t i) { return (double)((float)position * inv_freq[i]); };
    for (uint32_t i = 0; i < half; ++i) want.push_back(std::cos(angle(i)) * (double)scale);
    for (uint32_t i = 0; i < half; ++i) want.push_back(std::sin(angle(i)) * (double)scale);
  }
  expect_close("rotations " + std::to_string(half), out.data(), want, 1e-12, 1.3e-7);
}

template <class E> static void check_rms_norm(uint32_t n_rows, uint32_t width, bool picked, bool aligned) {
  const float eps = 1e-5f;
  const auto x = normal<float>((size_t)n_rows * width, 3.0), weight = normal<float>(width);
  Unaligned<float> moved(weight);
  std::vector<uint32_t> rows;
  for (uint32_t i = 0; i < n_rows + 2; ++i) rows.push_back(picked ? any_of(0, n_rows - 1) : i % n_rows);
  if (!picked) rows.resize(n_rows);
  std::vector<double> want;
  for (const uint32_t row : rows) {
    double squares = 0.0;
    for (uint32_t i = 0; i < width; ++i)
      squares += (double)x[(size_t)row * width + i] * x[(size_t)row * width + i];
    const double scale = 1.0 / std::sqrt(squares / width + eps);
    for (uint32_t i = 0; i < width; ++i) want.push_back(x[(size_t)row * width + i] * scale * weight[i]);
  }
  auto out = poisoned<E>(want.size());
  const uint32_t warps = std::clamp((width + 255) / 256, 1u, 32u);
  launch(named<E>("rms_norm"), (unsigned)rows.size(), 32 * warps, 0, out.data(), x.data(),
         picked ? (const uint32_t*)rows.data() : nullptr,
         (const float*)(aligned ? weight.data() : moved.data()), width, eps);
  expect_close(named<E>("rms_norm") + " " + std::to_string(width), out.data(), want, 1e-7, rounding<E>());
}

template <class E> static void check_silu_mul(uint32_t n_tokens, uint32_t width, bool aligned) {
  auto gate_up = normal<E>((size_t)n_tokens * 2 * width, 4.0);
  for (const double extreme : {-200.0, -90.0, 90.0, 200.0})
    gate_up[any_of(0, width - 1)] = element<E>(extreme);
  Unaligned<E> moved(gate_up);
  std::vector<double> want;
  for (uint32_t t = 0; t < n_tokens; ++t)
    for (uint32_t i = 0; i < width; ++i) {
      const double gate = f32(gate_up[(size_t)t * 2 * width + i]);
      const double up = f32(gate_up[(size_t)t * 2 * width + width + i]);
      want.push_back(gate / (1.0 + std::exp(-gate)) * up);
    }
  auto out = poisoned<E>(want.size());
  launch(named<E>("silu_mul"), dim3(n_tokens, (width + 2047) / 2048), 256, 0, out.data(),
         (const E*)(aligned ? gate_up.data() : moved.data()), width);
  expect_close(named<E>("silu_mul") + " " + std::to_string(width), out.data(), want, 1e-30, rounding<E>());
}

struct RopeCase {
  uint32_t n_tokens, n_heads, n_kv_heads, head_dim;
  bool normed;
};

// The expected head `index` of token t: normalised and rotated.
template <class E> static std::vector<double> rotated_head(const RopeCase& c, const std::vector<E>& qkv,
                                                          uint32_t t, uint32_t index, const float* norm,
                                                          const float* rotation, float eps) {
  const uint32_t half = c.head_dim / 2;
  std::vector<double> head(c.head_dim);
  double squares = 0.0;
  for (uint32_t i = 0; i < c.head_dim; ++i) {
    head[i] = f32(qkv[((size_t)t * (c.n_heads + 2 * c.n_kv_heads) + index) * c.head_dim + i]);
    squares += head[i] * head[i];
  }
  if (norm)
    for (uint32_t i = 0; i < c.head_dim; ++i) head[i] *= norm[i] / std::sqrt(squares / c.head_dim + eps);
  if (rotation)
    for (uint32_t i = 0; i < half; ++i) {
      const double a = head[i], b = head[half + i], cos = rotation[i], sin = rotation[half + i];
      head[i] = a * cos - b * sin;
      head[half + i] = b * cos + a * sin;
    }
  return head;
}

template <class E> static void check_rope_store(const RopeCase& c) {
  const uint32_t n_all = c.n_heads + 2 * c.n_kv_heads, n_slots = c.n_tokens + 5;
  const float eps = 1e-6f;
  const auto qkv = normal<E>((size_t)c.n_tokens * n_all * c.head_dim);
  const auto q_norm = normal<float>(c.head_dim), k_norm = normal<float>(c.head_dim);
  const auto rotations = normal<float>((size_t)c.n_tokens * c.head_dim);
  std::vector<uint32_t> slots(n_slots - 1);
  for (uint32_t i = 0; i < n_slots - 1; ++i) slots[i] = i + 1;
  std::shuffle(slots.begin(), slots.end(), random_source());
  slots.resize(c.n_tokens);
  slots[c.n_tokens / 2] = 0;
  const size_t kv_elements = (size_t)n_slots * c.n_kv_heads * c.head_dim;
  auto q = poisoned<E>((size_t)c.n_tokens * c.n_heads * c.head_dim), k = poisoned<E>(kv_elements);
  auto v = poisoned<E>(kv_elements);
  RopeStoreParams<E> params = {};
  params.q = q.data(), params.k_pool = k.data(), params.v_pool = v.data(), params.qkv = qkv.data();
  if (c.normed) params.q_norm = q_norm.data(), params.k_norm = k_norm.data();
  params.rotations = rotations.data(), params.slots = slots.data(), params.eps = eps;
  params.n_heads = c.n_heads, params.n_kv_heads = c.n_kv_heads, params.head_dim = c.head_dim;
  const std::string name = named<E>("rope_store");
  if (!launch(name, dim3(c.n_tokens, (n_all + 3) / 4), 128, 0, params)) return;
  std::vector<bool> stored(n_slots, false);
  for (uint32_t t = 0; t < c.n_tokens; ++t)
    for (uint32_t h = 0; h < n_all; ++h) {
      const bool query = h < c.n_heads, key = !query && h < c.n_heads + c.n_kv_heads;
      const float* norm = !c.normed ? nullptr : query ? q_norm.data() : key ? k_norm.data() : nullptr;
      const auto want =
          rotated_head(c, qkv, t, h, norm, query || key ? &rotations[(size_t)t * c.head_dim] : nullptr, eps);
      if (!query && slots[t] == 0) continue;
      const uint32_t kv_head = (h - c.n_heads) % c.n_kv_heads;
      const E* got = query ? &q[((size_t)t * c.n_heads + h) * c.head_dim]
                           : &(key ? k : v)[((size_t)slots[t] * c.n_kv_heads + kv_head) * c.head_dim];
      expect_close(name + " head " + std::to_string(h) + " of " + std::to_string(c.head_dim), got, want, 3e-6,
                   rounding<E>());
      stored[slots[t]] = true;
    }
  for (uint32_t slot = 0; slot < n_slots; ++slot)
    for (size_t i = 0; i < c.n_kv_heads * c.head_dim && !stored[slot]; ++i)
      if (!std::isnan(f32(k[slot * c.n_kv_heads * c.head_dim + i])))
        fail(name, "a slot of no token was written");
}

template <class E> static void check_all() {
  for (const uint32_t hidden : {8u, 64u, 2056u, 12u, 7u}) check_embed<E>(5, 11, hidden, true);
  check_embed<E>(3, 5, 64, false);
  for (const uint32_t width : {4u, 64u, 256u, 260u, 1024u, 12296u, 3u, 129u, 513u}) {
    check_rms_norm<E>(3, width, false, true);
    check_rms_norm<E>(2, width, true, true);
  }
  check_rms_norm<E>(2, 128, false, false);
  for (const uint32_t width : {8u, 64u, 2048u, 2056u, 5u, 4100u}) check_silu_mul<E>(3, width, true);
  check_silu_mul<E>(2, 96, false);
  for (const bool normed : {false, true})
    for (const uint32_t head_dim : {2u, 6u, 8u, 12u, 16u, 20u, 64u, 80u, 96u, 128u, 256u}) {
      check_rope_store<E>({4, 3, 1, head_dim, normed});
      check_rope_store<E>({2, 12, 4, head_dim, normed});
    }
}

int main() {
  check_all<float>();
  check_all<bf16>();
  for (const uint32_t half : {1u, 4u, 32u, 48u, 64u, 128u})
    check_rotations(half, half == 48 ? 1.1875f : 1.0f);
  return report("pointwise");
}
