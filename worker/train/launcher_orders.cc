#include "worker/train/launcher_orders.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "proto/job.pb.h"

namespace thermocline {

absl::Status NamedCheckpoints::Name(Step step) {
  absl::MutexLock lock(&mutex_);
  if (ended_) {
    return absl::FailedPreconditionError(absl::StrCat("no checkpoint can be made of step ",
                                                      step.value(), ": training ended with step ",
                                                      begun_.value()));
  }
  if (step <= begun_) {
    return absl::FailedPreconditionError(absl::StrCat("it is too late for a checkpoint of step ",
                                                      step.value(), ": this worker is at step ",
                                                      begun_.value()));
  }
  named_.insert(step);
  return absl::OkStatus();
}

void NamedCheckpoints::CallOff(Step step) {
  absl::MutexLock lock(&mutex_);
  named_.erase(step);
}

bool NamedCheckpoints::BeginPush(Step step) {
  absl::MutexLock lock(&mutex_);
  CHECK(step > begun_);
  begun_ = step;
  const bool is_named = named_.count(step) > 0;
  named_.erase(named_.begin(), named_.upper_bound(step));
  return is_named;
}

bool NamedCheckpoints::AwaitsStep() const {
  absl::MutexLock lock(&mutex_);
  return !named_.empty();
}

void NamedCheckpoints::EndTraining() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  named_.clear();
}

Step NamedCheckpoints::begun() const {
  absl::MutexLock lock(&mutex_);
  return begun_;
}

bool EvaluationIsDue(const Evaluate& policy, int64_t steps, uint32_t pass_ended) {
  if (policy.every_steps() > 0) return static_cast<uint64_t>(steps) % policy.every_steps() == 0;
  return policy.every_passes() > 0 && pass_ended > 0 && pass_ended % policy.every_passes() == 0;
}

void EvaluationDecisions::Take(Step step, bool stop, std::string data_place) {
  absl::MutexLock lock(&mutex_);
  if (step < decided_) return;  // A late repetition.
  decided_ = step;
  decision_ = {!stop, std::move(data_place)};
}

LauncherDecision EvaluationDecisions::Await(Step step) {
  absl::MutexLock lock(&mutex_);
  const auto is_decided = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return decided_ >= step; };
  mutex_.Await(absl::Condition(&is_decided));
  return decided_ > step ? LauncherDecision() : decision_;
}

}  // namespace thermocline
