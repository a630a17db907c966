// Compares the kernels for sampling and log probabilities with a plain C++ version of the CPU sampler.
#include "cusim.h"

#include "choose.cuh"
#include "sampling_reference.h"

namespace sampling {
#include "sampling.cu"
}
namespace logprobs {
#include "logprobs.cu"
}

static int failures = 0;
static std::mt19937_64 random_bits(20261121);

static void check(bool is_right, const std::string& what) {
  if (is_right) return;
  if (++failures <= 20) printf("FAILED: %s\n", what.c_str());
}

static uint64_t below(uint64_t end) { return random_bits() % end; }
static double real() { return (double)(random_bits() >> 11) / 9007199254740992.0; }
template <class T>
static T one_of(std::initializer_list<T> values) {
  return values.begin()[below(values.size())];
}

template <class Params>
static void launch(const char* kernel, dim3 grid, dim3 block, Params params) {
  void* arguments[] = {&params};
  const std::string error = cusim::registry().at(kernel).run(grid, block, 0, arguments);
  check(error.empty(), std::string(kernel) + ": " + error);
}

template <class T>
static std::vector<T> poisoned(size_t n) {
  std::vector<T> values(n);
  memset((void*)values.data(), 0xff, n * sizeof(T));
  return values;
}

// ---- rows

enum Shape { kNormal, kFlat, kSteps, kPeaked, kRuledOut, kTiny, kWide, kShapes };

static std::vector<float> random_logits(uint32_t vocab, int shape) {
  std::normal_distribution<float> normal;
  std::vector<float> logits(vocab);
  for (float& logit : logits) {
    switch (shape) {
      case kNormal: logit = 3 * normal(random_bits); break;
      case kFlat: logit = 1.5f; break;
      case kSteps: logit = (float)below(4) * 0.25f; break;
      case kPeaked: logit = 10 * normal(random_bits) + (below(50) == 0 ? 60 : 0); break;
      case kRuledOut: logit = below(3) ? -INFINITY : normal(random_bits); break;
      case kTiny: logit = below(2) ? 1e-20f * normal(random_bits) : (below(2) ? 0.0f : -0.0f); break;
      default: logit = 0.3f * normal(random_bits);
    }
  }
  return logits;
}

static Row random_row(uint32_t vocab) {
  Row row;
  row.logits = random_logits(vocab, (int)below(kShapes));
  row.temperature = one_of({0.2f, 0.7f, 1.0f, 1.0f, 1.7f, 40.0f, 1e-6f});
  row.is_greedy = below(8) == 0;
  row.top_k =
      one_of({kNone, kNone, 2u, 50u, 1100u, vocab, vocab > 1 ? vocab - 1 : 1, (uint32_t)below(vocab) + 1});
  row.top_p = one_of({1.0f, 1.0f, 0.9f, 0.999f, 0.1f, 1e-6f});
  row.min_p = one_of({0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f});
  row.seed = random_bits();
  row.n_output = (uint32_t)below(1000);
  if (below(2)) {
    row.frequency = one_of({0.0f, 0.3f, -2.0f, 2.0f});
    row.presence = one_of({0.0f, 0.7f, -1.1f});
    row.repetition = one_of({1.0f, 1.3f, 0.6f, 1.9f});
    row.counts.assign(vocab, 0);
    for (uint32_t i = 0; i < 1 + vocab / 10; ++i) {
      uint32_t& entry = row.counts[below(vocab)];
      entry = (entry + (uint32_t)below(3)) | kSeen;
    }
  }
  if (below(4) == 0) {
    for (uint32_t i = 0; i < 1 + below(30); ++i) {
      row.biases.push_back({(uint32_t)below(vocab), one_of({-100.0f, 5.5f, 0.3f, -0.7f})});
    }
    std::stable_sort(row.biases.begin(), row.biases.end(),
                     [](const TokenBias& a, const TokenBias& b) { return a.token < b.token; });
  }
  if (below(4) == 0) {
    std::set<uint32_t> bans;
    for (uint32_t i = 0; i < 1 + below(5); ++i) bans.insert((uint32_t)below(vocab));
    row.bans.assign(bans.begin(), bans.end());
    row.min_new_tokens = row.n_output + (uint32_t)below(3);
  }
  if (below(4) == 0) {
    row.mask.assign((vocab + 31) / 32, 0);
    const uint64_t sparse = one_of({2, 50});
    for (uint32_t token = 0; token < vocab; ++token) {
      if (below(sparse) == 0) row.mask[token / 32] |= 1u << (token % 32);
    }
    row.apply_bans = below(2);
  }
  return row;
}

