// For tests of the coordinator of checkpoints: servers and workers whose state the test sets, and a
// coordinator over them.
#ifndef THERMOCLINE_DEPLOY_JOB_TESTING_CHECKPOINT_FIXTURE_H_
#define THERMOCLINE_DEPLOY_JOB_TESTING_CHECKPOINT_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "deploy/job/checkpoint_coordinator.h"
#include "deploy/job/checkpoint_operations.h"
#include "gtest/gtest.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {

inline constexpr char kTestCheckpoints[] = "checkpoints";
inline constexpr uint64_t kTestGeneration = 2;

class FakeCluster {
 public:
  struct Server {
    bool answers = true;
    bool is_deaf = false;  // Answers STATUS only.
    int64_t complete_through = -1;
    std::map<int64_t, CutStatus> cuts;
    int64_t committed = -1;
    uint64_t log_bytes = 0;
    int64_t accepted_through = 1'000'000;
  };
  struct Worker {
    bool answers = true;
    int64_t begun = -1;  // its last push
    int64_t acked = -1;  // its last push that every server has acknowledged
    std::set<int64_t> cuts;
  };

  FakeCluster(Disk* disk, size_t servers, size_t workers)
      : servers_(servers), workers_(workers), disk_(*disk) {}

  absl::StatusOr<CheckpointReply> AskServer(size_t index, CheckpointRequest::Action action,
                                            Step cut);
  absl::StatusOr<CheckpointReply> AskWorker(size_t rank, CheckpointRequest::Action action,
                                            Step cut);
  // As a runner does: after an unanswered call, makes no further call to that process.
  CheckpointAnswers Call(const std::vector<CheckpointCall>& calls);

  void Begin(size_t server, int64_t cut);
  void AdvanceTo(int64_t step);
  // A server writes its shard; on `base`, where that isn't -1.
  void Write(size_t server, int64_t cut, int64_t base = -1);
  void WriteAll(int64_t cut, int64_t base = -1);
  void Fail(size_t server, int64_t cut, const std::string& error);

  std::vector<Server> servers_;
  std::vector<Worker> workers_;
  int rounds_of_all_ = 0;         // Rounds in which all servers were asked at once.
  std::vector<size_t> unheeded_;  // Servers that were asked and didn't answer.
  int workers_asked_ = 0;         // Calls for a worker's status.

 private:
  Disk& disk_;
};

// Counts the files that are opened.
class CountingDisk : public SimulatedDisk {
 public:
  absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) override {
    ++opened;
    return SimulatedDisk::Open(path);
  }
  int opened = 0;
};

// A coordinator with everything that it wants done.
class CoordinatorDriver {
 public:
  CoordinatorDriver(CheckpointOptions options, FakeCluster* cluster, CheckpointStore* store)
      : coordinator_(std::move(options)), cluster_(*cluster), store_(*store) {}

  CheckpointCoordinator& coordinator() { return coordinator_; }
  // One round.
  void Poll();

  std::vector<CheckpointAnswer> answers;  // So far.
  std::function<void()> on_composed;      // A manifest is about to be written.

 private:
  void CarryOut(const CheckpointOperation& operation);

  CheckpointCoordinator coordinator_;
  FakeCluster& cluster_;
  CheckpointStore& store_;
};

class CheckpointCoordinatorTest : public testing::Test {
 protected:
  CheckpointCoordinatorTest();

  // Made by the first call, with `options_` as they are then.
  CoordinatorDriver& driver();
  CheckpointCoordinator& coordinator() { return driver().coordinator(); }
  void Poll(int rounds = 1);
  // The answers to a request; "": to that for the step of an evaluation.
  std::vector<absl::StatusOr<std::string>> Answers(const std::string& id = "");
  // Another process replaces the server. Returns the checkpoint that it begins with.
  std::string ReplaceServer(size_t index);
  std::vector<std::string> Names() const;
  // The one cut that the server knows of; nullopt: it knows of none, or of several.
  std::optional<int64_t> NamedCut(size_t server) const;

  CountingDisk disk_;
  CheckpointStore store_;
  FakeCluster cluster_;  // Two servers, two workers.
  CheckpointOptions options_;
  std::unique_ptr<CoordinatorDriver> driver_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_TESTING_CHECKPOINT_FIXTURE_H_
