// Log probabilities from raw logits, as src/state/sampling/logprobs.rs gives them: of a token, of the most likely
// ones, of some ids.
//
// - logprob_chunks: of each chunk of each row the sum of exponentials, and its most likely tokens.
// - logprob_finish: one block for each row.
//
// Sums are f64 in an order that the vocabulary fixes. Rounded to f32 they differ from the CPU's by an ulp at most.
#include "draw.cuh"

constexpr uint32_t kChunkThreads = 256;
constexpr uint32_t kFinishThreads = 512;

// Rank of a logit among others, never 0; NaN ranks last, where it cannot hide a token.
DEV uint64_t likelihood_key(float logit, uint32_t token) {
  return is_nan(logit) ? (uint32_t)~token : rank_key(logit, token);
}

// Takes the `n` highest of `size` different keys, highest first: `out(i, key)` is called by thread 0. A
// thread looks at every blockDim.x-th key, again each time that the highest was one of its own.
template <class Key, class Out>
DEV void take_highest(uint32_t n, uint32_t size, uint64_t* scratch, Key key_at, Out out) {
  uint64_t own = 0, highest = ~0ull;
#pragma unroll 1
  for (uint32_t i = 0; i < n; ++i) {
    if (i == 0 || own == highest) {
      own = 0;
#pragma unroll 4
      for (uint32_t at = threadIdx.x; at < size; at += blockDim.x) {
        const uint64_t key = key_at(at);
        own = key > own && key < highest ? key : own;
      }
    }
    highest = block_max(own, scratch);
    if (threadIdx.x == 0) out(i, highest);
  }
}

extern "C" __global__ void __launch_bounds__(kChunkThreads, 4) logprob_chunks(const LogprobParams p) {
  after_earlier_launches();
  __shared__ uint64_t highest_of_warps[32];
  __shared__ double sums_of_warps[32];
  __shared__ float max_of_warps[32];
  __shared__ uint32_t nan_of_warps[32];
  const LogprobWork work = p.works[blockIdx.y];
  const uint32_t first = blockIdx.x * kLogprobChunk;
  const uint32_t size = min(p.vocab - first, kLogprobChunk);
  const float* logits = p.logits + (uint64_t)work.logits_row * p.stride + first;
  float max = minus_infinity();
  uint32_t has_nan = 0;
#pragma unroll 8
  for (uint32_t i = threadIdx.x; i < size; i += kChunkThreads) {
    max = logits[i] > max ? logits[i] : max;
    has_nan |= is_nan(logits[i]);
  }
  max = block_max(max, max_of_warps);
  has_nan = block_max(has_nan, nan_of_warps);
  // Of an infinite maximum there is no sum; the finish says NaN.
  double sum = 0.0;
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < size && !is_infinite(max); i += kChunkThreads) {
    sum += exp_of_negative((double)logits[i] - (double)max);
  }
  const double total = block_scan(sum, sums_of_warps).total;
  const uint64_t chunk = (uint64_t)blockIdx.y * p.n_chunks + blockIdx.x;
  if (threadIdx.x == 0) p.masses[chunk] = ChunkMass{total, max, has_nan};
  uint64_t* highest = p.highest + chunk * p.max_top;
  take_highest(
      min(work.top, p.max_top), size, highest_of_warps,
      [&](uint32_t at) { return likelihood_key(logits[at], first + at); },
      [&](uint32_t i, uint64_t key) { highest[i] = key; });
}
CUSIM_KERNEL(logprob_chunks)

// The logarithm of the sum of all exponentials; NaN if a logit is NaN or the highest is infinite.
DEV double log_normalizer(const LogprobParams& p, const ChunkMass* masses, float* max_of_warps,
                          double* sums_of_warps) {
  float max = minus_infinity();
  uint32_t has_nan = 0;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < p.n_chunks; i += kFinishThreads) {
    max = masses[i].max > max ? masses[i].max : max;
    has_nan |= masses[i].nan;
  }
  max = block_max(max, max_of_warps);
  double sum = 0.0;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < p.n_chunks; i += kFinishThreads) {
    const double below = (double)masses[i].max - (double)max;
    sum += masses[i].sum * exp_of_negative(below);
    if (has_nan || is_infinite(max)) sum = double_of(0x7ff8000000000000ull);
  }
  return (double)max + log(block_scan(sum, sums_of_warps).total);
}

extern "C" __global__ void __launch_bounds__(kFinishThreads, 1) logprob_finish(const LogprobParams p) {
  after_earlier_launches();
  __shared__ uint64_t highest_of_warps[32];
  __shared__ double sums_of_warps[32];
  __shared__ float max_of_warps[32];
  const LogprobWork work = p.works[blockIdx.x];
  const float* row = p.logits + (uint64_t)work.logits_row * p.stride;
  const ChunkMass* masses = p.masses + (uint64_t)blockIdx.x * p.n_chunks;
  const double normalizer = log_normalizer(p, masses, max_of_warps, sums_of_warps);
  auto of_id = [&](uint32_t id) {
    return TokenLogprob{id, id < p.vocab ? (float)((double)row[id] - normalizer) : minus_infinity()};
  };
  TokenLogprob* out = p.out + work.first_out;
  if (threadIdx.x == 0) {
    const bool was_sampled = work.sampled != kNone;
    out[0] = of_id(was_sampled ? p.sampled[work.sampled].token : work.token);
    if (was_sampled) p.sampled[work.sampled].logprob = out[0].logprob;
  }
  const uint32_t top = min(work.top, p.max_top);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < work.n_ids; i += kFinishThreads) {
    out[1 + top + i] = of_id(p.ids[work.first_id + i]);
  }
  const uint64_t* highest = p.highest + (uint64_t)blockIdx.x * p.n_chunks * p.max_top;
  take_highest(
      top, p.n_chunks * top, highest_of_warps,
      [&](uint32_t at) { return highest[(uint64_t)(at / top) * p.max_top + at % top]; },
      [&](uint32_t i, uint64_t key) { out[1 + i] = of_id(token_of(key)); });
}
CUSIM_KERNEL(logprob_finish)
