#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpc/slice.h>

#include <cstring>

#include "common/base/check.h"
#include "common/wire/codec.h"
#include "common/wire/fields.h"

namespace thermocline::wire {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedOutputStream;

// Every message is emitted twice by the same code: into a SizeSink to learn its size, then into an
// ArraySink. As proto3 wants it, a scalar of zero and an empty string leave no bytes, unless they
// are optional.
class SizeSink {
 public:
  size_t size() const { return size_; }

  void Tag(uint32_t field, WireFormatLite::WireType type) {
    size_ += CodedOutputStream::VarintSize32(WireFormatLite::MakeTag(field, type));
  }
  void RawVarint(uint64_t value) { size_ += CodedOutputStream::VarintSize64(value); }
  void RawFixed32(uint32_t) { size_ += 4; }
  void RawBytes(const void*, size_t n) { size_ += n; }
  uint8_t* Reserve(size_t n) {
    size_ += n;
    return nullptr;
  }

 private:
  size_t size_ = 0;
};

class ArraySink {
 public:
  explicit ArraySink(uint8_t* begin) : next_(begin) {}
  const uint8_t* next() const { return next_; }

  void Tag(uint32_t field, WireFormatLite::WireType type) {
    next_ = CodedOutputStream::WriteTagToArray(WireFormatLite::MakeTag(field, type), next_);
  }
  void RawVarint(uint64_t value) { next_ = CodedOutputStream::WriteVarint64ToArray(value, next_); }
  void RawFixed32(uint32_t value) {
    next_ = CodedOutputStream::WriteLittleEndian32ToArray(value, next_);
  }
  void RawBytes(const void* data, size_t n) {
    std::memcpy(next_, data, n);
    next_ += n;
  }
  uint8_t* Reserve(size_t n) {
    uint8_t* begin = next_;
    next_ += n;
    return begin;
  }

