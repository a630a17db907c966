// Log probabilities from raw logits, as src/state/sampling/logprobs.rs: of a token, of the most likely ones, of some ids.
//   logprob_chunks  of each chunk of each row: the sum of exponentials, and its most likely tokens
//   logprob_finish  one block for each row
// Sums are f64 in an order that the vocabulary fixes; rounded to f32 they differ from the CPU's by an ulp at most.
#include "draw.cuh"

constexpr uint32_t kChunkThreads = 256;
constexpr uint32_t kFinishThreads = 512;
constexpr uint32_t kKeys = 16;  // held by a thread
static_assert(kKeys * kChunkThreads == kLogprobChunk, "a block holds a chunk");
static_assert((1u << 19) / kLogprobChunk * kMaxTop <= kKeys * kFinishThreads, "a block holds the keys of all chunks");

// Rank of a logit among others; NaN ranks last, where it must not hide a token.
DEV uint64_t likelihood_key(float logit, uint32_t token) {
  return is_nan(logit) ? (uint32_t)~token : rank_key(logit, token);
}

DEV float4 load_one_by_one(const float* row, uint32_t token, uint32_t end) {
  const float none = minus_infinity();
  float4 logits;
  logits.x = token < end ? row[token] : none;
  logits.y = token + 1 < end ? row[token + 1] : none;
  logits.z = token + 2 < end ? row[token + 2] : none;
  logits.w = token + 3 < end ? row[token + 3] : none;
  return logits;
}

// Takes the `n` highest of the keys that the block's threads hold, highest first: `out(i, key)`, called by thread 0.
template <class Out> DEV void take_highest(uint64_t (&keys)[kKeys], uint32_t n, uint64_t* scratch, Out out) {
#pragma unroll 1
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t own = 0;
#pragma unroll
    for (uint32_t j = 0; j < kKeys; ++j) own = keys[j] > own ? keys[j] : own;
    const uint64_t highest = block_max(own, scratch);
    if (threadIdx.x == 0) out(i, highest);
    if (own != highest) continue;
#pragma unroll
    for (uint32_t j = 0; j < kKeys; ++j) keys[j] = keys[j] == highest ? 0 : keys[j];
  }
}

extern "C" __global__ void __launch_bounds__(kChunkThreads) logprob_chunks(const LogprobParams p) {
  __shared__ uint64_t highest_of_warps[32];
  __shared__ double sums_of_warps[32];
  __shared__ float max_of_warps[32];
  __shared__ uint32_t nan_of_warps[32];
  const LogprobWork work = p.works[blockIdx.y];
  const float* row = p.logits + (uint64_t)work.logits_row * p.stride;
  const uint32_t first = blockIdx.x * kLogprobChunk + 4 * threadIdx.x;
  float logits[kKeys];
  const bool is_plain = reads_by_four(row, p.vocab);
#pragma unroll
  for (uint32_t i = 0; i < kKeys / 4; ++i) {
    const uint32_t token = first + i * 4 * kChunkThreads;
    const float4 loaded = is_plain ? load_four(row, token, p.vocab) : load_one_by_one(row, token, p.vocab);
    logits[4 * i] = loaded.x;
    logits[4 * i + 1] = loaded.y;
    logits[4 * i + 2] = loaded.z;
    logits[4 * i + 3] = loaded.w;
  }
  float max = minus_infinity();
  uint32_t has_nan = 0;
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    max = logits[i] > max ? logits[i] : max;
    has_nan |= is_nan(logits[i]);
  }
  max = block_max(max, max_of_warps);
  has_nan = block_max(has_nan, nan_of_warps);
  // Of an infinite maximum there is no sum; the finish says NaN. The logits are read again, so that the exponential need
  // not be there sixteen times.
  double sum = 0.0;
  const uint32_t end = is_infinite(max) ? 0 : min((blockIdx.x + 1) * kLogprobChunk, p.vocab);
#pragma unroll 2
  for (uint32_t token = blockIdx.x * kLogprobChunk + threadIdx.x; token < end; token += kChunkThreads) {
    sum += exp_of_negative((double)row[token] - (double)max);
  }
  const double total = block_scan(sum, sums_of_warps).total;
  const uint64_t chunk = (uint64_t)blockIdx.y * p.n_chunks + blockIdx.x;
  if (threadIdx.x == 0) p.masses[chunk] = ChunkMass{total, max, has_nan};
  if (work.top == 0) return;
  uint64_t keys[kKeys];
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    const uint32_t token = first + i / 4 * 4 * kChunkThreads + i % 4;
    keys[i] = token < p.vocab ? likelihood_key(logits[i], token) : 0;
  }
  uint64_t* highest = p.highest + chunk * p.max_top;
  take_highest(keys, min(work.top, p.max_top), highest_of_warps, [&](uint32_t i, uint64_t key) { highest[i] = key; });
}
CUSIM_KERNEL(logprob_chunks)

// The logarithm of the sum of all exponentials; NaN if a logit is NaN or the highest is infinite.
DEV double log_normalizer(const LogprobParams& p, const ChunkMass* masses, float* max_of_warps, double* sums_of_warps) {
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

extern "C" __global__ void __launch_bounds__(kFinishThreads) logprob_finish(const LogprobParams p) {
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
  if (top == 0) return;
  const uint64_t* highest = p.highest + (uint64_t)blockIdx.x * p.n_chunks * p.max_top;
  uint64_t keys[kKeys];
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    const uint32_t at = i * kFinishThreads + threadIdx.x;
    keys[i] = at < p.n_chunks * top ? highest[(uint64_t)(at / top) * p.max_top + at % top] : 0;
  }
  take_highest(keys, top, highest_of_warps, [&](uint32_t i, uint64_t key) { out[1 + i] = of_id(token_of(key)); });
}
CUSIM_KERNEL(logprob_finish)
