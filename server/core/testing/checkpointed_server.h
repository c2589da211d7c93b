// For tests: one server process with a push log and checkpoints over a disk that outlives it, and
// what a launcher does with its chunks.
#ifndef THERMOCLINE_SERVER_CORE_TESTING_CHECKPOINTED_SERVER_H_
#define THERMOCLINE_SERVER_CORE_TESTING_CHECKPOINTED_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/checkpoint/checkpoint_store.h"
#include "proto/parameter_server.pb.h"
#include "server/core/server_core.h"
#include "server/core/testing/core_fixtures.h"
#include "server/storage/journal_opener.h"
#include "server/storage/testing/memory_row_store.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline::testing_core {

inline constexpr char kCheckpoints[] = "/checkpoints";

// All that a row is, by table and key.
struct HeldRow {
  std::vector<float> values;
  uint32_t count = 0;
  Step changed;

  friend bool operator==(const HeldRow& a, const HeldRow& b) {
    return a.values == b.values && a.count == b.count && a.changed == b.changed;
  }
};
using HeldRows = std::map<std::pair<uint32_t, Key>, HeldRow>;

class CheckpointedServer {
 public:
  // Its log is in `folder`. Its processes have the incarnations behind `incarnation`.
  CheckpointedServer(SimulatedDisk* disk, const ServerConfig& config,
                     std::string folder = "/server", uint64_t incarnation = 0);

  void Start();
  absl::Status Configure(const std::string& base = "") {
    config_.base_checkpoint = base;
    return core_->Configure(config_);
  }
  ServerConfig& config() { return config_; }
  // The limits of the next process (see Die).
  ServerLimits& limits() { return limits_; }

  // The process dies, and nothing more of it gets to the disk. With `random`, the host dies.
  void Die(std::mt19937_64* random = nullptr);
  bool broken() const { return broken_; }

  absl::StatusOr<wire::PushAnswer> Push(wire::PushChunk chunk);
  // Waits while the pull is held.
  absl::StatusOr<wire::PullAnswer> Pull(wire::PullRequest pull);
  absl::StatusOr<CheckpointReply> Checkpoint(CheckpointRequest::Action action, int64_t step = 0,
                                             uint64_t sequence = 0);
  // The cut at `step`; nullopt where it isn't open.
  std::optional<CutStatus> CutAt(int64_t step);
  // Writes one slice of the present checkpoint. False: there is nothing to write.
  bool WriteSlice() { return writes_->RunNext(); }
  // Writes until the cut at `step` is written or failed.
  CutStatus WriteCut(int64_t step) {
    while (WriteSlice()) {
    }
    return CutAt(step).value_or(CutStatus());
  }

  // Tasks that the server leaves to other threads (ending a full segment of its log) run after each
  // push. After LeaveLogTasks, only RunLogTask runs them, one at a time. False: there is none.
  void LeaveLogTasks() { log_tasks_are_left_ = true; }
  bool RunLogTask() { return scheduler_->RunNext(); }

  HeldRows Rows();
  Digest ComputeDigest();
  ServerStats Stats() const {
    ServerStats stats;
    core_->FillStats(&stats);
    return stats;
  }
  ServerCore* core() { return core_.get(); }

 private:
  SimulatedDisk* const disk_;
  ServerConfig config_;
  ServerLimits limits_;
  const std::string folder_;
  uint64_t incarnation_;
  bool broken_ = false;
  bool log_tasks_are_left_ = false;
  std::unique_ptr<VirtualScheduler> scheduler_;
  std::unique_ptr<VirtualScheduler> writes_;
  std::unique_ptr<LogJournalOpener> opener_;
  MemoryRowStoreOpener stores_;
  std::unique_ptr<ServerCore> core_;
};

// The manifest of what each server says that it wrote, by server index, as a launcher puts it
// together: an increment's files come behind those of the chunk it builds on.
absl::StatusOr<CheckpointManifest> ComposeManifest(const CheckpointStore& store,
                                                   const ServerConfig& config, int64_t step,
                                                   const std::vector<CheckpointShard>& written);

// Chunk `chunk` of the push of one worker and step, as far as it goes to one of `num_servers`: a
// pure function of its arguments. Of keys below `num_keys`.
wire::PushChunk RandomChunk(uint32_t rank, int64_t step, uint32_t chunk = 0,
                            uint32_t num_chunks = 1, uint32_t server = 0, uint32_t num_servers = 1,
                            Key num_keys = 40);

}  // namespace thermocline::testing_core

#endif  // THERMOCLINE_SERVER_CORE_TESTING_CHECKPOINTED_SERVER_H_
