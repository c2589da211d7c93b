// Carries out what the evaluations of an epoch lead to, on a thread of its own: the checkpoint of a
// new best model is made, and then every worker hears whether training goes on. Workers wait for
// that at the evaluation's step, so no later step is pushed meanwhile.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_EVALUATION_LOOP_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_EVALUATION_LOOP_H_

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/net/control_client.h"
#include "deploy/controller/checkpoint_keeper.h"
#include "deploy/controller/epoch_start.h"
#include "deploy/controller/evaluation_board.h"
#include "proto/job.pb.h"

namespace thermocline {

class EvaluationLoop {
 public:
  // REQUIRES: job.has_evaluate(); `job` outlives it. `before`: as EvaluationBoard takes it.
  EvaluationLoop(const Job& job, const EpochStart& start, const EvaluationState& before)
      : job_(job), epoch_(start.epoch), board_(job.evaluate(), start.epoch, before) {}
  ~EvaluationLoop() { Stop(); }

  // Begins to decide. `worker_addresses`: by rank; "": it has ended already. `keeper`: of the best
  // model's checkpoints; null: there are none. It outlives Stop. Errors: those of connecting.
  absl::Status Begin(const std::vector<std::string>& worker_addresses, CheckpointKeeper* keeper);
  // No worker hears anything any more. Waits for a call under way.
  void Stop();

  // Thread-safe, also before Begin: reports wait.
  void Take(const EvaluationReport& report);
  std::vector<EvaluationEvent> TakeEvents();
  const EvaluationBoard& board() const { return board_; }

 private:
  void Run();
  absl::Status KeepBest(Step step);
  void Tell(const EvaluationDecision& decision);
  bool WaitForEnd(absl::Duration at_most);

  const Job& job_;
  const uint64_t epoch_;
  EvaluationBoard board_;
  CheckpointKeeper* keeper_ = nullptr;
  std::vector<std::unique_ptr<ControlClient>> workers_;  // null: has ended

  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<EvaluationReport> reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<EvaluationEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_EVALUATION_LOOP_H_
