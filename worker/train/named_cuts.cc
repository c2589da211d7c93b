#include "worker/train/named_cuts.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {

absl::Status NamedCuts::Name(Step step) {
  absl::MutexLock lock(&mutex_);
  if (ended_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", step.value(), " can't be a cut: training ended with step ", begun_.value()));
  }
  if (step <= begun_) {
    return absl::FailedPreconditionError(absl::StrCat("it is too late to make step ", step.value(),
                                                      " a cut: this worker is at step ",
                                                      begun_.value()));
  }
  cuts_.insert(step);
  return absl::OkStatus();
}

void NamedCuts::CallOff(Step step) {
  absl::MutexLock lock(&mutex_);
  cuts_.erase(step);
}

bool NamedCuts::BeginPush(Step step) {
  absl::MutexLock lock(&mutex_);
  CHECK(step > begun_);
  begun_ = step;
  const bool is_cut = cuts_.count(step) > 0;
  cuts_.erase(cuts_.begin(), cuts_.upper_bound(step));
  return is_cut;
}

void NamedCuts::EndTraining() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  cuts_.clear();
}

Step NamedCuts::begun() const {
  absl::MutexLock lock(&mutex_);
  return begun_;
}

}  // namespace thermocline
