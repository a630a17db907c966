// out[m, n] = x[m, k] * w[n, k]^T + bias[n] on sm_80's means. kernels/README.md has the table of which kernel
// does what m, n and k; src/kernels/cuda chooses by it.
//   gemm_simt_*         any shape and alignment
//   gemm_skinny_*_bf16  m <= 16: streams the weights past the tensor cores, no shared memory on the way
//   gemm_tile_*_bf16    tiles through shared memory; several parts of k go to partials
//   gemm_reduce_bf16    adds up partials
#include "params.cuh"
#include "element.cuh"

// ---- the ends: bias and the three writes

DEV float4 sum4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

template <class E> DEV void write_one(const GemmParams<E>& p, uint32_t row, uint32_t column, float value) {
  const uint64_t i = (uint64_t)row * p.n + column;
  if (p.bias) value += p.bias[column];
  if (p.write == kStore) static_cast<E*>(p.out)[i] = from_f32<E>(value);
  else if (p.write == kStoreF32) static_cast<float*>(p.out)[i] = value;
  else static_cast<float*>(p.out)[i] += value;
}

// The first `count` of four. Rolled up: it is the slow path, and cubins are small.
template <class Write> DEV void for_each_one(float4 value, uint32_t count, const Write& write) {
#pragma unroll 1
  for (uint32_t j = 0; j < 4 && j < count; ++j) {
    write(j, value.x);
    value = make_float4(value.y, value.z, value.w, 0.0f);
  }
}

// Four neighbours of a tile that may reach over the edges of out; column is a multiple of four.
DEV void write_four(const GemmParams<bf16>& p, uint32_t row, uint32_t column, float4 value) {
  if (row >= p.m || column >= p.n) return;
  const uint64_t i = (uint64_t)row * p.n + column;
  if (p.n % 4 != 0 || !aligned16(p.out) || (p.bias && !aligned16(p.bias))) {
    for_each_one(value, p.n - column, [&](uint32_t j, float v) { write_one(p, row, column + j, v); });
    return;
  }
  if (p.bias) value = sum4(value, load4(p.bias + column));
  if (p.write == kStore) {
    store4(static_cast<bf16*>(p.out) + i, value);
    return;
  }
  float* out = static_cast<float*>(p.out) + i;
  store4(out, p.write == kAddF32 ? sum4(load4(out), value) : value);
}

// ---- plain tiles, for f32 and for rows that 16-byte copies cannot take

constexpr uint32_t kSimtTile = 64, kSimtDepth = 16, kSimtThreads = 256;

template <class E> DEV void simt_load(float (&tile)[kSimtDepth][kSimtTile + 4], const E* rows,
                                      uint32_t first_row, uint32_t n_rows, uint32_t first_k, uint32_t k) {
  const uint32_t depth = threadIdx.x % kSimtDepth;
  for (uint32_t i = threadIdx.x / kSimtDepth; i < kSimtTile; i += kSimtThreads / kSimtDepth) {
    const bool inside = first_row + i < n_rows && first_k + depth < k;
    tile[depth][i] = inside ? f32(rows[(uint64_t)(first_row + i) * k + first_k + depth]) : 0.0f;
  }
}

