// Device functions of sampling: the CPU sampler's arithmetic in the same operations, edits of logits, reductions.
#pragma once
#include "sampling.cuh"

// Functions that are called, not copied into each place: what they save in code is worth more than the call.
#ifdef CUSIM
#define CALLED inline
#else
#define CALLED __device__ __noinline__
#endif

// ---- f64 operations that no compiler joins or reorders: the CPU's weights, bit for bit

#ifdef CUSIM
DEV double add_rn(double a, double b) {
  volatile double sum = a + b;
  return sum;
}
DEV double mul_rn(double a, double b) {
  volatile double product = a * b;
  return product;
}
DEV double fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
DEV float sub_rn(float a, float b) {
  volatile float difference = a - b;
  return difference;
}
DEV float mul_rn(float a, float b) {
  volatile float product = a * b;
  return product;
}
DEV uint64_t bits_of(double v) {
  uint64_t bits;
  memcpy(&bits, &v, 8);
  return bits;
}
DEV double double_of(uint64_t bits) {
  double v;
  memcpy(&v, &bits, 8);
  return v;
}
#else
DEV double add_rn(double a, double b) { return __dadd_rn(a, b); }
DEV double mul_rn(double a, double b) { return __dmul_rn(a, b); }
DEV double fma_rn(double a, double b, double c) { return __fma_rn(a, b, c); }
DEV float sub_rn(float a, float b) { return __fsub_rn(a, b); }
DEV float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEV uint64_t bits_of(double v) { return (uint64_t)__double_as_longlong(v); }
DEV double double_of(uint64_t bits) { return __longlong_as_double((long long)bits); }
#endif
DEV double sub_rn(double a, double b) { return add_rn(a, -b); }
DEV float minus_infinity() { return __uint_as_float(0xff800000u); }
DEV bool is_nan(float v) { return v != v; }
DEV bool is_infinite(float v) { return (__float_as_uint(v) & 0x7fffffffu) == 0x7f800000u; }

// a / b, rounded to nearest, with `inverse` the nearest to 1 / b: the first step makes the quotient faithful,
// the second one correct (Markstein 1990). Not for results beyond the normal numbers; a division has a slow
// path instead.
DEV double divide(double a, double b, double inverse) {
  double quotient = mul_rn(a, inverse);
  quotient = fma_rn(fma_rn(-quotient, b, a), inverse, quotient);
  return fma_rn(fma_rn(-quotient, b, a), inverse, quotient);
}

// 1 / v of a positive normal number, within some roundings.
DEV double inverse_of(double v) {
  double inverse = double_of(0x7fde623822fc16e6ull - bits_of(v));  // within an eighth
#pragma unroll 1
  for (uint32_t i = 0; i < 6; ++i) inverse = fma_rn(fma_rn(-v, inverse, 1.0), inverse, inverse);
  return inverse;
}

// a / b, rounded to nearest: unless it is exact, a quotient of two f32 is further from the middle of two f32 than
// roundings of f64 reach.
DEV float divide_f32(float a, double b, double inverse) {
  if (is_infinite(a)) return a;
  const double quotient = mul_rn((double)a, inverse);
  return (float)fma_rn(fma_rn(-quotient, b, (double)a), inverse, quotient);
}

// exp(x) for x of at most 0; 0 below -708 and at NaN. The operations of exp.rs in their order.
DEV double exp_of_negative(double x) {
  const double round = 6755399441055744.0;  // 1.5 * 2^52
  const double log2_e = 1.4426950408889634;
  const double ln_2_high = double_of(0x3fe62e42fee00000ull), ln_2_low = double_of(0x3dea39ef35793c76ull);
  const bool is_normal = x >= -708.0;
  x = is_normal ? x : 0.0;
  const double shifted = add_rn(mul_rn(x, log2_e), round);
  const double n = sub_rn(shifted, round);
  const double r = sub_rn(sub_rn(x, mul_rn(n, ln_2_high)), mul_rn(n, ln_2_low));
  double sum = 1.0 / 6227020800.0;
  sum = add_rn(mul_rn(sum, r), 1.0 / 479001600.0);
  sum = add_rn(mul_rn(sum, r), 1.0 / 39916800.0);
  sum = add_rn(mul_rn(sum, r), 1.0 / 3628800.0);
  sum = add_rn(mul_rn(sum, r), 1.0 / 362880.0);
  sum = add_rn(mul_rn(sum, r), 1.0 / 40320.0);
  sum = add_rn(mul_rn(sum, r), 1.0 / 5040.0);
  sum = add_rn(mul_rn(sum, r), 1.0 / 720.0);
  sum = add_rn(mul_rn(sum, r), 1.0 / 120.0);
  sum = add_rn(mul_rn(sum, r), 1.0 / 24.0);
  sum = add_rn(mul_rn(sum, r), 1.0 / 6.0);
  sum = add_rn(mul_rn(sum, r), 0.5);
  sum = add_rn(mul_rn(sum, r), 1.0);
  sum = add_rn(mul_rn(sum, r), 1.0);
  const double power = double_of((bits_of(shifted) + 1023) << 52);
  return is_normal ? mul_rn(sum, power) : 0.0;
}

