// What a step is about, derived on the device: rows that start, edits of the page table, and the tokens,
// positions, slots and segments of decodes and prefills. Padding (row 0) has slot 0, the dummy page's, and
// changes no row.
#include "token_weights.cuh"

constexpr uint32_t kRowThreads = 128;
constexpr uint32_t kCountThreads = 256;
constexpr uint32_t kClearedTokens = 4096;  // of a slot, by one block

extern "C" __global__ void __launch_bounds__(kRowThreads) begin_rows(const BeginRowsParams p) {
  after_earlier_launches();
  const uint32_t i = blockIdx.x * kRowThreads + threadIdx.x;
  if (i >= p.n_begins) return;
  const RowBegin begin = p.begins[i];
  if (begin.row < kFirstRow) return;
  p.samplers[begin.row] = begin.sampler;
  p.states[begin.row] = RowState{0, begin.n_output};
}
CUSIM_KERNEL(begin_rows)

extern "C" __global__ void __launch_bounds__(kCountThreads) clear_counts(const CountParams p) {
  after_earlier_launches();
  const CountRun run = p.runs[blockIdx.y];
  if (run.slot == kNone) return;
  uint32_t* counts = p.counts + (uint64_t)run.slot * p.vocab;
  const uint32_t first = blockIdx.x * kClearedTokens, end = min(first + kClearedTokens, p.vocab);
  for (uint32_t token = first + threadIdx.x; token < end; token += kCountThreads) counts[token] = 0;
}
CUSIM_KERNEL(clear_counts)

extern "C" __global__ void __launch_bounds__(kCountThreads) count_tokens(const CountParams p) {
  after_earlier_launches();
  const CountRun run = p.runs[blockIdx.y];
  if (run.slot == kNone) return;
  uint32_t* counts = p.counts + (uint64_t)run.slot * p.vocab;
  const uint32_t* tokens = p.tokens + run.first_token;
  const uint32_t n_tokens = run.n_prompt + run.n_output;
  for (uint32_t i = blockIdx.x * kCountThreads + threadIdx.x; i < n_tokens; i += gridDim.x * kCountThreads) {
    const uint32_t token = tokens[i];
    if (token >= p.vocab) continue;
    atomicOr(&counts[token], kSeen);
    if (i >= run.n_prompt) atomicAdd(&counts[token], 1u);
  }
}
CUSIM_KERNEL(count_tokens)

extern "C" __global__ void __launch_bounds__(kRowThreads) record_tokens(const RecordParams p) {
  after_earlier_launches();
  const uint32_t i = blockIdx.x * kRowThreads + threadIdx.x;
  if (i >= p.n_tokens) return;
  const RecordedToken recorded = p.tokens[i];
  if (recorded.row < kFirstRow) return;
  const RowState state = p.states[recorded.row];
  record(p.states[recorded.row], state, recorded.token, p.samplers[recorded.row], p.counts, p.vocab);
}
CUSIM_KERNEL(record_tokens)

DEV bool overlaps(const TableRun& a, const TableRun& b) {
  const bool is_apart =
      a.first_index >= b.first_index + b.n_pages || b.first_index >= a.first_index + a.n_pages;
  return a.row == b.row && !is_apart;
}

DEV bool is_within(const TableRun& run, uint32_t row, uint32_t index) {
  return run.row == row && index - run.first_index < run.n_pages;
}

// Blocks run in any order: a run leaves out what a later one writes.
extern "C" __global__ void __launch_bounds__(kRowThreads) edit_table(const EditTableParams p) {
  after_earlier_launches();
  __shared__ uint32_t is_overwritten;
  const TableRun run = p.runs[blockIdx.x];
  if (threadIdx.x == 0) is_overwritten = 0;
  __syncthreads();
#pragma unroll 1
  for (uint32_t later = blockIdx.x + 1 + threadIdx.x; later < p.n_runs; later += kRowThreads) {
    if (overlaps(run, p.runs[later])) is_overwritten = 1;
  }
  __syncthreads();
  uint32_t* row = p.page_table + (uint64_t)run.row * p.table_stride;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < run.n_pages; i += kRowThreads) {
    const uint32_t index = run.first_index + i;
    bool is_last = true;
#pragma unroll 1
    for (uint32_t later = blockIdx.x + 1; is_overwritten && later < p.n_runs; ++later) {
      is_last &= !is_within(p.runs[later], run.row, index);
    }
    if (is_last) row[index] = p.pages[run.first_page + i];
  }
}
CUSIM_KERNEL(edit_table)

DEV uint32_t slot_of(const uint32_t* page_table, uint32_t table_stride, uint32_t page_size, uint32_t row,
                     uint32_t position) {
  return page_table[(uint64_t)row * table_stride + position / page_size] * page_size + position % page_size;
}

extern "C" __global__ void __launch_bounds__(kRowThreads) begin_decode(const BeginDecodeParams p) {
  after_earlier_launches();
  const uint32_t i = blockIdx.x * kRowThreads + threadIdx.x;
  if (i >= p.n_rows) return;
  const DecodeRow decode = p.rows[i];
  if (decode.row < kFirstRow) {
    p.tokens[i] = p.positions[i] = p.slots[i] = 0;
    p.segments[i] = Segment{0, i, 0, 0};
    return;
  }
  p.tokens[i] = p.states[decode.row].last_token;
  p.positions[i] = decode.position;
  p.slots[i] = slot_of(p.page_table, p.table_stride, p.page_size, decode.row, decode.position);
  p.segments[i] = Segment{decode.row, i, 1, decode.position};
}
CUSIM_KERNEL(begin_decode)

// The last segment that begins at or before a token; kNone if there is none.
DEV uint32_t segment_of(const Segment* segments, uint32_t n_segments, uint32_t token) {
  uint32_t low = 0, high = n_segments;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const bool begins = segments[middle].first_token <= token;
    low = begins ? middle + 1 : low;
    high = begins ? high : middle;
  }
  return low == 0 ? kNone : low - 1;
}

extern "C" __global__ void __launch_bounds__(kRowThreads) begin_prefill(const BeginPrefillParams p) {
  after_earlier_launches();
  const uint32_t i = blockIdx.x * kRowThreads + threadIdx.x;
  if (i >= p.n_tokens) return;
  const uint32_t token = p.first_token + i;
  const uint32_t index = segment_of(p.segments, p.n_segments, token);
  const Segment segment = index == kNone ? Segment{0, token, 0, 0} : p.segments[index];
  const uint32_t offset = token - segment.first_token;
  const bool is_padding = segment.row < kFirstRow || offset >= segment.n_tokens;
  const uint32_t position = is_padding ? 0 : segment.first_position + offset;
  p.tokens[token] = is_padding ? 0 : p.uploaded[i];
  p.positions[token] = position;
  p.slots[token] = is_padding ? 0 : slot_of(p.page_table, p.table_stride, p.page_size, segment.row, position);
}
CUSIM_KERNEL(begin_prefill)
