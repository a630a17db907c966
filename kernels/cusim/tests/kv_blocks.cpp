// Compares kv_blocks.cu with a plain loop in both directions: equal bytes, and no other byte is written.
#include "cusim.h"

#include <algorithm>
#include <random>

#include "element.cuh"
#include "kv_blocks.cu"

#include "arrays.h"

using namespace arrays;

constexpr uint32_t kPlanes = 3;
constexpr unsigned char kUntouched = 0xa7;

struct Shape {
  uint32_t token_bytes, page_size, block_tokens, first_token, n_tokens, n_pages;
  uint64_t plane_stride;
};

static std::vector<unsigned char> random_bytes(size_t n) {
  std::vector<unsigned char> bytes(n);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(any_of(0, 255));
  return bytes;
}

// Distinct pages of the pool, in any order.
static std::vector<uint32_t> pages_of(const Shape& s) {
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < s.n_pages; ++id) ids.push_back(id);
  std::shuffle(ids.begin(), ids.end(), random_source());
  ids.resize(s.n_tokens / s.page_size);
  return ids;
}

// The kernel reads the page ids from the page table if `by_table`, else from its parameters.
static void check(const Shape& s, BlockCopy direction, bool by_table, uint32_t blocks) {
  const std::vector<uint32_t> pages = pages_of(s);
  std::vector<unsigned char> pool = random_bytes(kPlanes * s.plane_stride);
  std::vector<unsigned char> block(kPlanes * s.block_tokens * s.token_bytes, kUntouched);
  if (direction == kToPool) {
    block = random_bytes(block.size());
    std::fill(pool.begin(), pool.end(), kUntouched);
  }
  std::vector<unsigned char> want_pool = pool, want_block = block;
  for (uint32_t plane = 0; plane < kPlanes; ++plane)
    for (uint32_t i = 0; i < s.n_tokens; ++i) {
      const uint64_t slot = (uint64_t)pages[i / s.page_size] * s.page_size + i % s.page_size;
      unsigned char* in_pool = want_pool.data() + plane * s.plane_stride + slot * s.token_bytes;
      unsigned char* in_block =
          want_block.data() + ((uint64_t)plane * s.block_tokens + s.first_token + i) * s.token_bytes;
      if (direction == kToBlock) memcpy(in_block, in_pool, s.token_bytes);
      else memcpy(in_pool, in_block, s.token_bytes);
    }
  KvBlockParams params{};
  params.pool = pool.data();
  params.block = block.data();
  params.plane_stride = s.plane_stride;
  params.token_bytes = s.token_bytes;
  params.page_size = s.page_size;
  params.block_tokens = s.block_tokens;
  params.first_token = s.first_token;
  params.n_tokens = s.n_tokens;
  params.direction = direction;
  if (by_table) params.table = pages.data();
  else std::copy(pages.begin(), pages.end(), params.pages);
  const std::string what = "copy_block of " + std::to_string(s.n_tokens) + " tokens of " +
                           std::to_string(s.token_bytes) + " bytes, direction " + std::to_string(direction);
  launch("copy_block", dim3(blocks, kPlanes), 128, 0, params);
  if (pool != want_pool) fail(what, "the pool differs");
  if (block != want_block) fail(what, "the block differs");
}

int main() {
  for (const uint32_t token_bytes : {4u, 12u, 64u, 512u, 1036u})
    for (const uint32_t page_size : {1u, 4u, 16u, 64u}) {
      const uint32_t n_pages = 80;
      const uint64_t plane_bytes = (uint64_t)n_pages * page_size * token_bytes;
      const uint64_t stride = (plane_bytes + 255) / 256 * 256;
      for (const BlockCopy direction : {kToBlock, kToPool})
        for (const bool by_table : {false, true}) {
          check({token_bytes, page_size, 64, 0, 64, n_pages, stride}, direction, by_table, any_of(1, 4));
          if (page_size == 64) continue;
          const uint32_t first = page_size * any_of(1, 64 / page_size - 1);
          const uint32_t n = page_size * any_of(1, (64 - first) / page_size);
          check({token_bytes, page_size, 64, first, n, n_pages, stride}, direction, by_table, any_of(1, 4));
        }
    }
  // A page with more tokens than the blocks above.
  check({16, 128, 128, 0, 128, 5, 5 * 128 * 16}, kToBlock, false, 2);
  check({16, 128, 128, 0, 128, 5, 5 * 128 * 16}, kToPool, true, 2);
  return report("kv_blocks");
}
