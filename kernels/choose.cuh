// The draw of one row by one block: walks the kept tokens by id, or by rank without sorting the vocabulary.
#pragma once
#include "token_weights.cuh"

constexpr uint32_t kChooseThreads = 512;
constexpr uint32_t kMaxSorted = 1024;
static_assert(kChooseThreads == kClasses && 2 * kChooseThreads == kMaxSorted,
              "one class and two sorted tokens a thread");

constexpr uint64_t kBitsOfInfinity = 0x7ff0000000000000ull;
constexpr uint64_t kAllBits = ~0ull;

// Weights in `low..high` (as bits), of which `count` are in the row, and what ranks before them.
struct Range {
  uint64_t low, high;
  double mass_before;
  uint32_t count, count_before;
};

// The first token in rank order with which there are `count` tokens, or more than `mass`.
struct Goal {
  uint32_t count;
  double mass;
};

// A token, and the mass of the tokens up to it in rank order.
struct Located {
  uint32_t token;
  double mass;
};

struct ChooseShared {
  WeightBins bins;
  uint64_t keys[kMaxSorted];  // bits of weights
  double prefix[kMaxSorted];  // sums of weights, or weights by id
  uint32_t tokens[kMaxSorted];
  uint32_t marks[kMarkWords];
  Edits edits;
  Weights weights;
  double sums_of_warps[32];
  uint32_t counts_of_warps[32];
  Range range;
  double before;
  uint32_t any, first, last, n_sorted, token;
};

// Which logits can have weights in a range, generously.
struct Bounds {
  float least, most;

  DEV bool allow(float logit) const { return logit >= least && logit <= most; }
};

struct Chooser {
  const SampleParams& p;
  ChooseShared& shared;
  Filters filters;
  const double* block_sums;
  const ClassSum* classes;
  double draw;

  DEV uint32_t n_blocks() const { return (p.vocab + kSumBlock - 1) / kSumBlock; }

  // The lowest value of the threads that have one, or kNone. All threads call it and get it.
  DEV uint32_t lowest(bool has_value, uint32_t value) {
    return block_min(has_value ? value : kNone, shared.first);
  }

  // What thread 0 computes, for all threads.
  template <class Compute>
  DEV uint32_t of_thread_0(Compute compute) {
    __syncthreads();
    if (threadIdx.x == 0) shared.token = compute();
    __syncthreads();
    return shared.token;
  }

  // ---- by id: no filter but min_p

  DEV double weight_by_id(uint32_t token) const {
    const double weight = weight_of(shared.weights, shared.edits, token);
    return weight >= filters.min_weight ? weight : 0.0;
  }

  DEV uint32_t by_id() {
    const uint32_t per_thread = (n_blocks() + kChooseThreads - 1) / kChooseThreads;
    const uint32_t end = min((threadIdx.x + 1) * per_thread, n_blocks());
    uint32_t block = min(threadIdx.x * per_thread, end);
    double own = 0.0;
#pragma unroll 1
    for (uint32_t b = block; b < end; ++b) own += block_sums[b];
    const Scan<double> mass = block_scan(own, shared.sums_of_warps);
    const double target = mul_rn(draw, mass.total), slack = p.tie_margin * mass.total;
    const bool is_owner = lowest(mass.through > target, threadIdx.x) == threadIdx.x;
    double before = mass.before;
    __syncthreads();
    if (threadIdx.x == 0) shared.last = kNone;
    __syncthreads();
    if (is_owner) {
#pragma unroll 1
      for (; block + 1 < end && before + block_sums[block] <= target; ++block) before += block_sums[block];
      shared.last = block;
      shared.before = before;
    }
    __syncthreads();
    block = shared.last;
    if (block != kNone) {
      const uint32_t token = block * kSumBlock + threadIdx.x;
      if (threadIdx.x < kSumBlock) shared.prefix[threadIdx.x] = token < p.vocab ? weight_by_id(token) : 0.0;
      __syncthreads();
      const uint32_t found = of_thread_0([&] { return walk_block(block, target, slack); });
      if (found != kNone) return found;
    }
    return of_thread_0([&] { return by_id_in_order(); });
  }

