// Pulls that a real server holds: what ends them, and how much memory and how many places they
// take.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/config.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/scheduler.h"
#include "common/net/rpc.h"
#include "server/rpc/parameter_server_service.h"
#include "server/rpc/testing/served_core.h"

namespace thermocline {
namespace {

using namespace testing_rpc;  // NOLINT: the words of these tests

TEST(HeldPullsService, AHeldPullIsAnsweredByThePushItWaitsFor) {
  ServedCore server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  // More held pulls than the server has threads of any kind.
  constexpr int kHeld = 64;
  struct HeldPull {
    grpc::ClientContext context;
    PullRequest request;
    PullReply reply;
    grpc::Status status;
    absl::Notification done;
  };
  std::vector<std::unique_ptr<HeldPull>> held;
  for (int i = 0; i < kHeld; ++i) {
    held.push_back(std::make_unique<HeldPull>());
    HeldPull* pull = held.back().get();
    pull->request = PullOf(1, {static_cast<Key>(i)});
    server.stub->async()->Pull(&pull->context, &pull->request, &pull->reply,
                               [pull](grpc::Status status) {
                                 pull->status = status;
                                 pull->done.Notify();
                               });
  }
  server.AwaitPullsWaiting(kHeld);
  for (const auto& pull : held) EXPECT_FALSE(pull->done.HasBeenNotified());
  ASSERT_TRUE(server.Push(PushOf(0, {}, {})).ok());
  for (const auto& pull : held) {
    pull->done.WaitForNotification();
    ASSERT_TRUE(pull->status.ok()) << pull->status.error_message();
    EXPECT_EQ(pull->reply.readiness(), READY);
    EXPECT_EQ(pull->reply.complete_through(), 0);
  }
}

TEST(HeldPullsService, AdmissionRefusesAndCounts) {
  ServiceOptions options;
  options.max_pulls = 0;
  options.max_pushes = 0;
  ServedCore server(options);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  ExpectError(server.Pull(PullOf(0, {1})), absl::StatusCode::kResourceExhausted, {"0 pulls"});
  ExpectError(server.Push(PushOf(0, {1}, {1, 2, 3, 4})), absl::StatusCode::kResourceExhausted,
              {"0 pushes"});
  EXPECT_EQ(server.control->GetStats(kTimeout)->requests_refused(), 2u);
}

// Held and refused readers take no places of training, and the other way round.
TEST(HeldPullsService, ReadersHavePlacesOfTheirOwn) {
  ServiceOptions options;
  options.max_pulls = 1;
  ServedCore server(options);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullRequest read = PullOf(1, {1});
  read.set_kind(PullRequest::READ);
  absl::Status read_status;
  std::thread reader([&] { read_status = server.Pull(read); });
  while (server.control->GetStats(kTimeout)->reads_waiting() == 0) {
  }
  ExpectError(server.Pull(read), absl::StatusCode::kResourceExhausted, {"1 pulls"});
  EXPECT_TRUE(server.Pull(PullOf(0, {1})).ok());
  const auto stats = server.control->GetStats(kTimeout);
  EXPECT_EQ(stats->pulls_held(), 0u);
  EXPECT_EQ(stats->reads_held(), 1u);
  EXPECT_EQ(stats->tables(0).keys_pulled(), 1u);
  EXPECT_EQ(stats->tables(0).keys_read(), 0u);
  EXPECT_EQ(stats->rpcs(0).method(), "Pull");
  EXPECT_EQ(stats->rpcs(0).count(), 1u);
  EXPECT_EQ(stats->rpcs(2).method(), "Read");
  EXPECT_EQ(stats->rpcs(2).errors(), 1u);
  ASSERT_TRUE(server.Push(PushOf(0, {}, {})).ok());
  reader.join();
  EXPECT_TRUE(read_status.ok()) << read_status;
}

// gRPC holds a message before admission sees it: with its memory used up it refuses calls, and goes
// on serving.
TEST(HeldPullsService, WhatGrpcHoldsIsBounded) {
#if defined(ABSL_HAVE_THREAD_SANITIZER) || defined(ABSL_HAVE_ADDRESS_SANITIZER)
  GTEST_SKIP() << "calls that the sanitizer slows down leave one another room";
#endif
  constexpr int kCalls = 32;
  const std::vector<Key> keys(100'000);  // 800 KB: a few fill the memory.
  ServedCore server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  ParameterServerService service(ServiceOptions{}, server.core.get());
  GrpcServer::Options options;
  options.memory_bytes = 2'000'000;
  const auto bounded = GrpcServer::Start(options, {&service});
  ASSERT_TRUE(bounded.ok()) << bounded.status();
  const auto stub = ParameterServer::NewStub(
      OpenChannel((*bounded)->address(), *MakeChannelCredentials({}), 64 << 20));
  const auto pull = [&stub](const PullRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
    PullReply reply;
    return FromGrpcStatus(stub->Pull(&context, request, &reply));
  };
  std::atomic<int> refused{0};
  absl::Notification first_refused;
  std::vector<std::thread> pulls;
  for (int i = 0; i < kCalls; ++i) {
    pulls.emplace_back([&] {
      const absl::Status status = pull(PullOf(1, keys));  // Held.
      if (status.ok()) return;
      EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) << status;
      if (refused.fetch_add(1) == 0) first_refused.Notify();
    });
  }
  EXPECT_TRUE(first_refused.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_TRUE(server.Push(PushOf(0, {}, {})).ok());  // Releases those that are held.
  for (std::thread& call : pulls) call.join();
  const absl::Time deadline = absl::Now() + kTimeout;
  absl::Status after = absl::UnavailableError("not asked");
  while (absl::IsUnavailable(after) && absl::Now() < deadline) after = pull(PullOf(0, {1}));
  EXPECT_TRUE(after.ok()) << after;
  (*bounded)->Shutdown(0);
}

TEST(HeldPullsService, TheBytesOfHeldPullsAreBounded) {
  ServiceOptions options;
  options.max_pull_bytes = 20'000;
  ServedCore server(options);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  std::vector<Key> keys(800);  // 6,400 bytes, and again decoded.
  absl::Status held_status;
  std::thread held([&] { held_status = server.Pull(PullOf(1, keys)); });
  server.AwaitPullsWaiting(1);
  ExpectError(server.Pull(PullOf(1, keys)), absl::StatusCode::kResourceExhausted,
              {"Pull at server 0", "20000 bytes of pulls"});
  EXPECT_EQ(server.control->GetStats(kTimeout)->requests_refused(), 1u);
  EXPECT_TRUE(server.Pull(PullOf(0, {1})).ok());  // A small one finds room.
  EXPECT_TRUE(server.Push(PushOf(0, {}, {})).ok());
  held.join();
  EXPECT_TRUE(held_status.ok()) << held_status;
  // The bytes are free again when the server's side of the call has ended, too.
  const absl::Time deadline = absl::Now() + kTimeout;
  absl::Status again;
  do {
    again = server.Pull(PullOf(1, keys));
  } while (absl::IsResourceExhausted(again) && absl::Now() < deadline);
  EXPECT_TRUE(again.ok()) << again;
}

// Takes timers and never runs them.
class StoppedScheduler : public Scheduler {
 public:
  int64_t NowMicros() const override { return 0; }
  void RunAfter(int64_t delay_us, std::function<void()>) override {
    absl::MutexLock lock(&mutex_);
    delays_us_.push_back(delay_us);
  }
  std::vector<int64_t> delays_us() const {
    absl::MutexLock lock(&mutex_);
    return delays_us_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<int64_t> delays_us_ ABSL_GUARDED_BY(mutex_);
};

TEST(HeldPullsService, AHeldPullWhoseCallerLeavesIsDropped) {
  StoppedScheduler scheduler;
  ServerLimits limits;
  limits.max_held_pulls = 1;
  ServedCore server({}, {}, {}, limits, &scheduler);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  grpc::ClientContext context;
  absl::Status status;
  std::thread held([&] {
    PullReply reply;
    status = FromGrpcStatus(server.stub->Pull(&context, PullOf(1, {1}), &reply));
  });
  server.AwaitPullsWaiting(1);
  context.TryCancel();
  held.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  server.AwaitPullsWaiting(0);
}

TEST(HeldPullsService, APullIsHeldForHalfOfTheTimeItsCallerGaveIt) {
  StoppedScheduler scheduler;
  ServerLimits limits;
  limits.hold_us = absl::ToInt64Microseconds(absl::Hours(10));
  ServedCore server({}, {}, {}, limits, &scheduler);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Hours(1)));
  std::thread held([&] {
    PullReply reply;
    EXPECT_FALSE(server.stub->Pull(&context, PullOf(1, {1}), &reply).ok());
  });
  server.AwaitPullsWaiting(1);
  const std::vector<int64_t> delays_us = scheduler.delays_us();
  ASSERT_EQ(delays_us.size(), 1u);
  EXPECT_GT(delays_us[0], absl::ToInt64Microseconds(absl::Minutes(20)));
  EXPECT_LE(delays_us[0], absl::ToInt64Microseconds(absl::Minutes(31)));  // gRPC rounds up.
  context.TryCancel();
  held.join();
}

TEST(HeldPullsService, HeldPullsLeaveRoomForPushes) {
  ServiceOptions options;
  options.max_pulls = 1;
  ServedCore server(options);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullReply held_reply;
  absl::Status held_status;
  std::thread held([&] { held_status = server.Pull(PullOf(1, {1}), &held_reply); });
  server.AwaitPullsWaiting(1);
  ExpectError(server.Pull(PullOf(1, {1})), absl::StatusCode::kResourceExhausted, {"1 pulls"});
  EXPECT_TRUE(server.Push(PushOf(0, {}, {})).ok());
  held.join();
  EXPECT_TRUE(held_status.ok()) << held_status;
  EXPECT_EQ(held_reply.readiness(), READY);
}

TEST(HeldPullsService, ShutdownAnswersHeldPulls) {
  auto server = std::make_unique<ServedCore>();
  ASSERT_TRUE(server->Configure(JobOf(1)).ok());
  absl::Status status;
  std::thread held([&, stub = server->stub] {
    grpc::ClientContext context;
    PullReply reply;
    status = FromGrpcStatus(stub->Pull(&context, PullOf(1, {1}), &reply));
  });
  server->AwaitPullsWaiting(1);
  server->core->Shutdown();
  held.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace thermocline
