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

void run_next(Stream& stream) {
  Operation operation = std::move(stream.queue[stream.next++]);
  if (stream.next == stream.queue.size()) {
    stream.queue.clear();
    stream.next = 0;
  }
  if (operation.waits_for) run_until(*operation.waits_for);
  Result& sticky = stream.device->sticky;
  if (operation.task && sticky == kSuccess) sticky = operation.task();
  if (operation.reaches) {
    operation.reaches->is_reached = true;
    operation.reaches->time = std::chrono::steady_clock::now();
  }
}

// Whether the stream's next operation is not a kernel, and can run now.
bool runs_without_kernel(const Stream& stream) {
  if (stream.next == stream.queue.size()) return false;
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
  for (;;) {
    await_kernel(*mark.stream->device);
    if (mark.is_reached || mark.stream->next == mark.stream->queue.size()) return;
    run_next(*mark.stream);
  }
}

Result run_all(Stream& stream) {
  for (;;) {
    await_kernel(*stream.device);
    if (stream.next == stream.queue.size()) break;
    run_next(stream);
  }
  return stream.device->sticky;
}

Result run_all(Device& device) {
  for (Stream* stream : device.streams) run_all(*stream);
  return device.sticky;
}

Result submit(void* handle, Task task, bool is_copy) {
  Guard guard;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  if (stream->capture) {
    if (stream->capture->is_invalid) return kCaptureInvalidated;
    stream->capture->graph.tasks.push_back(std::move(task));
    if (stream != stream->capture->origin) stream->capture->is_rejoined[stream] = false;
    return kSuccess;
  }
  if (const Result error = stream->device->sticky) return error;
  enqueue(*stream, {std::move(task), nullptr, nullptr, is_copy});
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
