// Servers that die anywhere while checkpoints are written, committed and called off: whatever they
// begin with, they hold what an undisturbed server held after the same step.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/rows_file.h"
#include "gtest/gtest.h"
#include "server/core/testing/checkpointed_server.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using namespace testing_core;  // NOLINT: the words of these tests

constexpr uint32_t kWorkers = 2;
constexpr int64_t kSteps = 30;
constexpr int kMaxRollbacks = 3;
constexpr int kMaxCrashes = 20;

uint32_t NumChunks(uint32_t rank, int64_t step) { return 1 + (rank + step) % 3; }

ServerConfig Config(std::optional<LogDurability> durability) {
  ServerConfig config = MakeConfig(kWorkers);
  config.durability = durability;
  config.checkpoint_every_steps = 7;
  config.checkpoint_full_every = 3;
  return config;
}

// What an undisturbed server holds after each step; [0]: before the first.
std::vector<HeldRows> UndisturbedRows() {
  SimulatedDisk disk;
  ServerConfig config = Config(std::nullopt);
  config.checkpoint_every_steps = 0;
  CheckpointedServer server(&disk, config);
  EXPECT_TRUE(server.Configure().ok());
  std::vector<HeldRows> rows = {server.Rows()};
  for (int64_t step = 0; step < kSteps; ++step) {
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      for (uint32_t shard = 0; shard < NumChunks(rank, step); ++shard) {
        EXPECT_TRUE(server.Push(RandomChunk(rank, step, shard, NumChunks(rank, step))).ok());
      }
    }
    rows.push_back(server.Rows());
  }
  return rows;
}

// What no server and no launcher is supposed to do, so that the test can see that it finds it.
enum class Planted {
  kNone,
  kMissingRow,        // A shard lacks a row.
  kMissingBaseFiles,  // A manifest lists an increment without what it builds on.
  kStaleBase,         // A server begins with the checkpoint before the newest.
  kEarlyDrop,         // A commit is undone after it has reached a server.
};

// How often something happened, over all runs: a test without it tests nothing.
struct Counters {
  int recoveries = 0;
  int rollbacks = 0;
  int commits = 0;
  int increments = 0;
  int interrupted_commits = 0;
  int called_off = 0;
  int failed_cuts = 0;
  int died_writing = 0;
  int loaded = 0;
};

class DisturbedRun {
 public:
  DisturbedRun(uint64_t seed, std::optional<LogDurability> durability, Planted planted,
               const std::vector<HeldRows>* undisturbed, Counters* counters)
      : random_(seed),
        planted_(planted),
        undisturbed_(*undisturbed),
        counters_(*counters),
        server_(&disk_, Config(durability)) {}

  // What went wrong first; "" where nothing did.
  std::string Go() {
    Require(store_.Prepare());
    Require(server_.Configure());
    while (failure_.empty() &&
           *std::min_element(acknowledged_.begin(), acknowledged_.end()) < Step(kSteps - 1)) {
      if (random_() % 12 == 0) disk_.FailAfter(static_cast<int>(random_() % 5));
      Act();
      // Without a log each death costs the steps since the last checkpoint: they must be rarer.
      if (server_.broken() || (crashes_ < kMaxCrashes && random_() % (durable() ? 15 : 150) == 0)) {
        Crash();
      }
    }
    CheckRows();
    CheckLastCheckpoint();
    return failure_;
  }

 private:
  void Require(bool holds, const std::string& what) {
    if (!holds && failure_.empty()) failure_ = what;
  }
  void Require(const absl::Status& status) { Require(status.ok(), status.ToString()); }

  bool durable() { return server_.config().durability.has_value(); }

  void Act() {
    switch (random_() % 8) {
      case 0:
        return NameCut();
      case 1:
        return Control();
      case 2:
      case 3:
        // A part in up to three files takes some more of them than it has slices.
        for (int i = 0; i < 2; ++i) server_.WriteSlice();
        return;
      default:
        return Push();
    }
  }

