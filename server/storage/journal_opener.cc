#include "server/storage/journal_opener.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/storage/log_replay.h"
#include "server/storage/push_record.h"

namespace thermocline {

LogJournalOpener::LogJournalOpener(Disk* disk, Scheduler* sync_scheduler,
                                   const LogJournalOptions& options)
    : disk_(disk), sync_scheduler_(sync_scheduler), options_(options) {}

absl::StatusOr<std::unique_ptr<PushJournal>> LogJournalOpener::Open(const JournalSpec& spec,
                                                                    Visit visit) {
  RETURN_IF_ERROR(disk_->CreateDirectory(options_.directory));
  ASSIGN_OR_RETURN(lock_, disk_->Lock(options_.directory));
  const LogIdentity identity = {JobHash(spec.job_id), spec.epoch, spec.server_index};
  const auto visit_record = [&](const LogRecord& record) -> absl::Status {
    if (record.type != kPushPartRecord) {
      return absl::FailedPreconditionError(absl::StrCat(
          record.where, ": a record of type ", record.type, ", which this program doesn't know"));
    }
    absl::StatusOr<wire::PushPart> part = DecodePushRecord(record.payload);
    if (!part.ok()) {
      return absl::Status(part.status().code(),
                          absl::StrCat(record.where, ": ", part.status().message()));
    }
    part->header.job_id = spec.job_id;
    part->header.epoch = spec.epoch;
    return visit(*std::move(part));
  };
  ASSIGN_OR_RETURN(const ReplayResult replayed,
                   ReplayPushLog(disk_, options_.directory, identity, kNoLsn, visit_record));
  if (options_.log_line && !replayed.torn_at.empty()) {
    options_.log_line(absl::StrCat("push log: cut a torn end of ", replayed.torn_bytes,
                                   " bytes at ", replayed.torn_at,
                                   "; nothing of it had been synced"));
  }
  if (options_.log_line && replayed.records > 0) {
    options_.log_line(absl::StrCat("push log: replayed ", replayed.records, " records from '",
                                   options_.directory, "'"));
  }
  PushLogOptions log_options;
  log_options.directory = options_.directory;
  log_options.identity = identity;
  log_options.segment_bytes = options_.segment_bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<PushLog> log,
                   PushLog::Start(disk_, log_options, replayed.last + 1));
  for (const ReplayedSegment& segment : replayed.segments) {
    log->Adopt(segment.first, segment.last, segment.bytes);
  }
  return std::make_unique<LogJournal>(std::move(log), spec.durability, sync_scheduler_,
                                      options_.on_broken);
}

}  // namespace thermocline
