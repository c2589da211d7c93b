// Several workers with one cache over all of them, from a seed, in virtual time: the real exchange,
// planners and merge, over streams that break, repeat and delay what they carry, with the smallest
// credit and buffers, ranks that pause and die, and servers that are away for a while. Every row
// that a rank reads, and what the servers hold in the end, is compared with a plain map that is
// trained without a cache.
#ifndef THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_H_
#define THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/thread_pool.h"
#include "common/math/gradient_merge.h"
#include "gtest/gtest.h"
#include "tests/testing/virtual_scheduler.h"
#include "worker/cache/cache_planner.h"
#include "worker/exchange/all_to_all.h"
#include "worker/plan/requested_keys.h"

namespace thermocline::shared_rows {

inline constexpr int64_t kMillisecond = 1'000;
inline constexpr int64_t kPatience = int64_t{120} * 1'000'000;  // Far longer than any run takes.
inline constexpr int kDim = 2;
inline constexpr TableId kTable{3};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix64(seed)) {}

  uint64_t Next() { return Mix64(state_ += 0x9E3779B97F4A7C15ull); }
  uint64_t Below(uint64_t n) { return Next() % n; }  // In [0, n).
  int64_t Between(int64_t low, int64_t high) {       // In [low, high].
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

 private:
  uint64_t state_;
};

enum class Planted {
  kNone,
  kArrivalOrder,       // an owner merges gradients in another order than that of the ranks
  kOwnLast,            // its own come last
  kEvictedEarly,       // a row leaves the cache before the gradients of the step before are in it
  kStaleRow,           // a row is sent as it was before the update of the step before
  kOldGeneration,      // chunks of an earlier generation's streams are taken
  kSharedCredit,       // a block that is held takes the room of all phases
  kLeavesByReceipts,   // a rank leaves once all it has sent has arrived, not before
  kWaitsBeforeItSent,  // a rank waits for gradients before it has sent its own
};

struct Case {
  uint64_t seed = 0;
  uint32_t num_ranks = 2;
  int64_t num_steps = 5;
  int window_steps = 2;
  int32_t capacity = 4;
  int most_keys = 6;
  uint64_t key_space = 20;
  bool is_smallest = true;  // Credit 1 in every phase, and keys of the window alone are posted.
  int64_t write_back_every = 3;
  int breaks = 0;
  bool repeats = false;
  int pauses = 0, deaths = 0, server_absences = 0;
  Planted planted = Planted::kNone;
};

inline Case MakeCase(uint64_t seed) {
  Random random(seed);
  Case made;
  made.seed = seed;
  made.num_ranks = static_cast<uint32_t>(random.Between(2, 5));
  made.num_steps = random.Between(3, 10);
  made.window_steps = static_cast<int>(random.Between(1, 4));
  made.capacity = static_cast<int32_t>(random.Between(0, 10));
  made.most_keys = static_cast<int>(random.Between(1, 8));
  made.key_space = static_cast<uint64_t>(random.Between(2, 30));
  made.is_smallest = random.Chance(0.6);
  made.write_back_every = random.Between(1, 4);
  made.breaks = random.Chance(0.3) ? 0 : static_cast<int>(random.Between(1, 30));
  made.repeats = random.Chance(0.5);
  made.pauses = static_cast<int>(random.Between(0, 3));
  made.deaths = random.Chance(0.5) ? 0 : static_cast<int>(random.Between(1, 2));
  made.server_absences = static_cast<int>(random.Between(0, 2));
  return made;
}

using Row = std::array<float, kDim>;

inline Row InitialRow(Key key) {
  return {static_cast<float>(key % 97) * 0.25f, -static_cast<float>(key % 89)};
}
// A function of what was read, the rank and the step: a wrong row makes a wrong model.
inline Row GradientOf(const Case& of, const Row& row, Key key, uint32_t rank, int64_t step) {
  Random random(Mix64(of.seed ^ Mix64(key)) ^ Mix64(rank * 1000 + static_cast<uint64_t>(step)));
  Row gradient;
  for (int d = 0; d < kDim; ++d) {
    gradient[d] = 0.1f * row[d] + static_cast<float>(random.Between(-1000, 1000)) * 1e-3f;
  }
  return gradient;
}
inline void Update(const Row& gradient, Row* row) {
  for (int d = 0; d < kDim; ++d) (*row)[d] -= 0.3f * gradient[d];
}
// The distinct keys of a rank's slice of a step; maybe none.
inline std::vector<Key> KeysOf(const Case& of, uint32_t rank, int64_t step) {
  Random random(Mix64(of.seed + rank) ^ Mix64(static_cast<uint64_t>(step)));
  std::set<Key> keys;
  for (int64_t i = random.Between(0, of.most_keys); i > 0; --i) {
    keys.insert(Mix64(std::min(random.Below(of.key_space), random.Below(of.key_space))));
  }
  return {keys.begin(), keys.end()};
}

