// The actions that a job machine wants carried out, and what it reports to users.
#ifndef THERMOCLINE_DEPLOY_JOB_JOB_ACTIONS_H_
#define THERMOCLINE_DEPLOY_JOB_JOB_ACTIONS_H_

#include <cstdint>
#include <optional>
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
  std::string host;                       // Where; "": on this machine.
  uint32_t local_rank = 0;                // Of a worker, among those of its host.
  std::string address;                    // Of a server: where it listened before; "": a free port.
  Step first_step;                        // Of a worker, as are the servers' addresses.
  std::optional<ScheduleState> schedule;  // That first_step begins with, as the base has it.
  std::vector<std::string> servers;       // [num_servers]
};
// Gives a server its shard, with the rows of `base`; "": none. Answer: Configured.
struct Configure {
  ProcessId id;
  std::string base;
  uint64_t base_generation = 0;  // That made it; 0: any.
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
// What follows from an evaluation, or a change between hot and cold batches. Answer: Decided.
struct Decide {
  uint64_t generation = 0;
  std::vector<uint32_t> ranks;
  Step step;
  bool stop = false;
  std::optional<ScheduleState> schedule;  // Of a change: what begins with the next step.
};
// Tells workers where all of them serve. Answer: Introduced.
struct Introduce {
  uint64_t generation = 0;
  std::vector<uint32_t> ranks;
  std::vector<std::string> addresses;  // [num_workers]
};
// Of the model after the step `last`. Answer: DigestReady, with
// kDataLoss where a server has another step, kUnavailable where one is not there.
struct AskDigest {
  uint64_t generation = 0;
  Step last;
  absl::Duration timeout;
};
// Keeps what the workers and servers report. Answer: ResultWritten.
struct WriteResult {
  absl::StatusOr<Digest> digest;
  absl::Status last_checkpoint;  // Not OK: why the last step has none.
  std::vector<ServerReport> servers;
  GenerationStart start;
};
// Workers first. `grace`: how long they may take to end by themselves. Answer: AllStopped.
struct StopProcesses {
  absl::Duration grace;
};
struct AnswerRequest {
  CheckpointAnswer answer;
};
// The last action. Where checkpoints are written, HISTORY gets the outcome first.
struct Finish {
  Outcome outcome;
};
// What users see.
struct Tell {
  std::string text;  // A line.
};
struct ReportServersUp {  // All are configured.
  std::vector<std::string> addresses;
};
struct ReportAddresses {
  std::vector<std::string> servers;
  std::vector<std::string> workers;  // By rank; "": it has ended already. Empty: not started yet.
};
struct ReportTrainingDone {};
struct ReportStart {  // "resume", "rollback": what comes after begins at `start`.
  std::string event, reason;
  GenerationStart start;
};
struct ReportLimit {  // Of the job file, that was reached.
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
