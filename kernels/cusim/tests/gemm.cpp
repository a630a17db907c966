// Compares gemm.cu with sums in double: every kernel at odd shapes, all write modes, and the kernel chosen by shape.
#include "cusim.h"

#include "element.cuh"
#include "params.cuh"

#include "gemm.cu"

#include "arrays.h"

using namespace arrays;

struct Shape {
  uint32_t m, n, k;
};

// A kernel and how it is launched for a shape: the table in kernels/README.md.
struct Config {
  std::string kernel;
  uint32_t rows, columns;  // outputs of a block; rows is 0 if a block computes all rows
  uint32_t threads, shared_bytes, n_splits;
};

static uint32_t parts(uint32_t whole, uint32_t part) { return (whole + part - 1) / part; }

static Config skinny(uint32_t rows, uint32_t columns) {
  const std::string name = "gemm_skinny_" + std::to_string(rows) + "x" + std::to_string(columns) + "_bf16";
  return {name, 0, columns, 256, 0, 1};
}

static Config tile(uint32_t rows, uint32_t columns, uint32_t n_splits) {
  const std::string name = "gemm_tile_" + std::to_string(rows) + "x" + std::to_string(columns) + "_bf16";
  if (columns == 256) return {name, rows, columns, 256, 98304, n_splits};
  return {name, rows, columns, 128, rows == 64 ? 98304u : 65536u, n_splits};
}

static const Config kSimtF32 = {"gemm_simt_f32", 64, 64, 256, 0, 1};
static const Config kSimtBf16 = {"gemm_simt_bf16", 64, 64, 256, 0, 1};

// The kernel of the table for a product in bf16.
static Config chosen(Shape s, uint32_t n_multiprocessors) {
  if (s.k % 8 != 0) return kSimtBf16;
  if (s.m <= 8) return skinny(8, s.n < 4096 ? 16 : 32);
  if (s.m <= 16) return skinny(16, 32);
  if (s.m > 64 && parts(s.m, 128) * parts(s.n, 256) >= n_multiprocessors) return tile(128, 256, 1);
  const uint32_t rows = s.m <= 64 ? 64 : 128, tiles = parts(s.m, rows) * parts(s.n, 128);
  return tile(rows, 128, std::clamp(2 * n_multiprocessors / tiles, 1u, std::max(1u, s.k / 512)));
}

template <class E> struct Operands {
  Shape shape;
  std::vector<E> x, w;
  std::vector<float> bias, residual;
  std::vector<double> products;

  explicit Operands(Shape s)
      : shape(s),
        x(normal<E>((size_t)s.m * s.k)),
        w(normal<E>((size_t)s.n * s.k)),
        bias(normal<float>(s.n)),
        residual(normal<float>((size_t)s.m * s.n)) {
    for (size_t i = 0; i < s.m; ++i)
      for (size_t j = 0; j < s.n; ++j) {
        double sum = 0.0;
        for (size_t l = 0; l < s.k; ++l) sum += (double)f32(x[i * s.k + l]) * f32(w[j * s.k + l]);
        products.push_back(sum);
      }
  }
};

template <class E> static void run(const Config& config, GemmParams<E> params) {
  std::vector<float> partials;
  params.n_splits = config.n_splits;
  if (config.n_splits > 1) {
    partials = poisoned<float>((size_t)config.n_splits * params.m * params.n);
    params.partials = partials.data();
  }
  dim3 grid(parts(params.n, config.columns));
  if (config.kernel.find("simt") != std::string::npos) grid.y = parts(params.m, config.rows);
  else if (config.rows != 0) grid = dim3(grid.x * parts(params.m, config.rows), config.n_splits);
  if (!launch(config.kernel, grid, config.threads, config.shared_bytes, params)) return;
  if (config.n_splits > 1) launch("gemm_reduce_bf16", dim3(params.m, parts(params.n, 1024)), 256, 0, params);
}

template <class E>
static void check(const Config& config, const Operands<E>& o, GemmWrite write, bool biased, bool aligned = true) {
  const Shape s = o.shape;
  Unaligned<E> unaligned_x(o.x), unaligned_w(o.w);
  std::vector<float> out_f32 = write == kAddF32 ? o.residual : poisoned<float>(o.products.size());
  std::vector<E> out = poisoned<E>(o.products.size());
  GemmParams<E> params = {};
  params.out = write == kStore ? (void*)out.data() : out_f32.data();
  params.x = aligned ? o.x.data() : unaligned_x.data();
  params.w = aligned ? o.w.data() : unaligned_w.data();
  params.bias = biased ? o.bias.data() : nullptr;
  params.m = s.m, params.n = s.n, params.k = s.k, params.write = write;
  run(config, params);
  std::vector<double> want = o.products;
  for (size_t i = 0; i < want.size(); ++i)
    want[i] += (biased ? o.bias[i % s.n] : 0.0f) + (write == kAddF32 ? o.residual[i] : 0.0f);
  const std::string what = config.kernel + " " + std::to_string(s.m) + " x " + std::to_string(s.n) + " x " +
                           std::to_string(s.k) + ", write " + std::to_string(write) + ", splits " +
                           std::to_string(config.n_splits);
  // The rounding error of a sum of k products with standard deviation 1 in f32, in any order.
  const double sum_error = 1e-6 * std::sqrt((double)s.k) + 1e-6;
  if (write == kStore) expect_close(what, out.data(), want, sum_error, rounding<E>());
  else expect_close(what, out_f32.data(), want, sum_error, 1e-6);
}

