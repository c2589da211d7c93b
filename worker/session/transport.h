// How a worker's requests reach the servers: gRPC in the program (grpc_transport.h), a seeded
// network in the simulation. One call is one message; retries and splitting live above
// (ps_session.h).
//
// Thread-safe.
#ifndef THERMOCLINE_WORKER_SESSION_TRANSPORT_H_
#define THERMOCLINE_WORKER_SESSION_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"

namespace thermocline {

// One table's keys in a pull, and where its rows go.
struct PullSlice {
  TableId table;
  absl::Span<const Key> keys;  // [n]
  absl::Span<float> rows;  // [n, dim] or [n, row_floats], written before `done` runs with kReady
};

struct PullCall {
  wire::Header header;
  wire::PullKind kind = wire::PullKind::kTrain;
  Step step;
  uint32_t staleness_steps = 0;
  Step after_step = kNoStep;
  bool with_state = false;  // Rows are weights and the optimizer state.
  std::vector<PullSlice> tables;
};

struct PushCall {
  wire::Header header;
  Step step;
  uint32_t chunk = 0;
  uint32_t num_chunks = 1;
  float learning_rate = 0;
  std::vector<wire::PushSlice> tables;
};

// Keys of all tables of a call.
template <typename Call>
size_t NumKeys(const Call& call) {
  size_t keys = 0;
  for (const auto& slice : call.tables) keys += slice.keys.size();
  return keys;
}

class Transport {
 public:
  virtual ~Transport() = default;

  // Both return at once; `done` runs exactly once, on any thread, maybe before they return. The
  // spans of `call` stay valid until then. `deadline_us`: from now; past it the answer is
  // kDeadlineExceeded.
  virtual void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
                    std::function<void(absl::StatusOr<wire::PullAnswer>)> done) = 0;
  virtual void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
                    std::function<void(absl::StatusOr<wire::PushAnswer>)> done) = 0;

  // A session that failed needs no answers any more: ends every call, under way or later, with
  // kCancelled as soon as may be. Returns at once. A transport that several sessions share does
  // nothing.
  virtual void Close() = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_TRANSPORT_H_