  void Push() {
    const auto rank = static_cast<uint32_t>(random_() % kWorkers);
    const Step step = acknowledged_[rank] + 1;
    if (step >= Step(kSteps)) return;
    const uint32_t num_chunks = NumChunks(rank, step.value());
    wire::PushChunk shard = RandomChunk(rank, step.value(), random_() % num_chunks, num_chunks);
    shard.header.acked_through = acknowledged_[rank];
    const absl::StatusOr<wire::PushAnswer> answer = server_.Push(std::move(shard));
    if (!absl::IsUnavailable(answer.status())) Require(answer.status());
    const bool lost = random_() % 4 == 0;  // on the way back
    if (answer.ok() && !lost && answer->accepted_through >= step) acknowledged_[rank] = step;
  }

  void NameCut() {
    const int64_t step = server_.Stats().complete_through() + static_cast<int64_t>(random_() % 4);
    const absl::Status named = server_.Checkpoint(CheckpointRequest::NAME_CUT, step).status();
    if (!absl::IsFailedPrecondition(named) && step >= 0) Require(named);
  }

  // What a launcher does when it polls. An older cut that is written is committed or called off
  // before a later one.
  void Control() {
    const auto reply = server_.Checkpoint(CheckpointRequest::STATUS);
    Require(reply.status());
    for (const CutStatus& cut : reply->cuts()) {
      const bool uncertain = uncertain_.count(cut.step()) > 0;
      if (cut.state() == CutStatus::FAILED || (!uncertain && random_() % 8 == 0)) {
        cut.state() == CutStatus::FAILED ? ++counters_.failed_cuts : ++counters_.called_off;
        Require(server_.Checkpoint(CheckpointRequest::CALL_OFF, cut.step()).status());
      } else if (cut.state() == CutStatus::WRITTEN) {
        return Commit(cut);
      }
    }
  }

  void Commit(const CutStatus& cut) {
    const auto manifest = Compose(cut.shard(), cut.step());
    if (planted_ == Planted::kEarlyDrop) {
      if (!manifest.ok() || !store_.Commit(*manifest).ok()) return;
      server_.Checkpoint(CheckpointRequest::COMMITTED, cut.step()).IgnoreError();
      const std::string name = CheckpointName(Step(cut.step()));
      Require(disk_.Remove(absl::StrCat(kCheckpoints, "/", name, "/MANIFEST")));
      return;
    }
    // The disk fails at times, and the next poll tries again.
    if (absl::IsUnavailable(manifest.status())) return;
    if (!manifest.ok()) return Require(manifest.status());
    uncertain_.insert(cut.step());  // From now on it may be there.
    if (random_() % 6 == 0) disk_.FailAfter(static_cast<int>(random_() % 5));
    const absl::Status committed = store_.Commit(*manifest);
    if (!absl::IsUnavailable(committed)) Require(committed);
    if (!committed.ok()) {
      ++counters_.interrupted_commits;
      return;
    }
    uncertain_.erase(cut.step());
    ++counters_.commits;
    if (cut.shard().base_step() >= 0) ++counters_.increments;
    if (random_() % 4 == 0 && crashes_ < kMaxCrashes) return Crash();  // No server gets it.
    // It may fail, and is not repeated here: the log is the larger for it.
    server_.Checkpoint(CheckpointRequest::COMMITTED, cut.step()).IgnoreError();
    if (random_() % 2 == 0) {
      const auto removed = store_.RemoveUnneeded(1 + random_() % 2, Open());
      if (!absl::IsUnavailable(removed.status())) Require(removed.status());
    }
  }

  absl::StatusOr<CheckpointManifest> Compose(CheckpointShard shard, int64_t step) {
    if (planted_ == Planted::kMissingRow && shard.files_size() > 0) {
      absl::StatusOr<CheckpointFile> file = WithoutARow(shard.files(0));
      if (!file.ok()) return file.status();
      *shard.mutable_files(0) = *std::move(file);
    }
    auto manifest = ComposeManifest(store_, server_.config(), step, {shard});
    if (manifest.ok() && planted_ == Planted::kMissingBaseFiles) {
      *manifest->mutable_shards(0)->mutable_files() = shard.files();
    }
    return manifest;
  }