  // Returns kNone if a boundary is too near to the target to trust these sums.
  DEV uint32_t walk_block(uint32_t block, double target, double slack) const {
    double before = shared.before;
    bool is_far = block == 0 || target - before > slack;
#pragma unroll 2
    for (uint32_t i = 0; i < kSumBlock; ++i) {
      const double through = before + shared.prefix[i];
      if (through > target) return is_far && through - target > slack ? block * kSumBlock + i : kNone;
      before = through;
      is_far = target - before > slack;
    }
    return kNone;
  }

  // filter.rs to the letter; one thread.
  DEV uint32_t by_id_in_order() const {
    uint32_t last_block = n_blocks() - 1;
#pragma unroll 1
    while (last_block > 0 && !(block_sums[last_block] > 0.0)) --last_block;
    const double target = mul_rn(draw, total_in_order());
    double before = 0.0;
    uint32_t last_token = 0;  // with a weight; sums in another order may end a rounding below the target
#pragma unroll 1
    for (uint32_t block = 0; block < n_blocks(); ++block) {
      const double end = add_rn(before, block_sums[block]);
      double cumulated = before;
      const uint32_t first = block * kSumBlock;
      const uint32_t end_token =
          end > target || block == last_block ? min(first + kSumBlock, p.vocab) : first;
#pragma unroll 1
      for (uint32_t token = first; token < end_token; ++token) {
        const double weight = weight_by_id(token);
        cumulated = add_rn(cumulated, weight);
        if (end > target && cumulated > target) return token;
        last_token = weight > 0.0 ? token : last_token;
      }
      before = end;
    }
    return last_token;
  }

  DEV double total_in_order() const {
    double total = 0.0;
#pragma unroll 1
    for (uint32_t block = 0; block < n_blocks(); ++block) total = add_rn(total, block_sums[block]);
    return total;
  }

  // ---- by rank

  DEV double total_in_parallel() {
    double own = 0.0;
#pragma unroll 1
    for (uint32_t block = threadIdx.x; block < n_blocks(); block += kChooseThreads) own += block_sums[block];
    return block_scan(own, shared.sums_of_warps).total;
  }

  // If all that can be kept is worth sorting, the draw is that of filter.rs. If not, the last kept token is
  // located by ever finer bins, and with the mass up to it the drawn one.
  DEV uint32_t by_rank() {
    const double total = filters.has_nucleus ? total_in_parallel() : double_of(kBitsOfInfinity);
    const double limit = mul_rn(filters.top_p, total);
    // Sums in rank order come out another way, by far less.
    Goal goal{filters.top_k, limit * (1.0 + 1e-9)};
    bool sorts_all = false, is_draw = false;
#pragma unroll 1
    for (uint32_t search = 0;; ++search) {
      const bool is_found = find_class(goal);
      Range range = shared.range;
      if (search == 0) {
        goal.mass = limit;
        sorts_all = range.count_before + range.count <= kMaxSorted;
        if (!sorts_all) continue;
        range = Range{range.low, kAllBits, 0.0, range.count_before + range.count, 0};
      }
      if (!sorts_all && !is_draw && !is_found) {
        // Nothing is dropped.
        goal = Goal{kNone, mul_rn(draw, shared.before)};
        is_draw = true;
        continue;
      }
      const bool weighs = range.high > least_of(kClasses - 2);
      const bool is_sorted = narrow(goal, range, weighs);
      if (sorts_all) return among_sorted(limit, total);
      const Located located = is_sorted ? locate_sorted(goal, range) : locate_equal(goal, range, weighs);
      if (is_draw) return located.token;
      goal = Goal{kNone, mul_rn(draw, located.mass)};
      is_draw = true;
    }
  }

  DEV uint32_t among_sorted(double limit, double total) {
    const uint32_t n = min(shared.n_sorted, filters.top_k);
    const uint32_t found = among_sums(n, limit, total);
    return found != kNone ? found : of_thread_0([&] { return by_rank_in_order(n); });
  }

