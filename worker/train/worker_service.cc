#include "worker/train/worker_service.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/rpc.h"

namespace thermocline {

grpc::Status WorkerService::GetStats(grpc::ServerContext*, const GetStatsRequest*,
                                     WorkerStats* stats) {
  *stats = progress_->Stats();
  return grpc::Status::OK;
}

grpc::Status WorkerService::Checkpoint(grpc::ServerContext*, const CheckpointRequest* request,
                                       CheckpointReply* reply) {
  const absl::Status status = Act(*request);
  reply->set_complete_through(checkpoints_->begun().value());
  reply->set_accepted_through(progress_->AckedThrough().value());
  {
    absl::MutexLock lock(&mutex_);
    reply->set_newest_sequence(order_.newest());
  }
  return ToGrpcStatus(status);
}

grpc::Status WorkerService::Decide(grpc::ServerContext*, const EvaluationDecision* decision,
                                   EvaluationDecisionReply*) {
  const absl::Status status = CheckJob(decision->job_id(), decision->generation());
  if (status.ok()) {
    decisions_->Take(Step(decision->step()), decision->stop(), decision->data_place());
  }
  return ToGrpcStatus(status);
}

grpc::Status WorkerService::Introduce(grpc::ServerContext*, const WorkerPeers* peers,
                                      WorkerPeersReply*) {
  return ToGrpcStatus(exchange_->Introduce(*peers));
}

GrpcExchangeServer::Reactor* WorkerService::Exchange(grpc::CallbackServerContext* context) {
  return exchange_->Exchange(context);
}

absl::Status WorkerService::CheckJob(const std::string& job_id, uint64_t generation) const {
  if (job_id == job_id_ && generation == generation_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this worker trains job '", job_id_,
                                                    "', generation ", generation_, ", not job '",
                                                    job_id, "', generation ", generation));
}

absl::Status WorkerService::Act(const CheckpointRequest& request) {
  RETURN_IF_ERROR(CheckJob(request.job_id(), request.generation()));
  if (request.action() == CheckpointRequest::STATUS) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(order_.Take(request.sequence()));
  switch (request.action()) {
    case CheckpointRequest::NAME_CUT:
      return checkpoints_->Name(Step(request.step()));
    case CheckpointRequest::CALL_OFF:
      checkpoints_->CallOff(Step(request.step()));
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a worker has nothing to do for action ",
                       CheckpointRequest::Action_Name(request.action())));
  }
}

}  // namespace thermocline
