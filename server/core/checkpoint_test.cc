// Cuts, the shards written of them, and servers that begin with a checkpoint.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/testing/checkpointed_server.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/sst_files.h"

namespace thermocline {
namespace {

using absl::StatusCode;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using namespace testing_core;  // NOLINT: the words of these tests

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() { EXPECT_TRUE(store_.Prepare().ok()); }

  static ServerConfig Config(uint32_t num_workers = 1) {
    ServerConfig config = MakeConfig(num_workers);
    config.durability = LogDurability::kProcess;
    config.checkpoint_full_every = 8;
    return config;
  }
  std::unique_ptr<CheckpointedServer> Server(const ServerConfig& config,
                                             const std::string& base = "") {
    auto server = std::make_unique<CheckpointedServer>(&disk_, config,
                                                       absl::StrCat("/server-", servers_made_++));
    const absl::Status configured = server->Configure(base);
    EXPECT_TRUE(configured.ok()) << configured;
    return server;
  }
  // Pushes steps first..last of all workers.
  static void Train(CheckpointedServer* server, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      for (uint32_t rank = 0; rank < server->config().num_workers; ++rank) {
        const auto answer = server->Push(RandomChunk(
            rank, step, 0, 1, server->config().server_index.value(), server->config().num_servers));
        ASSERT_TRUE(answer.ok()) << answer.status();
      }
    }
  }
  // Writes the cut, commits it and says so; gives its name. `as_sst`: with rows files as earlier
  // programs wrote them.
  std::string Commit(std::vector<CheckpointedServer*> servers, int64_t step, bool as_sst = false) {
    std::vector<CheckpointShard> shards;
    for (CheckpointedServer* server : servers) {
      const CutStatus cut = server->WriteCut(step);
      EXPECT_EQ(cut.state(), CutStatus::WRITTEN) << cut.ShortDebugString();
      shards.push_back(cut.shard());
    }
    const ServerConfig& config = servers[0]->config();
    auto manifest = ComposeManifest(store_, config, step, shards);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    for (CheckpointShard& shard : *manifest->mutable_shards()) {
      for (CheckpointFile& file : *shard.mutable_files()) {
        if (as_sst) ReplaceBySstFile(&disk_, kCheckpoints, &file);
      }
    }
    const absl::Status committed = store_.Commit(*manifest);
    EXPECT_TRUE(committed.ok()) << committed;
    for (CheckpointedServer* server : servers) {
      EXPECT_TRUE(server->Checkpoint(CheckpointRequest::COMMITTED, step).ok());
    }
    return CheckpointName(Step(step));
  }
  bool Exists(const std::string& path) { return disk_.Open(path).ok(); }

  SimulatedDisk disk_;
  int servers_made_ = 0;
  CheckpointStore store_{&disk_, kCheckpoints};
};

TEST_F(CheckpointTest, AShardIsTheRowsOfTheCutWhateverIsAppliedMeanwhile) {
  ServerConfig config = Config();
  config.checkpoint_every_steps = 5;
  const auto server = Server(config);
  Train(server.get(), 0, 4);
  const HeldRows at_cut = server->Rows();
  const Digest digest = server->ComputeDigest();
  Train(server.get(), 5, 6);
  ASSERT_TRUE(server->WriteSlice());  // In the middle of it.
  EXPECT_EQ(server->CutAt(4)->state(), CutStatus::WRITING);
  Train(server.get(), 7, 8);
  EXPECT_FALSE(server->Rows() == at_cut);
  const HeldRows later = server->Rows();
  const std::string name = Commit({server.get()}, 4);
  EXPECT_EQ(server->Stats().checkpoint_step(), 4);
  EXPECT_TRUE(server->Rows() == later);
  const auto cut = server->CutAt(4);
  EXPECT_FALSE(cut.has_value());

  ServerConfig next = config;
  next.generation = 6;
  const auto restored = Server(next, name);
  EXPECT_TRUE(restored->Rows() == at_cut);
  EXPECT_TRUE(restored->ComputeDigest() == digest);
  EXPECT_EQ(restored->Stats().complete_through(), 4);
  EXPECT_EQ(restored->Stats().loaded_rows(), at_cut.size());
  EXPECT_EQ(restored->Stats().accepted_through(0), 4);
  // It goes on behind the cut.
  EXPECT_EQ(restored->Push(RandomChunk(0, 4))->accepted_through, Step(4));
  EXPECT_EQ(restored->Push(RandomChunk(0, 6))->readiness, wire::Readiness::kNotReady);
  Train(restored.get(), 5, 8);
  EXPECT_TRUE(restored->Rows() == later);
}

