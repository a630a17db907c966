// Blocks of the KV store between the pool and memory beside it. A block holds, one behind the other, a plane for the keys
// and one for the values of each layer: plane[block_tokens, Nkv * D], tokens in order, each as it lies in the pool.
#include "ptx.cuh"

constexpr uint32_t kBlockThreads = 128;
constexpr uint32_t kMostBlockPages = 64;

enum BlockCopy : uint32_t { kToBlock = 0, kToPool = 1 };

// Copies tokens first_token .. first_token + n_tokens of a block. Both numbers are multiples of the page size.
struct KvBlockParams {
  unsigned char* pool;    // slot 0 of the first plane
  unsigned char* block;
  const uint32_t* table;  // ids of the pages of the tokens that are copied; null: pages
  uint64_t plane_stride;  // from a plane of the pool to the next, in bytes
  uint32_t token_bytes;   // of a plane; a multiple of four
  uint32_t page_size;     // tokens
  uint32_t block_tokens;
  uint32_t first_token;
  uint32_t n_tokens;
  uint32_t direction;     // BlockCopy
  uint32_t pages[kMostBlockPages];
};
static_assert(sizeof(KvBlockParams) == 312, "mirrored by the host");

// Blocks (x, plane) take turns at the tokens of a plane, their threads at the words of a token. The bus to the host is
// slower by far than this.
extern "C" __global__ void __launch_bounds__(kBlockThreads) copy_block(const KvBlockParams p) {
  after_earlier_launches();
  const uint64_t plane = blockIdx.y;
  const uint32_t words = p.token_bytes / 4;
  uint32_t* const pool = reinterpret_cast<uint32_t*>(p.pool + plane * p.plane_stride);
  uint32_t* const block = reinterpret_cast<uint32_t*>(p.block) + (plane * p.block_tokens + p.first_token) * words;
#pragma unroll 1
  for (uint32_t token = blockIdx.x; token < p.n_tokens; token += gridDim.x) {
    const uint32_t page = token / p.page_size;
    const uint64_t id = p.table ? p.table[page] : p.pages[page];
    uint32_t* const there = pool + (id * p.page_size + token % p.page_size) * words;
    uint32_t* const here = block + (uint64_t)token * words;
    const uint32_t* const from = p.direction == kToBlock ? there : here;
    uint32_t* const to = p.direction == kToBlock ? here : there;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < words; i += kBlockThreads) to[i] = from[i];
  }
}
CUSIM_KERNEL(copy_block)
