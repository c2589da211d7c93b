// Cuts, and how checkpoints are written of them.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/checkpoint_store.h"
#include "proto/parameter_server.pb.h"
#include "server/core/server_core_impl.h"

namespace thermocline {
namespace {

double SecondsBetween(int64_t start_us, int64_t end_us) {
  return static_cast<double>(end_us - start_us) / 1e6;
}

}  // namespace

void ServerCore::Impl::Checkpoint(const CheckpointRequest& request, CheckpointDone done) {
  const absl::StatusOr<ServedJob*> found = FindJob();
  if (!found.ok()) return done(found.status());
  const absl::Status valid = (*found)->validation.CheckJob(request.job_id(), request.generation());
  if (!valid.ok()) return done(valid);
  if (request.action() == CheckpointRequest::COMMITTED) {
    const absl::Status committed = CheckCommitted((*found)->config, Step(request.step()));
    if (!committed.ok()) return done(committed);
  }
  CheckpointReply reply;
  CheckpointShard to_remove;
  absl::Status taken;
  bool apply = false;
  {
    absl::MutexLock lock(&mutex);
    taken = shut_down ? ShuttingDown() : TakeCheckpointAction(request, &to_remove);
    cuts->CopyTo(&reply);
    reply.set_newest_sequence(checkpoint_requests.newest());
    reply.set_complete_through(pushes->complete_through().value());
    reply.set_accepted_through(pushes->accepted_through().value());
    apply = StartApplying();
  }
  RemoveFiles(to_remove);
  if (taken.ok() && request.action() == CheckpointRequest::COMMITTED && journal != nullptr) {
    taken = journal->DropThroughStep(Step(request.step()));
  }
  if (taken.ok()) {
    done(std::move(reply));
  } else {
    done(taken);
  }
  if (apply) RunApplier(*found);
}

// Refuses COMMITTED for a step whose manifest is not in the checkpoint directory. The server drops
// its push log up to a committed step, so it reads the manifest itself instead of trusting the
// request. Steps up to the last commit are not checked: the log was dropped up to there already,
// and newer checkpoints may have replaced theirs.
absl::Status ServerCore::Impl::CheckCommitted(const ServerConfig& config, Step step) {
  // TakeCheckpointAction has errors for these.
  if (step < Step(0) || step > kLastStep || config.checkpoint_directory.empty()) {
    return absl::OkStatus();
  }
  {
    absl::MutexLock lock(&mutex);
    if (step <= cuts->committed()) return absl::OkStatus();
  }
  const CheckpointStore store(checkpoints.disk, config.checkpoint_directory);
  const std::string name = CheckpointName(step);
  const auto wrong = [&name](const auto&... what) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint ", name, " is not committed: ", what...));
  };
  // A checkpoint of the same step that an earlier generation made doesn't contain these pushes.
  const absl::StatusOr<CheckpointManifest> manifest = store.Load(name, config.generation);
  if (absl::IsUnavailable(manifest.status())) return manifest.status();
  if (!manifest.ok()) return wrong(manifest.status().message());
  if (manifest->job_id() != config.job_id) return wrong("it is of job '", manifest->job_id(), "'");
  if (manifest->num_servers() != config.num_servers) {
    return wrong("it has shards of ", manifest->num_servers(), " servers, of ", config.num_servers);
  }
  return absl::OkStatus();
}

absl::Status ServerCore::Impl::TakeCheckpointAction(const CheckpointRequest& request,
                                                    CheckpointShard* to_remove) {
  if (request.action() == CheckpointRequest::STATUS) return absl::OkStatus();
  const Step step(request.step());
  if (step < Step(0) || step > kLastStep) {
    return absl::InvalidArgumentError(absl::StrCat("a checkpoint of step ", step.value()));
  }
  if (owned_job->config.checkpoint_directory.empty()) {
    return absl::FailedPreconditionError("the job has no folder for checkpoints");
  }
  RETURN_IF_ERROR(checkpoint_requests.Take(request.sequence()));
  switch (request.action()) {
    case CheckpointRequest::NAME_CUT:
      return cuts->Name(step, pushes->CanCutAt(step));
    case CheckpointRequest::CALL_OFF: {
      ASSIGN_OR_RETURN(*to_remove, cuts->CallOff(step));
      break;
    }
    case CheckpointRequest::COMMITTED:
      RETURN_IF_ERROR(cuts->Commit(step, pushes->complete_through()));
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("unknown action ", request.action()));
  }
  const std::optional<Step> writing = cuts->writing();
  if (writing.has_value() && !cuts->IsOpen(*writing) && shard_writer != nullptr) {
    shard_writer->Cancel();
  }
  return absl::OkStatus();
}

