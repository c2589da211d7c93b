// The bare gRPC that pulls and pushes are compared with: requests and replies of given sizes, on
// the same callback API over raw bytes, with the same settings and the same number of connections.
#ifndef THERMOCLINE_TESTS_BENCHMARKS_ECHO_H_
#define THERMOCLINE_TESTS_BENCHMARKS_ECHO_H_

#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace thermocline {

enum class EchoKind {
  // The bytes go from the server's memory to the client's, as any use of gRPC has it: the server
  // copies them into a new message, the client out of it.
  kDelivered,
  // Only gRPC touches the bytes: the server sends one ready slice again and again, which stays in
  // its caches, and the client drops replies unread.
  kUntouched,
};

// Serves replies of `reply_bytes` on a free port of 127.0.0.1 until the process is killed.
int ServeEcho(EchoKind kind, size_t reply_bytes, int max_message_bytes,
              const std::string& port_file);

class EchoClient {
 public:
  EchoClient(EchoKind kind, const std::string& address, int channels, int max_message_bytes,
             size_t request_bytes);
  // Thread-safe. With kDelivered the reply's bytes go to `reply_bytes`, which has to be large
  // enough.
  void Call(uint8_t* reply_bytes, std::function<void(absl::Status)> done);

 private:
  const EchoKind kind_;
  const std::vector<uint8_t> request_bytes_;
  const grpc::ByteBuffer request_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::atomic<uint32_t> next_stub_{0};
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_BENCHMARKS_ECHO_H_