// ---- the kernels on a batch of rows

struct Batch {
  uint32_t vocab, stride, chunk, first_logit;
  double tie_margin;  // draws this close to a boundary between tokens are searched again in the CPU's order
};

static std::vector<Sampled> sample(const std::vector<Row>& rows, const Batch& batch,
                                   std::vector<RowState>* states_out, std::vector<uint32_t>* counts_out) {
  const uint32_t n = (uint32_t)rows.size(), vocab = batch.vocab;
  const uint32_t n_chunks = (vocab + batch.chunk - 1) / batch.chunk, mask_words = (vocab + 63) / 64 * 2;
  // The works are in another order than the rows, and one work is padding.
  auto logits = poisoned<float>((size_t)n * batch.stride + batch.first_logit);
  auto samplers = poisoned<RowSampler>(n + 1);
  auto states = poisoned<RowState>(n + 1);
  std::vector<SampleWork> works;
  std::vector<uint32_t> counts, bans, masks;
  std::vector<TokenBias> biases;
  for (uint32_t i = 0; i < n; ++i) {
    const Row& row = rows[i];
    std::copy(row.logits.begin(), row.logits.end(),
              logits.begin() + batch.first_logit + (size_t)i * batch.stride);
    RowSampler& sampler = samplers[n - i];
    sampler = row.sampler();
    states[n - i] = RowState{0xdead, row.n_output};
    sampler.first_bias = (uint32_t)biases.size();
    biases.insert(biases.end(), row.biases.begin(), row.biases.end());
    sampler.first_ban = (uint32_t)bans.size();
    bans.insert(bans.end(), row.bans.begin(), row.bans.end());
    if (!row.counts.empty()) {
      sampler.count_slot = (uint32_t)(counts.size() / vocab);
      counts.insert(counts.end(), row.counts.begin(), row.counts.end());
    }
    SampleWork work{n - i, i, kNone, row.apply_bans};
    if (!row.mask.empty()) {
      work.mask = (uint32_t)(masks.size() / mask_words);
      masks.insert(masks.end(), row.mask.begin(), row.mask.end());
      masks.resize((work.mask + 1) * mask_words);
    }
    works.push_back(work);
  }
  works.insert(works.begin() + n / 2, SampleWork{0, kNone, kNone, 0});
  const uint32_t n_works = n + 1;
  auto out = poisoned<Sampled>(n_works);
  auto peaks = poisoned<ChunkPeak>((size_t)n_works * n_chunks);
  auto sums = poisoned<double>((size_t)n_works * ((vocab + 63) / 64));
  auto classes = poisoned<ClassSum>((size_t)n_works * kClasses);
  const std::vector<float> untouched = logits;
  SampleParams params{out.data(),       logits.data() + batch.first_logit,
                      works.data(),     samplers.data(),
                      states.data(),    counts.data(),
                      biases.data(),    bans.data(),
                      masks.data(),     peaks.data(),
                      sums.data(),      classes.data(),
                      batch.tie_margin, vocab,
                      batch.stride,     n_works,
                      batch.chunk,      n_chunks,
                      mask_words};
  launch("sample_peaks", dim3(n_chunks, n_works), 256, params);
  launch("sample_weights", dim3(n_chunks, n_works), 256, params);
  launch("sample_choose", n_works, 512, params);
  check(memcmp(untouched.data(), logits.data(), logits.size() * 4) == 0, "logits were changed");
  check(out[n / 2].token == 0 && out[n / 2].flags == 0 && out[n / 2].n_output == 0,
        "padding sampled something");
  out.erase(out.begin() + n / 2);
  if (states_out) *states_out = states;
  if (counts_out) *counts_out = counts;
  return out;
}

static void check_rows(const std::vector<Row>& rows, const Batch& batch, const char* what) {
  std::vector<RowState> states;
  std::vector<uint32_t> counts;
  const auto got = sample(rows, batch, &states, &counts);
  uint32_t slot = 0;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const Choice expected = choose(row);
    const RowState state = states[rows.size() - i];
    char text[400];
    snprintf(
        text, sizeof text,
        "%s: vocab %u chunk %u margin %g row %u (T %g, top_k %u, top_p %g, min_p %g, greedy %d): token %u, "
        "expected %u; flags %u, expected %d",
        what, batch.vocab, batch.chunk, batch.tie_margin, i, row.temperature, row.top_k, row.top_p, row.min_p,
        row.is_greedy, got[i].token, expected.token, got[i].flags, expected.nan);
    check(got[i].token == expected.token && (got[i].flags == kNan) == expected.nan && got[i].flags <= kNan,
          text);
    check(state.last_token == got[i].token && state.n_output == row.n_output + 1,
          std::string("state of ") + text);
    check(got[i].n_output == row.n_output + 1 && got[i].logprob != got[i].logprob,
          std::string("result of ") + text);
    if (row.counts.empty()) continue;
    auto after = row.counts;
    after[got[i].token] = (after[got[i].token] + 1) | kSeen;
    check(std::equal(after.begin(), after.end(), counts.begin() + (size_t)slot++ * batch.vocab),
          std::string("counts of ") + text);
  }
}

