// Encodes and decodes chunks and receipts as the bytes of ExchangeChunk and ExchangeReceipt
// (parameter_server.proto). A chunk's data are not copied: gRPC sends them from where they are, and
// a received chunk's data are in gRPC's own slices.
#ifndef THERMOCLINE_WORKER_EXCHANGE_CHUNK_CODEC_H_
#define THERMOCLINE_WORKER_EXCHANGE_CHUNK_CODEC_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/parameter_server.pb.h"
#include "worker/exchange/block.h"

namespace thermocline {

// A chunk's message has at most this many bytes beside its data.
inline constexpr size_t kMaxChunkHeaderBytes = 64;

grpc::ByteBuffer EncodeHello(const ExchangeHello& hello);
// `bytes` own chunk.data; the buffer keeps them until gRPC has sent them.
grpc::ByteBuffer EncodeChunk(const BlockChunk& chunk, std::shared_ptr<const BlockBytes> bytes);
grpc::ByteBuffer EncodeReceipt(const Receipt& receipt);

// The errors of all three: kInvalidArgument (malformed, or no such phase or kind of block).
absl::StatusOr<ExchangeHello> DecodeHello(const grpc::ByteBuffer& bytes);
// A chunk that was received. gRPC has its data in several slices, so it is several smaller chunks,
// in order.
struct ReceivedChunk {
  std::vector<BlockChunk> pieces;   // At least one.
  std::vector<grpc::Slice> memory;  // Owns their data.
};
absl::StatusOr<ReceivedChunk> DecodeChunk(const grpc::ByteBuffer& bytes);
absl::StatusOr<Receipt> DecodeReceipt(const grpc::ByteBuffer& bytes);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_CHUNK_CODEC_H_
