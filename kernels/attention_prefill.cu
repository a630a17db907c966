// Causal attention of segments of any number of tokens over their paged context, in tiles of queries that the
// host lists.
//
// A tile of the tensor-core kernels has prefill_rows(D) rows. A row is a query and a head of the group that
// shares the key head: row r is query r / group of the tile, head r % group of the group. So a short segment
// fills its rows with heads, and K/V are read once for the group. A tile therefore has floor(prefill_rows(D)
// / group) queries; larger groups take the plain kernel, whose tiles have kPlainTileQueries queries.
#include "attention.cuh"

namespace prefill {
using namespace attention;

// Queries rows of a warp are kRowTiles tiles of 16: with two of them a fragment of K or V read from shared
// memory feeds two products, without which shared memory would be as busy as the tensor cores. D = 256 has
// registers for one only.
template <uint32_t D> struct Shape {
  static constexpr uint32_t kWarps = 4;
  static constexpr uint32_t kRowTiles = D == 256 ? 1 : 2;
  static constexpr uint32_t kWarpRows = kRowTiles * 16;
  static constexpr uint32_t kRows = kWarps * kWarpRows;
  static constexpr uint32_t kKeys = D == 256 ? 32 : 64;  // of a block
  static constexpr uint32_t kThreads = kWarps * kWarpSize;
  static constexpr bool kQueriesInRegisters = D == 64;
  static_assert(kRows == prefill_rows(D), "the host makes tiles of this height");
};

// One tile of queries, in shared memory: every thread needs all of it now and then, and registers are scarce.
// Positions are counted from `begin`, a multiple of the size of a block: so what a row's blocks are does not
// depend on the tile it is in, and its result depends on its position alone.
struct Tile {
  PageWalk walk;
  uint32_t group;
  uint32_t first_token;            // of its first query, in the step
  uint32_t n_rows;
  uint32_t begin, n_keys;          // positions that its blocks hold
  uint32_t first_seen;             // by its first query, and so by any
  uint32_t first_last, last_last;  // the last key that its first and its last query see

  DEV uint32_t last_key(uint32_t row) const { return first_last + row / group; }
  // Keys of a block that no query sees are masked, and another that one sees stands for them: nothing else is
  // read.
  DEV uint32_t slot(uint32_t key) const { return walk.slot(begin + min(max(key, first_seen), n_keys - 1)); }
};

template <uint32_t D>
DEV Tile make_tile(const AttendParams<bf16>& p, const Segment& segment, uint32_t first) {
  const uint32_t group = p.n_heads / p.n_kv_heads;
  const uint32_t n_queries = min(Shape<D>::kRows / group, segment.n_tokens - first);
  const uint32_t position = segment.first_position + first;
  const uint32_t seen = visible(p, position).begin, end = position + n_queries;
  const uint32_t begin = seen / Shape<D>::kKeys * Shape<D>::kKeys;
  return {page_walk(p, segment.row), group,        segment.first_token + first, n_queries * group, begin,
          end - begin,               seen - begin, position - begin,            end - 1 - begin};
}

// Element offset of a row of a tile in q and out.
DEV uint64_t row_offset(const AttendParams<bf16>& p, const Tile& tile, uint32_t row) {
  const uint32_t head = blockIdx.y * tile.group + row % tile.group;
  return ((uint64_t)(tile.first_token + row / tile.group) * p.n_heads + head) * p.head_dim;
}

template <uint32_t D> DEV void copy_queries(const AttendParams<bf16>& p, const Tile& tile, smem_addr to) {
  using S = Shape<D>;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < S::kRows * D / 8; i += S::kThreads) {
    const uint32_t row = i / (D / 8), chunk = i % (D / 8);
    const bool real = row < tile.n_rows && chunk * 8 < p.head_dim;
    const bf16* from = p.q + row_offset(p, tile, real ? row : 0) + (real ? chunk * 8 : 0);
    cp_async16(to + swizzled<D>(row, chunk) * sizeof(bf16), from, real);
  }
}

