// One worker of the simulation: for every step it reads random rows, checks them against the model,
// and makes gradients that depend on them. Where workers exchange blocks it trains as a real worker
// does (sim_training.h); else it pulls and pushes in ways of its own through a real PsSession.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_WORKER_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/request_order.h"
#include "common/base/scheduler.h"
#include "common/math/table_spec.h"
#include "tests/simulation/process_scheduler.h"
#include "tests/simulation/sequential_model.h"
#include "tests/simulation/server_blocks.h"
#include "tests/simulation/sim_model.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_schedule.h"
#include "tests/simulation/sim_training.h"
#include "worker/session/ps_session.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/progress.h"

namespace thermocline {

class CheckpointReply;  // proto/parameter_server.proto
class CheckpointRequest;

// Workers that exchange blocks have a gradient of every key.
inline bool MayLackGradients(const std::vector<DenseTable>& dense, uint32_t num_workers) {
  return dense.empty() || num_workers == 1;
}

struct SimWorkerOptions {
  uint64_t seed = 0;       // Decides when it acts.
  uint64_t data_seed = 0;  // With rank and step: decides its keys and gradients.
  WorkerRank rank;
  uint32_t num_servers = 1;
  uint32_t staleness_steps = 0;
  Step start_step{0};
  int64_t num_steps = 10;
  uint64_t checkpoint_every_steps = 0;  // 0: only named ones.
  uint64_t evaluate_every_steps = 0;    // 0: never.
  uint64_t num_keys = 40;               // Distinct keys of a table.
  int keys_per_table = 8;               // Pulled in a step.
  bool awaits_others = false;           // Begins once it knows where the other workers are.
  int64_t compute_us = 0;               // Between a step's rows and its push, at the most.
  std::vector<TableLayout> tables;
  // The tables that every step reads whole. Where there are any, every key that is read gets a
  // gradient, and no rows are written back but those that a worker holds.
  std::vector<DenseTable> dense;
  bool lacks_gradients = false;  // Some keys were looked up without one.
  // It decides what a step reads, and makes the gradients. Null: both are random.
  const SimModel* model = nullptr;
  // The tables whose rows workers hold: servers have them whole after steps that write back.
  std::set<TableId> held;
  // Joins the other workers; `wake` is to run when something has come from them. Null: they
  // exchange nothing.
  std::function<std::unique_ptr<SimTraining>(SimTrainee* worker, PsSession*, Scheduler*,
                                             std::function<void()> wake)>
      join;
  // Hot and cold batches: the schedule, how it stands at start_step (none: at its beginning), and
  // who hears of every stretch. Null: there are none.
  const SimSchedule* schedule = nullptr;
  std::optional<ScheduleState> schedule_state;
  std::function<void(const ScheduleState&)> on_stretch;
};

class SimWorker : private SimTrainee {
 public:
  // Ends the worker, which can't go on because of `why`: the loss of a server.
  using OnLost = std::function<void(SimWorker*, const absl::Status& why)>;

  // Rank 0 has scored the model after its step; `next`: the stretch that follows, where one ended.
  using OnScored =
      std::function<void(Step step, double score, const std::optional<ScheduleState>& next)>;

  // Borrows all but the options and the transport. What goes wrong is appended to `failures`.
  SimWorker(const SimWorkerOptions& options, const PsSessionOptions& session_options,
            OnLost on_lost, OnScored on_scored, std::unique_ptr<Transport> transport,
            Scheduler* scheduler, SequentialModel* model, std::vector<std::string>* failures);
  // The process dies, if it hasn't ended.
  ~SimWorker() override;

