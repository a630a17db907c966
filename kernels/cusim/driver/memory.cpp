// Device memory, pinned host memory, copies and fills.
//
// Device memory is poisoned when it is allocated and when it is freed. Each allocation has guards: AddressSanitizer
// detects every access to a guard; without it, a check after each kernel detects writes to guards. Copies with pinned
// memory access it when they run; pageable memory is copied before the call returns. Memory is pinned by the page. No
// page is pinned twice, and the memory of a copy must be pinned completely or not at all.
#include "driver.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fake {

namespace {

constexpr size_t kAlignment = 512;
constexpr size_t kGuardBytes = 512;
constexpr unsigned char kGuard = 0xa5;

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The guard after an allocation begins right at its end.
size_t back_guard_bytes(size_t bytes) { return padded(bytes) - bytes + kGuardBytes; }

unsigned char* bytes_at(Pointer pointer) { return reinterpret_cast<unsigned char*>(pointer); }

constexpr uintptr_t kPage = 4096;

uintptr_t page_before(uintptr_t address) { return address / kPage * kPage; }
uintptr_t page_end(uintptr_t address) { return page_before(address + kPage - 1); }

struct Pinned {
  size_t bytes;
  // The device whose context registered the memory; null for memory that the driver allocated.
  const Device* registered_by;
};

// The pinned ranges by address. No two share a page.
std::map<uintptr_t, Pinned>& pinned_ranges() {
  static auto* ranges = new std::map<uintptr_t, Pinned>;
  return *ranges;
}

// Whether the memory is within one range.
bool is_pinned(const void* start, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(start);
  auto range = pinned_ranges().upper_bound(address);
  if (range == pinned_ranges().begin()) return false;
  --range;
  return address + bytes <= range->first + range->second.bytes;
}

// Whether one of the memory's pages overlaps a pinned range.
bool has_pinned_page(const void* start, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(start);
  auto range = pinned_ranges().lower_bound(page_end(address + bytes));
  if (range == pinned_ranges().begin()) return false;
  --range;
  return page_end(range->first + range->second.bytes) > page_before(address);
}

bool is_partly_pinned(const void* start, size_t bytes) {
  return !is_pinned(start, bytes) && has_pinned_page(start, bytes);
}

// The allocations of all devices.
std::map<Pointer, const Device*>& owners() {
  static auto* all = new std::map<Pointer, const Device*>;
  return *all;
}

Result allocate(Pointer* pointer, size_t bytes) {
  Device* device = current_device();
  if (const Result error = state_of(device)) return error;
  if (bytes == 0) return kInvalidValue;
  ++device->n_allocations;
  if (device->allocation_fault.strikes()) return device->allocation_fault.error;
  if (bytes > device->total_bytes || device->used_bytes > device->total_bytes - bytes) return kOutOfMemory;
  auto* block = static_cast<unsigned char*>(aligned_alloc(kAlignment, padded(bytes) + 2 * kGuardBytes));
  if (!block) return kOutOfMemory;
  unsigned char* start = block + kGuardBytes;
  memset(block, kGuard, kGuardBytes);
  memset(start, cusim::kPoison, bytes);
  memset(start + bytes, kGuard, back_guard_bytes(bytes));
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(block, kGuardBytes);
  __asan_poison_memory_region(start + bytes, back_guard_bytes(bytes));
#endif
  *pointer = reinterpret_cast<Pointer>(start);
  device->allocations[*pointer] = bytes;
  owners()[*pointer] = device;
  device->used_bytes += bytes;
  return kSuccess;
}

void free_block(Pointer pointer, size_t bytes) {
  unsigned char* block = bytes_at(pointer) - kGuardBytes;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(block, padded(bytes) + 2 * kGuardBytes);
#endif
  memset(bytes_at(pointer), cusim::kPoison, bytes);
  owners().erase(pointer);
  free(block);
}

Result release(Device& device, Pointer pointer) {
  if (pointer == 0) return kSuccess;
  const auto found = device.allocations.find(pointer);
  if (found == device.allocations.end()) return kInvalidValue;
  device.used_bytes -= found->second;
  free_block(pointer, found->second);
  device.allocations.erase(found);
  return kSuccess;
}

// With one memcmp, for speed: every guard is checked after every kernel.
[[maybe_unused]] bool is_guard_whole(const unsigned char* start, size_t bytes) {
  static const std::vector<unsigned char> whole(kAlignment + kGuardBytes, kGuard);
  return memcmp(start, whole.data(), bytes) == 0;
}

// The device of the stream, if one of its allocations, or of those of devices that it may access, contains the range.
Device* device_with(void* stream_handle, Pointer start, size_t bytes) {
  Stream* stream = stream_of(stream_handle);
  if (!stream) return nullptr;
  Device* device = stream->device;
  const auto contains = [&](const Device* owner) { return is_inside_allocation(*owner, start, bytes); };
  return contains(device) || std::any_of(device->peers.begin(), device->peers.end(), contains) ? device : nullptr;
}

Result copy_to_device(Pointer target, const void* source, size_t bytes, void* stream) {
  Guard guard;
  if (bytes == 0) return kSuccess;
  Device* device = device_with(stream, target, bytes);
  if (!device || is_partly_pinned(source, bytes)) return kInvalidValue;
  if (device->copy_fault.strikes()) return device->copy_fault.error;
  if (is_pinned(source, bytes))
    return submit(stream, [=]() -> Result {
      memcpy(bytes_at(target), source, bytes);
      return kSuccess;
    }, true);
  if (const Result refused = forbid_in_capture(*stream_of(stream))) return refused;
  const auto* first = static_cast<const unsigned char*>(source);
  auto staged = std::make_shared<std::vector<unsigned char>>(first, first + bytes);
  return submit(stream, [=]() -> Result {
    memcpy(bytes_at(target), staged->data(), bytes);
    return kSuccess;
  }, true);
}

Result copy_to_host(void* target, Pointer source, size_t bytes, void* stream) {
  Guard guard;
  if (bytes == 0) return kSuccess;
  Device* device = device_with(stream, source, bytes);
  if (!device || is_partly_pinned(target, bytes)) return kInvalidValue;
  if (device->copy_fault.strikes()) return device->copy_fault.error;
  if (is_pinned(target, bytes))
    return submit(stream, [=]() -> Result {
      memcpy(target, bytes_at(source), bytes);
      return kSuccess;
    }, true);
  if (const Result refused = forbid_in_capture(*stream_of(stream))) return refused;
  if (const Result error = run_all(*stream_of(stream))) return error;
  memcpy(target, bytes_at(source), bytes);
  return kSuccess;
}

Result copy_on_device(Pointer target, Pointer source, size_t bytes, void* stream) {
  Guard guard;
  if (bytes == 0) return kSuccess;
  if (!device_with(stream, target, bytes) || !device_with(stream, source, bytes)) return kInvalidValue;
  return submit(stream, [=]() -> Result {
    memmove(bytes_at(target), bytes_at(source), bytes);
    return kSuccess;
  }, true);
}

template <class T> Result fill(Pointer target, T value, size_t count, void* stream) {
  Guard guard;
  if (count == 0) return kSuccess;
  if (!device_with(stream, target, count * sizeof(T))) return kInvalidValue;
  return submit(stream, [=]() -> Result {
    for (size_t i = 0; i < count; ++i) memcpy(bytes_at(target) + i * sizeof(T), &value, sizeof(T));
    return kSuccess;
  });
}

// Runs a call, and returns when all of its work is done.
template <class Call> Result synchronously(Call&& call) {
  Guard guard;
  if (const Result error = state_of(current_device())) return error;
  if (const Result refused = forbid_while_capturing()) return refused;
  if (const Result error = call()) return error;
  return run_all(current_device()->null_stream);
}

Result pin(void** pointer, size_t bytes) {
  Guard guard;
  if (const Result error = state_of(current_device())) return error;
  if (const Result refused = forbid_while_capturing()) return refused;
  *pointer = aligned_alloc(kPage, page_end(bytes));
  if (!*pointer) return kOutOfMemory;
  memset(*pointer, cusim::kPoison, bytes);
  pinned_ranges()[reinterpret_cast<uintptr_t>(*pointer)] = {bytes, nullptr};
  return kSuccess;
}

}  // namespace

