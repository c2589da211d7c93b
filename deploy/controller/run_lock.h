// Who uses a folder: one launcher with the processes that it starts, and nobody else.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_RUN_LOCK_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_RUN_LOCK_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace thermocline {

// A lock on the file `lock` in a folder. Processes that are started while it is held hold it too,
// so that it is free only when all of them are gone, however their launcher ended. Movable.
class RunLock {
 public:
  // Called once, as the wait begins: what is waited for, in a line.
  using OnWait = std::function<void(const std::string& what)>;
  // Waits up to `patience`: the processes of a launcher that was killed take a moment to die.
  // Errors: kFailedPrecondition (another launcher uses the folder; names both, and the host),
  // kResourceExhausted (the disk is full; says which, and what is free), kUnavailable.
  static absl::StatusOr<RunLock> Take(const std::string& folder, absl::Duration patience,
                                      const OnWait& on_wait = nullptr);
  // Whether anybody holds it.
  static bool IsHeld(const std::string& folder);

  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

 private:
  explicit RunLock(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_RUN_LOCK_H_
