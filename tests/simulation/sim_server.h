// One server of the simulation across its incarnations: processes over a disk that outlives them.
// With a push log it dies at random, also in the middle of a write or of a recovery, and comes
// back; every recovery is checked against what the process before it held.
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
#include "common/disk/simulated_disk.h"
#include "common/ids.h"
#include "common/virtual_scheduler.h"
#include "common/wire/messages.h"
#include "server/core/server_config.h"
#include "server/core/server_core.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/sim_random.h"

namespace thermocline {

struct CrashFaults {
  int max_crashes = 0;        // Of one server, but for those at the end of a run.
  double stop = 0;            // After so many of the messages the process is killed, soon.
  double break_write = 0;     // After so many it dies in the middle of one of the next writes.
  double break_recovery = 0;  // So many recoveries are cut short.
  double take_host = 0;       // Of the deaths; the host goes too. For LogDurability::kHost.
  int64_t stop_us = 3'000;
  int64_t down_us = 100'000;      // Until the next process, at the most ...
  int64_t configure_us = 50'000;  // ... and until that is configured.
  int64_t sync_us = 5'000;        // A sync begins so late, at the most.
  uint64_t segment_bytes = 1000;
};

struct SimServerCounters {
  uint64_t crashes = 0;            // Processes that died.
  uint64_t broken_writes = 0;      // Of those: in the middle of a write or sync, while they served.
  uint64_t broken_recoveries = 0;  // Of those: while they recovered.
  uint64_t host_crashes = 0;       // Of those: with their host.
  uint64_t recoveries = 0;
  uint64_t replayed_parts = 0;
  uint64_t torn_ends = 0;         // That a recovery cut off.
  uint64_t pushes_forgotten = 0;  // Accepted and not acknowledged, when a host died.
  uint64_t messages_unheard = 0;  // No process was there, or it died before it answered.
  uint64_t messages_early = 0;    // The process was not configured yet.
  uint64_t duplicates = 0;        // Push parts that were recognized as known.
  uint64_t pulls_held = 0;

  void Add(const SimServerCounters& other);
};

struct SimServerOptions {
  ServerConfig config;  // Dies only where it has a durability.
  ServerLimits limits;
  CrashFaults faults;
  uint64_t seed = 0;
};

class SimServer {
 public:
  // Borrows all but the options. The first process is configured at once. What goes wrong is
  // appended to `failures`.
  SimServer(const SimServerOptions& options, VirtualScheduler* scheduler, Saboteur* saboteur,
            std::vector<std::string>* failures);
  ~SimServer();

  // As ServerCore's. In place of `done`, `gone` runs where no process is there or it dies before it
  // answers.
  using Gone = std::function<void()>;
  void Pull(const wire::PullRequest& request, ServerCore::PullDone done, const Gone& gone);
  void Push(wire::PushPart part, ServerCore::PushDone done, const Gone& gone);

  // Kills the process, if there is one and it has a push log, and starts another after a while.
  void Crash();
  // A planted fault: the server starts anew, without what it accepted.
  void Forget();

  // The process; null where there is none.
  ServerCore* core() const;
  // Deaths so far: rises as soon as a process is lost.
  uint64_t deaths() const { return deaths_; }
  SimServerCounters counters() const;
  // Hash of all deaths and recoveries.
  uint64_t trace() const { return trace_; }

 private:
  struct Process;
  // What one process held and the next must hold again.
  struct Held {
    std::vector<int64_t> accepted_through;  // [num_workers]
    uint64_t pushes_accepted = 0;
    int64_t complete_through = 0;
    uint64_t pending_bytes = 0;

    bool operator==(const Held& other) const;
    std::string ToString() const;
  };

  bool durable() const { return options_.config.durability.has_value(); }
  void Start();
  std::unique_ptr<JournalOpener> MakeJournals();
  void Configure();
  void OnBroken(const absl::Status& why);
  void Die();
  bool SpendCrash(double probability);
  bool Hears();
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
  VirtualScheduler* const scheduler_;
  Saboteur* const saboteur_;
  std::vector<std::string>* const failures_;
  SimRandom random_;
  std::mt19937_64 host_random_;
  std::unique_ptr<SimulatedDisk> disk_;
  std::unique_ptr<Process> process_;  // Null while there is none.
  int crashes_left_;
  uint64_t deaths_ = 0;
  std::vector<Step> acknowledged_;   // [num_workers] What left this server as certain.
  std::optional<Held> held_;         // By the last process that was configured, when it died.
  bool host_crashed_since_ = false;  // The log may have lost what was not synced.
  SimServerCounters counters_;       // Of the processes that died.
  uint64_t trace_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_SERVER_H_
