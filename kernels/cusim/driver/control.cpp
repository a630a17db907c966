// Settings and queries for tests, which the driver API does not have.
#include "collectives.h"

using namespace fake;

struct CusimCounts {
  uint64_t used_bytes, n_allocations_held, n_allocations, n_launches, n_early_launches, n_graph_launches, n_kernels_run,
      n_modules;
};

// Adds devices until there are `n_devices`. Removes none, since they may have contexts.
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

// Makes copies run as early as the order of streams and events allows, or as late (the default).
CUSIM_API Result cusim_hurry_copies(int ordinal, int hurries) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  device->hurries_copies = hurries != 0;
  return kSuccess;
}

// Sets the compute capability, 10 * major + minor. Kernels report it as their target.
CUSIM_API Result cusim_set_capability(int ordinal, int capability) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  device->capability = capability;
  return kSuccess;
}

// Plans a fault in the `nth` operation of a kind from now on; 0 plans none. `kind`: 0 an allocation, 1 a launch
// (refused at once), 2 a kernel (fails while it runs, and its device fails too), 3 a stream's wait for an event, 4 the
// host's wait for an event (both are skipped), 5 an attribute of a kernel (ignored), 6 a copy (refused at once), 7 a
// kernel (as 2, and the device fails in later contexts too), 8 a call of a collective (refused at once), 9 a collective
// (its group fails, and it never ends), 10 a collective (its rank does not take part), 11 a collective (its rank has one
// element too few). The errors of 8 and 9 are NCCL's.
CUSIM_API Result cusim_plan_fault(int ordinal, int kind, uint64_t nth, Result error) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  Fault* faults[] = {&device->allocation_fault, &device->launch_fault, &device->kernel_fault, &device->wait_fault,
                     &device->sync_fault, &device->attribute_fault, &device->copy_fault, &device->lasting_fault,
                     &device->refused_collective, &device->failed_collective, &device->silent_collective,
                     &device->mismatched_collective};
  if (kind < 0 || kind > 11) return kInvalidValue;
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

// The last text about collectives in which ranks differ; returns its length.
CUSIM_API size_t cusim_mismatch(char* text, size_t bytes) {
  Guard guard;
  if (bytes) snprintf(text, bytes, "%s", last_mismatch().c_str());
  return last_mismatch().size();
}

// Ends a device's context as a driver's reset does, with a sticky error that is not lasting.
CUSIM_API Result cusim_reset(int ordinal) {
  Guard guard;
  Device* device = find(ordinal);
  if (!device) return kInvalidDevice;
  end_context(*device);
  return kSuccess;
}
