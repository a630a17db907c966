// Groups of ranks and their collectives.
#pragma once
#include "driver.h"

namespace fake {

// ncclResult_t, with NCCL's numbers.
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclCuda = 1,
  kNcclSystem = 2,
  kNcclInternal = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemote = 6,
  kNcclInProgress = 7,
};

// ncclDataType_t, as far as sums know it.
constexpr int kFloat32 = 7, kBfloat16 = 9;

enum class Kind { kAllReduce, kAllGather, kBroadcast };

struct Call {
  Kind kind;
  size_t count;  // elements of a rank's part
  int type;
  int detail;  // the operation of a sum, or the root of a broadcast
  Pointer from, to;
};

// 0 for a type that the emulator does not know.
size_t element_bytes(int type);
size_t result_count(const Call& call, int n_ranks);
std::string describe(const Call& call);
// Names the first property in which the calls differ; an empty string if they agree.
std::string difference(const Call& one, const Call& other);

struct Collective;
struct Member;

struct Group {
  explicit Group(int n_ranks_) : n_ranks(n_ranks_), members(n_ranks_), present(n_ranks_) {}
  int n_ranks;
  std::vector<Member*> members;                      // by rank; null until a rank connects
  std::vector<std::shared_ptr<Collective>> present;  // by rank: the collective that the rank has reached
  uint64_t n_done = 0;
  int failure = kNcclSuccess;  // after it no collective ends, until it is aborted
  std::string refusal;         // why the ranks cannot connect
  const char* last_failure = "";
};

// A communicator: a rank's end of a group.
struct Member {
  std::shared_ptr<Group> group;
  int rank;
  Device* device;
  bool is_aborted = false;
  // Copied to each recorded collective: its use count less one is the number of those that graphs hold.
  std::shared_ptr<int> recordings = std::make_shared<int>(0);
};

// A collective of a rank that its stream runs.
struct Collective : Encounter, std::enable_shared_from_this<Collective> {
  Collective(std::shared_ptr<Member> member_, const Call& call_) : member(std::move(member_)), call(call_) {}
  bool attend() override;
  void leave() override;
  // Takes its place in the group; false if another stream's collective of the rank is there, or the rank is silent.
  bool arrive();
  void agree();

  std::shared_ptr<Member> member;
  Call call;
  bool is_present = false, is_over = false, is_silent = false, is_struck = false;
  bool runs_others = false;
};

// Computes the results of all ranks, which agree. Sums are in f32 and in rank order, and rounded once.
void compute(const std::vector<std::shared_ptr<Collective>>& ranks);

// Keeps the text of the process's last failure, as long as the process lives.
const char* fail_with(const std::string& text);
// The last text about ranks whose calls differ, or an empty string.
std::string& last_mismatch();

}  // namespace fake
