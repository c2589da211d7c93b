// A Transport that calls server cores of the same process, so that everything but gRPC is real; and
// one that notes the server's digests meanwhile.
#ifndef THERMOCLINE_TESTS_TRAINING_IN_PROCESS_TRANSPORT_H_
#define THERMOCLINE_TESTS_TRAINING_IN_PROCESS_TRANSPORT_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/core/server_core.h"
#include "tests/training/small_job.h"
#include "worker/session/transport.h"

namespace thermocline {

class InProcessTransport : public Transport {
 public:
  // The cores must outlive the transport.
  explicit InProcessTransport(std::vector<ServerCore*> cores) : cores_(std::move(cores)) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    ServerCore* core = cores_[server.value()];
    core->Pull(ToWire(call), [core, tables = call.tables, with_state = call.with_state,
                              done = std::move(done)](absl::StatusOr<wire::PullAnswer> answer) {
      if (answer.ok() && answer->readiness == wire::Readiness::kReady) {
        for (const PullSlice& slice : tables) {
          const absl::Status read = core->ReadRows(slice.table, slice.keys, with_state,
                                                   reinterpret_cast<uint8_t*>(slice.rows.data()));
          if (!read.ok()) return done(read);
        }
      }
      done(std::move(answer));
    });
  }

  void Push(ServerIndex server, const PushCall& call, int64_t,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    cores_[server.value()]->Push(ToWire(call), std::move(done));
  }

  void Close() override {}  // Does nothing, since all workers of a test share the transport.

 private:
  const std::vector<ServerCore*> cores_;
};

// Notes the digest of the one server after each push that wrote rows back.
class WriteBackWatch : public Transport {
 public:
  WriteBackWatch(const JobServers* servers, std::function<void(Step)> before_push)
      : servers_(servers), before_push_(std::move(before_push)), in_process_(servers->cores()) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    in_process_.Pull(server, call, deadline_us, std::move(done));
  }
  // One worker's push is applied when the call with its last part returns.
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

#endif  // THERMOCLINE_TESTS_TRAINING_IN_PROCESS_TRANSPORT_H_
