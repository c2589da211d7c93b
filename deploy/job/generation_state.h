// What the job machine knows of one generation. The next generation begins with a new one.
#ifndef THERMOCLINE_DEPLOY_JOB_GENERATION_STATE_H_
#define THERMOCLINE_DEPLOY_JOB_GENERATION_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "deploy/job/checkpoint_coordinator.h"
#include "deploy/job/evaluations.h"
#include "deploy/job/generation.h"
#include "deploy/job/placement.h"
#include "deploy/job/process.h"
#include "deploy/job/stall_watch.h"
#include "deploy/report/stats_table.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

// A job that is asked to end tries its last checkpoint again for so long, and may stall so long.
// Agents hold on for 25 s (deploy/nodes/node.cc).
inline constexpr absl::Duration kLastRequestPatience = absl::Seconds(20);

// The stages of a job; JobMachine says what leads from one to the next.
enum class JobStage {
  kOpening,
  kWaitingForHosts,
  kStartingServers,
  kConfiguring,
  kStartingWorkers,
  kTraining,
  kFinishing,
  kAsking,
  kWritingResult,
  kSettling,
  kStopping,
  kEnded,
};

struct GenerationState {
  // What the machine waits for in JobStage::kAsking.
  enum class Ask { kStats, kDigest, kRestart, kRecovery };

  GenerationState(const GenerationStart& first, const Cluster& cluster)
      : start(first),
        processes(first.generation, cluster),
        stall(processes.servers.size()),
        full_disks(processes.servers.size()) {}

  GenerationStart start;
  CheckpointManifest base;  // The manifest of start.base.
  Placement placement;
  ProcessTable processes;
  std::unique_ptr<EvaluationCoordinator> evaluations;  // Null: evaluated at the end only.
  std::unique_ptr<CheckpointCoordinator> checkpoints;  // Null: none are made, or not yet.
  StallWatch stall;
  absl::Duration stall_began, last_write;
  std::optional<uint64_t> checkpoint_bytes;
  std::vector<std::string> full_disks;  // [num_servers], as ServerStats.push_log_full.
  bool is_server_lost = false;          // A server ended and is not started again.
  uint32_t restarts = 0;
  JobStage settles_from = JobStage::kOpening;
  // Times; infinite: nothing is due.
  absl::Duration hosts_deadline = absl::InfiniteDuration();
  absl::Duration startup_deadline = absl::InfiniteDuration();
  absl::Duration settled_at = absl::InfiniteDuration();
  absl::Duration round_at = absl::InfiniteDuration();  // The next round of checkpoints.
  absl::Duration look_at = absl::InfiniteDuration();   // The next look whether anything advances.
  absl::Duration decide_at = absl::InfiniteDuration();
  absl::Duration restart_seen_by = absl::InfiniteDuration();
  absl::Duration introduce_at = absl::InfiniteDuration();
  bool is_status_asked = false, is_final_status = false, is_decision_sent = false;
  bool all_stopped = false, is_result_written = false;
  std::vector<uint32_t> asked_ranks;       // The workers that the decision under way goes to.
  std::vector<uint32_t> introduced_ranks;  // The workers that the introduction under way goes to.
  Ask ask = Ask::kStats;
  uint32_t restarts_when_asked = 0;
  std::vector<ServerReport> reports;  // Taken before the digest.
  absl::StatusOr<Digest> digest = absl::UnknownError("not asked");
  Step reported = kNoStep;  // Worker 0 reported it last.
  Step last = kNoStep;      // The last step that was trained.

  // Why the generation ends.
  absl::Status fatal;          // Something can't be done, and couldn't the next time.
  absl::Status trouble;        // Something failed, and may succeed the next time.
  bool lacks_hosts = false;    // `fatal` is for want of hosts.
  absl::Status restart_error;  // A server can't recover.
  absl::Status stall_error;
  std::optional<Step> stalled_at;
  std::string stall_reason;
  std::optional<Step> script_failed_at;  // As its worker reported it.
  absl::Status checkpoint_error;         // The last step's checkpoint can't be made.
  absl::Status result_error;             // The result can't be kept.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_GENERATION_STATE_H_
