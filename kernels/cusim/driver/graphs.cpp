// Stream capture and graphs.
#include "driver.h"

namespace fake {

std::vector<std::weak_ptr<Capture>>& captures() {
  static auto* all = new std::vector<std::weak_ptr<Capture>>;
  return *all;
}

Result forbid_in_capture(Stream& stream) {
  if (!stream.capture) return kSuccess;
  stream.capture->is_invalid = true;
  return kCaptureUnsupported;
}

Result forbid_while_capturing() {
  constexpr int kGlobal = 0, kThreadLocal = 1;
  Result result = kSuccess;
  for (const std::weak_ptr<Capture>& weak : captures()) {
    const std::shared_ptr<Capture> capture = weak.lock();
    if (!capture) continue;
    const bool is_own = capture->thread == std::this_thread::get_id();
    if (capture->mode == kGlobal || (capture->mode == kThreadLocal && is_own)) {
      capture->is_invalid = true;
      result = kCaptureUnsupported;
    }
  }
  return result;
}

Result forbid_during_captures(const Device& device) {
  Result result = kSuccess;
  for (const std::weak_ptr<Capture>& weak : captures()) {
    const std::shared_ptr<Capture> capture = weak.lock();
    if (!capture || capture->origin->device != &device) continue;
    capture->is_invalid = true;
    result = kCaptureUnsupported;
  }
  return result;
}

namespace {

struct Executable {
  std::shared_ptr<const Graph> graph;
};

// Takes every stream out of the capture.
void leave(Capture& capture) {
  std::erase_if(captures(), [&](const auto& weak) { return weak.expired() || weak.lock().get() == &capture; });
  for (const auto& [stream, unused] : capture.is_rejoined) stream->capture.reset();
  capture.origin->capture.reset();
}

// Runs the tasks of nodes `first` to `end` as one operation, and each meeting as another.
Result enqueue_nodes(const std::shared_ptr<const Graph>& graph, void* stream) {
  const auto is_meeting = [&](size_t node) { return graph->nodes[node].meeting != nullptr; };
  for (size_t first = 0, end; first < graph->nodes.size(); first = end) {
    end = first + 1;
    if (!is_meeting(first))
      while (end < graph->nodes.size() && !is_meeting(end)) ++end;
    const Result result = is_meeting(first) ? submit_meeting(stream, graph->nodes[first].meeting)
                                            : submit(stream, [graph, first, end]() -> Result {
                                                for (size_t node = first; node < end; ++node)
                                                  if (const Result error = graph->nodes[node].task()) return error;
                                                return kSuccess;
                                              });
    if (result) return result;
  }
  return kSuccess;
}

Result instantiate(void** executable, void* graph) {
  Guard guard;
  if (!graph) return kInvalidValue;
  *executable = new Executable{std::make_shared<const Graph>(*static_cast<Graph*>(graph))};
  return kSuccess;
}

}  // namespace

}  // namespace fake

using namespace fake;

CUSIM_API Result cuStreamBeginCapture_v2(void* handle, int mode) {
  Guard guard;
  if (!handle) return kCaptureUnsupported;
  auto* stream = static_cast<Stream*>(handle);
  if (stream->capture) return kInvalidValue;
  if (const Result error = stream->device->sticky) return error;
  stream->capture = std::make_shared<Capture>(Capture{stream, mode, std::this_thread::get_id(), {}, false, {}});
  captures().push_back(stream->capture);
  return kSuccess;
}

CUSIM_API Result cuStreamEndCapture(void* handle, void** graph) {
  Guard guard;
  *graph = nullptr;
  auto* stream = static_cast<Stream*>(handle);
  if (!stream || !stream->capture) return kInvalidValue;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream) return kCaptureUnmatched;
  constexpr int kRelaxed = 2;
  if (capture->mode != kRelaxed && capture->thread != std::this_thread::get_id()) return kCaptureWrongThread;
  leave(*capture);
  note_change();
  if (capture->is_invalid) return kCaptureInvalidated;
  for (const auto& [joined, is_rejoined] : capture->is_rejoined)
    if (joined != stream && !is_rejoined) return kCaptureUnjoined;
  *graph = new Graph(std::move(capture->graph));
  return kSuccess;
}

CUSIM_API Result cuStreamIsCapturing(void* handle, int* status) {
  constexpr int kNone = 0, kActive = 1, kInvalidated = 2;
  Guard guard;
  const Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  *status = !stream->capture ? kNone : stream->capture->is_invalid ? kInvalidated : kActive;
  return kSuccess;
}

CUSIM_API Result cuThreadExchangeStreamCaptureMode(int* mode) {
  *mode = 0;
  return kSuccess;
}

CUSIM_API Result cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  return instantiate(executable, graph);
}
CUSIM_API Result cuGraphInstantiate_v2(void** executable, void* graph, void**, char*, size_t) {
  return instantiate(executable, graph);
}

CUSIM_API Result cuGraphExecUpdate_v2(void* executable, void* graph, void* result_info) {
  Guard guard;
  auto* target = static_cast<Executable*>(executable);
  const auto* source = static_cast<Graph*>(graph);
  if (result_info) memset(result_info, 0, sizeof(int));
  if (target->graph->nodes.size() != source->nodes.size()) {
    constexpr Result kUpdateFailure = 910;
    return kUpdateFailure;
  }
  target->graph = std::make_shared<const Graph>(*source);
  return kSuccess;
}

CUSIM_API Result cuGraphGetNodes(void* graph, void** nodes, size_t* n_nodes) {
  Guard guard;
  if (nodes) return kNotSupported;
  *n_nodes = static_cast<Graph*>(graph)->nodes.size();
  return kSuccess;
}

CUSIM_API Result cuGraphLaunch(void* executable, void* handle) {
  Guard guard;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  Device& device = *stream->device;
  if (const Result error = device.sticky) return error;
  ++device.n_graph_launches;
  if (device.launch_fault.strikes()) return device.launch_fault.error;
  return enqueue_nodes(static_cast<Executable*>(executable)->graph, handle);
}

CUSIM_API Result cuGraphUpload(void*, void* handle) {
  Guard guard;
  Stream* stream = stream_of(handle);
  return stream ? stream->device->sticky : kInvalidContext;
}

CUSIM_API Result cuGraphExecDestroy(void* executable) {
  Guard guard;
  delete static_cast<Executable*>(executable);
  note_change();
  return kSuccess;
}

CUSIM_API Result cuGraphDestroy(void* graph) {
  Guard guard;
  delete static_cast<Graph*>(graph);
  note_change();
  return kSuccess;
}
