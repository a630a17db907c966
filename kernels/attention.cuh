// What attention over paged KV shares between decode and prefill: which keys a query sees and where they lie,
// tiles in shared memory, fragments of the tensor cores, the online softmax, and the plain path for every
// other shape.
#pragma once
#include "element.cuh"
#include "params.cuh"

namespace attention {

constexpr uint32_t kWarpSize = 32;
constexpr uint32_t kMaxHeadDim = 256;

DEV float minus_infinity() { return __uint_as_float(0xff800000u); }
DEV uint32_t ceil_div(uint32_t n, uint32_t by) { return (n + by - 1) / by; }
// From lane 0, so that the compiler knows it as one number for the warp and what depends on it as no
// divergence. Whole warps call it.
DEV uint32_t warp() { return __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0); }

// A weight of the second product has the precision of the values it meets.
DEV float round_like(float x, const float*) { return x; }
DEV float round_like(float x, const bf16*) { return f32(to_bf16(x)); }

// ---- keys of a query

struct Positions {
  uint32_t begin, end;
};

template <class E> DEV Positions visible(const AttendParams<E>& p, uint32_t position) {
  const bool clipped = p.window != 0 && position >= p.window;
  return {clipped ? position + 1 - p.window : 0, position + 1};
}

// Finds the slots of one row's positions. Powers of two are shifted: a division for each key costs as much as
// its dot product saves.
struct PageWalk {
  const uint32_t* pages;
  uint32_t page_size;
  int shift;  // log2(page_size), or negative

  DEV uint32_t slot(uint32_t position) const {
    if (shift >= 0) return (pages[position >> shift] << shift) + (position & (page_size - 1));
    return pages[position / page_size] * page_size + position % page_size;
  }
};

template <class E> DEV PageWalk page_walk(const AttendParams<E>& p, uint32_t row) {
  const bool power_of_two = (p.page_size & (p.page_size - 1)) == 0;
  const int shift = power_of_two ? __ffs(p.page_size) - 1 : -1;
  return {p.page_table + (uint64_t)row * p.table_stride, p.page_size, shift};
}

// One head's rows of a pool, by slot.
struct HeadRows {
  const char* first;
  uint32_t stride;  // bytes

  DEV const char* row(uint32_t slot) const { return first + (uint64_t)slot * stride; }
};

template <class E> DEV HeadRows head_rows(const AttendParams<E>& p, const E* pool, uint32_t kv_head) {
  const uint32_t stride = p.n_kv_heads * p.head_dim * (uint32_t)sizeof(E);
  return {reinterpret_cast<const char*>(pool + kv_head * p.head_dim), stride};
}

// ---- tiles of bf16 rows in shared memory, 16-byte chunks swizzled
//
// The tensor-core kernels are made for rows of D elements and take heads of fewer: the chunks that a head
// lacks are zeros, in queries, keys and values.

// Element offset of a chunk. Eight rows of one chunk column (what ldmatrix reads) and eight chunks of one row
// (what cp.async writes) each touch all 32 banks.
template <uint32_t D> DEV uint32_t swizzled(uint32_t row, uint32_t chunk) {
  static_assert(D % 64 == 0, "rows are whole turns of the banks");
  return row * D + (chunk ^ row % 8) * 8;
}

