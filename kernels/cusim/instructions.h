// CPU implementations of the instructions that kernels/ptx.cuh wraps.
#pragma once
#include <utility>

#include "builtins.h"

namespace cusim {

// cp.async: copies `bytes` and fills up to `size` with zeros, when the program waits for it and no earlier.
inline void copy_async(uintptr_t target, const void* source, unsigned bytes, unsigned size) {
  if ((target | reinterpret_cast<uintptr_t>(source)) % size) fail("cp.async in " + where() + ": misaligned address");
  void* to = reinterpret_cast<void*>(target);
  if (opts().lazy_copies) {
    memset(to, kPoison, size);
    cur->open.push_back({to, source, bytes, size});
  } else {
    memset(to, 0, size);
    memcpy(to, source, bytes);
  }
}

inline void commit_copies() {
  cur->committed.push_back(std::move(cur->open));
  cur->open.clear();
}

// Completes all groups but the latest `n_pending`.
inline void wait_for_copies(unsigned n_pending) {
  while (cur->committed.size() > n_pending + opts().wait_slack) {
    for (const PendingCopy& copy : cur->committed.front()) {
      memset(copy.target, 0, copy.size);
      if (copy.bytes) memcpy(copy.target, copy.source, copy.bytes);
    }
    cur->committed.erase(cur->committed.begin());
  }
}

// The calling lane's register of an 8x8 matrix of 16-bit elements. Lane `matrix * 8 + i` has the address of row i.
inline uint32_t matrix_register(Values rows, unsigned matrix, bool transposed) {
  const unsigned lane = cur->lane;
  uint16_t halves[2];
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned major = lane / 4, minor = lane % 4 * 2 + i;
    const unsigned row = transposed ? minor : major, column = transposed ? major : minor;
    memcpy(&halves[i], reinterpret_cast<const uint16_t*>(value_of<uintptr_t>(rows, matrix * 8 + row)) + column, 2);
  }
  return halves[0] | static_cast<uint32_t>(halves[1]) << 16;
}

// ldmatrix: loads `N` matrices, whose row addresses come from lanes 0 to 8 N - 1.
template <unsigned N, bool kTransposed> void load_matrices(uint32_t* registers, uintptr_t row) {
  if (cur->lane < N * 8 && row % 16) fail("ldmatrix in " + where() + ": a row is not 16-byte aligned");
  const Values rows = meet(existing(~0u), row, kLoadMatrix + N + 4 * kTransposed, "ldmatrix");
  for (unsigned i = 0; i < N; ++i) registers[i] = matrix_register(rows, i, kTransposed);
  // Lanes must not store to the rows before all lanes have read them.
  __syncwarp();
}

// One lane's operands of mma.m16n8k16: A row-major, B column-major, both bf16; C in f32.
struct MmaOperands {
  uint32_t a[4], b[2];
  float c[4];
};

inline float bf16_half(uint32_t pair, unsigned high) {
  return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}

inline void multiply_m16n8k16(unsigned char (*values)[64]) {
  float a[16][16], b[16][8], c[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    const auto own = value_of<MmaOperands>(values, lane);
    const unsigned row = lane / 4, column = lane % 4 * 2;
    for (unsigned h = 0; h < 2; ++h) {
      a[row][column + h] = bf16_half(own.a[0], h);
      a[row + 8][column + h] = bf16_half(own.a[1], h);
      a[row][column + 8 + h] = bf16_half(own.a[2], h);
      a[row + 8][column + 8 + h] = bf16_half(own.a[3], h);
      b[column + h][row] = bf16_half(own.b[0], h);
      b[column + 8 + h][row] = bf16_half(own.b[1], h);
      c[row][column + h] = own.c[h];
      c[row + 8][column + h] = own.c[2 + h];
    }
  }
  for (unsigned i = 0; i < 16; ++i)
    for (unsigned k = 0; k < 16; ++k)
      for (unsigned j = 0; j < 8; ++j) c[i][j] += a[i][k] * b[k][j];
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned row = lane / 4, column = lane % 4 * 2;
    memcpy(values[lane], &c[row][column], 8);
    memcpy(values[lane] + 8, &c[row + 8][column], 8);
  }
}

inline void mma_m16n8k16(float* c, const uint32_t* a, const uint32_t* b) {
  MmaOperands own;
  memcpy(own.a, a, sizeof own.a);
  memcpy(own.b, b, sizeof own.b);
  memcpy(own.c, c, sizeof own.c);
  const Values products = meet(existing(~0u), own, kMma, "mma.sync", multiply_m16n8k16);
  memcpy(c, products[cur->lane], sizeof own.c);
}

}  // namespace cusim