TEST_F(CheckpointTest, ACutComesBeforeTheStepBehindIt) {
  ServerConfig config = Config(2);
  config.checkpoint_every_steps = 2;
  const auto server = Server(config);
  // Worker 0 is ahead: with the push of worker 1 for step 1, nothing more is missing of step 2.
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE(server->Push(RandomChunk(0, step)).ok());
  ASSERT_TRUE(server->Push(RandomChunk(1, 0)).ok());
  ASSERT_TRUE(server->Push(RandomChunk(1, 2 - 1)).ok());
  ASSERT_TRUE(server->Push(RandomChunk(1, 2)).ok());
  EXPECT_EQ(server->Stats().complete_through(), 2);
  const std::string name = Commit({server.get()}, 1);
  ServerConfig next = config;
  next.generation = 6;
  const auto restored = Server(next, name);
  for (const auto& [key, row] : restored->Rows()) EXPECT_LE(row.changed, Step(1));
  EXPECT_EQ(restored->Stats().complete_through(), 1);
  EXPECT_EQ(restored->Stats().pushes_accepted(), 0u);  // What waits isn't in the shard.
}

TEST_F(CheckpointTest, ANamedCutMustNotBeTooLate) {
  ServerConfig config = Config(2);
  config.staleness_steps = 9;
  const auto server = Server(config);
  const auto name = [&](int64_t step) {
    return server->Checkpoint(CheckpointRequest::NAME_CUT, step).status().code();
  };
  Train(server.get(), 0, 2);
  EXPECT_EQ(name(1), StatusCode::kFailedPrecondition);
  // Pushes beyond it that wait for others are applied behind it.
  for (int64_t step = 3; step < 7; ++step) ASSERT_TRUE(server->Push(MakeChunk(0, step)).ok());
  EXPECT_EQ(name(4), StatusCode::kOk);
  // At the step that is applied: it begins at once.
  EXPECT_EQ(name(2), StatusCode::kOk);
  EXPECT_EQ(server->CutAt(2)->state(), CutStatus::WRITING);
  EXPECT_EQ(name(2), StatusCode::kOk);
  EXPECT_EQ(server->CutAt(4)->state(), CutStatus::NAMED);
  EXPECT_EQ(Commit({server.get()}, 2), "step-000000002");
  EXPECT_EQ(name(2), StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointTest, RequestsThatCantBe) {
  CheckpointedServer server(&disk_, Config());
  EXPECT_EQ(server.Checkpoint(CheckpointRequest::STATUS).status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(server.Configure().ok());
  EXPECT_EQ(server.Checkpoint(CheckpointRequest::STATUS)->complete_through(), -1);
  EXPECT_EQ(server.Checkpoint(CheckpointRequest::NAME_CUT, -1).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(server.Checkpoint(static_cast<CheckpointRequest::Action>(77), 3).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(server.Checkpoint(CheckpointRequest::COMMITTED, 3).status().code(),
            StatusCode::kFailedPrecondition);
  CheckpointRequest request;
  request.set_job_id("job");
  request.set_generation(4);
  server.core()->Checkpoint(request, [](const absl::StatusOr<CheckpointReply>& reply) {
    EXPECT_EQ(reply.status().code(), StatusCode::kFailedPrecondition);
  });
  server.core()->Shutdown();
  EXPECT_EQ(server.Checkpoint(CheckpointRequest::STATUS).status().code(), StatusCode::kUnavailable);

  VirtualScheduler scheduler;
  ServerConfig config = MakeConfig(1);
  ServerCore without(ServerLimits{}, &scheduler);
  ASSERT_TRUE(without.Configure(config).ok());
  request.set_generation(5);
  request.set_action(CheckpointRequest::NAME_CUT);
  without.Checkpoint(request, [](const absl::StatusOr<CheckpointReply>& reply) {
    EXPECT_EQ(reply.status().code(), StatusCode::kFailedPrecondition);
  });
  ServerCore other(ServerLimits{}, &scheduler);
  config.checkpoint_directory = kCheckpoints;
  EXPECT_EQ(other.Configure(config).code(), StatusCode::kFailedPrecondition);
}

// It would hold up pushes of workers that know of no cut there.
TEST_F(CheckpointTest, ARequestThatALaterOneHasOvertakenIsRefused) {
  const auto server = Server(Config());
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 2, 1).ok());
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::CALL_OFF, 3, 3).ok());
  EXPECT_EQ(server->Checkpoint(CheckpointRequest::NAME_CUT, 3, 2).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_FALSE(server->CutAt(3).has_value());
  EXPECT_EQ(server->Checkpoint(CheckpointRequest::CALL_OFF, 2, 2).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(server->CutAt(2).has_value());
  EXPECT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 3, 3).ok()) << "said twice";
  Train(server.get(), 0, 0);
  EXPECT_EQ(server->Checkpoint(CheckpointRequest::STATUS)->accepted_through(), 0);
}

