// A libcuda whose device is the CPU and whose kernels are those compiled with cusim.h: enough of the driver API for an
// executor over an unmodified cudarc.
//
// Streams are as lazy as CUDA allows: work runs when a synchronisation, a dependency or a query needs it, no earlier,
// so a missing wait or a host buffer that is used too early shows as a wrong result. On request a device runs copies
// eagerly instead, so that memory written while earlier work still reads it shows too. Memory, errors and planned
// faults belong to a device, so tests in one process are independent on different ordinals, and kernels of different
// devices run at the same time.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../launch.h"

// An entry point of the library.
#define CUSIM_API extern "C" __attribute__((visibility("default")))

namespace fake {

using Result = int;
using Pointer = uint64_t;  // CUdeviceptr

// CUresult; the numbers are the driver's.
enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kOutOfResources = 701,
  kLaunchFailed = 719,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
};

struct Device;
struct Stream;
struct Capture;

// A point in a stream's work.
struct Mark {
  Stream* stream;
  bool is_reached = false;
  std::chrono::steady_clock::time_point time{};
};

using Task = std::function<Result()>;

struct Operation {
  Task task;                          // or null
  std::shared_ptr<Mark> waits_for;    // or null
  std::shared_ptr<Mark> reaches;      // or null
  bool is_copy = false;
};

struct Graph {
  std::vector<Task> tasks;
};

// A capture in flight, shared by the streams that take part in it. It is replayed as one sequence, so it does not show
// a dependency that is missing between the streams of one capture.
struct Capture {
  Stream* origin;
  int mode;
  std::thread::id thread;
  Graph graph;
  bool is_invalid = false;
  // Streams that joined, with whether the origin has waited for all of their work.
  std::map<Stream*, bool> is_rejoined;
};

struct Stream {
  Device* device;
  int priority = 0;
  std::vector<Operation> queue{};
  size_t next = 0;  // of the queue; those before have run
  std::shared_ptr<Capture> capture{};
};

struct Event {
  Device* device;
  std::shared_ptr<Mark> mark;
  // Of the capture in which it was recorded last.
  std::weak_ptr<Capture> capture;
  Stream* captured_stream = nullptr;
};

// A planned fault: strikes at the n-th event from now on, counted down; 0 is never.
struct Fault {
  uint64_t countdown = 0;
  Result error = kSuccess;

  bool strikes() { return countdown && --countdown == 0; }
};

struct Device {
  explicit Device(int ordinal);
  int ordinal;
  size_t total_bytes;
  size_t used_bytes = 0;
  unsigned n_retained = 0;
  // An error that only the end of the context heals.
  Result sticky = kSuccess;
  std::string failure;  // the emulator's description of it
  std::map<Pointer, size_t> allocations;
  Stream null_stream{this};
  std::vector<Stream*> streams{&null_stream};  // in the order of their creation
  Fault allocation_fault;  // refuses an allocation
  Fault launch_fault;      // refuses cuLaunchKernel or cuGraphLaunch
  Fault kernel_fault;      // a kernel fails while it runs
  Fault wait_fault;        // cuStreamWaitEvent orders nothing
  Fault sync_fault;        // cuEventSynchronize does not wait
  Fault attribute_fault;   // cuFuncSetAttribute sets nothing
  Fault copy_fault;        // refuses a copy between the host and the device
  // Copies run as soon as the order of streams and events allows, and not as late.
  bool hurries_copies = false;
  // Ten times the major number and the minor one; kernels say that they were compiled for it, and from 90 on they wait for
  // earlier launches.
  int capability = 80;
  // Calls on the device wait for it.
  bool runs_kernel = false;
  uint64_t n_allocations = 0, n_launches = 0, n_early_launches = 0, n_kernels_run = 0, n_graph_launches = 0, n_modules = 0;
};

// Held during each call, but not while a kernel runs.
class Guard {
 public:
  // Waits for the kernel of the current device.
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
};
// Waits, under a guard, until no kernel runs on the device.
void await_kernel(const Device& device);
// Runs a kernel without the guards of this thread.
std::string run_unguarded(Device& device, const std::function<std::string()>& kernel);

std::vector<std::unique_ptr<Device>>& devices();
// A device of which no kernel runs, or null.
Device* find(int ordinal);
// Of the context that is current on this thread, or null.
Device* current_device();
// The null handle is the null stream of the current device.
Stream* stream_of(void* handle);
// A device's sticky error, or that there is no context.
Result state_of(const Device* device);

// Queues the task, or adds it to the stream's capture.
Result submit(void* stream, Task task, bool is_copy = false);
Result run_all(Stream& stream);
Result run_all(Device& device);
void run_until(Mark& mark);

// Refuses, and invalidates the capture, where a call would wait for or touch a capturing stream.
Result forbid_in_capture(Stream& stream);
// Likewise for calls that a capture of this thread (or any global one) forbids altogether.
Result forbid_while_capturing();
// Likewise for calls that wait for a whole context: for any mode and thread of its captures.
Result forbid_beside_captures(const Device& device);
std::vector<std::weak_ptr<Capture>>& captures();

// Ends the context: its resources are gone, and its sticky error with them.
void end_context(Device& device);
// Its memory, and its pinnings of foreign memory.
void free_all(Device& device);
bool is_inside_allocation(const Device& device, Pointer start, size_t bytes);
// The allocation around which something was written, or an empty string.
std::string damaged_guard(const Device& device);

bool is_eager();

// Kernels to bytes of static shared memory on the emulated device, as NVIDIA's compiler laid them out.
const std::map<std::string, unsigned, std::less<>>& static_shared_bytes();

}  // namespace fake
