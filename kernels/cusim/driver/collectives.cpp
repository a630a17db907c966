// Collectives: the ranks' streams meet, their calls are compared, and the results are computed in rank order.
#include "collectives.h"

namespace fake {

namespace {

constexpr const char* kKinds[] = {"all-reduce", "all-gather", "broadcast"};

const char* name_of_type(int type) {
  constexpr const char* kTypes[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                    "uint64", "float16", "float32", "float64", "bfloat16"};
  return type >= 0 && type < 10 ? kTypes[type] : "an unknown type";
}

unsigned char* bytes_at(Pointer pointer) { return reinterpret_cast<unsigned char*>(pointer); }

float load(Pointer from, int type, size_t index) {
  uint32_t bits = 0;
  if (type == kFloat32) {
    memcpy(&bits, bytes_at(from) + 4 * index, 4);
  } else {
    uint16_t half;
    memcpy(&half, bytes_at(from) + 2 * index, 2);
    bits = static_cast<uint32_t>(half) << 16;
  }
  return std::bit_cast<float>(bits);
}

// Rounds to the nearest, ties to even.
void store(Pointer to, int type, size_t index, float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (type == kFloat32) {
    memcpy(bytes_at(to) + 4 * index, &bits, 4);
    return;
  }
  const bool is_nan = value != value;
  const auto half = static_cast<uint16_t>(is_nan ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  memcpy(bytes_at(to) + 2 * index, &half, 2);
}

void add_up(const std::vector<std::shared_ptr<Collective>>& ranks) {
  const Call& first = ranks[0]->call;
  std::vector<float> sums(first.count);
  for (size_t i = 0; i < first.count; ++i) {
    sums[i] = load(first.from, first.type, i);
    for (size_t rank = 1; rank < ranks.size(); ++rank) sums[i] += load(ranks[rank]->call.from, first.type, i);
  }
  for (const auto& rank : ranks)
    for (size_t i = 0; i < first.count; ++i) store(rank->call.to, first.type, i, sums[i]);
}

void copy_parts(const std::vector<std::shared_ptr<Collective>>& ranks) {
  const Call& first = ranks[0]->call;
  std::vector<unsigned char> parts;
  for (const auto& rank : ranks) {
    if (first.kind == Kind::kBroadcast && rank->member->rank != first.detail) continue;
    const unsigned char* part = bytes_at(rank->call.from);
    parts.insert(parts.end(), part, part + first.count * element_bytes(first.type));
  }
  for (const auto& rank : ranks) memcpy(bytes_at(rank->call.to), parts.data(), parts.size());
}

// Whether the memory of a collective has not been freed since its call.
bool has_memory(const Collective& collective) {
  const Call& call = collective.call;
  const size_t bytes = element_bytes(call.type);
  const Device& device = *collective.member->device;
  return is_inside_allocation(device, call.from, call.count * bytes) &&
         is_inside_allocation(device, call.to, result_count(call, collective.member->group->n_ranks) * bytes);
}

void fail_group(Group& group, int code, const std::string& text) {
  if (group.failure) return;
  group.failure = code;
  group.last_failure = fail_with(text);
  note_change();
}

}  // namespace

size_t element_bytes(int type) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type < 10 ? kBytes[type] : 0;
}

size_t result_count(const Call& call, int n_ranks) {
  return call.kind == Kind::kAllGather ? call.count * static_cast<size_t>(n_ranks) : call.count;
}

std::string describe(const Call& call) {
  std::string text = std::string(kKinds[static_cast<int>(call.kind)]) + " of " + std::to_string(call.count) + " " +
                     name_of_type(call.type);
  if (call.kind == Kind::kBroadcast) text += " from rank " + std::to_string(call.detail);
  return text;
}

std::string difference(const Call& one, const Call& other) {
  if (one.kind != other.kind) return "kind";
  if (one.count != other.count) return "count";
  if (one.type != other.type) return "type";
  if (one.detail != other.detail) return one.kind == Kind::kBroadcast ? "root" : "operation";
  return "";
}

void compute(const std::vector<std::shared_ptr<Collective>>& ranks) {
  ranks[0]->call.kind == Kind::kAllReduce ? add_up(ranks) : copy_parts(ranks);
}

bool Collective::arrive() {
  if (is_present) return true;
  Device& device = *member->device;
  if (!is_struck) {
    is_struck = true;
    is_silent = device.silent_collective.strikes();
    if (device.mismatched_collective.strikes() && call.count) --call.count;
    if (device.failed_collective.strikes())
      fail_group(*member->group, device.failed_collective.error,
                 "a collective of rank " + std::to_string(member->rank) + " failed on request");
  }
  std::shared_ptr<Collective>& place = member->group->present[static_cast<size_t>(member->rank)];
  if (is_silent) return false;
  // Another stream of the rank has reached a collective first.
  if (const std::shared_ptr<Collective> earlier = place; earlier && !earlier->attend()) return false;
  if (place) return false;
  place = shared_from_this();
  is_present = true;
  note_change();
  return true;
}

// Compares the call with those of the ranks that are present, and ends the collective if it is the last.
void Collective::agree() {
  Group& group = *member->group;
  for (const auto& other : group.present) {
    if (!other || other.get() == this || group.failure) continue;
    const std::string differs = difference(other->call, call);
    if (differs.empty()) continue;
    const Collective& low = other->member->rank < member->rank ? *other : *this;
    const Collective& high = &low == this ? *other : *this;
    last_mismatch() = "collective " + std::to_string(group.n_done + 1) + " differs in its " + differs + ": rank " +
                      std::to_string(low.member->rank) + " calls " + describe(low.call) + ", rank " +
                      std::to_string(high.member->rank) + " calls " + describe(high.call);
    fail_group(group, kNcclInvalidUsage, last_mismatch());
  }
  if (group.failure || std::count(group.present.begin(), group.present.end(), nullptr)) return;
  for (const auto& rank : group.present)
    if (!has_memory(*rank))
      return fail_group(group, kNcclCuda, "memory of rank " + std::to_string(rank->member->rank) + " was freed");
  compute(group.present);
  ++group.n_done;
  for (auto& rank : group.present) {
    rank->is_over = true;
    rank.reset();
  }
  note_change();
}

bool Collective::attend() {
  if (member->is_aborted) leave();
  if (is_over) return true;
  const bool was_present = is_present;
  if (!arrive()) return false;
  if (!was_present) agree();
  Group& group = *member->group;
  if (is_over || group.failure || runs_others) return is_over;
  runs_others = true;
  for (size_t rank = 0; rank < group.members.size() && !is_over; ++rank) {
    const Member* other = group.members[rank];
    if (!other || group.present[rank]) continue;
    run_to_encounters(*other->device,
                      [&] { return is_over || member->is_aborted || group.failure || group.present[rank]; });
  }
  runs_others = false;
  return is_over;
}

// The result is undefined.
void Collective::leave() {
  if (is_over) return;
  is_over = true;
  if (has_memory(*this))
    memset(bytes_at(call.to), cusim::kPoison, result_count(call, member->group->n_ranks) * element_bytes(call.type));
  std::shared_ptr<Collective>& place = member->group->present[static_cast<size_t>(member->rank)];
  if (place.get() == this) place.reset();
  note_change();
}

}  // namespace fake
