// For tests of the keeper of checkpoints: servers and workers that do by hand what cuts ask of
// them, and a keeper over them.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_CHECKPOINT_KEEPER_TESTING_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_CHECKPOINT_KEEPER_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "deploy/controller/checkpoint_keeper.h"
#include "deploy/controller/cut_participants.h"
#include "gtest/gtest.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {

inline constexpr char kKeeperDirectory[] = "checkpoints";
inline constexpr uint64_t kKeeperEpoch = 2;

class FakeCluster : public CutParticipants {
 public:
  struct Server {
    bool answers = true;
    bool is_deaf = false;  // Answers STATUS alone.
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

  size_t num_servers() const override { return servers_.size(); }
  size_t num_workers() const override { return workers_.size(); }
  absl::StatusOr<CheckpointReply> AskServer(size_t index, CheckpointRequest::Action action,
                                            Step cut) override;
  absl::StatusOr<CheckpointReply> AskWorker(size_t rank, CheckpointRequest::Action action,
                                            Step cut) override;
  absl::StatusOr<uint64_t> LogBytes(size_t index) override { return servers_[index].log_bytes; }
  void ForEachServer(absl::FunctionRef<void(size_t)> call) override {
    ++rounds_of_all_;
    CutParticipants::ForEachServer(call);
  }

  void Begin(size_t server, int64_t cut);
  void AdvanceTo(int64_t step);
  // A server writes its part; on `base`, where that isn't -1.
  void Write(size_t server, int64_t cut, int64_t base = -1);
  void WriteAll(int64_t cut, int64_t base = -1);
  void Fail(size_t server, int64_t cut, const std::string& error);

  std::vector<Server> servers_;
  std::vector<Worker> workers_;
  int rounds_of_all_ = 0;         // In which all servers may be asked at once.
  std::vector<size_t> unheeded_;  // Servers that were asked and didn't answer.
  int workers_asked_ = 0;         // How they stand.

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

class CheckpointKeeperTest : public testing::Test {
 protected:
  CheckpointKeeperTest();

  // Made by the first call, with `options_` as they are then.
  CheckpointKeeper& keeper();
  void Poll(int rounds = 1);
  std::vector<std::string> Names() const;
  // The cut that a server was told of, if it is one.
  std::optional<int64_t> NamedCut(size_t server) const;

  CountingDisk disk_;
  CheckpointStore store_;
  FakeCluster cluster_;  // Two servers, two workers.
  CheckpointKeeperOptions options_;
  std::unique_ptr<CheckpointKeeper> keeper_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_CHECKPOINT_KEEPER_TESTING_H_
