// Tests batch.cu, which derives a step's inputs on the device: page tables, decodes, prefills, new rows, token counts.
#include "cusim.h"

#include <algorithm>
#include <map>
#include <random>

#include "token_weights.cuh"

namespace batch {
#include "batch.cu"
}

static int failures = 0;
static std::mt19937 random_bits(20261121);

static void check(bool is_right, const std::string& what) {
  if (is_right) return;
  if (++failures <= 20) printf("FAILED: %s\n", what.c_str());
}

static uint32_t below(uint32_t end) { return random_bits() % end; }

template <class Params>
static void launch(const char* kernel, dim3 grid, dim3 block, Params params) {
  void* arguments[] = {&params};
  const std::string error = cusim::registry().at(kernel).run(grid, block, 0, arguments);
  check(error.empty(), std::string(kernel) + ": " + error);
}

static uint32_t blocks(uint32_t n, uint32_t threads) { return (n + threads - 1) / threads; }

static void check_edits(uint32_t n_rows, uint32_t stride, uint32_t n_runs) {
  std::vector<uint32_t> table(n_rows * stride), pages;
  for (uint32_t& page : table) page = random_bits();
  std::vector<uint32_t> expected = table;
  std::vector<TableRun> runs;
  for (uint32_t i = 0; i < n_runs; ++i) {
    TableRun run{below(n_rows), below(stride), 0, (uint32_t)pages.size()};
    run.n_pages = below(5) == 0 ? 0 : 1 + below(stride - run.first_index);
    for (uint32_t page = 0; page < run.n_pages; ++page) {
      pages.push_back(random_bits());
      expected[run.row * stride + run.first_index + page] = pages.back();
    }
    runs.push_back(run);
  }
  launch("edit_table", n_runs, 128, EditTableParams{table.data(), runs.data(), pages.data(), n_runs, stride});
  check(table == expected,
        "page table of " + std::to_string(n_rows) + " rows after " + std::to_string(n_runs) + " edits");
}

struct Table {
  uint32_t n_rows, stride, page_size;
  std::vector<uint32_t> pages;

  Table(uint32_t rows, uint32_t row_pages, uint32_t size)
      : n_rows(rows), stride(row_pages), page_size(size), pages(rows * row_pages) {
    for (uint32_t& page : pages) page = 1 + below(100000);
    std::fill(pages.begin(), pages.begin() + stride, 0xffffffffu);  // no kernel reads the padding row
  }
  uint32_t slot(uint32_t row, uint32_t position) const {
    return pages[row * stride + position / page_size] * page_size + position % page_size;
  }
};

static bool is_same(const Segment& a, const Segment& b) { return memcmp(&a, &b, sizeof a) == 0; }

static void check_decode(uint32_t n_live, uint32_t n_bucket, uint32_t page_size) {
  const Table table(n_live + 3, 7, page_size);
  std::vector<RowState> states(table.n_rows);
  for (RowState& state : states) state = RowState{below(50000), below(9)};
  std::vector<DecodeRow> rows(n_bucket);
  for (uint32_t i = 0; i < n_live; ++i) rows[i] = DecodeRow{n_live - i, below(7 * page_size)};
  std::vector<uint32_t> tokens(n_bucket, kNone), positions(n_bucket, kNone), slots(n_bucket, kNone);
  std::vector<Segment> segments(n_bucket, Segment{9, 9, 9, 9});
  launch("begin_decode", blocks(n_bucket, 128), 128,
         BeginDecodeParams{tokens.data(), positions.data(), slots.data(), segments.data(), rows.data(),
                           states.data(), table.pages.data(), n_bucket, table.stride, page_size, 0});
  for (uint32_t i = 0; i < n_bucket; ++i) {
    const bool is_live = i < n_live;
    const auto [row, position] = rows[i];
    const std::string what = "decode " + std::to_string(i) + " of " + std::to_string(n_bucket);
    check(tokens[i] == (is_live ? states[row].last_token : 0), what + ": token");
    check(positions[i] == (is_live ? position : 0), what + ": position");
    check(slots[i] == (is_live ? table.slot(row, position) : 0), what + ": slot");
    check(is_same(segments[i], is_live ? Segment{row, i, 1, position} : Segment{0, i, 0, 0}),
          what + ": segment");
  }
}

