// Kernel launches: distributes blocks over OS threads, poisons shared memory, and finds kernels by name.
#pragma once
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "warps.h"

namespace cusim {

constexpr unsigned kMaxSharedBytes = 227 << 10;
constexpr unsigned char kPoison = 0xff;  // NaN in every float type

struct Memory {
  unsigned char* start;
  size_t bytes;
};

// This thread's instances of all thread_local variables of this library or program: its static __shared__ memory.
inline Memory thread_locals() {
  Memory found{nullptr, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* result) {
        const auto code = reinterpret_cast<uintptr_t>(&thread_locals);
        const ElfW(Phdr)* tls = nullptr;
        bool is_own = false;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = object->dlpi_phdr[i];
          const uintptr_t start = object->dlpi_addr + header.p_vaddr;
          if (header.p_type == PT_TLS) tls = &header;
          if (header.p_type == PT_LOAD && code >= start && code < start + header.p_memsz) is_own = true;
        }
        if (!is_own) return 0;
        if (tls && object->dlpi_tls_data)
          *static_cast<Memory*>(result) = {static_cast<unsigned char*>(object->dlpi_tls_data), tls->p_memsz};
        return 1;
      },
      &found);
  return found;
}

// Stacks of fibers. They are reused, since mapping them takes longer than most emulated kernels.
class Stacks {
 public:
  explicit Stacks(unsigned n_fibers) : bytes_(static_cast<size_t>(n_fibers) * opts().stack_bytes) {
    std::lock_guard<std::mutex> lock(mutex());
    for (auto kept = free().begin(); kept != free().end(); ++kept) {
      if (kept->bytes < bytes_) continue;
      start_ = kept->start;
      bytes_ = kept->bytes;
      free().erase(kept);
      return;
    }
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) abort();
    start_ = static_cast<unsigned char*>(mapped);
  }
  Stacks(const Stacks&) = delete;
  ~Stacks() {
    std::lock_guard<std::mutex> lock(mutex());
    if (is_abandoned) munmap(start_, bytes_);
    else free().push_back({start_, bytes_});
  }
  unsigned char* operator[](size_t fiber) const { return start_ + fiber * opts().stack_bytes; }

  // True if fibers did not run to their end: AddressSanitizer then considers their frames live.
  bool is_abandoned = false;

 private:
  static std::mutex& mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::vector<Memory>& free() {
    static auto* free = new std::vector<Memory>;
    return *free;
  }
  unsigned char* start_;
  size_t bytes_;
};

// A permutation of 0..n: ascending, descending or random.
template <class Random> void arrange(unsigned* order, unsigned* place, unsigned n, Random&& random) {
  for (unsigned i = 0; i < n; ++i) order[i] = opts().order == 1 ? n - 1 - i : i;
  if (opts().order > 1)
    for (unsigned i = n; i-- > 1;) std::swap(order[i], order[random() % (i + 1)]);
  for (unsigned i = 0; i < n; ++i) place[order[i]] = i;
}

inline void arrange_schedule(Block& b) {
  uint64_t state = 0x9e3779b97f4a7c15ull * (opts().order + 1) + b.index.x * 7919u + b.index.y * 104729u;
  auto random = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  arrange(b.lanes, b.lane_place, 32, random);
  arrange(b.warp_order.data(), b.warp_place.data(), b.n_warps, random);
}

inline void prepare_fiber(Fiber& fiber, Block& b, unsigned thread) {
  // Stacks begin at different cache lines, since those of a warp would otherwise evict each other.
  unsigned char* const first_frame = fiber.stack + opts().stack_bytes - 64 - thread % 64 * 192;
#if defined(__SANITIZE_ADDRESS__)
  // A fiber never returns from its first function, so the stack's previous fiber has left its frames poisoned.
  constexpr unsigned kFirstFramesBytes = 4096;
  __asan_unpoison_memory_region(first_frame - kFirstFramesBytes, kFirstFramesBytes);
#endif
  fiber.thread_index = {thread % b.size.x, thread / b.size.x % b.size.y, thread / b.size.x / b.size.y};
  fiber.bit = 1u << b.lane_place[fiber.lane];
  b.ready[thread / 32] |= fiber.bit;
  fiber.done = false;
  fiber.committed.clear();
  fiber.open.clear();
#if defined(__x86_64__)
  // The stack that switch_stacks expects: six registers, the return address, and alignment.
  void** top = reinterpret_cast<void**>(first_frame);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = first_frame - fiber.stack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &fiber_main, 0);
#endif
}

inline void prepare_block(Block& b, uint3 index, Memory static_shared) {
  b.index = index;
  b.n_live = b.n_threads;
  if (b.dynamic_bytes) memset(b.dynamic_shared, kPoison, b.dynamic_bytes);
  if (static_shared.bytes) memset(static_shared.start, kPoison, static_shared.bytes);
  blk = &b;  // poisoned with the rest
  cur = nullptr;
  b.votes = 0;
  for (Barrier& barrier : b.barriers) barrier = Barrier{};
  for (unsigned i = 0; i < b.n_warps; ++i) {
    Warp& warp = b.warps[i];
    const unsigned n_lanes = std::min(32u, b.n_threads - i * 32);
    b.ready[i] = 0;
    warp.full.mask = n_lanes == 32 ? ~0u : (1u << n_lanes) - 1;
    warp.full.arrived = warp.full.waiting = 0;
    for (LaneGroup* group : warp.partial) group->arrived = group->waiting = 0;
  }
  arrange_schedule(b);
  for (unsigned t = 0; t < b.n_threads; ++t) prepare_fiber(b.fibers[t], b, t);
}