  // Returns kNone if a boundary is too near to trust these sums.
  DEV uint32_t among_sums(uint32_t n, double limit, double total) {
    const double* through = shared.prefix;
    const uint32_t a = 2 * threadIdx.x, b = a + 1;
    uint32_t kept = n;
    if (filters.has_nucleus) {
      const uint32_t crossing = through[a] > limit ? a : b;
      const bool crosses = (a < n && through[a] > limit) || (b < n && through[b] > limit);
      const uint32_t last = lowest(crosses, crossing);
      kept = last == kNone ? n : last + 1;
      const double slack = p.tie_margin * total;
      if (kept < n && !(through[kept - 1] - limit > slack)) return kNone;
      if (kept > 1 && !(limit - through[kept - 2] > slack)) return kNone;
    }
    const double mass = through[kept - 1], target = mul_rn(draw, mass), slack = p.tie_margin * mass;
    const bool crosses = (a < kept && through[a] > target) || (b < kept && through[b] > target);
    const uint32_t found = lowest(crosses, through[a] > target ? a : b);
    if (found == kNone || !(through[found] - target > slack)) return kNone;
    if (found > 0 && !(target - through[found - 1] > slack)) return kNone;
    return shared.tokens[found];
  }

  // filter.rs to the letter; one thread.
  DEV uint32_t by_rank_in_order(uint32_t n) const {
    const double infinity = double_of(kBitsOfInfinity);
    const double limit = filters.has_nucleus ? mul_rn(filters.top_p, total_in_order()) : infinity;
    double mass = 0.0;
    uint32_t kept = 0;
#pragma unroll 1
    for (; kept < n && mass <= limit; ++kept) mass = add_rn(mass, double_of(shared.keys[kept]));
    const double target = mul_rn(draw, mass);
    double cumulated = 0.0;
#pragma unroll 1
    for (uint32_t i = 0; i + 1 < kept; ++i) {
      cumulated = add_rn(cumulated, double_of(shared.keys[i]));
      if (cumulated > target) return shared.tokens[i];
    }
    return shared.tokens[kept - 1];
  }

  // Finds the class that a goal is in, or the last one that holds a token: shared.range. Returns whether it
  // is in one. shared.before becomes the mass of all classes.
  DEV bool find_class(Goal goal) {
    const uint32_t index = threadIdx.x;
    const ClassSum sum = classes[index];
    // Exponents differ in the last class; all of it is below 2^-44 of the most likely token, at 2^19 tokens.
    const bool is_last = index == kClasses - 1;
    const double mass = is_last ? 0.0 : mass_of(sum.count, sum.high, sum.low, least_of(index));
    // Nothing weighs more than 1.
    const uint64_t high = index == 0 ? kBitsOfOne + 1 : least_of(index - 1);
    return cross(goal, Range{least_of(index), high, 0.0, sum.count, 0}, mass);
  }

  // Of bins in rank order, one a thread, the one that a goal is in: shared.range. If there is none, the last
  // with a token is taken, and false returned. `bin` holds what ranks before all bins. shared.before becomes
  // all their mass.
  DEV bool cross(Goal goal, Range bin, double mass) {
    const Scan<uint32_t> counts = block_scan(bin.count, shared.counts_of_warps);
    const Scan<double> masses = block_scan(mass, shared.sums_of_warps);
    const bool has_count = bin.count_before + counts.through >= goal.count;
    const bool has_mass = bin.mass_before + masses.through > goal.mass;
    const uint32_t first = lowest((has_count || has_mass) && bin.count > 0, threadIdx.x);
    const uint32_t last = lowest(bin.count > 0 && counts.through == counts.total, threadIdx.x);
    if (threadIdx.x == (first != kNone ? first : last)) {
      bin.count_before += counts.before;
      bin.mass_before += masses.before;
      shared.range = bin;
    }
    if (threadIdx.x == 0) shared.before = masses.total;
    __syncthreads();
    return first != kNone;
  }

  DEV Located locate_sorted(const Goal& goal, const Range& range) {
    const uint32_t a = 2 * threadIdx.x, b = a + 1, n = shared.n_sorted;
    const bool is_a = a < n && reaches(goal, range, a);
    const uint32_t found = lowest(is_a || (b < n && reaches(goal, range, b)), is_a ? a : b);
    const uint32_t at = found != kNone ? found : n - 1;
    return Located{shared.tokens[at], range.mass_before + shared.prefix[at]};
  }

  DEV bool reaches(const Goal& goal, const Range& range, uint32_t at) const {
    return range.count_before + at + 1 >= goal.count || range.mass_before + shared.prefix[at] > goal.mass;
  }