bool ServerCore::Impl::CutIsDue() const { return cuts->IsDue(pushes->complete_through()); }

// Nothing is applied until this returns. REQUIRES: this thread set `applying`.
void ServerCore::Impl::BeginCut(ServedJob* current_job, Step cut, Step base_step) {
  const ServerConfig& config = current_job->config;
  const int64_t begun_us = scheduler->NowMicros();
  const TraceSpan span("cut checkpoint", cut);
  ShardWriter::Spec spec;
  spec.cut = cut;
  spec.directory = config.checkpoint_directory;
  for (uint32_t number = 0; number < checkpoints.num_files; ++number) {
    spec.paths.push_back(RowsFilePath({config.generation, cut},
                                      {config.server_index, checkpoints.incarnation}, number));
  }
  spec.server = config.server_index;
  spec.generation = config.generation;
  spec.base_step = base_step;
  for (size_t i = 0; i < current_job->tables.size(); ++i) {
    EmbeddingTable& table = current_job->tables.at(i).table;
    spec.sources.push_back({table.layout().id, static_cast<size_t>(table.layout().row_floats()),
                            table.BeginSnapshot(cut, base_step)});
    if (table.layout().max_rows == 0) continue;
    RowLimit& limit = spec.row_limits.emplace_back();
    limit.set_table(table.layout().id.value());
    limit.set_oldest_kept(table.oldest_kept());
  }
  std::sort(spec.sources.begin(), spec.sources.end(),
            [](const auto& a, const auto& b) { return a.table < b.table; });
  std::sort(spec.row_limits.begin(), spec.row_limits.end(),
            [](const RowLimit& a, const RowLimit& b) { return a.table() < b.table(); });
  spec.on_read = [weak = weak_from_this()] {
    if (const std::shared_ptr<Impl> self = weak.lock()) self->GoOnAfterRead();
  };
  const double share_bytes =
      limits.max_old_image_share * static_cast<double>(current_job->tables.row_bytes_in_memory());
  absl::MutexLock lock(&mutex);
  max_old_image_bytes = std::max(limits.min_old_image_bytes, static_cast<uint64_t>(share_bytes));
  if (shut_down || !cuts->IsOpen(cut)) {  // Called off meanwhile.
    cuts->End(absl::CancelledError("the checkpoint was called off"), 0);
    return;
  }
  shard_writer = ShardWriter::Start(
      checkpoints, std::move(spec),
      [weak = weak_from_this(), begun_us](const absl::StatusOr<CheckpointShard>& shard) {
        if (const std::shared_ptr<Impl> self = weak.lock()) self->EndCut(begun_us, shard);
      });
  cuts->SetPause(cut, SecondsBetween(begun_us, scheduler->NowMicros()));
}

bool ServerCore::Impl::OldImagesAreFull() const {
  return shard_writer != nullptr && owned_job->tables.old_image_bytes() > max_old_image_bytes;
}

void ServerCore::Impl::GoOnAfterRead() {
  {
    absl::MutexLock lock(&mutex);
    if (!waits_for_images || OldImagesAreFull()) return;
    waits_for_images = false;
  }
  ScheduleApplier();
}

void ServerCore::Impl::EndCut(int64_t begun_us, const absl::StatusOr<CheckpointShard>& shard) {
  std::shared_ptr<ShardWriter> writer;
  bool kept;
  {
    absl::MutexLock lock(&mutex);
    writer = std::move(shard_writer);
    kept = cuts->End(shard, SecondsBetween(begun_us, scheduler->NowMicros()));
  }
  GoOnAfterRead();
  if (!kept && shard.ok()) RemoveFiles(*shard);
}

// Files that can't be removed now are removed later with others that no checkpoint needs.
void ServerCore::Impl::RemoveFiles(const CheckpointShard& shard) {
  const std::string& directory = job.load()->config.checkpoint_directory;
  for (const CheckpointFile& file : shard.files()) {
    checkpoints.disk->Remove(absl::StrCat(directory, "/", file.path())).IgnoreError();
  }
}

}  // namespace thermocline
