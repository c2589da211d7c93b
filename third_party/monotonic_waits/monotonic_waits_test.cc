// Our timers and gRPC's fire in time though the wall clock is set back.
//
// This process sees a wall clock that is three hours ahead of the kernel's. So code that lets the
// kernel wait until a time of the wall clock waits as if that clock were set back by three hours as
// soon as the wait has begun.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <future>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/scheduler.h"
#include "common/net/rpc.h"
#include "proto/parameter_server.grpc.pb.h"

namespace {

std::atomic<time_t> seconds_ahead{3 * 3600};

}  // namespace

// It replaces the C library's function, for the shared libraries of this process, too.
extern "C" {
int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += seconds_ahead.load();
  return result;
}
int gettimeofday(timeval* time, void*) noexcept {
  timespec now;
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return result;
}
}

namespace thermocline {
namespace {

// Waits by the monotonic clock, without Abseil.
template <typename T>
bool ComesSoon(std::future<T>* future) {
  return future->wait_for(std::chrono::minutes(1)) == std::future_status::ready;
}

bool RunsATask(ThreadScheduler* scheduler) {
  const auto ran = std::make_shared<std::promise<void>>();
  scheduler->RunAfter(10'000, [ran] { ran->set_value(); });
  std::future<void> future = ran->get_future();
  return ComesSoon(&future);
}

TEST(MonotonicWaitsTest, ATimerIsNotLate) {
  ThreadScheduler scheduler;
  EXPECT_TRUE(RunsATask(&scheduler));
}

TEST(MonotonicWaitsTest, ATimeoutIsNotLate) {
  std::future<bool> awaited = std::async(std::launch::async, [] {
    absl::Mutex mutex;
    absl::MutexLock lock(&mutex);
    const bool never = false;
    return mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(10));
  });
  if (!ComesSoon(&awaited)) std::abort();  // It can't be ended.
  EXPECT_FALSE(awaited.get());
}

TEST(MonotonicWaitsTest, GrpcEndsACallAtItsDeadline) {
  // Connections are made, and nothing answers on them.
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listening, 1), 0);
  ASSERT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto stub =
      Worker::NewStub(OpenChannel(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)),
                                  grpc::InsecureChannelCredentials(), kDefaultMaxMessageBytes));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  const WorkerPeers peers;
  WorkerPeersReply reply;
  std::promise<grpc::StatusCode> ended;
  stub->async()->Introduce(&context, &peers, &reply, [&](const grpc::Status& status) {
    ended.set_value(status.error_code());
  });
  std::future<grpc::StatusCode> end = ended.get_future();
  const bool is_in_time = ComesSoon(&end);
  EXPECT_TRUE(is_in_time);
  if (!is_in_time) context.TryCancel();
  EXPECT_EQ(end.get(), grpc::StatusCode::DEADLINE_EXCEEDED);
  close(listening);
}

TEST(MonotonicWaitsTest, NothingIsLateBehindAStepBack) {
  ThreadScheduler scheduler;
  EXPECT_TRUE(RunsATask(&scheduler));
  seconds_ahead = 0;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(RunsATask(&scheduler));
  seconds_ahead = 3 * 3600;
}

}  // namespace
}  // namespace thermocline
