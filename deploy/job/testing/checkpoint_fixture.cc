#include "deploy/job/testing/checkpoint_fixture.h"

#include <algorithm>
#include <utility>
#include <variant>

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
  const CheckpointId id = {kTestGeneration, Step(cut)};
  TestRows rows;
  rows[RowKeyOf(TableId(1), 7 + server)] = {1, static_cast<uint32_t>(cut + 1), {1, 2, 3}};
  const auto file =
      WriteTestRows(&disk_, kTestCheckpoints,
                    RowsFilePath(id, {ServerIndex(static_cast<uint32_t>(server))}), rows);
  status.set_state(CutStatus::WRITTEN);
  status.mutable_shard()->set_base_step(base);
  *status.mutable_shard()->add_files() = *file;
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

CheckpointAnswers FakeCluster::Call(const std::vector<CheckpointCall>& calls) {
  if (calls[0].action == CheckpointRequest::STATUS && !calls[0].to_worker) ++rounds_of_all_;
  CheckpointAnswers answers;
  std::set<size_t> silent;
  for (const CheckpointCall& call : calls) {
    if (!call.to_worker && silent.count(call.index) > 0) {
      answers.push_back(absl::UnavailableError("not asked"));
      continue;
    }
    answers.push_back(call.to_worker ? AskWorker(call.index, call.action, call.step)
                                     : AskServer(call.index, call.action, call.step));
    if (!call.to_worker && IsUnanswered(answers.back().status())) silent.insert(call.index);
  }
  return answers;
}

void CoordinatorDriver::Poll() {
  uint64_t log_bytes = 0;
  for (const auto& server : cluster_.servers_) log_bytes = std::max(log_bytes, server.log_bytes);
  coordinator_.OnLogBytes(log_bytes);
  if (coordinator_.finished()) return;
  coordinator_.BeginRound();
  while (!coordinator_.is_idle()) CarryOut(coordinator_.TakeOperation());
  for (CheckpointAnswer& answer : coordinator_.clients().TakeAnswers())
    answers.push_back(std::move(answer));
}

void CoordinatorDriver::CarryOut(const CheckpointOperation& operation) {
  if (const auto* calls = std::get_if<std::vector<CheckpointCall>>(&operation)) {
    coordinator_.OnAnswers(cluster_.Call(*calls));
  } else if (const auto* commit = std::get_if<CommitCheckpoint>(&operation)) {
    if (on_composed) on_composed();
    const absl::Status status = store_.Commit(commit->manifest);
    coordinator_.OnCommitted(
        status,
        !absl::IsNotFound(store_.Load(commit->name, commit->manifest.generation()).status()));
  } else if (const auto* removal = std::get_if<RemoveCheckpoints>(&operation)) {
    const auto removed = store_.RemoveUnneeded(removal->keep, removal->in_progress, removal->kept);
    coordinator_.OnRemoved(removed.ok() ? removed->held_back
                                        : std::string(removed.status().message()));
  } else {
    FAIL() << "a round that waits for nothing";
  }
}

CheckpointCoordinatorTest::CheckpointCoordinatorTest()
    : store_(&disk_, kTestCheckpoints), cluster_(&disk_, 2, 2) {
  EXPECT_TRUE(store_.Prepare().ok());
  options_.num_servers = options_.num_workers = 2;
  options_.manifest = EmptyManifest({kTestGeneration, Step(0)}, 2);
  options_.manifest.clear_shards();
  options_.samples_through = [](Step step) { return 10 * (step.value() + 1); };
}

CoordinatorDriver& CheckpointCoordinatorTest::driver() {
  if (driver_ == nullptr) {
    driver_ = std::make_unique<CoordinatorDriver>(options_, &cluster_, &store_);
  }
  return *driver_;
}

void CheckpointCoordinatorTest::Poll(int rounds) {
  for (int i = 0; i < rounds; ++i) driver().Poll();
}

std::vector<absl::StatusOr<std::string>> CheckpointCoordinatorTest::Answers(const std::string& id) {
  std::vector<absl::StatusOr<std::string>> names;
  for (const CheckpointAnswer& answer : driver().answers) {
    if (answer.id == id) names.push_back(answer.name);
  }
  return names;
}

std::string CheckpointCoordinatorTest::ReplaceServer(size_t index) {
  coordinator().OnServerReplaced(index);
  return coordinator().newest();
}

std::vector<std::string> CheckpointCoordinatorTest::Names() const {
  std::vector<std::string> names;
  const auto list = store_.List();
  for (const ListedCheckpoint& listed : *list) {
    EXPECT_TRUE(listed.status.ok()) << listed.status;
    names.push_back(listed.name);
  }
  return names;
}

std::optional<int64_t> CheckpointCoordinatorTest::NamedCut(size_t server) const {
  const auto& cuts = cluster_.servers_[server].cuts;
  if (cuts.size() != 1) return std::nullopt;
  return cuts.begin()->first;
}

}  // namespace thermocline
