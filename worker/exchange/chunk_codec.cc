#include "worker/exchange/chunk_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/wire/scan.h"

namespace thermocline {
namespace {

using ::google::protobuf::io::CodedOutputStream;

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

template <typename Message>
absl::StatusOr<Message> Parse(const grpc::ByteBuffer& bytes, absl::string_view name) {
  grpc::Slice slice;
  Message message;
  if (!bytes.DumpToSingleSlice(&slice).ok() ||
      !message.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
    return wire::Malformed(name, bytes.Length());
  }
  return message;
}

absl::StatusOr<std::array<Step, kNumPhases>> StepsOf(
    const google::protobuf::RepeatedField<int64_t>& values, size_t message_bytes) {
  std::array<Step, kNumPhases> steps;
  if (values.size() != static_cast<int>(kNumPhases)) {
    return wire::Malformed("ExchangeReceipt", message_bytes);
  }
  for (size_t p = 0; p < kNumPhases; ++p) steps[p] = Step(values[static_cast<int>(p)]);
  return steps;
}

}  // namespace

grpc::ByteBuffer EncodeHello(const ExchangeHello& hello) {
  ExchangeChunk chunk;
  *chunk.mutable_hello() = hello;
  return Serialize(chunk);
}

absl::StatusOr<ExchangeHello> DecodeHello(const grpc::ByteBuffer& bytes) {
  ASSIGN_OR_RETURN(const ExchangeChunk chunk, Parse<ExchangeChunk>(bytes, "ExchangeChunk"));
  if (!chunk.has_hello() || !chunk.data().empty()) {
    return absl::InvalidArgumentError(
        "the first message of a stream between workers has its "
        "hello alone");
  }
  return chunk.hello();
}

grpc::ByteBuffer EncodeChunk(const BlockChunk& chunk, std::shared_ptr<const BlockBytes> bytes) {
  ExchangeChunk header;
  header.set_step(chunk.id.step.value());
  header.set_phase(static_cast<uint32_t>(chunk.id.phase));
  header.set_kind(static_cast<uint32_t>(chunk.kind));
  header.set_checksum(chunk.checksum);
  header.set_block_bytes(chunk.block_bytes);
  header.set_offset(chunk.offset);
  std::string begin = header.SerializeAsString();
  if (chunk.data.empty()) {
    const grpc::Slice slice(begin);
    return grpc::ByteBuffer(&slice, 1);
  }
  // The last field has only its tag and length here; its bytes are those of the block.
  uint8_t last[16];
  uint8_t* end =
      CodedOutputStream::WriteTagToArray(wire::BytesTag(ExchangeChunk::kDataFieldNumber), last);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(chunk.data.size()), end);
  begin.append(reinterpret_cast<const char*>(last), end - last);
  CHECK_LE(begin.size(), kMaxChunkHeaderBytes);
  using Keeper = std::shared_ptr<const BlockBytes>;
  const grpc::Slice slices[] = {
      grpc::Slice(begin),
      grpc::Slice(
          const_cast<uint8_t*>(chunk.data.data()), chunk.data.size(),
          [](void* keeper) { delete static_cast<Keeper*>(keeper); }, new Keeper(std::move(bytes)))};
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<ReceivedChunk> DecodeChunk(const grpc::ByteBuffer& bytes) {
  BlockChunk chunk;
  uint32_t phase = 0, kind = 0;
  wire::BulkField data;
  RETURN_IF_ERROR(
      wire::ScanMessage(bytes, "ExchangeChunk", [&](wire::CodedInputStream& in, uint32_t tag) {
        switch (tag) {
          case wire::VarintTag(ExchangeChunk::kStepFieldNumber):
            return wire::ReadStep(in, &chunk.id.step);
          case wire::VarintTag(ExchangeChunk::kPhaseFieldNumber):
            return wire::ReadUint32(in, &phase);
          case wire::VarintTag(ExchangeChunk::kKindFieldNumber):
            return wire::ReadUint32(in, &kind);
          case wire::Fixed32Tag(ExchangeChunk::kChecksumFieldNumber):
            return in.ReadLittleEndian32(&chunk.checksum);
          case wire::VarintTag(ExchangeChunk::kBlockBytesFieldNumber):
            return wire::ReadUint64(in, &chunk.block_bytes);
          case wire::VarintTag(ExchangeChunk::kOffsetFieldNumber):
            return wire::ReadUint64(in, &chunk.offset);
          case wire::BytesTag(ExchangeChunk::kDataFieldNumber):
            return wire::ReadBulk(in, &data);
          case wire::BytesTag(ExchangeChunk::kHelloFieldNumber):
            return false;  // Only in a stream's first message.
          default:
            return wire::WireFormatLite::SkipField(&in, tag);
        }
      }));
  if (phase >= kNumPhases || kind > static_cast<uint32_t>(BlockKind::kFailed)) {
    return wire::Malformed("ExchangeChunk", bytes.Length());
  }
  chunk.id.phase = static_cast<Phase>(phase);
  chunk.kind = static_cast<BlockKind>(kind);
  ReceivedChunk received;
  if (!bytes.Dump(&received.memory).ok()) return wire::Malformed("ExchangeChunk", bytes.Length());
  size_t slice_begin = 0;  // Where the slice begins in the message.
  for (const grpc::Slice& slice : received.memory) {
    const size_t from = std::max(slice_begin, data.offset);
    const size_t to = std::min(slice_begin + slice.size(), data.offset + data.bytes);
    if (from < to) {
      chunk.data = {slice.begin() + (from - slice_begin), to - from};
      received.pieces.push_back(chunk);
      chunk.offset += to - from;
    }
    slice_begin += slice.size();
  }
  if (received.pieces.empty()) received.pieces.push_back(chunk);
  return received;
}

grpc::ByteBuffer EncodeReceipt(const Receipt& receipt) {
  ExchangeReceipt message;
  for (const Step step : receipt.received) message.add_received(step.value());
  for (const Step step : receipt.taken) message.add_taken(step.value());
  return Serialize(message);
}

absl::StatusOr<Receipt> DecodeReceipt(const grpc::ByteBuffer& bytes) {
  ASSIGN_OR_RETURN(const ExchangeReceipt message, Parse<ExchangeReceipt>(bytes, "ExchangeReceipt"));
  Receipt receipt;
  ASSIGN_OR_RETURN(receipt.received, StepsOf(message.received(), bytes.Length()));
  ASSIGN_OR_RETURN(receipt.taken, StepsOf(message.taken(), bytes.Length()));
  return receipt;
}

}  // namespace thermocline