// Block (i, j) does rows [64 j, ...) and columns [64 i, ...), a thread four by four; each sum is a chain over
// ascending k.
template <class E> DEV void gemm_simt(const GemmParams<E>& p) {
  __shared__ __align__(16) float xs[kSimtDepth][kSimtTile + 4];
  __shared__ __align__(16) float ws[kSimtDepth][kSimtTile + 4];
  const uint32_t first_row = blockIdx.y * kSimtTile, first_column = blockIdx.x * kSimtTile;
  const uint32_t row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  const bool busy = first_row + row < p.m && first_column + column < p.n;
  float sums[4][4] = {};
  for (uint32_t first_k = 0; first_k < p.k; first_k += kSimtDepth) {
    simt_load(xs, p.x, first_row, p.m, first_k, p.k);
    simt_load(ws, p.w, first_column, p.n, first_k, p.k);
    __syncthreads();
    if (busy) {
#pragma unroll 4
      for (uint32_t depth = 0; depth < kSimtDepth; ++depth) {
        const float4 a = *reinterpret_cast<const float4*>(&xs[depth][row]);
        const float4 b = *reinterpret_cast<const float4*>(&ws[depth][column]);
        const float as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(as[i], bs[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
  if (!busy) return;
    // Rolled up, as sums move to where the one copy of the write finds them: cubins are small.
#pragma unroll 1
  for (uint32_t i = 0; i < 4 && first_row + row + i < p.m; ++i) {
    const uint32_t count = p.n - first_column - column;
    for_each_one(
        make_float4(sums[0][0], sums[0][1], sums[0][2], sums[0][3]), count,
        [&](uint32_t j, float v) { write_one(p, first_row + row + i, first_column + column + j, v); });
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[0][j] = sums[1][j], sums[1][j] = sums[2][j], sums[2][j] = sums[3][j];
  }
}

extern "C" __global__ void __launch_bounds__(kSimtThreads, 2)
    gemm_simt_f32(const __grid_constant__ GemmParams<float> p) {
  after_earlier_launches();
  gemm_simt(p);
}
CUSIM_KERNEL(gemm_simt_f32)

extern "C" __global__ void __launch_bounds__(kSimtThreads, 2)
    gemm_simt_bf16(const __grid_constant__ GemmParams<bf16> p) {
  after_earlier_launches();
  gemm_simt(p);
}
CUSIM_KERNEL(gemm_simt_bf16)

// ---- skinny: few rows of x against all weights

constexpr uint32_t kSkinnyWarps = 8, kSkinnyThreads = kSkinnyWarps * 32;
// Inputs that one 16-byte load of each of the four lanes of a row covers: two products of depth 16.
constexpr uint32_t kPiece = 32;

// Adds 16 outputs times 8 rows of x over 32 inputs. Lane 4 r + t holds inputs [8 t, 8 t + 8) of outputs r
// (`low`) and r + 8 (`high`) and of row r of x. The order of inputs in a product is free as long as both
// sides share it, so what a lane has loaded at once takes the places that the fragments of two products want.
DEV void skinny_product(float (&sum)[4], uint4 low, uint4 high, uint4 x) {
  const uint32_t a0[4] = {low.x, high.x, low.y, high.y}, a1[4] = {low.z, high.z, low.w, high.w};
  const uint32_t b0[2] = {x.x, x.y}, b1[2] = {x.z, x.w};
  mma_m16n8k16(sum, a0, b0);
  mma_m16n8k16(sum, a1, b1);
}

// Adds up what the eight warps found for [kColumns, kRows] and writes it; `sums` is [warp][row][column].
template <uint32_t kRows, uint32_t kColumns>
DEV void skinny_write(const GemmParams<bf16>& p, const float (&sums)[kSkinnyWarps][kRows][kColumns + 1]) {
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < kRows * kColumns; i += kSkinnyThreads) {
    const uint32_t row = i / kColumns, column = i % kColumns;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t warp = 0; warp < kSkinnyWarps; ++warp) sum += sums[warp][row][column];
    const uint32_t out_column = blockIdx.x * kColumns + column;
    if (row < p.m && out_column < p.n) write_one(p, row, out_column, sum);
  }
}

// Block j does columns [16 kOuts j, ...) of all rows, at most 8 kRowSets. Its warps take turns at the inputs,
// each kUnroll pieces at a time with all their loads under way before the first product; k and rows are
// aligned to 16 bytes. Over the edges the last column or row is read once more, and what comes of it is
// dropped.
template <int kRowSets, int kOuts, int kUnroll> DEV void gemm_skinny(const GemmParams<bf16>& p) {
  __shared__ float shared_sums[kSkinnyWarps][8 * kRowSets][16 * kOuts + 1];
  const uint32_t warp = threadIdx.x / 32, lane_row = threadIdx.x % 32 / 4, lane_k = threadIdx.x % 4 * 8;
  const uint32_t first_k = warp * kUnroll * kPiece + lane_k;
  const bf16 *w_rows[2 * kOuts], *x_rows[kRowSets];
#pragma unroll
  for (int j = 0; j < 2 * kOuts; ++j)
    w_rows[j] = p.w + (uint64_t)min(blockIdx.x * 16 * kOuts + 8 * j + lane_row, p.n - 1) * p.k;
#pragma unroll
  for (int i = 0; i < kRowSets; ++i) x_rows[i] = p.x + (uint64_t)min(8 * i + lane_row, p.m - 1) * p.k;
  float sums[kOuts][kRowSets][4] = {};
  for (uint32_t k = first_k; k < p.k + lane_k; k += kSkinnyWarps * kUnroll * kPiece) {
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 w[kUnroll][2 * kOuts], x[kUnroll][kRowSets];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int j = 0; j < 2 * kOuts; ++j)
        w[u][j] = k + u * kPiece < p.k ? load_streaming16(w_rows[j] + k + u * kPiece) : zero;
    // The first weights are on their way while the launch before this one, which makes x, still runs.
    if (k == first_k) after_earlier_launches();
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int i = 0; i < kRowSets; ++i)
        x[u][i] = k + u * kPiece < p.k ? *reinterpret_cast<const uint4*>(x_rows[i] + k + u * kPiece) : zero;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int j = 0; j < kOuts; ++j)
#pragma unroll
        for (int i = 0; i < kRowSets; ++i) skinny_product(sums[j][i], w[u][2 * j], w[u][2 * j + 1], x[u][i]);
  }
#pragma unroll
  for (int j = 0; j < kOuts; ++j)
#pragma unroll
    for (int i = 0; i < kRowSets; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t row = 8 * i + threadIdx.x % 4 * 2 + e % 2, column = 16 * j + e / 2 * 8 + lane_row;
        shared_sums[warp][row][column] = sums[j][i][e];
      }
  // Warps without inputs have not waited yet.
  after_earlier_launches();
  __syncthreads();
  skinny_write<8 * kRowSets, 16 * kOuts>(p, shared_sums);
}

