// What the seed of a simulated job chooses beforehand: its size and settings, what goes wrong, how
// often, and how long it takes.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_SETUP_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_SETUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/job/resolved_job.h"
#include "common/math/table_spec.h"
#include "server/core/server_config.h"
#include "server/storage/push_journal.h"
#include "tests/simulation/sim_model.h"
#include "tests/simulation/sim_random.h"

namespace thermocline {

// What goes wrong with messages, by probability of each.
struct NetworkFaults {
  double drop = 0;       // A request or a reply is lost.
  double duplicate = 0;  // A request arrives twice; the copy's reply is lost.
  double refuse = 0;     // The call fails at once with kUnavailable.
  double straggle = 0;   // A message takes up to `straggle_us`, past deadlines and later steps.
  int64_t delay_us = 2'000;
  int64_t straggle_us = 500'000;
};

// What goes wrong with the streams between workers, by probability.
struct StreamFaults {
  double breaks = 0;  // A stream breaks after some frames, and what is under way is lost;
  double late = 0;    // or comes late, of so many broken ones.
  double repeat = 0;  // A chunk comes twice; and receipts are handed over in any order.
  // A thread takes up to so long from a receipt's making to the transport, and that to write it.
  int64_t hand_over_us = 2'000;
  int64_t delay_us = 2'000;
  int64_t late_us = 60'000;  // At the most.
};

// How one server dies, and how long things take there.
struct CrashFaults {
  int max_crashes = 0;        // Without those at the end of a run.
  double stop = 0;            // After so many of the messages the process is killed, soon.
  double break_write = 0;     // After so many it dies in the middle of one of the next writes.
  double break_recovery = 0;  // So many recoveries are cut short.
  int max_checkpoint_failures = 10;
  double fail_checkpoint = 0;  // After so many messages a write of a checkpoint fails, soon.
  double take_host = 0;        // With so many of the deaths the host goes too.
  int64_t stop_us = 3'000;
  int64_t down_us = 100'000;      // The next process comes so late, at the most,
  int64_t configure_us = 50'000;  // and its configuration.
  int64_t sync_us = 5'000;        // A sync begins so late, at the most,
  int64_t slice_us = 5'000;       // and a slice of a checkpoint.
  uint64_t segment_bytes = 1000;
};

// One server refuses every pull and push for a while, like one without room.
struct OverloadFaults {
  int max_times = 0;
  double begin = 0;  // A refusal begins after so many of the messages.
  int64_t most_us = 0;
};

// What goes wrong with launcher and workers in a job with checkpoints. Probabilities are those of
// each of the launcher's rounds.
struct LauncherFaults {
  int max_deaths = 0;  // The launcher dies so often; everything it started dies with it.
  int max_worker_deaths = 0;
  double stop = 0;         // It is killed.
  double break_write = 0;  // It dies in the middle of one of the next writes.
  double fail_write = 0;   // One of the next writes fails.
  double stop_worker = 0;
  double stop_by_user = 0;       // The user stops the job, once.
  double bad_data = 0;           // A worker ends because of the job itself, once; others lose it.
  double take_host = 0;          // With so many of its deaths, what it didn't sync may be lost.
  double resume_older = 0;       // For so many new launchers the user names an older checkpoint.
  bool resizes_servers = false;  // The next launcher goes on with another number of them.
  bool resizes_workers = false;
  // Its calls are lost on the way, there or back; or they arrive after the launcher gave them up.
  double lose_call = 0;
  double late_call = 0;
  int64_t call_us = 0;  // There and back, at the most: the others go on meanwhile.
  int64_t late_us = 200'000;
  double request = 0;       // The user asks for a checkpoint.
  int max_host_losses = 0;  // A host goes with all that it runs, and its logs; with several hosts.
  double lose_host = 0;
  int64_t host_away_us = 500'000;  // Until it comes back, at the most.
};

// A worker gives a silent server up after so long.
inline constexpr int64_t kSimGiveUpMicros = 20'000'000;
// A server refuses a worker at most so long. Two such periods are not yet a stall.
inline constexpr int64_t kMaxOverloadMicros = 25'000'000;

// How a job makes checkpoints.
struct CheckpointSetup {
  uint64_t every_steps = 0;
  uint32_t full_every = 1;
  uint32_t keep = 1;
  bool at_end = true;
  uint64_t max_log_bytes = UINT64_MAX;
  int64_t poll_us = 20'000;    // Between two rounds of the launcher, at the most.
  int64_t notice_us = 50'000;  // Until it sees that a process died, at the most.
};

// How a job is evaluated while it trains. Where it makes checkpoints, the best is kept.
struct EvaluationSetup {
  uint64_t every_steps = 1;
  uint32_t patience = 0;
};

// How hot and cold batches take turns; so many of each are a pass.
struct ScheduleSetup {
  int64_t hot_batches = 1;
  int64_t cold_batches = 1;
  double rate = 50;  // In percent.
  uint32_t falls_to_double = 1;
};

// How workers hold the dense parameters, and rows; and exchange them, where there are several.
struct ExchangeSetup {
  bool shares_rows = true;
  int window_steps = 2;
  int32_t capacity = 4;       // Rows of a table that an owner holds.
  bool least_credit = false;  // One step in every phase.
  size_t max_chunk_bytes = 512;
  StreamFaults streams;
};

struct SimSetup {
  uint32_t num_servers = 1;
  uint32_t num_workers = 1;
  uint32_t num_hosts = 0;  // 0: all on the launcher's machine.
  uint32_t max_server_restarts = 10;
  uint32_t max_rollbacks = 10;
  uint32_t staleness_steps = 0;
  int64_t num_steps = 10;
  uint64_t num_keys = 40;
  int keys_per_table = 8;
  int64_t slow_rank_us = 0;  // Rank 0 computes so long, at the most; the others not at all.
  size_t max_chunk_bytes = 512;
  ServerLimits limits;
  NetworkFaults faults;
  std::optional<LogDurability> durability;
  std::optional<CheckpointSetup> checkpoints;
  std::optional<EvaluationSetup> evaluations;
  std::optional<ScheduleSetup> schedule;
  CrashFaults crashes;        // For servers with a durability, or where there are checkpoints.
  LauncherFaults launcher;    // Where there are checkpoints.
  OverloadFaults overload;    // For server 0.
  bool crash_at_end = false;  // All of them once more, when everything is acknowledged.
  std::vector<TableLayout> tables;
  std::vector<DenseTable> dense;          // Among `tables`; none: no worker exchanges anything.
  std::shared_ptr<const SimModel> model;  // Its are the dense tensors. Null: gradients are random.
  std::optional<ExchangeSetup> exchange;
};

// `exchanges`: whether workers may exchange rows and dense parameters. All else is the same.
SimSetup ChooseSetup(SimRandom* random, bool exchanges = true);
ExchangeSetup ChooseExchange(SimRandom* random);
// Most of what they lose comes late, also to the next generation.
StreamFaults LateStreams();
// Several receipts of a stream are often on their way to it at a time.
StreamFaults SlowReceipts();
// Tensors of a few blocks, with tables behind `tables`.
std::vector<DenseTable> ChooseDense(SimRandom* random, const std::vector<TableLayout>& tables);
// The same job on one server that never dies, with workers that don't, and exchange nothing, over a
// faultless network, without a checkpoint.
SimSetup Undisturbed(SimSetup setup);
// In one line.
std::string Describe(const SimSetup& setup);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_SETUP_H_