// The model without a cache: every state of a row, by step.
class Model {
 public:
  explicit Model(const Case& of) {
    rows_[-1];
    for (int64_t step = 0; step < of.num_steps; ++step) {
      std::map<Key, Row> rows = rows_[step - 1], sums;
      for (uint32_t rank = 0; rank < of.num_ranks; ++rank) {
        for (const Key key : KeysOf(of, rank, step)) {
          const Row gradient = GradientOf(of, After(key, step - 1), key, rank, step);
          const bool is_first = sums.count(key) == 0;
          MergeGradient(is_first, gradient.data(), kDim, sums[key].data());
        }
      }
      for (const auto& [key, sum] : sums) {
        Update(sum, &rows.emplace(key, InitialRow(key)).first->second);
      }
      rows_[step] = std::move(rows);
    }
  }
  Row After(Key key, int64_t step) const {
    const auto& rows = rows_.at(step);
    const auto found = rows.find(key);
    return found == rows.end() ? InitialRow(key) : found->second;
  }
  const std::map<Key, Row>& RowsAfter(int64_t step) const { return rows_.at(step); }

 private:
  std::map<int64_t, std::map<Key, Row>> rows_;
};

// What a rank pushes in a step: gradients of rows that it does not hold, and whole rows.
struct Push {
  std::vector<std::pair<Key, Row>> gradients, assigned;
};

// All servers as one: a step is applied when every rank has pushed it, in rank order.
class Servers {
 public:
  Servers(const Case& of, VirtualScheduler* scheduler, Random* random)
      : case_(of), scheduler_(*scheduler), random_(*random), pushed_(of.num_ranks, -1) {}

  void TakePush(uint32_t rank, int64_t step, Push push) {
    ASSERT_EQ(step, pushed_[rank] + 1);
    pushed_[rank] = step;
    pending_[step][rank] = std::move(push);
    while (*std::min_element(pushed_.begin(), pushed_.end()) > applied_) ApplyNext();
    std::vector<Waiting> waiting = std::exchange(waiting_, {});
    for (Waiting& each : waiting) When(each.step, std::move(each.then));
  }
  // Runs `then` once `step` is applied and the servers are there.
  void When(int64_t step, std::function<void()> then) {
    if (applied_ < step) return waiting_.push_back({step, std::move(then)});
    const int64_t until_us = std::max<int64_t>(0, away_until_us_ - scheduler_.NowMicros());
    scheduler_.RunAfter(until_us + random_.Between(0, 2 * kMillisecond), std::move(then));
  }
  void GoAway(int64_t for_us) { away_until_us_ = scheduler_.NowMicros() + for_us; }
  Row Read(Key key) const {
    const auto found = rows_.find(key);
    return found == rows_.end() ? InitialRow(key) : found->second;
  }
  // Keeps the rows as a checkpoint; the last one kept is what GoBack returns to.
  void Checkpoint() {
    base_ = rows_;
    base_step_ = applied_;
  }
  int64_t GoBack() {
    rows_ = base_;
    applied_ = base_step_;
    std::fill(pushed_.begin(), pushed_.end(), applied_);
    pending_.clear();
    waiting_.clear();
    return applied_ + 1;
  }
  int64_t applied() const { return applied_; }
  int64_t pushed(uint32_t rank) const { return pushed_[rank]; }
  const std::map<Key, Row>& rows() const { return rows_; }

 private:
  struct Waiting {
    int64_t step;
    std::function<void()> then;
  };

  void ApplyNext() {
    ++applied_;
    std::map<Key, Row> sums;
    for (const auto& [rank, push] : pending_[applied_]) {
      for (const auto& [key, gradient] : push.gradients) {
        const bool is_first = sums.count(key) == 0;
        MergeGradient(is_first, gradient.data(), kDim, sums[key].data());
      }
    }
    for (const auto& [key, sum] : sums) {
      Update(sum, &rows_.emplace(key, InitialRow(key)).first->second);
    }
    for (const auto& [rank, push] : pending_[applied_]) {
      for (const auto& [key, row] : push.assigned) rows_[key] = row;
    }
    pending_.erase(applied_);
    if ((applied_ + 1) % case_.write_back_every == 0) Checkpoint();
  }

  const Case& case_;
  VirtualScheduler& scheduler_;
  Random& random_;
  std::vector<int64_t> pushed_;  // [num_ranks] The last step.
  std::map<int64_t, std::map<uint32_t, Push>> pending_;
  std::vector<Waiting> waiting_;
  std::map<Key, Row> rows_, base_;
  int64_t applied_ = -1, base_step_ = -1;
  int64_t away_until_us_ = 0;
};

class Job;

// A worker of one generation: what its planner and its trainer do, in the order of the real ones.
class Rank {
 public:
  Rank(Job* job, uint32_t rank, uint64_t generation, int64_t first_step);
  ~Rank() { *alive_ = false; }

  AllToAll& machine() { return machine_; }
  void Work();  // Goes on as far as it can.
  void Pause(int64_t for_us);
  bool is_paused() const;
  // Runs `then`, later where the rank is paused, and not at all once it is dead.
  void Deliver(std::function<void()> then);
  void Resume();

