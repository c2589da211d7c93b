// Reading one protobuf message from a ByteBuffer, in two passes over its slices. The first reads
// every scalar and notes where the bulk bytes are, so that all sizes are checked and known before
// the destination is allocated; the second copies the bulk bytes.
//
// The readers of fields return false on malformed input.
#ifndef THERMOCLINE_COMMON_WIRE_SCAN_H_
#define THERMOCLINE_COMMON_WIRE_SCAN_H_

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace thermocline::wire {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedInputStream;

struct BulkField {
  size_t offset = 0;  // in the message
  size_t bytes = 0;
};

struct BulkCopy {
  BulkField from;
  void* to;  // [from.bytes]
};

constexpr uint32_t VarintTag(uint32_t field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_VARINT);
}
constexpr uint32_t BytesTag(uint32_t field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}
constexpr uint32_t Fixed32Tag(uint32_t field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_FIXED32);
}

// Tags and lengths in longer varints are malformed to protobuf's parser, and so to this one.
inline constexpr int kMaxVarint32Bytes = 5;

// Reads fields up to the current limit. `read_field(tag)` reads one field's value; it hands fields
// it doesn't know, or knows with another wire type, to SkipField, as protobuf does.
template <typename ReadField>
bool ReadMessage(CodedInputStream& in, ReadField read_field) {
  while (true) {
    const int begin = in.CurrentPosition();
    const uint32_t tag = in.ReadTag();
    if (tag == 0) return in.ConsumedEntireMessage();
    if (in.CurrentPosition() - begin > kMaxVarint32Bytes) return false;
    if (WireFormatLite::GetTagFieldNumber(tag) == 0 || !read_field(tag)) return false;
  }
}

bool ReadLength(CodedInputStream& in, int* length);
bool ReadBulk(CodedInputStream& in, BulkField* field);
bool ReadUint64(CodedInputStream& in, uint64_t* value);
bool ReadUint32(CodedInputStream& in, uint32_t* value);
bool ReadBool(CodedInputStream& in, bool* value);
bool ReadStep(CodedInputStream& in, Step* step);
bool ReadFloat(CodedInputStream& in, float* value);

template <typename ReadField>
bool ReadNested(CodedInputStream& in, ReadField read_field) {
  int length;
  if (!ReadLength(in, &length)) return false;
  const CodedInputStream::Limit limit = in.PushLimit(length);
  if (!ReadMessage(in, read_field)) return false;
  in.PopLimit(limit);
  return true;
}

absl::Status Malformed(absl::string_view message, size_t bytes);

// Runs the first pass: `read_field(in, tag)` for each field of the message.
template <typename ReadField>
absl::Status ScanMessage(const grpc::ByteBuffer& bytes, absl::string_view name,
                         ReadField read_field) {
  const size_t length = bytes.Length();
  if (length > INT_MAX) return Malformed(name, length);
  grpc::ByteBuffer shared(bytes);  // the reader wants it mutable; slices are shared, not copied
  grpc::ProtoBufferReader reader(&shared);
  if (!reader.status().ok()) return Malformed(name, length);
  CodedInputStream in(&reader);
  const CodedInputStream::Limit limit = in.PushLimit(static_cast<int>(length));
  if (!ReadMessage(in, [&](uint32_t tag) { return read_field(in, tag); })) {
    return Malformed(name, length);
  }
  in.PopLimit(limit);
  return absl::OkStatus();
}

// The second pass. Sorts the copies by place, as fields may come in any order.
void CopyBulk(const grpc::ByteBuffer& bytes, std::vector<BulkCopy>* copies);

}  // namespace thermocline::wire

#endif  // THERMOCLINE_COMMON_WIRE_SCAN_H_
