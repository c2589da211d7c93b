// A session of a worker with two servers for tests, which give the servers' answers.
#ifndef THERMOCLINE_WORKER_SESSION_TESTING_FAKE_TRANSPORT_H_
#define THERMOCLINE_WORKER_SESSION_TESTING_FAKE_TRANSPORT_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/virtual_scheduler.h"
#include "worker/session/ps_session.h"

namespace thermocline {

// Keeps calls until the test answers them.
class FakeTransport : public Transport {
 public:
  struct PullSeen {
    uint32_t server;
    PullCall call;
    int64_t deadline_us;
    std::function<void(absl::StatusOr<wire::PullAnswer>)> done;
  };
  struct PushSeen {
    uint32_t server;
    PushCall call;
    std::function<void(absl::StatusOr<wire::PushAnswer>)> done;
  };
  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    pulls.push_back({server.value(), call, deadline_us, std::move(done)});
  }
  void Push(ServerIndex server, const PushCall& call, int64_t,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    pushes.push_back({server.value(), call, std::move(done)});
  }
  void AnswerPull(absl::StatusOr<wire::PullAnswer> answer) {
    ASSERT_FALSE(pulls.empty());
    const auto done = std::move(pulls.front().done);
    pulls.pop_front();
    done(std::move(answer));
  }
  void AnswerPush(absl::StatusOr<wire::PushAnswer> answer) {
    ASSERT_FALSE(pushes.empty());
    const auto done = std::move(pushes.front().done);
    pushes.pop_front();
    done(std::move(answer));
  }

  void Close() override { ++closed; }

  int closed = 0;
  std::deque<PullSeen> pulls;
  std::deque<PushSeen> pushes;
};

inline absl::StatusOr<wire::PullAnswer> PullReady(int64_t through) {
  return wire::PullAnswer{wire::Readiness::kReady, Step(through), {}};
}
inline absl::StatusOr<wire::PushAnswer> Accepted(int64_t through) {
  return wire::PushAnswer{wire::Readiness::kReady, Step(through)};
}

class PsSessionTest : public ::testing::Test {
 protected:
  static PsSessionOptions Options();
  // Pulls `per_server[k]` keys from server k.
  std::shared_ptr<std::optional<absl::Status>> Pull(int64_t step,
                                                    const std::vector<size_t>& per_server,
                                                    wire::PullKind kind = wire::PullKind::kTrain);
  // waves[w][k]: keys for server k in wave w.
  std::shared_ptr<std::optional<absl::Status>> Push(int64_t step,
                                                    const std::vector<std::vector<size_t>>& waves,
                                                    bool release = true);
  // The same, but the waves before the last are lent, and none is released.
  std::shared_ptr<std::optional<absl::Status>> LendingPush(
      int64_t step, const std::vector<std::vector<size_t>>& waves);
  PushWork WorkOf(int64_t step, const std::vector<std::vector<size_t>>& waves) const;
  std::shared_ptr<std::optional<absl::Status>> Start(PushWork work);
  // Calls under way must end before the session is destroyed.
  void TearDown() override;

  std::vector<Key> keys_ = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
  std::vector<uint32_t> counts_ = std::vector<uint32_t>(12, 1);
  std::vector<float> rows_ = std::vector<float>(24, 0.5f);
  Step pulled_through_;
  std::vector<size_t> returned_,
      wanted_;  // The waves that on_returned and on_wanted were called for.
  VirtualScheduler scheduler_;
  FakeTransport transport_;
  PsSession session_{Options(), &transport_, &scheduler_};
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_TESTING_FAKE_TRANSPORT_H_
