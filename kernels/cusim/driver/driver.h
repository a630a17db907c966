// A libcuda for the CPU, which runs the kernels compiled with cusim.h. It has the part of the driver API that the CUDA
// executor uses through an unmodified cudarc.
//
// Streams are as lazy as CUDA allows: work runs when a synchronisation, a dependency or a query needs it, no earlier,
// so a missing wait or a host buffer that is used too early causes a wrong result. On request a device runs copies
// eagerly instead, which exposes memory that is overwritten while earlier work still reads it. Memory, errors and
// planned faults belong to a device, so tests in one process are independent on different ordinals, and kernels of
// different devices run at the same time.
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

// CUresult, with the driver's numbers.
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
  kHardwareStackError = 714,
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

// An operation that ends when streams of other devices have reached theirs.
struct Encounter {
  virtual ~Encounter() = default;
  // Takes part, and runs the others' streams as far as possible. Returns whether the stream may pass; else the device
  // stays usable.
  virtual bool attend() = 0;
  // Lets the stream pass: its context ends.
  virtual void leave() = 0;
};

// Makes an encounter for each run of a graph, or for one operation.
using Meeting = std::function<std::shared_ptr<Encounter>()>;

struct Operation {
  Task task;                          // or null
  std::shared_ptr<Mark> waits_for;    // or null
  std::shared_ptr<Mark> reaches;      // or null
  bool is_copy = false;
  std::shared_ptr<Encounter> meets{};  // or null
};

// A task or a meeting.
struct Node {
  Task task;
  Meeting meeting;
};

struct Graph {
  std::vector<Node> nodes;
};

// A capture in flight, shared by its streams. A graph is replayed as one sequence, so the emulator misses a missing
// dependency between the streams of one capture.
struct Capture {
  Stream* origin;
  int mode;
  std::thread::id thread;
  Graph graph;
  bool is_invalid = false;
  // The streams that joined the capture; true if the origin has waited for all of the stream's work.
  std::map<Stream*, bool> is_rejoined;
};

struct Stream {
  Device* device;
  int priority = 0;
  std::vector<Operation> queue{};
  size_t next = 0;  // the first operation of the queue that has not run
  std::shared_ptr<Capture> capture{};
};

struct Event {
  Device* device;
  std::shared_ptr<Mark> mark;
  // The capture in which the event was last recorded.
  std::weak_ptr<Capture> capture;
  Stream* captured_stream = nullptr;
};

// A planned fault, which occurs when the countdown reaches 0. An initial countdown of 0 plans no fault.
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
  // An error that only the end of the context clears.
  Result sticky = kSuccess;
  // An error that nothing clears: later contexts return it too.
  Result lasting = kSuccess;
  std::string failure;  // the emulator's description of the error
  std::map<Pointer, size_t> allocations;
  Stream null_stream{this};
  std::vector<Stream*> streams{&null_stream};  // in the order of their creation
  Fault allocation_fault;  // refuses an allocation
  Fault launch_fault;      // refuses cuLaunchKernel or cuGraphLaunch
  Fault kernel_fault;      // a kernel fails while it runs
  Fault lasting_fault;     // likewise, and the error is lasting
  Fault wait_fault;        // cuStreamWaitEvent orders nothing
  Fault sync_fault;        // cuEventSynchronize does not wait
  Fault attribute_fault;   // cuFuncSetAttribute sets nothing
  Fault copy_fault;        // refuses a copy between the host and the device
  Fault refused_collective;     // refuses a call of NCCL
  Fault failed_collective;      // a collective fails while it runs, and never ends
  Fault silent_collective;      // a rank does not take part in a collective
  Fault mismatched_collective;  // a rank has one element too few
  std::set<const Device*> peers;  // the devices whose memory kernels and copies of this one may access
  // True if copies run as early as streams and events allow, instead of as late.
  bool hurries_copies = false;
  // 10 * major + minor. Kernels report it as their target. From 90 on, a kernel may wait for earlier launches.
  int capability = 80;
  // True while a kernel runs. Calls on the device wait until it has ended.
  bool runs_kernel = false;
  uint64_t n_allocations = 0, n_launches = 0, n_early_launches = 0, n_kernels_run = 0, n_graph_launches = 0, n_modules = 0;
};

// The lock of the driver, held during each call, but not while a kernel runs.
class Guard {
 public:
  // Waits for the kernel of the current device.
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
};
// Waits, under a guard, until no kernel runs on the device.
void await_kernel(const Device& device);
// Runs a kernel. Meanwhile the guards of this thread are released.
std::string run_unguarded(Device& device, const std::function<std::string()>& kernel);

std::vector<std::unique_ptr<Device>>& devices();
// A device, after its running kernel has ended; null if there is no such device.
Device* find(int ordinal);
// The device of this thread's current context, or null.
Device* current_device();
// Changes of anything for which encounters wait: work of streams, ranks of groups, graphs.
uint64_t n_changes();
void note_change();
// Waits, without the guards of this thread, for a change after the first `n_seen`.
void await_change(uint64_t n_seen);

// The null handle is the null stream of the current device.
Stream* stream_of(void* handle);
// A device's sticky error, or kInvalidContext for null.
Result state_of(const Device* device);

// Queues the task, or adds it to the stream's capture.
Result submit(void* stream, Task task, bool is_copy = false);
// Likewise for an operation that waits for other devices.
Result submit_meeting(void* stream, const Meeting& meeting);
Result run_all(Stream& stream);
Result run_all(Device& device);
void run_until(Mark& mark);
// Runs the streams of the device that have encounters in their queues, until `is_done` or all of them wait.
void run_to_encounters(Device& device, const std::function<bool()>& is_done);

// Refuses a call that would wait for a capturing stream or use it, and invalidates the capture.
Result forbid_in_capture(Stream& stream);
// Refuses a call that any capture of this thread, or any global capture, forbids.
Result forbid_while_capturing();
// Refuses a call that waits for a whole context, if the context has a capture of any mode and thread.
Result forbid_during_captures(const Device& device);
std::vector<std::weak_ptr<Capture>>& captures();

// Ends the context: frees its resources and clears its sticky error, unless the error is lasting.
void end_context(Device& device);
// Frees the device's memory, and unpins the memory that its context registered.
void free_all(Device& device);
bool is_inside_allocation(const Device& device, Pointer start, size_t bytes);
// The device that has allocated the address, or null.
const Device* owner_of(Pointer address);
// Describes an out-of-bounds write next to an allocation; an empty string if there is none.
std::string damaged_guard(const Device& device);

// Whether all work runs as soon as it is queued (CUSIM_EAGER).
bool is_eager();

// The bytes of static shared memory of each kernel, from NVIDIA's compiler.
const std::map<std::string, unsigned, std::less<>>& static_shared_bytes();

}  // namespace fake
