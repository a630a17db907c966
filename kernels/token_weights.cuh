// Device functions of sampling: weights of a row, what its filters are, and weights counted by bins.
#pragma once
#include "draw.cuh"

// exp((logit - max) / temperature) of a row's edited logits.
struct Weights {
  const float* row;  // raw logits
  double max, temperature, inverse_temperature;

  DEV double of(float edited_logit) const {
    return exp_of_negative(divide(sub_rn((double)edited_logit, max), temperature, inverse_temperature));
  }
};

DEV Weights weights_of(const SampleParams& p, const SampleWork& work, const RowSampler& sampler, float max) {
  const float* row = p.logits + (uint64_t)work.logits_row * p.stride;
  return Weights{row, (double)max, sampler.temperature, sampler.inverse_temperature};
}

// The weight of a token; weights and edits are shared.
CALLED double weight_of(const Weights& weights, const Edits& edits, uint32_t token) {
  const float logit = weights.row[token];
  return weights.of(edits.any ? edited(edits, token, logit) : logit);
}

struct Filters {
  bool rank;  // top_k or top_p drops tokens: kept ones are walked by rank, else by id
  bool has_nucleus;
  uint32_t top_k;
  double top_p;
  double min_weight;  // the most likely token weighs 1, so min_p is a weight
};

DEV Filters filters_of(const SampleParams& p, const RowSampler& sampler) {
  const bool has_nucleus = sampler.top_p < 1.0f;
  const bool rank = sampler.top_k < p.vocab || has_nucleus;
  return Filters{rank, has_nucleus, sampler.top_k, (double)sampler.top_p, (double)sampler.min_p};
}

// The peak of a row's chunks; all threads of the block call it and get it.
DEV ChunkPeak peak_of_row(const SampleParams& p, uint32_t work, uint64_t* highest_of_warps,
                          uint32_t& any_nan) {
  const ChunkPeak* peaks = p.peaks + (uint64_t)work * p.n_chunks;
  if (threadIdx.x == 0) any_nan = 0;
  __syncthreads();
  uint64_t highest = 0;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < p.n_chunks; i += blockDim.x) {
    const ChunkPeak peak = peaks[i];
    const uint64_t key = rank_key(peak.logit, peak.token);
    highest = key > highest ? key : highest;
    if (peak.nan) atomicOr(&any_nan, 1u);
  }
  highest = block_max(highest, highest_of_warps);
  const ChunkPeak merged{logit_of((uint32_t)(highest >> 32)), token_of(highest), any_nan, 0};
  __syncthreads();
  return merged;
}

// ---- classes of weights, by exponent and three bits of the mantissa, higher weights in lower classes

constexpr uint64_t kBitsOfOne = 0x3ff0000000000000ull;
constexpr uint32_t kClassShift = 49;
constexpr uint64_t kClassOfOne = kBitsOfOne >> kClassShift;

DEV uint32_t class_of(uint64_t weight_bits) {
  const uint64_t distance = kClassOfOne - (weight_bits >> kClassShift);
  return distance < kClasses ? (uint32_t)distance : kClasses - 1;
}
// The least bits above 0 of a class.
DEV uint64_t least_of(uint32_t class_index) {
  return class_index < kClasses - 1 ? (kClassOfOne - class_index) << kClassShift : 1;
}

// ---- sums without a rounding, in any order: 52 bits of mantissa in three parts, each added up in 32 bits

constexpr uint32_t kPartBits = 18;
constexpr uint32_t kPartMask = (1u << kPartBits) - 1;
static_assert((uint64_t)kPartMask * kMaxChunk <= 0xffffffffull, "sums of a chunk fit their words");

struct WeightBins {
  uint32_t count[kClasses], high[kClasses], middle[kClasses], low[kClasses];
};

DEV void clear_bins(WeightBins& bins) {
  for (uint32_t i = threadIdx.x; i < kClasses; i += blockDim.x) {
    bins.count[i] = bins.high[i] = bins.middle[i] = bins.low[i] = 0;
  }
}

DEV void add_to_bin(WeightBins& bins, uint32_t bin, uint64_t weight_bits) {
  const uint64_t mantissa = weight_bits & 0xfffffffffffffull;
  atomicAdd(&bins.count[bin], 1u);
  atomicAdd(&bins.high[bin], (uint32_t)(mantissa >> 2 * kPartBits));
  atomicAdd(&bins.middle[bin], (uint32_t)(mantissa >> kPartBits) & kPartMask);
  atomicAdd(&bins.low[bin], (uint32_t)mantissa & kPartMask);
}

DEV uint64_t high_of(const WeightBins& bins, uint32_t bin) {
  return ((uint64_t)bins.high[bin] << kPartBits) + bins.middle[bin];
}

// The weights of a bin, all of which have the exponent of `weight_bits`.
DEV double mass_of(uint32_t count, uint64_t high, uint64_t low, uint64_t weight_bits) {
  const uint64_t exponent = weight_bits >> 52;
  const uint64_t whole = ((uint64_t)count << (52 - kPartBits)) + high;
  const double scaled = add_rn(mul_rn((double)whole, (double)(1u << kPartBits)), (double)low);
  return mul_rn(scaled, double_of((exponent - 52) << 52));
}

// Counts a sampled token; `state` is what the row had come to.
DEV void record(RowState& out, const RowState& state, uint32_t token, const RowSampler& sampler,
                uint32_t* counts, uint32_t vocab) {
  out = RowState{token, state.n_output + 1};
  if (sampler.count_slot == kNone || token >= vocab) return;
  uint32_t& entry = counts[(uint64_t)sampler.count_slot * vocab + token];
  entry = (entry + 1) | kSeen;
}
