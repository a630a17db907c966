// Runs the threads of a block as fibers, which wait at barriers.
#pragma once
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "language.h"
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace cusim {

struct Options {
  unsigned order;
  bool lazy_copies;
  unsigned threads;
  unsigned stack_bytes;
  // Planted faults, which a test of a kernel has to find.
  const char* skipped_barrier;  // file:line of a __syncthreads that does nothing, or null
  unsigned wait_slack;          // every wait for cp.async leaves this many groups more pending
};

inline unsigned environment(const char* name, unsigned otherwise) {
  const char* value = getenv(name);
  return value ? static_cast<unsigned>(strtoul(value, nullptr, 10)) : otherwise;
}

// The options, read from the environment. A test may change the order between launches.
inline Options& opts() {
#if defined(__SANITIZE_ADDRESS__)
  constexpr unsigned kStackKb = 256;
#else
  constexpr unsigned kStackKb = 64;
#endif
  static Options options{environment("CUSIM_ORDER", 0), environment("CUSIM_LAZY", 1) != 0,
                         environment("CUSIM_THREADS", 1), environment("CUSIM_STACK_KB", kStackKb) << 10,
                         getenv("CUSIM_SKIP_BARRIER"), environment("CUSIM_WEAK_WAIT", 0)};
  return options;
}

struct Warp;

// An issued cp.async, which copies `bytes` from `source` and fills up to `size` with zeros.
struct PendingCopy {
  void* target;
  const void* source;
  unsigned bytes, size;
};
using CopyGroup = std::vector<PendingCopy>;

struct Fiber {
  void* stack_pointer = nullptr;
  unsigned char* stack = nullptr;
#if !defined(__x86_64__)
  ucontext_t context;
#endif
  uint3 thread_index{};
  unsigned thread = 0, lane = 0;
  unsigned bit = 0;  // 1 << the lane's place in the schedule
  Warp* warp = nullptr;
  const char* operation = "";  // in which the fiber waits
  bool done = false;
  std::vector<CopyGroup> committed;
  CopyGroup open;  // the copies since the last cp.async.commit_group
};

constexpr unsigned kMaxThreads = 1024;

// A mask of lanes for each warp. Bits are the lanes' places in the schedule.
using LanesOfWarps = unsigned[kMaxThreads / 32];

struct Barrier {
  unsigned arrived = 0;
  LanesOfWarps waiting = {};
};

struct Block {
  dim3 grid, size;
  uint3 index{};
  unsigned n_threads = 0, n_warps = 0, n_live = 0;
  unsigned char* dynamic_shared = nullptr;
  unsigned dynamic_bytes = 0;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barriers[16];
  unsigned votes = 0;  // for __syncthreads_count
  LanesOfWarps ready = {};
  // The schedule of lanes and warps, and the place of each lane and warp in the schedule.
  unsigned lanes[32], lane_place[32];
  std::vector<unsigned> warp_order, warp_place;
  const std::function<void()>* body = nullptr;
  std::string error;
  // The state of the OS thread that runs the block.
  void* scheduler = nullptr;
  void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
#if !defined(__x86_64__)
  ucontext_t scheduler_context;
#endif
};

constinit inline thread_local Block* blk = nullptr;
constinit inline thread_local Fiber* cur = nullptr;

#if defined(__x86_64__)
// Saves the ABI's callee-saved registers on the old stack, and resumes where the new one was left.
__attribute__((naked, noinline)) inline void switch_stacks(void** /*save_old*/, void* /*load_new*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp,(%rdi)\n movq %rsi,%rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}
#endif

// Leaves the current fiber, or the scheduler, for `next`; null is the scheduler.
inline void switch_to(Fiber* next) {
  Fiber* from = cur;
  cur = next;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  void** saved = from && from->done ? nullptr : &fake_stack;
  if (next) __sanitizer_start_switch_fiber(saved, next->stack, opts().stack_bytes);
  else __sanitizer_start_switch_fiber(saved, blk->scheduler_stack, blk->scheduler_stack_bytes);
#endif
#if defined(__x86_64__)
  switch_stacks(from ? &from->stack_pointer : &blk->scheduler, next ? next->stack_pointer : blk->scheduler);
#else
  swapcontext(from ? &from->context : &blk->scheduler_context, next ? &next->context : &blk->scheduler_context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

// Ends the launch with an error.
[[noreturn]] inline void fail(std::string error) {
  blk->error = std::move(error);
  switch_to(nullptr);
  abort();
}

inline std::string where() {
  const uint3 b = blk->index;
  return "block (" + std::to_string(b.x) + "," + std::to_string(b.y) + "," + std::to_string(b.z) + ")";
}

// A group of lanes, named by a mask, that meet in collectives.
struct LaneGroup {
  unsigned mask = 0, arrived = 0, generation = 0, operation = 0;
  unsigned waiting = 0;  // bits as in LanesOfWarps
  // Two generations: a lane may write in the next collective while others still read this one.
  alignas(16) unsigned char values[2][32][64];
};

struct Warp {
  LaneGroup full;
  std::vector<LaneGroup*> partial;
  Warp() = default;
  Warp(Warp&&) = default;
  ~Warp() {
    for (LaneGroup* group : partial) delete group;
  }
};

// The next fiber that can run, in the order of the schedule. The current warp comes first.
inline Fiber* next_ready() {
  Block& b = *blk;
  const unsigned own_warp = cur->thread / 32, first = b.lane_place[cur->lane] + 1;
  unsigned place = b.warp_place[own_warp];
  for (unsigned k = 0; k < b.n_warps; ++k, place = place + 1 < b.n_warps ? place + 1 : 0) {
    const unsigned warp = b.warp_order[place];
    const unsigned ready = std::rotr(b.ready[warp], static_cast<int>(first % 32));
    if (ready) return &b.fibers[warp * 32 + b.lanes[(first + std::countr_zero(ready)) % 32]];
  }
  return nullptr;
}

// Adds the current fiber to `waiting`, and suspends it until another fiber makes it ready.
inline void wait_among(unsigned& waiting, const char* operation) {
  Fiber& own = *cur;
  waiting |= own.bit;
  blk->ready[own.thread / 32] &= ~own.bit;
  own.operation = operation;
  Fiber* next = next_ready();
  if (!next)
    fail("deadlock in " + where() + ": thread " + std::to_string(own.thread) + " waits in " + operation +
         " for threads that exited or took another branch");
  switch_to(next);
}

inline void release(Barrier& barrier) {
  barrier.arrived = 0;
  for (unsigned i = 0; i < blk->n_warps; ++i) blk->ready[i] |= std::exchange(barrier.waiting[i], 0);
}

// Waits for `n_threads` arrivals at a barrier; 0 is every thread that has not exited.
inline void arrive_and_wait(unsigned id, unsigned n_threads, const char* operation) {
  Barrier& barrier = blk->barriers[id];
  if (++barrier.arrived >= (n_threads ? n_threads : blk->n_live)) release(barrier);
  else wait_among(barrier.waiting[cur->thread / 32], operation);
}

// The entry point of a fiber.
inline void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  (*blk->body)();
  Block& b = *blk;
  cur->done = true;
  --b.n_live;
  b.ready[cur->thread / 32] &= ~cur->bit;
  Barrier& all = b.barriers[0];
  if (all.arrived && all.arrived >= b.n_live) release(all);  // a thread that exited counts as arrived
  Fiber* next = b.n_live ? next_ready() : nullptr;
  if (!next && b.n_live) {
    for (const Fiber& fiber : b.fibers) {
      if (fiber.done) continue;
      b.error = "deadlock in " + where() + ": thread " + std::to_string(fiber.thread) + " waits in " + fiber.operation +
                " but the threads it waits for exited";
      break;
    }
  }
  switch_to(next);
  abort();
}

}  // namespace cusim
