#include "deploy/controller/checkpoint_keeper_testing.h"

#include "tests/testing/checkpoints.h"

namespace thermocline {

absl::StatusOr<CheckpointReply> FakeCluster::AskServer(size_t index,
                                                       CheckpointRequest::Action action, Step cut) {
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

absl::StatusOr<CheckpointReply> FakeCluster::AskWorker(size_t rank,
                                                       CheckpointRequest::Action action, Step cut) {
  Worker& worker = workers_[rank];
  if (!worker.answers) return absl::UnavailableError("nobody there");
  if (action == CheckpointRequest::STATUS) ++workers_asked_;
  if (action == CheckpointRequest::CALL_OFF) worker.cuts.erase(cut.value());
  if (action == CheckpointRequest::NAME_CUT) {
    if (cut.value() <= worker.begun) return absl::FailedPreconditionError("begun");
    worker.cuts.insert(cut.value());
  }
  CheckpointReply reply;
  reply.set_complete_through(worker.begun);
  reply.set_accepted_through(worker.acked);
  return reply;
}

void FakeCluster::Begin(size_t server, int64_t cut) {
  CutStatus& status = servers_[server].cuts[cut];
  status.set_step(cut);
  status.set_state(CutStatus::NAMED);
}

void FakeCluster::AdvanceTo(int64_t step) {
  for (Server& server : servers_) server.complete_through = step;
}

void FakeCluster::Write(size_t server, int64_t cut, int64_t base) {
  Begin(server, cut);
  CutStatus& status = servers_[server].cuts[cut];
  const CheckpointId id = {kKeeperEpoch, Step(cut)};
  TestRows rows;
  rows[RowKeyOf(TableId(1), 7 + server)] = {1, static_cast<uint32_t>(cut + 1), {1, 2, 3}};
  const auto file =
      WriteTestRows(&disk_, kKeeperDirectory,
                    RowsFilePath(id, {ServerIndex(static_cast<uint32_t>(server))}), rows);
  status.set_state(CutStatus::WRITTEN);
  status.mutable_part()->set_base_step(base);
  *status.mutable_part()->add_files() = *file;
  status.set_pause_s(0.001 * static_cast<double>(server + 1));
}

void FakeCluster::WriteAll(int64_t cut, int64_t base) {
  for (size_t i = 0; i < servers_.size(); ++i) Write(i, cut, base);
}

void FakeCluster::Fail(size_t server, int64_t cut, const std::string& error) {
  Begin(server, cut);
  servers_[server].cuts[cut].set_state(CutStatus::FAILED);
  servers_[server].cuts[cut].set_error(error);
}

CheckpointKeeperTest::CheckpointKeeperTest()
    : store_(&disk_, kKeeperDirectory), cluster_(&disk_, 2, 2) {
  EXPECT_TRUE(store_.Prepare().ok());
  options_.manifest = EmptyManifest({kKeeperEpoch, Step(0)}, 2);
  options_.manifest.clear_parts();
  options_.samples_through = [](Step cut) { return 10 * (cut.value() + 1); };
}

CheckpointKeeper& CheckpointKeeperTest::keeper() {
  if (keeper_ == nullptr) {
    keeper_ = std::make_unique<CheckpointKeeper>(options_, &cluster_, &store_);
  }
  return *keeper_;
}

void CheckpointKeeperTest::Poll(int rounds) {
  for (int i = 0; i < rounds; ++i) keeper().Poll();
}

std::vector<std::string> CheckpointKeeperTest::Names() const {
  std::vector<std::string> names;
  const auto list = store_.List();
  for (const ListedCheckpoint& listed : *list) {
    EXPECT_TRUE(listed.status.ok()) << listed.status;
    names.push_back(listed.name);
  }
  return names;
}

std::optional<int64_t> CheckpointKeeperTest::NamedCut(size_t server) const {
  const auto& cuts = cluster_.servers_[server].cuts;
  if (cuts.size() != 1) return std::nullopt;
  return cuts.begin()->first;
}

}  // namespace thermocline
