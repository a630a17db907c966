// Compares attention kernels with a plain reference in double, with shuffled page tables. All memory that a query must
// not read is poisoned: NaN in the pool, and page ids far outside the pool in the page table. Every case runs under
// three schedules of the emulator and must give the same bits.
#include <algorithm>
#include <random>
#include "cusim.h"
#include "attention_decode.cu"
#include "attention_prefill.cu"

namespace {

std::mt19937 rng(5);
int failures = 0;

uint32_t below(uint32_t n) { return rng() % n; }

const float kNan = __uint_as_float(0x7fffffff);
void set(float& x, float to) { x = to; }
void set(bf16& x, float to) { x = to_bf16(to); }
double get(float x) { return x; }
double get(bf16 x) { return f32(x); }

struct Shape {
  uint32_t head_dim, n_heads, n_kv_heads, page_size, window, n_splits;
  float query_scale;  // a large scale makes the softmax sharp
};

// The tokens of one sequence in a step: the first position, and the number of tokens.
struct Row {
  uint32_t first_position, n_tokens;
};

template <class E> struct Case {
  Shape shape;
  std::vector<Segment> segments;
  std::vector<uint32_t> page_table;
  uint32_t table_stride = 0, n_tokens = 0;
  std::vector<E> q, k, v, out;
  std::vector<float> partials;
  std::vector<uint2> tiles;

  uint32_t context(const Segment& s) const { return s.first_position + s.n_tokens; }
  uint32_t slot(uint32_t row, uint32_t position) const {
    const uint32_t page = page_table[row * table_stride + position / shape.page_size];
    return page * shape.page_size + position % shape.page_size;
  }
  uint32_t first_seen(uint32_t position) const {
    return shape.window != 0 && position + 1 > shape.window ? position + 1 - shape.window : 0;
  }
};

// Shuffles the rows of the page table, and leaves gaps between the tokens of segments.
template <class E> Case<E> make_case(const Shape& shape, const std::vector<Row>& rows) {
  Case<E> c;
  c.shape = shape;
  std::vector<uint32_t> order(rows.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), rng);
  uint32_t longest = 1, n_pages = 1;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    c.segments.push_back({order[i], c.n_tokens, rows[i].n_tokens, rows[i].first_position});
    c.n_tokens += rows[i].n_tokens + below(2);
    const uint32_t pages = (c.context(c.segments[i]) + shape.page_size - 1) / shape.page_size;
    longest = std::max(longest, pages);
    n_pages += pages;
  }
  c.n_tokens += 1;
  c.table_stride = longest + below(3);
  std::vector<uint32_t> ids(n_pages - 1);
  for (uint32_t i = 0; i < ids.size(); ++i) ids[i] = i + 1;
  std::shuffle(ids.begin(), ids.end(), rng);
  c.page_table.assign(rows.size() * c.table_stride, 0x40000000u / shape.page_size);
  const size_t slot_elements = (size_t)shape.n_kv_heads * shape.head_dim;
  c.k.resize(n_pages * shape.page_size * slot_elements);
  c.v.resize(c.k.size());
  for (auto& x : c.k) set(x, kNan);
  for (auto& x : c.v) set(x, kNan);
  std::normal_distribution<float> normal;
  for (const Segment& s : c.segments) {
    if (s.n_tokens == 0) continue;
    const uint32_t first = c.first_seen(s.first_position);
    for (uint32_t page = first / shape.page_size; page * shape.page_size < c.context(s); ++page) {
      c.page_table[s.row * c.table_stride + page] = ids.back();
      ids.pop_back();
    }
    for (uint32_t position = first; position < c.context(s); ++position)
      for (size_t d = 0; d < slot_elements; ++d) {
        set(c.k[c.slot(s.row, position) * slot_elements + d], normal(rng));
        set(c.v[c.slot(s.row, position) * slot_elements + d], normal(rng));
      }
  }
  c.q.resize((size_t)c.n_tokens * shape.n_heads * shape.head_dim);
  c.out.resize(c.q.size());
  for (auto& x : c.q) set(x, kNan);
  for (const Segment& s : c.segments)
    for (size_t i = 0; i < (size_t)s.n_tokens * shape.n_heads * shape.head_dim; ++i)
      set(c.q[(size_t)s.first_token * shape.n_heads * shape.head_dim + i], normal(rng) * shape.query_scale);
  return c;
}

