#include "server/storage/push_log.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"

namespace thermocline {
namespace {

constexpr uint64_t kWritebackBytes = 4 << 20;

// DropThroughStep ends a segment early from this fraction of segment_bytes on.
constexpr uint64_t kLargeFraction = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<PushLog>> PushLog::Start(Disk* disk, const PushLogOptions& options,
                                                        const LogHistory& history) {
  std::unique_ptr<PushLog> log(new PushLog(disk, options, history));
  const Lsn first = history.last + 1;
  const std::string path = log->PathOf(first);
  if (!history.segments.empty() && history.segments.back().number == first) {
    ASSIGN_OR_RETURN(std::shared_ptr<AppendFile> last, disk->OpenToAppend(path));
    absl::MutexLock lock(&log->mutex_);
    log->file_ = std::move(last);
    return log;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<AppendFile> file, disk->Create(path));
  EndedFile none;
  absl::Status status = log->SwitchTo(file, first, &none);
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = disk->SyncDirectory(options.directory);
  if (status.ok()) {
    absl::MutexLock lock(&log->mutex_);
    log->header_is_synced_ = true;
    return log;
  }
  disk->Remove(path).IgnoreError();  // it holds nothing
  return status;
}

PushLog::PushLog(Disk* disk, const PushLogOptions& options, const LogHistory& history)
    : disk_(disk),
      options_(options),
      segments_(history.segments.begin(), history.segments.end()),
      last_(history.last),
      newest_(history.newest),
      // A replay syncs what it keeps.
      synced_through_(last_) {}

std::string PushLog::PathOf(Lsn number) const {
  return absl::StrCat(options_.directory, "/", SegmentName({options_.identity.generation, number}));
}

absl::Status PushLog::Break(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (broken_.ok()) broken_ = status;
  return status;
}

absl::StatusOr<Lsn> PushLog::Append(uint32_t type, Step step,
                                    absl::Span<const absl::string_view> payload) {
  static constexpr char kZeros[kRecordAlignment] = {};
  absl::MutexLock appending(&append_mutex_);
  RecordHeader header;
  std::shared_ptr<AppendFile> file;
  uint64_t begin;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(broken_);
    file = file_;
    begin = segments_.back().bytes;
    header.lsn = last_ + 1;
    header.synced_through = synced_through_;
  }
  header.generation = options_.identity.generation;
  header.type = type;
  const auto header_bytes = EncodeRecordHeader(header, payload);
  std::vector<absl::string_view> pieces = {
      absl::string_view(header_bytes.data(), header_bytes.size())};
  pieces.insert(pieces.end(), payload.begin(), payload.end());
  uint64_t bytes = 0;
  for (absl::string_view piece : pieces) bytes += piece.size();
  const uint64_t padded = PaddedPayloadBytes(bytes);
  pieces.emplace_back(kZeros, padded - bytes);

  const TraceSpan span("append to log", step);
  absl::Status status = file->Append(pieces);
  if (absl::IsResourceExhausted(status)) {
    const absl::Status cut = file->Truncate(begin);
    return cut.ok() ? status : Break(cut);
  }
  if (!status.ok()) return Break(std::move(status));
  const uint64_t end = begin + padded;
  {
    absl::MutexLock lock(&mutex_);
    LogSegment& segment = segments_.back();
    last_ = segment.last = header.lsn;
    segment.newest = std::max(segment.newest, step);
    newest_ = std::max(newest_, step);
    segment.bytes = end;
  }
  // Else a sync would write all of it at once.
  if (end / kWritebackBytes > begin / kWritebackBytes) file->StartWriteback(end);
  return header.lsn;
}

absl::Status PushLog::Sync() {
  absl::MutexLock syncing(&sync_mutex_);
  return SyncThis();
}

// Syncs the last segment, and so, as sync_mutex_ is held, all of the log.
absl::Status PushLog::SyncThis() {
  std::shared_ptr<AppendFile> file;
  Lsn through;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(broken_);
    if (synced_through_ == last_) return absl::OkStatus();
    file = file_;
    through = last_;
  }
  const TraceSpan span("sync log");
  absl::Status status = file->Sync();
  if (!status.ok()) return Break(std::move(status));
  absl::MutexLock lock(&mutex_);
  synced_through_ = std::max(synced_through_, through);
  return absl::OkStatus();
}

