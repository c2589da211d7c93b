// PushJournal on a push log.
#ifndef THERMOCLINE_SERVER_STORAGE_LOG_JOURNAL_H_
#define THERMOCLINE_SERVER_STORAGE_LOG_JOURNAL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/task_queue.h"
#include "server/storage/push_journal.h"
#include "server/storage/push_log.h"

namespace thermocline {

class LogJournal : public PushJournal {
 public:
  // `tasks` runs the syncs and ends full segments, which waits for the disk; it outlives this.
  // `on_broken` runs once, with the first final error: the process should end. `log_line` says when
  // the disk is full, and when it no longer is; maybe null.
  using OnBroken = std::function<void(const absl::Status&)>;
  using LogLine = std::function<void(absl::string_view)>;
  LogJournal(std::unique_ptr<PushLog> log, LogDurability durability, TaskRunner* tasks,
             OnBroken on_broken, LogLine log_line = nullptr);
  // Whoever still waits gets kUnavailable.
  ~LogJournal() override;

  absl::Status Append(const wire::PushChunk& chunk) override;
  void WhenDurable(Done done) override;
  absl::Status DropThroughStep(Step step) override;
  uint64_t bytes() const override;
  std::string full() const override;

  const PushLog& log() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_LOG_JOURNAL_H_
