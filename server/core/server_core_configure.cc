// How a server gets its job, and where its rows come from.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/server_core_impl.h"

namespace thermocline {

// A server that was restarted is configured again: whoever asks before that comes again.
absl::StatusOr<ServedJob*> ServerCore::Impl::FindJob() const {
  ServedJob* found = job.load(std::memory_order_acquire);
  if (found == nullptr) return absl::UnavailableError("this server is not configured yet");
  return found;
}

absl::Status ServerCore::Impl::Configure(const ServerConfig& config) {
  RETURN_IF_ERROR(ValidateServerConfig(config));
  ServedJob* new_job;
  {
    absl::MutexLock lock(&mutex);
    if (shut_down) return ShuttingDown();
    if (owned_job != nullptr) return CheckConfigured(config);
    if (config.durability.has_value() && journals == nullptr) {
      return absl::FailedPreconditionError(
          "the job wants a push log, and this server was started without a folder for it");
    }
    owned_job = std::make_unique<ServedJob>(config, limits.apply_threads);
    new_job = owned_job.get();
    pushes.emplace(config.num_workers, limits.max_pending_push_bytes);
    recovering = true;
  }
  const absl::Status recovered = Recover(new_job);
  absl::MutexLock lock(&mutex);
  recovery = recovered;
  recovering = false;
  if (recovered.ok()) job.store(new_job, std::memory_order_release);
  return recovered;
}

absl::Status ServerCore::Impl::CheckConfigured(const ServerConfig& config) {
  const std::string difference = DescribeDifference(owned_job->config, config);
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server is configured already, and differently: ", difference));
  }
  if (!recovering) return recovery;
  return absl::UnavailableError(
      absl::StrCat("recovering: ", replayed_parts.load(), " parts of pushes are replayed so far"));
}

// Nobody else uses the tables, the applier or the pushes before `job` is set.
absl::Status ServerCore::Impl::Recover(ServedJob* new_job) {
  const ServerConfig& config = new_job->config;
  if (!config.durability.has_value()) return absl::OkStatus();
  const auto replay = [&](wire::PushPart&& part) -> absl::Status {
    RETURN_IF_ERROR(new_job->validation.CheckPush(part));
    {
      absl::MutexLock lock(&mutex);
      if (shut_down) return ShuttingDown();
      RETURN_IF_ERROR(pushes->ReplayPart(std::move(part)));
      applying = pushes->NextIsComplete();
    }
    ++replayed_parts;
    RunApplier(new_job);
    return absl::OkStatus();
  };
  const JournalSpec spec = {config.job_id, config.epoch, config.server_index.value(),
                            *config.durability};
  ASSIGN_OR_RETURN(journal, journals->Open(spec, replay));
  absl::MutexLock lock(&mutex);
  pushes->WriteTo(journal.get());
  return absl::OkStatus();
}

}  // namespace thermocline