  // Writes the file anew, all but the first of its rows.
  absl::StatusOr<CheckpointFile> WithoutARow(const CheckpointFile& file) {
    struct Row {
      RowKey key;
      uint32_t lookups, changed;
      std::vector<float> values;
    };
    std::vector<Row> rows;
    {
      auto reader = RowsFileReader::Open(&disk_, kCheckpoints, file);
      SavedRow row;
      while (reader.ok()) {
        const absl::StatusOr<bool> more = (*reader)->Next(&row);
        if (!more.ok()) return more.status();
        if (!*more) break;
        rows.push_back({row.key, row.lookups, row.changed, {row.values.begin(), row.values.end()}});
      }
    }
    auto writer = RowsFileWriter::Create(&disk_, kCheckpoints, file.path());
    if (!writer.ok() || rows.size() < 2) return absl::UnavailableError("not now");
    for (size_t i = 1; i < rows.size(); ++i) {
      const absl::Status added = (*writer)->Add(rows[i].key.table, rows[i].key.key, rows[i].lookups,
                                                rows[i].changed, rows[i].values);
      if (!added.ok()) return added;
    }
    const auto written = (*writer)->Finish();
    if (!written.ok()) return written.status();
    return **written;
  }

  std::vector<CheckpointId> Open() {
    std::vector<CheckpointId> open;
    const auto reply = server_.Checkpoint(CheckpointRequest::STATUS);
    for (const CutStatus& cut : reply->cuts()) {
      open.push_back({server_.config().generation, Step(cut.step())});
    }
    return open;
  }

  bool IsWriting() {
    const auto reply = server_.Checkpoint(CheckpointRequest::STATUS);
    return reply.ok() &&
           std::any_of(reply->cuts().begin(), reply->cuts().end(),
                       [](const auto& cut) { return cut.state() == CutStatus::WRITING; });
  }

  std::optional<CheckpointManifest> Newest() {
    const auto newest = store_.Newest();
    Require(newest.status());
    return newest.ok() ? *newest : std::nullopt;
  }

  // The server dies, alone or with its host, and comes back: from its log, or from a checkpoint.
  void Crash() {
    if (IsWriting()) ++counters_.died_writing;
    const bool host = server_.config().durability == LogDurability::kHost && random_() % 2 == 0;
    ++crashes_;
    server_.Die(host || !durable() ? &random_ : nullptr);
    uncertain_.clear();
    const std::optional<CheckpointManifest> newest = Newest();
    const std::string base = BaseName(newest);
    const Step base_step(newest.has_value() ? newest->step() : -1);
    const bool roll_back = !durable() || (rollbacks_ < kMaxRollbacks && random_() % 10 == 0);
    if (roll_back) {
      ++rollbacks_;
      ++counters_.rollbacks;
      ++server_.config().generation;
      acknowledged_.assign(kWorkers, base_step);
    }
    const absl::Status recovered = server_.Configure(base);
    if (!recovered.ok()) return Require(recovered);
    ++counters_.recoveries;
    if (newest.has_value()) ++counters_.loaded;
    if (roll_back) {
      Require(server_.Stats().complete_through() == base_step.value(), "rolled back elsewhere");
    }
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      Require(Step(server_.Stats().accepted_through(static_cast<int>(rank))) >= acknowledged_[rank],
              "an acknowledged push is gone");
    }
    CheckRows();
  }

  std::string BaseName(const std::optional<CheckpointManifest>& newest) {
    if (planted_ == Planted::kStaleBase) {
      const auto all = store_.List();
      return all.ok() && all->size() > 1 ? (*all)[all->size() - 2].name : "";
    }
    return newest.has_value() ? CheckpointName(Step(newest->step())) : "";
  }

  void CheckRows() {
    if (!failure_.empty()) return;
    const int64_t through = server_.Stats().complete_through();
    Require(server_.Rows() == undisturbed_[static_cast<size_t>(through + 1)],
            absl::StrCat("other rows after step ", through));
  }

  // Loaded by another number of servers, which never wrote it.
  void CheckLastCheckpoint() {
    const std::optional<CheckpointManifest> newest = Newest();
    if (!newest.has_value() || !failure_.empty()) return;
    HeldRows rows;
    const uint32_t num_servers = 1 + random_() % 3;
    for (uint32_t i = 0; i < num_servers; ++i) {
      ServerConfig config = Config(std::nullopt);
      config.generation = 1000;
      config.num_servers = num_servers;
      config.server_index = ServerIndex(i);
      CheckpointedServer server(&disk_, config, "/other");
      const absl::Status loaded = server.Configure(CheckpointName(Step(newest->step())));
      if (!loaded.ok()) return Require(loaded);
      for (auto& [key, row] : server.Rows()) {
        Require(rows.emplace(key, row).second, "two servers hold a row");
      }
    }
    Require(rows == undisturbed_[static_cast<size_t>(newest->step() + 1)],
            absl::StrCat("the checkpoint of step ", newest->step(), " holds other rows"));
  }

  std::mt19937_64 random_;
  const Planted planted_;
  std::string failure_;
  const std::vector<HeldRows>& undisturbed_;
  Counters& counters_;
  SimulatedDisk disk_;
  CheckpointedServer server_;
  CheckpointStore store_{&disk_, kCheckpoints};
  std::vector<Step> acknowledged_ = std::vector<Step>(kWorkers, kNoStep);
  // Cuts that were to be committed, and may be or not: they can't be called off.
  std::set<int64_t> uncertain_;
  int crashes_ = 0;
  int rollbacks_ = 0;
};

