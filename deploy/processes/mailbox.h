// Events on their way to a job's machine.
#ifndef THERMOCLINE_DEPLOY_PROCESSES_MAILBOX_H_
#define THERMOCLINE_DEPLOY_PROCESSES_MAILBOX_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "deploy/job/job_events.h"

namespace thermocline {

// Events that come from any thread. They wake Supervisor::Poll.
class Mailbox {
 public:
  Mailbox() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { CHECK_GE(fd_, 0); }

  // Readable when something was posted; its reader closes it.
  int fd() const { return fd_; }
  void Post(JobEvent event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
    Wake();
  }
  void Wake() const {
    const uint64_t one = 1;
    CHECK_EQ(write(fd_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
  std::deque<JobEvent> TakeAll() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(events_, {});
  }

 private:
  const int fd_;
  absl::Mutex mutex_;
  std::deque<JobEvent> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PROCESSES_MAILBOX_H_
