// The actions that a job machine wants carried out, and what it reports to users.
#ifndef THERMOCLINE_DEPLOY_JOB_JOB_ACTIONS_H_
#define THERMOCLINE_DEPLOY_JOB_JOB_ACTIONS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "deploy/job/checkpoint_operations.h"
#include "deploy/job/evaluations.h"
#include "deploy/job/generation.h"
#include "deploy/job/process.h"
#include "deploy/report/stats_table.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {
namespace action {

// Makes the generation the current one, durably, before anything is done in it; server logs begin
// empty. Answer: Opened.
struct Open {
  GenerationStart start;
};
// Answers: ProcessStarted and ProcessEnded, or NotStarted.
struct StartProcess {
  ProcessId id;
  std::string host;  // "": this machine.
  // For a server: where it listened before; "": a free port.
  std::string address;
  // For a worker. An embedded server has first_step and data_place, too: its process is the
  // worker's.
  uint32_t local_rank = 0;  // Among the workers of its host.
  Step first_step;
  std::string data_place;            // Where its data go on, as the base has it.
  std::vector<std::string> servers;  // [num_servers] addresses
};
// Gives a server its shard, with the rows of `base`; "": with no rows. Answer: Configured.
struct Configure {
  ProcessId id;
  std::string base;
  uint64_t base_generation = 0;  // The generation that made it; 0: any.
};
// Answer: StatusAnswered.
struct AskStatus {
  uint64_t generation = 0;
  absl::Duration timeout;
};
struct CallProcesses {  // Answer: CheckpointAnswered.
  uint64_t generation = 0;
  std::vector<CheckpointCall> calls;
};
struct Commit {  // Answer: Committed.
  uint64_t generation = 0;
  CommitCheckpoint checkpoint;
};
struct Remove {  // Answer: Removed.
  uint64_t generation = 0;
  RemoveCheckpoints removal;
};
// Gives workers the decision on an evaluation. Answer: Decided.
struct Decide {
  uint64_t generation = 0;
  std::vector<uint32_t> ranks;
  Step step;
  bool stop = false;
  std::string data_place;  // As EvaluationBoard::Decision.
};
// Gives workers the addresses of all workers. Answer: Introduced.
struct Introduce {
  uint64_t generation = 0;
  std::vector<uint32_t> ranks;
  std::vector<std::string> addresses;  // [num_workers]
};
// Asks for the digest of the model after the step `last`. Answer: DigestReady; kDataLoss: a server
// has another step; kUnavailable: a server does not answer.
struct AskDigest {
  uint64_t generation = 0;
  Step last;
  absl::Duration timeout;
};
// Writes the reports of workers and servers. Answer: ResultWritten.
struct WriteResult {
  absl::StatusOr<Digest> digest;
  absl::Status last_checkpoint;  // Why the last step has no checkpoint, or OK.
  std::vector<ServerReport> servers;
  GenerationStart start;
};
// Stops all processes, workers first. They may take `grace` to end by themselves. Answer:
// AllStopped.
struct StopProcesses {
  absl::Duration grace;
};
struct AnswerRequest {
  CheckpointAnswer answer;
};
// The last action. Where checkpoints are written, HISTORY gets the outcome first.
struct Finish {
  GenerationOutcome outcome;
};
struct Tell {  // A line for users. The actions below are for users, too.
  std::string text;
};
struct ReportServersUp {  // All servers are configured.
  std::vector<std::string> addresses;
};
struct ReportAddresses {
  std::vector<std::string> servers;
  std::vector<std::string> workers;  // By rank; "": it has ended. Empty: none is started yet.
};
struct ReportTrainingDone {};
struct ReportStart {  // `event` is "resume" or "rollback"; training goes on from `start`.
  std::string event, reason;
  GenerationStart start;
  std::string process;  // The first process that was lost before a rollback; "": none was.
};
struct ReportLimit {  // A limit of the job file was reached.
  std::string field, reason;
  uint32_t limit = 0;
};
struct ReportRestart {
  std::string process, reason;
};
struct ReportCheckpoint {
  CheckpointEvent event;
};
struct ReportEvaluation {
  EvaluationEvent event;
};

}  // namespace action

using JobAction =
    std::variant<action::Open, action::StartProcess, action::Configure, action::AskStatus,
                 action::CallProcesses, action::Commit, action::Remove, action::Decide,
                 action::Introduce, action::AskDigest, action::WriteResult, action::StopProcesses,
                 action::AnswerRequest, action::Finish, action::Tell, action::ReportServersUp,
                 action::ReportAddresses, action::ReportTrainingDone, action::ReportStart,
                 action::ReportLimit, action::ReportRestart, action::ReportCheckpoint,
                 action::ReportEvaluation>;

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_JOB_ACTIONS_H_
