#include "common/wire/scan.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline::wire {

bool ReadLength(CodedInputStream& in, int* length) {
  const int begin = in.CurrentPosition();
  return in.ReadVarintSizeAsInt(length) && in.CurrentPosition() - begin <= kMaxVarint32Bytes &&
         *length <= in.BytesUntilLimit();
}

bool ReadBulk(CodedInputStream& in, BulkField* field) {
  int length;
  if (!ReadLength(in, &length)) return false;
  field->offset = static_cast<size_t>(in.CurrentPosition());
  field->bytes = static_cast<size_t>(length);
  return in.Skip(length);
}

bool ReadUint64(CodedInputStream& in, uint64_t* value) {
  uint64_t varint;
  if (!in.ReadVarint64(&varint)) return false;
  *value = varint;
  return true;
}

bool ReadUint32(CodedInputStream& in, uint32_t* value) {
  uint64_t varint;
  if (!in.ReadVarint64(&varint)) return false;
  *value = static_cast<uint32_t>(varint);
  return true;
}

bool ReadBool(CodedInputStream& in, bool* value) {
  uint64_t varint;
  if (!in.ReadVarint64(&varint)) return false;
  *value = varint != 0;
  return true;
}

bool ReadStep(CodedInputStream& in, Step* step) {
  uint64_t varint;
  if (!in.ReadVarint64(&varint)) return false;
  *step = Step(WireFormatLite::ZigZagDecode64(varint));
  return true;
}

bool ReadFloat(CodedInputStream& in, float* value) {
  uint32_t bits;
  if (!in.ReadLittleEndian32(&bits)) return false;
  std::memcpy(value, &bits, sizeof(bits));
  return true;
}

absl::Status Malformed(absl::string_view message, size_t bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat("malformed ", message, " of ", bytes, " bytes: not its protobuf encoding"));
}

void CopyBulk(const grpc::ByteBuffer& bytes, std::vector<BulkCopy>* copies) {
  std::sort(copies->begin(), copies->end(),
            [](const BulkCopy& a, const BulkCopy& b) { return a.from.offset < b.from.offset; });
  grpc::ByteBuffer shared(bytes);
  grpc::ProtoBufferReader reader(&shared);
  size_t slice_begin = 0, slice_end = 0;  // in the message
  const char* slice = nullptr;
  for (const BulkCopy& copy : *copies) {
    size_t at = copy.from.offset;
    const size_t end = at + copy.from.bytes;
    char* to = static_cast<char*>(copy.to);
    while (at < end) {
      while (at >= slice_end) {
        const void* data;
        int size;
        CHECK(reader.Next(&data, &size));  // the first pass has read it
        slice = static_cast<const char*>(data);
        slice_begin = slice_end;
        slice_end += static_cast<size_t>(size);
      }
      const size_t n = std::min(end, slice_end) - at;
      std::memcpy(to, slice + (at - slice_begin), n);
      to += n;
      at += n;
    }
  }
}

}  // namespace thermocline::wire
