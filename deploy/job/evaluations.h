// Decides what follows from a job's evaluations: which model is the best so far, whether training
// ends, and where it goes on in data whose order depends on them. Worker 0 reports.
#ifndef THERMOCLINE_DEPLOY_JOB_EVALUATIONS_H_
#define THERMOCLINE_DEPLOY_JOB_EVALUATIONS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "deploy/job/generation.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

// Worker 0's report after `step`: the scores of the held-out rows, or a change between hot and cold
// batches, or both.
struct EvaluationReport {
  Step step = kNoStep;
  uint32_t pass = 0;  // The pass of the step, from 1.
  // evaluate.every_steps or every_passes asks for the evaluation, so it counts for the patience.
  // The one after the last step alone does not.
  bool is_scheduled = false;
  // False: rows were scored for the order of the data alone, which can't be the best and isn't
  // counted.
  bool is_evaluation = true;
  double auc = 0;  // NaN: the rows have one class only.
  double logloss = 0;
  // Where the model has several tasks, those that don't decide.
  struct Task {
    std::string label;
    double auc = 0, logloss = 0;
  };
  std::vector<Task> other_tasks;
  double own_metric = 0;      // The script's (Evaluate.own_metric). NaN: it reported none.
  double seconds = 0;         // The time of the evaluation.
  double change_seconds = 0;  // The time of scoring for the order of the data.
  // Where the data go on, if what comes next in them depends on this report; else empty.
  std::string data_place;
};

// Not thread-safe.
class EvaluationBoard {
 public:
  // `before`: the state at the checkpoint that the generation begins with. Its evaluations don't
  // count if the metric, or the script's own one, or the task that decides, differs now.
  EvaluationBoard(const Evaluate& policy, const GenerationStart& start,
                  const EvaluationState& before);

  struct Decision {
    bool is_best = false;
    bool stops = false;      // Training ends with the step.
    std::string data_place;  // Where the data go on (EvaluationReport).
  };
  // Takes a report. A report of a step that was taken already (by the generation before, up to its
  // checkpoint) changes nothing and gets the same decision again.
  Decision Take(const EvaluationReport& report);

  // Takes the name of the checkpoint of the best step, or the error if it can't be made. After an
  // error the best checkpoint is still the one before.
  void SetBestCheckpoint(const absl::StatusOr<std::string>& name);

  // The state after all reports of steps up to `cut`. REQUIRES: they have been taken.
  EvaluationState Through(Step cut) const;
  EvaluationState latest() const;

 private:
  bool IsBetter(const EvaluationReport& report, const EvaluationState& state) const;
  bool Stops(const EvaluationState& state) const;
  Decision TakeEvaluation(const EvaluationReport& report, EvaluationState* state);

  const Evaluate policy_;
  const GenerationStart start_;
  struct Entry {
    Step step = kNoStep;  // The report's step.
    EvaluationState state;
  };
  // The first is the checkpoint's state; each report that changed something adds one.
  std::vector<Entry> entries_;
  std::string best_checkpoint_before_;
  uint64_t best_generation_before_ = 0;
};

// A report with the decision, for users.
struct EvaluationEvent {
  EvaluationReport report;
  EvaluationBoard::Decision decision;
  EvaluationState state;          // After this report.
  absl::Status checkpoint_error;  // The best model's checkpoint can't be made.
};

// Takes the reports of a generation one after the other. For a new best model it has a checkpoint
// made; then it has every worker informed whether training goes on, and with which batches. Workers
// wait for that at the report's step, so no later step is pushed meanwhile. Not thread-safe.
class EvaluationCoordinator {
 public:
  // `before`: as EvaluationBoard takes it. `keeps_best`: whether the best model has a checkpoint.
  EvaluationCoordinator(const Evaluate& policy, const GenerationStart& start,
                        const EvaluationState& before, bool keeps_best)
      : keeps_best_(keeps_best), board_(policy, start, before) {}

  void Take(const EvaluationReport& report) { reports_.push_back(report); }

  // Begins with the next report unless one is under way. Returns the step of which a checkpoint
  // must be made first, if any.
  std::optional<Step> Begin();
  // Takes the name of that checkpoint, or its error.
  void OnCheckpoint(const absl::StatusOr<std::string>& name);
  // Returns the decision once for each report, before any worker learns it.
  std::optional<EvaluationEvent> TakeDecided(const std::vector<uint32_t>& running_ranks);

  // The running workers that have not answered yet.
  std::vector<uint32_t> Unanswered(const std::vector<uint32_t>& running_ranks);
  bool is_deciding() const { return stage_ == Stage::kDeciding; }
  // REQUIRES: is_deciding()
  Step step() const { return event_.report.step; }
  // REQUIRES: is_deciding()
  const EvaluationBoard::Decision& decision() const { return event_.decision; }
  void OnAnswered(uint32_t rank);

  const EvaluationBoard& board() const { return board_; }

 private:
  enum class Stage { kIdle, kMakingCheckpoint, kDecided, kDeciding };

  const bool keeps_best_;
  EvaluationBoard board_;
  std::deque<EvaluationReport> reports_;
  Stage stage_ = Stage::kIdle;
  EvaluationEvent event_;          // The report under way.
  std::set<uint32_t> unanswered_;  // Ranks.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_EVALUATIONS_H_