// Keys or values of a block.
template <uint32_t D>
DEV void copy_block(smem_addr to, const HeadRows& from, const uint32_t* slots, uint32_t n_columns) {
  using Copy = RowCopy<D, Shape<D>::kThreads, Shape<D>::kKeys>;
  const uint32_t thread = threadIdx.x;
  uint32_t row_slots[Copy::kPasses];
#pragma unroll
  for (uint32_t i = 0; i < Copy::kPasses; ++i) row_slots[i] = slots[Copy::first_row(thread) + i];
  Copy::template copy<true>(thread, to, from, row_slots, n_columns, Shape<D>::kKeys);
}

// The t-th 16 rows of a tile.
template <uint32_t D> DEV smem_addr rows16(smem_addr tile, uint32_t t) {
  return tile + t * 16 * D * sizeof(bf16);
}

// What a warp keeps of its rows. `queries` below is where its rows of the tile of queries begin.
template <uint32_t D> struct Rows {
  using S = Shape<D>;
  Attended<D> attended[S::kRowTiles];
  uint32_t q[S::kQueriesInRegisters ? S::kRowTiles : 1][S::kQueriesInRegisters ? D / 16 : 1][4];

  DEV void clear() {
#pragma unroll
    for (uint32_t t = 0; t < S::kRowTiles; ++t) attended[t].clear();
  }
  DEV void keep_queries(smem_addr queries) {
    if constexpr (S::kQueriesInRegisters) {
#pragma unroll
      for (uint32_t t = 0; t < S::kRowTiles; ++t)
#pragma unroll
        for (uint32_t k = 0; k < D / 16; ++k)
          load_rows(q[t][k], rows16<D>(queries, t), lane_offset<D>(), k);
    }
  }
  DEV void query(uint32_t (&a)[4], smem_addr queries, uint32_t offset, uint32_t t, uint32_t k) const {
    if constexpr (S::kQueriesInRegisters) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) a[i] = q[t][k][i];
    } else {
      load_rows(a, rows16<D>(queries, t), offset, k);
    }
  }
};

template <uint32_t D> using Scores = float[Shape<D>::kRowTiles][Shape<D>::kKeys / 8][4];

template <uint32_t D>
DEV void score(Scores<D>& s, const Rows<D>& rows, smem_addr queries, smem_addr keys) {
  const uint32_t offset = lane_offset<D>(), keys_at = key_offset<D>();
  using S = Shape<D>;
#pragma unroll
  for (uint32_t t = 0; t < S::kRowTiles; ++t)
#pragma unroll
    for (uint32_t j = 0; j < S::kKeys / 8; ++j) s[t][j][0] = s[t][j][1] = s[t][j][2] = s[t][j][3] = 0.f;
#pragma unroll
  for (uint32_t k = 0; k < D / 16; ++k) {
    uint32_t a[S::kRowTiles][4];
#pragma unroll
    for (uint32_t t = 0; t < S::kRowTiles; ++t) rows.query(a[t], queries, offset, t, k);
#pragma unroll
    for (uint32_t j = 0; j < S::kKeys / 16; ++j) {
      uint32_t b[2][2];
      load_keys(b, rows16<D>(keys, j), keys_at, k);
#pragma unroll
      for (uint32_t t = 0; t < S::kRowTiles; ++t) {
        mma_m16n8k16(s[t][2 * j], a[t], b[0]);
        mma_m16n8k16(s[t][2 * j + 1], a[t], b[1]);
      }
    }
  }
}

template <uint32_t D> DEV bool needs_mask(const Tile& tile, uint32_t window, uint32_t first) {
  const uint32_t last = first + Shape<D>::kKeys - 1;
  return last > tile.first_last || (window != 0 && first + window <= tile.last_last);
}

// What a row sees is found here anew: few blocks are masked.
template <uint32_t D> DEV void mask(Scores<D>& s, const Tile& tile, uint32_t window, uint32_t first) {
  using S = Shape<D>;
  const uint32_t first_key = first + lane_id() % 4 * 2;
#pragma unroll
  for (uint32_t t = 0; t < S::kRowTiles; ++t)
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t last = tile.last_key(warp() * S::kWarpRows + t * 16 + h * 8 + lane_id() / 4);
      const uint32_t hidden = window != 0 && last >= window ? last + 1 - window : 0;
      const int from = (int)hidden - (int)first_key, to = (int)last - (int)first_key;
#pragma unroll
      for (int j = 0; j < (int)S::kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (j * 8 + e < from || j * 8 + e > to) s[t][j][2 * h + e] = minus_infinity();
    }
}

