// The data plane's messages as bytes: exactly those of the messages in
// proto/parameter_server.proto, without going through protobuf's classes. Keys and rows are copied
// once, between their place in memory and the gRPC slice.
//
// Decoding takes bytes from any sender: every length is checked before anything is allocated, and
// what is allocated is bounded by the message's own size.
#ifndef THERMOCLINE_COMMON_WIRE_CODEC_H_
#define THERMOCLINE_COMMON_WIRE_CODEC_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"

namespace thermocline::wire {

// Most tables a message may name: a bound on what decoding allocates.
inline constexpr size_t kMaxTablesPerMessage = 16384;

// ---- The client's side: requests from spans, replies into spans. Views borrow the memory that
// they point to.

struct PullTableView {
  TableId table;
  absl::Span<const Key> keys;  // [n]
};
struct PullView {
  const Header& header;
  PullKind kind = PullKind::kTrain;
  Step step;
  uint32_t staleness_steps = 0;
  Step after_step = kNoStep;
  absl::Span<const PullTableView> tables;
  bool with_state = false;
  bool count_rows = false;
};
size_t EncodedBytes(const PullView& pull);
grpc::ByteBuffer Encode(const PullView& pull);

struct PushView {
  const Header& header;
  Step step;
  uint32_t chunk = 0;
  uint32_t num_chunks = 1;
  float learning_rate = 0;
  absl::Span<const PushSlice> tables;
  absl::Span<const RowLimit> row_limits;
};
size_t EncodedBytes(const PushView& push);
grpc::ByteBuffer Encode(const PushView& push);

// Where the rows of one table of a pull go.
struct RowsView {
  TableId table;
  absl::Span<float> rows;  // [n, dim]; with_state: [n, row_floats]
};
// Writes the rows of a kReady reply into `tables`, in order; leaves them alone otherwise.
// Errors: kInternal (malformed, other tables than asked for, rows of the wrong size; nothing is
// written then).
absl::StatusOr<PullAnswer> DecodePullReply(const grpc::ByteBuffer& bytes,
                                           absl::Span<const RowsView> tables);
absl::StatusOr<PushAnswer> DecodePushReply(const grpc::ByteBuffer& bytes);

// ---- The server's side.

// Errors of both: kInvalidArgument (malformed; keys, counts or values of the wrong size; unknown
// kind). Values must be the same number of floats for every key; how many is checked by the callers
// that know the table.
absl::StatusOr<PullRequest> DecodePullRequest(const grpc::ByteBuffer& bytes);
// The kind as DecodePullRequest returns it, without allocating anything for the request; kTrain
// where decoding would fail.
PullKind PeekPullKind(const grpc::ByteBuffer& bytes);
absl::StatusOr<PushChunk> DecodePushChunk(const grpc::ByteBuffer& bytes);

grpc::ByteBuffer Encode(const PushAnswer& answer);

// The reply to a pull, in one slice that the caller gathers rows into.
class PullReplyBuilder {
 public:
  struct Table {
    TableId table;
    size_t rows_bytes = 0;  // of n rows, with or without state
  };
  static size_t EncodedBytes(const PullAnswer& answer, absl::Span<const Table> tables);

  PullReplyBuilder(const PullAnswer& answer, absl::Span<const Table> tables);
  PullReplyBuilder(const PullReplyBuilder&) = delete;
  PullReplyBuilder& operator=(const PullReplyBuilder&) = delete;

  // Where the rows of tables[i] go: [rows_bytes], any alignment, not initialized.
  uint8_t* rows(size_t i) { return rows_[i]; }

  // REQUIRES: every row is written. Ends the builder.
  grpc::ByteBuffer Finish() &&;

 private:
  grpc::Slice slice_;
  std::vector<uint8_t*> rows_;
};

}  // namespace thermocline::wire

#endif  // THERMOCLINE_COMMON_WIRE_CODEC_H_
