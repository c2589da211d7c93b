// What the servers of a job hold after each step that writes rows back.
#ifndef THERMOCLINE_TESTS_TRAINING_WRITE_BACK_WATCH_H_
#define THERMOCLINE_TESTS_TRAINING_WRITE_BACK_WATCH_H_

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "tests/training/in_process_transport.h"
#include "tests/training/small_job.h"
#include "worker/session/transport.h"

namespace thermocline {

// Notes the digest of the one server after each push that wrote rows back.
class WriteBackWatch : public Transport {
 public:
  WriteBackWatch(const JobServers* servers, std::function<void(Step)> before_push)
      : servers_(servers), before_push_(std::move(before_push)), in_process_(servers->cores()) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    in_process_.Pull(server, call, deadline_us, std::move(done));
  }
  // The push of one worker is applied when the call that brings its last part returns.
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    before_push_(call.step);
    const Step step = call.step;
    bool assigns = false;
    for (const wire::PushSlice& slice : call.tables)
      assigns |= slice.kind == wire::PushKind::kAssign;
    in_process_.Push(server, call, deadline_us, std::move(done));
    if (!assigns) return;
    Outcome outcome;
    servers_->AddDigest(&outcome);
    digests_[step.value()] = Hex(outcome.digest);
  }
  void Close() override {}

  const std::map<int64_t, std::string>& digests() const { return digests_; }

 private:
  const JobServers* const servers_;
  const std::function<void(Step)> before_push_;
  InProcessTransport in_process_;
  std::map<int64_t, std::string> digests_;  // by step
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TRAINING_WRITE_BACK_WATCH_H_
