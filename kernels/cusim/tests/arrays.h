// Shared code of kernel tests: random arrays, poisoned outputs, launches, and comparisons that report the difference.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace arrays {

inline std::mt19937& random_source() {
  static std::mt19937 source(20261121);
  return source;
}

inline unsigned any_of(unsigned first, unsigned last) {
  return std::uniform_int_distribution<unsigned>(first, last)(random_source());
}

template <class E> E element(double value) { return from_f32<E>(static_cast<float>(value)); }

template <class E> std::vector<E> normal(size_t n, double deviation = 1.0) {
  std::normal_distribution<double> distribution(0.0, deviation);
  std::vector<E> values(n);
  for (E& value : values) value = element<E>(distribution(random_source()));
  return values;
}

// NaN in every element: a kernel must write all of its output, and must not read it.
template <class E> std::vector<E> poisoned(size_t n) {
  std::vector<E> values(n);
  if (n != 0) memset(static_cast<void*>(values.data()), 0xff, n * sizeof(E));
  return values;
}

// Elements at an address that is not a multiple of sixteen bytes.
template <class E> class Unaligned {
 public:
  explicit Unaligned(const std::vector<E>& values) : all_(values.size() + 1) {
    std::copy(values.begin(), values.end(), all_.begin() + 1);
  }
  E* data() { return all_.data() + 1; }

 private:
  std::vector<E> all_;
};

inline int& failures() {
  static int count = 0;
  return count;
}

inline void fail(const std::string& what, const std::string& why) {
  ++failures();
  printf("FAILED %s: %s\n", what.c_str(), why.c_str());
}

template <class... Args>
bool launch(const std::string& kernel, dim3 grid, dim3 block, unsigned shared_bytes, Args... args) {
  void* pointers[] = {&args...};
  const std::string error = cusim::registry().at(kernel).run(grid, block, shared_bytes, pointers);
  if (!error.empty()) fail(kernel, error);
  return error.empty();
}

// Checks |got - want| <= absolute + relative * |want| for each element.
template <class E> void expect_close(const std::string& what, const E* got, const std::vector<double>& want,
                                     double absolute, double relative) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double value = f32(got[i]);
    if (std::abs(value - want[i]) <= absolute + relative * std::abs(want[i])) continue;
    char text[160];
    snprintf(text, sizeof text, "element %zu of %zu is %.9g, expected %.9g", i, want.size(), value, want[i]);
    fail(what, text);
    return;
  }
}

template <class E> const char* type_name() { return std::is_same_v<E, float> ? "f32" : "bf16"; }

// The relative error of a result that is computed in f32 and rounded to E.
template <class E> constexpr double rounding() { return std::is_same_v<E, float> ? 4e-6 : 0.00392; }

inline int report(const char* name) {
  if (failures() == 0) printf("%s: all passed\n", name);
  return failures() != 0;
}

}  // namespace arrays
