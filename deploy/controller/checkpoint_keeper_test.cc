#include "deploy/controller/checkpoint_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/testing.h"
#include "common/disk/simulated_disk.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDirectory[] = "checkpoints";
constexpr uint64_t kEpoch = 2;

// Servers and workers that do what cuts ask of them, by hand.
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
    int64_t begun = -1;  // its last push
    std::set<int64_t> cuts;
  };

  FakeCluster(Disk* disk, size_t servers, size_t workers)
      : servers_(servers), workers_(workers), disk_(*disk) {}

  size_t num_servers() const override { return servers_.size(); }
  size_t num_workers() const override { return workers_.size(); }

  absl::StatusOr<CheckpointReply> AskServer(size_t index, CheckpointRequest::Action action,
                                            Step cut) override {
    Server& server = servers_[index];
    if (!server.answers || (server.is_deaf && action != CheckpointRequest::STATUS)) {
      unheeded_.push_back(index);
      return absl::UnavailableError("nobody there");
    }
    switch (action) {
      case CheckpointRequest::NAME_CUT:
        if (cut.value() < server.complete_through) return absl::FailedPreconditionError("too late");
        Begin(index, cut.value());
        break;
      case CheckpointRequest::CALL_OFF:
        server.cuts.erase(cut.value());
        break;
      case CheckpointRequest::COMMITTED:
        server.cuts.erase(cut.value());
        server.committed = cut.value();
        break;
      default:
        break;
    }
    CheckpointReply reply;
    reply.set_complete_through(server.complete_through);
    reply.set_accepted_through(server.accepted_through);
    for (const auto& [step, status] : server.cuts) *reply.add_cuts() = status;
    return reply;
  }
  absl::StatusOr<CheckpointReply> AskWorker(size_t rank, CheckpointRequest::Action action,
                                            Step cut) override {
    Worker& worker = workers_[rank];
    if (action == CheckpointRequest::CALL_OFF) worker.cuts.erase(cut.value());
    if (action == CheckpointRequest::NAME_CUT) {
      if (cut.value() <= worker.begun) return absl::FailedPreconditionError("begun");
      worker.cuts.insert(cut.value());
    }
    return CheckpointReply();
  }
  absl::StatusOr<uint64_t> LogBytes(size_t index) override { return servers_[index].log_bytes; }

  void ForEachServer(absl::FunctionRef<void(size_t)> call) override {
    ++rounds_of_all_;
    CutParticipants::ForEachServer(call);
  }

  void Begin(size_t server, int64_t cut) {
    CutStatus& status = servers_[server].cuts[cut];
    status.set_step(cut);
    status.set_state(CutStatus::NAMED);
  }
  void AdvanceTo(int64_t step) {
    for (Server& server : servers_) server.complete_through = step;
  }
  // A server writes its part; on `base`, where that isn't -1.
  void Write(size_t server, int64_t cut, int64_t base = -1) {
    Begin(server, cut);
    CutStatus& status = servers_[server].cuts[cut];
    const CheckpointId id = {kEpoch, Step(cut)};
    TestRows rows;
    rows[RowKeyOf(TableId(1), 7 + server)] = {1, static_cast<uint32_t>(cut + 1), {1, 2, 3}};
    const auto file = WriteTestRows(
        &disk_, kDirectory, RowsFilePath(id, {ServerIndex(static_cast<uint32_t>(server))}), rows);
    status.set_state(CutStatus::WRITTEN);
    status.mutable_part()->set_base_step(base);
    *status.mutable_part()->add_files() = *file;
    status.set_pause_s(0.001 * static_cast<double>(server + 1));
  }
  void WriteAll(int64_t cut, int64_t base = -1) {
    for (size_t i = 0; i < servers_.size(); ++i) Write(i, cut, base);
  }
  void Fail(size_t server, int64_t cut, const std::string& error) {
    Begin(server, cut);
    servers_[server].cuts[cut].set_state(CutStatus::FAILED);
    servers_[server].cuts[cut].set_error(error);
  }

  std::vector<Server> servers_;
  std::vector<Worker> workers_;
  int rounds_of_all_ = 0;         // In which all servers may be asked at once.
  std::vector<size_t> unheeded_;  // Servers that were asked and didn't answer.

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
  CheckpointKeeperTest() : store_(&disk_, kDirectory), cluster_(&disk_, 2, 2) {
    EXPECT_TRUE(store_.Prepare().ok());
    options_.manifest = EmptyManifest({kEpoch, Step(0)}, 2);
    options_.manifest.clear_parts();
    options_.samples_through = [](Step cut) { return 10 * (cut.value() + 1); };
  }

  CheckpointKeeper& keeper() {
    if (keeper_ == nullptr) {
      keeper_ = std::make_unique<CheckpointKeeper>(options_, &cluster_, &store_);
    }
    return *keeper_;
  }
  void Poll(int rounds = 1) {
    for (int i = 0; i < rounds; ++i) keeper().Poll();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    const auto list = store_.List();
    for (const ListedCheckpoint& listed : *list) {
      EXPECT_TRUE(listed.status.ok()) << listed.status;
      names.push_back(listed.name);
    }
    return names;
  }
  // The cut that a server was told of, if it is one.
  std::optional<int64_t> NamedCut(size_t server) const {
    const auto& cuts = cluster_.servers_[server].cuts;
    if (cuts.size() != 1) return std::nullopt;
    return cuts.begin()->first;
  }

  CountingDisk disk_;
  CheckpointStore store_;
  FakeCluster cluster_;
  CheckpointKeeperOptions options_;
  std::unique_ptr<CheckpointKeeper> keeper_;
};

