// Chunks and receipts as the bytes of ExchangeChunk and ExchangeReceipt (parameter_server.proto). A
// chunk's data are not copied on their way to gRPC, and lie in gRPC's own slices on their way back.
#ifndef THERMOCLINE_WORKER_EXCHANGE_CHUNK_CODEC_H_
#define THERMOCLINE_WORKER_EXCHANGE_CHUNK_CODEC_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/messages.h"
#include "proto/parameter_server.pb.h"
#include "worker/exchange/block.h"

namespace thermocline {

// The most bytes of a chunk's message beside its data.
inline constexpr size_t kMaxChunkHeaderBytes = 64;

grpc::ByteBuffer EncodeHello(const ExchangeHello& hello);
// `bytes` keep chunk.data until gRPC has sent them.
grpc::ByteBuffer EncodeChunk(const BlockChunk& chunk, std::shared_ptr<const BlockBytes> bytes);
grpc::ByteBuffer EncodeReceipt(const Receipt& receipt);

// Errors of all: kInvalidArgument (malformed, no such phase or kind of block).
absl::StatusOr<ExchangeHello> DecodeHello(const grpc::ByteBuffer& bytes);
// A chunk in pieces, each a chunk of its own, in order: as its data lie in memory.
struct ReceivedChunk {
  std::vector<BlockChunk> pieces;   // At least one.
  std::vector<grpc::Slice> memory;  // Of their data.
};
absl::StatusOr<ReceivedChunk> DecodeChunk(const grpc::ByteBuffer& bytes);
absl::StatusOr<Receipt> DecodeReceipt(const grpc::ByteBuffer& bytes);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_CHUNK_CODEC_H_
