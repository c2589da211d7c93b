// One server of the simulation across its incarnations: processes over disks that outlive them. It
// dies at random, also in the middle of a write or of a recovery. With a push log it comes back,
// and every recovery is checked against what the process before it held.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_SERVER_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/wire/messages.h"
#include "server/core/server_config.h"
#include "server/core/server_core.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_setup.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {

class CheckpointReply;  // proto/parameter_server.proto
class CheckpointRequest;

struct SimServerCounters {
  uint64_t crashes = 0;            // Processes that died.
  uint64_t broken_writes = 0;      // Deaths in the middle of a write or sync, while serving.
  uint64_t broken_recoveries = 0;  // Deaths while recovering.
  uint64_t host_crashes = 0;       // Deaths with the host.
  uint64_t recoveries = 0;
  uint64_t replayed_chunks = 0;
  uint64_t torn_ends = 0;         // Ends of logs that a recovery cut off.
  uint64_t pushes_forgotten = 0;  // Pushes accepted and not acknowledged when a host died.
  uint64_t messages_unheard = 0;  // No process was there, or it died before it answered.
  uint64_t messages_early = 0;    // The process was not configured yet.
  uint64_t duplicates = 0;        // Push chunks that were recognized as known.
  uint64_t pulls_held = 0;
  uint64_t loaded_rows = 0;  // Rows that came from checkpoints.
  uint64_t overloads = 0;
  uint64_t image_waits = 0;  // Steps that waited until rows of a checkpoint were read.

  void Add(const SimServerCounters& other);
};

class SimServer;

// The events of a server.
struct SimServerEvents {
  // It is configured, and has recovered.
  std::function<void(SimServer*)> on_serving;
  // Its process has died.
  std::function<void(SimServer*)> on_ended;
};

struct SimServerOptions {
  ServerIndex index;
  ServerLimits limits;
  CrashFaults faults;  // Only where there is a push log, or a launcher that reacts.
  OverloadFaults overload;
  uint64_t seed = 0;
};

class SimServer {
 public:
  // Borrows all but the options; `checkpoints` is its host's view of the folder of checkpoints, and
  // may be null. What goes wrong is appended to `failures`.
  SimServer(const SimServerOptions& options, SimServerEvents events,
            std::unique_ptr<SimulatedDisk> checkpoints, Scheduler* scheduler, Saboteur* saboteur,
            std::vector<std::string>* failures);
  ~SimServer();

  // From now on processes are of this generation. Its folder may hold the log of another.
  void BeginGeneration(const ServerConfig& config);
  // A process comes, in place of the one that died, if any did. REQUIRES: there is none
  // `incarnation`: among this server's processes of the generation, from 1.
  void Start(uint64_t incarnation);
  // The process gets its configuration, with the checkpoint `base` ("": with no row) that
  // `base_generation` made, and recovers; `done` gets the result, unless the process dies first.
  void Configure(const std::string& base, uint64_t base_generation,
                 std::function<void(const absl::Status&)> done);
  // No process is left, and none comes before the next generation.
  void End();

  // As ServerCore's. In place of `done`, `gone` runs where no process is there or it dies before it
  // answers.
  using Gone = std::function<void()>;
  void Pull(const wire::PullRequest& request, int64_t time_left_us, ServerCore::PullDone done,
            const Gone& gone);
  void Push(wire::PushChunk chunk, ServerCore::PushDone done, const Gone& gone);
  absl::StatusOr<CheckpointReply> Checkpoint(const CheckpointRequest& request);
  absl::StatusOr<uint64_t> LogBytes();

  // Kills the process, and another recovers at once with `base`.
  void Crash(const std::string& base, uint64_t base_generation);
  // The process is gone, and its host with all that it wrote there. None comes before the next
  // generation.
  void LoseHost();
  // A planted fault: the server starts anew, without what it accepted.
  void Forget();

  ServerIndex index() const { return options_.index; }
  // The process; null where there is none.
  ServerCore* core() const;
  // A process of this generation came back without pushes that it, or one before, had acknowledged.
  bool lacks_acknowledged() const { return lacks_acknowledged_; }
  // From now on until the next generation it doesn't die, unless Crash is called.
  void Spare();
  bool serving() const { return process_ != nullptr && process_serves(); }
  // Whether it refuses all pulls and pushes now.
  bool overloaded() const { return scheduler_->NowMicros() < overloaded_until_us_; }
  // Deaths so far: rises as soon as a process is lost.
  uint64_t deaths() const { return deaths_; }
  SimServerCounters counters() const;
  // Hash of all deaths and recoveries.
  uint64_t trace() const { return trace_; }

 private:
  struct Process;
  // The state of one process that the next must recover.
  struct Held {
    std::vector<int64_t> accepted_through;  // [num_workers]
    int64_t complete_through = 0;
    uint64_t pending_bytes = 0;
    bool waited_for_images = false;  // An accepted step waited.

    // Whether the next process has recovered all of it.
    bool IsHeldBy(const Held& next) const;
    std::string ToString() const;
  };

  bool durable() const { return config_.durability.has_value(); }
  bool process_serves() const;
  // Acknowledged pushes may be gone with the host.
  bool LogMayLack() const;
  std::unique_ptr<JournalOpener> MakeJournals();
  absl::Status ConfigureNow();
  void OnBroken(const absl::Status& why);
  void OnDiskDeath();
  void Die();
  void Fall();
  void Bury();
  bool SpendCrash(double probability);
  bool Hears();
  bool Refuses();
  void MaybeDie();
  void ArmDisk();
  void CheckRecovered();
  Held WhatIsHeld() const;
  void AddCounters(SimServerCounters* sum) const;
  template <typename Done>
  Done WhileAlive(Done done, const Gone& gone);
  void InProcess(int64_t delay_us, std::function<void()> task);
  void Note(uint64_t what);
  void Fail(absl::string_view what);

  const SimServerOptions options_;
  const SimServerEvents events_;
  Scheduler* const scheduler_;
  Saboteur* const saboteur_;
  std::vector<std::string>* const failures_;
  SimRandom random_;
  std::mt19937_64 host_random_;
  ServerConfig config_;  // What the generation's processes get.
  // Counts generations: a restart that was scheduled in an earlier one is dropped.
  uint64_t life_ = 0;
  std::unique_ptr<SimulatedDisk> disk_;
  const std::unique_ptr<SimulatedDisk> checkpoints_;
  uint64_t incarnation_ = 0;          // The last process's number.
  std::unique_ptr<Process> process_;  // Null while there is none.
  int crashes_left_;
  int failures_left_;  // So many writes of checkpoints may still fail.
  int overloads_left_;
  int64_t overloaded_until_us_ = 0;
  uint64_t deaths_ = 0;
  std::vector<Step> acknowledged_;  // [num_workers] The steps that it has acknowledged.
  // What the last configured process of the generation held when it died.
  std::optional<Held> held_;
  bool host_crashed_since_ = false;  // The log may have lost what was not synced.
  bool lacks_acknowledged_ = false;
  bool spared_ = false;
  SimServerCounters counters_;  // The sum over processes that died.
  uint64_t trace_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_SERVER_H_
