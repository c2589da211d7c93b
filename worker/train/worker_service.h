// A worker's own RPCs: its stats, the launcher's orders (launcher_orders.h), and the exchange with
// the other workers (worker/exchange).
#ifndef THERMOCLINE_WORKER_TRAIN_WORKER_SERVICE_H_
#define THERMOCLINE_WORKER_TRAIN_WORKER_SERVICE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/request_order.h"
#include "proto/parameter_server.grpc.pb.h"
#include "worker/exchange/grpc_exchange_server.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/progress.h"

namespace thermocline {

class WorkerService : public Worker::WithRawCallbackMethod_Exchange<Worker::Service> {
 public:
  // All but the ids outlive the service, `exchange` the gRPC server as well.
  WorkerService(std::string job_id, uint64_t generation, const WorkerProgress* progress,
                NamedCheckpoints* checkpoints, EvaluationDecisions* decisions,
                GrpcExchangeServer* exchange)
      : job_id_(std::move(job_id)),
        generation_(generation),
        progress_(progress),
        checkpoints_(checkpoints),
        decisions_(decisions),
        exchange_(exchange) {}

  grpc::Status GetStats(grpc::ServerContext*, const GetStatsRequest*, WorkerStats* stats) override;

  // STATUS, NAME_CUT and CALL_OFF; the reply's complete_through is the last step whose push has
  // begun, accepted_through the last that every server has acknowledged. Errors:
  // FAILED_PRECONDITION (another job or generation; too late for this checkpoint; a later
  // request was taken), INVALID_ARGUMENT (an action that workers do not have; a sequence out of the
  // range of launchers).
  grpc::Status Checkpoint(grpc::ServerContext*, const CheckpointRequest* request,
                          CheckpointReply* reply) override;

  // Errors: FAILED_PRECONDITION (another job or generation).
  grpc::Status Decide(grpc::ServerContext*, const EvaluationDecision* decision,
                      EvaluationDecisionReply* reply) override;

  // Errors of both: GrpcExchangeServer.
  grpc::Status Introduce(grpc::ServerContext*, const WorkerPeers* peers,
                         WorkerPeersReply*) override;
  GrpcExchangeServer::Reactor* Exchange(grpc::CallbackServerContext* context) override;

 private:
  absl::Status CheckJob(const std::string& job_id, uint64_t generation) const;
  absl::Status Act(const CheckpointRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string job_id_;
  const uint64_t generation_;
  const WorkerProgress* const progress_;
  NamedCheckpoints* const checkpoints_;
  EvaluationDecisions* const decisions_;
  GrpcExchangeServer* const exchange_;
  absl::Mutex mutex_;  // Requests act one after the other.
  RequestOrder order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_WORKER_SERVICE_H_
