#include "common/net/mutex_tuning.h"

#include "absl/synchronization/mutex.h"

namespace thermocline {

void TurnOffMutexChecks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace thermocline
