// The servers that pull_benchmark.cc compares, each in a process of its own; ours also in this one.
#ifndef THERMOCLINE_TESTS_BENCHMARKS_CONTESTANTS_H_
#define THERMOCLINE_TESTS_BENCHMARKS_CONTESTANTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/net/control_client.h"
#include "server/rpc/hosted_server.h"
#include "tests/benchmarks/echo.h"
#include "tests/benchmarks/redis_client.h"
#include "tests/benchmarks/server_process.h"
#include "worker/session/transport.h"

namespace thermocline {

// The requests of one measurement, the time that they took, and the CPU time of both processes.
struct Measured {
  uint64_t calls = 0;
  double seconds = 0;
  double client_cpu_s = 0;
  double server_cpu_s = 0;
};

// A server with one table of Adagrad rows for the keys 0 .. rows-1.
class ThermoclineServer {
 public:
  static absl::StatusOr<std::unique_ptr<ThermoclineServer>> Start(const std::string& program,
                                                                  const std::string& folder,
                                                                  uint32_t dim, uint32_t rows);
  // In this process, as the embedded server of a worker. Its calls need no connections.
  static absl::StatusOr<std::unique_ptr<ThermoclineServer>> StartHere(uint32_t dim, uint32_t rows);

  // Opens the connections that the calls below use. REQUIRES: Start made the server.
  absl::Status Connect(int channels);

  // Reads rows: [n, dim].
  absl::Status Read(absl::Span<const Key> keys, absl::Span<float> rows);

  // Pulls key_sets[i] for i = 0, 1, ... in turn, `in_flight` at a time.
  Measured Pull(const std::vector<std::vector<Key>>& key_sets, int in_flight, double seconds);

  // Pushes gradients for key_sets[i], one push after the other, each in `chunks` chunks that are
  // sent together. The time ends when the last push is applied.
  Measured Push(const std::vector<std::vector<Key>>& key_sets, int chunks, double seconds);

 private:
  explicit ThermoclineServer(uint32_t dim) : dim_(dim) {}
  absl::Status Configure();
  absl::Status Fill(uint32_t rows);
  absl::Status PushStep(absl::Span<const Key> keys, int chunks);
  absl::Status WaitUntilApplied();

  const uint32_t dim_;
  std::string address_;
  std::unique_ptr<ServerProcess> process_;  // Null: the server is in this process.
  std::unique_ptr<HostedServer> hosted_;    // Null: it is in another.
  std::unique_ptr<Transport> transport_;
  Step next_step_;
  std::vector<float> gradients_;  // The gradients of one push.
  std::vector<uint32_t> counts_;
};

// A bare gRPC server that answers every request with the same number of bytes.
class EchoServer {
 public:
  static absl::StatusOr<std::unique_ptr<EchoServer>> Start(EchoKind kind, const std::string& folder,
                                                           size_t request_bytes, size_t reply_bytes,
                                                           int channels);
  Measured Run(int in_flight, double seconds);
  // Makes groups of `chunks` requests at a time, one group after the other. Counts groups.
  Measured RunGroups(int chunks, double seconds);

 private:
  std::unique_ptr<ServerProcess> process_;
  std::unique_ptr<EchoClient> client_;
  size_t reply_bytes_ = 0;
};

// A redis-server without persistence, on a Unix socket, with a row for every key.
class RedisServer {
 public:
  // Copies the rows of `rows_of`.
  static absl::StatusOr<std::unique_ptr<RedisServer>> Start(const std::string& folder, uint32_t dim,
                                                            uint32_t rows,
                                                            ThermoclineServer* rows_of);
  // Reads key_sets[i] in turn. Has a thread and a connection for each of the `in_flight` requests.
  Measured Run(const std::vector<std::vector<Key>>& key_sets, size_t keys_per_command,
               int in_flight, double seconds);
  absl::Status Read(absl::Span<const Key> keys, absl::Span<float> rows);

 private:
  uint32_t dim_ = 0;
  std::string socket_;
  std::unique_ptr<ServerProcess> process_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_BENCHMARKS_CONTESTANTS_H_
