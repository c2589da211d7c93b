// Finds the push log of a server's job, gives back the pushes in it, and goes on with it.
//
// A crash of the host may damage whatever was not synced: it may leave half a record, or a later
// one without an earlier one. This torn end is cut off, and a log line says so. Records that were
// synced must be whole: damage there stops the recovery.
#ifndef THERMOCLINE_SERVER_STORAGE_JOURNAL_OPENER_H_
#define THERMOCLINE_SERVER_STORAGE_JOURNAL_OPENER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/task_queue.h"
#include "common/disk/disk.h"
#include "common/wire/messages.h"
#include "server/storage/log_format.h"
#include "server/storage/push_journal.h"
#include "server/storage/push_log.h"

namespace thermocline {

struct LogRecord {
  Lsn lsn;
  uint32_t type = 0;
  absl::string_view payload;  // Valid during the visit.
  std::string where;          // File and offset, for messages.
};

using LogVisitor = absl::FunctionRef<absl::StatusOr<Step>(const LogRecord&)>;

struct ReplayResult {
  LogHistory history;
  uint64_t records = 0;  // In the log, without the torn end.
  // Where the torn end began, and how long it was; empty and 0 where there was none.
  std::string torn_at;
  uint64_t torn_bytes = 0;
};

// Visits the records of the log of `identity` in `directory`, cuts a torn end off, and syncs the
// rest. Segments of another generation are left alone. Segments whose records are all of steps up
// to `covered` may be missing at the beginning. `visit` returns the record's step (as
// PushLog::Append took it).
//
// REQUIRES: nothing else writes to the log (Disk::Lock).
// Errors: kDataLoss (damage in synced records, a gap, another format or job: names file and
// offset), the disk's, and what `visit` returns.
absl::StatusOr<ReplayResult> ReplayPushLog(Disk* disk, const std::string& directory,
                                           const LogIdentity& identity, Step covered,
                                           LogVisitor visit);

struct LogJournalOptions {
  std::string directory;  // Made where it is missing; its parent exists.
  uint64_t segment_bytes = uint64_t{256} << 20;
  // Called at a final error of the journal: the process should end.
  std::function<void(const absl::Status&)> on_broken;
  // Gets lines for operators, such as that a torn end was cut off.
  std::function<void(absl::string_view)> log_line;
};

// Opens push logs in one folder, which stays locked from Open until the opener is destroyed.
class LogJournalOpener : public JournalOpener {
 public:
  // `disk` and `tasks` (see LogJournal) outlive the opener and the journal.
  LogJournalOpener(Disk* disk, TaskRunner* tasks, const LogJournalOptions& options);

  absl::StatusOr<std::unique_ptr<PushJournal>> Open(const JournalSpec& spec, Visit visit) override;

 private:
  absl::Status RemoveOlderGenerations(const LogIdentity& identity);

  Disk* const disk_;
  TaskRunner* const tasks_;
  const LogJournalOptions options_;
  std::unique_ptr<DirectoryLock> lock_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_JOURNAL_OPENER_H_