TEST_F(CheckpointTest, OnlyOneIsWrittenAtATime) {
  const auto server = Server(Config());
  Train(server.get(), 0, 2);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 2).ok());
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 3).ok());
  Train(server.get(), 3, 4);
  EXPECT_EQ(server->CutAt(3)->state(), CutStatus::FAILED);
  EXPECT_THAT(server->CutAt(3)->error(), HasSubstr("busy"));
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::CALL_OFF, 3).ok());
  EXPECT_FALSE(server->CutAt(3).has_value());
  Commit({server.get()}, 2);
}

TEST_F(CheckpointTest, CalledOffAtAnyMomentLeavesNothing) {
  for (int slices = 0; slices < 8; ++slices) {
    SimulatedDisk disk;
    CheckpointedServer server(&disk, Config());
    ASSERT_TRUE(disk.CreateDirectory(kCheckpoints).ok());
    ASSERT_TRUE(server.Configure().ok());
    Train(&server, 0, 2);
    ASSERT_TRUE(server.Checkpoint(CheckpointRequest::NAME_CUT, 2).ok());
    for (int i = 0; i < slices; ++i) server.WriteSlice();
    ASSERT_TRUE(server.Checkpoint(CheckpointRequest::CALL_OFF, 2).ok());
    ASSERT_TRUE(server.Checkpoint(CheckpointRequest::CALL_OFF, 2).ok());
    EXPECT_FALSE(server.CutAt(2).has_value());
    EXPECT_EQ(server.WriteCut(2).state(), CutStatus().state());
    EXPECT_FALSE(disk.Open("/checkpoints/step-000000002/generation-5-server-0.1.rows").ok())
        << slices;
    // It is over: the next is written.
    ASSERT_TRUE(server.Checkpoint(CheckpointRequest::NAME_CUT, 3).ok());
    Train(&server, 3, 3);
    EXPECT_EQ(server.WriteCut(3).state(), CutStatus::WRITTEN);
  }
}

