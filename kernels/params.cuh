// What kernels are called with. src/kernels/cuda/params.rs mirrors every struct (repr(C), same order); both sides
// assert the sizes. Pointers are device addresses; E is the element type of weights, activations and KV (f32 or bf16).
#pragma once
#include "ptx.cuh"

// The query tokens of one row in a step; they stand side by side, in ascending position.
struct Segment {
  uint32_t row;             // of the page table
  uint32_t first_token;     // index of its first token in the step
  uint32_t n_tokens;
  uint32_t first_position;  // of its first token in the sequence
};

// Projected queries, keys and values of a step: norms the heads, rotates queries and keys, stores keys and values.
template <class E> struct RopeStoreParams {
  E* q;                    // [T, n_heads * head_dim]
  E* k_pool;               // [n_slots, n_kv_heads, head_dim], of one layer
  E* v_pool;               // likewise
  const E* qkv;            // [T, (n_heads + 2 n_kv_heads) * head_dim]
  const float* q_norm;     // [head_dim], or null: heads are not normed
  const float* k_norm;     // [head_dim], or null
  const float* rotations;  // [T, head_dim]: head_dim / 2 cosines, then as many sines
  const uint32_t* slots;   // [T]: page * page_size + offset; slot 0 belongs to the dummy page
  uint32_t n_heads, n_kv_heads, head_dim;
  float eps;
};

// Attention over the paged KV of one layer. Slot of position p of a row: page_table[row][p / page_size] * page_size +
// p % page_size. A query at position p sees keys at positions <= p, with a window w only those > p - w.
template <class E> struct AttendParams {
  E* out;                      // [T, n_heads * head_dim]
  const E* q;                  // [T, n_heads * head_dim]
  const E* k_pool;             // [n_slots, n_kv_heads, head_dim], of one layer
  const E* v_pool;             // likewise
  const uint32_t* page_table;  // [n_rows, table_stride]
  const Segment* segments;     // decode: those of n_tokens == 1 come first; a segment of n_tokens == 0 is padding
  const uint2* tiles;          // prefill: x = segment, y = its first query of the tile (an index in the segment)
  float* partials;             // decode with n_splits > 1: see attention_decode.cu
  uint32_t table_stride;       // pages
  uint32_t page_size;          // tokens; any number from 1
  uint32_t n_heads, n_kv_heads, head_dim;
  uint32_t window;             // 0: none
  uint32_t n_splits;           // decode: parts into which each context is cut
  float scale_log2;            // factor on scores, times log2(e)
};

// Tiles of prefill: a tile of the tensor-core kernels holds this many pairs of a query and a head of its group, so
// floor(prefill_rows(head_dim) / group) queries; one of attend_prefill_generic_* holds kPlainTileQueries queries.
__host__ __device__ constexpr uint32_t prefill_rows(uint32_t head_dim) { return head_dim <= 128 ? 128 : 64; }
constexpr uint32_t kPlainTileQueries = 16;

enum GemmWrite : uint32_t {
  kStore = 0,     // out is E
  kStoreF32 = 1,  // out is float
  kAddF32 = 2,    // out is float and is added to
};

// out[m, n] = x[m, k] * w[n, k]^T + bias[n]
template <class E> struct GemmParams {
  void* out;
  const E* x;
  const E* w;
  const float* bias;  // or null
  float* partials;    // split-k workspace, see gemm.cu; null: no split
  uint32_t m, n, k;
  uint32_t write;     // GemmWrite
  uint32_t n_splits;
};
