// Attention of segments of one token over their paged context, split over the context.
//
// Splits: the keys of a row are cut into parts that begin at multiples of 64 keys after the first one it
// sees, none meant to have fewer than 128 keys, n_splits at most (`splits_of`). What a row's parts are
// depends on its keys and on n_splits only, so does its result. A row of one part is written to `out` at
// once.
//
// `partials`, used by rows of several parts, f32, with S = gridDim.y segments and entry e = (segment *
// n_heads + head) * n_splits + split:
//   [S * n_heads * n_splits, head_dim]  weighted values, not divided by the sum of weights
//   [S * n_heads * n_splits, 2]         maximum of the scores (times log2(e)), sum of weights relative to it
// which is S * n_heads * n_splits * (head_dim + 2) floats. Entries of parts that do not exist are not
// written.
#include "attention.cuh"

namespace decode {
using namespace attention;

constexpr uint32_t kMinSplitKeys = 128;
constexpr uint32_t kSplitAlign = 64;

// ---- splits and partial results

struct Splits {
  uint32_t n_keys;  // of each but the last
  uint32_t count;
};

DEV Splits splits_of(uint32_t n_keys, uint32_t n_splits) {
  const uint32_t wanted = min(n_splits, ceil_div(n_keys, kMinSplitKeys));
  const uint32_t keys = ceil_div(ceil_div(n_keys, wanted), kSplitAlign) * kSplitAlign;
  return {keys, ceil_div(n_keys, keys)};
}

// What a block attends: the positions of one split of one segment.
struct Work {
  Segment segment;
  Positions keys;
  uint32_t n_splits;  // of the segment; 0: the block has nothing to do
};

template <class E> DEV Work find_work(const AttendParams<E>& p) {
  const Segment segment = p.segments[blockIdx.y];
  if (segment.n_tokens != 1) return {segment, {0, 0}, 0};
  const Positions all = visible(p, segment.first_position);
  const Splits splits = splits_of(all.end - all.begin, p.n_splits);
  if (blockIdx.z >= splits.count) return {segment, {0, 0}, 0};
  const uint32_t begin = all.begin + blockIdx.z * splits.n_keys;
  return {segment, {begin, min(begin + splits.n_keys, all.end)}, splits.count};
}

template <class E> struct Partial {
  float* o;
  float* max_sum;
};

template <class E> DEV Partial<E> partial_of(const AttendParams<E>& p, uint32_t head, uint32_t split) {
  const uint64_t n_entries = (uint64_t)gridDim.y * p.n_heads * p.n_splits;
  const uint64_t entry = ((uint64_t)blockIdx.y * p.n_heads + head) * p.n_splits + split;
  return {p.partials + entry * p.head_dim, p.partials + n_entries * p.head_dim + entry * 2};
}

// The maxima and sums that the warps of a block leave for its last part.
template <uint32_t kWarps, uint32_t kRows> struct WarpSums {
  float max[kWarps][kRows], sum[kWarps][kRows];
};

struct Merged {
  float max, sum;
};

template <uint32_t kWarps, uint32_t kRows>
DEV Merged merge(const WarpSums<kWarps, kRows>& sums, uint32_t row, float (&factors)[kWarps]) {
  float most = minus_infinity();
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) most = fmaxf(most, sums.max[w][row]);
  const float base = most == minus_infinity() ? 0.f : most;
  float sum = 0.f;
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) {
    factors[w] = ex2(sums.max[w][row] - base);
    sum += factors[w] * sums.sum[w][row];
  }
  return {most, sum};
}

// ---- tensor cores

// A warp streams every kWarps-th block of 16 keys through its own stages, so the loop has no barrier of the
// block. K and V of a stage are refilled apart, each as soon as it has been used: of 2 kStages pieces at
// least 2 kStages - 1 are under way.
template <uint32_t D> struct Shape {
  static constexpr uint32_t kWarps = D == 256 ? 2 : 4;
  static constexpr uint32_t kStages = D == 64 ? 3 : 2;
  static constexpr uint32_t kRows = 16;  // query heads of a block, padded
  static constexpr uint32_t kKeys = 16;
  static constexpr uint32_t kPiece = kKeys * D;  // elements of K or V of a block of keys
  static constexpr uint32_t kWarpElements = kStages * 2 * kPiece;
  static constexpr uint32_t kMergeStride = D + 8;  // floats: rows of half a warp in distinct banks
  static constexpr bool kQueriesInRegisters = D < 256;
};