bool is_inside_allocation(const Device& device, Pointer start, size_t bytes) {
  auto found = device.allocations.upper_bound(start);
  if (found == device.allocations.begin()) return false;
  --found;
  return bytes <= found->second && start - found->first <= found->second - bytes;
}

const Device* owner_of(Pointer address) {
  auto found = owners().upper_bound(address);
  if (found == owners().begin()) return nullptr;
  --found;
  return is_inside_allocation(*found->second, address, 1) ? found->second : nullptr;
}

std::string damaged_guard(const Device& device) {
#if !defined(__SANITIZE_ADDRESS__)
  for (const auto& [pointer, bytes] : device.allocations) {
    const bool before = is_guard_whole(bytes_at(pointer) - kGuardBytes, kGuardBytes);
    const bool after = is_guard_whole(bytes_at(pointer) + bytes, back_guard_bytes(bytes));
    if (!before || !after)
      return std::string("a write ") + (before ? "past the end" : "before the start") + " of an allocation of " +
             std::to_string(bytes) + " bytes";
  }
#endif
  return "";
}

void free_all(Device& device) {
  for (const auto& [pointer, bytes] : device.allocations) free_block(pointer, bytes);
  device.allocations.clear();
  device.used_bytes = 0;
  std::erase_if(pinned_ranges(), [&](const auto& range) { return range.second.registered_by == &device; });
}

}  // namespace fake

