#include "tests/simulation/sim_setup.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/math/testing/random_optimizers.h"
#include "worker/session/transport.h"

namespace thermocline {
namespace {

std::vector<TableLayout> ChooseTables(SimRandom* random) {
  std::vector<TableLayout> tables(1 + random->Below(3));
  for (size_t i = 0; i < tables.size(); ++i) {
    tables[i].id = TableId(static_cast<uint32_t>(3 * i + random->Below(3)));
    tables[i].name = absl::StrCat("T", i);
    tables[i].dim = static_cast<int>(random->Between(1, 9));
    // Its optimizers come from numbers of their own: the rest of the setup does not depend on how
    // many they take.
    std::mt19937_64 own(random->Below(4) << 16 | tables[i].id.value() << 8 | tables[i].dim);
    DrawRowOptimizers([&own](int n) { return static_cast<int>(own() % n); }, &tables[i]);
    tables[i].init_scale = 0.1f;
  }
  return tables;
}

// Large pushes, and room for just one of every worker: with less a step might never become
// complete. Workers that run ahead of one that is slow find no room.
void LimitPendingBytes(SimRandom* random, SimSetup* setup) {
  setup->num_servers = 1;
  setup->num_workers = static_cast<uint32_t>(random->Between(3, 4));
  setup->slow_rank_us = 300'000;
  setup->staleness_steps = 3;
  setup->num_keys = static_cast<uint64_t>(random->Between(20, 40));
  setup->keys_per_table = static_cast<int>(10 * setup->num_keys);  // Nearly all of them.
  setup->max_chunk_bytes = kMaxHeaderBytes + static_cast<size_t>(random->Between(8000, 16000));
  uint64_t push_bytes = 0;
  for (TableLayout& table : setup->tables) {
    table.dim = static_cast<int>(random->Between(16, 32));
    table.optimizer = OptimizerConfig();
    table.optimizer.kind = OptimizerKind::kSgd;  // Gradients are as large as rows.
    table.first_order.reset();
    push_bytes += setup->num_keys * (sizeof(Key) + sizeof(uint32_t) + table.dim * sizeof(float));
  }
  // Two waves; chunks are at least half full, and hold gradients and rows of each table.
  const uint64_t num_chunks = 2 + push_bytes / 4000;
  push_bytes += num_chunks *
                (2 * sizeof(wire::PushChunk) + 2 * setup->tables.size() * sizeof(wire::PushRange));
  setup->limits.max_pending_push_bytes = setup->num_workers * push_bytes;
}

// Servers with a push log; most of them die a few times.
void ChooseDurability(SimRandom* random, SimSetup* setup) {
  setup->durability = random->Chance(0.5) ? LogDurability::kHost : LogDurability::kProcess;
  CrashFaults& crashes = setup->crashes;
  crashes.max_crashes = static_cast<int>(random->Between(0, 8));
  crashes.stop = 0.01 * random->Between(0, 10);
  crashes.break_write = 0.01 * random->Between(0, 10);
  crashes.break_recovery = 0.1 * random->Between(0, 5);
  // A log that survives only the process needs its host, or a checkpoint to go back to.
  if (setup->durability == LogDurability::kHost) {
    crashes.take_host = 0.1 * random->Between(0, 10);
  } else if (setup->checkpoints.has_value()) {
    crashes.take_host = 0.1 * random->Between(0, 10);
  }
  crashes.down_us = random->Between(1, 200'000);
  crashes.configure_us = random->Between(1, 100'000);
  crashes.sync_us = random->Between(1, 20'000);
  crashes.segment_bytes = static_cast<uint64_t>(random->Between(100, 10'000));
  setup->crash_at_end = random->Chance(0.5);
}

// A launcher that makes checkpoints, and goes back to them: any process may die.
void ChooseCheckpoints(SimRandom* random, SimSetup* setup) {
  CheckpointSetup& checkpoints = setup->checkpoints.emplace();
  setup->num_steps = random->Between(10, 40);
  if (random->Chance(0.8)) checkpoints.every_steps = static_cast<uint64_t>(random->Between(1, 6));
  checkpoints.full_every = static_cast<uint32_t>(random->Between(1, 4));
  checkpoints.keep = static_cast<uint32_t>(random->Between(1, 6));
  checkpoints.at_end = random->Chance(0.8);
  if (random->Chance(0.3)) {
    checkpoints.max_log_bytes = static_cast<uint64_t>(random->Between(1'000, 50'000));
  }
  checkpoints.poll_us = random->Between(1'000, 50'000);
  checkpoints.notice_us = random->Between(1, 100'000);
  LauncherFaults& faults = setup->launcher;
  faults.request = random->Chance(0.5) ? 0.02 * random->Between(1, 10) : 0;
  if (random->Chance(0.2)) return;  // The servers alone.
  faults.max_deaths = static_cast<int>(random->Between(0, 6));
  faults.max_worker_deaths = static_cast<int>(random->Between(0, 3));
  faults.stop = 0.005 * random->Between(0, 8);
  faults.break_write = 0.01 * random->Between(1, 10);
  faults.fail_write = 0.01 * random->Between(0, 3);
  faults.stop_worker = 0.01 * random->Between(0, 5);
  if (random->Chance(0.3)) faults.stop_by_user = 0.01 * random->Between(1, 5);
  if (random->Chance(0.3)) faults.bad_data = 0.01 * random->Between(1, 5);
  faults.take_host = 0.1 * random->Between(0, 10);
  faults.resizes_servers = random->Chance(0.5);
  faults.resizes_workers = random->Chance(0.2);
  faults.lose_call = 0.001 * random->Between(0, 50);
  faults.late_call = 0.001 * random->Between(0, 100);
  faults.late_us = random->Between(1, 500'000);
  if (random->Chance(0.8)) faults.call_us = random->Between(1, 5'000);
  setup->crashes.fail_checkpoint = 0.001 * random->Between(0, 10);
}

// Servers without a push log: each death costs what comes after the last checkpoint.
void ChooseDeathsWithoutLog(SimRandom* random, SimSetup* setup) {
  setup->crashes.max_crashes = static_cast<int>(random->Between(0, 2));
  setup->crashes.stop = 0.001 * random->Between(0, 10);
  setup->crashes.break_write = 0.001 * random->Between(0, 10);
  setup->crashes.take_host = 0.1 * random->Between(0, 10);
}

// Server 0 refuses everything for longer than a worker waits for a silent one, and some servers
// have few places for pulls.
void ChooseOverload(SimRandom* random, SimSetup* setup) {
  OverloadFaults& overload = setup->overload;
  overload.max_times = static_cast<int>(random->Between(1, 2));
  overload.begin = 0.01 * random->Between(1, 10);
  overload.most_us = random->Chance(0.5) ? kMaxOverloadMicros : random->Between(1, 1'000'000);
  if (random->Chance(0.5)) {
    setup->limits.max_held_pulls = static_cast<uint32_t>(random->Between(1, 3));
  }
}

void ChooseEvaluations(SimRandom* random, SimSetup* setup) {
  EvaluationSetup& evaluations = setup->evaluations.emplace();
  evaluations.every_steps = static_cast<uint64_t>(random->Between(1, 6));
  if (random->Chance(0.7)) evaluations.patience = static_cast<uint32_t>(random->Between(1, 4));
}

std::string DescribeEvaluations(const SimSetup& setup) {
  if (!setup.evaluations.has_value()) return "";
  return absl::StrCat(", evaluations every ", setup.evaluations->every_steps, " steps, patience ",
                      setup.evaluations->patience);
}

// So little room for the old images of rows, and often so slow a disk, that steps wait until a
// checkpoint has read them.
void LimitOldImages(SimRandom* random, SimSetup* setup) {
  setup->limits.max_old_image_share = 0;
  setup->limits.min_old_image_bytes = random->Chance(0.8) ? 0 : random->Below(1000);
  if (random->Chance(0.5)) setup->crashes.slice_us = random->Between(50'000, 500'000);
}

std::string DescribeCheckpoints(const SimSetup& setup) {
  if (!setup.checkpoints.has_value()) return ", no checkpoints";
  const CheckpointSetup& checkpoints = *setup.checkpoints;
  const LauncherFaults& faults = setup.launcher;
  return absl::StrCat(
      ", checkpoints every ", checkpoints.every_steps, " steps, all rows every ",
      checkpoints.full_every, ", keep ", checkpoints.keep,
      checkpoints.at_end ? ", one at the end" : "", ", log below ", checkpoints.max_log_bytes,
      ", up to ", faults.max_deaths, " deaths of the launcher, ", faults.max_worker_deaths,
      " of workers, lose ", faults.lose_call, " calls, late ", faults.late_call, ", older ",
      faults.resume_older, faults.resizes_servers ? ", other servers" : "",
      faults.resizes_workers ? ", other workers" : "", ", old images below ",
      setup.limits.min_old_image_bytes, ", slices of ", setup.crashes.slice_us, " us");
}

std::string DescribeDurability(const SimSetup& setup) {
  if (!setup.durability.has_value()) return ", no durability";
  const CrashFaults& crashes = setup.crashes;
  return absl::StrCat(
      ", push log for the ", *setup.durability == LogDurability::kHost ? "host" : "process",
      " in segments of ", crashes.segment_bytes, " bytes, up to ", crashes.max_crashes,
      " crashes of a server: stop ", crashes.stop, ", break a write ", crashes.break_write,
      ", a recovery ", crashes.break_recovery, ", take the host ", crashes.take_host,
      setup.crash_at_end ? ", all at the end" : "");
}

// Keys get their rows late, and lose them. Drawn last: what the seed chooses else stays as it was.
void ChooseAdmission(SimRandom* random, SimSetup* setup) {
  for (TableLayout& table : setup->tables) {
    if (random->Chance(0.4)) table.min_count = static_cast<uint32_t>(random->Between(2, 5));
    if (random->Chance(0.4)) table.unused_steps = static_cast<uint64_t>(random->Between(1, 20));
  }
}

// Drawn after all else, for the same reason.
void ChooseHosts(SimRandom* random, SimSetup* setup) {
  if (!setup->checkpoints.has_value() || random->Chance(0.5)) return;
  setup->num_hosts = static_cast<uint32_t>(random->Between(1, 4));
  setup->launcher.max_host_losses = static_cast<int>(random->Between(1, 4));
  setup->launcher.lose_host = 0.005 * random->Between(1, 10);
  setup->launcher.host_away_us = random->Between(1'000, 2'000'000);
}

// Drawn after all else, too.
void ChooseRowLimits(SimRandom* random, SimSetup* setup) {
  for (TableLayout& table : setup->tables) {
    if (random->Chance(0.4)) table.max_rows = static_cast<uint64_t>(random->Between(1, 40));
  }
}

// Drawn after all else, too.
void ChooseSchedule(SimRandom* random, SimSetup* setup) {
  if (random->Chance(0.6)) return;
  ScheduleSetup& schedule = setup->schedule.emplace();
  schedule.hot_batches = random->Between(1, 12);
  schedule.cold_batches = random->Between(1, 12);
  schedule.rate = static_cast<double>(random->Between(1, 100));
  schedule.falls_to_double = static_cast<uint32_t>(random->Between(1, 3));
}

std::string DescribeSchedule(const SimSetup& setup) {
  if (!setup.schedule.has_value()) return "";
  const ScheduleSetup& schedule = *setup.schedule;
  return absl::StrCat(", passes of ", schedule.hot_batches, " hot and ", schedule.cold_batches,
                      " cold batches, by ", schedule.rate, "%, doubled after ",
                      schedule.falls_to_double, " falls");
}

std::string DescribeHosts(const SimSetup& setup) {
  if (setup.num_hosts == 0) return "";
  return absl::StrCat(", ", setup.num_hosts, " hosts, up to ", setup.launcher.max_host_losses,
                      " lost for ", setup.launcher.host_away_us, " us");
}

std::string DescribeAdmission(const SimSetup& setup) {
  std::string text;
  for (const TableLayout& table : setup.tables) {
    absl::StrAppend(&text, ", ", table.name, " from ", table.min_count, " lookups on, unused for ",
                    table.unused_steps, ", at most ", table.max_rows);
  }
  return text;
}

// Workers in sync mode hold rows and dense parameters, but not with hot and cold batches: which
// keys come next is decided late there. Drawn after all else, too.
void ChooseExchange(SimRandom* random, SimSetup* setup) {
  if (setup->staleness_steps > 0 || setup->schedule.has_value()) return;
  setup->exchange = ChooseExchange(random);
  // Workers hold no rows of tables that drop or limit their rows.
  const bool keeps_rows = random->Chance(0.7);
  for (TableLayout& table : setup->tables) {
    if (keeps_rows) table.min_count = table.unused_steps = table.max_rows = 0;
  }
  setup->dense = ChooseDense(random, setup->tables);
  if (random->Chance(0.4)) {
    setup->model = std::make_shared<const SimModel>(
        MakeSimModel(setup->tables, setup->dense[0].layout.optimizer));
    setup->dense = setup->model->tables.dense;
  }
  for (const DenseTable& tensor : setup->dense) setup->tables.push_back(tensor.layout);
}

std::string DescribeExchange(const SimSetup& setup) {
  if (!setup.exchange.has_value()) return "";
  const ExchangeSetup& exchange = *setup.exchange;
  return absl::StrCat(setup.model == nullptr ? ", " : ", a sequence of steps, ", setup.dense.size(),
                      " dense tensors exchanged", exchange.shares_rows ? ", and rows" : "", ", ",
                      exchange.window_steps, " steps ahead, ", exchange.capacity, " rows held",
                      exchange.least_credit ? ", with the least credit" : "", ", streams break ",
                      exchange.streams.breaks, ", late ", exchange.streams.late, ", repeat ",
                      exchange.streams.repeat);
}

}  // namespace

ExchangeSetup ChooseExchange(SimRandom* random) {
  ExchangeSetup exchange;
  exchange.shares_rows = random->Chance(0.8);
  exchange.window_steps = static_cast<int>(random->Between(1, 4));
  exchange.capacity = static_cast<int32_t>(random->Between(0, 10));
  exchange.least_credit = random->Chance(0.6);
  exchange.max_chunk_bytes = static_cast<size_t>(random->Between(64, 2000));
  if (random->Chance(0.3)) return exchange;
  exchange.streams.breaks = 0.1 * random->Between(2, 7);
  exchange.streams.late = 0.1 * random->Between(0, 10);
  exchange.streams.repeat = 0.1 * random->Between(0, 2);
  exchange.streams.late_us = random->Between(1'000, 1'000'000);
  exchange.streams.hand_over_us = exchange.streams.late_us / 10;
  return exchange;
}

StreamFaults LateStreams() {
  StreamFaults faults;
  faults.breaks = 0.5;
  faults.late = 1;
  faults.late_us = 2'000'000;
  return faults;
}

StreamFaults SlowReceipts() {
  StreamFaults faults;
  faults.repeat = 0.1;
  faults.hand_over_us = 500'000;
  return faults;
}

std::vector<DenseTable> ChooseDense(SimRandom* random, const std::vector<TableLayout>& tables) {
  uint32_t id = 0;
  for (const TableLayout& table : tables) id = std::max(id, table.id.value() + 1);
  std::vector<DenseTable> dense(1 + random->Below(2));
  const OptimizerKind kind = kAllOptimizerKinds[random->Below(std::size(kAllOptimizerKinds))];
  for (DenseTable& tensor : dense) {
    tensor.rows = static_cast<int>(random->Between(1, 3));
    tensor.cols = kDenseBlockFloats;
    tensor.layout.id = TableId(id++);
    tensor.layout.name = absl::StrCat("dense", tensor.layout.id.value());
    tensor.layout.dim = kDenseBlockFloats;
    tensor.layout.optimizer.kind = kind;
    if (kind == OptimizerKind::kFtrl) tensor.layout.optimizer.initial_accumulator = 0.1f;
    tensor.layout.init_scale = 0.1f;
    tensor.layout.role = TableRole::kDense;
  }
  return dense;
}

SimSetup ChooseSetup(SimRandom* random, bool exchanges) {
  SimSetup setup;
  setup.num_servers = static_cast<uint32_t>(random->Between(1, 4));
  setup.num_workers = static_cast<uint32_t>(random->Between(1, 4));
  setup.staleness_steps = random->Chance(0.5) ? 0 : static_cast<uint32_t>(random->Between(1, 3));
  setup.num_steps = random->Between(5, 15);
  setup.num_keys = static_cast<uint64_t>(random->Between(5, 60));
  setup.keys_per_table = static_cast<int>(random->Between(1, 20));
  setup.max_chunk_bytes = kMaxHeaderBytes + static_cast<size_t>(random->Between(50, 1000));
  setup.limits.hold_us = random->Between(5'000, 500'000);
  setup.limits.max_held_pulls = static_cast<uint32_t>(random->Between(2, 100));
  setup.limits.apply_threads = 1;
  // Every third network is kind.
  if (random->Chance(0.67)) {
    setup.faults.drop = 0.01 * random->Between(0, 20);
    setup.faults.duplicate = 0.01 * random->Between(0, 30);
    setup.faults.refuse = 0.01 * random->Between(0, 10);
    setup.faults.straggle = 0.01 * random->Between(0, 20);
  }
  setup.tables = ChooseTables(random);
  if (random->Chance(0.3)) setup.slow_rank_us = random->Between(1, 100'000);
  if (random->Chance(0.3)) LimitPendingBytes(random, &setup);
  if (random->Chance(0.5)) ChooseCheckpoints(random, &setup);
  if (random->Chance(0.6)) {
    ChooseDurability(random, &setup);
  } else if (setup.checkpoints.has_value()) {
    ChooseDeathsWithoutLog(random, &setup);
  }
  if (random->Chance(0.3)) ChooseOverload(random, &setup);
  if (random->Chance(0.4)) ChooseEvaluations(random, &setup);
  if (setup.checkpoints.has_value() && random->Chance(0.8)) LimitOldImages(random, &setup);
  setup.max_server_restarts = static_cast<uint32_t>(random->Between(0, 6));
  setup.max_rollbacks = static_cast<uint32_t>(random->Between(0, 4));
  if (setup.checkpoints.has_value() && random->Chance(0.8)) {
    setup.launcher.resume_older = 0.1 * random->Between(6, 10);
  }
  ChooseAdmission(random, &setup);
  ChooseHosts(random, &setup);
  ChooseRowLimits(random, &setup);
  ChooseSchedule(random, &setup);
  if (exchanges) ChooseExchange(random, &setup);
  return setup;
}

SimSetup Undisturbed(SimSetup setup) {
  setup.num_servers = 1;
  setup.num_hosts = 0;
  setup.faults = {};
  setup.durability.reset();
  setup.checkpoints.reset();
  setup.crashes = {};
  setup.launcher = {};
  setup.overload = {};
  setup.crash_at_end = false;
  setup.exchange.reset();
  return setup;
}

std::string Describe(const SimSetup& setup) {
  return absl::StrCat(setup.num_servers, " servers, ", setup.num_workers, " workers, staleness ",
                      setup.staleness_steps, ", ", setup.num_steps, " steps, ", setup.tables.size(),
                      " tables, ", setup.num_keys, " keys, chunks of ", setup.max_chunk_bytes,
                      " bytes, drop ", setup.faults.drop, ", duplicate ", setup.faults.duplicate,
                      ", pending ", setup.limits.max_pending_push_bytes, ", rank 0 slow by ",
                      setup.slow_rank_us, " us, refuse ", setup.faults.refuse, ", straggle ",
                      setup.faults.straggle, ", up to ", setup.overload.max_times, " overloads of ",
                      setup.overload.most_us, " us, ", setup.limits.max_held_pulls, " pulls held",
                      DescribeDurability(setup), DescribeCheckpoints(setup),
                      DescribeEvaluations(setup), DescribeSchedule(setup), DescribeHosts(setup),
                      DescribeAdmission(setup), DescribeExchange(setup));
}

}  // namespace thermocline
