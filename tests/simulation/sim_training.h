// How a simulated worker trains where workers hold rows or dense parameters: the row planner, the
// row source, the dense parameters and the step order of a real worker, over a real session and
// exchange and a CPU device of one thread. The two threads that drive them in a worker
// (StepPipeline, Trainer) are not there: their tasks run as far as they can whenever something has
// come.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_TRAINING_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_TRAINING_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/scheduler.h"
#include "common/base/thread_pool.h"
#include "common/job/resolved_job.h"
#include "common/math/table_spec.h"
#include "tests/simulation/sabotaged_device.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/server_blocks.h"
#include "tests/simulation/sim_model.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_setup.h"
#include "worker/dense/dense_blocks.h"
#include "worker/dense/dense_slices.h"
#include "worker/dense/dense_tensors.h"
#include "worker/dense/step_order.h"
#include "worker/exchange/exchange.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/row_source.h"
#include "worker/rows/step_context.h"
#include "worker/rows/step_tasks.h"
#include "worker/session/ps_session.h"
#include "worker/train/model_step.h"

namespace thermocline {

struct SimTrainingOptions {
  uint64_t seed = 0;      // Decides which rows are written early.
  uint64_t job_seed = 0;  // Decides the dense parameters' first values.
  ExchangeOptions exchange;
  RowSourceOptions rows;
  int contexts = 1;  // Steps that are planned or trained at a time, beyond the window's.
  int64_t num_steps = 0;
  std::vector<DenseTable> dense;
  const SimModel* model = nullptr;  // It makes the gradients; null: the trainee does.
};

// The tables whose rows workers hold.
std::set<TableId> HeldTables(const ExchangeSetup& setup, const std::vector<TableLayout>& tables);
// The options that all workers of a job have in common: without seed, rank, number of ranks and
// servers, and first step.
SimTrainingOptions TrainingOptions(const ExchangeSetup& setup,
                                   const std::vector<TableLayout>& tables,
                                   const std::vector<DenseTable>& dense);

// The model and the data that are trained.
class SimTrainee {
 public:
  virtual ~SimTrainee() = default;

  // What a step looks up: feature f reads table f, where there is no SimModel. The same whenever it
  // is asked.
  virtual std::unique_ptr<Batch> BatchOf(Step step) const = 0;
  // Whether the worker stops after the step: until it goes on, nothing of later ones is fetched.
  virtual bool StopsAfter(Step step) const = 0;
  // All rows of the step are here; Push follows, now or later.
  virtual void OnRows(Step step, const std::vector<RowsOfTable>& rows) = 0;
  // The step is trained, and all of its push is with the session.
  virtual void OnStep(Step step) = 0;
  // Nothing uses a step any more; its push, if it came to it, is acknowledged.
  virtual void OnReleased() = 0;
  virtual void Fail(const std::string& what) = 0;
  virtual void Fail(const absl::Status& error) = 0;
};

class SimTraining {
 public:
  // Borrows all but options and transport. transport: null where it is the only worker.
  SimTraining(const SimTrainingOptions& options, SimTrainee* trainee,
              std::unique_ptr<ExchangeTransport> transport, PsSession* session,
              Scheduler* scheduler, Saboteur* saboteur);
  // REQUIRES: the session has failed, or has nothing under way.
  ~SimTraining();

  void Begin();
  void Work();  // Goes on as far as it can.
  // After OnStep.
  void BeginNextStep() {
    stops_ = stops_ && !fetched_.empty();
    GoTo(At::kBetweenSteps);
  }
  // Pushes the step whose rows OnRows had. updates: of all its keys, and of the dense parameters;
  // a model computes its own.
  void Push(const std::vector<ModelUpdate>& updates, float learning_rate, bool writes_back);
  // REQUIRES: all pushes are acknowledged.
  void Leave();
  bool has_left() const { return has_left_; }
  const Exchange* exchange() const { return exchange_.get(); }  // Null: it is alone.

 private:
  // What the training is at. While there are tasks, they come first.
  enum class At {
    kLoading,  // The dense parameters.
    kBetweenSteps,
    kReceiving,
    kComputing,
    kComputed,
    kPushing,
    kFinishing,
    kTrained,
    kLeaving
  };
  enum class Planning { kNothing, kAdmitting, kPlanning };
  using ContextPtr = std::shared_ptr<StepContext>;

  bool Has(PlantedFault fault) const { return saboteur_.Has(fault); }
  bool HoldsRows() const { return options_.rows.held != HeldSet::kNone; }
  ExchangeHooks Hooks();
  BatchPlanner MakeBatchPlanner() const;
  DenseArenas Arenas();
  RowSourceOptions RowOptions();
  std::vector<uint32_t> PlantedOrder();
  void GoTo(At at);
  bool WorkOnce();
  bool RunTask(StepTasks* tasks);
  bool PlanMore();
  bool Admit();
  ContextPtr TakeContext();
  bool Train();
  void FetchAhead();
  bool Receive();
  bool GiveRows();
  void PutGradients(const std::vector<ModelUpdate>& updates);
  bool ComputeGradients();
  bool StartPush();
  bool FinishPush();
  bool EndStep();
  bool Check(const absl::Status& status);
  bool IsWell() const { return exchange_ == nullptr || exchange_->status().ok(); }
  void LeaveNow();

  const SimTrainingOptions options_;
  SimTrainee& trainee_;
  PsSession& session_;
  Scheduler& scheduler_;
  Saboteur& saboteur_;
  SimRandom random_;
  SabotagedDevice device_;
  ThreadPool threads_{1};
  const std::unique_ptr<Exchange> exchange_;      // Null: it is alone.
  const std::unique_ptr<DeviceModelStep> model_;  // Null: the trainee makes the gradients.
  BatchPlanner batch_planner_;
  const std::unique_ptr<RowPlanner> row_planner_;
  std::vector<std::unique_ptr<StepContext>> contexts_;
  const DenseBlocks blocks_;
  const std::unique_ptr<DenseSlices> slices_;       // Null: it is alone.
  std::vector<float> weights_, state_, gradients_;  // Arenas (dense_blocks.h), without a model.
  const DenseArenas arenas_;
  DenseTensors dense_;
  RowSource rows_;
  StepOrder order_;

  StepTasks planning_, training_;
  std::vector<StepContext*> idle_;
  const std::shared_ptr<bool> is_over_ = std::make_shared<bool>(false);

  Planning planning_at_ = Planning::kNothing;
  Step next_step_;       // The next one to be admitted.
  ContextPtr admitted_;  // The step that is being admitted.
  absl::StatusOr<bool> has_step_ = true;
  bool goes_on_ = false, has_ended_ = false;
  std::deque<ContextPtr> window_;   // Admitted steps.
  std::deque<ContextPtr> ready_;    // Planned steps.
  std::deque<ContextPtr> fetched_;  // Steps whose pulls have begun.

  At at_ = At::kLoading;
  ContextPtr context_;  // The step that is trained.
  Step last_step_;      // The last one that was trained.
  bool stops_ = false;  // The worker stops after the step that was fetched last.
  bool has_failed_ = false, has_left_ = false;
  bool is_working_ = false, works_again_ = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_TRAINING_H_
