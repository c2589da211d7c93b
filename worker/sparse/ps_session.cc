#include "worker/sparse/ps_session.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "worker/sparse/session_state.h"

namespace thermocline {

PsSession::PsSession(const PsSessionOptions& options, Transport* transport, Scheduler* scheduler)
    : impl_(std::make_shared<Impl>(options, transport, scheduler)) {}

PsSession::~PsSession() {
  absl::MutexLock lock(&impl_->mutex);
  CHECK(impl_->operations.empty());
}

void PsSession::Pull(PullWork work, PullDone done) {
  impl_->Pull(std::move(work), std::move(done));
}

void PsSession::StartPush(PushWork work, PushDone done) {
  impl_->StartPush(std::move(work), std::move(done));
}

absl::Status PsSession::ReleaseWave(Step last_step, size_t wave) {
  return impl_->ReleaseWave(last_step, wave, /*again=*/false);
}

absl::Status PsSession::ReleaseWaveAgain(Step last_step, size_t wave) {
  return impl_->ReleaseWave(last_step, wave, /*again=*/true);
}

void PsSession::Fail(const absl::Status& reason) {
  CHECK(!reason.ok());
  Actions actions;
  {
    absl::MutexLock lock(&impl_->mutex);
    impl_->Fail(reason, &actions);
  }
  RunActions(&actions);
}

absl::Status PsSession::Drain() {
  absl::MutexLock lock(&impl_->mutex, absl::Condition(impl_.get(), &Impl::NothingInFlight));
  return impl_->failure;
}

absl::Status PsSession::status() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->failure;
}

Step PsSession::acked_through() const {
  absl::MutexLock lock(&impl_->mutex);
  Step acked = impl_->last_begun;
  for (const Impl::Server& server : impl_->servers) acked = std::min(acked, server.acked_through);
  return acked;
}

PsSessionStats PsSession::stats() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->stats;
}

}  // namespace thermocline