// The finaliser of SplitMix64.
DEV uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// A number in [0, 1): a function of seed and output position, as in draw.rs.
DEV double uniform(uint64_t seed, uint64_t position) {
  const uint64_t golden = 0x9e3779b97f4a7c15ull;
  const uint64_t bits = mix(mix(seed + golden) ^ (position * golden));
  return mul_rn((double)(bits >> 11), 1.0 / 9007199254740992.0);
}

// ---- rank of logits: a key is higher where the logit is, or where it is equal and the token lower

DEV uint32_t ordered(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 ranks as 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEV float logit_of(uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}
DEV uint64_t rank_key(float logit, uint32_t token) {
  return (uint64_t)ordered(logit) << 32 | (uint32_t)~token;
}
DEV uint32_t token_of(uint64_t key) { return ~(uint32_t)key; }

// ---- reductions of a block; `scratch` holds one value a warp, and is free again after the next barrier

template <class T>
DEV T warp_max_of(T value) {
#pragma unroll 1
  for (int offset = 16; offset; offset >>= 1) {
    const T other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

template <class T>
CALLED T block_max(T value, T* scratch) {
  const uint32_t lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
  value = warp_max_of(value);
  __syncthreads();
  if (lane == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_max_of(scratch[lane < n_warps ? lane : 0]);
}

template <class T>
DEV T warp_scan(T value) {
#pragma unroll 1
  for (uint32_t offset = 1; offset < 32; offset <<= 1) {
    const T other = __shfl_up_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 >= offset) value += other;
  }
  return value;
}

// The lowest of the block's values; kNone counts as none.
CALLED uint32_t block_min(uint32_t value, uint32_t& scratch) {
  __syncthreads();
  if (threadIdx.x == 0) scratch = kNone;
  __syncthreads();
  if (value != kNone) atomicMin(&scratch, value);
  __syncthreads();
  return scratch;
}

// Sums of values, in an order that the block's shape fixes: of the threads up to this one, of those before
// it, of all. f64 sums of neighbours can differ from each other's by roundings either way.
template <class T>
struct Scan {
  T through, before, total;
};

template <class T>
CALLED Scan<T> block_scan(T value, T* scratch) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  const T through = warp_scan(value);
  const T left = __shfl_up_sync(0xffffffffu, through, 1);
  __syncthreads();
  if (lane == 31) scratch[warp] = through;
  __syncthreads();
  const T through_warps = warp_scan(lane < n_warps ? scratch[lane] : T(0));
  const T of_earlier = __shfl_sync(0xffffffffu, through_warps, warp > 0 ? warp - 1 : 0);
  const T first = warp > 0 ? of_earlier : T(0);
  const T total = __shfl_sync(0xffffffffu, through_warps, n_warps - 1);
  return Scan<T>{first + through, lane > 0 ? first + left : first, total};
}

// ---- edits of logits, in registers: what a row's sampler changes before it ranks

struct Edits {
  const uint32_t* counts;  // of the row; null: no penalties
  const uint32_t* mask;    // null: none
  const uint32_t* marks;   // of the kMaxChunk tokens from first_marked on: biased or banned; null: unknown
  const TokenBias* biases;
  const uint32_t* bans;
  uint32_t first_marked, n_biases, n_bans;
  float frequency, presence, repetition;
  bool any;
  double inverse_repetition;
};

constexpr uint32_t kMarkWords = kMaxChunk / 32;

DEV Edits edits_of(const SampleParams& p, const SampleWork& work, const RowSampler& sampler,
                   const RowState& state) {
  Edits edits;
  const bool has_slot = sampler.count_slot != kNone;
  edits.counts = has_slot ? p.counts + (uint64_t)sampler.count_slot * p.vocab : nullptr;
  edits.mask = work.mask != kNone ? p.masks + (uint64_t)work.mask * p.mask_words : nullptr;
  edits.marks = nullptr;
  edits.first_marked = 0;
  edits.biases = p.biases + sampler.first_bias;
  edits.n_biases = sampler.n_biases;
  edits.bans = p.bans + sampler.first_ban;
  edits.n_bans = state.n_output < sampler.min_new_tokens && work.may_ban ? sampler.n_bans : 0;
  edits.frequency = sampler.frequency_penalty;
  edits.presence = sampler.presence_penalty;
  edits.repetition = sampler.repetition_penalty;
  edits.inverse_repetition = inverse_of((double)sampler.repetition_penalty);
  edits.any = edits.counts || edits.mask || edits.n_biases || edits.n_bans;
  return edits;
}

// Index of the first of `n` ascending tokens, `stride` words apart, that is not below `token`.
CALLED uint32_t first_not_below(const uint32_t* tokens, uint32_t stride, uint32_t n, uint32_t token) {
  uint32_t low = 0;
#pragma unroll 1
  while (n > 0) {
    const uint32_t half = n / 2;
    const bool is_below = tokens[(low + half) * stride] < token;
    low = is_below ? low + half + 1 : low;
    n = is_below ? n - half - 1 : half;
  }
  return low;
}

// The tokens of both lists, one after the other: biases are pairs of words, bans single ones.
DEV void mark(const Edits& edits, uint32_t* marks, uint32_t first, uint32_t end) {
  const uint32_t* biased = reinterpret_cast<const uint32_t*>(edits.biases);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < edits.n_biases + edits.n_bans; i += blockDim.x) {
    const uint32_t token = i < edits.n_biases ? biased[2 * i] : edits.bans[i - edits.n_biases];
    const uint32_t at = token - first;
    if (at < end - first) atomicOr(&marks[at / 32], 1u << (at % 32));
  }
}

// Notes which tokens of `first..end` (kMaxChunk at most) are biased or banned. All threads of the block call
// it; `edits` is shared.
CALLED void stage_marks(Edits& edits, uint32_t* marks, uint32_t first, uint32_t end) {
  __syncthreads();
  if (edits.n_biases == 0 && edits.n_bans == 0) return;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < kMarkWords; i += blockDim.x) marks[i] = 0;
  __syncthreads();
  mark(edits, marks, first, end);
  if (threadIdx.x == 0) {
    edits.marks = marks;
    edits.first_marked = first;
  }
  __syncthreads();
}

