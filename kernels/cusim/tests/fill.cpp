// Compares fill.cu with a plain loop: equal bits, for any grid, length and alignment.
#include "cusim.h"

#include "element.cuh"
#include "params.cuh"

#include "fill.cu"

#include "arrays.h"

using namespace arrays;

static double expected(uint64_t seed, uint64_t index, float unit) {
  uint64_t x = seed;
  for (uint64_t i = 0; i <= index; ++i) x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  return (double)(float)(((double)(x >> 40) - 8388608.0) * unit);
}

template <class E> static void check(uint64_t n, unsigned blocks, bool aligned, uint64_t seed) {
  const float unit = 0.034641f / 8388608.0f;
  const std::string kernel = std::string("fill_random_") + type_name<E>();
  const std::string what = kernel + " " + std::to_string(n);
  std::vector<double> want;
  for (uint64_t i = 0; i < n; ++i) want.push_back(f32(element<E>(expected(seed, i, unit))));
  auto out = poisoned<E>(n + 1);
  E* start = out.data() + !aligned;
  launch(kernel, blocks, 256, 0, start, n, seed, unit);
  expect_close(what, start, want, 0.0, 0.0);
}

template <class E> static void check_mean(uint64_t n) {
  auto out = poisoned<E>(n);
  launch(std::string("fill_random_") + type_name<E>(), 4, 256, 0, out.data(), n, (uint64_t)7, 1.0f / 8388608.0f);
  double sum = 0.0, squares = 0.0;
  for (const E value : out) sum += f32(value), squares += (double)f32(value) * f32(value);
  if (std::abs(sum / n) > 0.02 || std::abs(squares / n - 1.0 / 3.0) > 0.01) fail("fill_random", "is not uniform");
}

template <class E> static void check_all() {
  for (const uint64_t n : {1u, 7u, 8u, 9u, 2048u, 2051u, 5000u})
    for (const bool aligned : {true, false}) {
      check<E>(n, (unsigned)((n + 2047) / 2048), aligned, any_of(0, 1u << 31));
      check<E>(n, 1, aligned, ~0ull - n);
    }
  check_mean<E>(20000);
}

int main() {
  check_all<float>();
  check_all<bf16>();
  return report("fill");
}
