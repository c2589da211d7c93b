// PushJournal on a push log.
#ifndef THERMOCLINE_SERVER_STORAGE_LOG_JOURNAL_H_
#define THERMOCLINE_SERVER_STORAGE_LOG_JOURNAL_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/scheduler.h"
#include "server/storage/push_journal.h"
#include "server/storage/push_log.h"

namespace thermocline {

class LogJournal : public PushJournal {
 public:
  // `scheduler` runs the syncs, which block its thread; it outlives this. `on_broken` runs once,
  // with the first final error: the process should end.
  using OnBroken = std::function<void(const absl::Status&)>;
  LogJournal(std::unique_ptr<PushLog> log, LogDurability durability, Scheduler* scheduler,
             OnBroken on_broken);
  // Whoever still waits gets kUnavailable.
  ~LogJournal() override;

  absl::Status Append(const wire::PushPart& part) override;
  void WhenDurable(Done done) override;
  absl::Status DropThroughStep(Step step) override;
  uint64_t bytes() const override;

  const PushLog& log() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_LOG_JOURNAL_H_
