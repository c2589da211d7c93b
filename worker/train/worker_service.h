// A worker's own RPCs: its stats, the cuts that it is told of, and what follows from evaluations.
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
#include "worker/train/evaluation.h"
#include "worker/train/named_cuts.h"
#include "worker/train/progress.h"

namespace thermocline {

class WorkerService : public Worker::Service {
 public:
  // `progress`, `cuts` and `decisions` outlive the service.
  WorkerService(std::string job_id, uint64_t generation, const WorkerProgress* progress,
                NamedCuts* cuts, EvaluationDecisions* decisions)
      : job_id_(std::move(job_id)),
        generation_(generation),
        progress_(progress),
        cuts_(cuts),
        decisions_(decisions) {}

  grpc::Status GetStats(grpc::ServerContext*, const GetStatsRequest*, WorkerStats* stats) override;

  // STATUS, NAME_CUT and CALL_OFF; the reply's complete_through is the last step whose push has
  // begun, accepted_through the last that every server has acknowledged. Errors:
  // FAILED_PRECONDITION (another job or generation; too late to name this cut; a later request was
  // taken), INVALID_ARGUMENT (an action that isn't a worker's; a sequence that no launcher has).
  grpc::Status Checkpoint(grpc::ServerContext*, const CheckpointRequest* request,
                          CheckpointReply* reply) override;

  // Errors: FAILED_PRECONDITION (another job or generation).
  grpc::Status Decide(grpc::ServerContext*, const EvaluationDecision* decision,
                      EvaluationDecisionReply* reply) override;

 private:
  absl::Status CheckJob(const std::string& job_id, uint64_t generation) const;
  absl::Status Act(const CheckpointRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string job_id_;
  const uint64_t generation_;
  const WorkerProgress* const progress_;
  NamedCuts* const cuts_;
  EvaluationDecisions* const decisions_;
  absl::Mutex mutex_;  // Requests act one after the other.
  RequestOrder order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_WORKER_SERVICE_H_
