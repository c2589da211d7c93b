// A server writes the chunks of pushes to a journal before they count, and gets them back when it
// starts. These are interfaces since the simulation has journals that lose chunks.
#ifndef THERMOCLINE_SERVER_STORAGE_PUSH_JOURNAL_H_
#define THERMOCLINE_SERVER_STORAGE_PUSH_JOURNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"

namespace thermocline {

enum class LogDurability {
  kProcess,  // A push survives the death of the process.
  kHost,     // A push survives the host: it is synced, with one sync for all that wait.
};

class PushJournal {
 public:
  virtual ~PushJournal() = default;

  // Writes a chunk, which then survives the death of this process. Calls must not overlap. Errors:
  // kResourceExhausted (the disk is full; nothing was written, and a later call may succeed); any
  // other error is final.
  virtual absl::Status Append(const wire::PushChunk& chunk) = 0;

  // Calls `done` once everything appended so far is as durable as the job wants it, perhaps before
  // this returns; or with an error if it never will be. Thread-safe.
  using Done = std::function<void(const absl::Status&)>;
  virtual void WhenDurable(Done done) = 0;

  // Pushes up to this step are not needed any more, and files that hold no later ones may be
  // removed. Takes some disk operations. Thread-safe. Errors: kUnavailable (the disk). No push is
  // lost then; if the error is final, the next Append returns it, too.
  virtual absl::Status DropThroughStep(Step step) = 0;

  // Bytes on the disk. Thread-safe.
  virtual uint64_t bytes() const = 0;

  // The message of the last Append if the disk was full, else "". Thread-safe.
  virtual std::string full() const = 0;
};

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

  // Gives `visit`, in order, every chunk that was appended for this job, generation and server and
  // is of a step after the base. Returns the journal that goes on from there. Removes files of
  // older generations. May be called once in a process. Errors: kFailedPrecondition (in use by
  // another process, of another job or format: says what to do), kDataLoss (damaged, or chunks
  // after the base are missing: names file and offset), kUnavailable (the disk), and those of
  // `visit`.
  using Visit = absl::FunctionRef<absl::Status(wire::PushChunk&&)>;
  virtual absl::StatusOr<std::unique_ptr<PushJournal>> Open(const JournalSpec& spec,
                                                            Visit visit) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_PUSH_JOURNAL_H_