 private:
  uint8_t* next_;
};

template <typename Sink>
void Unsigned(Sink& sink, uint32_t field, uint64_t value) {
  if (value == 0) return;
  sink.Tag(field, WireFormatLite::WIRETYPE_VARINT);
  sink.RawVarint(value);
}

template <typename Sink>
void Signed(Sink& sink, uint32_t field, int64_t value) {
  Unsigned(sink, field, WireFormatLite::ZigZagEncode64(value));
}

// kNoStep leaves no bytes; step 0 leaves some.
template <typename Sink>
void OptionalStep(Sink& sink, uint32_t field, Step step) {
  if (step == kNoStep) return;
  sink.Tag(field, WireFormatLite::WIRETYPE_VARINT);
  sink.RawVarint(WireFormatLite::ZigZagEncode64(step.value()));
}

template <typename Sink>
void Float(Sink& sink, uint32_t field, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (bits == 0) return;
  sink.Tag(field, WireFormatLite::WIRETYPE_FIXED32);
  sink.RawFixed32(bits);
}

template <typename Sink>
void Length(Sink& sink, uint32_t field, size_t length) {
  sink.Tag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  sink.RawVarint(length);
}

template <typename Sink, typename T>
void Bytes(Sink& sink, uint32_t field, absl::Span<const T> values) {
  if (values.empty()) return;
  const size_t bytes = values.size() * sizeof(T);
  Length(sink, field, bytes);
  sink.RawBytes(values.data(), bytes);
}

template <typename Sink, typename Message>
void Nested(Sink& sink, uint32_t field, const Message& message) {
  SizeSink size;
  Emit(size, message);
  Length(sink, field, size.size());
  Emit(sink, message);
}

template <typename Sink>
void Emit(Sink& sink, const Header& header) {
  Bytes(sink, fields::kHeaderJobId, absl::MakeConstSpan(header.job_id));
  Unsigned(sink, fields::kHeaderGeneration, header.generation);
  Unsigned(sink, fields::kHeaderWorkerRank, header.rank.value());
  OptionalStep(sink, fields::kHeaderAckedThrough, header.acked_through);
}

template <typename Sink>
void Emit(Sink& sink, const PullTableView& table) {
  Unsigned(sink, fields::kTableKeysTable, table.table.value());
  Bytes(sink, fields::kTableKeysKeys, table.keys);
}

template <typename Sink>
void Emit(Sink& sink, const PullView& pull) {
  Nested(sink, fields::kPullHeader, pull.header);
  Unsigned(sink, fields::kPullKind, static_cast<uint64_t>(pull.kind));
  Signed(sink, fields::kPullStep, pull.step.value());
  Unsigned(sink, fields::kPullStalenessSteps, pull.staleness_steps);
  OptionalStep(sink, fields::kPullAfterStep, pull.after_step);
  for (const PullTableView& table : pull.tables) Nested(sink, fields::kPullTables, table);
  Unsigned(sink, fields::kPullWithState, pull.with_state ? 1 : 0);
  Unsigned(sink, fields::kPullCountRows, pull.count_rows ? 1 : 0);
}

template <typename Sink>
void Emit(Sink& sink, const PushSlice& table) {
  Unsigned(sink, fields::kTablePushTable, table.table.value());
  Unsigned(sink, fields::kTablePushKind, static_cast<uint64_t>(table.kind));
  Bytes(sink, fields::kTablePushKeys, table.keys);
  Bytes(sink, fields::kTablePushValues, table.values);
  Bytes(sink, fields::kTablePushCounts, table.counts);
}

template <typename Sink>
void Emit(Sink& sink, const RowLimit& limit) {
  Unsigned(sink, fields::kRowLimitTable, limit.table.value());
  Unsigned(sink, fields::kRowLimitOldestKept, limit.oldest_kept);
}

template <typename Sink>
void Emit(Sink& sink, const TableRowCounts& counts) {
  Unsigned(sink, fields::kRowCountsTable, counts.table.value());
  Bytes(sink, fields::kRowCountsNewest, absl::MakeConstSpan(counts.groups));
  Bytes(sink, fields::kRowCountsRows, absl::MakeConstSpan(counts.rows));
}

template <typename Sink>
void Emit(Sink& sink, const PushView& push) {
  Nested(sink, fields::kPushHeader, push.header);
  Signed(sink, fields::kPushStep, push.step.value());
  Unsigned(sink, fields::kPushChunk, push.chunk);
  Unsigned(sink, fields::kPushNumChunks, push.num_chunks);
  Float(sink, fields::kPushLearningRate, push.learning_rate);
  for (const PushSlice& table : push.tables) Nested(sink, fields::kPushTables, table);
  for (const RowLimit& limit : push.row_limits) Nested(sink, fields::kPushRowLimits, limit);
}

template <typename Sink>
void Emit(Sink& sink, const PushAnswer& answer) {
  Unsigned(sink, fields::kReplyReadiness, static_cast<uint64_t>(answer.readiness));
  OptionalStep(sink, fields::kReplyThrough, answer.accepted_through);
}

// A TableRows message without its rows; returns where they go (nullptr from a SizeSink).
template <typename Sink>
uint8_t* EmitRowsHeader(Sink& sink, const PullReplyBuilder::Table& table) {
  Unsigned(sink, fields::kTableRowsTable, table.table.value());
  if (table.rows_bytes > 0) Length(sink, fields::kTableRowsRows, table.rows_bytes);
  return sink.Reserve(table.rows_bytes);
}

template <typename Sink>
void EmitReply(Sink& sink, const PullAnswer& answer,
               absl::Span<const PullReplyBuilder::Table> tables, std::vector<uint8_t*>* rows) {
  Unsigned(sink, fields::kReplyReadiness, static_cast<uint64_t>(answer.readiness));
  OptionalStep(sink, fields::kReplyThrough, answer.complete_through);
  for (const PullReplyBuilder::Table& table : tables) {
    SizeSink size;
    EmitRowsHeader(size, table);
    Length(sink, fields::kPullReplyTables, size.size());
    uint8_t* begin = EmitRowsHeader(sink, table);
    if (rows != nullptr) rows->push_back(begin);
  }
  for (const TableRowCounts& counts : answer.row_counts) {
    Nested(sink, fields::kPullReplyRowCounts, counts);
  }
}

template <typename Message>
size_t SizeOf(const Message& message) {
  SizeSink size;
  Emit(size, message);
  return size.size();
}

grpc::Slice UninitializedSlice(size_t bytes) {
  return grpc::Slice(grpc_slice_malloc(bytes), grpc::Slice::STEAL_REF);
}

// We may write to our own slice until it is handed to gRPC.
uint8_t* Writable(const grpc::Slice& slice) { return const_cast<uint8_t*>(slice.begin()); }

template <typename Message>
grpc::ByteBuffer EncodeMessage(const Message& message) {
  const grpc::Slice slice = UninitializedSlice(SizeOf(message));
  ArraySink sink(Writable(slice));
  Emit(sink, message);
  CHECK(sink.next() == slice.end());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

size_t EncodedBytes(const PullView& pull) { return SizeOf(pull); }
grpc::ByteBuffer Encode(const PullView& pull) { return EncodeMessage(pull); }

size_t EncodedBytes(const PushView& push) { return SizeOf(push); }
grpc::ByteBuffer Encode(const PushView& push) { return EncodeMessage(push); }

grpc::ByteBuffer Encode(const PushAnswer& answer) { return EncodeMessage(answer); }

size_t PullReplyBuilder::EncodedBytes(const PullAnswer& answer, absl::Span<const Table> tables) {
  SizeSink size;
  EmitReply(size, answer, tables, nullptr);
  return size.size();
}

PullReplyBuilder::PullReplyBuilder(const PullAnswer& answer, absl::Span<const Table> tables)
    : slice_(UninitializedSlice(EncodedBytes(answer, tables))) {
  // A short slice lies inside the grpc::Slice object itself, so slice_ must not move from here on.
  rows_.reserve(tables.size());
  ArraySink sink(Writable(slice_));
  EmitReply(sink, answer, tables, &rows_);
  CHECK(sink.next() == slice_.end());
}

grpc::ByteBuffer PullReplyBuilder::Finish() && { return grpc::ByteBuffer(&slice_, 1); }

}  // namespace thermocline::wire
