// Functions that CUDA C++ has without a header: barriers, atomics, memory, bits and arithmetic.
#pragma once
#include <math.h>

#include <chrono>
#include <cstring>
#include <type_traits>

#include "launch.h"

namespace cusim {
inline bool is_skipped(const char* file, int line) {
  const char* name = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
  return std::string(name) + ":" + std::to_string(line) == opts().skipped_barrier;
}

inline void sync_threads(const char* file, int line) {
  if (opts().skipped_barrier && is_skipped(file, line)) return;
  arrive_and_wait(0, 0, "__syncthreads");
}
}  // namespace cusim

// A macro, so that CUSIM_SKIP_BARRIER can name a barrier by file and line.
#define __syncthreads() cusim::sync_threads(__FILE__, __LINE__)

inline int __syncthreads_count(int predicate) {
  const unsigned own = predicate != 0;
  cusim::blk->votes += own;
  __syncthreads();
  const unsigned votes = cusim::blk->votes;
  __syncthreads();
  cusim::blk->votes -= own;
  return static_cast<int>(votes);
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(predicate == 0) == 0; }

[[noreturn]] inline void __trap() { cusim::fail("__trap in " + cusim::where()); }

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// ---- memory
template <class T> T __ldg(const T* address) { return *address; }
template <class T> T __ldcg(const T* address) { return *address; }
template <class T> T __ldcs(const T* address) { return *address; }
template <class T> void __stcg(T* address, std::type_identity_t<T> value) { *address = value; }
template <class T> void __stcs(T* address, std::type_identity_t<T> value) { *address = value; }

namespace cusim {
// Replaces *address by the result of `update`; returns the old value.
template <class T, class Update> T update_atomically(T* address, Update&& update) {
  T old, next;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do next = update(old);
  while (!__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
}  // namespace cusim

#define CUSIM_ATOMIC(name, expression)                                                              \
  template <class T> T name(T* address, std::type_identity_t<T> value) {                             \
    return cusim::update_atomically(address, [value](T old) { return static_cast<T>(expression); }); \
  }
CUSIM_ATOMIC(atomicAdd, old + value)
CUSIM_ATOMIC(atomicSub, old - value)
CUSIM_ATOMIC(atomicMin, value < old ? value : old)
CUSIM_ATOMIC(atomicMax, old < value ? value : old)
CUSIM_ATOMIC(atomicAnd, old & value)
CUSIM_ATOMIC(atomicOr, old | value)
CUSIM_ATOMIC(atomicXor, old ^ value)
CUSIM_ATOMIC(atomicExch, value)
#undef CUSIM_ATOMIC
inline unsigned atomicInc(unsigned* address, unsigned last) {
  return cusim::update_atomically(address, [last](unsigned old) { return old >= last ? 0 : old + 1; });
}
template <class T> T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return cusim::update_atomically(address, [=](T old) { return old == expected ? value : old; });
}

// ---- bits
namespace cusim {
template <class To, class From> To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
}  // namespace cusim

inline unsigned __float_as_uint(float x) { return cusim::bits<unsigned>(x); }
inline int __float_as_int(float x) { return cusim::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return cusim::bits<float>(x); }
inline float __int_as_float(int x) { return cusim::bits<float>(x); }
inline long long __double_as_longlong(double x) { return cusim::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cusim::bits<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<uint64_t>(a) * b >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned __int128>(a) * b >> 64;
}
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
  return (static_cast<uint64_t>(high) << 32 | low) << (n & 31) >> 32;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
  return (static_cast<uint64_t>(high) << 32 | low) >> (n & 31);
}

// ---- arithmetic
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(lrintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline unsigned __float2uint_rz(float x) { return static_cast<unsigned>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
inline double __uint2double_rn(unsigned x) { return static_cast<double>(x); }

// Approximate on the device: results differ in the last bits.
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