TEST_F(CheckpointKeeperTest, CommitsAPeriodicCutOnceAllHaveWrittenIt) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.Write(0, 9);
  cluster_.Begin(1, 9);
  Poll(3);
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(keeper().newest(), "");
  cluster_.Write(1, 9);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-9"));
  EXPECT_EQ(keeper().newest(), "epoch-2-step-9");
  EXPECT_EQ(keeper().newest_step(), Step(9));
  for (const auto& server : cluster_.servers_) {
    EXPECT_EQ(server.committed, 9);
    EXPECT_THAT(server.cuts, IsEmpty());
  }
  const auto manifest = store_.Load("epoch-2-step-9");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->samples(), 100u);
  EXPECT_EQ(manifest->parts_size(), 2);
  const auto events = keeper().TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, CheckpointEvent::kCommitted);
  EXPECT_TRUE(events[0].is_full);
  EXPECT_GT(events[0].bytes, 0u);
  EXPECT_DOUBLE_EQ(events[0].pause_s, 0.002);
}

TEST_F(CheckpointKeeperTest, AnIncrementNamesTheFilesOfItsBaseFirst) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  cluster_.AdvanceTo(19);
  cluster_.Write(0, 19, /*base=*/9);
  cluster_.Write(1, 19);  // This one writes all rows.
  Poll();
  const auto manifest = store_.Load("epoch-2-step-19");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(manifest->parts(0).files_size(), 2);
  EXPECT_EQ(manifest->parts(0).files(0).path(), "epoch-2-step-9/server-0.sst");
  EXPECT_EQ(manifest->parts(0).files(1).path(), "epoch-2-step-19/server-0.sst");
  EXPECT_EQ(manifest->parts(0).base_step(), 9);
  EXPECT_EQ(manifest->parts(1).files_size(), 1);
  // The first checkpoint is gone, but for the file that the second needs.
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-19"));
  EXPECT_TRUE(store_.CheckFiles(*manifest).ok());
}

TEST_F(CheckpointKeeperTest, KeepsAsManyAsTheJobWants) {
  options_.every_steps = 1;
  options_.keep = 2;
  for (int64_t cut = 0; cut < 5; ++cut) {
    cluster_.AdvanceTo(cut);
    cluster_.WriteAll(cut, cut - 1);
    Poll();
  }
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-3", "epoch-2-step-4"));
}

TEST_F(CheckpointKeeperTest, KeptFilesAreReadAgainOnlyAfterAChange) {
  options_.every_steps = 1;
  options_.keep = 2;
  for (int64_t step = 0; step < 3; ++step) {
    cluster_.AdvanceTo(step);
    cluster_.WriteAll(step);
    if (step == 2) cluster_.Begin(0, 3);  // The next one is under way for long.
    Poll();
  }
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-0", "epoch-2-step-1", "epoch-2-step-2"));
  const int opened = disk_.opened;
  Poll(10);
  EXPECT_EQ(disk_.opened, opened);
  cluster_.AdvanceTo(3);
  cluster_.WriteAll(3);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-2", "epoch-2-step-3"));
}

