// Runs decode attention over a page table. If PLANT_PAGE_INDEX is set, one page is outside of the pool.
#include <cstdio>
#include <vector>

#include "cusim.h"

#include "attention_decode.cu"

int main() {
  constexpr uint32_t kPageSize = 4, kPages = 4, kHeadDim = 8, kContext = 3 * kPageSize;
  std::vector<float> keys(kPages * kPageSize * kHeadDim, 1.0f), values(keys.size(), 2.0f);
  std::vector<float> query(kHeadDim, 0.5f), out(kHeadDim);
  std::vector<uint32_t> pages{1, 3, getenv("PLANT_PAGE_INDEX") ? kPages : 2};
  const Segment segment{0, 0, 1, kContext - 1};

  AttendParams<float> params{};
  params.out = out.data();
  params.q = query.data();
  params.k_pool = keys.data();
  params.v_pool = values.data();
  params.page_table = pages.data();
  params.segments = &segment;
  params.table_stride = static_cast<uint32_t>(pages.size());
  params.page_size = kPageSize;
  params.n_heads = params.n_kv_heads = params.n_splits = 1;
  params.head_dim = kHeadDim;
  params.scale_log2 = 1.0f;
  void* arguments[] = {&params};
  const std::string error = cusim::registry().at("attend_decode_generic_f32").run(1, 128, 0, arguments);
  if (!error.empty()) printf("%s\n", error.c_str());
  for (const float x : out)
    if (!(fabsf(x - 2.0f) < 1e-6f)) return printf("%f is not 2\n", x), 1;
  return error.empty() ? 0 : 1;
}
