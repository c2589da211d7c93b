// A server that dies and comes back: what it acknowledged counts, exactly once.
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"
#include "server/core/server_core.h"
#include "server/core/testing/checkpointed_server.h"
#include "server/core/testing/core_fixtures.h"
#include "server/storage/journal_opener.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/test_seed.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using testing_core::CheckpointedServer;
using testing_core::MakeConfig;
using testing_core::MakePull;
using testing_core::RandomChunk;
using wire::Readiness;

constexpr uint32_t kWorkers = 2;
constexpr int64_t kSteps = 12;
constexpr Key kKeys = 24;
constexpr char kFolder[] = "/server";

ServerConfig Config(std::optional<LogDurability> durability) {
  ServerConfig config = MakeConfig(kWorkers);
  config.durability = durability;
  return config;
}

wire::PushChunk ChunkOf(uint32_t rank, int64_t step, uint32_t chunk, uint32_t num_chunks) {
  return RandomChunk(rank, step, chunk, num_chunks, /*server=*/0, /*num_servers=*/1, kKeys);
}
uint32_t NumChunks(uint32_t rank, int64_t step) { return 1 + (rank + step) % 3; }

Digest UndisturbedDigest() {
  SimulatedDisk disk;
  CheckpointedServer server(&disk, Config(std::nullopt));
  EXPECT_TRUE(server.Configure().ok());
  for (int64_t step = 0; step < kSteps; ++step) {
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      for (uint32_t chunk = 0; chunk < NumChunks(rank, step); ++chunk) {
        EXPECT_TRUE(server.Push(ChunkOf(rank, step, chunk, NumChunks(rank, step))).ok());
      }
    }
  }
  return server.ComputeDigest();
}

class RecoveryTest : public testing::TestWithParam<LogDurability> {
 protected:
  // Pushes everything, and crashes at random: between messages, and in the middle of writes.
  void Run(uint64_t seed) {
    std::mt19937_64 random(seed);
    SimulatedDisk disk;
    CheckpointedServer server(&disk, Config(GetParam()));
    server.LeaveLogTasks();
    ASSERT_TRUE(server.Configure().ok());
    const auto crash = [&] {
      // What only survives the process needs the host.
      const bool host = GetParam() == LogDurability::kHost && random() % 2 == 0;
      server.Die(host ? &random : nullptr);
      const absl::Status recovered = server.Configure();
      ASSERT_TRUE(recovered.ok()) << recovered;
      ++crashes_;
    };
    std::vector<Step> acknowledged(kWorkers, kNoStep);
    while (acknowledged[0] < Step(kSteps - 1) || acknowledged[1] < Step(kSteps - 1)) {
      const uint32_t rank = random() % kWorkers;
      const Step step = acknowledged[rank] + 1;
      if (step >= Step(kSteps)) continue;
      const uint32_t num_chunks = NumChunks(rank, step.value());
      wire::PushChunk chunk = ChunkOf(rank, step.value(), random() % num_chunks, num_chunks);
      chunk.header.acked_through = acknowledged[rank];
      if (random() % 8 == 0) disk.FailAfter(static_cast<int>(random() % 3));
      const absl::StatusOr<wire::PushAnswer> answer = server.Push(std::move(chunk));
      // A server that forgot something acknowledged would answer kDataLoss.
      ASSERT_TRUE(answer.ok() || absl::IsUnavailable(answer.status())) << answer.status();
      const bool lost = random() % 4 == 0;  // on the way back
      if (answer.ok() && !lost && answer->accepted_through >= step) acknowledged[rank] = step;
      if (!server.broken() && random() % 2 == 0) server.RunLogTask();
      if (server.broken() || random() % 10 == 0) crash();
      if (HasFatalFailure()) return;
    }
    if (server.broken()) crash();
    EXPECT_TRUE(server.ComputeDigest() == undisturbed_);
    EXPECT_EQ(server.Stats().complete_through(), kSteps - 1);
  }

  const Digest undisturbed_ = UndisturbedDigest();
  int crashes_ = 0;
};