TEST_F(CheckpointKeeperTest, AServerThatDoesNotAnswerIsAskedOnceARound) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  cluster_.servers_[0].is_deaf = true;
  Poll();  // It has still to learn of the commit.
  cluster_.servers_[0].answers = false;
  cluster_.unheeded_.clear();
  cluster_.rounds_of_all_ = 0;
  Poll(5);
  EXPECT_EQ(cluster_.rounds_of_all_, 5);
  EXPECT_THAT(cluster_.unheeded_, ElementsAre(0, 0, 0, 0, 0));
  cluster_.servers_[0].answers = true;
  cluster_.servers_[0].is_deaf = false;
  Poll();
  EXPECT_EQ(cluster_.servers_[0].committed, 9);
}

TEST_F(CheckpointKeeperTest, AnIncrementOnWhatIsNotKeptIsCalledOff) {
  options_.every_steps = 1;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9, /*base=*/4);
  Poll();
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_THAT(keeper().TakeEvents().at(0).reason, HasSubstr("step 4, which is not kept"));
}

TEST_F(CheckpointKeeperTest, OneFailureCallsACutOffEverywhere) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.Write(0, 9);
  cluster_.Fail(1, 9, "No space left on device");
  Poll();
  EXPECT_THAT(Names(), IsEmpty());
  for (const auto& server : cluster_.servers_) EXPECT_THAT(server.cuts, IsEmpty());
  const auto events = keeper().TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, CheckpointEvent::kCalledOff);
  EXPECT_EQ(events[0].reason, "server 1: No space left on device");
  Poll(3);
  EXPECT_THAT(keeper().TakeEvents(), IsEmpty());
}

TEST_F(CheckpointKeeperTest, WhoDoesNotAnswerIsToldLater) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  cluster_.servers_[1].is_deaf = true;
  Poll(3);
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-9"));
  EXPECT_EQ(cluster_.servers_[0].committed, 9);
  EXPECT_EQ(cluster_.servers_[1].committed, -1);
  EXPECT_EQ(keeper().TakeEvents().size(), 1u);  // Once, though one server shows the cut still.
  cluster_.servers_[1].is_deaf = false;
  Poll();
  EXPECT_EQ(cluster_.servers_[1].committed, 9);
}

TEST_F(CheckpointKeeperTest, ARequestNamesACutThatNobodyHasBegun) {
  cluster_.AdvanceTo(5);
  cluster_.workers_[0].begun = 6;
  cluster_.workers_[1].begun = 9;  // Further than a cut is named at first.
  absl::StatusOr<std::string> name = absl::UnknownError("not called");
  keeper().Request([&](const absl::StatusOr<std::string>& result) { name = result; });
  Poll();
  const auto cut = NamedCut(0);
  ASSERT_TRUE(cut.has_value());
  EXPECT_GT(*cut, 9);
  EXPECT_EQ(NamedCut(1), cut);
  // What was tried before is called off.
  EXPECT_THAT(cluster_.workers_[0].cuts, ElementsAre(*cut));
  EXPECT_THAT(cluster_.workers_[1].cuts, ElementsAre(*cut));
  Poll(3);  // One cut is enough.
  EXPECT_EQ(NamedCut(0), cut);
  cluster_.AdvanceTo(*cut);
  cluster_.WriteAll(*cut);
  Poll();
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(*name, absl::StrCat("epoch-2-step-", *cut));
}

TEST_F(CheckpointKeeperTest, ARequestTakesThePeriodicCutThatComesNext) {
  options_.every_steps = 5;
  cluster_.AdvanceTo(8);
  std::string name;
  keeper().Request([&](const absl::StatusOr<std::string>& result) { name = *result; });
  Poll(2);
  EXPECT_EQ(NamedCut(0), std::nullopt);
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  EXPECT_EQ(name, "epoch-2-step-9");
}

TEST_F(CheckpointKeeperTest, ACheckpointOfWhatWasBeforeIsNoAnswer) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(12);
  cluster_.WriteAll(9);
  std::string name;
  keeper().Request([&](const absl::StatusOr<std::string>& result) { name = *result; });
  Poll();
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-9"));
  EXPECT_EQ(name, "");
}

