// A generation of a job: where it begins, how many samples its steps have read, and how it ended.
// The processes of a generation train until one is lost that can't be replaced.
#ifndef THERMOCLINE_DEPLOY_JOB_GENERATION_H_
#define THERMOCLINE_DEPLOY_JOB_GENERATION_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// Where a generation begins. Its number is a fence: processes refuse requests and files of older
// generations.
struct GenerationStart {
  uint64_t generation = 1;
  std::string base;          // The checkpoint that it begins with; "": from the beginning.
  Step base_step = kNoStep;  // Training continues with the step after it.
  uint64_t base_samples = 0;
  uint64_t base_generation = 0;  // The generation that made the base; 0: any.
  // The record of HISTORY (common/checkpoint/history.h) by which a controller's first generation
  // was chosen; 0: there was none. If there is another record by then, the generation does not
  // begin.
  uint64_t history = 0;
  SpentBudgets spent;  // Before it begins.

  Step first_step() const { return base_step + 1; }
};

// The record of it in HISTORY.
inline JobState StateOf(const std::string& job_id, const GenerationStart& start) {
  JobState state;
  state.set_job_id(job_id);
  state.set_generation(start.generation);
  state.set_base_checkpoint(start.base);
  state.set_base_generation(start.base_generation);
  *state.mutable_spent() = start.spent;
  return state;
}

// How a generation ended, and whether another follows or the job ends.
struct GenerationOutcome {
  enum class What {
    kTrained,
    kStoppedByUser,
    kStoppedByEngine,  // The engine starts another controller, or none.
    kFailed,           // The next generation would fail the same way.
    kLost,             // A process died, or lost pushes that it had acknowledged.
    kStalled,          // Nothing advanced.
    kUncertain,  // A checkpoint may be on the medium or not: no generation may follow unasked.
  };
  What what = What::kFailed;
  absl::Status status;     // OK: the job is done.
  bool goes_back = false;  // True: the job goes on with `next`. False: it has ended.
  GenerationStart next;
};

// The record of it in HISTORY.
inline JobOutcome RecordOf(const GenerationOutcome& outcome) {
  using What = GenerationOutcome::What;
  JobOutcome record;
  record.set_what(outcome.status.ok()                    ? JobOutcome::TRAINED
                  : outcome.what == What::kStoppedByUser ? JobOutcome::STOPPED
                  : outcome.what == What::kFailed        ? JobOutcome::FAILED
                                                         : JobOutcome::LOST);
  record.set_message(std::string(outcome.status.message()));
  return record;
}

// Counts the samples that steps have read: a worker's last report, plus whole batches from there
// on. A pass may end with a shorter batch, so the count is exact only where no pass ended in
// between. Only figures for users depend on it. Not thread-safe.
class SampleCounter {
 public:
  explicit SampleCounter(uint32_t batch_size) : batch_size_(batch_size) {}

  // After `steps` steps, `samples` were read.
  void Report(int64_t steps, uint64_t samples) {
    steps_ = steps;
    samples_ = static_cast<int64_t>(samples);
  }

  uint64_t Through(Step cut) const {
    const int64_t further = cut.value() + 1 - steps_;
    return static_cast<uint64_t>(std::max<int64_t>(0, samples_ + further * batch_size_));
  }

 private:
  const int64_t batch_size_;
  int64_t steps_ = 0;
  int64_t samples_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_GENERATION_H_