template <uint32_t D> struct Stream {
  using S = Shape<D>;
  PageWalk walk;
  HeadRows k, v;
  uint32_t n_columns;     // chunks of eight of a head
  uint32_t first, n_keys;
  smem_addr stages;       // of this warp

  // Each of 16 lanes (and its twin) looks up a key of the block. Past the end it repeats the last one:
  // nothing is read there, but the address stays good.
  DEV uint32_t find_slot(uint32_t block) const {
    return walk.slot(first + min(block * S::kKeys + lane_id() % S::kKeys, n_keys - 1));
  }
  DEV smem_addr piece(uint32_t stage, uint32_t which) const {
    return stages + (stage * 2 + which) * S::kPiece * sizeof(bf16);
  }

  // Commits a group even if there is no such block: the waits count groups.
  DEV void copy(const HeadRows& from, smem_addr to, uint32_t block, uint32_t slot) const {
    using Copy = RowCopy<D, kWarpSize, S::kKeys>;
    if (block * S::kKeys < n_keys) {
      const uint32_t thread = opaque(lane_id());
      uint32_t slots[Copy::kPasses];
#pragma unroll
      for (uint32_t i = 0; i < Copy::kPasses; ++i)
        slots[i] = __shfl_sync(0xffffffffu, slot, Copy::first_row(thread) + i);
      Copy::template copy<false>(thread, to, from, slots, n_columns, n_keys - block * S::kKeys);
    }
    cp_async_commit();
  }
};

// The queries of a block as the A operand of each step; D = 256 leaves no registers for them and keeps a
// tile.
template <uint32_t D> struct Queries {
  uint32_t a[Shape<D>::kQueriesInRegisters ? D / 16 : 1][4];
  smem_addr tile;  // where the lane begins in it

  DEV void read(const HeadRows& q, uint32_t n_rows, uint32_t n_columns) {
    const uint32_t row = lane_id() / 4, column = lane_id() % 4 * 2;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; ++k)
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t r = row + i % 2 * 8;
        const char* from = q.row(r) + (k * 16 + i / 2 * 8 + column) * sizeof(bf16);
        a[k][i] = r < n_rows && 2 * k + i / 2 < n_columns ? *reinterpret_cast<const uint32_t*>(from) : 0;
      }
  }
  DEV void copy_tile(smem_addr to, const HeadRows& q, uint32_t n_rows, uint32_t n_columns) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < Shape<D>::kRows * D / 8; i += blockDim.x) {
      const uint32_t row = i / (D / 8), chunk = i % (D / 8);
      const bool real = row < n_rows && chunk < n_columns;
      cp_async16(to + swizzled<D>(row, chunk) * sizeof(bf16), real ? q.row(row) + chunk * 16 : q.first, real);
    }
    cp_async_commit();
    tile = to + lane_offset<D>();
  }
  DEV void step(uint32_t (&out)[4], uint32_t k) const {
    if constexpr (Shape<D>::kQueriesInRegisters) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) out[i] = a[k][i];
    } else {
      load_rows(out, 0, tile, k);
    }
  }
};

// `keys` and `values` below are where a lane begins in a piece.
template <uint32_t D> DEV void score(float (&s)[2][4], const Queries<D>& queries, smem_addr keys) {
#pragma unroll
  for (uint32_t j = 0; j < 2; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.f;
#pragma unroll
  for (uint32_t k = 0; k < D / 16; ++k) {
    uint32_t a[4], b[2][2];
    queries.step(a, k);
    load_keys(b, 0, keys, k);
    mma_m16n8k16(s[0], a, b[0]);
    mma_m16n8k16(s[1], a, b[1]);
  }
}

template <uint32_t D> DEV void add_values(Attended<D>& attended, const float (&s)[2][4], smem_addr values) {
  uint32_t a[4];
  pack_weights(a, s[0], s[1]);
#pragma unroll
  for (uint32_t n = 0; n < D / 16; ++n) {
    uint32_t b[2][2];
    load_values(b, 0, values, n);
    mma_m16n8k16(attended.o[2 * n], a, b[0]);
    mma_m16n8k16(attended.o[2 * n + 1], a, b[1]);
  }
}

// Hides the keys of a block from `n_keys` on.
DEV void mask_end(float (&s)[2][4], uint32_t n_keys) {
#pragma unroll
  for (uint32_t j = 0; j < 2; ++j)
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e)
      if (j * 8 + lane_id() % 4 * 2 + e % 2 >= n_keys) s[j][e] = minus_infinity();
}