TEST_F(CheckpointTest, AFullDiskFailsTheCutAlone) {
  const auto server = Server(Config());
  Train(server.get(), 0, 2);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 2).ok());
  disk_.SetFreeBytes(100);
  const CutStatus cut = server->WriteCut(2);
  EXPECT_EQ(cut.state(), CutStatus::FAILED);
  EXPECT_THAT(cut.error(), HasSubstr("disk full"));
  EXPECT_THAT(cut.error(), HasSubstr("/checkpoints/step-000000002/generation-5-server-0.1.rows"));
  EXPECT_FALSE(Exists("/checkpoints/step-000000002/generation-5-server-0.1.rows"));
  disk_.SetFreeBytes(1 << 20);
  Train(server.get(), 3, 3);
  EXPECT_FALSE(server->broken());
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 3).ok());
  Commit({server.get()}, 3);
}

TEST_F(CheckpointTest, ACommitShrinksTheLogAndARestartNeedsNoMore) {
  const auto server = Server(Config());
  Train(server.get(), 0, 19);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 19).ok());
  Train(server.get(), 20, 22);
  const uint64_t before = server->Stats().push_log_bytes();
  const std::string name = Commit({server.get()}, 19);
  EXPECT_LT(server->Stats().push_log_bytes(), before / 3);
  const HeldRows rows = server->Rows();
  server->Die();
  // Without the checkpoint that its log builds on: no.
  EXPECT_EQ(server->Configure().code(), StatusCode::kDataLoss);
  server->Die();
  ASSERT_TRUE(server->Configure(name).ok());
  EXPECT_TRUE(server->Rows() == rows);
  EXPECT_EQ(server->Stats().complete_through(), 22);
  EXPECT_EQ(server->Stats().replayed_chunks(), 3u);
  EXPECT_EQ(server->Stats().checkpoint_step(), 19);
  // Its next shard builds on that.
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::COMMITTED, 19).ok());
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 22).ok());
  EXPECT_EQ(server->WriteCut(22).shard().base_step(), 19);
}

// Not by a stray request: the log is all that there is then.
TEST_F(CheckpointTest, TheLogShrinksForAManifestAlone) {
  const auto server = Server(Config());
  Train(server.get(), 0, 19);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 19).ok());
  const CutStatus cut = server->WriteCut(19);
  const uint64_t bytes = server->Stats().push_log_bytes();
  const auto expect_refused = [&](const std::string& why) {
    const absl::Status refused = server->Checkpoint(CheckpointRequest::COMMITTED, 19).status();
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
    EXPECT_EQ(server->Stats().push_log_bytes(), bytes);
    EXPECT_EQ(server->CutAt(19)->state(), CutStatus::WRITTEN);
    EXPECT_EQ(server->Stats().checkpoint_step(), -1);
  };
  expect_refused("step-000000019 is not committed");
  auto manifest = ComposeManifest(store_, server->config(), 19, {cut.shard()});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  // As if it had been put there by hand.
  const auto write = [&](const CheckpointManifest& other) {
    disk_.Remove("/checkpoints/step-000000019/MANIFEST").IgnoreError();
    auto file = disk_.Create("/checkpoints/step-000000019/MANIFEST");
    ASSERT_TRUE(file.ok()) << file.status();
    const std::string bytes = EncodeManifest(other);
    ASSERT_TRUE((*file)->Append({bytes}).ok());
  };
  CheckpointManifest other = *manifest;
  other.set_job_id("other");
  write(other);
  expect_refused("job 'other'");
  other = *manifest;
  other.set_step(18);
  write(other);
  expect_refused("is of step 18 of generation 5");
  other = *manifest;
  other.set_generation(4);
  other.mutable_shards(0)->clear_files();
  write(other);
  expect_refused("is of step 19 of generation 4: it has taken the place of generation 5's");
  other = *manifest;
  other.set_num_servers(2);
  other.add_shards()->set_server_index(1);
  other.mutable_shards(1)->set_base_step(-1);
  write(other);
  expect_refused("2 servers");
  write(*manifest);
  EXPECT_TRUE(server->Checkpoint(CheckpointRequest::COMMITTED, 19).ok());
  EXPECT_LT(server->Stats().push_log_bytes(), bytes);
  EXPECT_EQ(server->Stats().checkpoint_step(), 19);
}

