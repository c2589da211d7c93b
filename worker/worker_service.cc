#include "worker/worker_service.h"

#include "absl/strings/str_cat.h"
#include "common/net/status.h"
#include "common/status_macros.h"

namespace thermocline {

grpc::Status WorkerService::GetStats(grpc::ServerContext*, const GetStatsRequest*,
                                     WorkerStats* stats) {
  *stats = progress_->Stats();
  return grpc::Status::OK;
}

grpc::Status WorkerService::Checkpoint(grpc::ServerContext*, const CheckpointRequest* request,
                                       CheckpointReply* reply) {
  const absl::Status status = Act(*request);
  reply->set_complete_through(cuts_->begun().value());
  {
    absl::MutexLock lock(&mutex_);
    reply->set_newest_sequence(order_.newest());
  }
  return ToGrpcStatus(status);
}

absl::Status WorkerService::Act(const CheckpointRequest& request) {
  if (request.job_id() != job_id_ || request.epoch() != epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("this worker trains job '", job_id_, "', epoch ", epoch_, ", not job '",
                     request.job_id(), "', epoch ", request.epoch()));
  }
  if (request.action() == CheckpointRequest::STATUS) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(order_.Take(request.sequence()));
  switch (request.action()) {
    case CheckpointRequest::NAME_CUT:
      return cuts_->Name(Step(request.step()));
    case CheckpointRequest::CALL_OFF:
      cuts_->CallOff(Step(request.step()));
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a worker has nothing to do for action ",
                       CheckpointRequest::Action_Name(request.action())));
  }
}

}  // namespace thermocline
