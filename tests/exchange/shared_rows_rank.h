// A worker of a simulated job (shared_rows.h).
#ifndef THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_RANK_H_
#define THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_RANK_H_

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"
#include "tests/exchange/shared_rows_model.h"
#include "worker/cache/cache_planner.h"
#include "worker/exchange/all_to_all.h"
#include "worker/plan/requested_keys.h"

namespace thermocline::shared_rows {

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

}  // namespace thermocline::shared_rows

#endif  // THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_RANK_H_
