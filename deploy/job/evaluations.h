// What the evaluations of a job mean for it: which is the best so far, and whether training ends;
// and how its hot and cold batches take turns. Worker 0 reports; everything is decided here.
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

// The held-out rows scored with the model after `step`, and what follows for the next steps.
struct EvaluationReport {
  Step step = kNoStep;
  uint32_t pass = 0;  // That the step was of, from 1.
  // Of those that evaluate.every_steps or every_passes ask for, not only the one after the last
  // step: it counts for the patience.
  bool is_scheduled = false;
  // False: a change between hot and cold batches alone, which is neither best nor counted.
  bool is_evaluation = true;
  double auc = 0;  // NaN: the rows have one class only.
  double logloss = 0;
  double seconds = 0;         // That the evaluation took.
  double change_seconds = 0;  // That the scoring for a change took.
  // Of a change: the stretch that begins with the next step.
  std::optional<ScheduleState> schedule;
};

// Not thread-safe.
class EvaluationBoard {
 public:
  // `before`: how they stood at the checkpoint that the generation begins with. Its evaluations
  // don't count where the metric is another one now.
  EvaluationBoard(const Evaluate& policy, const GenerationStart& start,
                  const EvaluationState& before);

  struct Verdict {
    bool is_best = false;
    bool stops = false;  // The step was the last that is trained.
    // Where a stretch of hot or cold batches ended with the step: the next one.
    std::optional<ScheduleState> schedule;
  };
  // Takes a report in. An evaluation, or a change, of a step that was taken already (by the
  // generation before, up to its checkpoint) changes nothing, and gets what followed from it.
  Verdict Take(const EvaluationReport& report);

  // What became of the checkpoint of the best step: its name, or why it can't be made. Then the one
  // of the best step before stands.
  void SetBestCheckpoint(const absl::StatusOr<std::string>& name);

  // After all reports of steps up to `cut`. REQUIRES: those before `cut` have been taken.
  EvaluationState Through(Step cut) const;
  EvaluationState latest() const;

 private:
  bool IsBetter(const EvaluationReport& report, const EvaluationState& state) const;
  bool Stops(const EvaluationState& state) const;
  Verdict TakeEvaluation(const EvaluationReport& report, EvaluationState* state);

  const Evaluate policy_;
  const GenerationStart start_;
  struct Entry {
    Step step = kNoStep;  // Of the report.
    EvaluationState state;
  };
  // The first is that of the checkpoint; one more for each report that changed something.
  std::vector<Entry> entries_;
  std::string best_checkpoint_before_;
  uint64_t best_generation_before_ = 0;
};

// What was decided, for users.
struct EvaluationEvent {
  EvaluationReport report;
  EvaluationBoard::Verdict verdict;
  EvaluationState state;          // With this evaluation.
  absl::Status checkpoint_error;  // Why the best model's checkpoint can't be made.
};

// Takes the evaluations of a generation one after the other: has the checkpoint of a new best model
// made, then has every worker informed whether training goes on, and with which batches. Workers
// wait for that at the report's step, so no later step is pushed meanwhile. Not thread-safe.
class EvaluationCoordinator {
 public:
  // `before`: as EvaluationBoard takes it. `keeps_best`: whether the best model has a checkpoint.
  EvaluationCoordinator(const Evaluate& policy, const GenerationStart& start,
                        const EvaluationState& before, bool keeps_best)
      : keeps_best_(keeps_best), board_(policy, start, before) {}

  void Take(const EvaluationReport& report) { reports_.push_back(report); }

  // Takes the next report up, if none is under way. Returns the step of which a checkpoint is
  // wanted before anything else.
  std::optional<Step> Begin();
  // The answer to that.
  void OnCheckpoint(const absl::StatusOr<std::string>& name);
  // What was decided: once for each report, and before any worker learns of it.
  std::optional<EvaluationEvent> TakeDecided(const std::vector<uint32_t>& running_ranks);

  // The workers that have still to answer; those that have ended don't count.
  std::vector<uint32_t> Unanswered(const std::vector<uint32_t>& running_ranks);
  bool is_deciding() const { return stage_ == Stage::kDeciding; }
  // REQUIRES: is_deciding()
  Step step() const { return event_.report.step; }
  // REQUIRES: is_deciding()
  const EvaluationBoard::Verdict& verdict() const { return event_.verdict; }
  void OnAnswered(uint32_t rank);

  const EvaluationBoard& board() const { return board_; }

 private:
  enum class Stage { kIdle, kMakingCheckpoint, kDecided, kDeciding };

  const bool keeps_best_;
  EvaluationBoard board_;
  std::deque<EvaluationReport> reports_;
  Stage stage_ = Stage::kIdle;
  EvaluationEvent event_;          // Of the report under way.
  std::set<uint32_t> unanswered_;  // By rank.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_EVALUATIONS_H_
