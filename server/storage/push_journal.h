// Where a server writes the chunks of pushes before they count, and gets them back when it starts.
// Interfaces: the simulation has journals that lose what they were given.
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
  kProcess,  // Survives the death of the process.
  kHost,     // Survives the host: synced, one sync for all that wait.
};

class PushJournal {
 public:
  virtual ~PushJournal() = default;

  // Writes a chunk; from then on it survives the death of this process. Calls must not overlap.
  // Errors: kResourceExhausted (the disk is full; nothing was written, a later call may succeed);
  // any other is final.
  virtual absl::Status Append(const wire::PushChunk& chunk) = 0;

  // Runs `done` once everything appended so far is as durable as the job wants it, perhaps before
  // the call returns; with an error where that will never be. Thread-safe.
  using Done = std::function<void(const absl::Status&)>;
  virtual void WhenDurable(Done done) = 0;

  // Nothing up to this step is needed any more: what holds pushes that end there at the latest may
  // go. Takes some disk operations. Thread-safe. Errors: kUnavailable (the disk): nothing is lost;
  // if it is final, the next Append says so, too.
  virtual absl::Status DropThroughStep(Step step) = 0;

  // On the disk. Thread-safe.
  virtual uint64_t bytes() const = 0;

  // Why the last Append was refused for want of room on the disk; "": it was not. Thread-safe.
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

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_PUSH_JOURNAL_H_