template <class E> AttendParams<E> params_of(Case<E>& c) {
  const Shape& s = c.shape;
  return {c.out.data(),        c.q.data(),        c.k.data(),     c.v.data(),
          c.page_table.data(), c.segments.data(), c.tiles.data(), c.partials.data(),
          c.table_stride,      s.page_size,       s.n_heads,      s.n_kv_heads,
          s.head_dim,          s.window,          s.n_splits,     1.44269504f / sqrtf((float)s.head_dim)};
}

// The output of one token and head. `norm` is the norm of the sums of the terms' magnitudes: errors are relative to
// `norm`, since the terms may cancel.
struct Output {
  std::vector<double> out;
  double norm;
};
template <class E>
Output reference(const Case<E>& c, const Segment& s, uint32_t query, uint32_t head) {
  const Shape& shape = c.shape;
  const uint32_t d_head = shape.head_dim, kv_head = head / (shape.n_heads / shape.n_kv_heads);
  const uint32_t position = s.first_position + query, first = c.first_seen(position);
  const E* q = &c.q[((size_t)(s.first_token + query) * shape.n_heads + head) * d_head];
  auto at = [&](const std::vector<E>& pool, uint32_t p) {
    return &pool[((size_t)c.slot(s.row, p) * shape.n_kv_heads + kv_head) * d_head];
  };
  std::vector<double> weights, out(d_head), size(d_head);
  double highest = -1e300, sum = 0;
  for (uint32_t p = first; p <= position; ++p) {
    const E* k = at(c.k, p);
    double dot = 0;
    for (uint32_t d = 0; d < d_head; ++d) dot += get(q[d]) * get(k[d]);
    weights.push_back(dot / sqrt((double)d_head));
    highest = std::max(highest, weights.back());
  }
  for (double& w : weights) sum += w = exp(w - highest);
  for (uint32_t p = first; p <= position; ++p) {
    const E* v = at(c.v, p);
    for (uint32_t d = 0; d < d_head; ++d) {
      out[d] += weights[p - first] / sum * get(v[d]);
      size[d] += weights[p - first] / sum * fabs(get(v[d]));
    }
  }
  double norm = 0;
  for (const double x : size) norm += x * x;
  return {out, sqrt(norm)};
}

template <class E> void check(const char* kernel, const Case<E>& c, bool decode) {
  const Shape& s = c.shape;
  const double tolerance = sizeof(E) == 4 ? 1e-5 : 6e-3;
  std::vector<bool> written(c.n_tokens);
  double worst = 0;
  bool is_wrong = false;
  for (const Segment& segment : c.segments) {
    if (decode && segment.n_tokens != 1) continue;
    for (uint32_t query = 0; query < segment.n_tokens; ++query) {
      written[segment.first_token + query] = true;
      for (uint32_t head = 0; head < s.n_heads; ++head) {
        const Output want = reference(c, segment, query, head);
        const E* got = &c.out[((size_t)(segment.first_token + query) * s.n_heads + head) * s.head_dim];
        double error = 0;
        for (uint32_t d = 0; d < s.head_dim; ++d) error += pow(get(got[d]) - want.out[d], 2);
        const double relative = sqrt(error) / want.norm;
        is_wrong |= !(relative <= tolerance);  // also NaN
        worst = fmax(worst, relative);
      }
    }
  }
  bool has_strays = false;
  const size_t row = (size_t)s.n_heads * s.head_dim;
  for (size_t i = 0; i < c.out.size(); ++i) has_strays |= !written[i / row] && get(c.out[i]) == get(c.out[i]);
  if (!is_wrong && !has_strays) return;
  ++failures;
  printf("FAILED %s: relative error %.2e, limit %.1e%s", kernel, worst, tolerance,
         has_strays ? ", rows written that no segment has" : "");
  printf(" (d %u, %u/%u heads, page %u, window %u, splits %u, segments", s.head_dim, s.n_heads, s.n_kv_heads,
         s.page_size, s.window, s.n_splits);
  for (const Segment& segment : c.segments) printf(" %u+%u", segment.first_position, segment.n_tokens);
  printf(")\n");
}

template <class E>
bool launch(const std::string& kernel, Case<E>& c, dim3 grid, uint32_t block, uint32_t shared) {
  AttendParams<E> params = params_of(c);
  void* args[] = {&params};
  const std::string error = cusim::registry().at(kernel).run(grid, block, shared, args);
  if (error.empty()) return true;
  ++failures;
  printf("FAILED %s: %s\n", kernel.c_str(), error.c_str());
  return false;
}

template <class E> const char* name_of() { return sizeof(E) == 4 ? "f32" : "bf16"; }