  uint32_t rank() const { return rank_; }
  uint64_t generation() const { return generation_; }
  bool has_left() const { return has_left_; }
  int64_t step() const { return step_; }

 private:
  // From the keys of a step on until it is trained.
  struct OfStep {
    std::vector<std::vector<Key>> asked;         // [owners] This rank's.
    std::vector<std::vector<uint32_t>> lookups;  // [owners]
    RequestedKeys requested;                     // Of this rank as the owner.
    std::array<KeyShares, 1> keys;
    CachePlan plan;
    std::vector<std::vector<bool>> is_held;  // [owners][asked]
    int64_t pushed_through = -1;
    int pulls = 0;                 // Under way.
    std::map<Key, Row> pulled;     // Of rows that are not held.
    std::map<Key, Row> gradients;  // Of this rank.
    Push push;
  };
  enum class At {
    kPlans,
    kPulls,
    kRows,
    kGradients,
    kDenseGradients,
    kDenseWeights,
    kPushed,
    kTrained,
    kLeaving
  };

  ExchangeOptions Options(int64_t first_step) const;
  bool WorkOnce();
  bool PostKeys();
  bool AdmitKeys();
  bool PlanNext();
  bool Train();
  bool BeginStep();
  bool SendRows();
  bool UseRows();
  bool Merge();
  void PostGradients();
  void PushStep();
  void PostDense(Phase phase);
  bool UseDense(Phase phase);
  bool Await(Phase phase);
  void Post(BlockId id, std::vector<std::vector<uint8_t>> to_ranks);
  void CarryOut();
  void LimitCredit(exchange_action::SendReceipt* receipt);
  void ScheduleTick();
  void Leave();
  void Wrong(const std::string& what);
  bool Has(Planted planted) const;

  Job& job_;
  const Case& case_;
  const uint32_t rank_;
  const uint64_t generation_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  AllToAll machine_;
  RequestPlanner requests_;
  ThreadPool threads_{1};
  CachePlanner planner_;
  std::map<int64_t, OfStep> steps_;
  int64_t posted_, admitted_, planned_, step_;
  const int64_t first_step_;
  std::optional<int64_t> last_;  // The first step that there is not.
  At at_ = At::kPlans;
  bool gradients_sent_ = false;
  std::vector<Row> slab_;         // [capacity]
  std::vector<Row> slab_before_;  // At the begin of the last update: a planted fault needs it.
  std::map<int32_t, Key> held_;   // By row of the slab.
  std::map<int64_t, std::vector<Row>> evicted_early_;
  std::map<uint32_t, std::array<Step, kNumPhases>> granted_;  // Of kSharedCredit.
  int64_t paused_until_us_ = 0;
  std::vector<std::function<void()>> paused_;  // What came meanwhile, in order.
  bool has_left_ = false;
  int64_t tick_at_us_ = std::numeric_limits<int64_t>::max();
};

// All ranks over their generations, the network between them, and what goes wrong.
class Job {
 public:
  explicit Job(const Case& of);

  // What went wrong first; "": nothing.
  std::string Run();
  int generations() const { return static_cast<int>(generation_); }

  const Case& of() const { return case_; }
  const Model& model() const { return model_; }
  Servers& servers() { return servers_; }
  VirtualScheduler& scheduler() { return scheduler_; }
  Random& random() { return random_; }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  void Carry(Rank* from, const exchange_action::OpenStream& open);
  void Carry(Rank* from, const exchange_action::SendChunk& send);
  void Carry(Rank* from, const exchange_action::SendReceipt& send);
  void BreakStreamsOf(const Rank* rank);

 private:
  struct Stream {
    uint64_t generation = 0;
    bool is_whole = true, delivers_late = false;
    int64_t late_us = 0;  // Then: by so much.
    int64_t forth_us = 0, back_us = 0;
    int frames_left = std::numeric_limits<int>::max();
    int receipts = 0;
  };
  using StreamId = std::tuple<uint64_t, uint32_t, uint32_t, uint64_t>;  // generation, from, to, nth

  void Begin(int64_t first_step);
  void Trouble();
  int64_t Delay() { return random_.Between(0, 3 * kMillisecond); }
  void Deliver(const std::shared_ptr<Stream>& stream, int64_t* direction_us, bool in_order,
               uint32_t to, std::function<void(Rank*)> frame);
  void CountFrame(const StreamId& id);
  void Break(const StreamId& id);
  Rank* Find(uint64_t generation, uint32_t rank) {
    return generation == generation_ ? ranks_[rank].get() : nullptr;
  }

  const Case case_;
  Random random_;
  VirtualScheduler scheduler_;
  const Model model_;
  Servers servers_;
  uint64_t generation_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;  // Null: dead.
  std::map<StreamId, std::shared_ptr<Stream>> streams_;
  int breaks_left_, pauses_left_, deaths_left_, absences_left_;
  std::string wrong_;
};

}  // namespace thermocline::shared_rows

#endif  // THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_H_
