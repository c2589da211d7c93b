// The cuts that were named while a worker trains: it writes what it alone holds back with the push
// of such a step.
//
// Thread-safe.
#ifndef THERMOCLINE_WORKER_TRAIN_NAMED_CUTS_H_
#define THERMOCLINE_WORKER_TRAIN_NAMED_CUTS_H_

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"

namespace thermocline {

class NamedCuts {
 public:
  // No push of `start_step` or later has begun.
  explicit NamedCuts(Step start_step) : begun_(start_step - 1) {}

  // Makes `step` a cut. May be repeated. Errors: kFailedPrecondition (its push has begun: says
  // which step the worker is at; training is over).
  absl::Status Name(Step step);
  // Forgets a cut. One whose push has begun, or that nobody named, is no error.
  void CallOff(Step step);

  // Whether `step` is a cut; from now on it is too late to make it one. REQUIRES: the steps ascend.
  bool BeginPush(Step step);
  // No push follows any more.
  void EndTraining();

  // The last step whose push has begun.
  Step begun() const;

 private:
  mutable absl::Mutex mutex_;
  Step begun_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<Step> cuts_ ABSL_GUARDED_BY(mutex_);  // Beyond begun_.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_NAMED_CUTS_H_