static void check_random_rows() {
  for (const uint32_t vocab :
       {1u, 5u, 63u, 64u, 65u, 203u, 1000u, 1024u, 2051u, 4096u, 9999u, 17000u, 40002u}) {
    const uint32_t n_batches = vocab < 1000 ? 5 : 2;
    for (uint32_t repeat = 0; repeat < n_batches; ++repeat) {
      std::vector<Row> rows;
      for (uint32_t i = 0; i < 6; ++i) rows.push_back(random_row(vocab));
      const uint32_t padding = (uint32_t)below(2) * (uint32_t)below(9);
      const Batch batch{vocab, vocab + padding, one_of({1024u, 2048u, 4096u, 16384u}), (uint32_t)below(2) * 4,
                        4e-12};
      check_rows(rows, batch, "random");
      Batch in_order = batch;
      in_order.tie_margin = 2.0;
      check_rows(rows, in_order, "in the CPU's order");
    }
  }
}

// The filters keep more tokens than the kernel sorts, for each branch of the search.
static void check_many_kept() {
  const uint32_t vocab = 20000;
  std::vector<Row> rows;
  for (const int shape : {kFlat, kSteps, kWide, kNormal, kTiny, kPeaked}) {
    for (const auto& [top_k, top_p, min_p] : {std::tuple{kNone, 0.97f, 0.0f},
                                              {15000u, 1.0f, 0.0f},
                                              {15000u, 0.9f, 0.1f},
                                              {19999u, 0.9999999f, 0.0f}}) {
      Row row;
      row.logits = random_logits(vocab, shape);
      row.top_k = top_k;
      row.top_p = top_p;
      row.min_p = min_p;
      row.temperature = shape == kPeaked ? 0.5f : 1.0f;
      row.seed = random_bits();
      rows.push_back(row);
    }
  }
  check_rows(rows, Batch{vocab, vocab, 4096, 0, 4e-12}, "many kept");
}

// The size of the largest common vocabularies.
static void check_large_vocabulary() {
  const uint32_t vocab = 262208;
  std::vector<Row> rows(3);
  for (Row& row : rows) row.seed = random_bits();
  rows[0].logits = random_logits(vocab, kFlat);
  rows[0].top_p = 0.97f;
  rows[1].logits = random_logits(vocab, kWide);
  rows[1].top_k = 200000;
  rows[2].logits = random_logits(vocab, kNormal);
  check_rows(rows, Batch{vocab, vocab, 16384, 0, 4e-12}, "large vocabulary");
}

// The sampler groups weights into classes. If the min_p threshold is inside a class, its smaller weights are not drawn.
static void check_min_p_inside_a_class() {
  std::vector<Row> rows;
  for (uint32_t i = 0; i < 60; ++i) {
    Row row;
    row.logits.assign(900, (float)log(0.4695));
    row.logits[5] = 0;
    for (uint32_t token = 100; token < 110; ++token) row.logits[token] = (float)log(0.475);
    row.min_p = 0.47f;
    if (i % 3 == 0) row.top_k = 899;
    if (i % 3 == 1) row.top_p = 0.999999f;
    row.seed = i;
    rows.push_back(row);
  }
  check_rows(rows, Batch{900, 900, 1024, 0, 4e-12}, "min_p inside of a class");
}

// The draws of one row have the frequencies of its probabilities.
static void check_distribution() {
  Row row;
  row.logits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f};
  row.top_k = 4;
  std::vector<uint32_t> seen(5);
  std::vector<Row> rows;
  for (uint32_t i = 0; i < 400; ++i) {
    row.seed = 7;
    row.n_output = i;
    rows.push_back(row);
  }
  for (const Sampled& sampled : sample(rows, Batch{5, 5, 1024, 0, 4e-12}, nullptr, nullptr))
    ++seen[sampled.token];
  const double mass = exp(1.0) + 2 * exp(3.0) + exp(2.0);
  for (uint32_t token = 0; token < 5; ++token) {
    const double expected = token == 4 ? 0 : 400 * exp((double)row.logits[token]) / mass;
    check(std::abs(seen[token] - expected) <= 4 * sqrt(expected),
          "400 draws held token " + std::to_string(token) + " " + std::to_string(seen[token]) + " times");
  }
}