TEST_P(RecoveryTest, NothingAcknowledgedIsLostOrAppliedTwice) {
  const uint64_t first = TestSeed(1);
  for (uint64_t seed = first; seed < first + RandomRuns(200); ++seed) {
    SCOPED_TRACE(absl::StrCat("THERMOCLINE_TEST_SEED=", seed));
    Run(seed);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(crashes_, RandomRuns(200));
}

INSTANTIATE_TEST_SUITE_P(Durabilities, RecoveryTest,
                         testing::Values(LogDurability::kProcess, LogDurability::kHost),
                         [](const auto& info) {
                           return info.param == LogDurability::kHost ? "LogSync" : "LogAsync";
                         });

TEST(ServerRecoveryTest, AServerThatLostItsLogSaysSo) {
  SimulatedDisk disk;
  CheckpointedServer server(&disk, Config(LogDurability::kProcess));
  ASSERT_TRUE(server.Configure().ok());
  ASSERT_TRUE(server.Push(ChunkOf(0, 0, 0, 1)).ok());
  server.Die();
  const auto names = disk.List(kFolder);
  for (const std::string& name : *names) {
    ASSERT_TRUE(disk.Remove(absl::StrCat(kFolder, "/", name)).ok());
  }
  ASSERT_TRUE(server.Configure().ok());
  wire::PushChunk next = ChunkOf(0, 1, 0, 1);
  next.header.acked_through = Step(0);
  EXPECT_EQ(server.Push(std::move(next)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ServerRecoveryTest, DamageStopsTheRecoveryForGood) {
  SimulatedDisk disk;
  CheckpointedServer server(&disk, Config(LogDurability::kProcess));
  ASSERT_TRUE(server.Configure().ok());
  for (int64_t step = 0; step < 9; ++step) {
    ASSERT_TRUE(server.Push(ChunkOf(0, step, 0, 1)).ok());
  }
  server.Die();
  const auto names = disk.List(kFolder);
  const std::string path = absl::StrCat(kFolder, "/", names->front());
  std::string content = disk.Content(path);
  content[content.size() / 2] ^= 1;
  disk.SetContent(path, content);
  const absl::Status damaged = server.Configure();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr(path));
  EXPECT_EQ(server.Configure(), damaged);
  // Requests are refused at once, since the server never recovers.
  const absl::Status push = server.Push(ChunkOf(0, 9, 0, 1)).status();
  EXPECT_EQ(push.code(), absl::StatusCode::kDataLoss) << push;
  EXPECT_THAT(std::string(push.message()), HasSubstr(path));
  EXPECT_EQ(server.Pull(MakePull(0, 9)).status(), push);
}

TEST(ServerRecoveryTest, AFullDiskRefusesAPushAndLosesNothing) {
  SimulatedDisk disk;
  CheckpointedServer server(&disk, Config(LogDurability::kProcess));
  ASSERT_TRUE(server.Configure().ok());
  disk.SetFreeBytes(20);
  EXPECT_EQ(server.Push(ChunkOf(0, 0, 0, 1)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server.Stats().pushes_accepted(), 0u);
  EXPECT_EQ(server.Stats().pending_push_bytes(), 0u);
  EXPECT_EQ(server.Stats().requests_refused(), 1u);
  disk.SetFreeBytes(1 << 20);
  const uint64_t log_bytes = server.Stats().push_log_bytes();
  EXPECT_TRUE(server.Push(ChunkOf(0, 0, 0, 1)).ok());
  EXPECT_GT(server.Stats().push_log_bytes(), log_bytes);
  EXPECT_FALSE(server.broken());
}

// A disk that stands still: `meanwhile` runs in the middle of each operation on a file that is
// written, and of none that it brings about itself.
class SlowDisk : public SimulatedDisk {
 public:
  enum class Operation { kAppend, kOther };
  std::function<void(Operation)> meanwhile;

  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override {
    auto file = SimulatedDisk::Create(path);
    Run(Operation::kOther);
    if (!file.ok()) return file;
    return std::make_unique<File>(this, *std::move(file));
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    Run(Operation::kOther);
    return SimulatedDisk::SyncDirectory(directory);
  }

 private:
  class File : public AppendFile {
   public:
    File(SlowDisk* disk, std::unique_ptr<AppendFile> file) : disk_(disk), file_(std::move(file)) {}
    absl::Status Append(absl::Span<const absl::string_view> pieces) override {
      disk_->Run(Operation::kAppend);
      return file_->Append(pieces);
    }
    absl::Status Sync() override {
      disk_->Run(Operation::kOther);
      return file_->Sync();
    }
    absl::Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }

   private:
    SlowDisk* const disk_;
    const std::unique_ptr<AppendFile> file_;
  };
  void Run(Operation operation) {
    if (!meanwhile || running_) return;
    running_ = true;
    meanwhile(operation);
    running_ = false;
  }
  bool running_ = false;
};

// Were a mutex held that others need, this would not end.
TEST(ServerRecoveryTest, ADiskThatStandsStillKeepsNobodyElseWaiting) {
  SlowDisk disk;
  CheckpointedServer server(&disk, Config(LogDurability::kProcess));
  server.LeaveLogTasks();
  ASSERT_TRUE(server.Configure().ok());
  int during_appends = 0, during_others = 0;
  int64_t accepted = 0, accepted_of_other = 0;  // Pushes of the two workers.
  disk.meanwhile = [&](SlowDisk::Operation operation) {
    EXPECT_EQ(server.Stats().accepted_through(0), accepted - 1);
    EXPECT_EQ(server.Pull(MakePull(1, 0))->readiness, Readiness::kReady);
    if (operation == SlowDisk::Operation::kAppend) {
      ++during_appends;
    } else {  // A full segment ends: records go on into it, or into the next.
      ++during_others;
      const Step step(accepted_of_other++);
      EXPECT_EQ(server.Push(ChunkOf(1, step.value(), 0, 1))->accepted_through, step);
    }
  };
  while (accepted < 20) {
    EXPECT_EQ(server.Push(ChunkOf(0, accepted, 0, 1))->accepted_through, Step(accepted));
    ++accepted;
    server.RunLogTask();
  }
  EXPECT_GE(during_appends, 20);  // Headers of segments are appended, too.
  EXPECT_GE(during_others, 5);    // Two files, one folder.
  disk.meanwhile = nullptr;
  EXPECT_GT(disk.List(kFolder)->size(), 1u);
  server.Die();
  ASSERT_TRUE(server.Configure().ok());
  EXPECT_EQ(server.Stats().accepted_through(0), 19);
  EXPECT_EQ(server.Stats().accepted_through(1), accepted_of_other - 1);
}

TEST(ServerRecoveryTest, WhileItRecoversItAsksForPatience) {
  SimulatedDisk disk;
  {
    CheckpointedServer server(&disk, Config(LogDurability::kProcess));
    ASSERT_TRUE(server.Configure().ok());
    ASSERT_TRUE(server.Push(ChunkOf(0, 0, 0, 1)).ok());
  }
  // Asks in the middle of the replay.
  class AskingOpener : public JournalOpener {
   public:
    absl::StatusOr<std::unique_ptr<PushJournal>> Open(const JournalSpec&, Visit visit) override {
      EXPECT_TRUE(visit(ChunkOf(0, 0, 0, 1)).ok());
      core->Push(ChunkOf(1, 0, 0, 2), [this](absl::StatusOr<wire::PushAnswer> answer) {
        EXPECT_EQ(answer->readiness, Readiness::kRecovering);
        ++answers;
      });
      core->Pull(MakePull(0, 0), [this](absl::StatusOr<wire::PullAnswer> answer) {
        EXPECT_EQ(answer->readiness, Readiness::kRecovering);
        ++answers;
      });
      again = core->Configure(*config);
      return absl::UnavailableError("enough");
    }
    ServerCore* core = nullptr;
    const ServerConfig* config = nullptr;
    absl::Status again;
    int answers = 0;
  };
  AskingOpener opener;
  VirtualScheduler scheduler;
  ServerCore core(ServerLimits{}, &scheduler, &opener);
  ServerConfig config = MakeConfig(kWorkers);
  config.durability = LogDurability::kProcess;
  opener.core = &core;
  opener.config = &config;
  EXPECT_EQ(core.Configure(config), absl::AbortedError("enough"));
  EXPECT_EQ(opener.answers, 2);
  EXPECT_EQ(opener.again,
            absl::UnavailableError(
                "recovering: 0 rows are loaded, 1 chunks of pushes are replayed so far"));
}

// "Unavailable" would have it asked for ever.
TEST(ServerRecoveryTest, ADiskThatCantBeReadIsTheEndOfIt) {
  class UnreadableDisk : public SimulatedDisk {
   public:
    absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) override {
      if (fails) return absl::UnavailableError(path + ": Input/output error");
      return SimulatedDisk::Open(path);
    }
    bool fails = false;
  };
  UnreadableDisk disk;
  CheckpointedServer server(&disk, Config(LogDurability::kProcess));
  ASSERT_TRUE(server.Configure().ok());
  ASSERT_TRUE(server.Push(ChunkOf(0, 0, 0, 1)).ok());
  server.Die();
  disk.fails = true;
  for (int i = 0; i < 2; ++i) {
    const absl::Status failed = server.Configure();
    EXPECT_EQ(failed.code(), absl::StatusCode::kAborted) << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr("Input/output error"));
    const absl::Status pull = server.Pull(MakePull(0, 1)).status();
    EXPECT_EQ(pull.code(), absl::StatusCode::kAborted) << pull;
    EXPECT_THAT(std::string(pull.message()), HasSubstr("can't recover: /server/"));
    EXPECT_THAT(std::string(pull.message()), HasSubstr("Input/output error"));
  }
  server.Die();
  disk.fails = false;
  EXPECT_TRUE(server.Configure().ok());
}

TEST(ServerRecoveryTest, NoFolderNoDurability) {
  VirtualScheduler scheduler;
  ServerCore core(ServerLimits{}, &scheduler);
  ServerConfig config = MakeConfig(1);
  config.durability = LogDurability::kHost;
  EXPECT_EQ(core.Configure(config).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace thermocline
