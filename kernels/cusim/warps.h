// Collectives of a warp's lanes (`meet`): the basis of shuffles, votes, ldmatrix and mma.
#pragma once
#include <cstring>

#include "fibers.h"

namespace cusim {

// The operations of collectives. It is an error if lanes of one mask are in different operations.
enum Operation : unsigned {
  kSyncWarp = 1,
  kShuffle,
  kShuffleXor,
  kShuffleDown,
  kShuffleUp,
  kBallot,
  kMatch,
  kReduce,
  kLoadMatrix,  // and the 8 after it
  kMma = 32,
};

using Values = const unsigned char (*)[64];

template <class T> T value_of(Values values, unsigned lane) {
  T value;
  memcpy(&value, values[lane], sizeof value);
  return value;
}

// Replaces ~0u by the lanes that exist, also in a warp that is not full.
inline unsigned existing(unsigned mask) { return mask == ~0u ? cur->warp->full.mask : mask; }

inline LaneGroup& group_of(unsigned mask) {
  Warp& warp = *cur->warp;
  if (mask == warp.full.mask) return warp.full;
  for (LaneGroup* group : warp.partial)
    if (group->mask == mask) return *group;
  warp.partial.push_back(new LaneGroup);
  warp.partial.back()->mask = mask;
  return *warp.partial.back();
}

// Exchanges one value per lane of the mask. The last lane to arrive calls `last` on the values; then all lanes return.
template <class T, class Last>
Values meet(unsigned mask, const T& value, unsigned operation, const char* name, Last&& last) {
  static_assert(sizeof(T) <= 64);
  if (!(mask >> cur->lane & 1)) fail(std::string(name) + ": the calling lane is not in the mask");
  LaneGroup& group = group_of(mask);
  if (group.arrived == 0) group.operation = operation;
  else if (group.operation != operation) fail(std::string(name) + ": lanes of one mask meet in different operations");
  unsigned char(*values)[64] = group.values[group.generation & 1];
  memcpy(values[cur->lane], &value, sizeof(T));
  group.arrived |= 1u << cur->lane;
  if (group.arrived == group.mask) {
    last(values);
    group.arrived = 0;
    ++group.generation;
    blk->ready[cur->thread / 32] |= std::exchange(group.waiting, 0);
  } else {
    wait_among(group.waiting, name);
  }
  return values;
}

template <class T> Values meet(unsigned mask, const T& value, unsigned operation, const char* name) {
  return meet(mask, value, operation, name, [](unsigned char (*)[64]) {});
}

template <class T> T shuffle(unsigned mask, T value, int from, unsigned operation, const char* name) {
  const unsigned lanes = existing(mask);
  const Values values = meet(lanes, value, operation, name);
  return from >= 0 && from < 32 && (lanes >> from & 1) ? value_of<T>(values, from) : value;
}

inline int lane() { return static_cast<int>(cur->lane); }

// The first lane of the lane's segment of `width` lanes.
inline int segment_start(int lane, int width) { return lane & ~(width - 1); }

}  // namespace cusim

inline void __syncwarp(unsigned mask = ~0u) {
  cusim::meet(cusim::existing(mask), 0, cusim::kSyncWarp, "__syncwarp");
}

template <class T> T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int source = cusim::segment_start(cusim::lane(), width) | (from & (width - 1));
  return cusim::shuffle(mask, value, source, cusim::kShuffle, "__shfl_sync");
}

template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int own = cusim::lane(), source = own ^ bits;
  const bool inside = cusim::segment_start(source, width) <= cusim::segment_start(own, width);
  return cusim::shuffle(mask, value, inside ? source : own, cusim::kShuffleXor, "__shfl_xor_sync");
}

template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const int own = cusim::lane(), source = own + static_cast<int>(distance);
  const bool inside = cusim::segment_start(source, width) == cusim::segment_start(own, width);
  return cusim::shuffle(mask, value, inside ? source : own, cusim::kShuffleDown, "__shfl_down_sync");
}

template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const int own = cusim::lane(), source = own - static_cast<int>(distance);
  const bool inside = source >= cusim::segment_start(own, width);
  return cusim::shuffle(mask, value, inside ? source : own, cusim::kShuffleUp, "__shfl_up_sync");
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const unsigned lanes = cusim::existing(mask);
  const cusim::Values values = cusim::meet(lanes, predicate, cusim::kBallot, "__ballot_sync");
  unsigned result = 0;
  for (unsigned i = 0; i < 32; ++i)
    if ((lanes >> i & 1) && cusim::value_of<int>(values, i)) result |= 1u << i;
  return result;
}

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == cusim::existing(mask); }

template <class T> unsigned __match_any_sync(unsigned mask, T value) {
  const unsigned lanes = cusim::existing(mask);
  const cusim::Values values = cusim::meet(lanes, value, cusim::kMatch, "__match_any_sync");
  unsigned result = 0;
  for (unsigned i = 0; i < 32; ++i)
    if ((lanes >> i & 1) && memcmp(values[i], &value, sizeof value) == 0) result |= 1u << i;
  return result;
}

namespace cusim {
template <class T, class Fold> T reduce(unsigned mask, T value, const char* name, Fold&& fold) {
  const unsigned lanes = existing(mask);
  const Values values = meet(lanes, value, kReduce, name);
  T result = value;
  for (unsigned i = 0; i < 32; ++i)
    if ((lanes >> i & 1) && i != cur->lane) result = fold(result, value_of<T>(values, i));
  return result;
}
}  // namespace cusim

template <class T> T __reduce_add_sync(unsigned mask, T value) {
  return cusim::reduce(mask, value, "__reduce_add_sync", [](T a, T b) { return T(a + b); });
}
template <class T> T __reduce_min_sync(unsigned mask, T value) {
  return cusim::reduce(mask, value, "__reduce_min_sync", [](T a, T b) { return b < a ? b : a; });
}
template <class T> T __reduce_max_sync(unsigned mask, T value) {
  return cusim::reduce(mask, value, "__reduce_max_sync", [](T a, T b) { return a < b ? b : a; });
}
template <class T> T __reduce_or_sync(unsigned mask, T value) {
  return cusim::reduce(mask, value, "__reduce_or_sync", [](T a, T b) { return T(a | b); });
}
