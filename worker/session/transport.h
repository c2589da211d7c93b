// Carries a worker's requests to the servers: by gRPC in the program (grpc_transport.h), or to the
// embedded server by calls of functions (worker/embedded/core_transport.h); by a seeded network in
// the simulation. One call is one message. The functions that split a step's work into calls are
// here; the session repeats calls (ps_session.h).
#ifndef THERMOCLINE_WORKER_SESSION_TRANSPORT_H_
#define THERMOCLINE_WORKER_SESSION_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"

namespace thermocline {

// One table's keys in a pull, and where its rows go.
struct PullSlice {
  TableId table;
  absl::Span<const Key> keys;  // [n]
  absl::Span<float> rows;  // [n, dim] or [n, row_floats]; written before `done` runs with kReady.
};

// What is asked of each server, and what is brought to each. [num_servers]
using PullsByServer = std::vector<std::vector<PullSlice>>;
using PushesByServer = std::vector<std::vector<wire::PushSlice>>;

struct PullCall {
  wire::Header header;
  wire::PullKind kind = wire::PullKind::kTrain;
  Step step;
  uint32_t staleness_steps = 0;
  Step after_step = kNoStep;
  bool with_state = false;  // Whether rows are weights and the optimizer state.
  bool count_rows = false;  // Whether the answer is to have row_counts.
  std::vector<PullSlice> tables;
};

struct PushCall {
  wire::Header header;
  Step step;
  uint32_t chunk = 0;
  uint32_t num_chunks = 1;
  float learning_rate = 0;
  std::vector<wire::PushSlice> tables;
  std::vector<wire::RowLimit> row_limits;  // Only in the last chunk.
};

// The messages that a server decodes from the calls, for transports without bytes. They copy keys,
// counts and values once.
wire::PullRequest ToWire(const PullCall& call);
wire::PushChunk ToWire(const PushCall& call);

// Returns the step to which traces count a pull: a READ belongs to none.
inline Step TracedStep(const PullCall& call) {
  return call.kind == wire::PullKind::kTrain ? call.step : kNoStep;
}

// Counts the keys of all tables of a call.
template <typename Call>
size_t NumKeys(const Call& call) {
  size_t keys = 0;
  for (const auto& slice : call.tables) keys += slice.keys.size();
  return keys;
}

// Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  // Both return at once. `done` runs exactly once, on any thread, maybe before they return. The
  // spans of `call` must stay valid until then.
  //   deadline_us: from now; after it the answer is kDeadlineExceeded
  virtual void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
                    std::function<void(absl::StatusOr<wire::PullAnswer>)> done) = 0;
  virtual void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
                    std::function<void(absl::StatusOr<wire::PushAnswer>)> done) = 0;

  // Ends every call, under way or later, with kCancelled as soon as possible, since the session has
  // failed and needs no answers. Returns at once. A transport that several sessions share does
  // nothing.
  virtual void Close() = 0;
};

// The most bytes that a message has beside keys, counts and values: once (with the longest job id),
// and for each of its slices (tags, lengths, table, kind). chunk_split_test.cc compares both with
// the codec.
inline constexpr size_t kMaxHeaderBytes = 384;
inline constexpr size_t kMaxSliceHeaderBytes = 32;

// Returns the number of floats in one row or gradient of a slice.
template <typename Slice>
using WidthOf = absl::FunctionRef<size_t(const Slice&)>;

// Split the work for one server into few calls of about equal size, at most `max_message_bytes`
// each on the wire, in the order of the keys. Only a call with a single key may be larger. Slices
// without keys are dropped; without any key the result is empty.
//
// A pull's keys and rows count together, although they are in two messages: so both keep the limit.
std::vector<std::vector<PullSlice>> SplitPull(absl::Span<const PullSlice> slices,
                                              size_t max_message_bytes,
                                              WidthOf<PullSlice> width_of);
std::vector<std::vector<wire::PushSlice>> SplitPush(absl::Span<const wire::PushSlice> slices,
                                                    size_t max_message_bytes,
                                                    WidthOf<wire::PushSlice> width_of);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_TRANSPORT_H_