// Copies rows of the pool into a swizzled tile: kThreads threads, kRows rows, 16 bytes at once. Rows stay
// together for coalescing; from pass to pass a thread's row changes by a constant, and so does its swizzle:
// that saves registers.
template <uint32_t D, uint32_t kThreads, uint32_t kRows> struct RowCopy {
  static constexpr uint32_t kColumns = D / 8;  // chunks of a row
  static constexpr uint32_t kPasses = kRows * kColumns / kThreads;
  static_assert(kThreads % kColumns == 0 && kPasses % 4 == 0, "a thread keeps to a column");

  // Of a thread in its first pass; the following passes take the following rows.
  static DEV uint32_t first_row(uint32_t thread) { return thread / kColumns * kPasses; }

  // What lies beyond n_columns chunks, and unless kAll from row n_rows on, becomes zeros, unread.
  template <bool kAll>
  static DEV void copy(uint32_t thread, smem_addr to, const HeadRows& from, const uint32_t (&slots)[kPasses],
                       uint32_t n_columns, uint32_t n_rows) {
    const uint32_t first = first_row(thread), column = thread % kColumns;
    const HeadRows chunks = {opaque(from.first + column * 16), from.stride};
    const smem_addr at = to + swizzled<D>(first, column) * sizeof(bf16);
    const bool mine = column < n_columns;
    const int n_left = mine ? (int)n_rows - (int)first : 0;
#pragma unroll
    for (uint32_t i = 0; i < kPasses; ++i) {
      const bool is_read = kAll ? mine : (int)i < n_left;
      cp_async16((at ^ (i % 8 * 16)) + i * D * sizeof(bf16), chunks.row(slots[i]), is_read);
    }
  }
};

// ---- fragments of mma.m16n8k16

// Byte offset in a tile of the 16 bytes that a lane hands to ldmatrix for rows 0 .. 16, columns 0 .. 16, in
// the order in which the fragments of Q and V want the four matrices. Those of K want the second and third
// exchanged: a product takes pairs of adjacent registers.
template <uint32_t D> DEV uint32_t lane_offset() {
  return swizzled<D>(lane_id() % 16, lane_id() / 16) * sizeof(bf16);
}
template <uint32_t D> DEV uint32_t key_offset() {
  return swizzled<D>(lane_id() % 8 + lane_id() / 16 * 8, lane_id() / 8 % 2) * sizeof(bf16);
}

// The same for columns 16 k .. 16 k + 16: as tiles begin at multiples of their row, this touches only the
// chunk's bits.
DEV smem_addr step_columns(smem_addr offset, uint32_t k) { return offset ^ (k * 32); }

// A: rows first_row .. +16 of a tile, the 16 columns of step k.
DEV void load_rows(uint32_t (&a)[4], smem_addr tile, smem_addr offset, uint32_t k) {
  ldmatrix_x4(a, tile + step_columns(offset, k));
}

// B of Q K^T: 16 keys as two tiles of eight, the 16 columns of step k.
DEV void load_keys(uint32_t (&b)[2][2], smem_addr tile, smem_addr offset, uint32_t k) {
  uint32_t r[4];
  ldmatrix_x4(r, tile + step_columns(offset, k));
  b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

// B of P V: 16 keys, columns 16 n .. +16 as two tiles of eight.
DEV void load_values(uint32_t (&b)[2][2], smem_addr tile, smem_addr offset, uint32_t n) {
  uint32_t r[4];
  ldmatrix_x4_trans(r, tile + step_columns(offset, n));
  b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

// A of P V: the scores of 16 keys lie in the registers where the next product wants its rows.
DEV void pack_weights(uint32_t (&a)[4], const float (&s0)[4], const float (&s1)[4]) {
  a[0] = pack_bf16(s0[0], s0[1]);
  a[1] = pack_bf16(s0[2], s0[3]);
  a[2] = pack_bf16(s1[0], s1[1]);
  a[3] = pack_bf16(s1[2], s1[3]);
}

// ---- online softmax

DEV float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DEV float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// What has been attended of the 16 rows of a warp's tile: a thread holds rows lane / 4 and lane / 4 + 8, of
// each columns 8 j + 2 (lane % 4) and the next. `max` is in units of log2, of the whole row; `sum` is the
// thread's share.
template <uint32_t D> struct Attended {
  float o[D / 8][4];
  float max[2], sum[2];

  DEV void clear() {
#pragma unroll
    for (uint32_t j = 0; j < D / 8; ++j) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.f;
    max[0] = max[1] = minus_infinity();
    sum[0] = sum[1] = 0.f;
  }

  // Turns raw scores into weights and rescales what was attended before. A row that has seen no key yet keeps
  // its maximum of minus infinity, and all its weights are 0.
  template <uint32_t kTiles> DEV void weigh(float (&s)[kTiles][4], float scale_log2) {
    float base[2], correction[2];
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      float most = minus_infinity();
#pragma unroll
      for (uint32_t j = 0; j < kTiles; ++j) most = fmaxf(most, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
      const float raised = fmaxf(max[h], quad_max(most) * scale_log2);
      base[h] = raised == minus_infinity() ? 0.f : raised;
      correction[h] = ex2(max[h] - base[h]);
      max[h] = raised;
      sum[h] *= correction[h];
    }
#pragma unroll
    for (uint32_t j = 0; j < kTiles; ++j)
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        s[j][e] = ex2(s[j][e] * scale_log2 - base[e / 2]);
        sum[e / 2] += s[j][e];
      }
#pragma unroll
    for (uint32_t j = 0; j < D / 8; ++j)
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) o[j][e] *= correction[e / 2];
  }
};