static void check_special_logits() {
  const uint32_t vocab = 3000;
  std::vector<Row> rows;
  auto add = [&](auto change) {
    for (const bool is_greedy : {false, true}) {
      Row row = random_row(vocab);
      row.is_greedy = is_greedy;
      change(row);
      rows.push_back(row);
    }
  };
  add([&](Row& row) { row.logits[2999] = NAN; });
  add([&](Row& row) {
    row.logits[1024] = NAN;
    row.bans = {1024};
    row.min_new_tokens = 5000;
    row.mask.clear();
  });
  add([&](Row& row) { row.logits[7] = -NAN; });
  add([&](Row& row) { row.logits[1500] = row.logits[2500] = INFINITY; });
  add([&](Row& row) { row.logits.assign(vocab, -INFINITY); });
  add([&](Row& row) { row.mask.assign((vocab + 31) / 32, 0); });
  add([&](Row& row) {
    row.logits.assign(vocab, -0.0f);
    row.logits[2000] = 0.0f;
  });
  add([&](Row& row) {
    row.logits.assign(vocab, 0.25f);
    row.counts.clear();
    row.mask.clear();
  });
  check_rows(rows, Batch{vocab, vocab, 1024, 0, 4e-12}, "special");
}

static void check_arithmetic() {
  struct {
    uint64_t seed, position, bits;
  } draws[] = {{0ull, 0ull, 0x3fd2086089bfcf34ull},
               {0ull, 1ull, 0x3f8cbd594ba03400ull},
               {1ull, 0ull, 0x3feb9c847f90581aull},
               {42ull, 7ull, 0x3fa46a58f64e6070ull},
               {7ull, 4095ull, 0x3fefb79225fa5735ull},
               {~0ull, 3ull, 0x3fcd5853b9aa1848ull},
               {0x0123456789abcdefull, 1000000ull, 0x3fecb85d5ca4048dull},
               {1ull << 63, 0xffffffffull, 0x3fdad7770b04d0dcull}};
  for (const auto& draw : draws) check(bits_of(uniform(draw.seed, draw.position)) == draw.bits, "uniform");
  struct {
    double x;
    uint64_t bits;
  } exponentials[] = {{-0.0, 0x3ff0000000000000ull},
                      {-1e-17, 0x3ff0000000000000ull},
                      {-0.1, 0x3fecf46d99d52b3aull},
                      {-0.3465735902799726, 0x3fe6a09e667f3bcdull},
                      {-1.0, 0x3fd78b56362cef38ull},
                      {-2.5, 0x3fb50385c094f425ull},
                      {-17.25, 0x3e614f49dbc5078cull},
                      {-100.123, 0x36e779902e9ecddeull},
                      {-700.0, 0x00d14f2b0fb9307full},
                      {-708.0, 0x0017c8ab2288c9acull},
                      {-708.1, 0},
                      {-INFINITY, 0},
                      {NAN, 0}};
  for (const auto& [x, bits] : exponentials)
    check(bits_of(exp_of_negative(x)) == bits, "exp of " + std::to_string(x));
  for (uint32_t i = 0; i < 200000; ++i) {
    const float difference = (float)std::ldexp(-real(), (int)below(160) - 40);
    const double temperature = (double)(float)std::ldexp(1.0 + real(), (int)below(140) - 20);
    const double quotient = divide(difference, temperature, 1.0 / temperature);
    check(bits_of(quotient) == bits_of((double)difference / temperature),
          "a quotient is not the nearest number");
  }
  for (uint32_t i = 0; i < 200000; ++i) {
    const float logit = (float)std::ldexp(1.0 + real(), (int)below(278) - 150);
    const float penalty = i % 4 == 0 ? 2.0f : (float)std::ldexp(2.0 * real(), -(int)below(140));
    const float quotient = penalty > 0 ? divide_f32(logit, penalty, inverse_of(penalty)) : INFINITY;
    check(penalty == 0 || quotient == logit / penalty, "a quotient is not the nearest f32");
  }
  check(divide_f32(INFINITY, 2.0, 0.5) == INFINITY, "an infinite quotient");
}

// ---- log probabilities