TEST_F(CheckpointKeeperTest, ARequestLearnsWhyThereIsNone) {
  cluster_.AdvanceTo(5);
  absl::StatusOr<std::string> name = "not called";
  keeper().Request([&](const absl::StatusOr<std::string>& result) { name = result; });
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_TRUE(name.ok());
    Poll();
    const auto cut = NamedCut(1);
    ASSERT_TRUE(cut.has_value());
    cluster_.AdvanceTo(*cut);
    cluster_.Fail(1, *cut, "busy");
    Poll();
  }
  EXPECT_EQ(name.status(), absl::AbortedError("server 1: busy"));
  Poll(3);
  EXPECT_EQ(NamedCut(1), std::nullopt);
}

TEST_F(CheckpointKeeperTest, ALongLogMakesACheckpointOncePerGrowth) {
  options_.max_log_bytes = 1000;
  cluster_.AdvanceTo(5);
  cluster_.servers_[1].log_bytes = 1000;
  Poll(10);
  EXPECT_EQ(NamedCut(0), std::nullopt);
  cluster_.servers_[1].log_bytes = 1001;
  Poll(10);
  const auto cut = NamedCut(0);
  ASSERT_TRUE(cut.has_value());
  cluster_.AdvanceTo(*cut);
  cluster_.WriteAll(*cut);
  cluster_.servers_[1].log_bytes = 1200;  // Its last segment stays.
  Poll(10);
  EXPECT_EQ(keeper().newest_step(), Step(*cut));
  cluster_.servers_[1].log_bytes = 1700;
  Poll(10);
  EXPECT_EQ(NamedCut(0), std::nullopt);
  cluster_.servers_[1].log_bytes = 1701;
  Poll(10);
  EXPECT_NE(NamedCut(0), std::nullopt);
}

TEST_F(CheckpointKeeperTest, AtTheEndTheLastStepHasACheckpoint) {
  cluster_.AdvanceTo(38);
  keeper().Finish(Step(39));
  Poll(3);
  EXPECT_FALSE(keeper().finished());  // A push is still to be applied.
  EXPECT_EQ(NamedCut(0), std::nullopt);
  cluster_.AdvanceTo(39);
  Poll(2);
  EXPECT_EQ(NamedCut(0), 39);
  EXPECT_FALSE(keeper().finished());
  cluster_.WriteAll(39);
  Poll(2);
  EXPECT_TRUE(keeper().finished());
  EXPECT_TRUE(keeper().error().ok());
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-39"));
}

TEST_F(CheckpointKeeperTest, AtTheEndAServerThatLostPushesIsNoticed) {
  cluster_.AdvanceTo(39);
  cluster_.servers_[1].accepted_through = 38;  // On its way to 39, when it was asked.
  Poll();
  keeper().Finish(Step(39));
  Poll();
  EXPECT_TRUE(keeper().error().ok()) << keeper().error();
  cluster_.servers_[1].answers = false;  // It dies with its host, ...
  Poll(2);
  EXPECT_TRUE(keeper().error().ok()) << keeper().error();
  cluster_.servers_[1].answers = true;  // ... and its log has lost the end.
  cluster_.servers_[1].complete_through = 38;
  Poll();
  EXPECT_EQ(keeper().error().code(), absl::StatusCode::kDataLoss) << keeper().error();
  EXPECT_FALSE(keeper().finished());
}

TEST_F(CheckpointKeeperTest, NoneAtTheEndWhereNoneIsWanted) {
  options_.at_end = false;
  cluster_.AdvanceTo(39);
  keeper().Finish(Step(39));
  Poll(2);
  EXPECT_TRUE(keeper().finished());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointKeeperTest, NoneAtTheEndOfAnEpochWithoutSteps) {
  options_.base = "epoch-1-step-39";
  options_.base_step = Step(39);
  cluster_.AdvanceTo(39);
  keeper().Finish(Step(39));
  Poll();
  EXPECT_TRUE(keeper().finished());
  EXPECT_TRUE(keeper().error().ok());
  EXPECT_EQ(keeper().newest(), "epoch-1-step-39");
}