  void Start();
  void Introduce();
  absl::StatusOr<CheckpointReply> Checkpoint(const CheckpointRequest& request);
  // The decision about the evaluation, or the change, at `step`; a later one counts for earlier
  // steps, too.
  void Decide(Step step, bool stop, const std::string& data_place);
  // All steps are pushed and acknowledged.
  bool done() const {
    return finished_ && pushes_outstanding_ == 0 && reads_outstanding_ == 0 &&
           (training_ == nullptr || training_->has_left());
  }
  Step last_step() const { return step_; }  // REQUIRES: done()
  // Whether a worker that holds rows would write them back with the push of `step`.
  bool WritesBackAt(Step step) const;
  WorkerRank rank() const { return options_.rank; }
  // What it waits for.
  WorkerStats Stats() const { return progress_.Stats(); }
  const PsSession& session() const { return session_; }
  uint64_t pushes() const { return pushes_; }  // Begun.
  // Steps of the others that were missing in rows it computed with, at the most.
  uint64_t max_staleness() const { return max_staleness_; }

 private:
  // SimTrainee:
  std::unique_ptr<Batch> BatchOf(Step step) const override;
  bool StopsAfter(Step step) const override { return EvaluatesAfter(step) || ChangesAfter(step); }
  void OnRows(Step step, const std::vector<RowsOfTable>& rows) override;
  void OnStep(Step) override { NextStep(); }
  void OnReleased() override;
  void Fail(const std::string& what) override;
  void Fail(const absl::Status& error) override;

  void Begin();
  void BeginStep();
  void WatchWaits();
  void PullStep();
  void OnPulled(const std::vector<RowsOfTable>& rows, const absl::Status& status,
                Step complete_through);
  void ReadAside();
  bool EvaluatesAfter(Step step) const;
  bool ChangesAfter(Step step) const;
  void Advance();
  void Evaluate();
  void Score();
  void GoOn();
  void EndTraining();
  void Leave();
  void Compute(const std::vector<RowsOfTable>& rows);
  void CheckRows(const std::vector<RowsOfTable>& rows, Step from, Step to);
  SimRandom DataRandom(Step step, TableId table, Key key) const;
  std::vector<Key> KeysOf(Step step, const TableLayout& table) const;
  uint32_t LookupsOf(Step step, TableId table, Key key) const;
  std::vector<Key> ChooseKeys(SimRandom* random) const;
  std::vector<ModelUpdate> MakeUpdates(const std::vector<RowsOfTable>& rows) const;
  void PushStep(const std::vector<ModelUpdate>& updates);
  void PushToServers(const std::vector<ModelUpdate>& updates, float learning_rate);
  PsSessionOptions WithFailures(PsSessionOptions session);
  void Wake();
  void Release(Step step, size_t wave, size_t num_waves, bool pull_after);
  void NextStep();
  bool IsDense(TableId table) const;

  const SimWorkerOptions options_;
  const OnLost on_lost_;
  const OnScored on_scored_;
  const std::shared_ptr<bool> ended_ = std::make_shared<bool>(false);
  ProcessScheduler scheduler_;
  SequentialModel* const model_;
  std::vector<std::string>* const failures_;
  SimRandom random_;
  const std::unique_ptr<Transport> transport_;
  PsSession session_;
  const std::unique_ptr<SimModelReference> reference_;  // Null: gradients are random.
  std::unique_ptr<SimTraining> training_;  // Null: it exchanges nothing, or has not begun.
  WorkerProgress progress_;
  NamedCheckpoints checkpoints_;
  std::set<Step> named_;  // The cuts that were named when their step was pushed.
  RequestOrder order_;

  Step step_;
  bool is_started_ = false, is_introduced_ = false;
  bool waits_for_decision_ = false;
  Step decided_ = kNoStep;
  bool stop_ = false;
  std::string decided_place_;
  std::optional<SimStretch> stretch_;
  bool finished_ = false;
  uint64_t pushes_ = 0;
  uint64_t max_staleness_ = 0;
  int pushes_outstanding_ = 0;  // How many pushes of PushToServers are not acknowledged.
  int reads_outstanding_ = 0;
  bool is_woken_ = false, is_leaving_ = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_WORKER_H_