template <uint32_t D>
DEV void attend_stream(Attended<D>& attended, Queries<D>& queries, const Stream<D>& stream, const HeadRows& q,
                       uint32_t n_rows, smem_addr query_tile, float scale_log2) {
  using S = Shape<D>;
  constexpr uint32_t kAhead = S::kStages * S::kWarps;
  constexpr int kPending = 2 * S::kStages - 1;
  if constexpr (!S::kQueriesInRegisters) queries.copy_tile(query_tile, q, n_rows, stream.n_columns);
  const uint32_t own = warp();
  uint32_t slots[S::kStages];
#pragma unroll
  for (uint32_t i = 0; i < S::kStages; ++i) slots[i] = stream.find_slot(own + i * S::kWarps);
#pragma unroll 1
  for (uint32_t i = 0; i < 2 * S::kStages; ++i) {
    const uint32_t slot = i < 2 ? slots[0] : i < 4 ? slots[1] : slots[S::kStages - 1];
    const HeadRows from = {i % 2 == 0 ? stream.k.first : stream.v.first, stream.k.stride};
    stream.copy(from, stream.piece(i / 2, i % 2), own + i / 2 * S::kWarps, slot);
  }
  uint32_t slot = stream.find_slot(own + kAhead);
  if constexpr (S::kQueriesInRegisters) {
    queries.read(q, n_rows, stream.n_columns);
  } else {
    cp_async_wait<2 * S::kStages>();
    __syncthreads();
  }
  attended.clear();
  const uint32_t keys_at = key_offset<D>(), values_at = lane_offset<D>();
  uint32_t stage = 0;
  for (uint32_t block = own; block * S::kKeys < stream.n_keys; block += S::kWarps) {
    float s[2][4];
    cp_async_wait<kPending>();
    __syncwarp();
    score<D>(s, queries, stream.piece(stage, 0) + keys_at);
    __syncwarp();
    stream.copy(stream.k, stream.piece(stage, 0), block + kAhead, slot);
    if ((block + 1) * S::kKeys > stream.n_keys) mask_end(s, stream.n_keys - block * S::kKeys);
    attended.weigh(s, scale_log2);
    cp_async_wait<kPending>();
    __syncwarp();
    add_values<D>(attended, s, stream.piece(stage, 1) + values_at);
    __syncwarp();
    stream.copy(stream.v, stream.piece(stage, 1), block + kAhead, slot);
    slot = stream.find_slot(block + kAhead + S::kWarps);
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  __syncwarp();
}

// Leaves the warp's share in its stages, which nothing reads any more.
template <uint32_t D>
DEV void leave_share(const Attended<D>& attended, float* share, WarpSums<Shape<D>::kWarps, 16>& sums) {
  const uint32_t row = lane_id() / 4, column = lane_id() % 4 * 2, w = warp();
#pragma unroll
  for (uint32_t j = 0; j < D / 8; ++j)
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      float* to = share + (row + 8 * h) * Shape<D>::kMergeStride + j * 8 + column;
      *reinterpret_cast<float2*>(to) = make_float2(attended.o[j][2 * h], attended.o[j][2 * h + 1]);
    }
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const float sum = quad_sum(attended.sum[h]);
    if (lane_id() % 4 != 0) continue;
    sums.max[w][row + 8 * h] = attended.max[h];
    sums.sum[w][row + 8 * h] = sum;
  }
}

