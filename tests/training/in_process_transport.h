// Transport that calls server cores of the same process: everything but gRPC is real.
#ifndef THERMOCLINE_TESTS_TRAINING_IN_PROCESS_TRANSPORT_H_
#define THERMOCLINE_TESTS_TRAINING_IN_PROCESS_TRANSPORT_H_

#include <utility>
#include <vector>

#include "server/core/server_core.h"
#include "worker/sparse/transport.h"

namespace thermocline {

class InProcessTransport : public Transport {
 public:
  // The cores outlive the transport.
  explicit InProcessTransport(std::vector<ServerCore*> cores) : cores_(std::move(cores)) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    wire::PullRequest request;
    request.header = call.header;
    request.kind = call.kind;
    request.step = call.step;
    request.staleness_steps = call.staleness_steps;
    request.after_step = call.after_step;
    for (const PullSlice& slice : call.tables) {
      request.tables.push_back({slice.table, request.keys.size(), slice.keys.size()});
      request.keys.insert(request.keys.end(), slice.keys.begin(), slice.keys.end());
    }
    ServerCore* core = cores_[server.value()];
    core->Pull(request, [core, tables = call.tables,
                         done = std::move(done)](absl::StatusOr<wire::PullAnswer> answer) {
      if (answer.ok() && answer->readiness == wire::Readiness::kReady) {
        for (const PullSlice& slice : tables) {
          core->ReadRows(slice.table, slice.keys, reinterpret_cast<uint8_t*>(slice.rows.data()));
        }
      }
      done(std::move(answer));
    });
  }

  void Push(ServerIndex server, const PushCall& call, int64_t,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    wire::PushPart part;
    part.header = call.header;
    part.first_step = call.first_step;
    part.last_step = call.last_step;
    part.part = call.part;
    part.num_parts = call.num_parts;
    part.learning_rate = call.learning_rate;
    for (const PushSlice& slice : call.tables) {
      part.tables.push_back({slice.table, slice.kind, part.keys.size(), slice.keys.size(),
                             part.values.size(), slice.values.size()});
      part.keys.insert(part.keys.end(), slice.keys.begin(), slice.keys.end());
      part.counts.insert(part.counts.end(), slice.counts.begin(), slice.counts.end());
      part.values.insert(part.values.end(), slice.values.begin(), slice.values.end());
    }
    cores_[server.value()]->Push(std::move(part), std::move(done));
  }

 private:
  const std::vector<ServerCore*> cores_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TRAINING_IN_PROCESS_TRANSPORT_H_
