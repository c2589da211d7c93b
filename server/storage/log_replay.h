// The read side of a push log: gives every record back, in order, and tells a torn end from damage.
//
// A crash of the host may leave anything of what was not synced: half a record, or a later one
// without an earlier. That is cut off, and said. What was synced must be there whole: damage there
// stops the recovery.
#ifndef THERMOCLINE_SERVER_STORAGE_LOG_REPLAY_H_
#define THERMOCLINE_SERVER_STORAGE_LOG_REPLAY_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/disk/disk.h"
#include "server/storage/log_format.h"
#include "server/storage/push_log.h"

namespace thermocline {

struct LogRecord {
  Lsn lsn;
  uint32_t type = 0;
  absl::string_view payload;  // valid during the visit
  std::string where;          // file and offset, for messages
};

using LogVisitor = absl::FunctionRef<absl::StatusOr<Step>(const LogRecord&)>;

struct ReplayResult {
  LogHistory history;
  uint64_t records = 0;  // that are left
  // Where the torn end began, and what was cut off; empty and 0 where there was none.
  std::string torn_at;
  uint64_t torn_bytes = 0;
};

// Visits the records of the log of `identity` in `directory`; segments of another generation are
// left alone. Segments whose records are all of steps up to `covered` may have been dropped from
// its beginning. Cuts a torn end off. All that is left is synced.
//
// `visit` gives the record's step (as PushLog::Append took it).
//
// REQUIRES: nobody writes to the log (Disk::Lock).
// Errors: kDataLoss (damage in what was synced, a gap, another format or job: names file and
// offset), the disk's, and what `visit` returns.
absl::StatusOr<ReplayResult> ReplayPushLog(Disk* disk, const std::string& directory,
                                           const LogIdentity& identity, Step covered,
                                           LogVisitor visit);

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_LOG_REPLAY_H_