static void check_prefill(uint32_t n_segments, uint32_t page_size) {
  const Table table(n_segments + 1, 40, page_size);
  const uint32_t first = below(20), padding = below(50);
  std::vector<Segment> segments;
  std::vector<uint32_t> expected_positions, expected_slots, uploaded;
  for (uint32_t row = 1; row <= n_segments; ++row) {
    const uint32_t at = first + (uint32_t)uploaded.size();
    if (below(3) == 0) segments.push_back(Segment{0, at, 0, 0});
    const uint32_t n_tokens = 1 + below(20 * page_size), position = below(20 * page_size);
    segments.push_back(Segment{row, at, n_tokens, position});
    for (uint32_t i = 0; i < n_tokens; ++i) {
      uploaded.push_back(below(50000));
      expected_positions.push_back(position + i);
      expected_slots.push_back(table.slot(row, position + i));
    }
  }
  const uint32_t n_live = (uint32_t)uploaded.size(), n_tokens = n_live + padding;
  if (below(2)) segments.push_back(Segment{0, first + n_live, 0, 0});
  std::vector<uint32_t> tokens(first + n_tokens, kNone), positions = tokens, slots = tokens;
  uploaded.resize(n_tokens, 0xdead);
  expected_positions.resize(n_tokens);
  expected_slots.resize(n_tokens);
  launch("begin_prefill", blocks(n_tokens, 128), 128,
         BeginPrefillParams{tokens.data(), positions.data(), slots.data(), segments.data(), uploaded.data(),
                            table.pages.data(), first, n_tokens, (uint32_t)segments.size(), table.stride,
                            page_size, 0});
  for (uint32_t i = 0; i < n_live; ++i) check(tokens[first + i] == uploaded[i], "token of a prefill");
  for (uint32_t i = n_live; i < n_tokens; ++i) check(tokens[first + i] == 0, "token of padding");
  check(std::equal(expected_positions.begin(), expected_positions.end(), positions.begin() + first),
        "positions of a prefill");
  check(std::equal(expected_slots.begin(), expected_slots.end(), slots.begin() + first),
        "slots of a prefill");
  check(std::count(tokens.begin(), tokens.begin() + first, kNone) == first,
        "tokens before a prefill were written");
}

// Checks new rows, the counts of their tokens, and tokens that the host chose.
static void check_rows(uint32_t vocab) {
  const uint32_t n_rows = 9, n_slots = 4;
  std::vector<RowSampler> samplers(n_rows);
  std::vector<RowState> states(n_rows, RowState{77, 77});
  std::vector<RowBegin> begins;
  std::vector<CountRun> runs;
  std::vector<uint32_t> counts(n_slots * vocab, 0xabcdef), expected = counts, tokens;
  for (const uint32_t row : {3u, 1u, 8u}) {
    RowBegin begin{row, below(40), RowSampler{}};
    begin.sampler.seed = random_bits();
    begin.sampler.count_slot = row == 3 ? kNone : row % n_slots;
    begins.push_back(begin);
    if (begin.sampler.count_slot == kNone) continue;
    const CountRun run{begin.sampler.count_slot, (uint32_t)tokens.size(), below(3000), begin.n_output};
    uint32_t* slot = &expected[run.slot * vocab];
    std::fill(slot, slot + vocab, 0);
    for (uint32_t i = 0; i < run.n_prompt + run.n_output; ++i) {
      const uint32_t token = below(vocab + 2);
      tokens.push_back(token);
      if (token < vocab) slot[token] = (slot[token] + (i >= run.n_prompt)) | kSeen;
    }
    runs.push_back(run);
  }
  runs.push_back(CountRun{kNone, 0, 9, 9});
  begins.push_back(RowBegin{0, 5, RowSampler{}});
  launch("begin_rows", 1, 128,
         BeginRowsParams{samplers.data(), states.data(), begins.data(), (uint32_t)begins.size(), 0});
  const CountParams params{counts.data(), runs.data(), tokens.data(), (uint32_t)runs.size(), vocab};
  launch("clear_counts", dim3(blocks(vocab, 4096), (uint32_t)runs.size()), 256, params);
  launch("count_tokens", dim3(1 + below(4), (uint32_t)runs.size()), 256, params);
  check(counts == expected, "counts of rows that start");
  for (uint32_t row = 0; row < n_rows; ++row) {
    const auto begin = std::find_if(begins.begin(), begins.end(),
                                    [&](const RowBegin& b) { return b.row == row && row > 0; });
    const bool begins_now = begin != begins.end();
    check(states[row].n_output == (begins_now ? begin->n_output : 77), "output tokens of a row that starts");
    if (begins_now)
      check(memcmp(&samplers[row], &begin->sampler, sizeof(RowSampler)) == 0, "sampler of a row that starts");
  }
  const std::vector<RecordedToken> recorded{{8, 0}, {0, 1}, {3, vocab - 1}};
  launch("record_tokens", 1, 128,
         RecordParams{states.data(), samplers.data(), counts.data(), recorded.data(), 3, vocab});
  expected[8 % n_slots * vocab] = (expected[8 % n_slots * vocab] + 1) | kSeen;
  check(counts == expected, "counts after a recorded token");
  check(states[8].last_token == 0 && states[8].n_output == begins[2].n_output + 1,
        "state after a recorded token");
  check(states[3].last_token == vocab - 1 && states[3].n_output == begins[0].n_output + 1,
        "state without counts");
  check(states[0].last_token == 77 && states[0].n_output == 77, "the padding row was written");
}

int main() {
  for (uint32_t i = 0; i < 30; ++i) {
    cusim::opts().order = i % 3;
    check_edits(1 + below(5), 1 + below(300), 1 + below(12));
    check_edits(64, 40, 1 + below(400));
    const uint32_t page_size = std::initializer_list<uint32_t>{1, 3, 16, 64}.begin()[below(4)];
    const uint32_t n_live = below(200);
    check_decode(n_live, n_live + 1 + below(60), page_size);
    check_prefill(1 + below(12), page_size);
    check_rows(i == 0 ? 1 : 1 + below(9000));
  }
  if (failures) printf("%d failures\n", failures);
  return failures != 0;
}