TEST_F(CheckpointKeeperTest, ACutThatTrainingDoesNotReachIsCalledOff) {
  options_.at_end = false;
  cluster_.AdvanceTo(38);
  std::string name;
  keeper().Request([&](const absl::StatusOr<std::string>& result) { name = *result; });
  Poll();
  ASSERT_EQ(NamedCut(0), 40);
  cluster_.AdvanceTo(39);
  keeper().Finish(Step(39));
  Poll(3);
  EXPECT_EQ(NamedCut(0), 39);  // Who asked gets the last step's.
  cluster_.WriteAll(39);
  Poll(2);
  EXPECT_EQ(name, "epoch-2-step-39");
  EXPECT_TRUE(keeper().finished());
}

TEST_F(CheckpointKeeperTest, AnEndWithoutItsCheckpointIsAnError) {
  cluster_.AdvanceTo(39);
  keeper().Finish(Step(39));
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_FALSE(keeper().finished());
    // Not at once: there may be room a little later.
    for (int round = 0; round < 20 && NamedCut(0) != 39; ++round) Poll();
    ASSERT_EQ(NamedCut(0), 39) << attempt;
    cluster_.Fail(0, 39, "disk full");
    Poll();
    EXPECT_EQ(NamedCut(0), std::nullopt);
  }
  Poll();
  EXPECT_TRUE(keeper().finished());
  EXPECT_EQ(keeper().error(), absl::AbortedError("server 0: disk full"));
}

TEST_F(CheckpointKeeperTest, OnlyTriesOfTheLastStepCountAtTheEnd) {
  cluster_.AdvanceTo(5);
  keeper().Request([](const absl::StatusOr<std::string>&) {});
  for (int attempt = 0; attempt < 2; ++attempt) {  // One more, and who asked would learn why.
    Poll();
    cluster_.Fail(0, *NamedCut(0), "disk full");
    Poll();
  }
  Poll();
  ASSERT_TRUE(NamedCut(0).has_value());  // A cut that training will not reach.
  keeper().Finish(Step(5));
  for (int attempt = 0; attempt < 5; ++attempt) {
    for (int round = 0; round < 20 && NamedCut(0) != 5; ++round) Poll();
    ASSERT_EQ(NamedCut(0), 5) << attempt;
    cluster_.Fail(0, 5, "busy: the checkpoint of step 3 is being written");
    Poll();
    EXPECT_FALSE(keeper().finished());
  }
  for (int round = 0; round < 20 && NamedCut(0) != 5; ++round) Poll();
  cluster_.WriteAll(5);
  Poll(2);
  EXPECT_TRUE(keeper().finished());
  EXPECT_TRUE(keeper().error().ok());
  EXPECT_EQ(keeper().newest(), "epoch-2-step-5");
}

TEST_F(CheckpointKeeperTest, AServerThatBeganAnewWritesItsPartAgain) {
  cluster_.AdvanceTo(39);
  keeper().Finish(Step(39));
  Poll(2);
  cluster_.Write(0, 39);
  Poll();
  EXPECT_EQ(keeper().RestartServer(0), "");
  cluster_.servers_[0] = FakeCluster::Server();
  cluster_.servers_[0].answers = false;
  cluster_.Write(1, 39);
  Poll(3);
  EXPECT_THAT(Names(), IsEmpty());
  cluster_.servers_[0].answers = true;
  cluster_.servers_[0].complete_through = 39;  // It has recovered.
  Poll(2);
  EXPECT_EQ(NamedCut(0), 39);
  cluster_.Write(0, 39);
  Poll(2);
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-39"));
  EXPECT_TRUE(keeper().finished());
}

TEST_F(CheckpointKeeperTest, ARestartedServerBeginsWithTheNewest) {
  options_.every_steps = 10;
  options_.base = "epoch-1-step-4";
  options_.base_step = Step(4);
  EXPECT_EQ(keeper().RestartServer(1), "epoch-1-step-4");
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  EXPECT_EQ(keeper().RestartServer(1), "epoch-2-step-9");
  // It passes the next cut while it recovers, and never writes it.
  cluster_.AdvanceTo(20);
  cluster_.Write(0, 19);
  Poll(2);
  EXPECT_EQ(keeper().TakeEvents().back().kind, CheckpointEvent::kCalledOff);
  EXPECT_THAT(cluster_.servers_[0].cuts, IsEmpty());
}