#define GEMM_SKINNY(name, row_sets, outs, unroll)                 \
  extern "C" __global__ void __launch_bounds__(kSkinnyThreads, 2) \
      name(const __grid_constant__ GemmParams<bf16> p) {          \
    gemm_skinny<row_sets, outs, unroll>(p);                       \
  }                                                               \
  CUSIM_KERNEL(name)
GEMM_SKINNY(gemm_skinny_8x16_bf16, 1, 1, 4)
GEMM_SKINNY(gemm_skinny_8x32_bf16, 1, 2, 4)
GEMM_SKINNY(gemm_skinny_16x32_bf16, 2, 2, 3)

// ---- tiles through shared memory

// Tile of out, its depth in inputs, how warps divide it, and how many depths are under way or in use.
template <int kRows_, int kColumns_, int kDepth_, int kWarpRows_, int kWarpColumns_, int kStages_>
struct TileShape {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kDepth = kDepth_, kStages = kStages_;
  static constexpr int kWarpColumns = kWarpColumns_, kThreads = 32 * kWarpRows_ * kWarpColumns_;
  // Of a warp: fragments of 16 rows and of 8 columns.
  static constexpr int kRowFrags = kRows / kWarpRows_ / 16, kColumnFrags = kColumns / kWarpColumns_ / 8;
  static constexpr int kSteps = kDepth / 16;
  static constexpr int kPieces = kDepth / 8;  // 16-byte pieces in a row of a stage
  static constexpr int kStageElements = (kRows + kColumns) * kDepth;
  static_assert(kColumnFrags % 2 == 0 && kSteps % 2 == 0 && kStages >= 3, "");
  static_assert(kThreads / kPieces % 8 == 0, "the pieces of a thread lie in rows of equal swizzle");
};

