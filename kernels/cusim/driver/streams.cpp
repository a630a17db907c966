// Streams and events.
#include "driver.h"

namespace fake {

bool is_eager() {
  static const bool eager = cusim::environment("CUSIM_EAGER", 0) != 0;
  return eager;
}

Stream* stream_of(void* handle) {
  if (auto* stream = static_cast<Stream*>(handle)) {
    await_kernel(*stream->device);
    return stream;
  }
  Device* device = current_device();
  return device ? &device->null_stream : nullptr;
}

namespace {

Event* event_of(void* handle) {
  auto* event = static_cast<Event*>(handle);
  await_kernel(*event->device);
  return event;
}

bool is_idle(const Stream& stream) { return stream.next == stream.queue.size(); }

Operation pop(Stream& stream) {
  Operation operation = std::move(stream.queue[stream.next++]);
  if (is_idle(stream)) {
    stream.queue.clear();
    stream.next = 0;
  }
  return operation;
}

bool advance_to(Mark& mark);

// Runs the first operation of the queue, or part of it. Returns false if it waits for other devices.
bool run_next(Stream& stream) {
  Result& sticky = stream.device->sticky;
  // Other threads may run the operation while this one runs a kernel of another stream or device.
  if (const std::shared_ptr<Mark> mark = stream.queue[stream.next].waits_for; mark && !mark->is_reached) {
    if (!advance_to(*mark)) return false;
    mark->is_reached = true;
    return true;
  }
  if (const std::shared_ptr<Encounter> meets = stream.queue[stream.next].meets) {
    if (sticky == kSuccess && !meets->attend()) return false;
    if (!is_idle(stream) && stream.queue[stream.next].meets == meets) pop(stream);
    return true;
  }
  const Operation operation = pop(stream);
  if (operation.task && sticky == kSuccess) sticky = operation.task();
  if (operation.reaches) {
    operation.reaches->is_reached = true;
    operation.reaches->time = std::chrono::steady_clock::now();
  }
  note_change();
  return true;
}

// Returns false if the mark's stream waits for other devices.
bool advance_to(Mark& mark) {
  for (;;) {
    await_kernel(*mark.stream->device);
    if (mark.is_reached || is_idle(*mark.stream)) return true;
    if (!run_next(*mark.stream)) return false;
  }
}

// Repeats `run` until it returns true, after each change on other devices.
template <class Run> void with_other_devices(Run&& run) {
  for (;;) {
    const uint64_t n_seen = n_changes();
    if (run()) return;
    await_change(n_seen);
  }
}

bool has_encounter(const Stream& stream) {
  return std::any_of(stream.queue.begin() + static_cast<ptrdiff_t>(stream.next), stream.queue.end(),
                     [](const Operation& operation) { return operation.meets != nullptr; });
}

// Whether the stream's next operation is not a kernel, and can run now.
bool runs_without_kernel(const Stream& stream) {
  if (is_idle(stream)) return false;
  const Operation& operation = stream.queue[stream.next];
  if (operation.waits_for) return operation.waits_for->is_reached;
  return operation.reaches || operation.is_copy;
}

void run_copies(Device& device) {
  for (bool has_run = true; has_run;) {
    has_run = false;
    for (Stream* stream : device.streams)
      for (; runs_without_kernel(*stream); has_run = true) run_next(*stream);
  }
}

void enqueue(Stream& stream, Operation operation) {
  stream.queue.push_back(std::move(operation));
  note_change();
  if (is_eager()) run_all(stream);
  if (stream.device->hurries_copies) run_copies(*stream.device);
}

Result make_stream(void** handle, int priority) {
  Guard guard;
  Device* device = current_device();
  if (const Result error = state_of(device)) return error;
  auto* stream = new Stream{device, priority};
  device->streams.push_back(stream);
  *handle = stream;
  return kSuccess;
}

}  // namespace

void run_until(Mark& mark) {
  with_other_devices([&] { return advance_to(mark); });
}

Result run_all(Stream& stream) {
  with_other_devices([&] {
    for (;;) {
      await_kernel(*stream.device);
      if (is_idle(stream)) return true;
      if (!run_next(stream)) return false;
    }
  });
  return stream.device->sticky;
}

Result run_all(Device& device) {
  // By index: other threads may make streams while this one waits for other devices.
  for (size_t i = 0; i < device.streams.size(); ++i) run_all(*device.streams[i]);
  return device.sticky;
}

void run_to_encounters(Device& device, const std::function<bool()>& is_done) {
  for (size_t i = 0; i < device.streams.size();) {
    await_kernel(device);
    if (is_done()) return;
    if (i >= device.streams.size()) return;
    Stream& stream = *device.streams[i];
    if (!has_encounter(stream) || !run_next(stream)) ++i;
  }
}

Result submit(void* handle, Task task, bool is_copy) {
  Guard guard;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  if (stream->capture) {
    if (stream->capture->is_invalid) return kCaptureInvalidated;
    stream->capture->graph.nodes.push_back({std::move(task), nullptr});
    if (stream != stream->capture->origin) stream->capture->is_rejoined[stream] = false;
    return kSuccess;
  }
  if (const Result error = stream->device->sticky) return error;
  enqueue(*stream, {std::move(task), nullptr, nullptr, is_copy});
  return stream->device->sticky;
}

Result submit_meeting(void* handle, const Meeting& meeting) {
  Guard guard;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  if (stream->capture) {
    if (stream->capture->is_invalid) return kCaptureInvalidated;
    stream->capture->graph.nodes.push_back({nullptr, meeting});
    if (stream != stream->capture->origin) stream->capture->is_rejoined[stream] = false;
    return kSuccess;
  }
  if (const Result error = stream->device->sticky) return error;
  enqueue(*stream, {nullptr, nullptr, nullptr, false, meeting()});
  return stream->device->sticky;
}

}  // namespace fake