TEST_F(CheckpointKeeperTest, AFullDiskCallsTheCutOff) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  disk_.SetFreeBytes(10);
  Poll();
  EXPECT_THAT(Names(), IsEmpty());
  const auto events = keeper().TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, CheckpointEvent::kCalledOff);
  EXPECT_TRUE(keeper().error().ok());
  disk_.SetFreeBytes(UINT64_MAX);
  cluster_.AdvanceTo(19);
  cluster_.WriteAll(19);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-19"));
}

TEST_F(CheckpointKeeperTest, WhatStaysForAnotherVersionIsSaidOnce) {
  const std::string foreign = absl::StrCat(kDirectory, "/epoch-1-step-5");
  for (const std::string& folder : {absl::StrCat(kDirectory, "/epoch-1-step-4"), foreign}) {
    ASSERT_TRUE(disk_.CreateDirectory(folder).ok());
  }
  const FrameFormat later = {kManifestFormat.magic, kCheckpointFormatVersion + 1};
  ASSERT_TRUE(WriteWholeFile(&disk_, EncodeFrame(later, ""), foreign + "/MANIFEST").ok());
  options_.every_steps = 10;
  std::vector<std::string> said;
  for (const int64_t cut : {9, 19, 29}) {
    cluster_.AdvanceTo(cut);
    cluster_.WriteAll(cut);
    Poll(2);
    for (const CheckpointEvent& event : keeper().TakeEvents()) {
      if (event.kind == CheckpointEvent::kNotRemoved) said.push_back(event.reason);
    }
  }
  EXPECT_THAT(said, ElementsAre(HasSubstr("older than epoch-1-step-5 stays")));
  EXPECT_TRUE(disk_.List(absl::StrCat(kDirectory, "/epoch-1-step-4")).ok());
  EXPECT_EQ(disk_.List(absl::StrCat(kDirectory, "/epoch-2-step-9")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(CheckpointKeeperTest, AFileThatIsNotThereCallsTheCutOff) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  ASSERT_TRUE(disk_.Remove(absl::StrCat(kDirectory, "/epoch-2-step-9/server-1.sst")).ok());
  Poll();
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_THAT(keeper().TakeEvents().at(0).reason, HasSubstr("server-1.sst' is missing"));
}

// Whatever fails or dies in a commit: servers hear that a checkpoint is committed only if it
// survives the host, and that it is called off only if it will never be seen.
TEST_F(CheckpointKeeperTest, ACommitThatFailsAnywhereIsNeverHalf) {
  int committed = 0, called_off = 0, unknown = 0;
  for (int operation = 0; operation < 12; ++operation) {
    for (const bool dies : {false, true}) {
      SCOPED_TRACE(absl::StrCat("operation ", operation, dies ? " dies" : " fails"));
      SimulatedDisk disk;
      CheckpointStore store(&disk, kDirectory);
      ASSERT_TRUE(store.Prepare().ok());
      FakeCluster cluster(&disk, 2, 1);
      CheckpointKeeperOptions options = options_;
      options.every_steps = 10;
      CheckpointKeeper keeper(options, &cluster, &store);
      cluster.AdvanceTo(9);
      cluster.WriteAll(9);
      if (dies) {
        disk.DieAfter(operation);
      } else {
        disk.FailAfter(operation);
      }
      keeper.Poll();
      const auto events = keeper.TakeEvents();
      std::mt19937_64 random(operation);
      disk.CrashHost(&random);
      const bool exists = store.Load("epoch-2-step-9").ok();
      if (!keeper.error().ok()) {
        EXPECT_EQ(keeper.error().code(), absl::StatusCode::kUnavailable);
        EXPECT_EQ(cluster.servers_[0].committed, -1);
        EXPECT_EQ(cluster.servers_[0].cuts.count(9), 1u);
        ++unknown;
      } else if (cluster.servers_[0].committed == 9) {
        EXPECT_TRUE(exists);
        ++committed;
      } else if (!events.empty()) {
        EXPECT_EQ(events[0].kind, CheckpointEvent::kCalledOff);
        EXPECT_FALSE(exists);
        ++called_off;
      }
    }
  }
  EXPECT_GT(committed, 0);
  EXPECT_GT(called_off, 0);
  EXPECT_GT(unknown, 0);
}

// The cut where the servers stand, behind which nothing is pushed before it is made.
TEST_F(CheckpointKeeperTest, MakesTheCheckpointOfJustOneStep) {
  EvaluationState state;
  state.set_best_step(7);
  options_.evaluations_through = [&](Step cut) {
    state.set_last_step(cut.value());
    return state;
  };
  std::vector<absl::StatusOr<std::string>> answers;
  const auto take = [&](const absl::StatusOr<std::string>& name) { answers.push_back(name); };
  keeper().RequestOf(Step(7), take);
  cluster_.AdvanceTo(7);
  cluster_.servers_[1].complete_through = 6;  // It still applies the step.
  Poll(2);
  EXPECT_THAT(cluster_.servers_[0].cuts, IsEmpty());
  cluster_.AdvanceTo(7);
  Poll();
  EXPECT_EQ(NamedCut(0), 7);
  EXPECT_EQ(NamedCut(1), 7);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());  // They have pushed it.
  EXPECT_THAT(answers, IsEmpty());
  cluster_.WriteAll(7);
  Poll();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(*answers[0], "epoch-2-step-7");
  const auto manifest = store_.Load("epoch-2-step-7");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->evaluations().last_step(), 7);
  EXPECT_EQ(manifest->evaluations().best_step(), 7);
}