// Where piece `piece` of row `row` lies, in elements: pieces are permuted so that the eight rows of an
// ldmatrix matrix, and eight neighbouring pieces of a copy, fall into different banks. A row of four pieces
// fills half of the banks.
template <class S> DEV uint32_t swizzled(uint32_t row, uint32_t piece) {
  const uint32_t turn = S::kPieces == 8 ? row % 8 : row / 2 % 4;
  return row * S::kDepth + (piece ^ turn) * 8;
}

// A matrix in global memory of which a block copies kRows rows, one depth at a time.
template <class S, int kRows> struct TileSource {
  static constexpr uint32_t kRowStep = S::kThreads / S::kPieces;
  static_assert(kRows % kRowStep == 0, "");
  const bf16* first;   // the piece of this thread in its first row
  const bf16* valid;   // any address that may be named
  uint32_t rows_left;  // from this thread's first row
  uint32_t stride;     // elements

  DEV TileSource(const bf16* matrix, uint32_t first_row, uint32_t n_rows, uint32_t k) {
    const uint32_t row = first_row + threadIdx.x / S::kPieces;
    first = matrix + (uint64_t)row * k + threadIdx.x % S::kPieces * 8;
    valid = matrix;
    rows_left = row < n_rows ? n_rows - row : 0;
    stride = k;
  }
  // Starts the copy of inputs [k0, k0 + kDepth); those from k_end on and rows over the edge become zero.
  DEV void copy(bf16* tile, uint32_t k0, uint32_t k_end) const {
    const uint32_t row = threadIdx.x / S::kPieces, piece = threadIdx.x % S::kPieces;
    const bool inside = k0 + piece * 8 < k_end;
    const bf16* from = first + k0;
#pragma unroll
    for (uint32_t i = 0; i < kRows; i += kRowStep) {
      const bool copied = inside && i < rows_left;
      cp_async16(smem_of(tile + swizzled<S>(row, piece) + i * S::kDepth), copied ? from : valid, copied);
      from += (uint64_t)kRowStep * stride;
    }
  }
};

// What a warp multiplies in one step of depth 16.
template <class S> struct Fragments {
  uint32_t x[S::kRowFrags][4];
  uint32_t w[S::kColumnFrags][2];

  DEV void load(const bf16* x_tile, const bf16* w_tile, int step) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t x_row = lane % 16, x_piece = 2 * step + lane / 16;
    const uint32_t w_row = lane / 16 * 8 + lane % 8, w_piece = 2 * step + lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < S::kRowFrags; ++i)
      ldmatrix_x4(x[i], smem_of(x_tile + i * 16 * S::kDepth + swizzled<S>(x_row, x_piece)));
#pragma unroll
    for (int j = 0; j < S::kColumnFrags; j += 2) {
      uint32_t both[4];
      ldmatrix_x4(both, smem_of(w_tile + j * 8 * S::kDepth + swizzled<S>(w_row, w_piece)));
      w[j][0] = both[0], w[j][1] = both[1], w[j + 1][0] = both[2], w[j + 1][1] = both[3];
    }
  }
};

template <class S> using TileSums = float[S::kRowFrags][S::kColumnFrags][4];

template <class S> DEV void multiply(TileSums<S>& sums, const Fragments<S>& frags) {
#pragma unroll
  for (int i = 0; i < S::kRowFrags; ++i)
#pragma unroll
    for (int j = 0; j < S::kColumnFrags; ++j) mma_m16n8k16(sums[i][j], frags.x[i], frags.w[j]);
}

struct TilePlace {
  uint32_t row, column;
};

