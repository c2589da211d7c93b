// Transport that calls server cores of the same process: everything but gRPC is real.
#ifndef THERMOCLINE_TESTS_TRAINING_IN_PROCESS_TRANSPORT_H_
#define THERMOCLINE_TESTS_TRAINING_IN_PROCESS_TRANSPORT_H_

#include <utility>
#include <vector>

#include "server/core/server_core.h"
#include "tests/testing/to_wire.h"
#include "worker/session/transport.h"

namespace thermocline {

class InProcessTransport : public Transport {
 public:
  // The cores outlive the transport.
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

  void Close() override {}  // All workers of a test share it.

 private:
  const std::vector<ServerCore*> cores_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TRAINING_IN_PROCESS_TRANSPORT_H_