  // Cuts a range into 512 bins and goes on with the one that the goal is in, until few enough tokens are left
  // to be sorted. Returns false if more are, all of one weight.
  DEV bool narrow(const Goal& goal, Range& range, bool weighs) {
#pragma unroll 1
    for (;;) {
      const bool sorts = range.count <= kMaxSorted;
      const uint64_t widest = range.high - range.low - 1;
      if (!sorts && widest == 0) return false;
      uint32_t shift = 0;
#pragma unroll 1
      while (widest >> shift >= kClasses) ++shift;
      uint32_t count = 0;
      uint64_t high = 0, low = 0;
      __syncthreads();
      clear_bins(shared.bins);
      clear_sorted();
#pragma unroll 1
      for (uint32_t first = 0; first < p.vocab; first += kMaxChunk) {
        visit(first, range.low, range.high, [&](uint32_t token, uint64_t key) {
          if (sorts)
            push(token, key);
          else
            add_to_bin(shared.bins, (uint32_t)((range.high - 1 - key) >> shift), key);
        });
        __syncthreads();
        // A thread has the bin of its number.
        count += shared.bins.count[threadIdx.x];
        high += high_of(shared.bins, threadIdx.x);
        low += shared.bins.low[threadIdx.x];
        clear_bins(shared.bins);
      }
      if (sorts) break;
      const uint64_t offset = (uint64_t)threadIdx.x << shift;
      Range bin = range;
      bin.high = offset <= widest ? range.high - offset : range.low + 1;
      bin.low = bin.high - range.low > 1ull << shift ? bin.high - (1ull << shift) : range.low;
      bin.count = count;
      cross(goal, bin, weighs ? mass_of(count, high, low, range.low) : 0.0);
      range = shared.range;
    }
    sort();
    sum_sorted(weighs ? 1.0 : 0.0);
    return true;
  }

