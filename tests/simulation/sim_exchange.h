// A simulated worker's part in the exchange between workers: what a worker's planner and trainer do
// (worker/source: cache_stage, shared_source, dense_parameters), in their order, over the real
// exchange, planners, merge and dense slices. But nothing waits: it goes on as far as it can
// whenever something has come.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_EXCHANGE_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/scheduler.h"
#include "common/base/thread_pool.h"
#include "common/job/resolved_job.h"
#include "common/math/table_spec.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/server_blocks.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_setup.h"
#include "worker/dense/dense_slices.h"
#include "worker/exchange/exchange.h"
#include "worker/plan/requested_keys.h"
#include "worker/rows/cache_planner.h"
#include "worker/rows/held_rows.h"
#include "worker/session/ps_session.h"

namespace thermocline {

struct SimExchangeOptions {
  uint64_t seed = 0;  // Which rows it writes early.
  ExchangeOptions exchange;
  uint32_t num_servers = 1;
  int64_t num_steps = 0;
  int keys_ahead = 0;  // Steps beyond the window whose keys are sent.
  // Tables whose rows owners hold, with a cache of so many rows each, ...
  std::vector<TableLayout> shared;
  int32_t capacity = 0;
  // ... and those that every rank pulls and pushes itself.
  std::vector<TableLayout> others;
  std::vector<DenseTable> dense;
};

// The tables whose rows workers hold.
std::set<TableId> HeldTables(const ExchangeSetup& setup, const std::vector<TableLayout>& tables);
// Of a job, but for what differs by worker: seed, rank, numbers of ranks and servers, first step.
SimExchangeOptions OptionsOf(const ExchangeSetup& setup, const std::vector<TableLayout>& tables,
                             const std::vector<DenseTable>& dense);

// The worker, as its part in the exchange sees it.
class SimTrainee {
 public:
  virtual ~SimTrainee() = default;

  // What a step reads of a table, and for how many lookups. The same whenever it is asked.
  virtual std::vector<Key> KeysOf(Step step, const TableLayout& table) const = 0;
  virtual uint32_t LookupsOf(Step step, TableId table, Key key) const = 0;
  // All rows of the step are here; Push follows, now or later.
  virtual void OnRows(Step step, const std::vector<RowsOfTable>& rows) = 0;
  // The step is trained, and all of its push is with the session.
  virtual void OnStep(Step step) = 0;
  virtual void OnAcknowledged(const absl::Status& status) = 0;
  virtual void Fail(const std::string& what) = 0;
  virtual void Fail(const absl::Status& error) = 0;
};

class SimExchange {
 public:
  // Borrows all but options and transport.
  SimExchange(const SimExchangeOptions& options, SimTrainee* trainee,
              std::unique_ptr<ExchangeTransport> transport, PsSession* session,
              Scheduler* scheduler, Saboteur* saboteur);

  void Begin();
  void Work();  // Goes on as far as it can.
  // After OnStep.
  void BeginNextStep() { GoTo(At::kPlans); }
  // Of the step whose rows OnRows had.
  void Push(const std::vector<ModelUpdate>& updates, float learning_rate, bool writes_back);
  // REQUIRES: all pushes are acknowledged.
  void Leave();
  bool has_left() const { return has_left_; }
  const Exchange* exchange() const { return &exchange_; }

 private:
  using TableKey = std::pair<TableId, Key>;
  enum class At {
    kLoading,  // The dense parameters.
    kPlans,
    kPulls,
    kRows,
    kOwedWeights,  // Of the step before.
    kComputing,
    kDenseGradients,
    kDenseWeights,
    kGradients,
    kTrained,
    kLeaving
  };
  struct OfTable {
    std::vector<std::vector<Key>> asked;         // [owners] This rank's.
    std::vector<std::vector<uint32_t>> lookups;  // [owners]
    std::vector<std::vector<bool>> is_held;      // [owners][asked]
    // Of this rank as the owner; once the step is planned, of the keys that it holds.
    RequestedKeys requested;
    std::vector<int32_t> held_rows;           // [requested] of the slab
    std::vector<std::vector<float>> evicted;  // For kEvictedEarly.
  };
  // From the keys of a step on until it is trained.
  struct OfStep {
    std::vector<OfTable> tables;  // [shared]
    std::vector<KeyShares> keys;  // [shared]
    CachePlan plan;
    ServerBlocks loaded, bypassed, latest;  // Pulled.
    std::map<TableKey, std::vector<float>> rows, gradients;
    float learning_rate = 0;
    bool writes_back = false;
  };
  struct OfPush;  // What is kept until a push is acknowledged.
  struct Slab {
    Slab(int32_t capacity, int width)
        : rows(size_t{1} * capacity * width), held(capacity), width(width) {}
    float* row(int32_t i) { return rows.data() + size_t{1} * i * width; }

    std::vector<float> rows, before;  // [capacity, width] `before` the last update.
    HeldRows held;
    int width;
  };

  bool shares_rows() const { return !options_.shared.empty(); }
  bool Has(PlantedFault fault) const { return saboteur_.Has(fault); }
  ExchangeHooks Hooks();
  void GoTo(At at);
  bool WorkOnce();
  bool PostKeys();
  bool AdmitKeys();
  bool PlanNext();
  bool Train();
  bool BeginStep();
  bool TakePlans(OfStep* of, Step* through);
  void Pull(ServerBlocks* blocks, bool with_state, Step after);
  bool SendRows();
  bool TakeRows();
  bool GiveRows();
  void PostGradients();
  void ChooseWrittenRows(const OfStep& of);
  bool UpdateSlice();
  bool SettleWeights();
  bool Merge();
  std::vector<float> MergeTable(const RequestedKeys& requested, int dim,
                                const std::vector<absl::Span<const float>>& gradients);
  void FillWrittenRows();
  void FinishPush();
  void Post(BlockId id, std::vector<std::vector<uint8_t>> to_ranks);
  bool Check(const absl::Status& status);
  void LeaveNow();

  const SimExchangeOptions options_;
  const uint32_t num_ranks_;
  SimTrainee& trainee_;
  PsSession& session_;
  Scheduler& scheduler_;
  Saboteur& saboteur_;
  SimRandom random_;
  Exchange exchange_;
  RequestPlanner requests_;
  ThreadPool threads_{1};
  CachePlanner planner_;
  DenseBlocks blocks_;
  DenseSlices slices_;
  std::map<Step, OfStep> steps_;
  Step posted_, admitted_, planned_, step_;  // The next one.
  std::optional<Step> end_;                  // Before which the data end.
  At at_ = At::kLoading;
  int pulls_ = 0;                                         // Under way.
  std::vector<Slab> slabs_;                               // [shared]
  std::vector<float> weights_, state_, dense_gradients_;  // Arenas (dense_blocks.h).
  std::shared_ptr<OfPush> push_;
  std::optional<Step> owed_weights_;
  bool has_left_ = false, is_working_ = false, works_again_ = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_EXCHANGE_H_
