// Settings and queries of tests; not part of the driver API.
#include "driver.h"

using namespace fake;

struct CusimCounts {
  uint64_t used_bytes, n_allocations_held, n_allocations, n_launches, n_early_launches, n_graph_launches, n_kernels_run,
      n_modules;
};

// Adds devices up to `n_devices`; takes none away, since contexts may live on them.
CUSIM_API int cusim_add_devices(int n_devices) {
  Guard guard;
  while (static_cast<int>(devices().size()) < n_devices)
    devices().push_back(std::make_unique<Device>(static_cast<int>(devices().size())));
  return static_cast<int>(devices().size());
}

CUSIM_API Result cusim_set_total_memory(int ordinal, size_t bytes) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  device->total_bytes = bytes;
  return kSuccess;
}

// Whether copies run as soon as they may, or as late.
CUSIM_API Result cusim_hurry_copies(int ordinal, int hurries) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  device->hurries_copies = hurries != 0;
  return kSuccess;
}

// The compute capability, ten times the major number and the minor one, which kernels say that they were compiled for.
CUSIM_API Result cusim_set_capability(int ordinal, int capability) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  device->capability = capability;
  return kSuccess;
}

// Plans a fault: the `nth` from now on, 0 for none. `kind`: 0 an allocation, 1 a launch (refused at once), 2 a kernel
// (fails while it runs, and its device with it), 3 a stream's wait for an event, 4 the host's (both order nothing),
// 5 an attribute of a kernel (sets nothing), 6 a copy between the host and the device (refused at once).
CUSIM_API Result cusim_plan_fault(int ordinal, int kind, uint64_t nth, Result error) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  Fault* faults[] = {&device->allocation_fault, &device->launch_fault, &device->kernel_fault, &device->wait_fault,
                     &device->sync_fault, &device->attribute_fault, &device->copy_fault};
  if (kind < 0 || kind > 6) return kInvalidValue;
  *faults[kind] = {nth, error};
  return kSuccess;
}

CUSIM_API Result cusim_counts(int ordinal, CusimCounts* counts) {
  Guard guard;
  const Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  *counts = {device->used_bytes,       device->allocations.size(), device->n_allocations, device->n_launches,
             device->n_early_launches, device->n_graph_launches,   device->n_kernels_run, device->n_modules};
  return kSuccess;
}

// The emulator's description of the device's failure; returns its length.
CUSIM_API size_t cusim_failure(int ordinal, char* text, size_t bytes) {
  Guard guard;
  const Device* device = find(ordinal);
  if (!device) return 0;
  if (bytes) snprintf(text, bytes, "%s", device->failure.c_str());
  return device->failure.size();
}

// Ends a device's context as a driver's reset does, sticky error included.
CUSIM_API Result cusim_reset(int ordinal) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  end_context(*device);
  return kSuccess;
}