TEST_F(CheckpointTest, ARequestTooFarAheadOvertakesNothing) {
  const auto server = Server(Config());
  EXPECT_EQ(server->Checkpoint(CheckpointRequest::NAME_CUT, 5, uint64_t{1} << 63).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(server->Checkpoint(CheckpointRequest::STATUS)->newest_sequence(), 0u);
  EXPECT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 5, 1).ok());
  // A launcher learns of what is within reach, and goes on above it.
  EXPECT_TRUE(server->Checkpoint(CheckpointRequest::CALL_OFF, 7, 1000).ok());
  EXPECT_EQ(server->Checkpoint(CheckpointRequest::CALL_OFF, 5, 2).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(server->Checkpoint(CheckpointRequest::STATUS)->newest_sequence(), 1000u);
  EXPECT_TRUE(server->Checkpoint(CheckpointRequest::CALL_OFF, 5, 1001).ok());
}

TEST_F(CheckpointTest, AnIncrementHoldsWhatChanged) {
  const auto server = Server(Config());
  Train(server.get(), 0, 5);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 5).ok());
  Commit({server.get()}, 5);
  wire::PushChunk few = MakeChunk(0, 6);
  AddRange(&few, 0, {3, 1000}, {1, 2, 3, 4});
  ASSERT_TRUE(server->Push(std::move(few)).ok());
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 6).ok());
  EXPECT_EQ(server->WriteCut(6).shard().files(0).rows(), 2u);
  const std::string name = Commit({server.get()}, 6);
  // Nothing changed: there is no file.
  ASSERT_TRUE(server->Push(MakeChunk(0, 7)).ok());
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 7).ok());
  EXPECT_THAT(server->WriteCut(7).shard().files(), SizeIs(0));
  const std::string last = Commit({server.get()}, 7);
  ServerConfig next = Config();
  for (const std::string& base : {name, last}) {
    ++next.generation;
    EXPECT_TRUE(Server(next, base)->Rows() == server->Rows());
  }
}

TEST_F(CheckpointTest, AnotherNumberOfServersLoadsTheSameRows) {
  std::vector<std::unique_ptr<CheckpointedServer>> servers;
  HeldRows rows;
  Digest digest;
  const auto train = [&](uint32_t num_servers, uint64_t generation, const std::string& base,
                         int64_t first, int64_t last) {
    servers.clear();
    rows.clear();
    digest = Digest();
    std::vector<CheckpointedServer*> all;
    for (uint32_t i = 0; i < num_servers; ++i) {
      ServerConfig config = Config();
      config.generation = generation;
      config.num_servers = num_servers;
      config.server_index = ServerIndex(i);
      servers.push_back(Server(config, base));
      Train(servers.back().get(), first, last);
      EXPECT_TRUE(servers.back()->Checkpoint(CheckpointRequest::NAME_CUT, last).ok());
      for (auto& [key, row] : servers.back()->Rows()) rows[key] = row;
      digest.Add(servers.back()->ComputeDigest());
      all.push_back(servers.back().get());
    }
    return Commit(all, last);
  };
  const std::string undisturbed = train(1, 5, "", 0, 9);
  const HeldRows expected = rows;
  const Digest expected_digest = digest;
  std::string base = train(2, 6, "", 0, 3);
  base = train(3, 7, base, 4, 6);
  base = train(1, 8, base, 7, 9);
  EXPECT_TRUE(rows == expected);
  EXPECT_TRUE(digest == expected_digest);
}

