// The driver's lock. API calls hold it, running kernels do not.
#include <atomic>
#include <condition_variable>

#include "driver.h"

namespace fake {

namespace {

// A recursive lock. It counts nested guards, so that a thread can release all of them at once.
struct Lock {
  std::mutex mutex;
  std::condition_variable kernel_ended, changed;
  std::atomic<std::thread::id> owner{};
  unsigned depth = 0;
  uint64_t n_changes = 0;
};

Lock& lock() {
  static auto* lock = new Lock;
  return *lock;
}

// Releases the guards of this thread while `wait` runs.
template <class Wait> void without_guards(Wait&& wait) {
  const unsigned depth = lock().depth;
  std::unique_lock<std::mutex> held(lock().mutex, std::adopt_lock);
  lock().owner = std::thread::id{};
  wait(held);
  lock().owner = std::this_thread::get_id();
  lock().depth = depth;
  held.release();
}

}  // namespace

Guard::Guard() {
  if (lock().owner == std::this_thread::get_id()) {
    ++lock().depth;
    return;
  }
  lock().mutex.lock();
  lock().owner = std::this_thread::get_id();
  lock().depth = 1;
  if (const Device* device = current_device()) await_kernel(*device);
}

Guard::~Guard() {
  if (--lock().depth > 0) return;
  lock().owner = std::thread::id{};
  lock().mutex.unlock();
}

void await_kernel(const Device& device) {
  if (!device.runs_kernel) return;
  without_guards([&](std::unique_lock<std::mutex>& held) {
    lock().kernel_ended.wait(held, [&] { return !device.runs_kernel; });
  });
}

uint64_t n_changes() { return lock().n_changes; }

void note_change() {
  ++lock().n_changes;
  lock().changed.notify_all();
}

void await_change(uint64_t n_seen) {
  without_guards([&](std::unique_lock<std::mutex>& held) {
    lock().changed.wait(held, [&] { return lock().n_changes != n_seen; });
  });
}

std::string run_unguarded(Device& device, const std::function<std::string()>& kernel) {
  std::string error;
  device.runs_kernel = true;
  without_guards([&](std::unique_lock<std::mutex>& held) {
    held.unlock();
    error = kernel();
    held.lock();
  });
  device.runs_kernel = false;
  lock().kernel_ended.notify_all();
  return error;
}

}  // namespace fake
