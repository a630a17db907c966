// The part of NCCL's API that the engine uses. `libnccl.so.2` is an empty library that depends on this one.
#include "collectives.h"

namespace fake {

namespace {

struct Id {
  char bytes[128];
};

constexpr int kVersion = 22203, kSum = 0;

// The groups by the number in their id, and the communicators that were not freed.
struct Groups {
  uint64_t n_ids = 0;
  std::map<uint64_t, std::shared_ptr<Group>> by_id;
  std::map<void*, std::shared_ptr<Member>> members;
};

Groups& groups() {
  static auto* all = new Groups;
  return *all;
}

std::shared_ptr<Member> member_of(void* handle) {
  const auto found = groups().members.find(handle);
  return found == groups().members.end() ? nullptr : found->second;
}

int refuse(int code, const std::string& text) {
  fail_with(text);
  return code;
}

int refuse(Member& member, int code, const std::string& text) {
  member.group->last_failure = fail_with(text);
  return code;
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

// Why a rank cannot join; an empty string if it can.
std::string refusal_of(const Group& group, int n_ranks, int rank, const Device* device) {
  if (group.n_ranks != n_ranks)
    return rank_text(rank) + " connects as one of " + std::to_string(n_ranks) + ", others as one of " +
           std::to_string(group.n_ranks);
  if (group.members[static_cast<size_t>(rank)]) return rank_text(rank) + " connects twice";
  for (const Member* other : group.members)
    if (other && other->device == device)
      return "ranks " + std::to_string(std::min(other->rank, rank)) + " and " +
             std::to_string(std::max(other->rank, rank)) + " are both on device " + std::to_string(device->ordinal);
  return "";
}

int connect(void** handle, int n_ranks, const Id& id, int rank) {
  Guard guard;
  Device* device = current_device();
  if (const Result error = state_of(device)) return refuse(kNcclCuda, "the context returns " + std::to_string(error));
  if (forbid_while_capturing()) return refuse(kNcclCuda, rank_text(rank) + " connects during a capture");
  if (n_ranks < 1 || rank < 0 || rank >= n_ranks)
    return refuse(kNcclInvalidArgument, "there is no rank " + std::to_string(rank) + " of " + std::to_string(n_ranks));
  uint64_t number;
  memcpy(&number, id.bytes, sizeof number);
  if (number == 0 || number > groups().n_ids) return refuse(kNcclInvalidArgument, "the group's id was never made");
  const std::shared_ptr<Group> group =
      groups().by_id.try_emplace(number, std::make_shared<Group>(n_ranks)).first->second;
  if (group->refusal.empty()) group->refusal = refusal_of(*group, n_ranks, rank, device);
  note_change();
  if (!group->refusal.empty()) return refuse(kNcclInvalidUsage, group->refusal);
  const auto member = std::make_shared<Member>(Member{group, rank, device});
  group->members[static_cast<size_t>(rank)] = member.get();
  for (;;) {
    const uint64_t n_seen = n_changes();
    if (!group->refusal.empty()) {
      group->members[static_cast<size_t>(rank)] = nullptr;
      return refuse(kNcclInvalidUsage, group->refusal);
    }
    if (!std::count(group->members.begin(), group->members.end(), nullptr)) break;
    await_change(n_seen);
  }
  groups().members[member.get()] = member;
  *handle = member.get();
  return kNcclSuccess;
}

int enqueue(void* handle, const Call& call, void* stream_handle) {
  Guard guard;
  const std::shared_ptr<Member> member = member_of(handle);
  if (!member) return refuse(kNcclInvalidArgument, "the communicator does not exist");
  Device& device = *member->device;
  await_kernel(device);
  auto* stream = static_cast<Stream*>(stream_handle);
  const std::string rank = rank_text(member->rank);
  if (!stream || stream->device != &device)
    return refuse(*member, kNcclInvalidUsage, rank + " is on another device than the stream");
  const size_t bytes = element_bytes(call.type);
  if (!bytes || (call.kind == Kind::kAllReduce && (call.detail != kSum || (call.type != kFloat32 && call.type != kBfloat16))))
    return refuse(*member, kNcclInvalidArgument, rank + " calls " + describe(call) + ", which is not emulated");
  if (call.kind == Kind::kBroadcast && (call.detail < 0 || call.detail >= member->group->n_ranks))
    return refuse(*member, kNcclInvalidArgument, rank + " calls " + describe(call) + ", which does not exist");
  if (!is_inside_allocation(device, call.from, call.count * bytes) ||
      !is_inside_allocation(device, call.to, result_count(call, member->group->n_ranks) * bytes))
    return refuse(*member, kNcclInvalidArgument, rank + " calls " + describe(call) + " outside of its device's memory");
  if (device.refused_collective.strikes())
    return refuse(*member, device.refused_collective.error, rank + " is refused on request");
  // Only a recording keeps the meeting.
  const Result queued = submit_meeting(stream, [member, call, recording = member->recordings] {
    return std::make_shared<Collective>(member, call);
  });
  return queued ? refuse(*member, kNcclCuda, rank + " calls " + describe(call) + ": the driver returns " + std::to_string(queued))
                : kNcclSuccess;
}

void remove(const std::shared_ptr<Member>& member) {
  member->group->members[static_cast<size_t>(member->rank)] = nullptr;
  groups().members.erase(member.get());
  note_change();
}

}  // namespace

static const char* last_failure = "";

const char* fail_with(const std::string& text) {
  static auto* texts = new std::set<std::string>;
  return last_failure = texts->insert(text).first->c_str();
}

std::string& last_mismatch() {
  static auto* text = new std::string;
  return *text;
}

}  // namespace fake

using namespace fake;

CUSIM_API int ncclGetVersion(int* version) {
  *version = kVersion;
  return kNcclSuccess;
}

CUSIM_API int ncclGetUniqueId(Id* id) {
  Guard guard;
  memset(id, 0, sizeof *id);
  const uint64_t number = ++groups().n_ids;
  memcpy(id->bytes, &number, sizeof number);
  return kNcclSuccess;
}

CUSIM_API int ncclCommInitRank(void** communicator, int n_ranks, Id id, int rank) {
  return connect(communicator, n_ranks, id, rank);
}

// NCCL would wait for the graphs that hold its collectives, and for the collectives that run.
CUSIM_API int ncclCommDestroy(void* communicator) {
  Guard guard;
  const std::shared_ptr<Member> member = member_of(communicator);
  if (!member) return refuse(kNcclInvalidArgument, "the communicator does not exist");
  if (forbid_while_capturing()) return refuse(*member, kNcclCuda, rank_text(member->rank) + " is destroyed during a capture");
  if (member->recordings.use_count() > 1)
    return refuse(*member, kNcclInvalidUsage, rank_text(member->rank) + " is destroyed before its graphs");
  if (member->group->present[static_cast<size_t>(member->rank)])
    return refuse(*member, kNcclInvalidUsage, rank_text(member->rank) + " is destroyed during a collective");
  remove(member);
  return kNcclSuccess;
}

// Ends the rank's collectives at once, and returns when no graph holds one.
CUSIM_API int ncclCommAbort(void* communicator) {
  Guard guard;
  const std::shared_ptr<Member> member = member_of(communicator);
  if (!member) return refuse(kNcclInvalidArgument, "the communicator does not exist");
  member->is_aborted = true;
  if (const auto running = member->group->present[static_cast<size_t>(member->rank)]) running->leave();
  note_change();
  for (;;) {
    const uint64_t n_seen = n_changes();
    if (member->recordings.use_count() == 1) break;
    await_change(n_seen);
  }
  remove(member);
  return kNcclSuccess;
}

CUSIM_API int ncclCommGetAsyncError(void* communicator, int* error) {
  Guard guard;
  const std::shared_ptr<Member> member = member_of(communicator);
  if (!member) return refuse(kNcclInvalidArgument, "the communicator does not exist");
  *error = member->group->failure;
  return kNcclSuccess;
}

CUSIM_API int ncclCommCount(void* communicator, int* count) {
  Guard guard;
  const std::shared_ptr<Member> member = member_of(communicator);
  if (!member) return refuse(kNcclInvalidArgument, "the communicator does not exist");
  *count = member->group->n_ranks;
  return kNcclSuccess;
}

CUSIM_API const char* ncclGetErrorString(int code) {
  static const std::map<int, const char*> kTexts = {
      {kNcclSuccess, "no error"},
      {kNcclCuda, "unhandled cuda error"},
      {kNcclSystem, "unhandled system error"},
      {kNcclInternal, "internal error"},
      {kNcclInvalidArgument, "invalid argument"},
      {kNcclInvalidUsage, "invalid usage"},
      {kNcclRemote, "remote process exited or there was a network error"},
      {kNcclInProgress, "NCCL operation in progress"},
  };
  const auto found = kTexts.find(code);
  return found == kTexts.end() ? "unknown result code" : found->second;
}

// Of the communicator's group, so that tests in one process are independent; for null, of the process.
CUSIM_API const char* ncclGetLastError(void* communicator) {
  Guard guard;
  const std::shared_ptr<Member> member = member_of(communicator);
  return member ? member->group->last_failure : last_failure;
}

CUSIM_API int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* communicator,
                            void* stream) {
  return enqueue(communicator, {Kind::kAllReduce, count, type, operation, reinterpret_cast<Pointer>(from),
                                reinterpret_cast<Pointer>(to)}, stream);
}

CUSIM_API int ncclAllGather(const void* from, void* to, size_t count, int type, void* communicator, void* stream) {
  return enqueue(communicator, {Kind::kAllGather, count, type, 0, reinterpret_cast<Pointer>(from),
                                reinterpret_cast<Pointer>(to)}, stream);
}

CUSIM_API int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* communicator,
                            void* stream) {
  return enqueue(communicator, {Kind::kBroadcast, count, type, root, reinterpret_cast<Pointer>(from),
                                reinterpret_cast<Pointer>(to)}, stream);
}