// A job that was begun by a program whose rows files are SST goes on: its next checkpoint is an
// increment on them, which any number of servers loads.
TEST_F(CheckpointTest, AnIncrementBuildsOnFilesOfEarlierPrograms) {
  const auto server = Server(Config());
  Train(server.get(), 0, 5);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 5).ok());
  const std::string name = Commit({server.get()}, 5, /*as_sst=*/true);
  const HeldRows at_cut = server->Rows();
  server->Die();
  ASSERT_TRUE(server->Configure(name).ok());
  EXPECT_TRUE(server->Rows() == at_cut);
  EXPECT_EQ(server->Stats().loaded_rows(), at_cut.size());
  wire::PushChunk few = MakeChunk(0, 6);
  AddRange(&few, 0, {3, 1000}, {1, 2, 3, 4});
  ASSERT_TRUE(server->Push(std::move(few)).ok());
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 6).ok());
  EXPECT_EQ(server->WriteCut(6).shard().base_step(), 5);
  EXPECT_EQ(server->WriteCut(6).shard().files(0).rows(), 2u);
  const std::string last = Commit({server.get()}, 6);
  const auto manifest = store_.Load(last);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_THAT(manifest->shards(0).files(0).path(), EndsWith(kSstFileSuffix));
  EXPECT_THAT(manifest->shards(0).files().rbegin()->path(), EndsWith(kRowsFileSuffix));
  ServerConfig next = Config();
  for (const uint32_t num_servers : {1, 3}) {
    ++next.generation;
    next.num_servers = num_servers;
    HeldRows rows;
    Digest digest;
    for (uint32_t i = 0; i < num_servers; ++i) {
      next.server_index = ServerIndex(i);
      const auto restored = Server(next, last);
      for (auto& [key, row] : restored->Rows()) rows[key] = row;
      digest.Add(restored->ComputeDigest());
    }
    EXPECT_TRUE(rows == server->Rows()) << num_servers;
    EXPECT_TRUE(digest == server->ComputeDigest()) << num_servers;
  }
}

TEST_F(CheckpointTest, ANewGenerationStartsWithAFullShardAndWithoutTheOldLog) {
  const auto server = Server(Config());
  Train(server.get(), 0, 5);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 4 + 1).ok());
  const std::string name = Commit({server.get()}, 5);
  const HeldRows at_cut = server->Rows();
  Train(server.get(), 6, 7);  // Rolled back.
  server->Die();
  server->config().generation = 6;
  ASSERT_TRUE(server->Configure(name).ok());
  EXPECT_TRUE(server->Rows() == at_cut);
  EXPECT_EQ(server->Stats().replayed_chunks(), 0u);
  EXPECT_THAT(*disk_.List("/server-0"), SizeIs(1));
  Train(server.get(), 6, 6);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 6).ok());
  EXPECT_EQ(server->WriteCut(6).shard().base_step(), -1);
  EXPECT_EQ(Commit({server.get()}, 6), "step-000000006");
}

TEST_F(CheckpointTest, ABaseOfAnotherModelIsRefused) {
  const auto server = Server(Config());
  Train(server.get(), 0, 1);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 1).ok());
  const std::string name = Commit({server.get()}, 1);
  const auto configure = [&](void (*change)(ServerConfig*), const std::string& base) {
    ServerConfig config = Config();
    config.generation = 6;
    change(&config);
    CheckpointedServer other(&disk_, config);
    return other.Configure(base);
  };
  server->Die();
  const auto refused = [&](void (*change)(ServerConfig*), const std::string& why) {
    const absl::Status status = configure(change, name);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused([](ServerConfig* c) { c->seed = 3; }, "its seed is 0, the job's is 3");
  refused([](ServerConfig* c) { c->job_id = "other"; },
          "is of job 'job', generation 5; this is job 'other'");
  refused([](ServerConfig* c) { c->generation = 4; },
          "generation 5; this is job 'job', generation 4");
  refused([](ServerConfig* c) { c->tables[1].dim = 4; }, "table 'T1': dim is 4 here, 1 there");
  refused([](ServerConfig* c) { c->tables.pop_back(); }, "it has 2 tables, the job has 1");
  refused([](ServerConfig* c) { c->tables[1].id = TableId(9); }, "no table 'T1'");
  const auto same = [](ServerConfig*) {};
  EXPECT_EQ(configure(same, "epoch-1-step-1").code(), StatusCode::kNotFound);
  EXPECT_EQ(configure(same, "../x").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      configure([](ServerConfig* c) { c->tables[0].memory_budget_bytes = 1 << 20; }, name).ok());
  // A damaged file is named, and the server never serves.
  const std::string path = "/checkpoints/step-000000001/generation-5-server-0.1.rows";
  std::string content = disk_.Content(path);
  content[40] ^= 1;
  disk_.SetContent(path, content);
  const absl::Status damaged = configure(same, name);
  EXPECT_EQ(damaged.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr(path));
}

