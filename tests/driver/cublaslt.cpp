// A fake cuBLASLt that computes on the CPU: the functions that Souffleur calls, as NVIDIA documents them. Matrices are
// column-major, and their columns are `ld` elements apart.
#include <cstdint>
#include <cstdio>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" int cuStreamSynchronize(void* stream);
extern "C" int cuCtxSynchronize();

namespace {

enum { kSuccess = 0, kInvalidValue = 7, kExecutionFailed = 13, kNotSupported = 15 };
enum { kF32 = 0, kBf16 = 14, kComputeF32 = 68 };

int n_products, n_heuristics, n_mistakes, n_to_fail;

int mistake(const char* text) {
  ++n_mistakes;
  fprintf(stderr, "cublasLt: %s\n", text);
  return kInvalidValue;
}

struct Desc {
  int32_t transposes_a = 0, epilogue = 1, bias_type = -1;
  const float* bias = nullptr;
};
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t ld;
};
struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};
  uint32_t reductions = 7;
};
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

template <class T> int assign(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return mistake("an attribute of another size");
  memcpy(&to, from, bytes);
  return kSuccess;
}

float load(const void* matrix, int type, uint64_t i) {
  if (type == kF32) return static_cast<const float*>(matrix)[i];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(matrix)[i]) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

void store(void* matrix, int type, uint64_t i, float value) {
  if (type == kF32) {
    static_cast<float*>(matrix)[i] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, 4);
  static_cast<uint16_t*>(matrix)[i] = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

bool fits(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  const uint64_t a_rows = desc.transposes_a ? a.columns : a.rows, depth = desc.transposes_a ? a.rows : a.columns;
  return a_rows == d.rows && b.columns == d.columns && depth == b.rows && a.ld >= int64_t(a.rows) &&
         b.ld >= int64_t(b.rows) && d.ld >= int64_t(d.rows) && a.type == b.type && (d.type == a.type || d.type == kF32);
}

bool is_aligned(const void* address, uint64_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

}  // namespace

EXPORT int fake_products() { return n_products; }
EXPORT int fake_heuristics() { return n_heuristics; }
EXPORT int fake_mistakes() { return n_mistakes; }
// The next `n` products fail, and write nothing.
EXPORT void fake_failures(int n) { n_to_fail = n; }

#ifdef FAKE_NAME
__attribute__((constructor)) static void say_name() { fprintf(stderr, "fake cublasLt: loaded %s\n", FAKE_NAME); }
#endif

EXPORT int cublasLtCreate(void** handle) {
  *handle = new int;
  return kSuccess;
}
EXPORT int cublasLtDestroy(void* handle) {
  if (cuCtxSynchronize()) return kInvalidValue;
  delete static_cast<int*>(handle);
  return kSuccess;
}

EXPORT int cublasLtMatmulDescCreate(Desc** desc, int compute, int scale) {
  if (compute != kComputeF32 || scale != kF32) return mistake("sums that are not f32");
  *desc = new Desc;
  return kSuccess;
}
EXPORT int cublasLtMatmulDescDestroy(Desc* desc) {
  delete desc;
  return kSuccess;
}
EXPORT int cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case 3: return assign(desc->transposes_a, value, bytes);
    case 7: return assign(desc->epilogue, value, bytes);
    case 8: return assign(desc->bias, value, bytes);
    case 26: return assign(desc->bias_type, value, bytes);
    default: return mistake("an attribute of descriptors that is not known");
  }
}

EXPORT int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  *layout = new Layout{type, rows, columns, ld};
  return kSuccess;
}
EXPORT int cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return kSuccess;
}

EXPORT int cublasLtMatmulPreferenceCreate(Preference** preference) {
  *preference = new Preference;
  return kSuccess;
}
EXPORT int cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return kSuccess;
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value,
                                                size_t bytes) {
  if (attribute == 1) return assign(preference->workspace_bytes, value, bytes);
  if (attribute == 3) return assign(preference->reductions, value, bytes);
  if (attribute >= 5 && attribute <= 8) return assign(preference->alignments[attribute - 5], value, bytes);
  return mistake("an attribute of preferences that is not known");
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, const Desc* desc, const Layout* a, const Layout* b, const Layout* c,
                                          const Layout* d, const Preference* preference, int n_wanted,
                                          Heuristic* found, int* n_found) {
  ++n_heuristics;
  *n_found = 0;
  if (!fits(*desc, *a, *b, *d) || c->type != d->type) return mistake("shapes that do not fit");
  // The reduction schemes in place (1) and output type (4) add partial sums in the type of the output.
  if (preference->reductions != 2) return mistake("partial sums that may be added in less than f32");
  // For tests: seven outputs, and a bias of another type than the result, have no algorithm.
  const bool has_bias = desc->epilogue == 4;
  if (d->rows == 7 || (has_bias && desc->bias_type != d->type) || n_wanted < 1) return kSuccess;
  found->algorithm = {{preference->alignments[0], preference->alignments[1], preference->alignments[3]}};
  found->workspace_bytes = preference->workspace_bytes;
  found->status = kSuccess;
  *n_found = 1;
  return kSuccess;
}

EXPORT int cublasLtMatmul(void*, const Desc* desc, const float* alpha, const void* a, const Layout* a_layout,
                          const void* b, const Layout* b_layout, const float* beta, const void* c,
                          const Layout* c_layout, void* d, const Layout* d_layout, const Algorithm* algorithm,
                          void* workspace, size_t workspace_bytes, void* stream) {
  if (!fits(*desc, *a_layout, *b_layout, *d_layout)) return mistake("shapes that do not fit");
  if (!is_aligned(a, algorithm->data[0]) || !is_aligned(b, algorithm->data[1]) || !is_aligned(d, algorithm->data[2]))
    return mistake("addresses of less alignment than was promised");
  if (workspace_bytes && !is_aligned(workspace, 256)) return mistake("a workspace that is not aligned");
  if (n_to_fail > 0) {
    --n_to_fail;
    return kExecutionFailed;
  }
  if (cuStreamSynchronize(stream)) return kInvalidValue;
  const uint64_t depth = b_layout->rows;
  for (uint64_t column = 0; column < d_layout->columns; ++column)
    for (uint64_t row = 0; row < d_layout->rows; ++row) {
      float sum = 0;
      for (uint64_t i = 0; i < depth; ++i) {
        const uint64_t at = desc->transposes_a ? row * a_layout->ld + i : i * a_layout->ld + row;
        sum += load(a, a_layout->type, at) * load(b, b_layout->type, column * b_layout->ld + i);
      }
      float result = *alpha * sum;
      if (*beta != 0) result += *beta * load(c, c_layout->type, column * c_layout->ld + row);
      if (desc->epilogue == 4) result += desc->bias[row];
      store(d, d_layout->type, column * d_layout->ld + row, result);
    }
  ++n_products;
  return kSuccess;
}
