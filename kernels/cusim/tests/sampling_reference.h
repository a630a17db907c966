// The sampling rules of src/state/sampling/ in plain C++, for one row at a time.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sampling.cuh"

struct Row {
  std::vector<float> logits;
  float temperature = 1, top_p = 1, min_p = 0, frequency = 0, presence = 0, repetition = 1;
  uint32_t top_k = kNone, n_output = 0, min_new_tokens = 0, apply_bans = 1;
  bool is_greedy = false;
  uint64_t seed = 0;
  std::vector<uint32_t> counts;  // as on the device; empty: no penalties
  std::vector<TokenBias> biases;
  std::vector<uint32_t> bans, mask;  // a mask is empty if there is none

  RowSampler sampler() const {
    return RowSampler{temperature,
                      1.0 / (double)temperature,
                      seed,
                      top_p,
                      min_p,
                      frequency,
                      presence,
                      repetition,
                      top_k,
                      is_greedy,
                      min_new_tokens,
                      kNone,
                      0,
                      (uint32_t)biases.size(),
                      0,
                      (uint32_t)bans.size(),
                      0};
  }
};

struct Choice {
  uint32_t token;
  bool nan;  // the row has a NaN, or no token is possible
};

namespace reference {

// The logits after penalties, mask, bans and biases.
inline std::vector<float> edit(const Row& row) {
  std::vector<float> logits = row.logits;
  for (uint32_t token = 0; token < row.counts.size(); ++token) {
    const uint32_t count = row.counts[token] & ~kSeen;
    if (count > 0) {
      const float frequency = row.frequency * (float)count;
      logits[token] -= frequency;
      logits[token] -= row.presence;
    }
    if (!(row.counts[token] & kSeen)) continue;
    if (logits[token] > 0)
      logits[token] /= row.repetition;
    else
      logits[token] *= row.repetition;
  }
  for (uint32_t token = 0; !row.mask.empty() && token < logits.size(); ++token) {
    if (!(row.mask[token / 32] >> (token % 32) & 1)) logits[token] = -INFINITY;
  }
  if (row.n_output < row.min_new_tokens && row.apply_bans) {
    for (const uint32_t token : row.bans) logits[token] = -INFINITY;
  }
  for (const TokenBias& bias : row.biases) logits[bias.token] += bias.bias;
  return logits;
}

inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

inline double uniform(uint64_t seed, uint64_t position) {
  const uint64_t golden = 0x9e3779b97f4a7c15ull;
  return (double)(mix(mix(seed + golden) ^ position * golden) >> 11) * (1.0 / 9007199254740992.0);
}

inline double exponential(double x) {
  if (!(x >= -708.0)) return 0.0;
  double high, low;
  const uint64_t high_bits = 0x3fe62e42fee00000ull, low_bits = 0x3dea39ef35793c76ull;
  memcpy(&high, &high_bits, 8);
  memcpy(&low, &low_bits, 8);
  volatile double shifted = x * 1.4426950408889634;
  shifted = shifted + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  volatile double r = n * high;
  r = x - r;
  volatile double rest = n * low;
  r = r - rest;
  double factorial = 1, terms[14] = {1};
  for (int i = 1; i < 14; ++i) terms[i] = 1.0 / (factorial *= i);
  volatile double sum = terms[13];
  for (int i = 12; i >= 0; --i) {
    sum = sum * r;
    sum = sum + terms[i];
  }
  return std::ldexp((double)sum, (int)n);
}

inline double block_sum(const double* weights, size_t n) {
  double lanes[8] = {}, rest = 0, sum = 0;
  for (size_t i = 0; i < n / 8 * 8; ++i) lanes[i % 8] += weights[i];
  for (size_t i = n / 8 * 8; i < n; ++i) rest += weights[i];
  for (const double lane : lanes) sum += lane;
  return sum + rest;
}

inline double total(const std::vector<double>& weights) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); i += 64)
    sum += block_sum(&weights[i], std::min<size_t>(64, weights.size() - i));
  return sum;
}

inline uint32_t pick_by_id(const std::vector<double>& weights, double draw) {
  const double target = draw * total(weights);
  double before = 0;
  for (size_t first = 0; first < weights.size(); first += 64) {
    const size_t n = std::min<size_t>(64, weights.size() - first);
    const double end = before + block_sum(&weights[first], n);
    double cumulated = before;
    for (size_t i = first; end > target && i < first + n; ++i) {
      if ((cumulated += weights[i]) > target) return (uint32_t)i;
    }
    before = end;
  }
  size_t i = weights.size() - 1;
  while (!(weights[i] > 0)) --i;
  return (uint32_t)i;
}

// Sorts all tokens, unlike the CPU sampler, which first skips classes of weights that the filters drop.
inline uint32_t pick_by_rank(const Row& row, const std::vector<double>& weights, double mass, double draw) {
  std::vector<std::pair<uint32_t, double>> ranked;
  for (uint32_t token = 0; token < weights.size(); ++token) {
    if (weights[token] > 0) ranked.push_back({token, weights[token]});
  }
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  ranked.resize(std::min<size_t>(ranked.size(), row.top_k));
  double kept_mass = 0;
  size_t kept = 0;
  for (; kept < ranked.size() && kept_mass <= mass; ++kept) kept_mass += ranked[kept].second;
  const double target = draw * kept_mass;
  double cumulated = 0;
  for (size_t i = 0; i < kept; ++i) {
    if ((cumulated += ranked[i].second) > target) return ranked[i].first;
  }
  return ranked[kept - 1].first;
}

}  // namespace reference

inline Choice choose(const Row& row) {
  for (const float logit : row.logits) {
    if (logit != logit) return {0, true};
  }
  const std::vector<float> logits = reference::edit(row);
  uint32_t peak = 0;
  for (uint32_t token = 0; token < logits.size(); ++token) peak = logits[token] > logits[peak] ? token : peak;
  if (row.is_greedy || std::isinf(logits[peak])) return {peak, logits[peak] == -INFINITY};
  std::vector<double> weights;
  for (const float logit : logits) {
    weights.push_back(
        reference::exponential(((double)logit - (double)logits[peak]) / (double)row.temperature));
  }
  const double all = row.top_p < 1 ? reference::total(weights) : INFINITY;
  for (double& weight : weights) weight = weight >= (double)row.min_p ? weight : 0;
  const double draw = reference::uniform(row.seed, row.n_output);
  const bool ranks = row.top_k < logits.size() || row.top_p < 1;
  if (!ranks) return {reference::pick_by_id(weights, draw), false};
  return {reference::pick_by_rank(row, weights, (double)row.top_p * all, draw), false};
}

// The token's log probability, then those of the most likely tokens, then those of the ids.
inline std::vector<TokenLogprob> logprobs_of(const std::vector<float>& logits, uint32_t token, uint32_t top,
                                             const std::vector<uint32_t>& ids) {
  double max = -INFINITY, sum = 0;
  for (const float logit : logits) max = std::max(max, (double)logit);
  for (const float logit : logits) sum += std::exp((double)logit - max);
  const double normalizer = max + std::log(sum);
  std::vector<uint32_t> ranked(logits.size());
  for (uint32_t i = 0; i < ranked.size(); ++i) ranked[i] = i;
  std::sort(ranked.begin(), ranked.end(),
            [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::vector<TokenLogprob> result;
  auto add = [&](uint32_t id) {
    result.push_back({id, id < logits.size() ? (float)((double)logits[id] - normalizer) : -INFINITY});
  };
  add(token);
  for (uint32_t i = 0; i < top; ++i) add(ranked[i]);
  for (const uint32_t id : ids) add(id);
  return result;
}