template <uint32_t D>
DEV void add_values(Rows<D>& rows, const Scores<D>& s, smem_addr values) {
  const uint32_t offset = opaque(lane_offset<D>());
  using S = Shape<D>;
#pragma unroll
  for (uint32_t j = 0; j < S::kKeys / 16; ++j) {
    uint32_t a[S::kRowTiles][4];
#pragma unroll
    for (uint32_t t = 0; t < S::kRowTiles; ++t) pack_weights(a[t], s[t][2 * j], s[t][2 * j + 1]);
#pragma unroll
    for (uint32_t n = 0; n < D / 16; ++n) {
      uint32_t b[2][2];
      load_values(b, rows16<D>(values, j), offset, n);
#pragma unroll
      for (uint32_t t = 0; t < S::kRowTiles; ++t) {
        mma_m16n8k16(rows.attended[t].o[2 * n], a[t], b[0]);
        mma_m16n8k16(rows.attended[t].o[2 * n + 1], a[t], b[1]);
      }
    }
  }
}

// Through the warp's own rows of the tile of queries, which it alone has read, so that rows leave in 16-byte
// pieces.
template <uint32_t D>
DEV void write_rows(const AttendParams<bf16>& p, const Tile& tile, const Rows<D>& rows, bf16* staging) {
  using S = Shape<D>;
  const uint32_t first = warp() * S::kWarpRows;
#pragma unroll
  for (uint32_t t = 0; t < S::kRowTiles; ++t)
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const float sum = quad_sum(rows.attended[t].sum[h]), inverse = sum > 0.f ? __fdividef(1.f, sum) : 0.f;
      const uint32_t row = first + t * 16 + h * 8 + lane_id() / 4;
#pragma unroll
      for (uint32_t j = 0; j < D / 8; ++j) {
        const float* o = &rows.attended[t].o[j][2 * h];
        bf16* to = staging + swizzled<D>(row, j) + lane_id() % 4 * 2;
        *reinterpret_cast<uint32_t*>(to) = pack_bf16(o[0] * inverse, o[1] * inverse);
      }
    }
  __syncwarp();
#pragma unroll 1
  for (uint32_t i = lane_id(); i < S::kWarpRows * D / 8; i += kWarpSize) {
    const uint32_t row = first + i / (D / 8), chunk = i % (D / 8);
    if (row >= tile.n_rows || chunk * 8 >= p.head_dim) continue;
    const uint4 piece = *reinterpret_cast<const uint4*>(staging + swizzled<D>(row, chunk));
    *reinterpret_cast<uint4*>(p.out + row_offset(p, tile, row) + chunk * 8) = piece;
  }
}