template <uint32_t D>
DEV void write_rows(const AttendParams<bf16>& p, const Work& work, const bf16* shares,
                    const WarpSums<Shape<D>::kWarps, 16>& sums, uint32_t first_head, uint32_t n_rows) {
  using S = Shape<D>;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < n_rows * (D / 2); i += blockDim.x) {
    const uint32_t row = i / (D / 2), column = i % (D / 2) * 2, head = first_head + row;
    if (column >= p.head_dim) continue;
    float factors[S::kWarps];
    const Merged merged = merge<S::kWarps, 16>(sums, row, factors);
    float x = 0.f, y = 0.f;
#pragma unroll
    for (uint32_t w = 0; w < S::kWarps; ++w) {
      const float* share = reinterpret_cast<const float*>(shares + w * S::kWarpElements);
      const float2 o = *reinterpret_cast<const float2*>(share + row * S::kMergeStride + column);
      x += factors[w] * o.x;
      y += factors[w] * o.y;
    }
    if (work.n_splits == 1) {
      bf16* out = p.out + ((uint64_t)work.segment.first_token * p.n_heads + head) * p.head_dim + column;
      *reinterpret_cast<uint32_t*>(out) = pack_bf16(__fdividef(x, merged.sum), __fdividef(y, merged.sum));
      continue;
    }
    const Partial<bf16> partial = partial_of(p, head, blockIdx.z);
    partial.o[column] = x;
    partial.o[column + 1] = y;
    if (column == 0) partial.max_sum[0] = merged.max, partial.max_sum[1] = merged.sum;
  }
}

template <uint32_t D> DEV void attend(const AttendParams<bf16>& p) {
  using S = Shape<D>;
  static_assert(S::kRows * S::kMergeStride * 4 <= S::kWarpElements * 2, "a share fits");
  DYN_SMEM(bf16, shared);  // [kWarps][kStages][K, V][kKeys][D], then [kRows][D] for queries not in registers
  __shared__ WarpSums<S::kWarps, S::kRows> sums;
  const Work work = find_work(p);
  if (work.n_splits == 0) return;
  const uint32_t group = p.n_heads / p.n_kv_heads, parts = ceil_div(group, S::kRows);
  const uint32_t kv_head = blockIdx.x / parts, first_row = blockIdx.x % parts * S::kRows;
  const uint32_t first_head = kv_head * group + first_row, n_rows = min(group - first_row, S::kRows);
  bf16* stages = shared + warp() * S::kWarpElements;
  const Stream<D> stream = {page_walk(p, work.segment.row), head_rows(p, p.k_pool, kv_head),
                            head_rows(p, p.v_pool, kv_head), p.head_dim / 8,
                            work.keys.begin, work.keys.end - work.keys.begin,
                            smem_of(stages)};
  const bf16* first_q = p.q + ((uint64_t)work.segment.first_token * p.n_heads + first_head) * p.head_dim;
  const HeadRows q = {reinterpret_cast<const char*>(first_q), p.head_dim * (uint32_t)sizeof(bf16)};
  Attended<D> attended;
  Queries<D> queries;
  const smem_addr query_tile = smem_of(shared + S::kWarps * S::kWarpElements);
  attend_stream<D>(attended, queries, stream, q, n_rows, query_tile, p.scale_log2);
  leave_share<D>(attended, reinterpret_cast<float*>(stages), sums);
  __syncthreads();
  write_rows<D>(p, work, shared, sums, first_head, n_rows);
}

// ---- any other shape

template <class E> DEV void attend_plain(const AttendParams<E>& p) {
  constexpr uint32_t kWarps = 4;
  __shared__ WarpScratch scratch[kWarps];
  __shared__ float shares[kWarps][kMaxHeadDim];
  __shared__ WarpSums<kWarps, 1> sums;
  const Work work = find_work(p);
  if (work.n_splits == 0) return;
  const uint32_t head = blockIdx.x, kv_head = head / (p.n_heads / p.n_kv_heads);
  const uint32_t own = warp();
  const PageWalk walk = page_walk(p, work.segment.row);
  plain_load_query(p, scratch[own], work.segment.first_token, head);
  PlainAttended a;
  a.clear();
  for (uint32_t first = work.keys.begin + own * kWarpSize; first < work.keys.end; first += kWarps * kWarpSize)
    plain_attend_32(p, walk, scratch[own], a, kv_head, first, work.keys.end);
#pragma unroll
  for (uint32_t j = 0; j < PlainAttended::kDims; ++j) shares[own][lane_id() + j * kWarpSize] = a.o[j];
  if (lane_id() == 0) sums.max[own][0] = a.max, sums.sum[own][0] = a.sum;
  __syncthreads();
  float factors[kWarps];
  const Merged merged = merge<kWarps, 1>(sums, 0, factors);
  E* out = p.out + ((uint64_t)work.segment.first_token * p.n_heads + head) * p.head_dim;
#pragma unroll 1
  for (uint32_t d = threadIdx.x; d < p.head_dim; d += blockDim.x) {
    float o = 0.f;
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) o += factors[w] * shares[w][d];
    if (work.n_splits == 1)
      out[d] = from_f32<E>(__fdividef(o, merged.sum));
    else
      partial_of(p, head, blockIdx.z).o[d] = o;
  }
  if (work.n_splits == 1 || threadIdx.x != 0) return;
  const Partial<E> partial = partial_of(p, head, blockIdx.z);
  partial.max_sum[0] = merged.max, partial.max_sum[1] = merged.sum;
}

