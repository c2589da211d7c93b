// Finds the journal of a server's job, and what it holds.
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
#include "server/storage/log_journal.h"
#include "server/storage/push_journal.h"

namespace thermocline {

struct JournalSpec {
  std::string job_id;
  uint64_t generation = 0;
  uint32_t server_index = 0;
  LogDurability durability = LogDurability::kProcess;
  // The pushes of every worker up to this step are in the rows already.
  Step base = kNoStep;
};

class JournalOpener {
 public:
  virtual ~JournalOpener() = default;

  // Gives back, in order, every chunk that was appended for this job, generation and server, but
  // for those of pushes up to the base; then the journal that goes on from there. What is left of
  // older generations is removed. Once in the life of a process. Errors: kFailedPrecondition (in
  // use by another process, not of this job, or of another format: says what to do), kDataLoss
  // (damaged, or chunks behind the base are gone: names file and offset), kUnavailable (the disk),
  // and what `visit` returns.
  using Visit = absl::FunctionRef<absl::Status(wire::PushChunk&&)>;
  virtual absl::StatusOr<std::unique_ptr<PushJournal>> Open(const JournalSpec& spec,
                                                            Visit visit) = 0;
};

struct LogJournalOptions {
  std::string directory;  // made where it is missing; its parent exists
  uint64_t segment_bytes = uint64_t{256} << 20;
  // A final error of the journal: the process should end.
  std::function<void(const absl::Status&)> on_broken;
  // What an operator should know, such as a torn end that was cut off.
  std::function<void(absl::string_view)> log_line;
};

// Push logs in one folder, locked from Open to the end of this.
class LogJournalOpener : public JournalOpener {
 public:
  // `disk` and `tasks` (see LogJournal) outlive this and the journal.
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