TEST_F(CheckpointTest, CheckingNeverConfigures) {
  CheckpointedServer server(&disk_, Config());
  EXPECT_EQ(server.core()->CheckConfigured(Config()).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(server.Stats().configured());
  ASSERT_TRUE(server.Configure().ok());
  EXPECT_TRUE(server.core()->CheckConfigured(Config()).ok());
  ServerConfig other = Config();
  other.seed = 7;
  EXPECT_EQ(server.core()->CheckConfigured(other).code(), StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointTest, AReplayGoesPastACutAndSaysSo) {
  ServerConfig config = Config();
  config.checkpoint_every_steps = 3;
  const auto server = Server(config);
  Train(server.get(), 0, 5);
  const HeldRows rows = server->Rows();
  server->Die();
  ASSERT_TRUE(server->Configure().ok());
  EXPECT_EQ(server->CutAt(2)->state(), CutStatus::FAILED);
  EXPECT_THAT(server->CutAt(2)->error(), HasSubstr("restarted"));
  // The rows stand at the second one.
  EXPECT_EQ(server->CutAt(5)->state(), CutStatus::WRITING);
  const std::string name = Commit({server.get()}, 5);
  config.generation = 6;
  server->Die();
  EXPECT_TRUE(Server(config, name)->Rows() == rows);
}

TEST_F(CheckpointTest, ACommitEndsWhatAReplayTookForACutAgain) {
  ServerConfig config = Config();
  config.checkpoint_every_steps = 3;
  const auto server = Server(config);
  Train(server.get(), 0, 2);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::CALL_OFF, 2).ok());
  server->Die();
  ASSERT_TRUE(server->Configure().ok());
  EXPECT_EQ(server->WriteCut(2).state(), CutStatus::WRITTEN);
  Train(server.get(), 3, 5);
  Commit({server.get()}, 5);
  EXPECT_FALSE(server->CutAt(2).has_value());
  // As far as the server knows, it is committed, and the launcher's message got lost.
  EXPECT_TRUE(Exists("/checkpoints/step-000000002/generation-5-server-0.2.rows"));
  Train(server.get(), 6, 8);
  EXPECT_EQ(server->WriteCut(8).shard().base_step(), 5);
}

TEST_F(CheckpointTest, AWholeCheckpointIsNotWrittenAgain) {
  ServerConfig config = Config();
  config.checkpoint_every_steps = 3;
  const auto server = Server(config);
  Train(server.get(), 0, 2);
  const auto manifest = ComposeManifest(store_, config, 2, {server->WriteCut(2).shard()});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_TRUE(store_.Commit(*manifest).ok());
  // It dies before it hears of the commit, and stands at the cut again.
  server->Die();
  ASSERT_TRUE(server->Configure().ok());
  const CutStatus again = server->WriteCut(2);
  EXPECT_EQ(again.state(), CutStatus::FAILED);
  EXPECT_THAT(again.error(),
              HasSubstr("the checkpoint step-000000002 of generation 5 is there already"));
  EXPECT_TRUE(store_.CheckFiles(*manifest).ok());
}

