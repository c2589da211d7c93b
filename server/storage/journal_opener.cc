#include "server/storage/journal_opener.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/storage/log_replay.h"
#include "server/storage/push_record.h"

namespace thermocline {
namespace {

absl::StatusOr<wire::PushChunk> DecodeRecord(const LogRecord& record) {
  if (record.type != kPushChunkRecord) {
    return absl::FailedPreconditionError(absl::StrCat(
        record.where, ": a record of type ", record.type, ", which this program doesn't know"));
  }
  absl::StatusOr<wire::PushChunk> chunk = DecodePushRecord(record.payload);
  if (chunk.ok()) return chunk;
  return absl::Status(chunk.status().code(),
                      absl::StrCat(record.where, ": ", chunk.status().message()));
}

// The header of a segment, of whatever format; none where it can't be read as one.
absl::StatusOr<std::optional<SegmentHeader>> ReadSegmentHeader(Disk* disk,
                                                               const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> file, disk->Open(path));
  std::string bytes(std::min<uint64_t>(file->size(), kSegmentHeaderBytes), '\0');
  if (!bytes.empty()) {
    RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(&bytes[0], bytes.size())));
  }
  SegmentHeader header;
  if (DecodeSegmentHeader(bytes, &header) == SegmentHeaderState::kDamaged) {
    return std::optional<SegmentHeader>();
  }
  return std::make_optional(header);
}

}  // namespace

LogJournalOpener::LogJournalOpener(Disk* disk, TaskRunner* tasks, const LogJournalOptions& options)
    : disk_(disk), tasks_(tasks), options_(options) {}

absl::StatusOr<std::unique_ptr<PushJournal>> LogJournalOpener::Open(const JournalSpec& spec,
                                                                    Visit visit) {
  RETURN_IF_ERROR(CreateDirectories(disk_, options_.directory));
  ASSIGN_OR_RETURN(lock_, disk_->Lock(options_.directory));
  const LogIdentity identity = {JobHash(spec.job_id), spec.generation, spec.server_index};
  uint64_t skipped = 0;
  const auto visit_record = [&](const LogRecord& record) -> absl::StatusOr<Step> {
    ASSIGN_OR_RETURN(wire::PushChunk chunk, DecodeRecord(record));
    const Step step = chunk.step;
    if (step <= spec.base) {
      ++skipped;
      return step;
    }
    chunk.header.job_id = spec.job_id;
    chunk.header.generation = spec.generation;
    RETURN_IF_ERROR(visit(std::move(chunk)));
    return step;
  };
  ASSIGN_OR_RETURN(const ReplayResult replayed,
                   ReplayPushLog(disk_, options_.directory, identity, spec.base, visit_record));
  if (options_.log_line && !replayed.torn_at.empty()) {
    options_.log_line(absl::StrCat("push log: cut a torn end of ", replayed.torn_bytes,
                                   " bytes at ", replayed.torn_at,
                                   "; nothing of it had been synced"));
  }
  if (options_.log_line && replayed.records > skipped) {
    options_.log_line(absl::StrCat("push log: replayed ", replayed.records - skipped,
                                   " records from '", options_.directory, "'"));
  }
  PushLogOptions log_options;
  log_options.directory = options_.directory;
  log_options.identity = identity;
  log_options.segment_bytes = options_.segment_bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<PushLog> log,
                   PushLog::Start(disk_, log_options, replayed.history));
  RETURN_IF_ERROR(RemoveOlderGenerations(identity));
  return std::make_unique<LogJournal>(std::move(log), spec.durability, tasks_, options_.on_broken,
                                      options_.log_line);
}

// Those of another job or server, and what is damaged, are left for whoever looks into it.
absl::Status LogJournalOpener::RemoveOlderGenerations(const LogIdentity& identity) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_->List(options_.directory));
  bool removed = false;
  for (const std::string& name : names) {
    const std::optional<SegmentId> id = ParseSegmentName(name);
    if (!id.has_value() || id->generation >= identity.generation) continue;
    const std::string path = absl::StrCat(options_.directory, "/", name);
    ASSIGN_OR_RETURN(const std::optional<SegmentHeader> header, ReadSegmentHeader(disk_, path));
    if (!header.has_value() || header->identity.job_hash != identity.job_hash ||
        header->identity.server_index != identity.server_index) {
      continue;
    }
    RETURN_IF_ERROR(disk_->Remove(path));
    removed = true;
  }
  return removed ? disk_->SyncDirectory(options_.directory) : absl::OkStatus();
}

}  // namespace thermocline