// Blocks in flight share eight bands of rows before they go on to the next columns, so that what they read
// stays in L2.
template <class S> DEV TilePlace place_of(uint32_t index, uint32_t m, uint32_t n) {
  constexpr uint32_t kBand = 8;
  const uint32_t n_rows = (m + S::kRows - 1) / S::kRows, n_columns = (n + S::kColumns - 1) / S::kColumns;
  const uint32_t first = index / (kBand * n_columns) * kBand, band = min(kBand, n_rows - first);
  const uint32_t rest = index % (kBand * n_columns);
  return {(first + rest % band) * S::kRows, rest / band * S::kColumns};
}

// Multiplies inputs [k_begin, k_end) of the tile at `place`; k_begin is a multiple of kDepth.
template <class S> DEV void multiply_tile(TileSums<S>& sums, const GemmParams<bf16>& p, TilePlace place,
                                          uint32_t k_begin, uint32_t k_end) {
  DYN_SMEM(bf16, stages);
  const uint32_t warp = threadIdx.x / 32;
  const bf16* x_part = stages + warp / S::kWarpColumns * S::kRowFrags * 16 * S::kDepth;
  const bf16* w_part = stages + (S::kRows + warp % S::kWarpColumns * S::kColumnFrags * 8) * S::kDepth;
  const TileSource<S, S::kRows> x(p.x, place.row, p.m, p.k);
  const TileSource<S, S::kColumns> w(p.w, place.column, p.n, p.k);
  // A group is committed for each depth, also for those past the end: the count of groups under way tells
  // their age.
  const auto copy = [&](uint32_t stage, uint32_t k0) {
    bf16* tile = stages + stage * S::kStageElements;
    if (k0 < k_end) {
      x.copy(tile, k0, k_end);
      w.copy(tile + S::kRows * S::kDepth, k0, k_end);
    }
    cp_async_commit();
  };
#pragma unroll 1
  for (int stage = 0; stage < S::kStages - 1; ++stage) copy(stage, k_begin + stage * S::kDepth);
  cp_async_wait<S::kStages - 2>();
  __syncthreads();
  Fragments<S> frags[2];
  frags[0].load(x_part, w_part, 0);
  uint32_t used = 0, filled = S::kStages - 1;
  for (uint32_t k0 = k_begin; k0 < k_end; k0 += S::kDepth) {
    const uint32_t next = used + 1 == S::kStages ? 0 : used + 1;
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const bool last = step + 1 == S::kSteps;
      if (last) {
        // The next depth has arrived for all, and all have read the last fragments of this one, whose stage
        // the next round of the loop fills anew.
        cp_async_wait<S::kStages - 2>();
        __syncthreads();
      }
      // After the last depth this reads a stage that nobody multiplies.
      const uint32_t from = (last ? next : used) * S::kStageElements;
      frags[(step + 1) % 2].load(x_part + from, w_part + from, last ? 0 : step + 1);
      if (step == 0) copy(filled, k0 + (S::kStages - 1) * S::kDepth);
      multiply<S>(sums, frags[step % 2]);
    }
    used = next;
    filled = filled + 1 == S::kStages ? 0 : filled + 1;
  }
}

// Two rows of this lane's sums in 16 rows.
template <class S> DEV void stage_sums(float* to, uint32_t stride, const float (&sums)[S::kColumnFrags][4]) {
#pragma unroll
  for (int j = 0; j < S::kColumnFrags; ++j) {
    *reinterpret_cast<float2*>(to + j * 8) = make_float2(sums[j][0], sums[j][1]);
    *reinterpret_cast<float2*>(to + j * 8 + 8 * stride) = make_float2(sums[j][2], sums[j][3]);
  }
}

// What a split writes: its part, as it is.
DEV GemmParams<bf16> for_partial(GemmParams<bf16> p) {
  p.out = p.partials + (uint64_t)blockIdx.y * p.m * p.n;
  p.bias = nullptr;
  p.write = kStoreF32;
  return p;
}