// ---- the plain path: any head_dim, any element type

// A warp attends one query: for the scores each lane takes a key, for the values each lane takes dimensions.
struct WarpScratch {
  float q[kMaxHeadDim];
  float weights[kWarpSize];
  uint32_t slots[kWarpSize];
};

struct PlainAttended {
  static constexpr uint32_t kDims = kMaxHeadDim / kWarpSize;
  float o[kDims];  // of dimensions lane, lane + 32, ...
  float max, sum;  // the same in every lane

  DEV void clear() {
#pragma unroll
    for (uint32_t j = 0; j < kDims; ++j) o[j] = 0.f;
    max = minus_infinity();
    sum = 0.f;
  }
};

template <class E>
DEV void plain_load_query(const AttendParams<E>& p, WarpScratch& scratch, uint32_t token, uint32_t head) {
  const E* q = p.q + ((uint64_t)token * p.n_heads + head) * p.head_dim;
  __syncwarp();  // the query before has been read
#pragma unroll 1
  for (uint32_t d = lane_id(); d < p.head_dim; d += kWarpSize) scratch.q[d] = f32(q[d]);
  __syncwarp();
}

template <class E>
DEV float plain_score(const AttendParams<E>& p, const float* q, uint32_t slot, uint32_t kv_head) {
  const E* k = p.k_pool + ((uint64_t)slot * p.n_kv_heads + kv_head) * p.head_dim;
  float dot = 0.f;
#pragma unroll 4
  for (uint32_t d = 0; d < p.head_dim; ++d) dot += q[d] * f32(k[d]);
  return dot * p.scale_log2;
}

// Attends keys first .. end, at most 32 of them.
template <class E>
DEV void plain_attend_32(const AttendParams<E>& p, const PageWalk& walk, WarpScratch& scratch,
                         PlainAttended& a, uint32_t kv_head, uint32_t first, uint32_t end) {
  const uint32_t n_keys = min(end - first, kWarpSize);
  const bool mine = lane_id() < n_keys;
  const uint32_t slot = walk.slot(mine ? first + lane_id() : first);
  const float score = mine ? plain_score(p, scratch.q, slot, kv_head) : minus_infinity();
  const float raised = fmaxf(a.max, warp_max(score));
  const float base = raised == minus_infinity() ? 0.f : raised;
  const float correction = ex2(a.max - base);
  const float weight = ex2(score - base);
  a.max = raised;
  a.sum = a.sum * correction + warp_sum(weight);
  scratch.weights[lane_id()] = round_like(weight, p.v_pool);
  scratch.slots[lane_id()] = slot;
  __syncwarp();
#pragma unroll
  for (uint32_t j = 0; j < PlainAttended::kDims; ++j) a.o[j] *= correction;
#pragma unroll 1
  for (uint32_t i = 0; i < n_keys; ++i) {
    const E* v = p.v_pool + ((uint64_t)scratch.slots[i] * p.n_kv_heads + kv_head) * p.head_dim;
#pragma unroll
    for (uint32_t j = 0; j < PlainAttended::kDims; ++j) {
      const uint32_t d = lane_id() + j * kWarpSize;
      if (d < p.head_dim) a.o[j] += scratch.weights[i] * f32(v[d]);
    }
  }
  __syncwarp();  // weights and slots have been read
}

}  // namespace attention