static void check_logprobs(uint32_t vocab, int shape, uint32_t max_top) {
  const uint32_t n_rows = 3, n_works = 4, n_chunks = (vocab + kLogprobChunk - 1) / kLogprobChunk;
  const uint32_t stride = vocab + (uint32_t)below(2) * 3;
  auto logits = poisoned<float>((size_t)n_rows * stride);
  std::vector<std::vector<float>> rows;
  for (uint32_t i = 0; i < n_rows; ++i) {
    rows.push_back(random_logits(vocab, shape));
    std::copy(rows[i].begin(), rows[i].end(), logits.begin() + (size_t)i * stride);
  }
  std::vector<Sampled> sampled(2, Sampled{(uint32_t)below(vocab), 0, NAN, 1});
  std::vector<uint32_t> ids;
  std::vector<LogprobWork> works;
  uint32_t n_out = 0;
  for (uint32_t i = 0; i < n_works; ++i) {
    const uint32_t top = i == 0 ? 0 : std::min({max_top, vocab, (uint32_t)below(max_top + 1)});
    const uint32_t n_ids = (uint32_t)below(5);
    works.push_back(
        {i % n_rows, (uint32_t)below(vocab), i == 2 ? 1 : kNone, top, (uint32_t)ids.size(), n_ids, n_out, 0});
    for (uint32_t j = 0; j < n_ids; ++j) ids.push_back(j == 3 ? vocab : (uint32_t)below(vocab));
    n_out += 1 + top + n_ids;
  }
  auto out = poisoned<TokenLogprob>(n_out);
  auto masses = poisoned<ChunkMass>((size_t)n_works * n_chunks);
  auto highest = poisoned<uint64_t>((size_t)n_works * n_chunks * max_top);
  LogprobParams params{out.data(), sampled.data(), logits.data(),  works.data(),
                       ids.data(), masses.data(),  highest.data(), vocab,
                       stride,     n_works,        n_chunks,       max_top,
                       0};
  launch("logprob_chunks", dim3(n_chunks, n_works), 256, params);
  launch("logprob_finish", n_works, 512, params);
  for (const LogprobWork& work : works) {
    const uint32_t token = work.sampled == kNone ? work.token : sampled[work.sampled].token;
    const auto expected =
        logprobs_of(rows[work.logits_row], token, work.top,
                    {ids.begin() + work.first_id, ids.begin() + work.first_id + work.n_ids});
    for (uint32_t i = 0; i < expected.size(); ++i) {
      const TokenLogprob got = out[work.first_out + i];
      const float want = expected[i].logprob;
      const bool is_same = got.logprob == want || (std::isnan(got.logprob) && std::isnan(want));
      const bool is_near =
          is_same || std::abs(got.logprob - want) <= 2.5e-7f * std::max(1.0f, std::abs(want));
      char text[200];
      snprintf(text, sizeof text, "logprobs: vocab %u shape %d top %u entry %u: %u %.9g, expected %u %.9g",
               vocab, shape, work.top, i, got.token, got.logprob, expected[i].token, want);
      check(got.token == expected[i].token && is_near, text);
    }
    if (work.sampled == kNone) continue;
    check(memcmp(&sampled[1].logprob, &out[work.first_out].logprob, 4) == 0,
          "the sampled token's log probability is missing");
  }
  check(sampled[0].logprob != sampled[0].logprob, "a log probability that was not requested was written");
}

static void check_logprobs_of_nan() {
  for (const float special : {NAN, INFINITY}) {
    auto logits = random_logits(5000, kNormal);
    logits[4500] = special;
    std::vector<LogprobWork> works{{0, 3, kNone, 4, 0, 0, 0, 0}};
    std::vector<TokenLogprob> out(5);
    std::vector<ChunkMass> masses(2);
    std::vector<uint64_t> highest(8);
    LogprobParams params{out.data(),
                         nullptr,
                         logits.data(),
                         works.data(),
                         nullptr,
                         masses.data(),
                         highest.data(),
                         5000,
                         5000,
                         1,
                         2,
                         4,
                         0};
    launch("logprob_chunks", dim3(2, 1), 256, params);
    launch("logprob_finish", 1, 512, params);
    for (const auto& entry : out)
      check(entry.logprob != entry.logprob && entry.token < 5000,
            "log probability of a row with a NaN or an infinity");
  }
}

int main() {
  check_arithmetic();
  check_special_logits();
  check_distribution();
  check_min_p_inside_a_class();
  check_many_kept();
  check_large_vocabulary();
  check_random_rows();
  for (const uint32_t vocab : {1u, 3u, 70u, 4096u, 4097u, 20003u}) {
    for (int shape = 0; shape < kShapes; ++shape)
      check_logprobs(vocab, shape, one_of({1u, 5u, 20u, kMaxTop}));
  }
  check_logprobs_of_nan();
  if (failures) printf("%d failures\n", failures);
  return failures != 0;
}