DEV float banned_and_biased(const Edits& edits, uint32_t token, float logit) {
  const uint32_t at = token - edits.first_marked;
  if (edits.marks && at < kMaxChunk && !(edits.marks[at / 32] >> (at % 32) & 1)) return logit;
  const uint32_t ban = first_not_below(edits.bans, 1, edits.n_bans, token);
  if (ban < edits.n_bans && edits.bans[ban] == token) logit = minus_infinity();
  const uint32_t* biased = reinterpret_cast<const uint32_t*>(edits.biases);
  uint32_t i = first_not_below(biased, 2, edits.n_biases, token);
#pragma unroll 1
  for (; i < edits.n_biases && edits.biases[i].token == token; ++i) logit += edits.biases[i].bias;
  return logit;
}

DEV float penalized(const Edits& edits, uint32_t token, float logit) {
  const uint32_t entry = edits.counts[token];
  const uint32_t count = entry & ~kSeen;
  if (count > 0) {
    logit = sub_rn(logit, mul_rn(edits.frequency, (float)count));
    logit = sub_rn(logit, edits.presence);
  }
  if (!(entry & kSeen)) return logit;
  if (logit > 0.0f) return divide_f32(logit, edits.repetition, edits.inverse_repetition);
  return mul_rn(logit, edits.repetition);
}

// The logit that is ranked, in the order of row.rs: penalties, mask, bans, biases.
CALLED float edited(const Edits& edits, uint32_t token, float logit) {
  if (edits.counts) logit = penalized(edits, token, logit);
  if (edits.mask && !(edits.mask[token / 32] >> (token % 32) & 1)) logit = minus_infinity();
  if (edits.n_biases || edits.n_bans) logit = banned_and_biased(edits, token, logit);
  return logit;
}

// ---- reading a row

// Whether the row can be read four logits at a time.
DEV bool reads_by_four(const float* row, uint32_t vocab) {
  return ((reinterpret_cast<uint64_t>(row) & 15) | vocab % 4) == 0;
}

// Four logits from `token` on; minus infinity at or beyond `end`. For rows that can be read so.
DEV float4 load_four(const float* row, uint32_t token, uint32_t end) {
  const float none = minus_infinity();
  return token < end ? *reinterpret_cast<const float4*>(row + token) : make_float4(none, none, none, none);
}
