// Initialisation, devices and contexts.
#include <pthread.h>

#include "driver.h"

namespace fake {

namespace {

constexpr unsigned kDefaultDriverVersion = 12090;
constexpr unsigned kDefaultMemoryMb = 256;
constexpr unsigned kDefaultCapability = 80;

size_t default_memory() {
  const char* bytes = getenv("CUSIM_TOTAL_MEMORY");
  return bytes ? strtoull(bytes, nullptr, 10) : static_cast<size_t>(kDefaultMemoryMb) << 20;
}

Fault fault_from(const char* variable, Result otherwise) {
  const char* text = getenv(variable);
  if (!text) return {};
  char* rest = nullptr;
  const uint64_t nth = strtoull(text, &rest, 10);
  return {nth, *rest == ':' ? static_cast<Result>(strtol(rest + 1, nullptr, 10)) : otherwise};
}

// A pthread key, since the emulator poisons thread_local variables.
pthread_key_t current_key() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    if (pthread_key_create(&made, nullptr) != 0) abort();
    return made;
  }();
  return key;
}

// The attributes of an A100: CU_DEVICE_ATTRIBUTE_*, without the prefix, and values.
const std::map<int, int> kAttributes = {
    {1, 1024},       // MAX_THREADS_PER_BLOCK
    {2, 1024},       // MAX_BLOCK_DIM_X
    {3, 1024},       // MAX_BLOCK_DIM_Y
    {4, 64},         // MAX_BLOCK_DIM_Z
    {5, 2147483647}, // MAX_GRID_DIM_X
    {6, 65535},      // MAX_GRID_DIM_Y
    {7, 65535},      // MAX_GRID_DIM_Z
    {8, 49152},      // MAX_SHARED_MEMORY_PER_BLOCK
    {9, 65536},      // TOTAL_CONSTANT_MEMORY
    {10, 32},        // WARP_SIZE
    {12, 65536},     // MAX_REGISTERS_PER_BLOCK
    {13, 1410000},   // CLOCK_RATE, kHz
    {16, 108},       // MULTIPROCESSOR_COUNT
    {31, 1},         // CONCURRENT_KERNELS
    {36, 1215000},   // MEMORY_CLOCK_RATE, kHz
    {37, 5120},      // GLOBAL_MEMORY_BUS_WIDTH
    {38, 41943040},  // L2_CACHE_SIZE
    {39, 2048},      // MAX_THREADS_PER_MULTIPROCESSOR
    {40, 3},         // ASYNC_ENGINE_COUNT
    {41, 1},         // UNIFIED_ADDRESSING
    {78, 1},         // STREAM_PRIORITIES_SUPPORTED
    {81, 167936},    // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    {82, 65536},     // MAX_REGISTERS_PER_MULTIPROCESSOR
    {95, 1},         // COOPERATIVE_LAUNCH
    {97, 166912},    // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    {106, 32},       // MAX_BLOCKS_PER_MULTIPROCESSOR
    {115, 1},        // MEMORY_POOLS_SUPPORTED
};