// ---- putting splits together, in ascending order

// Each lane weighs a split, and the warp passes the factors round.
template <class E> DEV void combine(const AttendParams<E>& p) {
  const Segment segment = p.segments[blockIdx.y];
  if (segment.n_tokens != 1) return;
  const Positions all = visible(p, segment.first_position);
  const uint32_t n_splits = splits_of(all.end - all.begin, p.n_splits).count, head = blockIdx.x;
  if (n_splits == 1) return;
  const Partial<E> first = partial_of(p, head, 0);
  float most = minus_infinity();
#pragma unroll 1
  for (uint32_t i = lane_id(); i < n_splits; i += kWarpSize) most = fmaxf(most, first.max_sum[2 * i]);
  most = warp_max(most);
  const float base = most == minus_infinity() ? 0.f : most;
  E* out = p.out + ((uint64_t)segment.first_token * p.n_heads + head) * p.head_dim;
#pragma unroll 1
  for (uint32_t d = threadIdx.x; d - threadIdx.x < p.head_dim; d += blockDim.x) {
    float o = 0.f, sum = 0.f;
#pragma unroll 1
    for (uint32_t i = 0; i < n_splits; i += kWarpSize) {
      const uint32_t n = min(n_splits - i, kWarpSize), own = i + min(lane_id(), n - 1);
      const float factor = lane_id() < n ? ex2(first.max_sum[2 * own] - base) : 0.f;
      sum += warp_sum(factor * first.max_sum[2 * own + 1]);
      const float* from = first.o + (uint64_t)i * p.head_dim + min(d, p.head_dim - 1);
#pragma unroll 4
      for (uint32_t j = 0; j < n; ++j)
        o += __shfl_sync(0xffffffffu, factor, j) * from[(uint64_t)j * p.head_dim];
    }
    if (d < p.head_dim) out[d] = from_f32<E>(__fdividef(o, sum));
  }
}

}  // namespace decode

// D: of heads of at most that size, a multiple of 8; grid (n_kv_heads * ceil(group / 16), segments,
// n_splits), block 32 kWarps; the second bound is the blocks that the shared memory of sm_80 or sm_90 holds
// at once.
#define ATTEND_DECODE(D, threads, blocks)                                        \
  extern "C" __global__ void __launch_bounds__(threads, blocks)                  \
      attend_decode_bf16_d##D(const __grid_constant__ AttendParams<bf16> p) {    \
    after_earlier_launches();                                                    \
    decode::attend<D>(p);                                                        \
  }                                                                              \
  CUSIM_KERNEL(attend_decode_bf16_d##D)
ATTEND_DECODE(64, 128, 4)
ATTEND_DECODE(128, 128, 3)
ATTEND_DECODE(256, 64, 3)

// attend_decode_generic: grid (n_heads, segments, n_splits); attend_combine: grid (n_heads, segments); block
// 128.
#define ATTEND_DECODE_PLAIN(name, E)                                                                  \
  extern "C" __global__ void __launch_bounds__(128, 8)                                                \
      attend_decode_generic_##name(const __grid_constant__ AttendParams<E> p) {                       \
    after_earlier_launches();                                                                         \
    decode::attend_plain(p);                                                                          \
  }                                                                                                   \
  CUSIM_KERNEL(attend_decode_generic_##name)                                                          \
  extern "C" __global__ void __launch_bounds__(128)                                                   \
      attend_combine_##name(const __grid_constant__ AttendParams<E> p) {                              \
    after_earlier_launches();                                                                         \
    decode::combine(p);                                                                               \
  }                                                                                                   \
  CUSIM_KERNEL(attend_combine_##name)
ATTEND_DECODE_PLAIN(f32, float)
ATTEND_DECODE_PLAIN(bf16, bf16)
