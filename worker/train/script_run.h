// The script of a job: the user's program, in a process of its own (worker/api), which computes the
// job's steps. This file has what the worker sends it beside batches, and every wait for it;
// script_step.h has the steps, script_state.h what the script keeps in checkpoints.
#ifndef THERMOCLINE_WORKER_TRAIN_SCRIPT_RUN_H_
#define THERMOCLINE_WORKER_TRAIN_SCRIPT_RUN_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/timing.h"
#include "common/job/resolved_job.h"
#include "proto/job.pb.h"
#include "worker/api/script_channel.h"
#include "worker/api/script_process.h"
#include "worker/train/evaluation.h"
#include "worker/train/model_process.h"

namespace thermocline {

// What the waits for a script mean to the rest of its worker.
struct ScriptHooks {
  // Runs once a second in each wait; an error ends the wait, and is returned.
  std::function<absl::Status()> on_wait = [] { return absl::OkStatus(); };
  // Runs once a second, for some minutes at the most, while the worker waits for what may take a
  // script long: its first step, and its end. is_over: once more when that is there.
  std::function<void(absl::string_view what, absl::Duration elapsed, bool is_over)> on_long_wait =
      [](absl::string_view, absl::Duration, bool) {};
  // Runs once the script needs nothing more of the worker. It may still run.
  std::function<void()> on_done = [] {};
  // Takes a warning for the user: the script's own, or how the script has ended.
  std::function<void(const std::string&)> on_warning = [](const std::string&) {};
};

// Where a script writes its part of the job's trace, if the job has one.
struct ScriptTrace {
  std::string directory;  // "": it writes none.
  uint64_t generation = 0;
};

// Not thread-safe.
//
// Errors of waits for the script are marked as its failure (retry_policy.h) where it raised an
// exception, crashed, ended with a code, or broke the rules. kUnavailable without a mark: another
// process killed it by a signal.
class ScriptRun final : public ModelProcess {
 public:
  // Starts the program of job.worker, which connects while the worker goes on. start_step: the
  // first step that it trains. Errors: those of ScriptProcess::Start.
  static absl::StatusOr<std::unique_ptr<ScriptRun>> Start(const Job& job, const JobTables& tables,
                                                          Step start_step,
                                                          const ScriptTrace& trace = {});
  // Ends the script, and all that it has started.
  ~ScriptRun() override;

  void set_hooks(ScriptHooks hooks) { hooks_ = std::move(hooks); }

  // Waits until the script is connected; returns at once where it is. Errors: kFailedPrecondition
  // (it is of another build, or doesn't connect within kConnectPatience).
  absl::Status Connect();
  // To send batches. REQUIRES: Connect has succeeded.
  ScriptChannel& channel() { return *channel_; }
  // Connects, and waits for a message of this kind. Errors: kFailedPrecondition (the script sends
  // another kind), kResourceExhausted (its state is too large).
  absl::StatusOr<ScriptMessage> Await(tc_message_kind kind);
  // The error of a script that breaks the rules.
  absl::Status Refuse(const std::string& why) const;

  // Connects, and sends what a checkpoint has kept for the script; before the first batch.
  absl::Status SendState(absl::string_view state);
  // Asks the script what it wants kept; Await(TC_STATE) has the answer.
  absl::Status AskForState();

  // The script's own metric of the last evaluation; NaN: it computed none.
  void set_own_metric(double value) { own_metric_ = value; }

  absl::Status EndTraining() override;
  // Waits until the script calls run.evaluate() or needs nothing more. The rows are scored at each
  // call, since it may be with another model: an average of the weights, a part of them.
  absl::StatusOr<bool> WantsScores(bool is_due) override;
  // Takes the script's own metric, if the job has one, and sends the script all figures.
  absl::Status CompleteEvaluation(EvaluationResult* result) override;
  // Tells that the script needs nothing more (ScriptHooks::on_done), and waits for its end, which
  // may take kEndPatience at the most. A script that takes longer, or fails then, is a warning.
  absl::Status AwaitEnd() override;
  // Sends a script that still runs the reason, with which its own call fails.
  void OnError(const absl::Status& error) override;

 private:
  ScriptRun(const Job& job, std::unique_ptr<ScriptProcess> process,
            std::unique_ptr<ScriptChannel> channel, std::string hello);
  absl::Status Tick();
  void BeginLongWait(const char* what, absl::Duration patience);
  void EndLongWait();
  absl::StatusOr<ScriptMessage> Receive();
  absl::Status Send(const tc_header& header, absl::string_view payload, int fd = -1);
  absl::Status SendPhase(const std::string& json);
  absl::Status DescribeEnd();

  const std::unique_ptr<ScriptProcess> process_;
  const std::unique_ptr<ScriptChannel> channel_;
  const std::string hello_;            // The job as JSON.
  const std::string own_metric_name_;  // evaluate.own_metric; "": there is none.
  ScriptHooks hooks_;
  std::optional<Stopwatch> connecting_;  // While the worker waits for the connection.
  // What the worker waits for that may take long; null: nothing.
  const char* long_wait_ = "the script's first step";
  absl::Duration long_patience_;  // How long it doesn't count as a stall.
  std::optional<Stopwatch> since_long_wait_{std::in_place};
  bool is_connected_ = false;
  bool is_trained_ = false;
  bool is_done_ = false;  // The script has said that it needs nothing more.
  double own_metric_ = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_SCRIPT_RUN_H_
