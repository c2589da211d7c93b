// The ParameterServer service: gRPC on one side, ServerCore on the other.
//
// Pull and Push run on gRPC's callback API over raw bytes, so that rows are gathered straight into
// the reply and a held pull holds no thread. The control plane is made of blocking calls on gRPC's
// own threads.
#ifndef THERMOCLINE_SERVER_RPC_PARAMETER_SERVER_SERVICE_H_
#define THERMOCLINE_SERVER_RPC_PARAMETER_SERVER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/task_queue.h"
#include "common/net/rpc.h"
#include "common/trace/process_trace.h"
#include "proto/parameter_server.grpc.pb.h"
#include "server/core/server_core.h"
#include "server/rpc/call_counts.h"

namespace thermocline {

struct ServiceOptions {
  // Largest request taken and largest reply made.
  int max_message_bytes = kDefaultMaxMessageBytes;
  // Where not empty, only this job is taken; else the first job that configures the server.
  std::string job_id;
  // Configure's checkpoint_directory must be below checkpoint_root, and the directory of the
  // checkpoint that the job begins with below init_root, and trace_directory below trace_root. So
  // the user who starts the server decides where it reads and writes, and no caller does. Symbolic
  // links and ".." are resolved. Empty: no directory is taken.
  std::string checkpoint_root;
  std::string init_root;
  std::string trace_root;
  bool is_embedded = false;  // In its worker's process, which the stats say.
  // So many threads take pushes, apply them, and answer the pulls they release; as many more answer
  // readers. At least 2, so that one takes pushes while another applies a step.
  int handler_threads = 2;
  // Pulls and pushes have separate limits: held pulls must not keep out the push that releases
  // them. Pulls of training and of readers have separate limits, too, of the same size.
  uint64_t max_pulls = 8192;              // Held pulls included.
  uint64_t max_pull_bytes = 1ull << 30;   // Pulls' requests, encoded and decoded.
  uint64_t max_reply_bytes = 1ull << 30;  // Replies that aren't sent yet.
  uint64_t max_pushes = 1024;             // Pushes that the core doesn't have yet.
  uint64_t max_push_bytes = 1ull << 30;

  // Admitted calls never hold more bytes.
  uint64_t max_bytes_in_flight() const {
    return 2 * (max_pull_bytes + max_reply_bytes) + max_push_bytes;
  }
};

class ParameterServerService final
    : public ParameterServer::WithRawCallbackMethod_Pull<
          ParameterServer::WithRawCallbackMethod_Push<ParameterServer::Service>> {
 public:
  // REQUIRES: `core` outlives the service, and its Shutdown is called before the gRPC server's.
  ParameterServerService(const ServiceOptions& options, ServerCore* core);
  // REQUIRES: the gRPC server has shut down.
  ~ParameterServerService() override;

  grpc::ServerUnaryReactor* Pull(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Push(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) override;

  grpc::Status Configure(grpc::ServerContext* context, const ConfigureRequest* request,
                         ConfigureReply* reply) override;
  grpc::Status GetStats(grpc::ServerContext* context, const GetStatsRequest* request,
                        ServerStats* stats) override;
  grpc::Status Checkpoint(grpc::ServerContext* context, const CheckpointRequest* request,
                          CheckpointReply* reply) override;
  grpc::Status GetDigest(grpc::ServerContext* context, const GetDigestRequest* request,
                         GetDigestReply* reply) override;

  // Where calls count that reach the core past gRPC (worker/embedded/core_transport.h).
  MethodStats* pull_stats(wire::PullKind kind) { return &LaneOf(kind)->stats; }
  MethodStats* push_stats() { return &push_stats_; }

 private:
  class PullReactor;
  class PushReactor;

  // The pulls of one kind on their way through the server.
  struct PullLane {
    PullLane(const ServiceOptions& options, const char* name)
        : requests(options.max_pulls, options.max_pull_bytes),
          replies(options.max_pulls, options.max_reply_bytes),
          stats(name),
          threads(options.handler_threads) {}

    Admission requests;
    Admission replies;
    MethodStats stats;
    TaskQueue threads;  // Last: its tasks use what is above.
  };
  PullLane* LaneOf(wire::PullKind kind) { return kind == wire::PullKind::kRead ? &read_ : &train_; }

  absl::StatusOr<ServerCore::DigestAnswer> ComputeDigest(const GetDigestRequest& request);
  absl::StatusOr<CheckpointReply> TakeCheckpoint(const CheckpointRequest& request);
  absl::Status ConfigureCore(const grpc::AuthContext& peer, const ConfigureRequest& request);
  void BeginTrace(const ConfigureRequest& request);
  // "Pull at server 1": how errors begin.
  std::string Where(const char* method) const;
  absl::Status CheckRequestBytes(size_t bytes) const;

  const ServiceOptions options_;
  ServerCore* const core_;
  std::atomic<int64_t> server_index_{-1};  // -1: not configured
  absl::Mutex trace_mutex_;
  std::optional<ProcessTrace> trace_ ABSL_GUARDED_BY(trace_mutex_);

  Admission push_admission_;
  MethodStats push_stats_{"Push"};
  MethodStats configure_stats_{"Configure"};
  MethodStats get_stats_stats_{"GetStats"};
  MethodStats get_digest_stats_{"GetDigest"};
  MethodStats checkpoint_stats_{"Checkpoint"};
  // Last: their threads use the members above.
  PullLane read_;
  PullLane train_;  // Its threads take pushes, too.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_RPC_PARAMETER_SERVER_SERVICE_H_
