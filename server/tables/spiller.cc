#include "server/tables/spiller.h"

#include <utility>

#include "absl/time/time.h"
#include "common/base/threads.h"

namespace thermocline {
namespace {

// A full disk is tried again after this time, since it may have room then.
constexpr absl::Duration kRetryPeriod = absl::Milliseconds(200);

}  // namespace

Spiller::Spiller(Round round, std::function<void(const absl::Status&)> broken)
    : round_(std::move(round)),
      broken_(std::move(broken)),
      thread_(MakeThread([this] { Loop(); })) {}

Spiller::~Spiller() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  thread_.join();
}

void Spiller::Wake() {
  if (due_.load(std::memory_order_relaxed)) return;
  absl::MutexLock lock(&mutex_);
  due_.store(true);
}

absl::Status Spiller::full() const {
  absl::MutexLock lock(&mutex_);
  return full_ ? absl::ResourceExhaustedError(full_message_) : absl::OkStatus();
}

void Spiller::RunNow() {
  absl::MutexLock round_lock(&round_mutex_);
  if (is_broken_) return;
  due_.store(false);
  const absl::Status status = round_();
  const bool full = absl::IsResourceExhausted(status);
  {
    absl::MutexLock lock(&mutex_);
    full_ = full;
    full_message_ = std::string(status.message());
    if (full) due_.store(true);  // Pushes are refused now, so no other thread would try again.
  }
  if (status.ok() || full) return;
  is_broken_ = true;
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;  // Otherwise the thread would run the round again and again.
  }
  broken_(status);
}

void Spiller::Loop() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Spiller::IsDue));
      if (ending_) return;
    }
    RunNow();
    absl::MutexLock lock(&mutex_);
    if (full_) mutex_.AwaitWithTimeout(absl::Condition(&ending_), kRetryPeriod);
  }
}

}  // namespace thermocline
