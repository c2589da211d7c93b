#include "server/core/testing/checkpointed_server.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "gtest/gtest.h"

namespace thermocline::testing_core {

CheckpointedServer::CheckpointedServer(SimulatedDisk* disk, const ServerConfig& config,
                                       std::string folder, uint64_t incarnation)
    : disk_(disk), config_(config), folder_(std::move(folder)), incarnation_(incarnation) {
  config_.checkpoint_directory = kCheckpoints;
  Start();
}

void CheckpointedServer::Start() {
  broken_ = false;
  LogJournalOptions options;
  options.directory = folder_;
  options.segment_bytes = 500;
  options.on_broken = [this](const absl::Status&) { broken_ = true; };
  scheduler_ = std::make_unique<VirtualScheduler>();
  writes_ = std::make_unique<VirtualScheduler>();
  opener_ = std::make_unique<LogJournalOpener>(disk_, scheduler_.get(), options);
  SpillIo spill;
  spill.stores = &stores_;
  spill.on_broken = [](const absl::Status& status) { ADD_FAILURE() << status; };
  limits_.load_threads = 2;
  // Up to three files a shard.
  const CheckpointIo io = {disk_, writes_.get(), ++incarnation_, 3};
  core_ = std::make_unique<ServerCore>(limits_, scheduler_.get(), opener_.get(), io, spill);
}

void CheckpointedServer::Die(std::mt19937_64* random) {
  disk_->DieAfter(0);
  core_.reset();
  opener_.reset();
  writes_.reset();
  scheduler_.reset();
  random != nullptr ? disk_->CrashHost(random) : disk_->CrashProcess();
  Start();
}

absl::StatusOr<wire::PushAnswer> CheckpointedServer::Push(wire::PushChunk chunk) {
  chunk.header.generation = config_.generation;
  auto answer = std::make_shared<std::optional<absl::StatusOr<wire::PushAnswer>>>();
  core_->Push(std::move(chunk),
              [answer](absl::StatusOr<wire::PushAnswer> a) { answer->emplace(std::move(a)); });
  while (!answer->has_value()) EXPECT_TRUE(scheduler_->RunNext());
  if (!log_tasks_are_left_) scheduler_->Advance(0);
  return **answer;
}

absl::StatusOr<wire::PullAnswer> CheckpointedServer::Pull(wire::PullRequest pull) {
  pull.header.generation = config_.generation;
  auto answer = std::make_shared<std::optional<absl::StatusOr<wire::PullAnswer>>>();
  core_->Pull(pull,
              [answer](absl::StatusOr<wire::PullAnswer> a) { answer->emplace(std::move(a)); });
  while (!answer->has_value()) EXPECT_TRUE(scheduler_->RunNext());
  return **answer;
}

absl::StatusOr<CheckpointReply> CheckpointedServer::Checkpoint(CheckpointRequest::Action action,
                                                               int64_t step, uint64_t sequence) {
  CheckpointRequest request;
  request.set_job_id(config_.job_id);
  request.set_generation(config_.generation);
  request.set_action(action);
  request.set_step(step);
  request.set_sequence(sequence);
  absl::StatusOr<CheckpointReply> reply = absl::UnknownError("no answer");
  core_->Checkpoint(request, [&](absl::StatusOr<CheckpointReply> r) { reply = std::move(r); });
  return reply;
}

std::optional<CutStatus> CheckpointedServer::CutAt(int64_t step) {
  const absl::StatusOr<CheckpointReply> reply = Checkpoint(CheckpointRequest::STATUS);
  EXPECT_TRUE(reply.ok()) << reply.status();
  for (const CutStatus& cut : reply->cuts()) {
    if (cut.step() == step) return cut;
  }
  return std::nullopt;
}

HeldRows CheckpointedServer::Rows() {
  HeldRows rows;
  for (const TableLayout& table : config_.tables) {
    const uint32_t id = table.id.value();
    EXPECT_TRUE(
        core_
            ->VisitRows(table.id,
                        [&](Key key, absl::Span<const float> row, uint32_t count, Step changed) {
                          rows[{id, key}] = {{row.begin(), row.end()}, count, changed};
                        })
            .ok());
  }
  return rows;
}

Digest CheckpointedServer::ComputeDigest() {
  Digest digest;
  core_->ComputeDigest(config_.job_id, config_.generation,
                       [&](absl::StatusOr<ServerCore::DigestAnswer> answer) {
                         EXPECT_TRUE(answer.ok()) << answer.status();
                         digest = answer->digest;
                       });
  return digest;
}

absl::StatusOr<CheckpointManifest> ComposeManifest(const CheckpointStore& store,
                                                   const ServerConfig& config, int64_t step,
                                                   const std::vector<CheckpointShard>& written) {
  CheckpointManifest manifest;
  manifest.set_format_version(kCheckpointFormatVersion);
  manifest.set_job_id(config.job_id);
  manifest.set_generation(config.generation);
  manifest.set_step(step);
  manifest.set_num_servers(config.num_servers);
  manifest.set_num_workers(config.num_workers);
  manifest.set_seed(config.seed);
  for (const TableLayout& table : config.tables) *manifest.add_tables() = TableLayoutToProto(table);
  for (const CheckpointShard& chunk : written) {
    CheckpointShard* whole = manifest.add_shards();
    *whole = chunk;
    if (chunk.base_step() < 0) continue;
    const absl::StatusOr<CheckpointManifest> base =
        store.Load(CheckpointName(Step(chunk.base_step())));
    if (!base.ok()) return base.status();
    *whole->mutable_files() = base->shards(static_cast<int>(chunk.server_index())).files();
    whole->mutable_files()->MergeFrom(chunk.files());
  }
  return manifest;
}

wire::PushChunk RandomChunk(uint32_t rank, int64_t step, uint32_t chunk, uint32_t num_chunks,
                            uint32_t server, uint32_t num_servers, Key num_keys) {
  std::mt19937 random(static_cast<uint32_t>(step * 100 + rank * 10 + chunk));
  wire::PushChunk push = MakeChunk(rank, step, chunk, num_chunks);
  for (uint32_t table = 0; table < 2; ++table) {
    const int dim = table == 0 ? 2 : 1;
    std::vector<Key> keys, counted;
    std::vector<float> values;
    for (Key key = chunk; key < num_keys; key += num_chunks) {
      const bool pushed = random() % 3 == 0;
      const bool has_gradient = random() % 5 != 0;
      std::vector<float> gradient;
      for (int i = 0; i < dim; ++i) gradient.push_back(static_cast<float>(random() % 1000) / 7);
      const uint64_t hash = KeyHash(TableSalt(TableId(table)), key);
      if (!pushed || ClusterMap(num_servers).ServerOfHash(hash) != ServerIndex(server)) continue;
      if (!has_gradient) {
        counted.push_back(key);
        continue;
      }
      keys.push_back(key);
      values.insert(values.end(), gradient.begin(), gradient.end());
    }
    AddRange(&push, table, keys, values);
    AddRange(&push, table, counted, {}, wire::PushKind::kCount);
  }
  return push;
}

}  // namespace thermocline::testing_core