Result name_of(Result error, const char** name, const char** text) {
  static const std::map<Result, std::pair<const char*, const char*>> kNames = {
      {kSuccess, {"CUDA_SUCCESS", "no error"}},
      {kInvalidValue, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {kOutOfMemory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {kNotInitialized, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
      {kStubLibrary, {"CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"}},
      {kNoDevice, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
      {kInvalidDevice, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
      {kInvalidImage, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
      {kInvalidContext, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
      {kInvalidHandle, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
      {kNotFound, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
      {kNotReady, {"CUDA_ERROR_NOT_READY", "device not ready"}},
      {kIllegalAddress, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
      {kOutOfResources, {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
      {kHardwareStackError, {"CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"}},
      {kLaunchFailed, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
      {kNotSupported, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
      {kCaptureUnsupported, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while capturing"}},
      {kCaptureInvalidated, {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier error ended the capture"}},
      {kCaptureMerge, {"CUDA_ERROR_STREAM_CAPTURE_MERGE", "two captures would merge"}},
      {kCaptureUnmatched, {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "ended in another stream"}},
      {kCaptureUnjoined, {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "a joined stream has more work"}},
      {kCaptureIsolation, {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "depends on uncaptured work"}},
      {kCapturedEvent, {"CUDA_ERROR_CAPTURED_EVENT", "the event was captured"}},
      {kCaptureWrongThread, {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "ended by another thread"}},
  };
  const auto found = kNames.find(error);
  if (name) *name = found == kNames.end() ? nullptr : found->second.first;
  if (text) *text = found == kNames.end() ? nullptr : found->second.second;
  return found == kNames.end() ? kInvalidValue : kSuccess;
}

}  // namespace

Device* find(int ordinal) {
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= devices().size()) return nullptr;
  Device* device = devices()[ordinal].get();
  await_kernel(*device);
  return device;
}

Device::Device(int ordinal_) : ordinal(ordinal_), total_bytes(default_memory()) {
  capability = static_cast<int>(cusim::environment("CUSIM_CAPABILITY", kDefaultCapability));
  allocation_fault = fault_from("CUSIM_FAIL_ALLOCATION", kOutOfMemory);
  launch_fault = fault_from("CUSIM_FAIL_LAUNCH", kOutOfResources);
  kernel_fault = fault_from("CUSIM_FAIL_KERNEL", kIllegalAddress);
  lasting_fault = fault_from("CUSIM_FAIL_LASTING", kHardwareStackError);
  if (ordinal != static_cast<int>(cusim::environment("CUSIM_FAULTY_RANK_DEVICE", 0))) return;
  constexpr Result kNcclSystem = 2, kNcclRemote = 6;
  refused_collective = fault_from("CUSIM_REFUSE_COLLECTIVE", kNcclSystem);
  failed_collective = fault_from("CUSIM_FAIL_COLLECTIVE", kNcclRemote);
  silent_collective = fault_from("CUSIM_SILENT_COLLECTIVE", kSuccess);
}

std::vector<std::unique_ptr<Device>>& devices() {
  static auto* all = [] {
    auto* made = new std::vector<std::unique_ptr<Device>>;
    const unsigned n_devices = cusim::environment("CUSIM_DEVICES", 1);
    for (unsigned i = 0; i < n_devices; ++i) made->push_back(std::make_unique<Device>(static_cast<int>(i)));
    return made;
  }();
  return *all;
}

Device* current_device() { return static_cast<Device*>(pthread_getspecific(current_key())); }

Result state_of(const Device* device) { return device ? device->sticky : kInvalidContext; }

void end_context(Device& device) {
  for (Stream* stream : device.streams)
    for (const Operation& operation : stream->queue)
      if (operation.meets) operation.meets->leave();
  run_all(device);
  free_all(device);
  device.peers.clear();
  device.sticky = device.lasting;
  device.failure.clear();
}

}  // namespace fake

using namespace fake;

CUSIM_API Result cuInit(unsigned) {
  if (const unsigned error = cusim::environment("CUSIM_INIT_ERROR", kSuccess)) return static_cast<Result>(error);
  Guard guard;
  return devices().empty() ? kNoDevice : kSuccess;
}

CUSIM_API Result cuDriverGetVersion(int* version) {
  *version = static_cast<int>(cusim::environment("CUSIM_DRIVER_VERSION", kDefaultDriverVersion));
  return kSuccess;
}

CUSIM_API Result cuGetErrorName(Result error, const char** name) { return name_of(error, name, nullptr); }
CUSIM_API Result cuGetErrorString(Result error, const char** text) { return name_of(error, nullptr, text); }

CUSIM_API Result cuDeviceGetCount(int* count) {
  Guard guard;
  *count = static_cast<int>(devices().size());
  return kSuccess;
}

CUSIM_API Result cuDeviceGet(int* device, int ordinal) {
  Guard guard;
  if (!find(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

CUSIM_API Result cuDeviceGetName(char* name, int length, int) {
  snprintf(name, length, "cusim (CPU)");
  return kSuccess;
}

CUSIM_API Result cuDeviceGetUuid(unsigned char* uuid, int device) {
  memset(uuid, 0, 16);
  uuid[0] = static_cast<unsigned char>(device + 1);
  return kSuccess;
}
CUSIM_API Result cuDeviceGetUuid_v2(unsigned char* uuid, int device) { return cuDeviceGetUuid(uuid, device); }

CUSIM_API Result cuDeviceGetAttribute(int* value, int attribute, int ordinal) {
  constexpr int kMajor = 75, kMinor = 76;
  Guard guard;
  const Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  const int capability = device->capability;
  if (attribute == kMajor || attribute == kMinor) {
    *value = attribute == kMajor ? capability / 10 : capability % 10;
    return kSuccess;
  }
  const auto found = kAttributes.find(attribute);
  *value = found == kAttributes.end() ? 0 : found->second;
  return kSuccess;
}

CUSIM_API Result cuDeviceTotalMem_v2(size_t* bytes, int ordinal) {
  Guard guard;
  const Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  *bytes = device->total_bytes;
  return kSuccess;
}

CUSIM_API Result cuDevicePrimaryCtxRetain(void** context, int ordinal) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  if (device->lasting) return device->lasting;
  ++device->n_retained;
  *context = device;
  return kSuccess;
}

CUSIM_API Result cuDevicePrimaryCtxRelease_v2(int ordinal) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  if (device->n_retained == 0) return kInvalidContext;
  if (--device->n_retained == 0) end_context(*device);
  return kSuccess;
}

CUSIM_API Result cuDevicePrimaryCtxReset_v2(int ordinal) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  end_context(*device);
  return kSuccess;
}

CUSIM_API Result cuCtxGetCurrent(void** context) {
  *context = current_device();
  return kSuccess;
}

CUSIM_API Result cuCtxSetCurrent(void* context) {
  pthread_setspecific(current_key(), context);
  return kSuccess;
}

CUSIM_API Result cuCtxGetDevice(int* ordinal) {
  const Device* device = current_device();
  if (!device) return kInvalidContext;
  *ordinal = device->ordinal;
  return kSuccess;
}

CUSIM_API Result cuCtxSynchronize() {
  Guard guard;
  if (!current_device()) return kInvalidContext;
  if (const Result refused = forbid_during_captures(*current_device())) return refused;
  return run_all(*current_device());
}

CUSIM_API Result cuDeviceCanAccessPeer(int* can_access, int ordinal, int peer_ordinal) {
  Guard guard;
  if (!find(ordinal) || !find(peer_ordinal)) return kInvalidDevice;
  *can_access = ordinal != peer_ordinal;
  return kSuccess;
}

CUSIM_API Result cuCtxEnablePeerAccess(void* peer, unsigned) {
  constexpr Result kAlreadyEnabled = 704;
  Guard guard;
  Device* device = current_device();
  if (const Result error = state_of(device)) return error;
  if (!peer || peer == device) return kInvalidContext;
  return device->peers.insert(static_cast<const Device*>(peer)).second ? kSuccess : kAlreadyEnabled;
}

CUSIM_API Result cuCtxDisablePeerAccess(void* peer) {
  constexpr Result kNotEnabled = 705;
  Guard guard;
  Device* device = current_device();
  if (const Result error = state_of(device)) return error;
  return device->peers.erase(static_cast<const Device*>(peer)) ? kSuccess : kNotEnabled;
}

CUSIM_API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return kSuccess;
}

CUSIM_API Result cuCtxSetFlags(unsigned) { return kSuccess; }
CUSIM_API Result cuCtxGetLimit(size_t* value, int) {
  *value = 0;
  return kSuccess;
}
CUSIM_API Result cuCtxSetLimit(int, size_t) { return kSuccess; }
CUSIM_API Result cuCtxGetCacheConfig(int* config) {
  *config = 0;
  return kSuccess;
}
CUSIM_API Result cuCtxSetCacheConfig(int) { return kSuccess; }
CUSIM_API Result cuProfilerStart() { return kSuccess; }
CUSIM_API Result cuProfilerStop() { return kSuccess; }