// Hands rows of sums through shared memory, sixteen at a time, to lanes that write four neighbours each.
template <class S> DEV void write_tile(const GemmParams<bf16>& p, const TileSums<S>& sums, TilePlace place) {
  constexpr uint32_t kColumns = S::kColumnFrags * 8, kStride = kColumns + 8, kLanesPerRow = kColumns / 4;
  static_assert(kStride * 16 * 4 * S::kThreads / 32 <= S::kStageElements * S::kStages * 2, "");
  DYN_SMEM(float, slabs);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* slab = slabs + warp * 16 * kStride;
  const uint32_t first_row = place.row + warp / S::kWarpColumns * S::kRowFrags * 16 + lane / kLanesPerRow;
  const uint32_t column = lane % kLanesPerRow * 4;
  const uint32_t out_column = place.column + warp % S::kWarpColumns * kColumns + column;
  // Every copy has arrived, but a slower warp may still read the stages, for fragments that nobody
  // multiplies.
  __syncthreads();
  // One copy of the writes in the code, though each set of sums has registers of its own.
#pragma unroll 1
  for (int i = 0; i < S::kRowFrags; ++i) {
#pragma unroll
    for (int own = 0; own < S::kRowFrags; ++own)
      if (own == i) stage_sums<S>(slab + lane / 4 * kStride + lane % 4 * 2, kStride, sums[own]);
    __syncwarp();
#pragma unroll 1
    for (uint32_t row = 0; row < 16; row += 32 / kLanesPerRow) {
      const float* from = slab + (row + lane / kLanesPerRow) * kStride + column;
      write_four(p, first_row + i * 16 + row, out_column, load4(from));
    }
    __syncwarp();
  }
}

// Block (i, s) does tile i in the order of place_of, over part s of the depths.
template <class S> DEV void gemm_tile(const GemmParams<bf16>& p) {
  const TilePlace place = place_of<S>(blockIdx.x, p.m, p.n);
  const uint32_t n_depths = (p.k + S::kDepth - 1) / S::kDepth,
                 part = (n_depths + p.n_splits - 1) / p.n_splits;
  const uint32_t k_begin = min(blockIdx.y * part * S::kDepth, p.k),
                 k_end = min(k_begin + part * S::kDepth, p.k);
  TileSums<S> sums = {};
  multiply_tile<S>(sums, p, place, k_begin, k_end);
  write_tile<S>(p.n_splits == 1 ? p : for_partial(p), sums, place);
}

using Tile64x128 = TileShape<64, 128, 32, 2, 2, 8>;
using Tile128x128 = TileShape<128, 128, 32, 2, 2, 4>;
using Tile128x256 = TileShape<128, 256, 32, 2, 4, 4>;

#define GEMM_TILE(name, Shape, blocks)                                  \
  extern "C" __global__ void __launch_bounds__(Shape::kThreads, blocks) \
      name(const __grid_constant__ GemmParams<bf16> p) {                \
    after_earlier_launches();                                           \
    gemm_tile<Shape>(p);                                                \
  }                                                                     \
  CUSIM_KERNEL(name)
GEMM_TILE(gemm_tile_64x128_bf16, Tile64x128, 2)
GEMM_TILE(gemm_tile_128x128_bf16, Tile128x128, 2)
GEMM_TILE(gemm_tile_128x256_bf16, Tile128x256, 1)

// Adds up partials[n_splits, m, n] in ascending order and writes. Block (i, j): row i, columns from 1024 j.
extern "C" __global__ void __launch_bounds__(256, 4)
    gemm_reduce_bf16(const __grid_constant__ GemmParams<bf16> p) {
  after_earlier_launches();
  const uint64_t stride = (uint64_t)p.m * p.n;
#pragma unroll 1
  for (uint32_t column = blockIdx.y * 1024 + threadIdx.x; column < min(p.n, (blockIdx.y + 1) * 1024);
       column += 256) {
    const float* from = p.partials + (uint64_t)blockIdx.x * p.n + column;
    float sum = *from;
#pragma unroll 4
    for (uint32_t split = 1; split < p.n_splits; ++split) sum += from[split * stride];
    write_one(p, blockIdx.x, column, sum);
  }
}
CUSIM_KERNEL(gemm_reduce_bf16)