using namespace fake;

CUSIM_API Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  Guard guard;
  const Device* device = current_device();
  if (const Result error = state_of(device)) return error;
  *total_bytes = device->total_bytes;
  *free_bytes = device->total_bytes - std::min(device->used_bytes, device->total_bytes);
  return kSuccess;
}

CUSIM_API Result cuMemAlloc_v2(Pointer* pointer, size_t bytes) {
  Guard guard;
  if (const Result refused = forbid_while_capturing()) return refused;
  return allocate(pointer, bytes);
}

CUSIM_API Result cuMemAllocAsync(Pointer* pointer, size_t bytes, void* handle) {
  Guard guard;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  if (const Result refused = forbid_in_capture(*stream)) return refused;
  return allocate(pointer, bytes);
}
CUSIM_API Result cuMemAllocFromPoolAsync(Pointer* pointer, size_t bytes, void*, void* stream) {
  return cuMemAllocAsync(pointer, bytes, stream);
}

CUSIM_API Result cuMemFree_v2(Pointer pointer) {
  Guard guard;
  Device* device = current_device();
  if (!device) return kInvalidContext;
  if (const Result refused = forbid_while_capturing()) return refused;
  run_all(*device);
  const Result released = release(*device, pointer);
  return device->sticky ? device->sticky : released;
}

CUSIM_API Result cuMemFreeAsync(Pointer pointer, void* handle) {
  Guard guard;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  Device* device = stream->device;
  if (pointer && !device->allocations.contains(pointer)) return kInvalidValue;
  return submit(handle, [=] { return release(*device, pointer); });
}

CUSIM_API Result cuMemHostAlloc(void** pointer, size_t bytes, unsigned) { return pin(pointer, bytes); }
CUSIM_API Result cuMemAllocHost_v2(void** pointer, size_t bytes) { return pin(pointer, bytes); }

// Before pinned memory is freed, all work of the current device runs to its end: a caller that frees memory has made
// its own device current. The work of other devices stays lazy, unless no device is current.
static void run_own_device() {
  if (Device* device = current_device()) return void(run_all(*device));
  // By index: a device may be added while a kernel runs.
  for (size_t i = 0; i < devices().size(); ++i) run_all(*devices()[i]);
}

