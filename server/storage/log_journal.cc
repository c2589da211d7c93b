#include "server/storage/log_journal.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/storage/push_record.h"

namespace thermocline {

// Shared with the task under way, which may outlast the journal; those behind it do nothing then.
struct LogJournal::State {
  void SyncAll();
  void EndFullSegment();
  void Break(const absl::Status& status);
  void NoteRoom(const absl::Status& appended);

  std::unique_ptr<PushLog> log;
  LogDurability durability = LogDurability::kProcess;
  TaskRunner* tasks = nullptr;
  OnBroken on_broken;
  LogLine log_line;

  absl::Mutex mutex;
  std::vector<Done> waiting ABSL_GUARDED_BY(mutex);  // for the next sync
  bool sync_scheduled ABSL_GUARDED_BY(mutex) = false;
  bool end_scheduled ABSL_GUARDED_BY(mutex) = false;
  bool broken ABSL_GUARDED_BY(mutex) = false;
  std::string full ABSL_GUARDED_BY(mutex);  // Why the last append was refused; "": it was not.
};

void LogJournal::State::SyncAll() {
  std::vector<Done> covered;
  {
    absl::MutexLock lock(&mutex);
    sync_scheduled = false;
    covered.swap(waiting);  // Their records are all in the log by now.
  }
  if (covered.empty()) return;
  const absl::Status status = log->Sync();
  if (!status.ok()) Break(status);
  for (const Done& done : covered) done(status);
}

void LogJournal::State::EndFullSegment() {
  const absl::Status ended = log->EndFullSegment();
  if (!ended.ok()) Break(ended);
  absl::MutexLock lock(&mutex);
  end_scheduled = false;
}

void LogJournal::State::Break(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex);
    if (broken) return;
    broken = true;
  }
  if (on_broken) on_broken(status);
}

// The disk is full, or there is room: said in the log when it changes.
void LogJournal::State::NoteRoom(const absl::Status& appended) {
  std::string line;
  {
    absl::MutexLock lock(&mutex);
    const bool was_full = !full.empty();
    full = std::string(appended.message());
    if (was_full == !full.empty()) return;
    line = full.empty() ? "push log: there is room again, pushes are taken"
                        : absl::StrCat("push log: ", full,
                                       "; pushes are refused, and repeated, until there is room");
  }
  if (log_line) log_line(line);
}

LogJournal::LogJournal(std::unique_ptr<PushLog> log, LogDurability durability, TaskRunner* tasks,
                       OnBroken on_broken, LogLine log_line)
    : state_(std::make_shared<State>()) {
  state_->log = std::move(log);
  state_->durability = durability;
  state_->tasks = tasks;
  state_->on_broken = std::move(on_broken);
  state_->log_line = std::move(log_line);
}

LogJournal::~LogJournal() {
  std::vector<Done> dropped;
  {
    absl::MutexLock lock(&state_->mutex);
    dropped.swap(state_->waiting);
  }
  for (const Done& done : dropped) done(absl::UnavailableError("this server is shutting down"));
}

absl::Status LogJournal::Append(const wire::PushChunk& chunk) {
  const PushRecord record(chunk);
  absl::Status status = state_->log->Append(kPushChunkRecord, chunk.step, record.pieces()).status();
  if (status.ok() || absl::IsResourceExhausted(status)) {
    state_->NoteRoom(status);
  } else {
    state_->Break(status);
  }
  if (!state_->log->segment_is_full()) return status;
  {
    absl::MutexLock lock(&state_->mutex);
    if (std::exchange(state_->end_scheduled, true)) return status;
  }
  state_->tasks->Run([weak = std::weak_ptr<State>(state_)] {
    if (const std::shared_ptr<State> state = weak.lock()) state->EndFullSegment();
  });
  return status;
}

void LogJournal::WhenDurable(Done done) {
  if (state_->durability == LogDurability::kProcess) return done(absl::OkStatus());
  bool schedule = false;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->waiting.push_back(std::move(done));
    schedule = !state_->sync_scheduled;
    state_->sync_scheduled = true;
  }
  if (!schedule) return;
  state_->tasks->Run([weak = std::weak_ptr<State>(state_)] {
    if (const std::shared_ptr<State> state = weak.lock()) state->SyncAll();
  });
}

absl::Status LogJournal::DropThroughStep(Step step) {
  absl::Status dropped = state_->log->DropThroughStep(step);
  if (!dropped.ok()) {
    const absl::Status broken = state_->log->broken();
    if (!broken.ok()) state_->Break(broken);
  }
  return dropped;
}

uint64_t LogJournal::bytes() const { return state_->log->bytes(); }

std::string LogJournal::full() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->full;
}

const PushLog& LogJournal::log() const { return *state_->log; }

}  // namespace thermocline