template <class E> static void check_writes(const Config& config, Shape shape) {
  const Operands<E> operands(shape);
  check(config, operands, kStore, true);
  check(config, operands, kStoreF32, false);
  check(config, operands, kAddF32, true);
}

static void check_simt() {
  for (const Shape shape :
       {Shape{1, 1, 1}, Shape{3, 70, 33}, Shape{65, 66, 17}, Shape{2, 64, 64}, Shape{67, 5, 40}}) {
    check_writes<float>(kSimtF32, shape);
    check_writes<bf16>(kSimtBf16, shape);
  }
  check(kSimtBf16, Operands<bf16>({5, 12, 24}), kStore, true, false);
  check(kSimtF32, Operands<float>({5, 12, 24}), kAddF32, true, false);
}

static void check_skinny() {
  for (const uint32_t columns : {16u, 32u})
    for (const Shape shape : {Shape{1, 1, 8}, Shape{8, 48, 1024}, Shape{5, 37, 1096}, Shape{7, 64, 2080}})
      check_writes<bf16>(skinny(8, columns), shape);
  for (const Shape shape : {Shape{9, 1, 8}, Shape{16, 48, 1024}, Shape{13, 37, 1096}, Shape{3, 33, 72}})
    check_writes<bf16>(skinny(16, 32), shape);
}

static void check_tiles() {
  check_writes<bf16>(tile(64, 128, 1), {31, 133, 200});
  check_writes<bf16>(tile(64, 128, 3), {17, 130, 648});
  check_writes<bf16>(tile(64, 128, 1), {64, 260, 264});
  check_writes<bf16>(tile(64, 128, 2), {35, 129, 136});
  check_writes<bf16>(tile(128, 128, 1), {129, 140, 328});
  check_writes<bf16>(tile(128, 128, 5), {70, 64, 328});
  // More splits than steps along k, so that some splits are empty.
  check_writes<bf16>(tile(128, 128, 4), {66, 131, 72});
  check_writes<bf16>(tile(128, 256, 1), {130, 300, 168});
  check_writes<bf16>(tile(128, 256, 1), {17, 12, 8});
  // More than one band of rows.
  check_writes<bf16>(tile(64, 128, 1), {600, 140, 24});
}

static void check_choice() {
  const Operands<bf16> small({2, 40, 44}), decode({20, 200, 1024}), prefill({90, 24, 512});
  check(chosen(small.shape, 132), small, kStoreF32, false);
  check(chosen(decode.shape, 132), decode, kAddF32, false);
  check(chosen(prefill.shape, 132), prefill, kStore, true);
  check(chosen(prefill.shape, 1), prefill, kStore, true);
  // Llama-3.1-8B's output projection on an H100.
  const std::pair<uint32_t, std::string> want[] = {
      {1, "gemm_skinny_8x32_bf16"},  {16, "gemm_skinny_16x32_bf16"},  {17, "gemm_tile_64x128_bf16"},
      {64, "gemm_tile_64x128_bf16"}, {512, "gemm_tile_128x128_bf16"}, {8192, "gemm_tile_128x256_bf16"}};
  for (const auto& [m, kernel] : want)
    if (chosen({m, 4096, 4096}, 132).kernel != kernel)
      fail("choice", std::to_string(m) + " rows: not " + kernel);
}

// Whether eight lanes, each with a piece of 16 bytes, have a bank conflict: their addresses do not differ modulo 128.
template <class S> static bool collide(uint32_t first_row, uint32_t first_piece, uint32_t n_rows) {
  bool taken[8] = {};
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t eighth = swizzled<S>(first_row + i % n_rows, first_piece + i / n_rows) / 8 % 8;
    if (taken[eighth]) return true;
    taken[eighth] = true;
  }
  return false;
}

template <class S> static void check_banks(const char* name) {
  for (uint32_t row = 0; row < S::kRows + S::kColumns; row += 8)
    for (uint32_t piece = 0; piece < S::kPieces; ++piece)
      if (collide<S>(row, piece, 8)) fail(name, "the rows of an ldmatrix collide");
  for (uint32_t row = 0; row < S::kRows; row += 8 / S::kPieces)
    if (collide<S>(row, 0, 8 / S::kPieces)) fail(name, "the pieces of a copy collide");
}

int main() {
  check_banks<Tile64x128>("banks of 64 x 128");
  check_banks<Tile128x128>("banks of 128 x 128");
  check_banks<Tile128x256>("banks of 128 x 256");
  check_simt();
  check_skinny();
  check_tiles();
  check_choice();
  return report("gemm");
}
