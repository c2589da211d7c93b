// The calls that the job machine wants made to servers and workers, over gRPC.
#ifndef THERMOCLINE_DEPLOY_RUNNER_PROCESS_CALLS_H_
#define THERMOCLINE_DEPLOY_RUNNER_PROCESS_CALLS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/net/control_client.h"
#include "deploy/job/checkpoint_operations.h"
#include "deploy/job/job_actions.h"
#include "deploy/report/stats_table.h"
#include "proto/job.pb.h"

namespace thermocline {

// The connections of one generation. Thread-safe. Each call blocks until it is answered, at most
// for its timeout.
class ProcessCalls {
 public:
  // `job` must outlive it. trace_directory: where processes write their traces, if the job has one.
  ProcessCalls(const Job& job, uint64_t generation, std::string trace_directory = "");

  // The process serves at `address`: calls go to it over a new connection. (gRPC waits for seconds
  // before it retries a connection that has failed.) Errors: those of ControlClient::Create.
  absl::Status Connect(ProcessRole role, size_t index, const std::string& address);
  // Its calls fail from now on.
  void Disconnect(ProcessRole role, size_t index);
  // No further call begins, since a server that stops waits a while for its clients.
  void End();

  absl::Status Configure(const action::Configure& configure) const;
  // WorkerStats has only workers that are connected.
  std::vector<ServerReport> ServerStats(absl::Duration timeout) const;
  std::vector<WorkerReport> WorkerStats(absl::Duration timeout) const;
  CheckpointAnswers Call(const std::vector<CheckpointCall>& calls);
  // By rank, as in `decide`: whether a worker answered. A refusal counts as an answer: that worker
  // does not wait for the decision.
  std::vector<bool> Decide(const action::Decide& decide) const;
  // By rank, as in `introduce`. A worker that is not connected has not answered.
  std::vector<absl::Status> Introduce(const action::Introduce& introduce) const;
  absl::StatusOr<Digest> GetDigest(const action::AskDigest& ask) const;

 private:
  using Client = std::shared_ptr<ControlClient>;

  Client Server(size_t index) const;
  Client Worker(size_t rank) const;
  absl::StatusOr<CheckpointReply> CallOne(const CheckpointCall& call);
  absl::StatusOr<GetDigestReply> AwaitDigest(const action::AskDigest& ask, size_t index) const;
  CheckpointRequest Next(CheckpointRequest::Action action, Step step);
  void Learn(const CheckpointReply& reply);

  const Job& job_;
  const uint64_t generation_;
  const std::string trace_directory_;
  mutable absl::Mutex mutex_;
  std::vector<Client> servers_ ABSL_GUARDED_BY(mutex_);  // Null: none.
  std::vector<Client> workers_ ABSL_GUARDED_BY(mutex_);
  CheckpointRequestNumbers numbers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_PROCESS_CALLS_H_