// A checkpoint of the generation before, whose job went back behind it, is replaced by that of the
// next generation. A process that missed the next generation finds it the other way round.
TEST_F(CheckpointTest, TwoGenerationsMakeACheckpointOfTheSameStep) {
  ServerConfig config = Config();
  const auto late = Server(config);
  Train(late.get(), 0, 2);
  ASSERT_TRUE(late->Checkpoint(CheckpointRequest::NAME_CUT, 2).ok());
  ++config.generation;
  const auto next = Server(config);
  Train(next.get(), 0, 2);
  ASSERT_TRUE(next->Checkpoint(CheckpointRequest::NAME_CUT, 2).ok());
  const auto earlier = ComposeManifest(store_, Config(), 2, {late->WriteCut(2).shard()});
  ASSERT_TRUE(earlier.ok()) << earlier.status();
  ASSERT_TRUE(store_.Commit(*earlier).ok());
  const auto manifest = ComposeManifest(store_, config, 2, {next->WriteCut(2).shard()});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  // What is there now is none of its own.
  const absl::Status refused = next->Checkpoint(CheckpointRequest::COMMITTED, 2).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
  ASSERT_TRUE(store_.Commit(*manifest).ok());
  EXPECT_TRUE(next->Checkpoint(CheckpointRequest::COMMITTED, 2).ok());
  EXPECT_TRUE(store_.CheckFiles(*earlier).ok());  // Each has its own.
  late->Die();
  ASSERT_TRUE(late->Configure().ok());
  Train(late.get(), 0, 2);
  ASSERT_TRUE(late->Checkpoint(CheckpointRequest::NAME_CUT, 2).ok());
  EXPECT_THAT(late->WriteCut(2).error(),
              HasSubstr("step-000000002 of generation 6 is there already"));
  // Who was to begin with the one that is gone doesn't begin with the other.
  ServerConfig after = Config();
  after.generation = 7;
  after.base_generation = 5;
  EXPECT_EQ(CheckpointedServer(&disk_, after, "/a").Configure("step-000000002").code(),
            StatusCode::kNotFound);
  after.base_generation = 6;
  EXPECT_TRUE(CheckpointedServer(&disk_, after, "/b").Configure("step-000000002").ok());
}

// It stood still while another process took its place.
TEST_F(CheckpointTest, AProcessTakenForDeadTouchesNoFileOfTheNext) {
  for (int slices = 0; slices < 6; ++slices) {
    for (const bool called_off : {false, true}) {
      SimulatedDisk disk;
      const std::unique_ptr<SimulatedDisk> other_host = disk.Share();
      CheckpointedServer late(other_host.get(), Config(), "/late", /*incarnation=*/0);
      CheckpointedServer next(&disk, Config(), "/next", /*incarnation=*/1);
      for (CheckpointedServer* server : {&late, &next}) {
        ASSERT_TRUE(server->Configure().ok());
        Train(server, 0, 2);
        ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 2).ok());
      }
      for (int i = 0; i < slices; ++i) late.WriteSlice();
      const CheckpointStore store(&disk, kCheckpoints);
      const auto manifest = ComposeManifest(store, Config(), 2, {next.WriteCut(2).shard()});
      ASSERT_TRUE(manifest.ok()) << manifest.status();
      ASSERT_TRUE(CheckpointStore(&disk, kCheckpoints).Commit(*manifest).ok());
      const std::string path = "/checkpoints/step-000000002/generation-5-server-0.2.rows";
      const std::string content = disk.Content(path);
      if (called_off) {
        ASSERT_TRUE(late.Checkpoint(CheckpointRequest::CALL_OFF, 2).ok());
      }
      late.WriteCut(2);
      ASSERT_TRUE(store.CheckFiles(*manifest).ok()) << slices;
      EXPECT_EQ(disk.Content(path), content) << slices;
    }
  }
}

TEST_F(CheckpointTest, TheEndOfTheServerEndsTheWriting) {
  const auto server = Server(Config());
  Train(server.get(), 0, 2);
  ASSERT_TRUE(server->Checkpoint(CheckpointRequest::NAME_CUT, 2).ok());
  ASSERT_TRUE(server->WriteSlice());
  server->core()->Shutdown();
  EXPECT_FALSE(Exists("/checkpoints/step-000000002/generation-5-server-0.1.rows"));
  server->WriteSlice();
}

}  // namespace
}  // namespace thermocline
