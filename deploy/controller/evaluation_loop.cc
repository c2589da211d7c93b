#include "deploy/controller/evaluation_loop.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "deploy/controller/cut_participants.h"

namespace thermocline {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(2);
constexpr absl::Duration kRetryPeriod = absl::Milliseconds(100);

// The keeper's answer, which may come after nobody waits for it any more.
struct Answer {
  absl::Mutex mutex;
  bool is_there ABSL_GUARDED_BY(mutex) = false;
  absl::StatusOr<std::string> name ABSL_GUARDED_BY(mutex) = absl::UnknownError("none yet");
};

}  // namespace

absl::Status EvaluationLoop::Begin(const std::vector<std::string>& worker_addresses,
                                   CheckpointKeeper* keeper) {
  const Tls& tls = job_.cluster().tls();
  for (const std::string& address : worker_addresses) {
    workers_.push_back(nullptr);
    if (address.empty()) continue;
    ASSIGN_OR_RETURN(
        workers_.back(),
        ControlClient::Create(address, {tls.certificate(), tls.private_key(), tls.ca()}));
  }
  if (job_.evaluate().keep_best()) keeper_ = keeper;
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void EvaluationLoop::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void EvaluationLoop::Take(const EvaluationReport& report) {
  absl::MutexLock lock(&mutex_);
  reports_.push_back(report);
}

std::vector<EvaluationEvent> EvaluationLoop::TakeEvents() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(events_, {});
}

bool EvaluationLoop::WaitForEnd(absl::Duration at_most) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&ending_), at_most);
}

void EvaluationLoop::Run() {
  while (true) {
    EvaluationEvent event;
    {
      absl::MutexLock lock(&mutex_);
      const auto is_due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ending_ || !reports_.empty();
      };
      mutex_.Await(absl::Condition(&is_due));
      if (ending_) return;
      event.report = reports_.front();
      reports_.pop_front();
    }
    event.verdict = board_.Take(event.report);
    if (event.verdict.is_best && keeper_ != nullptr) {
      event.checkpoint_error = KeepBest(event.report.step);
      if (absl::IsCancelled(event.checkpoint_error)) return;
    }
    event.state = board_.latest();
    EvaluationDecision decision;
    decision.set_job_id(job_.name());
    decision.set_epoch(epoch_);
    decision.set_step(event.report.step.value());
    decision.set_stop(event.verdict.stops);
    {
      // Before the workers hear of it: what is decided is shown even if they end with it.
      absl::MutexLock lock(&mutex_);
      events_.push_back(std::move(event));
    }
    Tell(decision);
  }
}

// Errors: kCancelled (the epoch ends meanwhile), or why there can be no checkpoint.
absl::Status EvaluationLoop::KeepBest(Step step) {
  const auto answer = std::make_shared<Answer>();
  keeper_->RequestOf(step, [answer](const absl::StatusOr<std::string>& name) {
    absl::MutexLock lock(&answer->mutex);
    answer->name = name;
    answer->is_there = true;
  });
  while (true) {
    absl::StatusOr<std::string> name;
    {
      absl::MutexLock lock(&answer->mutex);
      if (!answer->mutex.AwaitWithTimeout(absl::Condition(&answer->is_there), kRetryPeriod)) {
        name = absl::CancelledError("the epoch ends");
      } else {
        name = answer->name;
      }
    }
    if (absl::IsCancelled(name.status())) {
      if (WaitForEnd(absl::ZeroDuration())) return name.status();
      continue;
    }
    board_.SetBestCheckpoint(name);
    keeper_->Keep(board_.latest().best_checkpoint());
    return name.status();
  }
}

void EvaluationLoop::Tell(const EvaluationDecision& decision) {
  std::vector<ControlClient*> unanswered;
  for (const std::unique_ptr<ControlClient>& worker : workers_) {
    if (worker != nullptr) unanswered.push_back(worker.get());
  }
  while (true) {
    // A refusal is an answer: that worker doesn't wait. One that doesn't answer, since it has ended
    // with the decision, maybe, keeps it from no other.
    const auto answers = [&](ControlClient* worker) {
      return !IsUnanswered(worker->Decide(decision, kCallTimeout));
    };
    unanswered.erase(std::remove_if(unanswered.begin(), unanswered.end(), answers),
                     unanswered.end());
    if (unanswered.empty() || WaitForEnd(kRetryPeriod)) return;
  }
}

}  // namespace thermocline