// Whether a tensor-core kernel supports the shape. The plain kernels, named "generic", support every shape.
bool has_tensor_kernel(const Shape& s, const float*) { return false; }
bool has_tensor_kernel(const Shape& s, const bf16*) { return s.head_dim % 8 == 0; }

// The head size of the tensor-core kernel that computes heads of `head_dim`.
uint32_t padded(uint32_t head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

uint32_t decode_shared(uint32_t d) { return d == 64 ? 49152 : d == 128 ? 65536 : 73728; }
uint32_t prefill_shared(uint32_t d) {
  return 2 * d * (prefill_rows(d) + 2 * (d == 256 ? 32 : 64));
}

template <class E> bool launch_decode(Case<E>& c, bool plain) {
  const Shape& s = c.shape;
  const std::string element = name_of<E>();
  const uint32_t n_segments = c.segments.size(), parts = (s.n_heads / s.n_kv_heads + 15) / 16;
  const uint32_t d = padded(s.head_dim);
  const size_t n_partials = (size_t)n_segments * s.n_heads * s.n_splits * (s.head_dim + 2);
  c.partials.assign(s.n_splits > 1 ? n_partials : 0, kNan);
  const bool done =
      plain ? launch("attend_decode_generic_" + element, c, dim3(s.n_heads, n_segments, s.n_splits), 128, 0)
            : launch("attend_decode_bf16_d" + std::to_string(d), c,
                     dim3(s.n_kv_heads * parts, n_segments, s.n_splits), d == 256 ? 64 : 128,
                     decode_shared(d));
  if (!done || s.n_splits == 1) return done;
  return launch("attend_combine_" + element, c, dim3(s.n_heads, n_segments), 128, 0);
}

template <class E> bool launch_prefill(Case<E>& c, bool plain) {
  const Shape& s = c.shape;
  const uint32_t group = s.n_heads / s.n_kv_heads;
  const uint32_t d = padded(s.head_dim), tile_queries = plain ? kPlainTileQueries : prefill_rows(d) / group;
  c.tiles.clear();
  for (uint32_t i = 0; i < c.segments.size(); ++i)
    for (uint32_t first = 0; first < c.segments[i].n_tokens; first += tile_queries) c.tiles.push_back({i, first});
  c.tiles.push_back({0, c.segments[0].n_tokens});  // padding
  const uint32_t n_tiles = c.tiles.size();
  const std::string plain_kernel = std::string("attend_prefill_generic_") + name_of<E>();
  if (plain) return launch(plain_kernel, c, dim3(n_tiles, s.n_heads), 128, 0);
  return launch("attend_prefill_bf16_d" + std::to_string(d), c, dim3(n_tiles, s.n_kv_heads), 128,
                prefill_shared(d));
}

template <class E> void run(Case<E> c, bool decode) {
  for (const bool plain : {false, true}) {
    if (!plain && !has_tensor_kernel(c.shape, (E*)nullptr)) continue;
    static const unsigned set_order = cusim::opts().order;
    std::vector<E> first;
    for (unsigned order = 0;; order = set_order) {
      cusim::opts().order = order;
      for (auto& x : c.out) set(x, kNan);
      if (!(decode ? launch_decode(c, plain) : launch_prefill(c, plain))) return;
      const char* kernel = decode ? plain ? "plain decode" : "decode" : plain ? "plain prefill" : "prefill";
      if (order == 0) {
        check(kernel, c, decode);
        first = c.out;
      } else if (memcmp(first.data(), c.out.data(), first.size() * sizeof(E)) != 0) {
        ++failures;
        printf("FAILED %s: schedule %u gives other bits than schedule 0\n", kernel, order);
      }
      if (order == set_order) break;
    }
  }
}

// A prompt gives the same bits whole and in chunks.
template <class E> void chunks_agree(const Shape& shape) {
  Case<E> whole = make_case<E>(shape, {{37, 150}});
  const Segment all = whole.segments[0];
  for (auto& x : whole.out) set(x, kNan);
  Case<E> chunks = whole;
  chunks.segments = {{all.row, all.first_token, 61, 37}, {all.row, all.first_token + 61, 89, 98}};
  const bool plain = !has_tensor_kernel(shape, (E*)nullptr);
  if (!launch_prefill(whole, plain) || !launch_prefill(chunks, plain)) return;
  if (memcmp(whole.out.data(), chunks.out.data(), whole.out.size() * sizeof(E)) == 0) return;
  ++failures;
  printf("FAILED prefill, d %u, window %u: chunks give other bits than the whole prompt\n", shape.head_dim,
         shape.window);
}

template <class T> T pick(std::initializer_list<T> from) { return from.begin()[below(from.size())]; }

Shape random_shape(uint32_t head_dim) {
  const uint32_t n_kv_heads = 1 + below(2), group = pick({1u, 2u, 4u, 7u, 8u, 16u});
  const uint32_t page_size = pick({1u, 5u, 16u, 32u, 64u}), window = pick({0u, 0u, 1u, 37u, 130u});
  const uint32_t n_splits = pick({1u, 3u, 8u});
  return {head_dim, n_kv_heads * group, n_kv_heads, page_size, window, n_splits, pick({0.5f, 1.f, 6.f})};
}

template <class E> void check_decode(const Shape& shape, std::initializer_list<uint32_t> positions) {
  std::vector<Row> rows;
  for (const uint32_t position : positions) rows.push_back({position, 1});
  rows.push_back({below(50), 0});  // padding
  rows.push_back({below(50), 3});  // a segment of the prefill kernels, which decode kernels skip
  run(make_case<E>(shape, rows), true);
}

template <class E> void check_prefill(const Shape& shape, const std::vector<Row>& rows) {
  run(make_case<E>(shape, rows), false);
}

void decode_cases() {
  for (const uint32_t head_dim : {64u, 96u, 128u, 256u}) {
    check_decode<bf16>({head_dim, 8, 2, 16, 0, 1, 1.f}, {0, 1, 14, 15, 16, 62, 63, 64, 129});
    check_decode<bf16>({head_dim, 2, 2, 1, 0, 4, 1.f}, {0, 126, 127, 128, 255, 256, 700});
    check_decode<bf16>({head_dim, 20, 1, 16, 100, 2, 6.f}, {0, 98, 99, 100, 101, 500});
    check_decode<bf16>({head_dim, 16, 2, 64, 300, 8, 1.f}, {70, 900});
    for (int i = 0; i < 3; ++i)
      check_decode<bf16>(random_shape(head_dim), {below(20), below(200), below(600)});
  }
  for (const uint32_t head_dim : {1u, 8u, 12u, 20u, 72u, 80u, 160u, 255u, 256u}) {
    check_decode<float>(random_shape(head_dim), {0, 31, 32, below(200), 128 + below(300)});
    check_decode<bf16>(random_shape(head_dim), {0, 31, 32, below(200), 128 + below(300)});
  }
}

void prefill_cases() {
  for (const uint32_t head_dim : {64u, 96u, 128u, 256u}) {
    check_prefill<bf16>({head_dim, 4, 1, 16, 0, 1, 1.f}, {{0, 1}, {0, 33}, {90, 40}, {7, 0}, {63, 1}});
    check_prefill<bf16>({head_dim, 1, 1, 1, 0, 1, 1.f}, {{0, 150}, {64, 64}});
    check_prefill<bf16>({head_dim, 7, 1, 32, 50, 1, 6.f}, {{100, 37}, {0, 70}});
    check_prefill<bf16>({head_dim, 2, 2, 64, 1, 1, 1.f}, {{10, 70}});
    // Blocks in which one query must not attend to one key, the last or the first.
    check_prefill<bf16>({head_dim, 2, 1, 16, 0, 1, 1.f}, {{62, 2}});
    check_prefill<bf16>({head_dim, 2, 1, 16, 100, 1, 1.f}, {{200, 2}});
    for (const uint32_t window : {0u, 70u}) chunks_agree<bf16>({head_dim, 3, 1, 16, window, 1, 1.f});
    for (int i = 0; i < 3; ++i)
      check_prefill<bf16>(random_shape(head_dim),
                            {{below(150), 1 + below(40)}, {below(2) * 16, 1 + below(80)}});
  }
  for (const uint32_t head_dim : {1u, 8u, 12u, 20u, 72u, 80u, 160u, 255u, 256u}) {
    check_prefill<float>(random_shape(head_dim), {{0, 1 + below(35)}, {below(100), 17}, {3, 0}});
    chunks_agree<float>({head_dim, 2, 1, 16, 70, 1, 1.f});
    check_prefill<bf16>(random_shape(head_dim), {{0, 1 + below(35)}, {below(100), 17}, {3, 0}});
  }
}

}  // namespace

int main() {
  // Tests with planted faults run only the cases that can find the fault.
  const char* only = getenv("ATTENTION_CASES");
  if (!only || strcmp(only, "decode") == 0) decode_cases();
  if (!only || strcmp(only, "prefill") == 0) prefill_cases();
  if (failures == 0) printf("attention: every case agrees with the reference\n");
  return failures == 0 ? 0 : 1;
}
