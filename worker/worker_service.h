// A worker's own RPCs: its stats, and the cuts that it is told of.
#ifndef THERMOCLINE_WORKER_WORKER_SERVICE_H_
#define THERMOCLINE_WORKER_WORKER_SERVICE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/request_order.h"
#include "proto/parameter_server.grpc.pb.h"
#include "worker/named_cuts.h"
#include "worker/progress.h"

namespace thermocline {

class WorkerService : public Worker::Service {
 public:
  // `progress` and `cuts` outlive the service.
  WorkerService(std::string job_id, uint64_t epoch, const WorkerProgress* progress, NamedCuts* cuts)
      : job_id_(std::move(job_id)), epoch_(epoch), progress_(progress), cuts_(cuts) {}

  grpc::Status GetStats(grpc::ServerContext*, const GetStatsRequest*, WorkerStats* stats) override;

  // STATUS, NAME_CUT and CALL_OFF; the reply's complete_through is the last step whose push has
  // begun. Errors: FAILED_PRECONDITION (another job or epoch; too late to name this cut; a later
  // request was taken), INVALID_ARGUMENT (an action that isn't a worker's; a sequence that no
  // launcher has).
  grpc::Status Checkpoint(grpc::ServerContext*, const CheckpointRequest* request,
                          CheckpointReply* reply) override;

 private:
  absl::Status Act(const CheckpointRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string job_id_;
  const uint64_t epoch_;
  const WorkerProgress* const progress_;
  NamedCuts* const cuts_;
  absl::Mutex mutex_;  // Requests act one after the other.
  RequestOrder order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_WORKER_SERVICE_H_
