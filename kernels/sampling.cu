// Sampling: from raw logits to the next token of each row, as src/state/sampling/ chooses it.
//
// - sample_peaks: the most likely token of each chunk of each row.
// - sample_weights: weights of rows that draw: sums of blocks, and how they spread over the classes of filter.rs.
// - sample_choose: one block for each row: the draw, and what the row has come to.
//
// Weights are the CPU's bit for bit. They are added up in parallel, so sums are the CPU's up to roundings: a choice
// that is nearer to a boundary than `tie_margin` is made again in the CPU's order. Only rows whose filters end behind
// the kMaxSorted most likely tokens have no second try: their choice is the CPU's but for ties within 1e-10.
#include "choose.cuh"

constexpr uint32_t kStreamThreads = 256;

// What a thread has seen, by ascending token: the first of the highest logits, and whether a raw one is NaN.
struct Highest {
  float logit;
  uint32_t token;
  bool has_nan;

  DEV void see(uint32_t other_token, float other) {
    token = other > logit ? other_token : token;
    logit = other > logit ? other : logit;
  }
};

DEV void see_by_four(Highest& highest, const float* row, uint32_t first, uint32_t end) {
  constexpr uint32_t kLoads = 4, kStride = 4 * kStreamThreads;
#pragma unroll 1
  for (uint32_t base = first + threadIdx.x * 4; base < end; base += kStride * kLoads) {
    float4 loaded[kLoads];
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) loaded[i] = load_four(row, base + i * kStride, end);
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      const uint32_t token = base + i * kStride;
      const float4 four = loaded[i];
      highest.has_nan |= is_nan(four.x) || is_nan(four.y) || is_nan(four.z) || is_nan(four.w);
      highest.see(token, four.x);
      highest.see(token + 1, four.y);
      highest.see(token + 2, four.z);
      highest.see(token + 3, four.w);
    }
  }
}

DEV void see_one_by_one(Highest& highest, const float* row, uint32_t first, uint32_t end,
                        const Edits& edits) {
#pragma unroll 1
  for (uint32_t token = first + threadIdx.x; token < end; token += kStreamThreads) {
    const float logit = row[token];
    highest.has_nan |= is_nan(logit);
    highest.see(token, edits.any ? edited(edits, token, logit) : logit);
  }
}

extern "C" __global__ void __launch_bounds__(kStreamThreads, 4) sample_peaks(const SampleParams p) {
  after_earlier_launches();
  __shared__ Edits edits;
  __shared__ uint32_t marks[kMarkWords];
  __shared__ uint64_t highest_of_warps[32];
  __shared__ uint32_t any_nan;
  const SampleWork work = p.works[blockIdx.y];
  if (work.row < kFirstRow) return;
  if (blockIdx.x == 0) {
    ClassSum* classes = p.classes + (uint64_t)blockIdx.y * kClasses;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < kClasses; i += kStreamThreads) classes[i] = ClassSum{0, 0, 0, 0};
  }
  if (threadIdx.x == 0) {
    any_nan = 0;
    edits = edits_of(p, work, p.samplers[work.row], p.states[work.row]);
  }
  const float* row = p.logits + (uint64_t)work.logits_row * p.stride;
  const uint32_t first = blockIdx.x * p.chunk, end = min(first + p.chunk, p.vocab);
  stage_marks(edits, marks, first, end);
  Highest found{minus_infinity(), first, false};
  if (!edits.any && reads_by_four(row, p.vocab))
    see_by_four(found, row, first, end);
  else
    see_one_by_one(found, row, first, end, edits);
  if (found.has_nan) atomicOr(&any_nan, 1u);
  const uint64_t highest = block_max(rank_key(found.logit, found.token), highest_of_warps);
  if (threadIdx.x == 0) {
    ChunkPeak& peak = p.peaks[(uint64_t)blockIdx.y * p.n_chunks + blockIdx.x];
    peak = ChunkPeak{logit_of((uint32_t)(highest >> 32)), token_of(highest), any_nan, 0};
  }
}
CUSIM_KERNEL(sample_peaks)

// The sum of a group of eight lanes in the order of filter.rs: rows of eight by lane, then what is left over.
DEV double sum_of_group(double of_rows, double of_rest) {
  double sum = 0.0, rest = 0.0;
#pragma unroll 2
  for (uint32_t lane = 0; lane < 8; ++lane) {
    sum = add_rn(sum, __shfl_sync(0xffffffffu, of_rows, lane, 8));
    rest = add_rn(rest, __shfl_sync(0xffffffffu, of_rest, lane, 8));
  }
  return add_rn(sum, rest);
}