using namespace fake;

CUSIM_API Result cuStreamCreate(void** handle, unsigned) { return make_stream(handle, 0); }
CUSIM_API Result cuStreamCreateWithPriority(void** handle, unsigned, int priority) {
  return make_stream(handle, priority);
}

CUSIM_API Result cuStreamDestroy_v2(void* handle) {
  Guard guard;
  if (!handle) return kInvalidHandle;
  Stream* stream = stream_of(handle);
  run_all(*stream);
  std::erase(stream->device->streams, stream);
  delete stream;
  return kSuccess;
}

CUSIM_API Result cuStreamGetPriority(void* handle, int* priority) {
  Guard guard;
  const Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  *priority = stream->priority;
  return kSuccess;
}

CUSIM_API Result cuStreamSynchronize(void* handle) {
  Guard guard;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  if (const Result refused = forbid_in_capture(*stream)) return refused;
  return run_all(*stream);
}

// Runs one operation, so that a loop of queries ends.
CUSIM_API Result cuStreamQuery(void* handle) {
  Guard guard;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  if (const Result refused = forbid_in_capture(*stream)) return refused;
  if (stream->next < stream->queue.size()) run_next(*stream);
  if (const Result error = stream->device->sticky) return error;
  return stream->next < stream->queue.size() ? kNotReady : kSuccess;
}

CUSIM_API Result cuStreamAttachMemAsync(void*, Pointer, size_t, unsigned) { return kSuccess; }

CUSIM_API Result cuLaunchHostFunc(void* handle, void (*function)(void*), void* argument) {
  return submit(handle, [=]() -> Result {
    function(argument);
    return kSuccess;
  });
}

CUSIM_API Result cuEventCreate(void** handle, unsigned) {
  Guard guard;
  Device* device = current_device();
  if (const Result error = state_of(device)) return error;
  *handle = new Event{device, nullptr, {}, nullptr};
  return kSuccess;
}

CUSIM_API Result cuEventDestroy_v2(void* handle) {
  Guard guard;
  delete static_cast<Event*>(handle);
  return kSuccess;
}

CUSIM_API Result cuEventRecord(void* handle, void* stream_handle) {
  Guard guard;
  Event* event = event_of(handle);
  Stream* stream = stream_of(stream_handle);
  if (!stream) return kInvalidContext;
  if (stream->device != event->device) return kInvalidHandle;
  if (stream->capture) {
    event->capture = stream->capture;
    event->captured_stream = stream;
    return kSuccess;
  }
  if (const Result error = stream->device->sticky) return error;
  event->captured_stream = nullptr;
  event->capture.reset();
  event->mark = std::make_shared<Mark>(Mark{stream});
  enqueue(*stream, {nullptr, nullptr, event->mark});
  return stream->device->sticky;
}

CUSIM_API Result cuEventSynchronize(void* handle) {
  Guard guard;
  Event* event = event_of(handle);
  if (event->captured_stream) return kCapturedEvent;
  if (event->device->sync_fault.strikes()) return event->device->sync_fault.error;
  if (event->mark) run_until(*event->mark);
  return event->device->sticky;
}

// Runs one operation, so that a loop of queries ends.
CUSIM_API Result cuEventQuery(void* handle) {
  Guard guard;
  Event* event = event_of(handle);
  if (event->captured_stream) return kCapturedEvent;
  if (!event->mark || event->mark->is_reached) return event->device->sticky;
  Stream& stream = *event->mark->stream;
  if (stream.next < stream.queue.size()) run_next(stream);
  if (const Result error = event->device->sticky) return error;
  return event->mark->is_reached ? kSuccess : kNotReady;
}

CUSIM_API Result cuStreamWaitEvent(void* stream_handle, void* handle, unsigned) {
  Guard guard;
  Stream* stream = stream_of(stream_handle);
  if (!stream) return kInvalidContext;
  Event* event = event_of(handle);
  if (event->captured_stream) {
    const std::shared_ptr<Capture> capture = event->capture.lock();
    if (!capture || capture->is_invalid) return kCaptureInvalidated;
    if (stream->capture && stream->capture != capture) return kCaptureMerge;
    if (!stream->capture && stream != capture->origin) {
      stream->capture = capture;
      capture->is_rejoined[stream] = false;
    }
    if (event->captured_stream != stream) capture->is_rejoined[event->captured_stream] = true;
    return kSuccess;
  }
  if (stream->capture) {
    if (!event->mark) return kSuccess;
    stream->capture->is_invalid = true;
    return kCaptureIsolation;
  }
  if (const Result error = stream->device->sticky) return error;
  if (stream->device->wait_fault.strikes()) return stream->device->wait_fault.error;
  if (event->mark && !event->mark->is_reached) enqueue(*stream, {nullptr, event->mark, nullptr});
  return stream->device->sticky;
}

static Result elapsed(float* milliseconds, void* from_handle, void* to_handle) {
  Guard guard;
  const auto* from = event_of(from_handle);
  const auto* to = event_of(to_handle);
  if (!from->mark || !to->mark) return kInvalidHandle;
  if (!from->mark->is_reached || !to->mark->is_reached) return kNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->mark->time - from->mark->time).count();
  return kSuccess;
}
CUSIM_API Result cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  return elapsed(milliseconds, from, to);
}
CUSIM_API Result cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
  return elapsed(milliseconds, from, to);
}
