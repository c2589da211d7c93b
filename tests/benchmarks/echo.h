// The bare gRPC that a pull or a push is compared with: requests and replies of given sizes, on the
// same callback API, with the same settings and the same number of connections, and no work at all.
// The server sends one ready slice again and again; the client drops what it receives unread.
#ifndef THERMOCLINE_TESTS_BENCHMARKS_ECHO_H_
#define THERMOCLINE_TESTS_BENCHMARKS_ECHO_H_

#include <grpcpp/generic/generic_stub.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace thermocline {

// Serves replies of `reply_bytes` on a free port of 127.0.0.1 until the process is killed.
int ServeEcho(size_t reply_bytes, int max_message_bytes, const std::string& port_file);

class EchoClient {
 public:
  EchoClient(const std::string& address, int channels, int max_message_bytes, size_t request_bytes);
  // Thread-safe. `done` gets the reply's size.
  void Call(std::function<void(absl::Status, size_t)> done);

 private:
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::atomic<uint32_t> next_stub_{0};
  grpc::ByteBuffer request_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_BENCHMARKS_ECHO_H_