extern "C" __global__ void __launch_bounds__(kStreamThreads, 4) sample_weights(const SampleParams p) {
  after_earlier_launches();
  __shared__ WeightBins bins;
  __shared__ Edits edits;
  __shared__ uint32_t marks[kMarkWords];
  __shared__ uint64_t highest_of_warps[32];
  __shared__ uint32_t any_nan;
  const SampleWork work = p.works[blockIdx.y];
  if (work.row < kFirstRow) return;
  const RowSampler sampler = p.samplers[work.row];
  if (sampler.is_greedy) return;
  const ChunkPeak peak = peak_of_row(p, blockIdx.y, highest_of_warps, any_nan);
  if (peak.nan || is_infinite(peak.logit)) return;
  const Filters filters = filters_of(p, sampler);
  clear_bins(bins);
  const uint32_t first = blockIdx.x * p.chunk, end = min(first + p.chunk, p.vocab);
  const Weights weights = weights_of(p, work, sampler, peak.logit);
  if (threadIdx.x == 0) edits = edits_of(p, work, sampler, p.states[work.row]);
  stage_marks(edits, marks, first, end);

  // Eight lanes sum a block of 64 weights; a warp has four.
  const uint32_t lane = threadIdx.x % 8;
  const uint32_t n_blocks = (p.vocab + kSumBlock - 1) / kSumBlock;
  const uint32_t warp_first = first + threadIdx.x / 32 * 4 * kSumBlock;
#pragma unroll 1
  for (uint32_t warp_base = warp_first; warp_base < end; warp_base += kStreamThreads / 8 * kSumBlock) {
    const uint32_t base = warp_base + threadIdx.x % 32 / 8 * kSumBlock;
    // Differs from `end` in the last block only.
    const uint32_t first_rest = end - (end - min(base, end)) % 8;
    double of_rows = 0.0, of_rest = 0.0;
#pragma unroll 1
    for (uint32_t token = base + lane; token < min(base + kSumBlock, end); token += 8) {
      double weight = weights.of(edits.any ? edited(edits, token, weights.row[token]) : weights.row[token]);
      const bool is_kept = weight >= filters.min_weight;
      if (filters.rank && is_kept && weight > 0.0)
        add_to_bin(bins, class_of(bits_of(weight)), bits_of(weight));
      // top_p looks at the whole vocabulary, whatever min_p drops.
      if (!filters.rank && !is_kept) weight = 0.0;
      of_rows = add_rn(of_rows, token < first_rest ? weight : 0.0);
      of_rest = add_rn(of_rest, token < first_rest ? 0.0 : weight);
    }
    const double sum = sum_of_group(of_rows, of_rest);
    if (lane == 0 && base < end) p.block_sums[(uint64_t)blockIdx.y * n_blocks + base / kSumBlock] = sum;
  }
  if (!filters.rank) return;
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < kClasses; i += kStreamThreads) {
    if (bins.count[i] == 0) continue;
    ClassSum& sum = p.classes[(uint64_t)blockIdx.y * kClasses + i];
    atomicAdd(&sum.count, bins.count[i]);
    atomicAdd(&sum.high, (uint64_t)high_of(bins, i));
    atomicAdd(&sum.low, (uint64_t)bins.low[i]);
  }
}
CUSIM_KERNEL(sample_weights)

extern "C" __global__ void __launch_bounds__(kChooseThreads, 1) sample_choose(const SampleParams p) {
  after_earlier_launches();
  __shared__ ChooseShared shared;
  const SampleWork work = p.works[blockIdx.x];
  if (work.row < kFirstRow) {
    if (threadIdx.x == 0) p.out[blockIdx.x] = Sampled{0, 0, __uint_as_float(0x7fc00000u), 0};
    return;
  }
  const RowSampler sampler = p.samplers[work.row];
  RowState state = p.states[work.row];
  const ChunkPeak peak = peak_of_row(p, blockIdx.x, shared.keys, shared.any);
  uint32_t token = peak.nan ? 0 : peak.token;
  const bool is_peak = sampler.is_greedy || peak.nan || is_infinite(peak.logit);
  if (!is_peak) {
    const double draw = uniform(sampler.seed, state.n_output);
    if (threadIdx.x == 0) {
      shared.edits = edits_of(p, work, sampler, state);
      shared.weights = weights_of(p, work, sampler, peak.logit);
    }
    __syncthreads();
    Chooser chooser{p,
                    shared,
                    filters_of(p, sampler),
                    p.block_sums,
                    p.classes,
                    draw};
    const uint32_t n_blocks = (p.vocab + kSumBlock - 1) / kSumBlock;
    chooser.block_sums += (uint64_t)blockIdx.x * n_blocks;
    chooser.classes += (uint64_t)blockIdx.x * kClasses;
    token = chooser.filters.rank ? chooser.by_rank() : chooser.by_id();
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  record(p.states[work.row], state, token, sampler, p.counts, p.vocab);
  const bool rules_all_out = is_peak && !peak.nan && peak.logit == minus_infinity();
  const uint32_t flags = peak.nan || rules_all_out ? kNan : 0;
  p.out[blockIdx.x] = Sampled{token, flags, __uint_as_float(0x7fc00000u), state.n_output + 1};
}
CUSIM_KERNEL(sample_choose)
