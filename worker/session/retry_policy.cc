#include "worker/session/retry_policy.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/process_limits.h"

namespace thermocline {
namespace {

constexpr char kServerLossPayload[] = "thermocline/server-loss";
constexpr char kBadJobPayload[] = "thermocline/bad-job";
constexpr char kScriptFailurePayload[] = "thermocline/script-failure";

// An attempt shortly before the worker gives up gets at least this long.
constexpr int64_t kGraceMicros = 100'000;

bool IsSilence(const absl::Status& error) {
  return absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error);
}

}  // namespace

int64_t RetryPolicy::BeginAttempt(int64_t now_us, int64_t last_answer_us, RetryState* state) const {
  if (!state->sent) {
    state->sent = true;
    state->first_sent_us = now_us;
  }
  const int64_t left_us = options_.give_up_us - SilentMicros(now_us, last_answer_us, *state);
  return std::min(options_.rpc_deadline_us, std::max(left_us, kGraceMicros));
}

RetryPolicy::Decision RetryPolicy::AfterError(const absl::Status& error, int64_t now_us,
                                              int64_t last_answer_us, RetryState* state) {
  CHECK(!error.ok());
  if (!absl::IsResourceExhausted(error)) {
    if (!IsSilence(error)) return {};
    if (SilentMicros(now_us, last_answer_us, *state) >= options_.give_up_us) return {};
  }
  state->not_ready = 0;
  return {true, Backoff(state->failures++)};
}

int64_t RetryPolicy::DelayAfterNotReady(RetryState* state) const {
  state->failures = 0;
  const int doublings = std::min(state->not_ready++, 10);
  return std::min(options_.not_ready_delay_us << doublings, 50 * options_.not_ready_delay_us);
}

int64_t RetryPolicy::DelayAfterUnaccepted(RetryState* state) { return Backoff(state->failures++); }

int64_t RetryPolicy::SilentMicros(int64_t now_us, int64_t last_answer_us,
                                  const RetryState& state) const {
  return now_us - std::max(state.first_sent_us, last_answer_us);
}

// Returns a time between half and all of min_backoff * 2^failures.
int64_t RetryPolicy::Backoff(int failures) {
  const int64_t full_us =
      std::min(options_.min_backoff_us << std::min(failures, 20), options_.max_backoff_us);
  jitter_ = Mix64(jitter_);
  return full_us / 2 + static_cast<int64_t>(jitter_ % static_cast<uint64_t>(full_us / 2 + 1));
}

absl::Status MarkServerLoss(absl::Status error) {
  error.SetPayload(kServerLossPayload, absl::Cord());
  return error;
}

bool IsServerLoss(const absl::Status& status) {
  return status.GetPayload(kServerLossPayload).has_value();
}

absl::Status MarkScriptFailure(absl::Status error) {
  error.SetPayload(kScriptFailurePayload, absl::Cord());
  return error;
}

bool IsScriptFailure(const absl::Status& status) {
  return status.GetPayload(kScriptFailurePayload).has_value();
}

absl::Status MarkBadJob(absl::Status error) {
  error.SetPayload(kBadJobPayload, absl::Cord());
  return error;
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  if (IsScriptFailure(status)) return kExitScript;
  if (IsServerLoss(status)) return kExitServerLost;
  if (status.GetPayload(kBadJobPayload).has_value()) return kExitUsage;
  return IsSilence(status) ? kExitTrouble : kExitFailed;
}

}  // namespace thermocline
