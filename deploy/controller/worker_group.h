// The workers of one epoch: started, waited for, asked for their results.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_WORKER_GROUP_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_WORKER_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/net/control_client.h"
#include "deploy/console/stats_table.h"
#include "deploy/controller/run_directory.h"
#include "deploy/runner/supervisor.h"
#include "proto/job.pb.h"

namespace thermocline {

struct WorkerGroupOptions {
  std::string program;
  uint64_t epoch = 1;
  Step first_step{0};
  bool eval_only = false;            // rank 0 scores the held-out rows, and nobody trains
  std::vector<std::string> servers;  // addresses, by index
};

// Not thread-safe; lives on the main thread.
class WorkerGroup {
 public:
  // `job`, `directory` and `supervisor` must outlive this object.
  WorkerGroup(const Job& job, const RunDirectory& directory, Supervisor* supervisor)
      : job_(job), directory_(directory), supervisor_(*supervisor) {}
  ~WorkerGroup();

  // Starts one process a rank. `on_metrics` gets what rank 0 reports, during the supervisor's
  // waits.
  absl::Status Start(const WorkerGroupOptions& options,
                     std::function<void(absl::string_view data)> on_metrics);
  // Waits until all serve, or have ended well. Errors: those of WaitForAddresses.
  absl::Status WaitUntilUp();

  // Whether all have ended, and said all they had to say.
  bool AllEnded();
  std::vector<uint32_t> RunningRanks();
  // What those that run say of themselves, in the order of their ranks. One that doesn't answer in
  // `timeout` is no error of the whole. Errors: those of Supervisor::WaitUntil.
  absl::StatusOr<std::vector<WorkerReport>> GetStats(absl::Duration timeout);
  // By rank. They come through memory: a full disk takes no result away. Errors: kDataLoss (a
  // worker left none; names the file where it belongs).
  absl::StatusOr<std::vector<nlohmann::ordered_json>> ReadResults() const;

  // Of the process: "worker 0".
  static std::string NameOf(uint32_t rank) { return absl::StrCat("worker ", rank); }
  std::string LogFile(uint32_t rank) const;
  // Of the run directory, for its result: "worker-0.json".
  static std::string ResultName(uint32_t rank) { return absl::StrCat("worker-", rank, ".json"); }
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  absl::Status MakeResultFile();
  std::vector<std::string> Command(const WorkerGroupOptions& options, uint32_t rank) const;
  absl::Status StartWorker(const WorkerGroupOptions& options, uint32_t rank, int progress_fd);

  const Job& job_;
  const RunDirectory& directory_;
  Supervisor& supervisor_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<ControlClient>> clients_;  // by rank; null: not asked yet
  bool metrics_ended_ = false;
  std::vector<int> result_fds_;  // By rank; in memory.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_WORKER_GROUP_H_
