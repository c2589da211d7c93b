// Where a server writes the parts of pushes before they count.
#ifndef THERMOCLINE_SERVER_STORAGE_PUSH_JOURNAL_H_
#define THERMOCLINE_SERVER_STORAGE_PUSH_JOURNAL_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
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

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_PUSH_JOURNAL_H_