CUSIM_API Result cuMemFreeHost(void* pointer) {
  Guard guard;
  if (const Result refused = forbid_while_capturing()) return refused;
  if (!pinned_ranges().contains(reinterpret_cast<uintptr_t>(pointer))) return kInvalidValue;
  run_own_device();
  pinned_ranges().erase(reinterpret_cast<uintptr_t>(pointer));
  free(pointer);
  return kSuccess;
}

CUSIM_API Result cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned) {
  Guard guard;
  if (const Result error = state_of(current_device())) return error;
  if (!pointer || bytes == 0) return kInvalidValue;
  if (has_pinned_page(pointer, bytes)) {
    constexpr Result kAlreadyRegistered = 712;
    return kAlreadyRegistered;
  }
  pinned_ranges()[reinterpret_cast<uintptr_t>(pointer)] = {bytes, current_device()};
  return kSuccess;
}

CUSIM_API Result cuMemHostUnregister(void* pointer) {
  Guard guard;
  if (current_device() && current_device()->sticky) return current_device()->sticky;
  run_own_device();
  if (pinned_ranges().erase(reinterpret_cast<uintptr_t>(pointer)) == 1) return kSuccess;
  constexpr Result kNotRegistered = 713;
  return kNotRegistered;
}

CUSIM_API Result cuMemHostGetDevicePointer_v2(Pointer* device_pointer, void* pointer, unsigned) {
  Guard guard;
  if (!is_pinned(pointer, 1)) return kInvalidValue;
  *device_pointer = reinterpret_cast<Pointer>(pointer);
  return kSuccess;
}

CUSIM_API Result cuMemHostGetFlags(unsigned* flags, void* pointer) {
  Guard guard;
  *flags = 0;
  return is_pinned(pointer, 1) ? kSuccess : kInvalidValue;
}

CUSIM_API Result cuMemcpyHtoDAsync_v2(Pointer target, const void* source, size_t bytes, void* stream) {
  return copy_to_device(target, source, bytes, stream);
}
CUSIM_API Result cuMemcpyDtoHAsync_v2(void* target, Pointer source, size_t bytes, void* stream) {
  return copy_to_host(target, source, bytes, stream);
}
CUSIM_API Result cuMemcpyDtoDAsync_v2(Pointer target, Pointer source, size_t bytes, void* stream) {
  return copy_on_device(target, source, bytes, stream);
}
CUSIM_API Result cuMemcpyHtoD_v2(Pointer target, const void* source, size_t bytes) {
  return synchronously([=] { return copy_to_device(target, source, bytes, nullptr); });
}
CUSIM_API Result cuMemcpyDtoH_v2(void* target, Pointer source, size_t bytes) {
  return synchronously([=] { return copy_to_host(target, source, bytes, nullptr); });
}
CUSIM_API Result cuMemcpyDtoD_v2(Pointer target, Pointer source, size_t bytes) {
  return synchronously([=] { return copy_on_device(target, source, bytes, nullptr); });
}

CUSIM_API Result cuMemsetD8Async(Pointer target, unsigned char value, size_t count, void* stream) {
  return fill(target, value, count, stream);
}
CUSIM_API Result cuMemsetD16Async(Pointer target, unsigned short value, size_t count, void* stream) {
  return fill(target, value, count, stream);
}
CUSIM_API Result cuMemsetD32Async(Pointer target, unsigned value, size_t count, void* stream) {
  return fill(target, value, count, stream);
}
CUSIM_API Result cuMemsetD8_v2(Pointer target, unsigned char value, size_t count) {
  return synchronously([=] { return fill(target, value, count, nullptr); });
}
CUSIM_API Result cuMemsetD32_v2(Pointer target, unsigned value, size_t count) {
  return synchronously([=] { return fill(target, value, count, nullptr); });
}

// One pool, without settings.
static int the_pool;
CUSIM_API Result cuDeviceGetDefaultMemPool(void** pool, int) {
  *pool = &the_pool;
  return kSuccess;
}
CUSIM_API Result cuDeviceGetMemPool(void** pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
CUSIM_API Result cuMemPoolSetAttribute(void*, int, void*) { return kSuccess; }
CUSIM_API Result cuMemPoolTrimTo(void*, size_t) { return kSuccess; }