bool PushLog::IsDue(uint64_t min_bytes) const {
  return segments_.back().last >= segments_.back().first && segments_.back().bytes >= min_bytes;
}

bool PushLog::segment_is_full() const {
  absl::MutexLock lock(&mutex_);
  return IsDue(options_.segment_bytes);
}

absl::Status PushLog::EndFullSegment() { return EndSegment(options_.segment_bytes); }

// Ends the present segment where it has `min_bytes`. What the next one's header says was synced
// includes a record of this one: a replay that finds the one and not the other notices.
absl::Status PushLog::EndSegment(uint64_t min_bytes) {
  absl::MutexLock syncing(&sync_mutex_);
  Lsn number;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(broken_);
    if (!IsDue(min_bytes)) return absl::OkStatus();
    number = last_ + 1;
  }
  RETURN_IF_ERROR(SyncThis());
  const absl::StatusOr<std::shared_ptr<AppendFile>> next = disk_->Create(PathOf(number));
  EndedFile ended;
  absl::Status status = next.status();
  if (status.ok()) {
    status = SwitchTo(*next, number, &ended);
    if (!status.ok()) {
      // It has no header: beside a later segment it would read as damage, so its name must go from
      // the medium, too.
      absl::Status removed = disk_->Remove(PathOf(number));
      if (removed.ok()) removed = disk_->SyncDirectory(options_.directory);
      if (!removed.ok()) status = std::move(removed);
    }
  }
  if (absl::IsResourceExhausted(status)) return absl::OkStatus();
  if (status.ok()) status = ended.file->Sync();
  if (status.ok()) status = (*next)->Sync();
  if (status.ok()) status = disk_->SyncDirectory(options_.directory);
  if (!status.ok()) return Break(std::move(status));
  absl::MutexLock lock(&mutex_);
  synced_through_ = std::max(synced_through_, ended.last);
  header_is_synced_ = true;
  return absl::OkStatus();
}

// From here on records go to `next`. Errors: those of writing its header.
absl::Status PushLog::SwitchTo(std::shared_ptr<AppendFile> next, Lsn number, EndedFile* ended) {
  absl::MutexLock appending(&append_mutex_);
  SegmentHeader header;
  {
    absl::MutexLock lock(&mutex_);
    header = {options_.identity, last_ + 1, newest_, synced_through_};
  }
  const auto bytes = EncodeSegmentHeader(header);
  RETURN_IF_ERROR(next->Append({absl::string_view(bytes.data(), bytes.size())}));
  absl::MutexLock lock(&mutex_);
  *ended = {std::move(file_), last_};
  file_ = std::move(next);
  header_is_synced_ = false;
  segments_.push_back({number, header.first_lsn, last_, kNoStep, bytes.size()});
  return absl::OkStatus();
}

absl::Status PushLog::DropThroughStep(Step through) {
  absl::MutexLock drop_lock(&drop_mutex_);
  RETURN_IF_ERROR(EndSegment(options_.segment_bytes / kLargeFraction));
  while (true) {
    Lsn number;
    {
      absl::MutexLock lock(&mutex_);
      // The first one that is left says what came before: its header must be on the medium.
      const size_t kept = header_is_synced_ ? 1 : 2;
      if (segments_.size() <= kept || segments_.front().newest > through) return absl::OkStatus();
      number = segments_.front().number;
    }
    RETURN_IF_ERROR(disk_->Remove(PathOf(number)));
    // One by one: a host that dies must not keep a removal and lose the one before it.
    absl::Status synced = disk_->SyncDirectory(options_.directory);
    {
      absl::MutexLock lock(&mutex_);
      segments_.pop_front();
    }
    if (!synced.ok()) return Break(std::move(synced));
  }
}

Lsn PushLog::last() const {
  absl::MutexLock lock(&mutex_);
  return last_;
}

Lsn PushLog::synced_through() const {
  absl::MutexLock lock(&mutex_);
  return synced_through_;
}

absl::Status PushLog::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

uint64_t PushLog::bytes() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const LogSegment& segment : segments_) bytes += segment.bytes;
  return bytes;
}

// LogJournal
// -----------------------------------------------------------------------------------------------

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
  NameTraceThread("push log");
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