// The workers wait at step 7 for its checkpoint, so that they never get to step 9.
TEST_F(CheckpointKeeperTest, ACutBeyondTheStepThatIsWantedIsCalledOff) {
  std::vector<absl::StatusOr<std::string>> wished, exact;
  cluster_.AdvanceTo(6);
  cluster_.workers_[0].begun = 7;
  keeper().Request([&](const absl::StatusOr<std::string>& name) { wished.push_back(name); });
  Poll();
  ASSERT_EQ(cluster_.workers_[0].cuts.size(), 1u);
  ASSERT_GT(*cluster_.workers_[0].cuts.begin(), 7);
  keeper().RequestOf(Step(7), [&](const auto& name) { exact.push_back(name); });
  cluster_.AdvanceTo(7);
  Poll(20);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());
  ASSERT_EQ(NamedCut(0), 7);
  cluster_.WriteAll(7);
  Poll();
  ASSERT_EQ(exact.size(), 1u);
  EXPECT_EQ(*exact[0], "epoch-2-step-7");
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-7"));
}

// A periodic cut of the step was committed before the evaluation was over.
TEST_F(CheckpointKeeperTest, ACheckpointThatIsThereLearnsOfItsEvaluation) {
  EvaluationState state;
  options_.evaluations_through = [&](Step) { return state; };
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_checkpoint(), "");
  state.set_best_step(9);
  std::string answer;
  keeper().RequestOf(Step(9), [&](const absl::StatusOr<std::string>& name) { answer = *name; });
  Poll();
  EXPECT_EQ(answer, "epoch-2-step-9");
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_step(), 9);
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_checkpoint(), "epoch-2-step-9");
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-9"));
}

TEST_F(CheckpointKeeperTest, SaysWhyTheCheckpointOfAStepCanNotBeMade) {
  cluster_.AdvanceTo(7);
  std::vector<absl::StatusOr<std::string>> answers;
  keeper().RequestOf(Step(7),
                     [&](const absl::StatusOr<std::string>& name) { answers.push_back(name); });
  for (int round = 0; round < 100 && answers.empty(); ++round) {
    Poll();
    if (NamedCut(0).has_value()) cluster_.Fail(0, 7, "disk full");
  }
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(answers[0].status().message()), HasSubstr("server 0: disk full"));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointKeeperTest, TheOneThatIsKeptStaysWhateverComesAfter) {
  options_.every_steps = 10;
  options_.keep = 2;
  EvaluationState state;  // Of the base.
  state.set_best_checkpoint("epoch-2-step-19");
  options_.evaluations_through = [&](Step) { return state; };
  for (int64_t cut = 9; cut < 60; cut += 10) {
    cluster_.AdvanceTo(cut);
    cluster_.WriteAll(cut);
    Poll();
  }
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-19", "epoch-2-step-49", "epoch-2-step-59"));
  keeper().Keep("epoch-2-step-49");
  cluster_.AdvanceTo(69);
  cluster_.WriteAll(69);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-49", "epoch-2-step-59", "epoch-2-step-69"));
}

}  // namespace
}  // namespace thermocline