inline void run_block(Block& b, uint3 index, Memory static_shared) {
  prepare_block(b, index, static_shared);
  const unsigned first = b.warp_order[0] * 32 + b.lanes[0];
  switch_to(&b.fibers[first < b.n_threads ? first : 0]);
}

// Takes blocks of a launch from `next` and runs them until none is left or one fails. Returns the error.
inline std::string run_blocks(dim3 grid, dim3 size, unsigned dynamic_bytes, const std::function<void()>& body,
                              std::atomic<uint64_t>& next) {
  Block b;
  b.grid = grid;
  b.size = size;
  b.body = &body;
  b.n_threads = size.x * size.y * size.z;
  b.n_warps = (b.n_threads + 31) / 32;
  b.fibers.resize(b.n_threads);
  b.warps = std::vector<Warp>(b.n_warps);
  b.warp_order.resize(b.n_warps);
  b.warp_place.resize(b.n_warps);
  Stacks stacks(b.n_threads);
  for (unsigned t = 0; t < b.n_threads; ++t) {
    b.fibers[t].stack = stacks[t];
    b.fibers[t].thread = t;
    b.fibers[t].lane = t % 32;
    b.fibers[t].warp = &b.warps[t / 32];
  }
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &b.scheduler_stack, &b.scheduler_stack_bytes);
  pthread_attr_destroy(&attributes);
#endif
  // Exactly the requested size, so that AddressSanitizer sees accesses past the end.
  void* shared = nullptr;
  if (dynamic_bytes && posix_memalign(&shared, 1024, dynamic_bytes) != 0) abort();
  b.dynamic_shared = static_cast<unsigned char*>(shared);
  b.dynamic_bytes = dynamic_bytes;
  blk = &b;  // this first access allocates the thread's thread_local variables
  const Memory static_shared = thread_locals();
  const uint64_t n_blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
  for (uint64_t i; b.error.empty() && (i = next++) < n_blocks;) {
    const uint64_t block = opts().order == 1 ? n_blocks - 1 - i : i;
    const uint64_t row = block / grid.x;
    run_block(b, {unsigned(block % grid.x), unsigned(row % grid.y), unsigned(row / grid.y)}, static_shared);
  }
  stacks.is_abandoned = !b.error.empty();
  free(shared);
  return b.error;
}

inline std::string refuse(dim3 grid, dim3 size, unsigned dynamic_bytes) {
  const uint64_t n_threads = static_cast<uint64_t>(size.x) * size.y * size.z;
  if (n_threads == 0 || n_threads > kMaxThreads || size.z > 64)
    return "a block cannot have " + std::to_string(n_threads) + " threads";
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    return "a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " + std::to_string(grid.z);
  if (dynamic_bytes > kMaxSharedBytes) return std::to_string(dynamic_bytes) + " bytes of dynamic shared memory";
  return "";
}

// Runs `body` once for each thread of the grid; returns an error, or an empty string.
inline std::string launch(dim3 grid, dim3 size, unsigned dynamic_bytes, const std::function<void()>& body) {
  const std::string refusal = refuse(grid, size, dynamic_bytes);
  if (!refusal.empty()) return "launch refused: " + refusal;
  std::atomic<uint64_t> next{0};
  const uint64_t n_blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
  std::vector<std::string> errors(std::min<uint64_t>(n_blocks, std::max(1u, opts().threads)));
  const auto work = [&](std::string& error) { error = run_blocks(grid, size, dynamic_bytes, body, next); };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < errors.size(); ++i) helpers.emplace_back(work, std::ref(errors[i]));
  work(errors[0]);
  for (std::thread& helper : helpers) helper.join();
  for (const std::string& error : errors)
    if (!error.empty()) return error;
  return "";
}

struct Kernel {
  // Grid, block, bytes of dynamic shared memory, pointers to the arguments; returns an error, or an empty string.
  std::function<std::string(dim3, dim3, unsigned, void**)> run;
  std::vector<size_t> argument_bytes;
};

inline std::map<std::string, Kernel>& registry() {
  static std::map<std::string, Kernel> kernels;
  return kernels;
}

template <class... Args> int add_to_registry(const char* name, void (*kernel)(Args...)) {
  auto run = [kernel](dim3 grid, dim3 size, unsigned dynamic_bytes, void** arguments) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      const std::tuple<Args...> copies{*static_cast<std::remove_reference_t<Args>*>(arguments[I])...};
      return launch(grid, size, dynamic_bytes, [&] { std::apply(kernel, copies); });
    }(std::index_sequence_for<Args...>{});
  };
  if (!registry().try_emplace(name, Kernel{run, {sizeof(Args)...}}).second) {
    fprintf(stderr, "cusim: two kernels are named %s\n", name);
    abort();
  }
  return 0;
}

}  // namespace cusim

#define CUSIM_JOIN_(a, b) a##b
#define CUSIM_JOIN(a, b) CUSIM_JOIN_(a, b)
#define CUSIM_KERNEL(kernel) \
  [[maybe_unused]] static const int CUSIM_JOIN(cusim_kernel_, __COUNTER__) = cusim::add_to_registry(#kernel, kernel);

#define threadIdx (cusim::cur->thread_index)
#define blockIdx (cusim::blk->index)
#define blockDim (cusim::blk->size)
#define gridDim (cusim::blk->grid)
constexpr int warpSize = 32;