  // All weights of the range are the same: the goal says how many are before it.
  DEV Located locate_equal(Goal goal, const Range& range, bool weighs) {
    const double weight = weighs ? double_of(range.low) : 0.0;
    uint32_t low = 1, high = min(range.count, goal.count - range.count_before);
#pragma unroll 1
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      const bool is_over = range.mass_before + middle * weight > goal.mass;
      high = is_over ? middle : high;
      low = is_over ? low : middle + 1;
    }
    return Located{token_with(range.low, low), range.mass_before + low * weight};
  }

  // The n-th token, by id, of a weight. At least n have it.
  DEV uint32_t token_with(uint64_t key, uint32_t n) {
    uint32_t seen = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < p.vocab; first += kChooseThreads) {
      const uint32_t token = first + threadIdx.x;
      const uint32_t own = token < p.vocab && bits_of(weight_by_id(token)) == key;
      const Scan<uint32_t> matches = block_scan(own, shared.counts_of_warps);
      if (seen + matches.total >= n) return lowest(own && seen + matches.through == n, token);
      seen += matches.total;
    }
    return p.vocab - 1;
  }

  // Calls `see(token, bits of its weight)` for a tile's tokens that pass min_p and weigh in `low..high`.
  template <class See>
  DEV void visit(uint32_t first, uint64_t low, uint64_t high, See see) {
    const uint64_t least = bits_of(filters.min_weight);
    low = low < least ? least : low;
    const uint32_t end = min(first + kMaxChunk, p.vocab);
    stage_marks(shared.edits, shared.marks, first, end);
    const Bounds bounds = bounds_of(low, high);
    const bool is_plain = !shared.edits.any && reads_by_four(shared.weights.row, p.vocab);
#pragma unroll 1
    for (uint32_t base = first + 4 * threadIdx.x; base < end; base += kVisited * kChooseThreads) {
      uint32_t allowed =
          is_plain ? allowed_by_four(bounds, base, end) : allowed_one_by_one(bounds, base, end);
      // Few pass: they are fetched again, so that their weights need not be computed in sixteen places.
#pragma unroll 1
      for (; allowed; allowed &= allowed - 1) {
        const uint32_t token = visited(base, __ffs((int)allowed) - 1);
        const uint64_t key = bits_of(weight_of(shared.weights, shared.edits, token));
        if (low <= key && key < high && key > 0) see(token, key);
      }
    }
  }

  // A thread visits kVisited tokens at once, four side by side.
  static constexpr uint32_t kVisited = 16;
  static DEV uint32_t visited(uint32_t base, uint32_t i) { return base + i / 4 * 4 * kChooseThreads + i % 4; }

  DEV uint32_t allowed_one_by_one(const Bounds& bounds, uint32_t base, uint32_t end) const {
    uint32_t allowed = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < kVisited; ++i) {
      const uint32_t token = visited(base, i);
      if (token >= end) continue;
      const float logit = shared.weights.row[token];
      allowed |= (uint32_t)bounds.allow(edited(shared.edits, token, logit)) << i;
    }
    return allowed;
  }

  DEV uint32_t allowed_by_four(const Bounds& bounds, uint32_t base, uint32_t end) const {
    float4 loaded[kVisited / 4];
    uint32_t allowed = 0;
#pragma unroll
    for (uint32_t i = 0; i < kVisited / 4; ++i) {
      loaded[i] = load_four(shared.weights.row, visited(base, 4 * i), end);
    }
#pragma unroll
    for (uint32_t i = 0; i < kVisited / 4; ++i) {
      const float4 four = loaded[i];
      uint32_t bits = bounds.allow(four.x) | bounds.allow(four.y) << 1;
      bits |= bounds.allow(four.z) << 2 | bounds.allow(four.w) << 3;
      if (visited(base, 4 * i) < end) allowed |= bits << 4 * i;
    }
    return allowed;
  }

  DEV Bounds bounds_of(uint64_t low, uint64_t high) const {
    const Weights& weights = shared.weights;
    // Bits of a double, over 2^52, are its logarithm and up to 0.0861 less.
    const double unit = weights.temperature * 0.6931471805599453;
    const double least = weights.max + ((double)low * (1.0 / 4503599627370496.0) - 1023.001) * unit;
    const double most = weights.max + ((double)high * (1.0 / 4503599627370496.0) - 1022.913) * unit;
    const double slack = 1e-6 * fabs(weights.max);
    return Bounds{(float)(least - 1e-6 * fabs(least) - slack), (float)(most + 1e-6 * fabs(most) + slack)};
  }

  DEV void clear_sorted() {
    if (threadIdx.x == 0) shared.n_sorted = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < kMaxSorted; i += kChooseThreads) {
      shared.keys[i] = 0;
      shared.tokens[i] = kNone;
    }
  }

  DEV void push(uint32_t token, uint64_t key) {
    const uint32_t at = atomicAdd(&shared.n_sorted, 1u);
    if (at >= kMaxSorted) return;
    shared.keys[at] = key;
    shared.tokens[at] = token;
  }

  // Sorts by weight, equals by id.
  DEV void sort() {
    const uint32_t n = shared.n_sorted;
    uint32_t size = 2;
#pragma unroll 1
    while (size < n) size *= 2;
#pragma unroll 1
    for (uint32_t span = 2; span <= size; span *= 2) {
#pragma unroll 1
      for (uint32_t step = span / 2; step > 0; step /= 2) {
        const uint32_t a = 2 * threadIdx.x - (threadIdx.x & (step - 1));
        if (a + step < size) exchange(a, a + step, (a & span) == 0);
        __syncthreads();
      }
    }
  }

  DEV void exchange(uint32_t a, uint32_t b, bool highest_first) {
    const uint64_t key_a = shared.keys[a], key_b = shared.keys[b];
    const uint32_t token_a = shared.tokens[a], token_b = shared.tokens[b];
    const bool is_b_first = key_b > key_a || (key_b == key_a && token_b < token_a);
    if (is_b_first != highest_first) return;
    shared.keys[a] = key_b;
    shared.keys[b] = key_a;
    shared.tokens[a] = token_b;
    shared.tokens[b] = token_a;
  }

  // Sums of sorted weights, times `factor`, up to each: shared.prefix.
  DEV void sum_sorted(double factor) {
    const uint32_t at = 2 * threadIdx.x;
    const double a = factor * double_of(shared.keys[at]), b = factor * double_of(shared.keys[at + 1]);
    const double before = block_scan(a + b, shared.sums_of_warps).before;
    shared.prefix[at] = before + a;
    shared.prefix[at + 1] = (before + a) + b;
    __syncthreads();
  }
};