class CheckpointRecoveryTest : public testing::TestWithParam<std::optional<LogDurability>> {};

TEST_P(CheckpointRecoveryTest, WhateverTheyBeginWithTheyHoldTheSame) {
  const std::vector<HeldRows> undisturbed = UndisturbedRows();
  Counters counters;
  const uint64_t first = TestSeed(1);
  for (uint64_t seed = first; seed < first + RandomRuns(70); ++seed) {
    SCOPED_TRACE(absl::StrCat("THERMOCLINE_TEST_SEED=", seed));
    const std::string failure =
        DisturbedRun(seed, GetParam(), Planted::kNone, &undisturbed, &counters).Go();
    ASSERT_EQ(failure, "");
  }
  EXPECT_GT(counters.recoveries, RandomRuns(100));
  EXPECT_GT(counters.rollbacks, RandomRuns(35));
  EXPECT_GT(counters.commits, RandomRuns(50));
  EXPECT_GT(counters.increments, RandomRuns(10));
  EXPECT_GT(counters.interrupted_commits, 0);
  EXPECT_GT(counters.called_off, RandomRuns(8));
  EXPECT_GT(counters.failed_cuts, RandomRuns(10));
  EXPECT_GT(counters.died_writing, RandomRuns(10));
  EXPECT_GT(counters.loaded, RandomRuns(40));
}

// The test is worth something if it finds what is wrong.
TEST(CheckpointRecoveryPlantedTest, FaultsAreFound) {
  const std::vector<HeldRows> undisturbed = UndisturbedRows();
  Counters counters;
  for (const Planted planted : {Planted::kMissingRow, Planted::kMissingBaseFiles,
                                Planted::kStaleBase, Planted::kEarlyDrop}) {
    std::string failure;
    for (uint64_t seed = 1; seed <= 50 && failure.empty(); ++seed) {
      failure = DisturbedRun(seed, LogDurability::kProcess, planted, &undisturbed, &counters).Go();
    }
    EXPECT_NE(failure, "") << "fault " << static_cast<int>(planted);
    std::cout << "fault " << static_cast<int>(planted) << ": " << failure << "\n";
  }
}

INSTANTIATE_TEST_SUITE_P(Durabilities, CheckpointRecoveryTest,
                         testing::Values(std::nullopt, LogDurability::kProcess,
                                         LogDurability::kHost),
                         [](const auto& info) -> std::string {
                           if (!info.param.has_value()) return "None";
                           return *info.param == LogDurability::kHost ? "LogSync" : "LogAsync";
                         });

}  // namespace
}  // namespace thermocline
