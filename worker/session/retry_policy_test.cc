#include "worker/session/retry_policy.h"

#include "common/base/process_limits.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

constexpr int64_t kNever = INT64_MIN / 2;

RetryOptions Options() {
  RetryOptions options;
  options.rpc_deadline_us = 10'000'000;
  options.give_up_us = 20'000'000;
  options.min_backoff_us = 1'000;
  options.max_backoff_us = 50'000;
  options.not_ready_delay_us = 1'000;
  return options;
}

TEST(RetryPolicyTest, BackoffDoublesWithJitterUpToItsLimit) {
  RetryPolicy policy(Options());
  RetryState state;
  policy.BeginAttempt(0, kNever, &state);
  int64_t full_us = 1'000;
  for (int i = 0; i < 40; ++i) {
    const auto decision = policy.AfterError(absl::UnavailableError(""), 0, kNever, &state);
    ASSERT_TRUE(decision.repeat);
    EXPECT_GE(decision.delay_us, full_us / 2);
    EXPECT_LE(decision.delay_us, full_us);
    full_us = std::min<int64_t>(2 * full_us, 50'000);
  }
}

TEST(RetryPolicyTest, JitterFollowsTheSeed) {
  RetryOptions options = Options();
  const auto first_delay = [&] {
    RetryPolicy policy(options);
    RetryState state;
    return policy.AfterError(absl::UnavailableError(""), 0, 0, &state).delay_us;
  };
  const int64_t delay_us = first_delay();
  EXPECT_EQ(first_delay(), delay_us);
  options.jitter_seed = 1;
  EXPECT_NE(first_delay(), delay_us);
}

TEST(RetryPolicyTest, RepeatsOnlyWhatMayPass) {
  for (const absl::Status& error : {absl::UnavailableError(""), absl::DeadlineExceededError(""),
                                    absl::ResourceExhaustedError("")}) {
    RetryPolicy policy(Options());
    RetryState state;
    EXPECT_TRUE(policy.AfterError(error, 0, 0, &state).repeat) << error;
  }
  for (const absl::Status& error :
       {absl::FailedPreconditionError(""), absl::DataLossError(""), absl::InvalidArgumentError(""),
        absl::NotFoundError(""), absl::InternalError(""), absl::OutOfRangeError("")}) {
    RetryPolicy policy(Options());
    RetryState state;
    EXPECT_FALSE(policy.AfterError(error, 0, 0, &state).repeat) << error;
  }
}

TEST(RetryPolicyTest, GivesUpAfterSilenceOfTheServer) {
  RetryPolicy policy(Options());
  RetryState state;
  const int64_t start_us = 1'000'000'000;  // Long after the server's last answer.
  EXPECT_EQ(policy.BeginAttempt(start_us, 0, &state), 10'000'000);
  const absl::Status error = absl::UnavailableError("");
  EXPECT_TRUE(policy.AfterError(error, start_us + 19'999'999, 0, &state).repeat);
  // Another call was answered meanwhile.
  EXPECT_TRUE(
      policy.AfterError(error, start_us + 30'000'000, start_us + 15'000'000, &state).repeat);
  EXPECT_FALSE(policy.AfterError(error, start_us + 20'000'000, 0, &state).repeat);
}

// A busy server is not lost, even after hours.
TEST(RetryPolicyTest, ARefusedCallIsRepeatedWithoutEnd) {
  RetryPolicy policy(Options());
  RetryState state;
  policy.BeginAttempt(0, kNever, &state);
  const absl::Status full = absl::ResourceExhaustedError("");
  for (int64_t now_us = 0; now_us < 3'600'000'000; now_us += 1'000'000) {
    const auto decision = policy.AfterError(full, now_us, now_us, &state);
    ASSERT_TRUE(decision.repeat) << now_us;
    ASSERT_LE(decision.delay_us, Options().max_backoff_us);
  }
}

TEST(RetryPolicyTest, TheDeadlineEndsWithThePatience) {
  RetryPolicy policy(Options());
  RetryState state;
  policy.BeginAttempt(0, kNever, &state);
  EXPECT_EQ(policy.BeginAttempt(15'000'000, kNever, &state), 5'000'000);
  EXPECT_EQ(policy.BeginAttempt(19'999'999, kNever, &state), 100'000);  // The grace.
  EXPECT_EQ(policy.BeginAttempt(15'000'000, 14'000'000, &state), 10'000'000);
}

TEST(RetryPolicyTest, NotReadySpendsNothing) {
  RetryPolicy policy(Options());
  RetryState state;
  policy.BeginAttempt(0, kNever, &state);
  int64_t full_us = 1'000;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(policy.DelayAfterNotReady(&state), full_us);
    full_us = std::min<int64_t>(2 * full_us, 50'000);
  }
  EXPECT_EQ(state.failures, 0);
}

TEST(ExitCodeTest, TellsTroubleAndLossesFromWhatTheJobCaused) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), kExitDone);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("a.csv:2: no id")), kExitFailed);
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("a.csv.gz is cut off")), kExitFailed);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("a.csv")), kExitFailed);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("a.csv: Input/output error")), kExitTrouble);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("no introduction")), kExitTrouble);
  EXPECT_EQ(ExitCodeOf(MarkServerLoss(absl::UnavailableError("server 0"))), kExitServerLost);
  EXPECT_EQ(ExitCodeOf(MarkServerLoss(absl::DataLossError("server 0"))), kExitServerLost);
  EXPECT_EQ(ExitCodeOf(MarkBadJob(absl::InvalidArgumentError("no label"))), kExitUsage);
  EXPECT_EQ(ExitCodeOf(MarkScriptFailure(absl::AbortedError("Traceback"))), kExitScript);
}

}  // namespace
}  // namespace thermocline