// K and V have a buffer each, and while one is used the other is filled: values arrive during the scores, the
// next block's keys during the weighted values.
template <uint32_t D> DEV void attend(const AttendParams<bf16>& p) {
  using S = Shape<D>;
  DYN_SMEM(bf16, shared);  // [kRows][D] queries, [kKeys][D] keys, [kKeys][D] values
  __shared__ uint32_t slots[2][S::kKeys];
  __shared__ Tile tile;
  const uint2 place = p.tiles[blockIdx.x];
  const Segment segment = p.segments[place.x];
  if (place.y >= segment.n_tokens) return;
  if (threadIdx.x == 0) tile = make_tile<D>(p, segment, place.y);
  __syncthreads();
  const smem_addr keys = smem_of(shared + S::kRows * D), values = smem_of(shared + (S::kRows + S::kKeys) * D);
  const smem_addr queries = smem_of(shared + warp() * S::kWarpRows * D);
  const HeadRows all_keys = head_rows(p, p.k_pool, blockIdx.y);
  const HeadRows all_values = head_rows(p, p.v_pool, blockIdx.y);
  if (threadIdx.x < S::kKeys) slots[0][threadIdx.x] = tile.slot(threadIdx.x);
  copy_queries<D>(p, tile, smem_of(shared));
  __syncthreads();
  copy_block<D>(keys, all_keys, slots[0], p.head_dim / 8);
  cp_async_commit();
  Rows<D> rows;
  rows.clear();
  for (uint32_t first = 0, block = 0; first < tile.n_keys; first += S::kKeys, ++block) {
    const uint32_t next_slot = tile.slot(first + S::kKeys + threadIdx.x % S::kKeys);
    cp_async_wait<0>();
    __syncthreads();  // the keys are there, and the values of the block before are used up
    copy_block<D>(values, all_values, slots[block % 2], p.head_dim / 8);
    cp_async_commit();
    if (block == 0) rows.keep_queries(queries);
    Scores<D> s;
    score<D>(s, rows, queries, keys);
    if (threadIdx.x < S::kKeys) slots[(block + 1) % 2][threadIdx.x] = next_slot;
    if (needs_mask<D>(tile, p.window, first)) mask<D>(s, tile, p.window, first);
#pragma unroll
    for (uint32_t t = 0; t < S::kRowTiles; ++t) rows.attended[t].weigh(s[t], p.scale_log2);
    cp_async_wait<0>();
    __syncthreads();  // the values and the next slots are there, and the keys are used up
    if (first + S::kKeys < tile.n_keys) copy_block<D>(keys, all_keys, slots[(block + 1) % 2], p.head_dim / 8);
    cp_async_commit();
    add_values<D>(rows, s, values);
  }
  write_rows<D>(p, tile, rows, shared);
}

// ---- any other shape: a warp for each query

template <class E> DEV void attend_plain(const AttendParams<E>& p) {
  constexpr uint32_t kWarps = 4;
  __shared__ WarpScratch scratch[kWarps];
  const uint2 place = p.tiles[blockIdx.x];
  const Segment segment = p.segments[place.x];
  const uint32_t head = blockIdx.y, kv_head = head / (p.n_heads / p.n_kv_heads);
  const uint32_t own = warp();
  const PageWalk walk = page_walk(p, segment.row);
  for (uint32_t i = own; i < kPlainTileQueries; i += kWarps) {
    const uint32_t query = place.y + i;
    if (query >= segment.n_tokens) break;
    const Positions seen = visible(p, segment.first_position + query);
    plain_load_query(p, scratch[own], segment.first_token + query, head);
    PlainAttended a;
    a.clear();
    for (uint32_t first = seen.begin; first < seen.end; first += kWarpSize)
      plain_attend_32(p, walk, scratch[own], a, kv_head, first, seen.end);
    E* out = p.out + ((uint64_t)(segment.first_token + query) * p.n_heads + head) * p.head_dim;
#pragma unroll
    for (uint32_t j = 0; j < PlainAttended::kDims; ++j) {
      const uint32_t d = lane_id() + j * kWarpSize;
      if (d < p.head_dim) out[d] = from_f32<E>(__fdividef(a.o[j], a.sum));
    }
  }
}

}  // namespace prefill

// grid (tiles, n_kv_heads), block 128. Two blocks on a multiprocessor: 255 registers.
#define ATTEND_PREFILL(D)                                                        \
  extern "C" __global__ void __launch_bounds__(128, 2)                           \
      attend_prefill_bf16_d##D(const __grid_constant__ AttendParams<bf16> p) {   \
    after_earlier_launches();                                                    \
    prefill::attend<D>(p);                                                       \
  }                                                                              \
  CUSIM_KERNEL(attend_prefill_bf16_d##D)
ATTEND_PREFILL(64)
ATTEND_PREFILL(128)
ATTEND_PREFILL(256)

// grid (tiles, n_heads), block 128.
#define ATTEND_PREFILL_PLAIN(name, E)                                            \
  extern "C" __global__ void __launch_bounds__(128, 8)                           \
      attend_prefill_generic_##name(const __grid_constant__ AttendParams<E> p) { \
    after_earlier_launches();                                                    \
    prefill::attend_plain(p);                                                    \
  }                                                                              \
  CUSIM_KERNEL(attend_prefill_generic_##name)
ATTEND_PREFILL_PLAIN(f32, float)
ATTEND_PREFILL_PLAIN(bf16, bf16)
